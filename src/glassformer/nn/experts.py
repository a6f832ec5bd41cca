"""Feed-forward layer of experts (mixture of experts): a router sends each token to a few experts (Shazeer 2017)."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.common.arguments import number
from glassformer.nn.kernels.linear import Groups, grouped_linear
from glassformer.nn.layers import Activation, Linear, activation_of


class Router(nn.Module):
    """Router: p = softmax(W x) over the experts; the experts with the largest p are active (Fedus 2021, eq. 1-2).

    `forward` returns the weight of each expert for each token: p if the expert is active, otherwise 0. With
    `normalize`, the weights of a token sum to 1 (Mixtral). There are two ways to give the experts equal loads:

    - `loss_weight` × `balance_loss` is the module's auxiliary loss.
    - A bias b per expert is added to p for the choice only, not for the weight. After each step the bias moves by
      `bias_rate` towards equal loads (Wang 2024, algorithm 1).

    >>> (Router(8, n_experts=4, n_active=2)(torch.randn(1, 3, 8)) > 0).sum(dim=-1)
    tensor([[2, 2, 2]])
    """

    bias: Tensor | None

    def __init__(
        self,
        d_model: int,
        n_experts: int,
        n_active: int,
        normalize: bool = True,
        loss_weight: float = 0.0,
        bias_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.n_experts, self.normalize = n_experts, normalize
        self.n_active = number("n_active", n_active, 1, n_experts, whole=True)
        self.loss_weight, self.bias_rate = number("loss_weight", loss_weight, 0), number("bias_rate", bias_rate, 0)
        self.proj = Linear(d_model, n_experts, bias=False)
        self.register_buffer("bias", torch.zeros(n_experts) if bias_rate else None)
        self.records = False
        """True if `forward` in training adds to `auxiliary_loss` and `load`; a training step reads and resets both."""
        self.auxiliary_loss: Tensor | None = None
        self.load: Tensor | None = None
        """(E,): the number of tokens that each expert read, without padding."""

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the weights (B, T, E) for `x` (B, T, D); tokens that are not `real` (B, T) do not count as load."""
        logits = self.proj(x)  # (B, T, E)
        probabilities = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(dim=-1)
        scores = probabilities if self.bias is None else probabilities + self.bias
        chosen = scores.topk(self.n_active, dim=-1).indices
        active = torch.zeros_like(probabilities).scatter(-1, chosen, 1.0)
        if self.training:
            self._observe(probabilities, active, real)
        weights = probabilities * active
        if self.normalize:
            weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-20)
        return weights

    def _observe(self, probabilities: Tensor, active: Tensor, real: Tensor | None) -> None:
        """Compute the loss, and record loss and load if `records`.

        With activation checkpointing, the second forward pass does not record, but must compute the loss too.
        """
        if self.loss_weight:
            loss = self.loss_weight * balance_loss(probabilities, active, real)
            if self.records:
                self.auxiliary_loss = added_to(self.auxiliary_loss, loss)
        if self.records:
            if real is not None:
                active = active * real[..., None]
            load = active.detach().flatten(0, -2).sum(dim=0)
            self.load = added_to(self.load, load)  # several layers may share a router

    @torch.no_grad()
    def move_bias(self, load: Tensor, factor: Tensor | float = 1.0) -> None:
        """Raise the biases of experts with less than the mean load, and lower the biases of experts with more."""
        if self.bias is not None:
            self.bias += factor * self.bias_rate * (load.mean() - load).sign()


def added_to(total: Tensor | None, x: Tensor) -> Tensor:
    """Return `total` + `x`; `total` is None before the first term."""
    return x if total is None else total + x


def balance_loss(probabilities: Tensor, active: Tensor, real: Tensor | None = None) -> Tensor:
    """Compute E · Σ f · P over the E experts (Fedus 2021, eq. 4-6).

    f is the share of tokens that an expert reads, and P is the mean probability of the expert. `probabilities` and
    `active` (0 or 1) are (…, E); tokens that are not `real` (…) are left out. For equal loads the loss is the number of
    active experts.

    >>> balance_loss(torch.tensor([[0.9, 0.1], [0.9, 0.1]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor(1.8000)
    """
    p, a = probabilities.flatten(0, -2), active.flatten(0, -2)
    n_tokens: Tensor | int = len(p)
    if real is not None:
        counts = real.flatten()[:, None]
        p, a, n_tokens = p * counts, a * counts, counts.sum().clamp(min=1)
    return p.shape[-1] * ((a.sum(dim=0) / n_tokens) * (p.sum(dim=0) / n_tokens)).sum()


class ExpertLinear(nn.Module):
    """Matrices of the experts, (E·out, in), and their biases, (E·out,), stacked by rows.

    >>> matrices = ExpertLinear(n_experts=2, n_in=8, n_out=16)
    >>> from glassformer.nn.kernels.linear import Groups
    >>> groups = Groups(torch.tensor([0, 0, 0, 1, 1]), n_groups=2)  # 3 rows for expert 0, 2 for expert 1
    >>> matrices.of_groups(torch.randn(5, 8), groups).shape
    torch.Size([5, 16])
    """

    def __init__(self, n_experts: int, n_in: int, n_out: int, bias: bool = True) -> None:
        super().__init__()
        self.parts = (n_out,) * n_experts
        """Number of rows of each expert's matrix."""
        self.weight = nn.Parameter(torch.empty(n_experts * n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(n_experts * n_out)) if bias else None
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear

    def of_groups(self, rows: Tensor, groups: Groups) -> Tensor:
        """Map rows (N, in), sorted by expert, to (N, out); the rows of an expert are a group."""
        return grouped_linear(rows, groups, self.weight, self.bias)

    def of_expert(self, i: int, x: Tensor) -> Tensor:
        """Map `x` (…, in) to (…, out) with the matrix of expert `i`."""
        bias = None if self.bias is None else self.bias.split(self.parts)[i]
        return F.linear(x, self.weight.split(self.parts)[i], bias)


class Experts(nn.Module):
    """Feed-forward layer of experts: y = Σ weight · expert(x) over the active experts of each token.

    Each expert is a `FeedForward` layer of inner width `d_ff`. `reference` computes the formula in a loop. `forward`
    gives the same result up to rounding, with one product per expert over all its tokens, or on some GPUs one product
    for all experts (`kernels/linear.py`). The experts of a token do not depend on other tokens.

    >>> experts = Experts(Router(8, n_experts=4, n_active=2), d_ff=16)
    >>> x = torch.randn(1, 3, 8)
    >>> torch.allclose(experts(x), experts.reference(x), atol=1e-6)
    True
    """

    def __init__(
        self,
        router: Router,
        d_ff: int,
        activation: Activation | str = F.gelu,
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        n_experts, d_model = router.n_experts, router.proj.in_features
        self.router = router
        self.gate_proj = ExpertLinear(n_experts, d_model, d_ff, bias) if gated else None
        self.up_proj = ExpertLinear(n_experts, d_model, d_ff, bias)
        self.down_proj = ExpertLinear(n_experts, d_ff, d_model, bias)
        self.activation = activation_of(activation)
        self.dropout = number("dropout", dropout, 0, 1)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """Map `x` (B, T, D) to (B, T, D); tokens that are not `real` (B, T) do not count as load of the router."""
        n_active = self.router.n_active
        weights, chosen = self.router(x, real).flatten(0, -2).topk(n_active)  # (N, k) each
        # Copy each token once per active expert, sorted by expert.
        of_rows, order = chosen.flatten().sort(stable=True)  # (N·k,) each
        groups = Groups(of_rows, self.router.n_experts)
        rows = x.flatten(0, -2)[order // n_active]
        # The feed-forward layer of each expert.
        if self.gate_proj is None:
            h = self.activation(self.up_proj.of_groups(rows, groups))
        else:
            h = self.activation(self.gate_proj.of_groups(rows, groups)) * self.up_proj.of_groups(rows, groups)
        y = self.down_proj.of_groups(F.dropout(h, self.dropout, self.training), groups)
        # Back to the order of the tokens; weighted sum.
        y = y[order.argsort()].unflatten(0, (-1, n_active))  # (N, k, D)
        return (y * weights[..., None]).sum(dim=1).to(y.dtype).view_as(x)

    def reference(self, x: Tensor) -> Tensor:
        """Compute `forward` expert by expert."""
        weights = self.router(x)
        y = torch.zeros_like(x)
        for i in range(self.router.n_experts):
            is_active = weights[..., i] > 0
            y[is_active] += weights[is_active][:, i, None] * self._expert(i, x[is_active])
        return y

    def _expert(self, i: int, x: Tensor) -> Tensor:
        h = self.activation((self.gate_proj or self.up_proj).of_expert(i, x))
        if self.gate_proj is not None:
            h = h * self.up_proj.of_expert(i, x)
        return self.down_proj.of_expert(i, F.dropout(h, self.dropout, self.training))
