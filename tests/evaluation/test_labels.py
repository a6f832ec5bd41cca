"""Scores of labels against scikit-learn, scipy and values computed by hand."""

import json
import re

import numpy as np
import pytest

from glassformer.evaluation.labels import (
    accuracy,
    calibration_error,
    classification_report,
    confusion_matrix,
    f1_scores,
    is_bio,
    macro_f1,
    pearson,
    rmse,
    span_f1,
    spans,
    spearman,
)
from tolerances import NETWORK, near

PROBABILITIES = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])


def random_classes(seed: int, n: int, true: list[int], predicted: list[int]) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.choice(true, n), rng.choice(predicted, n)


@pytest.mark.parametrize(
    ("n", "true", "predicted"),
    [
        (1, [0], [4]),
        (200, [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]),
        (50, [0, 1, 3], [0, 1, 3]),  # two classes are absent
        (50, [0, 1], [1, 2, 4]),  # one is never predicted, two are never true
        (50, [2], [2]),
        (20, [0], [1]),
    ],
)
def test_class_scores_equal_scikit_learn(n: int, true: list[int], predicted: list[int]) -> None:
    from sklearn import metrics

    labels, predictions = random_classes(n + len(predicted), n, true, predicted)
    matrix = confusion_matrix(labels, predictions, 5)
    assert matrix.tolist() == metrics.confusion_matrix(labels, predictions, labels=range(5)).tolist()
    assert accuracy(matrix) == pytest.approx(100 * metrics.accuracy_score(labels, predictions))
    for ours, average in ((macro_f1, "macro"), (accuracy, "micro")):
        theirs = metrics.f1_score(labels, predictions, average=average, zero_division=0)
        assert ours(matrix) == pytest.approx(100 * theirs), average
    rates = metrics.precision_recall_fscore_support(labels, predictions, labels=range(5), zero_division=0)
    for score, (precision, recall, f1, support) in zip(f1_scores(matrix), np.stack(rates, axis=1), strict=True):
        assert (score.precision, score.recall, score.f1) == pytest.approx((100 * precision, 100 * recall, 100 * f1))
        assert score.support == support


def test_small_integers_do_not_wrap() -> None:
    labels = np.array([199, 3], dtype=np.uint8)
    matrix = confusion_matrix(labels, labels, 200)
    assert matrix[199, 199] == matrix[3, 3] == 1 and matrix.sum() == 2


def test_calibration_by_hand() -> None:
    """Bin (0.6, 0.8] has 0.7 right and 0.8 wrong: 0.75 against 0.5; (0.8, 1] has 0.9 right, (0.4, 0.6] 0.6 wrong."""
    labels = [0, 1, 1, 1]
    by_hand = 0.5 * 0.25 + 0.25 * 0.1 + 0.25 * 0.6
    assert calibration_error(PROBABILITIES, labels, n_bins=5) == pytest.approx(100 * by_hand)
    one_bin = abs((0.9 + 0.8 + 0.7 + 0.6) / 4 - 0.5)
    assert calibration_error(PROBABILITIES, labels, n_bins=1) == pytest.approx(100 * one_bin)


def test_calibration_at_the_ends() -> None:
    certain = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert calibration_error(certain, [0, 1]) == 0
    assert calibration_error(certain, [1, 0]) == 100
    assert calibration_error(np.float32([[1.0000001, 0]]), [0]) == near(0, terms=NETWORK), "rounding above 1"
    assert calibration_error([[0.5, 0.5]], [0], n_bins=2) == pytest.approx(50), (
        "of equal probabilities the first is predicted"
    )


def test_labels_drawn_from_their_probabilities_are_calibrated() -> None:
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([1, 1, 1], size=20_000)
    labels = (probabilities.cumsum(axis=1) < rng.random((20_000, 1))).sum(axis=1)
    assert calibration_error(probabilities, labels) < 2
    assert calibration_error(probabilities**2 / (probabilities**2).sum(axis=1, keepdims=True), labels) > 8


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("", set()),
        ("O O", set()),
        ("B-A I-A I-A", {("A", 0, 3)}),
        ("O I-A I-A O", {("A", 1, 3)}),  # I- after O begins a span
        ("B-A B-A I-A", {("A", 0, 1), ("A", 1, 3)}),
        ("B-A I-B I-B", {("A", 0, 1), ("B", 1, 3)}),  # the type changes inside
        ("I-A I-B I-A", {("A", 0, 1), ("B", 1, 2), ("A", 2, 3)}),
        ("B-A O I-A", {("A", 0, 1), ("A", 2, 3)}),
        ("B-geo-loc I-geo-loc", {("geo-loc", 0, 2)}),
    ],
)
def test_spans(tags: str, expected: set[tuple[str, int, int]]) -> None:
    assert spans(tags.split()) == expected


def test_span_f1_by_hand() -> None:
    """Two of 4 true spans are among the 5 predicted, with the right type; tags outside of spans do not count."""
    gold = ["B-A I-A O B-B", "O B-A O", "B-B O", "O O"]
    predicted = ["B-A I-A O B-A", "O B-A I-A", "B-B B-B", "O O"]
    score = span_f1([s.split() for s in gold], [s.split() for s in predicted])
    expected = {"span_f1": 100 * 2 * 2 / (4 + 5), "span_precision": 100 * 2 / 5, "span_recall": 100 * 2 / 4}
    assert score == pytest.approx(expected)
    none, all_ = (dict.fromkeys(expected, rate) for rate in (0, 100))
    assert span_f1([["O"]], [["O"]]) == none
    assert span_f1([["B-A", "I-A"]], [["I-A", "I-A"]]) == all_, "I- can begin a span"
    assert span_f1([["B-A"], ["O"]], [["O"], ["B-A"]]) == none, "spans of different sentences differ"


def test_which_tags_mark_spans() -> None:
    assert is_bio(["B-PER", "O"]) and is_bio(["I-PER"])
    assert not is_bio(["B-PER", "NAME"]) and not is_bio(["O"]) and not is_bio([]) and not is_bio(["BACK", "IN"])


@pytest.mark.parametrize("levels", [3, 1000])
def test_correlations_equal_scipy(levels: int) -> None:
    from scipy import stats
    from sklearn import metrics

    rng = np.random.default_rng(levels)
    labels = rng.integers(0, levels, 80)
    predictions = np.round(labels / levels + rng.normal(0, 0.4, 80), 1)  # ties on both sides
    assert len(set(predictions.tolist())) < 40
    assert pearson(labels, predictions) == pytest.approx(100 * stats.pearsonr(labels, predictions)[0])
    assert spearman(labels, predictions) == pytest.approx(100 * stats.spearmanr(labels, predictions)[0])
    assert spearman(labels, -(predictions**3)) == pytest.approx(-spearman(labels, predictions)), "only ranks count"
    assert rmse(labels, predictions) == pytest.approx(metrics.root_mean_squared_error(labels, predictions))


def test_a_constant_has_no_correlation() -> None:
    """The mean of three times 0.1 is not exactly 0.1; this rounding must not count as variance."""
    for correlation in (pearson, spearman):
        assert correlation([0.1, 0.1, 0.1], [1.0, 2.0, 3.0]) == correlation([1.0, 2.0, 3.0], [0.1, 0.1, 0.1]) == 0
        assert correlation([1.0], [1.0]) == 0


def test_a_report_holds_every_score() -> None:
    from sklearn import metrics

    labels = [0, 1, 1, 1]
    report = classification_report(labels, PROBABILITIES, ["bad", "good"])
    predicted = PROBABILITIES.argmax(axis=1)
    assert report.n == 4 and report.accuracy == 50
    assert report.macro_f1 == pytest.approx(100 * metrics.f1_score(labels, predicted, average="macro"))
    assert report.calibration_error == calibration_error(PROBABILITIES, labels)
    assert report.most_frequent_share == 75
    assert report.matrix == [[1, 0], [2, 1]] and [score.support for score in report.classes] == [1, 3]
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


def random_report(n: int, n_classes: int, prefix: str) -> str:
    rng = np.random.default_rng(1)
    probabilities = rng.dirichlet(np.ones(n_classes), size=n).astype(np.float32)
    labels = np.where(rng.random(n) < 0.5, probabilities.argmax(axis=1), rng.integers(0, n_classes, n))
    return str(classification_report(labels, probabilities, [f"{prefix}{i}" for i in range(n_classes)]))


@pytest.mark.parametrize(("n", "n_classes", "prefix"), [(12345, 2, ""), (90_000, 3, "sentiment_"), (500, 8, "c")])
def test_few_classes_are_printed_with_their_matrix(n: int, n_classes: int, prefix: str) -> None:
    printed = random_report(n, n_classes, prefix)
    for table in printed.split("\n\n"):
        lines = table.split("\n")
        assert len(lines) == 1 + n_classes and len({len(line) for line in lines}) == 1, "columns are aligned"
    assert f"{prefix}1" in printed and max(map(len, printed.split("\n"))) <= 100
    counts = re.findall(r" ([\d,]+)(?= |$)", "\n".join(printed.split("\n\n")[1].split("\n")[1:]), re.MULTILINE)
    assert sum(int(count.replace(",", "")) for count in counts) == n


def test_many_classes_are_printed_with_the_most_frequent_confusions() -> None:
    lines = random_report(4000, 25, "package_").split("\n")
    assert len(lines) == 1 + 25 + 1 + 1 + 10 and max(map(len, lines)) <= 100
    counts = [int(line.split()[0]) for line in lines[28:]]
    assert counts == sorted(counts, reverse=True) and counts[0] > 0


def test_confusions_by_hand() -> None:
    """Two of four texts of class 3 and the only text of class 7 are misclassified."""
    names = [f"a class with a long name {i}" for i in range(9)]
    labels, predicted = [3, 3, 3, 3, 7, 0], [3, 3, 5, 5, 1, 0]
    printed = str(classification_report(labels, np.eye(9)[predicted], names))
    last = printed.split("\n\n")[1].split("\n")[1:]
    assert [re.sub(r"a class with a long name ", "", line).split() for line in last] == [
        ["2", "50.0", "%", "3", "→", "5"],
        ["1", "100.0", "%", "7", "→", "1"],
    ]
    assert str(classification_report([3], np.eye(9)[[3]], names)).endswith("\n\nno confusions")


def test_empty_input_is_an_error() -> None:
    for scores in (rmse, pearson, spearman, lambda a, b: confusion_matrix(a, b, 2)):
        with pytest.raises(ValueError, match="labels is empty"):
            scores([], [])
        with pytest.raises(ValueError, match=r"expected labels and predictions of shape \(N,\)"):
            scores([1], [1, 0])
    with pytest.raises(ValueError, match=r"expected labels and predictions of shape \(N,\)"):
        calibration_error(PROBABILITIES, [0, 1])
    with pytest.raises(ValueError, match=r"expected shape \(N, 2\)"):
        classification_report([0], [[0.2, 0.3, 0.5]], ["a", "b"])
    for labels in ([0, 2], [0, -100]):
        with pytest.raises(ValueError, match="expected classes from 0 to 1"):
            confusion_matrix(labels, [0, 1], 2)
    with pytest.raises(ValueError, match="expected 1 predicted tags for a sentence, got 2"):
        span_f1([["O"]], [["O", "O"]])
