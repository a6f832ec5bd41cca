"""The examination: every check in order."""

import copy
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import nn

from glassformer.doctor import adapter, invariance, learning, visibility
from glassformer.doctor.adapter import Forward, Kind, Loss, MaskUse
from glassformer.doctor.probe import (
    MIN_LEN,
    MIN_VOCABULARY,
    Check,
    NotApplicable,
    Probe,
    awake,
    device_of,
    generators_kept,
    measured,
    on_copies_only,
    seed_everything,
)
from glassformer.doctor.report import Report, Result
from glassformer.errors import UserError, first_line, nearest_name

CHECKS: tuple[Check, ...] = (
    invariance.vocabulary,
    invariance.deterministic,
    visibility.causality,
    visibility.causality_by_gradient,
    visibility.visibility,
    visibility.large_scores,
    visibility.zero_scores,
    invariance.padding_right,
    invariance.padding_left,
    invariance.empty_rows,
    invariance.batch,
    invariance.cache,
    learning.accumulation,
    learning.loss_padding,
    learning.shift,
    learning.loss_at_start,
    learning.learns,
)


def check(
    module: nn.Module,
    *,
    vocab_size: int,
    kind: Kind = "decoder",
    forward: Forward | None = None,
    loss: Loss | None = None,
    fresh: Callable[[], nn.Module] | None = None,
    max_len: int = 16,
    pad_id: int | None = None,
    source_vocab_size: int | None = None,
    checks: Sequence[str] | None = None,
    seed: int = 0,
) -> Report:
    """Examines any module that turns token ids into logits; works on copies and changes nothing.

    `forward(module, token_ids, attention_mask)` returns logits (B, T, V); masks are (B, T) bool with True = a real
    token. A model without a mask is `forward(module, token_ids)`; with an encoder and a decoder, `source_ids` and
    `source_attention_mask` follow. It must use the module that it is given. By default: `module(token_ids, …)`
    with those of these names that the module's signature has.

    `loss`, with the same arguments, is the training loss of whole rows, shift and all: (sum of nats, number of
    targets). A loop that averages micro-batches is (mean, 1). `fresh` builds the module anew, for `loss-at-start`.
    `max_len` is the length in tokens that is probed. `pad_id`, when given, is never drawn as a real token.
    `checks` names those to run. Raises `UserError` for a module that cannot be run, or an unknown check.
    """
    chosen = CHECKS if checks is None else [_named(name) for name in checks]
    if max_len < MIN_LEN:
        raise UserError(f"max_len is {max_len}, and the checks need rows of at least {MIN_LEN} tokens")
    if vocab_size < MIN_VOCABULARY:
        raise UserError(f"vocab_size is {vocab_size}, and the checks need at least {MIN_VOCABULARY} ids")
    with generators_kept(device_of(module)), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # the module's own, hundreds of times
        with on_copies_only(module) as pristine:
            mask_use: MaskUse
            if forward is None:
                forward, mask_use = adapter.default_forward(pristine, kind)
            else:
                mask_use = "required" if adapter.n_tensors(forward) >= 2 else "none"
            if kind == "encoder":
                usual_loss = adapter.blanks_loss(forward, blank_id=1 if pad_id == 0 else 0)
            else:
                usual_loss = adapter.next_token_loss(forward)
            probe = Probe(
                module=awake(copy.deepcopy(pristine)),
                pristine=pristine,
                kind=kind,
                forward=forward,
                loss=loss or usual_loss,
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
            probe = measured(probe)
            return Report(tuple(_result(one, probe, seed) for one in chosen))


def _named(name: str) -> Check:
    names = [one.name for one in CHECKS]
    if name in names:
        return CHECKS[names.index(name)]
    near = nearest_name(name, names)
    hint = f"there are {', '.join(names)}" if near is None else f"did you mean {near!r}?"
    raise UserError(f"unknown check {name!r}: {hint}")


def _result(one: Check, probe: Probe, seed: int) -> Result:
    # Every check draws the same rows whether the others run or not.
    probe.generator.manual_seed(seed)
    seed_everything(seed)
    passed: bool | None
    try:
        passed, detail = one.run(probe)
    except NotApplicable as reason:
        passed, detail = None, str(reason)
    except UserError:
        raise
    except Exception as error:  # a module that crashes on a sound input has failed
        passed, detail = False, f"raised {type(error).__name__}: {first_line(error)}"
    return Result(one.name, passed, detail, one.meaning)
