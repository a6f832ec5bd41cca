"""Noise: what is chosen follows its distributions, nothing leaks, nothing is lost."""

import numpy as np
import pytest

from glassformer.objectives.loss import NOT_SCORED
from glassformer.objectives.noise import corrupt_spans, infill, mask_tokens, permute_sentences, restore_spans

MASK = 1
TEXT = np.arange(100, 600)


def masked(
    seed: int, n: int = 200, share: float = 0.15, **options: object
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    ids = rng.choice(TEXT, n)
    everywhere = np.ones(n, dtype=bool)
    values = {"maskable": everywhere} | options
    corrupted, labels = mask_tokens(ids, rng, mask_id=MASK, replacements=TEXT, share=share, **values)  # type: ignore[arg-type]
    return ids, corrupted, labels


def within(count: int, n: int, p: float) -> bool:
    """Whether a binomial count is within five standard deviations."""
    return abs(count - n * p) < 5 * np.sqrt(n * p * (1 - p))


def test_the_80_10_10_rule_by_its_binomial_expectations() -> None:
    n_tokens = n_chosen = n_masked = n_same = 0
    for seed in range(300):
        ids, corrupted, labels = masked(seed)
        chosen = labels != NOT_SCORED
        assert (corrupted[~chosen] == ids[~chosen]).all() and (labels[chosen] == ids[chosen]).all()
        n_tokens, n_chosen = n_tokens + len(ids), n_chosen + int(chosen.sum())
        n_masked += int((corrupted[chosen] == MASK).sum())
        n_same += int((corrupted[chosen] == ids[chosen]).sum())
    assert within(n_chosen, n_tokens, 0.15)
    assert within(n_masked, n_chosen, 0.8)
    assert within(n_same, n_chosen, 0.1 + 0.1 / len(TEXT))  # a random token may be the same


def test_what_is_not_maskable_stays_and_one_is_always_chosen() -> None:
    maskable = np.zeros(20, dtype=bool)
    maskable[[3, 7]] = True
    for seed in range(50):
        ids, corrupted, labels = masked(seed, 20, 0.01, maskable=maskable)
        assert set(np.flatnonzero(labels != NOT_SCORED)) <= {3, 7} and (labels != NOT_SCORED).any()
        assert (corrupted[~maskable] == ids[~maskable]).all()
    ids, corrupted, labels = masked(0, 5, maskable=np.zeros(5, dtype=bool))
    assert (corrupted == ids).all() and (labels == NOT_SCORED).all()


def test_words_are_chosen_whole_and_as_often_as_tokens_would_be() -> None:
    continues = np.arange(300) % 3 != 0  # words of three tokens
    n_words = n_chosen = 0
    for seed in range(200):
        _, _, labels = masked(seed, 300, continues=continues)
        words = (labels != NOT_SCORED).reshape(-1, 3)
        assert (words.all(axis=1) == words.any(axis=1)).all()
        n_words, n_chosen = n_words + len(words), n_chosen + int(words.all(axis=1).sum())
    assert within(n_chosen, n_words, 0.15)


def test_the_same_seed_gives_the_same_noise() -> None:
    assert all((a == b).all() for a, b in zip(masked(3), masked(3), strict=True))
    assert any((a != b).any() for a, b in zip(masked(3), masked(4), strict=True))


def test_infilling_removes_its_share_and_keeps_the_rest_in_order() -> None:
    ids, removed, n_masks, n_empty = np.arange(100, 300), 0, 0, 0
    for seed in range(300):
        out = infill(ids, np.random.default_rng(seed), mask_id=MASK)
        kept = out[out != MASK]
        assert (np.diff(kept) > 0).all() and set(kept) <= set(ids), "a subsequence"
        assert len(out) <= len(ids) and not ((out[1:] == MASK) & (out[:-1] == MASK)).any(), "masks do not touch"
        removed += len(ids) - len(kept)
        n_masks += int((out == MASK).sum())
        gaps = np.diff(np.concatenate(([99], kept, [300]))) - 1  # tokens missing between neighbours
        n_empty += int((out == MASK).sum()) - int((gaps > 0).sum())
    assert removed == 300 * 60, "share × tokens, exactly"
    assert abs(removed / (n_masks - n_empty) - 3 / (1 - np.exp(-3))) < 0.12, "Poisson lengths, those above 0"
    assert abs(n_empty / n_masks - np.exp(-3)) < 0.012, "and as many of length 0"


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_infilling_of_tiny_rows(n: int) -> None:
    for seed in range(20):
        out = infill(np.arange(10, 10 + n), np.random.default_rng(seed), mask_id=MASK)
        assert len(out) <= n


def test_sentences_are_shuffled_whole() -> None:
    ids = np.arange(12)
    ends = np.isin(ids, [3, 7])
    seen = set()
    for seed in range(60):
        out = permute_sentences(ids, np.random.default_rng(seed), ends_sentence=ends)
        seen.add(tuple(out[[0, -1]]))
        assert sorted(out) == list(ids)
        for begin, end in ((0, 4), (4, 8), (8, 12)):
            place = int(np.flatnonzero(out == begin)[0])
            assert (out[place : place + end - begin] == ids[begin:end]).all()
    assert len(seen) == 6, "every order occurs"


def test_spans_hold_what_the_source_lost_and_nothing_else() -> None:
    sentinels = list(range(16))
    for seed in range(400):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 150))
        ids = rng.choice(TEXT, n)
        source, target = corrupt_spans(ids, rng, sentinel_ids=sentinels)
        assert (restore_spans(source, target, sentinels) == ids).all()
        used = [int(i) for i in source if i < 100]
        assert used == list(range(len(used))) == [int(i) for i in target if i < 100], "in order, each once"
        is_sentinel = source < 100
        assert not (is_sentinel[1:] & is_sentinel[:-1]).any(), "spans do not touch"
        removed = len(target) - len(used)
        assert removed == min(max(round(0.15 * n), 1), max(n - 1, 1)) and len(source) == n - removed + len(used)


def test_spans_are_as_long_as_asked_on_average_and_never_more_than_sentinels() -> None:
    lengths = []
    for seed in range(200):
        _, target = corrupt_spans(TEXT[:200], np.random.default_rng(seed), sentinel_ids=list(range(32)))
        lengths.append((target >= 100).sum() / (target < 100).sum())
    assert np.mean(lengths) == pytest.approx(3.0)
    _, target = corrupt_spans(TEXT[:400], np.random.default_rng(0), sentinel_ids=[5, 6])
    assert (target < 100).sum() == 2
