"""The training loop for all tasks: step, log, evaluate, save. It does not depend on labels or on the task."""

import math
import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path

import torch
from torch import nn

from glassformer.common import files
from glassformer.common.errors import Interrupted, UnknownText, UserError, enough_memory
from glassformer.common.seeds import Stream, rng, seed_of
from glassformer.config.train import TrainConfig
from glassformer.data.batching import Batch
from glassformer.evaluation.loss import LossReport
from glassformer.models.devices import freed_memory_kept, numerics
from glassformer.store import checkpoint
from glassformer.store.checkpoint import TrainingState
from glassformer.store.model_directory import WEIGHTS, has_weights_of, is_published, load_weights, publish, weights_of
from glassformer.tasks.batches import TrainingData, require_losses
from glassformer.training.ahead import Ahead
from glassformer.training.averaging import average_directories
from glassformer.training.checkpointer import Checkpointer, Snapshot, chosen_step
from glassformer.training.distributed.parts import local_part, part_of
from glassformer.training.evaluations import Evaluations
from glassformer.training.host import Host, StopRequest, made_with, stop_on_signals
from glassformer.training.metrics_log import MetricsLog, NoLog
from glassformer.training.non_finite import Decision, LossScale, NonFinite, decision, keep_batch
from glassformer.training.optimizers.build import load_state_tensors, set_learning_rates, state_tensors
from glassformer.training.schedules import PlateauState, schedule_factor
from glassformer.training.speed import Clock, of_devices, profiling
from glassformer.training.step import StepResult, TrainStep
from glassformer.training.trainer_state import TrainerState, read_progress


class State(Enum):
    """The next action of the loop."""

    STEP = "take a step, then log, evaluate and save what is due"
    RECOVER = "NaN or Inf was found: return to an earlier step, or end the run with an error"
    INTERRUPT = "a signal or the time limit has stopped the run, and its state is saved"
    END = "the last step is done, or early stopping has ended the run"


class Trainer:
    """The trainer of one run, from its current progress to the last step.

    Batch, dropout and corruption of a micro-batch depend only on the seed and on the number of the micro-batch. So a
    resumed run needs no random state, and an evaluation does not affect later steps. Several processes compute the same
    as a single process.
    """

    def __init__(
        self,
        config: TrainConfig,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: TrainingData,
        checkpointer: Checkpointer,
        host: Host,
    ) -> None:
        require_losses(config, data)
        self.config, self.network, self.optimizer, self.data = config, network, optimizer, data
        self.checkpointer, self.folder = checkpointer, checkpointer.folder
        self.host, self.ranks, self.reporter = host, host.ranks, host.reporter
        self.progress = TrainerState(made_with=made_with(host.device, host.ranks.n))
        self.log = NoLog()
        self.notes: Sequence[str] = ()
        """Notes about the data of a new run, for the log."""
        self.step = TrainStep(
            network, data.step_objective or data.objective, optimizer, config, host, data.has_one_shape
        )
        self.average = self.step.average
        self.evaluations = Evaluations(config, network, data, host, self.average)
        self.seconds_at_peak: float | None = None
        """The least time of a step (`speed.seconds_at_peak`); None if it cannot be computed."""
        self.saved_step = -1
        """Step of the newest checkpoint; -1 for a run without one."""
        self.profile_step: Callable[[], None] = lambda: None
        """Called after each step: it ends a step of the profile."""
        self.reports: dict[str, LossReport] = {}
        """The reports of the last evaluation."""
        self.bad: NonFinite | None = None
        """The loss, gradient or weight that is not finite, in the state `RECOVER`."""

    def train(self) -> dict[str, LossReport]:
        """Train to the end; return the reports of the last evaluation, which may be from before an interruption.

        Raises `Interrupted` after saving if a signal or the time limit stops the run.
        """
        config, progress = self.config, self.progress
        silent = UnknownText(is_silent=True)  # the notes about the data were given
        with files.writing(self.folder), numerics(config), freed_memory_kept(), silent, ExitStack() as stack:
            # The log, and the answers to signals
            if self.ranks.is_first:
                self.log = stack.enter_context(MetricsLog(self.folder, self.saved_step, config.tensorboard))
                if self.notes:
                    self.log.write(progress.step, notes=list(self.notes))
            deadline = self.host.began + (config.max_time or math.inf)
            stop = stack.enter_context(stop_on_signals(deadline, self._log_late_stop))
            if self.ranks.is_first:
                self.profile_step = stack.enter_context(
                    profiling(config.profile_steps, self.folder, self.host.device, self.reporter.log)
                )
            # The steps
            was_done = progress.finished or progress.step >= config.max_steps
            try:
                self._loop(stop, config.max_steps)
                if config.select == "average":
                    self.reports = self._publish_mean(was_done)
            except Exception:  # a second signal raises no Exception, and ends the process at once
                self.checkpointer.drain()
                raise
        if not self.reports and self.progress.valid:
            self.reports = {"valid": LossReport(**self.progress.valid)}  # type: ignore[arg-type]
        return self.reports

    def replay(self, until: int) -> Snapshot:
        """Continue to step `until` without logging; return the state after it."""
        with numerics(self.config), freed_memory_kept():
            self._loop(StopRequest(), until)
        return self._snapshot()

    def _loop(self, stop: StopRequest, end: int) -> None:
        """Run the steps up to `end` and the actions after each step; `State` lists what may follow a step."""
        if self.config.on_nonfinite == "rollback" and self.progress.step == 0 and self.checkpointer.writes:
            self._save(is_scheduled=True)  # for a rollback
        self.clock = Clock(self.progress)
        state = State.STEP
        if self.progress.step >= end or self.progress.finished:
            state = State.END
        with self._batches_of_steps(end) as self.batches_of:
            while state is not State.END:
                process = f", in process {self.ranks.rank} of {self.ranks.n}" * (self.ranks.n > 1)
                with enough_memory(self.host.advice, f" at step {self.progress.step + 1}{process}"):
                    match state:
                        case State.STEP:
                            state = self._step(stop, end)
                        case State.RECOVER:
                            state = self._recover()
                        case State.INTERRUPT:
                            raise self._interrupted()

    def _step(self, stop: StopRequest, end: int) -> State:
        """Take a step and the actions after it; return what follows."""
        try:
            self._one_step()
            with self.clock.paused():
                self.profile_step()
            return self._after_step(stop, end)
        except NonFinite as bad:
            self.bad = bad.with_traceback(None)  # the frames of the traceback would keep tensors
            return State.RECOVER

    # One step

    def _one_step(self) -> None:
        """Set the learning rate and take a step on the micro-batches of this process."""
        config, progress, fit = self.config, self.progress, self.step.fit
        # Learning rate
        factor = schedule_factor(config.schedule, progress.step, config.max_steps) * progress.rate_factor
        if self.evaluations.plateau is not None:
            factor *= self.evaluations.plateau.state.factor
        set_learning_rates(self.optimizer, factor)
        # Gradients
        seeds = [seed_of(config.seed, Stream.DROPOUT, number) for number in self._numbers(progress.step)]
        try:
            self.step.backward(self.batches_of(progress.step), seeds)
        finally:
            if self.step.fit != fit:
                number = progress.step + 1
                self._log_event(number, f"step {number} did not fit in memory: {self.step.fit}")
        # Update
        results = self.step.update()
        progress.step += 1
        self._count(results)

    def _count(self, results: Sequence[StepResult]) -> None:
        """Count the results of steps; count a step as skipped after NaN or Inf, or raise its `NonFinite`."""
        progress = self.progress
        for result in results:
            if result.non_finite is None:
                progress.n_skipped = 0
                progress.n_targets += result.n_targets
                self.clock.count(result)
            elif self._decision(result.non_finite) == "skip":
                progress.n_skipped += 1
                what = self._described(result.non_finite)
                self._log_event(result.non_finite.step, f"{what}: skipped, the weights are unchanged")
            else:
                raise result.non_finite

    def _numbers(self, step: int) -> list[int]:
        """Return the numbers of this process's micro-batches of a step."""
        n = self.config.grad_accumulation
        return [step * n + i for i in self.ranks.share(n)]

    def _micro_batches(self, step: int) -> list[Batch]:
        objective, sampler, seed = self.data.objective, self.data.sampler, self.config.seed
        return [objective.collate(sampler.batch(n), rng(seed, Stream.COLLATE, n)) for n in self._numbers(step)]

    @contextmanager
    def _batches_of_steps(self, end: int) -> Iterator[Callable[[int], list[Batch]]]:
        """Yield the function that returns the micro-batches of a step below `end`, made ahead if this saves time."""
        if not (self.data.can_be_ahead and self.host.runs_ahead):
            yield self._micro_batches
            return

        def prepared(step: int) -> list[Batch]:
            batches = self._micro_batches(step)
            if self.host.device.type == "cuda":
                batches = [batch.pinned() for batch in batches]
            return batches

        with closing(Ahead(prepared, end)) as ahead:
            yield ahead.take

    # After each step

    def _after_step(self, stop: StopRequest, end: int) -> State:
        """Log, evaluate and save if due; return what follows."""
        config, progress, clock = self.config, self.progress, self.clock
        # What is due
        is_last = progress.step == config.max_steps
        logs = progress.step % config.log_every == 0 or is_last
        evaluates = progress.step % config.eval_every == 0 or is_last
        if logs or evaluates or progress.step == end:
            self._count(self.step.flush())
        # Log
        if logs and progress.unlogged:
            values = clock.read() | {"learning_rate": self.optimizer.param_groups[0]["lr"]}
            values |= of_devices(values, self.host, self.seconds_at_peak)
            self.log.write(progress.step, **values)
            self.reporter.step(progress.step, config.max_steps, values)
        # Evaluate
        if evaluates:
            with clock.paused():
                reports, scores = self.evaluations.measure(progress.step, self.log, progress.best)
                self.evaluations.conclude(progress, reports, scores)
            self.reports = reports or self.reports
        # Save; a later signal stops the run after the next step
        self.stop_code, has_failed = self.ranks.largest(stop.code, int(self.checkpointer.has_failed))
        if progress.step % self.data.n_inseparable:
            self.stop_code = 0  # the signal is kept for the next steps
        ends = is_last or progress.finished
        is_due = progress.step % (config.checkpoint_every or config.eval_every) == 0
        is_scheduled = ends or is_due or progress.best_step == progress.step
        if is_scheduled or self.stop_code:
            with clock.saving():
                self._save(is_scheduled=is_scheduled)
        # What follows
        if ends or self.stop_code or has_failed:
            self.checkpointer.wait()
        if ends or progress.step == end:
            return State.END
        if self.stop_code:
            return State.INTERRUPT
        return State.STEP

    # Signals

    def _interrupted(self) -> Interrupted:
        code = self.stop_code
        cause = None if code == 1 else signal.Signals(code - 1)
        name = "train.max_time" if cause is None else cause.name
        saved = f"saved at step {self.saved_step} of {self.config.max_steps}"
        return Interrupted(f"{name}: {saved}; continue with: glassformer resume {shlex.quote(str(self.folder))}", cause)

    def _log_late_stop(self, which: signal.Signals) -> None:
        steps = checkpoint.steps(self.folder)
        start = f"step {steps[-1]}" if steps else "the beginning"
        self.reporter.log(
            f"{which.name}: the run stops after the current step, evaluation or checkpoint; a second signal ends it "
            f"at once, and it continues from {start}"
        )

    # Weights of the end

    def _publish_mean(self, was_done: bool) -> dict[str, LossReport]:
        """Load the mean weights of the newest checkpoints, publish them in the run folder, and evaluate them."""
        folder, step, ranks = self.folder, self.progress.step, self.ranks
        steps = self.progress.scheduled or checkpoint.steps(folder)[-self.config.keep_checkpoints :]
        is_there = all(checkpoint.path_of(folder, one).is_dir() for one in steps)
        if was_done and not is_there and is_published(folder, step):
            return {}  # checkpoints were deleted, so the published mean cannot be computed again
        mean = checkpoint.path_of(folder, step).parent / "average"
        ranks.raise_together(lambda: self._average(steps, mean))
        load_weights(self.network, mean / WEIGHTS, part_of)
        self.evaluations.average = None  # checkpoints already contain the moving average, if there is one
        is_new = ranks.is_first and not has_weights_of(folder, mean)
        reports, _ = self.evaluations.measure(step, self.log if is_new else NoLog(), self.progress.best, "mean")
        if is_new:
            publish(mean, folder, step)
        return reports

    def _average(self, steps: Sequence[int], out: Path) -> None:
        """Write a model directory with the mean weights of the checkpoints of these steps that are intact."""
        if not self.ranks.is_first:
            return
        log = self.reporter.log
        steps = [step for step in steps if checkpoint.is_intact(self.folder, step, log)]
        average_directories([checkpoint.path_of(self.folder, step) for step in steps], out)
        log(f"the mean of the weights of steps {', '.join(map(str, steps))}:")

    # Checkpoints

    def _save(self, *, is_scheduled: bool) -> None:
        """Save a checkpoint, and publish the weights of the chosen step in the run folder."""
        self._count(self.step.flush())
        progress = self.progress
        if self.ranks.any(not all(bool(local_part(p).isfinite().all()) for p in self.network.parameters())):
            raise NonFinite("weights are not finite", progress.step, is_of_step=False)
        if is_scheduled:
            progress.scheduled = [*progress.scheduled, progress.step][-self.config.keep_checkpoints :]
        self.checkpointer.save(self._snapshot())
        self.saved_step = progress.step

    def _snapshot(self) -> Snapshot:
        progress, average = self.progress, self.average
        # Numbers
        if self.step.scale is not None:
            progress.scaler = asdict(self.step.scale)
        if self.evaluations.plateau is not None:
            progress.plateau = asdict(self.evaluations.plateau.state)
        progress.n_parts, progress.recomputes = self.step.fit.n_parts, self.step.fit.recomputes
        # Tensors
        weights = weights_of(self.network)
        state = TrainingState(progress.stored(), state_tensors(self.optimizer))
        if average is not None:
            state = replace(state, average=average.state_tensors(), weights=weights)
            weights = weights | average.weights
        # Checkpoints to keep
        kept = {*progress.scheduled}
        if progress.best_step is not None:
            kept.add(progress.best_step)
        return Snapshot(progress.step, weights, state, chosen_step(self.config, progress), frozenset(kept))

    def restore(self, folder: Path) -> None:
        """Restore the exact state of a verified checkpoint."""
        # Numbers
        self.progress = progress = replace(read_progress(folder), made_with=self.progress.made_with)
        self.saved_step = progress.step
        self.step.number, self.step.pending = progress.step, None
        progress.recomputes = progress.recomputes and self.step.may_recompute  # a resumed run may set other blocks
        self.step.fit = self.step.fit.joined(progress.fit)
        if self.evaluations.plateau is not None and progress.plateau is not None:
            self.evaluations.plateau.state = PlateauState(**progress.plateau)
        if self.step.scale is not None and progress.scaler is not None:
            self.step.scale = LossScale(**progress.scaler)
        # Tensors
        state = checkpoint.load_state(folder)
        assert isinstance(state.optimizer, dict) and not isinstance(state.average, Path)
        load_weights(self.network, checkpoint.weights_path(folder), part_of)
        load_state_tensors(self.optimizer, state.optimizer)
        if self.average is not None and state.average is not None:
            self.average.load_state_tensors(state.average)

    # After NaN or Inf

    def _decision(self, bad: NonFinite) -> Decision:
        return decision(bad, self.config.on_nonfinite, self.progress.n_skipped, self.progress.n_rollbacks)

    def _described(self, bad: NonFinite) -> str:
        """Describe what is not finite, and save the batch with the bad loss."""
        if bad.batch is None or not self.checkpointer.writes:
            return str(bad)
        self.checkpointer.drain()  # the thread of the checkpointer deletes unfinished files at its end
        return f"{bad}{keep_batch(bad.batch, self.folder, bad.step)}"

    def _recover(self) -> State:
        """Return to the last scheduled checkpoint, not to one after a signal, so that interruptions change no result.

        Raises `UserError` if the run must stop, or if skips and rollbacks did not help.
        """
        bad, self.bad = self.bad, None
        assert bad is not None
        what = self._described(bad)
        self.checkpointer.wait()
        if self._decision(bad) == "stop":
            earlier = f"; earlier checkpoints stay in {self.folder}" if checkpoint.steps(self.folder) else ""
            raise UserError(f"{what}: lower train.optimizer.learning-rate{earlier}")
        # Roll back
        before = self.progress
        self.optimizer.zero_grad(set_to_none=True)
        self.restore(self._last_scheduled())
        progress = self.progress
        progress.rate_factor = before.rate_factor / 2
        progress.n_rollbacks = before.n_rollbacks + 1
        self.clock = Clock(progress)
        # Log it
        self.log.back_to(progress.step)
        rate = f"the learning rate is × {progress.rate_factor:g} from now on"
        self._log_event(progress.step, f"{what}: back to step {progress.step}, {rate}")
        return State.STEP

    def _last_scheduled(self) -> Path:
        for step in reversed(self.progress.scheduled):
            path = checkpoint.path_of(self.folder, step)
            if path.is_dir() and checkpoint.is_intact(self.folder, step, self.reporter.log):
                return path
        if not self.checkpointer.writes:
            raise UserError(f"the run rolled back to a checkpoint that {self.folder} no longer contains")
        return checkpoint.newest(self.folder, self.reporter.log)

    def _log_event(self, step: int, event: str) -> None:
        self.reporter.log(event)
        self.log.write(step, event=event)
