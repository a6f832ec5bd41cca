"""Results that are read later, and batches that a thread makes, give the run of a CPU, bit for bit."""

import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from configs import random_model
from faults.children import ranks_done
from faults.test_numbers import BAD, batch, spoiled
from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.run import Run
from glassformer.config.train import (
    AdamConfig,
    AdamWConfig,
    EarlyStopping,
    MuonConfig,
    OptimizerConfig,
    ParallelConfig,
)
from glassformer.config.transformer import BalanceBias, Experts
from glassformer.data.batching import Example, ReencodedEachEpoch
from glassformer.store import checkpoint
from glassformer.training import host
from glassformer.training.ahead import Ahead
from glassformer.training.non_finite import MAX_SKIPPED
from glassformer.training.optimizers.build import build_optimizer
from glassformer.training.step import Pending, TrainStep
from runs import MODEL, Recording, metrics, pair_run, remains, signal_at, step_of, tiny_run, write_text

MUON = MuonConfig(weight_decay=0.1)


def works_ahead(patch: pytest.MonkeyPatch) -> None:
    """Train on the CPU as on a GPU."""
    patch.setattr(host, "runs_ahead", lambda device: True)


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order of backward passes and of results that are read."""
    found: list[str] = []
    for cls, name in ((TrainStep, "backward"), (Pending, "read")):
        real = getattr(cls, name)
        monkeypatch.setattr(cls, name, lambda *a, real=real, name=name: (found.append(name), real(*a))[1])
    return found


def both(run: Run, tmp_path: Path, work: Callable[[Path], object] | None = None) -> tuple[Path, Path]:
    """Train a run at once and ahead of the device; return the folders. `work` replaces the training."""
    for name in ("once", "ahead"):
        with pytest.MonkeyPatch.context() as patch:
            if name == "ahead":
                works_ahead(patch)
            (work or (lambda folder: api.train(run, folder)))(tmp_path / name)
    return tmp_path / "once", tmp_path / "ahead"


@pytest.mark.parametrize("optimizer", [AdamWConfig(), AdamConfig(), MUON], ids=["adamw", "adam", "muon"])
def test_results_that_are_read_later_change_nothing(
    optimizer: OptimizerConfig, tmp_path: Path, order: list[str]
) -> None:
    """With dropout, accumulation and a moving average; a step is read during the next one, or when it is needed."""
    model = replace(MODEL, residual_dropout=0.2)
    how = {"grad_accumulation": 2, "ema_decay": 0.9, "log_every": 3, "checkpoint_every": 4, "optimizer": optimizer}
    run = tiny_run(write_text(tmp_path), model=model, **how)
    reads: list[str] = []

    def work(folder: Path) -> None:
        order.clear()
        api.train(run, folder)
        reads.append("".join(name[0] for name in order))

    once, ahead = both(run, tmp_path, work)
    assert remains(once) == remains(ahead)
    assert reads[0] == "br" * 20
    needed = {step for step in range(1, 21) if step % 3 == 0 or step % 4 == 0 or step % 10 == 0}
    expected, unread = "", False
    for step in range(1, 21):
        expected += "br" if unread else "b"
        unread = step not in needed
        expected += "" if unread else "r"
    assert reads[1] == expected


def test_loads_and_biases_of_experts_are_moved_on_the_device(tmp_path: Path) -> None:
    model = replace(MODEL, experts=Experts(4, 2, balance=BalanceBias(0.01)))
    once, ahead = both(tiny_run(write_text(tmp_path), model=model, max_steps=5, log_every=1), tmp_path)
    assert remains(once) == remains(ahead) and "fullest_expert" in metrics(ahead)[1]
    assert load_file(ahead / "model.safetensors")["decoder.blocks.0.ff.router.bias"].any()


@pytest.mark.usefixtures("rising_perplexity")
def test_batches_that_are_made_ahead_change_nothing(tmp_path: Path) -> None:
    """Pairs in buckets; early stopping leaves a batch unused."""
    stopping = EarlyStopping("perplexity", patience=2)
    run = pair_run(tmp_path, grad_accumulation=2, max_steps=50, eval_every=2, early_stopping=stopping)
    once, ahead = both(run, tmp_path)
    assert remains(once) == remains(ahead)
    assert checkpoint.steps(ahead)[-1] == 6


def test_fresh_tokens_of_each_epoch_are_made_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With BPE-dropout, the thread encodes the text again; a rollback returns to earlier batches."""
    how = {"grad_accumulation": 2, "on_nonfinite": "rollback", "checkpoint_every": 5}
    run = tiny_run(write_text(tmp_path, 30), max_steps=40, **how)
    run = replace(run, tokenizer=replace(run.tokenizer, bpe_dropout=0.1))
    epochs: set[int] = set()
    real = ReencodedEachEpoch.batch

    def batch(sampler: ReencodedEachEpoch, number: int) -> list[Example]:
        epochs.add(number // sampler.n_batches_per_epoch)
        return real(sampler, number)

    monkeypatch.setattr(ReencodedEachEpoch, "batch", batch)
    found = []
    both(run, tmp_path, lambda folder: found.append(outcome(run, folder, {33}, "gradient is nan", once=True)))
    assert found[1]["taken"] == [*range(35), *range(30, 40)] and len(epochs) > 3
    for one in found:
        del one["taken"]
    assert found[0] == found[1] and any("back to step 30" in line for line in found[0]["messages"])


def outcome(run: Run, folder: Path, bad: set[int], what: str, once: bool = False) -> dict[str, Any]:
    """Train with bad steps; return all that can be seen from outside."""
    reporter = Recording()
    steps = set(bad)
    found: dict[str, Any] = {"error": ""}
    with pytest.MonkeyPatch.context() as patch:
        found["taken"] = spoiled(
            patch, steps, (lambda sums: (steps.clear(), BAD[what](sums))[1]) if once else BAD[what]
        )
        try:
            api.train(run, folder, reporter)
        except UserError as error:
            found["error"] = str(error)
    strip = str(folder)
    found["error"] = found["error"].replace(strip, "")
    found["messages"] = [
        line.replace(strip, "") for line in reporter.messages if "step" in line and not line.startswith("memory")
    ]
    found["events"] = [{key: str(value).replace(strip, "") for key, value in line.items()} for line in metrics(folder)]
    found["batches"] = {path.name: path.read_bytes() for path in folder.glob("bad-batch-*")}
    found["remains"] = remains(folder)["tensors"], remains(folder)["numbers"]
    return found


BAD_STEPS = {"unread": {7}, "read at once": {9}, "first": {0, 12}}
CASES = [  # each policy with each place, and each of both with each error
    (policy, name, ("loss is nan", "gradient is inf")[(i + j) % 2])
    for i, policy in enumerate(("stop", "skip", "rollback"))
    for j, name in enumerate(BAD_STEPS)
]


@pytest.mark.parametrize(("policy", "place", "what"), CASES)
def test_13_a_bad_step_has_the_same_consequences(policy: Any, place: str, what: str, tmp_path: Path) -> None:
    """Message, log, saved batch, checkpoints; the step that begins meanwhile leaves no trace."""
    how = {"grad_accumulation": 2, "ema_decay": 0.9, "checkpoint_every": 5, "on_nonfinite": policy}
    run = tiny_run(write_text(tmp_path), **how)
    bad = {6} if (policy, place) == ("stop", "first") else BAD_STEPS[place]
    found = []
    both(run, tmp_path, lambda folder: found.append(outcome(run, folder, bad, what, once=policy == "rollback")))
    taken = [one.pop("taken") for one in found]
    assert found[0] == found[1]
    begun_in_vain = policy != "skip" and 9 not in bad
    assert len(taken[1]) - len(taken[0]) == begun_in_vain
    last = {"stop": "lower train.optimizer", "skip": "skipped", "rollback": "back to step"}[policy]
    assert last in found[0]["error"] + "".join(found[0]["messages"])


def test_13_too_many_bad_steps_end_the_run_at_the_same_step(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), grad_accumulation=2, on_nonfinite="skip", checkpoint_every=2)
    found = []
    both(run, tmp_path, lambda folder: found.append(outcome(run, folder, set(range(2, 20)), "loss is inf")))
    last = 2 + MAX_SKIPPED + 1
    assert [len(one.pop("taken")) for one in found] == [last, last + 1]
    assert found[0] == found[1] and f"in step {last}" in found[0]["error"]


def test_an_interruption_saves_a_result_that_was_not_read(tmp_path: Path) -> None:
    """A signal in a step that neither logs nor saves; that step is bad and is skipped."""
    run = tiny_run(write_text(tmp_path), grad_accumulation=2, on_nonfinite="skip", ema_decay=0.9)

    def work(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            spoiled(patch, {12}, BAD["gradient is nan"])
            api.train(run, folder / "whole")
            with pytest.MonkeyPatch.context() as signals:
                signal_at(signals, 12)
                with pytest.raises(Interrupted, match="saved at step 13"):
                    api.train(run, folder / "parts")
            api.resume(folder / "parts")
        assert remains(folder / "whole") == remains(folder / "parts")

    once, ahead = both(run, tmp_path, work)
    assert remains(once / "parts") == remains(ahead / "parts")


def test_a_replay_reads_its_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of a signal, at a step that is not due."""
    works_ahead(monkeypatch)
    with monkeypatch.context() as patch:
        signal_at(patch, 12)
        with pytest.raises(Interrupted):
            api.train(tiny_run(write_text(tmp_path)), tmp_path / "run")
    replay = api.replay(tmp_path / "run")
    assert (replay.begin, replay.end, replay.differing) == (10, 13, [])


INTERRUPTED = """
import signal, threading
from contextlib import closing
from glassformer.training.ahead import Ahead

signal.signal(signal.SIGUSR1, signal.default_int_handler)
main = threading.main_thread().ident

def make(number):
    if number == 1:
        while True:  # the main thread waits in `close` when this arrives, or just before
            threading.Event().wait(0.2)
            signal.pthread_kill(main, signal.SIGUSR1)
    return number

with closing(Ahead(make, 9)) as ahead:
    assert ahead.take(0) == 0
"""


def test_a_second_interruption_does_not_wait_for_a_batch() -> None:
    """The thread never ends its batch: the process ends all the same."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert "KeyboardInterrupt" in done.stderr, done.stderr[-3000:]


# The step


def tiny_step(optimizer: OptimizerConfig | None, defers: bool = True, precision: str = "fp32") -> TrainStep:
    network = random_model("gpt", seed=3, dtype=torch.float32)
    made = torch.optim.SGD(network.parameters(), lr=0.1)
    if optimizer is not None:
        made = build_optimizer(network, optimizer)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        if defers:
            works_ahead(patch)
        return step_of(network, made, precision=precision)


@pytest.mark.parametrize("optimizer", [AdamWConfig(), AdamConfig(), MUON], ids=["adamw", "adam", "muon"])
def test_the_device_refuses_a_gradient_that_is_not_finite(optimizer: OptimizerConfig) -> None:
    """Weights and moments keep their bits; the steps before and after equal those that are read at once."""
    deferred, direct = tiny_step(optimizer), tiny_step(optimizer, defers=False)
    assert deferred.defers and not direct.defers
    for number, is_bad in enumerate([False, True, False, True]):
        hook = None
        if is_bad:
            before = [x.clone() for x in state_of(deferred)]
            *_, last = deferred.parameters
            hook = last.register_hook(lambda gradient: gradient * torch.nan)
        deferred.backward([batch([3, 4, 5, number])])
        assert deferred.update() == []
        [result] = deferred.flush()
        if hook is None:
            assert result == direct([batch([3, 4, 5, number])])
            assert all(map(torch.equal, state_of(deferred), state_of(direct)))
        else:
            hook.remove()
            assert str(result.non_finite) == f"the gradient is nan in step {number + 1}" and not result.is_taken
            assert all(map(torch.equal, state_of(deferred), before))


def state_of(step: TrainStep) -> list[torch.Tensor]:
    moments = (x for state in step.optimizer.state.values() for x in state.values())
    return [x.detach() for x in (*step.network.parameters(), *moments)]


def test_what_cannot_defer_reads_at_once() -> None:
    assert not tiny_step(None).defers, "SGD does not read found_inf"
    assert not tiny_step(AdamWConfig(), precision="fp16").defers, "the next step needs the loss scale"
    assert tiny_step(AdamWConfig()).defers


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_13_several_processes_skip_together_without_reading(
    strategy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of one process is NaN: first with its gradient, which all processes get, then the number alone."""
    run = tiny_run(write_text(tmp_path), grad_accumulation=4, on_nonfinite="skip", max_steps=7, eval_every=7)
    run = replace(run, parallel=ParallelConfig(strategy, timeout=60))

    def work(folder: Path) -> None:
        spoils = iter([BAD["loss is nan"], lambda sums: replace(sums, nats=sums.nats * math.nan)])
        if os.environ["RANK"] == "1":
            spoiled(monkeypatch, {1, 4}, lambda sums: next(spoils)(sums))
        api.train(run, folder)

    once, ahead = tmp_path / "once", tmp_path / "ahead"
    assert ranks_done(2, lambda: work(once)) == [0, 0]
    assert ranks_done(2, lambda: (works_ahead(monkeypatch), work(ahead))) == [0, 0]
    steps = {float(x) for x in load_file(checkpoint.path_of(ahead, 7) / checkpoint.OPTIMIZER).values() if not x.shape}
    assert steps == {5.0}
    assert [line["step"] for line in metrics(ahead) if "event" in line] == [2, 5]
    a, b = remains(once), remains(ahead)
    assert all(a[name] == b[name] for name in ("tensors", "numbers", "metrics"))


# The thread


def test_items_are_made_once_in_order_and_one_at_a_time() -> None:
    made: list[int] = []
    busy = threading.Lock()

    def make(number: int) -> int:
        assert busy.acquire(blocking=False), "two items at the same time"
        time.sleep(0.002)
        made.append(number)
        busy.release()
        return 10 * number

    ahead = Ahead(make, end=5)
    assert [ahead.take(number) for number in (0, 1, 2)] == [0, 10, 20]
    assert ahead.take(1) == 10, "after a rollback"
    assert [ahead.take(number) for number in (2, 3, 4)] == [20, 30, 40]
    ahead.close()
    assert made == [0, 1, 2, 3, 1, 2, 3, 4], "nothing from the end on"


def test_an_item_is_made_while_the_caller_works() -> None:
    begun = threading.Event()
    ahead = Ahead(lambda number: begun.set() if number else None, end=9)
    ahead.take(0)
    assert begun.wait(60)
    ahead.close()


def test_an_error_of_the_thread_belongs_to_its_item() -> None:
    def make(number: int) -> int:
        if number == 1:
            raise UserError("the text is gone")
        return number

    ahead = Ahead(make, end=9)
    assert ahead.take(0) == 0
    assert ahead.take(3) == 3, "an item that is not taken has no error"
    assert ahead.take(0) == 0
    with pytest.raises(UserError, match="the text is gone"):
        ahead.take(1)
    ahead.close()
