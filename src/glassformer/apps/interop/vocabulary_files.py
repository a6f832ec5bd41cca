"""Tokenizers of folders without `tokenizer.json`: built from `vocab.json` and `merges.txt`, or from `vocab.txt`.

A tokenizer of bytes (ByT5) needs no vocabulary file.

The tokens are those of transformers for the same files (Radford 2019; Devlin 2019).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from glassformer.common import files
from glassformer.common.errors import UserError, shown
from glassformer.tokenization.pretokenize import BYTE_TO_CHARACTER
from glassformer.tokenization.validate_tokenizer_json import MAX_TOKENIZER_BYTES

SAVE_FAST = "load the fast tokenizer with transformers and call save_pretrained, which writes one"
VOCAB, MERGES, WORDS, ADDED = "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Parts:
    """The settings of a folder's tokenizer, apart from the vocabulary."""

    folder: Path
    settings: Mapping[str, Any]
    """Contents of `tokenizer_config.json`."""
    roles: Mapping[str, str]
    """Role → special token."""


Builder = Callable[[Parts], tokenizers.Tokenizer | None]
"""Function that builds a tokenizer; it returns None if the folder's tokenizer is of another kind."""


def build(parts: Parts, builder: Builder, needed: tuple[str, ...]) -> str | None:
    """Return the text of a `tokenizer.json` built from the files `needed`; None if it cannot be built from them.

    Raises `UserError` if the files do not fit together.
    """
    if not all((parts.folder / name).is_file() for name in needed):
        return None
    try:
        rust = builder(parts)
        if rust is None:
            return None
        added = _added_tokens(parts, rust.get_vocab())
    except UserError:
        raise
    except Exception as error:  # the library raises plain Exception
        where = " and ".join(str(parts.folder / name) for name in needed)
        raise UserError(f"cannot build a tokenizer from {where}: {error!s:.200}") from error
    description = json.loads(rust.to_str())
    description["added_tokens"] = added
    return json.dumps(description, ensure_ascii=False)


def byte_level(parts: Parts) -> tokenizers.Tokenizer:
    """Build a byte-level BPE tokenizer with the pre-tokenization of GPT-2."""
    if parts.settings.get("add_bos_token"):
        raise UserError(f"{parts.folder} sets add_bos_token and has no tokenizer.json: {SAVE_FAST}")
    rust = tokenizers.Tokenizer(_bpe(parts.folder))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=_adds_space(parts))
    rust.decoder = decoders.ByteLevel()
    return rust


def framed_byte_level(parts: Parts) -> tokenizers.Tokenizer:
    """Build a tokenizer as `byte_level` does, with `<s> A </s></s> B </s>` around texts (RoBERTa, BART)."""
    rust = byte_level(parts)
    first, last = (_token(parts, role, rust) for role in ("cls", "sep"))
    rust.post_processor = processors.RobertaProcessing(
        last, first, trim_offsets=True, add_prefix_space=_adds_space(parts)
    )
    return rust


def qwen_byte_level(parts: Parts) -> tokenizers.Tokenizer:
    """Build a byte-level BPE tokenizer with the pre-tokenization of Qwen 2 and 3, on text in NFC."""
    rust = byte_level(parts)
    rust.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(tokenizers.Regex(QWEN), behavior="isolated", invert=False)
    ending = pre_tokenizers.ByteLevel(add_prefix_space=_adds_space(parts), use_regex=False)
    rust.pre_tokenizer = pre_tokenizers.Sequence([split, ending])
    return rust


def word_piece(parts: Parts) -> tokenizers.Tokenizer:
    """Build a WordPiece tokenizer with `[CLS] A [SEP] B [SEP]` around texts (BERT, DistilBERT)."""
    lines = files.read_text(parts.folder / WORDS, MAX_TOKENIZER_BYTES).split("\n")
    if lines[-1] == "":
        lines.pop()
    vocab = {line.removesuffix("\r"): i for i, line in enumerate(lines)}
    rust = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token=parts.roles.get("unk", "[UNK]")))
    rust.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=parts.settings.get("tokenize_chinese_chars", True),
        strip_accents=parts.settings.get("strip_accents"),
        lowercase=parts.settings.get("do_lower_case", True),
    )
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    (cls, cls_id), (sep, sep_id) = (_token(parts, role, rust) for role in ("cls", "sep"))
    rust.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, cls_id), (sep, sep_id)],
    )
    rust.decoder = decoders.WordPiece(prefix="##")
    return rust


def byte_tokens(parts: Parts) -> tokenizers.Tokenizer | None:
    """Build ByT5's tokenizer (Xue 2022): three special tokens, one token per byte, sentinels; `A </s>` around texts."""
    if parts.settings.get("tokenizer_class") != "ByT5Tokenizer":
        return None
    special = [parts.roles[role] for role in ("pad", "eos", "unk")]
    sentinels = [f"<extra_id_{i}>" for i in range(parts.settings.get("extra_ids", 125))]
    tokens = [*special, *(BYTE_TO_CHARACTER[byte] for byte in range(256)), *sentinels]
    rust = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    rust.decoder = decoders.ByteLevel()
    eos, eos_id = _token(parts, "eos", rust)
    rust.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, eos_id)]
    )
    return rust


def _bpe(folder: Path) -> models.BPE:
    vocab = files.read_json(folder / VOCAB, MAX_TOKENIZER_BYTES)
    if not isinstance(vocab, dict) or not all(type(i) is int and i >= 0 for i in vocab.values()):
        raise UserError(f"{folder / VOCAB} must contain a JSON object of token → id")
    lines = files.read_text(folder / MERGES, MAX_TOKENIZER_BYTES).split("\n")
    pairs = [line.removesuffix("\r").split(" ") for line in lines if line.strip()]
    if pairs and pairs[0][0].startswith("#version"):
        pairs.pop(0)
    if wrong := [pair for pair in pairs if len(pair) != 2]:
        raise UserError(f"{folder / MERGES} has a line that is not a pair of tokens: {shown(' '.join(wrong[0]))}")
    merges = [(left, right) for left, right in pairs]
    return models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False)


def _adds_space(parts: Parts) -> bool:
    return parts.settings.get("add_prefix_space") is True


def _token(parts: Parts, role: str, rust: tokenizers.Tokenizer) -> tuple[str, int]:
    token = parts.roles.get(role, "")
    token_id = rust.token_to_id(token)
    if token_id is None:
        raise UserError(f"{parts.folder}: the vocabulary has no {role} token {shown(token)}, which is put around texts")
    return token, token_id


def _added_tokens(parts: Parts, vocab: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the special tokens, and the tokens that were added after the vocabulary, sorted by id."""
    ids: dict[str, int] = {}
    if (parts.folder / ADDED).is_file():
        ids = dict(files.read_json(parts.folder / ADDED))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    options = {token: flags | {"special": token in parts.roles.values(), "normalized": True} for token in ids}
    others = [token for token in parts.settings.get("additional_special_tokens") or [] if isinstance(token, str)]
    for token in dict.fromkeys([*parts.roles.values(), *others]):
        token_id = ids.get(token, vocab.get(token))
        if token_id is not None:
            ids[token] = token_id
            is_mask = token == parts.roles.get("mask") and WORDS not in {path.name for path in parts.folder.iterdir()}
            options[token] = flags | {"special": True, "lstrip": is_mask}  # a byte-level mask includes its space
    for token_id, token in (parts.settings.get("added_tokens_decoder") or {}).items():
        ids[token["content"]] = int(token_id)
        options[token["content"]] = {key: bool(token.get(key, False)) for key in (*flags, "special")}
        options[token["content"]]["special"] |= token["content"] in parts.roles.values()
    by_id = sorted(options, key=lambda token: ids[token])
    return [{"id": ids[token], "content": token} | options[token] for token in by_id]
