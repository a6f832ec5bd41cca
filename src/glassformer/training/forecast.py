"""Time of a run on this machine, from steps of its own network on random data."""

import time
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from glassformer.common.errors import warn
from glassformer.common.formatting import duration, size
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.run import Run
from glassformer.cost.activations import Kernels, activations_of
from glassformer.cost.flops import Shape, training_flops
from glassformer.cost.hardware import find_gpu
from glassformer.cost.memory import training_memory
from glassformer.cost.parameters import parameter_counts
from glassformer.cost.plan import is_long, plan_run
from glassformer.cost.room import require_memory, way_that_fits
from glassformer.data.batching import Batch
from glassformer.evaluation.compare import describe_model
from glassformer.models.devices import WHOLE
from glassformer.objectives.loss import TokenObjective
from glassformer.tasks.preparation import micro_batch
from glassformer.training.host import Host, room_of
from glassformer.training.optimizers.build import build_optimizer
from glassformer.training.step import TrainStep
from glassformer.trial.choice import earned_device, earned_precision
from glassformer.trial.step import example_of

SECONDS, N_TIMES = 1.0, 4
"""`SECONDS`: longest time of a measured step, unless a single row takes longer. `N_TIMES`: number of measurements; the
first one does not count."""

MOST_ROWS = 1 << 16
"""Largest number of rows in an answer."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of a training step."""

    gradients: float
    """Time of the gradients of a micro-batch."""
    update: float
    """Time of the optimizer."""
    n_micro_batches: int = 1

    @property
    def total(self) -> float:
        """Seconds of the whole step.

        >>> StepTime(gradients=0.5, update=0.25, n_micro_batches=3).total
        1.75
        """
        return self.n_micro_batches * self.gradients + self.update


@dataclass(frozen=True)
class Forecast:
    """Answers about a run on this machine: does it fit, how long does it take, and which batch would fit."""

    name: str
    device: str
    precision: str
    reason: str
    memory_bytes: int
    """Estimated bytes of a step, in the parts in which it fits."""
    room: str
    """The memory of the machine, in words."""
    way: str
    """The parts in which a micro-batch fits, in words; empty if it is computed as a whole."""
    step_seconds: float
    n_steps: int
    tokens_per_step: int
    largest_batch: int
    """Largest power of two of rows that fits without parts, by the estimate."""
    row_length: int
    is_full: bool
    """False if the data may have shorter rows, so that the times are bounds."""

    @property
    def seconds(self) -> float:
        """Time of all steps, without evaluations."""
        return self.n_steps * self.step_seconds

    def __str__(self) -> str:
        rate = self.tokens_per_step / self.step_seconds
        reason = f" ({self.reason})" if self.reason else ""
        most = "" if self.is_full else "at most "
        lines = {
            "device": f"{self.device}, {self.precision}{reason}",
            "fits": f"about {size(self.memory_bytes)} for a step; {self.room}{self.way}",
            "step": f"{most}{1e3 * self.step_seconds:,.4g} ms measured, {rate:,.0f} tokens per second",
            "time": f"{most}{duration(self.seconds)} for {self.n_steps:,} steps, without evaluations",
            "batch": f"up to {self.largest_batch:,} rows of {self.row_length:,} tokens fit at once",
        }
        return "\n".join([self.name, *(f"{name:<8}{text}" for name, text in lines.items())])


def forecast(run: Run, context: int | None = None) -> Forecast:
    """Measure steps of a run on the device that `auto` means, and return its time and memory on this machine.

    `context` is the length of a row (`plan_run`). Raises `UserError` as `plan_run` does, and for a step that cannot
    fit in the memory.
    """
    require_memory(run.model)
    device = earned_device(run.train.device, run.model, warn)
    precision, reason = earned_precision(run.train.precision, run.model, device, is_long(run))
    run = replace(run, train=replace(run.train, precision=cast(Any, precision)))
    plan = plan_run(run, find_gpu("h200"), context=context)
    run = replace(run, model=plan.config)
    room = room_of(device)
    on_cpu, limit = device.type == "cpu", None if room is None else room.total
    fit = way_that_fits(run, room)
    part = replace(plan.shape, n_rows=-(-plan.shape.n_rows // fit.n_parts))
    measured = step_time(run, plan.config, part, device)

    def bytes_of(shape: Shape) -> int:
        every = 1 if fit.recomputes else plan.recompute_every
        stored = activations_of(run, plan.config, shape, Kernels(precision == "bf16", on_cpu), every)
        return training_memory(plan.config, run.train, stored).total

    n_rows = 1
    while limit is not None and n_rows < MOST_ROWS and bytes_of(replace(plan.shape, n_rows=2 * n_rows)) <= limit:
        n_rows *= 2
    return Forecast(
        name=f"{run.name}: {describe_model(plan.config)}, {plan.n_parameters:,} parameters",
        device=str(device),
        precision=precision,
        reason=reason,
        memory_bytes=bytes_of(part),
        room=str(room) if room is not None else "its memory is not known",
        way=f"; {fit}" if fit != WHOLE else "",
        step_seconds=measured.gradients * fit.n_parts * run.train.grad_accumulation + measured.update,
        n_steps=run.train.max_steps,
        tokens_per_step=run.train.grad_accumulation * plan.shape.n_rows * plan.shape.n_tokens,
        largest_batch=n_rows,
        row_length=plan.shape.n_tokens,
        is_full=micro_batch(run).is_full,
    )


def step_time(run: Run, config: ModelConfig, shape: Shape, device: torch.device) -> StepTime:
    """Measure a step of a run whose micro-batches have this shape.

    A step that takes long is measured with fewer layers and fewer rows. The time of the gradients is then computed for
    all layers by their FLOPs, and for all rows by a line through two numbers of rows. The time of the optimizer is
    computed by the number of parameters.
    """
    # 1. As few layers as a row needs to be short
    small, of_row = config, _measured(run, config, replace(shape, n_rows=1), device, n_times=2)
    while of_row.gradients > SECONDS and (fewer := _fewer_layers(small)) != small:
        small, of_row = fewer, _measured(run, fewer, replace(shape, n_rows=1), device, n_times=2)
    # 2. As many rows as are short together
    n_rows = max(1, min(shape.n_rows, int(SECONDS / of_row.gradients)))
    found = _measured(run, small, replace(shape, n_rows=n_rows), device)
    gradients = found.gradients
    if n_rows < shape.n_rows:
        n_few = max(1, n_rows // 2)
        of_few = _measured(run, small, replace(shape, n_rows=n_few), device).gradients if n_few < n_rows else 0.0
        gradients += (gradients - of_few) / (n_rows - (n_few if of_few else 0)) * (shape.n_rows - n_rows)
    # 3. All layers and parameters
    gradients *= training_flops(config, shape) / training_flops(small, shape)
    update = found.update * parameter_counts(config).total / parameter_counts(small).total
    return StepTime(gradients, update, run.train.grad_accumulation)


def _fewer_layers(config: ModelConfig) -> ModelConfig:
    """Return the configuration with half of the layers of each stack, at least one."""
    if isinstance(config, RecurrentConfig):
        return replace(config, n_layers=max(1, config.n_layers // 2))
    stacks: dict[str, Any] = {
        name: replace(stack, n_layers=max(1, stack.n_layers // 2)) for name, stack in config.stacks.items()
    }
    return replace(config, **stacks)


def _measured(run: Run, config: ModelConfig, shape: Shape, device: torch.device, n_times: int = N_TIMES) -> StepTime:
    """Return the shortest times of a step with a micro-batch of this shape, without its first run."""
    example = example_of(config, shape.n_rows, shape.n_tokens, is_padded=not micro_batch(run).is_full)
    network, inputs, labels = example.network.to(device), dict[str, Any](example.inputs), example.labels
    if shape.n_scored:  # masks of a text: only some positions have logits
        chosen = torch.arange(shape.n_rows * shape.n_scored)
        labels = labels.flatten().index_fill(0, chosen, 0).view_as(labels)
        inputs["loss_positions"] = chosen
    batch, train = Batch(labels=labels, n_targets=labels.numel(), **inputs), replace(run.train, compile=False)
    step = TrainStep(network, _Tokens(), build_optimizer(network, train.optimizer), train, Host(device))
    times = []
    for _ in range(n_times):
        began = time.perf_counter()
        step.backward([batch])
        float(step.nats.sum())  # wait for the device
        middle = time.perf_counter()
        step.update()
        step.flush()
        times.append((middle - began, time.perf_counter() - middle))
    gradients, update = (min(column) for column in zip(*times[1:], strict=True))
    return StepTime(gradients, update)


class _Tokens(TokenObjective):
    """The loss of a run without its data."""

    def collate(self, *_: Any) -> Batch:
        raise NotImplementedError("the batches are random")
