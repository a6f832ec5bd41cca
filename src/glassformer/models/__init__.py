"""Models built from the layers of `nn`: blocks, stacks, heads, networks. `build_model` builds one from a config.

This folder imports only `nn`, `config` and `common`. Begin with `blocks.py`, then `stacks.py` and `transformer.py`.
"""

from glassformer.models.blocks import (
    Block,
    Inputs,
    OutputNormBlock,
    ParallelBlock,
    PostNormBlock,
    PreNormBlock,
    Residual,
    SandwichBlock,
)
from glassformer.models.build import build_model, build_transformer
from glassformer.models.heads import (
    Pooler,
    PositionLogits,
    SequenceLogits,
    SequenceVector,
    TokenLogits,
    TokenTransform,
    pool,
)
from glassformer.models.recurrent import RecurrentModel
from glassformer.models.stacks import Decoder, Encoder
from glassformer.models.state import TransformerState
from glassformer.models.transformer import Transformer
from glassformer.models.transforms import LoraLinear, add_lora, merge_lora

__all__ = [
    "Block",
    "Decoder",
    "Encoder",
    "Inputs",
    "LoraLinear",
    "OutputNormBlock",
    "ParallelBlock",
    "Pooler",
    "PositionLogits",
    "PostNormBlock",
    "PreNormBlock",
    "RecurrentModel",
    "Residual",
    "SandwichBlock",
    "SequenceLogits",
    "SequenceVector",
    "TokenLogits",
    "TokenTransform",
    "Transformer",
    "TransformerState",
    "add_lora",
    "build_model",
    "build_transformer",
    "merge_lora",
    "pool",
]
