"""The measure of a model with labels: its value from the probabilities that `classify` and `tag` return."""

from collections.abc import Mapping
from dataclasses import replace
from math import log
from pathlib import Path

import pytest

import glassformer
from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import LabelData, Run
from glassformer.inspection.ablation import Part, effects
from glassformer.inspection.capture import capture, encoded
from glassformer.inspection.measures import loss_of, measure_of
from glassformer.loading import ensemble
from glassformer.model import Model
from runs import label_run, label_set_run, pair_run
from tolerances import about, near

TEXT = "the dog so red"


def trained_on(run: Run, folder: Path, *, scale: float = 3) -> Model:
    """Return a model whose logits, times `scale`, give probabilities near 0 and 1."""
    model = glassformer.train(run, folder / "run").model
    model.network.output.proj.weight.data *= scale
    return model


def both(model: Model, part: str) -> tuple[float, dict[str, float], dict[str, float]]:
    """Return the measure without a part, and the labels of `TEXT` with it and without it."""
    inputs = encoded(model, TEXT).inputs
    measure, before = measure_of(model, inputs), model.classify(TEXT)
    assert loss_of(model.network, inputs, measure) == near(0)
    with model.ablate(part):
        return loss_of(model.network, inputs, measure), before, model.classify(TEXT)


def kl(p: Mapping[str, float], q: Mapping[str, float]) -> float:
    return sum(p[name] * log(p[name] / q[name]) for name in p)


def test_the_measure_of_classes_is_the_divergence_of_one_choice(tmp_path: Path) -> None:
    found, before, after = both(trained_on(label_run(tmp_path), tmp_path), "encoder.0")
    assert sum(before.values()) == near(1)
    assert found == near(kl(before, after), terms=16) and found > 1e-3


def test_the_measure_of_label_sets_is_the_sum_over_the_labels(tmp_path: Path) -> None:
    model = trained_on(label_set_run(tmp_path), tmp_path, scale=1)
    found, before, after = both(model, "encoder.0")
    assert abs(sum(before.values()) - 1) > 0.1, "the labels do not exclude each other"
    pairs = [({"yes": before[x], "no": 1 - before[x]}, {"yes": after[x], "no": 1 - after[x]}) for x in before]
    assert found == near(sum(kl(p, q) for p, q in pairs), terms=16) and found > 1e-2


def test_a_set_of_one_label_has_the_divergence_of_its_label(tmp_path: Path) -> None:
    trained = trained_on(label_run(tmp_path, "regression"), tmp_path)
    trained.network.output.unit = (0.0, 1.0)
    run = replace(trained.run, data=LabelData(outputs="multi_label"))
    found, before, after = both(replace(trained, run=run, labels=("animal",)), "encoder.0")
    p, q = before["animal"], after["animal"]
    assert found == about(kl({"yes": p, "no": 1 - p}, {"yes": q, "no": 1 - q}), percent=1) and found > 1e-5


def test_the_measure_of_a_number_is_its_change(tmp_path: Path) -> None:
    found, before, after = both(trained_on(label_run(tmp_path, "regression"), tmp_path), "encoder.0")
    assert found == near(abs(before["number"] - after["number"]), terms=16) and found > 1e-3


def test_the_measure_of_tags_is_the_mean_over_the_positions(tmp_path: Path) -> None:
    model = trained_on(label_run(tmp_path, "tags"), tmp_path)
    inputs = encoded(model, TEXT).inputs
    before = capture(model, TEXT, names=["logits"])["logits"][0].log_softmax(-1)
    found = effects(model.network, inputs, measure_of(model, inputs), [Part("encoder", 0)])
    with model.ablate("encoder.0"):
        after = capture(model, TEXT, names=["logits"])["logits"][0].log_softmax(-1)
    expected = (before.exp() * (before - after)).sum(-1).mean()
    assert found.changes[Part("encoder", 0)] == near(float(expected), terms=16) and expected > 1e-3


def test_an_ensemble_has_no_inner_values(tmp_path: Path) -> None:
    folder = api.train(pair_run(tmp_path, max_steps=1), tmp_path / "run").folder
    both = ensemble([folder, folder])
    with pytest.raises(UserError, match="an ensemble has several networks"):
        capture(both, TEXT)
