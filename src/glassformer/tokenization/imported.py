"""Tokenizers imported from a `tokenizer.json` of another model; the Rust library `tokenizers` runs them.

Here too, a special token in a text is ordinary text unless it is allowed. Some models would encode it as special all
the same: Unigram's pieces contain `</s>`. So a copy that cannot produce special tokens encodes plain text.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import tokenizers

from glassformer.common.errors import UserError
from glassformer.tokenization.rust_tokenizer import no_panic, without_forged
from glassformer.tokenization.schemes import check_text, checked_ids, readable, token_bytes
from glassformer.tokenization.validate_tokenizer_json import tables

HIDDEN = "\uffff"
"""Prefix of renamed special tokens; this code point is not a character, so no text contains it."""
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
SPACE = "▁"


class ImportedCodec:
    """Encoder and decoder of one imported `tokenizer.json`; its methods are those of `Tokenizer`."""

    def __init__(
        self, rust: tokenizers.Tokenizer, description: Mapping[str, Any], vocab: Mapping[str, int], unknown: int | None
    ) -> None:
        """Set up the codec; `description` is the parsed file of `rust`, and `unknown` the id of unknown text."""
        self._rust, self._vocab = rust, vocab
        self._decoders = [part for part in tables(description["decoder"]) if "type" in part]
        self._added = {token["content"]: token for token in description["added_tokens"]}
        self._special = frozenset(token for token, flags in self._added.items() if flags["special"])
        self._never = {vocab[token] for token in self._special} - {unknown}
        self._encoder = lru_cache(maxsize=4)(self._make_encoder)

    def encode(self, texts: Iterable[str], allow_special: Collection[str] = ()) -> list[list[int]]:
        """Return the ids of each text; with all special tokens allowed, they equal those of `transformers`."""
        texts, allowed = list(texts), frozenset(allow_special)
        for text in texts:
            check_text(text)
        with no_panic("the tokenizer cannot encode the text"):
            encodings = self._encoder(allowed).encode_batch_fast(texts, add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        never = self._never.difference(self._vocab[token] for token in allowed)
        for row in rows:
            if not never.isdisjoint(row):
                token = list(self._vocab)[min(never.intersection(row))]
                raise UserError(f"the text encodes to the special token {token}; remove it, or pass allow_special")
        return rows

    def encode_with_offsets(
        self, text: str, allow_special: Collection[str] = ()
    ) -> tuple[list[int], list[tuple[int, int]]]:
        (ids,) = self.encode([text], allow_special)
        with no_panic("the tokenizer cannot encode the text"):
            encoder = self._encoder(frozenset(allow_special))
            [encoding] = encoder.encode_batch([text], add_special_tokens=False)  # other threads run meanwhile
        return ids, encoding.offsets

    def _make_encoder(self, allowed: frozenset[str]) -> tokenizers.Tokenizer:
        """Return a copy that encodes only the allowed special tokens as special; the original if no copy is needed."""
        if not allowed and self._special.isdisjoint(self._rust.get_vocab(with_added_tokens=False)):
            self._rust.encode_special_tokens = True
            return self._rust
        text = hide(json.loads(self._rust.to_str()), self._special - allowed, allowed)
        rust = tokenizers.Tokenizer.from_str(json.dumps(text))
        rust.encode_special_tokens = True
        return rust

    @cached_property
    def words_stand_alone(self) -> bool:
        one, two = self.encode(["a", "a a"])
        return two == one + one

    def decode(self, ids: Iterable[int], skip_special: bool) -> str:
        """Return the text of ids, equal to that of `transformers` without `clean_up_tokenization_spaces`."""
        with no_panic("the tokenizer cannot decode the ids"):
            return self._rust.decode(list(ids), skip_special_tokens=skip_special)

    def stream(self, skip_special: bool) -> "ImportedStream":
        skipped = frozenset(self._vocab[token] for token in self._special if skip_special)
        return ImportedStream(lambda ids: self.decode(ids, False), skipped, self._bytes, len(self._vocab))

    def show(self, token: str) -> str:
        if token in self._added:
            return token
        if self._has("ByteLevel"):
            return readable(_level_bytes(token))
        if self._has("WordPiece"):
            return token
        return token.replace(SPACE, " ")

    @cached_property
    def pieces(self) -> list[bytes]:
        """Bytes of each token, by id; a space before a word is part of its first token."""
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
                if token.startswith(part["prefix"]):
                    return token.removeprefix(part["prefix"]).encode("utf-8")
                return f" {token}".encode()
            if part["type"] == "BPEDecoder":
                return token.replace(part["suffix"], " ").encode("utf-8")
        return token.replace(SPACE, " ").encode("utf-8")

    @cached_property
    def _bytes(self) -> frozenset[int]:
        """Ids of the byte tokens such as `<0x00>`, which the decoder joins to characters."""
        if not self._has("ByteFallback"):
            return frozenset()
        return frozenset(i for token, i in self._vocab.items() if BYTE.fullmatch(token))

    def _has(self, decoder: str) -> bool:
        return any(part["type"] == decoder for part in self._decoders)


class ImportedStream:
    """A streaming decoder: `push` each id, then `flush`; the concatenated results are the decoded text.

    The text of a token depends on the tokens before it. A token is therefore decoded together with all tokens since the
    last one that can be decoded alone. An incomplete character is delayed until its last byte. The result equals
    `decode`, except if later bytes make earlier ones invalid UTF-8: text that was already returned stays unchanged.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], skip: frozenset[int], of_bytes: frozenset[int], n_ids: int
    ) -> None:
        """Set up the decoder; `of_bytes` are the ids of single bytes, whose text depends on adjacent bytes."""
        self._decode, self._skip, self._of_bytes, self._n_ids = decode, skip, of_bytes, n_ids
        self._ids: list[int] = []
        self._shown, self._n_shown = "", 0

    def push(self, token_id: int) -> str:
        """Return the text that this id adds, which may be ''; raise `UserError` for an invalid id."""
        [token_id] = checked_ids([token_id], self._n_ids)
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
        """Push ids whose text is already known; only the last ids are decoded, which is faster than pushing each id."""
        earlier = [*self._ids, *(i for i in checked_ids(ids, self._n_ids) if i not in self._skip)]
        first = next((at for at in reversed(range(len(earlier))) if self._alone(earlier[at])), 0)
        self._ids, self._shown, self._n_shown = earlier[first:], "", 0
        for end in range(len(self._ids), 0, -1):  # without the bytes of an incomplete character
            text = self._decode(self._ids[:end])
            if not text.endswith("\ufffd"):
                self._shown, self._n_shown = text, end
                return

    def _alone(self, token_id: int) -> str:
        """Return the text of a token that can be decoded without the tokens before it, else ''."""
        if token_id in self._of_bytes or "\ufffd" in (text := self._decode([token_id])):
            return ""
        return text

    def flush(self) -> str:
        """Return the text after the last id: U+FFFD for an incomplete character, else ''."""
        return self._show(self._decode(self._ids))

    def _show(self, text: str) -> str:
        new = text.removeprefix(self._shown)
        if not text.startswith(self._shown):
            new = self._decode(self._ids[self._n_shown :])
        self._shown, self._n_shown = text, len(self._ids)
        return new


def hide(description: dict[str, Any], hidden: Collection[str], allowed: Collection[str]) -> dict[str, Any]:
    """Return a `tokenizer.json` that never encodes text to the `hidden` special tokens; all ids are unchanged.

    `hidden` tokens in the model's vocabulary are renamed, and merges that produce them are removed. Other special
    tokens are matched only as added tokens. `encode_special_tokens` switches this off for added tokens that are marked
    as special. So the `allowed` tokens are marked as not special.
    """
    model = description["model"]
    scored = isinstance(model["vocab"], list)  # Unigram: pieces and scores; other models: pieces and ids
    entries = dict(model["vocab"]).items()
    renamed = set(hidden).intersection(piece for piece, _ in entries) - {model.get("unk_token")}
    new = [[HIDDEN + piece if piece in renamed else piece, value] for piece, value in entries]
    changed = {**model, "vocab": new if scored else dict(new)}
    if "merges" in model:
        changed["merges"] = without_forged([(left, right) for left, right in model["merges"]], renamed)
    added = [
        {**token, "special": token["special"] and token["content"] not in allowed}
        for token in description["added_tokens"]
        if token["content"] not in renamed
    ]
    return {**description, "model": changed, "added_tokens": added}


def _level_bytes(token: str) -> bytes:
    """Return the bytes of a byte-level token; if it has other characters, return its UTF-8 bytes."""
    try:
        return token_bytes(token, "byte")
    except KeyError:
        return token.encode("utf-8")
