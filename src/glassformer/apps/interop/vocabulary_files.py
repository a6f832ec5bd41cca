"""Tokenizers of folders without `tokenizer.json`: built from `vocab.json` and `merges.txt`, or from `vocab.txt`.

A tokenizer of bytes (ByT5) needs no vocabulary file. The tokens are those of transformers for the same files (Radford
2019; Devlin 2019).

The folders of OPUS-MT have SentencePiece files: one model per side, and one table of ids, `vocab.json`. Each side
becomes a Unigram tokenizer over the ids of that table. Entries of the table that are not pieces of the side get a
spelling that no text contains, so a text is split as the side's own model splits it. There is one exception: a run of
characters that the model does not contain is looked up in the table as a whole. (If the table has parts of the run but
not the whole run, transformers gives one unknown token, and glassformer finds the parts.)
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from glassformer.common import files
from glassformer.common.errors import UserError, placed, shown
from glassformer.tokenization.frames import Frame, template_processing
from glassformer.tokenization.schemes import BYTE_TO_CHARACTER
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.validate_tokenizer_json import MAX_TOKENIZER_BYTES, QWEN

SAVE_FAST = "load the fast tokenizer with transformers and call save_pretrained, which writes one"
VOCAB, MERGES, WORDS, ADDED = "vocab.json", "merges.txt", "vocab.txt", "added_tokens.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
"""Flags of an added token in a `tokenizer.json` that is found anywhere in an unchanged text."""


@dataclass(frozen=True)
class Parts:
    """The settings of a folder's tokenizer, apart from the vocabulary."""

    folder: Path
    settings: Mapping[str, Any]
    """Contents of `tokenizer_config.json`."""
    roles: Mapping[str, str]
    """The special token of each role."""


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
    options = {token: FLAGS | {"special": token in parts.roles.values(), "normalized": True} for token in ids}
    others = [token for token in parts.settings.get("additional_special_tokens") or [] if isinstance(token, str)]
    for token in dict.fromkeys([*parts.roles.values(), *others]):
        token_id = ids.get(token, vocab.get(token))
        if token_id is not None:
            ids[token] = token_id
            is_mask = token == parts.roles.get("mask") and WORDS not in {path.name for path in parts.folder.iterdir()}
            options[token] = FLAGS | {"special": True, "lstrip": is_mask}  # a byte-level mask includes its space
    for token_id, token in (parts.settings.get("added_tokens_decoder") or {}).items():
        ids[token["content"]] = int(token_id)
        options[token["content"]] = {key: bool(token.get(key, False)) for key in (*FLAGS, "special")}
        options[token["content"]]["special"] |= token["content"] in parts.roles.values()
    by_id = sorted(options, key=lambda token: ids[token])
    return [{"id": ids[token], "content": token} | options[token] for token in by_id]


SOURCE, TARGET = "source.spm", "target.spm"
TARGET_VOCAB = "target_vocab.json"
USUAL = {"pad": "<pad>", "unk": "<unk>", "eos": "</s>"}
NORMAL, USER_DEFINED, UNIGRAM = 1, 4, 1
SPACE = "▁"
NOWHERE = " "
"""First character of spellings that no text contains: spaces become `▁` before pieces are searched."""


def read_pair(folder: Path, roles: Mapping[str, str], log: Callable[[str], None]) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of target and source; `log` receives a message about pieces without an id.

    Raises `UserError` without the package `sentencepiece`, and for a model that a Unigram tokenizer cannot reproduce.
    """
    roles = USUAL | {role: token for role, token in roles.items() if role in USUAL}
    vocab = _vocab(folder / VOCAB, roles)
    of_target = vocab
    if (folder / TARGET_VOCAB).is_file():
        of_target = _vocab(folder / TARGET_VOCAB, roles)
    sides = ((folder / TARGET, of_target), (folder / SOURCE, vocab))
    target, source = (_tokenizer(path, table, roles, log) for path, table in sides)
    return target, source


def _tokenizer(path: Path, vocab: Mapping[str, int], roles: Mapping[str, str], log: Callable[[str], None]) -> Tokenizer:
    model = _parsed(path)
    if problem := _problem(model):
        raise UserError(f"{path} cannot be imported: {problem}")
    scores = {piece.piece: piece.score for piece in model.pieces if piece.type == NORMAL}
    if missing := sorted(scores.keys() - vocab.keys()):
        log(
            f"{path.name}: {len(missing)} of {len(scores)} pieces have no id, such as {missing[0]!r}: glassformer uses "
            "other pieces for such a text, and transformers uses the unknown token"
        )
    with placed(f"{path} cannot be used as a tokenizer"):
        return Tokenizer.imported(json.dumps(_description(model, scores, vocab, roles)), roles)


def _description(
    model: Any, scores: Mapping[str, float], vocab: Mapping[str, int], roles: Mapping[str, str]
) -> dict[str, Any]:
    # Pieces: entries of the table that are not pieces of this side get a spelling that no text contains
    lowest = min(scores.values())  # the score of an unknown character is relative to it
    codes = [token for token in vocab if token.startswith(">>") and token.endswith("<<")]
    characters = {SPACE}.union(*scores)
    of_side = {*scores, *roles.values(), *codes, *(piece for piece in vocab if characters.isdisjoint(piece))}
    pieces = [(piece if piece in of_side else NOWHERE + piece, scores.get(piece, lowest)) for piece in vocab]
    rust = tokenizers.Tokenizer(models.Unigram(pieces, vocab[roles["unk"]], byte_fallback=False))
    # Characters and spaces of a text
    rules = model.normalizer_spec
    steps: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Replace(tokenizers.Regex(" {2,}"), " "), normalizers.Strip()]
    rust.normalizer = normalizers.Sequence(steps)
    prepend_scheme = "always" if rules.add_dummy_prefix else "never"
    rust.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme)
    rust.decoder = decoders.Sequence([decoders.Replace(NOWHERE, ""), decoders.Metaspace(SPACE, prepend_scheme)])
    # Special tokens
    description: dict[str, Any] = json.loads(rust.to_str())
    description["added_tokens"] = [
        {"id": vocab[token], "content": token, **FLAGS, "special": token in roles.values()}
        for token in (*roles.values(), *codes)
    ]
    end = (vocab[roles["eos"]],)
    frames = Frame(after=end), Frame(after=end, second_type=0)
    description["post_processor"] = template_processing(*frames, list(vocab).__getitem__)
    return description


def _problem(model: Any) -> str | None:
    """Return why a Unigram tokenizer of the `tokenizers` library cannot reproduce a model; None if it can."""
    if model.trainer_spec.model_type != UNIGRAM:
        return "its model_type is not Unigram"
    if any(piece.type == USER_DEFINED for piece in model.pieces):
        return "it has user-defined pieces (user_defined_symbols)"
    if model.trainer_spec.byte_fallback:
        return "it splits unknown characters into bytes (byte_fallback)"
    if model.trainer_spec.treat_whitespace_as_suffix or not model.trainer_spec.split_by_whitespace:
        return "its words do not begin with spaces (treat_whitespace_as_suffix, or no split_by_whitespace)"
    if not model.normalizer_spec.escape_whitespaces:
        return "it does not replace spaces with ▁ (escape_whitespaces)"
    if not any(piece.type == NORMAL for piece in model.pieces):
        return "it has no pieces"
    return None


def _parsed(path: Path) -> Any:
    try:
        messages: Any = import_module("sentencepiece.sentencepiece_model_pb2")
    except ImportError as error:
        raise UserError(
            f"{path} is a SentencePiece file, which needs {error.name}: run pip install sentencepiece protobuf"
        ) from None
    if not path.is_file():
        raise UserError(f"{path.parent} has no {path.name}, which its tokenizers need")
    if path.stat().st_size > MAX_TOKENIZER_BYTES:
        raise UserError(f"{path} has {path.stat().st_size:,} bytes; the limit is {MAX_TOKENIZER_BYTES:,}")
    model = messages.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except Exception as error:  # the module of protobuf's error class depends on its version
        raise UserError(f"{path} is not a SentencePiece model, or it is damaged ({error!s:.100})") from error
    return model


def _vocab(path: Path, roles: Mapping[str, str]) -> dict[str, int]:
    """Return the id of each token, sorted by id, with all special tokens."""
    if not path.is_file():
        raise UserError(f"{path.parent} has no {path.name}, which maps its pieces to ids")
    vocab = files.read_json(path)
    ids = list(vocab.values()) if isinstance(vocab, dict) else []
    if not ids or not all(type(i) is int for i in ids) or sorted(ids) != list(range(len(ids))):
        raise UserError(f"{path} must map its tokens to the ids 0, 1, 2 …")
    for role, token in roles.items():
        if token not in vocab:
            raise UserError(f"{path} has no id for {shown(token)}, the {role}_token")
    return dict(sorted(vocab.items(), key=lambda item: item[1]))
