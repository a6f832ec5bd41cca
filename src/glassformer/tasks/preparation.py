"""What tasks share: the data of a run by its kind, tokenizers, seeds, the cache, and what a model takes from them."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import DataConfig, LabelData, PairData, Run, TextData, TokenizerConfig, WindowRows
from glassformer.data.records import Dropped
from glassformer.errors import UserError
from glassformer.reporting import LaunchReporter
from glassformer.seeds import Stream, seed_of
from glassformer.tasks.batches import MicroBatch
from glassformer.tasks.registry import trainable_task
from glassformer.tasks.task import Log, ScoresSome, TrainedModel
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers


def text_of(run: Run) -> TextData:
    """The text of a run; `UserError` when it learns from pairs."""
    if not isinstance(run.data, TextData):
        raise UserError(f"the run {run.name!r} learns from pairs of texts, and a single text is needed")
    return run.data


def pairs_of(run: Run) -> PairData:
    """The pairs of a run; `UserError` when it learns from a text."""
    if not isinstance(run.data, PairData):
        raise UserError(f"the run {run.name!r} learns from a text, and pairs of source and target are needed")
    return run.data


def labels_of(run: Run) -> LabelData:
    """The labelled data of a run; `UserError` when it learns from something else."""
    if not isinstance(run.data, LabelData):
        raise UserError(f"the run {run.name!r} has no labels: it learned from data of kind {run.data.kind}")
    return run.data


def require_data(
    run: Run, wanted: type[TextData] | type[PairData] | type[LabelData], outputs: Sequence[str] = ()
) -> None:
    """`UserError` when the run's data is not what its objective learns from; `outputs` are those that labels may have.

    >>> from glassformer.config.run import Seq2SeqConfig
    >>> require_data(Run(objective=Seq2SeqConfig()), PairData)
    Traceback (most recent call last):
    glassformer.errors.UserError: the objective seq2seq needs pairs (data.kind), and the data is a text
    """
    data, kind = run.data, run.objective.kind
    if isinstance(data, wanted) and (not isinstance(data, LabelData) or data.outputs in outputs):
        return
    if isinstance(data, TextData):
        needs = "pairs" if wanted is PairData else "texts with labels"
        raise UserError(f"the objective {kind} needs {needs} (data.kind), and the data is a text")
    if isinstance(data, PairData):
        raise UserError(f"pairs are learned with objective.kind seq2seq, and it is {kind}")
    right = "tagging" if data.outputs == "tags" else "classification"
    raise UserError(f"data.outputs {data.outputs} is learned with objective.kind {right}, and it is {kind}")


def micro_batch(run: Run) -> MicroBatch:
    """How large the batches of a run are, as far as its settings tell: rows of a text, or a budget of tokens."""
    task, data = trainable_task(run), run.data
    share = task.scored_share(run) if isinstance(task, ScoresSome) else 1.0
    if not isinstance(data, TextData):
        return MicroBatch(budget=data.batch_tokens, scored_share=share)
    is_full = isinstance(data.packing, WindowRows) and not run.model.is_encoder_decoder
    return MicroBatch(run.train.batch_size, row_length=data.context, is_full=is_full, scored_share=share)


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
    shares = [config.bpe_dropout for config in (run.tokenizer, run.source_tokenizer) if config is not None]
    return seed_of(run.train.seed, Stream.CUTS) if run.data.reading >= 2 and any(shares) else 0


def cache_folder(data: DataConfig) -> Path:
    """Where prepared tokens are kept: `data.cache_dir`, or the user's cache folder."""
    if data.cache_dir is not None:
        return Path(data.cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "glassformer" / "tokens"


def say_changed(model: TrainedModel, digest: str, name: str, log: Log) -> None:
    """Tell that the run's own data is not what it was."""
    if model.data_digest is not None and model.data_digest != digest:
        log(f"{name} is no longer what {model.run.name} was trained on: the held-out part may not be the same")


def say_dropped(dropped: Dropped, log: Log) -> None:
    """Tell what of other data cannot be used."""
    for sentence in dropped.sentences():
        log(sentence)


def refuse(sentence: str) -> None:
    """`UserError` where other data is not read whole: without a part of it the scores would be others."""
    raise UserError(f"{sentence.removesuffix(' and are left out')}: shorten them, or leave them out")


def with_vocabulary(model: ModelConfig, tokenizers: Tokenizers) -> ModelConfig:
    """The model with the vocabularies and special ids of its tokenizers, and what a target's decoder starts from."""
    tokenizer = tokenizers.target
    vocab_size = _vocab_size("vocab_size", model.vocab_size, tokenizer.vocab_size)
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "unk", "mask")}
    known = {name: value for name, value in ids.items() if value is not None}
    model = replace(model, vocab_size=vocab_size, **known)
    if not model.is_encoder_decoder:
        return model
    source = None if model.share_embeddings else tokenizers.separate_source
    size = 0 if source is None else _vocab_size("source_vocab_size", model.source_vocab_size, source.vocab_size)
    start = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    if tokenizer.is_imported and model.decoder_start_id is not None:
        start = model.decoder_start_id  # a tokenizer of another family says nothing of what a decoder starts from
    return replace(model, source_vocab_size=size, decoder_start_id=start)


def _vocab_size(name: str, wanted: int, n_tokens: int) -> int:
    if wanted and wanted < n_tokens:
        raise UserError(f"model.{name} is {wanted} and the tokenizer has {n_tokens} tokens: leave it at 0, or raise it")
    return wanted or n_tokens
