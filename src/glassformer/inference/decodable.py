"""What generation asks of a model; Transformers and recurrent models alike give it."""

from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor


class DecoderState(Protocol):
    """What a model remembers of each row between steps; owned by the caller."""

    @property
    def lengths(self) -> Tensor:
        """(B,) real tokens so far."""

    def select(self, rows: Tensor) -> Self:
        """The state whose row i is row `rows[i]` of this one: expands, reorders, drops."""


@runtime_checkable
class Branching(Protocol):
    """A state that can be told that each of its rows will be expanded to several, and then selects without copies."""

    def branched(self) -> Any:
        """The same rows; from now on a step adds one token per row."""


class Decodable(Protocol):
    """A model that can be asked for one more token at a time."""

    def start(
        self, n_rows: int, max_len: int, source_ids: Tensor | None = None, source_attention_mask: Tensor | None = None
    ) -> Any: ...

    def step(self, token_ids: Tensor, state: Any, attention_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """(B, T) more tokens → logits (B, T, V) and the state that holds them."""
