"""The protocols of a task, which training, evaluation, verbs, imports and the cost model use.

A task belongs to a kind of objective (`registry.task_of`). Its class names the protocols that it implements. An ability
of only some tasks is a separate protocol, tested with `isinstance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from glassformer.errors import UserError

if TYPE_CHECKING:
    import torch

    from glassformer.config.recurrent import ModelConfig
    from glassformer.config.run import BeamConfig, GenerationConfig, Run
    from glassformer.data.pairs import Pair
    from glassformer.inference.answer import Answer
    from glassformer.inference.decode import EncodedPrompt
    from glassformer.inference.ensemble import Ensemble
    from glassformer.inference.fill import Filling
    from glassformer.inference.score import Score
    from glassformer.inference.speculative import DraftCounts
    from glassformer.inference.translator import Translator
    from glassformer.models.build import Network
    from glassformer.reporting import LaunchReporter
    from glassformer.tasks.batches import EvaluationData, Places, TrainingData
    from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

Progress = Callable[[int, int], None]
Log = Callable[[str], None]
Prompt = str | Sequence[int]


class TrainedModel(Protocol):
    """The properties of a trained model that a task uses; `glassformer.model.Model` documents them."""

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
    def tokenizers(self) -> Tokenizers: ...

    @property
    def source_tokenizer(self) -> Tokenizer: ...

    @property
    def generation(self) -> GenerationConfig | BeamConfig: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def is_causal_lm(self) -> bool: ...

    @property
    def data_digest(self) -> str | None: ...

    @property
    def translator(self) -> Translator: ...


class PreparedData(Protocol):
    """The data of a run as tokens."""

    @property
    def summary(self) -> str:
        """Size of the data, in words."""

    def training_data(self, network: Network, device: torch.device) -> TrainingData:
        """Return the data for the training loop."""


class SplitCorpus(Protocol):
    """Data that is split into training and validation data."""

    name: str

    @cached_property
    def digest(self) -> str:
        """Hash of the data's bytes and of the split rule; assigned if another process computed it."""

    def news(self) -> list[str]:
        """Read the data; return a sentence for each kind of dropped or changed record."""


class RunData(Protocol):
    """The data of a run; it is read on first use."""

    corpus: SplitCorpus

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        """Return the tokenizers that the run names, or learn new ones from the training data."""

    def complete(self, run: Run, tokenizers: Tokenizers) -> ModelConfig:
        """Return the model configuration with the values that the data decides: special ids, vocabularies, labels."""

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> PreparedData:
        """Return the data as tokens, from the cache if possible.

        Without `checks_hashes` only sizes of large cache files are compared, if another process compares their hashes.
        """


@runtime_checkable
class Task(Protocol):
    """A learned ability and the verb that uses it; every model has a task."""

    settings: type[Any]
    """Dataclass of the section `[objective]`; its `kind` names the task."""
    verb: str
    """Name of the method of `Model`, and of the command, that uses the ability."""

    def learned(self, run: Run) -> str:
        """Return the ability in words that follow "learned to"; only models with equal words can form an ensemble."""

    def example(self, run: Run) -> str:
        """Return an example argument of the verb, as Python code."""


@runtime_checkable
class TrainableTask(Task, Protocol):
    """A task that a run can learn. Imported models without a loss have a task that is not trainable."""

    unit: str
    """Unit over which the loss is averaged, such as token."""

    def check(self, run: Run) -> None:
        """Raise `UserError` if the run's data or model does not suit the task; no data is read."""

    def open(self, run: Run) -> RunData:
        """Return the data that the run names; raise `UserError` if the run names no data."""

    def metrics(self, run: Run) -> tuple[str, ...]:
        """Return the metrics of `evaluate` and `scores` besides the loss, with the main metric first."""

    def evaluation(self, model: TrainedModel, places: Places, log: Log) -> EvaluationData[Any]:
        """Return the run's own validation data, or all of other data; log which records are left out."""


@runtime_checkable
class NeedsSpecialTokens(Protocol):
    """A task that needs certain special tokens; its tokenizer gets them."""

    def special_tokens(self, run: Run) -> tuple[str, ...]: ...


@runtime_checkable
class ScoresSome(Protocol):
    """A task that computes logits for some of its tokens only."""

    def scored_share(self, run: Run) -> float:
        """Return the fraction of a batch's tokens that get logits, from 0 to 1."""


@dataclass(frozen=True)
class Continuation:
    """Settings of the continuation of prompts."""

    config: GenerationConfig
    samples: Sequence[int] = (0,)
    """Numbers of the samples of each prompt."""
    slide: bool = False
    """True if a full context drops its older half; otherwise it ends the text."""
    draft: TrainedModel | None = None
    """Model that proposes tokens (speculative decoding)."""
    counts: DraftCounts | None = None
    """Receives the numbers of proposed and accepted tokens."""


@runtime_checkable
class ContinuesPrompts(Protocol):
    """A task whose models continue a text."""

    def encode_prompt(self, model: TrainedModel, prompt: Prompt, special_tokens: bool = False) -> EncodedPrompt:
        """Return the ids that the model reads: a text after its start tokens, or the given ids unchanged.

        With `special_tokens`, special tokens written in the text are read as such.
        """

    def stream(
        self, model: TrainedModel, prompts: Sequence[EncodedPrompt], options: Continuation
    ) -> Iterator[list[str]]:
        """Yield the new text of each row at each step; each prompt has one row for each of the samples."""

    def finished(
        self, model: TrainedModel, prompts: Sequence[EncodedPrompt], options: Continuation, batch_size: int
    ) -> Iterator[tuple[int, str]]:
        """Yield the number and the new text of each row when it has ended; the batch has at most `batch_size` rows."""

    def no_start(self, model: TrainedModel) -> str:
        """Return the warning for a model that was trained without start tokens."""


@runtime_checkable
class ScoresTexts(Protocol):
    """A task whose models compute the probability of a given text."""

    def score(
        self, model: TrainedModel, texts: Sequence[str], targets: Sequence[str] | None, log: Log
    ) -> list[Score]: ...


@runtime_checkable
class Translates(Protocol):
    """A task whose models generate a target from a source: an encoder-decoder."""

    def translator(self, model: TrainedModel) -> Translator: ...


@runtime_checkable
class FillsMasks(Protocol):
    """A task whose models fill the masks of a text."""

    def fill(self, model: TrainedModel, text: str, n: int, settings: Mapping[str, Any]) -> Filling: ...


@runtime_checkable
class FillsByWriting(FillsMasks, Protocol):
    """A task whose models fill masks by writing a target: the whole text, or spans after sentinels."""

    sentinels: Callable[[Tokenizer], Sequence[int]]
    """Function that returns the tokens that replace the masks of a source; empty if the mask token does."""


@runtime_checkable
class HasLabels(Protocol):
    """A task whose models predict labels: names or numbers."""

    def is_regression(self, run: Run) -> bool:
        """Return True if the labels are numbers."""


@runtime_checkable
class Classifies(HasLabels, Protocol):
    """A task whose models predict a label for a text, or for a pair of texts."""

    def is_multi_label(self, run: Run) -> bool:
        """Return True if a text may have several labels, or none."""

    def takes_pairs(self, run: Run) -> bool:
        """Return True if each item is a pair of texts."""

    def classify(self, model: TrainedModel, rows: Sequence[tuple[str, ...]], log: Log) -> list[dict[str, float]]: ...


@runtime_checkable
class Tags(HasLabels, Protocol):
    """A task whose models predict a tag for each word."""

    def tag(self, model: TrainedModel, rows: Sequence[Sequence[str]], log: Log) -> list[list[tuple[str, float]]]: ...


@runtime_checkable
class Answers(Protocol):
    """A task whose models answer questions by a part of a context."""

    def answer(self, model: TrainedModel, questions: Sequence[str], context: str, max_tokens: int) -> list[Answer]: ...


@runtime_checkable
class Votes(Protocol):
    """A task whose models can form an ensemble."""

    def vote(self, run: Run, networks: Sequence[Network]) -> Ensemble:
        """Return an ensemble of the networks, which is evaluated like one network."""


@runtime_checkable
class HasScores(Protocol):
    """A task with metrics of the model's outputs besides the loss."""

    def scores(
        self, model: TrainedModel, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]: ...


@runtime_checkable
class HasPairs(Protocol):
    """A task that is evaluated on pairs, by scores of the outputs for their sources."""

    def pairs(self, model: TrainedModel, places: Places, log: Log) -> list[Pair]: ...

    def require_scores(self, run: Run) -> None:
        """Raise `UserError` before a long evaluation if the scores need a package that is not installed."""

    def output_scores(self, run: Run, outputs: Mapping[str, str], pairs: Sequence[Pair]) -> dict[str, float | str]:
        """Return the scores of `outputs`, which maps each source to its output."""


@runtime_checkable
class HasPseudoPerplexity(Protocol):
    """A task with a perplexity of all tokens of a text, though training predicts only some of them."""

    def pseudo_perplexity(self, model: TrainedModel, places: Places, progress: Progress | None, log: Log) -> float: ...


@runtime_checkable
class HasTestSet(Protocol):
    """A task whose data may have a test split, which training never reads."""

    def test_path(self, run: Run) -> str | None:
        """Return the path of the test split, or `None` without a test split."""


@runtime_checkable
class TakesOver(Protocol):
    """A task that can use imported models."""

    def taken_over(self, run: Run, tokenizer: Tokenizer, labels: Sequence[str]) -> Run | None:
        """Return the run of an imported model, or `None` if the model belongs to another task."""


def needed_special_tokens(task: Task, run: Run) -> tuple[str, ...]:
    """Return the special tokens that a task requires; empty for most tasks."""
    return task.special_tokens(run) if isinstance(task, NeedsSpecialTokens) else ()


def label_names(data: RunData) -> tuple[str, ...]:
    """Return the names of classes or tags (`labels`) in order of their ids; empty for data without labels."""
    return getattr(data, "labels", ())


def wrong_verb(task: Task, model: TrainedModel, verb: str) -> UserError:
    """Return the error for a verb that the model has not learned."""
    call = f"in Python: model.{task.verb}({task.example(model.run)})"
    return UserError(f"{model.name} learned to {task.learned(model.run)}: use it with {task.verb}, not {verb} ({call})")
