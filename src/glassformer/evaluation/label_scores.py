"""What a model of labels is worth on labelled rows."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from glassformer.config.run import LabelData
from glassformer.data.batching import Example
from glassformer.evaluation.division import ALONE, Division
from glassformer.evaluation.labels import classification_report, is_bio, pearson, rmse, span_f1, spearman
from glassformer.inference.classify import predict

LABEL_SCORES: dict[str, dict[str, bool]] = {
    "classes": {"accuracy": True, "macro_f1": True, "calibration_error": False},
    "tags": {"accuracy": True, "macro_f1": True, "span_f1": True},
    "regression": {"rmse": False, "pearson": True, "spearman": True},
}
"""The scores of each kind of label, in percent but for `rmse`, and whether higher is better."""


def label_scores(
    network: nn.Module,
    rows: Sequence[Example],
    names: Sequence[str],
    data: LabelData,
    device: torch.device | str,
    division: Division = ALONE,
) -> dict[str, Any]:
    """Accuracy, F1 and their like; of classes the whole report too, under `report`.

    `division` deals the batches of rows out among processes.
    """
    logits = predict(network, rows, device, division.takes)
    if division.n > 1:
        own = {place: x.tolist() for place, x in enumerate(logits) if x.numel()}
        for part in division.texts(json.dumps(own)):  # decimal numbers of Python give the same bits back
            for place, values in json.loads(part).items():
                logits[int(place)] = torch.tensor(values)
    if data.outputs == "regression":
        found = np.array([float(x[0]) for x in logits])
        true = np.array([e.label for e in rows], dtype=np.float64)
        return {"rmse": rmse(true, found), "pearson": pearson(true, found), "spearman": spearman(true, found)}
    if data.outputs == "classes":
        labels = np.array([int(e.label or 0) for e in rows])
        report = classification_report(labels, torch.stack(logits).softmax(dim=1).numpy(), list(names))
        return _scores(report)
    gold = [e.labels[e.labels != -100] for e in rows if e.labels is not None]
    probabilities = torch.cat(logits).softmax(dim=1).numpy()
    scores = _scores(classification_report(np.concatenate(gold), probabilities, list(names)))
    if is_bio(names):
        written = [[names[i] for i in x.argmax(dim=1).tolist()] for x in logits]
        spans = span_f1([[names[i] for i in of_row] for of_row in gold], written)
        scores |= {"span_f1": spans.f1, "span_precision": spans.precision, "span_recall": spans.recall}
    return scores


def _scores(report: Any) -> dict[str, Any]:
    return {
        "accuracy": report.accuracy,
        "macro_f1": report.macro_f1,
        "calibration_error": report.calibration_error,
        "most_frequent_share": report.most_frequent_share,
        "report": report,
    }
