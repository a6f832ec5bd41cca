"""Layers, positions, masks and attention functions, as in the papers; they take plain arguments, not configurations.

`nn` needs only torch, and imports only `common`. `kernels/` has the fast paths. Begin with `attention.py`. Layers take
their arguments by the names of other libraries, too (`num_heads`), and `OTHER_NAMES` has other names of the layers.

>>> import torch
>>> from glassformer.nn import FeedForward, Mask, MultiHeadAttention
>>> x = torch.zeros(2, 5, 16)  # (B, T, D)
>>> attention = MultiHeadAttention(16, n_heads=4)
>>> attention(x, mask=Mask(causal=True)).shape, FeedForward(16, 64)(x).shape
(torch.Size([2, 5, 16]), torch.Size([2, 5, 16]))

Letters in the docstrings: B batch, T query length, S key length, D d_model, H heads, G key-value heads, K key width.
"""

from functools import partial
from typing import Any

import torch

from glassformer.common.arguments import takes_other_names
from glassformer.common.errors import nearest_name, no_member
from glassformer.nn.attention import (
    Attention,
    AttentionCost,
    HeadSizes,
    MultiHeadAttention,
    Projections,
    Tap,
    attention,
    attention_fused,
    attention_reference,
    capped,
    masked_softmax,
    scaled_dot_product_scores,
)
from glassformer.nn.experts import ExpertLinear, Experts, Router, balance_loss
from glassformer.nn.kernels.attention import repeat_kv
from glassformer.nn.kv_cache import Cache, LayerCache, Slots
from glassformer.nn.layers import (
    ACTIVATIONS,
    Embeddings,
    EmbeddingTables,
    FeedForward,
    LayerNorm,
    Linear,
    RMSNorm,
    gelu_tanh,
    layer_norm_reference,
    relu2,
    rms_norm_reference,
)
from glassformer.nn.masks import Mask, positions_from_mask
from glassformer.nn.positions import (
    AlibiBias,
    LearnedPositions,
    RelativeBias,
    Rotary,
    SinusoidalPositions,
    alibi_slopes,
    apply_rotary,
    linear_scaled,
    llama3_scaled,
    relative_bucket,
    rotary_frequencies,
    sinusoid,
    yarn_scaled,
)
from glassformer.nn.recurrence import (
    SingleHeadAttention,
    additive_scores,
    gru_step,
    lstm_step,
    multiplicative_scores,
    rnn_step,
)

__all__ = [
    "ACTIVATIONS",
    "AlibiBias",
    "Attention",
    "AttentionCost",
    "Cache",
    "EmbeddingTables",
    "Embeddings",
    "ExpertLinear",
    "Experts",
    "FeedForward",
    "HeadSizes",
    "LayerCache",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "Mask",
    "MultiHeadAttention",
    "Projections",
    "RMSNorm",
    "RelativeBias",
    "Rotary",
    "Router",
    "SingleHeadAttention",
    "SinusoidalPositions",
    "Slots",
    "Tap",
    "additive_scores",
    "alibi_slopes",
    "apply_rotary",
    "attention",
    "attention_fused",
    "attention_reference",
    "balance_loss",
    "capped",
    "gelu_tanh",
    "gru_step",
    "layer_norm_reference",
    "linear_scaled",
    "llama3_scaled",
    "lstm_step",
    "masked_softmax",
    "multiplicative_scores",
    "positions_from_mask",
    "relative_bucket",
    "relu2",
    "repeat_kv",
    "rms_norm_reference",
    "rnn_step",
    "rotary_frequencies",
    "scaled_dot_product_scores",
    "sinusoid",
    "yarn_scaled",
]


@takes_other_names
def _positional_encoding(
    d_model: int, max_len: int = 5000, dropout: float = 0.0, sinusoidal: bool = True
) -> torch.nn.Module:
    """Return a module that adds positions to embeddings, with dropout after it; dropout may come before `max_len`."""
    if isinstance(max_len, float):
        max_len, dropout = int(dropout) if dropout >= 1 else 5000, max_len
    positions = SinusoidalPositions(d_model) if sinusoidal else LearnedPositions(max_len, d_model)
    return torch.nn.Sequential(positions, torch.nn.Dropout(dropout))


@takes_other_names
def _input_embeddings(d_model: int, vocab_size: int) -> Embeddings:
    """Return token embeddings, multiplied by √d_model (Vaswani 2017, section 3.4)."""
    return Embeddings(EmbeddingTables(torch.nn.Embedding(vocab_size, d_model)), d_model, scale=d_model**0.5)


@takes_other_names
def _causal_mask(n: int) -> torch.Tensor:
    """Return (n, n), True where a query may attend: its own position and earlier ones."""
    return Mask(causal=True).dense(n, n)[0, 0]


def _padding_mask(token_ids: torch.Tensor, pad_id: int = 0) -> torch.Tensor:
    """Return (B, T), True at a real token."""
    return token_ids != pad_id


_SAME: dict[str, Any] = {
    "causal_mask subsequent_mask create_causal_mask look_ahead_mask create_look_ahead_mask": _causal_mask,
    "padding_mask create_padding_mask make_pad_mask": _padding_mask,
    "MultiheadAttention MultiHeadAttentionBlock MultiHeadSelfAttention MHA SelfAttention": MultiHeadAttention,
    "scaled_dot_product_attention dot_product_attention self_attention": attention,
    "BahdanauAttention AdditiveAttention": partial(SingleHeadAttention, score="additive"),
    "LuongAttention MultiplicativeAttention": partial(SingleHeadAttention, score="general"),
    "DotProductAttention DotProductAttentionLayer": partial(SingleHeadAttention, score="scaled_dot"),
    "PositionalEncoding SinusoidalPositionalEncoding": _positional_encoding,
    "InputEmbeddings": _input_embeddings,
    "LearnedPositionalEncoding PositionalEmbedding PositionEmbedding": LearnedPositions,
    "positional_encoding position_encode sinusoidal_encoding get_positional_encoding": sinusoid,
    "LayerNormalization": LayerNorm,
    "layer_norm layer_normalization": layer_norm_reference,
    "PositionwiseFeedForward PositionWiseFeedForward FeedForwardBlock MLP FFN": FeedForward,
}
OTHER_NAMES = {name: layer for names, layer in _SAME.items() for name in names.split()}
"""Layers and functions by their names in other libraries and in teaching notebooks."""
_INSTEAD = {
    "TransformerBlock EncoderBlock DecoderBlock Block EncoderLayer DecoderLayer": "glassformer.TransformerBlock",
    "TokenEmbedding Embedding": "InputEmbeddings(d_model=…, vocab_size=…)",
    "SwiGLU GEGLU GatedFeedForward": "FeedForward(d_model, d_ff, 'silu', gated=True)",
    "ProjectionLayer Generator LMHead": "Linear(d_model, vocab_size)",
    "Encoder Decoder Transformer GPT BERT TransformerEncoder TransformerDecoder": "glassformer.build_model",
    "CausalSelfAttention MaskedMultiHeadAttention MaskedSelfAttention": "MultiHeadAttention, mask=Mask(causal=True)",
    "SelfAttentionHead AttentionHead Head": "MultiHeadAttention(d_model, 1)",
    "ScaledDotProductAttention": "attention(q, k, v, mask)",
    "ResidualConnection AddNorm SublayerConnection": "models.Residual",
}


def __getattr__(name: str) -> Any:
    if name in OTHER_NAMES:
        return OTHER_NAMES[name]
    near = next((instead for names, instead in _INSTEAD.items() if name in names.split()), None)
    near = near or nearest_name(name, __all__, cutoff=0.7)
    raise no_member("glassformer.nn", name, near)
