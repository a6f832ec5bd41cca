"""Speculative decoding: a drafter proposes several ids, and the model verifies all of them in one step.

Greedy ids equal those of `generate_rows`, the reference; sampled ids have the same distribution (Leviathan 2023,
Algorithm 1).
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from glassformer.config.run import GenerationConfig
from glassformer.data.batching import pad
from glassformer.inference.decodable import Croppable, Decodable, joined
from glassformer.inference.decode import Row, WaitingRows, check_prompts, check_samples, next_logits, read_more
from glassformer.inference.sampling import all_ends, choose, draw
from glassformer.kernels.packed import PackedWeights

Ids = Sequence[int]
Shape = Callable[[Tensor, Sequence[Ids]], Tensor]
"""Function of logits (N, V) and the ids before each: the logits after all sampling rules (`next_logits`)."""


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
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    def __str__(self) -> str:
        return f"accepted {self.n_accepted:,} of {self.n_drafted:,} drafted tokens ({self.acceptance_rate:.0%})"


class Drafter(Protocol):
    """Proposes the next ids of rows, in one generation."""

    counts: DraftCounts

    def draft(
        self, contexts: Sequence[Ids], limits: Sequence[int], draws: Sequence[np.random.Generator] | None, shape: Shape
    ) -> list[Draft]:
        """Propose at most `limits[i]` ids that continue `contexts[i]`; `draws` is `None` at temperature 0.

        New rows come after those of the last call.
        """

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, whose numbers increase."""


class PromptLookup:
    """Drafter that copies the ids after an earlier occurrence of the last ids (Saxena 2023)."""

    def __init__(self, n_tokens: int, counts: DraftCounts | None = None) -> None:
        self.n_tokens, self.counts = n_tokens, counts or DraftCounts()

    def draft(self, contexts: Sequence[Ids], limits: Sequence[int], draws: Any, shape: Any) -> list[Draft]:
        return [Draft(looked_up(ids, min(n, self.n_tokens))) for ids, n in zip(contexts, limits, strict=True)]

    def keep(self, rows: Sequence[int]) -> None:
        """Nothing to do: a draft depends only on the ids of its row."""


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
    return [ids[begin + i % (len(ids) - begin)] for i in range(n_tokens if most else 0)]


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

    def draft(
        self, contexts: Sequence[Ids], limits: Sequence[int], draws: Sequence[np.random.Generator] | None, shape: Shape
    ) -> list[Draft]:
        n_tokens = [min(n, self.n_tokens) for n in limits]
        drafted: list[list[int]] = [[] for _ in contexts]
        drawn_from: list[list[Tensor]] = [[] for _ in contexts]
        contexts = [ids[self._begin(len(ids) + n) :] for ids, n in zip(contexts, n_tokens, strict=True)]
        for place in range(max(n_tokens)):
            rows = [[*ids, *more] for ids, more in zip(contexts, drafted, strict=True)]
            shaped = shape(self.reader.read(rows, [1] * len(rows)), rows)
            active = [row for row, n in enumerate(n_tokens) if n > place]
            if draws is None:
                chosen = choose(shaped[active], None)
            else:
                probabilities = shaped[active].double().softmax(dim=-1)
                chosen = draw(probabilities, torch.tensor([draws[row].random() for row in active], dtype=torch.float64))
                for row, q in zip(active, probabilities, strict=True):
                    drawn_from[row].append(q)
            for row, token in zip(active, chosen.tolist(), strict=True):
                drafted[row].append(token)
        return [Draft(ids, torch.stack(q) if q else None) for ids, q in zip(drafted, drawn_from, strict=True)]

    def _begin(self, length: int) -> int:
        """Return the first position that the model reads, if context and draft together have this length."""
        n_parts = -(-max(0, length - self.reader.max_len) // self.part)
        return n_parts * self.part

    def keep(self, rows: Sequence[int]) -> None:
        self.reader.keep(rows)


class Reader:
    """A model, and its state after the ids that it has read of each row.

    The state of a row depends only on its ids. So `read` keeps the part of the state in which the old ids and the new
    ones agree, cuts the rest, and reads only the new ids after it.
    """

    def __init__(self, model: Decodable, max_len: int, device: torch.device | str) -> None:
        self.model, self.max_len, self.device = model, max_len, device
        self.ids: list[Ids] = []
        self.state: Any = None

    @torch.inference_mode()
    def read(self, rows: Sequence[Ids], n_last: Sequence[int]) -> Tensor:
        """Return the logits (Σ n, V) at the last n = `n_last[i]` ids of each row; those of row 0 come first.

        New rows come after those of the last call. Raises `TypeError` if the state of the model cannot be cropped.
        """
        begins = [len(ids) - n for ids, n in zip(rows, n_last, strict=True)]
        self._join([tuple(ids[:begin]) for ids, begin in zip(rows, begins, strict=True)][len(self.ids) :])
        kept = [min(n_shared(old, new), begin) for old, new, begin in zip(self.ids, rows, begins, strict=True)]
        self.state = self.state.crop(kept)
        before = [ids[n:begin] for ids, n, begin in zip(rows, kept, begins, strict=True)]
        if any(before):
            _, self.state = read_more(self.model, before, self.state, self.device)
        last = [ids[begin:] for ids, begin in zip(rows, begins, strict=True)]
        token_ids, mask = (x.to(self.device) for x in pad(last, 0))
        uneven = len(set(n_last)) > 1
        logits, self.state = self.model.step(token_ids, self.state, mask if uneven else None)
        self.ids = list(rows)
        return logits[mask]

    def _join(self, rows: Sequence[tuple[int, ...]]) -> None:
        """Read new rows, equal ones once, into a state of their own, and join it to the state."""
        if not rows:
            return
        distinct = {ids: place for place, ids in enumerate(dict.fromkeys(rows))}
        state = self.model.start(len(distinct), self.max_len)
        if not isinstance(state, Croppable):
            raise TypeError(f"speculative decoding needs a state with a method crop, got {type(state).__name__}")
        new: Any = state
        if any(distinct):
            _, new = read_more(self.model, list(distinct), new, self.device)
        if len(distinct) < len(rows):
            new = new.select(torch.tensor([distinct[ids] for ids in rows], device=self.device))
        self.state = joined(self.state, new) if self.ids else new
        self.ids += rows

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all rows but these, whose numbers increase; rows that were not read yet have no state."""
        known = [row for row in rows if row < len(self.ids)]
        if known:
            self.state = self.state.select(torch.tensor(known, device=self.device))
        self.ids = [self.ids[row] for row in known]


def n_shared(a: Ids, b: Ids) -> int:
    """Return the length of the common beginning of two sequences.

    >>> n_shared([1, 2, 3], [1, 2, 4, 5])
    2
    """
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


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
    for place, token in enumerate(draft.ids):
        p = probabilities[place]
        if draft.probabilities is None:
            q = torch.zeros_like(p)
            q[token] = 1
        else:
            q = draft.probabilities[place]
        if draws.random() * q[token] >= p[token]:
            return [*draft.ids[:place], _drawn(remainder(p, q), draws)]
    return [*draft.ids, _drawn(probabilities[len(draft.ids)], draws)]


def _drawn(weights: Tensor, draws: np.random.Generator) -> int:
    return int(draw(weights[None], torch.tensor([draws.random()], dtype=torch.float64)))


def verified_greedily(draft: Draft, best: Ids) -> list[int]:
    """Return the ids of a draft that agree with the `best` ids (k + 1) of the model, and the model's next one.

    >>> verified_greedily(Draft([4, 5, 6]), [4, 5, 7, 8])
    [4, 5, 7]
    """
    return list(best[: n_shared(draft.ids, best) + 1])


def generate_speculative(
    model: Decodable,
    prompts: Sequence[Ids],
    config: GenerationConfig,
    drafter: Drafter,
    *,
    max_len: int,
    end_ids: Collection[int] = (),
    suppress_ids: Sequence[int] = (),
    slide: bool = False,
    device: torch.device | str = "cpu",
    is_finished: Callable[[int, int], bool] | None = None,
    samples: Sequence[int] = (0,),
    batch_size: int | None = None,
) -> Iterator[dict[int, int]]:
    """Yield what `generate_rows` yields, with fewer steps of the model; it needs a `drafter`, one per generation.

    At temperature 0, the ids are those of `generate_rows`. In sampling, they have the same distribution, and are others
    for the same seed. A row draws only from its own stream, so it gets the same ids in a batch and alone. Rows advance
    by different numbers of ids: those of a row that is ahead wait until all rows have one to yield. A row whose ids are
    all chosen leaves the batch before, so more than `batch_size` rows may be in a dictionary.

    A step of several ids uses other kernels than a step of one id, so logits differ in the last bits. If two ids are
    almost equally probable, another one may be chosen; this is rare in fp32, and more frequent in bf16, fp16 and int8.
    """
    check_samples(samples, config)
    check_prompts(prompts, max_len, slide)
    waiting = WaitingRows(prompts, samples, config.seed, max_len, batch_size)
    ends = all_ends(end_ids, config)
    banned = torch.tensor(list(suppress_ids), dtype=torch.long, device=device)

    def shape(logits: Tensor, before: Sequence[Ids]) -> Tensor:
        return next_logits(logits.to(device), config, before, banned)

    def n_left(row: Row) -> int:
        return len(prompts[row.prompt]) + config.max_new_tokens - len(row.history)

    rows: list[Row] = []  # rows of the state, in its order
    ahead: dict[Row, deque[int]] = {}  # rows with ids to yield → ids that are chosen and not yielded
    done: set[Row] = set()  # rows whose ids are all chosen
    reader, packed = Reader(model, max_len, device), PackedWeights()
    while True:
        new_rows = waiting.take(len(rows))
        rows += new_rows
        ahead |= {row: deque() for row in new_rows}
        if not rows:
            return
        contexts = [row.history[row.begin :] for row in rows]
        limits = [min(n_left(row) - 1, max_len - row.n_context) for row in rows]
        chances = [row.draws for row in rows] if config.temperature > 0 else None
        with packed:
            drafts = drafter.draft(contexts, limits, chances, shape)
            n_read = [1 + len(draft.ids) for draft in drafts]
            logits = reader.read([[*ids, *x.ids] for ids, x in zip(contexts, drafts, strict=True)], n_read)
        before = [
            [*row.history, *x.ids[:n]] for row, x in zip(rows, drafts, strict=True) for n in range(1 + len(x.ids))
        ]
        chosen = _chosen(drafts, shape(logits, before).split(n_read), chances)
        drafter.counts.n_drafted += sum(len(draft.ids) for draft in drafts)
        drafter.counts.n_accepted += sum(len(ids) - 1 for ids in chosen)
        for row, ids in zip(rows, chosen, strict=True):
            new = ids[: next((n for n, token in enumerate(ids, 1) if token in ends), None)]
            row.history += new
            ahead[row] += new
            is_full = row.n_context > max_len
            if new[-1] in ends or not n_left(row) or (is_full and not slide):
                done.add(row)
            elif is_full:
                row.begin = len(row.history) - max(1, max_len // 2)
        while ahead and all(ahead.values()):
            step = {row: ids.popleft() for row, ids in ahead.items()}
            yield {row.number: token for row, token in step.items()}
            for row, token in step.items():
                is_stopped = token not in ends and is_finished is not None and is_finished(row.number, token)
                if is_stopped or (row in done and not ahead[row]):
                    del ahead[row]
        alive = [place for place, row in enumerate(rows) if row in ahead and row not in done]
        if len(alive) < len(rows):
            reader.keep(alive)
            drafter.keep(alive)
        rows = [rows[place] for place in alive]


def _chosen(
    drafts: Sequence[Draft], shaped: Sequence[Tensor], draws: Sequence[np.random.Generator] | None
) -> list[list[int]]:
    """Return the new ids of each row, from its draft and its shaped logits (k + 1, V)."""
    if draws is None:
        return [verified_greedily(x, y.argmax(dim=-1).tolist()) for x, y in zip(drafts, shaped, strict=True)]
    probabilities = [logits.double().softmax(dim=-1) for logits in shaped]
    return [verified(*row) for row in zip(drafts, probabilities, draws, strict=True)]
