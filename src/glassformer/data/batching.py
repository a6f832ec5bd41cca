"""Rows of tokens for a model: which ones (samplers, evaluation windows) and in what shape (`pad`, `Batch`).

Knows no task. A sampler gives examples, an objective turns them into a `Batch`: it alone shifts, masks or
adds tokens, so a row that feeds a model `context` tokens holds `context + 1` ids.

A sampler has no state: its batch is a function of (seed, step), so a run that resumes at step k needs the
number k and draws exactly what the uninterrupted run would have drawn.
"""

import dataclasses
import itertools
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from glassformer.data.tokens import PairFile, TokenFile
from glassformer.errors import UserError
from glassformer.seeds import Stream, rng, seed_of
from glassformer.tokenization import padding

Ids = npt.NDArray[np.int64]
WIDTH_OF_A_BUCKET = 1.1
"""Keys of a bucket of `TokenBudget` differ by at most this factor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """What a step reads. Every mask is bool, and True means a real token.

    Letters: B rows, T positions that the head reads, S source positions.
    """

    token_ids: Tensor  # (B, T)
    attention_mask: Tensor | None = None  # (B, T)
    labels: Tensor  # (B, T) or (B,); -100 = not scored
    n_targets: int  # labels that are scored, counted on the CPU: the divisor is known before the first backward
    source_ids: Tensor | None = None  # (B, S)
    source_attention_mask: Tensor | None = None  # (B, S)
    token_types: Tensor | None = None  # (B, T)
    positions: Tensor | None = None  # (B, T)
    document_ids: Tensor | None = None  # (B, T); a token attends within its own document
    loss_positions: Tensor | None = None  # (N,) flat places b · T + t of which alone logits are made

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device; copies to CUDA go through pinned memory and do not wait."""
        device = torch.device(device)

        def move(x: Tensor) -> Tensor:
            if device.type == "cuda" and x.device.type == "cpu":
                return x.pin_memory().to(device, non_blocking=True)
            return x.to(device)

        moved: dict[str, Any] = {name: move(x) for name, x in self.tensors().items()}
        return dataclasses.replace(self, **moved)

    def model_inputs(self) -> dict[str, Tensor]:
        """The keywords of a model's forward: every tensor that is present, but the labels."""
        return {name: x for name, x in self.tensors().items() if name != "labels"}

    def with_masks(self) -> "Batch":
        """The same batch with masks of True in place of None: what a compiled step is given, so that batches with and
        without padding share a graph."""

        def whole(mask: Tensor | None, ids: Tensor | None) -> Tensor | None:
            return torch.ones_like(ids, dtype=torch.bool) if mask is None and ids is not None else mask

        return dataclasses.replace(
            self,
            attention_mask=whole(self.attention_mask, self.token_ids),
            source_attention_mask=whole(self.source_attention_mask, self.source_ids),
        )

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that is present, by the name of its field."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: x for name, x in fields.items() if isinstance(x, Tensor)}


@dataclass(frozen=True, eq=False)
class Example:
    """One row before an objective has seen it."""

    token_ids: Ids  # (T + 1,) at most context + 1 ids: inputs and next tokens overlap in all but the ends
    document_ids: Ids | None = None  # (T + 1,) 0, 1, ... along a packed row; None = one document
    source_ids: Ids | None = None  # (S,) of a pair, whose target is token_ids
    token_types: Ids | None = None  # (T,) of each token, where two texts stand in a row
    label: float | None = None  # of the whole row: the number of a class, or a number
    labels: Ids | None = None  # (T,) of each token; -100 = none


class Sampler(Protocol):
    """Training examples as a function of the step alone."""

    @property
    def n_steps_per_epoch(self) -> int:
        """Steps until everything has been seen once (for random windows: as many targets as the text has)."""
        ...

    def batch(self, step: int) -> list[Example]: ...


def pad(
    sequences: Sequence[npt.ArrayLike], pad_value: int, *, side: padding.PaddingSide = "right"
) -> tuple[Tensor, Tensor]:
    """`tokenization.pad` as tensors: (B, T) int64 with `pad_value` in the gaps, and a (B, T) bool mask of what is real.

    >>> pad([[5, 6, 7], [8]], 0, side="left")[0].tolist()
    [[5, 6, 7], [0, 0, 8]]
    """
    if not sequences:
        raise ValueError("pad needs at least one row")
    ids, mask = padding.pad(sequences, pad_value, side=side)
    return torch.from_numpy(ids), torch.from_numpy(mask)


class Windows:
    """Random windows over one stream of tokens: `batch_size` rows of context + 1 ids, each from anywhere.

    The manner of nanoGPT: starts are drawn uniformly and independently, so windows overlap and cross
    documents. Raises `UserError` when the text is shorter than one window.
    """

    def __init__(self, tokens: TokenFile, context: int, batch_size: int, seed: int) -> None:
        require_positive(context=context, batch_size=batch_size)
        if tokens.n_tokens < context + 1:
            raise UserError(
                f"{tokens.name} has {tokens.n_tokens:,} tokens, fewer than one window of {context + 1:,} "
                f"(context {context:,} and the token after it); give more text or a smaller data.context"
            )
        self.tokens, self.context, self.batch_size, self.seed = tokens, context, batch_size, seed
        self.n_steps_per_epoch = math.ceil((tokens.n_tokens - 1) / (batch_size * context))

    def batch(self, step: int) -> list[Example]:
        draw = rng(self.seed, Stream.WINDOWS, step)
        starts = draw.integers(self.tokens.n_tokens - self.context, size=self.batch_size)
        return [Example(_take(self.tokens, start, self.context + 1)) for start in starts]


class Epochs:
    """One document an example, cut to context + 1 ids, in a new order each epoch.

    The epochs follow one another without a gap: the batch in which one ends is filled with the first examples
    of the next, so every batch is full and every epoch holds every example once. `n_cut` documents lose their
    end and `n_skipped` are left out, because a single token has nothing to predict; say both to the user.
    """

    def __init__(self, tokens: TokenFile, context: int, batch_size: int, seed: int) -> None:
        require_positive(context=context, batch_size=batch_size)
        lengths = tokens.document_lengths
        self.tokens = tokens
        self.starts = tokens.document_starts[lengths >= 2]
        self.lengths = np.minimum(lengths[lengths >= 2], context + 1)
        self.n_cut = int((lengths > context + 1).sum())
        self.n_skipped = int((lengths < 2).sum())
        self._order = EpochOrder(_require_examples(len(self.starts), tokens), batch_size, seed)
        self.n_steps_per_epoch = self._order.n_steps_per_epoch

    def batch(self, step: int) -> list[Example]:
        return [Example(_take(self.tokens, self.starts[i], self.lengths[i])) for i in self._order.batch(step)]


class Packed:
    """Whole documents packed into rows of at most context + 1 ids; the rows come in a new order each epoch.

    Documents longer than a row are first split into pieces that overlap by one token, so that every next
    token is a target once. Pieces then go, longest first, to the fullest row that has room for them (best-fit
    decreasing, Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The packing is computed
    once; the epochs follow one another as in `Epochs`. `document_ids` tell the pieces of a row apart: masks,
    positions and labels come from them.
    """

    def __init__(self, tokens: TokenFile, context: int, batch_size: int, seed: int) -> None:
        require_positive(context=context, batch_size=batch_size)
        self.tokens = tokens
        self.starts, self.lengths = _windows(tokens.document_starts, tokens.document_lengths, context)
        row_of_piece = pack(self.lengths, context + 1)
        self.n_skipped = int((tokens.document_lengths < 2).sum())
        self.n_rows = int(row_of_piece.max(initial=-1)) + 1
        self._by_row = np.argsort(row_of_piece, kind="stable")
        self._row_starts = np.searchsorted(row_of_piece[self._by_row], np.arange(self.n_rows + 1))
        self._order = EpochOrder(_require_examples(self.n_rows, tokens), batch_size, seed)
        self.n_steps_per_epoch = self._order.n_steps_per_epoch

    def batch(self, step: int) -> list[Example]:
        return [self.row(index) for index in self._order.batch(step)]

    def row(self, index: int) -> Example:
        pieces = self._by_row[self._row_starts[index] : self._row_starts[index + 1]]
        ids = [_take(self.tokens, self.starts[i], self.lengths[i]) for i in pieces]
        return Example(np.concatenate(ids), np.repeat(np.arange(len(pieces)), self.lengths[pieces]))


class FreshCuts:
    """A sampler with a sampler of its own, over tokens of its own, for each epoch.

    The tokens of an epoch are cut when its first batch is drawn, so a batch is a function of (seed, step). Cut anew,
    the same text gives an epoch that is a little longer or shorter. Every epoch has as many steps as the first: of a
    longer one a few rows are not read, and in a shorter one a few are read again.
    """

    def __init__(self, first: Sampler, sampler_of: Callable[[int], tuple[Sampler, Path | None]], seed: int) -> None:
        """`first` is the sampler of the first epoch.

        `sampler_of` takes the seed of another epoch; it returns a sampler, and the folder of its tokens on disk,
        which is deleted when the next epoch begins.
        """
        self._first, self._sampler_of, self.seed = first, sampler_of, seed
        self._epoch, self._sampler = 0, first
        self._folder: Path | None = None
        self.n_steps_per_epoch = first.n_steps_per_epoch

    def batch(self, step: int) -> list[Example]:
        epoch, place = divmod(step, self.n_steps_per_epoch)
        if epoch != self._epoch:
            before = self._folder
            self._sampler, self._folder = (
                self._sampler_of(seed_of(self.seed, Stream.CUTS, epoch)) if epoch else (self._first, None)
            )
            self._epoch = epoch
            if before is not None:
                shutil.rmtree(before, ignore_errors=True)
        return self._sampler.batch(place)


def pack(lengths: npt.ArrayLike, capacity: int) -> Ids:
    """The row that each piece goes to, by best-fit decreasing; no length may pass `capacity`.

    >>> pack([3, 6, 4, 7], capacity=10).tolist()  # 7 and 3 fill row 0, 6 and 4 fill row 1
    [0, 1, 1, 0]
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if lengths.max(initial=0) > capacity:
        raise ValueError(f"a piece of {lengths.max()} tokens does not fit a row of {capacity}")
    rows = np.zeros(len(lengths), dtype=np.int64)
    open_rows: list[list[int]] = [[] for _ in range(capacity + 1)]  # by the room that is left
    rooms = 0  # bit r is set when open_rows[r] is not empty: the tightest room is the lowest bit from `length` up
    n_rows = 0
    for piece in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[piece])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = open_rows[room].pop()
            if not open_rows[room]:
                rooms ^= 1 << room
        else:
            room, row, n_rows = capacity, n_rows, n_rows + 1
        rows[piece] = row
        open_rows[room - length].append(row)
        rooms |= 1 << (room - length)
    return rows


def consecutive_windows(tokens: TokenFile, context: int, batch_size: int, overlap: int = 1) -> Iterator[list[Example]]:
    """The whole stream in consecutive windows, every target once: how a loss is reported.

    Window i holds ids [i·C, i·C + C] (C = context): its last id is the next one's first, a target here and an
    input there. The last window may be shorter. Every id of the stream but the first is a next token in exactly
    one window. With `overlap` 0, for objectives whose targets are the row itself, each id stands in one window.
    """
    whole = np.array([0]), np.array([tokens.n_tokens])
    return _in_batches(tokens, *_windows(*whole, context, overlap), batch_size)


def document_windows(tokens: TokenFile, context: int, batch_size: int, overlap: int = 1) -> Iterator[list[Example]]:
    """`consecutive_windows` within each document: how a loss is reported for `Epochs` and `Packed`.

    No window crosses documents, none is cut off: every id but the first of its document is a target exactly
    once.
    """
    windows = _windows(tokens.document_starts, tokens.document_lengths, context, overlap)
    return _in_batches(tokens, *windows, batch_size)


def require_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise UserError(f"{name} is {number} and must be at least 1")


class EpochOrder:
    """Batches of indices from shuffled epochs of `range(n)` that follow one another without a gap."""

    def __init__(self, n: int, batch_size: int, seed: int) -> None:
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self.n_steps_per_epoch = math.ceil(n / batch_size)
        self._order = lru_cache(maxsize=1)(self._drawn)

    def batch(self, step: int) -> list[int]:
        places = range(step * self.batch_size, (step + 1) * self.batch_size)
        return [int(self._order(place // self.n)[place % self.n]) for place in places]

    def _drawn(self, epoch: int) -> Ids:
        return rng(self.seed, Stream.EPOCHS, epoch).permutation(self.n)


def _windows(starts: Ids, lengths: Ids, context: int, overlap: int = 1) -> tuple[Ids, Ids]:
    """Starts and lengths of the windows that cover stretches of a stream; with an overlap one token has no target."""
    require_positive(context=context)
    step = context + 1 - overlap
    n_windows = -(-np.maximum(lengths - overlap, 0) // step)
    stretch = np.repeat(np.arange(len(lengths)), n_windows)
    offset = step * (np.arange(len(stretch)) - np.repeat(np.cumsum(n_windows) - n_windows, n_windows))
    return starts[stretch] + offset, np.minimum(lengths[stretch] - offset, context + 1)


def _in_batches(tokens: TokenFile, starts: Ids, lengths: Ids, batch_size: int) -> Iterator[list[Example]]:
    require_positive(batch_size=batch_size)
    _require_examples(len(starts), tokens)
    for first in range(0, len(starts), batch_size):
        rows = range(first, min(first + batch_size, len(starts)))
        yield [Example(_take(tokens, starts[row], lengths[row])) for row in rows]


def _take(tokens: TokenFile, start: np.int64, length: np.int64 | int) -> Ids:
    return tokens.ids[start : start + length].astype(np.int64)


def _require_examples(n: int, tokens: TokenFile) -> int:
    if n < 1:
        raise UserError(f"{tokens.name} has nothing to predict: it needs at least 2 tokens in a row; give more text")
    return n


class TokenBudget:
    """Every row once an epoch, in batches of at most `batch_tokens` = rows × the longest side, padding included.

    Rows are put into buckets of about equal length, shuffled inside, cut into batches in the order of the buckets, and
    the batches are shuffled. The cut reckons with a bucket's longest key, so it falls on the same places in every
    epoch: all epochs have equally many batches, and the batch of a step is a function of (seed, step).
    """

    def __init__(self, rows: "Rows", batch_tokens: int, seed: int) -> None:
        if not len(rows.lengths):
            raise UserError(f"the {rows.name} hold none that the model can read: raise model.max_len, or give others")
        if (longest := int(rows.lengths.max())) > batch_tokens:
            raise UserError(
                f"the longest of the {rows.name} has {longest:,} tokens and data.batch_tokens is {batch_tokens:,}: "
                "raise it"
            )
        self.rows, self.seed = rows, seed
        self.buckets = _buckets(rows.lengths)
        longest_of = np.zeros(self.buckets.max() + 1, dtype=np.int64)
        np.maximum.at(longest_of, self.buckets, rows.lengths)
        self.cuts = _cuts(longest_of[np.sort(self.buckets)], batch_tokens)
        self.n_steps_per_epoch = len(self.cuts) - 1
        self._order = lru_cache(maxsize=1)(self._drawn)

    def batch(self, step: int) -> list[Example]:
        epoch, place = divmod(step, self.n_steps_per_epoch)
        order, batches = self._order(epoch)
        number = batches[place]
        return self.rows.take(order[self.cuts[number] : self.cuts[number + 1]])

    def _drawn(self, epoch: int) -> tuple[Ids, Ids]:
        """Places of the rows, bucket after bucket, and the order of the batches."""
        draw = rng(self.seed, Stream.BUDGET, epoch)
        order = np.lexsort((draw.random(len(self.buckets)), self.buckets))
        return order, draw.permutation(self.n_steps_per_epoch)


def evaluation_batches(rows: "Rows", batch_tokens: int) -> Iterator[list[Example]]:
    """Every row once, the shortest first, in batches of at most `batch_tokens`; a longer one goes alone."""
    return (rows.take(np.array(places)) for places in evaluation_places(rows, batch_tokens))


def evaluation_places(rows: "Rows", batch_tokens: int) -> Iterator[list[int]]:
    """The places of the rows of `evaluation_batches`; no batch where there are no rows."""
    if not len(rows.lengths):
        return
    order = np.argsort(rows.lengths, kind="stable")
    cuts = _cuts(rows.lengths[order], max(batch_tokens, int(rows.lengths.max(initial=1))))
    for begin, end in itertools.pairwise(cuts):
        yield order[begin:end].tolist()


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows, longest first, in batches of at most `max_tokens` positions; at least one row in each.

    >>> list(batches_by_length([2, 5, 3, 4], 10))
    [[1, 3], [2, 0]]
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@dataclass(frozen=True, eq=False)
class Rows:
    """What batches are cut from."""

    name: str
    """What messages call it: `training pairs`."""
    lengths: Ids
    """(n,) tokens that each row takes of the budget."""
    take: Callable[[Ids], list[Example]]
    """The rows of some places."""


def pair_rows(pairs: PairFile) -> Rows:
    """Pairs by the tokens of their longer side, its end or start token included."""
    lengths = np.maximum(pairs.source_lengths, pairs.target_lengths) + 1
    return Rows(pairs.name, lengths, lambda places: take_pairs(pairs, places))


def take_pairs(pairs: PairFile, places: Ids) -> list[Example]:
    """Examples of some pairs, `places` among those of the file."""
    source, target = pairs.source, pairs.target
    rows = pairs.rows[places]
    sources = zip(source.document_starts[rows], source.document_lengths[rows], strict=True)
    targets = zip(target.document_starts[rows], target.document_lengths[rows], strict=True)
    return [
        Example(target.ids[t : t + m].astype(np.int64), source_ids=source.ids[s : s + n].astype(np.int64))
        for (s, n), (t, m) in zip(sources, targets, strict=True)
    ]


def example_rows(examples: Sequence[Example], name: str) -> Rows:
    """Examples that are held in memory, by the number of their tokens."""
    lengths = np.array([len(e.token_ids) for e in examples], dtype=np.int64)
    return Rows(name, lengths, lambda places: [examples[place] for place in places])


def _buckets(keys: Ids) -> Ids:
    """The bucket of each key: exact lengths while they are short, then ranges that grow with the length.

    >>> _buckets(np.array([3, 4, 4, 30, 31, 40])).tolist()
    [0, 1, 1, 2, 2, 3]
    """
    distinct = np.unique(keys)
    bounds, first = [], int(distinct[0])
    for key in distinct.tolist():
        if key > first * WIDTH_OF_A_BUCKET:
            first = key
        bounds.append(first)
    _, numbers = np.unique(bounds, return_inverse=True)
    return numbers[np.searchsorted(distinct, keys)]


def _cuts(longest: Ids, batch_tokens: int) -> Ids:
    """Where batches begin along rows of growing length, so that rows × the last one's length is within the budget.

    >>> _cuts(np.array([2, 2, 2, 4, 4]), 6).tolist()
    [0, 3, 4, 5]
    """
    cuts = [0]
    for place, length in enumerate(longest.tolist()):
        if (place - cuts[-1] + 1) * length > batch_tokens:
            cuts.append(place)
    return np.array([*cuts, len(longest)])
