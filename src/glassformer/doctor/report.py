"""What an examination found, for people and for programs."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """One check: `passed` is None when it does not apply, and `detail` then says why."""

    name: str
    passed: bool | None
    detail: str
    """What was measured, or why nothing was."""
    meaning: str
    """One sentence: what is wrong with a model that fails."""

    @property
    def status(self) -> str:
        return {True: "passed", False: "failed", None: "not applicable"}[self.passed]


@dataclass(frozen=True)
class Report:
    """All results, in the order of the examination.

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
        """No check failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(result.name for result in self.results if result.passed is False)

    def to_dict(self) -> dict[str, object]:
        """The report in JSON's types."""
        return {
            "ok": self.ok,
            "results": [
                {"name": r.name, "status": r.status, "detail": r.detail, "meaning": r.meaning} for r in self.results
            ],
        }

    def __repr__(self) -> str:
        """Three lines: how many passed, what failed, and where to read more."""
        failed = ", ".join(self.failed) or "none"
        return f"Report: {self._counts()}\n  failed: {failed}\n  print(report) shows every check and what it means"

    def _counts(self) -> str:
        n = Counter(r.status for r in self.results)
        return f"{n['passed']} passed, {n['failed']} failed, {n['not applicable']} not applicable"

    def __str__(self) -> str:
        """A plain table; the meaning stands under what failed."""
        width = max((len(r.name) for r in self.results), default=0)
        lines = []
        for r in self.results:
            mark = {True: "ok", False: "FAILED", None: "-"}[r.passed]
            lines.append(f"{mark:6}  {r.name:{width}}  {r.detail}")
            if r.passed is False:
                lines.append(f"{'':6}  {'':{width}}  {r.meaning}")
        lines.append(self._counts())
        return "\n".join(lines)
