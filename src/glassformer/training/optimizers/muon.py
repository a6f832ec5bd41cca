"""Muon (Jordan 2024): orthogonalised momentum for hidden matrices, AdamW for the rest, in one optimizer."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from glassformer.common.errors import UserError
from glassformer.config.train import MuonConfig
from glassformer.nn.experts import ExpertLinear
from glassformer.nn.kernels import processor
from glassformer.training.distributed.parts import is_part, like_part, local_part, part_of, whole
from glassformer.training.optimizers.build import (
    Group,
    NamedParameters,
    can_fuse,
    embedding_tables,
    new_group,
    parameter_groups,
    trained_parameters,
)

# a, b, c of the polynomial a·x + b·x³ + c·x⁵ (Jordan 2024), chosen for a steep slope at 0. Five iterations bring
# every singular value that is not tiny to about 0.7 - 1.2. This works as well as exactly 1 and is cheaper.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_SMALLEST_NORM = 1e-7


def build(model: nn.Module, config: MuonConfig) -> "Muon":
    """Return Muon for all trainable parameters; raise `UserError` if no hidden matrix is trainable."""
    return Muon(_groups(model, config), split_sizes=_split_sizes(model))


def hidden_matrices(model: nn.Module) -> NamedParameters:
    """Return the weights that Muon updates: linear layers in lists of blocks (`nn.ModuleList`), and recurrent ones.

    The embeddings, their projections and the head are not included; AdamW is better for them (Jordan 2024).
    """
    blocks = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    linears = (module for block in blocks for module in block.modules() if isinstance(module, nn.Linear | ExpertLinear))
    hidden = {id(linear.weight) for linear in linears} | {id(weight) for weight, _ in _recurrent_matrices(model)}
    hidden -= embedding_tables(model)
    return [(name, parameter) for name, parameter in trained_parameters(model) if id(parameter) in hidden]


def _recurrent_matrices(model: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """Yield each matrix of RNN, GRU and LSTM layers with the number of rows per gate."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            yield from ((p, module.hidden_size) for p in module.parameters() if p.ndim == 2)


def _groups(model: nn.Module, config: MuonConfig) -> list[Group]:
    matrices = hidden_matrices(model)
    if not matrices:
        raise UserError(
            "muon needs trainable linear layers inside blocks or recurrent layers, and this model has no such layer: "
            "use --train.optimizer.kind adamw"
        )
    options = {"momentum": config.momentum, "orthogonal": True}
    hidden = new_group(matrices, config.traits.matrix_state, config.learning_rate, config.weight_decay, **options)
    names = {name for name, _ in matrices}
    rest = [(name, parameter) for name, parameter in trained_parameters(model) if name not in names]
    adam_options = {"betas": config.adamw.betas, "eps": config.adamw.eps, "orthogonal": False}
    return [hidden, *(group | adam_options for group in parameter_groups(model, config.adamw, rest))]


def _split_sizes(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Return the row counts of the matrices in each stacked weight: fused attention, experts, recurrent gates."""
    gates = {weight: (width,) * (len(weight) // width) for weight, width in _recurrent_matrices(model)}
    experts = {module.weight: module.parts for module in model.modules() if isinstance(module, ExpertLinear)}
    return (
        gates
        | experts
        | {
            cast(nn.Linear, module.qkv_proj).weight: cast(tuple[int, ...], module.split_sizes)
            for module in model.modules()
            if hasattr(module, "qkv_proj") and hasattr(module, "split_sizes")
        }
    )


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum (Jordan 2024) for hidden matrices and AdamW for the rest, in one optimizer.

    Groups with `orthogonal=True` contain matrices W (rows = outputs) and the option `momentum` μ. With gradient G,
    learning rate η and weight decay λ:

        M ← μ·M + (1 - μ)·G       U = orthogonalize(μ·M + (1 - μ)·G)       W ← (1 - η·λ)·W - η·scale(W)·U

    The other groups contain the options `betas` and `eps` of AdamW. The update of each matrix equals that of
    `torch.optim.Muon`. But matrices of one shape, or of its transpose, share batched products, because single products
    are too small to use a processor fully. Weights that are divided among processes are gathered one after another, and
    every process computes the whole update of a matrix and keeps its part.

    Args:
        groups: parameter groups, each with `orthogonal`, `lr`, `weight_decay` and the options above.
        split_sizes: row counts of the matrices inside a fused weight. Each matrix is orthogonalised separately,
            because queries, keys and values share no singular vectors.
        dtype: dtype of the orthogonalisation; None is bfloat16 for fp32 weights where the hardware supports it,
            and the dtype of the weights otherwise.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        *,
        split_sizes: Mapping[Tensor, Sequence[int]] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(groups, {})
        self.split_sizes = dict(split_sizes or {})
        self.dtype = dtype
        for group in self.param_groups:
            if not group["orthogonal"]:
                group["fused"] = can_fuse(group["params"])
            elif any(p.ndim != 2 for p in group["params"]):
                raise ValueError("Muon updates matrices only: put other shapes into a group with orthogonal=False")
        # As in torch's fused optimizers: if the tensor `found_inf` is set and 1, a step changes nothing.
        self._step_supports_amp_scaling = all(group.get("fused", True) for group in self.param_groups)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update each parameter that has a gradient; return the value of `closure`, if given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters and group["orthogonal"]:
                self._step_matrices(parameters, group)
            elif parameters:
                self._step_others(parameters, group)
        return loss

    def _step_matrices(self, parameters: list[Tensor], group: Group) -> None:
        # Momentum and decay act on single numbers, so a process needs only its part of a weight in parts.
        weights = [local_part(p) for p in parameters]
        gradients = [local_part(cast(Tensor, p.grad)) for p in parameters]
        momenta = [local_part(self._moment(p, "momentum")) for p in parameters]
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        factor = 1 - group["lr"] * group["weight_decay"]
        if found_inf is None:
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        else:
            is_bad = found_inf.bool()
            gradients = [torch.where(is_bad, 0.0, gradient) for gradient in gradients]
            factor = torch.where(is_bad, 1.0, factor)
            weight = torch.where(is_bad, 0.0, 1 - group["momentum"])
            for momentum, gradient in zip(momenta, gradients, strict=True):
                momentum.lerp_(gradient, weight.to(momentum.dtype))
        directions = torch._foreach_lerp(gradients, momenta, group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_(weights, factor)
        numbers = list(range(len(parameters)))
        # All parameters are updated together, or one after another where each must be gathered
        for some in [[i] for i in numbers] if any(map(is_part, parameters)) else [numbers]:
            updates = self._updates([parameters[i] for i in some], [directions[i] for i in some], group)
            for weight, update, scale in updates:
                if found_inf is not None:
                    update = torch.where(is_bad, 0.0, update)
                weight.add_(update, alpha=-group["lr"] * scale)

    def _updates(
        self, parameters: list[Tensor], directions: list[Tensor], group: Group
    ) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Yield what this process updates: weights (views of the parameters), their updates, and a factor.

        The directions are gathered, because an orthogonal update depends on all numbers of a matrix.
        """
        pairs = zip(parameters, directions, strict=True)
        of_each = [self._parts(p, whole(like_part(direction, p))) for p, direction in pairs]
        dtype = self.dtype or _fast_dtype(parameters[0].device.type, parameters[0].dtype)
        done = iter(orthogonalize([part for parts in of_each for part in parts], dtype=dtype))
        for p, parts in zip(parameters, of_each, strict=True):
            scales = [update_scale(part.shape) for part in parts]
            if is_part(p):
                scaled = torch.cat([next(done) * scale for scale in scales])
                yield local_part(p), local_part(part_of(scaled, p)), 1.0
            else:
                for matrix, scale in zip(self._parts(p, p), scales, strict=True):
                    yield matrix, next(done), scale

    def _step_others(self, parameters: list[Tensor], group: Group) -> None:
        for p in parameters:
            if "step" not in self.state[p]:
                step = torch.zeros(())
                # Fused kernels need the counter on the device, the other kernels on the CPU.
                self.state[p]["step"] = step.to(p.device) if group["fused"] else step
        adamw(
            parameters,
            [cast(Tensor, p.grad) for p in parameters],
            [self._moment(p, "exp_avg") for p in parameters],
            [self._moment(p, "exp_avg_sq") for p in parameters],
            [],
            [self.state[p]["step"] for p in parameters],
            fused=group["fused"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            found_inf=getattr(self, "found_inf", None),
        )

    def _moment(self, parameter: Tensor, name: str) -> Tensor:
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter)
        return cast(Tensor, state[name])

    def _parts(self, parameter: Tensor, tensor: Tensor) -> Sequence[Tensor]:
        return torch.split(tensor, list(self.split_sizes.get(parameter, [len(tensor)])))


def update_scale(shape: Sequence[int]) -> float:
    """Return the factor of an orthogonal update of this shape (rows = outputs), so that one learning rate fits all.

    The factor bounds the change of the output (Jordan 2024).

    >>> update_scale((512, 128)), update_scale((128, 512))
    (2.0, 1.0)
    """
    rows, columns = shape
    return math.sqrt(max(1.0, rows / columns))


def newton_schulz_reference(matrix: Tensor, ns_steps: int = 5) -> Tensor:
    """Move the singular values of a matrix to about 1 and keep its singular vectors (Jordan 2024).

    With X = U·S·Vᵀ, one iteration X ← a·X + b·(X·Xᵀ)·X + c·(X·Xᵀ)²·X gives U·(a·S + b·S³ + c·S⁵)·Vᵀ. The initial
    division by the Frobenius norm brings S into [0, 1].

    >>> newton_schulz_reference(torch.diag(torch.tensor([9.0, 1.0, 0.0]))).diagonal().round(decimals=2)
    tensor([0.7000, 0.7500, 0.0000])
    """
    a, b, c = NEWTON_SCHULZ
    x: Tensor = matrix / matrix.norm().clamp(min=_SMALLEST_NORM)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x


def orthogonalize(matrices: Sequence[Tensor], ns_steps: int = 5, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Apply `newton_schulz_reference` to many matrices; matrices of one shape (or its transpose) form one batch.

    A matrix with more rows than columns is transposed, so that X·Xᵀ has the smaller side. The products use `dtype`
    (None: the dtype of the matrices). The initial norms and the results use the dtype of the matrices.
    """
    a, b, c = NEWTON_SCHULZ
    stacks: dict[tuple[int, ...], list[int]] = {}
    for index, matrix in enumerate(matrices):
        stacks.setdefault(tuple(sorted(matrix.shape)), []).append(index)
    results = list(matrices)
    for indices in stacks.values():
        wide = (x.mT if len(x) > x.shape[1] else x for x in (matrices[i] for i in indices))
        x = torch.stack([*wide])
        dtype_of_matrices = x.dtype
        x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=_SMALLEST_NORM)).to(dtype)  # (N, R, C), R ≤ C
        for _ in range(ns_steps):
            gram = x @ x.mT  # (N, R, R)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        for i, result in zip(indices, x.to(dtype_of_matrices), strict=True):
            results[i] = result if matrices[i].shape == result.shape else result.mT
    return results


def _fast_dtype(device_type: str, weights: torch.dtype) -> torch.dtype:
    """Return bfloat16 for fp32 weights if the hardware supports it: accurate enough (Jordan 2024), half the time."""
    is_fast = device_type == "cuda" or (device_type == "cpu" and processor.this.multiplies_bfloat16)
    return torch.bfloat16 if weights == torch.float32 and is_fast else weights
