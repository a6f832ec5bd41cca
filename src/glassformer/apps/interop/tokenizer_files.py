"""Tokenizer files of transformers: read them, and write them so that `AutoTokenizer` gives the same ids."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.apps.interop.directory import HFFolder
from glassformer.apps.interop.vocabulary_files import (
    SAVE_FAST,
    SOURCE,
    TOKENIZER_CONFIG,
    Builder,
    Parts,
    build,
    read_pair,
)
from glassformer.common import files
from glassformer.common.errors import UserError, placed, shown
from glassformer.config.recurrent import ModelConfig
from glassformer.config.transformer import TokenHead, TransformerConfig, VectorHead
from glassformer.inference.text import causal_frame
from glassformer.store.model_directory import TOKENIZER, StoredModel
from glassformer.tasks.task import task_of
from glassformer.tokenization.frames import template_processing
from glassformer.tokenization.schemes import BYTE_TO_CHARACTER
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from glassformer.tokenization.validate_tokenizer_json import MAX_TOKENIZER_BYTES, ROLES, check_chat_template, tables

SPECIAL = "special_tokens_map.json"
CHAT_TEMPLATE = "chat_template.jinja"
TARGET = "target"
OF_UTF8 = [byte for byte in range(0xF5) if byte not in (0xC0, 0xC1)]
"""Bytes that occur in UTF-8 text."""
ANY_CLASS = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of tokenizers that add no special tokens, and use `tokenizer.json` unchanged."""
OF_BERT = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
"""For each setting in `tokenizer_config.json`, the option of a `BertNormalizer`."""


def read_tokenizers(
    folder: HFFolder,
    log: Callable[[str], None],
    usual: Mapping[str, str] | None = None,
    builder: Builder | None = None,
    vocabulary: tuple[str, ...] = (),
) -> Tokenizers:
    """Return the tokenizers of a folder; raise `UserError` if one is unreadable.

    A folder has SentencePiece files for each side, or a `tokenizer.json`. If the subfolder `target` has a second
    `tokenizer.json`, the first is for the source. `usual` has the special tokens of roles that no file defines. Without
    a `tokenizer.json`, `builder` builds it from the files `vocabulary`, with a message to `log`.
    """
    if (folder.path / SOURCE).is_file():
        target, source = read_pair(folder.path, roles(folder), log)
        if source.fingerprint == target.fingerprint:
            return Tokenizers(target)
        return Tokenizers(target, source)
    built = None
    if builder is not None and not (folder.path / TOKENIZER).is_file():
        all_roles = _roles_by_default(folder, usual or {}) | roles(folder)
        built = build(Parts(folder.path, folder.table(TOKENIZER_CONFIG), all_roles), builder, vocabulary)
    if built is not None:
        log(f"no {TOKENIZER}: the tokenizer is built from {' and '.join(vocabulary)}")
    tokenizer = _read_tokenizer(folder, usual or {}, built)
    _report_missing_bytes(tokenizer, log)
    if not (folder.path / TARGET / TOKENIZER).is_file():
        return Tokenizers(tokenizer)
    return Tokenizers(_read_tokenizer(replace(folder, path=folder.path / TARGET), usual or {}), tokenizer)


def _read_tokenizer(folder: HFFolder, usual: Mapping[str, str], built: str | None = None) -> Tokenizer:
    """Return the tokenizer of `tokenizer.json`, or of the text `built` in its place."""
    text = built or folder.text(TOKENIZER, MAX_TOKENIZER_BYTES)
    if text is None:
        pieces = sorted(path.name for path in folder.path.iterdir() if path.suffix in (".spm", ".model"))
        others = f", only the SentencePiece files {' and '.join(pieces)}" if pieces else ""
        raise UserError(f"{folder.path} has no {TOKENIZER}{others}: {SAVE_FAST}")
    template, of_files = _chat_template(folder), roles(folder)
    with placed(f"{folder.path / TOKENIZER} cannot be used as a tokenizer"):
        tokenizer = Tokenizer.imported(text, of_files, template)
        defaults = _roles_by_default(folder, usual)
        if missing := {role: token for role, token in defaults.items() if token in tokenizer.vocab}:
            tokenizer = Tokenizer.imported(text, of_files | missing, template)
    _require_agreement(folder, json.loads(text))
    return tokenizer


def _report_missing_bytes(tokenizer: Tokenizer, log: Callable[[str], None]) -> None:
    description = json.loads(tokenizer.to_json())
    parts = tables([description["pre_tokenizer"], description["normalizer"]])
    if description["model"]["type"] != "BPE" or not any(part.get("type") == "ByteLevel" for part in parts):
        return
    missing = [byte for byte in OF_UTF8 if BYTE_TO_CHARACTER[byte] not in tokenizer.vocab]
    if not missing:
        return
    examples = ", ".join(f"0x{byte:02X}" for byte in missing[:8])
    if len(missing) > 8:
        examples += " …"
    unknown = description["model"]["unk_token"]
    effect = "are dropped" if unknown is None else f"become {unknown}"
    log(
        f"the tokenizer's vocabulary lacks {len(missing)} of the bytes of UTF-8 text ({examples}): in a text, they "
        f"{effect}, as in transformers"
    )


def _require_agreement(folder: HFFolder, description: dict[str, Any]) -> None:
    """Raise `UserError` if the settings, which transformers uses, differ from the options in `tokenizer.json`."""
    settings = _settings(folder)
    if settings.get("tokenizer_class") in ANY_CLASS:
        return
    for step, kind, options in (
        ("normalizer", "BertNormalizer", OF_BERT),
        ("pre_tokenizer", "ByteLevel", {"add_prefix_space": "add_prefix_space"}),
    ):
        parts = [part for part in tables(description.get(step)) if part.get("type") == kind]
        for option, field in options.items():
            value = settings.get(option)
            if value is not None and any(part.get(field) != value for part in parts):
                raise UserError(
                    f"{folder.path / TOKENIZER_CONFIG}: {option} {shown(str(value))} differs from {TOKENIZER}: load "
                    "the tokenizer with transformers and call save_pretrained, which makes them agree"
                )


def roles(folder: HFFolder) -> dict[str, str]:
    """Return the special token of each role, from `tokenizer_config.json` or else from `special_tokens_map.json`."""
    settings = _settings(folder)
    tokens = {}
    for role in ROLES:
        token = settings.get(f"{role}_token")
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            tokens[role] = token
    return tokens


def _chat_template(folder: HFFolder) -> Any:
    """Return the chat template of a folder, or None. Prefer the file of the template, as transformers does."""
    text = folder.text(CHAT_TEMPLATE)
    if text is not None:
        return text
    template = folder.table(TOKENIZER_CONFIG).get("chat_template")
    with placed(folder.path / TOKENIZER_CONFIG):
        check_chat_template(template)
    return template


def _roles_by_default(folder: HFFolder, usual: Mapping[str, str]) -> dict[str, str]:
    """Return the `usual` roles that no file of the folder defines, if its tokenizer class has special tokens.

    The published folders of BERT and GPT-2 need them.
    """
    settings = _settings(folder)
    if settings.get("tokenizer_class") in ANY_CLASS:
        return {}
    return {role: token for role, token in usual.items() if f"{role}_token" not in settings}


def _settings(folder: HFFolder) -> dict[str, Any]:
    return folder.table(SPECIAL) | folder.table(TOKENIZER_CONFIG)


def trained_start(stored: StoredModel) -> int | None:
    """Return the id of the token that begins every text in training; None if there is no such token.

    An export names only this token `bos_token`. Other programs (lm-evaluation-harness, llama.cpp) put `bos_token`
    before a text, and a token that the model never saw there changes the result.

    A causal language model stores the id as `decoder_start_id`. Otherwise, an imported model keeps the `bos_id` of its
    own files. Otherwise, an encoder-decoder has such a token if its `decoder_start_id` is the BOS.
    """
    config = stored.config
    is_seq2seq = config.is_encoder_decoder
    is_causal_lm = task_of(stored.run).predicts_next and not is_seq2seq
    if is_causal_lm and config.decoder_start_id is not None:
        return config.decoder_start_id
    starts_target = is_seq2seq and config.bos_id == config.decoder_start_id
    if stored.tokenizers.target.roles is not None or starts_target:
        return config.bos_id
    return None


def row_names(tokenizer: Tokenizer, n_rows: int) -> list[str]:
    """Return a token for each row of an embedding table; rows beyond the vocabulary are called [UNUSED…]."""
    return [*tokenizer.vocab, *(f"[UNUSED{i}]" for i in range(tokenizer.vocab_size, n_rows))]


def write_tokenizers(stored: StoredModel, folder: Path) -> None:
    """Write the tokenizer. If source and target have two tokenizers, write the target's to the subfolder `target`."""
    config, max_len = stored.config, stored.config.encoder_max_len
    if isinstance(config, TransformerConfig) and isinstance(config.head, VectorHead):
        max_len = config.head.max_tokens or max_len
    named = [role for role in ROLES if role != "bos" or trained_start(stored) is not None]
    write_tokenizer(stored.tokenizers.source, folder, config, max_len, named)
    if stored.tokenizers.separate_source is not None:
        (folder / TARGET).mkdir()
        write_tokenizer(stored.tokenizers.target, folder / TARGET, config, config.max_len, named)


def write_tokenizer(
    tokenizer: Tokenizer, folder: Path, config: ModelConfig, max_len: int, named: Sequence[str] = ROLES
) -> None:
    """Write `tokenizer.json`, and the files with the special tokens of the roles `named` and the model's length.

    The post-processor in `tokenizer.json` adds the special tokens that the model expects around a text.
    """
    # tokenizer.json: what is around a text, and spaces before a mask
    description = json.loads(tokenizer.to_json())
    theirs = description.get("post_processor")
    if theirs is None:
        description["post_processor"] = _around(tokenizer, config)
    elif _is_causal(config) and causal_frame(tokenizer, config) != tokenizer.frames.prompt:
        # Training put a start token before a text, but the imported tokenizer adds no start token.
        description["post_processor"] = {"type": "Sequence", "processors": [theirs, _around(tokenizer, config)]}
    if tokenizer.roles is None and tokenizer.scheme == "byte" and getattr(config, "encoder", None) is not None:
        for token in description["added_tokens"]:  # byte-level tokens include their leading space, so a mask does too
            token["lstrip"] = token["lstrip"] or token["id"] == tokenizer.mask_id
    files.write_text(folder / TOKENIZER, json.dumps(description, ensure_ascii=False, indent=1) + "\n")
    # Special tokens by their roles
    special = {}
    for role in named:
        token_id = getattr(tokenizer, f"{role}_id")
        if role == "bos" and _is_causal(config) and config.decoder_start_id is not None:
            token_id = config.decoder_start_id
        if token_id is not None:
            special[f"{role}_token"] = tokenizer.id_to_token(token_id)
    files.write_json(folder / SPECIAL, special)
    # Settings of the tokenizer
    inputs = ["input_ids", "attention_mask"]
    if getattr(config, "n_token_types", 0) > 1:
        inputs.insert(1, "token_type_ids")
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_len,
        "model_input_names": inputs,
        "clean_up_tokenization_spaces": False,
        **special,
    }
    if tokenizer.chat_template is not None:
        settings["chat_template"] = tokenizer.chat_template
    files.write_json(folder / TOKENIZER_CONFIG, settings)


def _around(tokenizer: Tokenizer, config: ModelConfig) -> dict[str, Any] | None:
    """Return a `TemplateProcessing` with the special tokens around this model's texts; None without such tokens."""
    one, two = tokenizer.frames.text, tokenizer.frames.pair
    if _is_causal(config):
        one = two = causal_frame(tokenizer, config)
    elif config.is_encoder_decoder:
        one = two = tokenizer.frames.source  # the same as for a target
    if not one.n_added + two.n_added:
        return None
    return template_processing(one, two, tokenizer.id_to_token)


def _is_causal(config: ModelConfig) -> bool:
    return isinstance(config, TransformerConfig) and config.encoder is None and isinstance(config.head, TokenHead)
