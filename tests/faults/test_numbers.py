"""Faults 13 and 14: NaN and Inf in losses and gradients, and empty batches."""

import json
import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from configs import CONFIGS, random_model
from faults.tally import record
from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.data.batching import Batch, Example
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.loss import LossSums
from glassformer.store import checkpoint, tensors
from glassformer.training import evaluations
from glassformer.training.loop import Trainer
from glassformer.training.non_finite import GROWTH_INTERVAL, MAX_ROLLBACKS, MAX_SKIPPED, LossScale, NonFinite
from glassformer.training.step import TrainStep
from runs import Recording, metrics, remains, signal_at, step_of, tiny_run, write_text

BAD = {
    "loss is nan": lambda sums: replace(sums, total=sums.total * math.nan, nats=sums.nats * math.nan),
    "loss is inf": lambda sums: replace(sums, total=sums.total + math.inf, nats=sums.nats + math.inf),
    "gradient is nan": lambda sums: replace(sums, total=sums.total + (sums.total * 0).sqrt()),
    "gradient is inf": lambda sums: replace(sums, total=sums.total * 1e38 * 1e38),
}


def spoiled(monkeypatch: pytest.MonkeyPatch, steps: set[int], spoil: Callable[[LossSums], LossSums]) -> list[int]:
    """Make the loss of the second micro-batch NaN or Inf at some steps; return the list of steps that are taken."""
    real_step, real_loss = Trainer._one_step, CausalObjective.loss
    taken: list[int] = []
    calls = {"n": 0}

    def one_step(trainer: Trainer) -> Any:
        taken.append(trainer.progress.step)
        calls["n"] = 0
        calls["is_bad"] = trainer.progress.step in steps
        return real_step(trainer)

    def loss(self: CausalObjective, model: Any, batch: Batch) -> LossSums:
        sums = real_loss(self, model, batch)
        calls["n"] += torch.is_grad_enabled()
        return spoil(sums) if torch.is_grad_enabled() and calls.get("is_bad") and calls["n"] == 2 else sums

    monkeypatch.setattr(Trainer, "_one_step", one_step)
    monkeypatch.setattr(CausalObjective, "loss", loss)
    return taken


def all_finite(folder: Path) -> bool:
    return all(
        bool(x.isfinite().all())
        for path in folder.rglob("*.safetensors")
        if not path.name.startswith("bad-batch")
        for x in load_file(path).values()
    )


@pytest.mark.parametrize("what", BAD)
def test_13_nan_or_inf_stops_before_the_step(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_text(tmp_path), grad_accumulation=2, checkpoint_every=5)
    with monkeypatch.context() as patch:
        spoiled(patch, {12}, BAD[what])
        with pytest.raises(
            UserError,
            match=rf"the {what.replace('inf', '(inf|nan)')} in step 13.*lower train\.optimizer\.learning-rate",
        ) as error:
            api.train(run, tmp_path / "run")
    assert checkpoint.steps(tmp_path / "run") == [5, 10] and all_finite(tmp_path / "run")
    if what.startswith("loss"):
        [kept] = (tmp_path / "run").glob("bad-batch-*")
        assert kept.name == "bad-batch-step-13.safetensors" and kept.name in str(error.value)
        assert load_file(kept)["token_ids"].shape == (3, 32)
    with monkeypatch.context() as patch:  # a resumed run counts on from the checkpoint
        spoiled(patch, {16}, BAD[what])
        with pytest.raises(UserError, match=f"the {what.replace('inf', '(inf|nan)')} in step 17"):
            api.resume(tmp_path / "run")
    api.train(run, tmp_path / "whole")
    api.resume(tmp_path / "run")
    assert remains(tmp_path / "run") == remains(tmp_path / "whole")
    record(13, 1, 1, "-")


@pytest.mark.parametrize("what", BAD)
def test_13_a_bad_step_is_skipped_and_reported(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_text(tmp_path), grad_accumulation=2, on_nonfinite="skip", log_every=1, ema_decay=0.9)
    spoiled(monkeypatch, {3, 4}, BAD[what])
    reporter = Recording()
    api.train(run, tmp_path / "run", reporter)
    events = [(line["step"], line["event"]) for line in metrics(tmp_path / "run") if "event" in line]
    assert [step for step, _ in events] == [4, 5] and all("skipped" in event for _, event in events)
    assert events[0][1] in reporter.messages
    assert all_finite(tmp_path / "run")
    state = json.loads((checkpoint.path_of(tmp_path / "run", 20) / checkpoint.STATE).read_text())
    assert (state["step"], state["n_skipped"]) == (20, 0)
    optimizer = load_file(checkpoint.path_of(tmp_path / "run", 20) / checkpoint.OPTIMIZER)
    assert {float(x) for name, x in optimizer.items() if name.endswith("/step")} == {18.0}
    assert n_averaged(tmp_path / "run") == 18
    record(13, 2, 2, "-")


def test_13_a_checkpoint_in_the_background_leaves_the_bad_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saving thread ends with the deletion of unfinished files: a batch that is being written must not be one.

    The trainer waits for that thread before it writes the batch. So the deletion waits here for a file that never
    comes, at most one second, and would find it if the trainer did not wait.
    """
    run = tiny_run(
        write_text(tmp_path), grad_accumulation=2, checkpoint_every=5, on_nonfinite="skip", background_saving=True
    )
    real_clean, real_save, is_clean = checkpoint.clean, tensors.save_tensors, threading.Event()

    def late_clean(folder: Path) -> None:
        until = time.monotonic() + 1
        is_saving = threading.current_thread().name == "saving"
        while is_saving and time.monotonic() < until and not [*folder.glob(".bad-batch-*")]:
            time.sleep(0.01)
        real_clean(folder)
        if is_saving:
            is_clean.set()

    def slow_save(values: Any, path: Path) -> None:
        real_save(values, path)
        if "bad-batch" in path.name:
            assert is_clean.wait(60)

    monkeypatch.setattr(checkpoint, "clean", late_clean)
    monkeypatch.setattr(tensors, "save_tensors", slow_save)
    spoiled(monkeypatch, {5}, BAD["loss is nan"])
    api.train(run, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").glob("bad-batch-*")] == ["bad-batch-step-6.safetensors"]


def n_averaged(folder: Path) -> float:
    """Return the number of updates of the moving average at step 20."""
    return float(load_file(checkpoint.path_of(folder, 20) / checkpoint.AVERAGE)["n_updates"])


def test_13_too_many_bad_steps_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_text(tmp_path), grad_accumulation=2, on_nonfinite="skip")
    taken = spoiled(monkeypatch, set(range(2, 20)), BAD["loss is nan"])
    with pytest.raises(UserError, match="the loss is nan in step 13"):
        api.train(run, tmp_path / "run")
    assert len(taken) == 2 + MAX_SKIPPED + 1
    record(13, 1, 1, "-")


def test_13_rollback_halves_the_rate_and_repeats_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_text(tmp_path), grad_accumulation=2, on_nonfinite="rollback", checkpoint_every=5, log_every=1)
    bad = {7}
    taken = spoiled(monkeypatch, bad, lambda sums: (bad.clear(), BAD["loss is nan"](sums))[1])
    reporter = Recording()
    api.train(run, tmp_path / "run", reporter)
    assert taken == [*range(8), *range(5, 20)]
    [event] = [line for line in metrics(tmp_path / "run") if "event" in line]
    assert event["step"] == 5 and "back to step 5, the learning rate is × 0.5" in event["event"]
    rates = {line["step"]: line["learning_rate"] for line in metrics(tmp_path / "run") if "learning_rate" in line}
    assert list(rates) == list(range(1, 21))
    monkeypatch.undo()
    api.train(tiny_run(write_text(tmp_path), grad_accumulation=2, log_every=1), tmp_path / "plain")
    plain = {line["step"]: line["learning_rate"] for line in metrics(tmp_path / "plain") if "learning_rate" in line}
    assert all(rates[step] == pytest.approx(plain[step] * (1 if step <= 5 else 0.5)) for step in plain)
    assert all_finite(tmp_path / "run")
    record(13, 1, 1, "-")


def test_13_rollback_is_equal_after_an_interruption_and_in_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny_run(write_text(tmp_path), grad_accumulation=2, on_nonfinite="rollback", checkpoint_every=5)
    spoil = BAD["gradient is nan"]  # it saves no batch, so that both logs are equal

    def at_the_full_rate(monkeypatch: pytest.MonkeyPatch) -> None:
        real_step, real_loss = Trainer._one_step, CausalObjective.loss
        now: dict[str, bool] = {}

        def one_step(trainer: Trainer) -> Any:
            now["bad"] = trainer.progress.step == 17 and trainer.progress.rate_factor == 1
            return real_step(trainer)

        def loss(self: CausalObjective, model: Any, batch: Batch) -> LossSums:
            sums = real_loss(self, model, batch)
            return spoil(sums) if now.get("bad") else sums

        monkeypatch.setattr(Trainer, "_one_step", one_step)
        monkeypatch.setattr(CausalObjective, "loss", loss)

    at_the_full_rate(monkeypatch)
    api.train(run, tmp_path / "whole")
    with monkeypatch.context() as patch:
        signal_at(patch, 16)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "parts")
    api.resume(tmp_path / "parts")
    assert remains(tmp_path / "parts") == remains(tmp_path / "whole")
    assert sum("event" in line for line in metrics(tmp_path / "parts")) == 1
    before = sorted(tmp_path.rglob("*"))
    replay = api.replay(tmp_path / "parts")
    assert (replay.begin, replay.end, replay.differing) == (15, 20, [])
    assert sorted(tmp_path.rglob("*")) == before
    taken = []
    monkeypatch.setattr(
        checkpoint, "load_state", lambda path, real=checkpoint.load_state: (taken.append(path), real(path))[1]
    )
    api.replay(tmp_path / "parts")
    assert [path.name for path in taken] == ["step-15", "step-15", "step-20"], "rolled back to the start"
    record(13, 2, 2, "-")


def test_13_a_nan_evaluation_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, evaluated = evaluations.evaluate_loss, []

    def once(*args: Any, **options: Any) -> Any:
        evaluated.append(1)
        sums = real(*args, **options)
        return replace(sums, nats=math.nan) if len(evaluated) == 4 else sums

    monkeypatch.setattr(evaluations, "evaluate_loss", once)
    run = tiny_run(write_text(tmp_path), on_nonfinite="rollback")
    api.train(run, tmp_path / "run")
    [event] = [line["event"] for line in metrics(tmp_path / "run") if "event" in line]
    assert (
        event == "an evaluated loss is not finite in step 20: back to step 10, the learning rate is × 0.5 from now on"
    )
    for policy in ("stop", "skip"):
        evaluated.clear()
        with pytest.raises(UserError, match="an evaluated loss is not finite in step 20: lower"):
            api.train(tiny_run(write_text(tmp_path), on_nonfinite=policy), tmp_path / policy)
    record(13, 3, 3, "-")


def test_13_rollback_ends_after_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_text(tmp_path), grad_accumulation=2, on_nonfinite="rollback")
    taken = spoiled(monkeypatch, {2}, BAD["gradient is nan"])
    reporter = Recording()
    with pytest.raises(UserError, match="the gradient is nan in step 3"):
        api.train(run, tmp_path / "run", reporter)
    assert taken == [0, 1, 2] * (1 + MAX_ROLLBACKS)
    rates = [float(found[1]) for line in reporter.messages if (found := re.search("rate is × ([0-9.]+) from", line))]
    assert rates == [0.5**n for n in range(1, MAX_ROLLBACKS + 1)], "each rollback halves the rate of the one before"
    state = json.loads((checkpoint.path_of(tmp_path / "run", 0) / checkpoint.STATE).read_text())
    assert state["step"] == 0
    record(13, 1, 1, "-")


def test_13_fp16_overflow_halves_the_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tiny_run(write_text(tmp_path), precision="fp16", checkpoint_every=5, ema_decay=0.9)
    real = Trainer.__init__

    def with_a_large_scale(self: Trainer, *args: Any, **options: Any) -> None:
        real(self, *args, **options)
        assert self.step.scale is not None
        self.step.scale.factor = 2.0**26

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "__init__", with_a_large_scale)
        api.train(run, tmp_path / "run")
    state = json.loads((checkpoint.path_of(tmp_path / "run", 20) / checkpoint.STATE).read_text())
    n_halved = math.log2(2.0**26 / state["scaler"]["factor"])
    assert n_halved > 0 and all_finite(tmp_path / "run")
    optimizer = load_file(checkpoint.path_of(tmp_path / "run", 20) / checkpoint.OPTIMIZER)
    assert {float(x) for name, x in optimizer.items() if name.endswith("/step")} == {20 - n_halved}
    assert n_averaged(tmp_path / "run") == 20 - n_halved, "the average was updated in a step that was skipped"
    record(13, int(n_halved), int(n_halved), "-")


def test_13_an_fp16_run_resumes_with_its_scale(tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path), precision="fp16", max_time=1e-9)
    with pytest.raises(Interrupted):
        api.train(run, tmp_path / "parts")
    api.resume(tmp_path / "parts", flags={"train.max_time": "0"})
    api.train(replace(run, train=replace(run.train, max_time=0.0)), tmp_path / "whole")
    assert remains(tmp_path / "parts")["tensors"] == remains(tmp_path / "whole")["tensors"]
    assert remains(tmp_path / "parts")["numbers"] == remains(tmp_path / "whole")["numbers"]


def test_13_the_fp16_scale_grows_and_repeated_overflow_is_an_error() -> None:
    scale = LossScale()
    for _ in range(GROWTH_INTERVAL):
        scale.update(is_finite=True)
    assert (scale.factor, scale.n_good_steps) == (131072.0, 0)
    scale.update(is_finite=False)
    assert scale.factor == 65536.0
    step = tiny_step("fp16")
    assert step.scale is not None
    step.network.get_parameter(next(iter(dict(step.network.named_parameters())))).register_hook(lambda g: g * math.inf)
    taken = 0
    with pytest.raises(NonFinite, match="the gradient is"):
        for _ in range(100):
            assert not step([batch([3, 4, 5])]).is_taken
            taken += 1
    assert 20 < taken < 40


def tiny_step(precision: str = "fp32") -> TrainStep:
    network = random_model("gpt", seed=3)
    return step_of(network, torch.optim.AdamW(network.parameters(), lr=1e-3), precision=precision)


def batch(ids: list[int], labels: list[int] | None = None, mask: list[bool] | None = None) -> Batch:
    made = CausalObjective().collate([Example(np.array([*ids, 2]))], np.random.default_rng(0))
    changes: dict[str, Any] = {}
    if labels is not None:
        changes["labels"] = torch.tensor([labels])
        changes["n_targets"] = sum(label != -100 for label in labels)
    if mask is not None:
        changes["attention_mask"] = torch.tensor([mask])
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("ids", "labels", "mask"),
    [
        ([3], None, None),
        ([3] * CONFIGS["gpt"].max_len, None, None),
        ([3, 4], [-100, -100], None),
        ([3, 4], None, [False, False]),
        ([3, 4], [-100, -100], [False, False]),
    ],
    ids=["length 1", "length max", "no target", "all masked", "nothing at all"],
)
def test_14_batches_of_extreme_sizes_give_finite_weights(
    ids: list[int], labels: list[int] | None, mask: list[bool] | None
) -> None:
    step = tiny_step()
    result = step([batch(ids, labels, mask)])
    assert math.isfinite(result.nats) and math.isfinite(result.gradient_norm)
    assert all(bool(p.isfinite().all()) for p in step.network.parameters())
    if labels is not None:
        assert (result.nats, result.n_targets, result.gradient_norm) == (0.0, 0, 0.0)
    record(14, 1, 1, "-")
