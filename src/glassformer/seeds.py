"""Every random stream by name. What is drawn is a function of (seed, stream, number) alone.

So a checkpoint needs no random state, a resumed run draws what the uninterrupted run would have drawn, and an
evaluation in between changes nothing. The texts of the built-in data and the inputs of the doctor and of exports are
no streams of a run: each is drawn from a fixed seed in its own file.
"""

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What is drawn, and which number counts it.

    The values are spawn keys: they decide what saved runs draw, so none is changed and a new stream takes a new one.
    """

    WINDOWS = 1
    """Where the windows of a batch begin; by batch."""
    EPOCHS = 2
    """The order of the rows; by epoch."""
    DROPOUT = 3
    """What dropout leaves out; by micro-batch."""
    COLLATE = 4
    """Masks and noise of an objective; by micro-batch."""
    BUDGET = 5
    """The order of the rows of a budget of tokens; by epoch."""
    CUTS = 6
    """The seed of the tokens, and of the order of the rows, where each epoch has its own BPE-dropout; by epoch."""
    WEIGHTS = 7
    """The weights at the first step: the seed itself."""
    SAMPLES = 8
    """The tokens of a generated text; by sample. Sample 0 has the seed itself."""
    EVALUATION = 9
    """Masks and noise where a loss is reported: seed 0, in every run."""
    BPE_DROPOUT = 10
    """The merges that are left out; by about a million characters of text, counted on from the seed."""


def rng(seed: int, stream: Stream, number: int = 0) -> np.random.Generator:
    """Return the generator of a stream.

    >>> rng(7, Stream.WINDOWS, 3).random() == rng(7, Stream.WINDOWS, 3).random() != rng(7, Stream.WINDOWS, 4).random()
    True
    """
    return np.random.default_rng(_sequence(seed, stream, number))


def seed_of(seed: int, stream: Stream, number: int = 0) -> int:
    """Return the seed of a stream, for generators other than NumPy's: 64 bits, or `seed` counted on.

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
    if stream in (Stream.SAMPLES, Stream.EVALUATION):  # older than the keys of the others
        key = (number,) if number else ()
    return np.random.SeedSequence(seed, spawn_key=key)
