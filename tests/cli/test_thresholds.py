"""Thresholds of probabilities choose labels as scikit-learn does, in Python and on the command line."""

import json
from pathlib import Path

import numpy as np
import pytest

from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import LabelData
from glassformer.data.labels import LabelCorpus
from glassformer.evaluation.labels import best_threshold
from glassformer.inference.classify import Threshold
from glassformer.model import Model
from runs import Tiny, label_run
from tolerances import near

from .conftest import Glassformer

TEXTS = ["the dog runs", "red cat", "the dog so red", "two small trees"]


@pytest.fixture(scope="module")
def two(tiny: Tiny) -> Model:
    return api.load(tiny("classes"), device="cpu")


@pytest.fixture(scope="module")
def several(tiny: Tiny) -> Model:
    return api.load(tiny("multi_label"), device="cpu")


@pytest.mark.parametrize("seed", range(20))
def test_the_best_threshold_is_that_of_sklearn(seed: int) -> None:
    from sklearn.metrics import f1_score, precision_recall_curve

    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 60))
    true = rng.random(n) < rng.choice([0.0, 0.1, 0.5, 1.0])
    p = np.round(rng.random(n), int(rng.integers(1, 4)))  # with equal probabilities
    at, f1 = best_threshold(true, p)
    assert f1 == pytest.approx(100 * f1_score(true, p >= at, zero_division=0))
    if true.any():
        precision, recall, _ = precision_recall_curve(true, p)
        both = precision + recall
        assert f1 == pytest.approx(100 * (2 * precision * recall / np.where(both, both, 1)).max())


@pytest.mark.parametrize("at", [0.0, 0.2, 0.5, 0.8, 1.0])
def test_labels_are_those_whose_probability_is_large_enough(two: Model, several: Model, at: float) -> None:
    p = [[row[name] for name in several.classes] for row in several.classify(TEXTS)]
    expected = np.array(p) >= at
    chosen = several.choose_labels(TEXTS, at)
    found = np.array([[name in row for name in several.classes] for row in chosen])
    assert (found == expected).all()
    for label in two.classes:
        [other] = {*two.classes} - {label}
        of_label = np.array([row[label] for row in two.classify(TEXTS)])
        expected_classes = [[label] if is_it else [other] for is_it in of_label >= at]
        assert two.choose_labels(TEXTS, at, label) == expected_classes
        assert two.choose_labels(TEXTS[0], at, label) == expected_classes[0]


def test_half_is_the_most_probable_class(two: Model) -> None:
    for probabilities, chosen in zip(two.classify(TEXTS), two.choose_labels(TEXTS, 0.5, "cat"), strict=True):
        assert chosen == [max(probabilities, key=lambda name: probabilities[name])]


def test_evaluate_names_the_best_threshold(two: Model, several: Model, glassformer: Glassformer) -> None:
    """The F1 that is reported is the F1 of the labels that the threshold chooses on the same texts."""
    from sklearn.metrics import f1_score

    for model in (two, several):
        [data] = [model.run.data]
        assert isinstance(data, LabelData)
        valid = LabelCorpus(data).split[1]
        scores, texts = model.scores(), [record.inputs[0] for record in valid]
        label = scores.get("best_threshold_label")
        chosen = model.choose_labels(texts, scores["best_threshold"], label)
        of_labels = model.classes if label is None else [label]
        true, predicted = (
            np.array([[name in row for name in of_labels] for row in rows]).flatten()
            for rows in ([record.labels for record in valid], chosen)
        )
        assert scores["best_threshold_f1"] == pytest.approx(100 * f1_score(true, predicted, zero_division=0))
        assert label is None or true.mean() <= 0.5  # the rarer class
    printed = glassformer("evaluate", two.folder)
    assert printed.code == 0 and "best threshold label" in printed.out


def test_classify_prints_the_chosen_labels(two: Model, several: Model, glassformer: Glassformer) -> None:
    assert two.folder is not None and several.folder is not None
    p = two.classify(TEXTS[0])
    shown = glassformer("classify", two.folder, TEXTS[0], "--threshold", 0.999999, "--label", "dog").out
    assert shown == f"cat\t{p['cat']:.4f}\t{TEXTS[0]}\n"
    stated = json.loads(glassformer("classify", two.folder, TEXTS[0], "--threshold", 0, "--label", "dog", "--json").out)
    assert stated["labels"] == ["dog"] and stated["classes"] == near(p)
    assert glassformer("classify", several.folder, TEXTS[0], "--threshold", 1).out == f"–\t–\t{TEXTS[0]}\n"
    rows = glassformer("classify", several.folder, TEXTS[2], "--threshold", 0.5).out.splitlines()
    assert {row.split("\t")[0] for row in rows} == {*several.choose_labels(TEXTS[2], 0.5)}


def test_a_threshold_that_a_model_cannot_have(two: Model, several: Model, tmp_path: Path) -> None:
    numbers = api.load(api.train(label_run(tmp_path, "regression", max_steps=1), tmp_path / "run").folder)
    wrong = {
        "threshold must be from 0 to 1": lambda: two.choose_labels(TEXTS, 1.5, "dog"),
        "needs label, the class whose probability is compared: cat or dog": lambda: two.choose_labels(TEXTS, 0.5),
        "has no class 'dgo': did you mean dog": lambda: two.choose_labels(TEXTS, 0.5, "dgo"),
        "label has no effect: .* predicts several labels": lambda: several.choose_labels(TEXTS, 0.5, "animal"),
        "predicts a number: leave it out": lambda: numbers.choose_labels(TEXTS, 0.5, "dog"),
        "label has no effect without threshold": lambda: two.classifier.threshold(None, "dog"),
    }
    for message, call in wrong.items():
        with pytest.raises(UserError, match=message):
            call()


def test_the_rule_keeps_the_order_of_the_labels() -> None:
    assert Threshold(0.1).chosen({"b": 0.2, "a": 0.9}) == ["b", "a"]
