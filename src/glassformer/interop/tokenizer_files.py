"""Tokenizer files of transformers' folders: taken over, and written so that `AutoTokenizer` reads what we mean."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer import files
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import TokenHead, TransformerConfig, VectorHead
from glassformer.errors import UserError, shown
from glassformer.inference.decode import causal_frame
from glassformer.interop import sentencepiece_files
from glassformer.interop.directory import HFFolder
from glassformer.interop.vocabulary_files import Builder, Parts, build
from glassformer.store.model_directory import StoredModel
from glassformer.tasks.registry import task_of
from glassformer.tasks.task import ContinuesPrompts
from glassformer.tokenization.special_tokens_template import Frame
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.validate_tokenizer_json import MAX_TOKENIZER_BYTES, ROLES, tables

TOKENIZER, TOKENIZER_CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
TARGET = "target"
ANY_CLASS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of tokenizers without special tokens of their own, which run `tokenizer.json` as it is."""
OF_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""What the settings call the options of a `BertNormalizer`."""


def read_tokenizers(
    folder: HFFolder,
    log: Callable[[str], None],
    usual: Mapping[str, str] | None = None,
    builder: Builder | None = None,
    vocabulary: tuple[str, ...] = (),
) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer of a folder and that of its source, where it has its own; `UserError` where one cannot be read.

    Their files are those of SentencePiece for each side, or `tokenizer.json`, of the source where the subfolder
    `target` holds another. `usual` has the roles of tokens of which no file says what they are for. Without a
    `tokenizer.json`, `builder` makes one of the files `vocabulary`, which `log` is told.
    """
    if (folder.path / sentencepiece_files.SOURCE).is_file():
        target, source = sentencepiece_files.read_pair(folder.path, roles(folder), log)
        return target, None if source.fingerprint == target.fingerprint else source
    built = None
    if builder is not None and not (folder.path / TOKENIZER).is_file():
        found = _unsaid(folder, usual or {}) | roles(folder)
        built = build(Parts(folder.path, folder.table(TOKENIZER_CONFIG), found), builder, vocabulary)
    if built is not None:
        log(f"its tokenizer is built from {' and '.join(vocabulary)}: it has no {TOKENIZER}")
    tokenizer = _read_tokenizer(folder, usual or {}, built)
    if not (folder.path / TARGET / TOKENIZER).is_file():
        return tokenizer, None
    return _read_tokenizer(replace(folder, path=folder.path / TARGET), usual or {}), tokenizer


def _read_tokenizer(folder: HFFolder, usual: Mapping[str, str], built: str | None = None) -> Tokenizer:
    """The tokenizer of `tokenizer.json`, or of the text that was `built` in its place."""
    path = folder.path / TOKENIZER
    if built is None and not path.is_file():
        raise UserError(f"{folder.path} has no {TOKENIZER}{_why_not(folder.path)}")
    text = files.read_text(path, MAX_TOKENIZER_BYTES) if built is None else built
    try:
        said = roles(folder)
        tokenizer = Tokenizer.imported(text, said)
        left = {role: token for role, token in _unsaid(folder, usual).items() if token in tokenizer.vocab}
        tokenizer = Tokenizer.imported(text, said | left) if left else tokenizer
    except UserError as error:
        raise UserError(f"{path} cannot be used as a tokenizer: {error}") from error
    _require_agreement(folder, json.loads(text))
    return tokenizer


def _require_agreement(folder: HFFolder, description: dict[str, Any]) -> None:
    """`UserError` where the settings split a text otherwise than the file: transformers follows them then."""
    said = _said(folder)
    if said.get("tokenizer_class") in ANY_CLASS:
        return
    for place, kind, options in (
        ("normalizer", "BertNormalizer", OF_BERT),
        ("pre_tokenizer", "ByteLevel", {"add_prefix_space": "add_prefix_space"}),
    ):
        parts = [part for part in tables(description.get(place)) if part.get("type") == kind]
        for option, field in options.items():
            value = said.get(option)
            if value is not None and any(part.get(field) != value for part in parts):
                raise UserError(
                    f"{folder.path / TOKENIZER_CONFIG} says {option} {shown(str(value))} and {TOKENIZER} another: load "
                    "it with transformers once and call save_pretrained, which makes them agree"
                )


def roles(folder: HFFolder) -> dict[str, str]:
    """Role → token, as `tokenizer_config.json` says, or `special_tokens_map.json`."""
    said = _said(folder)
    found = {}
    for role in ROLES:
        token = said.get(f"{role}_token")
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            found[role] = token
    return found


def _unsaid(folder: HFFolder, usual: Mapping[str, str]) -> dict[str, str]:
    """Those of the `usual` roles that no file of a folder speaks of, where its tokenizer is of a class that has them.

    BERT and GPT-2 were published so.
    """
    said = _said(folder)
    if said.get("tokenizer_class") in ANY_CLASS:
        return {}
    return {role: token for role, token in usual.items() if f"{role}_token" not in said}


def _said(folder: HFFolder) -> dict[str, Any]:
    return folder.table(SPECIAL) | folder.table(TOKENIZER_CONFIG)


def _why_not(folder: Path) -> str:
    """What a folder has in its place, and what to do."""
    pieces = sorted(path.name for path in folder.iterdir() if path.suffix in (".spm", ".model"))
    if pieces:
        return (
            f", only SentencePiece's own {' and '.join(pieces)}: load it with transformers once and call "
            "save_pretrained on the fast tokenizer, which writes one"
        )
    return ": its tokenizer must be stored as one file, as save_pretrained of a fast tokenizer writes it"


def trained_start(stored: StoredModel) -> int | None:
    """Return the id of the token that begins every text in training; None where no token does.

    It is the only one that an export may call `bos_token`: other programs put that before a text
    (lm-evaluation-harness, llama.cpp), and a token that the model never saw there changes the result.

    The decoder of a language model records it as `decoder_start_id`. The decoder of an encoder-decoder begins with
    `decoder_start_id`, which counts where it is the BOS. Otherwise a checkpoint from elsewhere keeps the token that its
    own files name.
    """
    config = stored.config
    is_seq2seq = config.is_encoder_decoder
    is_causal_lm = isinstance(task_of(stored.run), ContinuesPrompts) and not is_seq2seq
    if is_causal_lm and config.decoder_start_id is not None:
        return config.decoder_start_id
    if stored.tokenizer.is_imported:
        return config.bos_id
    return config.bos_id if is_seq2seq and config.bos_id == config.decoder_start_id else None


def write_tokenizers(stored: StoredModel, folder: Path) -> None:
    """Writes the tokenizer; that of a target with a vocabulary of its own goes into the subfolder `target`."""
    config, first = stored.config, stored.source_tokenizer or stored.tokenizer
    head = getattr(config, "head", None)
    cut = head.max_tokens if isinstance(head, VectorHead) else 0
    named = [role for role in ROLES if role != "bos" or trained_start(stored) is not None]
    write_tokenizer(first, folder, config, cut or config.encoder_max_len, named)
    if stored.source_tokenizer is not None:
        (folder / TARGET).mkdir()
        write_tokenizer(stored.tokenizer, folder / TARGET, config, config.max_len, named)


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, config: ModelConfig, max_len: int, named: Sequence[str] = ROLES
) -> None:
    """Writes `tokenizer.json`, and the files that name the special tokens of the roles `named` and the model's length.

    The post-processor of `tokenizer.json` puts around a text what the model reads around it.
    """
    description = json.loads(tokenizer.to_json())
    theirs = description.get("post_processor")
    if theirs is None:
        description["post_processor"] = _around(tokenizer, config)
    elif _is_causal(config) and causal_frame(tokenizer, config) != tokenizer.frames.prompt:
        # Training put a start token before a text, and the tokenizer came without one.
        description["post_processor"] = {"type": "Sequence", "processors": [theirs, _around(tokenizer, config)]}
    if tokenizer.roles is None and tokenizer.scheme == "byte" and getattr(config, "encoder", None) is not None:
        for token in description["added_tokens"]:  # a byte-level token brings its own space: so does what fills a mask
            token["lstrip"] = token["lstrip"] or token["id"] == tokenizer.mask_id
    files.write_text(folder / TOKENIZER, json.dumps(description, ensure_ascii=False, indent=1) + "\n")
    special = {}
    for role in named:
        token_id = getattr(tokenizer, f"{role}_id")
        if role == "bos" and _is_causal(config) and config.decoder_start_id is not None:
            token_id = config.decoder_start_id
        if token_id is not None:
            special[f"{role}_token"] = tokenizer.id_to_token(token_id)
    files.write_json(folder / SPECIAL, special)
    has_types = getattr(config, "n_token_types", 0) > 1
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_len,
        "model_input_names": ["input_ids", *(["token_type_ids"] if has_types else []), "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    files.write_json(folder / TOKENIZER_CONFIG, settings | special)


def _around(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, Any] | None:
    """A `TemplateProcessing` of the frames in which this model reads texts; None where nothing stands around them."""
    one, two = tokenizer.frames.text, tokenizer.frames.pair
    if _is_causal(config):
        one = two = causal_frame(tokenizer, config)
    elif config.is_encoder_decoder:
        one = two = tokenizer.frames.source  # a target has the same
    if not one.n_added + two.n_added:
        return None

    def special(ids: Sequence[int], types: Sequence[int]) -> list[dict[str, Any]]:
        pairs = zip(ids, types, strict=True)
        return [{"SpecialToken": {"id": tokenizer.id_to_token(i), "type_id": kind}} for i, kind in pairs]

    def before(frame: Frame) -> list[dict[str, Any]]:
        return [*special(frame.before, [0] * len(frame.before)), {"Sequence": {"id": "A", "type_id": 0}}]

    def behind(frame: Frame, kind: int) -> list[dict[str, Any]]:
        return special(frame.behind, [kind] * len(frame.behind))

    second = {"Sequence": {"id": "B", "type_id": two.second_type}}
    pair = [*before(two), *special(two.between, two.between_types), second, *behind(two, two.second_type)]
    used = {tokenizer.id_to_token(i): i for f in (one, two) for i in (*f.before, *f.between, *f.behind)}
    return {
        "type": "TemplateProcessing",
        "single": [*before(one), *behind(one, 0)],
        "pair": pair,
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in used.items()},
    }


def _is_causal(config: ModelConfig) -> bool:
    return isinstance(config, TransformerConfig) and config.encoder is None and isinstance(config.head, TokenHead)
