"""`Tokenizer`: text to ids and back, learned on any text, kept in the `tokenizer.json` that everybody reads.

The splitting and the model run in the `tokenizers` library (Rust). `Tokenizer.reference` does the same
readably, and tests hold the two equal.

**Special tokens in a text.** `[MASK]` in a text is six ordinary characters, unless the call allows the token
by name (`allow_special`). `transformers` makes no such difference: with the same file it reads `[MASK]` in a
text as the token, and so gives the ids that `allow_special=tokenizer.special_tokens` gives here.

**Characters that were not learned.** `byte` has all bytes, so there are none. The other schemes give one
`[UNK]` for each run of unknown characters in a chunk, and `whole_words` one for each unknown word; without the
token `[UNK]` a `UserError` names the character. (There, `transformers` drops the character without a word.)

**Decoding.** `byte` gives every text back exactly, and `char` every text of known characters. `word` puts one
space between words, since it keeps no other white space. `whitespace` does not know where words end: every
token, as every whole word, stands apart from its neighbours by a space. An unknown run decodes as `[UNK]`; other
special tokens are left out on request.

**Tokenizers of other people's models** (`Tokenizer.imported`). Their file says how they cut and decode, and the Rust
library does it (`imported.py`); what their special tokens are for is kept in the file, under `roles`. One that is
of a scheme is used as such. Their decoded texts are those of `transformers`.
"""

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray

from glassformer import files
from glassformer.errors import UserError
from glassformer.tokenization import rust_tokenizer
from glassformer.tokenization.bpe import Progress, learn_bpe, learn_words
from glassformer.tokenization.decoding import TextStream
from glassformer.tokenization.imported import ImportedCodec, ImportedStream
from glassformer.tokenization.padding import PaddingSide, pad
from glassformer.tokenization.pretokenize import BYTE_TO_CHARACTER, Scheme, count_chunks
from glassformer.tokenization.reference import Explanation, ReferenceEncoder
from glassformer.tokenization.scheme_codec import SchemeCodec, require_scheme
from glassformer.tokenization.special_tokens_template import Frames
from glassformer.tokenization.validate_tokenizer_json import MAX_TOKENIZER_BYTES, ROLES, check_file, check_roles

Learner = Literal["glassformer", "tokenizers"]

ROLE_OF = {f"[{role.upper()}]": role for role in ROLES}
"""What our own special tokens are for."""
SPECIAL_TOKENS = tuple(ROLE_OF)
"""The default special tokens; their ids are 0 to 6."""


class Encoded(NamedTuple):
    """What `tokenizer(text)` gives: `ids, mask = tokenizer("to be")`."""

    ids: NDArray[np.int64]
    """(T,) of one text, (B, T) of several."""
    mask: NDArray[np.bool_]
    """Of the same shape: True = a real token, False = padding."""


@dataclass(frozen=True)
class TokenReport:
    """Counts over some texts. A word is what stands between white space."""

    vocab_size: int
    n_texts: int
    n_words: int
    n_bytes: int
    """UTF-8 bytes."""
    n_tokens: int
    n_unknown: int
    """Tokens among them that stand for unknown characters."""
    frequencies: Counter[int]
    """How often each id occurs; those that do not are left out."""
    most_frequent: tuple[tuple[str, int], ...]
    """The most frequent tokens, readable, and how often each occurs."""

    @property
    def tokens_per_word(self) -> float:
        return self.n_tokens / max(self.n_words, 1)

    @property
    def bytes_per_token(self) -> float:
        return self.n_bytes / max(self.n_tokens, 1)

    @property
    def n_unused(self) -> int:
        """Ids that do not occur."""
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


class Tokenizer:
    """A trained tokenizer; it never changes. `train`, `load`, `from_json` and `imported` make one.

    `vocab` maps every token to its id, `merges` are the joined pairs in order, `frequencies` says by id how
    often each token stood in the training text (`None` where the learner did not say). `pad_id` and its like
    are `None` where the tokenizer has no such special token. `scheme` is None where it comes from elsewhere and is of
    none; `roles` says what the special tokens are for where their names do not. `frames` has what stands around a text.

    >>> tokenizer = Tokenizer.train(["to be, or not to be"], vocab_size=0, scheme="char", special_tokens=())
    >>> tokenizer.encode("to be"), tokenizer.decode([7, 5, 0])
    ([7, 5, 0, 2, 3], 'to ')
    """

    def __init__(
        self,
        rust: tokenizers.Tokenizer,
        frequencies: Sequence[int] | None = None,
        roles: Mapping[str, str] | None = None,
    ) -> None:
        """Wraps a tokenizer of the Rust library; `UserError` for one that cannot be used."""
        if not isinstance(rust, tokenizers.Tokenizer):
            raise UserError(
                f"Tokenizer(…) wraps a tokenizers.Tokenizer, not {type(rust).__name__}: read a file with "
                "Tokenizer.load(path), or learn one with Tokenizer.train(texts, vocab_size=…)"
            )
        rust.no_truncation()
        rust.no_padding()
        for role, token in (roles or {}).items():
            if rust.token_to_id(token) is None:
                raise UserError(f"its {role} is {token!r:.60}, which is no token of its vocabulary")
            rust_tokenizer.add_special_tokens(rust, [token])
        self._rust = rust
        description = json.loads(rust.to_str())
        self.scheme: Scheme | None = rust_tokenizer.recognise(description)
        self.roles: Mapping[str, str] | None = None if roles is None else dict(roles)
        self.vocab: dict[str, int] = dict(sorted(rust.get_vocab().items(), key=lambda item: item[1]))
        self.merges: list[tuple[str, str]] = [(left, right) for left, right in description["model"].get("merges", [])]
        added = description["added_tokens"]
        self.special_tokens: tuple[str, ...] = tuple(token["content"] for token in added if token["special"])
        self.frequencies: tuple[int, ...] | None = None if frequencies is None else tuple(frequencies)
        names = {role: name for name, role in ROLE_OF.items()} if roles is None else roles
        ids = [self.vocab.get(names.get(role, "")) for role in ROLES]
        self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.cls_id, self.sep_id, self.mask_id = ids
        if roles is None and len(self.special_tokens) == 1 and self.special_tokens[0] not in SPECIAL_TOKENS:
            self.eos_id = self.vocab[self.special_tokens[0]]  # the only one ends a text: GPT-2's <|endoftext|>
        unknown: str | None = description["model"].get("unk_token")
        rust_tokenizer.check(self.vocab, self.merges, self.special_tokens, unknown, self.scheme, self.frequencies)
        self._codec: SchemeCodec | ImportedCodec
        if self.scheme is None:
            self._codec = ImportedCodec(rust, description, self.vocab)
        else:
            self._codec = SchemeCodec(
                rust, self.scheme, self.vocab, self.merges, self.special_tokens, unknown, self.frequencies
            )
        if self.scheme is not None and roles is None:
            self.frames = Frames.of_ids(self.cls_id, self.sep_id, self.eos_id)
        else:
            with rust_tokenizer.no_panic("it does not work"):
                self.frames = Frames.of_file(rust)

    @classmethod
    def train(
        cls,
        texts: Iterable[str] | str | Path,
        *,
        vocab_size: int,
        scheme: Scheme = "byte",
        learner: Learner = "glassformer",
        special_tokens: Sequence[str] = SPECIAL_TOKENS,
        min_frequency: int = 2,
        progress: Progress | None = None,
    ) -> "Tokenizer":
        """Learn a tokenizer from texts, which are read once, one at a time, or from the text file of a path.

        `vocab_size` counts the special tokens and the alphabet; 0 asks for exactly these and no merges (with
        `char`: a tokenizer of characters; with `whole_words`: all that occur `min_frequency` times). When no pair
        is left that occurs `min_frequency` times, learning stops early, and `vocab_size` of the result is smaller
        than asked for. `progress` is called with (merges made, merges asked for).

        Both learners find the same merges; `tokenizers` is the one in Rust, which gives no frequencies and calls
        no `progress`. Memory holds the distinct chunks, which for `char` with merges are the distinct lines.
        """
        rust_tokenizer.check_special_tokens(special_tokens)
        if isinstance(texts, (str, Path)):
            texts = [files.read_text(files.as_path(texts, "texts"))]
        asked: dict[str, Any] = {"vocab_size": vocab_size, "special_tokens": special_tokens}
        asked["min_frequency"] = min_frequency
        if scheme == "whole_words" and learner == "glassformer":
            frequencies = learn_words(count_chunks(texts, scheme), **asked)
            words = {token: i for i, token in enumerate(frequencies)}
            return cls(rust_tokenizer.assemble(scheme, special_tokens, words, []), list(frequencies.values()))
        alphabet = BYTE_TO_CHARACTER if scheme == "byte" else []
        if learner == "tokenizers":
            vocab, merges = rust_tokenizer.train_in_rust(texts, scheme=scheme, initial_alphabet=alphabet, **asked)
            return cls(rust_tokenizer.assemble(scheme, special_tokens, vocab, merges))
        counts = count_chunks(texts, scheme, characters_only=vocab_size == 0)
        learned = learn_bpe(counts, initial_alphabet=alphabet, progress=progress, **asked)
        vocab = {token: i for i, token in enumerate(learned.tokens)}
        return cls(rust_tokenizer.assemble(scheme, special_tokens, vocab, learned.merges), learned.frequencies)

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a `tokenizer.json`, or that of a model directory; `UserError` when it cannot be used."""
        path = files.as_path(path, "path")
        path = path / "tokenizer.json" if path.is_dir() else path
        text = files.read_text(path, MAX_TOKENIZER_BYTES)
        try:
            return cls.from_json(text)
        except UserError as error:
            raise UserError(f"{path} cannot be used as a tokenizer: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes `tokenizer.json` atomically; the same tokenizer always gives the same bytes."""
        files.write_text(files.as_path(path, "path"), self.to_json())

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """The inverse of `to_json`; `UserError` for a text that is no tokenizer, or one that is not read here."""
        description, rust = _read(text)
        return cls(rust, description["model"].get("frequencies"), description["model"].get("roles"))

    @classmethod
    def imported(cls, text: str, roles: Mapping[str, str]) -> "Tokenizer":
        """The tokenizer of somebody else's model, from the text of its `tokenizer.json`.

        `roles` says what its special tokens are for: the keys are of `pad unk bos eos cls sep mask`, the values tokens.
        The file says what stands around a text. A token of `roles` that the file does not call special becomes so,
        as in `transformers`. `UserError` for a file that cannot be used, and for a role that is no token of it.
        """
        check_roles(roles)
        description, rust = _read(text)
        return cls(rust, description["model"].get("frequencies"), roles)

    def to_json(self) -> str:
        """The text of `tokenizer.json`, with `frequencies` and `roles` beside the vocabulary: others pass them over."""
        description = json.loads(self._rust.to_str())
        if self.frequencies is not None:
            description["model"]["frequencies"] = self.frequencies
        if self.roles is not None:
            description["model"]["roles"] = dict(self.roles)
        return json.dumps(description, ensure_ascii=False, indent=1) + "\n"

    def with_special_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """This tokenizer with further special tokens behind all others: no id changes; those that it has stay one.

        A tokenizer with `roles` needs no `[MASK]` where another token is its mask.

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
            raise UserError(f"{taken[0]} is an ordinary token of the tokenizer and cannot become a special one")
        rust = tokenizers.Tokenizer.from_str(self._rust.to_str())
        rust_tokenizer.add_special_tokens(rust, new)
        frequencies = None if self.frequencies is None else [*self.frequencies, *(0 for _ in new)]
        if self.roles is None:
            return Tokenizer(rust, frequencies)
        return Tokenizer(rust, frequencies, {**roles, **{ROLE_OF[token]: token for token in new if token in ROLE_OF}})

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of `to_json()`, in hexadecimal: equal for equal tokenizers, to key caches with."""
        return hashlib.sha256(self.to_json().encode("utf-8")).hexdigest()

    @property
    def vocab_size(self) -> int:
        """The number of ids, special tokens included: the rows that a model's embedding needs."""
        return len(self.vocab)

    def __len__(self) -> int:
        """The size of the vocabulary, as `vocab_size`."""
        return self.vocab_size

    @property
    def is_imported(self) -> bool:
        """Whether it came from elsewhere, with special tokens of other names: `roles` says which."""
        return self.roles is not None

    def __repr__(self) -> str:
        return f"Tokenizer({self.scheme or 'imported'}, {self.vocab_size:,} tokens)"

    def __call__(self, text: str | Sequence[str]) -> "Encoded":
        """The ids of a text (T,) and their mask, or of several texts (B, T), padded at the right.

        The ids of one text are those of `encode`: nothing is put around it. Raises `UserError` for texts of unequal
        length where the tokenizer has no `[PAD]`.
        """
        if isinstance(text, str):
            ids = np.array(self.encode(text), dtype=np.int64)
            return Encoded(ids, np.ones(len(ids), dtype=np.bool_))
        rows = self.encode_batch(text)
        if len({len(row) for row in rows}) < 2:
            return Encoded(*pad(rows, 0))  # of equal length: nothing is padded
        return Encoded(*self.pad(rows))

    def token_to_id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it (`Ġthe`), or None."""
        return self.vocab.get(token)

    def id_to_token(self, token_id: int) -> str:
        """The token as the vocabulary spells it; `tokens` gives readable ones. `UserError` for an id out of range."""
        if not 0 <= token_id < self.vocab_size:
            raise UserError(f"{token_id} is not a token id: the vocabulary has the ids 0 to {self.vocab_size - 1}")
        return self._tokens[token_id]

    def encode(
        self, text: str, *, allow_special: Collection[str] = (), dropout: float = 0.0, seed: int | None = None
    ) -> list[int]:
        """The ids of a text, and nothing around them: `frames`, or a `Frame` of your own, puts special tokens there.

        `allow_special` names the special tokens that the text may contain as such. `dropout` leaves merges
        out at random (BPE-dropout), each with that probability, reproducibly from `seed`. Raises `UserError`
        for a character that no token can stand for, and for a lone surrogate.
        """
        if not isinstance(text, str):
            raise UserError(f"text must be a str, not {type(text).__name__}; encode_batch takes several")
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
        """The ids of each text: as `encode`, but on all cores. With dropout, one random stream serves all texts."""
        if isinstance(texts, str) or not isinstance(texts, Iterable):
            raise UserError(f"texts must be a list of texts, not {type(texts).__name__}; encode takes one text")
        texts = list(texts)
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise UserError(f"texts must be texts, and one of them is {type(wrong[0]).__name__}")
        self._check_allowed(allow_special)
        if dropout == 0.0:
            return self._codec.encode(texts, allow_special)
        if not 0.0 < dropout <= 1.0 or seed is None:
            raise ValueError(f"BPE-dropout needs a probability and a seed, not {dropout} and {seed}")
        return require_scheme(self._codec, "BPE-dropout").encode_with_dropout(texts, allow_special, dropout, seed)

    def encode_longest_match(self, text: str, *, allow_special: Collection[str] = ()) -> list[int]:
        """The other way to encode: the longest token first wherever it stands, then what is left on both sides."""
        self._check_allowed(allow_special)
        return require_scheme(self._codec, "the longest match").encode_longest_match(text, allow_special)

    def _check_allowed(self, allow_special: Collection[str]) -> None:
        if missing := set(allow_special).difference(self.special_tokens):
            raise UserError(f"{min(missing)} is not a special token of this tokenizer, so no text can have it")

    @property
    def words_stand_alone(self) -> bool:
        """Whether a word has the same tokens by itself as behind a space."""
        return self._codec.words_stand_alone

    @property
    def encodes_in_pieces(self) -> bool:
        """Whether a text that is cut at line ends (`data.sources.cut`) encodes to the ids of the whole text.

        False for the tokenizers of other people's models: they may put a space before each text, or join across lines.
        """
        return self.scheme is not None

    @property
    def reference(self) -> ReferenceEncoder:
        """The readable encoder: the same ids, slowly. `UserError` where there is none."""
        return require_scheme(self._codec, "the readable encoder").reference

    def explain(self, text: str) -> Explanation:
        """The merges that make the tokens of a text, step by step; `print` it."""
        codec = require_scheme(self._codec, "an explanation by merges")
        codec.check_piece(text)
        return Explanation(tuple(codec.reference.explain(text)), codec.show)

    def report(self, texts: Iterable[str]) -> TokenReport:
        """How often each token occurs in the texts, tokens per word, bytes per token."""
        frequencies: Counter[int] = Counter()
        n_texts = n_words = n_bytes = 0
        for text in texts:
            frequencies.update(self.encode(text))
            n_texts += 1
            n_words += len(text.split())
            n_bytes += len(text.encode("utf-8"))
        n_unknown = 0 if self.unk_id is None else frequencies[self.unk_id]
        return TokenReport(
            vocab_size=self.vocab_size,
            n_texts=n_texts,
            n_words=n_words,
            n_bytes=n_bytes,
            n_tokens=frequencies.total(),
            n_unknown=n_unknown,
            frequencies=+frequencies,
            most_frequent=tuple((self.tokens([i])[0], n) for i, n in frequencies.most_common(20)),
        )

    def pad(
        self,
        sequences: Sequence[Sequence[int]],
        *,
        max_len: int | None = None,
        side: PaddingSide = "right",
        truncate_side: PaddingSide | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Ids (B, T) filled up with `[PAD]`, and their attention mask: see `padding.pad`."""
        if self.pad_id is None:
            raise UserError("this tokenizer has no special token [PAD] to fill rows up with")
        return pad(sequences, self.pad_id, max_len=max_len, side=side, truncate_side=truncate_side)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of ids: see the top of this module. Bytes that are no UTF-8 become U+FFFD."""
        try:
            whole = [operator.index(token_id) for token_id in ids]
        except TypeError as error:
            raise UserError("ids must be a list of token ids, which are whole numbers") from error
        return self._codec.decode(whole, skip_special)

    def stream(self, *, skip_special: bool = True, after: Iterable[int] = ()) -> TextStream | ImportedStream:
        """A decoder for ids that come one at a time: `push` each, then `flush`. It never cuts a character.

        With `after`, the ids of a prompt, it gives what follows the prompt's text: the space between the two too.

        >>> tokenizer = Tokenizer.train(["the cat sat"] * 2, vocab_size=0, scheme="whole_words")
        >>> *prompt, last = tokenizer.encode("the cat sat")
        >>> tokenizer.stream().push(last), tokenizer.stream(after=prompt).push(last)
        ('sat', ' sat')
        """
        stream = self._codec.stream(skip_special)
        stream.continue_after(after)
        return stream

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Readable tokens: spaces as they are, `</w>` where a word ends, `<0xE2>` for a part of a character."""
        return [self._codec.show(self.id_to_token(token_id)) for token_id in ids]

    @property
    def start_id(self) -> int | None:
        """The id that a text begins with in training: what the file puts before a text, else BOS, else EOS."""
        before = self.frames.prompt.before
        if before:
            return before[-1]
        return self.eos_id if self.bos_id is None else self.bos_id

    def n_bytes_of(self, ids: Iterable[int]) -> int:
        """Bytes of text that these tokens stand for, as UTF-8; a special token stands for none.

        >>> tokenizer = Tokenizer.train(["é"], vocab_size=0, scheme="char", special_tokens=("[BOS]",))
        >>> tokenizer.n_bytes_of([0, 1])
        2
        """
        special = {self.vocab[token] for token in self.special_tokens}
        return sum(len(self.pieces[i]) for i in ids if i not in special)

    @cached_property
    def _tokens(self) -> list[str]:
        return list(self.vocab)

    @property
    def pieces(self) -> list[bytes]:
        """By id, the bytes of text that a token stands for, perhaps only a part of a character."""
        return self._codec.pieces


def _read(text: str) -> tuple[Any, tokenizers.Tokenizer]:
    """A parsed `tokenizer.json`, and what the Rust library makes of it, after a look at it."""
    with rust_tokenizer.no_panic("it is not a whole tokenizer.json"):
        description = files.parse_json(text)
        check_file(description)
        return description, tokenizers.Tokenizer.from_str(text)


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of a text or of a pair's target; and the source's own, where the two have no joint one."""

    target: Tokenizer
    separate_source: Tokenizer | None = None

    @property
    def source(self) -> Tokenizer:
        return self.separate_source or self.target


def sentinels(n: int) -> tuple[str, ...]:
    """The special tokens that stand for spans.

    >>> sentinels(2)
    ('[SPAN_0]', '[SPAN_1]')
    """
    return tuple(f"[SPAN_{i}]" for i in range(n))


def sentinel_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of the sentinels that a tokenizer has, in their order: ours, or T5's."""
    for spelling in ("[SPAN_{}]", "<extra_id_{}>"):
        found: list[int] = []
        while (token := tokenizer.token_to_id(spelling.format(len(found)))) is not None:
            found.append(token)
        if found:
            break
    return found
