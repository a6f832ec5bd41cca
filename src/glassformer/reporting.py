"""Where the news of a run goes: a terminal, a test, nowhere."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from glassformer.evaluation.loss import LossReport


class Reporter(Protocol):
    """What the loop tells."""

    def log(self, text: str) -> None: ...

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None: ...

    def evaluation(self, step: int, reports: "dict[str, LossReport]", sample: str | None) -> None: ...


class LaunchReporter(Reporter, Protocol):
    """A reporter that also shows the preparations."""

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


class Silent:
    """A reporter that shows nothing."""

    def log(self, text: str) -> None: ...

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None: ...

    def evaluation(self, step: int, reports: "dict[str, LossReport]", sample: str | None) -> None: ...

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return nullcontext(lambda done, total: None)
