"""Parameter counts of the network that `models/build.py` makes on the meta device, which stores no values."""

import functools
from dataclasses import dataclass, replace

from torch import nn

from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import SPECIAL_IDS, PositionHead, SequenceHead, TransformerConfig
from glassformer.models.build import Network, build_model
from glassformer.models.transformer import Transformer
from glassformer.nn.experts import Experts

EMBEDDINGS = ("embeddings", "tokens")
"""Names of the embedding module of a stack: `embeddings` in a Transformer, `tokens` in a recurrent model."""


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of trained parameters by part; a tied table counts once."""

    embeddings: int
    """Tables of tokens, positions and types, with their norms and projections."""
    layers: int
    """Parameters of blocks or recurrent layers, and of final norms, score biases, bridge and recurrent attention."""
    head: int
    """Parameters of the head, without a tied table."""
    largest_layer: int
    """Parameters of the largest block; equal to `layers` for a recurrent model, which is not split."""
    matrices: int
    """Weights that Muon updates: matrices of blocks, of recurrent layers and of the bridge."""
    inactive: int = 0
    """Parameters of the experts that do not read a given token."""

    @property
    def total(self) -> int:
        return self.embeddings + self.layers + self.head

    @property
    def active(self) -> int:
        """Parameters that a token uses."""
        return self.total - self.inactive

    @property
    def outside(self) -> int:
        """Parameters outside of the layers."""
        return self.embeddings + self.head


def with_least_sizes(config: ModelConfig) -> ModelConfig:
    """Return `config` with minimal sizes where the data decides them: the vocabulary and the number of labels.

    The smallest vocabulary is the one that contains all special ids. The smallest number of labels is 1.

    >>> from glassformer.config.transformer import Stack
    >>> with_least_sizes(TransformerConfig(decoder=Stack(), pad_id=3)).vocab_size
    4
    """
    ids = [getattr(config, name) for name in SPECIAL_IDS if getattr(config, name) is not None]
    config = replace(config, vocab_size=config.vocab_size or 1 + max(ids, default=0))
    if isinstance(config, TransformerConfig) and isinstance(config.head, PositionHead | SequenceHead):
        config = replace(config, head=replace(config.head, n_labels=config.head.n_labels or 1))
    return config


@functools.lru_cache(maxsize=64)
def parameter_counts(config: ModelConfig) -> ParameterCounts:
    """Count the trained parameters of the network that `build_model` makes from `with_least_sizes` of `config`.

    Raises `UserError` for a tensor that PyTorch cannot represent.

    >>> from glassformer.config.transformer import Stack
    >>> small = TransformerConfig(decoder=Stack(2, 2, d_ff=32), d_model=8, vocab_size=11, max_len=16)
    >>> counts = parameter_counts(small)
    >>> counts.embeddings, counts.layers, counts.head, counts.total
    (216, 1760, 0, 1976)
    """
    try:
        network = build_model(with_least_sizes(config), "meta")
    except RuntimeError as error:
        raise UserError("a tensor of this model has too many elements for PyTorch: use a smaller model") from error
    n = {"embeddings": 0, "layers": 0, "head": 0}
    for name, parameter in network.named_parameters():  # a tied table counts under its first name, in the embeddings
        stack, module, *_ = *name.split("."), ""
        if stack == "output":
            n["head"] += parameter.numel()
        elif module in EMBEDDINGS:
            n["embeddings"] += parameter.numel()
        else:
            n["layers"] += parameter.numel()
    layers = [module for module in network.modules() if isinstance(module, nn.ModuleList | nn.RNNBase)]
    matrices = {p for layer in layers for p in layer.parameters() if p.ndim == 2}
    return ParameterCounts(
        **n,
        largest_layer=_largest_layer(network, n["layers"]),
        matrices=sum(p.numel() for p in matrices),
        inactive=_inactive(network),
    )


def _inactive(network: nn.Module) -> int:
    layers = [module for module in network.modules() if isinstance(module, Experts)]
    inactive = 0
    for layer in layers:
        n_of_experts = sum(p.numel() for p in layer.parameters()) - layer.router.proj.weight.numel()
        n_experts = layer.router.n_experts
        inactive += n_of_experts // n_experts * (n_experts - layer.router.n_active)
    return inactive


def _largest_layer(network: Network, n_layers: int) -> int:
    if not isinstance(network, Transformer):
        return n_layers
    stacks = [stack for stack in (network.encoder, network.decoder) if stack is not None]
    blocks = [block for stack in stacks for block in stack.blocks]
    return max((sum(p.numel() for p in block.parameters()) for block in blocks), default=0)
