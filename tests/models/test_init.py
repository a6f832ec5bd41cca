"""Initialisation: the statistics of each scheme, with biases 0 and norms 1 in every scheme."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from configs import CONFIGS
from glassformer.config.transformer import FanInInit, Init, NormalInit, Stack, TransformerConfig, XavierInit
from glassformer.models.build import build_model
from glassformer.models.init import residual_projections
from glassformer.models.transformer import Transformer
from tolerances import sampled, within

WIDE = TransformerConfig(
    decoder=Stack(3, 4, n_kv_heads=2, d_ff=192),
    d_model=96,
    vocab_size=200,
    max_len=64,
    tie_output=False,
    fused_qkv=True,
    gated_ff=True,
)
RESIDUAL = ("out_proj", "down_proj")


def built(scheme: Init) -> Transformer:
    torch.manual_seed(0)
    return build_model(replace(WIDE, init=scheme))


def std(x: Tensor) -> float:
    return x.detach().std().item()


def linears(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    return [(name.rsplit(".", 1)[-1], m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize(("residual", "factor"), [("same", 1.0), ("scaled", (2 * 3) ** -0.5), ("zero", 0.0)])
def test_normal_initialisation(residual: str, factor: float) -> None:
    """3 blocks of 2 sublayers: 6 projections write to the residual stream."""
    model = built(NormalInit(0.05, residual))  # type: ignore[arg-type]
    for name, module in linears(model):
        expected = 0.05 * (factor if name in RESIDUAL else 1)
        assert std(module.weight) == sampled(expected, module.weight.numel()), name
        assert abs(module.weight.mean().item()) < 0.002
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            assert std(module.weight) == sampled(0.05, module.weight.numel())


def test_xavier_draws_each_part_of_a_fused_matrix_separately() -> None:
    model = built(XavierInit())
    for name, module in linears(model):
        parts = module.weight.split([96, 48, 48]) if name == "qkv_proj" else [module.weight]
        for part in parts:
            bound = math.sqrt(6 / sum(part.shape))
            assert part.abs().max() <= bound
            assert std(part) == sampled(bound / math.sqrt(3), part.numel()), name
    table = model.decoder.embeddings.tokens.weight
    assert std(table) == sampled(96**-0.5, table.numel())


def test_fan_in_initialisation() -> None:
    model = built(FanInInit())
    for name, module in linears(model):
        expected = 0.0 if name in (*RESIDUAL, "proj") else module.in_features**-0.5
        assert std(module.weight) == sampled(expected, module.weight.numel()), name
    table = model.decoder.embeddings.tokens.weight
    assert std(table) == sampled(1.0, table.numel())


def test_a_zero_head_does_not_change_a_tied_table() -> None:
    torch.manual_seed(0)
    model = build_model(replace(WIDE, tie_output=True, init=FanInInit()))
    assert std(model.output.proj.weight) == sampled(1.0, model.output.proj.weight.numel())


@pytest.mark.parametrize("name", CONFIGS)
def test_biases_start_at_zero_and_norms_at_one(name: str) -> None:
    for path, parameter in build_model(CONFIGS[name]).named_parameters():
        if path.endswith("bias"):
            assert not parameter.any(), path
        elif parameter.dim() == 1:
            assert bool((parameter == 1).all()), path


def test_every_sublayer_has_a_residual_projection() -> None:
    assert len(residual_projections(build_model(CONFIGS["paper"]))) == 2 * 2 + 2 * 3
    assert len(residual_projections(build_model(CONFIGS["attention_only"]))) == 2


def test_a_seed_determines_every_weight() -> None:
    models = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        models.append(build_model(CONFIGS["paper"]))
    first, same, other = ([p.detach() for p in m.parameters()] for m in models)
    assert all(torch.equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_initial_loss_is_near_ln_v() -> None:
    """No token is more likely than others before training."""
    for scheme in (NormalInit(), FanInInit()):
        logits = built(scheme)(torch.randint(200, (4, 32)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), torch.randint(200, (4 * 32,)))
        assert loss.item() == within(math.log(200), 0.2)
