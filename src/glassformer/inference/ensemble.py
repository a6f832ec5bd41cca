"""Several models as one: the mean of what they expect next."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from glassformer.errors import UserError
from glassformer.inference.beam import log_softmax
from glassformer.inference.decodable import Branching
from glassformer.models.build import Network


@dataclass(frozen=True)
class EnsembleState:
    """The state of each member."""

    members: list[Any]

    @property
    def lengths(self) -> Tensor:
        """(B,) real tokens so far."""
        return self.members[0].lengths

    def select(self, rows: Tensor) -> "EnsembleState":
        return EnsembleState([member.select(rows) for member in self.members])

    def branched(self, width: int) -> "EnsembleState":
        return EnsembleState([m.branched(width) if isinstance(m, Branching) else m for m in self.members])

    def crop(self, lengths: Tensor) -> "EnsembleState":
        return EnsembleState([member.crop(lengths) for member in self.members])


class Ensemble:
    """p(next) = the arithmetic mean of the members' probabilities, as Sutskever (2014) and many after decode.

    The members may be of any kinds; they share their vocabularies. Raises `UserError` when these differ in size.
    """

    def __init__(self, models: Sequence[Network]) -> None:
        for name, sizes in (
            ("target", [model.config.vocab_size for model in models]),
            ("source", [model.config.source_vocab_size or model.config.vocab_size for model in models]),
        ):
            if len(set(sizes)) > 1:
                raise UserError(
                    f"the models have {name} vocabularies of {' and '.join(map(str, sizes))} tokens: an ensemble "
                    "needs models that were trained with the same tokenizers"
                )
        self.models = models

    def start(
        self,
        n_rows: int,
        max_len: int,
        source_ids: Tensor | None = None,
        source_attention_mask: Tensor | None = None,
    ) -> EnsembleState:
        return EnsembleState([model.start(n_rows, max_len, source_ids, source_attention_mask) for model in self.models])

    def step(
        self, token_ids: Tensor, state: EnsembleState, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, EnsembleState]:
        """(B, T) more tokens → the log of the mean probability, (B, T, V): logits that are normalised already."""
        steps = [m.step(token_ids, s, attention_mask) for m, s in zip(self.models, state.members, strict=True)]
        log_probs = torch.stack([log_softmax(logits) for logits, _ in steps])
        mean = log_probs.logsumexp(dim=0) - math.log(len(steps))
        return mean, EnsembleState([member for _, member in steps])
