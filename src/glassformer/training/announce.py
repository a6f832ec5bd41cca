"""The messages at the start of a run: model, data, device, memory and steps, or the step at which the run continues."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from glassformer.common.errors import warn
from glassformer.common.formatting import size
from glassformer.config.run import Run
from glassformer.config.train import EarlyStopping, TrainConfig
from glassformer.cost.plan import full_shape
from glassformer.cost.room import Room, smallest_part, step_memory
from glassformer.evaluation.compare import describe_model
from glassformer.models.build import Network
from glassformer.models.devices import WHOLE, Fit, repeats_bits
from glassformer.store import checkpoint
from glassformer.tasks.batches import TrainingData, few_targets
from glassformer.tasks.preparation import micro_batch
from glassformer.tasks.task import unknown_loss
from glassformer.tokenization.tokenizer import Tokenizers
from glassformer.training.distributed.ranks import Ranks
from glassformer.training.host import Host
from glassformer.training.trainer_state import TrainerState


def new_run(run: Run, facts: Mapping[str, str], data: TrainingData, fit: Fit, host: Host) -> None:
    """Report the facts about a new run, too few validation targets, and a step that does not fit in memory."""
    host.reporter.facts({"run": run.name, **facts})
    for sentence in few_targets(data):
        warn(sentence)
    if fit != WHOLE:
        what = smallest_part(run) if fit.recomputes else "a step"
        host.reporter.log(f"{what} does not fit in memory, by estimate: {fit}")


def model(run: Run, n_parameters: int, tokenizers: Tokenizers) -> str:
    """Describe the architecture, the number of parameters and the vocabulary."""
    target, source = tokenizers.target, tokenizers.separate_source
    vocabulary = f"vocabulary {target.vocab_size:,}"
    is_learned = run.init.path is None and run.tokenizer.path is None
    if is_learned and target.vocab_size < run.tokenizer.vocab_size:
        vocabulary += f" (the text gives no {run.tokenizer.vocab_size:,})"
    if source is not None:
        vocabulary += f", of the source {source.vocab_size:,}"
    return f"{describe_model(run.model)}, {n_parameters:,} parameters, {vocabulary}"


def teacher(run: Run, network: Network) -> str:
    """Describe the teacher, and the weight and temperature of its loss."""
    assert run.teacher is not None
    described, n = describe_model(network.config), network.n_parameters()
    part = f"weight {run.teacher.weight:g}, temperature {run.teacher.temperature:g}"
    return f"{run.teacher.path}, {described}, {n:,} parameters; {part}"


def device(host: Host, numerics: str) -> str:
    """Describe the device or the processes, with precision and compilation."""
    n = torch.get_num_threads()
    threads = f", {n} thread{'s' * (n > 1)}" * (host.device.type == "cpu")
    return f"{host}, {numerics}{threads}"


def memory(run: Run, network: nn.Module, fit: Fit, room: Room | None, ranks: Ranks) -> str:
    """Describe the memory that a step will take, and the memory of the device; an empty text if `room` is None."""
    if room is None:
        return ""
    sizes = [(p.numel(), p.requires_grad) for p in network.parameters()]
    trained_share = sum(n for n, is_trained in sizes if is_trained) / sum(n for n, _ in sizes)
    total = step_memory(run, room.is_cpu, fit, trained_share, ranks.n_shards).total
    available = size(room.total) if room.free is None else f"{size(room.free)} of {size(room.total)} free"
    what = "a step of each process" if ranks.n > 1 else "a step"
    if reason := unknown_loss(run):
        return f"at least {size(total)} for {what}, {available}; {reason}"
    return f"about {size(total)} for {what}, {available}"


def steps(run: Run, data: TrainingData) -> str:
    """Describe the number of steps, the tokens in a step and the number of epochs."""
    batch, n = micro_batch(run), run.train.grad_accumulation
    shape = full_shape(batch, run.model)
    n_tokens = n * (batch.budget or shape.n_rows * shape.n_tokens)
    n_epochs = run.train.max_steps * n / data.sampler.n_batches_per_epoch
    return f"{run.train.max_steps:,} of at most {n_tokens:,} tokens, {n_epochs:,.1f} epochs"


def selection(train: TrainConfig, reason: str) -> str:
    """Describe the metric that selects the weights in the run folder; an empty text unless `select` is "best"."""
    metric = (train.early_stopping or EarlyStopping()).metric
    why = f": {reason}" if reason else ""
    return f"best validation {metric}{why}" if train.select == "best" else ""


def resumed_run(run: Run, stored: Path, progress: TrainerState, host: Host) -> None:
    """Report the step at which a run continues, and whether the result will be equal bit for bit."""
    log = host.reporter.log
    if changes := changed_machine(stored, progress):
        log(f"the run was made with {'; '.join(changes)}: the result is equal up to rounding, not bit for bit")
    if not repeats_bits(run.train, host.device):
        log(f"on {host.device.type} without train.deterministic the result is equal up to rounding")
    message = f"resumed at step {progress.step} of {run.train.max_steps}"
    if progress.finished or progress.step >= run.train.max_steps:
        message += ": the run is complete"
    log(message)


def changed_machine(stored: Path, progress: TrainerState) -> list[str]:
    """Return the differences from the machine and versions of a checkpoint; older checkpoints record fewer of them."""
    before, now = checkpoint.load_numbers(stored).get("made_with", {}), progress.made_with
    return [f"{name} {before[name]}, now {now[name]}" for name in now if before.get(name, now[name]) != now[name]]
