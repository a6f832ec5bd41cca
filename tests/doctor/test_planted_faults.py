"""The doctor finds every planted fault in models of other code, and reports no fault in correct ones."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from doctor.others import (
    GPT,
    LEN,
    LSTM,
    AbsolutePositions,
    BatchNorm,
    BillionAdded,
    Blind,
    CachedGPT,
    CacheForgetsPadding,
    CacheOffByOne,
    CausalBERT,
    DeafToTheSource,
    DropoutInEvaluation,
    EmptyRows,
    EmptyRowsOnlyInTheGradient,
    FilledWithTenThousand,
    FloatOfBool,
    IgnoresTheMask,
    InvertedPadding,
    MaskAfterSoftmax,
    MemoryPaddingForgotten,
    NoMask,
    NoTargetMask,
    OneAhead,
    PaddingOnQueries,
    PaddingReplacesCausal,
    SoftmaxOverQueries,
    TorchBERT,
    TorchSeq2Seq,
    TorchStack,
    TrilThenZero,
    TrueMayAttend,
    TwoMasksOfTorch,
    V,
    WideInit,
    WrongPolarity,
    gpt_with,
)
from glassformer.apps.doctor import Loss, check

SEQ2SEQ: dict[str, Any] = {
    "kind": "encoder-decoder",
    "forward": lambda module, ids, mask, source, source_mask: module(ids, mask, source, source_mask),
}
ENCODER: dict[str, Any] = {"kind": "encoder"}

SOUND: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "GPT": (CachedGPT, {"pad_id": 0}),
    "LSTM": (LSTM, {}),
    "nn.TransformerEncoder as GPT": (TorchStack, {}),
    "nn.TransformerEncoder as BERT": (TorchBERT, ENCODER),
    "nn.Transformer": (TorchSeq2Seq, SEQ2SEQ),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", SOUND)
def test_a_correct_model_passes_every_check(name: str, seed: int) -> None:
    build, arguments = SOUND[name]
    torch.manual_seed(seed)
    report = check(build(), vocab_size=V, max_len=LEN, fresh=build, seed=seed, **arguments)
    assert report.ok, str(report)


FAULTS: list[tuple[Callable[[], nn.Module], dict[str, Any], str]] = [
    (gpt_with(TrilThenZero), {}, "zero-scores"),
    (gpt_with(FilledWithTenThousand), {}, "large-scores"),
    (gpt_with(BillionAdded), {}, "large-scores"),
    (gpt_with(PaddingReplacesCausal), {}, "causality"),
    (gpt_with(PaddingOnQueries), {}, "padding-left"),
    (gpt_with(EmptyRows), {}, "empty-rows"),
    (gpt_with(EmptyRowsOnlyInTheGradient), {}, "empty-rows"),
    (gpt_with(WrongPolarity), {}, "padding-left"),
    (gpt_with(MaskAfterSoftmax), {}, "causality"),
    (gpt_with(MaskAfterSoftmax), {}, "causality-by-gradient"),
    (gpt_with(SoftmaxOverQueries), {}, "causality"),
    (gpt_with(OneAhead), {}, "causality-by-gradient"),
    (gpt_with(DropoutInEvaluation), {}, "deterministic"),
    (AbsolutePositions, {}, "padding-left"),
    (IgnoresTheMask, {}, "padding-left"),
    (BatchNorm, {}, "batch"),
    (CacheOffByOne, {}, "cache"),
    (CacheForgetsPadding, {}, "cache"),
    (lambda: GPT(n_logits=V - 8), {}, "vocabulary"),
    (lambda: GPT(n_logits=V + 8), {}, "vocabulary"),
    (lambda: GPT(n_embeddings=V - 8), {}, "vocabulary"),
    (WideInit, {"fresh": WideInit}, "loss-at-start"),
    (Blind, {}, "learns"),
    (NoMask, {}, "causality"),
    (TrueMayAttend, {}, "causality"),
    (FloatOfBool, {}, "causality"),
    (TwoMasksOfTorch, {}, "empty-rows"),
    (InvertedPadding, ENCODER, "padding-right"),
    (CausalBERT, ENCODER, "visibility"),
    (NoTargetMask, SEQ2SEQ, "causality"),
    (MemoryPaddingForgotten, SEQ2SEQ, "padding-right"),
    (DeafToTheSource, SEQ2SEQ, "visibility"),
]


@pytest.mark.parametrize(("build", "arguments", "name"), FAULTS)
def test_a_planted_fault_is_found(build: Callable[[], nn.Module], arguments: dict[str, Any], name: str) -> None:
    for seed in range(1 if name == "learns" else 2):  # a training takes as long as all other checks
        torch.manual_seed(seed)
        report = check(build(), vocab_size=V, max_len=LEN, checks=[name], seed=seed, **arguments)
        assert report.failed == (name,), str(report)


# --- Faults of the loss. ---


def pairs(module: nn.Module, ids: Tensor, mask: Tensor, ahead: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cross-entropy of each position, the mask of real ones, and the logits."""
    n = ids.shape[1] - ahead
    logits = module(ids, mask)[:, :n]
    nats = F.cross_entropy(logits.mT, ids[:, ahead:], reduction="none")
    return nats, mask[:, :n] & mask[:, ahead:], logits


def sound_loss(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask)
    return nats[real].sum(), int(real.sum())


def mean_of_micro_batch(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask)
    return nats[real].mean(), 1


def padding_counted(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, _, _ = pairs(module, ids, mask)
    return nats.sum(), nats.numel()


def divided_by_padding(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask)
    return nats[real].sum(), nats.numel()


def unshifted(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask, ahead=0)
    return nats[real].sum(), int(real.sum())


def shifted_twice(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask, ahead=2)
    return nats[real].sum(), int(real.sum())


def in_bits(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    total, n_targets = sound_loss(module, ids, mask)
    return total / math.log(2), n_targets


def test_a_correct_loss_passes_every_check() -> None:
    assert check(GPT(), vocab_size=V, loss=sound_loss, fresh=GPT).ok


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (mean_of_micro_batch, ("accumulation",)),
        (padding_counted, ("loss-padding",)),
        (divided_by_padding, ("loss-padding",)),
        (unshifted, ("shift",)),
        (shifted_twice, ("shift",)),
        (in_bits, ("loss-at-start",)),
    ],
)
def test_only_the_planted_fault_of_the_loss_is_found(loss: Loss, names: tuple[str, ...]) -> None:
    about_the_loss = ["accumulation", "loss-padding", "shift", "loss-at-start"]
    report = check(GPT(), vocab_size=V, loss=loss, fresh=GPT, checks=about_the_loss)
    assert report.failed == names, str(report)
