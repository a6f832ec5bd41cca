"""Experts: the fast path equals the loop, tokens are independent, and the balance loss counts no padding."""

import pytest
import torch
from torch import Tensor, nn

from glassformer.nn.experts import Experts, Router, balance_loss
from tolerances import assert_close


def experts(n_experts: int = 5, n_active: int = 2, gated: bool = True, **router: float) -> Experts:
    layer = Experts(Router(8, n_experts, n_active, **router), 12, gated=gated).double()  # type: ignore[arg-type]
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize(("n_experts", "n_active"), [(5, 2), (3, 1), (4, 4), (64, 2)])
def test_the_fast_path_equals_the_loop_over_experts(n_experts: int, n_active: int, gated: bool) -> None:
    """Compare experts without a token too: most of 64."""
    layer, x = experts(n_experts, n_active, gated), inputs(3, 4).requires_grad_()
    fast, slow = layer(x), layer.reference(x)
    assert fast.std() > 0.1
    assert_close(fast, slow)
    variables = [x, *layer.parameters()]
    for one, other in zip(*(torch.autograd.grad(y.square().sum(), variables) for y in (fast, slow)), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_the_choice_of_the_router(dtype: torch.dtype) -> None:
    """Compare the fast path with the loop in the same precision, and the dtype of the output."""
    layer, x = experts(8, 2).to(dtype), inputs(3, 4).to(dtype)
    fast, slow = layer(x), layer.reference(x)
    assert fast.dtype == dtype and (layer.router(x) > 0).sum(dim=-1).unique().tolist() == [2]
    assert_close(fast, slow, terms=4)


def test_the_output_is_the_weighted_sum_of_the_chosen_experts() -> None:
    """Written out for one token, without any function of the layer."""
    layer, x = experts(4, 2), inputs(1, 1)
    token, probabilities = x[0, 0], torch.softmax(layer.router.proj.weight @ x[0, 0], dim=0)
    first, second = probabilities.argsort(descending=True)[:2].tolist()
    assert layer.gate_proj is not None

    def matrix(linear: nn.Module, i: int, vector: Tensor) -> Tensor:
        n = len(linear.weight) // 4  # type: ignore[arg-type]
        return linear.weight[i * n : (i + 1) * n] @ vector + linear.bias[i * n : (i + 1) * n]  # type: ignore[index]

    expected = torch.zeros(8, dtype=torch.float64)
    for i in (first, second):
        h = nn.functional.gelu(matrix(layer.gate_proj, i, token)) * matrix(layer.up_proj, i, token)
        expected += probabilities[i] / (probabilities[first] + probabilities[second]) * matrix(layer.down_proj, i, h)
    assert_close(layer(x)[0, 0], expected)


def test_without_normalisation_the_weights_are_the_probabilities() -> None:
    router, x = experts(5, 2, normalize=False).router, inputs(2, 3)
    weights, probabilities = router(x), router.proj(x).softmax(dim=-1)
    is_active = weights > 0
    assert torch.equal(is_active.sum(dim=-1), torch.full((2, 3), 2))
    assert torch.equal(weights[is_active], probabilities[is_active])


def test_a_token_does_not_depend_on_other_tokens() -> None:
    layer, x = experts(), inputs(4, 6)
    together = layer(x)
    for row in range(4):
        for column in range(6):
            alone = layer(x[row : row + 1, column : column + 1])
            assert_close(together[row, column], alone[0, 0])


def test_the_balance_loss_is_smallest_for_equal_loads() -> None:
    even = torch.full((8, 4), 0.25)
    each_twice = torch.eye(4).repeat(2, 1)
    assert balance_loss(even, each_twice).item() == pytest.approx(1.0)
    assert balance_loss(torch.eye(4)[[0] * 8], torch.eye(4)[[0] * 8]).item() == pytest.approx(4.0)


def test_padding_is_no_load() -> None:
    layer = experts(loss_weight=0.5).train()
    router, x = layer.router, inputs(2, 5)
    router.records = True
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    layer(x, real)
    padded = router.load, router.auxiliary_loss
    router.load = router.auxiliary_loss = None
    layer(torch.cat([x[:1], x[1:, :2]], dim=1))
    assert padded[0] is not None and padded[0].sum() == 7 * 2
    assert_close(padded, (router.load, router.auxiliary_loss))


def test_the_router_records_only_for_a_step() -> None:
    layer = experts(loss_weight=0.5).train()
    layer(inputs(1, 3))
    assert layer.router.load is layer.router.auxiliary_loss is None


def test_the_bias_changes_the_choice_and_not_the_weights() -> None:
    router, x = experts(3, 1, normalize=False, bias_rate=0.1).router, inputs(1, 50)
    probabilities = router.proj(x).softmax(dim=-1)
    assert router.bias is not None
    router.bias[2] = 2.0  # above every difference of probabilities
    weights = router(x)
    assert torch.equal(weights[..., 2], probabilities[..., 2]) and not weights[..., :2].any()


def test_the_bias_moves_towards_equal_loads() -> None:
    router = experts(4, 1, normalize=False, bias_rate=0.1).router
    router.move_bias(torch.tensor([5.0, 1.0, 3.0, 3.0]))
    assert router.bias is not None
    assert_close(router.bias, torch.tensor([-0.1, 0.1, 0.0, 0.0]).double(), dtype=torch.float32)
    router.move_bias(torch.tensor([5.0, 1.0, 3.0, 3.0]), factor=0.0)
    assert_close(router.bias, torch.tensor([-0.1, 0.1, 0.0, 0.0]).double(), dtype=torch.float32)
