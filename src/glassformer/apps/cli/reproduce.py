"""glassformer reproduce RECIPE"""

import time
from pathlib import Path
from typing import Annotated

from glassformer.apps.cli.arguments import with_flags
from glassformer.apps.cli.progress import RunOutput
from glassformer.apps.cli.train import train
from glassformer.common.errors import Log, Progress, UserError
from glassformer.config import recipes
from glassformer.config.run import ExpectedResult, Run
from glassformer.evaluation import metrics
from glassformer.tasks.task import trainable_task
from glassformer.training.checks import check_new_run


def main(name: Annotated[str, "RECIPE"], /, *, output: Annotated[RunOutput, "out", "quiet"], **keys: str) -> int:
    """Train a recipe from random weights and compare the result with its bound; exit code 1 if it misses the bound.

    Args:
        name: A recipe, or a TOML file with a [result].

    Examples:
        glassformer reproduce copy-task
    """
    run = with_flags(recipes.load(name), keys)
    if run.result is None:
        raise UserError(f"the recipe {run.name} has no [result] to compare with: use `glassformer train`")
    folder = output.folder(run)
    check_new_run(run, folder)
    _check(run, run.result)  # imports torch
    began = time.perf_counter()
    outcome = output.trained(lambda reporter: train(run, folder, reporter))
    seconds = time.perf_counter() - began
    with output.reporter() as reporter, reporter.phase("evaluating") as progress:
        reached = _reached(outcome.folder, run.result, progress, reporter.log)
    passed = run.result.at_least <= reached <= run.result.at_most
    lowest, highest = run.result.at_least, run.result.at_most
    bounds = f"{lowest} to {highest}"
    if highest == float("inf"):
        bounds = f"at least {lowest}"
    elif not lowest:
        bounds = f"at most {highest}"
    verdict = "PASS" if passed else "FAIL"
    print(f"{verdict}  {run.name}: {run.result.metric} {reached:.4f} (must be {bounds}), {seconds:.0f} s")
    return 0 if passed else 1


def _check(run: Run, result: ExpectedResult) -> None:
    """Raise `UserError` before the training for a result that cannot be measured."""
    if result.side == "test" and trainable_task(run).test_path(run) is None:
        raise UserError("result.side is test, but this data has no test part: use built-in data")
    task = trainable_task(run)
    known = {"loss", *task.metrics(run)} - {"perplexity"}  # perplexity is a function of the loss
    pair_scores = task.pair_scores(run)
    if pair_scores is not None and result.metric in known - {"loss"}:
        pair_scores.require()
    if result.metric not in known:
        raise UserError(f"result.metric: expected one of {', '.join(sorted(known))}, got {result.metric}")


def _reached(folder: Path, result: ExpectedResult, progress: Progress, log: Log) -> float:
    """Measure the metric of the trained model on the part of the data that the recipe names."""
    from glassformer import api

    model = api.load(folder)
    path = trainable_task(model.run).test_path(model.run) if result.side == "test" else None
    if result.metric in metrics.names("losses"):
        value = model.evaluate(path, progress, log=log, loss_only=True).to_dict()[result.metric]
    else:
        value = model.scores(path, progress, log=log).get(result.metric)
    if not isinstance(value, float):
        raise UserError(f"{result.metric} is unknown for this run")
    return value
