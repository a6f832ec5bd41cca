"""Tokenizers of other people's models, which the Rust library runs as their file says.

Special tokens in a text are ordinary text here too, unless they are allowed. Some models would find them there even
so: Unigram's pieces contain `</s>`. Plain text therefore goes through a copy in which no text can spell them.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import tokenizers

from glassformer.errors import UserError
from glassformer.tokenization.decoding import readable, token_bytes
from glassformer.tokenization.pretokenize import check_text
from glassformer.tokenization.rust_tokenizer import no_panic, without_forged
from glassformer.tokenization.validate_tokenizer_json import tables

HIDDEN = "\uffff"
"""Stands before what no text shall spell: a code point that is no character."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
SPACE = "▁"


class ImportedCodec:
    """Texts to ids and back as the Rust library does it for one `tokenizer.json`."""

    def __init__(self, rust: tokenizers.Tokenizer, description: Mapping[str, Any], vocab: Mapping[str, int]) -> None:
        """`description` is the parsed file of `rust`."""
        self._rust, self._vocab = rust, vocab
        self._decoders = [part for part in tables(description["decoder"]) if "type" in part]
        self._added = {token["content"]: token for token in description["added_tokens"]}
        self._special = frozenset(token for token, flags in self._added.items() if flags["special"])
        model = description["model"]
        unknown = model.get("unk_id") if model["type"] == "Unigram" else vocab.get(model.get("unk_token"))
        self._never = {vocab[token] for token in self._special} - {unknown}
        self._encoder = lru_cache(maxsize=4)(self._make_encoder)

    def encode(self, texts: Iterable[str], allow_special: Collection[str] = ()) -> list[list[int]]:
        """The ids of each text; with all special tokens allowed, those that `transformers` gives."""
        texts, allowed = list(texts), frozenset(allow_special)
        for text in texts:
            check_text(text)
        with no_panic("this tokenizer cannot encode the text"):
            found = self._encoder(allowed).encode_batch_fast(texts, add_special_tokens=False)
        rows = [encoding.ids for encoding in found]
        never = self._never.difference(self._vocab[token] for token in allowed)
        for row in rows:
            if not never.isdisjoint(row):
                token = list(self._vocab)[min(never.intersection(row))]
                raise UserError(f"the text spells the special token {token} in a way that cannot be told from it")
        return rows

    def _make_encoder(self, allowed: frozenset[str]) -> tokenizers.Tokenizer:
        """A copy that reads the allowed special tokens in a text, and no others; itself where none need be hidden."""
        if not allowed and self._special.isdisjoint(self._rust.get_vocab(with_added_tokens=False)):
            self._rust.encode_special_tokens = True
            return self._rust
        text = hide(json.loads(self._rust.to_str()), self._special - allowed, allowed)
        rust = tokenizers.Tokenizer.from_str(json.dumps(text))
        rust.encode_special_tokens = True
        return rust

    @cached_property
    def words_stand_alone(self) -> bool:
        """Whether a word has the same tokens by itself as behind a space."""
        one, two = self.encode(["a", "a a"])
        return two == one + one

    def decode(self, ids: Iterable[int], skip_special: bool) -> str:
        """The text of ids, as `transformers` gives it without its cleaning up of spaces."""
        with no_panic("this tokenizer cannot decode the ids"):
            return self._rust.decode(_within(ids, len(self._vocab)), skip_special_tokens=skip_special)

    def stream(self, skip_special: bool) -> "ImportedStream":
        """A decoder for ids that come one at a time."""
        skipped = {self._vocab[token] for token in self._special} if skip_special else set()
        return ImportedStream(lambda ids: self.decode(ids, False), frozenset(skipped), self._bytes, len(self._vocab))

    def show(self, token: str) -> str:
        """A token so that a person can read it."""
        if token in self._added:
            return token
        if self._has("ByteLevel"):
            return readable(_level_bytes(token))
        return token if self._has("WordPiece") else token.replace(SPACE, " ")

    @cached_property
    def pieces(self) -> list[bytes]:
        """By id, the bytes of text that a token stands for; a space before a word belongs to it."""
        return [self._piece(token) for token in self._vocab]

    def _piece(self, token: str) -> bytes:
        if token in self._added:
            return token.encode("utf-8")
        if self._has("ByteLevel"):
            return _level_bytes(token)
        if self._vocab[token] in self._bytes:
            return bytes([int(token[3:5], 16)])
        for part in self._decoders:
            if part["type"] == "WordPiece":
                prefix = part["prefix"]
                return (token.removeprefix(prefix) if token.startswith(prefix) else f" {token}").encode("utf-8")
            if part["type"] == "BPEDecoder":
                return token.replace(part["suffix"], " ").encode("utf-8")
        return token.replace(SPACE, " ").encode("utf-8")

    @cached_property
    def _bytes(self) -> frozenset[int]:
        """The ids of `<0x00>` and its like, which the decoder joins to characters."""
        if not self._has("ByteFallback"):
            return frozenset()
        return frozenset(i for token, i in self._vocab.items() if BYTE.fullmatch(token))

    def _has(self, decoder: str) -> bool:
        return any(part["type"] == decoder for part in self._decoders)


class ImportedStream:
    """Turns ids into text as they come: `push` each id, `flush` at the end; what they return is the whole text.

    What a token adds depends on those before it, so it is decoded together with the last one that is whole by itself.
    An incomplete character waits for its last byte. Should a run of bytes that has been shown become no UTF-8 by
    what follows, what was shown stays; else the texts are those of `decode`.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], skip: frozenset[int], of_bytes: frozenset[int], n_ids: int
    ) -> None:
        """`of_bytes` are ids that stand for one byte each, which their neighbours may change."""
        self._decode, self._skip, self._of_bytes, self._n_ids = decode, skip, of_bytes, n_ids
        self._ids: list[int] = []
        self._shown, self._n_shown = "", 0

    def push(self, token_id: int) -> str:
        """The text that can be shown now; often '' or more than one character. `UserError` for an id out of range."""
        (token_id,) = _within([token_id], self._n_ids)
        if token_id in self._skip:
            return ""
        self._ids.append(token_id)
        text = self._decode(self._ids)
        if text.endswith("\ufffd"):
            return ""
        new = self._show(text)
        if alone := self._alone(token_id):
            self._ids, self._shown, self._n_shown = [token_id], alone, 1
        return new

    def continue_after(self, ids: Iterable[int]) -> None:
        """Take ids as shown already: what comes next is their continuation. `UserError` for an id out of range.

        The same as to push each of them first, but only the last ones are decoded.
        """
        earlier = [*self._ids, *(i for i in _within(ids, self._n_ids) if i not in self._skip)]
        first = next((at for at in reversed(range(len(earlier))) if self._alone(earlier[at])), 0)
        self._ids, self._shown, self._n_shown = earlier[first:], "", 0
        for end in range(len(self._ids), 0, -1):  # without the bytes of a character that is not whole yet
            text = self._decode(self._ids[:end])
            if not text.endswith("\ufffd"):
                self._shown, self._n_shown = text, end
                return

    def _alone(self, token_id: int) -> str:
        """The text of a token that can be decoded without those before it; '' for any other."""
        text = "" if token_id in self._of_bytes else self._decode([token_id])
        return "" if "\ufffd" in text else text

    def flush(self) -> str:
        """What is left when no more ids come: U+FFFD where a character has not been completed, else ''."""
        return self._show(self._decode(self._ids))

    def _show(self, text: str) -> str:
        is_longer = text.startswith(self._shown)
        new = text[len(self._shown) :] if is_longer else self._decode(self._ids[self._n_shown :])
        self._shown, self._n_shown = text, len(self._ids)
        return new


def hide(description: dict[str, Any], hidden: Collection[str], allowed: Collection[str]) -> dict[str, Any]:
    """A `tokenizer.json` in which no text can spell the `hidden` special tokens; all other ids stay what they are.

    The model gets another name for those in its vocabulary, and loses merges that make them; the others are found
    only because they are added tokens, and those that are special are passed over (`encode_special_tokens`). So
    `allowed` ones are called ordinary.
    """
    model = description["model"]
    is_list = isinstance(model["vocab"], list)
    pieces = [piece for piece, _ in model["vocab"]] if is_list else list(model["vocab"])
    renamed = set(hidden).intersection(pieces) - (set() if is_list else {model.get("unk_token")})
    names = {piece: HIDDEN + piece if piece in renamed else piece for piece in pieces}
    if is_list:
        vocab: Any = [[names[piece], score] for piece, score in model["vocab"]]
    else:
        vocab = {names[piece]: i for piece, i in model["vocab"].items()}
    changed = {**model, "vocab": vocab}
    if "merges" in model:
        changed["merges"] = without_forged([(left, right) for left, right in model["merges"]], renamed)
    added = [
        {**token, "special": token["special"] and token["content"] not in allowed}
        for token in description["added_tokens"]
        if token["content"] not in renamed
    ]
    return {**description, "model": changed, "added_tokens": added}


def _within(ids: Iterable[int], n_ids: int) -> list[int]:
    ids = [int(i) for i in ids]
    for i in ids:
        if not 0 <= i < n_ids:
            raise UserError(f"{i} is not a token id: the vocabulary has the ids 0 to {n_ids - 1}")
    return ids


def _level_bytes(token: str) -> bytes:
    """The bytes that the characters of a byte-level token stand for; its own where it has others."""
    try:
        return token_bytes(token, "byte")
    except KeyError:
        return token.encode("utf-8")
