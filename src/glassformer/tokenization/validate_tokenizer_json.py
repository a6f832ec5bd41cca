"""Checks of an untrusted `tokenizer.json` before the Rust library loads it.

The library does not limit a file: it loops up to the largest id, panics on some damaged parts, and its regular
expressions backtrack, so that `(a+)+$` can take exponential time (ReDoS). A regular expression does not show if it is
safe, so only those in `KNOWN_EXPRESSIONS` are accepted. The number of parts that can each double a text is limited.
Every part must have a type that is allowed in its place; without a type, the library would guess one.
"""

import base64
import os
from collections.abc import Iterator
from typing import Any

from glassformer.common.errors import UserError
from glassformer.tokenization.schemes import WORD_END

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"
LLAMA3 = rf"{_SUFFIXES}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
QWEN = rf"{_SUFFIXES}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}|{_REST}"
TEKKEN = rf"{_BEFORE_WORD}{_CAPITALS}*{_SMALL}+|{_BEFORE_WORD}{_CAPITALS}+{_SMALL}*|\p{{N}}|{_REST_WITH_SLASH}"

KNOWN_EXPRESSIONS = frozenset(
    [
        WORD_END,
        # GPT-2, OPT, Phi (if `ByteLevel` does not include it)
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        LLAMA3,  # and cl100k in the form of `transformers`
        # cl100k in the form of OpenAI
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
        r"\s+(?!\S)|\s",
        QWEN,  # 2, 2.5 and 3, and OLMo
        # Qwen 3.5
        rf"{_SUFFIXES}|{_BEFORE_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+",
        # o200k, Llama 4
        rf"{_BEFORE_WORD}{_CAPITALS}*{_SMALL}+{_SUFFIXES}?|{_BEFORE_WORD}{_CAPITALS}+{_SMALL}*{_SUFFIXES}?|"
        rf"\p{{N}}{{1,3}}|{_REST_WITH_SLASH}",
        TEKKEN,  # of Mistral
        # digits in groups of three: Falcon, DeepSeek
        r"[0-9][0-9][0-9]",
        r"\p{N}{1,3}",
        # DeepSeek 3, whose file has line ends without escapes
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        # SentencePiece: several spaces become one (T5, ALBERT, XLM-R)
        r" {2,}",
        r"\s+",
    ]
)


MAX_TOKENIZER_BYTES = 64 * 1024 * 1024  # twice the size of the largest known file, with 260,000 tokens
MAX_PARTS = 64
MAX_WORD_CHARACTERS = 256  # of WordPiece, whose time is quadratic in the length of a word; all known files have 100
MAX_MAPPED_BYTES = 64  # bytes to which a map of characters maps one character; the known maximum, of U+FDFA, is 33
ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
"""Roles of special tokens, in the order of the default special tokens."""
TemplateText = str | list[dict[str, str]]
"""A Jinja template of transformers, or several with a `name`. It is never run."""
MAX_AFFIX_CHARACTERS = 64  # prefix or suffix that a model adds to each piece: `##`, `</w>`
MAX_AROUND = 64  # special tokens around texts
TRUST = "GLASSFORMER_TRUST_TOKENIZERS"
"""Environment variable. With the value 1, regular expressions that are not in `KNOWN_EXPRESSIONS` are accepted."""
_MODELS = ("BPE", "WordLevel", "WordPiece", "Unigram")
_KNOWN = {
    "normalizer": (
        *("Sequence", "Replace", "Strip", "BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Lowercase"),
        *("StripAccents", "Prepend", "Precompiled", "ByteLevel"),
    ),
    "pre_tokenizer": (
        *("Sequence", "Split", "ByteLevel", "BertPreTokenizer", "Metaspace", "Whitespace", "WhitespaceSplit"),
        *("Digits", "Punctuation"),
    ),
    "post_processor": ("Sequence", "ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing"),
    "decoder": (
        *("Sequence", "Replace", "Strip", "ByteLevel", "Metaspace", "BPEDecoder", "WordPiece", "ByteFallback", "Fuse"),
    ),
}
"""Allowed types of parts. The key is the place of the part in the file."""
_IN_SEQUENCE = ("normalizers", "pretokenizers", "processors", "decoders")
_GROWING = ("ByteLevel", "Precompiled")
"""Types of parts that map one character to several; each such part can double the length of a text."""
_BEGIN = "it splits or changes text by an unsupported rule"


def check_file(description: Any) -> None:
    """Check a parsed file; raise `UserError` for unsupported parts and `ValueError` for missing or damaged ones."""
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise ValueError("it has no model")
    model, added = description["model"], description.get("added_tokens") or []
    if model.get("type", "BPE") not in _MODELS:
        raise UserError(f"model.type: expected one of {', '.join(_MODELS)}, got {model['type']!s:.40}")
    if model.get("dropout"):
        raise UserError(f"model.dropout is {model['dropout']!r:.40}, which is not supported; set it to null")
    # 1. The parts that change or split text.
    parts = [(place, part) for place in _KNOWN for part in _parts(description.get(place))]
    if len(parts) > MAX_PARTS:
        raise UserError(f"it has {len(parts)} parts that change or split text; at most {MAX_PARTS} are supported")
    for place, part in parts:
        _check_part(place, part)
    before = [part["type"] for place, part in parts if place in ("normalizer", "pre_tokenizer")]
    if twice := [kind for kind in _GROWING if before.count(kind) > 1]:
        raise UserError(f"{_BEGIN}: it has {before.count(twice[0])} parts of type {twice[0]}; only one is supported")
    # 2. The ids.
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise ValueError("added_tokens is not a list of objects")
    _check_ids(_vocabulary(model), [(token.get("content"), token.get("id")) for token in added])
    # 3. Settings of the model: those that cost time, and those of this package.
    limit = model.get("max_input_chars_per_word", 0)
    if not _is_count(limit) or limit > MAX_WORD_CHARACTERS:
        raise UserError(f"max_input_chars_per_word: expected at most {MAX_WORD_CHARACTERS}, got {limit!s:.40}")
    affixes = [model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix")]
    if (longest := max(map(len, affixes))) > MAX_AFFIX_CHARACTERS:
        raise UserError(f"its prefix or suffix of pieces has {longest:,} characters, more than {MAX_AFFIX_CHARACTERS}")
    frequencies = model.get("frequencies")
    if frequencies is not None and not (isinstance(frequencies, list) and all(map(_is_count, frequencies))):
        raise ValueError("model.frequencies is not a list of integers")
    if model.get("roles") is not None:
        check_roles(model["roles"])
    check_chat_template(model.get("chat_template"))


def check_roles(roles: Any) -> None:
    """Raise `UserError` unless `roles` maps known roles to the text of special tokens."""
    if not isinstance(roles, dict) or not all(role in ROLES and isinstance(roles[role], str) for role in roles):
        raise UserError(f"roles: expected an object that maps {', '.join(ROLES)} to tokens")


def check_chat_template(template: Any) -> None:
    """Raise `UserError` unless a chat template is a text, a list of named texts, or None."""
    named = template if isinstance(template, list) else []
    are_named = all(isinstance(one, dict) and set(map(type, one.values())) == {str} for one in named)
    if not (template is None or isinstance(template, (str, list))) or not are_named:
        raise UserError(f"chat_template: expected a text or a list of named texts, got {template!s:.60}")


def _check_part(place: str, part: dict[str, Any]) -> None:
    kind = part.get("type")
    if kind not in _KNOWN[place]:
        raise UserError(f"{_BEGIN}: its {place} has a part of type {kind!s:.40}")
    for regex in (inner["Regex"] for inner in tables(part) if "Regex" in inner):
        if regex not in KNOWN_EXPRESSIONS and os.environ.get(TRUST) != "1":
            raise UserError(
                f"{_BEGIN}: its regular expression {regex!r:.60} is unknown and could take exponential time; if you "
                f"trust the file, set {TRUST}=1"
            )
    if kind == "Replace" and (len(part["content"]) > 1 or part["pattern"] == {"String": ""}):
        content, pattern = part["content"], part["pattern"]
        raise UserError(f"{_BEGIN}: Replace of {pattern!s:.60} may use at most one character, got {content!r:.40}")
    if kind == "Prepend" and len(part["prepend"]) > 1:
        raise UserError(f"{_BEGIN}: Prepend may use at most one character, got {part['prepend']!r:.40}")
    if kind == "Precompiled":
        _check_map(base64.b64decode(part["precompiled_charsmap"], validate=True))
    if kind == "TemplateProcessing":
        n_ids = sum(len(token["ids"]) for token in part["special_tokens"].values())
        if max(len(part["single"]), len(part["pair"]), n_ids) > MAX_AROUND:
            raise UserError(f"its post_processor adds more than {MAX_AROUND} special tokens to a text")


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """Yield a part of the file and, if it is a sequence, the parts in it."""
    if part is None:
        return
    yield part
    for name in _IN_SEQUENCE:
        for inner in part.get(name, ()):
            yield from _parts(inner)


def _check_map(charsmap: bytes) -> None:
    """Check SentencePiece's map of characters: size of a trie in bytes, the trie, its targets separated by zeros."""
    n_trie = int.from_bytes(charsmap[:4], "little")
    targets = charsmap[4 + n_trie :]
    if n_trie < 1024 or n_trie % 4 or not targets.endswith(b"\0"):
        raise UserError("its map of characters (Precompiled) is damaged")
    if max(map(len, targets.split(b"\0"))) > MAX_MAPPED_BYTES:
        raise UserError(f"its map of characters (Precompiled) maps a character to more than {MAX_MAPPED_BYTES} bytes")


def tables(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all JSON objects in a part of the file, the part included."""
    if isinstance(part, dict):
        yield part
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            yield from tables(inner)


def _vocabulary(model: dict[str, Any]) -> Any:
    """Return the ids of a model's tokens; Unigram has a list of pieces with scores instead."""
    vocab = model.get("vocab")
    if not isinstance(vocab, list):
        return vocab
    if not all(isinstance(entry, list) and len(entry) == 2 for entry in vocab):
        raise ValueError("model.vocab is not a list of pieces and scores")
    are_scored = (type(score) in (int, float) and abs(score) < 1e30 for _, score in vocab)
    if not all(piece and isinstance(piece, str) for piece, _ in vocab) or not all(are_scored):
        raise ValueError("a piece of model.vocab has no text or no score")
    unknown = model.get("unk_id")
    if unknown is not None and not (_is_count(unknown) and unknown < len(vocab)):
        raise UserError(f"model.unk_id: expected an id below {len(vocab)}, got {unknown!s:.40}")
    ids = {piece: i for i, (piece, _) in enumerate(vocab)}
    if len(ids) < len(vocab):
        raise UserError("model.vocab has a piece twice")
    return ids


def _check_ids(vocab: Any, added: list[tuple[Any, Any]]) -> None:
    """Check that the ids of the vocabulary and the added tokens are 0, 1, 2 …, each once."""
    if not isinstance(vocab, dict) or not all(map(_is_count, vocab.values())):
        raise ValueError("model.vocab is not an object of tokens and ids")
    if not all(content and isinstance(content, str) and _is_count(number) for content, number in added):
        raise ValueError("an item of added_tokens has no content or no id")
    for content, number in added:
        if vocab.get(content, number) != number:
            raise UserError(f"its token {content!r:.60} has id {number} in added_tokens and {vocab[content]} in vocab")
    if len(dict(added)) < len(added):
        raise UserError("added_tokens has a token twice")
    if sorted((vocab | dict(added)).values()) != list(range(len(vocab | dict(added)))):
        raise UserError("its ids must be 0, 1, 2 … without a gap, because each id is a row of the embedding")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
