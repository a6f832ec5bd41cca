"""Several processes give the losses and weights of one process, for every kind of run and every strategy."""

import functools
import json
import os
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from faults.children import done, ranks_done, start_ranks, wait, wait_until
from faults.tally import record
from faults.test_numbers import BAD, spoiled
from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.recurrent import AttendBefore, RecurrentConfig
from glassformer.config.run import ExampleRows, LoraConfig, MaskedConfig, Run
from glassformer.config.train import AdamConfig, EarlyStopping, MuonConfig, ParallelConfig, PlateauSchedule, TrainConfig
from glassformer.config.transformer import Stack
from glassformer.data.batching import Batch
from glassformer.models.build import build_model
from glassformer.models.devices import Fit, give_back_memory
from glassformer.nn.kernels import processor
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.loss import LossSums
from glassformer.objectives.preference import PreferenceObjective
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import weights_of
from glassformer.training import checkpointer, init_from
from glassformer.training.distributed import process_group
from glassformer.training.distributed.parts import is_part
from glassformer.training.distributed.process_group import processes
from glassformer.training.trainer_state import read_progress
from preference_runs import policy_run, preference_run, trained_start
from runs import (
    MODEL,
    Recording,
    conversation_run,
    label_run,
    metrics,
    pair_run,
    text_run_of,
    tiny_run,
    unbalanced_run,
    write_documents,
    write_text,
)
from tolerances import NETWORK, NEWTON_SCHULZ, assert_close, assert_same_steps, largest_of, near, of_adam

N_STEPS = 4
TIMES = {"max_steps": N_STEPS, "eval_every": N_STEPS // 2, "log_every": 2, "grad_accumulation": 2}
RECURRENT = RecurrentConfig(
    cell="gru", d_embedding=12, d_encoder=10, d_decoder=14, attention=AttendBefore(), max_len=32, output_dropout=0.1
)


def padded_text(folder: Path) -> Run:
    model = replace(MODEL, residual_dropout=0.2, embedding_dropout=0.1)
    data = {"packing": ExampleRows(), "valid_fraction": 0.2}
    return tiny_run(
        write_documents(folder), model=model, data=data, **(TIMES | {"grad_accumulation": 4}), ema_decay=0.9
    )


def muon_text(folder: Path) -> Run:
    """Return a run whose matrices have an odd number of rows, and fused ones for queries, keys and values."""
    model = replace(MODEL, decoder=replace(MODEL.decoder, d_ff=33), fused_qkv=True, gated_ff=True)  # type: ignore[type-var]
    optimizer = MuonConfig(weight_decay=0.1)
    return tiny_run(write_text(folder), model=model, optimizer=optimizer, **TIMES)


RUNS: dict[str, Callable[[Path], Run]] = {
    "padded text with dropout and an average": padded_text,
    "pairs": lambda folder: pair_run(folder, **TIMES, early_stopping=EarlyStopping("bleu", patience=50)),
    "recurrent pairs": lambda folder: pair_run(folder, model=RECURRENT, **TIMES),
    "labels": lambda folder: label_run(folder, **TIMES, early_stopping=EarlyStopping("accuracy", patience=50)),
    "weighted labels": lambda folder: unbalanced_run(folder, **TIMES, early_stopping=EarlyStopping("auto")),
    "masked": lambda folder: text_run_of(folder, MaskedConfig(), **TIMES),
    "muon": muon_text,
    "conversations": lambda folder: conversation_run(
        folder, **TIMES, early_stopping=EarlyStopping("exact_match", patience=50)
    ),
}


def accumulated(run: Run, **train: Any) -> Run:
    return replace(run, train=replace(run.train, grad_accumulation=2, **train))


COMPARED: dict[str, Callable[[Path], Run]] = {
    "preferences": lambda folder: accumulated(preference_run(folder, trained_start(folder))),
    "rewards": lambda folder: accumulated(policy_run(folder, trained_start(folder)), max_steps=4, eval_every=2),
}
"""Runs that compare with their start, for which parallel.strategy must be ddp."""


@pytest.fixture(scope="module", autouse=True)
def newton_schulz_in_fp32() -> Iterator[None]:
    """On a CPU that is faster in bf16, Muon rounds to bfloat16, whose errors are as large as a mistake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor, "this", replace(processor.this, known=processor.FIXED["onednn"]))
        yield


Alone = Callable[[str], tuple[Run, Path]]
"""A function that returns the run of a name, and the folder where one process has trained it."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """Train each kind of run once in one process, for all strategies that are compared with it."""

    @functools.cache
    def trained(name: str) -> tuple[Run, Path]:
        folder = tmp_path_factory.mktemp("alone")
        run = (RUNS | COMPARED)[name](folder)
        assert done(lambda: api.train(run, folder / "one")) == 0
        return run, folder / "one"

    return trained


def tensors(folder: Path, step: int = N_STEPS) -> dict[str, torch.Tensor]:
    place = checkpoint.path_of(folder, step)
    return {
        f"{path.relative_to(place)}/{name}": x
        for path in place.rglob("*.safetensors")
        for name, x in load_file(path).items()
    }


def require_equal(found: Path, expected: Path, step: int = N_STEPS, muon: bool = False) -> None:
    """Weights differ as the steps of their optimizer enlarge rounding errors; moments and losses do so little."""
    a, b = tensors(found, step), tensors(expected, step)
    assert a.keys() == b.keys()
    rate = 0.02 if muon else 1e-3
    for name, x in a.items():
        if checkpoint.OPTIMIZER in name:
            size = largest_of([x for other, x in b.items() if other.endswith(name.rsplit("/", 1)[-1])])
            assert_close(x, b[name], terms=NETWORK, amplification=step, magnitude=size, msg=name)
        else:
            # The smallest gradient of k tensors of n weights is 1/(k n) of the largest; the mean is over one tensor
            of_adams = of_adam(len(a) * x.numel())[0], of_adam(x.numel())[1]
            amplification = NEWTON_SCHULZ if muon else of_adams
            assert_same_steps(x, b[name], n_steps=step, rate=rate, amplification=amplification)
    for line, other in zip(metrics(found), metrics(expected), strict=True):
        assert line.keys() == other.keys()
        for name, value in line.items():
            if name == "sample" and value is None:
                continue  # of a model in parts
            assert value == (near(other[name], terms=NETWORK) if isinstance(value, float) else other[name]), name


@pytest.fixture
def two_equal_one(alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Return a function that trains the run of a name in two processes, and compares it with one process."""

    def compare(name: str, strategy: Any) -> None:
        run, one = alone(name)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # without what the single process kept
        together = replace(run, parallel=ParallelConfig(strategy, timeout=60))
        assert ranks_done(2, lambda: api.train(together, tmp_path / "two")) == [0, 0]
        require_equal(tmp_path / "two", one, step=run.train.max_steps, muon=name == "muon")
        Manifest.read(tmp_path / "two").verify(tmp_path / "two")
        api.load(tmp_path / "two")

    return compare


@pytest.mark.parametrize("name", [*RUNS, *COMPARED])
def test_two_processes_equal_one(name: str, two_equal_one: Callable[[str, str], None]) -> None:
    two_equal_one(name, "ddp")


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_with_parts_equal_one(name: str, two_equal_one: Callable[[str, str], None]) -> None:
    two_equal_one(name, "fsdp")


def test_two_processes_divide_the_values_of_a_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = accumulated(preference_run(tmp_path, trained_start(tmp_path)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log_ratios, n_rows = PreferenceObjective.log_ratios, Counter[str]()

    def counted(self: PreferenceObjective, model: Any, batch: Batch) -> torch.Tensor:
        n_rows["reference"] += batch.n_rows
        return log_ratios(self, model, batch)

    def computed(*_: Any) -> None:
        raise UserError("the reference is computed")

    def of_rank() -> None:
        monkeypatch.setattr(PreferenceObjective, "log_ratios", counted)
        monkeypatch.setattr("glassformer.tasks.preference.batching.TokenBudget", computed)
        with pytest.raises(UserError, match="the reference is computed"):
            api.train(run, tmp_path / "run")
        (tmp_path / os.environ["RANK"]).write_text(str(n_rows.total()), "utf-8")

    assert ranks_done(2, of_rank) == [0, 0]
    first, second = (int((tmp_path / rank).read_text("utf-8")) for rank in "01")
    assert first + second == 60 and min(first, second) >= 10


@pytest.mark.parametrize(("name", "strategy"), [(next(iter(RUNS)), "ddp"), ("pairs", "fsdp")])
def test_two_processes_compute_micro_batches_in_parts_like_one(
    name: str, strategy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By estimate, process 0 needs 2 parts, and process 1 needs activation checkpointing: both take both."""
    ways = [Fit(2), Fit(1, recomputes=True)]
    monkeypatch.setattr("glassformer.training.run.way_that_fits", lambda *_: ways[int(os.environ.get("RANK", 0))])
    run = RUNS[name](tmp_path)
    assert done(lambda: api.train(run, tmp_path / "one")) == 0
    together = replace(run, parallel=ParallelConfig(strategy, timeout=60))
    assert ranks_done(2, lambda: api.train(together, tmp_path / "two")) == [0, 0]
    require_equal(tmp_path / "two", tmp_path / "one")
    assert read_progress(checkpoint.path_of(tmp_path / "two", N_STEPS)).fit == Fit(2, recomputes=True)


def test_a_step_that_fits_in_one_process_only_ends_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate of process 1 refuses the run; process 0 does not wait for it."""

    def way(run: Run, room: object) -> Fit:
        if os.environ["RANK"] == "1":
            raise UserError("a row does not fit")
        return Fit()

    def refused() -> None:
        words = "a row does not fit" if os.environ["RANK"] == "1" else "1 of 2 processes failed"
        with pytest.raises(UserError, match=words):
            api.train(replace(padded_text(tmp_path), parallel=ParallelConfig(timeout=60)), tmp_path / "run")

    monkeypatch.setattr("glassformer.training.run.way_that_fits", way)
    assert ranks_done(2, refused) == [0, 0]


@pytest.mark.parametrize(("strategy", "in_training"), [("ddp", True), ("fsdp", True), ("fsdp", False)])
def test_a_process_without_memory_ends_the_run_with_one_sentence(
    strategy: Any, in_training: bool, alone: Alone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the forward of a step of process 1, or in its evaluation. A resumed run ends like one without the error."""
    run, whole = alone(next(iter(RUNS)))
    run = replace(run, parallel=ParallelConfig(strategy, timeout=60))
    loss, n_calls = CausalObjective.loss, Counter[bool]()

    def full(self: CausalObjective, model: Any, batch: Batch) -> LossSums:
        n_calls[torch.is_grad_enabled()] += 1
        if torch.is_grad_enabled() == in_training and n_calls[True] > 2 * 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return loss(self, model, batch)

    def refused() -> None:
        at = 3 if in_training else 4
        words = f"not enough memory for another 2.0 GiB at step {at}, in process 1 of 2: lower train.batch_size "
        if os.environ["RANK"] == "1":
            monkeypatch.setattr(CausalObjective, "loss", full)
        else:
            words = f"process 0 of 2 stops because process 1 failed: {words}"
        with pytest.raises(UserError, match=words), warnings.catch_warnings(action="ignore"):
            api.train(run, tmp_path / "run")

    assert ranks_done(2, refused) == [0, 0]
    assert done(lambda: api.resume(tmp_path / "run")) == 0
    require_equal(tmp_path / "run", whole)


@pytest.mark.parametrize("adapts", [False, True])
def test_a_sharded_run_starts_with_the_bits_of_one_process(
    adapts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New weights, or those of a model with new updates of LoRA; a tied table is one parameter on each process."""
    run = tiny_run(write_text(tmp_path), max_steps=1, grad_accumulation=2, on_nonfinite="rollback")
    if adapts:
        assert done(lambda: api.train(run, tmp_path / "base")) == 0
        run = replace(run, init=replace(run.init, path=str(tmp_path / "base")), lora=LoraConfig())
    assert done(lambda: api.train(run, tmp_path / "one")) == 0
    together = replace(run, parallel=ParallelConfig("fsdp", timeout=60))
    send = process_group.Sharded.send_weights

    def sent(self: process_group.Sharded, weights: Any, network: Any) -> None:
        assert len(weights) == (len(weights_of(network)) if self.is_first else 0)
        send(self, weights, network)
        assert is_part(network.output.proj.weight)
        assert network.output.proj.weight is network.decoder.embeddings.tokens.weight

    def of_two() -> None:
        monkeypatch.setattr(process_group.Sharded, "send_weights", sent)
        if os.environ["RANK"] == "1":
            monkeypatch.setattr(init_from, "build_model", None)
        api.train(together, tmp_path / "two")

    assert ranks_done(2, of_two) == [0, 0]
    one, two = tensors(tmp_path / "one", 0), tensors(tmp_path / "two", 0)
    assert one.keys() == two.keys() and all(torch.equal(x, two[name]) for name, x in one.items())


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the memory of a process from /proc")
def test_only_process_0_has_the_whole_weights_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured as the memory of the process, at most, from before the network is built until its parts are filled."""
    model = replace(MODEL, d_model=512, decoder=Stack(16, 2, d_ff=2048))
    n_bytes = 4 * build_model(replace(model, vocab_size=290), "meta").n_parameters()
    run = replace(tiny_run(write_text(tmp_path), model=model, grad_accumulation=2), parallel=ParallelConfig("fsdp"))

    def memory(name: str) -> int:
        return next(1024 * int(line.split()[1]) for line in Path("/proc/self/status").open() if line.startswith(name))

    def measured() -> None:
        first_alone, send, before = process_group.Sharded.first_alone, process_group.Sharded.send_weights, [0]

        def alone(self: process_group.Sharded) -> Any:
            give_back_memory()  # freed memory that the process keeps would hide the first tensors
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts at VmRSS
            before[0] = memory("VmRSS")
            return first_alone(self)

        def sent(self: process_group.Sharded, weights: Any, network: Any) -> None:
            send(self, weights, network)
            most = memory("VmHWM") - before[0]
            # Another process holds half of the weights, and a layer at a time. The system may take back pages of files.
            assert most > n_bytes if self.is_first else n_bytes / 3 < most < 0.8 * n_bytes, f"{most} of {n_bytes}"
            raise UserError("measured")

        monkeypatch.setattr(process_group.Sharded, "first_alone", alone)
        monkeypatch.setattr(process_group.Sharded, "send_weights", sent)
        with pytest.raises(UserError, match="measured"):
            api.train(run, tmp_path / "run")

    assert ranks_done(2, measured) == [0, 0]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_2_then_1_then_2_processes_resume_one_run(strategy: Any, alone: Alone, tmp_path: Path) -> None:
    run, whole = alone(next(iter(RUNS)))
    parts = replace(run, parallel=ParallelConfig(strategy, timeout=60), train=replace(run.train, max_time=1e-9))

    def stopped(work: Callable[[], object]) -> None:
        try:
            work()
        except Interrupted:
            return
        raise AssertionError("it did not stop")

    assert ranks_done(2, lambda: stopped(lambda: api.train(parts, tmp_path / "parts"))) == [0, 0]
    assert done(lambda: stopped(lambda: api.resume(tmp_path / "parts"))) == 0
    reporter = Recording()

    def to_the_end() -> None:
        api.resume(tmp_path / "parts", reporter, {"train.max_time": "0"})
        changes = [line for line in reporter.messages if "processes 1, now 2" in line]
        assert len(changes) == (os.environ["RANK"] == "0")

    assert ranks_done(2, to_the_end) == [0, 0]
    require_equal(tmp_path / "parts", whole)
    record(17, 2, 2, "2, 1 and 2 processes")


def test_only_rank_0_decides_logs_and_publishes(tmp_path: Path) -> None:
    run = padded_text(tmp_path)
    settings = {
        "schedule": PlateauSchedule(patience=0),
        "select": "average",
        "log_every": 1,
        "optimizer": AdamConfig(),
    }
    run = replace(run, train=replace(run.train, **settings))  # type: ignore[arg-type]
    assert done(lambda: api.train(run, tmp_path / "one")) == 0
    assert ranks_done(2, lambda: api.train(run, tmp_path / "two")) == [0, 0]
    require_equal(tmp_path / "two", tmp_path / "one")
    lines = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
    speeds = [(line["tokens_per_s_per_device"], line["tokens_per_s"]) for line in lines if "tokens_per_s" in line]
    assert len(speeds) == 4 and all(2 * of_device == of_both for of_device, of_both in speeds)


def test_micro_batches_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), grad_accumulation=3)

    def refused() -> None:
        with pytest.raises(UserError, match=r"train.grad_accumulation: expected a multiple of .* \(2\), got 3"):
            api.train(run, tmp_path / "run")

    assert ranks_done(2, refused) == [0, 0]
    assert not (tmp_path / "run").exists()


def test_texts_of_every_script_reach_the_other_processes() -> None:
    texts = ["first: ö – 漢字", "second: é 🙂"]

    def exchanged() -> None:
        with processes(ParallelConfig(), TrainConfig(grad_accumulation=2), torch.device("cpu")) as ranks:
            assert ranks.texts(texts[int(os.environ["RANK"])]) == texts
            assert ranks.text_of_first(lambda: texts[0]) == texts[0]

    assert ranks_done(2, exchanged) == [0, 0]


def test_13_all_processes_skip_a_nan_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = padded_text(tmp_path)
    run = replace(run, train=replace(run.train, on_nonfinite="skip", log_every=1))

    def one_is_bad() -> None:
        if os.environ["RANK"] == "1":
            spoiled(monkeypatch, {3}, BAD["loss is nan"])
        api.train(run, tmp_path / "run")

    assert ranks_done(2, one_is_bad) == [0, 0]
    [event] = [line for line in metrics(tmp_path / "run") if "event" in line]
    assert event["step"] == 4
    optimizer = load_file(checkpoint.path_of(tmp_path / "run", N_STEPS) / checkpoint.OPTIMIZER)
    assert {float(x) for name, x in optimizer.items() if name.endswith("/step")} == {N_STEPS - 1.0}
    assert all(bool(x.isfinite().all()) for x in tensors(tmp_path / "run").values())
    record(13, 1, 1, "in one of two processes")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_13_several_processes_roll_back_together(
    strategy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = replace(padded_text(tmp_path), parallel=ParallelConfig(strategy, timeout=60))
    run = replace(run, train=replace(run.train, on_nonfinite="rollback"))
    bad = {1}

    def one_is_bad() -> None:
        if os.environ["RANK"] == "1":
            spoiled(monkeypatch, bad, lambda sums: (bad.clear(), BAD["loss is nan"](sums))[1])
        api.train(run, tmp_path / "run")

    assert ranks_done(2, one_is_bad) == [0, 0]
    [event] = [line for line in metrics(tmp_path / "run") if "event" in line]
    assert "back to step 0, the learning rate is × 0.5" in event["event"]
    record(13, 1, 1, "in one of two processes")


def test_a_signal_to_one_process_stops_all(tmp_path: Path) -> None:
    run = replace(padded_text(tmp_path), parallel=ParallelConfig(timeout=60))
    run = replace(run, train=replace(run.train, max_steps=100_000))

    def stopped() -> None:
        with pytest.raises(Interrupted, match="SIGTERM: saved at step"):
            api.train(run, tmp_path / "run")

    first, second = start_ranks(2, stopped)
    wait_until(lambda: bool(checkpoint.steps(tmp_path / "run")), first, second)
    os.kill(second, signal.SIGTERM)
    assert [wait(first), wait(second)] == [0, 0]


def test_processes_that_find_different_checkpoints_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(padded_text(tmp_path), parallel=ParallelConfig(timeout=60))
    assert done(lambda: api.train(run, tmp_path / "run")) == 0

    def stale() -> None:
        if os.environ["RANK"] == "1":
            monkeypatch.setattr(checkpoint, "newest", lambda folder, log: checkpoint.path_of(folder, N_STEPS // 2))
        with pytest.raises(UserError, match=r"finds .*step-2, but process 0 finds step 4|1 of 2 processes"):
            api.resume(tmp_path / "run")

    assert ranks_done(2, stale) == [0, 0]


def test_a_restart_resumes_only_its_own_run(tmp_path: Path) -> None:
    run = padded_text(tmp_path)
    own = {"TORCHELASTIC_RUN_ID": "mine"}
    short = replace(run, train=replace(run.train, max_time=1e-9))

    def stopped() -> None:
        with pytest.raises(Interrupted):
            api.train(short, tmp_path / "run")

    def refused() -> None:
        with pytest.raises(UserError, match="already contains a run"):
            api.train(run, tmp_path / "run")

    assert ranks_done(2, stopped, **own) == [0, 0]
    again = {"TORCHELASTIC_RESTART_COUNT": "1"}
    assert ranks_done(2, refused, **again, TORCHELASTIC_RUN_ID="another") == [0, 0]
    assert ranks_done(2, refused, **own) == [0, 0]
    assert ranks_done(2, stopped, **own, **again) == [0, 0]
    assert checkpoint.steps(tmp_path / "run")[-1] == 2


def test_16_a_process_that_hangs_ends_the_run_with_one_sentence(tmp_path: Path) -> None:
    run = padded_text(tmp_path)
    run = replace(run, parallel=ParallelConfig(timeout=10), train=replace(run.train, max_steps=100_000))

    def lost() -> None:
        with pytest.raises(
            UserError, match=r"process 0 of 2 lost another process.*within 10 s.*continue with"
        ) as error:
            api.train(run, tmp_path / "run")
        assert "\n" not in str(error.value)

    first, second = start_ranks(2, lost)
    wait_until(lambda: bool(checkpoint.steps(tmp_path / "run")), first, second)
    os.kill(second, signal.SIGSTOP)
    assert wait(first) == 0
    os.kill(second, signal.SIGKILL)
    os.waitpid(second, 0)
    checkpoint.newest(tmp_path / "run", lambda text: None)
    record(16, 1, 1, "-")


def test_18_a_failed_write_of_one_process_commits_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(padded_text(tmp_path), parallel=ParallelConfig("fsdp", timeout=60))
    real = checkpointer.check_parts

    def fails(weights: Any, folder: Path) -> Path:
        if os.environ["RANK"] == "1" and f"step-{N_STEPS}" in str(folder):
            raise UserError(f"cannot write {folder}: the disk of this process is full")
        return real(weights, folder)

    def work() -> None:
        monkeypatch.setattr(checkpointer, "check_parts", fails)
        with pytest.raises(UserError, match=r"the disk of this process is full|1 of 2 processes failed"):
            api.train(run, tmp_path / "run")

    assert ranks_done(2, work) == [0, 0]
    assert checkpoint.steps(tmp_path / "run") == [N_STEPS // 2]
    monkeypatch.undo()
    assert done(lambda: api.resume(tmp_path / "run")) == 0
    assert not list((tmp_path / "run").rglob("*.tmp*"))
    record(18, 1, 1, "-")
