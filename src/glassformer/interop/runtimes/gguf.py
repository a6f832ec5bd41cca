"""Export to a GGUF file for llama.cpp: metadata, tensors and tokenizer, which are read back and compared."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from glassformer import files
from glassformer.config.transformer import LinearScaling, Llama3Scaling, RotaryPositions, TransformerConfig, YarnScaling
from glassformer.errors import UserError, needs
from glassformer.inference.text import causal_frame
from glassformer.interop.compatibility import Compatibility
from glassformer.interop.family import Family, Key
from glassformer.interop.hf import choose_family
from glassformer.interop.tokenizer_files import trained_start
from glassformer.models.transformer import Transformer
from glassformer.nn.positions import llama3_scaled, rotary_frequencies
from glassformer.store.model_directory import StoredModel, weights_of
from glassformer.tokenization.tokenizer import Tokenizer

Dtype = Literal["float32", "float16", "bfloat16"]
FILE = "model.gguf"
ARCHITECTURE = "general.architecture"
FACTORS = "rope_freqs.weight"
NORMAL, CONTROL, UNUSED = 1, 3, 5  # gguf.TokenType
IN_GGUF: Mapping[Dtype, tuple[str, str]] = {
    "float32": ("F32", "ALL_F32"),
    "float16": ("F16", "MOSTLY_F16"),
    "bfloat16": ("BF16", "MOSTLY_BF16"),
}
"""Dtype → names in gguf of the tensor type and of the file type."""


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
"""`model_type` of transformers → architecture of GGUF."""


def write_gguf(stored: StoredModel, folder: Path, dtype: Dtype = "float32") -> list[str]:
    """Write `model.gguf`, read it back and compare; return the lines of the report.

    `dtype` applies to the matrices; vectors and positions stay in float32. Raises `UserError` if llama.cpp cannot
    compute this model, or if the file read back differs from the model.
    """
    with needs("the export to GGUF", "export"):
        import gguf
    config, network = stored.config, stored.network
    if not isinstance(config, TransformerConfig) or not isinstance(network, Transformer):
        raise UserError("llama.cpp has no recurrent encoder-decoder: export this model to onnx instead")
    if config.encoder is not None:
        raise UserError("the GGUF export needs a decoder-only model, and this model has an encoder")
    family = choose_family(config, stored.run.architecture)
    architecture = ARCHITECTURES.get(family.model_type)
    if architecture is None:
        raise UserError(f"the GGUF export does not support {family.name}, the family of this model")
    require_fit(config, architecture)
    config, own = family.recast(config, weights_of(network))
    named = replace(config, bos_id=trained_start(stored))
    numbers = model_numbers(config, architecture) | tokenizer_numbers(stored.tokenizers.target, named)
    numbers |= {"general.name": stored.run.name, "general.file_type": int(gguf.LlamaFileType[IN_GGUF[dtype][1]])}
    tensors = Tensors(config, architecture, _keys(gguf, family, architecture, config))
    weights = {name: _rounded(name, x, dtype) for name, x in own.items()}
    n_tensors = _write_file(gguf, folder / FILE, architecture, numbers, tensors.to_file(weights), dtype)
    _compare(gguf, folder / FILE, numbers, tensors, weights)
    n_bytes = (folder / FILE).stat().st_size
    return [
        f"{family.name} as llama.cpp's {architecture.name}: {n_tensors:,} tensors, matrices in {dtype}, "
        f"{n_bytes:,} bytes",
        "read back: all metadata and tensors are identical",
    ]


def require_fit(config: TransformerConfig, architecture: Architecture) -> None:
    """Raise `UserError` that lists the settings that llama.cpp's code for an architecture would compute differently."""
    positions = config.positions
    scaling = positions.scaling if isinstance(positions, RotaryPositions) else None
    fit = Compatibility(config)
    fit.check("head", config.head.kind == "tokens", f"model.head: expected tokens, got {config.head.kind}")
    fit.need("activation", architecture.activation)
    if not architecture.has_out_bias:
        fit.need("attn_out_bias", False)
    fit.need("attention_scale", None)
    fits = not any(0 < window < config.max_len for window in config.head_stack.window_pattern)
    fit.check("decoder", fits, "model.decoder.window_pattern: expected no window shorter than max_len")
    if isinstance(positions, RotaryPositions) and positions.fraction != 1:
        fit.misfits.append(f"model.positions.fraction: expected 1, got {positions.fraction}")
    if isinstance(scaling, Llama3Scaling) and not architecture.has_factors:
        fit.misfits.append("model.positions.scaling: expected none, linear or yarn, got llama3")
    if isinstance(scaling, YarnScaling) and (scaling.beta_fast, scaling.beta_slow) != (32.0, 1.0):
        fit.misfits.append("model.positions.scaling: expected beta_fast 32 and beta_slow 1")
    if isinstance(scaling, YarnScaling) and scaling.original_max_len < 7:  # < 2π: no full rotation, and another ramp
        fit.misfits.append("model.positions.scaling.original_max_len: expected at least 7")
    if fit.misfits:
        raise UserError(f"llama.cpp's {architecture.name} cannot compute this model exactly: {'; '.join(fit.misfits)}")


def model_numbers(config: TransformerConfig, architecture: Architecture) -> dict[str, Any]:
    """Return the metadata of the model's shape, by GGUF's names."""
    stack, positions = config.head_stack, config.positions
    widths = config.attention_widths(stack)
    eps = "layer_norm_epsilon" if config.norm == "layernorm" else "layer_norm_rms_epsilon"
    found: dict[str, Any] = {
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
        found |= {"rope.dimension_count": widths.d_head, "rope.freq_base": positions.base}
        scaling = positions.scaling
        if isinstance(scaling, LinearScaling | YarnScaling):
            found |= {"rope.scaling.type": scaling.kind, "rope.scaling.factor": scaling.factor}
        if isinstance(scaling, YarnScaling):
            found["rope.scaling.original_context_length"] = scaling.original_max_len
    general = {ARCHITECTURE: architecture.name, "general.type": "model"}
    return general | {f"{architecture.name}.{name}": value for name, value in found.items()}


def tokenizer_numbers(tokenizer: Tokenizer, config: TransformerConfig) -> dict[str, Any]:
    """Return the tokenizer's metadata, by GGUF's names; raise `UserError` if llama.cpp would give other ids.

    Rows of the embedding table without a token have the type `UNUSED`.
    """
    if tokenizer.scheme != "byte":
        kind = "an imported one" if tokenizer.scheme is None else f"{tokenizer.scheme}"
        raise UserError(f"llama.cpp does not support this tokenizer: expected byte, got {kind}")
    if not tokenizer.merges:
        raise UserError("llama.cpp needs a tokenizer with merges, and this one has only the 256 bytes")
    end = tokenizer.eos_id if config.eos_id is None else config.eos_id
    before = causal_frame(tokenizer, config).before
    begin = before[0] if before else config.bos_id
    if end is None:
        raise UserError("this tokenizer has no end token, and llama.cpp would use the token with id 11")
    if len(before) > 1:
        raise UserError("llama.cpp puts one token before a prompt, but this tokenizer puts several")
    special = set(tokenizer.special_tokens)
    kinds = [CONTROL if token in special else NORMAL for token in tokenizer.vocab]
    spare = range(tokenizer.vocab_size, config.vocab_size)
    found: dict[str, Any] = {
        "model": "gpt2",  # byte-level BPE
        "pre": "gpt-2",  # the regex of the pre-tokenization
        "tokens": [*tokenizer.vocab, *(f"[UNUSED{i}]" for i in spare)],
        "token_type": [*kinds, *(UNUSED for _ in spare)],
        "merges": [f"{left} {right}" for left, right in tokenizer.merges],
        "bos_token_id": end if begin is None else begin,
        "eos_token_id": end,
        "add_bos_token": bool(before),
        "add_eos_token": False,
    }
    for role, name in {"unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}.items():  # as in GGUF
        if (token_id := getattr(tokenizer, f"{role}_id")) is not None:
            found[f"{name}_token_id"] = token_id
    return {f"tokenizer.ggml.{name}": value for name, value in found.items()}


def neighbours(x: Tensor, n_heads: int) -> Tensor:
    """Reorder the rows of queries or keys within each head: rows i and i + K/2, which rotate together, become adjacent.

    >>> neighbours(torch.arange(8), n_heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return x.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def halves(x: Tensor, n_heads: int) -> Tensor:
    """Restore the order of rows before `neighbours`: its inverse.

    >>> halves(torch.tensor([0, 2, 1, 3, 4, 6, 5, 7]), n_heads=2).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return x.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def frequency_factors(base: float, scaling: Llama3Scaling, d_head: int) -> Tensor:
    """Return the divisors of the rotary frequencies, (K/2,): the factor for long wavelengths, 1 for short ones.

    >>> frequency_factors(10000.0, Llama3Scaling(8.0, 1.0, 4.0, 64), 6)
    tensor([1., 8., 8.])
    """
    plain = rotary_frequencies(base, d_head)
    longest, shortest = scaling.low_freq_factor, scaling.high_freq_factor
    return plain / llama3_scaled(plain, scaling.factor, longest, shortest, scaling.original_max_len)


@dataclass(frozen=True)
class Tensors:
    """Mapping between the model's tensors and those of the file, in both directions."""

    config: TransformerConfig
    architecture: Architecture
    keys: list[Key]

    def to_file(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the file, given the model's tensors."""
        for key in self.keys:
            for name, x in zip(key.theirs, key.to_theirs([weights[name] for name in key.ours]), strict=True):
                n_heads = self._n_turned(name)
                yield name, neighbours(x, n_heads).contiguous() if n_heads else x
        stack, positions = self.config.head_stack, self.config.positions
        if isinstance(positions, RotaryPositions) and isinstance(positions.scaling, Llama3Scaling):
            d_head = self.config.attention_widths(stack).d_head
            yield FACTORS, frequency_factors(positions.base, positions.scaling, d_head)

    def to_ours(self, read: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's tensors, given those of the file: the inverse of `to_file`."""
        for key in self.keys:
            turned = [(read[name], self._n_turned(name)) for name in key.theirs]
            theirs = [halves(x, n_heads) if n_heads else x for x, n_heads in turned]
            yield from zip(key.ours, key.to_ours(theirs), strict=True)

    def _n_turned(self, name: str) -> int:
        """Return the number of heads in a tensor of the file if its rows are reordered, else 0."""
        widths = self.config.attention_widths(self.config.head_stack)
        n_heads = {"attn_q": widths.n_heads, "attn_k": widths.n_kv_heads}
        return n_heads.get(name.split(".")[-2], 0) if self.architecture.turns_neighbours else 0


def _keys(gguf: ModuleType, family: Family, architecture: Architecture, config: TransformerConfig) -> list[Key]:
    """Return the family's table with names of gguf instead of transformers; gguf stores no matrix as (in, out)."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture.name], config.head_stack.n_layers)

    def name_of(theirs: str) -> str:
        found = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise UserError(f"llama.cpp's {architecture.name} has no tensor for {theirs}")
        return str(found)

    return [replace(key, theirs=tuple(map(name_of, key.theirs)), transposed=False) for key in family.keys(config)]


def _rounded(name: str, x: Tensor, dtype: Dtype) -> Tensor:
    """Return a tensor rounded as in the file: matrices to the dtype; vectors and positions stay in float32."""
    x = x.float().cpu()
    if x.dim() < 2 or ".positions." in name:
        return x
    rounded = x.to(getattr(torch, dtype)).float()
    if not torch.equal(rounded.isfinite(), x.isfinite()):
        raise UserError(f"{name} has values outside the range of {dtype}: use bfloat16 or float32")
    return rounded


def _write_file(
    gguf: ModuleType,
    path: Path,
    architecture: Architecture,
    numbers: Mapping[str, Any],
    tensors: Iterable[tuple[str, Tensor]],
    dtype: Dtype,
) -> int:
    """Write the file; return its number of tensors."""
    writer = gguf.GGUFWriter(path, architecture.name)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for name, value in numbers.items():
        if name != ARCHITECTURE:  # the writer adds it
            add.get(type(value), writer.add_array)(name, value)
    n_tensors = 0
    for name, x in tensors:
        in_float32 = x.dim() < 2 or name.startswith("position_embd")
        kind = gguf.GGMLQuantizationType["F32" if in_float32 else IN_GGUF[dtype][0]]
        writer.add_tensor(name, gguf.quants.quantize(x.numpy(), kind), raw_dtype=kind)
        n_tensors += 1
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    files.fsync_file(path)
    return n_tensors


def _compare(
    gguf: ModuleType, path: Path, numbers: Mapping[str, Any], tensors: Tensors, weights: Mapping[str, Tensor]
) -> None:
    """Raise `UserError` unless the file has all metadata, and every tensor of the model, unchanged."""
    reader = gguf.GGUFReader(path)
    said = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    wanted = {name: float(np.float32(x)) if isinstance(x, float) else x for name, x in numbers.items()}
    read = {}
    for stored in reader.tensors:
        x = gguf.quants.dequantize(stored.data, stored.tensor_type)
        read[stored.name] = torch.from_numpy(x.reshape(stored.shape.tolist()[::-1]).copy())  # last dimension first
    back = dict(tensors.to_ours(read))
    same = back.keys() == weights.keys() and all(torch.equal(x, back[name]) for name, x in weights.items())
    if said != wanted or not same:
        raise UserError("the file read back differs from the data written: nothing was exported; check the disk")
