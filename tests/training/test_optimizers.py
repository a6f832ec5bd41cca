import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from glassformer.common.errors import UserError
from glassformer.config.train import AdamConfig, AdamWConfig, MuonConfig, OptimizerConfig
from glassformer.nn.kernels import processor
from glassformer.training.optimizers import muon as muon_module
from glassformer.training.optimizers.build import (
    build_optimizer,
    load_state_tensors,
    parameter_groups,
    set_learning_rates,
    state_tensors,
)
from glassformer.training.optimizers.muon import Muon, hidden_matrices, newton_schulz_reference, orthogonalize
from tolerances import assert_close

CONFIGS: list[OptimizerConfig] = [
    AdamConfig(weight_decay=0.01),
    AdamWConfig(),
    MuonConfig(weight_decay=0.1, adamw_weight_decay=0.1),
]
SHAPES = [(8, 8), (8, 24), (24, 8), (8, 8), (16, 5), (1, 8), (8, 1), (24, 8)]


class TinyBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up_proj = nn.Linear(width, 2 * width)
        self.down_proj = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down_proj(torch.tanh(self.up_proj(self.norm(x))))


class TinyModel(nn.Module):
    """A model with meaningless names, so that only the module types identify the parameters."""

    def __init__(self, tied: bool = False, width: int = 8) -> None:
        super().__init__()
        self.a = nn.Embedding(11, 6)
        self.b = nn.Embedding(5, width)
        self.c = nn.Linear(6, width, bias=False)
        self.d = nn.ModuleList(TinyBlock(width) for _ in range(2))
        self.e = nn.RMSNorm(width)
        self.f = nn.Linear(width, 6)
        self.g = nn.Linear(6, 11)
        if tied:
            self.g.weight = self.a.weight

    def forward(self, token_ids: Tensor) -> Tensor:
        x = self.c(self.a(token_ids)) + self.b(torch.arange(token_ids.shape[1]))
        for block in self.d:
            x = block(x)
        return self.g(self.f(self.e(x)))


BLOCK_MATRICES = {f"d.{i}.{name}.weight" for i in range(2) for name in ("up_proj", "down_proj")}


def tiny_model(tied: bool = False) -> TinyModel:
    torch.manual_seed(0)
    return TinyModel(tied)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        set_learning_rates(optimizer, 1 / (1 + step))
        generator = torch.Generator().manual_seed(step)
        token_ids = torch.randint(0, 11, (4, 5), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(token_ids).flatten(0, 1), token_ids.flatten()).backward()
        optimizer.step()


def names_of_groups(optimizer: torch.optim.Optimizer) -> list[set[str]]:
    return [set(group["param_names"]) for group in optimizer.param_groups]


# Weight decay


@pytest.mark.parametrize("tied", [False, True])
def test_pitfall_25_no_decay_on_norms_biases_embeddings(tied: bool) -> None:
    matrices = BLOCK_MATRICES | {"c.weight", "f.weight"} | (set() if tied else {"g.weight"})
    model = tiny_model(tied)
    decayed, kept = parameter_groups(model, AdamWConfig(weight_decay=0.25))
    assert {name for name, _ in decayed["params"]} == matrices
    assert {name for name, _ in kept["params"]} == {n for n, _ in model.named_parameters()} - matrices
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.25, 0.0)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_pitfall_25_a_step_without_gradient_decays_matrices_only(kind: str, tied: bool) -> None:
    # Without gradient, a step only applies the decay.
    rates = {"adamw_learning_rate": 0.1, "adamw_weight_decay": 0.5}
    adamw, muon = AdamWConfig(learning_rate=0.1, weight_decay=0.5), MuonConfig(0.1, weight_decay=0.5, **rates)
    configs = {"adamw": adamw, "muon": muon}
    model = tiny_model(tied)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    build_optimizer(model, configs[kind]).step()
    shrunk = BLOCK_MATRICES | {"c.weight", "f.weight"} | (set() if tied else {"g.weight"})
    for name, parameter in model.named_parameters():
        factor = 1 - 0.1 * 0.5 if name in shrunk else 1.0
        assert_close(parameter.detach(), factor * before[name])


def test_decay_of_embeddings_equals_the_rule_by_dimension() -> None:
    model = tiny_model(tied=True)
    decayed, kept = parameter_groups(model, AdamWConfig(decay="matrices_and_embeddings"))
    by_dimension = {name for name, parameter in model.named_parameters() if parameter.dim() >= 2}
    assert {name for name, _ in decayed["params"]} == by_dimension
    assert all(parameter.dim() < 2 for _, parameter in kept["params"])


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("tied", [False, True])
def test_every_trained_parameter_is_updated_once(config: OptimizerConfig, tied: bool) -> None:
    model = tiny_model(tied)
    model.c.weight.requires_grad_(False)
    stepped = [p for group in build_optimizer(model, config).param_groups for p in group["params"]]
    assert len(stepped) == len({id(p) for p in stepped})
    assert {id(p) for p in stepped} == {id(p) for p in model.parameters() if p.requires_grad}


def test_an_empty_group_is_left_out() -> None:
    (group,) = parameter_groups(nn.Linear(2, 2, bias=False), AdamWConfig(weight_decay=0.3))
    assert group["weight_decay"] == 0.3


def test_rates_follow_the_peak_of_each_group() -> None:
    config = MuonConfig(learning_rate=0.02, adamw_learning_rate=0.004)
    optimizer = build_optimizer(tiny_model(), config)
    for factor in (0.5, 0.25):
        set_learning_rates(optimizer, factor)
        assert [group["lr"] for group in optimizer.param_groups] == [0.02 * factor, *[0.004 * factor] * 2]


@pytest.mark.parametrize(("config", "kind"), [(AdamConfig, torch.optim.Adam), (AdamWConfig, torch.optim.AdamW)])
def test_adam_and_adamw_are_torchs_fused_optimizers(
    config: type[AdamConfig | AdamWConfig], kind: type[torch.optim.Optimizer]
) -> None:
    optimizer = build_optimizer(tiny_model(), config(learning_rate=0.5, betas=(0.7, 0.8), eps=1e-3))
    assert type(optimizer) is kind
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"], group["fused"]) == (0.5, (0.7, 0.8), 1e-3, True)


# Newton-Schulz


def random_matrices(shapes: list[tuple[int, int]], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


@pytest.mark.parametrize("ns_steps", [1, 5])
def test_stacked_matrices_equal_the_reference(ns_steps: int) -> None:
    matrices = random_matrices(SHAPES)
    for matrix, result in zip(matrices, orthogonalize(matrices, ns_steps), strict=True):
        assert_close(result, newton_schulz_reference(matrix, ns_steps))


def test_singular_vectors_are_kept_and_singular_values_are_near_1() -> None:
    (matrix,) = random_matrices([(12, 20)])
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    turned = u.T @ newton_schulz_reference(matrix) @ vt.T
    values = turned.diagonal()
    assert_close(turned, torch.diag(values))
    assert values.min() > 0.65
    assert values.max() < 1.25


def test_the_scale_of_the_gradient_has_no_effect_and_0_stays_0() -> None:
    (matrix,) = random_matrices([(6, 9)])
    small, large, zero = orthogonalize([1e-3 * matrix, 1e6 * matrix, 0 * matrix])
    assert_close(small, large)
    assert torch.equal(zero, torch.zeros(6, 9, dtype=torch.float64))


def test_bfloat16_is_close_and_returns_the_input_type() -> None:
    matrices = random_matrices([(32, 48), (48, 32)], torch.float32)
    exact, rounded = orthogonalize(matrices), orthogonalize(matrices, dtype=torch.bfloat16)
    for one, other in zip(exact, rounded, strict=True):
        assert other.dtype == torch.float32
        distance = ((one - other).norm() / one.norm()).item()
        assert distance > 0
        assert distance < 0.03


@pytest.mark.parametrize(
    ("gains", "device", "weights", "expected"),
    [
        ("bf16", "cpu", torch.float32, torch.bfloat16),
        ("onednn", "cpu", torch.float32, torch.float32),
        ("onednn", "cuda", torch.float32, torch.bfloat16),
        ("bf16", "mps", torch.float32, torch.float32),
        ("bf16", "cpu", torch.float64, torch.float64),
    ],
)
def test_bfloat16_is_used_only_where_it_is_faster(
    gains: str,
    device: str,
    weights: torch.dtype,
    expected: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processor, "this", replace(processor.this, known=processor.FIXED[gains]))
    assert muon_module._fast_dtype(device, weights) == expected


# Muon


def muon_group(parameters: list[nn.Parameter], **options: object) -> dict[str, object]:
    defaults = {"lr": 0.02, "weight_decay": 0.0, "momentum": 0.95}
    return {"params": parameters, "orthogonal": True} | defaults | options


def step_both(ours: list[nn.Parameter], theirs: list[nn.Parameter], steps: list[Callable[[], object]]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        our.grad = torch.randn_like(our)
        their.grad = our.grad.clone()
    for step in steps:
        step()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon of its own")
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize(("weight_decay", "momentum"), [(0.1, 0.95), (0.0, 0.8)])
def test_muon_equals_torchs_step_for_step(
    weight_decay: float, momentum: float, exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if exact:  # torch always rounds to bfloat16; without the rounding both must agree to the last digits
        monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    dtype = torch.float64 if exact else torch.float32
    torch.manual_seed(0)
    ours = [nn.Parameter(matrix) for matrix in random_matrices(SHAPES, dtype)]
    theirs = [nn.Parameter(matrix.detach().clone()) for matrix in ours]
    group = muon_group(ours, weight_decay=weight_decay, momentum=momentum)
    muon = Muon([group], dtype=dtype if exact else torch.bfloat16)
    torch_muon = torch.optim.Muon(theirs, lr=0.02, weight_decay=weight_decay, momentum=momentum)
    # A singular value is about 1 after a step of the rate: 5 steps of 5 iterations, each rounded to bfloat16.
    rounded = {"terms": 5 * 5, "magnitude": 0.02, "dtype": torch.bfloat16}
    for _ in range(5):
        step_both(ours, theirs, [muon.step, torch_muon.step])
        for our, their in zip(ours, theirs, strict=True):
            assert_close(our, their, **({} if exact else rounded))


def test_a_muon_step_follows_its_equations() -> None:
    config = MuonConfig(learning_rate=0.1, weight_decay=0.2)
    model = tiny_model().double()
    optimizer = build_optimizer(model, config)
    weight = model.d[0].up_proj.weight
    w, m = weight.detach().clone(), torch.zeros_like(weight)
    for _ in range(3):
        g = torch.randn_like(w)
        weight.grad = g.clone()
        optimizer.step()
        m = 0.95 * m + 0.05 * g
        update = newton_schulz_reference(0.95 * m + 0.05 * g)
        w = w - 0.1 * 0.2 * w - 0.1 * math.sqrt(2) * update  # twice as many rows as columns
        assert_close(weight.detach(), w)


@pytest.mark.parametrize("tied", [False, True])
def test_muon_updates_linear_layers_of_blocks_and_adamw_the_rest(tied: bool) -> None:
    model, twin = tiny_model(tied), tiny_model(tied)
    assert {name for name, _ in hidden_matrices(model)} == BLOCK_MATRICES
    muon, adamw = MuonConfig(adamw_learning_rate=0.01, adamw_weight_decay=0.1), AdamWConfig(learning_rate=0.01)
    ours, theirs = build_optimizer(model, muon), build_optimizer(twin, adamw)
    for _ in range(3):
        step_both(list(model.parameters()), list(twin.parameters()), [ours.step, theirs.step])
    for (name, our), (_, their) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert torch.equal(our, their) == (name not in BLOCK_MATRICES), name


def test_a_tied_head_in_a_list_is_not_a_hidden_matrix() -> None:
    model = tiny_model()
    tied_head, other_head = nn.Linear(6, 11), nn.Linear(6, 3)
    tied_head.weight = model.a.weight
    model.d.extend([tied_head, other_head])
    assert {name for name, _ in hidden_matrices(model)} == BLOCK_MATRICES | {"d.3.weight"}


def test_fused_queries_keys_and_values_are_updated_separately() -> None:
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.split_sizes = (8, 4, 6)
            self.qkv_proj = nn.Linear(8, 18, bias=False)

    fused = nn.ModuleList([Fused()]).double()
    weight = fused[0].qkv_proj.weight
    parts = [nn.Parameter(part.detach().clone()) for part in weight.split((8, 4, 6))]
    optimizers_ = [build_optimizer(fused, MuonConfig()), Muon([muon_group(parts)])]
    for _ in range(3):
        weight.grad = torch.randn_like(weight)
        for part, gradient in zip(parts, weight.grad.split((8, 4, 6)), strict=True):
            part.grad = gradient.clone()
        for optimizer in optimizers_:
            optimizer.step()
    assert_close(weight, torch.cat(parts))


def test_the_gates_of_a_recurrent_layer_are_updated_separately() -> None:
    cells = nn.GRU(5, 4, num_layers=2, bidirectional=True).double()
    named = dict(cells.named_parameters())
    matrices = {name: p for name, p in named.items() if p.ndim == 2}
    assert [name for name, _ in hidden_matrices(cells)] == list(matrices) and len(matrices) == 8
    gates = {name: [nn.Parameter(gate.detach().clone()) for gate in p.chunk(3)] for name, p in matrices.items()}
    ours = build_optimizer(cells, MuonConfig())
    apart = Muon([muon_group([gate for parts in gates.values() for gate in parts])])
    for p in named.values():
        p.grad = torch.randn_like(p)
    for name, p in matrices.items():
        for gate, gradient in zip(gates[name], p.grad.chunk(3), strict=True):  # type: ignore[union-attr]
            gate.grad = gradient.clone()
    ours.step()
    apart.step()
    for name, p in matrices.items():
        assert_close(p, torch.cat(gates[name]))


def test_parameters_without_gradient_are_unchanged() -> None:
    model = tiny_model()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = build_optimizer(model, CONFIGS[2])
    assert optimizer.step(lambda: 1.5) == 1.5
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert state_tensors(optimizer) == {}


def test_muon_refuses_vectors_and_a_model_without_blocks() -> None:
    with pytest.raises(ValueError, match="Muon updates matrices only"):
        Muon([muon_group([nn.Parameter(torch.zeros(3))])])
    with pytest.raises(UserError, match="kind adamw"):
        build_optimizer(nn.Linear(3, 3), MuonConfig())


# Resuming


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.kind)
@pytest.mark.parametrize("tied", [False, True])
def test_resuming_through_a_file_of_tensors_is_equal_to_the_bit(config: OptimizerConfig, tied: bool) -> None:
    straight = tiny_model(tied)
    train(straight, build_optimizer(straight, config), range(6))

    interrupted = tiny_model(tied)
    optimizer = build_optimizer(interrupted, config)
    train(interrupted, optimizer, range(3))
    saved = save(state_tensors(optimizer))
    resumed = TinyModel(tied)
    resumed.load_state_dict(interrupted.state_dict())
    optimizer = build_optimizer(resumed, config)
    load_state_tensors(optimizer, load(saved))
    train(resumed, optimizer, range(3, 6))

    for one, other in zip(straight.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_loaded_state_is_a_copy() -> None:
    model = tiny_model()
    optimizer = build_optimizer(model, CONFIGS[2])
    train(model, optimizer, range(1))
    saved = {name: tensor.clone() for name, tensor in state_tensors(optimizer).items()}
    given = {name: tensor.clone() for name, tensor in saved.items()}
    load_state_tensors(optimizer, given)
    train(model, optimizer, range(1, 2))
    assert all(torch.equal(given[name], saved[name]) for name in saved)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state | {"nowhere.weight/exp_avg": torch.zeros(3)},
        lambda state: state | {"a.weight/exp_avg": torch.zeros(3, 3)},
        lambda state: {name: tensor for name, tensor in state.items() if name != "a.weight/exp_avg_sq"},
        lambda state: {name: tensor for name, tensor in state.items() if name != "a.weight/step"},
    ],
    ids=["unknown parameter", "wrong shape", "moment missing", "step missing"],
)
def test_an_optimizer_state_that_does_not_fit_is_refused(
    spoil: Callable[[dict[str, Tensor]], dict[str, Tensor]],
) -> None:
    model = tiny_model()
    optimizer = build_optimizer(model, AdamWConfig())
    train(model, optimizer, range(1))
    with pytest.raises(UserError, match="does not fit"):
        load_state_tensors(build_optimizer(model, AdamWConfig()), spoil(state_tensors(optimizer)))


def test_state_of_another_optimizer_is_refused() -> None:
    model = tiny_model()
    optimizer = build_optimizer(model, AdamWConfig())
    train(model, optimizer, range(1))
    with pytest.raises(UserError, match="does not fit"):
        load_state_tensors(build_optimizer(model, MuonConfig()), state_tensors(optimizer))
