import json
import math
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD, lr_scheduler

from glassformer.config.train import (
    ConstantSchedule,
    CosineSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    PlateauSchedule,
    ScheduleConfig,
    WarmupStableDecaySchedule,
)
from glassformer.training.schedules import Plateau, PlateauState, cosine, inverse_sqrt, schedule_factor
from tolerances import F64, near

few = settings(max_examples=60)
ratios = st.floats(0, 1)
warmups = st.integers(0, 30)
configs = st.one_of(
    st.builds(ConstantSchedule, warmups),
    st.builds(PlateauSchedule, warmups),
    st.builds(CosineSchedule, warmups, st.integers(0, 120), ratios),
    st.builds(LinearSchedule, warmups, st.integers(0, 120), ratios),
    st.builds(InverseSqrtSchedule, warmups),
    st.builds(WarmupStableDecaySchedule, warmups, ratios),
)


def optimizer_with_rate(rate: float) -> SGD:
    return SGD([torch.nn.Parameter(torch.zeros(1))], lr=rate)


def rates_of(scheduler: Callable[[SGD], lr_scheduler.LRScheduler], n_steps: int) -> list[float]:
    """Return the rates that a scheduler of torch or transformers sets for a peak rate of 1."""
    optimizer = optimizer_with_rate(1.0)
    running = scheduler(optimizer)
    rates = []
    for _ in range(n_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        running.step()
    return rates


def factors(config: ScheduleConfig, n_steps: int, max_steps: int) -> list[float]:
    return [schedule_factor(config, step, max_steps) for step in range(n_steps)]


# Every schedule


@few
@given(config=configs, max_steps=st.integers(1, 100))
def test_factors_are_between_0_and_1_and_the_first_is_not_0(config: ScheduleConfig, max_steps: int) -> None:
    values = factors(config, max_steps + 20, max_steps)
    assert all(0 <= value <= 1 for value in values)
    assert values[0] > 0


@few
@given(config=configs, max_steps=st.integers(40, 100))
def test_rates_change_by_at_most_one_step_of_the_slope(config: ScheduleConfig, max_steps: int) -> None:
    """Rates grow at most by the slope of the warm-up, and fall at most by the steepest slope of the decay."""
    decay_steps = math.inf
    if isinstance(config, CosineSchedule | LinearSchedule):
        decay_steps = (config.decay_steps or max_steps) - config.warmup_steps
        if decay_steps < 1:  # the floor is inside the warm-up
            return
    elif isinstance(config, WarmupStableDecaySchedule):
        decay_steps = max(1, round(0.2 * max_steps))
    elif isinstance(config, InverseSqrtSchedule):
        decay_steps = 2 * max(1, config.warmup_steps)  # d/dn (w/n)^½ = -1/(2w) at n = w
    values = factors(config, max_steps + 20, max_steps)
    for before, after in pairwise(values):
        assert after - before <= 1 / max(1, config.warmup_steps) + 1e-12
        assert before - after <= math.pi / 2 / decay_steps + 1e-12


@few
@given(config=configs, max_steps=st.integers(40, 100))
def test_rates_grow_only_in_the_warm_up(config: ScheduleConfig, max_steps: int) -> None:
    values = factors(config, max_steps, max_steps)
    grown, rest = values[: config.warmup_steps + 1], values[config.warmup_steps :]
    if isinstance(config, InverseSqrtSchedule) and config.warmup_steps:  # counts from 1: its peak is a step earlier
        grown, rest = values[: config.warmup_steps], values[config.warmup_steps - 1 :]
    assert grown == sorted(grown)
    assert grown[-1] == 1
    assert rest == sorted(rest, reverse=True)


# Each schedule against its definition and other libraries


@pytest.mark.parametrize("decay_steps", [0, 60])
def test_cosine_equals_nanogpt(decay_steps: int) -> None:
    peak, floor, warmup, max_steps = 1e-3, 1e-4, 10, 80
    last = decay_steps or max_steps
    config = CosineSchedule(warmup_steps=warmup, decay_steps=decay_steps, final_ratio=floor / peak)
    for step in range(100):
        if step < warmup:
            expected = peak * (step + 1) / (warmup + 1)
        elif step > last:
            expected = floor
        else:
            ratio = (step - warmup) / (last - warmup)
            expected = floor + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (peak - floor)
        assert peak * schedule_factor(config, step, max_steps) == near(expected, dtype=F64)


def test_cosine_equals_torch() -> None:
    theirs = rates_of(lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=50, eta_min=0.1), 51)
    assert factors(CosineSchedule(0, 0, 0.1), 51, max_steps=50) == near(theirs, dtype=F64)


def test_linear_equals_torch() -> None:
    theirs = rates_of(lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.25, total_iters=40), 60)
    assert factors(LinearSchedule(0, 40, 0.25), 60, max_steps=99) == near(theirs, dtype=F64)


def test_a_constant_rate_after_the_warm_up_equals_torch() -> None:
    theirs = rates_of(lambda optimizer: lr_scheduler.LinearLR(optimizer, 1 / 6, 1.0, total_iters=5), 20)
    assert factors(ConstantSchedule(5), 20, max_steps=20) == near(theirs, dtype=F64)


def test_schedules_equal_transformers() -> None:
    """The warm-up of transformers starts at 0: its step n + 1 with w + 1 warm-up steps is step n with w here."""
    transformers = pytest.importorskip("transformers")
    w, max_steps = 10, 50
    later = {"num_warmup_steps": w + 1, "num_training_steps": max_steps + 1}

    theirs = rates_of(lambda o: transformers.get_cosine_schedule_with_warmup(o, **later), max_steps + 1)
    assert factors(CosineSchedule(w, 0, 0.0), max_steps, max_steps) == near(theirs[1:], dtype=F64)

    theirs = rates_of(lambda o: transformers.get_linear_schedule_with_warmup(o, **later), max_steps + 1)
    assert factors(LinearSchedule(w, 0, 0.0), max_steps, max_steps) == near(theirs[1:], dtype=F64)

    theirs = rates_of(lambda o: transformers.get_inverse_sqrt_schedule(o, num_warmup_steps=w), max_steps + 1)
    assert factors(InverseSqrtSchedule(w), max_steps, max_steps) == near(theirs[1:], dtype=F64)

    theirs = rates_of(
        lambda o: transformers.get_wsd_schedule(
            o,
            num_warmup_steps=w + 1,
            num_decay_steps=max_steps // 5,
            num_stable_steps=max_steps - w - max_steps // 5,
            decay_type="linear",
        ),
        max_steps + 1,
    )
    config = WarmupStableDecaySchedule(w, final_ratio=0.0)
    assert factors(config, max_steps, max_steps) == near(theirs[1:], dtype=F64)


def test_inverse_sqrt_equals_equation_3_of_the_paper() -> None:
    d_model, w = 512, 4000
    peak = (d_model * w) ** -0.5
    for n in (1, 2, 100, w - 1, w, w + 1, 10 * w):
        expected = d_model**-0.5 * min(n**-0.5, n * w**-1.5)
        assert peak * inverse_sqrt(n - 1, w) == near(expected, dtype=F64)
    assert max(inverse_sqrt(step, w) for step in range(2 * w)) == inverse_sqrt(w - 1, w) == 1


def test_warmup_stable_decay_has_its_three_parts() -> None:
    values = factors(WarmupStableDecaySchedule(4, final_ratio=0.2), 51, max_steps=50)
    assert values[:5] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert values[4:41] == [1.0] * 37
    assert values[40:] == pytest.approx([1 - 0.08 * i for i in range(11)])


def test_a_decay_shorter_than_the_warm_up_ends_at_the_floor() -> None:
    assert [cosine(step, 3, 2, 0.1) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 0.1, 0.1]


# Plateau


@few
@given(
    metrics=st.lists(st.sampled_from([0.5, 1.0, 1.0 + 1e-9, 2.0, 3.0, math.inf, math.nan]), max_size=40),
    patience=st.integers(0, 3),
    ratio=st.sampled_from([0.1, 0.5, 0.9]),
    min_ratio=st.sampled_from([0.0, 0.02, 0.3]),
)
def test_plateau_equals_torch(metrics: list[float], patience: int, ratio: float, min_ratio: float) -> None:
    optimizer = optimizer_with_rate(1.0)
    theirs = lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=ratio, patience=patience, threshold=0.0, min_lr=min_ratio, eps=0.0
    )
    ours = Plateau(patience, ratio, min_ratio)
    for metric in metrics:
        theirs.step(metric)
        assert ours.observe(metric) == optimizer.param_groups[0]["lr"]


@pytest.mark.parametrize("n_before", range(7))
def test_plateau_resumes_from_json(n_before: int) -> None:
    metrics = [3.0, 2.0, 2.5, 2.5, 1.9, 2.0, 2.0, 2.0]
    straight = Plateau(1, 0.5, 0.2)
    expected = [straight.observe(metric) for metric in metrics]
    first, second = Plateau(1, 0.5, 0.2), Plateau(1, 0.5, 0.2)
    values = [first.observe(metric) for metric in metrics[:n_before]]
    second.state = PlateauState(**json.loads(json.dumps(asdict(first.state), allow_nan=False)))
    assert second.state == first.state
    assert values + [second.observe(metric) for metric in metrics[n_before:]] == expected
    assert expected[-1] < 1
