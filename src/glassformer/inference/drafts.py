"""Drafts: a drafter proposes the next ids of rows, and the model verifies several of them in one step.

Greedy generation gives the same ids as with one id per step. Sampled ids have the same distribution as with one id per
step (Leviathan 2023, Algorithm 1), but with the same seed, other ids are drawn.

A step of several ids uses other kernels than a step of one id, so logits differ in the last bits. If two ids are almost
equally probable, the other one may be chosen. This is rare in fp32, and more frequent in bf16 and fp16.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from glassformer.data.batching import padded
from glassformer.inference.constraints import Past
from glassformer.inference.contexts import Context, Ids, n_shared, read_contexts, read_more
from glassformer.inference.decodable import Decodable, cropped, joined
from glassformer.inference.engine import Engine, Step
from glassformer.inference.rows import Row
from glassformer.inference.sampling import Sampler, choose, draw


@dataclass(frozen=True)
class Draft:
    """Proposed next ids of a row."""

    ids: Ids
    probabilities: Tensor | None = None
    """The distribution q (k, V) from which each id was drawn; `None` if the ids were not drawn, as if q(id) = 1."""


@dataclass
class DraftCounts:
    """Numbers of proposed and of accepted ids, over all rows and generations that use this object."""

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
        """Propose at most `limits[i]` ids after the context of row i; rows of an earlier call come before new rows."""


class PromptLookup:
    """Drafter that copies the ids after an earlier occurrence of the last ids (Saxena 2023)."""

    def __init__(self, n_tokens: int, counts: DraftCounts | None = None) -> None:
        self.n_tokens, self.counts = n_tokens, counts or DraftCounts()

    def draft(self, rows: Sequence[Row], limits: Sequence[int], sampler: Sampler) -> list[Draft]:
        return [
            Draft(looked_up(row.context, min(limit, self.n_tokens))) for row, limit in zip(rows, limits, strict=True)
        ]


def looked_up(ids: Ids, n_tokens: int, longest: int = 3) -> list[int]:
    """Return the `n_tokens` ids after the latest earlier occurrence of the last n-gram; no ids if it is new.

    n is as large as possible, at most `longest`. A copy that reaches the end of `ids` continues with its own first ids.

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


class Reader:
    """A model, and its state after the ids that it has read in each row.

    The state of a row depends only on its source and its ids. So `read` keeps the state of the first ids that the old
    and the new ids of a row share, drops the rest of the state, and reads only the new ids after these.
    """

    def __init__(self, model: Decodable, max_len: int, device: torch.device | str) -> None:
        self.model, self.max_len, self.device = model, max_len, device
        self._state: Any = None
        self._ids: dict[Row, Ids] = {}
        """The ids of each row, in the order of the state's rows."""

    @torch.inference_mode()
    def read(self, rows: Mapping[Row, Ids], n_last: Sequence[int]) -> Tensor:
        """Return the logits (Σ n, V) at the last n = `n_last[i]` ids of each row i, row after row.

        Rows of the last call that are not in `rows` are dropped. New rows must come after the others. Raises
        `UserError` if the state of the model cannot be cropped.
        """
        # Give the state the rows of this call
        begins = [len(ids) - n for ids, n in zip(rows.values(), n_last, strict=True)]
        stay = [number for number, row in enumerate(self._ids) if row in rows]
        if 0 < len(stay) < len(self._ids):
            self._state = self._state.select(torch.tensor(stay, device=self.device))
        self._ids = {row: ids for row, ids in self._ids.items() if row in rows}
        contexts = [
            Context(tuple(ids[:begin]), row.request.source)
            for (row, ids), begin in zip(rows.items(), begins, strict=True)
        ]
        new = contexts[len(self._ids) :]
        if new:
            _, state = read_contexts(self.model, new, self.max_len, self.device)
            self._state = joined(self._state, state) if self._ids else state

        # Keep the state of the ids that old and new ids share, and read the next ids up to the last ones
        read = [*self._ids.values(), *(context.ids for context in new)]
        shared = [min(n_shared(old, ids), begin) for old, ids, begin in zip(read, rows.values(), begins, strict=True)]
        self._state = cropped(self._state, shared)
        before = [ids[n:begin] for ids, n, begin in zip(rows.values(), shared, begins, strict=True)]
        _, self._state = read_more(self.model, before, self._state, self.device)

        # Read the last ids, with their logits
        last = [ids[begin:] for ids, begin in zip(rows.values(), begins, strict=True)]
        token_ids, mask = padded(last, self.device)
        logits, self._state = self.model.step(token_ids, self._state, mask)
        self._ids = dict(rows)
        return logits.flatten(0, 1) if mask is None else logits[mask]

    def continue_with(self, row: Row) -> None:
        """Let a new row continue from the state of the only row that was read: the next turn of a conversation."""
        self._ids = dict(zip([row], self._ids.values(), strict=False))


class ModelDrafter:
    """Drafter that generates with a smaller model with the same vocabulary (Leviathan 2023; Chen 2023).

    If the ids of a row do not fit the context of the smaller model, it reads only the last ids. The first ids are
    dropped in blocks of half of that context, so that most steps can use the cache.
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
        contexts = [row.context[self._begin(len(row.context) + n) :] for row, n in zip(rows, n_tokens, strict=True)]
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
        return [Draft(ids, torch.stack(q) if q else None) for ids, q in zip(drafted, drawn_from, strict=True)]

    def _begin(self, length: int) -> int:
        """Return the first position that the model reads of `length` ids, the context and the draft together."""
        n_parts = -(-max(0, length - self.reader.max_len) // self.part)
        return n_parts * self.part


class DraftEngine(Engine):
    """An engine whose steps verify drafts of several ids, in place of the steps of one id.

    All requests must have the same settings, and neither penalties nor scores. `reader` may already have read a part of
    the context of the first row (`Reader.continue_with`).
    """

    def __init__(self, reader: Reader, drafter: Drafter, max_rows: int) -> None:
        super().__init__(reader.model, max_len=reader.max_len, device=reader.device, max_rows=max_rows)
        self.reader, self.drafter = reader, drafter

    def step(self) -> list[Step]:
        """Choose one or more new ids of each row."""
        self._slid = []  # the reader reads new contexts
        with self._packed, self._inference:
            self._drop()
            self._begin_reading()
            for one in self._reading:
                self._live += one.rows
            self._reading, steps = [], list[Step]()
            new = self._next_ids(self._live) if self._live else []
            for row, tokens in zip(self._live, new, strict=True):
                for token in tokens or (None,):
                    steps.append(self._extended(row, token))
                    if row.finish is not None:
                        break  # drafted ids after the end are dropped
            return steps

    def _next_ids(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return one or more new ids of each row, or none if no id is allowed."""
        # Propose ids, but leave room for one more id after them
        settings, sampler = rows[0].request.settings, rows[0].request.settings.sampler
        limits = [min(row.n_left - 1, settings.max_len - len(row.context)) for row in rows]
        drafts = self.drafter.draft(rows, limits, sampler)

        # Compute the logits after the last id and after each proposed one
        n_read = [1 + len(draft.ids) for draft in drafts]
        contexts = {row: [*row.context, *draft.ids] for row, draft in zip(rows, drafts, strict=True)}
        logits = self.reader.read(contexts, n_read)
        pasts = [
            Past([*row.history, *draft.ids[:n]], row.n_prompt)
            for row, draft in zip(rows, drafts, strict=True)
            for n in range(1 + len(draft.ids))
        ]
        shaped = sampler.shape(logits, pasts).split(n_read)

        # Accept ids up to the first that the model rejects, and up to the first place where no id is allowed
        new = []
        for row, draft, one in zip(rows, drafts, shaped, strict=True):
            if sampler.is_greedy:
                ids = verified_greedily(draft, one.argmax(dim=-1).tolist())
            else:
                ids = verified(draft, one.double().softmax(dim=-1), row.generator)
            new.append(ids[: min(sampler.impossible(one), default=len(one))])
        self.drafter.counts.n_drafted += sum(len(draft.ids) for draft in drafts)
        self.drafter.counts.n_accepted += sum(max(0, len(ids) - 1) for ids in new)
        return new


def remainder(p: Tensor, q: Tensor) -> Tensor:
    """Return max(0, p - q) (V,), the weights from which the id in place of a rejected one is drawn; p if p = q.

    >>> remainder(torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.75, 0.0, 0.25]))
    tensor([0.0000, 0.5000, 0.0000])
    """
    rest = (p - q).clamp(min=0)
    return rest if rest.any() else p


def verified(draft: Draft, probabilities: Tensor, draws: np.random.Generator) -> list[int]:
    """Return the accepted ids of a draft and one more, drawn from the model's `probabilities` p (k + 1, V).

    An id x with probability q(x) in the draft is accepted with probability min(1, p(x) / q(x)). The first rejected id
    is replaced by one from max(0, p - q) / Σ max(0, p - q), and the draft ends. So each id has the distribution p
    (Leviathan 2023, Algorithm 1 and appendix A.1; Chen 2023, theorem 1).
    """
    for i, token in enumerate(draft.ids):
        p = probabilities[i]
        if draft.probabilities is None:
            q = torch.zeros_like(p)
            q[token] = 1
        else:
            q = draft.probabilities[i]
        if draws.random() * q[token] >= p[token]:
            return [*draft.ids[:i], _drawn(remainder(p, q), draws)]
    return [*draft.ids, _drawn(probabilities[len(draft.ids)], draws)]


def _drawn(weights: Tensor, draws: np.random.Generator) -> int:
    return int(draw(weights[None], torch.tensor([draws.random()], dtype=torch.float64)))


def verified_greedily(draft: Draft, best: Ids) -> list[int]:
    """Return the ids of a draft as far as they equal the `best` ids (k + 1) of the model, and the model's next id.

    >>> verified_greedily(Draft([4, 5, 6]), [4, 5, 7, 8])
    [4, 5, 7]
    """
    return list(best[: n_shared(draft.ids, best) + 1])
