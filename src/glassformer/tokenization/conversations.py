"""Conversations as ids: what a model reads before it answers, and what a training scores.

A message never becomes a control token: a special token that is written in a message is encoded as ordinary text.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from glassformer.chat_messages import FORGED, Message
from glassformer.errors import UserError
from glassformer.tokenization.chat_template import CHATML, CHATML_TOKENS, TRAINING_DAY, ChatTemplate
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.validate_tokenizer_json import ROLES

Scored = Literal["assistant", "all"]
"""Tokens that a training scores: the answers of the assistant with their end tokens, or every token after the first."""
Span = tuple[int, int]
"""First character, and the one after the last."""


@dataclass(frozen=True)
class EncodedConversation:
    """A conversation as ids, and which of them a training scores."""

    ids: list[int]
    is_scored: list[bool]
    ends: list[int]
    """The number of ids up to the end of each answer: where the conversation may be cut."""


class ConversationEncoder:
    """A tokenizer with a chat template.

    >>> tokenizer = with_template(Tokenizer.train(["user assistant 1+2=3"], vocab_size=0, scheme="char"))
    >>> encoder = ConversationEncoder(tokenizer, "the model")
    >>> encoded = encoder.encode([{"role": "user", "content": "1+2"}, {"role": "assistant", "content": "=3"}])
    >>> tokenizer.tokens(i for i, scored in zip(encoded.ids, encoded.is_scored) if scored)
    ['=', '3', '<|im_end|>']
    """

    def __init__(self, tokenizer: Tokenizer, name: str) -> None:
        """Set the tokenizer of a model called `name`; raise `UserError` if it has no chat template."""
        source = tokenizer.chat_template
        if isinstance(source, list):
            source = {one["name"]: one["template"] for one in source}.get("default")
        if source is None:
            raise UserError(
                f"{name} has no chat template, so it has not learned conversations: train it on some "
                "(objective.kind conversation), or import a model with a template"
            )
        ids = {role: getattr(tokenizer, f"{role}_id") for role in ROLES}
        tokens = {f"{role}_token": tokenizer.id_to_token(i) for role, i in ids.items() if i is not None}
        self.tokenizer, self.template = tokenizer, ChatTemplate(source, tokens)
        self._control = frozenset(tokenizer.vocab[token] for token in tokenizer.special_tokens) - {tokenizer.unk_id}
        longest_first = sorted(tokenizer.special_tokens, key=len, reverse=True)
        self._written_control = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids that a model reads before it writes the next message."""
        return self._ids(self.template.render(self._marked(messages), asks=True))[0]

    def read(self, messages: Sequence[Message]) -> list[int]:
        """Return the ids of messages: up to the end of the last answer, or up to the beginning of the next one."""
        asks = messages[-1]["role"] != "assistant"
        return self._ids(self.template.render(self._marked(messages), asks=asks))[0]

    def encode(self, messages: Sequence[Message], scored: Scored = "assistant") -> EncodedConversation:
        """Return the ids of a conversation, and which of them are scored.

        An answer is scored up to the token that ends it. Answers are the blocks `{% generation %}` of the template, as
        in transformers. Without such blocks, they are what each message of the assistant adds to the text of the
        messages before it. Raises `UserError` if there is no answer, if one has no end token, and if a message changes
        the text before it.
        """
        marked = self._marked(messages)
        text, answers = self.template.render_with_answers(marked, day=TRAINING_DAY)
        if not self.template.marks_answers:
            answers = list(self._added(marked, text))
        if not answers:
            raise UserError("no message of the assistant is in the text: there is no answer to learn")
        ids, places = self._ids(text)
        is_scored = np.zeros(len(ids), dtype=bool)
        ends = []
        for begin, end in answers:
            first, last = (int((places[:, 1] <= begin).sum()), int((places[:, 0] < end).sum()))
            after = self._after_end(ids, places, (first, last), text[:end])
            ends.append(after)
            is_scored[first : last if self.template.marks_answers else after] = True
        if scored == "all":
            is_scored[:] = True
        return EncodedConversation(ids, is_scored.tolist(), ends)

    @cached_property
    def end_id(self) -> int:
        """Id of the token that ends an answer; raises `UserError` if the template has no such token."""
        encoded = self.encode([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        return encoded.ids[encoded.ends[-1] - 1]

    def _marked(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """Return the messages with a mark before and after every special token that is written in them."""
        return [
            {**message, "content": self._written_control.sub(rf"{FORGED}\g<0>{FORGED}", message["content"])}
            for message in messages
        ]

    def _added(self, messages: Sequence[Message], text: str) -> Iterator[Span]:
        """Yield what each message of the assistant adds to the text of the messages before it."""
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self.template.render(messages[:number], asks=True, day=TRAINING_DAY)
            after = self.template.render(messages[: number + 1], day=TRAINING_DAY)
            if not (after.startswith(before) and text.startswith(after)):
                raise UserError(
                    f"message {number + 1}: the chat template changes the text of a message when others follow, so its "
                    "answers cannot be found: put {% generation %} and {% endgeneration %} around them in the template"
                )
            yield len(before), len(after)

    def _ids(self, text: str) -> tuple[list[int], np.ndarray]:
        """Return the ids of a rendered text, and the characters of each as rows (first, end)."""
        ids: list[int] = []
        places: list[Span] = []
        begin = 0
        for number, piece in enumerate(text.split(FORGED)):
            allowed = () if number % 2 else self.tokenizer.special_tokens
            new, spans = self.tokenizer.encode_with_offsets(piece, allow_special=allowed)
            ids += new
            places += [(begin + first, begin + end) for first, end in spans]
            begin += len(piece) + len(FORGED)
        return ids, np.array(places, dtype=np.int64).reshape(-1, 2)

    def _after_end(self, ids: Sequence[int], places: np.ndarray, answer: Span, text: str) -> int:
        """Return the index after the token that ends an answer, the ids of a span; `text` ends with the answer."""
        first, last = answer
        controls = [i for i in range(first, last) if ids[i] in self._control]
        if not controls or text[places[controls[-1], 1] :].strip():
            raise UserError(
                "the chat template does not end an answer with a special token of the tokenizer, so a model would "
                "never learn to stop: end each answer with one, inside of the block {% generation %} if there is one"
            )
        return controls[-1] + 1


def with_template(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with a chat template: unchanged if it has one, else with ChatML and its special tokens."""
    if tokenizer.chat_template is not None:
        return tokenizer
    return tokenizer.with_special_tokens(CHATML_TOKENS).with_chat_template(CHATML)
