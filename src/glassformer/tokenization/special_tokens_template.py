"""What a model reads around a text: `[CLS] A [SEP]` of an encoder, `A </s>` of a source, `<s> A` of a prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tokenizers

from glassformer.errors import UserError


@dataclass(frozen=True)
class Frame:
    """Ids around one text, or around and between two, and the token types of a pair."""

    before: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    """Behind the first text and before the second."""
    between_types: tuple[int, ...] = ()
    """The token type of each of `between`: 0 where it belongs to the first text."""
    second_type: int = 1
    """The token type of a second text and of what stands behind it; a first text has 0."""

    @classmethod
    def parse(cls, template: str, vocab: Mapping[str, int]) -> "Frame":
        """The frame that a template describes (Devlin et al. 2019, section 3): special tokens and texts, separated by
        spaces; `A` is the first text, `B` the second.

        `UserError` for a template without its texts in order, and for a token that is not in `vocab`.

        >>> Frame.parse("[CLS] A [SEP] B [SEP]", {"[CLS]": 4, "[SEP]": 5}).around_pair([7, 8], [9])
        ([4, 7, 8, 5, 9, 5], [0, 0, 0, 0, 1, 1])
        """
        parts = template.split()
        texts = [part for part in parts if len(part) == 1 and "A" <= part <= "Z"]
        if texts not in (["A"], ["A", "B"]):
            raise UserError(f"the template {template!r} must name its texts A, B in order, each once: '[CLS] A [SEP]'")
        if missing := [part for part in parts if part not in texts and part not in vocab]:
            raise UserError(f"the template {template!r} needs {missing[0]}, which the tokenizer does not have")
        first, last = parts.index("A"), parts.index(texts[-1])
        tokens = (parts[:first], parts[last + 1 :], parts[first + 1 : last])
        before, behind, between = (tuple(vocab[token] for token in part) for part in tokens)
        return cls(before, behind, between, (0,) * len(between))

    @property
    def n_added(self) -> int:
        """Tokens that stand around and between the texts."""
        return len(self.before) + len(self.between) + len(self.behind)

    def around(self, ids: Sequence[int]) -> list[int]:
        """One text in its frame.

        >>> Frame(before=(4,), behind=(5,)).around([7, 8])
        [4, 7, 8, 5]
        """
        return [*self.before, *ids, *self.behind]

    def around_pair(self, first: Sequence[int], second: Sequence[int]) -> tuple[list[int], list[int]]:
        """Two texts in their frame: the token ids, and the token type of each.

        >>> Frame(before=(4,), behind=(5,), between=(5,), between_types=(0,)).around_pair([7, 8], [9])
        ([4, 7, 8, 5, 9, 5], [0, 0, 0, 0, 1, 1])
        """
        ids = [*self.before, *first, *self.between, *second, *self.behind]
        types = [0] * (len(self.before) + len(first)) + list(self.between_types)
        return ids, types + [self.second_type] * (len(ids) - len(types))


@dataclass(frozen=True)
class Frames:
    """The frame of each use of a text."""

    text: Frame
    """An encoder's text."""
    pair: Frame
    """An encoder's two texts."""
    source: Frame
    """What the encoder of an encoder-decoder reads."""
    target: Frame
    """What its decoder writes, behind the token that it starts from."""
    prompt: Frame
    """What a decoder goes on with."""

    @classmethod
    def of_ids(cls, cls_id: int | None, sep_id: int | None, eos_id: int | None) -> "Frames":
        """Those of our own tokenizers, as far as they have the tokens: `[CLS] A [SEP] B [SEP]`, and `A [EOS]`.

        >>> Frames.of_ids(4, 5, None).text
        Frame(before=(4,), behind=(5,), between=(), between_types=(), second_type=1)
        """
        first, separator, end = (() if i is None else (i,) for i in (cls_id, sep_id, eos_id))
        return cls(
            text=Frame(first, separator),
            pair=Frame(first, separator, separator, (0,) * len(separator)),
            source=Frame(behind=end),
            target=Frame(behind=end),
            prompt=Frame(),
        )

    @classmethod
    def of_file(cls, rust: tokenizers.Tokenizer) -> "Frames":
        """Those that the post-processor of a `tokenizer.json` makes, found by giving it a text and a pair."""
        tokens = sorted(rust.get_vocab(with_added_tokens=False), key=lambda token: (len(token), token))
        probes = ((text, len(rust.encode(text, add_special_tokens=False).ids)) for text in ["a", "1", *tokens[:1000]])
        probe, n = next((probe for probe in probes if probe[1]), ("", 0))
        if not n:
            raise UserError("it makes no token of any text")
        one, two = _frame(rust.encode(probe), 1, n), _frame(rust.encode(probe, probe), 2, n)
        n_ids = rust.get_vocab_size()
        if any(i >= n_ids for frame in (one, two) for i in (*frame.before, *frame.between, *frame.behind)):
            raise UserError("what its post_processor puts around a text is not in its vocabulary")
        return cls(text=one, pair=two, source=one, target=one, prompt=Frame(before=one.before))


def _frame(encoding: tokenizers.Encoding, n_texts: int, n: int) -> Frame:
    """What stands around one or two texts of `n` tokens; `UserError` for an order that no `Frame` can say."""
    another = UserError("its post_processor puts texts into another order than <before> A <between> B <behind>")
    ids, types = encoding.ids, encoding.type_ids
    places = [i for i, is_special in enumerate(encoding.special_tokens_mask) if not is_special]
    if len(places) != n_texts * n:
        raise another
    first, second = places[:n], places[n:]
    begin, end = places[0], places[-1] + 1
    if second:
        between = slice(first[-1] + 1, second[0])
        frame = Frame(tuple(ids[:begin]), tuple(ids[end:]), tuple(ids[between]), tuple(types[between]), types[-1])
        known = frame.around_pair([ids[i] for i in first], [ids[i] for i in second])
    else:
        frame = Frame(tuple(ids[:begin]), tuple(ids[end:]))
        known = frame.around([ids[i] for i in first]), [0] * len(ids)
    if (ids, types) != known:
        raise another
    return frame
