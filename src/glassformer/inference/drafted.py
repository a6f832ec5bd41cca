"""Several new ids per step of the model: it verifies the ids that a drafter proposes.

Greedy ids are those of one id per step, and sampled ids have the same distribution (Leviathan 2023, Algorithm 1). They
are others for the same seed.

A step of several ids uses other kernels than a step of one id, so logits differ in the last bits. If two ids are almost
equally probable, another one may be chosen; this is rare in fp32, and more frequent in bf16 and fp16.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from glassformer.inference.constraints import Past
from glassformer.inference.contexts import Ids, Reader, n_shared
from glassformer.inference.drafters import Draft, Drafter
from glassformer.inference.rows import Row
from glassformer.inference.sampling import draw


class Drafted:
    """A reader, which may have read a part of the context of a row (`Reader.continue_with`), and a drafter."""

    def __init__(self, reader: Reader, drafter: Drafter) -> None:
        self.reader, self.drafter = reader, drafter

    def next_ids(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return one or more new ids of each row, or none if no id is allowed. All rows have the same settings.

        Rows of the last call that are missing have ended, and new rows come after the others.
        """
        # Propose ids, which leave room for the one after them
        settings, sampler = rows[0].request.settings, rows[0].request.settings.sampler
        limits = [min(row.n_left - 1, settings.max_len - row.n_context) for row in rows]
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
