"""What the configuration of a run gets from where it starts, from its data and from its tokenizers."""

from dataclasses import replace
from pathlib import Path

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import NEWEST_READING, Run
from glassformer.config.transformer import PositionHead, SequenceHead, TransformerConfig
from glassformer.distributed.ranks import Ranks
from glassformer.errors import UserError
from glassformer.store.model_directory import StoredModel
from glassformer.training.data_paths import with_whole_paths
from glassformer.training.init_from import with_model_of
from glassformer.training.material import Material, Tokenizers


def as_new(run: Run, start: StoredModel | None) -> Run:
    """A run before its first step: with the model that it starts from, and by the present rules."""
    if start is not None:
        whole = Path(str(run.init.path)).absolute()
        run = replace(with_model_of(run, start), init=replace(run.init, path=str(whole)))
    return with_present_rules(run)


def with_present_rules(run: Run) -> Run:
    """Record that a new run follows the present rules: a `run.toml` of an older version lacks the key."""
    return replace(run, data=replace(run.data, reading=NEWEST_READING))


def completed(run: Run, tokenizers: Tokenizers, material: Material, ranks: Ranks) -> Run:
    """The run with all that its data and tokenizers decide; only the first process reads texts for it."""
    [trains_starts] = ranks.of_first(ranks.is_first and material.trains_starts(run))
    model = complete(run.model, tokenizers, material.n_outputs, material.mean_and_std, bool(trains_starts))
    return replace(run, model=model, data=with_whole_paths(run.data))


def complete(
    model: ModelConfig,
    tokenizers: Tokenizers,
    n_outputs: int = 0,
    mean_and_std: tuple[float, float] | None = None,
    trains_starts: bool = False,
) -> ModelConfig:
    """Fill in what the configuration leaves open: special ids, vocabularies, labels, the scale of numbers.

    `decoder_start_id` of a decoder alone records that training begins each document with it (`trains_starts`).
    """
    tokenizer = tokenizers.target
    vocab_size = _vocab_size("vocab_size", model.vocab_size, tokenizer.vocab_size)
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "unk", "mask")}
    known = {name: value for name, value in ids.items() if value is not None}
    model = replace(model, vocab_size=vocab_size, **known)
    if isinstance(model, TransformerConfig) and isinstance(model.head, (PositionHead, SequenceHead)):
        if model.head.n_labels not in (0, n_outputs):
            raise UserError(f"model.head.n_labels is {model.head.n_labels} and the data has {n_outputs}: leave it at 0")
        head = replace(model.head, n_labels=n_outputs)
        if isinstance(head, SequenceHead) and head.std == 0 and mean_and_std is not None:
            head = replace(head, mean=mean_and_std[0], std=mean_and_std[1])
        model = replace(model, head=head)
    if not model.is_encoder_decoder:
        return replace(model, decoder_start_id=tokenizer.start_id) if trains_starts else model
    source = None if model.share_embeddings else tokenizers.separate_source
    size = 0 if source is None else _vocab_size("source_vocab_size", model.source_vocab_size, source.vocab_size)
    start = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id
    if tokenizer.roles is not None and model.decoder_start_id is not None:
        start = model.decoder_start_id  # a tokenizer of another family says nothing of what a decoder starts from
    return replace(model, source_vocab_size=size, decoder_start_id=start)


def _vocab_size(name: str, wanted: int, n_tokens: int) -> int:
    if wanted and wanted < n_tokens:
        raise UserError(f"model.{name} is {wanted} and the tokenizer has {n_tokens} tokens: leave it at 0, or raise it")
    return wanted or n_tokens
