"""Rows of a generation: one settings object for all of them, and the ids of each."""

import itertools
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from glassformer.common.errors import UserError, require_integer
from glassformer.common.seeds import Stream, rng
from glassformer.config.run import GenerationConfig
from glassformer.inference.constraints import Past, require_end
from glassformer.inference.sampling import Sampler, all_ends


@dataclass(frozen=True)
class Settings:
    """Settings of a generation.

    Raises `UserError` for a `batch_size` below 1, and for a minimum of new tokens above the maximum.
    """

    sampling: GenerationConfig
    max_len: int
    """The model's context."""
    end_ids: Collection[int] = ()
    """Ids that end a row, besides `sampling.end_ids`."""
    suppress_ids: Sequence[int] = ()
    """Ids that are never chosen."""
    slide: bool = False
    """True if a row with a full context continues: the older half is dropped, and the rest is read again."""
    samples: Sequence[int] = (0,)
    """Numbers of the samples of each prompt. Sample i draws from stream `SAMPLES` of `seeds.py`, for every prompt."""
    differ: bool = False
    """True if each row has its own draws: of equal prompts, and of the same sample of several prompts."""
    batch_size: int | None = None
    """Maximum number of rows at a time; None = all."""
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        require_end(self.sampling)
        if self.batch_size is not None:
            require_integer("batch_size", self.batch_size, 1, "the number of rows at a time")

    @property
    def ends(self) -> frozenset[int]:
        """All ids that end a row."""
        return all_ends(self.end_ids, self.sampling)

    @property
    def sampler(self) -> Sampler:
        """A new sampler with these settings."""
        return Sampler(self.sampling, self.suppress_ids, self.device, self.ends)


@dataclass(eq=False)
class Row:
    """One sample of one prompt."""

    number: int
    prompt: int
    """Index of the prompt."""
    history: list[int]
    """Ids of the prompt, then new ids."""
    n_prompt: int
    """Number of ids of the prompt."""
    longest: int
    """Maximum length of `history`."""
    begin: int
    """Start of the context in `history`."""
    generator: np.random.Generator
    source: tuple[int, ...] = ()
    """Ids of the source, for a model that reads one."""
    chosen: deque[int] = field(default_factory=deque)
    """New ids that are not yielded yet."""
    is_complete: bool = False
    """True if the last id is chosen."""

    @property
    def context(self) -> list[int]:
        return self.history[self.begin :]

    @property
    def n_context(self) -> int:
        return len(self.history) - self.begin

    @property
    def past(self) -> Past:
        """The ids before the next one, also those that have left the context."""
        return Past(self.history, self.n_prompt)

    @property
    def n_left(self) -> int:
        """Number of ids that may follow."""
        return self.longest - len(self.history)


def rows_of(
    prompts: Sequence[Sequence[int]], settings: Settings, sources: Sequence[Sequence[int]] = ()
) -> Iterator[Row]:
    """Yield the rows in order; all samples of the first prompt come first. Prompt i has source i, if there is one."""
    of_prompts = [tuple(source) for source in sources] or [()] * len(prompts)
    sampling = settings.sampling
    for number, ((prompt, ids), sample) in enumerate(itertools.product(enumerate(prompts), settings.samples)):
        drawn = number if settings.differ else sample
        longest, begin = len(ids) + sampling.max_new_tokens, max(0, len(ids) - settings.max_len)
        yield Row(
            number,
            prompt,
            list(ids),
            len(ids),
            longest,
            begin,
            rng(sampling.seed, Stream.SAMPLES, drawn),
            of_prompts[prompt],
        )


def check_prompts(prompts: Sequence[Sequence[int]], max_len: int, slide: bool = False) -> None:
    """Raise `UserError` for an empty prompt, or for a prompt longer than the context unless `slide`."""
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise UserError(f"prompt {number} is empty: give at least one token to start from")
        if len(prompt) > max_len and not slide:
            raise UserError(
                f"prompt {number} has {len(prompt)} tokens and the model's context is {max_len}: shorten it, or "
                "let the context slide (--context slide), which drops the beginning"
            )
