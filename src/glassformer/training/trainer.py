"""The loop, for every task: step, log, evaluate, save. It never reads labels or a task's name."""

import math
import shlex
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from glassformer import files
from glassformer.config.train import EarlyStopping, PlateauSchedule, TrainConfig
from glassformer.data.batching import Batch
from glassformer.devices import arithmetic, autocast_dtype
from glassformer.errors import Interrupted, UserError
from glassformer.evaluation.loss import LossReport, evaluate_loss, evaluation_mode
from glassformer.reporting import Reporter
from glassformer.store import checkpoint
from glassformer.store.checkpoint import TrainingState
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import WEIGHTS, has_weights_of, is_published, load_weights, publish, weights_of
from glassformer.store.shards import own
from glassformer.tasks.training_data import TrainingData, require_losses
from glassformer.training.averaging import ExponentialAverage, average_directories
from glassformer.training.checkpointer import Checkpointer, KeepsLast, Snapshot, WriteModel, publish_step
from glassformer.training.metrics_log import MetricsLog
from glassformer.training.non_finite import MAX_ROLLBACKS, MAX_SKIPPED, NonFinite, keep_batch
from glassformer.training.optimizers import build_optimizer, load_state_tensors, set_learning_rates, state_tensors
from glassformer.training.parallel import Ranks
from glassformer.training.schedules import Plateau, schedule_factor
from glassformer.training.signals import StopRequest, stop_on_signals
from glassformer.training.step import LossScale, StepResult, TrainStep
from glassformer.training.trainer_state import Clock, TrainerState, made_with
from glassformer.training.trainer_state_file import read_progress

_DROPOUT, _COLLATE = 3, 4
"""Spawn keys that keep these random streams apart from the sampler's."""


class Trainer:
    """One run. `train` goes from wherever the progress stands to the last step.

    Batch, dropout and corruption of a micro-batch are functions of (seed, its number) alone, so a resumed run needs
    the step and no random state, evaluation cannot disturb what follows it, and processes that share the micro-batches
    do what one alone would do.
    """

    def __init__(
        self,
        config: TrainConfig,
        network: nn.Module,
        data: TrainingData,
        folder: Path,
        write_model: WriteModel,
        reporter: Reporter,
        device: torch.device,
        data_digest: str = "",
        scales: Mapping[str, float] | None = None,
        ranks: Ranks | None = None,
        began: float | None = None,
    ) -> None:
        self.began = time.monotonic() if began is None else began
        self.config, self.network, self.data, self.folder = config, network, data, folder
        self.reporter, self.device, self.ranks = reporter, device, ranks or Ranks()
        require_losses(config, data)
        self.optimizer = build_optimizer(network, config.optimizer, scales)
        self.average = ExponentialAverage(network, config.ema_decay) if config.ema_decay else None
        self.plateau = None
        if isinstance(config.schedule, PlateauSchedule):
            s = config.schedule
            self.plateau = Plateau(s.patience, s.ratio, s.min_ratio)
        self.autocast = autocast_dtype(config.precision)
        for module in network.modules():
            if hasattr(module, "activation_checkpointing"):
                setattr(module, "activation_checkpointing", config.activation_checkpointing)  # noqa: B010
        self.step = TrainStep(
            network,
            data.objective,
            self.optimizer,
            clip_norm=config.clip_norm,
            autocast=self.autocast,
            device=device,
            compiled=config.compile,
            has_one_shape=data.has_one_shape,
            ranks=self.ranks,
        )
        self.saver: Checkpointer = Checkpointer(
            folder, write_model, in_background=config.background_saving, log=reporter.log, ranks=self.ranks
        )
        self.progress = TrainerState(data_digest=data_digest, made_with=made_with(device, self.ranks.n))

    def restore(self, folder: Path) -> None:
        """Continues from a verified checkpoint, exactly."""
        state = checkpoint.load_state(folder)
        self.progress = replace(read_progress(folder), made_with=self.progress.made_with)
        load_weights(self.network, checkpoint.weights_path(folder))
        assert isinstance(state.optimizer, dict) and not isinstance(state.average, Path)
        load_state_tensors(self.optimizer, state.optimizer)
        if self.average is not None and state.average is not None:
            self.average.load_state_tensors(state.average)
        if self.plateau is not None and self.progress.plateau is not None:
            self.plateau.restore(self.progress.plateau)
        if self.step.scale is not None and self.progress.scaler is not None:
            self.step.scale = LossScale(**self.progress.scaler)

    def publish(self) -> None:
        """Puts the run's own folder right, where the run died between a checkpoint and its publication."""

        def verify() -> None:
            if self.ranks.is_first and not is_published(self.folder, self._chosen_step):
                chosen = checkpoint.path_of(self.folder, self._chosen_step)
                Manifest.read(chosen).verify(chosen)

        def put_right() -> None:
            if self.ranks.is_first:
                publish_step(self.folder, self._chosen_step)

        try:
            self.ranks.raise_together(verify)
        except UserError as error:
            self.reporter.log(f"{error}; its weights were the best so far, and the search for the best starts anew")
            self.progress.best = self.progress.best_step = None
        self.ranks.raise_together(put_right)

    def train(self) -> dict[str, LossReport]:
        """Runs to the end, and returns the reports of the last evaluation.

        Raises `Interrupted` after saving, when a signal or the time asked to stop.
        """
        config, log = self.config, None
        with files.writing(self.folder), arithmetic(config), ExitStack() as stack:
            if self.ranks.is_first:
                log = stack.enter_context(MetricsLog(self.folder, self.progress.step, config.tensorboard))
            stop = stack.enter_context(stop_on_signals(self.began + (config.max_time or math.inf)))
            was_done = self.progress.finished or self.progress.step >= config.max_steps
            try:
                reports = self._loop(log, stop)
                if config.select == "average":
                    reports = self._publish_average(log, was_done)
            except Exception:  # a second signal is none: it leaves at once
                self.saver.drain()
                raise
        return reports

    def replay(self, until: int) -> Snapshot:
        """The run as it is after step `until`, going on from here; nothing is written."""
        self.saver = kept = KeepsLast()
        with arithmetic(self.config):
            self._loop(None, StopRequest(), until)
        if kept.snapshot is None or kept.snapshot.step != self.progress.step:  # a signal's, which no recipe asks for
            self._save(is_scheduled=False)
        assert kept.snapshot is not None
        return kept.snapshot

    def _loop(self, log: MetricsLog | None, stop: StopRequest, until: int | None = None) -> dict[str, LossReport]:
        config, clock = self.config, Clock(self.progress)
        end = config.max_steps if until is None else until
        reports: dict[str, LossReport] = {}
        if config.on_nonfinite == "rollback" and self.progress.step == 0 and self.saver.writes:
            self._save(is_scheduled=True)  # something to go back to
        skips = False
        while self.progress.step < end and not self.progress.finished:
            try:
                reports = self._advance(log, clock, stop, skips) or reports
                skips = False
            except NonFinite as bad:
                skips = not self._rolls_back(bad, log)
                if not skips:
                    clock = Clock(self.progress)
        return reports

    def _advance(
        self, log: MetricsLog | None, clock: Clock, stop: StopRequest, skips: bool
    ) -> dict[str, LossReport] | None:
        """One step, left out or taken, and what is due after it; the reports of an evaluation, where one was due."""
        config, progress, reports = self.config, self.progress, None
        if not skips:
            result = self._one_step()
            progress.n_skipped = 0
            progress.n_targets += result.n_targets
            clock.count(result)
        progress.step += 1
        last = progress.step == config.max_steps
        if (progress.step % config.log_every == 0 or last) and progress.unlogged:
            self._log_step(log, clock)
        if progress.step % config.eval_every == 0 or last:
            with clock.paused():
                reports = self._evaluate(log)
        # Asked once: a signal that comes later stops after the next step.
        stops, has_failed = self.ranks.largest(stop.code, int(self.saver.has_failed))
        ends = last or progress.finished
        is_due = progress.step % (config.checkpoint_every or config.eval_every) == 0
        is_scheduled = ends or is_due or progress.best_step == progress.step
        if is_scheduled or stops:
            with clock.paused(is_saving=True):
                self._save(is_scheduled=is_scheduled)
        if ends or stops or has_failed:
            self.saver.wait()
        if stops and not ends:
            raise self._interrupted(stops)
        return reports

    def _publish_average(self, log: MetricsLog | None, was_done: bool) -> dict[str, LossReport]:
        """The run's own folder, and the network, hold the mean of the newest checkpoints; what the mean is worth.

        Of a run that was done and whose checkpoints are not all there any more, the mean stays as it is.
        """
        newest = self.progress.scheduled or checkpoint.steps(self.folder)[-self.config.keep_checkpoints :]
        folder = checkpoint.path_of(self.folder, self.progress.step).parent / "average"
        is_there = all(checkpoint.path_of(self.folder, step).is_dir() for step in newest)
        if was_done and not is_there and is_published(self.folder, self.progress.step):
            return {}

        def averaged() -> None:
            if self.ranks.is_first:
                steps = [step for step in newest if checkpoint.is_intact(self.folder, step, self.reporter.log)]
                average_directories([checkpoint.path_of(self.folder, step) for step in steps], folder)
                self.reporter.log(f"the mean of the weights of steps {', '.join(map(str, steps))}:")

        self.ranks.raise_together(averaged)
        load_weights(self.network, folder / WEIGHTS)
        self.average = None  # the checkpoints' weights were those of the moving average, if there was one
        is_new = self.ranks.is_first and not has_weights_of(self.folder, folder)
        reports, _ = self._measure(log if is_new else None, "mean")
        if is_new:
            publish(folder, self.folder, self.progress.step)
        return reports

    def _one_step(self) -> StepResult:
        config, step = self.config, self.progress.step
        factor = schedule_factor(config.schedule, step, config.max_steps) * self.progress.rate_factor
        set_learning_rates(self.optimizer, factor * (self.plateau.factor if self.plateau else 1.0))
        numbers = [step * config.grad_accumulation + i for i in self.ranks.share(config.grad_accumulation)]
        self._micro_batches = [self._micro_batch(number) for number in numbers]
        result = self.step(self._micro_batches, [_seed(config.seed, _DROPOUT, number) for number in numbers])
        if self.average is not None and result.is_taken:
            self.average.update()
        return result

    def _micro_batch(self, number: int) -> Batch:
        rng = np.random.default_rng(np.random.SeedSequence(self.config.seed, spawn_key=(_COLLATE, number)))
        return self.data.objective.collate(self.data.sampler.batch(number), rng)

    def _rolls_back(self, bad: NonFinite, log: MetricsLog | None) -> bool:
        """After numbers that are none: whether the run is back at a checkpoint; else the step is to be skipped.

        Back at the last one that the recipe asks for, so that an interruption changes nothing. `UserError` when the
        run is to stop, or when neither has helped.
        """
        progress, config = self.progress, self.config
        what = f"{bad} in step {progress.step + bad.is_of_step}"
        if bad.micro_batch is not None and self.saver.writes:
            what += keep_batch(self._micro_batches[bad.micro_batch], self.folder, progress.step + 1)
        if config.on_nonfinite == "skip" and bad.is_of_step and progress.n_skipped < MAX_SKIPPED:
            progress.n_skipped += 1
            self._tell(log, progress.step + 1, f"{what}: skipped, the weights are as they were")
            return False
        if config.on_nonfinite == "rollback" and progress.n_rollbacks < MAX_ROLLBACKS:
            self.saver.wait()
            self.restore(self._last_scheduled())
            self.progress.rate_factor = progress.rate_factor / 2
            self.progress.n_rollbacks = progress.n_rollbacks + 1
            if log is not None:
                log.back_to(self.progress.step)
            rate = f"the rate is × {self.progress.rate_factor:g} from here on"
            self._tell(log, self.progress.step, f"{what}: back to step {self.progress.step}, {rate}")
            return True
        self.saver.wait()
        raise self._diverged(what)

    def _last_scheduled(self) -> Path:
        for step in reversed(self.progress.scheduled):
            path = checkpoint.path_of(self.folder, step)
            if path.is_dir() and checkpoint.is_intact(self.folder, step, self.reporter.log):
                return path
        if not self.saver.writes:
            raise UserError(f"the run went back to a checkpoint that {self.folder} does not have any more")
        return checkpoint.newest(self.folder, self.reporter.log)

    def _tell(self, log: MetricsLog | None, step: int, event: str) -> None:
        self.reporter.log(event)
        if log is not None:
            log.write(step, event=event)

    def _log_step(self, log: MetricsLog | None, clock: Clock) -> None:
        values = clock.read()
        values["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        if log is not None:
            log.write(self.progress.step, **values)
        self.reporter.step(self.progress.step, self.config.max_steps, values)

    def _refuse_bad_weights(self) -> None:
        if self.ranks.any(not all(bool(own(p).isfinite().all()) for p in self.network.parameters())):
            raise NonFinite("weights are no numbers", is_of_step=False)

    def _diverged(self, what: str) -> UserError:
        return UserError(
            f"{what}: lower train.optimizer.learning-rate"
            + (f"; what was saved before stays in {self.folder}" if checkpoint.steps(self.folder) else "")
        )

    def _measure(self, log: MetricsLog | None, of: str = "eval") -> tuple[dict[str, LossReport], dict[str, float]]:
        """Losses of both splits by the reported protocol, and scores, with the averaged weights when there are any.

        Told, and logged under names that begin with `of` where there is a log.
        """
        with self._chosen_weights(), self.ranks.evaluating(self.network), evaluation_mode(self.network):
            reports = {
                split: evaluate_loss(
                    self.network,
                    self.data.objective,
                    batches(),
                    self.device,
                    self.data.n_bytes[split],
                    self.autocast,
                    division=self.ranks,
                )
                for split, batches in self.data.evaluations.items()
            }
            # Writing goes step by step, and each would gather all weights: of a model in parts nothing is shown.
            shows = self.ranks.is_first and not self.ranks.holds_parts
            sample = self.data.sample() if self.data.sample is not None and shows else None
            scores = {}
            if self.data.score is not None:
                with self.ranks.gathered(self.network):
                    scores = self.data.score(self.ranks)
        values = {
            f"{of}/{split}_{name}": value
            for split, report in reports.items()
            for name, value in report.to_dict().items()
            if name != "n_tokens"
        }
        values |= {f"{of}/valid_{name}": value for name, value in scores.items()}
        if self.ranks.any(not all(math.isfinite(report.loss) for report in reports.values())):
            raise NonFinite("an evaluated loss is no number", is_of_step=False)
        if log is not None:
            log.write(self.progress.step, **values, sample=sample)
        self.reporter.evaluation(self.progress.step, reports, sample)
        if scores:
            self.reporter.log("  ".join(f"{name} {value:.2f}" for name, value in scores.items()))
        return reports, scores

    def _evaluate(self, log: MetricsLog | None) -> dict[str, LossReport]:
        """Measures, and draws the conclusions: is it the best, does the run stop, does the rate drop."""
        progress, config = self.progress, self.config
        reports, scores = self._measure(log)
        progress.valid = reports["valid"].to_dict()
        stopping, measured = config.early_stopping, progress.valid | scores

        def lower_is_better(watcher: EarlyStopping | PlateauSchedule) -> float:
            metric = measured[watcher.metric]
            assert metric is not None  # what is not measured was refused before the first step
            [value] = self.ranks.of_first(float(metric))
            return -value if watcher.higher_is_better else value

        signed = lower_is_better(stopping or EarlyStopping())
        if progress.best is None or signed < progress.best:
            progress.best, progress.best_step, progress.n_without_improvement = signed, progress.step, 0
        else:
            progress.n_without_improvement += 1
        if stopping is not None and progress.n_without_improvement >= stopping.patience:
            progress.finished = True
            self.reporter.log(
                f"stopped at step {progress.step}: {stopping.metric} has not improved for "
                f"{stopping.patience} evaluations (best at step {progress.best_step})"
            )
        if self.plateau is not None:
            assert isinstance(config.schedule, PlateauSchedule)
            self.plateau.observe(lower_is_better(config.schedule))
        return reports

    def _chosen_weights(self) -> Any:
        return nullcontext() if self.average is None else self.average.swapped_in()

    @property
    def _chosen_step(self) -> int:
        """Whose weights the run's own folder holds."""
        progress = self.progress
        return progress.best_step or progress.step if self.config.select == "best" else progress.step

    def _save(self, *, is_scheduled: bool) -> None:
        """A checkpoint; and the run's own folder holds its weights when they are the ones to choose."""
        progress = self.progress
        self._refuse_bad_weights()
        if is_scheduled:
            progress.scheduled = [*progress.scheduled, progress.step][-self.config.keep_checkpoints :]
        progress.scaler = None if self.step.scale is None else self.step.scale.state()
        progress.plateau = None if self.plateau is None else self.plateau.state()
        weights = weights_of(self.network)
        state = TrainingState(
            numbers=vars(progress) | {"unlogged": list(progress.unlogged), "valid": dict(progress.valid)},
            optimizer=state_tensors(self.optimizer),
            average=None if self.average is None else self.average.state_tensors(),
            weights=None if self.average is None else weights,
        )
        chosen = weights if self.average is None else weights | self.average.weights
        kept = {*progress.scheduled} | (set() if progress.best_step is None else {progress.best_step})
        self.saver.save(Snapshot(progress.step, chosen, state, self._chosen_step, frozenset(kept)))

    def _interrupted(self, code: int) -> Interrupted:
        cause = None if code == 1 else signal.Signals(code - 1)
        name = "train.max_time" if cause is None else cause.name
        saved = f"saved at step {self.progress.step} of {self.config.max_steps}"
        return Interrupted(f"{name}: {saved}; go on with: glassformer resume {shlex.quote(str(self.folder))}", cause)


def _seed(seed: int, purpose: int, step: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(purpose, step)).generate_state(1, np.uint64)[0])
