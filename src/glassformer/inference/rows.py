"""Requests and rows of a generation: the settings, the ids of each row, and the rule that ends a row (`Row.extend`)."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch

from glassformer.common.errors import UserError, require_integer
from glassformer.common.seeds import Stream, rng
from glassformer.config.run import GenerationConfig
from glassformer.inference.constraints import Past, require_end
from glassformer.inference.sampling import Sampler

Finish = Literal["stop", "length"]
"""Why a row has ended: an end id, or the limit of its length. A row for which no id is allowed ends by "length"."""


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
    """True if each row draws its own random numbers. If not, sample i of every prompt draws the same numbers."""
    batch_size: int | None = None
    """Maximum number of rows at a time; None = all."""
    device: torch.device | str = "cpu"

    def __post_init__(self) -> None:
        require_end(self.sampling)
        if self.batch_size is not None:
            require_integer("batch_size", self.batch_size, 1, "the number of rows at a time")

    @cached_property
    def ends(self) -> frozenset[int]:
        """All ids that end a row."""
        return frozenset((*self.end_ids, *self.sampling.end_ids))

    @cached_property
    def sampler(self) -> Sampler:
        """The rules by which ids are chosen."""
        return Sampler(self.sampling, self.suppress_ids, self.device, self.ends)


@dataclass(frozen=True)
class Penalties:
    """Changes to the logits of a request: a constant `bias` by id, and penalties for ids that it has generated."""

    bias: Mapping[int, float] = field(default_factory=dict)
    presence: float = 0.0
    """Subtracted once from the logit of each id that was generated before."""
    frequency: float = 0.0
    """Subtracted from the logit of an id for each time that this id was generated before."""


@dataclass(frozen=True, eq=False)
class Request:
    """A prompt, and how it is continued: one row per sample of its settings."""

    ids: Sequence[int]
    settings: Settings
    source: tuple[int, ...] = ()
    """Ids of the source, for a model that reads one."""
    penalties: Penalties = Penalties()
    n_new: int | None = None
    """Largest number of new ids, from 0; None = `max_new_tokens` of the settings."""
    n_top: int | None = None
    """Number of most probable ids that are returned with each new id; None = no log probabilities."""
    scores_prompt: bool = False
    """True to compute the log probabilities of the prompt's ids, too."""


@dataclass(frozen=True)
class Likely:
    """An id and the most probable ids in its place, with log probabilities before temperature and all other rules."""

    token: int
    log_prob: float
    top: Sequence[tuple[int, float]] = ()


class Row:
    """One sample of a request: the ids of the prompt, then new ids."""

    def __init__(self, request: Request, number: int, generator: np.random.Generator) -> None:
        settings, n_new = request.settings, request.n_new
        self.request, self.number, self.generator = request, number, generator
        self.n_prompt = self.n_given = len(request.ids)
        """`n_prompt`: number of ids of the prompt. `n_given`: number of ids that the caller of a `Generation` has."""
        self.history = list(request.ids)
        self.past = Past(self.history, self.n_prompt)
        """All ids before the next one, including those that have left the context."""
        self.begin = max(0, self.n_prompt - settings.max_len)
        """Start of the context in `history`."""
        self.longest = self.n_prompt + (settings.sampling.max_new_tokens if n_new is None else n_new)
        """Maximum length of `history`."""
        if not settings.slide:  # the last id is chosen after a full context, and not read
            self.longest = min(self.longest, settings.max_len + 1)
        self.finish: Finish | None = None
        self.bias = dict(request.penalties.bias)
        """Number that is added to the logit of an id. The key is the id."""
        self.prompt: Sequence[Likely] = ()
        """The ids of the prompt from the second on, with log probabilities, if the request asks for them."""
        self.n_shared = 0
        """Number of first ids of the prompt that were not read, because a `ServerEngine` had kept their state."""

    @property
    def context(self) -> list[int]:
        return self.history[self.begin :]

    @property
    def n_left(self) -> int:
        """Number of ids that may follow."""
        return self.longest - len(self.history)

    def extend(self, token: int | None) -> None:
        """Add the next id, if one is allowed. Set `finish` if the row ends here, or let a full context slide.

        All engines end rows by this rule. A caller can end a row earlier (`Engine.end`): the writer and the server do
        so when `StopWatch` in text.py finds a stop text.
        """
        settings, penalties = self.request.settings, self.request.penalties
        if token is None:
            self.finish = "length"
            return
        if penalties.presence or penalties.frequency:
            is_new = token not in self.history[self.n_prompt :]
            self.bias[token] = self.bias.get(token, 0.0) - (penalties.frequency + penalties.presence * is_new)
        self.history.append(token)
        if token in settings.ends:
            self.finish = "stop"
        elif len(self.history) >= self.longest:
            self.finish = "length"
        elif len(self.history) - self.begin > settings.max_len:
            self.begin = len(self.history) - max(1, settings.max_len // 2)


def rows_of(request: Request, first: int = 0) -> Iterator[Row]:
    """Yield the rows of a request, one per sample; the first row has the number `first`."""
    settings = request.settings
    for number, sample in enumerate(settings.samples, first):
        drawn = number if settings.differ else sample
        yield Row(request, number, rng(settings.sampling.seed, Stream.SAMPLES, drawn))


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
