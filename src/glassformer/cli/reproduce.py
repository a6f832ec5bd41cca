"""glassformer reproduce RECIPE"""

import time
from pathlib import Path
from typing import Annotated

from glassformer import recipes
from glassformer.cli.arguments import fail, with_flags
from glassformer.cli.progress import err
from glassformer.cli.train import train
from glassformer.config.run import ExpectedResult, Run
from glassformer.tasks.registry import task_of, trainable_task
from glassformer.tasks.task import HasPairs, HasTestSet


def main(*names: Annotated[str, "RECIPE"], out: str | None = None, **keys: str) -> int:
    """Trains a recipe from nothing and compares with the result that it must reach; exit code 1 when it falls short.

    Args:
        names: A recipe, or a TOML file with a [result].
        out: The run's folder (default runs/NAME).
    """
    if len(names) != 1:
        fail("reproduce needs one recipe; see `glassformer recipes`")
    run = with_flags(recipes.load(names[0]), keys)
    if run.result is None:
        fail(f"the recipe {run.name} states no [result] to compare with")
    _check(run, run.result)
    began = time.perf_counter()
    outcome = train(run, out)
    seconds = time.perf_counter() - began
    reached = _reached(outcome.folder, run.result)
    passed = run.result.at_least <= reached <= run.result.at_most
    lowest, highest = run.result.at_least, run.result.at_most
    bounds = f"{lowest} to {highest}" if lowest else f"at most {highest}"
    if highest == float("inf"):
        bounds = f"at least {lowest}"
    verdict = "PASS" if passed else "FAIL"
    print(f"{verdict}  {run.name}: {run.result.metric} {reached:.4f} (must be {bounds}), {seconds:.0f} s")
    return 0 if passed else 1


def _check(run: Run, result: ExpectedResult) -> None:
    """`UserError` for a result that could not be measured, before hours of training."""
    if result.side == "test" and _test_path(run) is None:
        fail("result.side is test, and only built-in pairs and labelled texts, or a data.test_path, have a test side")
    task = trainable_task(run)
    known = {"loss", *task.metrics(run)} - {"perplexity"}  # it says what the loss says
    if isinstance(task, HasPairs) and result.metric in known - {"loss"}:
        task.require_scores(run)
    if result.metric not in known:
        fail(f"result.metric is {result.metric}, and this run has {', '.join(sorted(known))}")


def _test_path(run: Run) -> str | None:
    """Where the test data of a run stands; None where it has none."""
    task = task_of(run)
    return task.test_path(run) if isinstance(task, HasTestSet) else None


def _reached(folder: Path, result: ExpectedResult) -> float:
    """The model's own value of the metric, on the side of the data that the recipe names."""
    from glassformer import api
    from glassformer.evaluation.text import LOSSES  # which needs torch; --help does not

    model = api.load(folder)
    path = _test_path(model.run) if result.side == "test" else None
    if result.metric in LOSSES:
        value = model.evaluate(path, log=err).to_dict()[result.metric]
    else:
        value = model.scores(path, log=err).get(result.metric)
    if not isinstance(value, float):
        fail(f"{result.metric} is unknown for this run")
    return value
