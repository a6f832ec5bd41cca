"""Conversations: a language model learns to answer, from the answers of the assistant."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import ConversationConfig, ConversationData, GenerationConfig, Run
from glassformer.data import builtin
from glassformer.data.batching import TokenBudget, evaluation_batches, example_rows
from glassformer.data.conversation_rows import ConversationRows, packed
from glassformer.data.conversations import (
    ASSISTANT,
    AnsweredCorpus,
    Conversation,
    ConversationCorpus,
    DroppedConversations,
    read_conversations,
)
from glassformer.errors import Log, Progress, UserError
from glassformer.evaluation import metrics
from glassformer.evaluation.division import ALONE, Division
from glassformer.evaluation.metrics import measure
from glassformer.inference.chat import fitting
from glassformer.inference.writer import Writer
from glassformer.models.build import Network
from glassformer.objectives.causal import CausalObjective
from glassformer.reporting import LaunchReporter
from glassformer.tasks import preparation
from glassformer.tasks.batches import EvaluationData, Places, TrainingData
from glassformer.tasks.model_parts import ModelParts
from glassformer.tasks.requirements import BUILT_IN, data_of, require_watched
from glassformer.tasks.task import PreparedData, RunData, TrainableTask
from glassformer.tokenization.conversations import ConversationEncoder, with_template
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

OF_TRAIN_EVALUATED = 1000
ANSWERED_AT_ONCE = 32
"""Number of conversations whose answers are generated together."""
METRICS = metrics.names("conversations")


class ConversationTask(TrainableTask):
    """Conversations: a decoder answers the messages of a user."""

    settings: type[Any] = ConversationConfig
    facts = BUILT_IN["conversation"]
    unit = "token"

    @property
    def predicts_next(self) -> bool:
        return True

    def metrics(self, run: Run) -> tuple[str, ...]:
        return ("perplexity", *METRICS)

    # Training

    def adapted(self, run: Run, tokenizer: Tokenizer) -> Tokenizer:
        return with_template(tokenizer)

    def open(self, run: Run) -> "ConversationRunData":
        return ConversationRunData(self, run)

    # Use

    def test_path(self, run: Run) -> str | None:
        return builtin.test_part(data_of(run, ConversationData).path)

    def writer(self, model: ModelParts) -> Writer:
        return Writer(model.network, model.tokenizer, model.device, model.name)

    def scorer(self, model: ModelParts) -> Writer:
        return self.writer(model)

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Any]:
        data, path = data_of(model.run, ConversationData), places.path_alone(model.run.name, "conversations")
        if path is None:
            corpus = ConversationCorpus(data)
            preparation.say_changed(model, corpus.digest, corpus.name, log)
            conversations = corpus.split[1]
        else:
            dropped = DroppedConversations()
            conversations = read_conversations(replace(data, path=str(path), valid_path=None), dropped)
            preparation.say_dropped(dropped, log)
        encoder = ConversationEncoder(model.tokenizer, model.name)
        encoded = ConversationRows(encoder, model.network.config.max_len + 1, data.scored)
        rows = example_rows(encoded.encode(conversations), "conversations")
        if encoded.n_cut or encoded.n_left_out:
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
        """Return how many last answers equal those of the data, in percent, if the model answers greedily."""
        conversations = self.evaluation(model, places, log).records
        greedy = GenerationConfig(max_new_tokens=model.generation.max_new_tokens, temperature=0)
        encoder = ConversationEncoder(model.tokenizer, model.name)
        return dict(answer_scores(self.writer(model), encoder, conversations, greedy, progress))


def answer_scores(
    writer: Writer,
    encoder: ConversationEncoder,
    conversations: Sequence[Conversation],
    config: GenerationConfig,
    progress: Progress | None = None,
    division: Division = ALONE,
) -> metrics.Values:
    """Return the scores of a model's last answers; `division` distributes the conversations among processes."""
    lasts = [_last_answer(one) for one in conversations]
    asked = [one.messages[:last] for one, last in zip(conversations, lasts, strict=True)]
    settings = writer.settings(config, further_ends=(encoder.end_id,))
    own: dict[str, str] = {}
    for number, begin in enumerate(range(0, len(lasts), ANSWERED_AT_ONCE)):
        if division.takes(number):
            prompts = [fitting(encoder, one, settings)[0] for one in asked[begin : begin + ANSWERED_AT_ONCE]]
            own |= {str(begin + row): text for row, text in writer.finished(prompts, settings)}
        if progress is not None:
            progress(min(begin + ANSWERED_AT_ONCE, len(lasts)), len(lasts))
    answers: dict[str, str] = {}
    for text in division.texts(json.dumps(own)):
        answers |= json.loads(text)
    references = [[one.messages[last]["content"]] for one, last in zip(conversations, lasts, strict=True)]
    return measure("conversations", [answers[str(i)] for i in range(len(lasts))], references, "en")


def _last_answer(conversation: Conversation) -> int:
    """Return the index of the last message of the assistant."""
    return max(i for i, message in enumerate(conversation.messages) if message["role"] == ASSISTANT)


class ConversationRunData(RunData):
    """Conversations of a run, split into training and validation data."""

    corpus: AnsweredCorpus[Any]

    def __init__(self, task: ConversationTask, run: Run) -> None:
        self.task, self.corpus = task, ConversationCorpus(data_of(run, ConversationData))

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        texts = (f"{message['role']}\n{message['content']}" for one in self.corpus.split[0] for message in one.messages)
        return Tokenizers(self.task.adapted(run, preparation.learn_tokenizer(run.tokenizer, texts, reporter)))

    def complete(self, run: Run, tokenizers: Tokenizers) -> ModelConfig:
        """Complete the model; the token that ends an answer becomes its end token."""
        model = preparation.with_vocabulary(run.model, tokenizers)
        return replace(model, eos_id=ConversationEncoder(tokenizers.target, run.init.path or run.name).end_id)

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> PreparedData:
        return PreparedConversations(run, self.corpus, tokenizers.target, reporter)


class PreparedConversations:
    """Training and validation examples, in memory."""

    def __init__(
        self, run: Run, corpus: AnsweredCorpus[Conversation], tokenizer: Tokenizer, reporter: LaunchReporter
    ) -> None:
        self.run, self.data, self.valid_conversations = run, data_of(run, ConversationData), corpus.split[1]
        self.encoder, self.tokenizer = ConversationEncoder(tokenizer, run.name), tokenizer
        max_ids = run.model.max_len + 1
        encoded, of_valid = (ConversationRows(self.encoder, max_ids, self.data.scored) for _ in range(2))
        with reporter.phase("preparing tokens"):
            self.train, self.valid = encoded.encode(corpus.split[0]), of_valid.encode(self.valid_conversations)
        self.summary = f"{encoded}; for validation {of_valid}"
        for side, examples in (("training", self.train), ("validation", self.valid)):
            if not examples:
                raise UserError(f"no {side} conversation fits model.max_len {run.model.max_len:,}: raise it")

    def training_data(self, network: Network, device: torch.device) -> TrainingData:
        run, data = self.run, self.data
        rows = self.train
        if data.packing:
            longest = max(len(example.token_ids) for example in rows)
            rows = packed(rows, max(longest, min(run.model.max_len + 1, data.batch_tokens)))
        evaluated = {"train": self.train[:OF_TRAIN_EVALUATED], "valid": self.valid}
        return TrainingData(
            CausalObjective(run.objective.label_smoothing),
            TokenBudget(example_rows(rows, "training conversations"), data.batch_tokens, run.train.seed),
            {
                side: partial(evaluation_batches, example_rows(examples, "conversations"), data.batch_tokens)
                for side, examples in evaluated.items()
            },
            sample=lambda: self._sample(network, device),
            score=self._score(network, device),
        )

    def _sample(self, network: Network, device: torch.device) -> str:
        """Return the beginning of the first validation conversation, and the model's greedy answer."""
        question = self.valid_conversations[0].question
        writer = Writer(network, self.tokenizer, device)
        settings = writer.settings(
            GenerationConfig(max_new_tokens=64, temperature=0), further_ends=(self.encoder.end_id,)
        )
        prompt, _ = fitting(self.encoder, question, settings)
        [(_, answer)] = writer.finished([prompt], settings)
        return f"{question[-1]['content'] if question else ''} │ {answer}"

    def _score(self, network: Network, device: torch.device) -> Callable[[Division], dict[str, float]] | None:
        """Return the function for the scores that the settings watch; `None` if they watch losses only."""
        require_watched(self.run, ["conversations"])
        if not any(watcher.metric in METRICS for watcher in self.run.train.watchers.values()):
            return None
        greedy = GenerationConfig(max_new_tokens=self.run.generation.max_new_tokens, temperature=0)

        def score(division: Division) -> dict[str, float]:
            writer = Writer(network, self.tokenizer, device)
            found = answer_scores(writer, self.encoder, self.valid_conversations, greedy, division=division)
            return {name: float(found[name]) for name in METRICS}

        return score


TASK = ConversationTask()
