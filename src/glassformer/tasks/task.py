"""What a task is: the protocols that training, evaluation, the verbs, imports and the cost model ask for.

A task belongs to a kind of objective (`registry.task_of`). Its class names the protocols that it fulfils; what only
some tasks can do is a protocol of its own, asked for with `isinstance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from glassformer.errors import UserError

if TYPE_CHECKING:
    import torch

    from glassformer.config.recurrent import ModelConfig
    from glassformer.config.run import BeamConfig, GenerationConfig, Run
    from glassformer.data.pairs import Pair
    from glassformer.inference.decode import EncodedPrompt
    from glassformer.inference.ensemble import Ensemble
    from glassformer.inference.fill import Filling
    from glassformer.inference.score import Score
    from glassformer.inference.translator import Translator
    from glassformer.models.build import Network
    from glassformer.reporting import LaunchReporter
    from glassformer.tasks.batches import EvaluationData, Places, TrainingData
    from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

Progress = Callable[[int, int], None]
Log = Callable[[str], None]
Prompt = str | Sequence[int]


class TrainedModel(Protocol):
    """A model in use as its task sees it: `glassformer.model.Model`, which says what each of these is."""

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> Run: ...

    @property
    def network(self) -> Network: ...

    @property
    def members(self) -> list[Network]: ...

    @property
    def vote(self) -> Network | Ensemble: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def source_tokenizer(self) -> Tokenizer: ...

    @property
    def generation(self) -> GenerationConfig | BeamConfig: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def data_digest(self) -> str | None: ...

    @property
    def translator(self) -> Translator: ...


class PreparedData(Protocol):
    """The data of a run as tokens."""

    @property
    def summary(self) -> str:
        """How much there is of it, in words."""

    def training_data(self, network: Network, device: torch.device) -> TrainingData:
        """What the loop is given."""


class SplitCorpus(Protocol):
    """Two sides of data: for training, and for validation."""

    name: str

    @cached_property
    def digest(self) -> str:
        """A hash of the data's bytes and of the rule that splits them; set where another process has computed it."""

    def news(self) -> list[str]:
        """Reads the data; what was dropped or changed, in sentences."""


class RunData(Protocol):
    """The data of a run; nothing is read before it is asked for."""

    corpus: SplitCorpus

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        """Those that the run names, or new ones learned on the training side."""

    def complete(self, run: Run, tokenizers: Tokenizers) -> ModelConfig:
        """The run's model with what its configuration leaves open: special ids, vocabularies, labels."""

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> PreparedData:
        """The data as tokens, from a cache where there is one.

        Without `checks_hashes` only the sizes of large files of the cache are compared, because another process of
        the run has compared their hashes.
        """


@runtime_checkable
class Task(Protocol):
    """What every model has: something that it has learned, and a verb for it."""

    settings: type[Any]
    """The dataclass of its section `[objective]`, whose `kind` names the task."""
    verb: str
    """The method of `Model`, and the command, that does what was learned."""

    def learned(self, run: Run) -> str:
        """What it learned to do, in words that follow "learned to": models that learned other things cannot vote."""

    def example(self, run: Run) -> str:
        """An argument of the verb, as one writes it."""


@runtime_checkable
class TrainableTask(Task, Protocol):
    """A task that a run can learn: all but that of models that were taken over and have no loss."""

    unit: str
    """What a loss is the mean of."""

    def check(self, run: Run) -> None:
        """`UserError` when the run's data or model do not go with the task; nothing is read."""

    def open(self, run: Run) -> RunData:
        """The data that the run names; `UserError` where it names none."""

    def metrics(self, run: Run) -> tuple[str, ...]:
        """What `evaluate` and `scores` give beside the loss; the one that stands for the model first."""

    def evaluation(self, model: TrainedModel, places: Places, log: Log) -> EvaluationData[Any]:
        """The validation side of the run's own data, or the whole of other data; `log` is told what is left out."""


@runtime_checkable
class NeedsSpecialTokens(Protocol):
    """Cannot be learned without certain special tokens, which its tokenizer gets."""

    def special_tokens(self, run: Run) -> tuple[str, ...]: ...


@runtime_checkable
class ScoresSome(Protocol):
    """Gives logits of some of its tokens alone."""

    def scored_share(self, run: Run) -> float:
        """Of the tokens of a batch, those that get logits: from 0 to 1."""


@runtime_checkable
class ContinuesPrompts(Protocol):
    """Writes what follows a text."""

    def encode_prompt(self, model: TrainedModel, prompt: Prompt) -> EncodedPrompt:
        """A prompt as the model reads it: a text behind what training put before one, or ids as they are given."""

    def stream(
        self,
        model: TrainedModel,
        prompts: Sequence[EncodedPrompt],
        config: GenerationConfig,
        samples: Sequence[int],
        slide: bool,
    ) -> Iterator[list[str]]:
        """The new text of every row, step by step; each prompt has a row for each of `samples`."""

    def no_start(self, model: TrainedModel) -> str:
        """The sentence for a model whose training put no start token before a text."""


@runtime_checkable
class ScoresTexts(Protocol):
    """Says how probable a given text is."""

    def score(
        self, model: TrainedModel, texts: Sequence[str], targets: Sequence[str] | None, log: Log
    ) -> list[Score]: ...


@runtime_checkable
class Translates(Protocol):
    """Makes a target from a source: an encoder-decoder."""

    def translator(self, model: TrainedModel) -> Translator: ...


@runtime_checkable
class FillsMasks(Protocol):
    """Says what stands behind the masks of a text."""

    def fill(self, model: TrainedModel, text: str, n: int, settings: Mapping[str, Any]) -> Filling: ...


@runtime_checkable
class HasLabels(Protocol):
    """Says labels, which are names or numbers."""

    def is_regression(self, run: Run) -> bool:
        """Whether the labels are numbers."""


@runtime_checkable
class Classifies(HasLabels, Protocol):
    """Says a label for a text, or for two."""

    def takes_pairs(self, run: Run) -> bool:
        """Whether it reads two texts at a time."""

    def classify(self, model: TrainedModel, rows: Sequence[tuple[str, ...]], log: Log) -> list[dict[str, float]]: ...


@runtime_checkable
class Tags(HasLabels, Protocol):
    """Says a tag for every word."""

    def tag(self, model: TrainedModel, rows: Sequence[Sequence[str]], log: Log) -> list[list[tuple[str, float]]]: ...


@runtime_checkable
class Votes(Protocol):
    """Several models of this task can be one."""

    def vote(self, run: Run, networks: Sequence[Network]) -> Ensemble:
        """The networks as one, which is measured."""


@runtime_checkable
class HasScores(Protocol):
    """Has metrics of what it says beside its loss."""

    def scores(
        self, model: TrainedModel, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]: ...


@runtime_checkable
class HasPairs(Protocol):
    """Is evaluated on pairs, by scores of what it writes for their sources."""

    def pairs(self, model: TrainedModel, places: Places, log: Log) -> list[Pair]: ...

    def require_scores(self, run: Run) -> None:
        """`UserError` when a package is missing that the scores need: told before hours of work."""

    def output_scores(self, run: Run, outputs: Mapping[str, str], pairs: Sequence[Pair]) -> dict[str, float | str]:
        """The scores of the output of each source."""


@runtime_checkable
class HasPseudoPerplexity(Protocol):
    """Has a perplexity of a whole text, though it is trained on some of its tokens."""

    def pseudo_perplexity(self, model: TrainedModel, places: Places, progress: Progress | None, log: Log) -> float: ...


@runtime_checkable
class HasTestSet(Protocol):
    """Its data may have a test side, which training never reads."""

    def test_path(self, run: Run) -> str | None:
        """Where it stands; None where there is none."""


@runtime_checkable
class TakesOver(Protocol):
    """Can be what a model from elsewhere has learned."""

    def taken_over(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        """The run of a model with this network, tokenizer and labels; None where they belong to another task."""


def needed_special_tokens(task: Task, run: Run) -> tuple[str, ...]:
    """The special tokens without which a task cannot be; none for most."""
    return task.special_tokens(run) if isinstance(task, NeedsSpecialTokens) else ()


def label_names(data: RunData) -> tuple[str, ...]:
    """Names of classes or tags (`labels`), by number; empty where the data has none."""
    found: tuple[str, ...] = getattr(data, "labels", ())
    return found


def wrong_verb(task: Task, model: TrainedModel, verb: str) -> UserError:
    """What is said to someone who uses a model for what it has not learned."""
    call = f"in Python: model.{task.verb}({task.example(model.run)})"
    return UserError(f"{model.name} learned to {task.learned(model.run)}: use it with {task.verb}, not {verb} ({call})")
