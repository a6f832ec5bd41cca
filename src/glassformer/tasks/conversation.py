"""Conversations: a language model learns to answer from the messages of the assistant."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from glassformer.common.chat_messages import is_answer, text_of
from glassformer.common.errors import Log, Progress, UserError, warn
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import ConversationConfig, ConversationData, GenerationConfig, Run
from glassformer.data.batching import TokenBudget, evaluation_batches, example_rows
from glassformer.data.conversations import Conversation
from glassformer.data.kinds import corpus_of
from glassformer.data.rows import ConversationRows, packed
from glassformer.data.tokens import learn_tokenizer
from glassformer.evaluation import metrics
from glassformer.evaluation.loss import ALONE, Division
from glassformer.evaluation.metrics import measure
from glassformer.inference.chat import fitted
from glassformer.inference.writer import Writer
from glassformer.models.build import Network
from glassformer.objectives.causal import CausalObjective
from glassformer.tasks import preparation
from glassformer.tasks.batches import EvaluationData, Places, TrainingData
from glassformer.tasks.reporting import LaunchReporter
from glassformer.tasks.requirements import BUILT_IN, data_of
from glassformer.tasks.task import ModelParts, PreparedData, RunData, TrainableTask
from glassformer.tokenization.conversations import ConversationEncoder, with_template
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

OF_TRAIN_EVALUATED = 1000
ANSWERED_AT_ONCE = 32
"""Number of conversations whose answers are generated together."""
LENGTH_OF_SAMPLE = 64
METRICS = metrics.names("conversations")


class ConversationTask(TrainableTask):
    """Conversations: a decoder answers the messages of a user."""

    settings: type[Any] = ConversationConfig
    data: type[Any] = ConversationData
    """Class of the settings of the data from which the task learns."""
    facts = BUILT_IN["conversation"]
    unit = "token"

    @property
    def predicts_next(self) -> bool:
        return True

    def metrics(self, run: Run) -> tuple[str, ...]:
        return ("perplexity", *METRICS)

    # Training

    def adapted(self, run: Run, tokenizer: Tokenizer) -> Tokenizer:
        if self.facts.keeps_start:  # a model without a chat template has learned no answers to compare
            return tokenizer
        return with_template(tokenizer)

    def open(self, run: Run) -> "AnsweredRunData":
        return AnsweredRunData(self, run)

    def prepared(self, run: Run, corpus: Any, tokenizer: Tokenizer, reporter: LaunchReporter) -> PreparedData:
        """Return the records of a corpus as tokens."""
        return PreparedConversations(run, corpus.split, tokenizer, reporter)

    # Use

    def writer(self, model: ModelParts) -> Writer:
        return Writer(model.network, model.tokenizer, model.device, model.name, model.generation)

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Any]:
        data, conversations = preparation.records_of(model, self.data, places, "conversations", log)
        encoder = ConversationEncoder(model.tokenizer, model.name)
        encoded = ConversationRows(encoder, model.network.config.max_len + 1, data.scored)
        rows = example_rows(encoded.encode(conversations), "conversations")
        if encoded.n_cut or encoded.n_left_out or encoded.n_with_calls:
            log(str(encoded))
        return EvaluationData(
            lambda: evaluation_batches(rows, data.batch_tokens),
            CausalObjective(model.run.objective.label_smoothing),
            encoded.n_scored,
            records=conversations,
        )

    def scores(
        self, model: ModelParts, places: Places, progress: Progress | None, log: Log, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the percentage of last answers that the model gives exactly, with greedy generation."""
        conversations = self.evaluation(model, places, log).records
        encoder = ConversationEncoder(model.tokenizer, model.name)
        questions = LastQuestions(self.writer(model), encoder, conversations, model.generation.max_new_tokens)
        if questions.n_left_out:
            log(f"{questions.n_left_out:,} conversations have no room for an answer, and are left out of exact_match")
        return dict(questions.scores(progress))


class LastQuestions:
    """The last answers of conversations, and the prompts before them; conversations that do not fit are left out."""

    def __init__(
        self, writer: Writer, encoder: ConversationEncoder, conversations: Sequence[Conversation], max_new_tokens: int
    ) -> None:
        """Raise `UserError` if no conversation leaves room for an answer."""
        greedy = GenerationConfig(max_new_tokens=max_new_tokens, temperature=0)
        self.writer, self.settings = writer, writer.settings(greedy, further_ends=(encoder.end_id,))
        found = []
        for messages in (one.messages for one in conversations):
            last = max(i for i, message in enumerate(messages) if is_answer(message))  # one that training scores
            found.append((fitted(encoder, messages[:last], self.settings), text_of(messages[last])))
        self.prompts = [asked[0] for asked, _ in found if asked is not None]
        self.answers = [[answer] for asked, answer in found if asked is not None]
        self.n_left_out = len(found) - len(self.prompts)
        if not self.prompts:
            raise UserError(
                "no conversation leaves room for an answer, which exact_match needs: lower generation.max_new_tokens, "
                "or use a model with a longer context"
            )

    def scores(self, progress: Progress | None = None, division: Division = ALONE) -> metrics.Values:
        """Return the scores of the model's answers; `division` distributes the questions among processes."""
        own: dict[str, str] = {}
        n = len(self.prompts)
        for number, begin in enumerate(range(0, n, ANSWERED_AT_ONCE)):
            end = min(begin + ANSWERED_AT_ONCE, n)
            if division.takes(number):
                rows = self.writer.finished(self.prompts[begin:end], self.settings)
                own |= {str(begin + row): text for row, text in rows}
            if progress is not None:
                progress(end, n)
        answers = division.joined(own)
        return measure("conversations", [answers[str(i)] for i in range(n)], self.answers, "en")


class AnsweredRunData(RunData):
    """Conversations, preferences or prompts of a run, split into training and validation data."""

    corpus: Any

    def __init__(self, task: ConversationTask, run: Run) -> None:
        self.task, self.corpus = task, corpus_of(data_of(run, task.data))

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        learned = learn_tokenizer(run.tokenizer, self.corpus.training_texts(), reporter.phase)
        return Tokenizers(self.task.adapted(run, learned))

    def complete(self, run: Run, tokenizers: Tokenizers) -> ModelConfig:
        """Return the model configuration with vocabulary and special ids; its end token is the end of an answer."""
        model = preparation.with_vocabulary(run.model, tokenizers)
        return replace(model, eos_id=ConversationEncoder(tokenizers.target, run.init.path or run.name).end_id)

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> PreparedData:
        return self.task.prepared(run, self.corpus, tokenizers.target, reporter)


class PreparedAnswers(ABC):
    """Training and validation examples, in memory."""

    def __init__(self, run: Run, sides: Sequence[Any], tokenizer: Tokenizer, reporter: LaunchReporter) -> None:
        self.run, self.sides, self.tokenizer, self.reporter = run, sides, tokenizer, reporter
        self.data: Any = run.data
        self.encoder = ConversationEncoder(tokenizer, run.name)
        rows = [self.rows() for _ in sides]
        with reporter.phase("preparing tokens"):
            self.train, self.valid = (of_side.encode(side) for of_side, side in zip(rows, sides, strict=True))
        self.summary = f"{rows[0]}; for validation {rows[1]}"
        named = dict(zip(("training", "validation"), rows, strict=True))
        for name, of_side in named.items():
            if of_side.n_cut or of_side.n_left_out:
                warn(f"{name} data: {of_side}")
        for (name, of_side), examples in zip(named.items(), (self.train, self.valid), strict=True):
            if not examples:
                raise UserError(self.none_fits(name, of_side))

    @abstractmethod
    def rows(self) -> Any:
        """Return an object that encodes the records of one side, training or validation, as rows."""

    @abstractmethod
    def none_fits(self, name: str, rows: Any) -> str:
        """Return the error message for a side of which no record fits the model."""


class PreparedConversations(PreparedAnswers):
    """Training and validation conversations."""

    def rows(self) -> ConversationRows:
        return ConversationRows(self.encoder, self.run.model.max_len + 1, self.data.scored)

    def none_fits(self, name: str, rows: ConversationRows) -> str:
        if rows.n_with_calls == rows.n_conversations:
            return f"all {name} conversations call tools, which the chat template does not read"
        return f"no {name} conversation fits model.max_len {self.run.model.max_len:,}: raise it"

    def training_data(self, network: Network, device: torch.device, division: Division) -> TrainingData:
        run, data = self.run, self.data
        rows = self.train
        if data.packing:
            longest = max(len(example.token_ids) for example in rows)
            rows = packed(rows, max(longest, min(run.model.max_len + 1, data.batch_tokens)))
        evaluated = {"train": self.train[:OF_TRAIN_EVALUATED], "valid": self.valid}
        return TrainingData(
            CausalObjective(run.objective.label_smoothing),
            TokenBudget(example_rows(rows, "training conversations"), data.batch_tokens, run.train.seed),
            preparation.evaluations(evaluated, "conversations", data.batch_tokens),
            sample=lambda: self._sample(network, device),
            score=self._score(network, device),
        )

    def _sample(self, network: Network, device: torch.device) -> str:
        """Return the first question of the validation data that fits the context, and the model's greedy answer."""
        writer = Writer(network, self.tokenizer, device)
        greedy = GenerationConfig(max_new_tokens=LENGTH_OF_SAMPLE, temperature=0)
        settings = writer.settings(greedy, further_ends=(self.encoder.end_id,))
        for question in (one.question for one in self.sides[1] if one.question):
            if (asked := fitted(self.encoder, question, settings)) is not None:
                [(_, answer)] = writer.finished([asked[0]], settings)
                return f"{text_of(question[-1])} │ {answer}"
        return ""

    def _score(self, network: Network, device: torch.device) -> Callable[[Division], dict[str, float]] | None:
        """Return the function for the scores that the settings watch; `None` if they watch losses only."""
        if not any(watcher.metric in METRICS for watcher in self.run.train.watchers.values()):
            return None
        writer, longest = Writer(network, self.tokenizer, device), self.run.generation.max_new_tokens
        questions = LastQuestions(writer, self.encoder, self.sides[1], longest)

        def score(division: Division) -> dict[str, float]:
            return metrics.numbers(questions.scores(division=division), METRICS)

        return score


TASK = ConversationTask()
