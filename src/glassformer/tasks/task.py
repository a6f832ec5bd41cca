"""The protocols of a task, the parts of a model, and the registry of tasks by their kind of objective.

For each ability, a task has a method that returns the object with this ability, such as a `Translator`, or None if the
models of the task do not have the ability. `task_of` imports the module of a task when its kind is first used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from glassformer.common.errors import Log, Progress, UserError
from glassformer.config.extensions import TASKS, entry_points, register_settings
from glassformer.config.run import Run, TextData
from glassformer.data import builtin
from glassformer.tasks.requirements import BUILT_IN

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from glassformer.config.recurrent import ModelConfig
    from glassformer.config.run import BeamConfig, GenerationConfig
    from glassformer.evaluation.loss import Division
    from glassformer.evaluation.pairs import PairScores
    from glassformer.inference.classify import Classifier, Tagger
    from glassformer.inference.decodable import Ensemble
    from glassformer.inference.fill import Filler
    from glassformer.inference.score import Scorer
    from glassformer.inference.translator import Translator
    from glassformer.inference.writer import Writer
    from glassformer.models.build import Network
    from glassformer.tasks.batches import EvaluationData, Places, TrainingData
    from glassformer.tasks.reporting import LaunchReporter
    from glassformer.tasks.requirements import Facts
    from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class ModelParts:
    """Networks, tokenizers and settings of a trained model."""

    network: Network
    tokenizers: Tokenizers
    generation: GenerationConfig | BeamConfig
    run: Run
    device: torch.device
    labels: tuple[str, ...] = ()
    """Names of classes or tags, by index."""
    others: tuple[Network, ...] = ()
    """Further members of an ensemble of translators; probabilities are averaged over all members."""
    folder: Path | None = None
    """The folder that the model was loaded from."""
    step: int = 0
    """Number of optimizer steps that trained the weights; 0 for an imported model."""
    data_digest: str | None = None
    """Digest of the training data; None if the folder has no training state."""
    dtype: str | None = None
    """The `dtype` passed to `load`; None keeps the weights in fp32, and `evaluate` uses the precision of the run."""

    @property
    def name(self) -> str:
        """The name of the model in messages."""
        return self.run.name if self.folder is None else str(self.folder)

    @property
    def config(self) -> ModelConfig:
        """The configuration of the network."""
        return self.network.config

    @property
    def members(self) -> list[Network]:
        """All networks of an ensemble, or the single network."""
        return [self.network, *self.others]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of texts, and of targets."""
        return self.tokenizers.target

    @property
    def source_tokenizer(self) -> Tokenizer:
        """The tokenizer of sources; the same object as `tokenizer` if source and target share one."""
        return self.tokenizers.source


@dataclass(frozen=True)
class MicroBatch:
    """Size of a training batch according to the settings: a number of rows, or a budget of tokens."""

    n_rows: int = 0
    """Rows per batch; 0 = as many as fit the budget."""
    budget: int = 0
    """Tokens per batch, padding included."""
    row_length: int = 0
    """Tokens of the longest row; 0 = the maximum length of the model."""
    is_full: bool = False
    """True if all rows are as long as the longest."""
    scored_share: float = 1.0
    """Fraction of the tokens that get logits."""

    def rows(self, longest: int) -> int:
        """Return the number of rows of a batch whose longest row has `longest` tokens."""
        return self.n_rows or max(1, self.budget // longest)


class Task(ABC):
    """A learned ability and the verb that uses it; every model has a task."""

    settings: type[Any]
    """Dataclass of the section `[objective]`; its `kind` names the task."""
    facts: Facts
    """The verbs of the task's models, and the ability of these models in words."""

    @property
    def verb(self) -> str:
        """Name of the method of `Model`, and of the command, that uses the ability."""
        return self.facts.verbs[0]

    @property
    def predicts_next(self) -> bool:
        """True if tokens are predicted from earlier tokens; then documents get a start token, and bytes are counted."""
        return False

    def learned(self, run: Run) -> str:
        """Return the ability in words that follow "learned to"."""
        return self.facts.learned(run)

    def example(self, run: Run) -> str:
        """Return an example argument of the verb, as Python code."""
        return self.facts.example

    def adopt(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        """Return the run of an imported model with this task, or `None` if the model belongs to another task."""
        return None

    def ensemble(self, run: Run, networks: Sequence[Network]) -> Ensemble | None:
        """Return an ensemble that is used like a single network, or `None` if models cannot form an ensemble."""
        return None

    def vote(self, model: ModelParts) -> Network | Ensemble:
        """Return the single network of a model, or the ensemble of all its members."""
        if model.others and (together := self.ensemble(model.run, model.members)) is not None:
            return together
        return model.network

    def classes(self, model: ModelParts) -> tuple[str, ...]:
        """Return the names of the classes or tags that a model predicts, by index."""
        return ()

    # Abilities

    def writer(self, model: ModelParts) -> Writer | None:
        """Return the object that continues prompts."""
        return None

    def translator(self, model: ModelParts) -> Translator | None:
        """Return the object that generates a target from a source."""
        return None

    def scorer(self, model: ModelParts) -> Scorer | None:
        """Return the object that computes the probability of given texts."""
        return self.writer(model) or self.translator(model)

    def filler(self, model: ModelParts) -> Filler | None:
        """Return the object that fills the masks of a text."""
        return None

    def classifier(self, model: ModelParts) -> Classifier | None:
        """Return the object that predicts labels of texts."""
        return None

    def tagger(self, model: ModelParts) -> Tagger | None:
        """Return the object that predicts tags of words."""
        return None


class TrainableTask(Task):
    """A task that a run can learn. Imported models without a loss have a task that is not trainable."""

    unit: str
    """Unit over which the loss is averaged, such as token."""

    def check(self, run: Run) -> None:
        """Raise `UserError` if the run's data or model does not suit the task; no data is read."""
        if self.facts.check is not None:
            self.facts.check(run)

    @abstractmethod
    def open(self, run: Run) -> RunData:
        """Return the data that the run names; raise `UserError` if the run names no data."""

    @abstractmethod
    def metrics(self, run: Run) -> tuple[str, ...]:
        """Return the metrics of `evaluate` and `scores` besides the loss, with the main metric first."""

    def first_metric(self, run: Run) -> str:
        """Return the metric that selected the best step of a run, or the main metric if the loss did."""
        known, watched = self.metrics(run), run.train.early_stopping
        return known[0] if watched is None or watched.metric not in known else watched.metric

    @abstractmethod
    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Any]:
        """Return the run's own validation data, or all data at `places`; log which records are left out."""

    def adapted(self, run: Run, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer with additions that the task requires, such as special tokens."""
        return tokenizer

    def micro_batch(self, run: Run) -> MicroBatch:
        """Return the size of a batch according to the settings."""
        return MicroBatch(budget=run.data.batch_tokens, scored_share=self.scored_share(run))  # type: ignore[union-attr]

    def scored_share(self, run: Run) -> float:
        """Return the fraction of a batch's tokens that get logits, from 0 to 1."""
        return 1.0

    def test_path(self, run: Run) -> str | None:
        """Return the path of the test split, which training never reads; `None` without a test split."""
        return None if run.data.kind == TextData.kind else builtin.test_part(getattr(run.data, "path", None))

    def scores(
        self, model: ModelParts, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the metrics of the model's outputs besides the loss."""
        return {}

    def pair_scores(self, run: Run) -> PairScores | None:
        """Return the object that scores outputs for sources; `None` for a task that is not evaluated on pairs."""
        return None

    def pseudo_perplexity(self, model: ModelParts, places: Places, progress: Progress | None, log: Log) -> float:
        """Return the perplexity of all tokens of a text, though training predicts only some of them."""
        raise UserError(f"{model.name} does not fill masks; pseudo-perplexity needs a masked language model")


class RunData(Protocol):
    """The data of a run; it is read on first use."""

    corpus: SplitCorpus

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of classes or tags in order of their ids; empty for data without labels."""
        return ()

    def metric(self) -> tuple[str, str]:
        """Return the metric that the setting `auto` means for this data, and the reason in words, or an empty text."""
        return "loss", ""

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        """Return the tokenizers that the run names, or learn new ones from the training data."""

    def complete(self, run: Run, tokenizers: Tokenizers) -> ModelConfig:
        """Return the model configuration with the values that the data decides: special ids, vocabularies, labels."""

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> PreparedData:
        """Return the data as tokens, from the cache if possible.

        Without `checks_hashes`, only the sizes of large cache files are compared, not their hashes. A process passes
        False if another process compares the hashes.
        """


class SplitCorpus(Protocol):
    """Data that is split into training and validation data."""

    name: str

    @cached_property
    def digest(self) -> str:
        """Hash of the data's bytes and of the split rule; assigned if another process computed it."""

    def news(self) -> list[str]:
        """Read the data; return a sentence for each kind of dropped or changed record."""


class PreparedData(Protocol):
    """The data of a run as tokens."""

    @property
    def summary(self) -> str:
        """Size of the data, in words."""

    def training_data(self, network: Network, device: torch.device, division: Division) -> TrainingData:
        """Return the data for the training loop; the processes of `division` share the work that this needs."""


def wrong_verb(task: Task, model: ModelParts, verb: str) -> UserError:
    """Return the error for a verb that the model has not learned."""
    call = f"in Python: model.{task.verb}({task.example(model.run)})"
    return UserError(f"{model.name} learned to {task.learned(model.run)}: use it with {task.verb}, not {verb} ({call})")


# The registry

_registered: dict[str, Task] = {}


def register(task: Task) -> None:
    """Register a task in this process under the kind of its settings, for example in a notebook.

    An installed package declares its task as an entry point instead (group `glassformer.tasks`, the kind as the name),
    so that the command line finds it too. Raises `UserError` for a built-in kind.
    """
    kind = task.settings.kind
    if kind in BUILT_IN:
        raise UserError(f"the kind {kind!r} is a built-in task of glassformer: choose another kind")
    register_settings(TASKS, task.settings)
    _registered[kind] = task


def unknown_loss(run: Run) -> str | None:
    """Return a note that the memory of another package's loss cannot be predicted; None for a built-in loss.

    >>> unknown_loss(Run()) is None
    True
    """
    if run.objective.kind in BUILT_IN:
        return None
    return f"what the loss of objective.kind {run.objective.kind} keeps is unknown: it is not built in"


def kinds() -> list[str]:
    """Return every kind that has a task: built-in, from installed packages, and registered."""
    return list(dict.fromkeys([*BUILT_IN, *entry_points(TASKS), *_registered]))


def task_of_kind(kind: str) -> Task:
    """Return the task of a kind of objective; raise `UserError` for an unknown kind."""
    if kind in BUILT_IN:
        module, name = BUILT_IN[kind].home.split(":")
        return getattr(import_module(f"glassformer.tasks.{module}"), name)
    if kind in _registered:
        return _registered[kind]
    foreign = entry_points(TASKS)
    if kind not in foreign:
        raise UserError(f"objective.kind: expected one of {', '.join(kinds())}, got {kind!r}")
    return foreign[kind].load()


def task_of(run: Run) -> Task:
    """Return the task of a run."""
    return task_of_kind(run.objective.kind)


def trainable_task(run: Run) -> TrainableTask:
    """Return the task that a run learns; raise `UserError` for a run whose model cannot be trained."""
    task = task_of(run)
    if not isinstance(task, TrainableTask):
        raise UserError(
            f"the run {run.name!r} has objective.kind {run.objective.kind} and cannot be trained: to fine-tune its "
            "model, start a run with another objective and --init"
        )
    return task
