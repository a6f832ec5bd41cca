"""`Tokenizer`: conversion of text to ids and back, trained on any text and saved as a standard `tokenizer.json`.

The `tokenizers` library (Rust) splits the text and runs the model. `Tokenizer.reference` is a readable
implementation of the same algorithm, and tests check that both give equal ids.

**Special tokens in a text.** `[MASK]` in a text is six ordinary characters, unless `allow_special` names the
token. `transformers` always encodes `[MASK]` in a text as the special token: with the same file it gives the
ids of `allow_special=tokenizer.special_tokens`.

**Unknown characters.** `byte` has all bytes and therefore no unknown characters. The other schemes encode each
run of unknown characters in a chunk as one `[UNK]`, and `whole_words` each unknown word. Without the token
`[UNK]` they raise a `UserError` that names the character (`transformers` drops the character silently).

**Decoding.** `byte` restores every text exactly, and `char` every text of known characters. `word` keeps no white
space, and puts one space between words. `whitespace` and `whole_words` put one space between all tokens. A run of
unknown characters decodes to `[UNK]`; other special tokens are skipped on request.

**Imported tokenizers** (`Tokenizer.imported`). The Rust library splits and decodes as their `tokenizer.json` defines
(`imported.py`). The roles of their special tokens are saved in the file, under `roles`. If the file has the rules of
one of the schemes, this scheme is used. Decoded texts are those of `transformers`.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from glassformer.common import errors, files
from glassformer.common.arguments import number, takes_other_names
from glassformer.tokenization import rust_tokenizer, validate_tokenizer_json
from glassformer.tokenization.bpe import learn_bpe, learn_words, starting_vocabulary
from glassformer.tokenization.chunks import count_chunks
from glassformer.tokenization.frames import Frames, pad
from glassformer.tokenization.imported import ImportedCodec, ImportedStream
from glassformer.tokenization.reference import Explanation, ReferenceEncoder
from glassformer.tokenization.rust_tokenizer import Vocabulary
from glassformer.tokenization.scheme_codec import SchemeCodec, require_scheme
from glassformer.tokenization.schemes import BYTE_TO_CHARACTER, Scheme, TextStream, checked_ids, token_bytes

Learner = Literal["glassformer", "greatest_pair", "tokenizers"]

ROLE_OF = {f"[{role.upper()}]": role for role in validate_tokenizer_json.ROLES}
"""The role of each default special token."""
SPECIAL_TOKENS = tuple(ROLE_OF)
"""The default special tokens; their ids are 0 to 6."""


class Encoded(NamedTuple):
    """The result of `tokenizer(text)`: `ids, mask = tokenizer("to be")`, (T,) for one text, (B, T) for several."""

    ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    """True = a real token, False = padding."""

    def __getitem__(self, key: Any) -> Any:
        """Return a part by its index, or by its name here or in transformers: `input_ids`, `attention_mask`."""
        if isinstance(key, str):
            key = {"ids": 0, "input_ids": 0, "mask": 1, "attention_mask": 1}[key]
        return tuple.__getitem__(self, key)


@dataclass(frozen=True)
class TokenReport:
    """Token statistics of some texts. A word is a run of characters without white space."""

    vocab_size: int
    n_texts: int
    n_words: int
    n_bytes: int
    """UTF-8 bytes."""
    n_tokens: int
    n_unknown: int
    frequencies: Counter[int]
    """Count of each id that occurs."""
    most_frequent: tuple[tuple[str, int], ...]
    """The most frequent tokens, in readable form, with their counts."""

    @property
    def tokens_per_word(self) -> float:
        return self.n_tokens / max(self.n_words, 1)

    @property
    def bytes_per_token(self) -> float:
        return self.n_bytes / max(self.n_tokens, 1)

    @property
    def n_unused(self) -> int:
        """Number of ids that do not occur."""
        return self.vocab_size - len(self.frequencies)

    def __str__(self) -> str:
        rows = [
            ("vocabulary", f"{self.vocab_size:,} tokens, {self.n_unused:,} of them unused here"),
            ("texts", f"{self.n_texts:,}"),
            ("words", f"{self.n_words:,}"),
            ("bytes", f"{self.n_bytes:,}"),
            ("tokens", f"{self.n_tokens:,}, {self.n_unknown:,} of them unknown"),
            ("tokens per word", f"{self.tokens_per_word:.3f}"),
            ("bytes per token", f"{self.bytes_per_token:.3f}"),
            ("most frequent", "  ".join(f"{token!r} {n:,}" for token, n in self.most_frequent)),
        ]
        return "\n".join(f"{name:>15}  {value}" for name, value in rows)


_OTHER_NAMES = {
    "tokenize": "tokenizer.tokens(tokenizer.encode(text))",
    "convert_ids_to_tokens": "tokenizer.tokens(ids)",
    "convert_tokens_to_ids": "tokenizer.token_to_id(token)",
    "from_pretrained": "Tokenizer.load(path)",
    "save_pretrained": "tokenizer.save(path)",
    **dict.fromkeys(("get_vocab", "vocabulary"), "tokenizer.vocab"),
    **dict.fromkeys(("n_vocab", "vocabulary_size", "get_vocab_size"), "tokenizer.vocab_size"),
    **dict.fromkeys(("batch_encode", "batch_encode_plus", "encode_ordinary_batch"), "tokenizer.encode_batch(texts)"),
}
"""Names that other libraries give to methods, and what to use instead."""


def is_text(text: str) -> bool:
    """Return True for a text; False for a possible path: one line of at most three words, or with a file suffix.

    >>> is_text("to be or not to be"), is_text("my book.txt")
    (True, False)
    """
    if files.is_no_path(text) or "\n" in text:
        return True
    return len(text.split()) > 3 and not Path(text).suffix and not files.exists(Path(text))


class Tokenizer:
    """An immutable trained tokenizer, made by `train`, `load`, `from_json` or `imported`.

    `vocab` maps every token to its id, `merges` are the merged pairs in order, and `frequencies` has the count of each
    token in the training text, by id (`None` if the learner does not return it). `pad_id`, `eos_id` and so on are
    `None` if the tokenizer lacks this special token. `scheme` is `None` for an imported tokenizer without a scheme.
    `roles` maps roles to special tokens; only an imported tokenizer has it. `frames` has the special tokens around a
    text. `chat_template` is the Jinja template of a model that learned conversations, or a list of named ones.

    >>> tokenizer = Tokenizer.train(["to be, or not to be"], vocab_size=0, scheme="char", special_tokens=())
    >>> tokenizer.encode("to be"), tokenizer.decode([7, 5, 0])
    ([7, 5, 0, 2, 3], 'to ')
    """

    def __init__(
        self,
        rust: tokenizers.Tokenizer | None = None,
        frequencies: Sequence[int] | None = None,
        roles: Mapping[str, str] | None = None,
        chat_template: validate_tokenizer_json.TemplateText | None = None,
        **others: Any,
    ) -> None:
        """Wrap a tokenizer of the Rust library; raise `UserError` for an unsupported one."""
        if others or not isinstance(rust, tokenizers.Tokenizer):
            raise errors.UserError(
                f"Tokenizer(…): expected a tokenizers.Tokenizer, got {[*others] or type(rust).__name__}; read a file "
                "with Tokenizer.load(path), or train one with Tokenizer.train(texts, vocab_size=…)"
            )
        rust.no_truncation()
        rust.no_padding()
        # 1. Special tokens of the roles
        for role, token in (roles or {}).items():
            if rust.token_to_id(token) is None:
                raise errors.UserError(f"its {role} token {token!r:.60} is not in its vocabulary")
            rust_tokenizer.add_special_tokens(rust, [token])
        # 2. Vocabulary
        self._rust = rust
        description = json.loads(rust.to_str())
        model, added = description["model"], description["added_tokens"]
        self.scheme: Scheme | None = rust_tokenizer.recognise(description)
        self.roles: Mapping[str, str] | None = None if roles is None else dict(roles)
        self.chat_template = chat_template
        self.vocab: dict[str, int] = dict(sorted(rust.get_vocab().items(), key=lambda item: item[1]))
        self.merges: list[tuple[str, str]] = [(left, right) for left, right in model.get("merges", [])]
        self._tokens = list(self.vocab)
        self.special_tokens: tuple[str, ...] = tuple(token["content"] for token in added if token["special"])
        self.special_ids = frozenset(self.vocab[token] for token in self.special_tokens)
        self.frequencies: tuple[int, ...] | None = None if frequencies is None else tuple(frequencies)
        # 3. Ids of the roles
        names = {role: name for name, role in ROLE_OF.items()} if roles is None else roles
        ids = [self.vocab.get(names.get(role, "")) for role in validate_tokenizer_json.ROLES]
        self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.cls_id, self.sep_id, self.mask_id = ids
        if roles is None and len(self.special_tokens) == 1 and self.special_tokens[0] not in SPECIAL_TOKENS:
            self.eos_id = self.vocab[self.special_tokens[0]]  # a single one is the end token: GPT-2's <|endoftext|>
        unknown_token: str | None = model.get("unk_token")
        self.unknown_id: int | None = None
        """Id of the token that replaces unknown text; None without such a token."""
        if self.scheme != "byte":
            self.unknown_id = self.vocab.get(unknown_token or "", model.get("unk_id"))
        # 4. Codec and frames
        vocabulary = Vocabulary(self.vocab, self.merges, self.special_tokens, unknown_token, self.frequencies)
        rust_tokenizer.check(vocabulary, self.scheme)
        self._codec: SchemeCodec | ImportedCodec
        if self.scheme is None:
            self._codec = ImportedCodec(rust, description, self.vocab, self.unknown_id)
        else:
            self._codec = SchemeCodec(rust, self.scheme, vocabulary)
        if self.scheme is not None and roles is None:
            self.frames = Frames.of_ids(self.cls_id, self.sep_id, self.eos_id)
        else:
            with rust_tokenizer.no_panic("encoding a text with it fails"):
                self.frames = Frames.of_file(rust)

    @classmethod
    @takes_other_names
    def train(
        cls,
        texts: Iterable[str] | str | Path,
        *,
        vocab_size: int | None = None,
        merges: int | None = None,
        scheme: Scheme = "byte",
        learner: Learner = "glassformer",
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
        min_frequency: int = 2,
        progress: errors.Progress | None = None,
    ) -> "Tokenizer":
        """Train a tokenizer on texts, which are read once, one at a time, on one text, or on the text file of a path.

        `vocab_size` includes the special tokens and the alphabet; `merges`, in its place, counts only the merges. Size
        0 means no merges (with `char`, a tokenizer of characters; with `whole_words`, all words that occur
        `min_frequency` times). The result has fewer tokens if no remaining pair occurs so often. `progress` is called
        with the numbers of merges made and requested.

        The learners `glassformer` and `tokenizers` find the same merges: of equally frequent pairs, the one with the
        lowest ids is merged. `greatest_pair` merges the one with the lexicographically greatest bytes. `tokenizers`
        runs in Rust, returns no frequencies and does not call `progress`. Memory holds the distinct chunks; for `char`
        with merges these are the distinct lines.
        """
        rust_tokenizer.check_special_tokens(special_tokens)
        if isinstance(texts, str) and is_text(texts):
            texts = [texts]
        elif isinstance(texts, (str, Path)):
            texts = [files.read_text(files.as_path(texts, "texts"))]
        if (vocab_size is None) == (merges is None):
            raise errors.UserError("give vocab_size, the number of all tokens, or merges, the number of merges")
        if vocab_size is None and (scheme == "whole_words" or learner == "tokenizers"):
            raise errors.UserError(
                f"merges has no effect with {'whole words' if scheme == 'whole_words' else learner}: give vocab_size"
            )
        asked: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": special_tokens}
        asked["min_frequency"] = min_frequency
        if scheme == "whole_words":
            frequencies = learn_words(count_chunks(texts, scheme), **asked)
            words = {token: i for i, token in enumerate(frequencies)}
            return cls(rust_tokenizer.assemble(scheme, special_tokens, words, []), list(frequencies.values()))
        alphabet = BYTE_TO_CHARACTER if scheme == "byte" else []
        if learner == "tokenizers":
            vocab, made = rust_tokenizer.train_in_rust(texts, scheme=scheme, initial_alphabet=alphabet, **asked)
            return cls(rust_tokenizer.assemble(scheme, special_tokens, vocab, made))
        counts = count_chunks(texts, scheme, characters_only=vocab_size == 0)
        if merges is not None:
            start = starting_vocabulary(counts, special_tokens, alphabet, 0)
            asked["vocab_size"] = len(start) + merges
        if learner == "greatest_pair":
            asked["bytes_of"] = partial(token_bytes, scheme=scheme)
        learned = learn_bpe(counts, initial_alphabet=alphabet, progress=progress, **asked)
        vocab = {token: i for i, token in enumerate(learned.tokens)}
        return cls(rust_tokenizer.assemble(scheme, special_tokens, vocab, learned.merges), learned.frequencies)

    @classmethod
    def from_merges(
        cls,
        vocab: Mapping[str, int],
        merges: Sequence[tuple[str, str]],
        *,
        scheme: Scheme = "byte",
        special_tokens: Sequence[str] = (),
    ) -> "Tokenizer":
        """Make a tokenizer of a vocabulary and its merges, in the order in which they are applied.

        `vocab` has the id of each token, special ones included. With the scheme `byte`, tokens are written as in GPT-2
        (`Ġ` for a space). An id that no token has, as in many published vocabularies, gets the special token
        `<|unused_ID|>`. Raises `UserError` if the parts do not agree.

        >>> vocab = {"a": 0, "b": 1, "ab": 2}
        >>> Tokenizer.from_merges(vocab, [("a", "b")], scheme="char").encode("abba")
        [2, 1, 0]
        """
        errors.require_type(vocab, Mapping, "vocab", "the id of each token, as a dictionary")
        gaps = sorted(set(range(max(vocab.values(), default=-1))) - set(vocab.values()))
        unused = {f"<|unused_{i}|>": i for i in gaps}
        return cls(rust_tokenizer.assemble(scheme, [*special_tokens, *unused], {**vocab, **unused}, list(merges)))

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a `tokenizer.json`, or that of a model directory; raise `UserError` if it cannot be used."""
        path = files.as_path(path, "path")
        if path.is_dir():
            path = path / "tokenizer.json"
        text = files.read_text(path, validate_tokenizer_json.MAX_TOKENIZER_BYTES)
        with errors.placed(f"{path} cannot be used as a tokenizer"):
            return cls.from_json(text)

    def save(self, path: str | Path) -> None:
        """Write `tokenizer.json` atomically; equal tokenizers give equal bytes."""
        files.write_text(files.as_path(path, "path"), self.to_json())

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Read the text of a `tokenizer.json`, as `to_json` returns it; raise `UserError` if it is not supported."""
        model, rust = _read(text)
        return cls(rust, model.get("frequencies"), model.get("roles"), model.get("chat_template"))

    @classmethod
    def imported(
        cls, text: str, roles: Mapping[str, str], chat_template: validate_tokenizer_json.TemplateText | None = None
    ) -> "Tokenizer":
        """Import the tokenizer of another model from the text of its `tokenizer.json`.

        `roles` maps roles (`pad unk bos eos cls sep mask`) to tokens, which become special, as in `transformers`. The
        file defines the special tokens around a text. Raises `UserError` for an unsupported file, and for a token of
        `roles` that the file lacks.
        """
        validate_tokenizer_json.check_roles(roles)
        validate_tokenizer_json.check_chat_template(chat_template)
        model, rust = _read(text)
        return cls(rust, model.get("frequencies"), roles, chat_template)

    def to_json(self) -> str:
        """Return the text of `tokenizer.json`; `model` has three more keys, if set, which other programs ignore."""
        description = json.loads(self._rust.to_str())
        ours = {"frequencies": self.frequencies, "roles": self.roles, "chat_template": self.chat_template}
        description["model"] |= {name: value for name, value in ours.items() if value is not None}
        return json.dumps(description, ensure_ascii=False, indent=1) + "\n"

    def with_special_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer with additional special tokens at the end; no id changes.

        A token that exists is not added. Neither is a token such as `[MASK]` whose role another token has in `roles`.

        >>> tokenizer = Tokenizer.train(["ab"], vocab_size=0, scheme="char", special_tokens=("[PAD]",))
        >>> tokenizer.with_special_tokens(["[PAD]", "[CLS]"]).vocab
        {'[PAD]': 0, 'a': 1, 'b': 2, '[CLS]': 3}
        """
        roles = self.roles or {}
        new = [token for token in tokens if token not in self.special_tokens and ROLE_OF.get(token) not in roles]
        if not new:
            return self
        rust_tokenizer.check_special_tokens([*self.special_tokens, *new])
        if taken := [token for token in new if token in self.vocab]:
            raise errors.UserError(f"{taken[0]} is an ordinary token of the tokenizer; choose another special token")
        rust = tokenizers.Tokenizer.from_str(self._rust.to_str())
        rust_tokenizer.add_special_tokens(rust, new)
        frequencies = None if self.frequencies is None else [*self.frequencies, *[0] * len(new)]
        if self.roles is not None:
            roles = {**roles, **{ROLE_OF[token]: token for token in new if token in ROLE_OF}}
        return Tokenizer(rust, frequencies, roles or self.roles, self.chat_template)

    def with_chat_template(self, template: validate_tokenizer_json.TemplateText | None) -> "Tokenizer":
        """Return this tokenizer with another chat template; raise `UserError` for one of another type."""
        validate_tokenizer_json.check_chat_template(template)
        return _unpickled(self._rust.to_str(), self.frequencies, self.roles, template)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of `to_json()`, in hexadecimal, used as cache key: equal tokenizers have equal fingerprints."""
        return hashlib.sha256(self.to_json().encode("utf-8")).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Number of ids, special tokens included; the embedding of a model needs one row per id."""
        return len(self.vocab)

    def __len__(self) -> int:
        return self.vocab_size

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._rust.to_str(), self.frequencies, self.roles, self.chat_template)

    def __repr__(self) -> str:
        return f"Tokenizer({self.scheme or 'imported'}, {self.vocab_size:,} tokens)"

    @takes_other_names
    def __call__(self, text: str | Sequence[str], max_len: int | None = None) -> "Encoded":
        """Return the ids of `encode` and their mask: of a text (T,), or of several (B, T), padded with `[PAD]`.

        With `max_len`, every row has this length: a longer text is cut, and a shorter one padded.

        >>> ids, mask = Tokenizer.train(["to be"], vocab_size=0, scheme="char")("to be", max_len=6)
        >>> mask.tolist()
        [True, True, True, True, True, False]
        """
        rows = self.encode_batch([text] if isinstance(text, str) else text)
        if max_len is not None:
            number("max_len", max_len, 0, whole=True)
            rows = [row[:max_len] for row in rows]
            ids, mask = self.pad([*rows, [0] * max_len])  # the last row sets the length
            ids, mask = ids[:-1], mask[:-1]
            return Encoded(ids[0], mask[0]) if isinstance(text, str) else Encoded(ids, mask)
        if isinstance(text, str):
            ids = np.array(rows[0], dtype=np.int64)
            return Encoded(ids, np.ones(len(ids), dtype=np.bool_))
        if len({len(row) for row in rows}) < 2:
            return Encoded(*pad(rows, 0))  # equal lengths need no padding
        return Encoded(*self.pad(rows))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an `AttributeError` that names what to use instead of a method of another library."""
            raise errors.no_attribute("a Tokenizer", name, _OTHER_NAMES.get(name))

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token as written in the vocabulary (`Ġthe`), or None."""
        return self.vocab.get(token)

    def id_to_token(self, token_id: int) -> str:
        """Return the token as written in the vocabulary (`tokens` returns readable ones); raise for an invalid id."""
        [token_id] = checked_ids([token_id], self.vocab_size)
        return self._tokens[token_id]

    @takes_other_names
    def encode(
        self, text: str, *, allow_special: Collection[str] = (), dropout: float = 0.0, seed: int | None = None
    ) -> list[int]:
        """Return the ids of a text without special tokens around it, which `frames` adds.

        `allow_special` names the special tokens that are recognised in the text. `dropout` is the probability of
        skipping a merge (BPE-dropout), reproducible by `seed`. Raises `UserError` for a character that the
        tokenizer cannot encode, and for a lone surrogate.
        """
        self._check_text(text)
        (ids,) = self.encode_batch([text], allow_special=allow_special, dropout=dropout, seed=seed)
        return ids

    def encode_batch(
        self,
        texts: Iterable[str],
        *,
        allow_special: Collection[str] = (),
        dropout: float = 0.0,
        seed: int | None = None,
    ) -> list[list[int]]:
        """Return the ids of each text as `encode` does; dropout uses one random stream for all texts."""
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise errors.UserError(
                f"texts: expected a list of str, got {type(texts).__name__}; use encode for one text"
            )
        texts = list(texts)
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise errors.UserError(f"texts: expected a list of str, got an item of type {type(wrong[0]).__name__}")
        self._check_allowed(allow_special)
        if dropout == 0.0:
            rows = self._codec.encode(texts, allow_special)
        elif not 0.0 < dropout <= 1.0 or seed is None:
            raise ValueError(f"BPE-dropout: expected a probability and a seed, got {dropout} and {seed}")
        else:
            codec = require_scheme(self._codec, "BPE-dropout")
            rows = codec.encode_with_dropout(texts, allow_special, dropout, seed)
        self._count_unknown(texts, rows, allow_special)
        return rows

    def _count_unknown(self, texts: Sequence[str], rows: Sequence[list[int]], allow_special: Collection[str]) -> None:
        """Count the unknown parts of encoded texts; an `[UNK]` in a text, if it is allowed, is not unknown."""
        token = self.unknown_id
        if token is None or not any(token in row for row in rows):
            return
        written = self._tokens[token] if self._tokens[token] in allow_special else None
        n_of = [
            row.count(token) - (text.count(written) if written else 0) for text, row in zip(texts, rows, strict=True)
        ]

        def places() -> list[str]:
            text = texts[next(i for i, n in enumerate(n_of) if n)]
            ids, offsets = self._codec.encode_with_offsets(text, allow_special)
            spans = [span for i, span in zip(ids, offsets, strict=True) if i == token and text[slice(*span)] != written]
            return [errors.unknown_place(text, *span) for span in spans[: errors.UNKNOWN_SHOWN]]

        if any(n_of):
            errors.count_unknown(sum(n_of), places)

    def encode_with_offsets(
        self, text: str, *, allow_special: Collection[str] = ()
    ) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text as `encode` does, and the characters of each token as (first, end).

        >>> tokenizer = Tokenizer.train(["a b"], vocab_size=0, scheme="byte", special_tokens=["[END]"])
        >>> tokenizer.encode_with_offsets("a[END]", allow_special=["[END]"])
        ([65, 0], [(0, 1), (1, 6)])
        """
        self._check_text(text, allow_special)
        ids, offsets = self._codec.encode_with_offsets(text, allow_special)
        self._count_unknown([text], [ids], allow_special)
        return ids, offsets

    def encode_longest_match(self, text: str, *, allow_special: Collection[str] = ()) -> list[int]:
        """Encode by longest match: split at the longest token anywhere in the text, then split both remaining parts."""
        self._check_text(text, allow_special)
        ids = require_scheme(self._codec, "the longest match").encode_longest_match(text, allow_special)
        self._count_unknown([text], [ids], allow_special)
        return ids

    def _check_text(self, text: object, allow_special: Collection[str] = ()) -> None:
        if not isinstance(text, str):
            raise errors.UserError(
                f"text: expected a str, got {type(text).__name__}; use encode_batch for several texts"
            )
        self._check_allowed(allow_special)

    def _check_allowed(self, allow_special: Collection[str]) -> None:
        if missing := set(allow_special).difference(self.special_tokens):
            raise errors.UserError(f"allow_special: {min(missing)} is not a special token of this tokenizer; remove it")

    @property
    def words_stand_alone(self) -> bool:
        """True if a word has the same tokens alone and after a space."""
        return self._codec.words_stand_alone

    @property
    def encodes_in_pieces(self) -> bool:
        """True if a text that is cut at line ends encodes to the ids of the whole text: not for imported tokenizers."""
        return self.scheme is not None

    @property
    def reference(self) -> ReferenceEncoder:
        """The reference encoder: equal ids, but slower; raises `UserError` for an imported tokenizer."""
        return require_scheme(self._codec, "the reference encoder").reference

    def explain(self, text: str) -> Explanation:
        """Return the merges of a text, step by step; `print` shows them."""
        self._check_text(text)
        codec = require_scheme(self._codec, "an explanation by merges")
        codec.check_piece(text)
        return Explanation(tuple(codec.reference.explain(text)), codec.show)

    def report(self, texts: Iterable[str]) -> TokenReport:
        """Count tokens in the texts; return their frequencies, tokens per word and bytes per token."""
        frequencies: Counter[int] = Counter()
        n_texts = n_words = n_bytes = 0
        for text in texts:
            with errors.UnknownText(is_silent=True):  # the report has their number
                frequencies.update(self.encode(text))
            n_texts += 1
            n_words += len(text.split())
            n_bytes += len(text.encode("utf-8"))
        return TokenReport(
            vocab_size=self.vocab_size,
            n_texts=n_texts,
            n_words=n_words,
            n_bytes=n_bytes,
            n_tokens=frequencies.total(),
            n_unknown=0 if self.unknown_id is None else frequencies[self.unknown_id],
            frequencies=+frequencies,
            most_frequent=tuple((self.tokens([i])[0], n) for i, n in frequencies.most_common(20)),
        )

    def pad(self, sequences: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Pad ids at the right with `[PAD]` to an array (B, T), and return it with the attention mask."""
        if self.pad_id is None:
            raise errors.UserError("this tokenizer has no special token [PAD]; add it with with_special_tokens")
        return pad(sequences, self.pad_id)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of ids (see the module docstring); bytes that are not UTF-8 become U+FFFD."""
        return self._codec.decode(checked_ids(ids, self.vocab_size), skip_special)

    def stream(self, *, skip_special: bool = True, after: Iterable[int] = ()) -> TextStream | ImportedStream:
        """Return a streaming decoder that never cuts a character: `push` one id at a time, then `flush`.

        With `after`, the ids of a prompt, the text continues that of the prompt, including the space between them.

        >>> tokenizer = Tokenizer.train(["the cat sat"] * 2, vocab_size=0, scheme="whole_words")
        >>> *prompt, last = tokenizer.encode("the cat sat")
        >>> tokenizer.stream().push(last), tokenizer.stream(after=prompt).push(last)
        ('sat', ' sat')
        """
        stream = self._codec.stream(skip_special)
        stream.continue_after(after)
        return stream

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return readable tokens: with spaces, `</w>` for the end of a word, `<0xE2>` for a part of a character."""
        return [self._codec.show(self._tokens[i]) for i in checked_ids(ids, self.vocab_size)]

    @property
    def start_id(self) -> int | None:
        """Id of the start token in training: the last token before a prompt (`frames.prompt`), else BOS, else EOS."""
        if before := self.frames.prompt.before:
            return before[-1]
        return self.eos_id if self.bos_id is None else self.bos_id

    def n_bytes_of(self, ids: Iterable[int]) -> int:
        """Count the UTF-8 bytes of the text of these tokens; special tokens count 0.

        >>> tokenizer = Tokenizer.train(["é"], vocab_size=0, scheme="char", special_tokens=("[BOS]",))
        >>> tokenizer.n_bytes_of([0, 1])
        2
        """
        return sum(len(self.pieces[i]) for i in checked_ids(ids, self.vocab_size) if i not in self.special_ids)

    def n_unknown(self, ids: Sequence[int]) -> int:
        """Count the tokens that replace text that is unknown to the tokenizer.

        >>> tokenizer = Tokenizer.train(["ab"], vocab_size=0, scheme="char")
        >>> tokenizer.n_unknown([*tokenizer.encode("ab"), tokenizer.unknown_id])
        1
        """
        return 0 if self.unknown_id is None else list(ids).count(self.unknown_id)

    @property
    def pieces(self) -> list[bytes]:
        """Bytes of each token, by id; they may be a part of a character."""
        return self._codec.pieces


def _unpickled(text: str, *settings: Any) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(text), *settings)


def _read(text: str) -> tuple[Any, tokenizers.Tokenizer]:
    with rust_tokenizer.no_panic("it is not a valid tokenizer.json"):
        description = files.parse_json(text)
        validate_tokenizer_json.check_file(description)
        return description["model"], tokenizers.Tokenizer.from_str(text)


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of texts, or of the targets of pairs, and an optional separate tokenizer of the sources."""

    target: Tokenizer
    separate_source: Tokenizer | None = None

    @property
    def source(self) -> Tokenizer:
        return self.separate_source or self.target
