"""From a module to a `Probe`: copied, run once, and what it is noted down."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from glassformer.doctor.adapter import (
    Forward,
    Kind,
    Loss,
    MaskUse,
    Rows,
    blanks_loss,
    default_forward,
    n_tensors,
    next_token_loss,
)
from glassformer.doctor.probe import MIN_LEN, Probe, reinit_zero_parameters
from glassformer.errors import UserError, first_line

MIN_VOCABULARY = 4


@contextlib.contextmanager
def on_copies_only(module: nn.Module) -> Iterator[nn.Module]:
    """A copy of the module; whoever runs the original meanwhile is refused, so that nothing can change it."""
    try:
        pristine = copy.deepcopy(module)
    except Exception as error:
        raise UserError(
            f"{type(module).__name__} cannot be copied, and checks work on copies: {first_line(error)}"
        ) from error

    def refuse(*_: object) -> None:
        raise UserError("forward, loss or fresh ran the original module: they must use the one that they are given")

    guard = module.register_forward_pre_hook(refuse)
    try:
        yield pristine
    finally:
        guard.remove()


def set_up(
    pristine: nn.Module,
    *,
    vocab_size: int,
    kind: Kind,
    forward: Forward | None,
    loss: Loss | None,
    fresh: Callable[[], nn.Module] | None,
    max_len: int,
    pad_id: int | None,
    source_vocab_size: int | None,
    seed: int,
) -> Probe:
    """Runs the module on a few small ids, in float64 where it can. `UserError` when it does not run."""
    if max_len < MIN_LEN:
        raise UserError(f"max_len is {max_len}, and the checks need rows of at least {MIN_LEN} tokens")
    if vocab_size < MIN_VOCABULARY:
        raise UserError(f"vocab_size is {vocab_size}, and the checks need at least {MIN_VOCABULARY} ids")
    mask_use: MaskUse
    if forward is None:
        forward, mask_use = default_forward(pristine, kind)
    else:
        mask_use = "required" if n_tensors(forward) >= 2 else "none"
    if loss is None:
        blank_id = 1 if pad_id == 0 else 0
        default_loss = blanks_loss(forward, blank_id) if kind == "encoder" else next_token_loss(forward)
    probe = Probe(
        module=_awake(copy.deepcopy(pristine)),
        pristine=pristine,
        kind=kind,
        forward=forward,
        loss=loss or default_loss,
        loss_is_given=loss is not None,
        fresh=fresh,
        vocab_size=vocab_size,
        n_ids=MIN_VOCABULARY,  # until it is known what the tables hold
        n_outputs=0,
        source_vocab_size=source_vocab_size or vocab_size,
        pad_id=pad_id,
        max_len=max_len,
        mask_use=mask_use,
        tables=(),
        generator=torch.Generator().manual_seed(seed),
    )
    rows = probe.rows(2)
    try:
        probe.logits(rows)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"the module could not be run on token ids {tuple(rows.token_ids.shape)} "
            f"({type(error).__name__}: {first_line(error)}): give forward=lambda module, token_ids, …"
        ) from error
    probe = _in_float64(probe, rows)
    tables = _tables(probe, rows)
    n_outputs = probe.logits(rows).shape[-1]
    n_ids = min([vocab_size, n_outputs, *(table.num_embeddings for table in tables)])
    return replace(probe, tables=tables, n_outputs=n_outputs, n_ids=n_ids)


def _awake(module: nn.Module) -> nn.Module:
    """In eval mode, no parameter frozen or all zero, no gradient left over."""
    module.eval().zero_grad()
    for parameter in module.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    reinit_zero_parameters(module)
    return module


def _in_float64(probe: Probe, rows: Rows) -> Probe:
    """The module in float64, or as it was when the module (or the device) does not compute in it."""
    try:
        precise = replace(probe, module=copy.deepcopy(probe.module).double())
        return precise if precise.logits(rows).dtype == torch.float64 else probe
    except (RuntimeError, TypeError, NotImplementedError):
        return probe


def _tables(probe: Probe, rows: Rows) -> tuple[nn.Embedding, ...]:
    """The embeddings that look the token ids up: given them, they return one vector for each id.

    Some position tables are given the ids too, for their shape.
    """
    found: list[nn.Embedding] = []

    def look(table: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ids = rows.token_ids
        if inputs and torch.equal(inputs[0], ids) and output.shape[:2] == ids.shape:
            vectors = [output[ids == token_id] for token_id in ids.unique()]
            if all(torch.equal(v, v[:1].expand_as(v)) for v in vectors):
                found.append(cast(nn.Embedding, table))

    hooks = [m.register_forward_hook(look) for m in probe.module.modules() if isinstance(m, nn.Embedding)]
    try:
        probe.logits(rows)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(dict.fromkeys(found))
