"""Text as material: a corpus, its tokens, and next-token prediction on them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from glassformer.config.run import CausalConfig, ExampleRows, GenerationConfig, PackedRows, Run, TextData, WindowRows
from glassformer.data.batching import Epochs, Example, Packed, Sampler, Windows
from glassformer.data.corpus import Corpus
from glassformer.data.fresh_cuts import FreshCuts
from glassformer.data.tokens import TokenFile, TokenSplits, prepare
from glassformer.errors import UserError
from glassformer.evaluation.loss import evaluation_rows
from glassformer.models.build import Network
from glassformer.objectives.denoising import DenoisingObjective
from glassformer.objectives.objective import Objective
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.material import Tokenizers, cache_folder, first_dropout_seed, learn_tokenizer
from glassformer.training.reporting import LaunchReporter
from glassformer.training.samples import sample
from glassformer.training.task import Task
from glassformer.training.text_objectives import check_model, needed_special_tokens, start_id_of, text_objective

TRAIN_TOKENS_EVALUATED = 32_768


class TextMaterial:
    """The text of a run and its split."""

    labels: tuple[str, ...] = ()
    n_outputs = 0
    mean_and_std = None

    def __init__(self, run: Run) -> None:
        self.corpus = corpus_of(run)
        self.name = self.corpus.name

    @property
    def digest(self) -> str:
        return self.corpus.digest

    def trains_starts(self, run: Run) -> bool:
        return isinstance(run.objective, CausalConfig) and self.corpus.plan.end_tokens

    def take_digest(self, digest: str) -> None:
        self.corpus.digest = digest

    def check(self, run: Run) -> None:
        check_model(run)
        for name in ("max_len", "source_max_len"):
            longest = getattr(run.model, name, 0)
            if longest and context_of(run) > longest:
                raise UserError(f"data.context is {context_of(run)} and model.{name} only {longest}")
        is_causal = isinstance(run.objective, CausalConfig)
        if is_causal and not isinstance(run.generation, GenerationConfig):
            raise UserError("a beam searches for the target of a source: a model of text has generation.kind sampling")
        if not is_causal and isinstance(text_of(run).packing, PackedRows):
            raise UserError(f"rows of objective.kind {run.objective.kind} cannot be packed: leave out data.packing")
        if run.source_tokenizer is not None:
            raise UserError("source_tokenizer is for pairs, and the data is a text")

    def news(self) -> list[str]:
        return self.corpus.news()

    def tokenizers(self, run: Run, reporter: LaunchReporter) -> Tokenizers:
        tokenizer = learn_tokenizer(
            run.tokenizer, self.corpus.training_texts(), reporter, needed=needed_special_tokens(run.objective)
        )
        if self.corpus.plan.end_tokens and tokenizer.eos_id is None:
            reporter.log("the tokenizer has no end token: nothing marks the end of a document")
        if self.trains_starts(run) and tokenizer.start_id is None:
            reporter.log("the tokenizer has no start token: the first token of each document is not predicted")
        elif not self.trains_starts(run) and tokenizer.frames.prompt.before:
            reporter.log(
                f"the tokenizer puts {tokenizer.tokens(tokenizer.frames.prompt.before)[0]} before every prompt, and a "
                "single text does not train it: give several documents to train how a text begins"
            )
        return Tokenizers(tokenizer)

    def prepare(
        self, run: Run, tokenizers: Tokenizers, reporter: LaunchReporter, *, checks_hashes: bool = True
    ) -> "PreparedText":
        with reporter.phase("preparing tokens") as progress:
            splits = prepared_tokens(run, self.corpus, tokenizers.target, progress, checks_hashes=checks_hashes)
        return PreparedText(run, self.corpus, tokenizers.target, splits, reporter)


class PreparedText:
    """The tokens of both sides."""

    def __init__(
        self, run: Run, corpus: Corpus, tokenizer: Tokenizer, splits: TokenSplits, reporter: LaunchReporter
    ) -> None:
        self.run, self.corpus, self.tokenizer, self.splits, self.reporter = run, corpus, tokenizer, splits, reporter

    @property
    def summary(self) -> str:
        train, valid = self.splits.train, self.splits.valid
        return (
            f"{train.n_tokens:,} training and {valid.n_tokens:,} validation tokens of "
            f"{valid.n_bytes / valid.n_tokens:.2f} bytes"
        )

    def task(self, network: Network, device: torch.device) -> Task:
        """The sampler and the evaluations of the run."""
        run, splits, data = self.run, self.splits, text_of(self.run)
        samplers: dict[type, type[Windows] | type[Epochs] | type[Packed]] = {
            WindowRows: Windows,
            ExampleRows: Epochs,
            PackedRows: Packed,
        }
        learned = text_objective(run, self.tokenizer, context_of(run))
        context = learned.row_length - 1  # of a sampler, whose rows have one id more

        def sampler_of(tokens: TokenFile, seed: int) -> Windows | Epochs | Packed:
            return samplers[type(data.packing)](tokens, context, run.train.batch_size, seed)

        def sampler_of_cuts(seed: int) -> tuple[Sampler, Path]:
            cut = prepared_tokens(run, self.corpus, self.tokenizer, dropout_seed=seed)
            return sampler_of(cut.train, seed), cut.folder

        seed = first_dropout_seed(run)
        sampler = sampler_of(splits.train, seed or run.train.seed)
        log = self.reporter.log
        if isinstance(sampler, Epochs) and sampler.n_cut:
            log(f"{sampler.n_cut:,} documents are longer than a row of {context_of(run):,} tokens and lose their end")
        if isinstance(sampler, (Epochs, Packed)) and sampler.n_skipped:
            log(f"{sampler.n_skipped:,} documents of a single token have nothing to predict and are left out")
        apart = not isinstance(data.packing, WindowRows)
        n_evaluated = min(splits.valid.n_tokens, TRAIN_TOKENS_EVALUATED)
        slice_of_train = _beginning(splits.train, n_evaluated, context, self.tokenizer)

        def rows(tokens: TokenFile) -> Callable[[], Iterable[Sequence[Example]]]:
            return lambda: evaluation_rows(tokens, context, run.model.vocab_size, apart, learned.overlap)

        evaluations = {"train": rows(slice_of_train), "valid": rows(splits.valid)}
        for batches in evaluations.values():
            next(iter(batches()))  # a text with nothing to predict is refused now, not at the first evaluation
        # Schemes other than these do not keep white space: the bytes of a part of the text are unknown.
        lossless = self.tokenizer.scheme in ("byte", "char")
        return Task(
            learned.objective,
            FreshCuts(sampler, sampler_of_cuts, run.train.seed) if seed else sampler,
            evaluations,
            n_bytes={
                "train": predicted_bytes(run, self.tokenizer, slice_of_train) if lossless else None,
                "valid": predicted_bytes(run, self.tokenizer, splits.valid),
            },
            sample=lambda: sample(network, self.tokenizer, run, next(iter(evaluations["valid"]()))[0], device),
            has_one_shape=isinstance(sampler, Windows) and not isinstance(learned.objective, DenoisingObjective),
        )


def evaluation_of(
    run: Run, tokenizer: Tokenizer, tokens: TokenFile
) -> tuple[Objective, Callable[[], Iterable[Sequence[Example]]], int | None]:
    """The run's objective, batches of a whole text for it, and the bytes that its targets stand for."""
    learned = text_objective(run, tokenizer, context_of(run))
    apart = not isinstance(text_of(run).packing, WindowRows)
    return (
        learned.objective,
        lambda: evaluation_rows(tokens, learned.row_length - 1, run.model.vocab_size, apart, learned.overlap),
        predicted_bytes(run, tokenizer, tokens),
    )


def predicted_bytes(run: Run, tokenizer: Tokenizer, tokens: TokenFile) -> int | None:
    """Bytes of a text whose tokens are predicted: the divisor of bits per byte; None where only some are targets.

    The first id of a window or document is never predicted. It is a start token, which stands for no byte, or else the
    first token of the text or document, whose bytes are left out.
    """
    if not isinstance(run.objective, CausalConfig):
        return None
    apart = not isinstance(text_of(run).packing, WindowRows)
    return tokens.n_bytes - tokenizer.n_bytes_of(
        (tokens.ids[tokens.document_starts] if apart else tokens.ids[:1]).tolist()
    )


def text_of(run: Run) -> TextData:
    """The text of a run; `UserError` when it learns from pairs."""
    if not isinstance(run.data, TextData):
        raise UserError(f"the run {run.name!r} learns from pairs of texts, and a single text is needed")
    return run.data


def context_of(run: Run) -> int:
    """Tokens that a row feeds the model."""
    return text_of(run).context or run.model.max_len


def corpus_of(run: Run) -> Corpus:
    """The text of a run and its split."""
    data = text_of(run)
    if data.path is None:
        raise UserError(f"the run {run.name!r} names no text: give it as --data.path FILE")
    return Corpus(
        [data.path],
        valid_paths=[data.valid_path] if data.valid_path else [],
        valid_fraction=data.valid_fraction,
        text_field=data.text_field,
        reading=data.reading,
    )


def prepared_tokens(
    run: Run,
    corpus: Corpus,
    tokenizer: Tokenizer,
    progress: Callable[[int, int], None] | None = None,
    dropout_seed: int | None = None,
    *,
    checks_hashes: bool = True,
) -> TokenSplits:
    """The tokens of a run's text, from the cache when they are there; by default with the cuts of the first epoch."""
    return prepare(
        corpus,
        tokenizer,
        cache_folder(run.data),
        start_id=start_id_of(run),
        dropout=run.tokenizer.dropout,
        dropout_seed=first_dropout_seed(run) if dropout_seed is None else dropout_seed,
        progress=progress,
        checks_hashes=checks_hashes,
    )


def _beginning(tokens: TokenFile, n_tokens: int, context: int, tokenizer: Tokenizer) -> TokenFile:
    """The first `n_tokens` or so of a text, with the bytes that they stand for: enough to see over-fitting."""
    ids = tokens.ids[: max(n_tokens, context + 1)]
    starts = tokens.document_starts[tokens.document_starts < len(ids)]
    return replace(tokens, ids=ids, document_starts=starts, n_bytes=len(tokenizer.decode(ids.tolist()).encode()))
