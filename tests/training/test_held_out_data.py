"""A model is evaluated on the validation data that its run held out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer import api
from glassformer.config.run import Run
from glassformer.tasks.task import trainable_task
from runs import Recording, conversation_run, label_run, made_up_text, pair_run, tiny_run


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


RUNS: dict[str, Callable[[Path], Run]] = {
    "text": text,
    "pairs": pairs,
    "labels": label_run,
    "conversations": conversation_run,
}


@pytest.mark.parametrize("name", RUNS)
def test_a_model_is_evaluated_on_the_validation_data_of_its_run(name: str, tmp_path: Path) -> None:
    run, reporter = RUNS[name](tmp_path), Recording()
    outcome = api.train(run, tmp_path / "run", reporter)
    model = api.load(tmp_path / "run")
    assert model.evaluate() == outcome.reports["valid"]
    assert model.data_digest == trainable_task(outcome.run).open(outcome.run).corpus.digest
    few = [line for line in reporter.messages if line.startswith("the validation data has only ")]
    n = outcome.reports["valid"].n_tokens
    assert len(few) == (n < 1000) and all(f"only {n:,} targets" in line for line in few)


def test_few_documents_of_unequal_size_reach_the_held_out_share(tmp_path: Path) -> None:
    """The shortest document is 1 % of this text, and each other one is a ninth: the end of one is held out."""
    reporter = Recording()
    outcome = api.train(text(tmp_path), tmp_path / "run", reporter)
    valid = outcome.reports["valid"].n_tokens
    assert valid > 500 and not any("could be held out" in line for line in reporter.messages)
