"""Tensors of every memory format and dtype: saved, loaded and resumed with equal bits."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from glassformer import UserError, train_module
from glassformer.common.errors import Interrupted
from glassformer.config.train import AdamWConfig, ConstantSchedule, TrainConfig
from glassformer.store.tensors import DTYPES, fill, save_tensors
from glassformer.tasks.reporting import Silent
from tolerances import assert_close

FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": torch.clone,
    "transposed": lambda x: x.mT.clone().mT,
    "channels_last": lambda x: x[None].clone(memory_format=torch.channels_last)[0],
    "columns": lambda x: torch.cat([x, x], dim=-1)[..., : x.shape[-1]],
    "every_second": lambda x: x.repeat_interleave(2, dim=0)[::2],
    "odd_offset": lambda x: torch.cat([torch.zeros(1), x.flatten()])[1:].view_as(x),
}
"""Functions that return a tensor with equal values in another memory format."""
SHAPE = (4, 3, 2)


class Odd(nn.Module):
    """Parameters of one memory format, tied and shared ones, and buffers that change in every step."""

    steps: Tensor

    def __init__(self, layout: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(layout(torch.randn(SHAPE)))
        self.tied = self.weight
        self.table = nn.Parameter(torch.randn(3, 2))
        self.turned = nn.Parameter(self.table.detach().T)  # another parameter in the same memory
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("wide", layout(torch.ones(SHAPE)))
        self.register_buffer("expanded", torch.ones(1, 2).expand(3, 2))
        for name, dtype in DTYPES.items():
            self.register_buffer(name, torch.zeros(2, 3).T.to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.wide += x.mean()
            for name, dtype in DTYPES.items():
                buffer = self.get_buffer(name)
                buffer.copy_(torch.full((3, 2), float(self.steps)).to(dtype))
        return (self.weight + self.tied).sum(0) * x @ (self.table + self.turned.T).T


def loss(module: nn.Module, batch: Tensor) -> tuple[Tensor, int]:
    if not module.training:
        return module.steps.float(), 1  # the first evaluation is the best
    return module(batch).square().sum(), len(batch)


class Stopped(Silent):
    """A reporter that stops the run at step 5."""

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None:
        if step == 5:
            signal.raise_signal(signal.SIGTERM)


def config_of(**settings: Any) -> TrainConfig:
    defaults: dict[str, Any] = {
        "max_steps": 8,
        "batch_size": 2,
        "eval_every": 2,
        "log_every": 1,
        "device": "cpu",
        "schedule": ConstantSchedule(),
        "optimizer": AdamWConfig(learning_rate=0.01),
    }
    return TrainConfig(**(defaults | settings))


def data() -> list[Tensor]:
    return list(torch.randn(6, 3, 2, generator=torch.Generator().manual_seed(1)))


def trained(module: nn.Module, folder: Path, config: TrainConfig, **options: Any) -> None:
    train_module(module, loss, data(), folder, valid=data(), config=config, batched=False, **options)


@pytest.mark.parametrize(("number", "layout"), list(enumerate(FORMATS)))
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_a_run_resumes_to_equal_bits_in_every_memory_format(
    number: int, layout: str, ema_decay: float, tmp_path: Path
) -> None:
    """Each pair of settings occurs, with saving in the background too."""
    config = config_of(ema_decay=ema_decay, background_saving=(number + (ema_decay > 0)) % 2 == 0)
    whole, parts = Odd(FORMATS[layout]), Odd(FORMATS[layout])
    trained(whole, tmp_path / "whole", config)
    with pytest.raises(Interrupted):
        trained(parts, tmp_path / "parts", config, reporter=Stopped())
    again = Odd(FORMATS[layout])
    trained(again, tmp_path / "parts", config, resume=True)
    for path in sorted((tmp_path / "whole" / "checkpoints" / "step-8").rglob("*.safetensors")):
        place = path.relative_to(tmp_path / "whole")
        assert (tmp_path / "parts" / place).read_bytes() == path.read_bytes(), place
    best = load_file(tmp_path / "whole" / "model.safetensors")
    last = load_file(tmp_path / "whole" / "checkpoints" / "step-8" / "model.safetensors")
    assert best["steps"] == 2 and last["steps"] == 8 and not torch.equal(best["weight"], last["weight"])
    for module in (whole, again):
        for name, x in module.state_dict().items():
            stored = best["weight" if name == "tied" else name]
            assert torch.equal(x.contiguous().view(-1).view(torch.uint8), stored.view(-1).view(torch.uint8)), name
        assert module.weight.stride() == FORMATS[layout](torch.zeros(SHAPE)).stride()
        assert module.turned.data_ptr() == module.table.data_ptr()


@pytest.mark.parametrize("layout", [name for name in FORMATS if name != "contiguous"])
def test_the_memory_format_does_not_change_the_result(layout: str, tmp_path: Path) -> None:
    """Fused optimizers ignore strides."""
    found = {}
    for name in ("contiguous", layout):
        module = Odd(FORMATS[name])
        trained(module, tmp_path / f"run of {name}", config_of(select="last"))
        found[name] = module.state_dict()
    for name, x in found["contiguous"].items():
        if x.dtype == torch.float32:
            assert_close(found[layout][name], x)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_dtype_and_memory_format_is_stored_with_its_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.randint(0, 2, (4, 3, 2)).to(dtype)
    tensors = {
        "plain": values,
        "turned": values.transpose(0, 2).contiguous().transpose(0, 2),
        "part": torch.cat([values, values], dim=2)[..., :2],
        "shared": values.transpose(0, 1),
        "expanded": values[:1].expand(4, 3, 2),
        "empty": values[:0],
    }
    if dtype.is_complex:
        tensors["conjugate"] = (values + 1j).conj()
    save_tensors(tensors, tmp_path / "x.safetensors")
    wanted = {name: torch.empty_like(x.resolve_conj()) for name, x in tensors.items()}
    wanted["expanded"] = torch.zeros_like(values[:1]).expand(4, 3, 2)
    fill(wanted, tmp_path / "x.safetensors")
    for name, x in tensors.items():
        assert wanted[name].tolist() == x.tolist(), name


class WithState(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"n": 1}

    def set_extra_state(self, state: Any) -> None:
        pass


def with_buffer(x: Tensor) -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_buffer("own", x)
    return module


def with_parameter(x: Tensor) -> nn.Module:
    module = nn.Linear(2, 2)
    module.own = nn.Parameter(x, requires_grad=x.is_floating_point())
    return module


def with_view() -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_buffer("turned", module.weight.detach().T)
    return module


@pytest.mark.parametrize(
    ("module", "settings", "words"),
    [
        (lambda: with_buffer(torch.zeros(2, dtype=torch.complex128)), {}, "own is a tensor of torch.complex128, which"),
        (lambda: with_buffer(torch.eye(2).to_sparse()), {}, "own is a tensor of torch.sparse_coo, which safetensors"),
        (lambda: with_parameter(torch.ones(1).expand(2)), {}, "the parameter own is an expanded view"),
        (lambda: nn.LazyLinear(2), {}, "weight has no values yet: run the module on one batch"),
        (lambda: nn.Linear(2, 2, device="meta"), {}, "weight has no values yet"),
        (lambda: WithState(2, 2), {}, r"_extra_state in state_dict\(\) is not a parameter or buffer"),
        (
            lambda: with_parameter(torch.ones(2, dtype=torch.int64)),
            {"ema_decay": 0.9},
            "the parameter own has integers, which cannot be averaged",
        ),
        (with_view, {"ema_decay": 0.9}, "the buffer turned shares its memory with the parameter weight"),
    ],
)
def test_a_module_that_cannot_be_stored_is_refused_before_the_first_step(
    module: Callable[[], nn.Module], settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        trained(module(), tmp_path / "run", config_of(**settings))
    assert not (tmp_path / "run").exists()
