"""SentencePiece files, as in the folders of OPUS-MT: one model per side, and one table of ids, `vocab.json`.

Each side becomes a Unigram tokenizer over the ids of that table. Entries of the table that are not pieces of the side
get a spelling that no text contains, so that text is split as by the side's own model. Characters that the model does
not contain are the exception: a run of them is looked up in the table unchanged. (If the table has parts of the run
but not the whole run, transformers gives one unknown token, and glassformer finds the parts.)
"""

import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from glassformer.common import files
from glassformer.common.errors import UserError, shown
from glassformer.tokenization.special_tokens_template import Frame, template_processing
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.validate_tokenizer_json import MAX_TOKENIZER_BYTES

SOURCE, TARGET = "source.spm", "target.spm"
VOCAB, TARGET_VOCAB = "vocab.json", "target_vocab.json"
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
    try:
        return Tokenizer.imported(json.dumps(_description(model, scores, vocab, roles)), roles)
    except UserError as error:
        raise UserError(f"{path} cannot be used as a tokenizer: {error}") from error


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
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    description["added_tokens"] = [
        {"id": vocab[token], "content": token, **flags, "special": token in roles.values()}
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
    """Return token → id, sorted by id, with all special tokens."""
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
