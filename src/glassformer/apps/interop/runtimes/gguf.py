"""Export to a GGUF file for llama.cpp: metadata, tensors and tokenizer, which are read back and compared."""

import json
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glassformer.apps.interop.equivalent import differences
from glassformer.apps.interop.family import Family, Rule
from glassformer.apps.interop.gguf_files import BYTES, FACTORS, PREFIX, SPLITS, TEMPLATE, WHOLE_WORDS, split_of
from glassformer.apps.interop.hf import choose_family, compare_weights_read, filled, transformer_of
from glassformer.apps.interop.tokenizer_files import row_names, trained_start
from glassformer.apps.interop.vocabulary_files import FLAGS
from glassformer.common import files
from glassformer.common.errors import UserError, needs, shown
from glassformer.config.transformer import LinearScaling, Llama3Scaling, RotaryPositions, TransformerConfig, YarnScaling
from glassformer.inference.text import causal_frame
from glassformer.nn.positions import llama3_scaled, rotary_frequencies
from glassformer.store.model_directory import StoredModel, weights_of
from glassformer.tokenization.tokenizer import Tokenizer

Dtype = Literal["float32", "float16", "bfloat16"]
FILE = "model.gguf"
IN_GGUF: Mapping[Dtype, tuple[str, str]] = {
    "float32": ("F32", "ALL_F32"),
    "float16": ("F16", "MOSTLY_F16"),
    "bfloat16": ("BF16", "MOSTLY_BF16"),
}
"""For each dtype, the names of the tensor type and of the file type in the package gguf."""
TEXT = (
    "Don't WE'LL\r\n\r\n\tif x_1 != 12345:  # 1,000.50 ²½ ١٢٣ camelCase ABCdef/ \u00a0é 日本語 한국 हिन्दी 🙂👍🏽 "
    "\x00\x7f\n\n  <s> <|end|> Привет мир"
)
"""A text with many kinds of characters, whose ids are compared."""
PIECES_PER_TEXT = 64
ARCHITECTURE = "general.architecture"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = range(1, 6)  # gguf.TokenType
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}
"""For each role of a special token, its name in GGUF, in the spelling of GGUF."""


@dataclass(frozen=True)
class Architecture:
    """One `general.architecture` of GGUF, and the settings that are fixed in llama.cpp's code for it."""

    name: str
    activation: str
    """Activation of the feed-forward, by its name in glassformer."""
    turns_neighbours: bool = False
    """True if rotary positions rotate entries 2i and 2i + 1 of a head together, not i and i + K/2."""
    has_factors: bool = False
    """True if a tensor may divide each rotary frequency by its own factor."""
    has_out_bias: bool = True
    """True if the output projection of attention may have a bias."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "gpt2": Architecture("gpt2", "gelu_tanh"),
    "llama": Architecture("llama", "silu", turns_neighbours=True, has_factors=True),
    "mistral": Architecture("llama", "silu", turns_neighbours=True, has_factors=True),
    "qwen2": Architecture("qwen2", "silu", has_out_bias=False),
    "qwen3": Architecture("qwen3", "silu", has_out_bias=False),
}
"""For each `model_type` of transformers, the architecture of GGUF."""


def write_gguf(stored: StoredModel, folder: Path, dtype: Dtype = "float32") -> list[str]:
    """Write `model.gguf`, read it back and compare; return the lines of the report.

    `dtype` applies to the matrices; vectors and positions stay in float32. Raises `UserError` if llama.cpp cannot
    compute this model, or if the tensors of the file give other logits than the model (in this dtype).
    """
    with needs("the export to GGUF", "export"):
        import gguf
    # What llama.cpp can represent
    config, network = transformer_of(stored, "llama.cpp")
    if config.encoder is not None:
        raise UserError("the GGUF export needs a decoder-only model, and this model has an encoder")
    family = choose_family(config, stored.run.architecture)
    architecture = ARCHITECTURES.get(family.model_type)
    if architecture is None:
        raise UserError(f"the GGUF export does not support {family.name}, the family of this model")
    require_fit(config, architecture)
    config, weights = family.recast(config, weights_of(network))
    # Write metadata and tensors
    numbers = tokenizer_numbers(stored.tokenizers.target, replace(config, bos_id=trained_start(stored)))
    n_texts = require_same_ids(stored.tokenizers.target, numbers)
    numbers |= model_numbers(config, architecture) | _chat_numbers(stored)
    numbers |= {"general.name": stored.run.name, "general.file_type": int(gguf.LlamaFileType[IN_GGUF[dtype][1]])}
    weights = {name: _rounded(name, x, dtype) for name, x in weights.items()}
    rules = rules_of(gguf, family, architecture, config)
    tensors = tensors_of(config, architecture, rules, weights)
    _write_file(gguf, folder / FILE, numbers, tensors, dtype)
    # Read back and compare
    read = _read_back(gguf, folder / FILE, numbers, tensors)
    del tensors, weights  # each is as large as the model
    rounded = {name: _rounded(name, x, dtype) for name, x in weights_of(network).items()}
    as_written = filled(network.config, rounded)
    difference = compare_weights_read(config, weights_from(config, architecture, rules, read), as_written)
    n_bytes = (folder / FILE).stat().st_size
    report = [
        f"{family.name} as llama.cpp's {architecture.name}: {len(read):,} tensors, matrices in {dtype}, "
        f"{n_bytes:,} bytes",
        f"read back: all metadata and tensors are identical, and logits differ by at most {difference:.1e}",
        f"tokenizer {numbers[f'{PREFIX}pre']}: the ids of {n_texts:,} texts are equal",
    ]
    if _description(stored.tokenizers.target)["normalizer"]:
        report.append("llama.cpp does not normalise a text to NFC, as this tokenizer does: normalise it before")
    return report


def require_fit(config: TransformerConfig, architecture: Architecture) -> None:
    """Raise `UserError` that lists the settings that llama.cpp's code for an architecture would compute differently."""
    expected: dict[str, Any] = {"activation": architecture.activation, "attention_scale": None}
    if not architecture.has_out_bias:
        expected["attn_out_bias"] = False
    found = differences(config, vars(config) | expected)
    if config.head.kind != "tokens":
        found.append(f"model.head: expected tokens, got {config.head.kind}")
    if any(0 < window < config.max_len for window in config.head_stack.window_pattern):
        found.append("model.decoder.window_pattern: expected no window shorter than max_len")
    scaling = config.positions.scaling if isinstance(config.positions, RotaryPositions) else None
    if isinstance(scaling, Llama3Scaling) and not architecture.has_factors:
        found.append("model.positions.scaling: expected none, linear or yarn, got llama3")
    if isinstance(scaling, YarnScaling):
        if (scaling.beta_fast, scaling.beta_slow) != (32.0, 1.0):
            found.append("model.positions.scaling: expected beta_fast 32 and beta_slow 1")
        if scaling.attention_factor:
            found.append("model.positions.scaling.attention_factor: expected 0")
        if scaling.original_max_len < 7:  # < 2π: no full rotation, and another ramp
            found.append("model.positions.scaling.original_max_len: expected at least 7")
    if found:
        raise UserError(f"llama.cpp's {architecture.name} cannot compute this model exactly: {'; '.join(found)}")


def rules_of(gguf: ModuleType, family: Family, architecture: Architecture, config: TransformerConfig) -> list[Rule]:
    """Return the rules of a family with llama.cpp's names of tensors; no matrix is stored as (in, out)."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture.name], config.head_stack.n_layers)

    def name_of(theirs: str) -> str:
        name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if name is None:
            raise UserError(f"llama.cpp's {architecture.name} has no tensor for {theirs}")
        return str(name)

    return [replace(x, theirs=tuple(map(name_of, x.theirs)), transposed=False) for x in family.rules(config)]


def model_numbers(config: TransformerConfig, architecture: Architecture) -> dict[str, Any]:
    """Return the metadata of the model's sizes, by GGUF's names."""
    stack, positions = config.head_stack, config.positions
    widths = config.attention_widths(stack)
    eps = "layer_norm_epsilon" if config.norm == "layernorm" else "layer_norm_rms_epsilon"
    numbers: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "context_length": config.max_len,
        "embedding_length": config.d_model,
        "block_count": stack.n_layers,
        "feed_forward_length": stack.d_ff,
        "attention.head_count": stack.n_heads,
        "attention.head_count_kv": widths.n_kv_heads,
        "attention.key_length": widths.d_head,
        "attention.value_length": widths.d_head,
        f"attention.{eps}": config.norm_eps,
    }
    if isinstance(positions, RotaryPositions):
        numbers |= {"rope.dimension_count": widths.d_head, "rope.freq_base": positions.base}
        scaling = positions.scaling
        if isinstance(scaling, LinearScaling | YarnScaling):
            numbers |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
        if isinstance(scaling, YarnScaling):
            numbers["rope.scaling.original_context_length"] = scaling.original_max_len
    general = {ARCHITECTURE: architecture.name, "general.type": "model"}
    return general | {f"{architecture.name}.{name}": value for name, value in numbers.items()}


def tokenizer_numbers(tokenizer: Tokenizer, config: TransformerConfig) -> dict[str, Any]:
    """Return the tokenizer's metadata, by GGUF's names; raise `UserError` if llama.cpp would give other ids.

    Rows of the embedding table without a token have the type `UNUSED`.
    """
    # The split into words must have a name in llama.cpp
    description = _description(tokenizer)
    split = split_of(description)
    if split is None:
        kind = tokenizer.scheme or description["model"]["type"]
        raise UserError(
            f"llama.cpp does not support this tokenizer: expected byte-level BPE with the split into words of "
            f"{', '.join(SPLITS)}, and no normalizer but NFC; got {kind}"
        )
    if not tokenizer.merges:
        raise UserError("llama.cpp needs a tokenizer with merges, and this one has only the 256 bytes")
    # Tokens at the beginning and the end of a text
    end = tokenizer.eos_id if config.eos_id is None else config.eos_id
    before = causal_frame(tokenizer, config).before
    begin = before[0] if before else config.bos_id
    if end is None:
        raise UserError("this tokenizer has no end token, and llama.cpp would use the token with id 11")
    if len(before) > 1:
        raise UserError("llama.cpp puts one token before a prompt, but this tokenizer puts several")
    # Kinds of tokens; the embedding may have more rows than the tokenizer has tokens
    added = {token["content"]: CONTROL if token["special"] else USER_DEFINED for token in description["added_tokens"]}
    kinds = [added.get(token, NORMAL) for token in tokenizer.vocab]
    n_unused = config.vocab_size - tokenizer.vocab_size
    numbers: dict[str, Any] = {
        "model": "gpt2",  # byte-level BPE
        "pre": split,
        "tokens": row_names(tokenizer, config.vocab_size),
        "token_type": kinds + [UNUSED] * n_unused,
        "merges": [f"{left} {right}" for left, right in tokenizer.merges],
        "bos_token_id": end if begin is None else begin,
        "eos_token_id": end,
        "add_bos_token": bool(before),
        "add_eos_token": False,
    }
    for role, name in ROLES.items():
        if (token_id := getattr(tokenizer, f"{role}_id")) is not None:
            numbers.setdefault(f"{name}_token_id", token_id)
    return {PREFIX + name: value for name, value in numbers.items()}


def require_same_ids(tokenizer: Tokenizer, numbers: Mapping[str, Any]) -> int:
    """Raise `UserError` unless the tokenizer as llama.cpp reads it encodes every tested text to the same ids.

    The texts contain each token; a special token also occurs as ordinary text. Returns the number of texts.
    """
    theirs = as_read(tokenizer, numbers[f"{PREFIX}pre"])
    pieces = [tokenizer.decode([i]) for i in range(tokenizer.vocab_size)]
    texts = ["".join(pieces[i : i + PIECES_PER_TEXT]) for i in range(0, len(pieces), PIECES_PER_TEXT)]
    added = [token["content"] for token in _description(tokenizer)["added_tokens"]]
    texts += [f"{TEXT} {token} a{token}b {token}" for token in added]
    texts = [unicodedata.normalize("NFC", text) for text in texts]
    for allowed in ((), tokenizer.special_tokens):
        rows, others = (one.encode_batch(texts, allow_special=allowed) for one in (tokenizer, theirs))
        if wrong := [text for text, row, other in zip(texts, rows, others, strict=True) if row != other]:
            raise UserError(
                f"llama.cpp does not support this tokenizer: as {numbers[f'{PREFIX}pre']}, it gives other ids for "
                f"{len(wrong):,} of {len(texts):,} texts, such as {shown(wrong[0])}"
            )
    return len(texts)


def as_read(tokenizer: Tokenizer, split: str) -> Tokenizer:
    """Return a tokenizer with the rules of llama.cpp for a split into words."""
    description = _description(tokenizer)
    model = {"type": "BPE", "unk_token": None, "ignore_merges": split in WHOLE_WORDS}
    model |= {name: description["model"][name] for name in ("vocab", "merges")}
    changes: dict[str, Any] = {"pre_tokenizer": SPLITS[split], "decoder": BYTES, "model": model}
    changes |= {"normalizer": None, "post_processor": None}
    added = [token | FLAGS for token in description["added_tokens"]]
    roles = {role: tokenizer.id_to_token(i) for role in ROLES if (i := getattr(tokenizer, f"{role}_id")) is not None}
    return Tokenizer.imported(json.dumps(description | changes | {"added_tokens": added}), roles)


def _description(tokenizer: Tokenizer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tokenizer.to_json())
    return found


def _chat_numbers(stored: StoredModel) -> dict[str, Any]:
    """Return the metadata of chat templates, and of further tokens at which llama.cpp ends a text."""
    numbers, template = dict[str, Any](), stored.tokenizers.target.chat_template or []
    templates = [{"name": "default", "template": template}] if isinstance(template, str) else template
    named = {one["name"]: one["template"] for one in templates}
    if "default" in named:
        numbers[TEMPLATE] = named.pop("default")
    if named:
        numbers[f"{TEMPLATE}s"] = list(named)
        numbers |= {f"{TEMPLATE}.{name}": text for name, text in named.items()}
    further = dict.fromkeys(i for i in stored.generation.end_ids if i != stored.config.eos_id)
    numbers |= zip((f"{PREFIX}{name}_token_id" for name in ("eot", "eom")), further, strict=False)
    return numbers


def neighbours(x: Tensor, n_heads: int) -> Tensor:
    """Reorder the rows of queries or keys within each head: rows i and i + K/2, which rotate together, become adjacent.

    >>> neighbours(torch.arange(8), n_heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return _reordered(x, n_heads, (2, -1))


def halves(x: Tensor, n_heads: int) -> Tensor:
    """Reorder the rows of queries or keys within each head: the inverse of `neighbours`.

    >>> halves(torch.tensor([0, 2, 1, 3, 4, 6, 5, 7]), n_heads=2).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return _reordered(x, n_heads, (-1, 2))


def _reordered(x: Tensor, n_heads: int, grid: tuple[int, int]) -> Tensor:
    return x.unflatten(0, (n_heads, -1)).unflatten(1, grid).transpose(1, 2).flatten(0, 2)


def tensors_of(
    config: TransformerConfig, architecture: Architecture, rules: Iterable[Rule], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of the file, given the model's weights."""
    widths, positions = config.attention_widths(config.head_stack), config.positions
    tensors: dict[str, Tensor] = {}
    for rule in rules:
        tensors |= rule.to_theirs(weights)
    for name, n_heads in _turned(config, architecture, tensors).items():
        tensors[name] = neighbours(tensors[name], n_heads)
    if isinstance(positions, RotaryPositions) and isinstance(positions.scaling, Llama3Scaling):
        tensors[FACTORS] = frequency_factors(positions.base, positions.scaling, widths.d_head)
    return tensors


def weights_from(
    config: TransformerConfig, architecture: Architecture, rules: Iterable[Rule], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the model's weights, given the tensors of the file: the inverse of `tensors_of`."""
    turned = _turned(config, architecture, tensors)
    tensors = {**tensors, **{name: halves(tensors[name], n_heads) for name, n_heads in turned.items()}}
    weights: dict[str, Tensor] = {}
    for rule in rules:
        weights |= rule.to_ours(tensors)
    return weights


def frequency_factors(base: float, scaling: Llama3Scaling, d_head: int) -> Tensor:
    """Return the divisors of the rotary frequencies, (K/2,): the factor for long wavelengths, 1 for short ones.

    >>> frequency_factors(10000.0, Llama3Scaling(8.0, 1.0, 4.0, 64), 6)
    tensor([1., 8., 8.])
    """
    plain = rotary_frequencies(base, d_head)
    longest, shortest = scaling.low_freq_factor, scaling.high_freq_factor
    return plain / llama3_scaled(plain, scaling.factor, longest, shortest, scaling.original_max_len)


def _turned(config: TransformerConfig, architecture: Architecture, names: Iterable[str]) -> dict[str, int]:
    """Return the number of heads of each query and key tensor whose rows have another order in a file."""
    if not architecture.turns_neighbours:
        return {}
    widths = config.attention_widths(config.head_stack)
    n_heads = {".attn_q.": widths.n_heads, ".attn_k.": widths.n_kv_heads}
    return {name: n_heads[part] for name in names for part in n_heads if part in name}


def _stays_in_float32(name: str, x: Tensor) -> bool:
    """Return True for vectors and positions, by their names in the model or in the file."""
    return x.dim() < 2 or "position" in name


def _rounded(name: str, x: Tensor, dtype: Dtype) -> Tensor:
    """Return a tensor with the values of the file: a matrix rounded to the dtype."""
    x = x.float().cpu()
    if _stays_in_float32(name, x):
        return x
    rounded = x.to(getattr(torch, dtype)).float()
    if not torch.equal(rounded.isfinite(), x.isfinite()):
        raise UserError(f"{name} has values outside the range of {dtype}: use bfloat16 or float32")
    return rounded


def _write_file(
    gguf: ModuleType, path: Path, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: Dtype
) -> None:
    writer = gguf.GGUFWriter(path, numbers[ARCHITECTURE])
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for name, value in numbers.items():
        if name != ARCHITECTURE:  # the writer adds it
            add.get(type(value), writer.add_array)(name, value)
    for name, x in tensors.items():
        kind = gguf.GGMLQuantizationType["F32" if _stays_in_float32(name, x) else IN_GGUF[dtype][0]]
        writer.add_tensor(name, gguf.quants.quantize(x.numpy(), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files.fsync_file(path)


def _read_back(
    gguf: ModuleType, path: Path, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    reader = gguf.GGUFReader(path)
    written = {name: float(np.float32(x)) if isinstance(x, float) else x for name, x in numbers.items()}
    read = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    problem = UserError("the file read back differs from the data written: nothing was exported; check the disk")
    if read != written or tensors.keys() != {stored.name for stored in reader.tensors}:
        raise problem
    found: dict[str, Tensor] = {}
    for stored in reader.tensors:
        x = gguf.quants.dequantize(stored.data, stored.tensor_type)
        x = torch.from_numpy(x.reshape(stored.shape.tolist()[::-1]).copy())  # last dimension first
        if not torch.equal(x, tensors[stored.name]):
            raise problem
        found[stored.name] = x
    return found
