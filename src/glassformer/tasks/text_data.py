"""Texts as the data of a task: the corpus, its tokens, batches and evaluation."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from glassformer.common.errors import Log, UserError, warn
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import ExampleRows, PackedRows, Run, TextData, WindowRows
from glassformer.data.batching import Epochs, Example, Packed, Sampler, Windows
from glassformer.data.corpus import Corpus
from glassformer.data.texts import read_documents
from glassformer.data.tokens import (
    BpeDropout,
    TokenCache,
    TokenFile,
    TokenSplits,
    encode_text,
    learn_tokenizer,
    prepare,
)
from glassformer.evaluation.loss import Division, evaluation_rows
from glassformer.inference.fill import MaskFiller, WritingFiller
from glassformer.models.build import Network
from glassformer.objectives.loss import Objective
from glassformer.tasks import preparation
from glassformer.tasks.batches import EvaluationData, Places, TrainingData
from glassformer.tasks.reporting import LaunchReporter
from glassformer.tasks.requirements import TextRequirements, context_of, data_of
from glassformer.tasks.task import MicroBatch, ModelParts, RunData, TrainableTask
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

SAMPLERS: dict[type, type[Windows | Epochs | Packed]] = {WindowRows: Windows, ExampleRows: Epochs, PackedRows: Packed}
TRAIN_TOKENS_EVALUATED = 32_768
SAMPLE_PROMPT = 16
"""Number of tokens of a validation row at the beginning of a sample."""


@dataclass(frozen=True)
class TextObjective:
    """An objective, and the maximum row length in ids for which its batches fit the model."""

    objective: Objective
    row_length: int
    overlap: int = 0
    """Number of ids that evaluation windows share: 1 if each id is the target of the id before it."""
    changes_lengths: bool = False
    """True if rows of one length give model inputs of several lengths."""


class TextTask(TrainableTask):
    """Base class of the tasks that learn from texts."""

    requires: TextRequirements

    @property
    def predicts_next(self) -> bool:
        return self.requires.predicts_next

    @abstractmethod
    def text_objective(self, run: Run, tokenizer: Tokenizer, context: int) -> TextObjective:
        """Return the objective; the model configuration of `run` must be complete (`RunData.complete`)."""

    @abstractmethod
    def sample(self, network: Network, tokenizer: Tokenizer, run: Run, row: Example, device: torch.device) -> str:
        """Return the current model's output for a validation row, shown at each evaluation."""

    def start_id(self, run: Run) -> int | None:
        """Return the model's id that begins each document in causal language modelling; None for another objective."""
        return run.model.decoder_start_id if self.predicts_next else None

    def tokens(
        self, run: Run, tokenizer: Tokenizer, corpus: Corpus, cache: TokenCache, dropout_seed: int | None = None
    ) -> TokenSplits:
        """Return the tokens of the corpus, from the cache if possible; the default seed is for the first epoch."""
        if dropout_seed is None:
            dropout_seed = preparation.first_dropout_seed(run)
        dropout = BpeDropout(run.tokenizer.bpe_dropout, dropout_seed)
        return prepare(corpus, tokenizer, cache, start_id=self.start_id(run), dropout=dropout)

    def predicted_bytes(self, run: Run, tokenizer: Tokenizer, tokens: TokenFile) -> int | None:
        """Return the number of bytes of the predicted tokens, the divisor of bits per byte; None if it is not known.

        It is not known if only some tokens are targets, or if the tokenizer does not know a part of the text: one
        `[UNK]` replaces any number of characters, to which the model gives no probability. The first id of a text is
        never predicted, nor the first id of a document if rows separate documents. It is a start token, which has no
        bytes, or a token of the text, whose bytes are left out.
        """
        if not self.predicts_next or tokens.unknown(tokenizer):
            return None
        first = tokens.ids[:1]
        if not isinstance(data_of(run, TextData).packing, WindowRows):
            first = tokens.ids[tokens.document_starts]
        return tokens.n_bytes - tokenizer.n_bytes_of(first.tolist())

    def micro_batch(self, run: Run) -> MicroBatch:
        data, share = data_of(run, TextData), self.scored_share(run)
        is_full = isinstance(data.packing, WindowRows) and not run.model.is_encoder_decoder
        return MicroBatch(run.train.batch_size, row_length=data.context, is_full=is_full, scored_share=share)

    def open(self, run: Run) -> "TextRunData":
        return TextRunData(self, run)

    def evaluation(self, model: ModelParts, places: Places, log: Log) -> EvaluationData[Any]:
        """Return the validation text of the run, or the whole of another text, as batches."""
        run, data, tokenizer = model.run, data_of(model.run, TextData), model.tokenizer
        path = places.path_alone(run.name, "a text")
        # The run's own validation text is read as in training, with end tokens.
        is_own = path is None or str(Path(path).absolute()) == data.valid_path
        if path is not None and not is_own:
            documents = read_documents([path], data)
            tokens = encode_text(tokenizer, documents, start_id=self.start_id(run), name=str(path))
        elif data.path is None:
            raise UserError("the model has no record of its training data: give a text with --data.path FILE")
        else:
            corpus = Corpus(data)
            preparation.say_changed(model, corpus.digest, corpus.name, log)
            tokens = self.tokens(run, tokenizer, corpus, preparation.token_cache(data)).valid
        for note in tokens.unknown(tokenizer):
            log(note)
        text_objective = self.text_objective(run, tokenizer, context_of(run))
        return EvaluationData(
            partial(_evaluation_rows, run, text_objective, tokens),
            text_objective.objective,
            tokens.n_tokens,
            self.predicted_bytes(run, tokenizer, tokens),
        )


class TextRunData(RunData):
    """The text of a run, split into training and validation data."""

    corpus: Corpus

    def __init__(self, task: TextTask, run: Run) -> None:
        self.task, self.corpus = task, Corpus(data_of(run, TextData))

    @property
    def trains_starts(self) -> bool:
        """True if each document begins with a start token, so that the model learns how a text begins."""
        return self.task.predicts_next and self.corpus.plan.end_tokens

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        learned = learn_tokenizer(run.tokenizer, self.corpus.training_texts(), reporter.phase)
        tokenizer = self.task.adapted(run, learned)
        if self.corpus.plan.end_tokens and tokenizer.eos_id is None:
            warn("the tokenizer has no end token: the end of a document is not marked")
        if self.trains_starts and tokenizer.start_id is None:
            warn("the tokenizer has no start token: the first token of each document is not predicted")
        elif not self.trains_starts and tokenizer.frames.prompt.before:
            warn(
                f"the tokenizer puts {tokenizer.tokens(tokenizer.frames.prompt.before)[0]} before every prompt, but "
                "a single text does not train it: give several documents to train the beginning of a text"
            )
        return Tokenizers(tokenizer)

    def complete(self, run: Run, tokenizers: Tokenizers) -> ModelConfig:
        """Return the model configuration with its vocabulary; a start token before each document is recorded in it."""
        model = preparation.with_vocabulary(run.model, tokenizers)
        return replace(model, decoder_start_id=tokenizers.target.start_id) if self.trains_starts else model

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> "PreparedText":
        tokenizer = tokenizers.target
        with reporter.phase("preparing tokens") as progress:
            cache = preparation.token_cache(data_of(run, TextData), progress, checks_hashes)
            splits = self.task.tokens(run, tokenizer, self.corpus, cache)
        for note in (*splits.train.unknown(tokenizer), *splits.valid.unknown(tokenizer)):
            warn(note)
        return PreparedText(self.task, run, tokenizer, self.corpus, splits)


@dataclass(frozen=True)
class PreparedText:
    """Tokens of the training and validation texts."""

    task: TextTask
    run: Run
    tokenizer: Tokenizer
    corpus: Corpus
    splits: TokenSplits

    @property
    def summary(self) -> str:
        train, valid = self.splits.train, self.splits.valid
        return (
            f"{train.n_tokens:,} training and {valid.n_tokens:,} validation tokens of "
            f"{valid.n_bytes / valid.n_tokens:.2f} bytes"
        )

    def training_data(self, network: Network, device: torch.device, division: Division) -> TrainingData:
        """Return the sampler and the evaluations of the run."""
        task, run, tokenizer, splits = self.task, self.run, self.tokenizer, self.splits
        data, text_objective = data_of(run, TextData), task.text_objective(run, tokenizer, context_of(run))
        context = text_objective.row_length - 1  # a sampler's rows have one more id

        # The sampler of each epoch
        def sampler_of(tokens: TokenFile, seed: int) -> Windows | Epochs | Packed:
            return SAMPLERS[type(data.packing)](tokens, context, run.train.batch_size, seed)

        def sampler_of_epoch(seed: int) -> tuple[Sampler, Path]:
            cache = replace(preparation.token_cache(data), in_every_rank=True)
            reencoded = task.tokens(run, tokenizer, self.corpus, cache, seed)
            return sampler_of(reencoded.train, seed), reencoded.folder

        seed = preparation.first_dropout_seed(run)
        sampler = sampler_of(splits.train, seed or run.train.seed)
        if run.train.batch_size > sampler.n_rows:
            raise UserError(
                f"train.batch_size is {run.train.batch_size:,}, and {splits.train.name} has only {sampler.n_rows:,} "
                f"different rows of at most {context:,} tokens: set it to at most {sampler.n_rows:,}"
            )

        # Note which documents are truncated or left out
        if isinstance(sampler, Epochs) and sampler.n_truncated:
            row = f"a row of {context_of(run):,} tokens"
            warn(f"{sampler.n_truncated:,} documents are longer than {row} and are truncated")
        if isinstance(sampler, (Epochs, Packed)) and sampler.n_skipped:
            warn(f"{sampler.n_skipped:,} documents have only one token, so they have no target and are left out")

        # The batches of both evaluations: of the training text, enough tokens to detect over-fitting, and their bytes
        n_evaluated = max(min(splits.valid.n_tokens, TRAIN_TOKENS_EVALUATED), context + 1)
        ids, starts = splits.train.ids[:n_evaluated], splits.train.document_starts
        n_bytes_read = len(tokenizer.decode(ids.tolist()).encode())
        slice_of_train = replace(splits.train, ids=ids, document_starts=starts[starts < len(ids)], n_bytes=n_bytes_read)
        evaluated = {"train": slice_of_train, "valid": splits.valid}
        batches_of = partial(_evaluation_rows, run, text_objective)
        evaluations = {side: partial(batches_of, tokens) for side, tokens in evaluated.items()}
        for batches in evaluations.values():
            next(iter(batches()))  # refuse a text without targets now, not at the first evaluation

        n_bytes = {side: task.predicted_bytes(run, tokenizer, tokens) for side, tokens in evaluated.items()}
        if tokenizer.scheme not in ("byte", "char"):
            n_bytes["train"] = None  # other schemes do not keep white space: the bytes of a part are unknown
        return TrainingData(
            text_objective.objective,
            preparation.reencoded_each_epoch(run, sampler, sampler_of_epoch),
            evaluations,
            n_bytes=n_bytes,
            sample=lambda: task.sample(network, tokenizer, run, next(iter(evaluations["valid"]()))[0], device),
            # With BPE-dropout, the fullest packed row of each epoch has another length.
            has_one_shape=not text_objective.changes_lengths
            and (isinstance(sampler, Windows) or (isinstance(sampler, Packed) and not seed)),
        )


def _evaluation_rows(run: Run, objective: TextObjective, tokens: TokenFile) -> Iterator[list[Example]]:
    """Yield the batches of a whole text, in rows that suit the objective."""
    separates_documents = not isinstance(data_of(run, TextData).packing, WindowRows)
    context, vocab_size = objective.row_length - 1, run.model.vocab_size
    return evaluation_rows(tokens, context, vocab_size, separates_documents, objective.overlap)


def sample_of_filling(filler: MaskFiller | WritingFiller, run: Run, row: Example) -> str:
    """Return the beginning of a row with every fourth word masked, and the model's filling of these masks."""
    ids = row.token_ids[: max(3, min(SAMPLE_PROMPT, run.model.max_len - 3))].tolist()
    words = filler.tokenizer.decode(ids).split()
    masked = [i for i in range(len(words)) if i % 4 == 2]
    text = " ".join("[MASK]" if i in masked else word for i, word in enumerate(words))
    if not 0 < len(masked) <= filler.max_masks:
        return text
    return f"{text} │ {filler.fill(text, 1).text}"
