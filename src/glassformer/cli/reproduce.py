"""glassformer reproduce RECIPE"""

import time
from typing import TYPE_CHECKING, Annotated

from glassformer import recipes
from glassformer.cli.arguments import fail, with_flags
from glassformer.cli.progress import err
from glassformer.cli.train import train
from glassformer.config.run import CausalConfig, ExpectedResult, LabelData, MaskedConfig, PairData, Run, TextData

if TYPE_CHECKING:
    from glassformer.model import Model


def main(*names: Annotated[str, "RECIPE"], out: str | None = None, **keys: str) -> int:
    """Trains a recipe from nothing and compares with the result that it must reach; exit code 1 when it falls short.

    Args:
        names: A recipe, or a TOML file with a [result].
        out: The run's folder (default runs/NAME).
    """
    from glassformer import api

    if len(names) != 1:
        fail("reproduce needs one recipe; see `glassformer recipes`")
    run = with_flags(recipes.load(names[0]), keys)
    if run.result is None:
        fail(f"the recipe {run.name} states no [result] to compare with")
    _check(run, run.result)
    began = time.perf_counter()
    outcome = train(run, out)
    seconds = time.perf_counter() - began
    reached = _reached(api.load(outcome.folder), run.result)
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
    from glassformer.evaluation.label_scores import LABEL_SCORES
    from glassformer.evaluation.pairs import SCORES, require_scores

    data = run.data
    if result.side == "test" and _test_path(run) is None:
        fail("result.side is test, and only built-in pairs and labelled texts, or a data.test_path, have a test side")
    known = {"loss"}
    if isinstance(data, PairData):
        known |= set(SCORES[data.outputs])
        if result.metric in known - {"loss"}:
            require_scores(data.outputs)
    elif isinstance(data, LabelData):
        known |= set(LABEL_SCORES[data.outputs])
    elif isinstance(run.objective, CausalConfig):
        known |= {"bits_per_byte"}
    elif isinstance(run.objective, MaskedConfig):
        known |= {"masked_accuracy"}
    if result.metric not in known:
        fail(f"result.metric is {result.metric}, and this run has {', '.join(sorted(known))}")


def _test_path(run: Run) -> str | None:
    """Where the test data of a run stands; None where it has none."""
    data = run.data
    if isinstance(data, TextData):
        return None
    if isinstance(data, LabelData) and data.test_path is not None:
        return data.test_path
    return f"{data.path}#test" if (data.path or "").startswith("builtin:") else None


def _reached(model: "Model", result: ExpectedResult) -> float:
    """The model's own value of the metric, on the side of the data that the recipe names."""
    from glassformer.evaluation.pairs import LOSSES

    path = _test_path(model.run) if result.side == "test" else None
    if result.metric in LOSSES:
        value = model.evaluate(path, log=err).to_dict()[result.metric]
    else:
        value = model.scores(path, log=err).get(result.metric)
    if not isinstance(value, float):
        fail(f"{result.metric} is unknown for this run")
    return value
