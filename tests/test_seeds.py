"""The random streams of a run: no two share a key, and no stream has changed."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.common.seeds import Stream, rng, seed_of

NUMPY = [Stream.WINDOWS, Stream.EPOCHS, Stream.COLLATE, Stream.BUDGET, Stream.SAMPLES, Stream.EVALUATION]
TORCH = [Stream.DROPOUT, Stream.WEIGHTS]
PYTHON = [Stream.BPE_DROPOUT]
SEEDS = [Stream.REENCODING, Stream.ROLLOUTS]

DRAWN = {  # (seed, number): values that the first release drew
    (0, 0): {
        Stream.WINDOWS: [2081501252, 4060103576, 4165089906],
        Stream.EPOCHS: [472184452, 1139465299, 2943609711],
        Stream.COLLATE: [1764908667, 4042136752, 435675279],
        Stream.BUDGET: [1582276166, 3350528699, 4110426938],
        Stream.SAMPLES: [3653403231, 2735729615, 2195314465],
        Stream.EVALUATION: [3653403231, 2735729615, 2195314465],
    },
    (7, 3): {
        Stream.WINDOWS: [1943727417, 1045726283, 3035161641],
        Stream.EPOCHS: [1621067160, 2437928813, 562358361],
        Stream.COLLATE: [3924289523, 1978770973, 141394051],
        Stream.BUDGET: [1814483377, 2597804987, 1806280022],
        Stream.SAMPLES: [2059596620, 4219044297, 1392845742],
    },
}
SEEDED = {
    (0, 0): {
        Stream.DROPOUT: 5741515530665531126,
        Stream.REENCODING: 14654392231624963458,
        Stream.WEIGHTS: 0,
        Stream.BPE_DROPOUT: 0,
    },
    (7, 3): {Stream.DROPOUT: 17897042338980825752, Stream.REENCODING: 13867255081647942538, Stream.BPE_DROPOUT: 10},
    (7, 0): {Stream.WEIGHTS: 7, Stream.BPE_DROPOUT: 7},
}


@pytest.mark.parametrize(("seed", "number"), DRAWN)
def test_the_values_of_a_stream_never_change(seed: int, number: int) -> None:
    for stream, drawn in DRAWN[seed, number].items():
        assert rng(seed, stream, number).integers(2**32, size=3).tolist() == drawn, stream


@pytest.mark.parametrize(("seed", "number"), SEEDED)
def test_the_seed_of_a_stream_never_changes(seed: int, number: int) -> None:
    assert {stream: seed_of(seed, stream, number) for stream in SEEDED[seed, number]} == SEEDED[seed, number]


def test_streams_equal_the_plain_forms_of_the_libraries() -> None:
    for seed in (0, 7):
        assert rng(seed, Stream.SAMPLES).random() == np.random.default_rng(seed).random()
        assert rng(seed, Stream.EVALUATION).random() == np.random.default_rng(seed).random()
        drawn = torch.rand(3, generator=torch.Generator().manual_seed(seed_of(seed, Stream.WEIGHTS)))
        assert drawn.tolist() == torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist()
        assert random.Random(seed_of(seed, Stream.BPE_DROPOUT, 2)).random() == random.Random(seed + 2).random()


def keys(streams: list[Stream]) -> dict[Stream, set[Any]]:
    """Return the first state of each stream, for a few seeds and numbers."""
    grid = list(itertools.product(range(4), range(12)))
    found: dict[Stream, set[Any]] = {}
    for stream in streams:
        if stream == Stream.EVALUATION:  # always with seed 0 and number 0
            found[stream] = {rng(0, stream).bit_generator.state["state"]["state"]}
        elif stream == Stream.WEIGHTS:  # one per run
            found[stream] = {seed_of(seed, stream) for seed in range(4)}
        elif stream in NUMPY:
            found[stream] = {rng(*place).bit_generator.state["state"]["state"] for place in _with(stream, grid)}
        else:
            found[stream] = {seed_of(*place) for place in _with(stream, grid)}
    return found


def _with(stream: Stream, grid: list[tuple[int, int]]) -> list[tuple[int, Stream, int]]:
    return [(seed, stream, number) for seed, number in grid]


@pytest.mark.parametrize("streams", [NUMPY, [*TORCH, *SEEDS], [*PYTHON, *SEEDS]], ids=["numpy", "torch", "python"])
def test_no_two_streams_of_a_generator_share_a_key(streams: list[Stream]) -> None:
    """One pair is an exception, and nothing draws from both: the first sample of seed 0, and the masks of an
    evaluation."""
    found = keys(streams)
    for one, other in itertools.combinations(streams, 2):
        shared = found[one] & found[other]
        expected = 1 if {one, other} == {Stream.SAMPLES, Stream.EVALUATION} else 0
        assert len(shared) == expected, (one, other)


def test_every_stream_is_in_these_tests() -> None:
    assert sorted([*NUMPY, *TORCH, *PYTHON, *SEEDS]) == sorted(Stream)
    assert len({int(stream) for stream in Stream}) == len(Stream.__members__)
