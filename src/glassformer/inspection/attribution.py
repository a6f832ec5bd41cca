"""Direct logit attribution: the logit of a token as a sum of terms, one for each part that writes to the stream.

In a pre-norm Transformer, the last state is x = e + Σ hᵢ + Σ bₗ + Σ fₗ: embedding, heads, biases, feed-forwards. If the
scale of the final norm is fixed at its value for x, norm and head together are a linear map plus a constant. Then

    logit(token) = term(e) + Σ term(hᵢ) + Σ term(bₗ) + Σ term(fₗ) + constant

holds exactly (Elhage 2021, "A Mathematical Framework for Transformer Circuits"; Wang 2022, section 3.1, for the
difference of two logits). A term is a direct effect: it leaves out the changes that a part makes in later parts.

| term | written vector |
|---|---|
| `embedding` | the residual stream before the first block |
| `decoder.0.head.3`, `cross.0.head.3` | (context − value bias of the head) W_O |
| `decoder.0.attention_bias`, `cross.0.attention_bias` | value biases W_O + output bias + shift of an output norm |
| `decoder.0.feed_forward` | what the feed-forward adds |
| `output_bias` | the constant: shift of the final norm through the head, and the bias of the head |

The attention weights of a query sum to 1, so the value bias of a head reaches every position unchanged.

The baseline is the same term for a random token: mean and standard deviation over the vocabulary. Softmax does not
change if a number is added to all logits, so only value − mean changes a probability.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from glassformer.common import notebook
from glassformer.common.errors import UserError
from glassformer.inspection.ablation import Part, feed_forward_name, grid, matrix_of_parts
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.capture import Trace, capture_tensors
from glassformer.inspection.lens import dtype_of, residual_names, stream_dtype, token_transformer
from glassformer.inspection.measures import logit_measure
from glassformer.models.devices import evaluation_mode
from glassformer.models.heads import TokenLogits
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import MultiHeadAttention, at_least_fp32
from glassformer.nn.layers import LayerNorm, RMSNorm
from glassformer.tasks.trained_model import TrainedModel

Map = Callable[[Tensor], Tensor]
PARTS_AT_ONCE = 64
"""Number of parts whose numbers for the whole vocabulary are computed by one product."""
N_DEVIATIONS = 2.0
"""A term is beyond its baseline if it differs from the mean by more than this many standard deviations."""


@dataclass(frozen=True)
class Term:
    """Number that one part adds to a logit, or to the difference of two logits, with the baseline of this number.

    >>> Term(value=2.0, mean=0.1, deviation=0.5).is_beyond
    True
    """

    value: float
    mean: float
    """Mean of the same term over all tokens of the vocabulary; 0 for a difference."""
    deviation: float
    """Standard deviation over the vocabulary; for a difference of two logits, √2 times as large (two random tokens)."""

    @property
    def is_beyond(self) -> bool:
        """True if the value differs from the mean by more than `N_DEVIATIONS` standard deviations."""
        return abs(self.value - self.mean) > N_DEVIATIONS * self.deviation


@dataclass(frozen=True)
class Attribution:
    """Logit of a token at a position, or the difference of the logits of two tokens, as a sum of terms."""

    token: int
    against: int | None
    """Token whose logit is subtracted; None for one logit."""
    position: int
    logit: float
    """The model's own logit, or the difference of its two logits."""
    terms: dict[str, Term]

    def grid(self) -> tuple[list[list[str | None]], list[str], list[str]]:
        """Return a table of term names, with one row per attention, and the names of its rows and columns."""
        return grid(self.terms)

    def _repr_html_(self) -> str:
        """Return the terms of the layers as a matrix, and the other terms as a table."""
        others = {name: f"{term.value:.4g}" for name, term in self.terms.items() if "." not in name}
        values = {name: term.value for name, term in self.terms.items()}
        return matrix_of_parts(values, f"terms of the logit {self.logit:.4g}") + notebook.table(others)


def logit_attribution(
    model: TrainedModel,
    trace: Trace,
    token: str | None = None,
    against: str | None = None,
    position: int | None = None,
) -> Attribution:
    """Return the terms of the logit of a token, for the inputs of a trace of a model.

    `token` and `against` are one token of the vocabulary each, such as " Paris". The default of `token` is the token
    that the model predicts. With `against`, the sum of the terms is logit(token) − logit(against). The default position
    is the last one, or the first mask of a masked model.

    ```python
    found = logit_attribution(model, capture(model, "The king is here:"), " he", " she")
    found.terms["decoder.0.head.3"].value
    ```

    Raises `UserError` for a recurrent or post-norm model, for a head with layers of its own, for a text of several
    tokens, and for a position outside the text.
    """
    network = token_transformer(model.network, "logit attribution")
    measure = logit_measure(model, trace.inputs, token, against, position)
    assert measure.positions is not None  # a head over tokens
    chosen, *other = measure.reference.tolist()
    return attribute(network, trace.inputs, chosen, next(iter(other), None), int(measure.positions.nonzero()))


def attribute(
    network: nn.Module, inputs: Mapping[str, Tensor], token: int, against: int | None = None, position: int = -1
) -> Attribution:
    """Return the terms of logit(token), or of logit(token) − logit(against), at a position of the output.

    `inputs` are the arguments of the network, one row. The terms add up to the model's logit, up to rounding. Raises
    `UserError` as `logit_attribution` does.
    """
    transformer = require_additive(token_transformer(network, "logit attribution"))
    if token == against:
        raise UserError(f"both tokens are token {token}: give two different tokens")
    at = _at_position(transformer, inputs, position, ["logits"])
    with torch.no_grad(), evaluation_mode(network):
        read = _reader(transformer, at)
        names, vectors = zip(*written(transformer, at), strict=True)
        parts = torch.stack([x.to(at["logits"]) for x in vectors]).split(PARTS_AT_ONCE)  # (parts, D)
        rows = (row for some in parts for row in read(some))  # (V,)
        terms = {name: _term(row, token, against) for name, row in zip(names, rows, strict=True)}
        zero = vectors[0].new_zeros(transformer.config.d_model, dtype=stream_dtype(transformer))
        constant = transformer.head(shift(_final_norm(transformer), zero).to(zero))
        terms["output_bias"] = _term(constant, token, against)
    logit = float(at["logits"][token])
    if against is not None:
        logit -= float(at["logits"][against])
    return Attribution(token, against, position, logit, terms)


def direct_effect(network: nn.Module, inputs: Mapping[str, Tensor], unit: str, position: int = -1) -> Tensor:
    """Return the numbers (V,) that one head or neuron adds to the logits at a position: its terms for all tokens.

    `unit` is a head, such as `decoder.0.head.3`, or a neuron of a feed-forward, such as `decoder.0.neuron.17`. A neuron
    writes its activation times its column of the last projection. Raises `UserError` as `logit_attribution` does, and
    for a unit of a stack that the head of the model does not read.
    """
    transformer = require_additive(token_transformer(network, "the effect on all tokens"))
    stack, layer, what, number = unit.split(".")
    if stack not in (transformer.config.head_stack_name, "cross"):
        raise UserError(f"{unit} writes to the {stack}, and the head of the model reads the decoder only")
    path = f"{stack}.blocks.{layer}.ff"
    block = getattr(transformer, transformer.config.head_stack_name).blocks[int(layer)]
    more = []
    if what == "neuron":
        more = [f"{path}.activations", *([f"{path}_out_norm.input"] if block.ff_out_norm is not None else [])]
    at = _at_position(transformer, inputs, position, more)
    with torch.no_grad(), evaluation_mode(network):
        if what == "head":
            vector = dict(written(transformer, at))[unit]
        else:
            alone = torch.zeros_like(at[f"{path}.activations"])  # (d_ff,)
            alone[int(number)] = at[f"{path}.activations"][int(number)]
            through = _unchanged if len(more) == 1 else frozen(block.ff_out_norm, at[f"{path}_out_norm.input"])
            vector = through(linear_part(block.ff.down_proj, dtype_of(block.ff))(alone))
        return at_least_fp32(_reader(transformer, at)(vector)).cpu()


def _at_position(
    transformer: Transformer, inputs: Mapping[str, Tensor], position: int, more: list[str]
) -> dict[str, Tensor]:
    """Return the tensors of `written_names`, and more ones, at a position, on the device of the model."""
    tensors = capture_tensors(transformer, inputs, [*written_names(transformer), *more])
    exact = torch.promote_types(stream_dtype(transformer), torch.float32)
    device = next(transformer.parameters()).device
    return {name: x[0, ..., position, :].to(device, exact) for name, x in tensors.items()}  # (H, W), (D,), (V,)


def _final_norm(transformer: Transformer) -> nn.Module | None:
    norm: nn.Module | None = getattr(transformer, transformer.config.head_stack_name).final_norm
    return norm


def _reader(transformer: Transformer, at: Mapping[str, Tensor]) -> Map:
    """Return the linear map from vectors of the stream to logits: final norm, with its scale fixed, and head."""
    final = frozen(_final_norm(transformer), at[_last_name(transformer)])
    head = linear_part(transformer.output, stream_dtype(transformer))
    return lambda x: head(final(x))


def _term(logits: Tensor, token: int, against: int | None) -> Term:
    """Return the term of a part; `logits` (V,) has the numbers that this part adds to all logits.

    >>> _term(torch.tensor([1.0, 2.0, 3.0]), token=2, against=None)
    Term(value=3.0, mean=2.0, deviation=0.8164966106414795)
    """
    logits = at_least_fp32(logits)
    deviation = float(logits.std(unbiased=False))
    if against is None:
        return Term(float(logits[token]), float(logits.mean()), deviation)
    return Term(float(logits[token] - logits[against]), 0.0, math.sqrt(2) * deviation)


# What the parts write


def require_additive(network: Transformer) -> Transformer:
    """Return the network; raise `UserError` if its logits are not a sum of one term per part."""
    needs = "logit attribution needs a pre-norm model whose head is one matrix"
    if network.config.norm_order == "post":
        raise UserError(f"{needs}: this model is post-norm, and its norms mix all parts")
    if isinstance(network.output, TokenLogits) and network.output.transform is not None:
        raise UserError(f"{needs}: the head of this model has a layer with an activation")
    if network.config.logit_cap:
        raise UserError(f"{needs}: this model bounds its logits (model.logit_cap)")
    if network.config.residual_scale != 1:
        raise UserError(f"{needs}: this model multiplies what its parts add by model.residual_scale")
    for attention in _attentions(network):
        require_heads(attention.module)
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


class _Attention(NamedTuple):
    kind: Kind
    layer: int
    path: str
    """Path of the module, such as `decoder.blocks.0.self_attn`."""
    module: nn.Module
    out_norm: nn.Module | None


def _attentions(network: Transformer) -> Iterator[_Attention]:
    """Yield the attentions of the stack that the head reads, in the order of the computation."""
    stack = network.config.head_stack_name
    for i, block in enumerate(getattr(network, stack).blocks):
        path = f"{stack}.blocks.{i}"
        yield _Attention(stack, i, f"{path}.self_attn", block.self_attn, block.self_attn_out_norm)
        if block.cross_attn is not None:
            yield _Attention("cross", i, f"{path}.cross_attn", block.cross_attn, block.cross_attn_out_norm)


def _last_name(network: Transformer) -> str:
    """Return the name of the residual stream that the final norm reads."""
    return list(residual_names(network).values())[-1]


def written_names(network: Transformer) -> list[str]:
    """Return the names of the tensors that `written` reads, and the name of the last residual stream."""
    stack = network.config.head_stack_name
    names = [f"{stack}.embeddings", _last_name(network)]
    for attention in _attentions(network):
        names.append(f"{attention.path}.context")
        if attention.out_norm is not None:
            names.append(f"{attention.path}_out_norm.input")
    blocks = enumerate(getattr(network, stack).blocks)
    return [*names, *(feed_forward_name(network, stack, i) for i, block in blocks if block.ff is not None)]


def written(network: Transformer, at: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield name and vector (D,) of each term of the last residual stream, in the order of the computation.

    `at` has the tensors of `written_names` at one position: contexts (H, W), others (D,).
    """
    stack = network.config.head_stack_name
    blocks = getattr(network, stack).blocks
    yield "embedding", at[f"{stack}.embeddings"]
    for kind, i, path, module, norm in _attentions(network):
        # 1. The heads; the scale of an output norm is fixed at its value for the attention's output.
        attention = require_heads(module)
        value_bias = values_bias(attention)  # (H, W)
        through: Map = _unchanged
        if norm is not None:
            through = frozen(norm, at[f"{path}_out_norm.input"])
        for h, context in enumerate(at[f"{path}.context"] - value_bias):
            yield str(Part(kind, i, head=h)), through(head_output(attention, context, h))
        # 2. The bias that the attention adds at every position.
        bias = through(attention.out_proj(value_bias.flatten().to(dtype_of(attention.out_proj))))
        yield f"{kind}.{i}.attention_bias", bias + shift(norm, bias)
        # 3. The feed-forward, after the last attention of its block.
        is_last_attention = kind == "cross" or blocks[i].cross_attn is None
        if is_last_attention and blocks[i].ff is not None:
            yield str(Part(stack, i, feed_forward=True)), at[feed_forward_name(network, stack, i)]


def module_name(kind: Kind) -> str:
    """Return the name of the attribute of a block that is the attention of this kind."""
    return "cross_attn" if kind == "cross" else "self_attn"


def values_bias(attention: MultiHeadAttention) -> Tensor:
    """Return the value bias (H, W) of each head, or zeros; heads with a common key-value head have the same bias."""
    projection = attention.qkv_proj if attention.fused_qkv else attention.v_proj
    shape = attention.n_kv_heads, attention.d_head
    if projection.bias is None:
        weight = next(attention.parameters())
        of_groups = torch.zeros(shape, dtype=dtype_of(attention), device=weight.device)
    else:
        of_groups = projection.bias[-attention.split_sizes[2] :].view(shape)
    return of_groups.repeat_interleave(attention.n_heads // attention.n_kv_heads, dim=0)


def head_output(attention: MultiHeadAttention, context: Tensor, head: int) -> Tensor:
    """Return context · W_O of one head, without a bias: (…, W) → (…, D)."""
    contexts = context.new_zeros(*context.shape[:-1], attention.n_heads, attention.d_head)
    contexts[..., head, :] = context
    return linear_part(attention.out_proj, dtype_of(attention.out_proj))(contexts.flatten(-2))


def linear_part(module: nn.Module, dtype: torch.dtype) -> Map:
    """Return the function module(x) − module(0) of x: the linear part of a module that is linear plus a constant.

    It does not read the weight of the module, so it is also right with a low-rank update. x is converted to `dtype`.
    """

    def linear(x: Tensor) -> Tensor:
        x = x.to(dtype)
        difference: Tensor = module(x) - module(torch.zeros_like(x))
        return difference

    return linear


def frozen(norm: nn.Module | None, x: Tensor) -> Map:
    """Return the linear map of a norm, without its shift, with the scale fixed at its value for x (D,).

    If the norm is None, the map is the identity.

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
    """Return the bias (D,) that a norm adds to every vector, or zeros of the shape of `like`."""
    bias = getattr(norm, "bias", None)
    return torch.zeros_like(like) if bias is None else bias


def _unchanged(x: Tensor) -> Tensor:
    return x
