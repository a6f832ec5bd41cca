"""Code that several tasks share: the data of a run by its kind, tokenizers, seeds, cache and vocabulary."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from glassformer.common import files
from glassformer.common.errors import Log, UserError
from glassformer.common.seeds import Stream, seed_of
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import GroupPolicyConfig, PairData, PromptData, Run, TextData, TokenizerConfig, WindowRows
from glassformer.data.batching import ReencodedEachEpoch, Sampler, SamplerOfEpoch
from glassformer.data.record_corpus import D, R, RecordCorpus
from glassformer.data.records import Dropped
from glassformer.tasks.batches import MicroBatch, Place
from glassformer.tasks.model_parts import ModelParts
from glassformer.tasks.registry import trainable_task
from glassformer.tasks.reporting import LaunchReporter
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers


def micro_batch(run: Run) -> MicroBatch:
    """Return the batch size of a run according to its settings: rows of a text, or a budget of tokens."""
    data, share = run.data, trainable_task(run).scored_share(run)
    if isinstance(run.objective, GroupPolicyConfig):
        return MicroBatch(run.objective.n_prompts * run.objective.group, scored_share=share)
    assert not isinstance(data, PromptData)
    if not isinstance(data, TextData):
        return MicroBatch(budget=data.batch_tokens, scored_share=share)
    is_full = isinstance(data.packing, WindowRows) and not run.model.is_encoder_decoder
    return MicroBatch(run.train.batch_size, row_length=data.context, is_full=is_full, scored_share=share)


def learn_tokenizer(
    config: TokenizerConfig,
    texts: Iterable[str],
    reporter: LaunchReporter,
    title: str = "learning the tokenizer",
) -> Tokenizer:
    """Load the tokenizer that `config` names, or learn one from training texts (never from validation data)."""
    if config.path is not None:
        return Tokenizer.load(Path(config.path))
    with reporter.phase(title) as progress:
        return Tokenizer.train(
            texts,
            vocab_size=config.vocab_size,
            scheme=config.scheme,
            learner=config.learner,
            special_tokens=config.special_tokens,
            progress=progress,
        )


def first_dropout_seed(run: Run) -> int:
    """Return the seed of BPE-dropout in the first epoch; 0 without BPE-dropout."""
    shares = [config.bpe_dropout for config in (run.tokenizer, run.source_tokenizer) if config is not None]
    return seed_of(run.train.seed, Stream.REENCODING) if any(shares) else 0


def reencoded_each_epoch(run: Run, first: Sampler, sampler_of_epoch: SamplerOfEpoch) -> Sampler:
    """Return the sampler of a run: `first`, or with BPE-dropout a `ReencodedEachEpoch`."""
    if not first_dropout_seed(run):
        return first
    return ReencodedEachEpoch(first, sampler_of_epoch, run.train.seed)


def cache_folder(data: TextData | PairData) -> Path:
    """Return the folder of prepared tokens: `data.cache_dir`, or a folder in the user's cache directory."""
    if data.cache_dir is not None:
        return files.as_path(data.cache_dir, "data.cache_dir")
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "glassformer" / "tokens"


def say_changed(model: ModelParts, digest: str, name: str, log: Log) -> None:
    """Log a warning if the run's own data has changed since training."""
    if model.data_digest is not None and model.data_digest != digest:
        log(f"{name} has changed since {model.run.name} was trained on it: the validation data may differ")


def records_of(
    model: ModelParts, corpus_of: Callable[[D], RecordCorpus[D, R]], data: D, path: Place, log: Log
) -> Sequence[R]:
    """Return the run's own validation records, or all records at another path; log what changed or was skipped."""
    if path is None:
        corpus = corpus_of(data)
        say_changed(model, corpus.digest, corpus.name, log)
        return corpus.split[1]
    corpus = corpus_of(replace(data, path=str(path), valid_path=None))
    records = corpus.whole()
    say_dropped(corpus.dropped, log)
    return records


def say_dropped(dropped: Dropped, log: Log) -> None:
    """Log which records of other data cannot be used."""
    for sentence in dropped.sentences():
        log(sentence)


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
    if tokenizer.is_imported and model.decoder_start_id is not None:
        start = model.decoder_start_id  # an imported tokenizer does not define the decoder's start id
    return replace(model, source_vocab_size=size, decoder_start_id=start)


def _vocab_size(name: str, wanted: int, n_tokens: int) -> int:
    if wanted and wanted < n_tokens:
        raise UserError(f"model.{name}: expected at least {n_tokens} for this tokenizer, got {wanted}; leave it at 0")
    return wanted or n_tokens
