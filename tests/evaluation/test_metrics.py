"""One row of the table makes a metric known to evaluations, comparisons, settings and plots."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from glassformer import api, plot
from glassformer.cli import evaluate
from glassformer.cli.inputs_outputs import Loading, Measured
from glassformer.cli.progress import Shown
from glassformer.config.run import Run
from glassformer.config.train import EarlyStopping
from glassformer.errors import UserError
from glassformer.evaluation.metrics import METRICS, Metric, axis, measure, names
from glassformer.tasks.registry import trainable_task
from runs import label_run, label_set_run, pair_run

SILENT_JSON = Shown(quiet=True, json_=True)
NEW = {
    "sentences": Metric(
        "difference of lengths",
        {"sentences": lambda h, r, _: float(np.mean([abs(len(x) - len(y[0])) for x, y in zip(h, r, strict=True)]))},
        higher_is_better=False,
        unit="characters",
        format=".3f",
    ),
    "regression": Metric("largest error", {"regression": lambda a, b: float(np.abs(a - b).max())}, False, "", ".4f"),
    "classes": Metric("certainty", {"classes": lambda report, _, p: 100 * float(p.max(axis=1).mean())}),
}
"""A metric that the package does not have, for each section."""


def run_of(section: str, folder: Path) -> Run:
    if section == "sentences":
        return pair_run(folder, max_steps=2, eval_every=1)
    return label_run(folder, section, max_steps=2, eval_every=1)


@pytest.mark.parametrize("section", NEW)
def test_a_row_of_the_table_is_all_that_a_metric_needs(
    section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metric = NEW[section]
    run = run_of(section, tmp_path)
    stopping = EarlyStopping("new", higher_is_better=not metric.higher_is_better)
    with pytest.raises(UserError, match="'new' is not available"):
        api.train(replace(run, train=replace(run.train, early_stopping=stopping)), tmp_path / "run")
    monkeypatch.setitem(METRICS, "new", metric)
    with pytest.raises(UserError, match=f"higher_is_better: expected {str(metric.higher_is_better).lower()} for new"):
        api.train(replace(run, train=replace(run.train, early_stopping=stopping)), tmp_path / "run")
    stopping = replace(stopping, higher_is_better=None)
    folder = api.train(replace(run, train=replace(run.train, early_stopping=stopping)), tmp_path / "run").folder

    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["eval/valid_new"] for line in logged if "eval/valid_new" in line]
    value = api.load(folder).evaluate().scores["new"]
    assert evaluate.main(str(folder), output=SILENT_JSON, data=Measured(), search={}, loading=Loading()) == 0
    assert json.loads(capsys.readouterr().out)["new"] == value
    [row] = api.compare([folder], "new")
    assert (row.score_name, row.score) == ("new", value)
    assert format(value, metric.format) in str(api.compare([folder], "new"))
    labels = [axes.get_ylabel() for axes in plot.curves(folder).axes]
    assert axis("new") in labels and axis("new").startswith(metric.label)
    assert plot.comparison([row]).axes[0].get_ylabel() == axis("new")


def test_every_task_has_the_metrics_of_its_sections(tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    runs = {section: run_of(section, tmp_path) for section in NEW} | {"multi_label": label_set_run(tmp_path / "sets")}
    for section, run in runs.items():
        assert trainable_task(run).metrics(run) == names(section) != ()
    tags = label_run(tmp_path, "tags")
    assert trainable_task(tags).metrics(tags) == names("words", "spans") == ("accuracy", "macro_f1", "span_f1")


def test_each_section_has_functions_for_all_or_none_of_its_metrics() -> None:
    for section in set(itertools.chain(*(metric.sections for metric in METRICS.values()))):
        functions = [METRICS[name].sections[section] for name in names(section)]
        assert all(functions) or not any(functions)
        assert (not any(functions)) == (section in ("losses", "masks"))


def test_the_label_of_a_metric_of_another_package_is_its_name() -> None:
    assert axis("theirs") == "theirs"
    assert axis("bleu") == "BLEU (higher is better)"


def test_scores_by_kind_of_output() -> None:
    assert measure("sentences", ["a"], [["a"]], "en", only=["exact_match"]) == {"exact_match": 100}
    scores = measure("sentences", ["The cat sat on a mat."], [["The cat sat on the mat."]], "en")
    assert list(scores) == ["bleu", "bleu_signature", "chrf", "chrf_signature", "bleu_tok_lc", "exact_match"]
    assert scores["bleu"] == pytest.approx(scores["bleu_tok_lc"]), "both tokenize this sentence equally"
    assert scores["exact_match"] == 0
    sounds = measure("pronunciations", ["HH AH", "B"], [["HH AE", "HH AH"], ["B IY"]], "en")
    assert sounds == {"wer": 50, "per": 25, "exact_match": 50}
