"""A network of ours in CTranslate2's own words: its specification, filled module by module."""

from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.config import transformer as c
from glassformer.interop.compatibility import Compatibility
from glassformer.models.blocks import Block
from glassformer.models.heads import TokenLogits
from glassformer.models.stacks import Decoder, Encoder
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import MultiHeadAttention
from glassformer.nn.positions import RelativeBias, Rotary, rotary_frequencies

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "relu2": "RELU"}
"""Ours → CTranslate2's names. (A squared ReLU is a ReLU that its own input gates: relu(x)² = relu(x) · x.)"""
IN_AN_ENCODER = ("sinusoidal", "learned", "none", "rotary", "relative")
IN_A_DECODER = ("sinusoidal", "learned", "none", "rotary", "alibi")
"""Positions that it computes. (A prompt read at once gets wrong relative biases in a decoder alone; with an encoder,
targets are read token by token.)"""


def misfits(config: c.TransformerConfig) -> list[str]:
    """Why CTranslate2 cannot compute a configuration, sentence by sentence; empty where it can."""
    fit = Compatibility(config)
    for name in ("encoder", "decoder"):
        if getattr(config, name) is not None:
            fit.stack(name, True, "n_kv_heads", "d_head")
        else:
            fit.holds(name)
    known = IN_A_DECODER if config.encoder is None else IN_AN_ENCODER
    positions = config.positions
    fit.check("positions", positions.kind in known, f"model.positions is {positions.kind}, not {' or '.join(known)}")
    if isinstance(positions, c.RotaryPositions):
        fine = positions.fraction == 1 or not isinstance(positions.scaling, c.YarnScaling)
        fit.check("positions", fine, "model.positions.scaling is yarn, which needs a fraction of 1")
    fit.need("norm_order", "pre", "post")
    gated = "model.gated_ff is true, and it must be false where the activation is relu2"
    fit.check("activation", config.activation != "relu2" or not config.gated_ff, gated)
    fit.need("d_embedding", 0, config.d_model)
    fit.need("attn_out_proj", True)
    rms = config.norm == "rmsnorm"
    fit.check("qk_norm", rms or not config.qk_norm, "model.qk_norm is true, which needs norm rmsnorm")
    if config.decoder is not None:
        fit.need("n_token_types", 0)
        head = config.head
        fine = isinstance(head, c.TokenHead) and not head.transform
        fit.check("head", fine, "model.head must be tokens without a transform")
    fit.holds("head", "n_token_types", "d_model", "source_vocab_size", "source_max_len", "share_embeddings")
    fit.holds("tie_output", "norm", "norm_eps", "norm_weight", "norm_bias", "final_norm", "embedding_norm")
    fit.holds("gated_ff", "fused_qkv", "qkv_bias", "attn_out_bias", "ff_bias")
    fit.holds("attention_scale", "scale_embeddings", "scale_logits")
    return fit.done()


def specify(ct2: ModuleType, network: Transformer) -> Any:
    """The specification of a network that fits, with its weights."""
    specs = ct2.specs
    config, encoder, decoder = network.config, network.encoder, network.decoder
    if decoder is None:
        assert encoder is not None
        return specs.TransformerEncoderModelSpec(_encoder(ct2, config, encoder))
    filled = _decoder(ct2, config, decoder, network.output)
    if encoder is None:
        return specs.TransformerDecoderModelSpec(filled)
    return specs.TransformerSpec(_encoder(ct2, config, encoder), filled)


def _encoder(ct2: ModuleType, config: c.TransformerConfig, encoder: Encoder) -> Any:
    assert config.encoder is not None
    types = encoder.embeddings.token_types
    spec = ct2.specs.transformer_spec.TransformerEncoderSpec(
        config.encoder.n_layers,
        num_source_embeddings=1 if types is None else 2,
        embeddings_merge=ct2.specs.EmbeddingsMerge.ADD,
        **_of_both(ct2, config, config.encoder),
    )
    spec.embeddings[0].weight = _array(encoder.embeddings.tokens.weight)
    if types is not None:
        spec.embeddings[1].weight = _array(types.weight)
    _fill_stack(spec, config, encoder, config.encoder_max_len)
    return spec


def _decoder(ct2: ModuleType, config: c.TransformerConfig, decoder: Decoder, output: nn.Module) -> Any:
    assert config.decoder is not None and isinstance(output, TokenLogits)
    stack = config.decoder
    spec = ct2.specs.transformer_spec.TransformerDecoderSpec(
        stack.n_layers,
        with_encoder_attention=config.encoder is not None,
        alibi=isinstance(config.positions, c.AlibiPositions),
        **_of_both(ct2, config, stack),
    )
    spec.embeddings.weight = _array(decoder.embeddings.tokens.weight)
    _fill_stack(spec, config, decoder, config.max_len)
    spec.projection.weight = _array(output.proj.weight)
    if output.bias is not None:
        spec.projection.bias = _array(output.bias)
    if output.scale is not None:
        spec.scale_outputs = output.scale
    return spec


def _of_both(ct2: ModuleType, config: c.TransformerConfig, stack: c.Stack) -> dict[str, Any]:
    """What encoders and decoders are made with. Where the norms are is said afterwards, so that either order may
    have a norm at the end."""
    positions = config.positions
    turned: dict[str, Any] = {}
    if isinstance(positions, c.RotaryPositions):
        d_head = config.attention_widths(stack).d_head
        turned = {"rotary_dim": positions.width(d_head), "rotary_base": positions.base}
        turned["rotary_interleave"] = False
        if positions.scaling is not None:  # the one kind that is given a factor for each frequency
            turned["rotary_scaling_type"] = ct2.specs.RotaryScalingType.Su
    return turned | {
        "num_heads": stack.n_heads,
        "pre_norm": True,
        "no_final_norm": not config.final_norm,
        "activation": ct2.specs.Activation[ACTIVATIONS[config.activation]],
        "layernorm_embedding": config.embedding_norm,
        "relative_attention_bias": isinstance(config.positions, c.RelativePositions),
        "ffn_glu": config.gated_ff or config.activation == "relu2",
        "rms_norm": config.norm == "rmsnorm",
        "num_heads_kv": stack.n_kv_heads or None,
        "head_dim": stack.d_head or None,
        "qk_norm": config.qk_norm,
    }


def _fill_stack(spec: Any, config: c.TransformerConfig, stack: Encoder | Decoder, n_positions: int) -> None:
    spec.pre_norm = config.norm_order == "pre"
    spec.scale_embeddings = config.scale_embeddings
    if hasattr(spec, "position_encodings") and stack.rotary is None:
        positions = stack.embeddings.positions
        at = torch.arange(n_positions)
        none = torch.zeros(n_positions, config.d_model)
        spec.position_encodings.encodings = _array(none if positions is None else positions(at))
    if stack.embeddings.norm is not None:
        _fill_norm(spec.layernorm_embedding, stack.embeddings.norm, config.d_model)
    if stack.final_norm is not None:
        _fill_norm(spec.layer_norm, stack.final_norm, config.d_model)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, Block) and block.ff is not None
        _fill_attention(layer.self_attention, block.self_attn, block.self_attn_norm, config.d_model)
        if isinstance(stack.rotary, Rotary):
            _scale_rotary(layer.self_attention, stack.rotary)
        if isinstance(stack.score_bias, RelativeBias):
            layer.self_attention.relative_attention_bias = _array(stack.score_bias.table.weight)
            layer.self_attention.relative_attention_max_distance = np.int32(stack.score_bias.max_distance)
        if block.cross_attn is not None and block.cross_attn_norm is not None:
            _fill_attention(layer.attention, block.cross_attn, block.cross_attn_norm, config.d_model, cross=True)
        _fill_norm(layer.ffn.layer_norm, block.ff_norm, config.d_model)
        _fill_linear(layer.ffn.linear_0, block.ff.gate_proj or block.ff.up_proj)
        if hasattr(layer.ffn, "linear_0_noact"):
            _fill_linear(layer.ffn.linear_0_noact, block.ff.up_proj)
        _fill_linear(layer.ffn.linear_1, block.ff.down_proj)


def _scale_rotary(spec: Any, rotary: Rotary) -> None:
    """What each frequency is divided by; what multiplies queries and keys goes into the scale of their products."""
    spec.queries_scale *= rotary.attention_factor**2
    if hasattr(spec, "rotary_scaling_long_factor"):
        plain = rotary_frequencies(float(spec.rotary_base), 2 * len(rotary.inverse_frequencies))
        factors = _array(plain / rotary.inverse_frequencies)
        spec.rotary_scaling_long_factor = spec.rotary_scaling_short_factor = factors


def _fill_attention(
    spec: Any, attention: MultiHeadAttention, norm: nn.Module, d_model: int, cross: bool = False
) -> None:
    _fill_norm(spec.layer_norm, norm, d_model)
    spec.queries_scale = attention.scale
    if attention.q_norm is not None:
        _fill_norm(spec.q_norm, attention.q_norm, attention.d_head)
        _fill_norm(spec.k_norm, attention.k_norm, attention.d_head)
    if attention.fused_qkv:
        _fill_linear(spec.linear[0], attention.qkv_proj)
    elif cross:
        _fill_linear(spec.linear[0], attention.q_proj)
        _fill_linear(spec.linear[1], attention.k_proj, attention.v_proj)
    else:
        _fill_linear(spec.linear[0], attention.q_proj, attention.k_proj, attention.v_proj)
    _fill_linear(spec.linear[-1], attention.out_proj)


def _fill_linear(spec: Any, *linears: nn.Linear | None) -> None:
    """One linear of theirs from several of ours, row by row."""
    parts = [linear for linear in linears if linear is not None]
    spec.weight = _array(torch.cat([linear.weight for linear in parts]))
    biases: list[Tensor] = [linear.bias for linear in parts if linear.bias is not None]
    if biases:
        spec.bias = _array(torch.cat(biases))


def _fill_norm(spec: Any, norm: Any, width: int) -> None:
    spec.gamma = _array(torch.ones(width) if norm.weight is None else norm.weight)
    if hasattr(spec, "beta"):
        bias = getattr(norm, "bias", None)
        spec.beta = _array(torch.zeros(width) if bias is None else bias)


def _array(x: Tensor) -> Any:
    return x.detach().float().cpu().contiguous().numpy()
