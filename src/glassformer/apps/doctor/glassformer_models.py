"""Property checks of glassformer's own models, with all arguments from their configuration."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.api import load
from glassformer.apps.doctor.adapter import Interface, Kind, Loss
from glassformer.apps.doctor.runner import Report, Result, check
from glassformer.common import files
from glassformer.common.chat_messages import ASSISTANT
from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import TokenHead, TransformerConfig
from glassformer.data.batching import NOT_SCORED, Example
from glassformer.data.conversations import Conversation
from glassformer.data.rows import ConversationRows
from glassformer.inference.text import end_ids_of
from glassformer.model import Model
from glassformer.models.build import Network, build_model
from glassformer.models.heads import TokenLogits
from glassformer.models.transformer import Transformer
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.loss import Objective
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.tokenization.conversations import ConversationEncoder, Scored
from glassformer.tokenization.frames import Frame
from glassformer.tokenization.tokenizer import Tokenizer

PROBED_LEN = 16
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


def check_model(model: Model | nn.Module | str | Path, *, seed: int = 0, **given: Any) -> Report:
    """Run the checks with the interface that the configuration of a model describes.

    `model` is a model directory, a loaded model, or a network of this package. A head that predicts labels is replaced
    by a token head. For a module of another package, pass the fields of `Interface` as keyword arguments; by default,
    `vocab_size` is the size of its token table (`vocabulary_of`). `checks` lists the names of the checks to run. A
    model with a chat template is also checked by `chat_mask`. Raises `UserError` for an ensemble, and for a module of
    another package without a token table and `vocab_size`.
    """
    # The network of a folder or a model
    if not isinstance(model, (Model, nn.Module)):
        model = load(files.as_path(model, "model"))
    if isinstance(model, Model):
        if model.others:
            raise UserError("an ensemble cannot be checked as a whole: check each of its models")
        report = check_model(model.network, seed=seed, **given)
        return report if model.tokenizer.chat_template is None else Report((*report.results, chat_mask(model)))
    # Modules of other packages
    checks = given.pop("checks", None)
    if not isinstance(model, Network):
        if "vocab_size" not in given:
            given["vocab_size"] = vocabulary_of(model)
        return check(model, Interface(**given), checks, seed)
    if given:
        raise UserError(f"{min(given)} applies only to modules of other packages: leave it out")
    # The interface of a network of this package
    network = _with_token_head(model)
    config = network.config
    kind: Kind = "encoder-decoder"
    if isinstance(config, TransformerConfig) and not config.is_encoder_decoder:
        kind = "encoder" if config.decoder is None else "decoder"
    losses: dict[Kind, Loss | None] = {"decoder": causal_loss, "encoder": None, "encoder-decoder": seq2seq_loss}
    interface = Interface(
        vocab_size=config.vocab_size,
        source_vocab_size=config.source_vocab_size or None,
        kind=kind,
        fresh=lambda: build_model(config),
        max_len=min(config.max_len - (kind == "encoder-decoder"), config.encoder_max_len, PROBED_LEN),
        pad_id=config.pad_id,
        loss=losses[kind],
    )
    return check(network, interface, checks, seed)


def vocabulary_of(module: nn.Module) -> int:
    """Return the size of the token table of a module: of the one with as many rows as the head has outputs, if any.

    >>> vocabulary_of(nn.ModuleDict({"positions": nn.Embedding(512, 8), "tokens": nn.Embedding(64, 8),
    ...                              "head": nn.Linear(8, 64)}))
    64

    Without such a head, it is the largest table. Raises `UserError` for a module without a table.
    """
    rows = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]
    outputs = {part.out_features for part in module.modules() if isinstance(part, nn.Linear)}
    if not rows:
        raise UserError(
            f"{type(module).__name__} has no nn.Embedding, so its vocabulary size is unknown: call check(module, "
            "vocab_size=…), with kind=… if it is not a decoder"
        )
    return max([n for n in rows if n in outputs] or rows)


def _with_token_head(network: Network) -> Network:
    if not isinstance(network, Transformer) or isinstance(network.config.head, TokenHead):
        return network
    twin = build_model(replace(network.config, head=TokenHead()))
    twin.encoder, twin.decoder = network.encoder, network.decoder
    stack = network.decoder or network.encoder
    assert stack is not None and isinstance(twin.output, TokenLogits)
    if network.config.tie_output:
        twin.output.proj.weight = stack.embeddings.tokens.weight
    return twin.to(stack.embeddings.tokens.weight.device)


def causal_loss(network: nn.Module, token_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, int]:
    """Compute the training loss of a decoder on whole rows: `CausalObjective` with its shift and padding."""
    return _loss(CausalObjective(), network, [Example(row) for row in _real_rows(token_ids, attention_mask)])


def seq2seq_loss(
    network: nn.Module,
    token_ids: Tensor,
    attention_mask: Tensor | None = None,
    source_ids: Tensor | None = None,
    source_attention_mask: Tensor | None = None,
) -> tuple[Tensor, int]:
    """Compute the training loss of an encoder-decoder: `Seq2SeqObjective` with its shift, end tokens and padding."""
    assert source_ids is not None
    config: ModelConfig = network.config  # type: ignore[assignment]
    objective = Seq2SeqObjective(config.decoder_start_id or 0, Frame(), Frame(after=(config.eos_id or 0,)))
    rows = zip(_real_rows(token_ids, attention_mask), _real_rows(source_ids, source_attention_mask), strict=True)
    return _loss(objective, network, [Example(row, source_ids=source) for row, source in rows])


def _loss(objective: Objective, network: nn.Module, examples: list[Example]) -> tuple[Tensor, int]:
    batch = objective.collate(examples, np.random.default_rng(0))
    sums = objective.loss(network, batch.to(next(network.parameters()).device))
    return sums.total, sums.n_targets


def _real_rows(ids: Tensor, mask: Tensor | None) -> Iterator[np.ndarray]:
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    return (row[kept].cpu().numpy() for row, kept in zip(ids, real, strict=True))


def chat_mask(model: Model) -> Result:
    """Check what a conversation trains: the answers with their end tokens, and nothing of the user.

    In a conversation of two turns, only the two answers are scored, each with a token that ends a generation. An answer
    of the weight 0 is not scored. The ids before an answer are those that `chat` reads, even if the answer begins with
    spaces, line breaks or digits. If the run's data scores all tokens, every token after the first one is scored. The
    detail of the result shows what is scored. Raises `UserError` for a model without a chat template.
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
    detail = f"scored{', as data.scored is all' * scores_all}: {shown or 'nothing'}"
    return Result("chat-mask", not problems, "; ".join([*problems, detail]), MEANING)


def _encoded(encoder: ConversationEncoder, scored: Scored) -> list[Example]:
    """Return the conversation as a row, with a system message if the template accepts one."""
    try:
        return ConversationRows(encoder, LONGEST, scored).encode([Conversation((SYSTEM, *TURNS))])
    except UserError:
        return ConversationRows(encoder, LONGEST, scored).encode([Conversation(TURNS, "two turns")])


def border_problems(encoder: ConversationEncoder) -> list[str]:
    """Return the problems at the beginnings of answers, and with an answer of the weight 0, as texts."""
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
    """Yield each unbroken run of scored labels.

    >>> list(scored_parts([-100, 5, 6, -100, -100, 7]))
    [[5, 6], [7]]
    """
    for is_scored, part in groupby(labels, lambda label: label != NOT_SCORED):
        if is_scored:
            yield list(part)


def mask_problems(
    scored: Sequence[Sequence[int]], answers: Sequence[str], tokenizer: Tokenizer, ends: Collection[int]
) -> list[str]:
    """Return a message for each problem: the scored parts must be the answers, each with an end token."""
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
    """Return the problems with the scored parts of a conversation whose tokens `ids` must all be scored, as texts."""
    problems = []
    n_scored = sum(map(len, scored))
    if [token for part in scored for token in part] != list(ids[1:]):
        problems.append(f"{n_scored} tokens are scored, and {len(ids) - 1} follow the first one")
    if end_id not in ends:
        problems.append("no answer has a token at its end that ends a generation")
    return problems
