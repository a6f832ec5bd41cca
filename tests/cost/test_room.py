"""A step that cannot fit is refused before the data is prepared; a step that may fit is never refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs import CONFIGS
from glassformer import recipes
from glassformer.config.run import ExampleRows, LoraConfig, PairData, Run, TextData
from glassformer.config.train import ParallelConfig, TrainConfig
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.cost.memory import require_memory
from glassformer.cost.room import MARGIN, Room, least_memory, parts_that_fit, room_of_machine, step_memory
from glassformer.data.corpus import Corpus
from glassformer.errors import UserError
from glassformer.reporting import Silent
from glassformer.training.run import train_run
from runs import tiny_run, write_text

GIB = 1 << 30
SMALL = Room("this machine", 2 * GIB, GIB, is_cpu=True)
MODEL = TransformerConfig(decoder=Stack(2, 2, d_ff=64), d_model=32, max_len=128, vocab_size=300)


def test_memory_of_this_machine() -> None:
    room = room_of_machine()
    assert room is not None and 0 < room.free <= room.total < 1 << 50


def test_a_container_has_its_own_limit_and_the_machines_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = f"MemTotal: {8 << 20} kB\nMemAvailable: {6 << 20} kB\nSwapTotal: {2 << 20} kB\nSwapFree: {1 << 20} kB\n"
    found = {"/proc/meminfo": meminfo, "/sys/fs/cgroup/memory.max": "max\n"}
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: found.get(str(path), "max\n"))
    assert room_of_machine() == Room("this machine", 10 * GIB, 7 * GIB, is_cpu=True)
    found["/sys/fs/cgroup/memory.max"] = f"{3 * GIB}\n"
    assert room_of_machine() == Room("this machine", 5 * GIB, 3 * GIB, is_cpu=True)


def test_one_micro_batch_is_counted() -> None:
    def needed(train: TrainConfig, data: TextData) -> int:
        return least_memory(Run(model=MODEL, data=data, train=train), on_cpu=True).total

    once = needed(TrainConfig(batch_size=64), TextData())
    assert needed(TrainConfig(batch_size=64, grad_accumulation=4), TextData()) == once
    assert needed(TrainConfig(batch_size=64), TextData(context=32)) < once / 2


def test_a_batch_beyond_the_memory_is_computed_in_the_fewest_parts_that_fit() -> None:
    run = Run(model=MODEL, train=TrainConfig(batch_size=10_000))
    n_parts = parts_that_fit(run, SMALL)
    assert n_parts & (n_parts - 1) == 0 and n_parts > 1
    assert least_memory(run, True, n_parts).total <= SMALL.total < least_memory(run, True, n_parts // 2).total
    assert parts_that_fit(replace(run, train=TrainConfig(batch_size=4)), SMALL) == 1


def test_a_batch_beyond_the_memory_in_parts_is_refused_with_both_figures() -> None:
    run = Run(model=MODEL, train=TrainConfig(batch_size=1 << 24))
    with pytest.raises(UserError) as error:
        parts_that_fit(run, SMALL)
    needed = least_memory(run, True, 1024).total / GIB
    assert f"a step of 16,777,216 rows takes at least {needed:,.1f} GiB in 1,024 parts" in str(error.value)
    assert "this machine has 2.0 GiB (1.0 GiB free): lower train.batch_size" in str(error.value)


def test_a_model_beyond_the_memory_is_refused_with_its_size() -> None:
    run = Run(model=replace(MODEL, decoder=Stack(200, 2, d_ff=4096), d_model=1024))
    with pytest.raises(UserError, match=r"the weights, gradients and optimizer take [\d.]+ GiB.*: lower model.d_model"):
        parts_that_fit(run, SMALL)


@pytest.mark.parametrize("n_rows", [1, 3, 1000])
def test_a_row_below_the_margin_is_not_refused(n_rows: int) -> None:
    run = Run(model=MODEL, train=TrainConfig(batch_size=n_rows))
    least = least_memory(run, True, n_rows).total
    n_parts = parts_that_fit(run, Room("x", int(least / MARGIN) + 1, 0, is_cpu=True))
    assert n_parts <= n_rows
    with pytest.raises(UserError):
        parts_that_fit(run, Room("x", int(least / MARGIN) - 1, 0, is_cpu=True))
    assert parts_that_fit(run, Room("x", least, 0, is_cpu=True)) == n_rows
    assert parts_that_fit(run, None) == 1


def test_the_memory_of_a_step_counts_whole_batches_trained_weights_and_shards() -> None:
    run = Run(model=MODEL, data=PairData(path="x", batch_tokens=1024), train=TrainConfig())
    whole = step_memory(run, True, 1, 1.0, 1)
    assert whole.total > least_memory(run, True).total
    assert step_memory(run, True, 8, 1.0, 1).logits * 8 == whole.logits
    assert step_memory(run, True, 1, 0.5, 1).optimizer * 2 == whole.optimizer
    assert step_memory(run, True, 1, 1.0, 4).weights * 4 == whole.weights


@pytest.mark.parametrize(
    "change",
    [
        {"data": TextData(packing=ExampleRows())},
        {"data": PairData(path="x", batch_tokens=1 << 60)},
        {"train": TrainConfig(batch_size=100_000, compile=True)},
        {"lora": LoraConfig()},
    ],
    ids=["rows of any length", "rows up to a number of tokens", "compiled", "adapted"],
)
def test_sizes_from_data_or_compiler_are_not_counted(change: dict[str, Any]) -> None:
    run = Run(model=MODEL, train=TrainConfig(batch_size=10_000))
    assert least_memory(replace(run, **change), on_cpu=True).total < least_memory(run, on_cpu=True).total / 20


def test_shards_of_other_processes_are_not_counted() -> None:
    run = Run(model=MODEL)
    divided = replace(run, parallel=ParallelConfig(strategy="fsdp"))
    assert least_memory(divided, on_cpu=False).state == 0 < least_memory(run, on_cpu=False).state


@pytest.mark.parametrize("name", CONFIGS)
def test_every_kind_of_model_has_an_estimate(name: str) -> None:
    run = Run(model=CONFIGS[name])
    assert least_memory(run, on_cpu=True).total > 0
    assert step_memory(run, True, 1, 1.0, 1).total > 0


def test_an_unknown_vocabulary_counts_the_special_ids() -> None:
    run = Run(model=replace(MODEL, vocab_size=0, bos_id=2, eos_id=7))
    assert 0 < least_memory(run, on_cpu=True).total < least_memory(Run(model=MODEL), on_cpu=True).total


def test_every_recipe_fits_on_one_h200() -> None:
    h200 = Room("the GPU", 141 * GIB, 141 * GIB, is_cpu=False)
    for name in recipes.names():
        assert parts_that_fit(recipes.load(name), h200) == 1


def test_the_run_is_refused_before_its_data_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepared(*args: object) -> None:
        raise AssertionError("the data was read")

    run = tiny_run(write_text(tmp_path), batch_size=1 << 24)
    require_memory(run.model)
    monkeypatch.setattr(Corpus, "news", prepared)
    monkeypatch.setattr("glassformer.training.run.room_of", lambda device: replace(SMALL, total=GIB // 8))
    with pytest.raises(UserError, match=r"a step of 16,777,216 rows takes at least [\d,.]+ GiB in 1,024 parts, and"):
        train_run(run, tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


def test_logits_in_half_precision_count_with_their_gradient_once() -> None:
    """The loss of a large vocabulary is computed a few rows at a time, so no copy of the logits is in fp32."""
    model = replace(MODEL, vocab_size=1 << 14)
    fp32, bf16 = (
        least_memory(Run(model=model, train=TrainConfig(batch_size=64, precision=precision)), on_cpu=True)
        for precision in ("fp32", "bf16")
    )
    assert bf16.logits * 2 == fp32.logits == 64 * model.max_len * (1 << 14) * 8
