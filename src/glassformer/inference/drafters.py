"""Drafters: they propose the next ids of rows, which the model verifies (`Drafted`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from glassformer.common.errors import UserError
from glassformer.inference.constraints import Past
from glassformer.inference.contexts import Ids, Reader
from glassformer.inference.decodable import Decodable
from glassformer.inference.rows import Row
from glassformer.inference.sampling import Sampler, choose, draw
from glassformer.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Draft:
    """Proposed next ids of a row."""

    ids: Ids
    probabilities: Tensor | None = None
    """(k, V) the distribution q that each id was drawn from; `None` if the ids were not drawn: q(id) = 1."""


@dataclass
class DraftCounts:
    """Numbers of proposed and of accepted ids, over all rows and generations with this object."""

    n_drafted: int = 0
    n_accepted: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Accepted ids per proposed id; 0 if no id was proposed."""
        return self.n_accepted / max(1, self.n_drafted)

    def __str__(self) -> str:
        return f"accepted {self.n_accepted:,} of {self.n_drafted:,} drafted tokens ({self.acceptance_rate:.0%})"


class Drafter(Protocol):
    """Proposes the next ids of rows, in one generation."""

    counts: DraftCounts

    def draft(self, rows: Sequence[Row], limits: Sequence[int], sampler: Sampler) -> list[Draft]:
        """Propose at most `limits[i]` ids that continue the context of row i; new rows come after those before."""


class PromptLookup:
    """Drafter that copies the ids after an earlier occurrence of the last ids (Saxena 2023)."""

    def __init__(self, n_tokens: int, counts: DraftCounts | None = None) -> None:
        self.n_tokens, self.counts = n_tokens, counts or DraftCounts()

    def draft(self, rows: Sequence[Row], limits: Sequence[int], sampler: Sampler) -> list[Draft]:
        return [
            Draft(looked_up(row.context, min(limit, self.n_tokens))) for row, limit in zip(rows, limits, strict=True)
        ]


def looked_up(ids: Ids, n_tokens: int, longest: int = 3) -> list[int]:
    """Return the `n_tokens` ids after the latest earlier occurrence of the last n-gram; no ids if there is no such one.

    n is as large as possible, at most `longest`. A copy that reaches the end of `ids` continues with itself.

    >>> looked_up([1, 2, 3, 4, 9, 2, 3], 2)
    [4, 9]
    >>> looked_up([7, 5, 6, 5, 6], 5)
    [5, 6, 5, 6, 5]
    """
    begin, most = len(ids), 0
    for end in range(len(ids) - 1, 0, -1):  # an occurrence ends before `end`
        if ids[end - 1] == ids[-1]:
            n = 1
            while n < min(longest, end) and ids[end - 1 - n] == ids[-1 - n]:
                n += 1
            if n > most:
                begin, most = end, n
            if most == longest:
                break
    if not most:
        return []
    return [ids[begin + i % (len(ids) - begin)] for i in range(n_tokens)]


class ModelDrafter:
    """Drafter that generates with a smaller model with the same vocabulary (Leviathan 2023; Chen 2023).

    If a context does not fit the smaller model, it reads only the end: the beginning is dropped in parts of half of
    its context, so that most steps can use the cache.
    """

    def __init__(
        self,
        model: Decodable,
        n_tokens: int,
        *,
        max_len: int,
        device: torch.device | str = "cpu",
        counts: DraftCounts | None = None,
    ) -> None:
        self.part = max(1, max_len // 2)
        self.n_tokens, self.counts = min(n_tokens, max_len - self.part), counts or DraftCounts()
        self.reader = Reader(model, max_len, device)

    def draft(self, rows: Sequence[Row], limits: Sequence[int], sampler: Sampler) -> list[Draft]:
        n_tokens = [min(n, self.n_tokens) for n in limits]
        drafted: list[list[int]] = [[] for _ in rows]
        drawn_from: list[list[Tensor]] = [[] for _ in rows]
        contexts = [row.context[self._begin(row.n_context + n) :] for row, n in zip(rows, n_tokens, strict=True)]
        for n_drafted in range(max(n_tokens)):
            so_far = [[*ids, *more] for ids, more in zip(contexts, drafted, strict=True)]
            logits = self.reader.read(dict(zip(rows, so_far, strict=True)), [1] * len(rows))
            pasts = [Past([*row.history, *more], row.n_prompt) for row, more in zip(rows, drafted, strict=True)]
            shaped = sampler.shape(logits, pasts)
            active = [number for number, n in enumerate(n_tokens) if n > n_drafted]
            if sampler.is_greedy:
                chosen = choose(shaped[active], None)
            else:
                probabilities = shaped[active].double().softmax(dim=-1)
                uniform = [rows[number].generator.random() for number in active]
                chosen = draw(probabilities, torch.tensor(uniform, dtype=torch.float64))
                for number, q in zip(active, probabilities, strict=True):
                    drawn_from[number].append(q)
            for number, token in zip(active, chosen.tolist(), strict=True):
                drafted[number].append(token)
        drafts = []
        for ids, q in zip(drafted, drawn_from, strict=True):
            drafts.append(Draft(ids, torch.stack(q)) if q else Draft(ids))
        return drafts

    def _begin(self, length: int) -> int:
        """Return the first position that the model reads, if context and draft together have this length."""
        n_parts = -(-max(0, length - self.reader.max_len) // self.part)
        return n_parts * self.part


class Vocabulary(NamedTuple):
    """The vocabulary of a model that is to draft, or whose tokens are drafted."""

    model: str
    """The name of the model in messages."""
    size: int
    """Number of rows of the embedding table."""
    tokenizer: Tokenizer


def check_draft(prompt_lookup: int, draft: Vocabulary, own: Vocabulary) -> None:
    """Raise `UserError` if prompt lookup is on, too, or if the draft model has another vocabulary."""
    if prompt_lookup:
        raise UserError(
            f"a draft model is given, and prompt_lookup is {prompt_lookup}: use one of them (prompt_lookup = 0 is off)"
        )
    if draft.size != own.size or draft.tokenizer.vocab != own.tokenizer.vocab:
        raise UserError(
            f"the draft model {draft.model} and {own.model} have different vocabularies ({draft.size:,} and "
            f"{own.size:,} tokens): use a draft model that was trained with the same tokenizer"
        )
