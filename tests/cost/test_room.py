"""A step that cannot fit is refused before the data is prepared; a step that may fit is never refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

import papers
from configs import CONFIGS, RECURRENT
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.run import ExampleRows, LoraConfig, PairData, Run, Seq2SeqConfig, TextData
from glassformer.config.train import ParallelConfig, TrainConfig
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.cost.room import (
    MARGIN,
    Room,
    least_memory,
    require_memory,
    room_of_machine,
    step_memory,
    way_that_fits,
)
from glassformer.data.corpus import Corpus
from glassformer.models.devices import Fit
from glassformer.tasks.reporting import Silent
from glassformer.training.run import train_run
from runs import tiny_run, write_text

GIB = 1 << 30
SMALL = Room("this machine", 2 * GIB, GIB, is_cpu=True)
MODEL = TransformerConfig(decoder=Stack(2, 2, d_ff=64), d_model=32, max_len=128, vocab_size=300)


def test_memory_of_this_machine() -> None:
    room = room_of_machine()
    assert room is not None and room.free is not None and 0 < room.free <= room.total < 1 << 50


def test_a_container_has_its_own_limit_and_the_machines_swap(monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = f"MemTotal: {8 << 20} kB\nMemAvailable: {6 << 20} kB\nSwapTotal: {2 << 20} kB\nSwapFree: {1 << 20} kB\n"
    found = {"/proc/meminfo": meminfo, "/sys/fs/cgroup/memory.max": "max\n"}

    def read(path: Path, encoding: str) -> str:
        if str(path) not in found:
            raise FileNotFoundError(path)
        return found[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    assert room_of_machine() == Room("this machine", 10 * GIB, 7 * GIB, is_cpu=True)
    found["/sys/fs/cgroup/memory.max"] = f"{3 * GIB}\n"
    found["/sys/fs/cgroup/memory.current"] = f"{2 * GIB}\n"
    found["/sys/fs/cgroup/memory.stat"] = f"anon {GIB}\ninactive_file {GIB // 2}\nactive_file {GIB // 2}\n"
    assert room_of_machine() == Room("this machine", 5 * GIB, 3 * GIB // 2, is_cpu=True)
    del found["/sys/fs/cgroup/memory.max"]
    found["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = f"{4 * GIB}\n"
    found["/sys/fs/cgroup/memory/memory.usage_in_bytes"] = f"{GIB}\n"
    found["/sys/fs/cgroup/memory/memory.stat"] = "inactive_file 0\ntotal_inactive_file 0\n"
    assert room_of_machine() == Room("this machine", 6 * GIB, 3 * GIB, is_cpu=True)


def test_a_system_without_meminfo_has_an_unknown_amount_of_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, encoding: str) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    room = room_of_machine()
    assert room is not None and room.free is None and str(room).endswith(" GiB")


def test_one_micro_batch_is_counted() -> None:
    def needed(train: TrainConfig, data: TextData) -> int:
        return least_memory(Run(model=MODEL, data=data, train=train), on_cpu=True).total

    once = needed(TrainConfig(batch_size=64), TextData())
    assert needed(TrainConfig(batch_size=64, grad_accumulation=4), TextData()) == once
    assert needed(TrainConfig(batch_size=64), TextData(context=32)) < once / 2


def test_a_batch_beyond_the_memory_is_computed_in_the_fewest_way_that_fits() -> None:
    run = Run(model=MODEL, train=TrainConfig(batch_size=10_000))
    fit = way_that_fits(run, SMALL)
    n_parts = fit.n_parts
    assert n_parts & (n_parts - 1) == 0 and n_parts > 1 and not fit.recomputes
    assert least_memory(run, True, fit).total <= SMALL.total < least_memory(run, True, Fit(n_parts // 2)).total
    assert way_that_fits(replace(run, train=TrainConfig(batch_size=4)), SMALL) == Fit()


DEEP = Run(model=replace(MODEL, decoder=Stack(24, 2, d_ff=64)), train=TrainConfig(batch_size=6))


def test_activation_checkpointing_is_switched_on_if_a_single_row_does_not_fit() -> None:
    """Then with the fewest parts that fit; `false` leaves it off, and `true` counts it from the beginning."""

    def way(memory: int, setting: Literal["auto"] | bool = "auto") -> Fit:
        run = replace(DEEP, train=replace(DEEP.train, activation_checkpointing=setting))
        return way_that_fits(run, Room("x", memory, 0, is_cpu=True))

    def least(fit: Fit) -> int:
        return least_memory(DEEP, True, fit).total

    row, halves = least(Fit(6)), least(Fit(2, True))
    assert halves < row < least(Fit(1, True)) < least(Fit(4))
    assert way(row) == Fit(6) and way(row - 1) == Fit(2, True) and way(halves - 1) == Fit(4, True)
    assert way(row, False) == Fit(6) and way(row - 1, False) == Fit(6)  # less than the margin
    assert way(least(Fit(1, True)), True) == Fit(1) and way(row - 1, True) == Fit(2)
    tight = least(Fit(6, True))
    assert way(tight - 1).recomputes and way(int(tight / MARGIN) + 1) == Fit(6, True)
    with pytest.raises(UserError, match="lower"):
        way(int(tight / MARGIN) - 1)
    recurrent = Run(model=RECURRENT["bahdanau"], data=PairData(path="x"), objective=Seq2SeqConfig())
    assert not way_that_fits(recurrent, Room("x", least_memory(recurrent, True).total - 1, 0, is_cpu=True)).recomputes


def test_a_batch_beyond_the_memory_in_parts_is_refused_with_both_figures() -> None:
    run = Run(model=MODEL, train=TrainConfig(batch_size=1 << 24))
    with pytest.raises(UserError) as error:
        way_that_fits(run, SMALL)
    needed = least_memory(run, True, Fit(1024, recomputes=True)).total / GIB
    assert f"a step of 16,777,216 rows takes at least {needed:,.1f} GiB in 1,024 parts" in str(error.value)
    assert "this machine has 2.0 GiB (1.0 GiB free): lower train.batch_size" in str(error.value)


def test_a_model_beyond_the_memory_is_refused_with_its_size() -> None:
    run = Run(model=replace(MODEL, decoder=Stack(200, 2, d_ff=4096), d_model=1024))
    with pytest.raises(UserError, match=r"the weights, gradients and optimizer take [\d.]+ GiB.*: lower model.d_model"):
        way_that_fits(run, SMALL)


@pytest.mark.parametrize("n_rows", [1, 3, 1000])
def test_a_row_below_the_margin_is_not_refused(n_rows: int) -> None:
    run = Run(model=MODEL, train=TrainConfig(batch_size=n_rows, activation_checkpointing=False))
    least = least_memory(run, True, Fit(n_rows)).total
    fit = way_that_fits(run, Room("x", int(least / MARGIN) + 1, 0, is_cpu=True))
    assert fit.n_parts <= n_rows and not fit.recomputes
    with pytest.raises(UserError):
        way_that_fits(run, Room("x", int(least / MARGIN) - 1, 0, is_cpu=True))
    assert way_that_fits(run, Room("x", least, 0, is_cpu=True)) == Fit(n_rows)
    assert way_that_fits(run, None) == Fit()


def test_the_memory_of_a_step_counts_whole_batches_trained_weights_and_shards() -> None:
    run = Run(model=MODEL, data=PairData(path="x", batch_tokens=1024), objective=Seq2SeqConfig())
    whole = step_memory(run, True, Fit(), 1.0, 1)
    assert whole.total > least_memory(run, True).total
    assert step_memory(run, True, Fit(8), 1.0, 1).logits * 8 == whole.logits
    assert step_memory(run, True, Fit(), 0.5, 1).optimizer * 2 == whole.optimizer
    assert step_memory(run, True, Fit(), 1.0, 4).weights * 4 == whole.weights
    assert step_memory(run, True, Fit(recomputes=True), 1.0, 1).activations < whole.activations
    long = replace(run, model=replace(MODEL, max_len=16 * 1024))
    assert step_memory(long, True, Fit(), 1.0, 1).logits == whole.logits, "no row is longer than the budget"


@pytest.mark.parametrize(
    "change",
    [
        {"data": TextData(packing=ExampleRows())},
        {"data": PairData(path="x", batch_tokens=1 << 60), "objective": Seq2SeqConfig()},
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
    assert step_memory(run, True, Fit(), 1.0, 1).total > 0


def test_an_unknown_vocabulary_counts_the_special_ids() -> None:
    run = Run(model=replace(MODEL, vocab_size=0, bos_id=2, eos_id=7))
    assert 0 < least_memory(run, on_cpu=True).total < least_memory(Run(model=MODEL), on_cpu=True).total


def test_every_recipe_and_run_of_a_paper_fits_on_one_h200() -> None:
    h200 = Room("the GPU", 141 * GIB, 141 * GIB, is_cpu=False)
    for name in (*recipes.names(), *papers.FILES):
        assert way_that_fits(papers.run_of(name), h200) == Fit()


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
