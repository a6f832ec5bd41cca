"""A run from start to end: `train_run`, `resume_run` and `replay_run`, built on `assemble`.

`assemble` returns the trainer; its loop is in `loop.py`, and each of its steps in `step.py`.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from glassformer import files
from glassformer.config.recurrent import RecurrentConfig
from glassformer.config.run import Run
from glassformer.config.schema import apply_flags
from glassformer.cost.memory import require_memory
from glassformer.cost.plan import full_shape, least_seconds
from glassformer.cost.room import Room, smallest_part, step_memory, way_that_fits
from glassformer.devices import choose_compile, choose_precision, repeats_bits
from glassformer.distributed.environment import is_first, is_several
from glassformer.distributed.ranks import Ranks
from glassformer.errors import UserError
from glassformer.evaluation.compare import describe_model
from glassformer.fitting import WHOLE, Fit
from glassformer.formatting import size
from glassformer.models.build import build_model
from glassformer.reporting import LaunchReporter, Outcome, Silent
from glassformer.store import checkpoint
from glassformer.store.checkpoint import Tensors
from glassformer.store.lock import locked
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import MODEL_FILES, WEIGHTS, StoredModel, read_model, read_run, write_model_files
from glassformer.store.tensors import read_tensors
from glassformer.tasks.batches import TrainingData, few_targets
from glassformer.tasks.preparation import micro_batch
from glassformer.tasks.registry import trainable_task
from glassformer.tokenization.tokenizer import Tokenizers
from glassformer.training import init_from
from glassformer.training.checkpointer import Checkpointer, Snapshot, put_right
from glassformer.training.host import Host, host_of, room_of
from glassformer.training.longer import checkpoint_for, delete_later
from glassformer.training.loop import Trainer
from glassformer.training.optimizers import build_optimizer
from glassformer.training.run_folder import holding, is_restarted
from glassformer.training.trainer_state import TrainerState, read_progress

NOT_COMPILED = "torch.compile does not support PyTorch's recurrent modules"


@dataclass(frozen=True)
class Replay:
    """The result of a replay: the repeated steps of a run, and the values that differ."""

    begin: int
    end: int
    differing: list[str]
    """Names of tensors and numbers that are not bit for bit equal."""
    is_same_machine: bool
    """True if machine, versions and number of threads match, as far as the checkpoint records them."""
    repeats_bits: bool
    """True if the device always gives the same bits: the CPU does, and CUDA with `train.deterministic`. Equal bits are
    guaranteed only on the same machine and if this is True."""


def train_run(run: Run, folder: Path, reporter: LaunchReporter) -> Outcome:
    """Train a run that `checks.check_new_run` has accepted, from its first step in a new folder.

    If `torchrun` restarts it after a process was lost, it continues from the newest checkpoint.
    """
    began = time.monotonic()
    if is_restarted(folder):
        return resume_run(folder, reporter)
    start = None if run.init.path is None else read_model(files.as_path(run.init.path, "init.path"))
    run = init_from.as_new(run, start)
    if _cannot_compile(run):
        raise UserError(f"train.compile is not available: {NOT_COMPILED}; leave it out")
    trainable_task(run).check(run)
    with host_of(run, folder, reporter, began) as host:
        run, trainer = assemble(run, folder, host, start=start)
        with holding(folder, host.ranks.is_first, is_new=True, max_steps=run.train.max_steps):
            return Outcome(folder, trainer.train(), run)


def resume_run(folder: Path, reporter: LaunchReporter, flags: Mapping[str, str] | None = None) -> Outcome:
    """Resume from the newest intact checkpoint of a run, exactly as if the run had never stopped.

    `flags` replace settings of the device and of the length of the run (`config.train.CHANGEABLE`).
    """
    began = time.monotonic()
    log = reporter.log if is_first() else Silent().log
    with holding(folder, is_first()):
        newest = checkpoint.newest(folder, log)
        stored = read_run(newest)
        run = apply_flags(stored, flags or {})
        begin = checkpoint_for(folder, newest, stored.train, run.train, log)
        with host_of(run, folder, reporter, began) as host:
            host.ranks.raise_together(lambda: _require_same(begin, host.ranks))
            run, trainer = assemble(run, folder, host, stored=begin)
            trainer.restore(begin)
            if trainer.step.fit != trainer.progress.fit:
                log(f"a step does not fit in memory here, by estimate: {trainer.step.fit}, not bit for bit")
            put_right(folder, run.train, trainer.progress, host)
            if host.ranks.is_first and begin != newest:
                delete_later(folder, trainer.progress.step)
            tell_of_resumed_run(run, begin, trainer.progress, host)
            return Outcome(folder, trainer.train(), run)


def replay_run(folder: Path, reporter: LaunchReporter) -> Replay:
    """Repeat the steps between the two newest checkpoints and compare the results; nothing is written."""
    began = time.monotonic()
    if is_several():
        raise UserError("resume --verify runs in one process: start it without torchrun")
    with locked(folder):
        steps = [step for step in checkpoint.steps(folder) if checkpoint.is_intact(folder, step, reporter.log)]
        steps = [step for step in steps if not read_progress(checkpoint.path_of(folder, step)).is_pending]
        if len(steps) < 2:
            raise UserError(f"a replay needs 2 intact checkpoints, and {folder} has {len(steps)}: train for more steps")
        begin, end = steps[-2:]
        newest = checkpoint.path_of(folder, end)
        run = read_run(newest)
        with host_of(run, folder, reporter, began) as host:
            run, trainer = assemble(run, folder, host, stored=newest, writes=False)
            trainer.restore(checkpoint.path_of(folder, begin))
            reporter.log(f"repeating steps {begin + 1} to {end}")
            return Replay(
                begin,
                end,
                differing(trainer.replay(end), newest),
                is_same_machine=not changed_machine(newest, trainer.progress),
                repeats_bits=repeats_bits(run.train, host.device),
            )


def assemble(
    run: Run,
    folder: Path,
    host: Host,
    *,
    start: StoredModel | None = None,
    stored: Path | None = None,
    writes: bool = True,
) -> tuple[Run, Trainer]:
    """Return the run with the values that its data decides, and its trainer before the first step.

    A new run starts from random weights or from the model `start`; otherwise the checkpoint `stored` describes the run.
    The order is: memory check, data, tokenizers, tokens, network, training data, trainer.
    """
    if stored is not None:
        Manifest.read(stored).require(stored, [*MODEL_FILES, checkpoint.STATE])
    run, arithmetic = settled(run, host)
    room, ranks = room_of(host.device), host.ranks
    require_memory(run.model)
    fit = ranks.raise_together(lambda: way_that_fits(run, room))
    run_data = trainable_task(run).open(run)
    if stored is None:
        tokenizers = init_from.learned_tokenizers(run, start, run_data, host)
        run = init_from.completed(run, tokenizers, run_data, ranks)
        fit = ranks.raise_together(lambda: way_that_fits(run, room))  # again, with the known vocabulary size
    else:
        tokenizers = init_from.stored_tokenizers(stored, run_data, host)
    with ranks.first_alone():
        prepared = run_data.prepare(run, tokenizers, host.reporter, checks_hashes=ranks.is_first)

    is_new, log = stored is None, host.reporter.log
    network = init_from.new_network(run, start, run_data.labels, log) if is_new else build_model(run.model)
    init_from.prepare_parameters(run, network, log)
    network = network.to(host.device)
    n_parameters = network.n_parameters()
    ranks.distribute(network, run.train)
    data = prepared.training_data(network, host.device)
    n_parts, recomputes = ranks.largest(fit.n_parts, fit.recomputes)
    fit = Fit(n_parts, bool(recomputes))
    if is_new:
        memory = "" if room is None else memory_of_step(run, network, fit, room, ranks)
        tell_of_new_run(run, n_parameters, prepared.summary, tokenizers, data, memory, host, arithmetic)
        if fit != WHOLE:
            log(f"{smallest_part(run) if fit.recomputes else 'a step'} does not fit in memory, by estimate: {fit}")

    def write_model(into: Path, weights: Tensors) -> None:
        write_model_files(into, weights, tokenizers, run, run_data.labels)

    scales = init_from.layer_scales(network, run.init.layer_decay) if run.init.layer_decay < 1 else None
    optimizer = build_optimizer(network, run.train.optimizer, scales)
    in_background = run.train.background_saving
    checkpointer = Checkpointer(folder, write_model, in_background=in_background, log=log, ranks=ranks, writes=writes)
    trainer = Trainer(run.train, network, optimizer, data, checkpointer, host, run_data.corpus.digest)
    trainer.step.fit = fit
    return run, trainer


def settled(run: Run, host: Host) -> tuple[Run, str]:
    """Replace the precision and the compilation `auto` by those of rank 0; return the run, and both with the reasons.

    A vocabulary that the data decides is not known here; it does not change the choices by much.
    """
    train, device, ranks = run.train, host.device, host.ranks
    precision, of_precision = choose_precision(train.precision, run.model, device)
    [is_half] = ranks.of_first(precision == "bf16")
    if train.precision == "auto":
        train = replace(train, precision="bf16" if is_half else "fp32")
    run = replace(run, train=train)
    has_one_shape, seconds = micro_batch(run).is_full, least_seconds(run, ranks.n)
    compiles, of_compile = choose_compile(train.compile, run.model, device, has_one_shape, seconds)
    [compiles] = map(bool, ranks.of_first(compiles))
    said = [_with_reason(train.precision, of_precision)]
    said += [_with_reason("compiled" if compiles else "not compiled", of_compile)] if compiles or of_compile else []
    return replace(run, train=replace(train, compile=compiles)), ", ".join(said)


def _with_reason(choice: str, reason: str) -> str:
    return f"{choice} ({reason})" if reason else choice


# Checks


def _cannot_compile(run: Run) -> bool:
    return run.train.compile is True and isinstance(run.model, RecurrentConfig)


def _require_same(newest: Path, ranks: Ranks) -> None:
    """Raise `UserError` if this process finds another newest checkpoint than rank 0."""
    [step] = ranks.of_first(Manifest.read(newest).step)
    if step != Manifest.read(newest).step:
        raise UserError(
            f"process {ranks.rank} finds {newest}, but process 0 finds step {step:.0f}: the processes see different "
            "files; wait and try again, or check the shared file system"
        )


# Messages


def tell_of_new_run(
    run: Run,
    n_parameters: int,
    summary: str,
    tokenizers: Tokenizers,
    data: TrainingData,
    memory: str,
    host: Host,
    arithmetic: str,
) -> None:
    """Report the model, its data (`summary`), the device, its `arithmetic` (see `settled`), memory and steps."""
    asked = 0 if run.init.path is not None or run.tokenizer.path is not None else run.tokenizer.vocab_size
    target, source = tokenizers.target, tokenizers.separate_source
    fewer = f" (the text gives no {asked:,})" if target.vocab_size < asked else ""
    of_source = "" if source is None else f", of the source {source.vocab_size:,}"
    vocabulary = f"vocabulary {target.vocab_size:,}{fewer}{of_source}"
    n = torch.get_num_threads()
    threads = f", {n} thread{'s' * (n > 1)}" if host.device.type == "cpu" else ""
    facts = {
        "model": f"{describe_model(run.model)}, {n_parameters:,} parameters, {vocabulary}",
        "data": summary,
        "device": f"{host}, {arithmetic}{threads}",
        "memory": memory,
        "steps": _length(run, data),
    }
    host.reporter.facts({"run": run.name} | facts)
    for sentence in few_targets(data):
        host.reporter.log(sentence)


def _length(run: Run, data: TrainingData) -> str:
    """Describe the number of steps, their size and the epochs."""
    batch, n = micro_batch(run), run.train.grad_accumulation
    shape = full_shape(batch, run.model)
    n_tokens = n * (batch.budget or shape.n_rows * shape.n_tokens)
    n_epochs = run.train.max_steps * n / data.sampler.n_steps_per_epoch
    return f"{run.train.max_steps:,} of at most {n_tokens:,} tokens, {n_epochs:,.1f} epochs"


def memory_of_step(run: Run, network: nn.Module, fit: Fit, room: Room, ranks: Ranks) -> str:
    """Describe the memory that a step will take, and that of the device before the run."""
    sizes = [(p.numel(), p.requires_grad) for p in network.parameters()]
    trained_share = sum(n for n, is_trained in sizes if is_trained) / sum(n for n, _ in sizes)
    memory = step_memory(run, room.is_cpu, fit, trained_share, ranks.n_shards)
    of = "a step" if ranks.n == 1 else "a step of each process"
    there = size(room.total) if room.free is None else f"{size(room.free)} of {size(room.total)} free"
    return f"about {size(memory.total)} for {of}, {there}"


def tell_of_resumed_run(run: Run, stored: Path, progress: TrainerState, host: Host) -> None:
    """Report the step at which a run continues, and whether the result will be equal bit for bit."""
    if other := changed_machine(stored, progress):
        host.reporter.log(
            f"the run was made with {'; '.join(other)}: the result is equal up to rounding, not bit for bit"
        )
    if not repeats_bits(run.train, host.device):
        host.reporter.log(f"on {host.device.type} without train.deterministic the result is equal up to rounding")
    done = progress.finished or (progress.step >= run.train.max_steps and not progress.is_pending)
    rest = ": the run is complete" if done else ""
    host.reporter.log(f"resumed at step {progress.step} of {run.train.max_steps}{rest}")


# Replay


def changed_machine(stored: Path, progress: TrainerState) -> list[str]:
    """Return what differs from the machine and versions of a checkpoint; older checkpoints record less."""
    before, now = checkpoint.load_numbers(stored).get("made_with", {}), progress.made_with
    return [f"{name} {before[name]}, now {now[name]}" for name in now if before.get(name, now[name]) != now[name]]


def differing(found: Snapshot, folder: Path) -> list[str]:
    """Return the names of numbers (except times) and tensors that differ between a snapshot and a checkpoint."""
    stored = checkpoint.load_state(folder)
    now, before = json.loads(json.dumps(found.state.numbers)), stored.numbers
    names = [name for name in now if name not in ("seconds", "made_with") and now[name] != before.get(name, now[name])]
    for tensors, on_disk in (
        (found.weights, read_tensors(folder / WEIGHTS)),
        (found.state.weights or found.weights, read_tensors(checkpoint.weights_path(folder))),
        (found.state.optimizer, stored.optimizer),
        (found.state.average or {}, stored.average or {}),
    ):
        assert isinstance(tensors, dict) and isinstance(on_disk, dict)
        both = tensors.keys() & on_disk.keys()
        names += sorted(tensors.keys() ^ on_disk.keys())
        names += sorted(name for name in both if not _same_bits(tensors[name], on_disk[name]))
    return list(dict.fromkeys(names))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    bits = [x.detach().cpu().contiguous().view(-1).view(torch.uint8) for x in (a, b)]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*bits)
