"""Checks of a loss and its gradient: sums over micro-batches, padding, shift, value at the start, learning."""

import contextlib
import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.apps.doctor.adapter import Rows
from glassformer.apps.doctor.probe import NotApplicable, Outcome, Probe, gap, means

START_TOLERANCE_NATS = 0.6
"""Largest distance of a new model's loss from ln V. (A tied table of unit rows after a final norm adds 0.5 nats.)"""
N_STEPS = 200


@means("Means of micro-batches are averaged, so tokens have unequal weights: sum, then divide once by all targets.")
def accumulation(probe: Probe) -> Outcome:
    """Check that gradients of unequal micro-batches, summed and divided once, equal those of one batch."""
    rows = probe.rows(4)
    if probe.mask_use != "none":
        rows = probe.uneven(rows, probe.length)
    whole = _gradients(probe, [rows])
    parts = _gradients(probe, [rows.take(slice(0, 1)), rows.take(slice(1, 4))])
    scale = max((g.abs().max().item() for g in whole), default=0.0)
    if not scale:
        raise NotApplicable("the loss has no gradient")
    worst = max(gap(p, w) * w.abs().max().item() / scale for p, w in zip(parts, whole, strict=True) if w.any())
    return worst <= probe.tolerance, (
        f"gradients of micro-batches and of one batch differ by {worst:.1e} of their scale "
        f"(allowed {probe.tolerance:.0e})"
    )


@means("Padding counts as a target: the loss per token is wrong, and the model learns to predict padding.")
def loss_padding(probe: Probe) -> Outcome:
    """Check that the loss per token does not depend on the amount of padding."""
    probe.need_mask()
    rows = probe.rows(3)
    losses = []
    for width in (probe.length, probe.interface.max_len):
        total, n_targets = probe.loss_of(probe.uneven(rows, width))
        losses.append(total.item() / max(n_targets, 1))
    difference = abs(losses[1] - losses[0])
    detail = f"more padding changes the loss by {difference:.1e} nats per token"
    return difference <= probe.tolerance * abs(losses[0]), detail


@means("The model is not trained on the next token: inputs and labels must differ by exactly one position.")
def shift(probe: Probe) -> Outcome:
    """Check that the labels are the inputs one position later, by the gradient of the given loss.

    The gradient of a cross-entropy at the logits is softmax - one-hot(label): its minimum is at the label.
    """
    if probe.interface.kind == "encoder":
        raise NotApplicable("an encoder predicts tokens at their own positions")
    if probe.interface.loss is None:
        raise NotApplicable("no loss was given, and the default loss shifts by one")
    inputs, logits = _inputs_and_gradient(probe, probe.rows(4))
    labels = logits.argmin(-1)
    scored = logits.abs().amax(-1) > 0
    if not scored.any():
        return False, "the loss scores no position"

    def agreement(ahead: int) -> float:
        n = inputs.shape[1] - ahead
        return float((labels[:, :n] == inputs[:, ahead:])[scored[:, :n]].float().mean())

    shares = {ahead: agreement(ahead) for ahead in range(4)}
    best = max(shares, key=lambda ahead: shares[ahead])
    if shares[best] < 0.9:
        return False, "the labels are not the inputs at any shift from 0 to 3"
    return best == 1, f"the labels are the inputs {best} position{'s' * (best != 1)} ahead"


@means("An untrained model is confident: its initialisation is too wide, or the loss is not in nats per token.")
def loss_at_start(probe: Probe) -> Outcome:
    """Check that a new model has a loss near ln V nats per token on random text."""
    if probe.interface.fresh is None:
        raise NotApplicable("pass fresh=…, a function that builds a new module")
    module = probe.interface.fresh().eval().to(probe.device)
    with torch.no_grad():
        total, n_targets = probe.loss_of(probe.rows(32), module)
    loss = float(total) / max(n_targets, 1)
    expected = math.log(probe.n_outputs)
    detail = f"{loss:.2f} nats per token, expected ln {probe.n_outputs} = {expected:.2f}"
    return abs(loss - expected) <= START_TOLERANCE_NATS, detail


@means("The model cannot overfit a single batch: gradients do not reach the weights, or the inputs are ignored.")
def learns(probe: Probe) -> Outcome:
    """Check that training on one batch lowers the loss to half of the entropy of the batch's token frequencies."""
    if not any(p.requires_grad for p in probe.pristine.parameters()):
        raise NotApplicable("no parameter of the module is trainable")
    rows = probe.rows(4)
    shares = torch.bincount(rows.token_ids.flatten()).float() / rows.token_ids.numel()
    target = -float(torch.special.xlogy(shares, shares).sum()) / 2
    width = min(max(probe.pristine.parameters(), key=lambda p: p.numel()).shape, default=1)
    rate = min(1e-2, 0.5 / width)  # wide layers need a small learning rate
    lowest = _train(probe, rows, rate, target)
    if lowest > target:
        lowest = min(lowest, _train(probe, rows, 0.2 * rate, target))
    return lowest <= target, f"lowest loss {lowest:.2f} nats per token, expected at most {target:.2f}"


def _train(probe: Probe, rows: Rows, rate: float, target: float) -> float:
    """Return the lowest loss, in nats per token, of `N_STEPS` Adam steps on a copy; stop at the target."""
    module = copy.deepcopy(probe.pristine).float().train()
    optimizer = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=rate)
    lowest = math.inf
    for _ in range(N_STEPS):
        total, n_targets = probe.loss_of(rows, module)
        loss = total / max(n_targets, 1)
        if loss.isfinite():
            lowest = min(lowest, loss.item())
        if lowest <= target or not loss.requires_grad:
            break
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
    return lowest


def _gradients(probe: Probe, micro_batches: list[Rows]) -> list[Tensor]:
    """Return Σ gradients / Σ targets of every trainable parameter."""
    parameters = [p for p in probe.module.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in parameters]
    n_targets = 0
    for rows in micro_batches:
        total, n = probe.loss_of(rows)
        n_targets += n
        for s, g in zip(sums, torch.autograd.grad(total, parameters, allow_unused=True), strict=True):
            if g is not None:
                s += g
    return [s / max(n_targets, 1) for s in sums]


def _inputs_and_gradient(probe: Probe, rows: Rows) -> tuple[Tensor, Tensor]:
    """Return the ids that the loss passed to the module, and the gradient of the loss at the returned logits."""
    ids: list[Tensor] = []
    logits: list[Tensor] = []

    def see_ids(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        ids.append(inputs[0].detach())

    def see_logits(_: nn.Module, __: object, output: object) -> None:
        logits.extend(_tensors_of_width(output, probe.n_outputs))

    with contextlib.ExitStack() as hooks:
        for table in probe.tables:
            hooks.enter_context(table.register_forward_pre_hook(see_ids))
        hooks.enter_context(probe.module.register_forward_hook(see_logits))
        total, _ = probe.loss_of(rows)
    if not ids or not logits or logits[-1].shape[:2] != ids[-1].shape:
        raise NotApplicable("the inputs and logits could not be captured when the loss called the module")
    (gradient,) = torch.autograd.grad(total, logits[-1], allow_unused=True)
    if gradient is None:
        raise NotApplicable("the loss does not depend on the logits that the module returns")
    return ids[-1], gradient


def _tensors_of_width(output: Any, width: int) -> list[Tensor]:
    """Return the (B, T, width) tensors of a module's output."""
    if isinstance(output, dict):
        output = list(output.values())
    items = output if isinstance(output, tuple | list) else [getattr(output, "logits", output)]
    return [x for x in items if isinstance(x, Tensor) and x.dim() == 3 and x.shape[-1] == width]
