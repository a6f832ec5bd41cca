"""Special tokens around a text: `[CLS] A [SEP]` for an encoder, `A </s>` for a source, `<s> A` for a prompt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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

    @classmethod
    def parse(cls, template: str, vocab: Mapping[str, int]) -> "Frame":
        """Parse a template (Devlin et al. 2019, section 3) of special tokens and texts, separated by spaces.

        `A` is the first text, `B` the second. Raises `UserError` if the texts are not in this order, each once, or for
        a token that is not in `vocab`.

        >>> Frame.parse("[CLS] A [SEP] B [SEP]", {"[CLS]": 4, "[SEP]": 5}).around_pair([7, 8], [9])
        ([4, 7, 8, 5, 9, 5], [0, 0, 0, 0, 1, 1])
        """
        parts = template.split()
        texts = [part for part in parts if len(part) == 1 and "A" <= part <= "Z"]
        if texts not in (["A"], ["A", "B"]):
            raise UserError(f"template: expected A, or A and B in order, as in '[CLS] A [SEP]', got {template!r}")
        if missing := [part for part in parts if part not in texts and part not in vocab]:
            raise UserError(f"the template {template!r} has {missing[0]}, which is not a token of the tokenizer")
        first, last = parts.index("A"), parts.index(texts[-1])
        tokens = (parts[:first], parts[last + 1 :], parts[first + 1 : last])
        before, after, between = (tuple(vocab[token] for token in part) for part in tokens)
        return cls(before, after, between, (0,) * len(between))

    @property
    def n_added(self) -> int:
        """Number of special tokens around and between the texts."""
        return len(self.before) + len(self.between) + len(self.after)

    def around(self, ids: Sequence[int]) -> list[int]:
        """Put the frame around one text.

        >>> Frame(before=(4,), after=(5,)).around([7, 8])
        [4, 7, 8, 5]
        """
        return [*self.before, *ids, *self.after]

    def around_pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Put the frame around two texts; return the token ids and their token types.

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
    """The frames of a tokenizer, one for each kind of input or output."""

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
        """Make the frames of a trained tokenizer, `[CLS] A [SEP] B [SEP]` and `A [EOS]`, without tokens that it lacks.

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
        """Determine the frames of the post-processor of a `tokenizer.json` by encoding a text and a pair with it."""
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
    """Return the frame of one or two encoded texts of `n` tokens; raise `UserError` if `Frame` cannot represent it."""
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
