"""One optimizer step, in one process or several, on every device. `plain_step.py` is the readable reference.

NaN and Inf are detected between backward and update, from sums over all processes, so all processes make the same
decision.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from glassformer.common.errors import UserError
from glassformer.config.train import TrainConfig
from glassformer.data.batching import Batch
from glassformer.models.devices import Fit, autocast_dtype, doubled, fitted, split
from glassformer.nn.kernels.flex_attention import dense_masks
from glassformer.objectives.loss import LossSums, Objective
from glassformer.training.averaging import ExponentialAverage
from glassformer.training.distributed.parts import whole
from glassformer.training.host import Host
from glassformer.training.non_finite import SMALLEST_SCALE, LossScale, NonFinite
from glassformer.training.routing import Routing


@dataclass(frozen=True)
class StepResult:
    """The result of a step over all processes."""

    nats: float
    """Cross-entropy without label smoothing, summed over the step's targets."""
    n_targets: int
    gradient_norm: float = 0.0
    """2-norm over all parameters, before clipping; 0 if it is not finite."""
    is_taken: bool = True
    """False if the weights are unchanged, because a number was not finite. A scaled fp16 gradient that overflowed also
    halves the loss scale."""
    non_finite: NonFinite | None = None
    """The NaN or Inf in the loss or in the gradient; None for an overflow of a scaled fp16 gradient."""
    figures: dict[str, float] = field(default_factory=dict)
    """Numbers of the experts (`Routing.figures`)."""


class Pending:
    """A step whose numbers the device may still be computing.

    `numbers` begin with the numbers for the log, called `names`. Then come the nats of each micro-batch of this
    process, the summed nats of all processes, and the gradient norm.
    """

    def __init__(
        self,
        numbers: Tensor,
        step: int,
        micro_batches: Sequence[Batch],
        n_targets: int,
        names: Sequence[str],
        overflowed: bool,
    ) -> None:
        self.numbers, self.step, self.names, self.overflowed = numbers, step, names, overflowed
        self.micro_batches, self.n_targets = micro_batches, n_targets
        self.copied: torch.cuda.Event | None = None
        if numbers.device.type == "cuda":
            self.numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self.numbers.copy_(numbers, non_blocking=True)
            self.copied = torch.cuda.Event()
            self.copied.record(torch.cuda.current_stream(numbers.device))

    def read(self) -> StepResult:
        """Wait for the numbers."""
        if self.copied is not None:
            self.copied.synchronize()
        numbers = self.numbers.tolist()
        figures = dict(zip(self.names, numbers, strict=False))
        *of_batches, nats, norm = numbers[len(figures) :]
        if math.isfinite(nats) and math.isfinite(norm):
            return StepResult(nats, self.n_targets, norm, figures=figures)
        non_finite = None
        if not math.isfinite(nats):
            bad = (batch for batch, x in zip(self.micro_batches, of_batches, strict=True) if not math.isfinite(x))
            non_finite = NonFinite(f"the loss is {nats}", self.step, next(bad, None))
        elif not self.overflowed:
            non_finite = NonFinite(f"the gradient is {norm}", self.step)
        return StepResult(nats, self.n_targets, is_taken=False, non_finite=non_finite)


class TrainStep:
    """Forward and backward pass over the micro-batches, clipping, update, moving average.

    `plain_step` takes the same step in fewer lines. Everything else in this file serves several processes, other
    devices and precisions, little memory, compilation, the moving average, and losses that are not finite.

    The loss sums of all micro-batches of all processes are added, and divided once by the number of all targets. So the
    result is that of one large batch, for any number of micro-batches and processes, and any distribution of targets.
    After a loss or gradient of NaN or Inf, no process changes its weights.

    If the program runs ahead of the device (`Host.runs_ahead`), the optimizer reads on the device whether the numbers
    are finite. Then `update` does not wait for the result of its step (`defers`). It returns the result of the step
    before, and `flush` waits for the result of the last step. Other optimizers and a scaled fp16 loss need the numbers
    before the update.

    If memory is not sufficient for forward and backward, the gradients are computed again with twice as many parts per
    micro-batch. Sums are divided once, so the gradient is the same up to rounding and the masks of dropout. If single
    rows do not fit either and `train.activation_checkpointing` is "auto", activation checkpointing is switched on. This
    needs a single process, because other processes would wait for the process that failed.

    With `train.compile`, the loss of a batch is one graph. If batches differ in shape, the sizes are symbolic from the
    first step, and every batch has masks, so later batches need no other graph. With `has_one_shape`, sizes are
    constants. FlexAttention needs constants, so packed batches of several shapes have dense masks.
    """

    def __init__(
        self,
        network: nn.Module,
        objective: Objective,
        optimizer: torch.optim.Optimizer,
        config: TrainConfig,
        host: Host,
        has_one_shape: bool = False,
    ) -> None:
        self.network, self.optimizer, self.config = network, optimizer, config
        self.device, self.ranks = host.device, host.ranks
        self.autocast = autocast_dtype(config.precision)
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        self.number = 0
        """Number of the last step."""
        self.pending: Pending | None = None
        """The last step, if its result was not read yet."""
        self.scale = LossScale() if self.autocast is torch.float16 else None
        self.average = ExponentialAverage(network, config.ema_decay) if config.ema_decay else None
        # Ways to save memory
        self.fit = Fit()
        """The way to compute micro-batches; after an out-of-memory error, it is a way that takes less memory."""
        self.may_split = not objective.couples_rows
        self.divisor = objective.divisor
        self.stacks = [module for module in network.modules() if hasattr(module, "activation_checkpointing")]
        self.may_recompute = config.activation_checkpointing == "auto" and bool(self.stacks)
        self.routing = Routing(network, self.ranks)
        # Work ahead of the device
        reads_found_inf = getattr(optimizer, "_step_supports_amp_scaling", False)
        self.defers = host.runs_ahead and self.scale is None and reads_found_inf
        # The loss of a batch
        wrapped = self.wrapped = self.ranks.wrapped(network)
        self.compiled = config.compile is True  # auto: a module of the caller
        self.gives_masks = self.compiled and not has_one_shape

        def loss(batch: Batch) -> LossSums:
            return objective.loss(wrapped, batch)

        self.loss: Callable[[Batch], LossSums] = loss
        if self.compiled:
            self.loss = torch.compile(loss, dynamic=not has_one_shape)

    def __call__(self, micro_batches: Sequence[Batch], seeds: Sequence[int] | None = None) -> StepResult:
        """Take a step and wait for its result; raise `NonFinite` if the loss or the gradient is NaN or Inf."""
        self.backward(micro_batches, seeds)
        *_, result = [*self.update(), *self.flush()]
        if result.non_finite is not None:
            raise result.non_finite
        return result

    def backward(self, micro_batches: Sequence[Batch], seeds: Sequence[int] | None = None) -> None:
        """Compute the gradients; `seeds` set the random generator of dropout for each micro-batch (None: not set)."""
        # 1. The numbers of targets of all processes
        own = sum(batch.n_targets for batch in micro_batches), sum(map(self.divisor, micro_batches))
        n_targets, divisor = self.ranks.sum(*own)
        divisor = divisor or 1
        # 2. Gradients. Wrappers for data parallelism average over processes; this factor turns the average into a sum.
        scale = 1.0 if self.scale is None else self.scale.factor
        factor = self.ranks.n * scale / divisor
        ways = self._ways(self._most_parts(micro_batches))
        nats, fit = fitted(lambda fit: self._accumulate(micro_batches, seeds, factor, fit), ways)
        self.fit = self.fit.joined(fit)
        if scale != 1:
            torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], scale)
        # 3. For `update`
        self.micro_batches, self.nats, self.n_targets, self.divided_by = micro_batches, nats, int(n_targets), divisor

    def update(self) -> list[StepResult]:
        """Read the result of the step before, clip the gradients, and update the weights if all numbers are finite.

        Return the results that are known now. A step that defers returns the result of the step before. Any other step
        returns its own result.
        """
        results = self.flush()
        norm = whole(nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm or float("inf")))
        self.number += 1
        try:
            if self.defers:
                self._update_on_device(norm)
            else:
                self._update_now(float(norm))
        finally:
            self.optimizer.zero_grad(set_to_none=True)
        if not self.defers:
            results += self.flush()
        return results

    def flush(self) -> list[StepResult]:
        """Wait for the last step and update the moving average; return its result if it was not returned before."""
        pending, self.pending = self.pending, None
        if pending is None:
            return []
        result = pending.read()
        if self.average is not None and result.is_taken:
            self.average.update()
        return [result]

    def _most_parts(self, micro_batches: Sequence[Batch]) -> int:
        """Return the number of parts up to which more parts make each forward pass smaller."""
        if not self.may_split:
            return 1
        n_rows = [batch.n_rows for batch in micro_batches]
        if self.ranks.holds_parts and self.fit.n_parts > 1:  # the same in all processes
            return -self.ranks.largest(-min(n_rows))[0]
        return max(n_rows, default=1)

    def _ways(self, most: int) -> list[Fit]:
        """Return the ways to compute the gradients, from the fastest way to the way that takes the least memory."""
        now = replace(self.fit, n_parts=min(self.fit.n_parts, most))
        if not self.ranks.repeats_steps:
            return [now]
        ways = [replace(now, n_parts=n) for n in doubled(now.n_parts, most)]
        if self.may_recompute and not self.fit.recomputes:
            ways.append(Fit(most, recomputes=True))
        return ways

    def _accumulate(
        self, micro_batches: Sequence[Batch], seeds: Sequence[int] | None, factor: float, fit: Fit
    ) -> Tensor:
        """Compute the gradients of the sum of the losses × `factor`; return the nats of each micro-batch.

        Dropout is seeded once per micro-batch; its parts continue the random numbers.
        """
        # Recomputation in the backward pass
        self.optimizer.zero_grad(set_to_none=True)  # after an attempt that did not fit
        every = 1 if fit.recomputes else self.config.recompute_every
        for stack in self.stacks:
            setattr(stack, "activation_checkpointing", every)  # noqa: B010
        # Forward and backward, part by part
        nats = []
        self.routing.begin()
        self.network.train()
        for number, batch in enumerate(micro_batches):
            if seeds is not None and self.device.type == "cpu":
                torch.default_generator.manual_seed(seeds[number])  # `torch.manual_seed` seeds all devices, in 1 ms
            elif seeds is not None:
                torch.manual_seed(seeds[number])
            if self.gives_masks:
                batch = batch.with_masks()
            parts = [batch.rows(rows) for rows in split(range(batch.n_rows), fit.n_parts)]
            of_parts = []
            for n_done, part in enumerate(parts, 1):
                is_last = number == len(micro_batches) - 1 and n_done == len(parts)
                of_parts.append(self._backward_of(part, factor, is_last).nats)
            nats.append(torch.stack(of_parts).sum())
        return torch.stack(nats)

    def _backward_of(self, part: Batch, factor: float, is_last: bool) -> LossSums:
        """Add the gradients of one part, and return its sums; processes exchange gradients after the last part."""
        with ExitStack() as stack:
            stack.enter_context(self.ranks.synchronised(self.wrapped, is_last))
            if self.compiled:
                stack.enter_context(_compiler())
            if self.gives_masks:
                stack.enter_context(dense_masks())
            autocast = torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None)
            with autocast, self.routing.recorded():
                sums = self.routing.added_to(self.loss(part.to(self.device)), self.divisor(part))
            (sums.total * factor).backward()
        return sums

    def _update_now(self, norm: float) -> None:
        own_nats = self.nats.tolist()
        [nats] = self.ranks.sum(sum(own_nats))
        figures = self.routing.figures(self.divided_by)
        is_finite, overflowed = math.isfinite(norm), False
        if math.isfinite(nats):
            if self.scale is not None:
                self.scale.update(is_finite)
                overflowed = not is_finite and self.scale.factor >= SMALLEST_SCALE
            if is_finite:
                self.optimizer.step()
                self.routing.move_biases()
        numbers = torch.tensor([*map(float, figures.values()), *own_nats, nats, norm], dtype=torch.float64)
        self._set_pending(numbers, figures, overflowed)

    def _update_on_device(self, norm: Tensor) -> None:
        own_nats = self.nats.double()
        nats, norm = self.ranks.total(own_nats.sum()), norm.to(own_nats.device, torch.float64)
        figures = self.routing.figures(self.divided_by)
        # Fused kernels change nothing if this number is 1; it was made for fp16 (`torch.amp.GradScaler`).
        found_inf = (~(nats.isfinite() & norm.isfinite())).float()
        setattr(self.optimizer, "found_inf", found_inf)  # noqa: B010
        self.optimizer.step()
        self.routing.move_biases(1 - found_inf)
        numbers = torch.cat([*(x[None].double() for x in figures.values()), own_nats, nats[None], norm[None]])
        self._set_pending(numbers, figures)

    def _set_pending(self, numbers: Tensor, figures: dict[str, Tensor], overflowed: bool = False) -> None:
        self.pending = Pending(numbers, self.number, self.micro_batches, self.n_targets, [*figures], overflowed)


@contextmanager
def _compiler() -> Iterator[None]:
    """Let floats be constants of the graph, and raise `UserError` for an error of torch.compile.

    Otherwise, with `dynamic=True`, PyTorch treats floats as variables, finds that they must be constants, and traces
    the network a second time.
    """
    import torch._dynamo.config  # a slow import (1 s), for compiled runs only
    from torch._dynamo.exc import TorchDynamoException

    try:
        with torch._dynamo.config.patch(specialize_float=True):
            yield
    except TorchDynamoException as error:
        lines = str(error).strip().splitlines()
        what = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
        raise UserError(f"torch.compile failed: {what}; correct the cause, or leave train.compile out") from error
