"""A model of ours as one GGUF file, which llama.cpp runs: numbers, tensors and tokenizer, read back and compared."""

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
from glassformer.inference.decode import causal_frame
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
NORMAL, CONTROL, UNUSED = 1, 3, 5  # kinds of tokens, gguf.TokenType
IN_GGUF: Mapping[Dtype, tuple[str, str]] = {
    "float32": ("F32", "ALL_F32"),
    "float16": ("F16", "MOSTLY_F16"),
    "bfloat16": ("BF16", "MOSTLY_BF16"),
}
"""gguf's names of a tensor's type and of a file's."""


@dataclass(frozen=True)
class Architecture:
    """One `general.architecture` of GGUF, and what llama.cpp's code for it has fixed."""

    name: str
    activation: str
    """The one function of its feed-forward, in our words."""
    turns_neighbours: bool = False
    """Rotary positions turn entries 2i and 2i + 1 of a head, and not i and i + K/2."""
    has_factors: bool = False
    """A tensor may divide each rotary frequency by a factor of its own."""
    has_out_bias: bool = True
    """Attention's output projection may have a bias."""


ARCHITECTURES: Mapping[str, Architecture] = {
    "gpt2": Architecture("gpt2", "gelu_tanh"),
    "llama": Architecture("llama", "silu", turns_neighbours=True, has_factors=True),
    "mistral": Architecture("llama", "silu", turns_neighbours=True, has_factors=True),
    "qwen2": Architecture("qwen2", "silu", has_out_bias=False),
    "qwen3": Architecture("qwen3", "silu", has_out_bias=False),
}
"""By `model_type` of transformers."""


def write_gguf(stored: StoredModel, folder: Path, dtype: Dtype = "float32") -> list[str]:
    """Writes `model.gguf`, reads it back, and compares; what was found, line by line.

    `dtype` is that of the matrices; vectors and positions stay in float32. `UserError` when llama.cpp's code does not
    compute this model, and when the file does not hold it.
    """
    with needs("the export to GGUF", "export"):
        import gguf
    config, network = stored.config, stored.network
    if not isinstance(config, TransformerConfig) or not isinstance(network, Transformer):
        raise UserError("llama.cpp has no recurrent encoder-decoder: this model stays in our own format")
    if config.encoder is not None:
        raise UserError("only a decoder alone is written as GGUF, and this model has an encoder")
    family = choose_family(config, stored.run.architecture)
    architecture = ARCHITECTURES.get(family.model_type)
    if architecture is None:
        raise UserError(f"this model goes out as {family.name}, which is not written as GGUF")
    require_fit(config, architecture)
    config, own = family.recast(config, weights_of(network))
    named = replace(config, bos_id=trained_start(stored))
    numbers = model_numbers(config, architecture) | tokenizer_numbers(stored.tokenizer, named)
    numbers |= {"general.name": stored.run.name, "general.file_type": int(gguf.LlamaFileType[IN_GGUF[dtype][1]])}
    tensors = Tensors(config, architecture, _keys(gguf, family, architecture, config))
    weights = {name: _rounded(name, x, dtype) for name, x in own.items()}
    n_tensors = _write_file(gguf, folder / FILE, architecture, numbers, tensors.to_file(weights), dtype)
    _compare(gguf, folder / FILE, numbers, tensors, weights)
    n_bytes = (folder / FILE).stat().st_size
    return [
        f"{family.name} as llama.cpp's {architecture.name}: {n_tensors:,} tensors, matrices in {dtype}, "
        f"{n_bytes:,} bytes",
        "read back: every number and every tensor is the one that was written",
    ]


def require_fit(config: TransformerConfig, architecture: Architecture) -> None:
    """`UserError` that lists what llama.cpp's code for an architecture would compute in another way."""
    stack, positions = config.head_stack, config.positions
    scaling = positions.scaling if isinstance(positions, RotaryPositions) else None
    wrong = []
    if config.head.kind != "tokens":
        wrong.append(f"model.head is {config.head.kind}, and it must be tokens")
    if config.activation != architecture.activation:
        wrong.append(f"model.activation is {config.activation}, and it must be {architecture.activation}")
    if config.attn_out_bias and not architecture.has_out_bias:
        wrong.append("model.attn_out_bias is true, and it must be false")
    if config.attention_scale is not None:
        wrong.append(f"model.attention_scale is {config.attention_scale}, and it must be none")
    if any(0 < window < config.max_len for window in stack.window_pattern):
        wrong.append("model.decoder.window_pattern is shorter than max_len, and it knows no windows")
    if isinstance(positions, RotaryPositions) and positions.fraction != 1:
        wrong.append(f"model.positions.fraction is {positions.fraction}, and it must be 1")
    if isinstance(scaling, Llama3Scaling) and not architecture.has_factors:
        wrong.append("model.positions.scaling is llama3, and it must be none, linear or yarn")
    if isinstance(scaling, YarnScaling) and (scaling.beta_fast, scaling.beta_slow) != (32.0, 1.0):
        wrong.append("model.positions.scaling has other betas than 32 and 1")
    if isinstance(scaling, YarnScaling) and scaling.original_max_len < 7:  # 2π: no frequency turns once
        wrong.append("model.positions.scaling.original_max_len is below 7, where its ramp is another")
    if wrong:
        raise UserError(f"llama.cpp's {architecture.name} does not compute this model: {'; '.join(wrong)}")


def model_numbers(config: TransformerConfig, architecture: Architecture) -> dict[str, Any]:
    """What says the model's shape, by GGUF's names."""
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
    """The tokenizer, by GGUF's names; `UserError` for one that llama.cpp would split, begin or end in another way.

    Rows of the table that no token has are `UNUSED`.
    """
    if tokenizer.scheme != "byte":
        kind = "one from elsewhere" if tokenizer.scheme is None else f"{tokenizer.scheme}"
        raise UserError(f"llama.cpp does not split a text as this tokenizer does: it must be byte, and is {kind}")
    if not tokenizer.merges:
        raise UserError("llama.cpp needs a tokenizer with merges, and this one has only its 256 bytes")
    end = tokenizer.eos_id if config.eos_id is None else config.eos_id
    before = causal_frame(tokenizer, config).before
    begin = before[0] if before else config.bos_id
    if end is None:
        raise UserError("this tokenizer has no token that ends a text, and llama.cpp would take the one with id 11")
    if len(before) > 1:
        raise UserError("llama.cpp puts one token before a prompt, and this tokenizer puts several")
    special = set(tokenizer.special_tokens)
    kinds = [CONTROL if token in special else NORMAL for token in tokenizer.vocab]
    spare = range(tokenizer.vocab_size, config.vocab_size)
    found: dict[str, Any] = {
        "model": "gpt2",  # merges of bytes
        "pre": "gpt-2",  # the expression that splits a text
        "tokens": [*tokenizer.vocab, *(f"[UNUSED{i}]" for i in spare)],
        "token_type": [*kinds, *(UNUSED for _ in spare)],
        "merges": [f"{left} {right}" for left, right in tokenizer.merges],
        "bos_token_id": end if begin is None else begin,
        "eos_token_id": end,
        "add_bos_token": bool(before),
        "add_eos_token": False,
    }
    for role, name in {"unk": "unknown", "sep": "seperator", "pad": "padding", "mask": "mask"}.items():  # so it spells
        if (token_id := getattr(tokenizer, f"{role}_id")) is not None:
            found[f"{name}_token_id"] = token_id
    return {f"tokenizer.ggml.{name}": value for name, value in found.items()}


def neighbours(x: Tensor, n_heads: int) -> Tensor:
    """Rows of queries or keys, head by head: those that turn together, i and i + K/2, are put side by side.

    >>> neighbours(torch.arange(8), n_heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return x.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def halves(x: Tensor, n_heads: int) -> Tensor:
    """The inverse of `neighbours`.

    >>> halves(torch.tensor([0, 2, 1, 3, 4, 6, 5, 7]), n_heads=2).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return x.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def frequency_factors(base: float, scaling: Llama3Scaling, d_head: int) -> Tensor:
    """What each rotary frequency is divided by, (K/2,): long waves by the factor, short ones by 1.

    >>> frequency_factors(10000.0, Llama3Scaling(8.0, 1.0, 4.0, 64), 6)
    tensor([1., 8., 8.])
    """
    plain = rotary_frequencies(base, d_head)
    longest, shortest = scaling.low_freq_factor, scaling.high_freq_factor
    return plain / llama3_scaled(plain, scaling.factor, longest, shortest, scaling.original_max_len)


@dataclass(frozen=True)
class Tensors:
    """Which tensor of ours is which of the file, in both directions."""

    config: TransformerConfig
    architecture: Architecture
    keys: list[Key]

    def to_file(self, weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the file, from all of ours."""
        for key in self.keys:
            for name, x in zip(key.theirs, key.to_theirs([weights[name] for name in key.ours]), strict=True):
                n_heads = self._n_turned(name)
                yield name, neighbours(x, n_heads).contiguous() if n_heads else x
        stack, positions = self.config.head_stack, self.config.positions
        if isinstance(positions, RotaryPositions) and isinstance(positions.scaling, Llama3Scaling):
            d_head = self.config.attention_widths(stack).d_head
            yield FACTORS, frequency_factors(positions.base, positions.scaling, d_head)

    def to_ours(self, read: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """The inverse of `to_file`."""
        for key in self.keys:
            turned = [(read[name], self._n_turned(name)) for name in key.theirs]
            theirs = [halves(x, n_heads) if n_heads else x for x, n_heads in turned]
            yield from zip(key.ours, key.to_ours(theirs), strict=True)

    def _n_turned(self, name: str) -> int:
        """How many heads lie in a tensor of the file whose rows go side by side; 0 for all other tensors."""
        widths = self.config.attention_widths(self.config.head_stack)
        n_heads = {"attn_q": widths.n_heads, "attn_k": widths.n_kv_heads}
        return n_heads.get(name.split(".")[-2], 0) if self.architecture.turns_neighbours else 0


def _keys(gguf: ModuleType, family: Family, architecture: Architecture, config: TransformerConfig) -> list[Key]:
    """The family's table with gguf's names for theirs; there, no matrix is stored (in, out)."""
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture.name], config.head_stack.n_layers)

    def name_of(theirs: str) -> str:
        found = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise UserError(f"llama.cpp's {architecture.name} has no tensor for {theirs}")
        return str(found)

    keys = family.keys(config)
    return [replace(key, theirs=tuple(map(name_of, key.theirs)), transposed=False) for key in keys]


def _rounded(name: str, x: Tensor, dtype: Dtype) -> Tensor:
    """A tensor of ours as the file holds it: matrices in the dtype, what llama.cpp adds in float32."""
    x = x.float().cpu()
    if x.dim() < 2 or ".positions." in name:
        return x
    rounded = x.to(getattr(torch, dtype)).float()
    if not torch.equal(rounded.isfinite(), x.isfinite()):
        raise UserError(f"{dtype} has no numbers as large as some in {name}: take bfloat16 or float32")
    return rounded


def _write_file(
    gguf: ModuleType,
    path: Path,
    architecture: Architecture,
    numbers: Mapping[str, Any],
    tensors: Iterable[tuple[str, Tensor]],
    dtype: Dtype,
) -> int:
    """Writes the file; how many tensors it has."""
    writer = gguf.GGUFWriter(path, architecture.name)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for name, value in numbers.items():
        if name != ARCHITECTURE:  # the writer says it
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
    """`UserError` unless the file gives back every number, and every tensor of ours."""
    reader = gguf.GGUFReader(path)
    said = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    wanted = {name: float(np.float32(x)) if isinstance(x, float) else x for name, x in numbers.items()}
    read = {}
    for stored in reader.tensors:
        x = gguf.quants.dequantize(stored.data, stored.tensor_type)
        read[stored.name] = torch.from_numpy(x.reshape(stored.shape.tolist()[::-1]).copy())  # it counts from the last
    back = dict(tensors.to_ours(read))
    same = back.keys() == weights.keys() and all(torch.equal(x, back[name]) for name, x in weights.items())
    if said != wanted or not same:
        raise UserError("what was written is not what was read back: nothing is kept; the disk may be damaged")
