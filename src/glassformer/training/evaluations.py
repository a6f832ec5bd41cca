"""The evaluations of a run: losses and scores, and their effect on the best step, the learning rate and the end."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from torch import nn

from glassformer.config.train import EarlyStopping, PlateauSchedule, TrainConfig
from glassformer.evaluation import metrics
from glassformer.evaluation.loss import LossReport, evaluate_loss
from glassformer.models.devices import evaluation_mode
from glassformer.nn.kernels.linear import forget_packed
from glassformer.tasks.batches import TrainingData, in_precision
from glassformer.tasks.reporting import Evaluation
from glassformer.training.averaging import ExponentialAverage
from glassformer.training.host import Host
from glassformer.training.metrics_log import NoLog
from glassformer.training.non_finite import NonFinite
from glassformer.training.schedules import Plateau
from glassformer.training.trainer_state import TrainerState


class Evaluations:
    """Measures a network, with its averaged weights if it has them, and records the results in the state of the run."""

    def __init__(
        self,
        config: TrainConfig,
        network: nn.Module,
        data: TrainingData,
        host: Host,
        average: ExponentialAverage | None,
    ) -> None:
        self.config, self.network, self.data, self.host, self.average = config, network, data, host, average
        schedule = config.schedule
        self.plateau: Plateau | None = None
        if isinstance(schedule, PlateauSchedule):
            self.plateau = Plateau(schedule.patience, schedule.ratio)

    def measure(
        self, step: int, log: NoLog, best: float | None, of: str = "eval"
    ) -> tuple[dict[str, LossReport], dict[str, float]]:
        """Measure the losses of both splits and the scores; report them, and log them under names beginning with `of`.

        `best` is the best value of the watched metric so far. Without validation data the results are empty. Raises
        `NonFinite` for a loss of NaN or Inf.
        """
        if not self.data.evaluations:
            return {}, {}
        try:
            reports, scores, sample = self._measured()
        finally:
            forget_packed(self.network)  # the next step changes the weights
        if self.host.ranks.any(not all(math.isfinite(report.loss) for report in reports.values())):
            raise NonFinite("an evaluated loss is not finite", step, is_of_step=False)
        values: dict[str, Any] = {
            f"{of}/{split}_{name}": value
            for split, report in reports.items()
            for name, value in report.to_dict().items()
            if name != "n_tokens"
        }
        log.write(step, **values, **{f"{of}/valid_{name}": value for name, value in scores.items()}, sample=sample)
        is_best = best is None or self._watched(reports, scores) < best
        watched = (self.config.early_stopping or EarlyStopping()).metric
        self.host.reporter.evaluation(Evaluation(step, reports, scores, sample, watched, is_best))
        return reports, scores

    def conclude(self, progress: TrainerState, reports: dict[str, LossReport], scores: dict[str, float]) -> None:
        """Record an evaluation: best step and early stopping in `progress`, a lower learning rate in the plateau."""
        if not reports:
            return
        progress.valid = reports["valid"].to_dict()
        stopping = self.config.early_stopping
        [signed] = self.host.ranks.of_first(self._watched(reports, scores))
        if progress.best is None or signed < progress.best:
            progress.best, progress.best_step, progress.n_without_improvement = signed, progress.step, 0
        else:
            progress.n_without_improvement += 1
        if stopping is not None and progress.n_without_improvement >= stopping.patience:
            progress.finished = True
            self.host.reporter.log(
                f"stopped at step {progress.step}: {stopping.metric} has not improved for "
                f"{stopping.patience} evaluations (best at step {progress.best_step})"
            )
        if self.plateau is not None:
            assert isinstance(self.config.schedule, PlateauSchedule)
            [watched] = self.host.ranks.of_first(self._watched(reports, scores, self.config.schedule))
            self.plateau.observe(watched)

    def _watched(
        self,
        reports: Mapping[str, LossReport],
        scores: Mapping[str, float],
        watcher: EarlyStopping | PlateauSchedule | None = None,
    ) -> float:
        """Return the watched metric, by default of early stopping, negated if a higher value is better."""
        watcher = watcher or self.config.early_stopping or EarlyStopping()
        value = (reports["valid"].to_dict() | dict(scores))[watcher.metric]
        assert value is not None  # a metric that is not measured was refused before the first step
        return -value if metrics.METRICS[watcher.metric].higher_is_better else value

    def _measured(self) -> tuple[dict[str, LossReport], dict[str, float], str | None]:
        """Evaluate both splits; return the reports, the scores and a text that the model writes."""
        data, ranks, network = self.data, self.host.ranks, self.network
        device = self.host.device
        weights = nullcontext() if self.average is None else self.average.swapped_in()
        with weights, ranks.evaluating(network), evaluation_mode(network):
            reports: dict[str, LossReport] = {}
            for split, batches in data.evaluations.items():
                with in_precision(self.config.precision, device):
                    sums = evaluate_loss(network, data.objective, batches(), device, division=ranks)
                reports[split] = sums.report(data.n_bytes.get(split))
            # A sample. Each step of a generation would gather all weights, so a sharded model shows none.
            sample, scores = None, {}
            if data.sample is not None and ranks.is_first and not ranks.holds_parts:
                sample = data.sample()
            if data.score is not None:
                with ranks.gathered(network):
                    scores = data.score(ranks)
        return reports, scores, sample
