"""Tensors of every memory format and dtype: saved, loaded and resumed with equal bits."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import glassformer
from glassformer.common.errors import UserError
from glassformer.config.train import AdamWConfig
from glassformer.store.tensors import DTYPES, fill, save_tensors
from glassformer.training.averaging import ExponentialAverage
from glassformer.training.optimizers.build import build_optimizer
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


def trained(module: Odd, ema_decay: float = 0.0) -> tuple[torch.optim.Optimizer, ExponentialAverage]:
    optimizer = build_optimizer(module, AdamWConfig(learning_rate=0.01))
    average = ExponentialAverage(module, ema_decay)
    steps(module, optimizer, average, range(5))
    return optimizer, average


def steps(module: Odd, optimizer: torch.optim.Optimizer, average: ExponentialAverage, numbers: range) -> None:
    for number in numbers:
        optimizer.zero_grad()
        module(torch.randn(2, 3, 2, generator=torch.Generator().manual_seed(number))).square().sum().backward()
        optimizer.step()
        average.update()


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_steps_resume_to_equal_bits_in_every_memory_format(layout: str, ema_decay: float, tmp_path: Path) -> None:
    module = Odd(FORMATS[layout])
    optimizer, average = trained(module, ema_decay)
    glassformer.save_checkpoint(module, optimizer, 5, tmp_path / "step-5")
    save_tensors(average.state_tensors(), tmp_path / "average.safetensors")
    again = Odd(FORMATS[layout])
    again_optimizer, again_average = trained(again, ema_decay)
    steps(again, again_optimizer, again_average, range(5, 7))
    assert glassformer.load_checkpoint(tmp_path / "step-5", again, again_optimizer) == 5
    again_average.load_state_tensors(load_file(tmp_path / "average.safetensors"))
    steps(module, optimizer, average, range(5, 8))
    steps(again, again_optimizer, again_average, range(5, 8))
    for one, other in ((module.state_dict(), again.state_dict()), (average.weights, again_average.weights)):
        for name, x in one.items():
            assert torch.equal(
                x.contiguous().view(-1).view(torch.uint8), other[name].contiguous().view(-1).view(torch.uint8)
            ), name
    assert again.steps == 8
    assert again.weight.stride() == FORMATS[layout](torch.zeros(SHAPE)).stride()
    assert again.turned.data_ptr() == again.table.data_ptr()


@pytest.mark.parametrize("layout", [name for name in FORMATS if name != "contiguous"])
def test_the_memory_format_does_not_change_the_result(layout: str) -> None:
    """Fused optimizers ignore strides."""
    plain, other = Odd(FORMATS["contiguous"]), Odd(FORMATS[layout])
    trained(plain)
    trained(other)
    for name, x in plain.state_dict().items():
        if x.dtype == torch.float32:
            assert_close(other.state_dict()[name], x)


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


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (lambda: with_buffer(torch.zeros(2, dtype=torch.complex128)), "own is a tensor of torch.complex128, which"),
        (lambda: with_buffer(torch.eye(2).to_sparse()), "own is a tensor of torch.sparse_coo, which safetensors"),
        (lambda: with_parameter(torch.ones(1).expand(2)), "the parameter own is an expanded view"),
        (lambda: nn.LazyLinear(2), "weight has no values yet: run the module on one batch"),
        (lambda: nn.Linear(2, 2, device="meta"), "weight has no values yet"),
        (lambda: WithState(2, 2), r"_extra_state in state_dict\(\) is not a parameter or buffer"),
    ],
)
def test_a_module_that_cannot_be_stored_is_refused(module: Callable[[], nn.Module], words: str, tmp_path: Path) -> None:
    made = module()
    with pytest.raises(UserError, match=words):
        glassformer.save_checkpoint(made, torch.optim.SGD(made.parameters()), 0, tmp_path / "step-0")
    assert not (tmp_path / "step-0").exists()
