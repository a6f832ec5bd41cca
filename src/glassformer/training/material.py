"""What a run learns from, as the launch sees it: texts and pairs alike give tokenizers, and a task for the loop."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from glassformer.config.run import DataConfig, Run, TokenizerConfig
from glassformer.models.build import Network
from glassformer.seeds import Stream, seed_of
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.reporting import LaunchReporter
from glassformer.training.task import Task


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of a text or of a pair's target; and the source's own, where the two have no joint one."""

    target: Tokenizer
    separate_source: Tokenizer | None = None

    @property
    def source(self) -> Tokenizer:
        return self.separate_source or self.target


class Prepared(Protocol):
    """Material as tokens."""

    @property
    def summary(self) -> str:
        """How much there is of it, in words."""
        ...

    def task(self, network: Network, device: torch.device) -> Task: ...


class Material(Protocol):
    """The data of a run; nothing is read before it is asked for."""

    name: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of classes or tags, by number."""
        ...

    @property
    def n_outputs(self) -> int:
        """Logits of a head that is not over tokens; 0 where there is none."""
        ...

    @property
    def mean_and_std(self) -> tuple[float, float] | None:
        """Of labels that are numbers."""
        ...

    @property
    def digest(self) -> str:
        """A hash of the data's bytes and of the rule that splits them."""
        ...

    def trains_starts(self, run: Run) -> bool:
        """Whether each document begins with a start token, often enough for a model to learn what begins a text."""
        ...

    def take_digest(self, digest: str) -> None:
        """Use the digest that another process of the run computed, without hashing the data again."""
        ...

    def check(self, run: Run) -> None:
        """`UserError` when the run's model or objective cannot learn from this."""
        ...

    def news(self) -> list[str]:
        """Reads the data; what was dropped or changed, in sentences."""
        ...

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        """Those that the run names, or new ones learned on the training side."""
        ...

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> Prepared:
        """The data as tokens, from a cache where there is one.

        Without `checks_hashes` only the sizes of large files of the cache are compared, because another process of
        the run has compared their hashes.
        """
        ...


def learn_tokenizer(
    config: TokenizerConfig,
    texts: Iterable[str],
    reporter: LaunchReporter,
    title: str = "learning the tokenizer",
    needed: Sequence[str] = (),
) -> Tokenizer:
    """The tokenizer that is named, or a new one learned on training texts, never on the validation side.

    Special tokens that are `needed` and that it lacks come behind all others.
    """
    if config.path is not None:
        return Tokenizer.load(Path(config.path)).with_special_tokens(needed)
    with reporter.phase(title) as progress:
        return Tokenizer.train(
            texts,
            vocab_size=config.vocab_size,
            scheme=config.scheme,
            learner=config.learner,
            special_tokens=config.special_tokens,
            progress=progress,
        ).with_special_tokens(needed)


def first_dropout_seed(run: Run) -> int:
    """Return the seed of BPE-dropout in the first epoch; 0 where it is drawn once or not used."""
    shares = [config.dropout for config in (run.tokenizer, run.source_tokenizer) if config is not None]
    return seed_of(run.train.seed, Stream.CUTS) if run.data.reading >= 2 and any(shares) else 0


def cache_folder(data: DataConfig) -> Path:
    """Where prepared tokens are kept: `data.cache_dir`, or the user's cache folder."""
    if data.cache_dir is not None:
        return Path(data.cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "glassformer" / "tokens"
