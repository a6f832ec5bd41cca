"""The choice of device and precision: earned by a trial of the model's kind, which is kept for the next time."""

import math
import platform
import warnings
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from glassformer.common import files
from glassformer.common.errors import Log, first_line
from glassformer.config.recurrent import ModelConfig
from glassformer.config.schema import to_dict
from glassformer.config.transformer import MAX_VOCAB
from glassformer.models.devices import choose_device
from glassformer.nn.kernels import processor
from glassformer.trial.operations import first_wrong
from glassformer.trial.step import (
    Example,
    difference,
    exact,
    example_of,
    results,
    rounding,
    sensitivities,
    small,
    step_seconds,
)

FASTER = 1.1
"""Smallest ratio of two times that decides: below it, the CPU and fp32 are used."""
ENOUGH, LEAST_TOKENS, MAX_TOKENS, MAX_LENGTH = 0.1, 256, 1024, 256
"""The step whose time is measured: its seconds on the CPU, its numbers of tokens, and the largest length of a row."""
FORMAT = 1
"""Number of the format of verdicts; another number makes all of them new."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Verdict:
    """Result of the trial of a device with a kind of model."""

    wrong: dict[str, str] = field(default_factory=dict)
    """For each precision in which the device computes wrongly: what differs, and the first wrong operation."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of a step in each precision that is right."""
    cpu_seconds: float = 0.0
    """Time of the same step on the CPU in fp32, for another device."""

    @property
    def best_precision(self) -> str:
        """The precision in which a step is fastest; fp32 unless bf16 is right and clearly faster.

        >>> Verdict(seconds={"fp32": 1.2, "bf16": 1.0}).best_precision, Verdict(seconds={"fp32": 1.0}).best_precision
        ('bf16', 'fp32')
        """
        plain, half = (self.seconds.get(name, math.inf) for name in ("fp32", "bf16"))
        return "bf16" if half * FASTER < plain else "fp32"

    @property
    def is_slower(self) -> bool:
        """True if a step takes clearly longer than on the CPU."""
        return min(self.seconds.values(), default=math.inf) > FASTER * self.cpu_seconds


def earned_device(name: str, config: ModelConfig, log: Log) -> torch.device:
    """Return the device of a setting; `auto` uses an accelerator only if it computes this kind of model right.

    The first use of a device with a kind of model takes a few seconds; then the result is kept. A named device is used
    in any case. If it computes wrongly, `log` gets a warning.
    """
    device = choose_device(name)
    if device.type == "cpu":
        return device
    verdict = verdict_on(device, config)
    if reason := verdict.wrong.get("fp32"):
        if name == "auto":
            log(f"{device.type} computes this kind of model wrongly, so the CPU is used: {reason}")
            return CPU
        log(f"{device.type} computes this kind of model wrongly: {reason}; --train.device cpu is right")
    elif name == "auto" and verdict.is_slower:
        fast, slow = verdict.cpu_seconds, min(verdict.seconds.values())
        log(f"the CPU is used: a step takes {1e3 * fast:.3g} ms there, and {1e3 * slow:.3g} ms on {device.type}")
        return CPU
    return device


def earned_precision(setting: str, config: ModelConfig, device: torch.device, is_long: bool) -> tuple[str, str]:
    """Return the precision in which a run trains, and the reason if `train.precision` is auto (else an empty text).

    A run on the CPU that is not long trains in fp32, without a measurement.

    >>> from glassformer.config.presets import preset
    >>> [earned_precision(setting, preset("gpt2"), CPU, is_long=False) for setting in ("bf16", "auto")]
    [('bf16', ''), ('fp32', 'a short run')]
    """
    if setting != "auto":
        return setting, ""
    if device.type == "cpu" and not is_long:
        return "fp32", "a short run"
    if device.type == "cpu" and not processor.this.packs_bfloat16:
        return "fp32", "the CPU has no bf16 instructions"
    verdict = verdict_on(device, config)
    if reason := verdict.wrong.get("fp32"):
        return "fp32", f"the {device.type} computes this kind of model wrongly: {reason}"
    if reason := verdict.wrong.get("bf16"):
        return "fp32", f"bf16 is wrong here: {reason}"
    if set(verdict.seconds) < {"bf16", "fp32"}:
        return "fp32", "the device has no bf16"
    ratio = verdict.seconds["fp32"] / verdict.seconds["bf16"]
    return verdict.best_precision, f"measured: bf16 is {ratio:.1f} times as fast as fp32"


def verdict_on(device: torch.device, config: ModelConfig) -> Verdict:
    """Return the verdict on a device for a kind of model: the one that is kept, or that of a new trial."""
    facts = _facts(device) | {"model": to_dict(config)}
    return files.kept(Verdict, facts, lambda: new_verdict(device, config))


def new_verdict(device: torch.device, config: ModelConfig) -> Verdict:
    """Try a device: compare steps in fp32 and bf16 with an exact one, and measure the time of those that are right."""
    trial = Trial(config)
    tried = ["fp32", "bf16"] if _has_bf16(device) else ["fp32"]
    wrong = {precision: found for precision in tried if (found := trial.fault(device, precision))}
    right = [precision for precision in tried if precision not in wrong]
    places = [(device, precision) for precision in right]
    if device != CPU:
        places.append((CPU, "fp32"))
    seconds = step_seconds(timed_example(config), places)
    return Verdict(wrong, dict(zip(right, seconds, strict=False)), seconds[-1] if seconds else 0.0)


class Trial:
    """An example of a kind of model, with its exact results."""

    def __init__(self, config: ModelConfig) -> None:
        self.example = example_of(small(config))
        self.true = exact(self.example)
        self.sensitivity = sensitivities(self.example, self.true)

    def fault(self, device: torch.device, precision: str = "fp32") -> str:
        """Return what a device computes wrongly, with the first wrong operation; an empty text if all is right."""
        try:
            found = results(self.example, device, torch.float32, precision)
            wrong = difference(found, self.true, self.sensitivity, rounding(self.example, precision))
        except (RuntimeError, NotImplementedError, TypeError, IndexError) as error:
            wrong = first_line(error)[:200]
        if not wrong or precision != "fp32":
            return wrong
        operation = ""
        with suppress(RuntimeError, NotImplementedError, TypeError, IndexError):  # the device has not even copies
            operation = first_wrong(self.example, device)
        return operation or wrong


def timed_example(config: ModelConfig) -> Example:
    """Return an example whose step on the CPU takes at least `ENOUGH` seconds, or has `MAX_TOKENS` tokens."""
    n_tokens, config = LEAST_TOKENS, small(config, vocab_size=MAX_VOCAB)
    while True:
        length = min(n_tokens, MAX_LENGTH, config.max_len)
        example = example_of(config, max(1, n_tokens // length), length)
        if n_tokens >= MAX_TOKENS or step_seconds(example, [(CPU, "fp32")], n_rounds=1)[0] >= ENOUGH:
            return example
        n_tokens *= 4


def _has_bf16(device: torch.device) -> bool:
    """Return True if products in bf16 are worth a trial: they exist, and the device does not emulate them."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return processor.this.packs_bfloat16
    try:
        with warnings.catch_warnings(action="error"), torch.autocast(device.type, dtype=torch.bfloat16):
            return True
    except (RuntimeError, AssertionError, AttributeError, UserWarning):
        return False


def _facts(device: torch.device) -> dict[str, Any]:
    """Return what a verdict depends on besides the model: hardware, driver and versions."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "torch": torch.__version__,
        "cpu": str(processor.this),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "device": device.type,
    }
    if device.type == "cuda":
        facts |= {"gpu": torch.cuda.get_device_name(device), "cuda": torch.version.cuda}
    return facts
