"""Models that generate: the interface of Transformers and recurrent models (`Decodable`), and an ensemble of models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.inference.sampling import log_softmax
from glassformer.models.build import Network


class Decodable(Protocol):
    """Model that generates one token at a time.

    The state of a model keeps the past of each row between steps and belongs to the caller. `lengths` (B,) is the
    number of real tokens of each row so far. `select(rows)` returns a state whose row i is row `rows[i]` of this state.
    So it can repeat, reorder or drop rows. A state may also have these methods, which return a state:

    - `joined(other)`: the rows of this state, then those of `other`. Generation needs it with a batch size, and for
      several rows with a context that slides.
    - `crop(lengths)`: the first `lengths[i]` tokens of row i. Drafts need it. A recurrent state cannot forget tokens.
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
        """Read as `step` does; return the logits (B, V) at token `at[i]` of each row i, and the new state."""


@runtime_checkable
class Attending(Protocol):
    """Model that returns its attention to the source."""

    def step_attending(
        self, token_ids: Tensor, state: Any, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Any, Tensor | None]:
        """Read as `step` does; also return the attention weights (B, T, S) to the source, averaged over heads.

        They are those of the last layer, or None for a model without attention to the source.
        """


def branched(state: Any) -> Any:
    """Return the state prepared for beam search, or the state itself if it has no method `branched`."""
    return state.branched() if hasattr(state, "branched") else state


def joined(state: Any, other: Any) -> Any:
    """Return the rows of `state`, then those of `other`, in one state; raise `TypeError` if they cannot be joined."""
    if not hasattr(state, "joined"):
        raise TypeError(
            "generation with a batch size, or of several rows with a context that slides, needs a state with a method "
            f"joined, got {type(state).__name__}"
        )
    return state.joined(other)


def cropped(state: Any, lengths: Sequence[int]) -> Any:
    """Return the state of the first `lengths[i]` tokens of each row i; raise `UserError` if it has no method `crop`."""
    if not hasattr(state, "crop"):
        raise UserError(
            f"the state of this model ({type(state).__name__}) cannot forget tokens (it has no method crop), as drafts "
            "need: leave out prompt_lookup and the draft model"
        )
    return state.crop(lengths)


def read_at(
    model: Decodable, token_ids: Tensor, state: Any, attention_mask: Tensor | None, at: Tensor
) -> tuple[Tensor, Any]:
    """Read (B, T) more tokens; return the logits (B, V) at token `at[i]` of each row i, and the new state."""
    if isinstance(model, Reading):
        return model.read_at(token_ids, state, attention_mask, at)
    logits, state = model.step(token_ids, state, attention_mask)
    return logits[torch.arange(len(at), device=at.device), at], state


@dataclass(frozen=True)
class EnsembleState:
    """State of an ensemble: the state of each member."""

    members: list[Any]

    @property
    def lengths(self) -> Tensor:
        """Number of real tokens of each row so far, (B,)."""
        return self.members[0].lengths

    def select(self, rows: Tensor) -> "EnsembleState":
        return EnsembleState([member.select(rows) for member in self.members])

    def branched(self) -> "EnsembleState":
        return EnsembleState([branched(member) for member in self.members])


class Ensemble(nn.Module):
    """Ensemble of models: the arithmetic mean of their probabilities, as in Sutskever (2014) and later work.

    `forward` reads whole rows; `start` and `step` read one more token at a time. The outputs are the log of the mean
    probability. They are normalised already, and take the place of logits. Members may be encoder-decoders of any kind,
    and must share their vocabularies.
    """

    def __init__(self, models: Sequence[Network]) -> None:
        """Create the ensemble; raise `UserError` if the vocabulary sizes of the members differ."""
        super().__init__()
        configs = [model.config for model in models]
        for side, name in (("target", "vocab_size"), ("source", "encoder_vocab_size")):
            sizes = [getattr(config, name) for config in configs]
            if len(set(sizes)) > 1:
                raise UserError(
                    f"the models have {side} vocabularies of {' and '.join(map(str, sizes))} tokens: an ensemble "
                    "needs models that were trained with the same tokenizers"
                )
        longest, longest_source = min(c.max_len for c in configs), min(c.encoder_max_len for c in configs)
        self.config: ModelConfig = replace(configs[0], max_len=longest, source_max_len=longest_source)  # the smallest
        self.models, self.members = tuple(models), nn.ModuleList(models)

    def forward(self, **inputs: Tensor) -> Tensor:
        """Return the log of the mean probability (…, V)."""
        return mean_log_probs([model(**inputs) for model in self.models])

    def start(
        self, n_rows: int, max_len: int, source_ids: Tensor | None = None, source_attention_mask: Tensor | None = None
    ) -> EnsembleState:
        return EnsembleState([model.start(n_rows, max_len, source_ids, source_attention_mask) for model in self.models])

    def step(
        self, token_ids: Tensor, state: EnsembleState, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, EnsembleState]:
        """Read (B, T) more tokens; return the log of the mean probability, (B, T, V), and the new state."""
        steps = [m.step(token_ids, s, attention_mask) for m, s in zip(self.models, state.members, strict=True)]
        return mean_log_probs([logits for logits, _ in steps]), EnsembleState([member for _, member in steps])


def mean_log_probs(logits: Sequence[Tensor]) -> Tensor:
    """Compute log (Σ softmax(logitsᵢ) / n) of the logits (…, V) of n members, in fp32 or higher precision.

    >>> sure, unsure = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.9, 0.1]).log()
    >>> mean_log_probs([sure, unsure]).exp()
    tensor([0.7000, 0.3000])
    """
    return torch.stack([log_softmax(x) for x in logits]).logsumexp(dim=0) - math.log(len(logits))
