"""Answers to questions: the most probable span of a context (Devlin 2019, section 4.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from glassformer.data.batching import Example
from glassformer.errors import UserError
from glassformer.inference.classify import predict
from glassformer.models.build import Network
from glassformer.tokenization.tokenizer import Tokenizer

MAX_OVERLAP = 128
"""Most tokens that two windows of a long context share: the default of transformers' question answering."""


@dataclass(frozen=True)
class Answer:
    """A span of a context."""

    text: str
    score: float
    """Probability of the start token times that of the end token, among the context's tokens of one window."""
    start: int
    """Index of the first character in the context."""
    end: int
    """Index after the last character."""


@dataclass(frozen=True)
class Window:
    """A row of tokens: the question and a part of the context."""

    row: Example
    begins: int
    """Index in the row of the part's first token."""
    first: int
    """Index in the context of the part's first token."""
    n_tokens: int


@dataclass(frozen=True)
class Answerer:
    """Model with two logits per token, which mark the answer to a question in a context."""

    network: Network
    tokenizer: Tokenizer
    device: torch.device | str = "cpu"

    def answer(self, questions: Sequence[str], context: str, max_tokens: int) -> list[Answer]:
        """Return the best answer of at most `max_tokens` tokens to each question.

        A context that does not fit is read in windows that overlap; the best answer of any window counts. Raises
        `UserError` for a context without tokens, and for a question that leaves no room for the context.
        """
        ids, offsets = self.tokenizer.encode_with_offsets(context)
        if not ids:
            raise UserError("the context has no token: give a text that contains the answer")
        return [self._best(question, ids, context, offsets, max_tokens) for question in questions]

    def choices(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of two choices among all tokens, the start and the end: (…, 2, T) from (…, T, 2)."""
        return logits.transpose(-1, -2)

    def _best(
        self, question: str, ids: Sequence[int], context: str, offsets: Sequence[tuple[int, int]], max_tokens: int
    ) -> Answer:
        parts = windows(self.tokenizer, question, ids, self.network.config.max_len)
        rows, spans = [part.row for part in parts], []
        for part, logits in zip(parts, predict(self.network, rows, self.device), strict=True):
            score, first, last = best_span(logits[part.begins : part.begins + part.n_tokens], max_tokens)
            spans.append((score, offsets[part.first + first][0], offsets[part.first + last][1]))
        score, start, end = max(spans, key=lambda span: span[0])
        text = context[start:end]
        start += len(text) - len(text.lstrip())  # a byte-level token may contain the space before the word
        return Answer(text.strip(), score, start, start + len(text.strip()))


def windows(tokenizer: Tokenizer, question: str, context_ids: Sequence[int], max_len: int) -> list[Window]:
    """Return the rows that contain a question and a part of the context each."""
    frame, asked = tokenizer.frames.pair, tokenizer.encode(question)
    room = max_len - frame.n_added - len(asked)
    if room < 1:
        raise UserError(
            f"the question has {len(asked):,} tokens, and the model reads at most {max_len:,} with the context: "
            "shorten the question"
        )
    parts = []
    step = room - min(MAX_OVERLAP, room // 2)
    for first in range(0, max(1, len(context_ids) - room + step), step):
        part = context_ids[first : first + room]
        ids, types = frame.around_pair(asked, part)
        row = Example(np.array(ids, dtype=np.int64), token_types=np.array(types, dtype=np.int64))
        parts.append(Window(row, len(frame.before) + len(asked) + len(frame.between), first, len(part)))
    return parts


def best_span(logits: torch.Tensor, max_tokens: int) -> tuple[float, int, int]:
    """Return the score and the first and last token of the best span; `logits` (T, 2) are those of start and end.

    >>> best_span(torch.tensor([[0.0, 9.0], [9.0, 0.0], [0.0, 5.0]]), max_tokens=2)[1:]
    (1, 2)
    """
    starts, ends = logits.double().softmax(dim=0).unbind(dim=1)
    scores = torch.outer(starts, ends).triu().tril(max_tokens - 1)
    first, last = divmod(int(scores.argmax()), len(ends))
    return float(scores[first, last]), first, last
