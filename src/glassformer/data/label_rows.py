"""Encoding of texts, pairs of texts and tagged words as rows of tokens with the special tokens around them.

Special tokens are added here, so training and inference use the same ones.
"""

from collections.abc import Sequence

import numpy as np

from glassformer.common.errors import UserError
from glassformer.data.batching import NOT_SCORED, Example
from glassformer.data.tokens import NO_DROPOUT, BpeDropout
from glassformer.tokenization.special_tokens_template import Frame
from glassformer.tokenization.tokenizer import Tokenizer


def encode_texts(
    tokenizer: Tokenizer,
    texts: Sequence[Sequence[str]],
    max_len: int,
    *,
    dropout: BpeDropout = NO_DROPOUT,
    frame: Frame | None = None,
) -> tuple[list[Example], int]:
    """Encode texts or pairs in the tokenizer's frames (`[CLS] A [SEP] B [SEP]`); return rows and number of cut rows.

    If a pair is too long, the longer text is cut, token by token (Devlin 2019). `frame` replaces the tokenizer's frame
    of a single text. Raises `UserError` for a text without any token.
    """
    first, second = [text[0] for text in texts], [text[1] if len(text) > 1 else "" for text in texts]
    encoded = tokenizer.encode_batch([*first, *second], dropout=dropout.share, seed=dropout.seed)
    rows, n_cut = [], 0
    for number, (a, b) in enumerate(zip(encoded[: len(texts)], encoded[len(texts) :], strict=True)):
        is_pair = len(texts[number]) > 1
        around = tokenizer.frames.pair if is_pair else frame or tokenizer.frames.text
        room = max_len - around.n_added
        if room < 1 + is_pair:
            raise UserError(f"max_len is {max_len}, too small for a text and its special tokens; raise it")
        n_cut += len(a) + len(b) > room
        n_a, n_b = _cut_to(len(a), len(b), room)
        token_types: np.ndarray | None = None
        if is_pair:
            ids, types = around.around_pair(a[:n_a], b[:n_b])
            token_types = np.array(types, dtype=np.int64)
        else:
            ids = around.around(a[:n_a])
        if not ids:
            raise UserError(
                "a text has no token, and this tokenizer adds no special tokens to a text; use a text that is not empty"
            )
        rows.append(Example(np.array(ids, dtype=np.int64), token_types=token_types))
    return rows, n_cut


def _cut_to(n: int, m: int, room: int) -> tuple[int, int]:
    """Shorten the longer of two lengths step by step until their sum is `room`; of equal ones, the second.

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
    *,
    dropout: BpeDropout = NO_DROPOUT,
) -> tuple[list[Example], int]:
    """Encode words in the frame of a text; the first token of a word has the word's label, the others -100.

    Without `tags` the label of every word is 0. Each word except the first is encoded with a space before it. Tokens
    after `max_len` are cut off. Returns the rows and the number of cut rows.
    """
    frame, alone = tokenizer.frames.text, tokenizer.words_stand_alone
    room = max_len - frame.n_added
    space = "" if alone else " "
    flat = [space * (i > 0) + word for sentence in sentences for i, word in enumerate(sentence)]
    encoded = iter(tokenizer.encode_batch(flat, dropout=dropout.share, seed=dropout.seed))
    if tags is None:
        tags = [[0] * len(sentence) for sentence in sentences]
    rows, n_cut = [], 0
    for number, sentence in enumerate(sentences):
        ids: list[int] = []
        labels: list[int] = []
        for word, tag in zip(sentence, tags[number], strict=True):
            ids_of_word = next(encoded)
            if not ids_of_word:
                raise UserError(f"the word {word!r} has no token in this tokenizer; remove or replace it")
            ids += ids_of_word
            labels += [tag, *[NOT_SCORED] * (len(ids_of_word) - 1)]
        n_cut += len(ids) > room
        ids, labels = ids[:room], labels[:room]
        labels = [NOT_SCORED] * len(frame.before) + labels + [NOT_SCORED] * len(frame.after)
        rows.append(Example(np.array(frame.around(ids), dtype=np.int64), labels=np.array(labels, dtype=np.int64)))
    return rows, n_cut
