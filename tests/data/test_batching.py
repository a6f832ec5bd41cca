"""Samplers and evaluation windows: batches as functions of (seed, step), and every target exactly once."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.common.errors import UserError
from glassformer.data.batching import Batch, Epochs, Example, Packed, Sampler, Windows, evaluation_windows, pack, pad
from glassformer.data.tokens import TokenFile

Documents = Callable[..., TokenFile]
LENGTHS = st.lists(st.integers(0, 25), min_size=1, max_size=30).filter(lambda lengths: max(lengths) >= 2)
SAMPLERS = [Windows, Epochs, Packed]
properties = settings(max_examples=100)


def token_file(lengths: list[int]) -> TokenFile:
    """Return a token file whose ids are positions, so that each target is identified by its id."""
    starts = np.cumsum([0, *lengths[:-1]], dtype=np.int64)
    n = sum(lengths)
    return TokenFile("the training text", np.arange(n, dtype=np.uint32), starts, n, n)


def rows(batch: Iterable[Example]) -> list[list[int]]:
    return [example.token_ids.tolist() for example in batch]


def targets(examples: Iterable[Example]) -> list[int]:
    """Return the ids that a next-token objective scores: all except the first of each document of a row."""
    found: list[int] = []
    for example in examples:
        scored = np.ones(len(example.token_ids), dtype=bool)
        scored[0] = False
        if example.document_ids is not None:
            scored[1:] &= (np.diff(example.document_ids) == 0) & (example.document_ids[1:] >= 0)
        found += example.token_ids[scored].tolist()
    return found


def every_target_within_documents(lengths: list[int]) -> list[int]:
    starts = np.cumsum([0, *lengths[:-1]])
    return [place for start, length in zip(starts, lengths, strict=True) for place in range(start + 1, start + length)]


# A batch is a function of (seed, step)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_pitfall_23_the_same_seed_and_step_give_the_same_batch(sampler: type) -> None:
    tokens = token_file([9, 30, 4, 17, 12, 12])
    for step in (0, 1, 5, 1000):
        fresh, used = sampler(tokens, 8, 3, 42), sampler(tokens, 8, 3, 42)
        for earlier in (7, step + 1, 0):
            used.batch(earlier)
        assert rows(fresh.batch(step)) == rows(used.batch(step))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_pitfall_23_a_run_resumed_at_step_k_draws_equal_batches(sampler: type) -> None:
    tokens = token_file([9, 30, 4, 17, 12, 12])
    whole = sampler(tokens, 8, 2, 0)
    uninterrupted = [rows(whole.batch(step)) for step in range(40)]
    for k in (1, 13, 39):
        resumed = sampler(tokens, 8, 2, 0)
        assert [rows(resumed.batch(step)) for step in range(k, 40)] == uninterrupted[k:]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_pitfall_23_other_steps_and_seeds_give_other_batches(sampler: type) -> None:
    tokens = token_file([20] * 50)
    seen = {str(rows(sampler(tokens, 8, 6, seed).batch(step))) for seed in range(5) for step in range(20)}
    assert len(seen) == 100


def test_all_samplers_count_the_steps_of_an_epoch(documents: Documents) -> None:
    samplers: list[Sampler] = [make(documents(20, 20), 8, 2, 0) for make in (Windows, Epochs, Packed)]
    assert [sampler.n_batches_per_epoch for sampler in samplers] == [3, 1, 3]


# Random windows


def test_windows_are_contiguous_and_reach_both_ends(documents: Documents) -> None:
    windows = Windows(documents(12), 8, 64, 0)
    batch = rows(windows.batch(0))
    assert len(batch) == 64
    assert all(row == list(range(row[0], row[0] + 9)) for row in batch)
    assert {row[0] for row in batch} == {0, 1, 2, 3}


def test_windows_are_drawn_uniformly(documents: Documents) -> None:
    windows = Windows(documents(108), 8, 1000, 0)
    counts = Counter(row[0] for step in range(20) for row in rows(windows.batch(step)))
    assert set(counts) == set(range(100))
    assert all(130 < count < 270 for count in counts.values())  # 200 expected, five standard deviations


def test_a_text_of_exactly_one_window_is_accepted(documents: Documents) -> None:
    assert rows(Windows(documents(9), 8, 1, 0).batch(3)) == [list(range(9))]


def test_a_text_shorter_than_one_window_is_refused(documents: Documents) -> None:
    with pytest.raises(UserError, match=r"the training text has 8 tokens, fewer than one window of 9"):
        Windows(documents(8), 8, 1, 0)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize(("context", "batch_size"), [(0, 1), (8, 0)])
def test_sizes_below_one_are_refused(sampler: type, context: int, batch_size: int, documents: Documents) -> None:
    with pytest.raises(UserError, match="expected at least 1, got 0"):
        sampler(documents(20), context, batch_size, 0)


# Shuffled epochs


@properties
@given(LENGTHS, st.integers(1, 12), st.integers(1, 9))
def test_every_epoch_has_every_example_once(lengths: list[int], context: int, batch_size: int) -> None:
    tokens = token_file(lengths)
    epochs = Epochs(tokens, context, batch_size, 0)
    starts = np.cumsum([0, *lengths[:-1]])
    expected = sorted(
        list(range(start, start + min(length, context + 1)))
        for start, length in zip(starts, lengths, strict=True)
        if length >= 2
    )
    n = len(expected)
    drawn = [row for step in range(3 * epochs.n_batches_per_epoch) for row in rows(epochs.batch(step))]
    assert all(len(epochs.batch(step)) == batch_size for step in range(3))
    for epoch in range(len(drawn) // n):
        assert sorted(drawn[epoch * n : (epoch + 1) * n]) == expected
    assert epochs.n_truncated == sum(length > context + 1 for length in lengths)
    assert epochs.n_skipped == sum(length < 2 for length in lengths)


def test_epochs_have_different_orders(documents: Documents) -> None:
    epochs = Epochs(documents(*[3] * 40), 8, 40, 0)
    orders = {str(rows(epochs.batch(step))) for step in range(10)}
    assert len(orders) == 10


# Packing


@properties
@given(LENGTHS, st.integers(1, 12), st.integers(1, 9))
def test_every_packed_epoch_has_every_target_once(lengths: list[int], context: int, batch_size: int) -> None:
    packed = Packed(token_file(lengths), context, batch_size, 0)
    everything = [packed.row(index) for index in range(packed.n_rows)]
    assert sorted(targets(everything)) == every_target_within_documents(lengths)
    for example in everything:
        ids, of = example.token_ids, example.document_ids
        assert of is not None and len(of) == len(ids) == packed.row_length <= context + 1
        assert (of[np.count_nonzero(of >= 0) :] == -1).all(), "the rest of a row is padding"
        ids, of = ids[of >= 0], of[of >= 0]
        assert of[0] == 0 and set(np.diff(of)) <= {0, 1}
        inside = np.diff(of) == 0
        assert (np.diff(ids)[inside] == 1).all(), "a document's ids stay in order"
    assert not everything or any((row.document_ids >= 0).all() for row in everything), "the fullest row has no padding"
    drawn = [row for step in range(2 * packed.n_batches_per_epoch) for row in rows(packed.batch(step))]
    for epoch in range(len(drawn) // packed.n_rows):
        part = drawn[epoch * packed.n_rows : (epoch + 1) * packed.n_rows]
        assert sorted(part) == sorted(rows(everything))


@properties
@given(st.lists(st.integers(1, 16), max_size=60))
def test_pack_never_overflows_and_leaves_no_two_rows_half_empty(lengths: list[int]) -> None:
    row_of = pack(lengths, 16)
    room = np.bincount(row_of, weights=lengths, minlength=0)
    assert (room <= 16).all() and (room > 0).all()
    assert sum(count <= 8 for count in room) <= 1


def test_pack_equals_a_plain_search_for_the_fullest_row() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 41, size=400)
    loads: list[int] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fitting = [load for load in loads if load + length <= 40]
        if fitting:
            loads[loads.index(max(fitting))] += length
        else:
            loads.append(length)
    assert sorted(np.bincount(pack(lengths, 40), weights=lengths)) == sorted(loads)


def test_pack_refuses_a_piece_longer_than_a_row() -> None:
    with pytest.raises(ValueError, match="a piece of 9 tokens does not fit a row of 8"):
        pack([3, 9], 8)


def test_packing_leaves_little_room() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 60, size=2000).tolist()
    packed = Packed(token_file(lengths), 63, 8, 0)
    assert sum(lengths) / (packed.n_rows * 64) > 0.98


# Evaluation


@properties
@given(st.integers(2, 200), st.integers(1, 20), st.integers(1, 7))
def test_consecutive_windows_have_every_target_once(n_tokens: int, context: int, batch_size: int) -> None:
    batches = list(evaluation_windows(token_file([n_tokens]), context, batch_size))
    examples = [example for batch in batches for example in batch]
    assert targets(examples) == list(range(1, n_tokens))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert all(len(example.token_ids) == context + 1 for example in examples[:-1])
    for i, example in enumerate(examples):
        assert example.token_ids[0] == i * context


@properties
@given(LENGTHS, st.integers(1, 12), st.integers(1, 7))
def test_document_windows_have_every_target_once(lengths: list[int], context: int, batch_size: int) -> None:
    batches = list(evaluation_windows(token_file(lengths), context, batch_size, separates_documents=True))
    examples = [example for batch in batches for example in batch]
    assert targets(examples) == every_target_within_documents(lengths)
    assert all(2 <= len(example.token_ids) <= context + 1 for example in examples)


@properties
@given(st.integers(1, 200), st.integers(1, 20), st.integers(1, 7))
def test_windows_without_overlap_have_every_id_once(n_tokens: int, context: int, batch_size: int) -> None:
    batches = evaluation_windows(token_file([n_tokens]), context, batch_size, overlap=0)
    rows = [example.token_ids.tolist() for batch in batches for example in batch]
    assert [i for row in rows for i in row] == list(range(n_tokens))
    assert all(len(row) == context + 1 for row in rows[:-1])


@pytest.mark.parametrize("separates_documents", [False, True])
def test_a_text_of_one_token_is_refused(separates_documents: bool, documents: Documents) -> None:
    with pytest.raises(UserError, match="no next token to predict"):
        list(evaluation_windows(documents(1), 8, 4, separates_documents=separates_documents))


@pytest.mark.parametrize("sampler", [Epochs, Packed])
def test_documents_of_one_token_are_refused(sampler: type, documents: Documents) -> None:
    with pytest.raises(UserError, match="no next token to predict"):
        sampler(documents(1, 1, 1), 8, 4, 0)


# Rows to tensors


@properties
@given(st.lists(st.lists(st.integers(0, 99), max_size=9), min_size=1, max_size=6))
def test_pad_keeps_every_token_and_marks_it(sequences: list[list[int]]) -> None:
    ids, mask = pad(sequences, -1)
    assert ids.dtype == torch.int64 and mask.dtype == torch.bool
    assert ids.shape == mask.shape == (len(sequences), max(map(len, sequences)))
    for row, real, sequence in zip(ids, mask, sequences, strict=True):
        assert row[real].tolist() == sequence
        assert (row[~real] == -1).all()
        assert (real.int().diff() <= 0).all()


def test_pad_refuses_an_empty_list() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        pad([], 0)


def test_padding_is_not_a_target() -> None:
    labels, mask = pad([np.array([1, 2, 3]), np.array([4])], -100)
    assert (labels != -100).equal(mask)


def test_a_batch_gives_the_model_everything_except_the_labels() -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    batch = Batch(token_ids=ids, labels=ids, n_targets=6, positions=ids)
    assert set(batch.model_inputs()) == {"token_ids", "positions"}


def test_all_tensors_of_a_batch_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory needs a GPU, so a stand-in marks the tensors."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: x + 1)
    ids = torch.zeros(2, 3, dtype=torch.int64)
    pinned = Batch(token_ids=ids, labels=ids, n_targets=6, source_ids=ids).pinned()
    assert pinned.n_targets == 6 and pinned.attention_mask is None
    assert len(pinned.tensors()) == 3 and all(bool(x.all()) for x in pinned.tensors().values())


def test_all_tensors_of_a_batch_move() -> None:
    ids = torch.zeros(2, 3, dtype=torch.int64)
    moved = Batch(token_ids=ids, labels=ids, n_targets=6, source_ids=ids).to("meta")
    assert moved.n_targets == 6 and moved.attention_mask is None
    assert moved.labels.is_meta and all(x.is_meta for x in moved.model_inputs().values())
