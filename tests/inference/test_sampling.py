"""Sampling rules against transformers, and draws against their probabilities."""

import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import late
from glassformer.common.errors import UserError
from glassformer.config.run import CONSTRAINTS, SHAPES_LOGITS, GenerationConfig
from glassformer.inference.constraints import Constraints, Past, repeating_ids
from glassformer.inference.rows import Settings
from glassformer.inference.sampling import (
    Sampler,
    choose,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    shape_logits,
)
from tolerances import assert_close

transformers = late.optional("transformers")

B, V = 8, 50


@pytest.fixture
def logits() -> Tensor:
    return torch.randn(B, V, generator=torch.Generator().manual_seed(0)) * 3


def same(found: Tensor, expected: Tensor) -> None:
    assert_close(found, expected)


def test_every_field_that_changes_the_distribution_is_listed(logits: Tensor) -> None:
    other: dict[str, Any] = {"max_new_tokens": 9, "stop": ("a",), "end_ids": (3,), "seed": 1, "draft_tokens": 2}
    other |= {"temperature": 0.5, "top_k": 2, "top_p": 0.5, "min_p": 0.5, "repetition_penalty": 2.0, "prompt_lookup": 3}
    other |= {"no_repeat_ngram_size": 2, "min_new_tokens": 3}
    assert other.keys() == {field.name for field in fields(GenerationConfig)}
    pasts = [Past([1, 2, 1], 1)] * B

    def shaped(**settings: Any) -> Tensor:
        return Sampler(GenerationConfig(**settings), (), "cpu", ends=[4]).shape(logits, pasts)

    plain = shaped()
    changes = {name for name, value in other.items() if not shaped(**{name: value}).equal(plain)}
    assert changes == {*SHAPES_LOGITS, *CONSTRAINTS}


@pytest.mark.parametrize("k", [1, 2, 7, 49, 50, 1000])
def test_top_k(logits: Tensor, k: int) -> None:
    same(keep_top_k(logits, k), transformers.TopKLogitsWarper(k)(None, logits))


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 0.9, 0.999])
def test_top_p(logits: Tensor, p: float) -> None:
    same(keep_top_p(logits, p), transformers.TopPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize("p", [1e-6, 0.05, 0.5, 1.0])
def test_min_p(logits: Tensor, p: float) -> None:
    same(keep_min_p(logits, p), transformers.MinPLogitsWarper(p)(None, logits))


@pytest.mark.parametrize("penalty", [0.7, 1.0, 1.3])
def test_repetition_penalty(logits: Tensor, penalty: float) -> None:
    ids = torch.randint(V, (B, 12), generator=torch.Generator().manual_seed(1))
    sampler = Sampler(GenerationConfig(repetition_penalty=penalty), (), "cpu")
    same(
        sampler.shape(logits, [Past(row, 12) for row in ids.tolist()]),
        transformers.RepetitionPenaltyLogitsProcessor(penalty)(ids, logits.clone()),
    )


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_a_sampler_penalises_the_ids_of_the_history_of_each_row(penalty: float) -> None:
    sampler = Sampler(GenerationConfig(repetition_penalty=penalty), suppress_ids=(), device="cpu")
    shaped = sampler.shape(torch.tensor([[2.0, -2.0, 1.0]] * 2), [Past([0, 1], 1), Past([2], 1)])
    same(shaped, torch.tensor([[2 / penalty, -2 * penalty, 1.0], [2.0, -2.0, 1 / penalty]]))


def test_the_penalty_counts_repeated_ids_once_and_ignores_ids_beyond_the_vocabulary() -> None:
    rng = np.random.default_rng(0)
    scores, pasts = (
        torch.tensor(rng.normal(size=(6, 9))),
        [rng.integers(-1, 14, n).tolist() for n in (0, 1, 4, 30, 0, 9)],
    )
    config = GenerationConfig(repetition_penalty=1.3)
    expected = scores.clone()
    for row, past in zip(expected, pasts, strict=True):
        for token in set(past) & set(range(9)):
            row[token] *= 1.3 if row[token] < 0 else 1 / 1.3
    constraints = Constraints(config, (), (), "cpu")
    assert_close(constraints.penalise_(scores, [Past(past, 0) for past in pasts]), expected)
    assert constraints.penalise_(scores[:0], []).shape == (0, 9)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_repeating_ids_equal_those_of_transformers(size: int) -> None:
    """Vary length and vocabulary, so that n-grams repeat, overlap, or are longer than the ids."""
    n_found = 0
    for seed in range(60):
        draw = torch.Generator().manual_seed(seed)
        length, n_ids = 1 + seed % 30, 2 + seed % 2
        ids = torch.randint(n_ids, (1, length), generator=draw)
        banned = transformers.NoRepeatNGramLogitsProcessor(size)(ids, torch.zeros(1, n_ids)) == -math.inf
        found = repeating_ids(ids[0].tolist(), size)
        assert set(found) == set(banned[0].nonzero()[:, 0].tolist())
        n_found += len(found)
    assert n_found > 20


def test_ends_and_earlier_ids_beyond_the_vocabulary_change_nothing(logits: Tensor) -> None:
    """A caller may give any end ids, and the table of tokens may have more rows than the output."""
    config = GenerationConfig(min_new_tokens=3, repetition_penalty=2.0, no_repeat_ngram_size=1)
    pasts = [Past([1, V, V + 9], 3)] * B
    found = Sampler(config, (), "cpu", ends=[4, V, 999, -1]).shape(logits, pasts)
    assert found.equal(Sampler(config, (), "cpu", ends=[4]).shape(logits, [Past([1], 1)] * B))


def test_a_minimum_above_the_maximum_is_refused() -> None:
    config = GenerationConfig(min_new_tokens=9, max_new_tokens=5)
    with pytest.raises(UserError, match="min_new_tokens is 9 and max_new_tokens is 5: lower the first, or raise"):
        Settings(config, max_len=20)


def test_very_low_temperatures_choose_the_largest() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    for temperature in (1e-5, 1e-40):
        shaped = shape_logits(logits, GenerationConfig(temperature=temperature))
        assert choose(shaped, torch.tensor([0.99])).item() == 1


def test_all_rules_in_order(logits: Tensor) -> None:
    ids = torch.randint(V, (B, 12), generator=torch.Generator().manual_seed(1))
    ids[:, -1] = ids[:, 3]
    settings: dict[str, Any] = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2}
    config = GenerationConfig(no_repeat_ngram_size=2, min_new_tokens=5, **settings)
    processors: list[Any] = [
        transformers.RepetitionPenaltyLogitsProcessor(1.2),
        transformers.NoRepeatNGramLogitsProcessor(2),
        transformers.MinNewTokensLengthLogitsProcessor(8, 5, [3, 7]),
        transformers.TemperatureLogitsWarper(0.7),
        transformers.TopKLogitsWarper(20),
        transformers.TopPLogitsWarper(0.9),
        transformers.MinPLogitsWarper(0.02),
    ]
    expected = logits.clone()
    for processor in processors:
        expected = processor(ids, expected)
    pasts = [Past(row, 8) for row in ids.tolist()]
    same(Sampler(config, (), "cpu", ends=[3, 7]).shape(logits, pasts), expected)


def test_pitfall_34_temperature_zero_takes_the_largest_without_division(logits: Tensor) -> None:
    shaped = shape_logits(logits, GenerationConfig(temperature=0.0, top_k=3, top_p=0.1))
    assert bool(shaped.isfinite().all())
    assert torch.equal(choose(shaped, None), logits.argmax(-1))


@pytest.mark.parametrize(
    "rules",
    [
        {"top_k": 10**9},
        {"top_p": 1e-12},
        {"top_p": 1e-50},
        {"min_p": 1.0},
        {"temperature": 1e-6},
        {"temperature": 1e6, "top_p": 1e-6},
    ],
)
def test_pitfall_34_at_least_one_token_always_remains(logits: Tensor, rules: dict[str, Any]) -> None:
    shaped = shape_logits(logits, GenerationConfig(**rules))
    assert bool((shaped > -math.inf).any(-1).all()) and not bool(shaped.isnan().any())
    chosen = choose(shaped, torch.full((B,), 0.999999))
    assert bool((shaped.gather(1, chosen[:, None]) > -math.inf).all())


@pytest.mark.parametrize("p", [0.0, 1e-50])
def test_pitfall_34_top_p_always_keeps_the_most_probable_token(logits: Tensor, p: float) -> None:
    """1e-50 is 0 in single precision, and no probability mass is below 0."""
    kept = keep_top_p(logits, p) > -math.inf
    assert torch.equal(kept, torch.nn.functional.one_hot(logits.argmax(-1), V).bool())


def test_neutral_settings_change_nothing(logits: Tensor) -> None:
    assert torch.equal(shape_logits(logits, GenerationConfig()), logits)


def test_draws_follow_the_probabilities() -> None:
    probabilities = torch.tensor([0.5, 0.0, 0.25, 0.15, 0.1])
    n = 20_000
    uniform = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(choose(probabilities.log().expand(n, -1), uniform), minlength=5)
    assert counts[1] == 0
    expected = probabilities * n
    chi_square = float(((counts - expected)[expected > 0] ** 2 / expected[expected > 0]).sum())
    assert chi_square < 16.3  # 3 degrees of freedom: p = 0.001


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.49, 1), (0.51, 3), (0.9999999999, 3)])
def test_an_excluded_token_is_never_drawn(u: float, token: int) -> None:
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    assert choose(logits, torch.tensor([u], dtype=torch.float64)).tolist() == [token]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": -0.1}, "temperature is -0.1 and must not be negative"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"min_p": -0.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        GenerationConfig(**settings)
