"""Products in groups: PyTorch's function equals the loop, and only a GPU that has one kernel for it uses it."""

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from glassformer.nn.experts import Experts, Router
from glassformer.nn.kernels import linear as grouped
from glassformer.nn.kernels.linear import Groups
from tolerances import assert_close

GROUPS = Groups(torch.tensor([1] * 3 + [3] * 4 + [4]), n_groups=6)
"""Three of six groups have no rows: the first, one in the middle, and the last."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [True, False])
def test_the_function_of_pytorch_equals_the_loop(dtype: torch.dtype, has_bias: bool) -> None:
    """Compare values and gradients. On a CPU, PyTorch computes the same products one after another."""
    torch.manual_seed(0)
    rows = torch.randn(8, 16, dtype=dtype, requires_grad=True)
    weight = torch.randn(6 * 24, 16, dtype=dtype, requires_grad=True)
    bias = torch.randn(6 * 24, dtype=dtype, requires_grad=True) if has_bias else None
    variables = [rows, weight] if bias is None else [rows, weight, bias]
    found, expected = (path(rows, GROUPS, weight, bias) for path in (grouped._by_kernel, grouped._by_loop))
    assert_close(found, expected, terms=8)
    gradients = [torch.autograd.grad(y.square().sum(), variables) for y in (found, expected)]
    assert_close(*gradients, terms=8)
    assert not gradients[0][1][:24].any() and gradients[0][1][24:48].any()


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Use PyTorch's function as on a GPU that has the kernel, and refuse to wait; list the dtypes of its calls."""
    monkeypatch.setattr(grouped, "has_kernel", lambda device: True)
    calls: list[torch.dtype] = []
    multiply = torch.nn.functional.grouped_mm

    def recorded(rows: Tensor, weights: Tensor, **others: Tensor) -> Tensor:
        calls.append(rows.dtype)
        return multiply(rows, weights, **others)

    def waits(groups: Groups) -> list[int]:
        raise AssertionError("the sizes were read from the device")

    monkeypatch.setattr(torch.nn.functional, "grouped_mm", recorded)
    refusing = functools.cached_property(waits)
    refusing.__set_name__(Groups, "sizes")
    monkeypatch.setattr(Groups, "sizes", refusing)
    return calls


def layer_of(n_experts: int = 6, d_ff: int = 24, dtype: torch.dtype = torch.bfloat16) -> Experts:
    torch.manual_seed(0)
    return Experts(Router(16, n_experts, n_active=2), d_ff, gated=True).to(dtype)


@pytest.mark.parametrize("has_autocast", [True, False])
def test_experts_in_bfloat16_do_not_wait_for_the_sizes_of_groups(
    has_autocast: bool, on_a_gpu: list[torch.dtype], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare with the loop, forward and backward, as far as bfloat16 allows."""
    layer = layer_of(dtype=torch.float32 if has_autocast else torch.bfloat16)
    x = torch.randn(2, 5, 16, dtype=layer.up_proj.weight.dtype)
    variables, results = list(layer.parameters()), []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16) if has_autocast else nullcontext():
            y = layer(x)
        results.append((y.detach(), *torch.autograd.grad(y.float().square().sum(), variables)))
        monkeypatch.undo()  # the second time, as without a GPU
    assert on_a_gpu == [torch.bfloat16] * 3
    for found, expected in zip(*results, strict=True):
        assert found.dtype == expected.dtype
        assert_close(found, expected, terms=3, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    "make",
    [
        lambda: layer_of(dtype=torch.float32),
        lambda: layer_of(d_ff=20),
        lambda: layer_of(n_experts=1024),
    ],
    ids=["float32", "rows of 40 bytes", "1024 groups"],
)
def test_what_the_kernel_cannot_compute_is_left_to_the_loop(
    make: Callable[[], Experts], on_a_gpu: list[torch.dtype]
) -> None:
    layer = make()
    with pytest.raises(AssertionError, match="the sizes were read"):
        layer(torch.randn(2, 5, 16, dtype=layer.up_proj.weight.dtype))
    assert on_a_gpu == []


@pytest.mark.parametrize(
    ("kind", "major", "cuda", "platform", "has_kernel"),
    [
        ("cuda", 9, "13.0", "linux", True),
        ("cuda", 8, "13.0", "linux", False),
        ("cuda", 10, "13.0", "linux", False),
        ("cuda", 9, None, "linux", False),
        ("cuda", 9, "13.0", "win32", False),
        ("cpu", 9, "13.0", "linux", False),
    ],
)
def test_the_devices_with_the_kernel(
    kind: str, major: int, cuda: str | None, platform: str, has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only NVIDIA's GPUs of capability 9 on Linux; a build for AMD has no version of CUDA."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(sys, "platform", platform)
    assert grouped.has_kernel(torch.device(kind)) is has_kernel
