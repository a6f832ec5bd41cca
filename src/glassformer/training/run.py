"""A run from start to end: `train_run` and `resume_run`, built on `assemble`.

`assemble` returns the trainer. The loop of the trainer is in `loop.py`, and each step in `step.py`.
"""

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from glassformer.common.errors import UnknownText, UserError
from glassformer.config.changes import apply_flags
from glassformer.config.run import Run
from glassformer.config.train import AUTO
from glassformer.cost.plan import is_long, least_seconds
from glassformer.cost.room import require_memory, way_that_fits
from glassformer.models.build import undrawn_model
from glassformer.models.devices import Fit, choose_compile
from glassformer.store import checkpoint, model_directory
from glassformer.store.checkpoint import Tensors
from glassformer.store.manifest import Manifest
from glassformer.tasks.preparation import micro_batch
from glassformer.tasks.reporting import LaunchReporter, Outcome, Silent, noted
from glassformer.tasks.task import trainable_task
from glassformer.training import announce, init_from
from glassformer.training.checkpointer import Checkpointer, republish
from glassformer.training.checks import as_new
from glassformer.training.distributed import is_first
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.host import Host, host_of, room_of
from glassformer.training.init_from import read_teacher, taught
from glassformer.training.loop import Trainer
from glassformer.training.optimizers.build import build_optimizer
from glassformer.training.run_folder import holding, is_restarted
from glassformer.training.speed import seconds_at_peak
from glassformer.training.trainer_state import checkpoint_for, delete_later
from glassformer.trial.choice import earned_precision


def train_run(run: Run, folder: Path, reporter: LaunchReporter) -> Outcome:
    """Train a run that `checks.check_new_run` has accepted, from its first step in a new folder.

    If `torchrun` restarts the run after a process was lost, the run continues from the newest checkpoint.
    """
    began = time.monotonic()
    if is_restarted(folder):
        return resume_run(folder, reporter)
    start = None
    if run.init.path is not None:
        start = model_directory.read_start(run.init, reads_weights=is_first() or run.parallel.strategy == "ddp")
    run = as_new(run)
    with noted(reporter, is_first=is_first()) as notes, host_of(run, folder, reporter, began) as host:
        run, trainer = assemble(run, folder, host, start=start)
        trainer.notes = notes
        with holding(folder, host.ranks.is_first, is_new=True, max_steps=run.train.max_steps):
            return Outcome(folder, trainer.train(), run, tuple(notes))


def resume_run(folder: Path, reporter: LaunchReporter, flags: Mapping[str, str] | None = None) -> Outcome:
    """Resume from the newest intact checkpoint of a run, exactly as if the run had never stopped.

    `flags` replace settings of the device and of the length of the run (`config.train.CHANGEABLE`).
    """
    began = time.monotonic()
    log = reporter.log if is_first() else Silent().log
    with noted(reporter, is_first=is_first()) as notes, holding(folder, is_first()):
        newest = checkpoint.newest(folder, log)
        former_run = model_directory.read_run(newest)
        run = apply_flags(former_run, flags or {})
        begin = checkpoint_for(folder, newest, former_run.train, run.train, log)
        with host_of(run, folder, reporter, began) as host:
            # The state of the checkpoint
            host.ranks.raise_together(lambda: _require_same(begin, host.ranks))
            run, trainer = assemble(run, folder, host, from_checkpoint=begin)
            trainer.restore(begin)
            if trainer.step.fit != trainer.progress.fit:
                log(f"a step does not fit in memory here, by estimate: {trainer.step.fit}, not bit for bit")
            # The run folder
            republish(folder, run.train, trainer.progress, host)
            if host.ranks.is_first and begin != newest:
                delete_later(folder, trainer.progress.step)
            announce.resumed_run(run, begin, trainer.progress, host)
            return Outcome(folder, trainer.train(), run, tuple(notes))


def assemble(
    run: Run,
    folder: Path,
    host: Host,
    *,
    start: model_directory.StoredModel | None = None,
    from_checkpoint: Path | None = None,
    writes: bool = True,
) -> tuple[Run, Trainer]:
    """Return the run with the values that its data decides, and its trainer before the first step.

    A new run starts from random weights or from the model `start`. With `from_checkpoint`, the run of the checkpoint
    continues, and the caller loads its weights with `Trainer.restore`. In both cases, a task that compares the model
    with its start (`keeps_start`) prepares the data with the initial weights.
    """
    ranks, room, log = host.ranks, room_of(host.device), host.reporter.log
    # Memory
    if from_checkpoint is not None:
        Manifest.read(from_checkpoint).require(from_checkpoint, [*model_directory.MODEL_FILES, checkpoint.STATE])
    teacher = ranks.raise_together(lambda: read_teacher(run))
    require_memory(run.model)
    run, numerics = resolve_auto(run, host)
    fit = ranks.raise_together(lambda: way_that_fits(run, room))
    # Data and tokenizers
    task = trainable_task(run)
    run_data = task.open(run)
    is_auto = run.train.early_stopping is not None and run.train.early_stopping.metric == AUTO
    labels = run_data.labels
    if from_checkpoint is None:
        tokenizers = init_from.learned_tokenizers(run, start, run_data, host)
        run = init_from.completed(run, tokenizers, run_data, ranks)
        if start is not None and task.facts.keeps_start:
            run = replace(run, init=replace(run.init, digest=start.digest))
        fit = ranks.raise_together(lambda: way_that_fits(run, room))  # again, with the known vocabulary size
    else:
        tokenizers = init_from.stored_tokenizers(from_checkpoint, run_data, host)
    with ranks.first_alone(), UnknownText(joins=False):
        prepared = run_data.prepare(run, tokenizers, host.reporter, checks_hashes=ranks.is_first)
    # Network. If the weights are sharded, only rank 0 has all weights at the start.
    starts = from_checkpoint is None or task.facts.keeps_start
    with ranks.first_alone() if ranks.holds_parts else nullcontext():
        if not starts or (ranks.holds_parts and not ranks.is_first):
            network = undrawn_model(run.model)
        elif from_checkpoint is None:
            network = init_from.new_network(run, start, labels, log)
        else:
            network = init_from.new_network(run, model_directory.read_start(run.init), labels, Silent().log)
    init_from.prepare_parameters(run, network, log)
    n_parameters = network.n_parameters()
    if ranks.holds_parts:
        weights = model_directory.weights_of(network) if ranks.is_first else {}
        ranks.distribute(network, run.train)
        if starts:
            ranks.send_weights(weights, network)
        del weights
    else:
        network = network.to(host.device)
    # Trainer
    data = prepared.training_data(network, host.device, ranks)
    if teacher is not None:
        teacher.network.to(host.device)
        data = replace(data, step_objective=taught(data.objective, run, teacher, tokenizers, labels))
    optimizer = build_optimizer(network, run.train.optimizer)
    in_background = run.train.background_saving

    def write_model(into: Path, weights: Tensors) -> None:
        model_directory.write_model_files(into, weights, tokenizers, run, labels)

    checkpointer = Checkpointer(folder, write_model, in_background=in_background, log=log, ranks=ranks, writes=writes)
    trainer = Trainer(run.train, network, optimizer, data, checkpointer, host)
    trainer.progress.data_digest = run_data.corpus.digest
    n_parts, recomputes = ranks.largest(fit.n_parts, fit.recomputes)
    trainer.step.fit = Fit(n_parts, bool(recomputes))
    trainer.seconds_at_peak = seconds_at_peak(run, host)
    # Messages
    if from_checkpoint is None:
        facts = {
            "model": announce.model(run, n_parameters, tokenizers),
            "teacher": "" if teacher is None else announce.teacher(run, teacher.network),
            "data": prepared.summary,
            "device": announce.device(host, numerics),
            "memory": announce.memory(run, network, trainer.step.fit, room, ranks),
            "steps": announce.steps(run, data),
            "select": announce.selection(run.train, run_data.metric()[1] if is_auto else ""),
        }
        announce.new_run(run, facts, data, trainer.step.fit, host)
    return run, trainer


def resolve_auto(run: Run, host: Host) -> tuple[Run, str]:
    """Replace precision and compilation `auto` by the choices of rank 0; return the run, and a text with the reasons.

    If the data decides the vocabulary size, it is still unknown here, but it hardly changes the choices.
    """
    train, device, ranks = run.train, host.device, host.ranks
    # Precision
    choice, why_precision = "", ""
    if ranks.is_first:
        choice, why_precision = earned_precision(train.precision, run.model, device, is_long(run))
    [is_half] = ranks.of_first(choice == "bf16")
    if train.precision == "auto":
        train = replace(train, precision="bf16" if is_half else "fp32")
    run = replace(run, train=train)
    messages = [_with_reason(train.precision, why_precision)]
    # Compilation
    has_one_shape, seconds = micro_batch(run).is_full, least_seconds(run, ranks.n)
    own_choice, why_compile = choose_compile(train.compile, run.model, device, has_one_shape, seconds)
    compiles = bool(ranks.of_first(own_choice)[0])
    if compiles or why_compile:
        messages.append(_with_reason("compiled" if compiles else "not compiled", why_compile))
    return replace(run, train=replace(train, compile=compiles)), ", ".join(messages)


def _with_reason(choice: str, reason: str) -> str:
    return f"{choice} ({reason})" if reason else choice


def _require_same(newest: Path, ranks: Ranks) -> None:
    """Raise `UserError` if the newest checkpoint that this process finds is not the one that rank 0 finds."""
    [step] = ranks.of_first(Manifest.read(newest).step)
    if step != Manifest.read(newest).step:
        raise UserError(
            f"process {ranks.rank} finds {newest}, but process 0 finds step {step:.0f}: the processes see different "
            "files; wait and try again, or check the shared file system"
        )
