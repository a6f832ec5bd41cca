"""From what a run starts: nothing, or another model; and which of its parameters learn."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import Run
from glassformer.config.transformer import TokenHead, TransformerConfig
from glassformer.errors import UserError
from glassformer.models.build import Network, build_model
from glassformer.models.transforms import add_lora, merge_lora, take_weights, token_rows
from glassformer.seeds import Stream, seed_of
from glassformer.store.model_directory import StoredModel, read_model, weights_of
from glassformer.tasks.registry import trainable_task
from glassformer.tasks.task import needed_special_tokens
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from glassformer.training.fine_tuning import freeze

Log = Callable[[str], None]


def read_start(run: Run) -> StoredModel | None:
    """The model that a run starts from, verified; None when it starts from nothing."""
    return None if run.init.path is None else read_model(Path(run.init.path))


def with_model_of(run: Run, start: StoredModel) -> Run:
    """The run with the model that it starts from, but with its own head and dropouts, unless it wants its own model.

    The vocabulary is left open: the tokenizer may have got new tokens.
    """
    if run.tokenizer.path is None:
        run = replace(run, tokenizer=start.run.tokenizer)
    if run.init.model == "recipe":
        return run
    theirs, own = start.config, run.model
    kept = [field.name for field in fields(theirs) if field.name.endswith("dropout") and hasattr(own, field.name)]
    if isinstance(theirs, TransformerConfig) and isinstance(own, TransformerConfig):
        kept.append("head")
        if isinstance(own.head, TokenHead) and isinstance(theirs.head, TokenHead):
            kept.remove("head")
    changes: dict[str, Any] = {name: getattr(own, name) for name in kept}
    if isinstance(theirs, TransformerConfig) and isinstance(own, TransformerConfig):
        changes["n_token_types"] = max(theirs.n_token_types, own.n_token_types)
    return replace(run, model=replace(theirs, vocab_size=0, source_vocab_size=0, **changes))


def tokenizers_of(run: Run, start: StoredModel) -> Tokenizers:
    """The tokenizers of the model that a run starts from, with the special tokens that its objective needs.

    `UserError` when the run names a tokenizer that is another one: ids would mean something else.
    """
    for config, theirs, name in (
        (run.tokenizer, start.tokenizer, "tokenizer"),
        (run.source_tokenizer, start.source_tokenizer, "source_tokenizer"),
    ):
        if config is None or config.path is None:
            continue
        if theirs is None or Tokenizer.load(Path(config.path)).fingerprint != theirs.fingerprint:
            raise UserError(
                f"{name}.path is {config.path}, which is not the vocabulary of {run.init.path}: leave it out to go on "
                "with that model's own"
            )
    return Tokenizers(
        start.tokenizer.with_special_tokens(needed_special_tokens(trainable_task(run), run)), start.source_tokenizer
    )


def new_network(run: Run, start: StoredModel | None, labels: Sequence[str], log: Log) -> Network:
    """The network of a run at its first step: what fits comes from where it starts, the rest as it is drawn.

    It is not adapted or frozen yet (`prepare_parameters`). A head over other `labels` than its own is left behind.
    `UserError` when an adapted run would never learn what is new in it.
    """
    torch.manual_seed(seed_of(run.train.seed, Stream.WEIGHTS))
    network = build_model(run.model)
    if start is not None:
        merge_lora(start.network)
        log(_model_sentence(run, start))
        taken = take_weights(network, _weights_in_use(start), leave=_head_of_others(start, labels))
        if not taken.taken:
            raise UserError(
                f"nothing of {run.init.path} fits the run's model: give init.model same, or the sizes of that model"
            )
        for line in str(taken).splitlines():
            log(line)
        never = [name for name in (*taken.new, *taken.extended) if not _is_own_head(run.model, name)]
        if run.lora is not None and never:
            raise UserError(
                f"these would stay as they were drawn, since only low-rank updates learn: {', '.join(never[:4])}"
                f"{' …' if len(never) > 4 else ''}; leave out [lora], or start from a model that has them"
            )
    return network


def prepare_parameters(run: Run, network: Network, log: Log) -> None:
    """Adapts and freezes as the run says."""
    if run.lora is not None:
        lora = run.lora
        adapted = add_lora(network, lora.targets, lora.rank, lora.alpha, lora.dropout)
        if _has_own_head(run.model):
            for parameter in network.output.parameters():
                parameter.requires_grad_(True)  # a head that was drawn learns whole
        log(f"{len(adapted)} layers are adapted with rank {lora.rank}")
    if run.init.freeze:
        freeze(network, run.init.freeze)
    n_learning = sum(p.numel() for p in network.parameters() if p.requires_grad)
    n_all = sum(p.numel() for p in network.parameters())
    if n_learning < n_all:
        log(f"{n_learning:,} of {n_all:,} parameters learn")


def _model_sentence(run: Run, start: StoredModel) -> str:
    if run.init.model == "recipe":
        return f"the tokenizer is that of {run.init.path}"
    return (
        f"model and tokenizer are those of {run.init.path}; of [model] the head, dropouts and token types are the run's"
    )


def _weights_in_use(start: StoredModel) -> dict[str, Tensor]:
    """The weights of a start, without the rows of tables that stand for no token but fill a vocabulary up."""
    weights = weights_of(start.network)
    for name in token_rows(start.network):
        of_source = start.source_tokenizer is not None and name.startswith("encoder.")
        tokenizer = start.source_tokenizer if of_source else start.tokenizer
        if name in weights and tokenizer is not None:
            weights[name] = weights[name][: tokenizer.vocab_size]
    return weights


def _head_of_others(start: StoredModel, labels: Sequence[str]) -> list[str]:
    """The projection of a head that says other labels, or the same in another order."""
    if not _has_own_head(start.config) or start.labels == tuple(labels):
        return []
    return [name for name in weights_of(start.network) if name.startswith("output.proj.")]


def _has_own_head(model: ModelConfig) -> bool:
    return isinstance(model, TransformerConfig) and not isinstance(model.head, TokenHead)


def _is_own_head(model: ModelConfig, name: str) -> bool:
    return _has_own_head(model) and name.startswith("output.")
