"""Products by packed weights and of wide layers equal those of `nn.Linear`; a copy of an old weight is never used."""

import copy
import math
import threading
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.models.transforms import add_lora
from glassformer.nn.kernels import linear as products
from glassformer.nn.kernels import processor
from glassformer.nn.kernels.linear import PackedWeights, linear_layers
from glassformer.nn.kernels.processor import Processor
from glassformer.nn.layers import Linear
from tolerances import assert_close, is_close

CAN = processor.detect()
pytestmark = pytest.mark.skipif(not CAN.has_onednn, reason="this build of PyTorch has no oneDNN")

FAST = replace(CAN, known=processor.FIXED["bf16"])
"""Every fast path, as with fast products in bfloat16."""
WITHOUT_BF16, PLAIN = replace(CAN, known=processor.FIXED["onednn"]), replace(FAST, has_onednn=False)

ROUNDINGS = {torch.float32: 512, torch.bfloat16: 2, torch.float16: math.isqrt(512)}
"""Terms of a product. A sum in bfloat16 is kept in fp32: the product and the bias are rounded. PyTorch's product in
float16 adds in float16 or in fp32, depending on the processor: √512 of 512 terms (Higham and Mary 2019)."""


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use every fast path on every CPU whose libraries have it, and for every size."""
    monkeypatch.setattr(processor, "this", FAST)
    monkeypatch.setattr(products, "MIN_PACKED", dict.fromkeys(products.MIN_PACKED, 1))
    monkeypatch.setattr(products, "MIN_PRODUCTS", 1)


def layer(dtype: torch.dtype = torch.float32, bias: bool = True) -> Linear:
    torch.manual_seed(0)
    return Linear(24, 40, bias=bias).to(dtype)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("shape", [(24,), (1, 24), (7, 24), (2, 3, 24)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("is_only_wide", [True, False])
def test_products_and_gradients_equal_those_of_torch(
    shape: tuple[int, ...], bias: bool, is_only_wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = layer(bias=bias)
    if is_only_wide:
        monkeypatch.setattr(processor, "this", WITHOUT_BF16)
        monkeypatch.setattr(products, "MIN_WIDE", 1)
    of = [torch.randn(shape, requires_grad=True), *one.parameters()]
    found, expected = one(of[0]), F.linear(of[0], one.weight, one.bias)
    assert ("_Product" in type(found.grad_fn).__name__) == (not is_only_wide or not bias)
    factors = torch.randn_like(expected)
    assert_close(found, expected)
    gradients = [torch.autograd.grad((y * factors).sum(), of) for y in (found, expected)]
    assert_close(*gradients)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("here", "n_products", "n_wide"), [(FAST, 3, 3), (WITHOUT_BF16, 0, 1), (PLAIN, 0, 0)])
def test_fast_bfloat16_selects_the_library(
    here: Processor, n_products: int, n_wide: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN computes large products and their gradients in fp32, or only the product of a wide layer, or none."""
    calls, product = [], products.onednn_product
    monkeypatch.setattr(products, "onednn_product", lambda *x: calls.append(1) or product(*x))
    monkeypatch.setattr(processor, "this", here)
    for least, n in ((1 << 30, n_products), (1, n_wide)):
        monkeypatch.setattr(products, "MIN_WIDE", least)
        calls.clear()
        layer(bias=False)(torch.randn(3, 24, requires_grad=True)).sum().backward()
        assert len(calls) == n


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_wide_layer_computes_in_the_dtype_of_autocast(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_WIDE", 1)
    one, x = layer(bias=False), torch.randn(3, 24)
    with torch.autocast("cpu", dtype=dtype):
        assert_close(one(x), F.linear(x, one.weight))


@pytest.mark.usefixtures("everywhere")
def test_gradients_of_gradients_and_frozen_weights() -> None:
    one, x = layer(), torch.randn(3, 24, requires_grad=True)

    def penalty(y: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), one.weight)[0]

    assert_close(penalty(one(x)), penalty(F.linear(x, one.weight, one.bias)))
    one.requires_grad_(False)
    one(x).sum().backward()
    assert one.weight.grad is None and x.grad is not None


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_gradients_of_a_wide_layer(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    one, x = layer(bias=False), torch.randn(3, 24, requires_grad=True)

    def penalty(y: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), one.weight)[0]

    results = []
    for least in (1, 1 << 30):
        monkeypatch.setattr(products, "MIN_WIDE", least)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            results.append(penalty(one(x)))
    assert_close(*results, dtype=dtype)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(24,), (5, 24), (2, 3, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_packed_weights_give_the_products_of_the_layer(dtype: torch.dtype, shape: tuple[int, ...], bias: bool) -> None:
    one, x = layer(dtype, bias), torch.randn(shape).to(dtype)
    with torch.no_grad():
        expected = F.linear(x, one.weight, one.bias)
    with PackedWeights(), torch.no_grad():
        found = one(x)
        assert_close(found, expected, terms=ROUNDINGS[dtype])
        assert found.dtype == dtype
    packs = {torch.float32: True, torch.bfloat16: CAN.packs_bfloat16, torch.float16: False}
    assert (one.weight in products._packed) == packs[dtype]
    assert one(x).requires_grad, "gradients need the plain layer"
    assert (
        set(one.state_dict()) == {"weight", *(["bias"] if bias else [])}
        and copy.deepcopy(one).weight not in products._packed
    )


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("change", ["in place", "data", "rows", "columns", "load", "new"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_changed_weight_is_packed_again(change: str, dtype: torch.dtype) -> None:
    one, x, packed = layer(dtype), torch.randn(5, 24).to(dtype), PackedWeights()
    with packed, torch.no_grad():
        before = one(x)
    if change == "in place":
        with torch.no_grad():
            one.weight.mul_(2)
    elif change == "data":
        one.weight.data[3] = 1.0
    elif change == "rows":
        one.weight.data.copy_(one.weight.data.flip(0))
    elif change == "columns":
        one.weight.data.copy_(one.weight.data.flip(1))
    elif change == "load":
        one.load_state_dict({"weight": 2 * one.weight.detach(), "bias": one.bias.detach()})
    else:
        one.weight = nn.Parameter(2 * one.weight.detach())
    with PackedWeights(), torch.no_grad():
        after = one(x)
        assert_close(after, F.linear(x, one.weight, one.bias), terms=ROUNDINGS[dtype])
    assert not is_close(before, after)


def projections(dtype: torch.dtype = torch.float32, bias: bool = True) -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict({name: Linear(24, 8 * n, bias=bias) for name, n in (("q", 3), ("k", 1), ("v", 2))}).to(dtype)


GROUPS = (("q", "k"), ("v",))


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("here", [FAST, WITHOUT_BF16, PLAIN])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", ROUNDINGS)
def test_layers_with_one_input_are_one_product(
    dtype: torch.dtype, bias: bool, here: Processor, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "this", here)
    if not is_small:
        monkeypatch.setattr(products, "MIN_PACKED", dict.fromkeys(products.MIN_PACKED, 1))
    owner, x, packed = projections(dtype, bias), torch.randn(2, 3, 24).to(dtype), PackedWeights()
    with torch.no_grad():
        q, k, v = (F.linear(x, layer.weight, layer.bias) for layer in owner.values())
        outside = linear_layers(owner, GROUPS, x)
        for _ in range(2):
            with packed:
                inside = linear_layers(owner, GROUPS, x)
                for found in (outside, inside):
                    assert_close([*found], [torch.cat((q, k), -1), v], terms=ROUNDINGS[dtype])
    packs = {torch.float32: here.uses_onednn, torch.bfloat16: here is FAST and CAN.packs_bfloat16, torch.float16: False}
    is_packed = not is_small and packs[dtype]
    assert (owner["q"].weight in products._packed) == is_packed
    is_one = inside[0].untyped_storage().data_ptr() == inside[1].untyped_storage().data_ptr()
    assert is_one == (is_packed or (is_small and dtype in products.MIN_PACKED))
    assert all(y.requires_grad for y in linear_layers(owner, GROUPS, x)), "gradients need the plain layers"


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_changed_layers_are_stacked_again(name: str) -> None:
    owner, x = projections(), torch.randn(5, 24)
    with PackedWeights(), torch.no_grad():
        linear_layers(owner, GROUPS, x)
    owner[name].weight.data.mul_(2)
    with PackedWeights(), torch.no_grad():
        found = torch.cat([*linear_layers(owner, GROUPS, x)], -1)
        assert_close(found, torch.cat([layer(x) for layer in owner.values()], -1), terms=512)


def test_a_layer_with_a_hook_or_an_update_is_no_part_of_one_product() -> None:
    owner, x, seen = projections(), torch.randn(5, 24), []
    owner["q"].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    with PackedWeights(), torch.no_grad():
        linear_layers(owner, GROUPS, x)
    assert len(seen) == 1
    owner = projections()
    add_lora(owner, ("v",), rank=2, alpha=4.0)
    owner["v"].lora_b.data.fill_(1.0)
    with PackedWeights(), torch.no_grad():
        _, found = linear_layers(owner, GROUPS, x)
        assert_close(found, owner["v"](x), terms=512)


def test_a_block_computes_layers_under_autocast_as_autocast_asks() -> None:
    owner, x = projections(), torch.randn(3, 24)
    with PackedWeights(), torch.inference_mode():
        linear_layers(owner, GROUPS, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert {y.dtype for y in linear_layers(owner, GROUPS, x)} == {torch.bfloat16}


@pytest.mark.usefixtures("everywhere")
def test_the_memory_of_copies_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MAX_PACKED_BYTES", 0)
    one, x = layer(), torch.randn(5, 24)
    with PackedWeights(), torch.no_grad():
        assert_close(one(x), F.linear(x, one.weight, one.bias))
    assert one.weight not in products._packed


def test_blocks_nest() -> None:
    with PackedWeights() as outer:
        with PackedWeights() as inner:
            assert products._here.block is inner
        assert products._here.block is outer
    assert products._here.block is None


def test_a_block_belongs_to_its_thread() -> None:
    seen = []
    with PackedWeights():
        thread = threading.Thread(target=lambda: seen.append(getattr(products._here, "block", None)))
        thread.start()
        thread.join()
    assert seen == [None]


@pytest.mark.usefixtures("everywhere")
def test_transforms_of_torch_func_work() -> None:
    one, x = layer(), torch.randn(5, 24)
    weights = dict(one.named_parameters())

    def loss(of: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(one, of, (row,)).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, x)["weight"]
    expected = torch.stack([torch.autograd.grad(loss(weights, row), one.weight)[0] for row in x])
    assert_close(found, expected)


@pytest.mark.usefixtures("everywhere")
def test_a_frozen_wide_layer_has_no_gradient_of_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MIN_WIDE", 1)
    one, x = layer(bias=False).requires_grad_(False), torch.randn(5, 24, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        one(x).sum().backward()
    assert one.weight.grad is None and x.grad is not None


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("part", [7, 16, 1000])
def test_a_wide_layer_in_bfloat16_gives_the_gradients_of_autocast(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one, x = layer(bias=False), torch.randn(2, 5, 24, requires_grad=True)
    results = []
    for least in (1, 1 << 30):
        monkeypatch.setattr(products, "MIN_WIDE", least)
        monkeypatch.setattr(products, "WIDE_PART", part)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = one(x)
        factors = torch.linspace(-1, 1, found.numel()).view_as(found).bfloat16()
        results.append([found, *torch.autograd.grad((found * factors).sum(), [x, one.weight])])
    for wide, plain in zip(*results, strict=True):
        assert wide.dtype == plain.dtype
        assert_close(wide, plain)


def test_a_compiled_layer_reads_no_packed_weights() -> None:
    """The products of a block are kept from layer to layer, but a trace of `torch.compile` outlives the block."""
    one, x, packed = Linear(512, 512), torch.randn(3, 512), PackedWeights()
    expected, compiled = F.linear(x, one.weight, one.bias), torch.compile(one, backend="eager")
    for _ in range(2):
        with packed, torch.inference_mode():
            assert_close(one(x), expected)
            assert torch.equal(compiled(x), expected)


def test_a_block_computes_under_autocast_what_autocast_asks_for() -> None:
    one, x = Linear(8, 8), torch.randn(3, 8)
    with PackedWeights() as packed, torch.inference_mode():
        one(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert one(x).dtype == torch.bfloat16
    with packed:
        assert one(x).requires_grad


@pytest.mark.usefixtures("everywhere")
def test_packed_copies_of_a_network_are_freed() -> None:
    large = Linear(512, 512)
    with PackedWeights(), torch.inference_mode():
        large(torch.zeros(3, 512))
    assert large.weight in products._packed
    products.forget_packed(nn.Sequential(large))
    assert large.weight not in products._packed


def test_bfloat16_weights_are_not_packed_by_a_processor_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN raises an error for them on x86 processors without AVX-512."""
    monkeypatch.setattr(processor, "this", replace(FAST, packs_bfloat16=False))
    large, x = Linear(512, 512).bfloat16(), torch.randn(1, 512).bfloat16()
    with PackedWeights(), torch.inference_mode():
        found = large(x)
    assert large.weight not in products._packed
    assert torch.equal(found, F.linear(x, large.weight, large.bias))


@pytest.mark.parametrize("dtype", ROUNDINGS)
@pytest.mark.parametrize("shape", [(1, 512), (2, 512), (33, 512)])
@pytest.mark.parametrize("here", [FAST, WITHOUT_BF16, PLAIN])
def test_a_layer_gives_the_same_products_as_on_every_kind_of_processor(
    here: Processor, shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without gradients, packed or not, for every choice of the library."""
    monkeypatch.setattr(processor, "this", here)
    one, x = Linear(512, 512).to(dtype), torch.randn(shape).to(dtype)
    expected = F.linear(x, one.weight, one.bias)
    assert_close(one(x), expected, terms=ROUNDINGS[dtype])
    with PackedWeights(), torch.inference_mode():
        assert_close(one(x), expected, terms=ROUNDINGS[dtype])


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", range(5))
def test_weights_that_are_parts_of_one_vector_give_the_products_of_the_layer(offset: int, dtype: torch.dtype) -> None:
    """`vector_to_parameters` makes every weight a view, at any place of the vector."""
    one = layer(dtype)
    vector = torch.cat([torch.zeros(offset, dtype=dtype), nn.utils.parameters_to_vector(one.parameters()).detach()])
    expected = layer(dtype)
    nn.utils.vector_to_parameters(vector[offset:], one.parameters())
    assert one.weight.storage_offset() == offset
    x = torch.randn(3, 24, dtype=dtype)
    with PackedWeights(), torch.no_grad():
        assert_close(one(x), F.linear(x, expected.weight, expected.bias))
