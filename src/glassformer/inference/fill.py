"""Mask filling: candidates from an encoder, or a new text from a denoising encoder-decoder."""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import torch

from glassformer.common import notebook
from glassformer.common.errors import UserError, quoted, require_integer
from glassformer.inference.text import never_written
from glassformer.inference.translator import Translator
from glassformer.models.build import Network
from glassformer.tokenization.tokenizer import Tokenizer

MASK = "[MASK]"


@dataclass(frozen=True)
class Candidate:
    """Candidate token for a mask."""

    text: str
    """Text of the token, including its leading space."""
    probability: float
    token_id: int


@dataclass(frozen=True)
class Filling:
    """A text with its masks filled."""

    text: str
    """The text with the most probable token at each mask, or as written by a denoising model."""
    candidates: list[list[Candidate]]
    """Candidates of each mask, best first; empty for a denoising model, which writes whole texts."""

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def _repr_html_(self) -> str:
        rows = [{"mask": n} | asdict(one) for n, some in enumerate(self.candidates, 1) for one in some]
        text = notebook.table({"text": self.text})
        if rows:
            text += notebook.frame(rows)
        return text


def mask_token(tokenizer: Tokenizer) -> str:
    """Return the mask token of a tokenizer, or `[MASK]` for a tokenizer without one."""
    return MASK if tokenizer.mask_id is None else tokenizer.id_to_token(tokenizer.mask_id)


def with_masks(tokenizer: Tokenizer, text: str) -> str:
    """Replace every `[MASK]` by the mask token of the tokenizer; raise `UserError` if the text has no mask.

    For a byte-level tokenizer, the space before a mask is removed: the filled token has its own leading space.
    """
    mask = mask_token(tokenizer)
    text = text.replace(MASK, mask)
    if mask not in text:
        raise UserError(f"the text has no {MASK} to fill: {quoted(text)}; add one")
    return text.replace(f" {mask}", mask) if tokenizer.scheme == "byte" else text


def masked_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text with `[MASK]`s as masks; raise `UserError` if the text has no mask."""
    if tokenizer.mask_id is None:
        raise UserError("the model's tokenizer has no [MASK]: use a model trained with masks")
    return tokenizer.encode(with_masks(tokenizer, text), allow_special=[tokenizer.id_to_token(tokenizer.mask_id)])


class Filler(Protocol):
    """Model that fills the masks of a text."""

    def ids(self, text: str) -> list[int]:
        """Return the ids that the encoder reads for a text with `[MASK]`s."""

    def fill(self, text: str, n: int, **settings: Any) -> Filling:
        """Fill the masks of a text; `n` is the number of candidates, `settings` are fields of `BeamConfig`."""


@dataclass(frozen=True)
class MaskFiller(Filler):
    """Encoder that predicts the token of each mask."""

    network: Network
    tokenizer: Tokenizer
    device: torch.device | str = "cpu"
    max_masks = sys.maxsize

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.frames.text.around(masked_ids(self.tokenizer, text))

    @torch.inference_mode()
    def fill(self, text: str, n: int = 5, **settings: Any) -> Filling:
        """Return the `n` most probable tokens for each mask independently, in one forward with all masks in place."""
        # Check the arguments
        if settings:
            raise UserError(f"{min(settings)}: an encoder fills masks without a search; n=… is how many candidates")
        require_integer("n", n, 1, "the number of candidates per mask")
        network, tokenizer, device = self.network, self.tokenizer, self.device
        row = self.ids(text)
        _require_room(row, network.config.max_len)

        # Predict all masks in one forward
        positions = [i for i, token in enumerate(row) if token == tokenizer.mask_id]
        loss_positions = torch.tensor(positions, device=device)
        logits = network(torch.tensor([row], device=device), loss_positions=loss_positions)  # (N, V)
        suppress_ids = never_written(tokenizer, network.config.vocab_size)
        if tokenizer.eos_id is not None:
            suppress_ids.append(tokenizer.eos_id)
        logits[:, suppress_ids] = -torch.inf
        best = logits.float().softmax(dim=1).topk(min(n, tokenizer.vocab_size - len(suppress_ids)))

        # Put the best candidate at each mask
        candidates = [
            [Candidate(tokenizer.decode([token]), p, token) for p, token in zip(values, tokens, strict=True)]
            for values, tokens in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
        filled = list(row)
        for position, of_mask in zip(positions, candidates, strict=True):
            filled[position] = of_mask[0].token_id
        return Filling(tokenizer.decode(filled), candidates)


@dataclass(frozen=True)
class WritingFiller(Filler):
    """Encoder-decoder that fills masks by writing; a mask may become several tokens.

    Without `sentinel_ids`, the model writes the whole text (infilling). With them, the encoder reads a sentinel in
    place of each mask, and the model writes each sentinel and the ids that replace it.
    """

    translator: Translator
    sentinel_ids: Sequence[int] = ()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.translator.tokenizer

    @property
    def max_masks(self) -> int:
        """Largest number of masks in a text: the number of sentinels, if there are any."""
        return len(self.sentinel_ids) or sys.maxsize

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.frames.source.around(source_with_masks(self.tokenizer, text, self.sentinel_ids))

    def write(self, ids: Sequence[int], **settings: Any) -> list[int]:
        """Return the best target of `ids`, the input of the encoder, without its end token."""
        _require_room(ids, self.translator.source_max_len)
        search = self.translator.search(self.translator.beam(settings), allowed=self.sentinel_ids)
        ((best, *_),) = self.translator.hypotheses([ids], search)
        return best.text_ids

    def fill(self, text: str, n: int = 5, **settings: Any) -> Filling:
        written = self.write(self.ids(text), **settings)
        if self.sentinel_ids:
            written = restore_spans(
                source_with_masks(self.tokenizer, text, self.sentinel_ids), written, self.sentinel_ids
            )
        return Filling(self.tokenizer.decode(written), [])


def source_with_masks(tokenizer: Tokenizer, text: str, sentinel_ids: Sequence[int] = ()) -> list[int]:
    """Return the ids of a text; each `[MASK]` becomes the mask token, or the next of `sentinel_ids` if there are any.

    Raises `UserError` if the text has no mask, or more masks than there are sentinels.
    """
    if not sentinel_ids:
        return masked_ids(tokenizer, text)
    parts = with_masks(tokenizer, text).split(mask_token(tokenizer))
    if len(parts) - 1 > len(sentinel_ids):
        raise UserError(f"the text has {len(parts) - 1} masks and the model can fill {len(sentinel_ids)}: remove some")
    source = tokenizer.encode(parts[0])
    for sentinel, part in zip(sentinel_ids, parts[1:], strict=False):
        source += [sentinel, *tokenizer.encode(part)]
    return source


def restore_spans(source: Sequence[int], target: Sequence[int], sentinel_ids: Sequence[int]) -> list[int]:
    """Return `source` with each sentinel replaced by the ids after the same sentinel in `target`, if any.

    This inverts `noise.corrupt_spans`. A model may write any target. Ids before the first sentinel of the target, and
    ids after a sentinel that `source` lacks, are dropped.

    >>> words = "<0> <1> the cat sat on the mat".split()
    >>> print(*(words[i] for i in restore_spans([2, 0, 6, 1], [0, 3, 4, 5, 1, 7], sentinel_ids=[0, 1])))
    the cat sat on the mat
    """
    spans: dict[int, list[int]] = {sentinel: [] for sentinel in sentinel_ids}
    latest: list[int] = []
    for token in target:
        if token in spans:
            latest = spans[token]
        else:
            latest.append(token)
    row: list[int] = []
    for token in source:
        row += spans.get(token, [token])
    return row


def _require_room(ids: Sequence[int], longest: int) -> None:
    if len(ids) > longest:
        raise UserError(f"the text has {len(ids)} tokens and the model reads at most {longest}: shorten it")
