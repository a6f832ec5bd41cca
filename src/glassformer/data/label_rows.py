"""Texts, pairs of texts and tagged words as rows of tokens, with the special tokens that stand around them."""

from collections.abc import Sequence

import numpy as np

from glassformer.data.batching import Example
from glassformer.errors import UserError
from glassformer.tokenization.tokenizer import Tokenizer


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[Sequence[str]], max_len: int, labels: Sequence[float] | None = None
) -> tuple[list[Example], int]:
    """`[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]`, as far as the tokenizer has these; and how many rows were cut.

    Of a pair that is too long the longer text loses its end, token by token (Devlin 2019's rule).
    """
    first = tokenizer.encode_batch([text[0] for text in texts])
    second = tokenizer.encode_batch([text[1] if len(text) > 1 else "" for text in texts])
    cls, sep = ([] if i is None else [i] for i in (tokenizer.cls_id, tokenizer.sep_id))
    rows, n_cut = [], 0
    for number, (a, b) in enumerate(zip(first, second, strict=True)):
        is_pair = len(texts[number]) > 1
        room = max_len - len(cls) - len(sep) * (1 + is_pair)
        if room < 1 + is_pair:
            raise UserError(f"model.max_len is {max_len}: too few tokens for a text and what stands around it")
        n_cut += len(a) + len(b) > room
        kept_a, kept_b = _cut_to(len(a), len(b), room)
        one = [*cls, *a[:kept_a], *sep]
        other = [*b[:kept_b], *sep] if is_pair else []
        if not one + other:
            raise UserError("a text is empty, and this tokenizer has no [CLS] that could stand for it")
        types = np.array([0] * len(one) + [1] * len(other), dtype=np.int64)
        ids = np.array(one + other, dtype=np.int64)
        label = None if labels is None else labels[number]
        rows.append(Example(ids, token_types=types if is_pair else None, label=label))
    return rows, n_cut


def _cut_to(n: int, m: int, room: int) -> tuple[int, int]:
    """What is left of two lengths when the longer one gives way, of two equal ones the second.

    >>> _cut_to(10, 3, 9), _cut_to(10, 9, 8), _cut_to(5, 5, 9), _cut_to(2, 3, 9)
    ((6, 3), (4, 4), (5, 4), (2, 3))
    """
    if n + m <= room:
        return n, m
    half = (room + 1) // 2
    if n <= half:
        return n, room - n
    if m <= room - half:
        return room - m, m
    return half, room - half


def encode_tagged(
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    max_len: int,
    tags: Sequence[Sequence[int]] | None = None,
) -> tuple[list[Example], int]:
    """Words as tokens between `[CLS]` and `[SEP]`; the label of a word stands at its first token, others have -100.

    Without `tags` every word's label is 0. A word begins behind a space, but for the first. Words of which no token
    fits are cut off, and it is counted in how many sentences.
    """
    cls, sep = ([] if i is None else [i] for i in (tokenizer.cls_id, tokenizer.sep_id))
    room = max_len - len(cls) - len(sep)
    flat = [
        word if i == 0 or tokenizer.flavour in ("word", "whitespace", "whole_words") else f" {word}"
        for sentence in sentences
        for i, word in enumerate(sentence)
    ]
    encoded = iter(tokenizer.encode_batch(flat))
    rows, n_cut = [], 0
    for number, sentence in enumerate(sentences):
        ids, labels = list(cls), [-100] * len(cls)
        for place in range(len(sentence)):
            word = next(encoded)
            if not word:
                raise UserError(f"the word {sentence[place]!r} gives no token")
            ids += word
            labels += [0 if tags is None else tags[number][place], *[-100] * (len(word) - 1)]
        if len(ids) - len(cls) > room:
            n_cut += 1
            ids, labels = ids[: room + len(cls)], labels[: room + len(cls)]
        rows.append(
            Example(
                np.array(ids + sep, dtype=np.int64),
                labels=np.array(labels + [-100] * len(sep), dtype=np.int64),
            )
        )
    return rows, n_cut
