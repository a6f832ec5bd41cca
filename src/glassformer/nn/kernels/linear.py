"""Fast linear products and norms: of large layers, of layers in generation on a CPU, and of groups of rows.

Generation runs in a block of `PackedWeights`. The memory limits the speed of a product of few rows by a large weight,
so large layers multiply by copies of their weights in the layout of oneDNN's kernels. A copy is used only while its
weight is unchanged. For a small layer, the call takes longer than the product. So layers with the same input are one
product, and `rms_norm_layer` has fewer operations.
"""

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from glassformer.nn.kernels import processor
from glassformer.nn.kernels.processor import onednn_product

MIN_PRODUCTS, MIN_WEIGHTS = 1 << 22, 1 << 20
"""Sizes from which oneDNN saves more time than its call takes. `MIN_PRODUCTS`: multiply-adds of a product in fp32.
`MIN_WEIGHTS`: elements of its weight."""
MIN_WIDE, WIDE_PART = 1 << 14, 1 << 12
"""`MIN_WIDE`: number of outputs from which a layer is wide. `WIDE_PART`: number of outputs in a part when the weight
gradient of a wide layer is computed in bfloat16."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, (…, in) → (…, out), for `weight` (out, in): `F.linear`, or a faster product of equal value.

    On a CPU that is fast in bfloat16, oneDNN computes all large products in fp32, and their gradients. On another
    CPU, oneDNN computes only the products of a wide layer, and MKL computes their gradients.

    >>> linear(torch.ones(1, 2), torch.tensor([[1.0, 2.0]]))
    tensor([[3.]])
    """
    if not is_plain(x, weight) or not x.numel():
        return F.linear(x, weight, bias)
    here = processor.this
    is_wide = bias is None and len(weight) >= MIN_WIDE and torch.is_grad_enabled()
    if torch.is_autocast_enabled("cpu"):
        if is_wide and here.is_fast_in_bfloat16 and torch.get_autocast_dtype("cpu") == torch.bfloat16:
            return _Product.apply(x.bfloat16(), weight.bfloat16(), None, F.linear, F.linear, _in_parts)
    elif x.dtype == weight.dtype == torch.float32:
        is_large = weight.numel() >= MIN_WEIGHTS or x.numel() * len(weight) >= MIN_PRODUCTS
        if (is_large and here.is_fast_in_bfloat16) or (is_wide and here.uses_onednn):
            for_gradients = onednn_product if here.is_fast_in_bfloat16 else F.linear
            return _Product.apply(x, weight, bias, onednn_product, for_gradients, for_gradients)
    return F.linear(x, weight, bias)


def is_transformed() -> bool:
    """Return True in `torch.compile` and `torch.func`, which need PyTorch's own operations for forward and backward."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def is_plain(x: Tensor, weight: Tensor) -> bool:
    """Return True for tensors on a CPU that oneDNN can read: neither traced nor distributed."""
    has_plain_types = type(x) in (Tensor, nn.Parameter) and type(weight) in (Tensor, nn.Parameter)
    return has_plain_types and x.device.type == weight.device.type == "cpu" and not is_transformed()


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a linear product of `x`: the dtype of `x`, or the dtype of autocast if it is enabled."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def _in_parts(x: Tensor, weight: Tensor) -> Tensor:
    """Return x Wᵀ for many rows `x` (N, in), some at a time: in bfloat16, this takes two thirds of the time."""
    product = x.new_empty(len(x), len(weight))
    for part, of_part in zip(x.split(WIDE_PART), product.split(WIDE_PART), strict=True):
        torch.mm(part, weight.T, out=of_part)
    return product


class _Product(torch.autograd.Function):
    """x Wᵀ + b by the first function; the second function computes the gradient of x, the third the gradient of W."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, *multiply: Callable[..., Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.for_gradients = multiply[1:]
        return multiply[0](x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight = ctx.for_gradients
        if torch.is_grad_enabled():  # gradients of gradients
            for_x = for_weight = F.linear
        grad_rows, x_rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        of_x = for_x(grad, weight.T) if needs_x else None
        of_weight = for_weight(grad_rows.T, x_rows.T) if needs_weight else None
        of_bias = grad_rows.sum(dim=0) if needs_bias else None
        return of_x, of_weight, of_bias, None, None, None


# Packed weights: copies in the layout of the kernels of oneDNN, for generation on a CPU

MIN_PACKED = {torch.float32: 3 << 17, torch.bfloat16: 1 << 17}
"""Number of weights from which a layer, or a stack of layers, is packed; smaller ones stay in the processor's cache."""
MAX_PACKED_BYTES = 2 << 30
"""Largest size of all packed weights, which are copies. Of a larger network, only the first layers are packed."""


class _Here(threading.local):
    """The block of `PackedWeights` that is open in this thread.

    Each thread has the attribute from its start, because a compiled network is compiled again if an attribute is added.
    """

    def __init__(self) -> None:
        self.block: PackedWeights | None = None


_here = _Here()


_packed = WeakTensorKeyDictionary()
"""The key is the first weight of a packed matrix. The value has the `_identity` of all its weights, the matrix, and its
number of bytes."""
_lock = threading.Lock()
"""Held while `_packed` is read or changed."""


Names = tuple[tuple[str, ...], ...]
"""Names of layers with the same input, in groups."""


def linear_layer(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return x Wᵀ + b of a layer: by packed weights in a block of `PackedWeights`, otherwise by `linear`."""
    block = _here.block
    if block is None or torch.compiler.is_dynamo_compiling():
        return linear(x, layer.weight, layer.bias)
    product = block.chosen.get((layer, id(layer._parameters.get("weight")), x.dtype))
    if product is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        product = block.choose(layer, id(layer._parameters.get("weight")), x)
    return product(x)


def linear_layers(owner: nn.Module, groups: Names, x: Tensor) -> Sequence[Tensor]:
    """Return the outputs of layers of `owner` that read the same `x` (…, in); those of a group are concatenated.

    In a block of `PackedWeights` on a CPU, one product computes all outputs, if every layer is a plain `Linear`.

    >>> _ = torch.manual_seed(0)
    >>> layers = nn.ModuleDict({"q": nn.Linear(4, 2), "k": nn.Linear(4, 2), "v": nn.Linear(4, 3)})
    >>> [tuple(y.shape) for y in linear_layers(layers, (("q", "k"), ("v",)), torch.ones(1, 4))]
    [(1, 4), (1, 3)]
    """
    block = _here.block
    if block is None or torch.compiler.is_dynamo_compiling():
        return _apart(owner, groups, x)
    product = block.chosen.get((owner, groups, x.dtype))
    if product is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        product = block.choose(owner, groups, x)
    return product(x)


def _apart(owner: nn.Module, groups: Names, x: Tensor) -> list[Tensor]:
    """Return the outputs of `linear_layers`, one product per layer."""
    outputs = []
    for group in groups:
        of_layers = [getattr(owner, name)(x) for name in group]
        outputs.append(of_layers[0] if len(of_layers) == 1 else torch.cat(of_layers, -1))
    return outputs


def rms_norm_layer(layer: Any, x: Tensor) -> Tensor:
    """Return x / √(mean(x²) + eps) · weight of an `RMSNorm` (`rms_norm_reference`), for `x` (…, width)."""
    weight = layer.weight
    is_fast = x.is_cpu and x.dtype == torch.float32 and x.shape[-1] == layer.width
    if _here.block is None or torch.is_grad_enabled() or not is_fast:
        if x.shape[-1] != layer.width:
            raise ValueError(f"x: expected width {layer.width}, got {tuple(x.shape)}")
        # Under autocast, x may have a lower precision than the weight; the fused operator needs equal dtypes.
        return torch.rms_norm(x, (layer.width,), None if weight is None else weight.to(x.dtype), layer.eps)
    # On a CPU, PyTorch's operator has more and slower parts.
    eps = _numbers.get(layer.eps)
    if eps is None:
        eps = _numbers[layer.eps] = torch.tensor(layer.eps, dtype=torch.float32, device="cpu")
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    y = x * torch.addcmul(eps, norm, norm, value=1 / layer.width).rsqrt_()
    return y if weight is None else y * weight


_numbers: dict[float, Tensor] = {}
"""Numbers as tensors, because an operation with a tensor needs fewer calls."""


class PackedWeights:
    """Block in which layers on a CPU multiply, without gradients, by packed copies of their weights.

    A block may be entered many times; weights and hooks must not change until its last use. At the first use of a large
    weight in the block, its copy is compared with the weight. These copies stay for later blocks. Copies of small
    weights, which are stacked, belong to the block. Other threads are not affected.

    >>> layer, packed = nn.Linear(2, 3), PackedWeights()
    >>> for _ in range(2):
    ...     with packed, torch.inference_mode():
    ...         y = linear_layer(layer, torch.zeros(1, 2))
    """

    def __init__(self) -> None:
        self.chosen: dict[tuple[nn.Module, Names | int, torch.dtype], Callable[[Tensor], Any]] = {}
        """Products of a layer (with the `id` of its weight) or of `linear_layers`, by the dtype of the input."""
        self._used: list[Tensor] = []
        """The weights of layers in `chosen`, so that no other weight gets the `id` of one."""
        self._before: list[PackedWeights | None] = []

    def __enter__(self) -> Self:
        self._before.append(_here.block)
        _here.block = self
        return self

    def __exit__(self, *_: object) -> None:
        _here.block = self._before.pop()

    def choose(self, owner: Any, groups: Names | int, x: Tensor) -> Callable[[Tensor], Any]:
        """Return the product of a layer, or of groups; store it if it depends only on weights and the dtype of `x`."""
        product: Callable[[Tensor], Any]
        if isinstance(groups, int):
            layers, product = [owner], partial(linear, weight=owner.weight, bias=owner.bias)
        else:
            layers = [getattr(owner, name) for group in groups for name in group]
            product = partial(_apart, owner, groups)
        if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or is_transformed() or not x.numel():
            return product
        key, multiply = (owner, groups, x.dtype), _product(layers, x)
        if isinstance(groups, int):
            self._used.append(owner.weight)
        if multiply is None or isinstance(groups, int):
            return self.chosen.setdefault(key, multiply or product)
        sizes = [sum(getattr(owner, name).out_features for name in group) for group in groups]
        return self.chosen.setdefault(key, lambda x: multiply(x).split_with_sizes(sizes, -1))


def _product(layers: Sequence[nn.Linear], x: Tensor) -> Callable[[Tensor], Tensor] | None:
    """Return the function that multiplies by the stacked weights of layers; None if they should stay apart."""
    weights: list[Tensor] = [layer.weight for layer in layers]
    weight = weights[0]
    bias: Tensor | None = layers[0].bias
    if not all(is_plain(x, each) and each.dtype == x.dtype for each in weights):
        return None
    if len(layers) > 1:
        if len({layer.bias is None for layer in layers}) > 1 or not all(map(_is_ordinary, layers)):
            return None
        bias = None if bias is None else torch.cat([layer.bias for layer in layers])
    packed = _pack(weights)
    if packed is not None:
        return partial(onednn_product, weight=packed, bias=bias)
    if len(layers) > 1:
        if sum(each.numel() for each in weights) >= MIN_PACKED.get(weight.dtype, 0):
            return None
        weight = torch.cat(weights)
    # Without fast bfloat16, `linear` is `F.linear` for inputs of any size.
    return partial(linear if processor.this.is_fast_in_bfloat16 else F.linear, weight=weight, bias=bias)


def _is_ordinary(layer: nn.Linear) -> bool:
    """Return False for a layer with hooks, or with another function, such as one with a low-rank update."""
    has_hooks = layer._forward_hooks or layer._forward_pre_hooks
    return getattr(layer.forward, "__func__", None) is linear_layer and not has_hooks


def forget_packed(network: nn.Module) -> None:
    """Free the packed copies of the weights of a network, for example because they are about to change."""
    with _lock:
        for weight in network.parameters():
            _packed.pop(weight, None)


def _identity(weight: Tensor) -> tuple[Any, ...]:
    """Return address and dtype of a weight, and sums of its bits that change with its values and with their order.

    PyTorch's counter of changes does not count changes through `weight.data`. Sums of integers are exact and fast.
    """
    bits = weight.view(torch.int64)
    sums = (bits.sum(dim=1), bits.sum(dim=0))
    return weight.data_ptr(), weight.dtype, *(int((x * torch.arange(1, len(x) + 1)).sum()) for x in sums)


def _pack(weights: Sequence[Tensor]) -> Tensor | None:
    """Return the packed matrix of the stacked weights; None if it cannot be packed, or for too many packed weights."""
    here, dtype = processor.this, weights[0].dtype
    is_packed = {
        torch.float32: here.uses_onednn,
        torch.bfloat16: here.is_fast_in_bfloat16 and here.packs_bfloat16,
    }
    if not is_packed.get(dtype) or sum(weight.numel() for weight in weights) < MIN_PACKED[dtype]:
        return None
    for weight in weights:
        n_bytes = (n * weight.element_size() for n in (weight.shape[1], weight.storage_offset()))
        if not weight.is_contiguous() or any(n % 8 for n in n_bytes):
            return None  # `_identity` reads 8 bytes at a time
    size, values = sum(weight.nbytes for weight in weights), [weight.detach() for weight in weights]
    with _lock:
        identity, found = [_identity(each) for each in values], _packed.pop(weights[0], None)
        if found is None or found[0] != identity:
            if sum(each[2] for each in _packed.values()) + size > MAX_PACKED_BYTES:
                return None
            found = identity, torch.ops.mkldnn._reorder_linear_weight(torch.cat(values)), size
        _packed[weights[0]] = found
        return found[1]


# Products of rows in groups, where each group has its own matrix: the fast path of experts

ALIGNED_BYTES = 16
"""The kernel requires that rows and matrices begin at multiples of this number of bytes."""
MAX_GROUPS = 1023
"""Largest number of groups of the kernel."""


class Groups:
    """The groups of N rows that are sorted by group.

    >>> Groups(torch.tensor([0, 0, 2]), n_groups=3).ends
    tensor([2, 2, 3], dtype=torch.int32)
    """

    def __init__(self, of_rows: Tensor, n_groups: int) -> None:
        self.of_rows = of_rows
        """(N,): the group of each row, in ascending order."""
        numbers = torch.arange(n_groups, device=of_rows.device)
        self.ends = torch.searchsorted(of_rows, numbers, right=True, out_int32=True)
        """(G,): the index after the last row of each group."""

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The number of rows of each group; on a GPU, the first use waits for the GPU."""
        return self.ends.diff(prepend=self.ends.new_zeros(1)).tolist()


def grouped_linear(rows: Tensor, groups: Groups, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x Wᵀ + b for `rows` (N, in), where each group has its own W and b; (N, out).

    `weight` (G·out, in) and `bias` (G·out) are stacked by groups. A group without rows takes no time.

    >>> rows, weight = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0], [0.0], [20.0]])
    >>> grouped_linear(rows, Groups(torch.tensor([0, 0, 2]), n_groups=3), weight, None)
    tensor([[10.],
            [20.],
            [60.]])
    """
    multiply = _by_kernel if _fits_kernel(rows, groups, weight) else _by_loop
    return multiply(rows, groups, weight, bias)


def _by_loop(rows: Tensor, groups: Groups, weight: Tensor, bias: Tensor | None) -> Tensor:
    n_groups = len(groups.ends)
    # The gradient of `unbind` is one tensor for all groups; an index would fill a tensor of zeros for each group.
    weights = weight.unflatten(0, (n_groups, -1)).unbind()
    biases = [None] * n_groups if bias is None else bias.unflatten(0, (n_groups, -1)).unbind()
    parts = zip(rows.split(groups.sizes), weights, biases, strict=True)
    return torch.cat([linear(part, w, b) for part, w, b in parts if len(part)])


def _by_kernel(rows: Tensor, groups: Groups, weight: Tensor, bias: Tensor | None) -> Tensor:
    n_groups, dtype = len(groups.ends), product_dtype(rows)
    # Autocast does not know this function, so the operands are cast here.
    weights = weight.to(dtype).unflatten(0, (n_groups, -1))  # (G, out, in)
    product = F.grouped_mm(rows.to(dtype), weights.transpose(1, 2), offs=groups.ends)
    if bias is not None:
        product = product + bias.to(dtype).unflatten(0, (n_groups, -1))[groups.of_rows]
    return product


def _fits_kernel(rows: Tensor, groups: Groups, weight: Tensor) -> bool:
    """Return True if one kernel can compute the product of these groups, forward and backward."""
    if not has_kernel(rows.device) or is_transformed() or product_dtype(rows) != torch.bfloat16:
        return False
    n_groups = len(groups.ends)
    widths = (rows.shape[1], len(weight) // n_groups)
    begins = (weight.data_ptr(), *(width * torch.bfloat16.itemsize for width in widths))
    return n_groups <= MAX_GROUPS and all(n % ALIGNED_BYTES == 0 for n in begins)


def has_kernel(device: torch.device) -> bool:
    """Return True for a GPU of NVIDIA of compute capability 9 (Hopper), on Linux.

    On capability 10, the kernel of PyTorch 2.13 has wrong gradients for groups without rows
    (https://github.com/pytorch/pytorch/issues/172439). On Windows, PyTorch is built without the kernel.
    """
    if device.type != "cuda" or torch.version.cuda is None or sys.platform != "linux":
        return False
    return torch.cuda.get_device_capability(device)[0] == 9
