"""How weights start. Tied tables are one parameter, and are drawn once."""

import math

import torch
from torch import Tensor, nn

from glassformer.config import FanInInit, Init, NormalInit, TransformerConfig, XavierInit
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import MultiHeadAttention


@torch.no_grad()
def init_weights(model: Transformer, config: TransformerConfig) -> None:
    """Draws every weight by `config.init`, from PyTorch's global generator; biases 0, norms 1.

    Which matrices write to the residual stream is a matter of structure: each block's `out_proj` and `down_proj`.
    """
    scheme = config.init
    drawn: set[Tensor] = set()
    tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    residual = residual_projections(model)
    parts: dict[nn.Module, tuple[int, ...]] = {
        m.qkv_proj: m.split_sizes for m in model.modules() if isinstance(m, MultiHeadAttention) and m.fused_qkv
    }
    for module in model.modules():
        if not isinstance(module, (nn.Linear, nn.Embedding)) or module.weight in drawn:
            continue
        drawn.add(module.weight)
        is_head = module is getattr(model.output, "proj", None)
        if module.weight in tables:
            _draw_table(module.weight, scheme)
        else:
            for part in module.weight.split(list(parts.get(module, (len(module.weight),)))):
                _draw_matrix(part, scheme, module in residual, is_head, n_residual=len(residual))
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()


def residual_projections(model: nn.Module) -> list[nn.Module]:
    """The linear layers that write to the residual stream: the last of each sublayer."""
    names = ("out_proj", "down_proj")
    return [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in names and m is not None]


def _draw_table(weight: Tensor, scheme: Init) -> None:
    if isinstance(scheme, NormalInit):
        nn.init.normal_(weight, std=scheme.std)
    elif isinstance(scheme, FanInInit):
        nn.init.normal_(weight, std=scheme.embedding_std)
    else:
        nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))


def _draw_matrix(weight: Tensor, scheme: Init, is_residual: bool, is_head: bool, n_residual: int) -> None:
    """`weight` (out, in); queries, keys and values in one fused matrix come one after another."""
    if isinstance(scheme, XavierInit):
        nn.init.xavier_uniform_(weight)
    elif isinstance(scheme, FanInInit):
        zero = (is_residual and scheme.residual == "zero") or (is_head and scheme.head == "zero")
        bound = 0.0 if zero else math.sqrt(3 / weight.shape[1])
        weight.uniform_(-bound, bound)
    else:
        scale = {"same": 1.0, "scaled": 1 / math.sqrt(max(n_residual, 1)), "zero": 0.0}[scheme.residual]
        nn.init.normal_(weight, std=scheme.std * (scale if is_residual else 1.0))
