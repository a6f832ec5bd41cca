"""What a trained model is evaluated on: the held-out part of its own data, or other data of the same kind."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from glassformer import files
from glassformer.data.batching import Example
from glassformer.errors import UserError
from glassformer.objectives.objective import Objective

Place = str | Path | None
R = TypeVar("R")


@dataclass(frozen=True)
class Places:
    """Where other data stands; nothing of it = the validation side of the run's own data."""

    path: Place = None
    source: Place = None
    target: Place = None

    def __post_init__(self) -> None:
        """Raises `UserError` for what is no path."""
        for name, given in vars(self).items():
            if given is not None:
                files.as_path(given, name)

    def path_alone(self, name: str, kind: str) -> Place:
        """The one file, of a model that has no source; `UserError` that names the `kind` of its data."""
        if self.source is not None or self.target is not None:
            raise UserError(f"{name} has no source and is evaluated on {kind}: give it as --data.path FILE")
        return self.path


@dataclass(frozen=True)
class EvaluationData(Generic[R]):
    """Batches, and what is to be made of them."""

    batches: Callable[[], Iterable[Sequence[Example]]]
    objective: Objective
    n_targets: int
    """About how many there are, for progress."""
    n_bytes: int | None = None
    """That the targets stand for, where they are known."""
    records: Sequence[R] = ()
    """What the batches are made of, where scores need it."""
