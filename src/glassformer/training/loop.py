"""The training loop for all tasks: step, log, evaluate, save. It does not depend on labels or on the task."""

import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn

from glassformer import files
from glassformer.config.train import TrainConfig
from glassformer.data.batching import Batch
from glassformer.devices import arithmetic, autocast_dtype, freed_memory_kept, runs_ahead
from glassformer.distributed.parts import own, part_of
from glassformer.errors import Interrupted, UserError, enough_memory
from glassformer.evaluation.loss import LossReport
from glassformer.reporting import OwnsProcess
from glassformer.seeds import Stream, rng, seed_of
from glassformer.store import checkpoint
from glassformer.store.checkpoint import TrainingState
from glassformer.store.model_directory import WEIGHTS, has_weights_of, is_published, load_weights, publish, weights_of
from glassformer.tasks.batches import TrainingData, require_losses
from glassformer.training.ahead import Ahead
from glassformer.training.averaging import ExponentialAverage, average_directories
from glassformer.training.checkpointer import Checkpointer, Snapshot, chosen_step
from glassformer.training.evaluations import Evaluations
from glassformer.training.host import Host, made_with
from glassformer.training.metrics_log import MetricsLog, NoLog
from glassformer.training.non_finite import LossScale, NonFinite, answer, keep_batch
from glassformer.training.optimizers.build import set_learning_rates
from glassformer.training.optimizers.state import load_state_tensors, state_tensors
from glassformer.training.schedules import schedule_factor
from glassformer.training.signals import Abandoned, StopRequest, stop_on_signals
from glassformer.training.step import Pending, StepResult, TrainStep
from glassformer.training.trainer_state import TrainerState, read_progress


class Trainer:
    """The trainer of one run, from its current progress to the last step.

    Batch, dropout and corruption of a micro-batch are functions of (seed, its number) alone. So a resumed run needs no
    random state, and an evaluation does not affect later steps. Several processes compute the same as one.
    """

    def __init__(
        self,
        config: TrainConfig,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: TrainingData,
        checkpointer: Checkpointer,
        host: Host,
        data_digest: str = "",
    ) -> None:
        require_losses(config, data)
        self.config, self.network, self.optimizer, self.data = config, network, optimizer, data
        self.checkpointer, self.folder = checkpointer, checkpointer.folder
        self.host, self.ranks, self.reporter = host, host.ranks, host.reporter
        self.way_on = f"glassformer resume {shlex.quote(str(self.folder))}"  # shown after an interruption
        self.progress = TrainerState(data_digest=data_digest, made_with=made_with(host.device, host.ranks.n))
        self.log = NoLog()
        self.average = ExponentialAverage(network, config.ema_decay) if config.ema_decay else None
        self.evaluations = Evaluations(config, network, data, host, self.average)
        self.step = TrainStep(
            network,
            data.objective,
            optimizer,
            clip_norm=config.clip_norm,
            autocast=autocast_dtype(config.precision),
            device=host.device,
            compiled=config.compile is True,  # auto: a module of the caller
            has_one_shape=data.has_one_shape,
            activation_checkpointing=config.activation_checkpointing,
            defers=runs_ahead(host.device),
            ranks=host.ranks,
        )
        self.unread: _Unread | None = None
        """The last step, if its result was not read yet."""
        self.saved = (-1, False)
        """Step and `is_pending` of the newest checkpoint."""
        self.abandonable: Callable[[], AbstractContextManager[None]] = nullcontext

    def train(self) -> dict[str, LossReport]:
        """Train to the end; return the reports of the last evaluation, which may precede an interruption.

        Raises `Interrupted` after saving if a signal or the time limit stops the run.
        """
        config = self.config
        with files.writing(self.folder), arithmetic(config), freed_memory_kept(), ExitStack() as stack:
            if self.ranks.is_first:
                self.log = stack.enter_context(MetricsLog(self.folder, self.progress.step, config.tensorboard))
            deadline = self.host.began + (config.max_time or math.inf)
            stop = stack.enter_context(stop_on_signals(deadline, abandons=self.ranks.n == 1))
            self.evaluations.abandonable = self.abandonable = stop.abandonable
            stop.tell = self._tell_of_late_stop
            if isinstance(self.reporter, OwnsProcess):
                stop.end_beside = partial(self._end_beside, self.reporter)
            was_done = self.progress.finished or self.progress.step >= config.max_steps
            try:
                reports = self._loop(stop, config.max_steps)
                if config.select == "average":
                    reports = self._publish_mean(was_done)
            except Abandoned:
                self._save_before()
                raise self._interrupted(stop.code) from None
            except Exception:  # a second signal raises no Exception, and ends the process at once
                self.checkpointer.drain()
                raise
        if not reports and self.progress.valid:
            reports = {"valid": LossReport(**self.progress.valid)}  # type: ignore[arg-type]
        return reports

    def replay(self, until: int) -> Snapshot:
        """Continue to step `until` without logging; return the state after it."""
        with arithmetic(self.config), freed_memory_kept():
            self._loop(StopRequest(), until)
        return self._snapshot()

    def _loop(self, stop: StopRequest, end: int) -> dict[str, LossReport]:
        """Run the steps up to `end` and the actions after each; return the reports of the last evaluation."""
        reports: dict[str, LossReport] = {}
        if self.config.on_nonfinite == "rollback" and self.progress.step == 0 and self.checkpointer.writes:
            self._save(is_scheduled=True)  # for a rollback
        self.clock = Clock(self.progress)
        with self._batches_of_steps(end) as self.batches_of:
            while self.progress.is_pending or (self.progress.step < end and not self.progress.finished):
                with suppress(_RolledBack), enough_memory(self.host.advice, self._place()):
                    if not self.progress.is_pending:
                        self._one_step()
                        self.progress.step += 1
                    if self.progress.step == end:
                        self._read_result()
                    try:
                        reports = self._after_step(stop) or reports
                    except NonFinite as bad:
                        self._recover(bad, self.progress.step)
        return reports

    def _place(self) -> str:
        """Describe the step that follows, and the process if there are several, for a message."""
        ranks = self.ranks
        of_process = f", in process {ranks.rank} of {ranks.n}" if ranks.n > 1 else ""
        return f" at step {self.progress.step + 1}{of_process}"

    # One step

    def _one_step(self) -> None:
        """Set the learning rate and take a `TrainStep` on the micro-batches of this process.

        If the step defers, its result is read in the next step while the device computes, or before it is needed.
        """
        config, step = self.config, self.progress.step
        factor = schedule_factor(config.schedule, step, config.max_steps) * self.progress.rate_factor
        plateau = self.evaluations.plateau
        set_learning_rates(self.optimizer, factor * (plateau.factor if plateau else 1.0))
        fit = self.step.fit
        seeds = [seed_of(config.seed, Stream.DROPOUT, number) for number in self._numbers(step)]
        try:
            with self.abandonable():
                batches = self.batches_of(step)
                self.step.backward(batches, seeds)
        finally:
            if self.step.fit != fit:
                self._tell(step + 1, f"step {step + 1} did not fit in memory: {self.step.fit}")
        self._read_result()  # of the step before
        self.unread = _Unread(self.step.update(), step + 1, batches)
        if not self.step.defers:
            self._read_result()

    def _read_result(self) -> None:
        """Count the last step and update the average, before the weights change again; does nothing if this was done.

        After NaN or Inf, `train.on_nonfinite` decides: the step is skipped, or `_RolledBack` or `UserError` is raised.
        """
        unread, self.unread = self.unread, None
        if unread is None:
            return
        try:
            result = unread.result.read()
        except NonFinite as bad:
            batch = None if bad.micro_batch is None else unread.micro_batches[bad.micro_batch]
            self._recover(bad, unread.step, batch)
            return
        if self.average is not None and result.is_taken:
            self.average.update()
        self.progress.n_skipped = 0
        self.progress.n_targets += result.n_targets
        self.clock.count(result)

    def _numbers(self, step: int) -> list[int]:
        """Return the numbers of this process's micro-batches of a step."""
        n = self.config.grad_accumulation
        return [step * n + i for i in self.ranks.share(n)]

    def _micro_batches(self, step: int) -> list[Batch]:
        objective, sampler, seed = self.data.objective, self.data.sampler, self.config.seed
        return [objective.collate(sampler.batch(i), rng(seed, Stream.COLLATE, i)) for i in self._numbers(step)]

    @contextmanager
    def _batches_of_steps(self, end: int) -> Iterator[Callable[[int], list[Batch]]]:
        """Yield the function that gives the micro-batches of a step below `end`, made ahead if that saves time."""
        device = self.host.device
        if not (self.data.can_be_ahead and runs_ahead(device)):
            yield self._micro_batches
            return

        def prepared(step: int) -> list[Batch]:
            made = self._micro_batches(step)
            return [batch.pinned() for batch in made] if device.type == "cuda" else made

        with closing(Ahead(prepared, end)) as ahead:
            yield ahead.take

    # After each step

    def _after_step(self, stop: StopRequest) -> dict[str, LossReport] | None:
        """Log, evaluate, save and stop if due; return the reports of the evaluation, if any."""
        config, progress, reports, clock = self.config, self.progress, None, self.clock
        last = progress.step == config.max_steps
        logs = progress.step % config.log_every == 0 or last
        evaluates = progress.step % config.eval_every == 0 or last
        if logs or evaluates:
            self._read_result()
        if logs and progress.unlogged:
            values = clock.read() | {"learning_rate": self.optimizer.param_groups[0]["lr"]}
            self.log.write(progress.step, **values)
            self.reporter.step(progress.step, config.max_steps, values)
        if evaluates:
            progress.is_pending = True
            with clock.paused():
                reports, scores = self.evaluations.measure(progress.step, self.log, progress.best)
                self.evaluations.conclude(progress, reports, scores)
            progress.is_pending = False
        # Read once: a later signal stops the run after the next step.
        stops, has_failed = self.ranks.largest(stop.code, int(self.checkpointer.has_failed))
        ends = last or progress.finished
        is_due = progress.step % (config.checkpoint_every or config.eval_every) == 0
        is_scheduled = ends or is_due or progress.best_step == progress.step
        if is_scheduled or stops:
            self._read_result()
            with clock.paused(is_saving=True):
                self._save(is_scheduled=is_scheduled)
        if ends or stops or has_failed:
            self.checkpointer.wait()
        if stops and not ends:
            raise self._interrupted(stops)
        return reports

    def _interrupted(self, code: int) -> Interrupted:
        cause = None if code == 1 else signal.Signals(code - 1)
        name = "train.max_time" if cause is None else cause.name
        saved = f"saved at step {self.saved[0]} of {self.config.max_steps}"
        return Interrupted(f"{name}: {saved}; continue with: {self.way_on}", cause)

    def _save_before(self) -> None:
        """Save the state before the step or the evaluation that was abandoned."""
        self.optimizer.zero_grad(set_to_none=True)
        with suppress(_RolledBack, NonFinite):
            self._read_result()
            if self.saved != (self.progress.step, self.progress.is_pending):
                self._save(is_scheduled=False)
        self.checkpointer.wait()

    def _end_beside(self, reporter: OwnsProcess, which: signal.Signals) -> None:
        """Save the state before the step or the evaluation in which the main thread is, and end the process.

        Does nothing if the result of the step before was not read: a device computes it first.
        """
        if self.unread is not None:
            return
        try:
            if self.average is not None:
                self.average.swap_out()
            if self.saved != (self.progress.step, self.progress.is_pending):
                self._save(is_scheduled=False)
            self.checkpointer.wait()
        except (UserError, NonFinite) as error:
            reporter.end(f"{which.name}: {error}; continue with: {self.way_on}", 2)
        self.log.close()
        stop = self._interrupted(1 + which)
        reporter.end(str(stop), stop.exit_code)

    def _tell_of_late_stop(self, which: signal.Signals) -> None:
        kept = checkpoint.steps(self.folder)
        else_ = f"from step {kept[-1]}" if kept else "from the beginning"
        self.reporter.log(
            f"{which.name}: the run stops after the current step, evaluation or checkpoint; a second signal ends it "
            f"at once, and it continues {else_}"
        )

    def _publish_mean(self, was_done: bool) -> dict[str, LossReport]:
        """Load the mean of the newest checkpoints, publish it in the run folder, and return its evaluation."""
        folder, step, ranks = self.folder, self.progress.step, self.ranks
        steps = self.progress.scheduled or checkpoint.steps(folder)[-self.config.keep_checkpoints :]
        is_there = all(checkpoint.path_of(folder, one).is_dir() for one in steps)
        if was_done and not is_there and is_published(folder, step):
            return {}  # checkpoints were deleted, so the published mean cannot be computed again
        place = checkpoint.path_of(folder, step).parent / "average"
        with self.abandonable():
            ranks.raise_together(lambda: self._average(steps, place) if ranks.is_first else None)
        load_weights(self.network, place / WEIGHTS, part_of)
        self.evaluations.average = None  # checkpoints already contain the moving average, if there is one
        is_new = ranks.is_first and not has_weights_of(folder, place)
        log = self.log if is_new else NoLog()
        reports, _ = self.evaluations.measure(step, log, self.progress.best, "mean")
        if is_new:
            publish(place, folder, step)
        return reports

    def _average(self, steps: Sequence[int], place: Path) -> None:
        """Write a model directory with the mean weights of the checkpoints of these steps that are intact."""
        log = self.reporter.log
        steps = [step for step in steps if checkpoint.is_intact(self.folder, step, log)]
        average_directories([checkpoint.path_of(self.folder, step) for step in steps], place)
        log(f"the mean of the weights of steps {', '.join(map(str, steps))}:")

    # Checkpoints

    def _save(self, *, is_scheduled: bool) -> None:
        """Save a checkpoint; the run folder publishes its weights if they are the chosen ones."""
        if self.ranks.any(not all(bool(own(p).isfinite().all()) for p in self.network.parameters())):
            raise NonFinite("weights are not finite", is_of_step=False)
        if is_scheduled:
            self.progress.scheduled = [*self.progress.scheduled, self.progress.step][-self.config.keep_checkpoints :]
        self.checkpointer.save(self._snapshot())
        self.saved = self.progress.step, self.progress.is_pending

    def _snapshot(self) -> Snapshot:
        progress, average, plateau = self.progress, self.average, self.evaluations.plateau
        progress.scaler = None if self.step.scale is None else asdict(self.step.scale)
        progress.n_parts, progress.recomputes = self.step.fit.n_parts, self.step.fit.recomputes
        progress.plateau = None if plateau is None else plateau.state()
        weights = weights_of(self.network)
        state = TrainingState(
            numbers=vars(progress) | {"unlogged": list(progress.unlogged), "valid": dict(progress.valid)},
            optimizer=state_tensors(self.optimizer),
            average=None if average is None else average.state_tensors(),
            weights=None if average is None else weights,
        )
        chosen = weights if average is None else weights | average.weights
        kept = {*progress.scheduled} | (set() if progress.best_step is None else {progress.best_step})
        return Snapshot(progress.step, chosen, state, chosen_step(self.config, progress), frozenset(kept))

    def restore(self, folder: Path) -> None:
        """Restore the exact state of a verified checkpoint."""
        state = checkpoint.load_state(folder)
        self.progress = replace(read_progress(folder), made_with=self.progress.made_with)
        self.saved = self.progress.step, self.progress.is_pending
        load_weights(self.network, checkpoint.weights_path(folder), part_of)
        assert isinstance(state.optimizer, dict) and not isinstance(state.average, Path)
        load_state_tensors(self.optimizer, state.optimizer)
        self.step.fit = self.step.fit.joined(self.progress.fit)
        plateau = self.evaluations.plateau
        if self.average is not None and state.average is not None:
            self.average.load_state_tensors(state.average)
        if plateau is not None and self.progress.plateau is not None:
            plateau.restore(self.progress.plateau)
        if self.step.scale is not None and self.progress.scaler is not None:
            self.step.scale = LossScale(**self.progress.scaler)

    # After NaN or Inf

    def _recover(self, bad: NonFinite, step: int, batch: Batch | None = None) -> None:
        """Handle a non-finite step, and its batch if that has the bad loss: return to skip the step.

        A rollback goes to the last checkpoint that the recipe schedules, so that an interruption changes nothing; it
        raises `_RolledBack`. Raises `UserError` if the run must stop, or if skips and rollbacks did not help.
        """
        progress = self.progress
        what = f"{bad} in step {step}"
        if batch is not None and self.checkpointer.writes:
            what += keep_batch(batch, self.folder, step)
        what_now = answer(bad, self.config.on_nonfinite, progress.n_skipped, progress.n_rollbacks)
        if what_now == "skip":
            progress.n_skipped += 1
            self._tell(step, f"{what}: skipped, the weights are unchanged")
            return
        self.checkpointer.wait()
        if what_now == "stop":
            kept = f"; earlier checkpoints stay in {self.folder}" if checkpoint.steps(self.folder) else ""
            raise UserError(f"{what}: lower train.optimizer.learning-rate{kept}")
        self.optimizer.zero_grad(set_to_none=True)  # of the step that has begun
        self.restore(self._last_scheduled())
        self.progress.rate_factor = progress.rate_factor / 2
        self.progress.n_rollbacks = progress.n_rollbacks + 1
        self.log.back_to(self.progress.step)
        rate = f"the learning rate is × {self.progress.rate_factor:g} from now on"
        self._tell(self.progress.step, f"{what}: back to step {self.progress.step}, {rate}")
        self.clock = Clock(self.progress)
        raise _RolledBack

    def _last_scheduled(self) -> Path:
        for step in reversed(self.progress.scheduled):
            path = checkpoint.path_of(self.folder, step)
            if path.is_dir() and checkpoint.is_intact(self.folder, step, self.reporter.log):
                return path
        if not self.checkpointer.writes:
            raise UserError(f"the run rolled back to a checkpoint that {self.folder} no longer contains")
        return checkpoint.newest(self.folder, self.reporter.log)

    def _tell(self, step: int, event: str) -> None:
        self.reporter.log(event)
        self.log.write(step, event=event)


@dataclass(frozen=True)
class _Unread:
    """A step whose result was not read yet."""

    result: Pending
    step: int
    """Number of the step, from 1."""
    micro_batches: Sequence[Batch]


class _RolledBack(Exception):
    """Ends the actions of a step after a rollback."""


class Clock:
    """Time spent on steps, and sums since the last line of the log."""

    def __init__(self, progress: TrainerState) -> None:
        self.progress = progress
        self.n_untimed = len(progress.unlogged)  # steps of an earlier process
        self.gradient_norm = 0.0
        self.seconds = 0.0
        self.saving_seconds = 0.0
        self.since = time.perf_counter()

    def count(self, result: StepResult) -> None:
        self.progress.unlogged.append((result.nats, result.n_targets))
        self.gradient_norm = result.gradient_norm

    def read(self) -> dict[str, float]:
        """Return mean loss, last gradient norm, speed and saving time since the last call, and reset them."""
        self._tick()
        nats = sum(nats for nats, _ in self.progress.unlogged)
        n_targets = [n_targets for _, n_targets in self.progress.unlogged]
        timed = n_targets[self.n_untimed :]
        values = {
            "train/loss": nats / max(1, sum(n_targets)),
            "gradient_norm": self.gradient_norm,
            "tokens_per_s": sum(timed) / self.seconds,
            "step_ms": 1000 * self.seconds / max(1, len(timed)),
        }
        if self.saving_seconds:
            values["save_ms"] = 1000 * self.saving_seconds
        self.progress.unlogged, self.n_untimed = [], 0
        self.seconds = self.saving_seconds = 0.0
        return values

    @contextmanager
    def paused(self, *, is_saving: bool = False) -> Iterator[None]:
        """Exclude the block from the time of steps; the next log line reports the time of saving."""
        self._tick()
        try:
            yield
        finally:
            now = time.perf_counter()
            self.saving_seconds += (now - self.since) if is_saving else 0.0
            self.since = now

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self.since
        self.progress.seconds += now - self.since
        self.since = now
