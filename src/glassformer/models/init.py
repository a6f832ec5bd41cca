"""Weight initialisation. Tied tables are one parameter and are drawn once."""

import math

import torch
from torch import Tensor, nn

from glassformer.config.transformer import FanInInit, Init, NormalInit, TransformerConfig, XavierInit
from glassformer.models.transformer import Transformer
from glassformer.nn.experts import ExpertLinear


@torch.no_grad()
def init_weights(model: Transformer, config: TransformerConfig) -> None:
    """Draw every weight by `config.init` with PyTorch's global generator; biases are 0 and norms 1.

    The structure defines which matrices write to the residual stream: `out_proj` and `down_proj` of each block.
    """
    scheme = config.init
    drawn: set[Tensor] = set()
    tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    residual = residual_projections(model)
    for module in model.modules():
        if not isinstance(module, (nn.Linear, ExpertLinear, nn.Embedding)) or module.weight in drawn:
            continue
        drawn.add(module.weight)
        is_head = module is getattr(model.output, "proj", None)
        if module.weight in tables:
            _draw_table(module.weight, scheme)
        else:
            parts = getattr(module, "parts", ()) or (len(module.weight),)
            for part in module.weight.split(parts):
                _draw_matrix(part, scheme, module in residual, is_head, n_residual=len(residual))
        if not isinstance(module, nn.Embedding) and module.bias is not None:
            module.bias.zero_()


def residual_projections(model: nn.Module) -> list[nn.Module]:
    """Return the last linear layer of each sublayer, which writes to the residual stream."""
    return [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in ("out_proj", "down_proj")]


def _draw_table(weight: Tensor, scheme: Init) -> None:
    std = 1 / math.sqrt(weight.shape[1])
    match scheme:
        case NormalInit():
            std = scheme.std
        case FanInInit():
            std = 1.0
    nn.init.normal_(weight, std=std)


def _draw_matrix(weight: Tensor, scheme: Init, is_residual: bool, is_head: bool, n_residual: int) -> None:
    """Draw a matrix `weight` (out, in); the caller splits a fused matrix into queries, keys and values."""
    match scheme:
        case XavierInit():
            nn.init.xavier_uniform_(weight)
        case FanInInit():
            bound = 0.0 if is_residual or is_head else math.sqrt(3 / weight.shape[1])
            weight.uniform_(-bound, bound)
        case NormalInit():
            std = scheme.std
            if is_residual:
                std *= {"same": 1.0, "scaled": 1 / math.sqrt(max(n_residual, 1)), "zero": 0.0}[scheme.residual]
            nn.init.normal_(weight, std=std)
