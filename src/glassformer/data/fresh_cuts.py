"""BPE-dropout drawn afresh for each epoch (Provilkov et al. 2020): every epoch reads tokens that were cut for it."""

import shutil
from collections.abc import Callable
from pathlib import Path

from glassformer.data.batching import Example, Sampler
from glassformer.seeds import Stream, seed_of


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

    @property
    def n_steps_per_epoch(self) -> int:
        return self._first.n_steps_per_epoch

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
