"""Ablation: predictions without parts of the model, and the effect of each part."""

from typing import Any

from torch import Tensor

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.apps.inspector.panels.texts import texts_of
from glassformer.apps.inspector.panels.tokens import tokens_of
from glassformer.apps.inspector.shown import Shown
from glassformer.inspection.ablation import MEANS
from glassformer.inspection.capture import capture_tensors
from glassformer.inspection.effects import Effects, effects_of_texts, mean_effects
from glassformer.inspection.effects import effects as effects_of
from glassformer.inspection.measures import measure_of
from glassformer.tasks.trained_model import TrainedModel


@route("POST", "/api/run/{run}/ablate")
def ablate(inspector: Inspector, run: str, off: str, mean: bool = False) -> dict[str, Any]:
    """Answer the measure and the predictions before and after parts are switched off; see `ablation.ablate`.

    `off` are names with commas, such as `decoder.0.head.3,decoder.1.feed_forward`.
    """
    shown = inspector.run_of(run)
    measure = measure_of(shown.model, shown.trace.inputs)
    outcomes = {
        side: {"loss": float(measure(logits)[0]), **_predictions(shown, logits)}
        for side, logits in (("before", shown.trace["logits"]), ("after", shown.logits(off, mean)))
    }
    return {**shown.names, "measure": measure.name, **outcomes}


def _predictions(shown: Shown, logits: Tensor) -> dict[str, Any]:
    """Return the log-probability of the token of each position, and the best tokens; or labels, or a number."""
    run = tokens_of(shown, logits)
    read = run["target"] or run["source"]
    tokens = zip(run["written"] or read, read, strict=True)
    positions = [{"log_prob": token["log_prob"], "top": before["top"][:5]} for token, before in tokens]
    return {"positions": positions, "labels": run["labels"], "number": run["number"]}


@route("GET", "/api/run/{run}/effects")
def effects(inspector: Inspector, run: str, mean: bool = False) -> dict[str, Any]:
    """Answer the change of the measure for each head, feed-forward and layer, one at a time, on the text of a run.

    `mean` replaces a part by its mean over the positions, in place of zero.
    """
    shown = inspector.run_of(run)
    network, inputs, means = shown.model.network, shown.trace.inputs, None
    if mean:
        means = capture_tensors(network, inputs, MEANS)
    measured = mean_effects([effects_of(network, inputs, measure_of(shown.model, inputs), means=means)])
    return shown.names | _answer(shown.model, measured)


@route("POST", "/api/effects")
def effects_of_set(
    inspector: Inspector, lines: list[str], mean: bool = False, model: str | None = None
) -> dict[str, Any]:
    """Answer the mean change of the measure over texts, one per line, with its spread and its baseline."""
    chosen, texts = inspector.model_of(model), texts_of(lines)
    measured = effects_of_texts(chosen, texts, by_mean=mean, progress=inspector.reporting())
    return {"model": page_data.model_id(chosen)} | _answer(chosen, measured)


def _answer(model: TrainedModel, measured: Effects) -> dict[str, Any]:
    """Return the mean changes by kind and layer, and each change with its spread beside its baseline."""
    kinds = list(page_data.attention_sizes(model))
    stacks = [kind for kind in kinds if kind != "cross"]
    return {
        "measure": measured.measure,
        "loss": measured.before,
        "n_texts": measured.n_texts,
        **{kind: measured.heads(kind) for kind in kinds},
        "feed_forward": {stack: measured.feed_forwards(stack) for stack in stacks},
        "layers": {stack: measured.layers(stack) for stack in stacks},
        "beside": {str(part): page_data.beside(one) for part, one in measured.beside_others().items()},
    }
