"""Metrics for labels: accuracy, F1, calibration error, span F1 for tags, and correlations for numbers.

Rates and correlations are in percent. A rate with a zero denominator is 0, such as the precision of a class that is
never predicted, or the recall of a class that never occurs.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from glassformer.common import notebook

Counts = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]

MATRIX_WIDTH = 100
"""Maximum width in characters of a printed confusion matrix. For a wider one, only the most frequent confusions are
printed."""
N_CONFUSIONS = 10


def confusion_matrix(labels: npt.ArrayLike, predictions: npt.ArrayLike, n_classes: int) -> Counts:
    """Count labels and predictions, both (N,), in (n_classes, n_classes): rows are true, columns are predicted.

    >>> confusion_matrix([0, 0, 1], [0, 1, 1], 2).tolist()
    [[1, 1], [0, 1]]
    """
    true, predicted = np.asarray(labels), np.asarray(predictions)
    _check_sizes(true, predicted)
    for classes in (true, predicted):
        if classes.min() < 0 or classes.max() >= n_classes:
            raise ValueError(f"expected classes from 0 to {n_classes - 1}, got {classes.min()} to {classes.max()}")
    cells = np.ravel_multi_index((true, predicted), (n_classes, n_classes))
    return np.bincount(cells, minlength=n_classes**2).reshape(n_classes, n_classes)


def accuracy(matrix: Counts) -> float:
    """Return the percentage of correct predictions.

    >>> accuracy(np.array([[1, 1], [0, 2]]))
    75.0
    """
    return _rate(np.trace(matrix), matrix.sum())


@dataclass(frozen=True)
class ClassScore:
    """Precision, recall and F1 of one class, in percent."""

    precision: float
    recall: float
    f1: float
    support: int
    """Number of true examples."""


def f1_scores(matrix: Counts) -> list[ClassScore]:
    """Compute precision, recall, F1 and support of each class.

    >>> f1_scores(np.array([[1, 1], [0, 2]]))[0]
    ClassScore(precision=100.0, recall=50.0, f1=66.66..., support=2)
    """
    right, true, predicted = np.diag(matrix), matrix.sum(axis=1), matrix.sum(axis=0)
    return [
        ClassScore(_rate(r, s), _rate(r, t), _rate(2 * r, t + s), t)
        for r, t, s in zip(right.tolist(), true.tolist(), predicted.tolist(), strict=True)
    ]


def macro_f1(matrix: Counts) -> float:
    """Compute the unweighted mean F1 of the classes that occur at least once in labels or predictions.

    >>> macro_f1(np.array([[1, 1, 0], [0, 2, 0], [0, 0, 0]]))
    73.33...
    """
    occurs = (matrix.sum(axis=0) + matrix.sum(axis=1)).tolist()
    return _mean([score.f1 for score, n in zip(f1_scores(matrix), occurs, strict=True) if n])


def calibration_error(probabilities: npt.ArrayLike, labels: npt.ArrayLike, n_bins: int = 15) -> float:
    """Compute the expected calibration error (Guo 2017, equation 3) of probabilities (N, n_classes), in percent.

    Texts are divided into bins of equal width by the probability of the predicted class. The result is the mean gap
    between probability and accuracy, weighted by the texts per bin; it is 0 if probability = accuracy in every bin.

    >>> calibration_error([[0.75, 0.25], [0.75, 0.25]], [0, 1])
    25.0
    """
    table, true = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    confidence, predicted = table.max(axis=1), table.argmax(axis=1)
    _check_sizes(true, predicted)
    bins = np.clip(np.ceil(confidence * n_bins).astype(np.int64) - 1, 0, n_bins - 1)  # (low, high], as in the paper
    return _rate(np.abs(np.bincount(bins, weights=confidence - (predicted == true))).sum(), len(bins))


def multi_label_accuracy(true: npt.NDArray[np.bool_], predicted: npt.NDArray[np.bool_]) -> float:
    """Compute the percentage of texts with exactly the right labels; both are (N, n_labels).

    >>> multi_label_accuracy(np.array([[True, False], [True, True]]), np.array([[True, False], [True, False]]))
    50.0
    """
    exact = (true == predicted).all(axis=1)
    return _rate(exact.sum(), len(exact))


def multi_label_f1(true: npt.NDArray[np.bool_], predicted: npt.NDArray[np.bool_]) -> float:
    """Compute the mean F1 of the labels that occur at least once in `true` or `predicted`; both are (N, n_labels).

    >>> multi_label_f1(np.array([[True, False], [True, True]]), np.array([[True, False], [True, False]]))
    50.0
    """
    right, occurs = (true & predicted).sum(axis=0), true.sum(axis=0) + predicted.sum(axis=0)
    return _mean([_rate(2 * r, n) for r, n in zip(right.tolist(), occurs.tolist(), strict=True) if n])


def best_threshold(true: npt.NDArray[np.bool_], probabilities: npt.ArrayLike) -> tuple[float, float]:
    """Return the threshold with the largest F1, and this F1 in percent; both arguments are (N,).

    A probability of at least the threshold predicts True. The threshold is in the middle between two probabilities, so
    that its last digits do not matter. If several thresholds have the largest F1, the highest of them is returned.

    >>> best_threshold(np.array([True, False, True, False]), [0.9, 0.2, 0.4, 0.1])
    (0.3..., 100.0)
    """
    p = np.asarray(probabilities, dtype=np.float64)
    _check_sizes(true, p)
    order = np.argsort(-p, kind="stable")
    p, right = p[order], np.cumsum(true[order])
    ends = np.flatnonzero(np.append(p[:-1] > p[1:], True))  # equal probabilities are predicted together
    f1 = 200 * right[ends] / (ends + 1 + right[-1])
    best = int(f1.argmax())
    end = int(ends[best])
    least, below = float(p[end]), float(p[end + 1]) if end + 1 < len(p) else 0.0
    middle = (least + below) / 2
    return middle if middle > below else least, float(f1[best])


@dataclass(frozen=True)
class ClassificationReport:
    """Metrics of a classifier; `str` gives a table of the classes and the confusion matrix."""

    n: int
    accuracy: float
    macro_f1: float
    calibration_error: float
    most_frequent_share: float
    """Percentage of the most frequent true class: the accuracy of a model that always predicts this class."""
    names: list[str]
    classes: list[ClassScore]
    matrix: list[list[int]]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        pairs = zip(self.names, self.classes, strict=True)
        return notebook.frame([{"class": name, "f1": score.f1} | asdict(score) for name, score in pairs])

    def __str__(self) -> str:
        width = max(map(len, ["class", *self.names]))
        lines = [f"{'class':<{width}}  precision  recall     F1  support"]
        for name, score in zip(self.names, self.classes, strict=True):
            rates = f"{score.precision:>11.1f}{score.recall:>8.1f}{score.f1:>7.1f}"
            lines.append(f"{name:<{width}}{rates}{score.support:>9,}")
        matrix = self._matrix()
        if len(matrix[0]) > MATRIX_WIDTH:
            matrix = self._confusions()
        return "\n".join([*lines, "", *matrix])

    def _matrix(self) -> list[str]:
        corner = "true \\ predicted"
        side = max(map(len, [corner, *self.names]))
        cell = 2 + max(map(len, [*self.names, f"{max(map(max, self.matrix)):,}"]))
        head = f"{corner:<{side}}" + "".join(f"{name:>{cell}}" for name in self.names)
        rows = zip(self.names, self.matrix, strict=True)
        return [head, *(f"{name:<{side}}" + "".join(f"{n:>{cell},}" for n in row) for name, row in rows)]

    def _confusions(self) -> list[str]:
        counts = np.array(self.matrix)
        np.fill_diagonal(counts, 0)
        most = np.argsort(-counts, axis=None, kind="stable")[:N_CONFUSIONS]
        lines = [f"{'count':>7}  of class  most frequent confusions, true → predicted"]
        for true, predicted in zip(*np.unravel_index(most, counts.shape), strict=True):
            if n := int(counts[true, predicted]):
                share = _rate(n, self.classes[true].support)
                lines.append(f"{n:>7,}{share:>8.1f} %  {self.names[true]} → {self.names[predicted]}")
        return lines if len(lines) > 1 else ["no confusions"]


def classification_report(
    labels: npt.ArrayLike, probabilities: npt.ArrayLike, names: Sequence[str]
) -> ClassificationReport:
    """Compute all metrics of labels (N,) and probabilities (N, n_classes); the most probable class is the prediction.

    >>> print(classification_report([0, 1, 1], [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]], ["bad", "good"]))
    class  precision  recall     F1  support
    bad         50.0   100.0   66.7        1
    good       100.0    50.0   66.7        2
    <BLANKLINE>
    true \\ predicted   bad  good
    bad                  1     0
    good                 1     1
    """
    table = np.asarray(probabilities)
    if table.ndim != 2 or table.shape[1] != len(names):
        raise ValueError(f"probabilities: expected shape (N, {len(names)}), got {table.shape}")
    matrix = confusion_matrix(labels, table.argmax(axis=1), len(names))
    return ClassificationReport(
        n=len(table),
        accuracy=accuracy(matrix),
        macro_f1=macro_f1(matrix),
        calibration_error=calibration_error(table, labels),
        most_frequent_share=_rate(matrix.sum(axis=1).max(), matrix.sum()),
        names=list(names),
        classes=f1_scores(matrix),
        matrix=matrix.tolist(),
    )


def is_bio(tags: Sequence[str]) -> bool:
    """Return True if `tags` are BIO tags: each tag is O or begins with B- or I-, and at least one is not O.

    >>> is_bio(["O", "B-PER", "I-PER"]), is_bio(["NAME", "OP"])
    (True, False)
    """
    return all(tag == "O" or tag.startswith(("B-", "I-")) for tag in tags) and any(tag != "O" for tag in tags)


def spans(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (kind, begin, end) of each span of BIO tags; an I- tag outside a span of its kind begins one (conlleval).

    >>> sorted(spans(["B-A", "I-A", "O", "I-B", "B-B"]))
    [('A', 0, 2), ('B', 3, 4), ('B', 4, 5)]
    """
    marked: set[tuple[str, int, int]] = set()
    kind, begin = "", 0
    for position, tag in enumerate([*tags, "O"]):
        if tag.startswith("I-") and tag[2:] == kind:
            continue
        if kind:
            marked.add((kind, begin, position))
        kind, begin = tag[2:], position  # "O"[2:] is empty
    return marked


def span_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    """Compute F1, precision and recall of spans over all sentences (Tjong Kim Sang and De Meulder 2003).

    A span is correct if its kind, begin and end are correct.

    >>> span_f1([["B-A", "O"]], [["B-A", "B-B"]])
    {'span_f1': 66.66..., 'span_precision': 50.0, 'span_recall': 100.0}
    """
    n_right = n_true = n_predicted = 0
    for tags, guesses in zip(gold, predicted, strict=True):
        if len(tags) != len(guesses):
            raise ValueError(f"expected {len(tags)} predicted tags for a sentence, got {len(guesses)}")
        true, guessed = spans(tags), spans(guesses)
        n_right += len(true & guessed)
        n_true += len(true)
        n_predicted += len(guessed)
    return {
        "span_f1": _rate(2 * n_right, n_true + n_predicted),
        "span_precision": _rate(n_right, n_predicted),
        "span_recall": _rate(n_right, n_true),
    }


def rmse(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Compute the root of the mean squared error, in the unit of the labels.

    >>> rmse([1.0, 1.0], [4.0, -2.0])
    3.0
    """
    true, predicted = _numbers(labels, predictions)
    return float(np.sqrt(np.mean((true - predicted) ** 2)))


def pearson(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Compute the linear correlation, -100 to 100; 0 if labels or predictions are constant.

    >>> pearson([0.0, 1.0, 2.0, 3.0], [0.0, 2.0, 1.0, 3.0])
    80.0...
    """
    true, predicted = _numbers(labels, predictions)
    if np.ptp(true) == 0 or np.ptp(predicted) == 0:
        return 0.0
    return 100 * float(np.corrcoef(true, predicted)[0, 1])


def spearman(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> float:
    """Compute the correlation of the ranks, -100 to 100; equal values share the mean of their ranks.

    >>> round(spearman([1.0, 2.0, 3.0], [1.0, 10.0, 100.0]), 6)
    100.0
    """
    true, predicted = _numbers(labels, predictions)
    return pearson(ranks(true), ranks(predicted))


def ranks(values: npt.ArrayLike) -> Numbers:
    """Return the rank of each value (N,), from 1; equal values share the mean of their ranks.

    >>> ranks([0.5, 2.0, 0.5]).tolist()
    [1.5, 3.0, 1.5]
    """
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: Numbers = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[which]


def _numbers(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> tuple[Numbers, Numbers]:
    true, predicted = np.asarray(labels, dtype=np.float64), np.asarray(predictions, dtype=np.float64)
    _check_sizes(true, predicted)
    return true, predicted


def _check_sizes(labels: npt.NDArray[Any], predictions: npt.NDArray[Any]) -> None:
    if labels.ndim != 1 or labels.shape != predictions.shape:
        raise ValueError(f"expected labels and predictions of shape (N,), got {labels.shape} and {predictions.shape}")
    if not labels.size:
        raise ValueError("labels is empty: give at least one label")


def _rate(part: float, whole: float) -> float:
    return 100 * float(part) / float(whole) if whole else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
