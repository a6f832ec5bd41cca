"""One optimizer step: only the code that is compiled and wrapped for several processes."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.data.batching import Batch
from glassformer.distributed.parts import whole
from glassformer.distributed.ranks import Ranks
from glassformer.errors import UserError
from glassformer.fitting import Fit, doubled, fitted, split
from glassformer.objectives.loss import LossSums, Objective
from glassformer.training.non_finite import SMALLEST_SCALE, LossScale, NonFinite


@dataclass(frozen=True)
class StepResult:
    """The result of a step over all processes."""

    nats: float
    """Cross-entropy without label smoothing, summed over the step's targets."""
    n_targets: int
    gradient_norm: float
    """2-norm over all parameters, before clipping; 0 if a scaled fp16 gradient overflowed."""
    is_taken: bool = True
    """False if a scaled fp16 gradient overflowed: the scale is halved, the weights are unchanged."""


class Pending:
    """The result of a step, whose numbers the device may still be computing.

    `numbers` are the nats of each micro-batch of this process, the nats of all processes, and the gradient norm.
    """

    def __init__(self, numbers: Tensor, n_targets: int, is_taken: bool = True) -> None:
        self.numbers, self.n_targets, self.is_taken = numbers, n_targets, is_taken
        self.copied: torch.cuda.Event | None = None
        if numbers.device.type == "cuda":
            self.numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self.numbers.copy_(numbers, non_blocking=True)
            self.copied = torch.cuda.Event()
            self.copied.record(torch.cuda.current_stream(numbers.device))

    def read(self) -> StepResult:
        """Wait for the numbers; raise `NonFinite` if the loss or the gradient is NaN or Inf."""
        if self.copied is not None:
            self.copied.synchronize()
        *own, nats, norm = self.numbers.tolist()
        if not math.isfinite(nats):
            bad = [number for number, value in enumerate(own) if not math.isfinite(value)]
            raise NonFinite(f"the loss is {nats}", bad[0] if bad else None)
        if not self.is_taken:
            return StepResult(nats, self.n_targets, 0.0, is_taken=False)
        if not math.isfinite(norm):
            raise NonFinite(f"the gradient is {norm}")
        return StepResult(nats, self.n_targets, norm)


class TrainStep:
    """Forward and backward pass over the micro-batches, clipping, update.

    The loss sums of all micro-batches of all processes are divided once by the number of all their targets. So neither
    accumulation nor the number of processes changes the result of one large batch, for any distribution of the targets.
    If the batches do not count their targets (`n_targets` 0), the losses count them, and the gradients are divided at
    the end. After a loss or gradient of NaN or Inf, the weights do not change, in all processes alike.

    `defers`: the optimizer reads on the device whether the numbers are finite, so `update` does not wait for them. The
    other optimizers and a scaled fp16 loss need the numbers on the CPU before the update.

    If memory is not sufficient for forward and backward, the gradients are computed again with twice as many parts per
    micro-batch. Sums are divided once, so the gradient is the same up to rounding and the masks of dropout. If single
    rows do not fit either and `activation_checkpointing` is "auto", it is switched on. This needs a single process:
    with several, other processes would wait for the one that failed.

    `compiled`: the loss of a batch is one graph. If batches differ in shape, the sizes are symbolic from the first
    step, and every batch has masks, so later batches need no other graph. With `has_one_shape`, sizes are constants.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float,
        autocast: torch.dtype | None,
        device: torch.device,
        compiled: bool,
        has_one_shape: bool = False,
        activation_checkpointing: Literal["auto"] | bool = False,
        defers: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        self.network, self.optimizer = network, optimizer
        self.clip_norm, self.autocast, self.device = clip_norm, autocast, device
        self.ranks = ranks or Ranks()
        self.scale = LossScale() if autocast is torch.float16 else None
        self.may_split = not getattr(objective, "couples_rows", False)
        self.fit = Fit()
        """The way to compute micro-batches; an out-of-memory error changes it to one that takes less memory."""
        self.stacks = [module for module in network.modules() if hasattr(module, "activation_checkpointing")]
        self.always_recomputes = activation_checkpointing is True
        self.may_recompute = activation_checkpointing == "auto" and bool(self.stacks)
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        is_on_device = all(p.device.type == device.type for p in self.parameters)  # not offloaded to the CPU
        reads_found_inf = getattr(optimizer, "_step_supports_amp_scaling", False)
        self.defers = defers and self.scale is None and is_on_device and reads_found_inf
        wrapped = self.ranks.wrapped(network)

        def loss(batch: Batch) -> LossSums:
            return objective.loss(wrapped, batch)

        self.loss: Callable[[Batch], LossSums] = loss
        self.compiled, self.gives_masks = compiled, compiled and not has_one_shape
        if compiled:
            self.loss = torch.compile(loss, dynamic=None if has_one_shape else True)
        self.synchronised = lambda is_last: self.ranks.synchronised(wrapped, is_last)

    def __call__(self, micro_batches: Sequence[Batch], seeds: Sequence[int] | None = None) -> StepResult:
        """Take a step and wait for its result."""
        self.backward(micro_batches, seeds)
        return self.update().read()

    def backward(self, micro_batches: Sequence[Batch], seeds: Sequence[int] | None = None) -> None:
        """Compute the gradients; `seeds` set the dropout generator for each micro-batch; None keeps its state."""
        n_targets = int(self.ranks.sum(sum(batch.n_targets for batch in micro_batches))[0])
        # Wrappers for data parallelism average over processes; this factor makes it a sum.
        factor = self.ranks.n * (self.scale.factor if self.scale else 1.0) / max(1, n_targets)
        ways = self._ways(self._most_parts(micro_batches))
        (nats, counted), fit = fitted(lambda fit: self._accumulate(micro_batches, seeds, factor, fit), ways)
        self.fit = self.fit.joined(fit)
        divisor = self.scale.factor if self.scale else 1.0
        if not n_targets:
            n_targets = int(self.ranks.sum(counted)[0])
            divisor *= max(1, n_targets)
        if divisor != 1:
            torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], divisor)
        self.nats, self.n_targets = nats, n_targets

    def _most_parts(self, micro_batches: Sequence[Batch]) -> int:
        """Return the number of parts up to which more parts make each forward smaller."""
        n_rows = [batch.n_rows for batch in micro_batches] if self.may_split else [1]
        if self.ranks.holds_parts and self.fit.n_parts > 1:  # all processes must run the same number of forwards
            return -self.ranks.largest(-min(n_rows))[0]
        return max(n_rows, default=1)

    def _ways(self, most: int) -> list[Fit]:
        """Return the ways to compute the gradients, from the fastest to the one that takes the least memory."""
        now = replace(self.fit, n_parts=min(self.fit.n_parts, most))
        if not self.ranks.repeats_steps:
            return [now]
        ways = [replace(now, n_parts=n) for n in doubled(now.n_parts, most)]
        return [*ways, Fit(most, recomputes=True)] if self.may_recompute and not self.fit.recomputes else ways

    def _accumulate(
        self, micro_batches: Sequence[Batch], seeds: Sequence[int] | None, factor: float, fit: Fit
    ) -> tuple[Tensor, int]:
        """Compute the gradients of the sum of the losses × `factor`; return nats per micro-batch and counted targets.

        Dropout is drawn once per micro-batch, from part to part.
        """
        self.optimizer.zero_grad(set_to_none=True)  # after an attempt that did not fit
        for stack in self.stacks:
            setattr(stack, "activation_checkpointing", self.always_recomputes or fit.recomputes)  # noqa: B010
        nats, counted = [], 0
        self.network.train()
        for number, batch in enumerate(micro_batches):
            if seeds is not None:
                _seed(seeds[number], self.device)
            batch = batch.with_masks() if self.gives_masks else batch
            parts = [batch.rows(rows) for rows in split(range(batch.n_rows), fit.n_parts)]
            of_parts = []
            for place, part in enumerate(parts, 1):
                is_last = number == len(micro_batches) - 1 and place == len(parts)
                with self.synchronised(is_last), _compiler_errors_told() if self.compiled else nullcontext():
                    with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
                        sums = self.loss(part.to(self.device))
                    (sums.total * factor).backward()
                of_parts.append(sums.nats)
                counted += sums.n_targets
            nats.append(torch.stack(of_parts).sum())
        return torch.stack(nats), counted

    def update(self) -> Pending:
        """Clip the gradients and update the weights, unless the loss or the gradient is not finite."""
        norm = whole(nn.utils.clip_grad_norm_(self.parameters, self.clip_norm or float("inf")))
        try:
            return self._update_on_device(norm) if self.defers else self._update_now(float(norm))
        finally:
            self.optimizer.zero_grad(set_to_none=True)

    def _update_now(self, norm: float) -> Pending:
        own_nats = self.nats.tolist()
        [nats] = self.ranks.sum(sum(own_nats))
        is_finite, is_taken = math.isfinite(norm), True
        if math.isfinite(nats):
            if self.scale is not None:
                self.scale.update(is_finite)
                is_taken = is_finite or self.scale.factor < SMALLEST_SCALE
            if is_finite:
                self.optimizer.step()
        numbers = torch.tensor([*own_nats, nats, norm], dtype=torch.float64)
        return Pending(numbers, self.n_targets, is_taken)

    def _update_on_device(self, norm: Tensor) -> Pending:
        own_nats = self.nats.double()
        nats, norm = self.ranks.total(own_nats.sum()), norm.to(own_nats.device, torch.float64)
        # Fused kernels change nothing if this number is 1; it was made for fp16 (`torch.amp.GradScaler`).
        found_inf = (~(nats.isfinite() & norm.isfinite())).float()
        setattr(self.optimizer, "found_inf", found_inf)  # noqa: B010
        self.optimizer.step()
        return Pending(torch.cat([own_nats, nats[None], norm[None]]), self.n_targets)


def _seed(seed: int, device: torch.device) -> None:
    """Seed the draws of a device; `torch.manual_seed` looks at all kinds of devices, which takes up to 1 ms."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def _compiler_errors_told() -> Iterator[None]:
    """Raise `UserError` for an error of torch.compile, such as a missing C++ compiler."""
    from torch._dynamo.exc import TorchDynamoException  # a slow import (1 s), for compiled runs only

    try:
        yield
    except TorchDynamoException as error:
        lines = str(error).strip().splitlines()
        what = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        raise UserError(f"torch.compile failed: {what}; correct the cause, or leave train.compile out") from error
