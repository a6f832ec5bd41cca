"""Runs on labels: numbers in any unit, tags without spans, truncated words, new classes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import LabelData
from glassformer.config.train import EarlyStopping
from glassformer.tasks.reporting import Silent
from glassformer.tasks.task import trainable_task
from runs import label_run, write_tags
from tolerances import about, within


def path_of(run: object) -> Path:
    data = run.data  # type: ignore[attr-defined]
    assert isinstance(data, LabelData) and data.path is not None
    return Path(data.path)


def test_numbers_are_learned_in_any_unit(tmp_path: Path) -> None:
    """Numbers times a thousand and far from zero are learned equally well: errors differ by that factor."""
    errors, losses = [], []
    for unit, begin in ((1, 0), (1000, 5000)):
        folder = tmp_path / str(unit)
        folder.mkdir()
        run = label_run(folder, "regression", max_steps=60)
        path = path_of(run)
        header, *lines = path.read_text().splitlines()
        rows = [line.split("\t") for line in lines]
        path.write_text("\n".join([header, *("\t".join([*r[:3], str(begin + unit * int(r[3]))]) for r in rows)]) + "\n")
        outcome = api.train(run, folder / "run")
        model = api.load(outcome.folder)
        errors.append(model.scores()["rmse"] / unit)
        losses.append(outcome.reports["valid"].loss)
        assert outcome.reports["valid"].perplexity is None
        head = json.loads((folder / "run" / "config.json").read_text())["head"]
        assert head["std"] == about(1.2 * unit, percent=30) and head["mean"] > begin
    assert errors[0] == about(errors[1], percent=0.1)
    assert losses[1] - losses[0] == within(6.9078, 1e-3), "ln 1000: the density of a wider unit"


def test_early_stopping_on_spans_needs_tags_of_spans(tmp_path: Path) -> None:
    run = label_run(tmp_path, "tags")
    run = replace(run, train=replace(run.train, early_stopping=EarlyStopping(metric="span_f1")))
    assert api.train(replace(run, train=replace(run.train, max_steps=2)), tmp_path / "spans").folder.exists()
    path = path_of(run)
    path.write_text(path.read_text().replace("B-ANIMAL", "ANIMAL"))
    with pytest.raises(UserError, match="'span_f1' is not available for tags; choose one of loss, accuracy"):
        api.train(run, tmp_path / "run")


def test_truncated_words_are_reported_and_refused_in_other_data(tmp_path: Path) -> None:
    run = label_run(tmp_path, "tags", model=replace(label_run(tmp_path).model, max_len=5), max_steps=2)  # type: ignore[arg-type]
    model = api.load(api.train(run, tmp_path / "run").folder)
    messages: list[str] = []
    model.scores(log=messages.append)
    assert any("are truncated" in line and "tagged words are lost" in line for line in messages)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(UserError, match=r"longer than 5 tokens.*tagged words are lost\): shorten or remove them"):
        model.scores(write_tags(other))


def test_a_new_class_in_the_runs_file_is_one_sentence(tmp_path: Path) -> None:
    run = label_run(tmp_path, max_steps=2)
    model = api.load(api.train(run, tmp_path / "run").folder)
    path = path_of(run)
    path.write_text(path.read_text() + "".join(f"a bird {i}\tred tree\tbird\t3\n" for i in range(60)))
    with pytest.raises(UserError, match="has the label 'bird', which no training text has"):
        model.scores(log=lambda _: None)


@pytest.mark.parametrize("outputs", ["classes", "tags"])
def test_bpe_dropout_changes_only_the_training_texts(tmp_path: Path, outputs: str) -> None:
    run = label_run(tmp_path, outputs)
    material = trainable_task(run).open(run)
    tokenizers = material.tokenizers(run, Silent())
    plain, dropped = (
        material.prepare(replace(run, tokenizer=replace(run.tokenizer, bpe_dropout=share)), tokenizers, Silent())
        for share in (0.0, 0.5)
    )
    n_tokens = [[sum(len(e.token_ids) for e in side) for side in (p.train, p.valid)] for p in (plain, dropped)]
    assert n_tokens[1][0] > n_tokens[0][0] and n_tokens[1][1] == n_tokens[0][1]
