"""What generation asks of a model; Transformers and recurrent models alike give it."""

from typing import Any, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Branching(Protocol):
    """A state that can be told that each of its rows will be expanded to several, and then selects without copies."""

    def branched(self) -> Any:
        """The same rows; from now on a step adds one token per row."""


class Decodable(Protocol):
    """A model that can be asked for one more token at a time.

    Its state is what it remembers of each row between steps, owned by the caller. It has `lengths`, (B,) real tokens
    so far, and `select(rows)`, the state whose row i is row `rows[i]` of this one: expands, reorders, drops.
    """

    def start(
        self, n_rows: int, max_len: int, source_ids: Tensor | None = None, source_attention_mask: Tensor | None = None
    ) -> Any: ...

    def step(self, token_ids: Tensor, state: Any, attention_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """(B, T) more tokens → logits (B, T, V) and the state that holds them."""
