"""One row of the table makes a metric known to evaluations, comparisons, settings and plots."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import late
from glassformer import api, plot
from glassformer.apps.cli import evaluate
from glassformer.apps.cli.inputs_outputs import Loading, Measured
from glassformer.apps.cli.progress import Shown
from glassformer.common.errors import UserError
from glassformer.config.run import PairData, Run
from glassformer.config.train import EarlyStopping
from glassformer.evaluation.compare import ComparedModel, Comparison
from glassformer.evaluation.metrics import MAX_DECIMALS, METRICS, Metric, axis, decimals, measure, names, shown
from glassformer.evaluation.text import bleu
from glassformer.tasks.task import trainable_task
from runs import label_run, label_set_run, pair_run

sacrebleu = late.module("sacrebleu")

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
    stopping = EarlyStopping("new")
    with pytest.raises(UserError, match="'new' is not available"):
        api.train(replace(run, train=replace(run.train, early_stopping=stopping)), tmp_path / "run")
    monkeypatch.setitem(METRICS, "new", metric)
    folder = api.train(replace(run, train=replace(run.train, early_stopping=stopping)), tmp_path / "run").folder

    logged = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["eval/valid_new"] for line in logged if "eval/valid_new" in line]
    value = api.load(folder).evaluate().scores["new"]
    assert evaluate.main(str(folder), output=SILENT_JSON, data=Measured(), search={}, loading=Loading()) == 0
    assert json.loads(capsys.readouterr().out)["new"] == value
    [row] = api.compare([folder], "new")
    assert (row.score_name, row.score) == ("new", value)
    assert shown("new", value, row.n_scored) in str(api.compare([folder], "new"))
    labels = [axes.get_ylabel() for axes in plot.curves(folder).axes]
    assert axis("new") in labels and axis("new").startswith(metric.label)


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


@pytest.mark.parametrize("n", [1, 7, 82, 100, 999, 1000, 1001, 9999, 10_000, 123_456])
def test_one_item_more_changes_a_rate_that_is_shown(n: int) -> None:
    """Two rates of n items are shown as equal only if they are equal."""
    rng = np.random.default_rng(n)
    for k in {0, n - 1, *rng.integers(n, size=200).tolist()}:
        assert shown("accuracy", 100 * k / n, n) != shown("accuracy", 100 * (k + 1) / n, n)


@pytest.mark.parametrize("name", ["loss", "bits_per_byte", "perplexity"])
def test_losses_that_differ_by_a_fifth_of_their_standard_error_are_shown_as_different(name: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, loss = int(rng.integers(50, 10**6)), float(rng.uniform(0.5, 6))
        value = math.exp(loss) if name == "perplexity" else loss
        error = (value * loss if name == "perplexity" else value) / math.sqrt(n)
        if error / 5 > 10.0**-MAX_DECIMALS:
            assert shown(name, value, n) != shown(name, value + error / 5, n)
            assert 10.0 ** -decimals(name, value, n) >= error / 101 or decimals(name, value, n) == 1


def test_four_runs_are_not_equal_by_rounding() -> None:
    row = ComparedModel("a", "GRU", 1, None, None, 1.0, "bits_per_byte", 3.9, None, n_scored=5000)
    table = str(Comparison(replace(row, score=score) for score in (3.861, 3.889, 3.915, 3.94)))
    assert all(value in table for value in ("3.861", "3.889", "3.915", "3.940"))


def test_an_undefined_score_is_shown_as_such() -> None:
    row = ComparedModel("a", "GRU", 1, None, None, 1.0, "bleu", None, None)
    assert " n/a " in str(Comparison([row])) and row.to_dict()["score"] is None


@pytest.mark.parametrize("seed", range(30))
def test_bleu_is_defined_where_equal_texts_have_the_score_100(seed: int) -> None:
    """sacreBLEU itself gives 0 to equal texts without a 4-gram; everywhere else it gives them 100."""
    rng = np.random.default_rng(seed)
    most = int(rng.integers(1, 7))
    words = [" ".join(rng.choice(["a", "b,", "c.", "d", "e!"], int(rng.integers(1, most + 1)))) for _ in range(3)]
    theirs = sacrebleu.corpus_bleu(words, [words]).score
    ours = bleu(words, [[text] for text in words]).score
    assert (ours is None) == (theirs < 1)
    assert ours is None or ours == pytest.approx(100)


@pytest.mark.parametrize("watched", ["exact_match", "chrf", "bleu", "loss"])
def test_a_run_shows_the_metric_that_selected_it_first(watched: str, tmp_path: Path) -> None:
    run = pair_run(tmp_path, early_stopping=EarlyStopping(watched))
    task = trainable_task(run)
    assert task.first_metric(run) == ("bleu" if watched == "loss" else watched)
    assert task.first_metric(pair_run(tmp_path)) == "bleu"


def test_targets_of_one_word_have_no_bleu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = pair_run(tmp_path, max_steps=2, eval_every=1, early_stopping=EarlyStopping("exact_match"))
    data = run.data
    assert isinstance(data, PairData)
    for name in (data.target, data.valid_target):
        path = Path(name or "")
        path.write_text("".join(line.split()[0] + "\n" for line in path.read_text().splitlines()))
    folder = api.train(run, tmp_path / "run").folder
    assert evaluate.main(str(folder), output=Shown(quiet=True), data=Measured(), search={}, loading=Loading()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("exact match ") and "bleu                 n/a: no target has four tokens" in lines
    scores = api.load(folder).scores()
    assert scores["bleu"] is None and scores["bleu_tok_lc"] is None and scores["chrf"] is not None
    [row] = api.compare([folder])
    assert row.score_name == "exact_match" and row.score is not None
    [asked] = api.compare([folder], "bleu")
    assert asked.score is None and " n/a " in str(Comparison([asked]))
    with pytest.raises(UserError, match="bleu cannot be watched, because no target has four tokens: watch exact_match"):
        api.train(replace(run, train=replace(run.train, early_stopping=EarlyStopping("bleu"))), tmp_path / "other")
