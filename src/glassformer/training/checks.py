"""Checks of a run before torch is imported, and the settings of a new run from its start model and its teacher."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.run import Run, TeacherConfig, TextData, TokenizerConfig, WindowRows
from glassformer.config.train import UNPROFILED, AdamWConfig, LinearSchedule
from glassformer.config.transformer import TokenHead, TransformerConfig
from glassformer.data import own_data
from glassformer.data.kinds import look_at
from glassformer.store import checkpoint, lock
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import SOURCE_TOKENIZER, TOKENIZER, WEIGHTS, read_config, read_run
from glassformer.tasks.requirements import BUILT_IN, context_of, require_watched
from glassformer.tasks.task import trainable_task
from glassformer.training.distributed import is_first
from glassformer.training.run_folder import is_restarted, require_apart, require_new, require_run

N_BYTES = 256
RATE = 0.05
"""Peak learning rate × width of the model, because the best rate of Adam falls with the width (Yang 2022)."""
LORA_RATES = 10
"""Learning rate of low-rank matrices, as a multiple of the rate for training all weights."""
MAX_RATE = 0.003
WARMUP = 20
"""The warm-up takes one step in this number of steps of the run."""


def check_new_run(run: Run, folder: Path) -> None:
    """Raise `UserError` if a run cannot start in a folder; write nothing.

    A run that `torchrun` restarts in its folder was checked at its start, and is not checked again.
    """
    if is_restarted(folder):
        return
    # 1. The folder
    if is_first():
        lock.require_free(folder)
    require_new(folder)
    files.require_writable(folder)
    # 2. Settings without an effect, and files that cannot be read
    require_effect(run)
    for tokenizer in (run.tokenizer, run.source_tokenizer):
        if tokenizer is not None and tokenizer.path is not None:
            with files.reading(Path(tokenizer.path)):
                Path(tokenizer.path).stat()
    # 3. What the task requires of the run
    new = as_new(run)
    facts = BUILT_IN.get(run.objective.kind)
    if facts is not None and facts.check is not None:
        facts.check(new)
        require_watched(new, new.data.scores)
    else:
        trainable_task(run).check(new)  # may import torch
    # 4. What the loop requires of the model
    if run.train.compile is True and new.model.uncompilable:
        raise UserError(
            f"train.compile is not available: torch.compile does not support {new.model.uncompilable}; leave it out"
        )
    experts = getattr(new.model, "experts", None)
    if experts is not None and experts.n_active == 1 and experts.normalize:
        raise UserError(
            "model.experts.normalize gives the only active expert the constant weight 1, from which the router "
            "cannot learn: set normalize to false, or n_active to at least 2"
        )
    # 5. The data
    require_apart(run, folder)
    if isinstance(run.data, TextData) and run.data.path is None:
        raise UserError(f"the run {run.name!r} has no data.path: give a text with --data.path FILE")
    require_vocabulary(run)
    has_windows = isinstance(new.data, TextData) and isinstance(new.data.packing, WindowRows)
    look_at(run.data, context_of(new) if has_windows else 0)  # other rows may be shorter than the context


def as_new(run: Run) -> Run:
    """Return a new run with the settings that its start model and its teacher decide."""
    run = _started(run)
    if run.teacher is None:
        return run
    return _taught(run, run.teacher)


def _started(run: Run) -> Run:
    """Return a new run with the configuration of the model that it starts from, but its own head and dropouts.

    If `init.model` is `recipe`, the run keeps its own model. The vocabulary sizes become 0, so that the tokenizer can
    get new special tokens.
    """
    if run.init.path is None:
        return run
    folder = files.as_path(run.init.path, "init.path")
    checkpoint.find(folder)
    start = read_run(folder)
    run = replace(run, init=replace(run.init, path=str(folder.absolute())))
    if run.tokenizer.path is None:
        run = replace(run, tokenizer=start.tokenizer)
    if run.init.model == "recipe":
        return run
    model, _ = read_config(folder)
    changes = _dropouts(run.model, model)
    if isinstance(model, TransformerConfig) and isinstance(run.model, TransformerConfig):
        changes["n_token_types"] = max(model.n_token_types, run.model.n_token_types)
        if not (isinstance(run.model.head, TokenHead) and isinstance(model.head, TokenHead)):
            changes["head"] = run.model.head
    return replace(run, model=replace(model, vocab_size=0, source_vocab_size=0, **changes))


def _dropouts(model: ModelConfig, other: ModelConfig) -> dict[str, Any]:
    """Return the dropout settings of `model` that `other` has too."""
    names = [field.name for field in fields(model) if field.name.endswith("dropout")]
    return {name: getattr(model, name) for name in names if hasattr(other, name)}


def _taught(run: Run, teacher: TeacherConfig) -> Run:
    """Return a copy of the run with its teacher's tokenizers, decoder start id and digest of weights.

    Raises `UserError` for a teacher with another objective, with shorter inputs or fewer token types, or with
    tokenizers that differ from the run's.
    """
    folder = files.as_path(teacher.path, "teacher.path")
    checkpoint.find(folder)
    kind, (model, _) = read_run(folder).objective.kind, read_config(folder)
    if kind != run.objective.kind:
        raise UserError(
            f"the teacher {folder} has objective.kind {kind}, and the run {run.objective.kind}: use equal ones"
        )
    for name in ("max_len", "source_max_len", "n_token_types"):
        ours, theirs = (getattr(one, name.replace("source", "encoder"), 0) for one in (run.model, model))
        if ours > theirs:
            raise UserError(
                f"model.{name} is {ours:,}, and that of the teacher {folder} {theirs:,}: set it to {theirs:,}"
            )
    if run.model.is_encoder_decoder:
        run = replace(run, model=replace(run.model, decoder_start_id=model.decoder_start_id))
    taught = replace(
        teacher, path=str(folder.absolute()), digest=teacher.digest or Manifest.read(folder).entries[WEIGHTS][1]
    )
    return _with_tokenizers_of(folder.absolute(), replace(run, teacher=taught))


def _with_tokenizers_of(teacher: Path, run: Run) -> Run:
    """Return the run with the tokenizers of its teacher; raise `UserError` if the run names other tokenizers."""
    changes: dict[str, Any] = {}
    for name, file in (("tokenizer", TOKENIZER), ("source_tokenizer", SOURCE_TOKENIZER)):
        config, own = getattr(run, name), teacher / file
        if run.init.path is not None:
            own = Path(run.init.path) / file
        elif config is not None and config.path is not None:
            own = Path(config.path)
        elif own.exists():
            changes[name] = replace(config or TokenizerConfig(), path=str(own))
        if own != teacher / file and _fingerprint(own) != _fingerprint(teacher / file):
            raise other_tokens(teacher)
    return replace(run, **changes)


def _fingerprint(tokenizer: Path) -> str | None:
    from glassformer.tokenization.tokenizer import Tokenizer  # a slow import, for this comparison only

    return Tokenizer.load(tokenizer).fingerprint if tokenizer.exists() else None


def other_tokens(teacher: str | Path) -> UserError:
    """Return the error for a run with other tokenizers than its teacher."""
    return UserError(
        f"the tokens of the run are not those of its teacher {teacher}: leave out tokenizer.path, [source_tokenizer] "
        "and init.path, or give some with the teacher's tokenizers"
    )


def check_stored_run(folder: Path) -> None:
    """Raise `UserError` if a folder contains no run that can be resumed or repeated now."""
    require_run(folder)
    if is_first():
        lock.require_free(folder)
    checkpoint.require_one(folder)


def require_effect(run: Run) -> None:
    """Raise `UserError` for a setting that has no effect together with the other settings."""
    if run.lora is not None and run.init.path is None:
        raise UserError("lora adapts a trained model and needs init.path: set it to the model directory to adapt")
    if run.teacher is not None and run.teacher.path is None:
        raise UserError("[teacher] has no effect without teacher.path: set it to a model directory, or leave it out")
    if run.init.model != "same" and run.init.path is None:
        raise UserError(f"init.model {run.init.model} has no effect without init.path: set init.path, or leave it out")
    train, most = run.train, run.train.max_steps - UNPROFILED
    if train.profile_steps and train.profile_steps > most:
        limit = f"must be at most {most:,}" if most > 0 else "has no effect"
        raise UserError(
            f"train.profile_steps is {train.profile_steps:,} and {limit}: train.max_steps is {train.max_steps:,}, and "
            f"the first {UNPROFILED} steps are not profiled"
        )


def require_vocabulary(run: Run) -> None:
    """Raise `UserError` if the `vocab_size` of a new byte tokenizer is too small for all bytes and special tokens."""
    tokenizers = {"tokenizer": run.tokenizer, "source_tokenizer": run.source_tokenizer}
    for name, config in tokenizers.items():
        if config is None or config.path is not None or run.init.path is not None or config.scheme != "byte":
            continue
        least = N_BYTES + len(set(config.special_tokens))
        if 0 < config.vocab_size < least:
            raise UserError(
                f"{name}.vocab_size is {config.vocab_size} and must be at least {least}: {N_BYTES} bytes and "
                f"{least - N_BYTES} special tokens; 0 means only these"
            )


# Settings for a run on own data that starts from a trained model, in place of settings for a small new model


def run_of(
    *sources: str | Path, kind: own_data.Kind | None = None, changes: Mapping[str, Any] | None = None
) -> tuple[Run, str]:
    """Return the run of `own_data.run_of` with settings for the model that the run starts from, and notes."""
    run, evidence = own_data.run_of(*sources, kind=kind, changes=changes)
    if any(map(recipes.is_written, sources)):
        return run, evidence
    run, note = for_start(run, changes or {})
    return run, "; ".join(filter(None, (evidence, note)))


def for_start(run: Run, changes: Mapping[str, Any]) -> tuple[Run, str]:
    """Return a run on own data with settings for its start model, `init.path` in `changes`, and a note about them.

    The settings are for a start model that is wider than the model of `run`, and for LoRA: AdamW with warm-up and a
    rate that suits the width, and the dropouts of the start model. Otherwise, or if the run keeps its own model
    (`init.model`), the run is returned unchanged.
    """
    adamw = replace(run, train=replace(run.train, optimizer=AdamWConfig(weight_decay=0.0)))
    whole = recipes.whole_changes(adamw, changes)
    if whole.get("init.path") is None or whole.get("init.model") == "recipe":
        return run, ""
    folder = files.as_path(whole["init.path"], "init.path")
    checkpoint.find(folder)
    start, _ = read_config(folder)
    adapts = any(key.partition(".")[0] == "lora" for key in whole)
    if width(start) <= width(run.model) and not adapts:
        return run, ""
    rate = RATE / width(start)
    if adapts:
        rate *= LORA_RATES
    optimizer = AdamWConfig(learning_rate=float(f"{min(rate, MAX_RATE):.1g}"), weight_decay=0.0)
    schedule = LinearSchedule(warmup_steps=run.train.max_steps // WARMUP)
    note = (
        f"settings for the trained model {folder}, where you give none: adamw with learning rate "
        f"{optimizer.learning_rate:g}, {schedule.warmup_steps} steps of warm-up, its own dropouts"
    )
    train = replace(run.train, optimizer=optimizer, schedule=schedule)
    return replace(run, model=replace(run.model, **_dropouts(start, run.model)), train=train), note


def width(model: ModelConfig) -> int:
    """Return the width of the states that a model predicts from."""
    return model.d_decoder if isinstance(model, RecurrentConfig) else model.d_model
