"""Vectors that the parts of a pre-norm Transformer write to its residual stream, and the linear maps that read them.

The stream after the last block is the sum of the embedding and of these vectors. `attribution.py` sends each through
the final norm and the head; `strongest.py` takes the length of a head's vector.
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from glassformer.common.errors import UserError
from glassformer.inspection.ablation import Part, context_name, feed_forward_name
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.lens import dtype_of, head_stack
from glassformer.models.heads import TokenLogits
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import MultiHeadAttention
from glassformer.nn.norms import LayerNorm, RMSNorm

Map = Callable[[Tensor], Tensor]


def require_additive(network: Transformer) -> Transformer:
    """Return the network; raise `UserError` if its logits are no sum of terms, one per part."""
    needs = "logit attribution needs a pre-norm model whose head is one matrix"
    if network.config.norm_order == "post":
        raise UserError(f"{needs}: this model is post-norm, and its norms mix all parts")
    if isinstance(network.output, TokenLogits) and network.output.transform is not None:
        raise UserError(f"{needs}: the head of this model has a layer with an activation")
    if network.config.logit_cap:
        raise UserError(f"{needs}: this model bounds its logits (model.logit_cap)")
    if network.config.residual_scale != 1:
        raise UserError(f"{needs}: this model multiplies what its parts add by model.residual_scale")
    for _, _, attention in _attentions(network):
        require_heads(attention)
    return network


def is_additive(network: nn.Module) -> bool:
    """Return True if `require_additive` accepts a network with a head over tokens."""
    if not isinstance(network, Transformer):
        return False
    try:
        require_additive(network)
    except UserError:
        return False
    return True


def require_heads(attention: nn.Module) -> MultiHeadAttention:
    """Return a multi-head attention; raise `UserError` for a module of another kind."""
    if not isinstance(attention, MultiHeadAttention):
        raise UserError(f"the output of {type(attention).__name__} is no sum over heads: use multi-head attention")
    return attention


def _attentions(network: Transformer) -> Iterator[tuple[Kind, int, nn.Module]]:
    """Yield the attentions of the stack that the head reads: kind, layer and module, in the order of computation."""
    stack = head_stack(network)
    for i, block in enumerate(getattr(network, stack).blocks):
        yield stack, i, block.self_attn
        if block.cross_attn is not None:
            yield "cross", i, block.cross_attn


def last_name(network: Transformer, stack: str) -> str:
    """Return the name of the residual stream after the last block of a stack."""
    blocks = getattr(network, stack).blocks
    return f"{stack}.blocks.{len(blocks) - 1}.residual" if len(blocks) else f"{stack}.embeddings"


def written_names(network: Transformer) -> list[str]:
    """Return the names of the tensors that `written` reads, and that of the last residual stream."""
    stack = head_stack(network)
    names = [f"{stack}.embeddings", last_name(network, stack)]
    for kind, i, _ in _attentions(network):
        names.append(context_name(network, kind, i))
        if _out_norm(network, kind, i) is not None:
            names.append(_out_norm_input(network, kind, i))
    blocks = enumerate(getattr(network, stack).blocks)
    return [*names, *(feed_forward_name(network, stack, i) for i, block in blocks if block.ff is not None)]


def written(network: Transformer, at: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and vector (D,) of each term of the last residual stream, in the order of the computation.

    `at` has the tensors of `written_names` at one position: contexts (H, W), others (D,). The names are those of
    `attribution.py`.
    """
    stack = head_stack(network)
    yield "embedding", at[f"{stack}.embeddings"]
    blocks = getattr(network, stack).blocks
    for kind, i, module in _attentions(network):
        attention, norm = require_heads(module), _out_norm(network, kind, i)
        through: Map = _unchanged
        if norm is not None:
            through = frozen(norm, at[_out_norm_input(network, kind, i)])
        value_bias = values_bias(attention)
        for h, context in enumerate(at[context_name(network, kind, i)] - value_bias):
            yield str(Part(kind, i, head=h)), through(head_output(attention, context, h))
        bias = through(output_of(attention, value_bias.flatten()))
        yield f"{kind}.{i}.attention_bias", bias + shift(norm, bias)
        is_last_attention = kind == "cross" or blocks[i].cross_attn is None
        if is_last_attention and blocks[i].ff is not None:
            yield str(Part(stack, i, feed_forward=True)), at[feed_forward_name(network, stack, i)]


def _out_norm(network: Transformer, kind: Kind, layer: int) -> nn.Module | None:
    block = getattr(network, head_stack(network)).blocks[layer]
    norm: nn.Module | None = getattr(block, f"{module_name(kind)}_out_norm")
    return norm


def _out_norm_input(network: Transformer, kind: Kind, layer: int) -> str:
    return f"{head_stack(network)}.blocks.{layer}.{module_name(kind)}_out_norm.input"


def module_name(kind: Kind) -> str:
    """Return the name that a block gives to an attention."""
    return "cross_attn" if kind == "cross" else "self_attn"


def values_bias(attention: MultiHeadAttention) -> Tensor:
    """Return the bias of the values of each head, (H, W); zeros without one. A key-value head serves several heads."""
    projection = attention.qkv_proj if attention.fused_qkv else attention.v_proj
    shape = attention.n_kv_heads, attention.d_head
    if projection.bias is None:
        weight = next(attention.parameters())
        of_groups = torch.zeros(shape, dtype=dtype_of(attention), device=weight.device)
    else:
        of_groups = projection.bias[-attention.split_sizes[2] :].view(shape)
    return of_groups.repeat_interleave(attention.n_heads // attention.n_kv_heads, dim=0)


def output_of(attention: MultiHeadAttention, contexts: Tensor) -> Tensor:
    """Return the output of an attention for the concatenated contexts of its heads: (…, H·W) → (…, D)."""
    return attention.out_proj(contexts.to(dtype_of(attention.out_proj)))


def head_output(attention: MultiHeadAttention, context: Tensor, head: int) -> Tensor:
    """Return context · W_O of one head, without a bias: (…, W) → (…, D)."""
    contexts = context.new_zeros(*context.shape[:-1], attention.n_heads, attention.d_head)
    contexts[..., head, :] = context
    return linear_part(attention.out_proj, dtype_of(attention.out_proj))(contexts.flatten(-2))


def linear_part(module: nn.Module, dtype: torch.dtype) -> Map:
    """Return x → module(x) − module(0), the linear part of a module that is linear plus a constant.

    It needs no weight, so it also holds with a low-rank update. The module reads `dtype`.
    """

    def linear(x: Tensor) -> Tensor:
        x = x.to(dtype)
        difference: Tensor = module(x) - module(torch.zeros_like(x))
        return difference

    return linear


def frozen(norm: nn.Module | None, x: Tensor) -> Map:
    """Return the linear map of a norm with the scale that it has at x (D,), without its shift; None is the identity.

    norm(x) = frozen(norm, x)(x) + shift.

    >>> norm, x = LayerNorm(3), torch.tensor([1.0, 2.0, 6.0])
    >>> torch.allclose(frozen(norm, x)(x), norm(x))
    True
    >>> parts = frozen(norm, x)(torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 6.0]]))
    >>> torch.allclose(parts.sum(0), norm(x))
    True
    """
    if norm is None:
        return _unchanged
    if isinstance(norm, LayerNorm):
        scale = torch.rsqrt(x.var(unbiased=False) + norm.eps)
    elif isinstance(norm, RMSNorm):
        scale = torch.rsqrt(x.square().mean() + norm.eps)
    else:
        raise UserError(f"{type(norm).__name__} has no known linear part: use LayerNorm or RMSNorm")
    if norm.weight is not None:
        scale = scale * norm.weight

    def linear(v: Tensor) -> Tensor:
        if isinstance(norm, LayerNorm):
            v = v - v.mean(dim=-1, keepdim=True)
        return v * scale

    return linear


def shift(norm: nn.Module | None, like: Tensor) -> Tensor:
    """Return what a norm adds to every vector, (D,); zeros as `like` without it."""
    bias = getattr(norm, "bias", None)
    return torch.zeros_like(like) if bias is None else bias


def _unchanged(x: Tensor) -> Tensor:
    return x
