"""Interfaces that generation needs; Transformers and recurrent models implement them."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from glassformer.common.errors import UserError


class Decodable(Protocol):
    """Model that generates one token at a time.

    Its state keeps the past of each row between steps and belongs to the caller. It has `lengths`, (B,) real tokens so
    far, and `select(rows)`, the state whose row i is row `rows[i]` of this one; it expands, reorders or drops rows. It
    may also have these methods, which return a state:

    - `joined(other)`: the rows of this one, then those of `other`; for generation with a batch size, or of several rows
      with a context that slides;
    - `crop(lengths)`: the first `lengths[i]` tokens of row i, for drafts; a recurrent state cannot forget tokens;
    - `branched()`: the same rows, prepared for beam search: a step adds one token per row, and `select` copies nothing.
    """

    def start(
        self, n_rows: int, max_len: int, source_ids: Tensor | None = None, source_attention_mask: Tensor | None = None
    ) -> Any: ...

    def step(self, token_ids: Tensor, state: Any, attention_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Read (B, T) more tokens; return logits (B, T, V) and the new state."""


@runtime_checkable
class Reading(Protocol):
    """Model that reads a prompt without the logits of all its tokens."""

    def read_at(self, token_ids: Tensor, state: Any, attention_mask: Tensor | None, at: Tensor) -> tuple[Tensor, Any]:
        """Read as `step` does; return the logits (B, V) of one token per row, number `at` (B,), and the new state."""


@runtime_checkable
class Attending(Protocol):
    """Model that returns its attention to the source."""

    def step_attending(
        self, token_ids: Tensor, state: Any, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Any, Tensor | None]:
        """Read as `step` does; also return the weights (B, T, S) of the last attention, their mean over heads.

        They are None for a model without attention to the source.
        """


def branched(state: Any) -> Any:
    """Return the state ready to branch; itself if it has no method `branched`."""
    return state.branched() if hasattr(state, "branched") else state


def joined(state: Any, other: Any) -> Any:
    """Return the state with the rows of `state`, then those of `other`; raise `TypeError` if it cannot be joined."""
    if not hasattr(state, "joined"):
        raise TypeError(
            "generation with a batch size, or of several rows with a context that slides, needs a state with a method "
            f"joined, got {type(state).__name__}"
        )
    return state.joined(other)


def cropped(state: Any, lengths: Sequence[int]) -> Any:
    """Return the state of the first `lengths[i]` tokens of row i; raise `UserError` if it cannot forget tokens."""
    if not hasattr(state, "crop"):
        raise UserError(
            f"the state of this model ({type(state).__name__}) cannot forget tokens (it has no method crop), as drafts "
            "need: leave out prompt_lookup and the draft model"
        )
    return state.crop(lengths)


def read_at(
    model: Decodable, token_ids: Tensor, state: Any, attention_mask: Tensor | None, at: Tensor
) -> tuple[Tensor, Any]:
    """Read (B, T) more tokens; return the logits (B, V) of one token per row, number `at` (B,), and the new state."""
    if isinstance(model, Reading):
        return model.read_at(token_ids, state, attention_mask, at)
    logits, state = model.step(token_ids, state, attention_mask)
    return logits[torch.arange(len(at), device=at.device), at], state
