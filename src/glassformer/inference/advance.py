"""The two ways to advance rows: `OneId` per step of the model, or several ids that a drafter proposes (`Drafted`).

`next_ids(rows)` returns one or more new ids of each row, or none if no id is allowed, which ends the row. Rows of the
last call that are missing have ended, and new rows come after the others.

The model verifies all drafted ids in one step. Greedy ids are those of one id per step, and sampled ids have the same
distribution (Leviathan 2023, Algorithm 1). They are others for the same seed.

A step of several ids uses other kernels than a step of one id, so logits differ in the last bits. If two ids are almost
equally probable, another one may be chosen; this is rare in fp32, and more frequent in bf16 and fp16.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.inference.constraints import Past
from glassformer.inference.contexts import Context, Ids, Reader, n_shared, read_contexts
from glassformer.inference.decodable import Decodable, joined
from glassformer.inference.drafters import Draft, Drafter
from glassformer.inference.rows import Row, Settings
from glassformer.inference.sampling import draw


class OneId:
    """One new id per row: each step of the model reads the last id of each row.

    The context of a new row, and of a row whose context has slid, is read into a state of its own, which joins the
    state of the others.
    """

    def __init__(self, model: Decodable, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.sampler = settings.sampler
        self._state: Any = None
        self._begins: dict[Row, int] = {}
        """The rows of the state, in its order, and where the context of each began when it was read."""

    def next_ids(self, rows: Sequence[Row]) -> dict[Row, list[int]]:
        before, live = list(self._begins), set(rows)
        stay = [i for i, row in enumerate(before) if row in live and row.begin == self._begins[row]]
        cached = [before[i] for i in stay]
        unread = [row for row in rows if self._begins.get(row) != row.begin]
        logits = []

        # Rows whose context is in the state: read the last id
        if cached:
            if len(cached) < len(before):
                self._state = self._state.select(torch.tensor(stay, device=self.settings.device))
            last = torch.tensor([[row.history[-1]] for row in cached], device=self.settings.device)
            of_last, self._state = self.model.step(last, self._state)
            logits.append(of_last[:, -1])

        # The other rows: read the context
        if unread:
            of_unread, state = self._read(unread)
            self._state = joined(self._state, state) if cached else state
            logits.append(of_unread)

        # Choose an id for each row
        order = cached + unread
        self._begins = {row: row.begin for row in order}
        all_logits = torch.cat(logits) if len(logits) > 1 else logits[0]
        shaped = self.sampler.shape(all_logits, [row.past for row in order])
        chosen = self.sampler.choose(shaped, [row.generator for row in order])
        return {row: [] if token is None else [token] for row, token in zip(order, chosen, strict=True)}

    def _read(self, rows: Sequence[Row]) -> tuple[Tensor, Any]:
        """Read the contexts of rows, equal ones of a prompt once."""
        contexts = [Context(tuple(row.context), row.source) for row in rows]
        settings = self.settings
        longest = max(row.n_context for row in rows) + settings.sampling.max_new_tokens
        return read_contexts(self.model, contexts, min(settings.max_len, longest), settings.device)


class Drafted:
    """One or more new ids per row: each step of the model verifies the ids that a drafter proposes."""

    def __init__(self, reader: Reader, settings: Settings, drafter: Drafter) -> None:
        """Set the reader, which may have read a part of the context of a row (`Reader.continue_with`)."""
        self.max_len, self.drafter, self.reader = settings.max_len, drafter, reader
        self.sampler = settings.sampler

    def next_ids(self, rows: Sequence[Row]) -> dict[Row, list[int]]:
        # Propose ids, which leave room for the one after them
        limits = [min(row.n_left - 1, self.max_len - row.n_context) for row in rows]
        drafts = self.drafter.draft(rows, limits, self.sampler)

        # Compute the logits after the last id and after each proposed one
        n_read = [1 + len(draft.ids) for draft in drafts]
        contexts = {row: [*row.context, *draft.ids] for row, draft in zip(rows, drafts, strict=True)}
        logits = self.reader.read(contexts, n_read)
        pasts = [
            Past([*row.history, *draft.ids[:n]], row.n_prompt)
            for row, draft in zip(rows, drafts, strict=True)
            for n in range(1 + len(draft.ids))
        ]
        shaped = self.sampler.shape(logits, pasts).split(n_read)

        # Accept ids up to the first that the model rejects
        if self.sampler.is_greedy:
            best = [one.argmax(dim=-1).tolist() for one in shaped]
            new = [verified_greedily(draft, ids) for draft, ids in zip(drafts, best, strict=True)]
        else:
            probabilities = [one.double().softmax(dim=-1) for one in shaped]
            new = [verified(draft, p, row.generator) for draft, p, row in zip(drafts, probabilities, rows, strict=True)]
        # A row ends before the first id for which none is allowed
        n_possible = [min(self.sampler.impossible(one), default=len(one)) for one in shaped]
        new = [ids[:n] for ids, n in zip(new, n_possible, strict=True)]
        self.drafter.counts.n_drafted += sum(len(draft.ids) for draft in drafts)
        self.drafter.counts.n_accepted += sum(max(0, len(ids) - 1) for ids in new)
        return dict(zip(rows, new, strict=True))


def remainder(p: Tensor, q: Tensor) -> Tensor:
    """Return max(0, p - q) (V,), proportional to the distribution after a rejected id; p if p = q.

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
    """Return the ids of a draft that agree with the `best` ids (k + 1) of the model, and the model's next one.

    >>> verified_greedily(Draft([4, 5, 6]), [4, 5, 7, 8])
    [4, 5, 7]
    """
    return list(best[: n_shared(draft.ids, best) + 1])
