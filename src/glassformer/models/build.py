"""The only module that builds models. It reads the configuration, so that `forward` methods branch only on None."""

import functools
import math
from dataclasses import replace
from typing import Any, Literal, overload

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from glassformer.common.arguments import takes_other_names
from glassformer.common.errors import UserError
from glassformer.config import transformer as c
from glassformer.config.presets import changed, preset
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.models import heads
from glassformer.models.blocks import BLOCKS, Block, Residual
from glassformer.models.init import init_weights
from glassformer.models.recurrent import RecurrentModel, build_recurrent, init_recurrent_weights
from glassformer.models.stacks import Decoder, Encoder, StackParts
from glassformer.models.transformer import Transformer
from glassformer.nn import layers
from glassformer.nn import positions as p
from glassformer.nn.attention import Attention, HeadSizes, MultiHeadAttention, Projections
from glassformer.nn.experts import Experts, Router

Network = Transformer | RecurrentModel
"""A network that `build_model` returns."""

POOLERS: dict[str, layers.Activation] = {"tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu}
"""Activation of each pooler; the other poolers, "none" and "unused", have no activation."""


@overload
def build_model(
    config: RecurrentConfig | Literal["bahdanau", "luong", "seq2seq"],
    device: str | torch.device = "cpu",
    **changes: Any,
) -> RecurrentModel: ...
@overload
def build_model(
    config: c.TransformerConfig | str, device: str | torch.device = "cpu", **changes: Any
) -> Transformer: ...
@overload
def build_model(config: ModelConfig, device: str | torch.device = "cpu", **changes: Any) -> Network: ...
def build_model(config: ModelConfig | str | None = None, device: str | torch.device = "cpu", **changes: Any) -> Network:
    """Build a freshly initialised model of a configuration, or of a preset by name, with `changes` (`presets.changed`).

    On `device="meta"` the model has shapes but no memory.

    >>> small = c.TransformerConfig(decoder=c.Stack(2, 2, d_ff=32), d_model=8, vocab_size=11, max_len=16)
    >>> build_model(small).n_parameters()
    1976
    >>> build_model("gpt2", n_layers=2, n_heads=4, d_model=32, vocab_size=50, max_len=16).n_parameters()
    27584
    """
    if isinstance(config, str):
        return build_model(preset(config), device, **changes)
    if not isinstance(config, ModelConfig):
        raise UserError(f'config must be a TransformerConfig, or a preset such as "gpt2", not {config!r:.60}')
    config = changed(config, changes)
    if config.vocab_size < 1:
        raise UserError("model.vocab_size is 0 and must be at least 1: set it, or train with a tokenizer that sets it")
    with torch.device(device):
        if torch.device(device).type == "meta":
            return undrawn_model(config)
        if isinstance(config, RecurrentConfig):
            recurrent = build_recurrent(config)
            init_recurrent_weights(recurrent, config)
            return recurrent
        transformer = _transformer(config)
        init_weights(transformer, config)
        return transformer


@takes_other_names
def build_transformer(
    source_vocab_size: int,
    target_vocab_size: int,
    source_max_len: int = 512,
    target_max_len: int = 512,
    d_model: int = 512,
    n_layers: int = 6,
    n_heads: int = 8,
    dropout: float = 0.1,
    d_ff: int = 2048,
) -> Transformer:
    """Build the encoder-decoder of Vaswani (2017), by default in its base size, with a table for each language.

    It is the preset `transformer-base` with these sizes; `build_model` takes all other settings.

    >>> model = build_transformer(90, 80, d_model=16, n_layers=1, n_heads=2, d_ff=32)
    >>> memory = model.encode(torch.tensor([[5, 6, 7]]))
    >>> model.project(model.decode(memory, torch.tensor([[1, 8]]))).shape
    torch.Size([1, 2, 80])
    """
    stack = c.Stack(n_layers, n_heads, d_ff=d_ff)
    sizes: dict[str, Any] = {"vocab_size": target_vocab_size, "source_vocab_size": source_vocab_size}
    sizes |= {"max_len": target_max_len, "source_max_len": source_max_len, "encoder": stack, "decoder": stack}
    sizes |= {"embedding_dropout": dropout, "residual_dropout": dropout, "share_embeddings": False}
    return build_model(replace(preset("transformer-base"), d_model=d_model, tie_output=False, **sizes))


def undrawn_model(config: ModelConfig) -> Network:
    """Build a model whose weights have no values yet; the system gives them memory only when they are written."""
    with _NothingDrawn():
        return build_recurrent(config) if isinstance(config, RecurrentConfig) else _transformer(config)


class _NothingDrawn(TorchFunctionMode):
    """Mode that skips drawing weights, which takes seconds and memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DRAWS:
            return None
        return func(*args, **(kwargs or {}))


DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)
"""Functions with which PyTorch's modules draw their weights."""


def _transformer(config: c.TransformerConfig) -> Transformer:
    encoder = decoder = table = None
    if config.encoder is not None:
        table = nn.Embedding(config.encoder_vocab_size, config.table_width)
        encoder = Encoder(_stack_parts(config, config.encoder, table, config.encoder_max_len, causal=False))
    if config.decoder is not None:
        if table is None or not config.share_embeddings:
            table = nn.Embedding(config.vocab_size, config.table_width)
        cross = config.encoder is not None
        decoder = Decoder(_stack_parts(config, config.decoder, table, config.max_len, causal=True, cross=cross))
    assert table is not None
    return Transformer(config, encoder, decoder, _head(config, table))


def _norm(config: c.TransformerConfig) -> layers.NormFactory:
    if config.norm == "rmsnorm":
        return functools.partial(layers.RMSNorm, eps=config.norm_eps, weight=config.norm_weight)
    has_bias = config.norm_weight and config.norm_bias
    return functools.partial(layers.LayerNorm, eps=config.norm_eps, weight=config.norm_weight, bias=has_bias)


def _stack_parts(
    config: c.TransformerConfig,
    stack: c.Stack,
    table: nn.Embedding,
    n_positions: int,
    causal: bool,
    cross: bool = False,
) -> StackParts:
    norm, width = _norm(config), config.table_width
    # 1. Embeddings: tokens, positions that are added to them, and parts of a pair.
    added, rotaries, score_bias = build_positions(config, stack, n_positions, causal)
    token_types = nn.Embedding(config.n_token_types, width) if config.n_token_types else None
    embeddings = layers.Embeddings(
        layers.EmbeddingTables(table, added, token_types),
        config.d_model,
        norm=norm(width) if config.embedding_norm else None,
        scale=config.embedding_scale or math.sqrt(config.d_model),
        dropout=config.embedding_dropout,
        token_dropout=config.token_dropout,
    )
    # 2. Blocks, and the last norm.
    blocks = [_block(config, stack, cross) for _ in range(stack.n_layers)]
    if blocks and not config.first_norm:
        blocks[0].self_attn_norm = nn.Identity()
    final_norm = norm(config.d_model) if config.final_norm else None
    # 3. Patterns over the blocks: windows, and bases of rotary positions.
    pattern = stack.window_pattern or (0,)
    windows = [pattern[i % len(pattern)] for i in range(stack.n_layers)]
    rotary_of = [-1] * stack.n_layers
    if isinstance(config.positions, c.RotaryPositions):
        numbers = {0.0: -1} | {base: i for i, base in enumerate(rotaries)}
        bases = config.positions.bases
        rotary_of = [numbers[bases[i % len(bases)]] for i in range(stack.n_layers)]
    return StackParts(embeddings, blocks, windows, final_norm, list(rotaries.values()), rotary_of, score_bias)


def build_attention(config: c.TransformerConfig, stack: c.Stack, *, is_self: bool = True) -> Attention:
    """Build the self-attention or cross-attention of a block."""
    widths = config.attention_widths(stack)
    qk_norm = _norm(config) if config.qk_norm else None
    return MultiHeadAttention(
        config.d_model,
        stack.n_heads,
        sizes=HeadSizes(widths.n_kv_heads, widths.d_head),
        projections=Projections(
            qkv_bias=config.qkv_bias,
            fused_qkv=is_self and config.fused_qkv,
            out_bias=config.attn_out_bias,
            qk_norm=qk_norm,
            norms_all_heads=config.qk_norm == "all",
        ),
        scale=config.attention_scale,
        dropout=config.attention_dropout,
        cap=config.score_cap,
    )


def _block(config: c.TransformerConfig, stack: c.Stack, cross: bool) -> Block:
    feed_forward = _feed_forward(config, stack) if stack.d_ff else None
    self_attn = build_attention(config, stack)
    cross_attn = build_attention(config, stack, is_self=False) if cross else None
    residual = Residual(
        _norm(config),
        dropout=config.residual_dropout,
        scale=config.residual_scale,
    )
    return BLOCKS[config.norm_order](config.d_model, self_attn, cross_attn, feed_forward, residual)


def _feed_forward(config: c.TransformerConfig, stack: c.Stack) -> layers.FeedForward | Experts:
    activation = layers.ACTIVATIONS[config.activation]
    options: dict[str, Any] = {"gated": config.gated_ff, "bias": config.ff_bias, "dropout": config.ff_dropout}
    if config.experts is None:
        return layers.FeedForward(config.d_model, stack.d_ff, activation, **options)
    return Experts(_router(config, config.experts), stack.d_ff, activation, **options)


def _router(config: c.TransformerConfig, experts: c.Experts) -> Router:
    loss_weight = bias_rate = 0.0
    match experts.balance:
        case c.BalanceLoss(weight):
            loss_weight = weight / sum(stack.n_layers for stack in config.stacks.values())  # the mean over the layers
        case c.BalanceBias(rate):
            bias_rate = rate
    return Router(config.d_model, experts.n_experts, experts.n_active, experts.normalize, loss_weight, bias_rate)


def build_positions(
    config: c.TransformerConfig, stack: c.Stack, n_positions: int, causal: bool
) -> tuple[nn.Module | None, dict[float, p.Rotary], nn.Module | None]:
    """Build the position modules that act on embeddings, on queries and keys (one per base), and on scores.

    A configuration has at most one of these three kinds; the others are `None` or empty.
    """
    match config.positions:
        case c.SinusoidalPositions(layout, offset, ends_at_base):
            return p.SinusoidalPositions(config.table_width, layout, offset, ends_at_base), {}, None
        case c.LearnedPositions(offset):
            return p.LearnedPositions(n_positions, config.table_width, offset), {}, None
        case c.RotaryPositions() as rotary:
            bases, plain = [base for base in dict.fromkeys(rotary.bases) if base], replace(rotary, scaling=None)
            # the rotary module of each base; only the module of `positions.base` has the scaling
            of_base = {b: rotary if b == rotary.base else replace(plain, base=b) for b in bases}
            d_head = config.attention_widths(stack).d_head
            return None, {base: _rotary(positions, d_head) for base, positions in of_base.items()}, None
        case c.AlibiPositions():
            return None, {}, p.AlibiBias(stack.n_heads)
        case c.RelativePositions(n_buckets, max_distance):
            return None, {}, p.RelativeBias(stack.n_heads, n_buckets, max_distance, bidirectional=not causal)
    return None, {}, None


def _rotary(positions: c.RotaryPositions, d_head: int) -> p.Rotary:
    with torch.device("cpu"):  # on the meta device this takes a second and gives no values
        frequencies, attention_factor = p.rotary_frequencies(positions.base, positions.width(d_head)), 1.0
        match positions.scaling:
            case c.LinearScaling(factor):
                frequencies = p.linear_scaled(frequencies, factor)
            case c.Llama3Scaling(factor, low, high, original):
                frequencies = p.llama3_scaled(frequencies, factor, low, high, original)
            case c.YarnScaling(factor, original, fast, slow, given):
                frequencies, usual = p.yarn_scaled(frequencies, positions.base, factor, original, fast, slow)
                attention_factor = given or usual
            case c.LongRopeScaling(divisors, attention_factor):
                frequencies = frequencies / torch.tensor(divisors)
    return p.Rotary(frequencies.to(torch.empty(0).device), attention_factor)


def _head(config: c.TransformerConfig, table: nn.Embedding) -> nn.Module:
    match config.head:
        case c.PositionHead() | c.SequenceHead() as head if head.n_labels < 1:
            raise UserError(
                f"model.head.n_labels is {head.n_labels} and must be at least 1: set it, or give labelled data"
            )
        case c.PositionHead() as head:
            return heads.PositionLogits(config.d_model, config.n_outputs, _transform(config, head, config.d_model))
        case c.SequenceHead() as head:
            pooler = _pooler(config, head)
            projection = layers.Linear(config.d_model, head.n_labels, bias=head.bias)
            return heads.SequenceLogits(head.pooling, pooler, projection, (head.mean, head.std or 1.0))
        case c.VectorHead() as head:
            return heads.SequenceVector(head.pooling, _pooler(config, head), normalize=head.normalize)
        case head:
            transform = _transform(config, head, config.table_width)
            return heads.TokenLogits(
                config.d_model,
                heads.vocabulary_projection(table, config.table_width, tied=config.tie_output),
                transform=transform,
                bias=head.bias,
                scale=config.logit_scale or config.d_model**-0.5,
                cap=config.logit_cap,
            )


def _transform(
    config: c.TransformerConfig, head: c.TokenHead | c.PositionHead, width: int
) -> heads.TokenTransform | None:
    """Build the layers before an output projection that reads vectors of `width`; None without `head.transform`."""
    if not head.transform:
        return None
    dense = layers.Linear(config.d_model, width, bias=config.head_bias)
    return heads.TokenTransform(dense, layers.ACTIVATIONS[config.activation], _norm(config)(width))


def _pooler(config: c.TransformerConfig, head: c.SequenceHead | c.VectorHead) -> heads.Pooler | None:
    if head.pooler == "none":
        return None
    norm = _norm(config)(config.d_model) if getattr(head, "pooler_norm", False) else None
    return heads.Pooler(
        layers.Linear(config.d_model, config.d_model, bias=config.head_bias), POOLERS.get(head.pooler), norm
    )
