"""The examination: every check in order, each with the one sentence on what its failure means."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from glassformer.doctor import invariance, learning, visibility
from glassformer.doctor.adapter import Forward, Kind, Loss
from glassformer.doctor.probe import NotApplicable, Probe, device_of, generators_kept, seed_everything
from glassformer.doctor.report import Report, Result
from glassformer.doctor.setup import on_copies_only, set_up
from glassformer.errors import UserError, first_line, nearest_name


@dataclass(frozen=True)
class Check:
    """A property: its name, what it means when it fails, and the function that looks."""

    name: str
    meaning: str
    run: Callable[[Probe], tuple[bool, str]]


CHECKS = (
    Check(
        "vocabulary",
        "Embedding, output and vocabulary count differently: some ids crash, or cannot be produced, or do not exist.",
        invariance.vocabulary,
    ),
    Check(
        "deterministic",
        "Evaluation is random: dropout (or another draw) is on in eval mode, so no result can be repeated.",
        invariance.deterministic,
    ),
    Check(
        "causality",
        "The model sees the tokens that it is to predict: training loss will be too good, and generation nonsense.",
        visibility.causality,
    ),
    Check(
        "causality-by-gradient",
        "Logits depend on later tokens (or on other rows): the mask is missing, wrong, or applied at the wrong place.",
        visibility.causality_by_gradient,
    ),
    Check(
        "visibility",
        "Tokens that should be read have no effect: a mask hides them, by its polarity or by being causal.",
        visibility.visibility,
    ),
    Check(
        "large-scores",
        "The mask is a finite number (-1e4, -1e9) that large scores out-vote: mask with -inf or a bool mask.",
        visibility.large_scores,
    ),
    Check(
        "zero-scores",
        "A real score of exactly 0 is taken for a masked one, or hidden keys count: build the mask from positions.",
        visibility.zero_scores,
    ),
    Check(
        "padding-right",
        "Padding after a text changes what the model says of it: keys of padding are not masked, or masked wrongly.",
        invariance.padding_right,
    ),
    Check(
        "padding-left",
        "A prompt in a left-padded batch reads unlike the prompt alone: mask padded keys, count positions by the mask.",
        invariance.padding_left,
    ),
    Check(
        "empty-rows",
        "A query that may attend to nothing gives NaN, and one such row destroys the whole gradient.",
        invariance.empty_rows,
    ),
    Check(
        "batch",
        "What a text gets depends on its neighbours in the batch: something normalises or mixes across rows.",
        invariance.batch,
    ),
    Check(
        "cache", "Generation with the cache computes another function than the one that was trained.", invariance.cache
    ),
    Check(
        "accumulation",
        "Means of micro-batches are averaged: tokens of short ones weigh more; sum, then divide once by all targets.",
        learning.grad_accumulation,
    ),
    Check(
        "loss-padding",
        "Padding is counted in the loss: it is diluted, and the model is trained to predict padding.",
        learning.loss_padding,
    ),
    Check(
        "shift",
        "The model is not trained on the next token: inputs and labels must differ by exactly one position.",
        learning.shift,
    ),
    Check(
        "loss-at-start",
        "An untrained model is confident: its initialisation is too wide, or the loss is not in nats per token.",
        learning.loss_at_start,
    ),
    Check(
        "learns",
        "Not even one batch can be learned by heart: gradients do not reach the weights, or the inputs are not read.",
        learning.learns,
    ),
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
    with generators_kept(device_of(module)), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # the module's own, hundreds of times
        with on_copies_only(module) as pristine:
            probe = set_up(
                pristine,
                vocab_size=vocab_size,
                kind=kind,
                forward=forward,
                loss=loss,
                fresh=fresh,
                max_len=max_len,
                pad_id=pad_id,
                source_vocab_size=source_vocab_size,
                seed=seed,
            )
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
