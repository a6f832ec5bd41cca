"""BPE-dropout is drawn again for each epoch: the tokens change, the text does not, and a resumed run is equal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from glassformer import api
from glassformer.common.errors import Interrupted
from glassformer.config.run import ExampleRows, PackedRows, Run
from glassformer.data import tokens
from glassformer.data.batching import Example, ReencodedEachEpoch
from glassformer.evaluation.loss import ALONE
from glassformer.models.build import build_model
from glassformer.tasks.batches import TrainingData
from glassformer.tasks.reporting import Silent
from glassformer.tasks.task import trainable_task
from glassformer.tokenization import processes
from glassformer.tokenization.tokenizer import Tokenizers
from runs import label_run, pair_run, remains, signal_at, tiny_run, write_documents, write_text


def dropped(run: Run) -> Run:
    source = run.source_tokenizer and replace(run.source_tokenizer, bpe_dropout=0.4)
    return replace(run, tokenizer=replace(run.tokenizer, bpe_dropout=0.4), source_tokenizer=source)


def documents(folder: Path, packing: ExampleRows | PackedRows) -> Run:
    return tiny_run(write_documents(folder, 30), data={"packing": packing, "valid_fraction": 0.2, "context": 24})


RUNS: dict[str, Callable[[Path], Run]] = {
    "windows": lambda folder: tiny_run(write_text(folder, 12), data={"context": 20}, batch_size=4),
    "examples": lambda folder: documents(folder, ExampleRows()),
    "packed": lambda folder: documents(folder, PackedRows()),
    "pairs": lambda folder: pair_run(folder, separate=True, data={"batch_tokens": 400}),
    "labels": lambda folder: label_run(folder, data={"batch_tokens": 400}),
    "tags": lambda folder: label_run(folder, "tags", data={"batch_tokens": 400}),
}


def prepared(run: Run) -> tuple[TrainingData, Tokenizers]:
    material = trainable_task(run).open(run)
    tokenizers = material.tokenizers(run, Silent())
    run = replace(run, model=material.complete(run, tokenizers))
    data = material.prepare(run, tokenizers, Silent())
    return data.training_data(build_model(run.model), torch.device("cpu"), ALONE), tokenizers


def rows(task: TrainingData, epoch: int) -> list[Example]:
    n = task.sampler.n_batches_per_epoch
    return [row for step in range(epoch * n, (epoch + 1) * n) for row in task.sampler.batch(step)]


def ids(examples: list[Example]) -> list[tuple[list[int], list[int]]]:
    return [(e.token_ids.tolist(), [] if e.source_ids is None else e.source_ids.tolist()) for e in examples]


def texts(examples: list[Example], tokenizers: Tokenizers) -> set[tuple[str, str]]:
    return {(tokenizers.target.decode(target), tokenizers.source.decode(source)) for target, source in ids(examples)}


@pytest.mark.parametrize("name", RUNS)
def test_each_epoch_has_new_tokens_by_seed_and_step(name: str, tmp_path: Path) -> None:
    run = dropped(RUNS[name](tmp_path))
    task, _ = prepared(run)
    assert isinstance(task.sampler, ReencodedEachEpoch)
    epochs = [ids(rows(task, epoch)) for epoch in range(3)]
    found = [sorted(epoch) for epoch in epochs]
    assert found[0] != found[1] != found[2] != found[0]
    again, _ = prepared(run)  # the steps in another order, as after a resume
    assert [ids(rows(again, epoch)) for epoch in (2, 0, 1)] == [epochs[2], epochs[0], epochs[1]]
    other, _ = prepared(replace(run, train=replace(run.train, seed=1)))
    assert sorted(ids(rows(other, 0))) != found[0]


@pytest.mark.parametrize("name", ["examples", "pairs", "labels", "tags"])
def test_the_tokens_of_all_epochs_decode_to_the_same_texts(name: str, tmp_path: Path) -> None:
    run = dropped(RUNS[name](tmp_path))
    run = replace(run, model=replace(run.model, max_len=256))
    if name == "examples":
        run = replace(run, data=replace(run.data, context=256))
    task, tokenizers = prepared(run)
    plain, _ = prepared(
        replace(
            run,
            tokenizer=replace(run.tokenizer, bpe_dropout=0.0),
            source_tokenizer=None if run.source_tokenizer is None else replace(run.source_tokenizer, bpe_dropout=0.0),
        )
    )
    whole = texts(rows(plain, 0), tokenizers)
    assert len(whole) > 20
    for epoch in range(3):
        read = texts(rows(task, epoch), tokenizers)
        assert read <= whole and len(read) > 0.9 * len(whole), "an epoch has a few rows more or less than the first"


@pytest.mark.parametrize("name", RUNS)
def test_the_validation_side_has_no_dropout(name: str, tmp_path: Path) -> None:
    run = RUNS[name](tmp_path)
    sides = []
    for one in (run, dropped(run)):
        task, _ = prepared(one)
        rows(task, 1)
        sides.append(ids([row for batch in task.evaluations["valid"]() for row in batch]))
    assert sides[0] == sides[1]


@pytest.mark.parametrize("name", ["windows", "examples", "pairs", "labels"])
def test_pitfall_23_a_resumed_run_has_equal_tokens(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dropped(RUNS[name](tmp_path))
    whole = api.train(run, tmp_path / "whole")
    n_epochs = 20 / prepared(run)[0].sampler.n_batches_per_epoch
    assert n_epochs > 2, "the test needs more than two epochs"
    cache = tmp_path / "cache"
    for step, command in ((3, "train"), (13, "resume"), (None, "resume")):
        if cache.is_dir():
            cache.rename(tmp_path / f"gone-{step}")  # the tokens are prepared again
        with monkeypatch.context() as patch:
            if step is None:
                outcome = api.resume(tmp_path / "parts")
                continue
            signal_at(patch, step)
            with pytest.raises(Interrupted):
                api.train(run, tmp_path / "parts") if command == "train" else api.resume(tmp_path / "parts")
    assert outcome.reports == whole.reports
    assert remains(tmp_path / "parts") == remains(tmp_path / "whole")
    assert api.load(tmp_path / "parts", step=20).evaluate() == whole.reports["valid"]


@pytest.mark.parametrize("name", ["windows", "pairs"])
def test_ranks_that_encode_at_the_same_time_share_the_processors(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 alone encodes the first epoch, and the others wait; all ranks of a machine encode the later epochs."""
    started = []

    @contextmanager
    def counted(function: Callable[[Any], Any], n_workers: int) -> Iterator[Any]:
        """Encode here in place of workers; `tests/tokenization/test_processes.py` starts them."""
        started.append(n_workers)
        yield SimpleNamespace(map=lambda items, size: map(function, items))

    run = dropped(RUNS[name](tmp_path))
    monkeypatch.setattr(processes, "_Workers", counted)
    monkeypatch.setattr(processes, "n_processors", lambda: 4)
    monkeypatch.setattr("glassformer.data.texts.PIECE_CHARACTERS", 50)
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 100)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    task, _ = prepared(run)
    assert set(started) == {4}
    started.clear()
    task.sampler.batch(task.sampler.n_batches_per_epoch)
    assert set(started) == {2}
    started.clear()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    task.sampler.batch(2 * task.sampler.n_batches_per_epoch)
    assert started == []  # the ranks encode, without workers


def test_the_tokens_of_an_epoch_are_deleted_when_the_next_one_begins(tmp_path: Path) -> None:
    run = dropped(RUNS["windows"](tmp_path))
    task, _ = prepared(run)
    n = task.sampler.n_batches_per_epoch
    kept = []
    for epoch in range(4):
        task.sampler.batch(epoch * n)
        kept.append({path.name for path in (tmp_path / "cache").iterdir()})
    assert [len(names) for names in kept] == [1, 2, 2, 2], "tokens of the first epoch and of this one"
    own = [names - kept[0] for names in kept[1:]]
    assert len(set.union(*own)) == 3, "each epoch has its own tokens while it is read"


def test_each_epoch_has_a_different_order(tmp_path: Path) -> None:
    run = dropped(RUNS["examples"](tmp_path))
    run = replace(run, model=replace(run.model, max_len=256), data=replace(run.data, context=256))
    run = replace(run, train=replace(run.train, batch_size=1))  # an epoch ends with a step
    task, tokenizers = prepared(run)
    orders = [[tokenizers.target.decode(row.token_ids.tolist()) for row in rows(task, epoch)] for epoch in range(4)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders), "rows are whole documents"
    assert len({tuple(order) for order in orders}) == 4


def test_dropout_of_only_the_source_is_drawn_for_each_epoch(tmp_path: Path) -> None:
    run = dropped(RUNS["pairs"](tmp_path))
    task, _ = prepared(replace(run, tokenizer=replace(run.tokenizer, bpe_dropout=0.0)))
    first, second = (sorted(source for _, source in ids(rows(task, epoch))) for epoch in (0, 1))
    assert first != second


def test_every_epoch_has_as_many_batches_as_the_first() -> None:
    class Short:
        def __init__(self, n: int, seed: int) -> None:
            self.n_batches_per_epoch, self.seed = n, seed

        def batch(self, number: int) -> list[Example]:
            return [Example(np.array([self.seed % 1000, number]))]

    sampler = ReencodedEachEpoch(Short(3, 7), lambda seed: (Short(2, seed), None), seed=0)
    places = [int(sampler.batch(step)[0].token_ids[1]) for step in range(9)]
    seeds = [int(sampler.batch(step)[0].token_ids[0]) for step in range(9)]
    assert sampler.n_batches_per_epoch == 3 and places == [0, 1, 2] * 3
    assert seeds[:3] == [7] * 3 and len(set(seeds[3:6])) == len(set(seeds[6:])) == 1 and len(set(seeds)) == 3
