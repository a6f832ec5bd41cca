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
from glassformer.nn.attention import Attention as Attention
from glassformer.nn.attention import AttentionCost as AttentionCost
from glassformer.nn.attention import HeadSizes as HeadSizes
from glassformer.nn.attention import MultiHeadAttention as MultiHeadAttention
from glassformer.nn.attention import Projections as Projections
from glassformer.nn.attention import Tap as Tap
from glassformer.nn.attention import attention as attention
from glassformer.nn.attention import attention_fused as attention_fused
from glassformer.nn.attention import attention_reference as attention_reference
from glassformer.nn.attention import capped as capped
from glassformer.nn.attention import masked_softmax as masked_softmax
from glassformer.nn.attention import scaled_dot_product_scores as scaled_dot_product_scores
from glassformer.nn.experts import ExpertLinear as ExpertLinear
from glassformer.nn.experts import Experts as Experts
from glassformer.nn.experts import Router as Router
from glassformer.nn.experts import balance_loss as balance_loss
from glassformer.nn.kernels.attention import repeat_kv as repeat_kv
from glassformer.nn.kv_cache import Cache as Cache
from glassformer.nn.kv_cache import LayerCache as LayerCache
from glassformer.nn.kv_cache import Slots as Slots
from glassformer.nn.layers import ACTIVATIONS as ACTIVATIONS
from glassformer.nn.layers import Embeddings as Embeddings
from glassformer.nn.layers import EmbeddingTables as EmbeddingTables
from glassformer.nn.layers import FeedForward as FeedForward
from glassformer.nn.layers import LayerNorm as LayerNorm
from glassformer.nn.layers import Linear as Linear
from glassformer.nn.layers import RMSNorm as RMSNorm
from glassformer.nn.layers import gelu_tanh as gelu_tanh
from glassformer.nn.layers import layer_norm_reference as layer_norm_reference
from glassformer.nn.layers import relu2 as relu2
from glassformer.nn.layers import rms_norm_reference as rms_norm_reference
from glassformer.nn.masks import Mask as Mask
from glassformer.nn.masks import positions_from_mask as positions_from_mask
from glassformer.nn.positions import AlibiBias as AlibiBias
from glassformer.nn.positions import LearnedPositions as LearnedPositions
from glassformer.nn.positions import RelativeBias as RelativeBias
from glassformer.nn.positions import Rotary as Rotary
from glassformer.nn.positions import SinusoidalPositions as SinusoidalPositions
from glassformer.nn.positions import alibi_slopes as alibi_slopes
from glassformer.nn.positions import apply_rotary as apply_rotary
from glassformer.nn.positions import linear_scaled as linear_scaled
from glassformer.nn.positions import llama3_scaled as llama3_scaled
from glassformer.nn.positions import relative_bucket as relative_bucket
from glassformer.nn.positions import rotary_frequencies as rotary_frequencies
from glassformer.nn.positions import sinusoid as sinusoid
from glassformer.nn.positions import yarn_scaled as yarn_scaled
from glassformer.nn.recurrence import SingleHeadAttention as SingleHeadAttention
from glassformer.nn.recurrence import additive_scores as additive_scores
from glassformer.nn.recurrence import gru_step as gru_step
from glassformer.nn.recurrence import lstm_step as lstm_step
from glassformer.nn.recurrence import multiplicative_scores as multiplicative_scores
from glassformer.nn.recurrence import rnn_step as rnn_step

_PARTS = [name for name, part in vars().items() if getattr(part, "__module__", "").startswith(f"{__name__}.")]
__all__ = sorted(["ACTIVATIONS", *_PARTS])


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
