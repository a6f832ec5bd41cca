"""A new run records its rules; a run without recorded rules keeps those of its version."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer import api
from glassformer.config.run import NEWEST_READING, Run
from glassformer.errors import Interrupted
from glassformer.store.model_directory import read_run
from glassformer.tasks.registry import trainable_task
from glassformer.training import init_from
from runs import Recording, label_run, made_up_text, pair_run, remains, signal_at, tiny_run


def text(folder: Path) -> Run:
    """Return a run on eight texts of 1,600 characters and one of a few words."""
    (folder / "texts").mkdir()
    for number in range(8):
        (folder / "texts" / f"{number}.txt").write_text(made_up_text(40, number), "utf-8")
    (folder / "texts" / "readme.txt").write_text("a readme of a few words")
    run = tiny_run(folder / "texts", data={"context": 8})
    return replace(run, data=replace(run.data, cache_dir=str(folder / "cache")))


def pairs(folder: Path) -> Run:
    return pair_run(folder, data={"valid_source": None, "valid_target": None})


RUNS: dict[str, Callable[[Path], Run]] = {"text": text, "pairs": pairs, "labels": label_run}


@pytest.mark.parametrize("name", RUNS)
def test_a_new_run_records_its_rules_for_evaluation(name: str, tmp_path: Path) -> None:
    run, reporter = RUNS[name](tmp_path), Recording()
    outcome = api.train(run, tmp_path / "run", reporter)
    assert run.data.reading == 1 and read_run(tmp_path / "run").data.reading == NEWEST_READING
    assert f"reading = {NEWEST_READING}" in (tmp_path / "run" / "run.toml").read_text()
    model = api.load(tmp_path / "run")
    assert model.evaluate() == outcome.reports["valid"]
    assert model.data_digest == trainable_task(outcome.run).open(outcome.run).corpus.digest
    few = [line for line in reporter.messages if line.startswith("the validation data has only ")]
    n = outcome.reports["valid"].n_tokens
    assert len(few) == (n < 1000) and all(f"only {n:,} targets" in line for line in few)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_an_older_version_resumes_with_its_rules(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RUNS[name](tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(init_from, "with_present_rules", lambda run: run)
        whole = api.train(run, tmp_path / "whole")
        signal_at(patch, 7)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "parts")
    assert read_run(tmp_path / "parts").data.reading == 1
    assert api.resume(tmp_path / "parts").reports == whole.reports
    assert remains(tmp_path / "parts") == remains(tmp_path / "whole")
    assert api.load(tmp_path / "parts").evaluate() == whole.reports["valid"]


def test_few_documents_of_unequal_size_reach_the_held_out_share(tmp_path: Path) -> None:
    """The old rule holds out only the shortest document, 1 % of this text, without a message."""
    reporter = Recording()
    outcome = api.train(text(tmp_path), tmp_path / "run", reporter)
    valid = outcome.reports["valid"].n_tokens
    assert valid > 500 and not any("could be held out" in line for line in reporter.messages)
