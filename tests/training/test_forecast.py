"""The time of a run, measured on this machine with fewer rows and layers."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from configs import CONFIGS, RECURRENT
from glassformer.apps.cli import plan as plan_verb
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import Run
from glassformer.config.train import TrainConfig
from glassformer.cost.flops import Shape, training_flops
from glassformer.cost.parameters import parameter_counts
from glassformer.training import forecast
from glassformer.training.forecast import StepTime, step_time

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["gpt", "paper", "bert", "experts", "classifier_mean", "lstm_bahdanau"])
def test_a_step_of_every_kind_is_measured(name: str) -> None:
    config = {**CONFIGS, **RECURRENT}.get(name) or next(iter(RECURRENT.values()))
    shape = Shape(4, 8, 8 if config.is_encoder_decoder else 0, 0)
    found = step_time(Run(model=config, train=TrainConfig(grad_accumulation=3)), config, shape, CPU)
    assert found.gradients > 0 and found.update > 0 and found.n_micro_batches == 3


@pytest.mark.parametrize(("n_layers", "n_rows"), [(2, 4), (2, 64), (64, 1), (64, 64)])
def test_fewer_rows_and_layers_predict_the_whole_step(
    n_layers: int, n_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times of a machine whose steps take `rate` per FLOP and `per_parameter` are predicted exactly."""
    gpt = CONFIGS["gpt"]
    assert gpt.decoder is not None
    config = replace(gpt, decoder=replace(gpt.decoder, n_layers=n_layers))
    shape, seen = Shape(n_rows, 8, 0, 0), []
    of_row = training_flops(replace(gpt, decoder=replace(gpt.decoder, n_layers=2)), replace(shape, n_rows=1))
    rate, per_parameter = 0.1 / of_row, 1e-6

    def measured(run: Run, config: ModelConfig, shape: Shape, *_: Any, **__: Any) -> StepTime:
        seen.append(rate * training_flops(config, shape))
        return StepTime(seen[-1], per_parameter * parameter_counts(config).total)

    monkeypatch.setattr(forecast, "_measured", measured)
    found = step_time(Run(model=config), config, shape, CPU)
    assert found.gradients == pytest.approx(rate * training_flops(config, shape))
    assert found.update == pytest.approx(per_parameter * parameter_counts(config).total)
    assert max(seen[1:], default=0) <= max(1.0, seen[0]), "no measured step is long, but the first one"


def test_plan_here_answers_in_five_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(forecast, "step_time", lambda *_: StepTime(0.2, 0.05, 1))
    monkeypatch.setattr(forecast, "earned_precision", lambda *_: ("bf16", "measured: as here"))
    assert plan_verb.main("python-docs", here=True) == 0
    name, *lines = capsys.readouterr().out.splitlines()
    assert name.startswith("python-docs: Transformer decoder 4 × 128, 1,048,576 parameters")
    assert [line.split()[0] for line in lines] == ["device", "fits", "step", "time", "batch"]
    assert "250 ms measured, 8,192 tokens per second" in lines[2]
    assert "2 min 30 s for 600 steps" in lines[3]


def test_a_plan_has_the_precision_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run trains in fp32 without a trial, so its plan is in fp32, too."""
    asked: list[bool] = []
    monkeypatch.setattr(forecast, "step_time", lambda *_: StepTime(0.2, 0.05, 1))
    monkeypatch.setattr(forecast, "earned_precision", lambda *given: (asked.append(given[-1]), ("fp32", ""))[1])
    for steps in (1, 10**6):
        forecast.forecast(Run(model=CONFIGS["gpt"], train=TrainConfig(max_steps=steps)))
    assert asked == [False, True]
