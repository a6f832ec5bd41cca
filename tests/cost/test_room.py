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
from glassformer.cost.room import Room, least_memory, require_room, room_of_machine
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


def test_a_batch_beyond_the_memory_is_refused_with_both_figures() -> None:
    run = Run(model=MODEL, train=TrainConfig(batch_size=100_000))
    with pytest.raises(UserError) as error:
        require_room(run, SMALL)
    needed = least_memory(run, on_cpu=True).total / GIB
    assert f"a step of 100,000 rows takes at least {needed:,.1f} GiB" in str(error.value)
    assert "this machine has 2.0 GiB (1.0 GiB free): lower train.batch_size" in str(error.value)


def test_a_model_beyond_the_memory_is_refused_with_its_size() -> None:
    run = Run(model=replace(MODEL, decoder=Stack(200, 2, d_ff=4096), d_model=1024))
    with pytest.raises(UserError, match=r"the weights, gradients and optimizer take [\d.]+ GiB.*: lower model.d_model"):
        require_room(run, SMALL)


def test_a_run_below_the_margin_is_not_refused() -> None:
    run = Run(model=MODEL, train=TrainConfig(batch_size=1000))
    needed = least_memory(run, on_cpu=True).total
    require_room(run, Room("x", int(needed / 1.5) + 1, 0, is_cpu=True))
    with pytest.raises(UserError):
        require_room(run, Room("x", int(needed / 1.5) - 1, 0, is_cpu=True))
    require_room(run, None)


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
    assert least_memory(Run(model=CONFIGS[name]), on_cpu=True).total > 0


def test_an_unknown_vocabulary_counts_the_special_ids() -> None:
    run = Run(model=replace(MODEL, vocab_size=0, bos_id=2, eos_id=7))
    assert 0 < least_memory(run, on_cpu=True).total < least_memory(Run(model=MODEL), on_cpu=True).total


def test_every_recipe_fits_on_one_h200() -> None:
    h200 = Room("the GPU", 141 * GIB, 141 * GIB, is_cpu=False)
    for name in recipes.names():
        require_room(recipes.load(name), h200)


def test_the_run_is_refused_before_its_data_is_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepared(*args: object) -> None:
        raise AssertionError("the data was read")

    run = tiny_run(write_text(tmp_path), batch_size=1 << 24)
    require_memory(run.model)
    monkeypatch.setattr(Corpus, "news", prepared)
    with pytest.raises(UserError, match=r"a step of 16,777,216 rows takes at least [\d,.]+ GiB, and this machine has"):
        train_run(run, tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()
