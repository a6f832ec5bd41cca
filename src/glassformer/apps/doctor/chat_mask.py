"""The check of what a conversation trains: the answers with their end tokens, and nothing of the user.

With `data.scored = "all"`, it is every token after the first. An answer of the weight 0 is not scored. Answers that
begin with spaces, line breaks or digits are trained after the ids that `chat` reads before it writes them.
"""

from collections.abc import Collection, Iterator, Sequence
from itertools import groupby

import numpy as np

from glassformer.apps.doctor.runner import Result
from glassformer.common.chat_messages import ASSISTANT
from glassformer.common.errors import UserError
from glassformer.data.batching import NOT_SCORED, Example
from glassformer.data.conversations import Conversation
from glassformer.data.rows import ConversationRows
from glassformer.inference.text import end_ids_of
from glassformer.model import Model
from glassformer.objectives.causal import CausalObjective
from glassformer.tokenization.conversations import ConversationEncoder, Scored
from glassformer.tokenization.tokenizer import Tokenizer

ANSWERS = ("Four.", "Five.")
TURNS = (
    {"role": "user", "content": "What is two plus two?"},
    {"role": "assistant", "content": ANSWERS[0]},
    {"role": "user", "content": "And one more?"},
    {"role": "assistant", "content": ANSWERS[1]},
)
SYSTEM = {"role": "system", "content": "Answer in one word."}
NOT_TRAINED = tuple({**one, "weight": 0} if one["content"] == ANSWERS[0] else one for one in TURNS)
BEGINS = ("\n", "\n\n", " ", "  ", "7", "\n7")
"""Beginnings of answers that a tokenizer may join to the text before them."""
LONGEST = 1 << 20
MEANING = "It learns to write the user's words, or it never learns to end an answer."


def chat_mask(model: Model) -> Result:
    """Check the labels of two turns: exactly both answers are scored, each with a token that ends a generation.

    If the run's data scores all tokens, the whole text after its first token is scored, with these ends. The detail
    shows all that is scored. Raises `UserError` for a model without a chat template.
    """
    encoder, scores_all = model.conversation_encoder, getattr(model.run.data, "scored", None) == "all"
    try:
        rows = _encoded(encoder, "all" if scores_all else "assistant")
    except UserError as error:
        return Result("chat-mask", False, str(error), MEANING)
    labels = CausalObjective().collate(rows, np.random.default_rng(0)).labels[0].tolist()
    ends = end_ids_of(model.tokenizer, model.config, model.generation)
    scored = list(scored_parts(labels))
    if scores_all:
        problems = whole_problems(scored, rows[0].token_ids.tolist(), encoder.end_id, ends)
    else:
        problems = mask_problems(scored, ANSWERS, model.tokenizer, ends)
    problems = problems or border_problems(encoder)
    shown = " and ".join(repr(model.tokenizer.decode(part, skip_special=False)) for part in scored)
    detail = f"scored{', as data.scored is all' if scores_all else ''}: {shown or 'nothing'}"
    return Result("chat-mask", not problems, "; ".join([*problems, detail]), MEANING)


def _encoded(encoder: ConversationEncoder, scored: Scored) -> list[Example]:
    """Return the conversation as a row, with a system message if the template accepts one."""
    try:
        return ConversationRows(encoder, LONGEST, scored).encode([Conversation((SYSTEM, *TURNS))])
    except UserError:
        return ConversationRows(encoder, LONGEST, scored).encode([Conversation(TURNS, "two turns")])


def border_problems(encoder: ConversationEncoder) -> list[str]:
    """Return what is wrong where an answer begins, and with an answer of the weight 0, in words."""
    problems = []
    for begin in BEGINS:
        answer = {"role": ASSISTANT, "content": f"{begin}{ANSWERS[0]}"}
        encoded, read = encoder.encode([TURNS[0], answer]), encoder.prompt(TURNS[:1])
        if encoded.ids[: len(read)] != read:
            problems.append(f"an answer that begins with {begin!r} is trained after other ids than chat reads")
    both, last = encoder.encode(TURNS), encoder.encode(NOT_TRAINED)
    first_end = both.ends[0]
    if any(last.is_scored[:first_end]) or last.is_scored[first_end:] != both.is_scored[first_end:]:
        problems.append("an answer with the weight 0 is scored")
    return problems


def scored_parts(labels: Sequence[int]) -> Iterator[list[int]]:
    """Yield the runs of scored labels.

    >>> list(scored_parts([-100, 5, 6, -100, -100, 7]))
    [[5, 6], [7]]
    """
    for is_scored, part in groupby(labels, lambda label: label != NOT_SCORED):
        if is_scored:
            yield list(part)


def mask_problems(
    scored: Sequence[Sequence[int]], answers: Sequence[str], tokenizer: Tokenizer, ends: Collection[int]
) -> list[str]:
    """Return what is wrong with the scored parts of a conversation with these answers, in words."""
    problems = []
    if len(scored) != len(answers):
        problems.append(f"{len(scored)} parts are scored, and the conversation has {len(answers)} answers")
    for part, answer in zip(scored, answers, strict=False):
        controls = [i for i, token in enumerate(part) if token in ends]
        if not controls or tokenizer.decode(part[controls[-1] :], skip_special=True).strip():
            problems.append(f"the answer {answer!r} is scored without a token at its end that ends a generation")
        if (found := tokenizer.decode(part).strip()) != tokenizer.decode(tokenizer.encode(answer)).strip():
            problems.append(f"{found!r} is scored in place of the answer {answer!r}")
    return problems


def whole_problems(
    scored: Sequence[Sequence[int]], ids: Sequence[int], end_id: int, ends: Collection[int]
) -> list[str]:
    """Return what is wrong with the scored parts of a conversation, `ids`, whose tokens are all scored, in words."""
    problems = []
    n_scored = sum(map(len, scored))
    if [token for part in scored for token in part] != list(ids[1:]):
        problems.append(f"{n_scored} tokens are scored, and {len(ids) - 1} follow the first one")
    if end_id not in ends:
        problems.append("no answer has a token at its end that ends a generation")
    return problems
