"""What a `tokenizer.json` is held to before the Rust library sees it.

The library builds whatever a file asks for: it counts up to the largest id, gives up (panics) on some damaged parts,
and its expressions backtrack, so that one such as `(a+)+$` may take longer than anybody lives. No expression can be
told to be harmless by looking at it, so only known ones are let through. Parts that could make a text grow without
end, each doubling what the last one left, are bounded. A part has a type of its place, or the library would guess one.
"""

import base64
import os
from collections.abc import Iterator
from typing import Any

from glassformer.errors import UserError
from glassformer.tokenization.pretokenize import WORD_END

_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE_WORD = r"[^\r\n\p{L}\p{N}]?"

KNOWN_EXPRESSIONS = frozenset(
    [
        WORD_END,
        # GPT-2, OPT, Phi (where `ByteLevel` does not say it)
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        # Llama 3, cl100k as `transformers` writes it
        rf"{_SUFFIXES}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
        # cl100k as OpenAI writes it
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
        r"\s+(?!\S)|\s",
        # Qwen 2, 2.5 and 3, OLMo
        rf"{_SUFFIXES}|{_BEFORE_WORD}\p{{L}}+|\p{{N}}|{_REST}",
        # Qwen 3.5
        rf"{_SUFFIXES}|{_BEFORE_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|"
        r"\s+(?!\S)|\s+",
        # o200k, Llama 4
        rf"{_BEFORE_WORD}{_CAPITALS}*{_SMALL}+{_SUFFIXES}?|{_BEFORE_WORD}{_CAPITALS}+{_SMALL}*{_SUFFIXES}?|"
        rf"\p{{N}}{{1,3}}|{_REST_WITH_SLASH}",
        # Mistral's Tekken
        rf"{_BEFORE_WORD}{_CAPITALS}*{_SMALL}+|{_BEFORE_WORD}{_CAPITALS}+{_SMALL}*|\p{{N}}|{_REST_WITH_SLASH}",
        # numbers by themselves, in threes: Falcon, DeepSeek
        r"[0-9][0-9][0-9]",
        r"\p{N}{1,3}",
        # DeepSeek 3, whose file has the line ends themselves
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        # SentencePiece: several spaces become one (T5, ALBERT, XLM-R)
        r" {2,}",
        r"\s+",
    ]
)


MAX_TOKENIZER_BYTES = 64 * 1024 * 1024  # twice the largest in use, of 260,000 tokens
MAX_PARTS = 64
MAX_WORD_CHARACTERS = 256  # of WordPiece, whose time grows with their square; all known files have 100
MAX_MAPPED_BYTES = 64  # what a map of characters makes of one; the longest in use, of U+FDFA, has 33
ROLES = ("pad", "unk", "bos", "eos", "cls", "sep", "mask")
"""What a special token can be for, in the order of our own."""
MAX_AFFIX_CHARACTERS = 64  # what a model puts before or behind each piece that it looks up: `##`, `</w>`
MAX_AROUND = 64  # tokens that stand around texts
TRUST = "GLASSFORMER_TRUST_TOKENIZERS"
"""The environment variable by which a person who trusts a file lets its own expressions through: 1."""
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
"""Types of parts, by their place."""
_IN_SEQUENCE = ("normalizers", "pretokenizers", "processors", "decoders")
_GROWING = ("ByteLevel", "Precompiled")
"""What may make several characters of each, and so doubles a text as often as it is there."""
_BEGIN = "it splits or changes text in a way that is not known here"


def check_file(description: Any) -> None:
    """Looks at a parsed file; `UserError` for what is not let through, `ValueError` where something is not there."""
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise ValueError("it has no model")
    model, added = description["model"], description.get("added_tokens") or []
    if model.get("type", "BPE") not in _MODELS:
        raise UserError(f"its model is {model['type']!s:.40}, and {', '.join(_MODELS)} are read here")
    if model.get("dropout"):
        raise UserError(f"its model sets dropout to {model['dropout']!r:.40}, which is not supported here")
    parts = [(place, part) for place in _KNOWN for part in _parts(description.get(place))]
    if len(parts) > MAX_PARTS:
        raise UserError(f"it changes and splits text in {len(parts)} parts, more than {MAX_PARTS}")
    for place, part in parts:
        _check_part(place, part)
    before = [part["type"] for place, part in parts if place in ("normalizer", "pre_tokenizer")]
    if twice := [kind for kind in _GROWING if before.count(kind) > 1]:
        raise UserError(f"{_BEGIN}: it has {before.count(twice[0])} parts of type {twice[0]}, and one is allowed")
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise ValueError("its added tokens are no list of tables")
    _check_ids(_vocabulary(model), [(token.get("content"), token.get("id")) for token in added])
    limit = model.get("max_input_chars_per_word", 0)
    if not _is_count(limit) or limit > MAX_WORD_CHARACTERS:
        raise UserError(f"its model looks at words of {limit!s:.40} characters, and {MAX_WORD_CHARACTERS} are allowed")
    affixes = [model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix")]
    if (longest := max(map(len, affixes))) > MAX_AFFIX_CHARACTERS:
        raise UserError(f"its model puts {longest:,} characters at pieces, and {MAX_AFFIX_CHARACTERS} are allowed")
    frequencies = model.get("frequencies")
    if frequencies is not None and not (isinstance(frequencies, list) and all(map(_is_count, frequencies))):
        raise ValueError("its frequencies are no list of whole numbers")
    if model.get("roles") is not None:
        check_roles(model["roles"])


def check_roles(roles: Any) -> None:
    """`UserError` unless it is a table of what special tokens are for and how they are spelled."""
    if not isinstance(roles, dict) or not all(role in ROLES and isinstance(roles[role], str) for role in roles):
        raise UserError(f"its roles are no table of tokens by {', '.join(ROLES)}")


def _check_part(place: str, part: dict[str, Any]) -> None:
    kind = part.get("type")
    if kind not in _KNOWN[place]:
        raise UserError(f"{_BEGIN}: it has a part of type {kind!s:.40} as {place}")
    for regex in (inner["Regex"] for inner in tables(part) if "Regex" in inner):
        if regex not in KNOWN_EXPRESSIONS and os.environ.get(TRUST) != "1":
            raise UserError(
                f"{_BEGIN}: its expression {regex!r:.60} is none of the known ones, and some never end; if you trust "
                f"the file, set {TRUST}=1"
            )
    if kind == "Replace" and (len(part["content"]) > 1 or part["pattern"] == {"String": ""}):
        content, pattern = part["content"], part["pattern"]
        raise UserError(f"{_BEGIN}: it puts {content!r:.40} for {pattern!s:.60}, and one character at most is allowed")
    if kind == "Prepend" and len(part["prepend"]) > 1:
        raise UserError(f"{_BEGIN}: it puts {part['prepend']!r:.40} before a text, and one character is allowed")
    if kind == "Precompiled":
        _check_map(base64.b64decode(part["precompiled_charsmap"], validate=True))
    if kind == "TemplateProcessing":
        n_ids = sum(len(token["ids"]) for token in part["special_tokens"].values())
        if max(len(part["single"]), len(part["pair"]), n_ids) > MAX_AROUND:
            raise UserError(f"its post_processor puts more than {MAX_AROUND} tokens around a text")


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    """A part of the file, and those that it is a sequence of."""
    if part is None:
        return
    yield part
    for name in _IN_SEQUENCE:
        for inner in part.get(name, ()):
            yield from _parts(inner)


def _check_map(charsmap: bytes) -> None:
    """SentencePiece's map of characters: the bytes of a trie, the trie, and what it points to, apart by zeros."""
    n_trie = int.from_bytes(charsmap[:4], "little")
    targets = charsmap[4 + n_trie :]
    if n_trie < 1024 or n_trie % 4 or not targets.endswith(b"\0"):
        raise UserError("its map of characters (Precompiled) is damaged")
    if max(map(len, targets.split(b"\0"))) > MAX_MAPPED_BYTES:
        raise UserError(f"its map of characters makes more than {MAX_MAPPED_BYTES} bytes of one")


def tables(part: Any) -> Iterator[dict[str, Any]]:
    """A part of the file and all tables inside it."""
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from tables(inner)


def _vocabulary(model: dict[str, Any]) -> Any:
    """The ids of a model's tokens, which Unigram has as a list of pieces and their scores."""
    vocab = model.get("vocab")
    if not isinstance(vocab, list):
        return vocab
    if not all(isinstance(entry, list) and len(entry) == 2 for entry in vocab):
        raise ValueError("its pieces are no list of pieces and scores")
    are_scored = (type(score) in (int, float) and abs(score) < 1e30 for _, score in vocab)
    if not all(piece and isinstance(piece, str) for piece, _ in vocab) or not all(are_scored):
        raise ValueError("its pieces have no text or no score")
    unknown = model.get("unk_id")
    if unknown is not None and not (_is_count(unknown) and unknown < len(vocab)):
        raise UserError(f"its unknown piece has the id {unknown!s:.40}, and it has {len(vocab)} pieces")
    ids = {piece: i for i, (piece, _) in enumerate(vocab)}
    if len(ids) < len(vocab):
        raise UserError("one of its pieces is there twice")
    return ids


def _check_ids(vocab: Any, added: list[tuple[Any, Any]]) -> None:
    """Ids are 0, 1, 2 …, each once, over the vocabulary and what is added to it."""
    if not isinstance(vocab, dict) or not all(map(_is_count, vocab.values())):
        raise ValueError("its vocabulary is no table of tokens and ids")
    if not all(content and isinstance(content, str) and _is_count(number) for content, number in added):
        raise ValueError("its added tokens have no content or no id")
    for content, number in added:
        if vocab.get(content, number) != number:
            raise UserError(f"its token {content!r:.60} has the id {number}, and {vocab[content]} in its vocabulary")
    if len(dict(added)) < len(added):
        raise UserError("one of its special tokens is named twice")
    if sorted((vocab | dict(added)).values()) != list(range(len(vocab | dict(added)))):
        raise UserError("its ids are not 0, 1, 2 … without a gap, so no embedding can have one row for each")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
