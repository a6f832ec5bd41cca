"""Norms: the fused operators against their formulas and torch.nn's modules."""

import pytest
import torch
from torch import nn

from glassformer.nn.kernels.linear import PackedWeights
from glassformer.nn.layers import LayerNorm, RMSNorm, layer_norm_reference, rms_norm_reference
from tolerances import NETWORK, assert_close

WIDTH = 7


def filled(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.normal_()
    return norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize(("weight", "bias"), [(True, True), (True, False), (False, False)])
def test_layer_norm(weight: bool, bias: bool, eps: float, dtype: torch.dtype) -> None:
    norm = filled(LayerNorm(WIDTH, eps, weight, bias)).to(dtype)
    x = (torch.randn(3, 4, WIDTH, dtype=dtype) * 3 + 5).requires_grad_()
    results = []
    for y in (norm(x), layer_norm_reference(x, norm.weight, norm.bias, eps)):
        wanted = [x, *norm.parameters()]
        results.append([y, *torch.autograd.grad((y * torch.arange(WIDTH)).sum(), wanted)])
    assert_close(*results)
    if weight and bias:
        theirs = nn.LayerNorm(WIDTH, eps, dtype=dtype)
        theirs.load_state_dict(norm.state_dict())
        assert_close(norm(x), theirs(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [1e-6, 0.3])
@pytest.mark.parametrize("weight", [True, False])
def test_rms_norm(weight: bool, eps: float, dtype: torch.dtype) -> None:
    norm = filled(RMSNorm(WIDTH, eps, weight)).to(dtype)
    x = (torch.randn(3, 4, WIDTH, dtype=dtype) * 3 + 5).requires_grad_()
    results = []
    for y in (norm(x), rms_norm_reference(x, norm.weight, eps)):
        wanted = [x, *norm.parameters()]
        results.append([y, *torch.autograd.grad((y * torch.arange(WIDTH)).sum(), wanted)])
    assert_close(*results)
    if weight:
        theirs = nn.RMSNorm(WIDTH, eps, dtype=dtype)
        theirs.load_state_dict(norm.state_dict())
        assert_close(norm(x), theirs(x))


@pytest.mark.parametrize("eps", [1e-6, 0.3])
@pytest.mark.parametrize("weight", [True, False])
@pytest.mark.parametrize("factor", [0.0, 1e-12, 1.0, 1e12])
def test_rms_norm_in_generation(factor: float, weight: bool, eps: float) -> None:
    """A block of `PackedWeights` has other operations, for every layout of x; gradients need those of PyTorch."""
    norm = filled(RMSNorm(WIDTH, eps, weight)).float()
    x = (torch.randn(3, 4, WIDTH) * 3 + 5) * factor
    with PackedWeights(), torch.no_grad():
        for rows in (x, x.transpose(0, 1), x[:, 1:3], x[..., None].squeeze(-1), x[0, 0]):
            assert_close(norm(rows), rms_norm_reference(rows, norm.weight, eps), terms=NETWORK)
    with PackedWeights():
        assert norm(x.requires_grad_()).requires_grad


def test_untrained_norms_only_normalise() -> None:
    x = torch.randn(5, WIDTH) * 4 + 2
    y = LayerNorm(WIDTH, eps=0.0)(x)
    assert_close(y.mean(-1), torch.zeros(5))
    assert_close(y.var(-1, unbiased=False), torch.ones(5), terms=NETWORK)
    assert_close(RMSNorm(WIDTH, eps=0.0)(x).square().mean(-1), torch.ones(5), terms=NETWORK)


def test_rms_norm_takes_narrower_input_than_its_weight() -> None:
    """A linear layer under autocast returns such input: no warning, and no change of dtype."""
    x = torch.randn(5, WIDTH, dtype=torch.bfloat16)
    y = RMSNorm(WIDTH)(x)
    assert y.dtype == torch.bfloat16
    assert_close(y.float(), rms_norm_reference(x.float(), None, 1e-5), terms=2, dtype=torch.bfloat16)
