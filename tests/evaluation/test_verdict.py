"""The verdict on variants: equal to scipy, and wrong in at most 5 % of all tables."""

import math
import random
import statistics

import pytest

import late
from glassformer.evaluation.verdict import LEVEL, MOST_SEEDS, beyond, holm, p_value, seeds_to_decide, verdicts

stats = late.module("scipy.stats")
N_TABLES = 1000
BOUND = LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / N_TABLES)
"""A fair rule is above this share of wrong tables once in 700 draws, and these draws are fixed."""


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 10, 29, 60, 99])
def test_student_s_distribution_equals_scipy(freedom: int) -> None:
    for t in (0.0, 0.1, 0.9, 2.0, 4.3, 12.0, 60.0):
        assert beyond(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom))
        assert beyond(-t, freedom) == beyond(t, freedom)


def test_p_equals_the_paired_test_of_scipy() -> None:
    draw = random.Random(1)
    for n in range(2, 12):
        one, other = ([draw.gauss(2, 0.1) for _ in range(n)] for _ in range(2))
        p = p_value([a - b for a, b in zip(one, other, strict=True)])
        assert p == pytest.approx(stats.ttest_rel(one, other).pvalue)


def test_holm_rejects_what_the_definition_rejects() -> None:
    """Step down: the k-th smallest of m is rejected if it and all before it are at most level / (m - k + 1)."""
    draw = random.Random(2)
    for _ in range(200):
        p = {str(n): draw.random() ** 4 for n in range(draw.randint(1, 8))}
        order, rejected = sorted(p, key=lambda name: p[name]), set()
        for place, name in enumerate(order):
            if p[name] > LEVEL / (len(p) - place):
                break
            rejected.add(name)
        assert {name for name, corrected in holm(p).items() if corrected <= LEVEL} == rejected


@pytest.mark.parametrize(("n_variants", "n_seeds"), [(1, 2), (1, 3), (1, 5), (8, 3), (8, 5)])
def test_without_a_difference_few_tables_are_wrong(n_variants: int, n_seeds: int) -> None:
    """The seed moves all runs of a seed together, and each run by itself; every fifth variant varies more."""
    draw, wrong = random.Random(3), 0
    for _ in range(N_TABLES):
        shared = {seed: draw.gauss(0, 0.05) for seed in range(n_seeds)}
        baseline, *variants = (
            {seed: 2 + shared[seed] + draw.gauss(0, 0.05 if k % 5 else 0.01) for seed in shared}
            for k in range(n_variants + 1)
        )
        found = verdicts(baseline, {str(k): v for k, v in enumerate(variants)}, higher_is_better=False)
        wrong += any(verdict.word != "not known" for verdict in found.values())
    assert wrong / N_TABLES <= BOUND


def test_a_real_difference_is_found() -> None:
    """0.01 with a deviation of 0.003 of the paired differences: five seeds find it in 9 of 10 tables."""
    draw, found = random.Random(4), 0
    for _ in range(500):
        baseline = {seed: draw.gauss(2, 0.05) for seed in range(5)}
        better = {seed: value - draw.gauss(0.01, 0.003) for seed, value in baseline.items()}
        found += verdicts(baseline, {"b": better}, higher_is_better=False)["b"].word == "better"
    assert found >= 450


@pytest.mark.parametrize("higher", [True, False])
def test_the_direction_of_the_metric_decides_what_is_better(higher: bool) -> None:
    baseline = {0: 50.0, 1: 51.0, 2: 49.5}
    variants = {"up": {0: 53.0, 1: 54.1, 2: 52.4}, "down": {0: 47.0, 1: 48.1, 2: 46.4}}
    found = verdicts(baseline, variants, higher_is_better=higher)
    assert (found["up"].word, found["down"].word) == (("better", "worse") if higher else ("worse", "better"))
    assert found["up"].difference == pytest.approx(3.0)


def test_only_seeds_of_both_are_compared() -> None:
    found = verdicts({0: 1.0, 2: 1.2}, {"a": {0: 0.9, 1: 0.1, 2: 1.1}, "none": {}}, higher_is_better=False)
    assert found["a"].n == 2 and found["a"].difference == pytest.approx(-0.1)
    assert found["none"].n == 0 and found["none"].word == "not known" and math.isnan(found["none"].difference)


def test_equal_differences_are_decided_by_their_number_alone() -> None:
    """Accuracy on few texts: each seed gives one right answer more. Two or three such seeds decide nothing."""
    for n, word in ((2, "not known"), (5, "not known"), (6, "better")):
        found = verdicts(dict.fromkeys(range(n), 90.0), {"a": dict.fromkeys(range(n), 90.5)}, higher_is_better=True)
        assert found["a"].word == word
        assert found["a"].more == (None if word == "better" else 6 - n)


def test_runs_that_are_equal_are_never_called_different() -> None:
    same = {0: 1.5, 1: 1.7}
    verdict = verdicts(same, {"a": same}, higher_is_better=False)["a"]
    assert verdict.word == "not known" and verdict.p == 1.0 and verdict.more is None
    assert str(verdict) == f"not known: over {MOST_SEEDS} seeds would be needed"


def test_the_number_of_seeds_that_would_decide_is_the_smallest() -> None:
    draw = random.Random(5)
    for _ in range(50):
        differences = [draw.gauss(0.02, 0.02) for _ in range(4)]
        more = seeds_to_decide(differences, LEVEL)
        if p_value(differences) <= LEVEL or more is None:
            continue
        mean, deviation = statistics.fmean(differences), statistics.stdev(differences)
        p = [2 * stats.t.sf(abs(mean) / deviation * math.sqrt(n), n - 1) for n in range(5, 5 + more)]
        assert p[-1] <= LEVEL and all(value > LEVEL for value in p[:-1])


def test_several_looks_multiply_p() -> None:
    baseline, better = {0: 2.0, 1: 2.1, 2: 1.9}, {0: 1.9, 1: 1.98, 2: 1.81}
    one, five = (verdicts(baseline, {"a": better}, higher_is_better=False, n_looks=n)["a"] for n in (1, 5))
    assert one.word == "better" and five.p == pytest.approx(5 * one.p)
