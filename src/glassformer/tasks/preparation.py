"""Code that several tasks share: the data of a run by its kind, tokenizers, seeds, cache and vocabulary."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from glassformer.common import files
from glassformer.common.errors import Log, Progress, UserError
from glassformer.common.seeds import Stream, seed_of
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import PairData, Run, TextData
from glassformer.data import batching
from glassformer.data.kinds import corpus_of
from glassformer.data.tokens import TokenCache
from glassformer.tasks.batches import Places
from glassformer.tasks.requirements import Data, data_of
from glassformer.tasks.task import MicroBatch, ModelParts, trainable_task
from glassformer.tokenization.tokenizer import Tokenizers


def micro_batch(run: Run) -> MicroBatch:
    """Return the batch size of a run according to its settings."""
    return trainable_task(run).micro_batch(run)


def first_dropout_seed(run: Run) -> int:
    """Return the seed of BPE-dropout in the first epoch; 0 without BPE-dropout."""
    shares = [config.bpe_dropout for config in (run.tokenizer, run.source_tokenizer) if config is not None]
    return seed_of(run.train.seed, Stream.REENCODING) if any(shares) else 0


def reencoded_each_epoch(
    run: Run, first: batching.Sampler, sampler_of_epoch: batching.SamplerOfEpoch
) -> batching.Sampler:
    """Return the sampler of a run: `first`, or with BPE-dropout a `ReencodedEachEpoch`."""
    if not first_dropout_seed(run):
        return first
    return batching.ReencodedEachEpoch(first, sampler_of_epoch, run.train.seed)


def evaluations(
    sides: Mapping[str, Sequence[batching.Example]], name: str, batch_tokens: int
) -> dict[str, Callable[[], Iterator[list[batching.Example]]]]:
    """Return, for each side, a function that yields its batches; messages call its rows `name`."""
    rows = {side: batching.example_rows(examples, name) for side, examples in sides.items()}
    return {side: partial(batching.evaluation_batches, of_side, batch_tokens) for side, of_side in rows.items()}


def token_cache(data: TextData | PairData, progress: Progress | None = None, checks_hashes: bool = True) -> TokenCache:
    """Return the cache of prepared tokens: `data.cache_dir`, or a folder in the user's cache directory."""
    if data.cache_dir is not None:
        folder = files.as_path(data.cache_dir, "data.cache_dir")
    else:
        folder = files.cache_folder() / "tokens"
    return TokenCache(folder, progress, checks_hashes)


def say_changed(model: ModelParts, digest: str, name: str, log: Log) -> None:
    """Log a warning if the run's own data has changed since training."""
    if model.data_digest is not None and model.data_digest != digest:
        log(f"{name} has changed since {model.run.name} was trained on it: the validation data may differ")


def records_of(
    model: ModelParts, wanted: type[Data], places: Places, name: str, log: Log
) -> tuple[Data, Sequence[Any]]:
    """Return the data settings of a run, and its validation records, or all records at the path in `places`.

    Messages call the records `name`. Changed data and skipped records are logged.
    """
    data, path = data_of(model.run, wanted), places.path_alone(model.run.name, name)
    if path is None:
        corpus = corpus_of(data)
        say_changed(model, corpus.digest, corpus.name, log)
        return data, corpus.split[1]
    corpus = corpus_of(replace(data, path=str(path), valid_path=None))
    records = corpus.whole()
    for sentence in corpus.dropped.sentences():
        log(sentence)
    return data, records


def refuse(sentence: str) -> None:
    """Raise `UserError` for records of other data that do not fit: scores without them would not be comparable."""
    raise UserError(f"{sentence.removesuffix(' and are left out')}: shorten or remove them")


def with_vocabulary(model: ModelConfig, tokenizers: Tokenizers) -> ModelConfig:
    """Return the model with the vocabulary sizes, special ids and decoder start id of its tokenizers."""
    tokenizer = tokenizers.target
    vocab_size = _vocab_size("vocab_size", model.vocab_size, tokenizer.vocab_size)
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "unk", "mask")}
    known = {name: value for name, value in ids.items() if value is not None}
    model = replace(model, vocab_size=vocab_size, **known)
    if not model.is_encoder_decoder:
        return model
    size, source = 0, tokenizers.separate_source
    if source is not None and not model.share_embeddings:
        size = _vocab_size("source_vocab_size", model.source_vocab_size, source.vocab_size)
    start = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    if tokenizer.roles is not None and model.decoder_start_id is not None:
        start = model.decoder_start_id  # an imported tokenizer does not define the decoder's start id
    return replace(model, source_vocab_size=size, decoder_start_id=start)


def _vocab_size(name: str, wanted: int, n_tokens: int) -> int:
    if wanted and wanted < n_tokens:
        raise UserError(f"model.{name}: expected at least {n_tokens} for this tokenizer, got {wanted}; leave it at 0")
    return wanted or n_tokens
