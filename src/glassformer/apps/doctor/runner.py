"""The check runner and its report, for users and for programs."""

import copy
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from glassformer.apps.doctor import learning, properties
from glassformer.apps.doctor import probe as probing
from glassformer.apps.doctor.adapter import Interface
from glassformer.common.errors import UserError, did_you_mean, first_line

CHECKS: tuple[probing.Check, ...] = tuple(
    one for module in (properties, learning) for one in vars(module).values() if type(one) is probing.Check
)
"""All checks, in the order in which they run and are printed: that of their definitions."""


@dataclass(frozen=True)
class Result:
    """Result of one check; `passed=None` means that the check does not apply."""

    name: str
    passed: bool | None
    detail: str
    """The measured value, or the reason why the check does not apply."""
    meaning: str
    """The fault of a model that fails, in one sentence."""

    @property
    def status(self) -> str:
        return {True: "passed", False: "failed", None: "not applicable"}[self.passed]


@dataclass(frozen=True)
class Report:
    """All results, in the order of the checks.

    >>> report = Report((Result("causality", False, "earlier logits changed", "It sees the future."),))
    >>> report.ok
    False
    >>> print(report)
    FAILED  causality  earlier logits changed
                       It sees the future.
    0 passed, 1 failed, 0 not applicable
    """

    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """True if no check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(result.name for result in self.results if result.passed is False)

    def to_dict(self) -> dict[str, object]:
        """Return the report in JSON types."""
        results = [{"name": r.name, "status": r.status, "detail": r.detail, "meaning": r.meaning} for r in self.results]
        return {"ok": self.ok, "results": results}

    def __repr__(self) -> str:
        """Return three lines: the counts, the failed checks, and how to print the details."""
        failed = ", ".join(self.failed) or "none"
        return f"Report: {self._counts()}\n  failed: {failed}\n  print(report) shows every check and what it means"

    def _counts(self) -> str:
        n = Counter(r.status for r in self.results)
        return f"{n['passed']} passed, {n['failed']} failed, {n['not applicable']} not applicable"

    def __str__(self) -> str:
        """Return a plain table, with the meaning below each failed check."""
        width = max((len(r.name) for r in self.results), default=0)
        lines = []
        for r in self.results:
            mark = {True: "ok", False: "FAILED", None: "-"}[r.passed]
            lines.append(f"{mark:6}  {r.name:{width}}  {r.detail}")
            if r.passed is False:
                lines.append(f"{'':6}  {'':{width}}  {r.meaning}")
        lines.append(self._counts())
        return "\n".join(lines)


def check(module: nn.Module, interface: Interface, checks: Sequence[str] | None = None, seed: int = 0) -> Report:
    """Check any module that turns token ids into logits; work on copies and change nothing.

    `checks` lists the names of the checks to run. Raises `UserError` if the module cannot run, or for an unknown check.
    """
    chosen = CHECKS if checks is None else [_named(name) for name in checks]
    with probing.generators_kept(probing.device_of(module)), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")  # the module's own warnings, hundreds of times
        with probing.on_copies_only(module) as pristine:
            forward, mask_use = interface.resolved_forward(pristine)
            probe = probing.Probe(
                module=copy.deepcopy(pristine),
                pristine=pristine,
                interface=interface,
                forward=forward,
                loss=interface.loss or interface.usual_loss(forward),
                mask_use=mask_use,
                generator=torch.Generator().manual_seed(seed),
            )
            probe = probing.measured(probe)
            return Report(tuple(_result(one, probe, seed) for one in chosen))


def _named(name: str) -> probing.Check:
    by_name = {one.name: one for one in CHECKS}
    if name not in by_name:
        raise UserError(f"unknown check {name!r}: {did_you_mean(name, by_name, 'known checks are')}")
    return by_name[name]


def _result(one: probing.Check, probe: probing.Probe, seed: int) -> Result:
    # Every check draws the same rows, independent of the other checks.
    probe.generator.manual_seed(seed)
    probing.seed_everything(seed)
    passed: bool | None
    try:
        passed, detail = one.run(probe)
    except probing.NotApplicable as reason:
        passed, detail = None, str(reason)
    except UserError:
        raise
    except Exception as error:  # a module that crashes on valid input fails
        passed, detail = False, f"raised {type(error).__name__}: {first_line(error)}"
    return Result(one.name, passed, detail, one.meaning)
