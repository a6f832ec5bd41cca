"""A GGUF file of llama.cpp, presented as a checkpoint folder of transformers, so that all checks of an import apply.

The tensors keep the names of the file. Float types keep their dtype, and quantised ones become float32 (the package
`gguf` dequantises them). Only one tensor at a time is converted.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer import files
from glassformer.config.transformer import Llama3Scaling, TransformerConfig
from glassformer.errors import UserError, needs, shown
from glassformer.interop.directory import GENERATION, HFFolder, Stored
from glassformer.interop.families import FAMILIES
from glassformer.interop.families.rotary import ORIGINAL
from glassformer.interop.family import Family, Key
from glassformer.interop.gguf_header import ARCHITECTURE, ARCHITECTURES, Architecture, Header, read_header
from glassformer.interop.gguf_tokenizer import read_tokenizer, unknown_keys
from glassformer.interop.layout import Layout, halves
from glassformer.interop.tokenizer_files import TOKENIZER
from glassformer.interop.vocabulary_files import TOKENIZER_CONFIG
from glassformer.nn.positions import llama3_scaled, rotary_frequencies
from glassformer.store.tensors import StoredShape

FACTORS = "rope_freqs.weight"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Tensor types that are read without conversion."""
KEYS = {
    "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
}
"""Metadata, without the name of the architecture → key of transformers: of Llama, Qwen2 and Qwen3, and of GPT-2."""
ONLY: dict[str, Any] = {
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
"""Metadata → the one supported value."""
KNOWN = """
attention.head_count_kv attention.key_length attention.layer_norm_epsilon attention.layer_norm_rms_epsilon
rope.freq_base rope.scaling.type rope.scaling.factor rope.scale_linear rope.scaling.original_context_length
rope.scaling.finetuned tensor_data_layout
"""
"""Other metadata that are read, or that change no output."""


@dataclass(frozen=True)
class GGUFFamily(Family):
    """A family with llama.cpp's names of tensors; no matrix is stored as (in, out)."""

    llama_cpp: Architecture = ARCHITECTURES["llama"]

    @classmethod
    def of(cls, family: Family, architecture: Architecture) -> "GGUFFamily":
        """Return a family as GGUF stores it."""
        derived = (FACTORS,) if architecture.has_factors else ()
        return cls(**vars(family) | {"repeats": {}, "prefix": "", "derived": derived}, llama_cpp=architecture)

    def keys(self, config: TransformerConfig) -> list[Key]:
        with needs("a GGUF file", "export"):
            import gguf
        kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
        names = gguf.get_tensor_name_map(kinds[self.llama_cpp.name], config.head_stack.n_layers)

        def name_of(theirs: str) -> str:
            name = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
            if name is None:
                raise UserError(f"llama.cpp's {self.llama_cpp.name} has no tensor for {theirs}")
            return str(name)

        keys = super().keys(config)
        return [replace(key, theirs=tuple(map(name_of, key.theirs)), layout=Layout()) for key in keys]


@dataclass(frozen=True)
class GGUFFolder(HFFolder):
    """An opened GGUF file with the interface of a folder."""

    header: Header
    turned: Mapping[str, int]
    """Names of queries and keys whose rows have another order in the file, with their number of heads."""
    contents: Mapping[str, Any]
    """The other files of the folder: tables, and texts."""

    def place(self, name: str) -> Path:
        """Return the path of the file, whose metadata are those of the folder's files."""
        return self.path

    def text(self, name: str, max_bytes: int = files.MAX_TEXT_BYTES) -> str | None:
        """Return the text of `tokenizer.json`; None for other names."""
        if name != TOKENIZER:
            return None
        text: str = self.contents[name]
        return text

    def table(self, name: str) -> dict[str, Any]:
        """Return the contents of a JSON file of the folder; empty for other names."""
        found: dict[str, Any] = self.contents.get(name, {})
        return found

    @contextmanager
    def reading(self) -> Iterator[Callable[[str], Tensor]]:
        """Yield a function that loads one tensor by its name."""
        with needs("a GGUF file", "export"):
            import gguf
        with files.reading(self.path):
            data = np.memmap(self.path, mode="r")

        def take(name: str) -> Tensor:
            place = self.header.tensors[name]
            raw = data[place.begin : place.end]
            if place.kind in DTYPES:
                x = torch.from_numpy(raw.copy()).view(DTYPES[place.kind])
            else:
                rows = raw.reshape(math.prod(place.shape[:-1]), -1)
                x = torch.from_numpy(gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[place.kind]))
            x = x.reshape(place.shape)
            if name in self.turned:
                x = halves(x, self.turned[name])
            return x

        yield take


def open_gguf(path: Path) -> tuple[GGUFFolder, GGUFFamily]:
    """Open a GGUF file; raise `UserError` for a damaged or unsupported one."""
    header = read_header(path)
    name = header.metadata[ARCHITECTURE]
    model_type, architecture = next((kind, one) for kind, one in ARCHITECTURES.items() if one.name == name)
    family = next(family for family in FAMILIES if family.model_type == model_type)
    try:
        config = read_settings(header) | {"model_type": model_type, "architectures": [family.architectures[0]]}
        tokenizer, settings, ends = read_tokenizer(header.metadata)
    except ValueError as error:
        raise UserError(f"{path} cannot be imported: {error}") from error
    n_heads = {"attn_q": config.get("num_attention_heads", 0), "attn_k": config.get("num_key_value_heads", 0)}
    turned = turned_rows(architecture, header.tensors, n_heads)
    shapes = {
        name: Stored(path, StoredShape(DTYPES.get(place.kind, torch.float32), place.shape))
        for name, place in header.tensors.items()
    }
    contents = {GENERATION: {"eos_token_id": ends}, TOKENIZER_CONFIG: settings, TOKENIZER: tokenizer}
    folder = GGUFFolder(path, config, shapes, header, turned, contents)
    if architecture.has_factors and FACTORS in shapes:
        with folder.reading() as take:
            config["rope_parameters"] |= _llama3(path, take(FACTORS).float(), config)
    return folder, GGUFFamily.of(family, architecture)


def read_settings(header: Header) -> dict[str, Any]:
    """Return the keys of `config.json`, and the unknown metadata, which an import refuses.

    Raises `ValueError` for a missing or unsupported value.
    """
    name, tensors = header.metadata[ARCHITECTURE], header.tensors
    is_gpt2 = name == "gpt2"
    own = {key.removeprefix(f"{name}."): x for key, x in header.metadata.items() if key.startswith(f"{name}.")}

    def number(key: str, kind: type[int] | type[float], default: float | None = None) -> Any:
        value = own.get(key, default)
        if not isinstance(value, kind) or value <= 0:
            raise ValueError(f"{name}.{key}: expected a positive {kind.__name__}, got {shown(str(value))}")
        return value

    if "token_embd.weight" not in tensors:
        raise ValueError("it has no tensor token_embd.weight")
    config = {theirs[is_gpt2]: number(key, int) for key, theirs in KEYS.items()}
    n_rows, width, n_heads = tensors["token_embd.weight"].shape[0], own["embedding_length"], own["attention.head_count"]
    n_kv_heads = number("attention.head_count_kv", int, n_heads)
    d_head = number("attention.key_length", int, width // n_heads)
    config |= {"vocab_size": n_rows, "tie_word_embeddings": "output.weight" not in tensors}
    only = ONLY | {"vocab_size": n_rows, "attention.value_length": d_head}
    if is_gpt2:
        config["layer_norm_epsilon"] = number("attention.layer_norm_epsilon", float)
        only |= {"attention.head_count_kv": n_heads, "attention.key_length": width // n_heads}
    else:
        config["rms_norm_eps"] = number("attention.layer_norm_rms_epsilon", float)
        config |= {"num_key_value_heads": n_kv_heads, "head_dim": d_head}
        config["rope_parameters"] = {"rope_theta": number("rope.freq_base", float, 10000.0)} | _rope_scaling(own)
        config["attention_bias"] = "blk.0.attn_q.bias" in tensors and name != "qwen2"
        config["mlp_bias"] = "blk.0.ffn_up.bias" in tensors
        only["rope.dimension_count"] = d_head
    if wrong := [key for key, value in only.items() if own.get(key, value) != value]:
        got = shown(str(own[wrong[0]]))
        raise ValueError(f"{name}.{wrong[0]}: expected {only[wrong[0]]}, got {got}, which is not supported")
    known = {*KEYS, *only, *KNOWN.split()}
    return config | {f"{name}.{key}": x for key, x in own.items() if key not in known} | unknown_keys(header.metadata)


def _rope_scaling(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `rope_parameters` for a scaling; a factor without a type is linear, as in llama.cpp."""
    kind = own.get("rope.scaling.type", "linear")
    factor = own.get("rope.scaling.factor") or own.get("rope.scale_linear")
    if kind == "none" or (kind == "linear" and factor in (None, 1.0)):
        return {"rope_type": "default"}
    scaling = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        scaling[ORIGINAL] = own.get("rope.scaling.original_context_length")
    return scaling


def _llama3(path: Path, factors: Tensor, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of Llama 3's rotary scaling, which a file stores as the divisors of the frequencies."""
    rope = config["rope_parameters"]
    scaling = scaling_of(rope["rope_theta"], factors, config["head_dim"])
    if rope["rope_type"] != "default" or scaling is None:
        raise UserError(f"{path} cannot be imported: {FACTORS} has other factors than the rotary scaling of Llama 3")
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    found = {"rope_type": "llama3", "factor": scaling.factor, "low_freq_factor": low, "high_freq_factor": high}
    return found | {ORIGINAL: scaling.original_max_len}


def frequency_factors(base: float, scaling: Llama3Scaling, d_head: int) -> Tensor:
    """Return the divisors of the rotary frequencies, (K/2,): the factor for long wavelengths, 1 for short ones.

    >>> frequency_factors(10000.0, Llama3Scaling(8.0, 1.0, 4.0, 64), 6)
    tensor([1., 8., 8.])
    """
    plain = rotary_frequencies(base, d_head)
    longest, shortest = scaling.low_freq_factor, scaling.high_freq_factor
    return plain / llama3_scaled(plain, scaling.factor, longest, shortest, scaling.original_max_len)


def scaling_of(base: float, factors: Tensor, d_head: int) -> Llama3Scaling | None:
    """Return the scaling with these divisors and the bounds of Llama 3 (1 and 4 turns); None if no scaling has them.

    >>> scaling_of(10000.0, torch.tensor([1.0, 8.0, 8.0]), 6)
    Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=134)
    """
    if factors.shape != (d_head // 2,) or not bool((factors >= 1).all() and factors.isfinite().all()):
        return None
    waves = 2 * math.pi / rotary_frequencies(base, d_head)  # tokens per full turn
    factor = round(float(factors.max()), 4)
    kept = (1 / factors - 1 / factor) / (1 - 1 / factor)  # 1 for short waves, 0 for long ones
    between = (kept > 1e-3) & (kept < 1 - 1e-3)
    # A wave makes 1 + 3 · kept turns in the original context
    lengths = (waves * (1 + 3 * kept))[between]
    if not len(lengths):
        lengths = waves[kept < 0.5][:1] - 1
    if not len(lengths) or not float(lengths.mean()) >= 1:
        return None
    scaling = Llama3Scaling(factor, 1.0, 4.0, round(float(lengths.mean())))
    if not torch.allclose(frequency_factors(base, scaling, d_head), factors, rtol=1e-4):
        return None
    return scaling


def turned_rows(architecture: Architecture, names: Iterable[str], n_heads: Mapping[str, int]) -> dict[str, int]:
    """Return the names of queries and keys whose rows have another order in a file, with their number of heads.

    `n_heads` has the numbers of heads of `attn_q` and `attn_k`.
    """
    if not architecture.turns_neighbours:
        return {}
    return {name: n_heads[part] for name in names for part in n_heads if f".{part}." in name}
