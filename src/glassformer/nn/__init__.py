"""Layers, positions, masks and attention functions, as in the papers; they take plain arguments, not configurations.

`nn` imports nothing else of glassformer. `kernels/` has the fast paths. Begin with `attention.py`.

>>> import torch
>>> from glassformer.nn import FeedForward, Mask, MultiHeadAttention
>>> x = torch.zeros(2, 5, 16)  # (B, T, D)
>>> attention = MultiHeadAttention(16, n_heads=4)
>>> attention(x, mask=Mask(causal=True)).shape, FeedForward(16, 64)(x).shape
(torch.Size([2, 5, 16]), torch.Size([2, 5, 16]))

Letters in the docstrings: B batch, T query length, S key length, D d_model, H heads, G key-value heads, K key width.
"""

from glassformer.nn.attention import (
    Attention,
    AttentionCost,
    HeadSizes,
    MultiHeadAttention,
    Projections,
    Tap,
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
