"""Noise: shares and lengths follow their distributions, no target leaks, no token is lost, seeds decide.

Bounds of statistics are five standard deviations from the mean; seeds are fixed.
"""

from collections.abc import Callable
from math import exp, factorial, sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.data.batching import NOT_SCORED
from glassformer.inference.fill import restore_spans
from glassformer.objectives.noise import corrupt_spans, infill, mask_tokens, permute_sentences

Ids = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MASK = 1
TEXT = np.arange(100, 200)
"""Ids of replacements; no row of the tests contains one, so a replacement differs from every kept token."""
SENTINELS = list(range(10, 20))

few = settings(max_examples=200)
seeds = st.integers(0, 2**32 - 1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def row(n: int) -> Ids:
    """Return distinct ids that are neither masks nor sentinels nor replacements."""
    return np.arange(1000, 1000 + n)


def mask(
    token_ids: Ids, seed: int, maskable: Bools | None = None, continues: Bools | None = None, mask_prob: float = 0.15
) -> tuple[Ids, Ids]:
    return mask_tokens(
        token_ids,
        rng(seed),
        mask_id=MASK,
        replacements=TEXT,
        maskable=np.ones(len(token_ids), dtype=bool) if maskable is None else maskable,
        continues=continues,
        mask_prob=mask_prob,
    )


def assert_binomial(count: int, n: int, p: float) -> None:
    assert abs(count - n * p) < 5 * sqrt(n * p * (1 - p)), f"{count} of {n}, for a probability of {p:.4f}"


# Masks: choice of tokens


@pytest.mark.parametrize("mask_prob", [0.05, 0.15, 0.4])
def test_the_number_of_chosen_tokens_is_binomial(mask_prob: float) -> None:
    n, n_rows = 200, 600
    counts = np.array([(mask(row(n), seed, mask_prob=mask_prob)[1] != NOT_SCORED).sum() for seed in range(n_rows)])
    assert_binomial(int(counts.sum()), n * n_rows, mask_prob)
    # Check the variance too: a fixed count in every row would have the right mean.
    variance = n * mask_prob * (1 - mask_prob)
    assert abs(counts.var() / variance - 1) < 5 * sqrt(2 / n_rows)


def test_positions_are_chosen_uniformly_and_independently() -> None:
    n, n_rows = 20, 4000
    chosen = np.array([mask(row(n), seed, mask_prob=0.3)[1] != NOT_SCORED for seed in range(n_rows)])
    for count in chosen.sum(0).tolist():
        assert_binomial(count, n_rows, 0.3)
    for count in (chosen[:, 1:] & chosen[:, :-1]).sum(0).tolist():
        assert_binomial(count, n_rows, 0.09)


def test_80_percent_of_the_chosen_are_masked_10_replaced_10_kept() -> None:
    original = row(4000)
    corrupted, labels = mask(original, 5, mask_prob=0.5)
    chosen = labels != NOT_SCORED
    assert (labels[chosen] == original[chosen]).all() and (corrupted[~chosen] == original[~chosen]).all()
    n = int(chosen.sum())
    is_masked, stays = corrupted[chosen] == MASK, corrupted[chosen] == original[chosen]
    is_replaced = np.isin(corrupted[chosen], TEXT)
    assert (is_masked ^ is_replaced ^ stays).all()
    assert_binomial(int(is_masked.sum()), n, 0.8)
    assert_binomial(int(is_replaced.sum()), n, 0.1)
    assert_binomial(int(stays.sum()), n, 0.1)


def test_replacements_are_drawn_uniformly() -> None:
    corrupted, _ = mask(row(200_000), 0, mask_prob=0.5)
    replaced = corrupted[np.isin(corrupted, TEXT)]
    for replacement in TEXT.tolist():
        assert_binomial(int((replaced == replacement).sum()), len(replaced), 1 / len(TEXT))


def test_unmaskable_tokens_are_neither_changed_nor_scored() -> None:
    original = row(60)
    for seed in range(100):
        maskable = rng(seed).random(60) < 0.5
        corrupted, labels = mask(original, seed, maskable, mask_prob=0.9)
        assert (corrupted[~maskable] == original[~maskable]).all()
        assert (labels[~maskable] == NOT_SCORED).all()
        assert (labels[maskable] != NOT_SCORED).any()


def test_a_target_is_in_the_input_only_if_it_is_kept() -> None:
    original = row(2000)  # each id occurs once: a target in the input is its own copy
    corrupted, labels = mask(original, 8, mask_prob=0.5)
    chosen = labels != NOT_SCORED
    leaked = np.isin(labels, corrupted) & chosen
    assert (corrupted[leaked] == labels[leaked]).all()
    assert_binomial(int(leaked.sum()), int(chosen.sum()), 0.1)


# Masks: whole words


def words_of(lengths: list[int]) -> tuple[Bools, Ids]:
    """Return for each token whether it continues a word, and the number of its word."""
    word = np.repeat(np.arange(len(lengths)), lengths)
    return np.concatenate(([False], word[1:] == word[:-1])), word


@few
@given(seed=seeds, lengths=st.lists(st.integers(1, 5), min_size=1, max_size=20), mask_prob=st.floats(0.05, 0.9))
def test_words_are_chosen_completely_or_not_at_all(seed: int, lengths: list[int], mask_prob: float) -> None:
    continues, word = words_of(lengths)
    maskable = rng(seed).random(len(word)) < 0.8
    _, labels = mask(row(len(word)), seed, maskable, continues, mask_prob)
    chosen = labels != NOT_SCORED
    for w in range(len(lengths)):
        of_word = chosen[(word == w) & maskable]
        assert of_word.all() or not of_word.any()
    assert chosen.any() == maskable.any()
    assert not chosen[~maskable].any()


def test_the_share_counts_words_with_a_maskable_token() -> None:
    continues, word = words_of([1, 4] * 100)
    maskable = np.arange(len(word)) >= 50  # the first 20 words are special
    n_chosen = 0
    for seed in range(200):
        _, labels = mask(row(len(word)), seed, maskable, continues)
        n_chosen += len(np.unique(word[labels != NOT_SCORED]))
    assert_binomial(n_chosen, 180 * 200, 0.15)


def test_each_token_of_a_word_is_replaced_independently() -> None:
    continues, word = words_of([2] * 3000)
    corrupted, labels = mask(row(len(word)), 0, None, continues, mask_prob=0.9)
    is_masked = (corrupted == MASK).reshape(-1, 2)[labels[::2] != NOT_SCORED]
    assert_binomial(int(is_masked.all(1).sum()), len(is_masked), 0.8**2)
    assert_binomial(int((~is_masked).all(1).sum()), len(is_masked), 0.2**2)


def test_the_tail_of_a_cut_word_is_a_word() -> None:
    continues = np.array([True, True, False, True])
    seen = {tuple((mask(row(4), seed, None, continues, mask_prob=0.5)[1] != NOT_SCORED).tolist()) for seed in range(60)}
    assert seen == {(True, True, False, False), (False, False, True, True), (True, True, True, True)}


# Masks: edge cases


@pytest.mark.parametrize("n", [1, 2, 50])
def test_a_small_share_chooses_at_least_one_token(n: int) -> None:
    places = set()
    for seed in range(400):
        _, labels = mask(row(n), seed, mask_prob=1e-9)
        assert (labels != NOT_SCORED).sum() == 1
        places.add(int(np.argmax(labels != NOT_SCORED)))
    assert places == set(range(n))


@pytest.mark.parametrize("n", [0, 3])
def test_a_row_without_maskable_tokens_is_unchanged(n: int) -> None:
    corrupted, labels = mask(row(n), 0, np.zeros(n, dtype=bool))
    assert corrupted.tolist() == row(n).tolist() and labels.tolist() == [NOT_SCORED] * n


# Text infilling


def span_lengths(corrupted: Ids, n: int) -> list[int]:
    """Return the number of tokens of each mask, from its neighbours: the ids of a `row` increase by 1."""
    ids = np.concatenate(([999], corrupted, [1000 + n]))
    return [int(ids[i + 1] - ids[i - 1] - 1) for i in np.flatnonzero(ids == MASK)]


def letters(ids: Ids) -> str:
    return "".join("_" if i == MASK else chr(ord("a") + i - 1000) for i in ids.tolist())


@pytest.mark.parametrize("mean_span_length", [2.0, 3.0, 6.0])
def test_lengths_of_spans_are_poisson_and_can_be_0(mean_span_length: float) -> None:
    # The row is so long that the single cut span has no effect.
    n = 60_000
    lengths = span_lengths(infill(row(n), rng(3), mask_id=MASK, mean_span_length=mean_span_length), n)
    assert sum(lengths) == 0.3 * n
    assert abs(np.mean(lengths) - mean_span_length) < 5 * sqrt(mean_span_length / len(lengths))
    for length in range(int(2 * mean_span_length) + 2):
        probability = exp(-mean_span_length) * mean_span_length**length / factorial(length)
        assert_binomial(lengths.count(length), len(lengths), probability)


def test_spans_cover_all_positions_and_less_often_the_ends() -> None:
    n, n_rows = 40, 4000
    taken, n_spans, first, last = np.zeros(n), 0, 0, 0
    for seed in range(n_rows):
        corrupted = infill(row(n), rng(seed), mask_id=MASK)
        taken[~np.isin(row(n), corrupted)] += 1
        n_spans += int((corrupted == MASK).sum())
        first, last = first + int(corrupted[0] == MASK), last + int(corrupted[-1] == MASK)
    # Near the share; neighbours are dependent, so the binomial bound does not apply.
    assert np.abs(taken[5:-5] / n_rows - 0.3).max() < 0.04
    # The 28 kept tokens make 29 gaps, and the gaps at both ends are as likely as the others.
    assert abs(first * 29 / n_spans - 1) < 0.15 and abs(last * 29 / n_spans - 1) < 0.15


@few
@given(seed=seeds, n=st.integers(0, 60), noise_density=st.floats(0.0, 0.5), mean_span_length=st.floats(1.0, 8.0))
def test_the_share_is_removed_and_the_rest_keeps_its_order(
    seed: int, n: int, noise_density: float, mean_span_length: float
) -> None:
    corrupted = infill(row(n), rng(seed), mask_id=MASK, noise_density=noise_density, mean_span_length=mean_span_length)
    left = corrupted[corrupted != MASK]
    assert (np.diff(left) > 0).all() and np.isin(left, row(n)).all()
    assert n - len(left) == sum(span_lengths(corrupted, n)) == round(noise_density * n)


@few
@given(seed=seeds, n=st.integers(0, 60), noise_density=st.floats(0.0, 1.0), mean_span_length=st.floats(0.5, 8.0))
def test_masks_never_touch_and_a_row_never_grows(
    seed: int, n: int, noise_density: float, mean_span_length: float
) -> None:
    corrupted = infill(row(n), rng(seed), mask_id=MASK, noise_density=noise_density, mean_span_length=mean_span_length)
    is_mask = corrupted == MASK
    assert not (is_mask[1:] & is_mask[:-1]).any()
    assert len(corrupted) <= n
    assert bool(is_mask.any()) == (round(noise_density * n) > 0)
    assert sum(span_lengths(corrupted, n)) <= round(noise_density * n)


@pytest.mark.parametrize("noise_density", [0.8, 0.95, 1.0])
def test_a_share_that_is_too_large_takes_as_much_as_fits(noise_density: float) -> None:
    n = 3000  # spans of 3, each with a token after it: 3 of 4, and a little more, as empty spans are dropped
    corrupted = infill(row(n), rng(1), mask_id=MASK, noise_density=noise_density)
    assert 0.73 < (corrupted == MASK).sum() / n + (n - len(corrupted)) / n < 0.79


@pytest.mark.parametrize(
    ("n", "noise_density", "expected"),
    [(0, 0.3, {""}), (1, 0.3, {"a"}), (1, 0.9, {"_"}), (2, 0.3, {"_b", "a_"}), (2, 1.0, {"_", "_b", "a_"})],
)
def test_infilling_of_very_short_rows(n: int, noise_density: float, expected: set[str]) -> None:
    assert {
        letters(infill(row(n), rng(seed), mask_id=MASK, noise_density=noise_density)) for seed in range(100)
    } == expected


# Sentence permutation


@few
@given(seed=seeds, ends=st.lists(st.booleans(), max_size=30))
def test_permutation_keeps_sentences_whole(seed: int, ends: list[bool]) -> None:
    original = row(len(ends))
    permuted = permute_sentences(original, rng(seed), ends_sentence=np.array(ends, dtype=bool))
    assert sorted(permuted.tolist()) == original.tolist()
    following = dict(zip(permuted.tolist(), permuted.tolist()[1:], strict=False))
    assert all(following[i] == i + 1 for i, end in zip(original.tolist()[:-1], ends, strict=False) if not end)


def test_all_orders_of_sentences_are_equally_likely() -> None:
    ends, n = np.array([False, True, True, False, True]), 6000
    orders = [tuple(permute_sentences(row(5), rng(seed), ends_sentence=ends).tolist()) for seed in range(n)]
    assert len(set(orders)) == 6
    for order in set(orders):
        assert_binomial(orders.count(order), n, 1 / 6)


# Span corruption


@few
@given(
    seed=seeds,
    token_ids=st.lists(st.integers(100, 110), max_size=80),
    noise_density=st.floats(0.0, 1.0),
    mean_span_length=st.floats(1.0, 8.0),
    n_sentinels=st.integers(1, 10),
)
def test_spans_put_back_restore_the_row(
    seed: int, token_ids: list[int], noise_density: float, mean_span_length: float, n_sentinels: int
) -> None:
    sentinels = SENTINELS[::-1][:n_sentinels]  # decreasing, as in T5
    original = np.array(token_ids, dtype=np.int64)
    source, target = corrupt_spans(
        original, rng(seed), sentinel_ids=sentinels, noise_density=noise_density, mean_span_length=mean_span_length
    )
    assert restore_spans(source.tolist(), target.tolist(), sentinels) == token_ids
    in_source, in_target = np.isin(source, sentinels), np.isin(target, sentinels)
    used = sentinels[: int(in_source.sum())]
    assert source[in_source].tolist() == target[in_target].tolist() == used and used
    assert in_target[0] and not (in_source[1:] & in_source[:-1]).any()
    if token_ids:  # no span is empty
        assert not (in_target[1:] & in_target[:-1]).any() and not in_target[-1]


@pytest.mark.parametrize(
    ("n", "noise_density", "mean_span_length", "n_noise", "n_spans"),
    [
        (512, 0.15, 3.0, 77, 10),  # 26 spans, except for the sentinels
        (100, 0.15, 3.0, 15, 5),
        (40, 0.5, 2.0, 20, 10),
        (40, 0.15, 3.0, 6, 2),
        (10, 0.01, 3.0, 1, 1),
        (10, 1.0, 3.0, 9, 1),
        (10, 0.8, 1.0, 8, 2),
        (2, 0.15, 3.0, 1, 1),
        (2, 1.0, 1.0, 1, 1),
        (1, 0.15, 3.0, 1, 1),
        (0, 0.15, 3.0, 0, 1),
    ],
)
def test_lengths_follow_from_the_length_of_the_row(
    n: int, noise_density: float, mean_span_length: float, n_noise: int, n_spans: int
) -> None:
    for seed in range(20):
        source, target = corrupt_spans(
            row(n), rng(seed), sentinel_ids=SENTINELS, noise_density=noise_density, mean_span_length=mean_span_length
        )
        assert (len(source), len(target)) == (n - n_noise + n_spans, n_noise + n_spans)
        assert sorted([*source.tolist(), *target.tolist()]) == sorted([*row(n).tolist(), *SENTINELS[:n_spans] * 2])


def test_all_cuts_into_spans_are_equally_likely() -> None:
    n = 4500
    sources = []
    for seed in range(n):
        source, _ = corrupt_spans(row(8), rng(seed), sentinel_ids=SENTINELS, noise_density=0.5, mean_span_length=2.0)
        sources.append(tuple(source.tolist()))
    assert len(set(sources)) == 9  # 4 tokens in 2 spans and 4 between them: 3 ways to cut each
    for cut in set(sources):
        assert_binomial(sources.count(cut), n, 1 / 9)


def test_a_row_begins_with_kept_tokens_and_ends_with_a_span() -> None:
    source, _ = corrupt_spans(row(30), rng(), sentinel_ids=SENTINELS)
    assert source[0] == 1000 and source[-1] in SENTINELS


def test_span_corruption_without_sentinels_is_refused() -> None:
    with pytest.raises(ValueError, match="sentinel"):
        corrupt_spans(row(5), rng(), sentinel_ids=[])


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ([10, 1001, 11, 1004], [1000, 1001, 1002, 1003, 1004]),
        ([10, 1001, 11, 1004, 12], [1000, 1001, 1002, 1003, 1004]),  # one more sentinel ends the target
        ([11, 1004, 10, 1001], [1000, 1001, 1002, 1003, 1004]),
        ([7, 10, 1001], [1000, 1001, 1002, 1003]),  # no first sentinel, and one sentinel without a span
        ([12, 9], [1000, 1002, 1003]),
        ([], [1000, 1002, 1003]),
    ],
)
def test_generated_spans_replace_their_sentinels(target: list[int], expected: list[int]) -> None:
    source = np.array([1000, 10, 1002, 1003, 11])
    assert restore_spans(source.tolist(), target, SENTINELS) == expected


# All of them

Noise = Callable[[Ids, np.random.Generator], tuple[Ids, ...]]
EVERYWHERE, ENDS = np.ones(50, dtype=bool), np.arange(50) % 7 == 6
NOISES: dict[str, Noise] = {
    "mask_tokens": lambda ids, g: mask_tokens(ids, g, mask_id=MASK, replacements=TEXT, maskable=EVERYWHERE),
    "infill": lambda ids, g: (infill(ids, g, mask_id=MASK),),
    "permute_sentences": lambda ids, g: (permute_sentences(ids, g, ends_sentence=ENDS),),
    "corrupt_spans": lambda ids, g: corrupt_spans(ids, g, sentinel_ids=SENTINELS),
}


@pytest.mark.parametrize("name", NOISES)
def test_a_seed_determines_the_noise_and_the_input_is_unchanged(name: str) -> None:
    given_row = row(50)
    given_row.flags.writeable = False
    runs = [[part.tolist() for part in NOISES[name](given_row, rng(seed))] for seed in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    for part in NOISES[name](given_row, rng()):
        assert part.dtype == np.int64 and not np.shares_memory(part, given_row)
