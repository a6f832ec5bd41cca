"""Optimizers: Adam, AdamW and Muon, and the rule for which weights decay.

The loop calls `build_optimizer(model, config)` once and `set_learning_rates(optimizer, factor)` before each step.
Checkpoints contain `state_tensors(optimizer)`.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from glassformer.config.train import AdamConfig, AdamWConfig, MuonConfig, OptimizerConfig
from glassformer.distributed.parts import own, part_of
from glassformer.errors import UserError
from glassformer.kernels import processor

Adjust = Literal["original", "match_rms_adamw"]
Group = dict[str, Any]
NamedParameters = list[tuple[str, nn.Parameter]]

# a, b, c of the polynomial a·x + b·x³ + c·x⁵ (Jordan 2024), chosen for a steep slope at 0. Five iterations bring
# every singular value that is not tiny to about 0.7 - 1.2. This works as well as exactly 1 and is cheaper.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_SMALLEST_NORM = 1e-7
_FUSED_DEVICES = frozenset({"cpu", "cuda", "mps", "xpu"})


def build_optimizer(
    model: nn.Module, config: OptimizerConfig, scales: Mapping[str, float] | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer that `config` describes, for all trainable parameters of `model`.

    Each group keeps its peak learning rate as `initial_lr`. `scales` maps each parameter name to a factor of this rate;
    groups are split so that each has one factor. Adam and AdamW use a fused kernel if the device has one. Raises
    `UserError` for Muon if no hidden matrix is trainable.
    """
    match config:
        case MuonConfig():
            return Muon(_scaled(_muon_groups(model, config), scales), split_sizes=_split_sizes(model))
        case AdamWConfig() | AdamConfig():
            adam = torch.optim.AdamW if isinstance(config, AdamWConfig) else torch.optim.Adam
            fused = _can_fuse(parameter for _, parameter in _trained(model))
            groups = _scaled(parameter_groups(model, config), scales)
            return adam(groups, betas=config.betas, eps=config.eps, fused=fused)


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of each group to `factor` × its peak learning rate.

    >>> optimizer = build_optimizer(nn.Linear(2, 2), AdamWConfig(learning_rate=0.5))
    >>> set_learning_rates(optimizer, 0.25)
    >>> [group["lr"] for group in optimizer.param_groups]
    [0.125, 0.125]
    """
    for group in optimizer.param_groups:
        group["lr"] = factor * group["initial_lr"]


# Parameter groups


def parameter_groups(
    model: nn.Module, config: AdamConfig | AdamWConfig, named: NamedParameters | None = None
) -> list[Group]:
    """Return the parameters (default: all trainable ones) in two groups, with and without decay; drop empty groups.

    `matrices` decays weights of two or more dimensions except embeddings. A table is an embedding if its module is an
    `nn.Embedding`, independent of its name, and so is a head tied to it. Norms and biases have one dimension.
    `matrices_and_embeddings` decays all parameters except norms and biases, as nanoGPT does.
    """
    named = _trained(model) if named is None else named
    spared = _embedding_tables(model) if config.decay == "matrices" else set()
    decayed = [(name, p) for name, p in named if p.ndim >= 2 and id(p) not in spared]
    kept = [(name, p) for name, p in named if p.ndim < 2 or id(p) in spared]
    groups = (_group(decayed, config.learning_rate, config.weight_decay), _group(kept, config.learning_rate, 0.0))
    return [group for group in groups if group["params"]]


def hidden_matrices(model: nn.Module) -> NamedParameters:
    """Return the weights that Muon updates: `nn.Linear` in lists of blocks (`nn.ModuleList`), and recurrent ones.

    The embeddings, their projections and the head are not included; AdamW is better for them (Jordan 2024).
    """
    blocks = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    linears = (module for block in blocks for module in block.modules() if isinstance(module, nn.Linear))
    hidden = {id(linear.weight) for linear in linears} | {id(weight) for weight, _ in _recurrent_matrices(model)}
    hidden -= _embedding_tables(model)
    return [(name, parameter) for name, parameter in _trained(model) if id(parameter) in hidden]


def _recurrent_matrices(model: nn.Module) -> Iterator[tuple[Tensor, int]]:
    """Yield each matrix of RNN, GRU and LSTM layers with the number of rows per gate."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            yield from ((p, module.hidden_size) for p in module.parameters() if p.ndim == 2)


def _muon_groups(model: nn.Module, config: MuonConfig) -> list[Group]:
    matrices = hidden_matrices(model)
    if not matrices:
        raise UserError(
            "muon needs trainable linear layers inside blocks or recurrent layers, and this model has no such layer: "
            "use --train.optimizer.kind adamw"
        )
    names = {name for name, _ in matrices}
    rest = [(name, parameter) for name, parameter in _trained(model) if name not in names]
    options = {"momentum": config.momentum, "ns_steps": config.ns_steps, "adjust": config.adjust}
    hidden = _group(matrices, config.learning_rate, config.weight_decay)
    adam_options = {"betas": config.adamw.betas, "eps": config.adamw.eps}
    others = parameter_groups(model, config.adamw, rest)
    return [hidden | {"orthogonal": True} | options, *(x | {"orthogonal": False} | adam_options for x in others)]


def _scaled(groups: list[Group], scales: Mapping[str, float] | None) -> list[Group]:
    """Return the groups, split so that each has one factor of the learning rate."""
    if scales is None:
        return groups
    parts = []
    for group in groups:
        for scale in dict.fromkeys(scales[name] for name, _ in group["params"]):
            members = [(name, p) for name, p in group["params"] if scales[name] == scale]
            rate = scale * group["initial_lr"]
            parts.append(group | {"params": members, "lr": rate, "initial_lr": rate})
    return parts


def _group(named: NamedParameters, learning_rate: float, weight_decay: float) -> Group:
    return {"params": named, "lr": learning_rate, "initial_lr": learning_rate, "weight_decay": weight_decay}


def _trained(model: nn.Module) -> NamedParameters:
    """Return the trainable parameters; a tied parameter appears once, under its first name."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def _embedding_tables(model: nn.Module) -> set[int]:
    return {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}


def _split_sizes(model: nn.Module) -> dict[Tensor, tuple[int, ...]]:
    """Return the rows of queries, keys and values in each fused attention weight, and of gates in recurrent weights."""
    gates = {weight: (width,) * (len(weight) // width) for weight, width in _recurrent_matrices(model)}
    return gates | {
        cast(nn.Linear, module.qkv_proj).weight: cast(tuple[int, ...], module.split_sizes)
        for module in model.modules()
        if hasattr(module, "qkv_proj") and hasattr(module, "split_sizes")
    }


def _can_fuse(parameters: Iterable[Tensor]) -> bool:
    """Return True if a fused kernel can update the parameters.

    The kernels ignore strides: they would update other numbers of the memory of which a parameter is a sparse view.
    """
    return all(p.device.type in _FUSED_DEVICES and p.is_floating_point() and _is_dense(own(p)) for p in parameters)


def _is_dense(x: Tensor) -> bool:
    """Return True if the elements of a tensor, in some order, fill a block of memory without gaps."""
    return torch.empty_like(x, device="meta").stride() == x.stride()


# Muon


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum (Jordan 2024) for hidden matrices and AdamW for the rest, in one optimizer.

    Groups with `orthogonal=True` contain matrices W (rows = outputs) and the options `momentum` μ, `ns_steps` and
    `adjust`. With gradient G, learning rate η and weight decay λ:

        M ← μ·M + (1 - μ)·G       U = orthogonalize(μ·M + (1 - μ)·G)       W ← (1 - η·λ)·W - η·scale(W)·U

    The other groups contain the options `betas` and `eps` of AdamW. The update of each matrix equals that of
    `torch.optim.Muon`. But matrices of one shape, or of its transpose, share batched products, because single products
    are too small to use a processor fully.

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
                group["fused"] = _can_fuse(group["params"])
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
        gradients = [cast(Tensor, p.grad) for p in parameters]
        momenta = [self._moment(p, "momentum") for p in parameters]
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        kept = 1 - group["lr"] * group["weight_decay"]
        if found_inf is None:
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        else:
            is_bad = found_inf.bool()
            gradients = [torch.where(is_bad, 0.0, gradient) for gradient in gradients]
            kept = torch.where(is_bad, 1.0, kept)
            weight = torch.where(is_bad, 0.0, 1 - group["momentum"])
            for momentum, gradient in zip(momenta, gradients, strict=True):
                momentum.lerp_(gradient, weight.to(momentum.dtype))
        directions = torch._foreach_lerp(gradients, momenta, group["momentum"])
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, kept)
        # The parts of a fused weight are views: an update of a part updates the weight.
        matrices = [part for p in parameters for part in self._parts(p, p)]
        pairs = zip(parameters, directions, strict=True)
        parts = [part for p, direction in pairs for part in self._parts(p, direction)]
        dtype = self.dtype or _fast_dtype(matrices[0].device.type, matrices[0].dtype)
        for matrix, update in zip(matrices, orthogonalize(parts, group["ns_steps"], dtype), strict=True):
            update = update if found_inf is None else torch.where(is_bad, 0.0, update)
            matrix.add_(update, alpha=-group["lr"] * update_scale(matrix.shape, group["adjust"]))

    def _step_others(self, parameters: list[Tensor], group: Group) -> None:
        for p in parameters:
            if "step" not in self.state[p]:
                # Fused kernels need it on the device, the other kernels on the CPU.
                self.state[p]["step"] = torch.zeros((), device=p.device if group["fused"] else "cpu")
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
        sizes = self.split_sizes.get(parameter)
        return torch.split(tensor, list(sizes)) if sizes else (tensor,)


def update_scale(shape: Sequence[int], adjust: Adjust) -> float:
    """Return the factor of an orthogonal update of this shape (rows = outputs), so that one learning rate fits all.

    `original` (Jordan 2024) bounds the change of the output. `match_rms_adamw` (Liu 2025, section 2.2) gives the update
    the root mean square of AdamW's, about 0.2, so that AdamW's learning rates apply.

    >>> update_scale((512, 128), "original"), update_scale((128, 512), "original")
    (2.0, 1.0)
    >>> update_scale((100, 25), "match_rms_adamw")
    2.0
    """
    rows, columns = shape
    if adjust == "original":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))


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
    """Apply `newton_schulz_reference` to many matrices; those of one shape (or its transpose) form one batch.

    A matrix with more rows than columns is transposed, so that X·Xᵀ has the smaller side. The products use `dtype`
    (None: that of the matrices). The initial norms and the results use the dtype of the matrices.
    """
    a, b, c = NEWTON_SCHULZ
    stacks: dict[tuple[int, ...], list[int]] = {}
    for index, matrix in enumerate(matrices):
        stacks.setdefault(tuple(sorted(matrix.shape)), []).append(index)
    results = list(matrices)
    for indices in stacks.values():
        turned = [matrices[i].shape[0] > matrices[i].shape[1] for i in indices]
        x = torch.stack([matrices[i].mT if turn else matrices[i] for i, turn in zip(indices, turned, strict=True)])
        own = x.dtype
        x = (x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=_SMALLEST_NORM)).to(dtype)  # (N, R, C), R ≤ C
        for _ in range(ns_steps):
            gram = x @ x.mT  # (N, R, R)
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
        for index, turn, result in zip(indices, turned, x.to(own), strict=True):
            results[index] = result.mT if turn else result
    return results


def _fast_dtype(device_type: str, weights: torch.dtype) -> torch.dtype:
    """Return bfloat16 for fp32 weights if the hardware supports it: accurate enough (Jordan 2024), half the time."""
    is_fast = device_type == "cuda" or (device_type == "cpu" and bool(processor.this.bfloat16))
    return torch.bfloat16 if weights == torch.float32 and is_fast else weights


# State for checkpoints


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state by names `<parameter>/<what>`; learning rates and options are in the config.

    >>> model = nn.Linear(2, 2)
    >>> optimizer = build_optimizer(model, AdamWConfig())
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> sorted(state_tensors(optimizer))[:3]
    ['bias/exp_avg', 'bias/exp_avg_sq', 'bias/step']
    """
    return {
        f"{name}/{key}": value
        for name, parameter, _ in _remembered(optimizer)
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_state_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state in a new optimizer; the next steps are then bit for bit equal.

    Raises `UserError` if the tensors belong to another model or to another kind of optimizer.
    """
    unused = dict(tensors)
    state: dict[int, dict[str, Tensor]] = {}  # by torch's parameter index: group after group
    for number, (name, parameter, keys) in enumerate(_remembered(optimizer)):
        memory = {key: unused.pop(f"{name}/{key}") for key in keys if f"{name}/{key}" in unused}
        if not memory:  # it never had a gradient
            continue
        shapes = {key: torch.Size() if key == "step" else parameter.shape for key in keys}
        if {key: tensor.shape for key, tensor in memory.items()} != shapes:
            raise _misfit(name)
        for key, tensor in memory.items():
            dtypes = {torch.float32, torch.get_default_dtype()} if key == "step" else {parameter.dtype}
            if tensor.dtype not in dtypes:
                raise _misfit(f"{name}/{key}, of dtype {tensor.dtype},".replace("torch.", ""))
        state[number] = {
            # The memory format must be that of the parameter: fused kernels ignore strides.
            key: tensor.clone() if key == "step" else torch.empty_like(parameter).copy_(part_of(tensor, parameter))
            for key, tensor in memory.items()
        }
    if unused:
        raise _misfit(next(iter(unused)))
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _remembered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor, tuple[str, ...]]]:
    """Yield each parameter with its name and the names of its state tensors."""
    for group in optimizer.param_groups:
        keys = ("momentum",) if group.get("orthogonal") else ("step", "exp_avg", "exp_avg_sq")
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            yield name, parameter, keys


def _misfit(name: str) -> UserError:
    return UserError(
        f"the optimizer state of {name} in the checkpoint does not fit this model and optimizer: "
        "resume with the configuration of the checkpoint"
    )
