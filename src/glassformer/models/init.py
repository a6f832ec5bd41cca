"""Weight initialisation. Tied tables are one parameter and are drawn once."""

import math

import torch
from torch import Tensor, nn

from glassformer.config.recurrent import RecurrentConfig
from glassformer.config.transformer import FanInInit, Init, NormalInit, TransformerConfig, XavierInit
from glassformer.models.recurrent import RecurrentModel
from glassformer.models.transformer import Transformer
from glassformer.nn.experts import ExpertLinear
from glassformer.nn.single_head_attention import SingleHeadAttention


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


@torch.no_grad()
def init_recurrent_weights(model: RecurrentModel, config: RecurrentConfig) -> None:
    """Draw every parameter uniformly in ± `init_range`; if that is 0, by the kind of the parameter.

    Tables: N(0, 1/d_embedding). Matrices: Xavier (Glorot 2010), but state-to-state matrices orthogonal (Saxe 2014),
    gate by gate. Biases: 0, but 1 for an LSTM's forget gate, so that it keeps its state at first (Jozefowicz 2015).
    """
    if config.init_range:
        for parameter in model.parameters():
            nn.init.uniform_(parameter, -config.init_range, config.init_range)
        return
    tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=1 / math.sqrt(config.d_embedding))
        elif isinstance(module, nn.Linear):
            if module.weight not in tables:
                nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.RNNBase):
            _draw_cells(module)
        elif isinstance(module, SingleHeadAttention) and module.vector is not None:
            nn.init.xavier_uniform_(module.vector[None])


def _draw_cells(module: nn.RNNBase) -> None:
    width = module.hidden_size
    for from_input, from_state, input_bias, state_bias in module.all_weights:
        for gate in from_input.split(width):
            nn.init.xavier_uniform_(gate)
        for gate in from_state.split(width):
            nn.init.orthogonal_(gate)
        input_bias.zero_()
        state_bias.zero_()
        if isinstance(module, nn.LSTM):
            input_bias[width : 2 * width] = 1.0  # gates i, f, g, o; the two biases are added


def residual_projections(model: nn.Module) -> list[nn.Module]:
    """Return the last linear layer of each sublayer, which writes to the residual stream."""
    names = ("out_proj", "down_proj")
    return [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in names]


def _draw_table(weight: Tensor, scheme: Init) -> None:
    if isinstance(scheme, NormalInit):
        nn.init.normal_(weight, std=scheme.std)
    elif isinstance(scheme, FanInInit):
        nn.init.normal_(weight, std=1.0)
    else:
        nn.init.normal_(weight, std=1 / math.sqrt(weight.shape[1]))


def _draw_matrix(weight: Tensor, scheme: Init, is_residual: bool, is_head: bool, n_residual: int) -> None:
    """Draw a matrix `weight` (out, in); the caller splits a fused matrix into queries, keys and values."""
    if isinstance(scheme, XavierInit):
        nn.init.xavier_uniform_(weight)
    elif isinstance(scheme, FanInInit):
        bound = 0.0 if is_residual or is_head else math.sqrt(3 / weight.shape[1])
        weight.uniform_(-bound, bound)
    else:
        std = scheme.std
        if is_residual:
            std *= {"same": 1.0, "scaled": 1 / math.sqrt(max(n_residual, 1)), "zero": 0.0}[scheme.residual]
        nn.init.normal_(weight, std=std)
