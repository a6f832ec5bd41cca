"""Selection of token rows (samplers, evaluation windows) and their tensors (`pad`, `Batch`), independent of the task.

A sampler returns examples, and an objective turns them into a `Batch`. Only the objective shifts, masks or adds tokens.
So an example of a text for `context` input tokens has `context + 1` ids.

A sampler has no state: its batch is a function of (seed, number of the micro-batch). A step has
`train.grad_accumulation` micro-batches, and their numbers are consecutive over the run. A run that resumes at step k
therefore draws exactly the batches of an uninterrupted run.
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

from glassformer.common.errors import UserError
from glassformer.common.seeds import Stream, rng, seed_of
from glassformer.data.texts import too_few_tokens
from glassformer.data.tokens import TokenFile
from glassformer.tokenization import frames

Ids = npt.NDArray[np.int64]
NOT_SCORED = -100
"""Label of a position that is not a target."""
FILLING = -1
"""Document number of the tokens that pad a packed row: not scored, and no document attends to them."""
WIDTH_OF_A_BUCKET = 1.1
"""Largest ratio between two lengths in one bucket of `TokenBudget`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Inputs and labels of one forward pass. Every mask is bool; True marks a real token.

    Shapes: B rows, T positions of the head's input, S source positions.
    """

    token_ids: Tensor  # (B, T)
    attention_mask: Tensor | None = None  # (B, T)
    labels: Tensor  # (B, T) or (B,); -100 = ignored by the loss
    n_targets: int  # number of labels that are not -100, counted on the CPU: divisor of the loss, known before backward
    source_ids: Tensor | None = None  # (B, S)
    source_attention_mask: Tensor | None = None  # (B, S)
    token_types: Tensor | None = None  # (B, T)
    positions: Tensor | None = None  # (B, T)
    document_ids: Tensor | None = None  # (B, T); a token attends only within its own document; -1 = padding
    loss_positions: Tensor | None = None  # (N,) flat indices b · T + t; logits are computed only there

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to a device; copies to CUDA use pinned memory and are asynchronous."""
        device = torch.device(device)

        def move(x: Tensor) -> Tensor:
            if device.type == "cuda" and x.device.type == "cpu":
                return x.pin_memory().to(device, non_blocking=True)
            return x.to(device)

        return self._with(move)

    def pinned(self) -> "Batch":
        """Copy the batch to pinned memory, from which `to` then copies at once."""
        return self._with(torch.Tensor.pin_memory)

    def model_inputs(self) -> dict[str, Tensor]:
        """Return the keyword arguments of a model's forward: all tensors that are not None, without the labels.

        The tensors that a subclass adds are for its objective.
        """
        return {name: x for name, x in self.tensors().items() if name in _INPUTS}

    @property
    def n_rows(self) -> int:
        return len(self.token_ids)

    @property
    def labels_of_logits(self) -> Tensor:
        """The labels of the positions that get logits: all labels, or (N,) those at `loss_positions`."""
        return self.labels if self.loss_positions is None else self.labels.flatten()[self.loss_positions]

    def rows(self, part: range) -> "Batch":
        """Return consecutive rows of the batch, with their padding.

        >>> ids = torch.tensor([[1, 2], [3, 4]])
        >>> batch = Batch(token_ids=ids, labels=ids, n_targets=4, loss_positions=torch.arange(4))
        >>> batch.rows(range(1, 2)).loss_positions.tolist()
        [0, 1]
        """
        if len(part) == self.n_rows:
            return self
        width, positions = self.token_ids.shape[1], self.loss_positions
        changed: dict[str, Any] = {name: x[part.start : part.stop] for name, x in self.tensors().items()}
        if positions is not None:
            positions = positions[(positions >= part.start * width) & (positions < part.stop * width)]
            changed["loss_positions"] = positions - part.start * width
        labels = changed["labels"]
        changed["n_targets"] = len(labels) if labels.is_floating_point() else int((labels != NOT_SCORED).sum())
        return dataclasses.replace(self, **changed)

    def with_masks(self) -> "Batch":
        """Replace masks of None by masks of True, so that batches with and without padding share a compiled graph."""

        def whole(mask: Tensor | None, ids: Tensor | None) -> Tensor | None:
            if mask is None and ids is not None:
                return torch.ones_like(ids, dtype=torch.bool)
            return mask

        mask = whole(self.attention_mask, self.token_ids)
        source_mask = whole(self.source_attention_mask, self.source_ids)
        return dataclasses.replace(self, attention_mask=mask, source_attention_mask=source_mask)

    def _with(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        changed: dict[str, Any] = {name: change(x) for name, x in self.tensors().items()}
        return dataclasses.replace(self, **changed)

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that are not None, by field name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: x for name, x in fields.items() if isinstance(x, Tensor)}


_INPUTS = frozenset(field.name for field in dataclasses.fields(Batch)) - {"labels"}
"""Names of the fields of `Batch` that may be arguments of a model. A compiled step cannot compute them."""


@dataclass(frozen=True, eq=False)
class Example:
    """One row of token ids, the input of an objective.

    The length of `token_ids` depends on the objective. For a causal one it is at most context + 1: the inputs are
    ids[:-1], and the labels are ids[1:]. For masked or labelled text, it is T, the whole row. For a pair, `token_ids`
    is the target without start and end tokens, and `source_ids` is the source.
    """

    token_ids: Ids  # (T + 1,), (T,), or the target of a pair
    document_ids: Ids | None = None  # as token_ids: 0, 1, ... along a packed row, -1 = padding; None = one document
    source_ids: Ids | None = None  # (S,) source of a pair; token_ids is the target
    token_types: Ids | None = None  # (T,) token types, in rows of two texts
    label: float | None = None  # label of the row: a class index, a number to predict, or a reference's log ratio
    label_set: npt.NDArray[np.float32] | None = None  # (n_labels,) 1 for each label of the row, else 0
    labels: Ids | None = None  # (T,) label of each token; -100 = no label


class Sampler(Protocol):
    """Source of training examples, one micro-batch at a time."""

    @property
    def n_batches_per_epoch(self) -> int:
        """Number of micro-batches in an epoch. For random windows, an epoch has as many targets as the text."""
        ...

    def batch(self, number: int) -> list[Example]:
        """Return the examples of a micro-batch; they depend only on its number, counted from 0 over the run."""
        ...


def pad(sequences: Sequence[npt.ArrayLike], pad_value: int) -> tuple[Tensor, Tensor]:
    """Pad rows at the right to tensors: (B, T) int64, filled with `pad_value`, and a (B, T) bool mask, True = real.

    >>> pad([[5, 6, 7], [8]], 0)[0].tolist()
    [[5, 6, 7], [8, 0, 0]]
    """
    if not sequences:
        raise ValueError("pad needs at least one row")
    ids, mask = frames.pad(sequences, pad_value)
    return torch.from_numpy(ids), torch.from_numpy(mask)


def padded(sequences: Sequence[npt.ArrayLike], device: torch.device | str = "cpu") -> tuple[Tensor, Tensor | None]:
    """Pad rows with 0 as `pad` does, on a device; the mask is `None` if all tokens are real.

    >>> padded([[5, 6], [7, 8]])[1] is None
    True
    """
    ids, mask = pad(sequences, 0)
    return ids.to(device), None if bool(mask.all()) else mask.to(device)


class Windows:
    """Random windows over one stream of tokens: each batch has `batch_size` rows of context + 1 ids.

    As in nanoGPT, starts are drawn uniformly and independently, so windows can overlap and cross document
    boundaries. Raises `UserError` when the text is shorter than one window.
    """

    def __init__(self, tokens: TokenFile, context: int, batch_size: int, seed: int) -> None:
        require_positive(context=context, batch_size=batch_size)
        if tokens.n_tokens < context + 1:
            raise too_few_tokens(tokens.name, f"{tokens.n_tokens:,}", context)
        self.tokens, self.context, self.batch_size, self.seed = tokens, context, batch_size, seed
        self.n_rows = tokens.n_tokens - context
        self.n_batches_per_epoch = math.ceil((tokens.n_tokens - 1) / (batch_size * context))

    def batch(self, number: int) -> list[Example]:
        draw = rng(self.seed, Stream.WINDOWS, number)
        starts = draw.integers(self.tokens.n_tokens - self.context, size=self.batch_size)
        return [Example(taken(self.tokens, start, self.context + 1)) for start in starts]


class Epochs:
    """One example per document, truncated to context + 1 ids, in a new order each epoch.

    The last batch of an epoch is filled up with the first examples of the next epoch. Every batch is full, and every
    epoch contains every example once. `n_truncated` documents are truncated. `n_skipped` documents have fewer than two
    tokens, so they have no next token and are skipped. The caller reports both numbers to the user.
    """

    def __init__(self, tokens: TokenFile, context: int, batch_size: int, seed: int) -> None:
        require_positive(context=context, batch_size=batch_size)
        lengths = tokens.document_lengths
        self.tokens = tokens
        self.starts = tokens.document_starts[lengths >= 2]
        self.lengths = np.minimum(lengths[lengths >= 2], context + 1)
        self.n_truncated = int((lengths > context + 1).sum())
        self.n_skipped = int((lengths < 2).sum())
        self.n_rows = len(self.starts)
        self._order = EpochOrder(_require_examples(self.n_rows, tokens), batch_size, seed)
        self.n_batches_per_epoch = self._order.n_batches_per_epoch

    def batch(self, number: int) -> list[Example]:
        return [Example(taken(self.tokens, self.starts[i], self.lengths[i])) for i in self._order.batch(number)]


class Packed:
    """Whole documents packed into rows of at most context + 1 ids; the rows are in a new order each epoch.

    Documents longer than a row are first split into pieces that overlap by one token, so that every next token is a
    target once. The pieces are placed from the longest to the shortest, each in the fullest row in which it fits
    (best-fit decreasing, Ding et al. 2024, "Fewer Truncations Improve Language Modeling"). The packing is computed
    once. A batch can span the end of an epoch, as in `Epochs`. `document_ids` distinguishes the pieces of a row: masks,
    positions and labels are derived from it. All batches of a packing have one shape: each row is padded to the length
    of the longest row with tokens of document -1.
    """

    def __init__(self, tokens: TokenFile, context: int, batch_size: int, seed: int) -> None:
        require_positive(context=context, batch_size=batch_size)
        self.tokens = tokens
        self.starts, self.lengths = _windows(tokens.document_starts, tokens.document_lengths, context)  # (n_pieces,)
        row_of_piece = pack(self.lengths, context + 1)  # (n_pieces,)
        self.n_skipped = int((tokens.document_lengths < 2).sum())
        self.n_rows = int(row_of_piece.max(initial=-1)) + 1
        self.row_length = int(np.bincount(row_of_piece, self.lengths).max(initial=0))
        self._by_row = np.argsort(row_of_piece, kind="stable")
        self._row_starts = np.searchsorted(row_of_piece[self._by_row], np.arange(self.n_rows + 1))  # (n_rows + 1,)
        self._order = EpochOrder(_require_examples(self.n_rows, tokens), batch_size, seed)
        self.n_batches_per_epoch = self._order.n_batches_per_epoch

    def batch(self, number: int) -> list[Example]:
        return [self.row(index) for index in self._order.batch(number)]

    def row(self, index: int) -> Example:
        pieces = self._by_row[self._row_starts[index] : self._row_starts[index + 1]]
        ids = np.zeros(self.row_length, np.int64)
        document_ids = np.full(self.row_length, FILLING)
        begin = 0
        for number, piece in enumerate(pieces):
            end = begin + self.lengths[piece]
            ids[begin:end] = taken(self.tokens, self.starts[piece], self.lengths[piece])
            document_ids[begin:end] = number
            begin = end
        return Example(ids, document_ids)


SamplerOfEpoch = Callable[[int], tuple[Sampler, Path | None]]
"""Maps the seed of an epoch to its sampler and to the folder of its tokens on disk, if any.

The folder is deleted when the next epoch begins.
"""


class ReencodedEachEpoch:
    """A sampler that encodes the text again for each epoch (for BPE-dropout).

    The text is encoded when the first batch of an epoch is drawn, so a batch is a function of (seed, number). The
    number of tokens differs a little between epochs, but every epoch has as many batches as the first. A longer epoch
    therefore skips a few rows, and a shorter one repeats a few.
    """

    def __init__(self, first: Sampler, sampler_of_epoch: SamplerOfEpoch, seed: int) -> None:
        """Set the sampler of the first epoch, and the function that makes the samplers of later epochs."""
        self._first, self._sampler_of_epoch, self.seed = first, sampler_of_epoch, seed
        self._epoch, self._sampler = 0, first
        self._folder: Path | None = None
        self.n_batches_per_epoch = first.n_batches_per_epoch

    def batch(self, number: int) -> list[Example]:
        epoch, number_in_epoch = divmod(number, self.n_batches_per_epoch)
        if epoch != self._epoch:
            before, seed = self._folder, seed_of(self.seed, Stream.REENCODING, epoch)
            self._sampler, self._folder = self._sampler_of_epoch(seed) if epoch else (self._first, None)
            self._epoch = epoch
            if before is not None:
                shutil.rmtree(before, ignore_errors=True)
        return self._sampler.batch(number_in_epoch)


def pack(lengths: npt.ArrayLike, capacity: int) -> Ids:
    """Assign each piece to a row by best-fit decreasing; raise `ValueError` if a length exceeds `capacity`.

    >>> pack([3, 6, 4, 7], capacity=10).tolist()  # 7 and 3 fill row 0, 6 and 4 fill row 1
    [0, 1, 1, 0]
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if lengths.max(initial=0) > capacity:
        raise ValueError(f"a piece of {lengths.max()} tokens does not fit a row of {capacity}")
    rows = np.zeros(len(lengths), dtype=np.int64)
    open_rows: list[list[int]] = [[] for _ in range(capacity + 1)]  # index: free space of the row
    rooms = 0  # bit r is set if open_rows[r] is not empty; the best fit is the lowest set bit at or above `length`
    n_rows = 0
    for piece in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[piece])
        if fitting := rooms >> length:
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


def evaluation_windows(
    tokens: TokenFile, context: int, batch_size: int, overlap: int = 1, *, separates_documents: bool = False
) -> Iterator[list[Example]]:
    """Yield batches of consecutive windows over the whole stream, for a validation loss with every target once.

    Window i has the ids [i·C, i·C + C] (C = context). The last id of window i is its last target, and the first input
    of window i + 1. The last window may be shorter. Every id of the stream except the first is a next token in one
    window. With `separates_documents`, for `Epochs` and `Packed`, each document is such a stream, and no window crosses
    its boundary. With `overlap` 0, for objectives whose targets are the row itself, each id is in exactly one window.
    """
    require_positive(batch_size=batch_size)
    starts, lengths = np.array([0]), np.array([tokens.n_tokens])
    if separates_documents:
        starts, lengths = tokens.document_starts, tokens.document_lengths
    starts, lengths = _windows(starts, lengths, context, overlap)
    _require_examples(len(starts), tokens)
    for first in range(0, len(starts), batch_size):
        rows = range(first, min(first + batch_size, len(starts)))
        yield [Example(taken(tokens, starts[row], lengths[row])) for row in rows]


def require_positive(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise UserError(f"{name}: expected at least 1, got {number}")


class EpochOrder:
    """Batches of indices from shuffled epochs of `range(n)`; a batch may span the end of an epoch."""

    def __init__(self, n: int, batch_size: int, seed: int) -> None:
        self.n, self.batch_size, self.seed = n, batch_size, seed
        self.n_batches_per_epoch = math.ceil(n / batch_size)
        self._order = lru_cache(maxsize=1)(self._drawn)

    def batch(self, number: int) -> list[int]:
        places = range(number * self.batch_size, (number + 1) * self.batch_size)
        return [int(self._order(place // self.n)[place % self.n]) for place in places]

    def _drawn(self, epoch: int) -> Ids:
        return rng(self.seed, Stream.EPOCHS, epoch).permutation(self.n)


def _windows(starts: Ids, lengths: Ids, context: int, overlap: int = 1) -> tuple[Ids, Ids]:
    """Return starts and lengths of windows over parts of a stream; a part of at most `overlap` ids has no window."""
    require_positive(context=context)
    step = context + 1 - overlap
    n_windows = -(-np.maximum(lengths - overlap, 0) // step)
    stretch = np.repeat(np.arange(len(lengths)), n_windows)  # (n_windows.sum(),): the stretch of each window
    offset = step * (np.arange(len(stretch)) - np.repeat(np.cumsum(n_windows) - n_windows, n_windows))
    return starts[stretch] + offset, np.minimum(lengths[stretch] - offset, context + 1)


def taken(tokens: TokenFile, start: np.int64, length: np.int64 | int) -> Ids:
    """Return `length` consecutive ids of a stream, from the id at `start`."""
    return tokens.ids[start : start + length].astype(np.int64)


def _require_examples(n: int, tokens: TokenFile) -> int:
    if n < 1:
        raise UserError(f"{tokens.name} has no next token to predict: use more text, at least 2 consecutive tokens")
    return n


class TokenBudget:
    """Every row once per epoch, in batches of at most `batch_tokens` = rows × the longest side, padding included.

    Rows are sorted into buckets of similar length and shuffled within each bucket. In this order they are divided into
    batches, and the batches are shuffled. The number of rows in a batch is computed from the longest length of each
    bucket. So all epochs have the same number of batches, and a batch is a function of (seed, number).
    """

    def __init__(self, rows: "Rows", batch_tokens: int, seed: int) -> None:
        if not len(rows.lengths):
            raise UserError(f"no row of the {rows.name} fits model.max_len; raise it or use shorter rows")
        if (longest := int(rows.lengths.max())) > batch_tokens:
            raise UserError(
                f"data.batch_tokens: expected at least {longest:,}, the longest row of the {rows.name}, got "
                f"{batch_tokens:,}; raise it"
            )
        self.rows, self.seed = rows, seed
        self.buckets = _buckets(rows.lengths)  # (n_rows,)
        longest_of = np.zeros(self.buckets.max() + 1, dtype=np.int64)  # (n_buckets,)
        np.maximum.at(longest_of, self.buckets, rows.lengths)
        self.boundaries = _batch_boundaries(longest_of[np.sort(self.buckets)], batch_tokens)
        self.n_batches_per_epoch = len(self.boundaries) - 1
        self._order = lru_cache(maxsize=1)(self._drawn)

    def batch(self, number: int) -> list[Example]:
        epoch, number_in_epoch = divmod(number, self.n_batches_per_epoch)
        order, batches = self._order(epoch)
        batch = batches[number_in_epoch]
        return self.rows.take(order[self.boundaries[batch] : self.boundaries[batch + 1]])

    def _drawn(self, epoch: int) -> tuple[Ids, Ids]:
        """Return the row indices, bucket by bucket, and the order of the batches."""
        draw = rng(self.seed, Stream.BUDGET, epoch)
        order = np.lexsort((draw.random(len(self.buckets)), self.buckets))
        return order, draw.permutation(self.n_batches_per_epoch)


def evaluation_batches(rows: "Rows", batch_tokens: int) -> Iterator[list[Example]]:
    """Yield every row once, shortest first, in batches of at most `batch_tokens`, or of the longest row if larger."""
    return (rows.take(np.array(places)) for places in evaluation_places(rows, batch_tokens))


def evaluation_places(rows: "Rows", batch_tokens: int) -> Iterator[list[int]]:
    """Yield the row indices of each batch of `evaluation_batches`; no batch if there are no rows."""
    if not len(rows.lengths):
        return
    order = np.argsort(rows.lengths, kind="stable")
    boundaries = _batch_boundaries(rows.lengths[order], max(batch_tokens, int(rows.lengths.max(initial=1))))
    for begin, end in itertools.pairwise(boundaries):
        yield order[begin:end].tolist()


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Yield batches of row indices, longest row first, with at most `max_tokens` positions or a single row.

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
    """A data set of rows with known lengths, the input of batching."""

    name: str
    """Name in messages, such as `training pairs`."""
    lengths: Ids
    """(n,) tokens of each row that count towards the budget."""
    take: Callable[[Ids], list[Example]]
    """Function from row indices to their examples."""


def example_rows(examples: Sequence[Example], name: str) -> Rows:
    """Make `Rows` of examples in memory; the length of an example is its number of tokens."""
    lengths = np.array([len(e.token_ids) for e in examples], dtype=np.int64)
    return Rows(name, lengths, lambda places: [examples[place] for place in places])


def _buckets(keys: Ids) -> Ids:
    """Return the bucket of each length: one length per bucket for short rows, then ranges that grow with the length.

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


def _batch_boundaries(longest: Ids, batch_tokens: int) -> Ids:
    """Return the boundaries of batches of ascending lengths, so that rows × longest length is at most `batch_tokens`.

    >>> _batch_boundaries(np.array([2, 2, 2, 4, 4]), 6).tolist()
    [0, 3, 4, 5]
    """
    boundaries = [0]
    for row, length in enumerate(longest.tolist()):
        if (row - boundaries[-1] + 1) * length > batch_tokens:
            boundaries.append(row)
    return np.array([*boundaries, len(longest)])
