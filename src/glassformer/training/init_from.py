"""The start of a run: pretrained model, teacher, tokenizers, final configuration, new weights and frozen weights."""

import json
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import nn

from glassformer.common.errors import Log, UserError, placed, warn
from glassformer.common.seeds import Stream, seed_of
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import Run
from glassformer.config.schema import from_union, to_dict
from glassformer.config.transformer import TokenHead, TransformerConfig
from glassformer.models.build import Network, build_model
from glassformer.models.transforms import add_lora, similar, take_weights
from glassformer.objectives.distillation import Distillation
from glassformer.objectives.loss import Objective, TokenObjective
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import WEIGHTS, StoredModel, read_model, read_tokenizers
from glassformer.tasks.task import RunData, trainable_task
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from glassformer.training.checks import other_tokens
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.host import Host
from glassformer.training.run_folder import with_whole_paths
from glassformer.training.trainer_state import read_progress

_newest_learned: dict[str, list[str]] = {}
"""The tokenizers that this process learned last, by data and settings: a sweep trains many runs on the same data."""


def learned_tokenizers(run: Run, start: StoredModel | None, data: RunData, host: Host) -> Tokenizers:
    """Read and hash the data and learn the tokenizers on rank 0; send the results to the other ranks."""
    corpus, learned = data.corpus, list[Tokenizers]()

    def work() -> str:
        with host.reporter.phase("reading the data"):
            news = corpus.news()
        for line in news:
            warn(line)
        settings = repr((corpus.digest, run.data, run.objective, run.tokenizer, run.source_tokenizer))
        is_learned = start is None and not any(one and one.path for one in (run.tokenizer, run.source_tokenizer))
        if is_learned and settings in _newest_learned:
            tokenizers = Tokenizers(*map(Tokenizer.from_json, _newest_learned[settings]))
        else:
            tokenizers = data.tokenizers(run, host.reporter) if start is None else tokenizers_of(run, start)
        learned.append(tokenizers)
        pair = (tokenizers.target, tokenizers.separate_source)
        texts = [tokenizer.to_json() for tokenizer in pair if tokenizer is not None]
        if is_learned:
            _newest_learned.clear()
            _newest_learned[settings] = texts
        return json.dumps([corpus.digest, *texts])

    text = host.ranks.text_of_first(work)
    if learned:
        return learned[0]
    corpus.digest, *stored = json.loads(text)
    return Tokenizers(*map(Tokenizer.from_json, stored))


def tokenizers_of(run: Run, start: StoredModel) -> Tokenizers:
    """Return the tokenizers of the pretrained model, plus what the run's objective needs, such as special tokens.

    Raises `UserError` if the run names a different tokenizer, because its ids would not match the weights.
    """
    for config, theirs, name in (
        (run.tokenizer, start.tokenizers.target, "tokenizer"),
        (run.source_tokenizer, start.tokenizers.separate_source, "source_tokenizer"),
    ):
        if config is None or config.path is None:
            continue
        if theirs is None or Tokenizer.load(Path(config.path)).fingerprint != theirs.fingerprint:
            raise UserError(
                f"{name}.path: {config.path} differs from the tokenizer of {run.init.path}; leave it out to use that "
                "model's tokenizer"
            )
    return replace(start.tokenizers, target=trainable_task(run).adapted(run, start.tokenizers.target))


def stored_tokenizers(checkpoint: Path, data: RunData, host: Host) -> Tokenizers:
    """Return the tokenizers in a checkpoint; raise `UserError` if the training data has changed."""
    corpus = data.corpus
    corpus.digest = host.ranks.text_of_first(lambda: corpus.digest)
    if read_progress(checkpoint).data_digest != corpus.digest:
        raise UserError(
            f"{corpus.name} has changed since {checkpoint.parent.parent} was trained on it: restore the old data, or "
            f"start a new run from its weights with --init.path {checkpoint.parent.parent}"
        )
    return read_tokenizers(checkpoint, Manifest.read(checkpoint))


def completed(run: Run, tokenizers: Tokenizers, data: RunData, ranks: Ranks) -> Run:
    """Return the run with the values that its data and tokenizers decide; only rank 0 reads texts for them."""
    decided = ranks.text_of_first(lambda: json.dumps([to_dict(data.complete(run, tokenizers)), data.metric()[0]]))
    model, metric = json.loads(decided)
    return replace(
        run,
        model=from_union(ModelConfig, model),
        data=with_whole_paths(run.data),
        train=run.train.watching(metric),
    )


def new_network(run: Run, start: StoredModel | None, labels: Sequence[str], log: Log) -> Network:
    """Return the network of a new run: the pretrained weights that fit, and new random weights for the rest.

    Later, `prepare_parameters` adds adapters and freezes weights. A pretrained head is not used if its labels differ
    from `labels` in names or order. Raises `UserError` if a run with [lora] would never train its new weights.
    """
    torch.manual_seed(seed_of(run.train.seed, Stream.WEIGHTS))
    network = build_model(run.model)
    if start is None:
        return network
    # The message
    if run.init.model == "recipe":
        log(f"tokenizer from {run.init.path}")
    else:
        others = "head, dropouts and token types from the run's [model]"
        log(f"model and tokenizer from {run.init.path}; {others}")
    # The pretrained weights
    weights = start.weights_in_use()
    head: list[str] = []  # weights of a head for other labels
    if _has_own_head(start.config) and start.labels != tuple(labels):
        head = [name for name in weights if name.startswith("output.proj.")]
    taken = take_weights(network, weights, leave=head)
    if not taken.taken:
        raise UserError(
            f"no weight of {run.init.path} fits the run's model: set init.model same, or use that model's sizes"
        )
    for line in str(taken).splitlines():
        log(line)
    # New weights that nothing would train
    drawn, has_own_head = (*taken.new, *taken.extended), _has_own_head(run.model)
    untrained = [name for name in drawn if not (has_own_head and name.startswith("output."))]
    if run.lora is not None and untrained:
        names = ", ".join(untrained[:4])
        if len(untrained) > 4:
            names += " …"
        raise UserError(
            f"[lora] would leave these new parameters untrained: {names}; leave out [lora], or start from a model that "
            "has them"
        )
    return network


def _has_own_head(model: ModelConfig) -> bool:
    return isinstance(model, TransformerConfig) and not isinstance(model.head, TokenHead)


def prepare_parameters(run: Run, network: Network, log: Log) -> None:
    """Add low-rank adapters and freeze parameters according to the run."""
    if run.lora is not None:
        lora = run.lora
        adapted = add_lora(network, lora.targets, lora.rank, lora.alpha, lora.dropout)
        if _has_own_head(run.model):
            for parameter in network.output.parameters():
                parameter.requires_grad_(True)  # a new head is trained in full
        log(f"{len(adapted)} layers are adapted with rank {lora.rank}")
    if run.init.freeze:
        freeze(network, run.init.freeze)
    n_learning = sum(p.numel() for p in network.parameters() if p.requires_grad)
    n_all = sum(p.numel() for p in network.parameters())
    if n_learning < n_all:
        log(f"{n_learning:,} of {n_all:,} parameters are trained")


def freeze(network: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Freeze the parameters that match a pattern, or whose module matches one; return their names.

    Patterns have shell syntax: `encoder.embeddings`, `encoder.blocks.0.*`, `*.bias`. A tied table matches each of its
    names. Raises `UserError`, and changes nothing, for a pattern without a match or if nothing would stay trainable.
    """
    by_name = dict(network.named_parameters(remove_duplicate=False))
    frozen = set()
    for pattern in patterns:
        matches = {p for name, p in by_name.items() if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")}
        if not matches:
            modules = [name for name, m in network.named_modules() if name and any(True for _ in m.parameters())]
            raise UserError(f"init.freeze: no parameter matches {pattern}; similar names: {similar(pattern, modules)}")
        frozen |= matches
    if all(p in frozen or not p.requires_grad for p in by_name.values()):
        raise UserError(f"init.freeze {' '.join(patterns)} freezes every parameter: leave some of them trainable")
    for parameter in frozen:
        parameter.requires_grad_(False)
    return [name for name, parameter in network.named_parameters() if parameter in frozen]


# The teacher of a run (`[teacher]`)


def read_teacher(run: Run) -> StoredModel | None:
    """Read the teacher of a run, if it has one; raise `UserError` if its weights are not the ones the run records."""
    if run.teacher is None:
        return None
    folder = Path(run.teacher.path or "")  # `checks.as_new`
    with placed("the teacher of the run"):
        teacher = read_model(folder)
    if teacher.manifest.entries[WEIGHTS][1] != run.teacher.digest:
        raise UserError(
            f"the weights of the teacher {folder} are not those with which the run began (teacher.digest): restore "
            "them, or start a new run"
        )
    return teacher


def taught(
    objective: Objective, run: Run, teacher: StoredModel, tokenizers: Tokenizers, labels: Sequence[str]
) -> Distillation:
    """Return the objective with which the steps of a run learn from its teacher.

    Raises `UserError` for a teacher of other tokens or labels, and for a loss that is not a cross-entropy.
    """
    assert run.teacher is not None
    if not isinstance(objective, TokenObjective):
        raise UserError(
            f"the loss of objective.kind {run.objective.kind} on this data is not a cross-entropy over tokens or "
            "classes, which a teacher needs: leave out [teacher]"
        )
    if _fingerprints(tokenizers) != _fingerprints(teacher.tokenizers):
        raise other_tokens(run.teacher.path or "")
    if teacher.labels != tuple(labels):
        raise UserError(
            f"the teacher {run.teacher.path} has the labels {', '.join(teacher.labels)}, and the run "
            f"{', '.join(labels)}: train both on the same labels"
        )
    network = teacher.network.requires_grad_(False)
    return Distillation(objective, network, run.teacher.weight, run.teacher.temperature)


def _fingerprints(tokenizers: Tokenizers) -> list[str]:
    both = (tokenizers.target, tokenizers.separate_source)
    return [tokenizer.fingerprint for tokenizer in both if tokenizer is not None]
