"""Outputs and gradients equal those of torch.nn's layers with the same weights, in float64."""

import functools
import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from configs import GPT, Recorder, randomise
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.models.blocks import Block, Inputs, PostNormBlock, PreNormBlock, Residual
from glassformer.models.build import build_model
from glassformer.nn.attention import MultiHeadAttention, Projections
from glassformer.nn.layers import ACTIVATIONS, FeedForward, LayerNorm
from glassformer.nn.masks import Mask
from parity.pairs import Pairs
from tolerances import NETWORK, assert_close

D, HEADS, D_FF, B, T, S = 12, 3, 20, 3, 6, 5
PADDING = torch.arange(T) < torch.tensor([6, 4, 1])[:, None]  # True = a real token
SOURCE_PADDING = torch.arange(S) < torch.tensor([2, 5, 3])[:, None]
CAUSAL_HIDDEN = torch.ones(T, T, dtype=torch.bool).triu(1)  # torch.nn's polarity: True = hidden
MASKS = {
    "none": (Mask(), {}),
    "causal": (Mask(causal=True), {"attn_mask": CAUSAL_HIDDEN}),
    "padding": (Mask(keys=PADDING), {"key_padding_mask": ~PADDING}),
    "both": (
        Mask(causal=True, keys=PADDING),
        {"attn_mask": CAUSAL_HIDDEN, "key_padding_mask": ~PADDING},
    ),
}


@pytest.fixture(autouse=True)
def float64() -> object:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def vectors(*shape: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the same random vectors twice, to collect two gradients."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return x.clone().requires_grad_(), x.clone().requires_grad_()


def close(ours: Tensor, theirs: Tensor) -> None:
    assert_close(ours, theirs, terms=NETWORK)


def assert_equal(ours: Tensor, theirs: Tensor, pairs: Pairs, *inputs: tuple[Tensor, Tensor]) -> None:
    """Compare outputs and the gradients of every parameter and input, for a loss with random weights."""
    close(ours, theirs)
    direction = torch.randn(ours.shape, generator=torch.Generator().manual_seed(99))
    (ours * direction).sum().backward()
    (theirs * direction).sum().backward()
    pairs.assert_equal_gradients()
    for mine, other in inputs:
        assert mine.grad is not None and other.grad is not None
        close(mine.grad, other.grad)


def pair_attention(pairs: Pairs, ours: str, theirs: str) -> None:
    """Pair the matrices: torch.nn has W_q, W_k and W_v in one, or separate if the memory has other widths."""
    mine, other = pairs.ours.get_submodule(ours), pairs.theirs.get_submodule(theirs)
    assert isinstance(mine, MultiHeadAttention) and isinstance(other, nn.MultiheadAttention)
    thirds = [slice(i * other.embed_dim, (i + 1) * other.embed_dim) for i in range(3)]
    if mine.fused_qkv:
        pairs.parameter(mine.qkv_proj.weight, other.in_proj_weight)
        if other.in_proj_bias is not None:
            pairs.parameter(mine.qkv_proj.bias, other.in_proj_bias)
    for name, rows in zip("qkv", [] if mine.fused_qkv else thirds, strict=False):
        projection = mine.get_submodule(f"{name}_proj")
        if other.in_proj_weight is None:
            pairs.parameter(projection.weight, getattr(other, f"{name}_proj_weight"))
        else:
            pairs.parameter(projection.weight, other.in_proj_weight, rows)
        if other.in_proj_bias is not None:
            pairs.parameter(projection.bias, other.in_proj_bias, rows)
    pairs.module(f"{ours}.out_proj".lstrip("."), f"{theirs}.out_proj".lstrip("."))


def pair_layer(pairs: Pairs, ours: str, theirs: str, cross: bool) -> None:
    """Pair a Block with a TransformerEncoderLayer or TransformerDecoderLayer."""
    pair_attention(pairs, f"{ours}self_attn", f"{theirs}self_attn")
    norms = ["self_attn_norm", "ff_norm"]
    if cross:
        pair_attention(pairs, f"{ours}cross_attn", f"{theirs}multihead_attn")
        norms.insert(1, "cross_attn_norm")
    for i, norm in enumerate(norms):
        pairs.module(f"{ours}{norm}", f"{theirs}norm{i + 1}")
    pairs.module(f"{ours}ff.up_proj", f"{theirs}linear1")
    pairs.module(f"{ours}ff.down_proj", f"{theirs}linear2")


def copied(pairs: Pairs) -> Pairs:
    randomise(pairs.theirs)
    pairs.copy()
    return pairs


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("fused_qkv", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_self_attention(mask: str, fused_qkv: bool, bias: bool) -> None:
    ours = MultiHeadAttention(D, HEADS, projections=Projections(qkv_bias=bias, out_bias=bias, fused_qkv=fused_qkv))
    theirs = nn.MultiheadAttention(D, HEADS, bias=bias, batch_first=True)
    pairs = Pairs(ours, theirs)
    pair_attention(pairs, "", "")
    copied(pairs)
    x, x2 = vectors(B, T, D, seed=1)
    our_mask, their_masks = MASKS[mask]
    tap = Recorder()
    in_the_open = ours(x, mask=our_mask, tap=tap)
    expected, weights = theirs(x2, x2, x2, average_attn_weights=False, **their_masks)
    close(in_the_open, expected)
    close(tap.seen["weights"], weights)
    assert_equal(ours(x, mask=our_mask), expected, pairs, (x, x2))


@pytest.mark.parametrize("d_memory", [D, 7])
@pytest.mark.parametrize("padded", [False, True])
def test_cross_attention(d_memory: int, padded: bool) -> None:
    ours = MultiHeadAttention(D, HEADS, projections=Projections(d_memory=d_memory))
    theirs = nn.MultiheadAttention(D, HEADS, kdim=d_memory, vdim=d_memory, batch_first=True)
    pairs = Pairs(ours, theirs)
    pair_attention(pairs, "", "")
    copied(pairs)
    x, x2 = vectors(B, T, D, seed=1)
    memory, memory2 = vectors(B, S, d_memory, seed=2)
    mask = Mask(keys=SOURCE_PADDING) if padded else None
    expected, _ = theirs(x2, memory2, memory2, key_padding_mask=~SOURCE_PADDING if padded else None)
    assert_equal(ours(x, memory, mask=mask), expected, pairs, (x, x2), (memory, memory2))


def block(cross: bool, norm_first: bool, activation: str, bias: bool) -> Block:
    attention = functools.partial(MultiHeadAttention, D, HEADS, projections=Projections(qkv_bias=bias, out_bias=bias))
    return (PreNormBlock if norm_first else PostNormBlock)(
        D,
        self_attn=attention(),
        cross_attn=attention() if cross else None,
        ff=FeedForward(D, D_FF, ACTIVATIONS[activation], bias=bias),
        residual=Residual(functools.partial(LayerNorm, bias=bias)),
    )


LAYER_KINDS = list(itertools.product(MASKS, [False, True], [("relu", True), ("gelu", False)]))


@pytest.mark.parametrize(("mask", "norm_first", "kind"), LAYER_KINDS)
def test_encoder_layer(mask: str, norm_first: bool, kind: tuple[str, bool]) -> None:
    activation, bias = kind
    theirs = nn.TransformerEncoderLayer(
        D, HEADS, D_FF, 0.0, activation, batch_first=True, norm_first=norm_first, bias=bias
    )
    ours = block(False, norm_first, activation, bias)
    pairs = Pairs(ours, theirs)
    pair_layer(pairs, "", "", cross=False)
    copied(pairs)
    x, x2 = vectors(B, T, D, seed=1)
    our_mask, masks = MASKS[mask]
    expected = theirs(x2, masks.get("attn_mask"), masks.get("key_padding_mask"))
    assert_equal(ours(x, Inputs(mask=our_mask)), expected, pairs, (x, x2))


@pytest.mark.parametrize(("mask", "norm_first", "kind"), LAYER_KINDS)
@pytest.mark.parametrize("source_padded", [False, True])
def test_decoder_layer(mask: str, norm_first: bool, kind: tuple[str, bool], source_padded: bool) -> None:
    activation, bias = kind
    theirs = nn.TransformerDecoderLayer(
        D, HEADS, D_FF, 0.0, activation, batch_first=True, norm_first=norm_first, bias=bias
    )
    ours = block(True, norm_first, activation, bias)
    pairs = Pairs(ours, theirs)
    pair_layer(pairs, "", "", cross=True)
    copied(pairs)
    x, x2 = vectors(B, T, D, seed=1)
    memory, memory2 = vectors(B, S, D, seed=2)
    our_mask, masks = MASKS[mask]
    inputs = Inputs(mask=our_mask, memory=memory, memory_mask=Mask(keys=SOURCE_PADDING if source_padded else None))
    expected = theirs(
        x2,
        memory2,
        tgt_mask=masks.get("attn_mask"),
        tgt_key_padding_mask=masks.get("key_padding_mask"),
        memory_key_padding_mask=~SOURCE_PADDING if source_padded else None,
    )
    assert_equal(ours(x, inputs), expected, pairs, (x, x2), (memory, memory2))


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_whole_transformer(norm_first: bool, padded: bool) -> None:
    """nn.Transformer has no embeddings: a tap replaces glassformer's embeddings with its inputs."""
    config = TransformerConfig(
        encoder=Stack(3, HEADS, d_ff=D_FF),
        decoder=Stack(2, HEADS, d_ff=D_FF),
        d_model=D,
        vocab_size=9,
        norm_order="pre" if norm_first else "post",
        activation="relu",
    )
    ours = build_model(config)
    layer = nn.TransformerEncoderLayer(D, HEADS, D_FF, 0.0, batch_first=True, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(D), enable_nested_tensor=False)
    theirs = nn.Transformer(D, HEADS, 3, 2, D_FF, 0.0, "relu", encoder, batch_first=True, norm_first=norm_first)
    pairs = Pairs(ours, theirs, without=("encoder.embeddings.", "decoder.embeddings."))
    for stack, n_layers in (("encoder", 3), ("decoder", 2)):
        for i in range(n_layers):
            pair_layer(pairs, f"{stack}.blocks.{i}.", f"{stack}.layers.{i}.", cross=stack == "decoder")
        pairs.module(f"{stack}.final_norm", f"{stack}.norm")
    copied(pairs)
    source, source2 = vectors(B, S, D, seed=1)
    target, target2 = vectors(B, T, D, seed=2)
    tap = Recorder({"encoder.embeddings": lambda _: source, "decoder.embeddings": lambda _: target})
    hidden = ours.hidden(
        torch.zeros(B, T, dtype=torch.long),
        PADDING if padded else None,
        source_ids=torch.zeros(B, S, dtype=torch.long),
        source_attention_mask=SOURCE_PADDING if padded else None,
        tap=tap,
    )
    expected = theirs(
        source2,
        target2,
        tgt_mask=CAUSAL_HIDDEN,
        src_key_padding_mask=~SOURCE_PADDING if padded else None,
        tgt_key_padding_mask=~PADDING if padded else None,
        memory_key_padding_mask=~SOURCE_PADDING if padded else None,
    )
    assert_equal(hidden, expected, pairs, (source, source2), (target, target2))


class TorchGPT(nn.Module):
    """A decoder-only language model of torch.nn layers: pre-norm, learned positions, tied head."""

    def __init__(self, vocab_size: int, max_len: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, HEADS, D_FF, 0.0, "gelu", batch_first=True, norm_first=True)
        self.tokens, self.positions = nn.Embedding(vocab_size, D), nn.Embedding(max_len, D)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(D), enable_nested_tensor=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.tokens(token_ids) + self.positions(torch.arange(token_ids.shape[1]))
        return F.linear(self.layers(x, CAUSAL_HIDDEN), self.tokens.weight)


def test_gpt_equals_torch_layers() -> None:
    """Compare logits, next-token loss and all gradients; the tied table gets gradients twice."""
    config = replace(GPT, decoder=Stack(2, HEADS, d_ff=D_FF), d_model=D, vocab_size=11, max_len=T)
    ours, theirs = build_model(config), TorchGPT(11, T)
    pairs = Pairs(ours, theirs)
    pairs.module("decoder.embeddings.tokens", "tokens")
    pairs.module("decoder.embeddings.positions.table", "positions")
    pairs.module("decoder.final_norm", "layers.norm")
    for i in range(2):
        pair_layer(pairs, f"decoder.blocks.{i}.", f"layers.layers.{i}.", cross=False)
    copied(pairs)
    token_ids = torch.randint(11, (B, T), generator=torch.Generator().manual_seed(3))
    logits, expected = ours(token_ids), theirs(token_ids)
    close(logits, expected)
    losses = [F.cross_entropy(x[:, :-1].flatten(0, 1), token_ids[:, 1:].flatten()) for x in (logits, expected)]
    close(*losses)
    for loss in losses:
        loss.backward()
    pairs.assert_equal_gradients()
