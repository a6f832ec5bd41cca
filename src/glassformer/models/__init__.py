"""Models built from the layers of `nn`: blocks, stacks, heads, networks. `build_model` builds one from a config.

This folder imports only `nn`, `config` and `common`. Begin with `blocks.py`, then `stacks.py` and `transformer.py`.
"""

from glassformer.models.blocks import Block as Block
from glassformer.models.blocks import Inputs as Inputs
from glassformer.models.blocks import OutputNormBlock as OutputNormBlock
from glassformer.models.blocks import ParallelBlock as ParallelBlock
from glassformer.models.blocks import PostNormBlock as PostNormBlock
from glassformer.models.blocks import PreNormBlock as PreNormBlock
from glassformer.models.blocks import Residual as Residual
from glassformer.models.blocks import SandwichBlock as SandwichBlock
from glassformer.models.build import build_model as build_model
from glassformer.models.build import build_transformer as build_transformer
from glassformer.models.heads import Pooler as Pooler
from glassformer.models.heads import PositionLogits as PositionLogits
from glassformer.models.heads import SequenceLogits as SequenceLogits
from glassformer.models.heads import SequenceVector as SequenceVector
from glassformer.models.heads import TokenLogits as TokenLogits
from glassformer.models.heads import TokenTransform as TokenTransform
from glassformer.models.heads import pool as pool
from glassformer.models.recurrent import RecurrentModel as RecurrentModel
from glassformer.models.stacks import Decoder as Decoder
from glassformer.models.stacks import Encoder as Encoder
from glassformer.models.state import TransformerState as TransformerState
from glassformer.models.transformer import Transformer as Transformer
from glassformer.models.transforms import LoraLinear as LoraLinear
from glassformer.models.transforms import add_lora as add_lora
from glassformer.models.transforms import merge_lora as merge_lora

__all__ = sorted(name for name, part in vars().items() if getattr(part, "__module__", "").startswith(f"{__name__}."))
