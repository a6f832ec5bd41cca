"""A device is used by `auto` only if it computes a model's kind right, and faster than the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from configs import CONFIGS, RECURRENT
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.presets import preset
from glassformer.nn.kernels import processor
from glassformer.trial import choice, step
from glassformer.trial.choice import CPU, Trial, Verdict, earned_device, earned_precision, verdict_on
from glassformer.trial.operations import compared, first_wrong, wrong_copy

ALL = {**CONFIGS, **RECURRENT}
GPT, META = CONFIGS["gpt"], torch.device("meta")
HAS_BACKEND = hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend")
NO_EFFECT = {"new_zeros", "where", "zero_", "zeros_like"}
"""Operations whose planted fault changes no result: they make zeros, or choose among values that are equal."""
COPIES = {"clone", "copy_", "slice", "transpose"}
"""Operations whose fault is found by a copy to the device and back."""
PART_OF_OTHERS = {"fill_"}
"""Operations that PyTorch also calls inside of others, which are named in their place."""


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_this_processor_is_right(name: str, precision: str) -> None:
    if precision == "bf16" and not processor.this.packs_bfloat16:
        pytest.skip("this processor has no bf16 instructions")
    assert Trial(ALL[name]).fault(CPU, precision) == ""


def test_the_example_has_padding_and_no_weight_that_hides_a_fault() -> None:
    example = step.example_of(CONFIGS["bert"])
    assert not example.inputs["attention_mask"].all()
    for parameter in example.network.parameters():
        assert parameter.ne(0).all() and parameter.ne(1).all()
    assert all(map(torch.equal, step.example_of(CONFIGS["bert"]).network.parameters(), example.network.parameters()))


def test_a_large_network_is_tried_with_few_layers_of_its_own_kinds() -> None:
    config = preset("gpt2", d_model=64, n_heads=4, n_layers=9, vocab_size=300_000, max_len=32)
    few = step.small(replace(config, eos_id=200_000))
    assert few.decoder is not None and few.decoder.n_layers == 2 and few.vocab_size == 4096 and few.eos_id == 4095
    assert step.small(config, vocab_size=1 << 20).vocab_size == 300_000
    assert step.small(GPT) == GPT


def test_a_result_beyond_its_bound_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    trial, gelu = Trial(GPT), F.gelu
    parts = [block.ff for block in trial.example.network.decoder.blocks]
    for part in parts:
        monkeypatch.setattr(part, "activation", lambda x: gelu(x) * 1.001)
    assert "is off by" in trial.fault(CPU)
    for part in parts:
        monkeypatch.setattr(part, "activation", lambda x: gelu(x.detach()))
    assert trial.fault(CPU) == "the gradient of decoder.blocks.0.ff.up_proj.bias is missing"


def test_an_error_of_the_device_is_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(GPT)

    def lacks(*_: Any) -> None:
        raise NotImplementedError("aten::x is not implemented\nsecond line")

    monkeypatch.setattr(choice, "results", lacks)
    assert trial.fault(CPU) == "aten::x is not implemented"


@pytest.mark.parametrize(
    ("func", "inputs", "change", "words"),
    [
        (torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(3, 2)), lambda x: x * 1.0001, "is off by"),
        (torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(3, 2)), lambda x: x * (1 + 2**-23), ""),
        (torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(3, 2)), lambda x: x / 0, "is off by inf"),
        (torch.ops.aten.mm.default, (torch.ones(2, 3), torch.ones(3, 2)), lambda x: x.double(), "torch.float64"),
        (torch.ops.aten.argmax.default, (torch.tensor([1.0, 3.0, 2.0]),), lambda x: x + 1, "differs in 1 of 1"),
        (torch.ops.aten.argmax.default, (torch.tensor([1.0, 1.0]),), lambda x: 1 - x, ""),
        (torch.ops.aten.log.default, (torch.tensor([0.0, 1.0]),), lambda x: x, ""),
    ],
    ids=["wrong", "rounding", "infinite", "type", "index", "tie", "log of 0"],
)
def test_operations_are_compared_by_an_error_bound(
    func: Callable[..., Tensor], inputs: tuple[Tensor, ...], change: Callable[[Tensor], Tensor], words: str
) -> None:
    found = compared(func, (inputs, {}), [change(func(*inputs))])
    assert found.startswith(words) if words in ("", "is off by", "is off by inf") else words in found
    assert bool(found) == bool(words)


def test_copies_and_operations_of_the_cpu_are_right() -> None:
    assert wrong_copy(CPU) == first_wrong(step.example_of(GPT), CPU) == ""


# The choice


@pytest.fixture
def verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Verdict], None]:
    """Return a function that sets the verdict on a device that `auto` would choose."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choice, "choose_device", lambda name: CPU if name == "cpu" else META)
    return lambda found: monkeypatch.setattr(choice, "new_verdict", lambda *_: found)


def test_auto_uses_a_device_that_is_right_and_fast(verdict: Callable[[Verdict], None]) -> None:
    said: list[str] = []
    verdict(Verdict(seconds={"fp32": 0.1}, cpu_seconds=0.2))
    assert earned_device("auto", GPT, said.append) == META and not said
    assert earned_device("cpu", GPT, said.append) == CPU and not said


def test_auto_leaves_a_wrong_device_with_one_line(verdict: Callable[[Verdict], None]) -> None:
    said: list[str] = []
    verdict(Verdict(wrong={"fp32": "aten.mm is off by 1"}, cpu_seconds=0.2))
    assert earned_device("auto", GPT, said.append) == CPU
    assert said.pop() == "meta computes this kind of model wrongly, so the CPU is used: aten.mm is off by 1"
    assert earned_device("meta", GPT, said.append) == META
    assert said == ["meta computes this kind of model wrongly: aten.mm is off by 1; --train.device cpu is right"]


def test_auto_leaves_a_slow_device_with_one_line(verdict: Callable[[Verdict], None]) -> None:
    said: list[str] = []
    verdict(Verdict(seconds={"fp32": 0.5, "bf16": 0.4}, cpu_seconds=0.2))
    assert earned_device("auto", GPT, said.append) == CPU
    assert said == ["the CPU is used: a step takes 200 ms there, and 400 ms on meta"]


def test_a_verdict_is_kept_until_a_version_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tries: list[str] = []

    def tried(device: torch.device, config: Any) -> Verdict:
        tries.append(device.type)
        return Verdict(wrong={"bf16": "x"}, seconds={"fp32": 1.5}, cpu_seconds=2.5)

    monkeypatch.setattr(choice, "new_verdict", tried)
    first = verdict_on(META, GPT)
    assert verdict_on(META, GPT) == first and len(tries) == 1
    verdict_on(META, CONFIGS["llama"])
    assert len(tries) == 2, "another kind of model"
    monkeypatch.setattr(torch, "__version__", "99.0")
    verdict_on(META, GPT)
    assert len(tries) == 3, "another release"
    for path in files.cache_folder().rglob("*.json"):
        path.write_text("{")
    verdict_on(META, GPT)
    assert len(tries) == 4, "a file that cannot be read"


def test_a_folder_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(choice, "new_verdict", lambda *_: Verdict())
    assert verdict_on(META, GPT) == Verdict()


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Verdict(seconds={"fp32": 0.2, "bf16": 0.1}), ("bf16", "measured: bf16 is 2.0 times as fast as fp32")),
        (Verdict(seconds={"fp32": 0.2, "bf16": 0.19}), ("fp32", "measured: bf16 is 1.1 times as fast as fp32")),
        (Verdict(wrong={"bf16": "the loss is off"}), ("fp32", "bf16 is wrong here: the loss is off")),
        (Verdict(seconds={"fp32": 0.2}), ("fp32", "the device has no bf16")),
        (Verdict(wrong={"fp32": "x"}), ("fp32", "the meta computes this kind of model wrongly: x")),
    ],
)
def test_auto_precision_is_what_was_measured(
    found: Verdict, expected: tuple[str, str], verdict: Callable[[Verdict], None]
) -> None:
    verdict(found)
    assert earned_precision("auto", GPT, META, is_long=True) == expected
    assert earned_precision("fp16", GPT, META, is_long=True) == ("fp16", "")


def test_a_trial_of_this_processor_measures_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(choice, "ENOUGH", 0.0)
    found = verdict_on(CPU, GPT)
    assert not found.wrong and found.seconds["fp32"] > 0
    assert ("bf16" in found.seconds) == processor.this.packs_bfloat16


# A device of its own


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not HAS_BACKEND:
        pytest.skip("this release of PyTorch has no devices in Python")
    script, folder = Path(__file__).with_name("on_emulated.py"), tmp_path_factory.mktemp("emulated")
    places = os.pathsep.join([str(script.parent), str(script.parents[1])])
    settings = os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, script, folder], env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_right_device_is_right(emulated: Any) -> None:
    assert set(emulated["right"].values()) == {""}


def test_planted_faults_are_named(emulated: Any, subtests: pytest.Subtests) -> None:
    named = 0
    for operation, said in emulated["wrong"].items():
        with subtests.test(operation):
            if operation in COPIES:
                assert said.startswith("a copy of")
            elif operation in NO_EFFECT:
                assert said == ""
            elif operation in PART_OF_OTHERS:
                assert said
            else:
                assert said.startswith(f"aten.{operation} of ")
                named += 1
    assert named >= 60


def test_a_missing_operation_is_named(emulated: Any) -> None:
    assert "aten::_thnn_fused_gru_cell" in emulated["lacks"]


def test_a_run_on_a_right_device_equals_one_on_the_cpu(emulated: Any) -> None:
    runs = emulated["runs"]
    assert any(text.startswith("device emulated") for text in runs["device"]["messages"])
    assert runs["device"]["loss"] == pytest.approx(runs["cpu"]["loss"])
    assert runs["text"] == [runs["text_on_cpu"], "emulated"]
    assert any(text.startswith("device emulated") for text in runs["wraps"]["messages"])
    assert runs["wraps"]["loss"] == runs["device"]["loss"], "no integer is larger than 32 bits"


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("slower", "the CPU is used: a step takes"),
        ("wrong", "emulated computes this kind of model wrongly, so the CPU is used: aten._softmax_backward_data of"),
    ],
)
def test_a_run_leaves_a_slow_or_wrong_device(case: str, words: str, emulated: Any) -> None:
    found, first = emulated["runs"][case], emulated["runs"][case]["messages"][0]
    assert first.startswith(words) and any(text.startswith("device cpu") for text in found["messages"])
    assert found["loss"] == emulated["runs"]["cpu"]["loss"], "the run is the one of the CPU"


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UserError, match="is not available"):
        earned_device("nothing", GPT, print)
