"""Named random streams of a run: every random draw is a function of (seed, stream, number) only.

So a checkpoint needs no random state, a resumed run draws the same values as an uninterrupted run, and an evaluation
in between changes nothing. The texts of the built-in data and the inputs of the doctor and of exports are not streams
of a run: each is drawn from a fixed seed in its own file.
"""

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """A random stream of a run: what is drawn, and the meaning of `number`.

    The values are spawn keys, which determine the draws of saved runs: never change one. New streams get new values.
    """

    WINDOWS = 1
    """Start positions of the windows in a batch; `number` is the batch."""
    EPOCHS = 2
    """Order of the rows; `number` is the epoch."""
    DROPOUT = 3
    """Dropout masks; `number` is the micro-batch."""
    COLLATE = 4
    """Masks and noise of an objective; `number` is the micro-batch."""
    BUDGET = 5
    """Order of the rows for batches with a token budget; `number` is the epoch."""
    REENCODING = 6
    """Seed of the tokens and row order of an epoch with a new BPE-dropout in each epoch; `number` is the epoch."""
    WEIGHTS = 7
    """Initial weights; uses the seed itself."""
    SAMPLES = 8
    """Tokens of a generated text; `number` is the sample. Sample 0 uses the seed itself."""
    EVALUATION = 9
    """Masks and noise of a reported loss; seed 0 in every run."""
    BPE_DROPOUT = 10
    """Merges that BPE-dropout skips; `number` (added to the seed) counts blocks of about 10^6 characters."""

    ROLLOUTS = 11
    """Answers that are sampled for a reward; `number` is the micro-batch. Seed 0 in every evaluation."""


def rng(seed: int, stream: Stream, number: int = 0) -> np.random.Generator:
    """Return the generator of a stream.

    >>> rng(7, Stream.WINDOWS, 3).random() == rng(7, Stream.WINDOWS, 3).random() != rng(7, Stream.WINDOWS, 4).random()
    True
    """
    return np.random.default_rng(_sequence(seed, stream, number))


def seed_of(seed: int, stream: Stream, number: int = 0) -> int:
    """Return the seed of a stream, for generators other than NumPy's: 64 bits, or `seed + number`.

    >>> seed_of(7, Stream.DROPOUT, 3)
    17897042338980825752
    >>> seed_of(7, Stream.WEIGHTS), seed_of(7, Stream.BPE_DROPOUT, 3)
    (7, 10)
    """
    if stream in (Stream.WEIGHTS, Stream.BPE_DROPOUT):
        return seed + number
    return int(_sequence(seed, stream, number).generate_state(1, np.uint64)[0])


def _sequence(seed: int, stream: Stream, number: int) -> np.random.SeedSequence:
    key: tuple[int, ...] = (int(stream), number)
    if stream in (Stream.SAMPLES, Stream.EVALUATION):  # older than the stream keys: saved runs must draw the same
        key = (number,) if number else ()
    return np.random.SeedSequence(seed, spawn_key=key)
