"""The loop, for every task: step, log, evaluate, save. It never reads labels or a task's name."""

import math
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from glassformer.data.batching import Example, Sampler
from glassformer.errors import Interrupted, UserError
from glassformer.evaluation.loss import LossReport, evaluate_loss, evaluation_mode
from glassformer.objectives.objective import Objective
from glassformer.store import checkpoint
from glassformer.store.checkpoint import TrainingState
from glassformer.store.model_directory import WEIGHTS, has_weights_of, is_published, load_weights, publish, weights_of
from glassformer.train_config import PlateauSchedule, TrainConfig
from glassformer.training.averaging import ExponentialAverage, average_directories
from glassformer.training.metrics_log import MetricsLog
from glassformer.training.optimizers import (
    build_optimizer,
    load_state_tensors,
    set_learning_rates,
    state_tensors,
)
from glassformer.training.schedules import Plateau, schedule_factor
from glassformer.training.signals import StopRequest, stop_on_signals
from glassformer.training.step import StepResult, TrainStep

_DROPOUT, _COLLATE = 3, 4
"""Spawn keys that keep these random streams apart from the sampler's."""


class Reporter(Protocol):
    """Where the loop's news goes: a terminal, a test, nowhere."""

    def say(self, text: str) -> None: ...

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None: ...

    def evaluation(self, step: int, reports: dict[str, LossReport], sample: str | None) -> None: ...


@dataclass(frozen=True)
class Task:
    """What is trained on what; `evaluations` gives fresh batches of each split and the bytes of its text."""

    objective: Objective
    sampler: Sampler
    evaluations: dict[str, Callable[[], Iterable[Sequence[Example]]]]
    n_bytes: dict[str, int | None]
    sample: Callable[[], str] | None = None
    """Text that the model writes now, shown at each evaluation."""
    score: Callable[[], dict[str, float]] | None = None
    """Scores of the model's outputs now, such as BLEU; taken at each evaluation, so given only when they are wanted."""


@dataclass
class Progress:
    """All that the loop remembers beside weights and optimizer; JSON."""

    step: int = 0
    seconds: float = 0.0
    n_targets: int = 0
    best: float | None = None
    best_step: int | None = None
    n_without_improvement: int = 0
    plateau: dict[str, Any] | None = None
    unlogged: list[tuple[float, int]] = field(default_factory=list)
    """Nats and targets of the steps since the last line of the log: a resumed run writes the same next line."""
    finished: bool = False
    valid: dict[str, float | int | None] = field(default_factory=dict)
    data_digest: str = ""


class Trainer:
    """One run. `train` goes from wherever the progress stands to the last step.

    Batch, dropout and corruption of a step are functions of (seed, step) alone, so a resumed run needs the step
    and no random state, and evaluation cannot disturb what follows it.
    """

    def __init__(
        self,
        config: TrainConfig,
        network: nn.Module,
        task: Task,
        folder: Path,
        write_model: Callable[[Path], None],
        reporter: Reporter,
        device: torch.device,
        data_digest: str = "",
        scales: Mapping[str, float] | None = None,
    ) -> None:
        self.config, self.network, self.task, self.folder = config, network, task, folder
        self.write_model, self.reporter, self.device = write_model, reporter, device
        if config.early_stopping is not None and task.score is None:
            _require_metric(config.early_stopping.metric, task)
        self.optimizer = build_optimizer(network, config.optimizer, scales)
        self.average = ExponentialAverage(network, config.ema_decay) if config.ema_decay else None
        self.plateau = None
        if isinstance(config.schedule, PlateauSchedule):
            s = config.schedule
            self.plateau = Plateau(s.patience, s.ratio, s.min_ratio)
        self.autocast = torch.bfloat16 if config.precision == "bf16" else None
        for module in network.modules():
            if hasattr(module, "activation_checkpointing"):
                setattr(module, "activation_checkpointing", config.activation_checkpointing)  # noqa: B010
        self.step = TrainStep(
            network,
            task.objective,
            self.optimizer,
            clip_norm=config.clip_norm,
            autocast=self.autocast,
            device=device,
            compiled=config.compile,
        )
        self.progress = Progress(data_digest=data_digest)

    def restore(self, folder: Path) -> None:
        """Continues from a verified checkpoint, exactly."""
        state = checkpoint.load_state(folder)
        self.progress = Progress(**state.numbers)
        load_weights(self.network, checkpoint.weights_path(folder))
        load_state_tensors(self.optimizer, state.optimizer)
        if self.average is not None and state.average is not None:
            self.average.load_state_tensors(state.average)
        if self.plateau is not None and self.progress.plateau is not None:
            self.plateau.restore(self.progress.plateau)
        try:
            self._publish_chosen()  # the run may have died between a checkpoint and this
        except UserError as error:
            self.reporter.say(f"{error}; its weights were the best so far, and the search for the best starts anew")
            self.progress.best = self.progress.best_step = None

    def train(self) -> dict[str, LossReport]:
        """Runs to the end, and returns the reports of the last evaluation.

        Raises `Interrupted` after saving, when a signal asked to stop.
        """
        config, progress = self.config, self.progress
        reports: dict[str, LossReport] = {}
        log = MetricsLog(self.folder, progress.step, config.tensorboard)
        with log, stop_on_signals() as stop:
            clock = _Clock(progress, self.device)
            while progress.step < config.max_steps and not progress.finished:
                result = self._one_step()
                progress.step += 1
                progress.n_targets += result.n_targets
                clock.count(result)
                last = progress.step == config.max_steps
                if progress.step % config.log_every == 0 or last:
                    self._log_step(log, clock)
                if progress.step % config.eval_every == 0 or last:
                    with clock.paused():
                        reports = self._evaluate(log)
                stops = bool(stop)  # asked once: a signal that comes later stops after the next step
                ends = last or progress.finished
                is_due = progress.step % (config.checkpoint_every or config.eval_every) == 0
                if ends or stops or is_due or progress.best_step == progress.step:
                    with clock.paused():
                        self._save()
                if stops and not ends:
                    raise self._interrupted(stop)
            if config.select == "average":
                reports = self._publish_average(log)
        return reports

    def _publish_average(self, log: MetricsLog) -> dict[str, LossReport]:
        """The run's own folder, and the network, hold the mean of the newest checkpoints; what the mean is worth."""
        newest = checkpoint.steps(self.folder)[-self.config.keep_checkpoints :]
        steps = [step for step in newest if checkpoint.is_intact(self.folder, step, self.reporter.say)]
        folder = checkpoint.path_of(self.folder, self.progress.step).parent / "average"
        average_directories([checkpoint.path_of(self.folder, step) for step in steps], folder)
        load_weights(self.network, folder / WEIGHTS)
        self.average = None  # the checkpoints' weights were those of the moving average, if there was one
        self.reporter.say(f"the mean of the weights of steps {', '.join(map(str, steps))}:")
        is_new = not has_weights_of(self.folder, folder)
        reports, _ = self._measure(log if is_new else None, "mean/")
        if is_new:
            publish(folder, self.folder, self.progress.step)
        return reports

    def _one_step(self) -> StepResult:
        config, step = self.config, self.progress.step
        factor = schedule_factor(config.schedule, step, config.max_steps)
        set_learning_rates(self.optimizer, factor * (self.plateau.factor if self.plateau else 1.0))
        torch.manual_seed(_seed(config.seed, _DROPOUT, step))
        rng = np.random.default_rng(np.random.SeedSequence(config.seed, spawn_key=(_COLLATE, step)))
        first = step * config.accumulation
        micro_batches = [
            self.task.objective.collate(self.task.sampler.batch(first + i), rng) for i in range(config.accumulation)
        ]
        result = self.step(micro_batches)
        if self.average is not None:
            self.average.update()
        return result

    def _log_step(self, log: MetricsLog, clock: "_Clock") -> None:
        progress = self.progress
        values = clock.read()
        values["learning_rate"] = self.optimizer.param_groups[0]["lr"]
        loss, norm = values["train/batch_loss"], values["gradient_norm"]
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise self._diverged(f"the loss or its gradient is no number (loss {loss}, gradient {norm})")
        log.write(progress.step, **values)
        self.reporter.step(progress.step, self.config.max_steps, values)

    def _refuse_bad_weights(self) -> None:
        if not all(bool(p.isfinite().all()) for p in self.network.parameters()):
            raise self._diverged("weights are no numbers")

    def _diverged(self, what: str) -> UserError:
        return UserError(
            f"{what} at step {self.progress.step}: lower train.optimizer.learning-rate"
            + (f"; what was saved before stays in {self.folder}" if checkpoint.steps(self.folder) else "")
        )

    def _measure(self, log: MetricsLog | None, of: str = "") -> tuple[dict[str, LossReport], dict[str, float]]:
        """Losses of both splits by the reported protocol, and scores, with the averaged weights when there are any.

        Told, and logged under names that begin with `of` where there is a log.
        """
        with self._chosen_weights(), evaluation_mode(self.network):
            reports = {
                split: evaluate_loss(
                    self.network,
                    self.task.objective,
                    batches(),
                    self.device,
                    self.task.n_bytes[split],
                    self.autocast,
                )
                for split, batches in self.task.evaluations.items()
            }
            sample = None if self.task.sample is None else self.task.sample()
            scores = {} if self.task.score is None else self.task.score()
        values = {
            f"{of}{split}/{name}": value
            for split, report in reports.items()
            for name, value in report.to_dict().items()
            if name != "n_tokens"
        }
        values |= {f"{of}valid/{name}": value for name, value in scores.items()}
        if not all(math.isfinite(report.loss) for report in reports.values()):
            raise self._diverged("an evaluated loss is no number")
        if log is not None:
            log.write(self.progress.step, **values, sample=sample)
        self.reporter.evaluation(self.progress.step, reports, sample)
        if scores:
            self.reporter.say("  ".join(f"{name} {value:.2f}" for name, value in scores.items()))
        return reports, scores

    def _evaluate(self, log: MetricsLog) -> dict[str, LossReport]:
        """Measures, and draws the conclusions: is it the best, does the run stop, does the rate drop."""
        progress, config = self.progress, self.config
        reports, scores = self._measure(log)
        progress.valid = reports["valid"].to_dict()
        stopping = config.early_stopping
        metric = (progress.valid | scores)["loss" if stopping is None else stopping.metric]
        assert metric is not None  # what is not measured was refused before the first step
        signed = -float(metric) if stopping is not None and stopping.higher_is_better else float(metric)
        if progress.best is None or signed < progress.best:
            progress.best, progress.best_step, progress.n_without_improvement = signed, progress.step, 0
        else:
            progress.n_without_improvement += 1
        if stopping is not None and progress.n_without_improvement >= stopping.patience:
            progress.finished = True
            self.reporter.say(
                f"stopped at step {progress.step}: {stopping.metric} has not improved for "
                f"{stopping.patience} evaluations (best at step {progress.best_step})"
            )
        if self.plateau is not None:
            self.plateau.observe(reports["valid"].loss)
            progress.plateau = self.plateau.state()
        return reports

    def _chosen_weights(self) -> Any:
        return nullcontext() if self.average is None else self.average.swapped_in()

    def _save(self) -> None:
        """A checkpoint; and the run's own folder holds its weights when they are the ones to choose."""
        progress = self.progress
        self._refuse_bad_weights()
        state = TrainingState(
            numbers=dict(vars(progress)),
            optimizer=state_tensors(self.optimizer),
            average=None if self.average is None else self.average.state_tensors(),
            weights=None if self.average is None else weights_of(self.network),
        )
        if self.average is not None:  # copies: the swap below exchanges them in place
            state = TrainingState(state.numbers, state.optimizer, _copies(state.average), _copies(state.weights))
        with self._chosen_weights():
            checkpoint.save(self.folder, progress.step, self.write_model, state)
        self._publish_chosen()
        keep = set() if progress.best_step is None else {progress.best_step}
        checkpoint.prune(self.folder, progress.step, self.config.keep_checkpoints, keep)

    def _publish_chosen(self) -> None:
        """The run's own folder holds the weights of the best checkpoint, or of the last, whole."""
        progress = self.progress
        step = progress.best_step or progress.step if self.config.select == "best" else progress.step
        path = checkpoint.path_of(self.folder, step)
        if path.is_dir() and not is_published(self.folder, step):
            publish(path, self.folder, step)

    def _interrupted(self, stop: StopRequest) -> Interrupted:
        name = stop.signal.name if stop.signal else "a signal"
        return Interrupted(
            f"{name}: saved at step {self.progress.step} of {self.config.max_steps}; "
            f"go on with: glassformer resume {shlex.quote(str(self.folder))}",
            stop.signal,
        )


def _require_metric(name: str, task: Task) -> None:
    """`UserError` before the first step, for what the first evaluation could not find."""
    missing = set() if task.n_bytes["valid"] else {"bits_per_byte"}
    missing |= set() if task.objective.label_smoothing else {"smoothed_loss"}
    known = [f.name for f in fields(LossReport) if f.name not in missing]
    if name not in known:
        raise UserError(f"train.early_stopping.metric is {name!r}, which is unknown here; there are {', '.join(known)}")


def _copies(tensors: dict[str, torch.Tensor] | None) -> dict[str, torch.Tensor] | None:
    return None if tensors is None else {name: x.clone() for name, x in tensors.items()}


def _seed(seed: int, purpose: int, step: int) -> int:
    return int(np.random.SeedSequence(seed, spawn_key=(purpose, step)).generate_state(1, np.uint64)[0])


class _Clock:
    """Time spent on steps alone, and sums since the last line of the log."""

    def __init__(self, progress: Progress, device: torch.device) -> None:
        self.progress = progress
        self.unlogged = [(torch.tensor(nats, device=device), n_targets) for nats, n_targets in progress.unlogged]
        self.n_untimed = len(self.unlogged)  # steps of the process before this one
        self.seconds = 0.0
        self.since = time.perf_counter()

    def count(self, result: StepResult) -> None:
        self.unlogged.append((result.nats, result.n_targets))
        self.gradient_norm = result.gradient_norm

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds += now - self.since
        self.progress.seconds += now - self.since
        self.since = now

    def read(self) -> dict[str, float]:
        """Mean loss, the last gradient norm and the rate since the last call; waits for the device."""
        nats = float(torch.stack([nats for nats, _ in self.unlogged]).sum())
        n_targets = [n_targets for _, n_targets in self.unlogged]
        norm = float(self.gradient_norm)
        self._tick()
        values = {
            "train/batch_loss": nats / sum(n_targets),
            "gradient_norm": norm,
            "tokens_per_s": sum(n_targets[self.n_untimed :]) / self.seconds,
            "step_ms": 1000 * self.seconds / len(n_targets[self.n_untimed :]),
        }
        self.unlogged, self.n_untimed, self.seconds = [], 0, 0.0
        return values

    def paused(self) -> "_Clock":
        return self

    def __enter__(self) -> None:
        self._tick()
        self.progress.unlogged = [(float(nats), n_targets) for nats, n_targets in self.unlogged]

    def __exit__(self, *error: object) -> None:
        self.since = time.perf_counter()
