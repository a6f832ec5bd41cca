"""Frames, which are special tokens around texts (`[CLS] A [SEP]`, `A </s>`, `<s> A`), and padding after short rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from glassformer.common.errors import UserError


@dataclass(frozen=True)
class Frame:
    """Special token ids around one text, or around and between two texts, and the token types of a pair."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    """Ids after the first text and before the second."""
    between_types: tuple[int, ...] = ()
    """Token types of the ids in `between`: 0 for an id that belongs to the first text."""
    second_type: int = 1
    """Token type of the second text and of the ids after it; the first text has 0."""

    @property
    def n_added(self) -> int:
        """Number of special tokens around and between the texts."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of a text with the special tokens before and after them.

        >>> Frame(before=(4,), after=(5,)).around([7, 8])
        [4, 7, 8, 5]
        """
        return [*self.before, *ids, *self.after]

    def around_pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the ids of two texts with special tokens before, between and after them, and the token types.

        >>> Frame(before=(4,), after=(5,), between=(5,), between_types=(0,)).around_pair([7, 8], [9])
        ([4, 7, 8, 5, 9, 5], [0, 0, 0, 0, 1, 1])
        """
        ids = [*self.before, *first, *self.between, *second, *self.after]
        types = [0] * (len(self.before) + len(first)) + list(self.between_types)
        return ids, types + [self.second_type] * (len(ids) - len(types))


def template_processing(one: Frame, two: Frame, token_of: Callable[[int], str]) -> dict[str, Any]:
    """Return the `TemplateProcessing` of a `tokenizer.json` that puts `one` around a text, and `two` around a pair."""
    texts = {-1: "A", -2: "B"}  # negative numbers mean the two texts

    def piece(i: int, kind: int = 0) -> dict[str, Any]:
        if i in texts:
            return {"Sequence": {"id": texts[i], "type_id": kind}}
        return {"SpecialToken": {"id": token_of(i), "type_id": kind}}

    used = {token_of(i): i for i in (*one.around([]), *two.around_pair([], [])[0])}
    return {
        "type": "TemplateProcessing",
        "single": [piece(i) for i in one.around([-1])],
        "pair": [piece(i, kind) for i, kind in zip(*two.around_pair([-1], [-2]), strict=True)],
        "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]} for token, i in used.items()},
    }


@dataclass(frozen=True)
class Frames:
    """The special tokens that a tokenizer puts around texts: a `Frame` for each kind of input or output."""

    text: Frame
    """One text of an encoder."""
    pair: Frame
    """Two texts of an encoder."""
    source: Frame
    """Input of the encoder of an encoder-decoder."""
    target: Frame
    """Output of the decoder of an encoder-decoder, after its start token."""
    prompt: Frame
    """Prompt of a decoder."""

    @classmethod
    def of_ids(cls, cls_id: int | None, sep_id: int | None, eos_id: int | None) -> "Frames":
        """Make the frames of a trained tokenizer: `[CLS] A [SEP] B [SEP]` and `A [EOS]`. Tokens of None are left out.

        >>> Frames.of_ids(4, 5, None).text
        Frame(before=(4,), after=(5,), between=(), between_types=(), second_type=1)
        """
        first, separator, end = (() if i is None else (i,) for i in (cls_id, sep_id, eos_id))
        return cls(
            text=Frame(first, separator),
            pair=Frame(first, separator, separator, (0,) * len(separator)),
            source=Frame(after=end),
            target=Frame(after=end),
            prompt=Frame(),
        )

    @classmethod
    def of_file(cls, rust: tokenizers.Tokenizer) -> "Frames":
        """Find the special tokens that a `tokenizer.json` puts around texts, by encoding a text and a pair with it."""
        tokens = sorted(rust.get_vocab(with_added_tokens=False), key=lambda token: (len(token), token))
        probes = ((text, len(rust.encode(text, add_special_tokens=False).ids)) for text in ["a", "1", *tokens[:1000]])
        probe, n = next((probe for probe in probes if probe[1]), ("", 0))
        if not n:
            raise UserError("it gives no token for any tested text")
        one, two = _frame(rust.encode(probe), 1, n), _frame(rust.encode(probe, probe), 2, n)
        n_ids = rust.get_vocab_size()
        if any(i >= n_ids for frame in (one, two) for i in (*frame.before, *frame.between, *frame.after)):
            raise UserError("its post_processor adds a token that is not in its vocabulary")
        return cls(text=one, pair=two, source=one, target=one, prompt=Frame(before=one.before))


def _frame(encoding: tokenizers.Encoding, n_texts: int, n: int) -> Frame:
    """Return the special tokens around one or two encoded texts of `n` tokens; raise `UserError` for other patterns."""
    another = UserError(
        "its post_processor must put text A before text B, each once, with special tokens around them; the token types "
        "must be 0 until the end of A, and equal from the beginning of B"
    )
    ids, types = encoding.ids, encoding.type_ids
    positions = [i for i, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    texts = [encoding.sequence_ids[i] for i in positions]  # both probes have the same ids, so their order needs these
    if texts != [text for text in range(n_texts) for _ in range(n)]:
        raise another
    first, second = positions[:n], positions[n:]
    begin, end = positions[0], positions[-1] + 1
    if second:
        between = slice(first[-1] + 1, second[0])
        frame = Frame(tuple(ids[:begin]), tuple(ids[end:]), tuple(ids[between]), tuple(types[between]), types[-1])
        framed = frame.around_pair([ids[i] for i in first], [ids[i] for i in second])
    else:
        frame = Frame(tuple(ids[:begin]), tuple(ids[end:]))
        framed = frame.around([ids[i] for i in first]), [0] * len(ids)
    if (ids, types) != framed:
        raise another
    return frame


def pad(sequences: Sequence[npt.ArrayLike], pad_id: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Pad token ids at the right to an array (B, T), and return it with the attention mask (B, T): True = a real token.

    >>> ids, mask = pad([[5, 6, 7], [8]], 0)
    >>> ids.tolist(), mask.tolist()
    ([[5, 6, 7], [8, 0, 0]], [[True, True, True], [True, False, False]])
    """
    rows = [np.asarray(row, dtype=np.int64) for row in sequences]
    lengths = np.array([len(row) for row in rows], dtype=np.int64)[:, None]  # (B, 1)
    mask = np.arange(lengths.max(initial=0)) < lengths  # (B, T)
    ids = np.full(mask.shape, pad_id, dtype=np.int64)
    if rows:
        ids[mask] = np.concatenate(rows)  # row-major, as the True entries are
    return ids, mask
