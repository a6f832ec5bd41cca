"""A GGUF file of llama.cpp, presented as a checkpoint folder of transformers, so that all checks of an import apply.

The tensors keep the names of the file. Float types keep their dtype, and quantised ones become float32 (the package
`gguf` dequantises them). Only one tensor at a time is converted.
"""

import math
from collections.abc import Callable, Iterator, Mapping
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
from glassformer.interop.tokenizer_files import TOKENIZER, TOKENIZER_CONFIG
from glassformer.nn.positions import llama3_scaled, rotary_frequencies
from glassformer.store.tensors import StoredShape

FACTORS = "rope_freqs.weight"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
"""Tensor types that are read without conversion."""
SIZES = ("context_length", "embedding_length", "block_count", "feed_forward_length", "attention.head_count")
OF_GPT2 = dict(zip(SIZES, ("n_positions", "n_embd", "n_layer", "n_inner", "n_head"), strict=True))
OF_GPT2 |= {"attention.layer_norm_epsilon": "layer_norm_epsilon"}
OF_LLAMA = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
"""Metadata without the name of the architecture → key of transformers: of Llama, Qwen2 and Qwen3, and of GPT-2."""
OPTIONAL = ("attention.head_count_kv", "attention.key_length")
ONLY: Mapping[str, Any] = {
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
ROPE = ("rope.freq_base", "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear")
ROPE += ("rope.scaling.original_context_length",)


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
        return [replace(key, theirs=tuple(map(name_of, key.theirs)), transposed=False) for key in keys]


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
        return self.contents[name] if name == TOKENIZER else None

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
            return halves(x, self.turned[name]) if name in self.turned else x

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
    n_heads = {"attn_q": config.get("num_attention_heads"), "attn_k": config.get("num_key_value_heads")}
    parts = {name: name.split(".")[2] for name in header.tensors if name.startswith("blk.") and name.count(".") > 2}
    turned = {name: n_heads[part] for name, part in parts.items() if part in n_heads and architecture.turns_neighbours}
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
    name = header.metadata[ARCHITECTURE]
    own = {key: value for key, value in header.metadata.items() if key.startswith(f"{name}.")}
    own = {key.removeprefix(f"{name}."): value for key, value in own.items()}
    keys = OF_GPT2 if name == "gpt2" else OF_LLAMA
    for key in keys:
        kind = float if key.endswith("epsilon") else int
        if key not in OPTIONAL and (type(own.get(key)) is not kind or own[key] <= 0):
            raise ValueError(f"{name}.{key}: expected a positive {kind.__name__}, got {shown(str(own.get(key)))}")
    n_heads = own["attention.head_count"]
    own = {"attention.head_count_kv": n_heads, "attention.key_length": own["embedding_length"] // n_heads} | own
    # Values that have one supported value
    table = header.tensors.get("token_embd.weight")
    n_rows = 0 if table is None else table.shape[0]
    only = ONLY | {"vocab_size": n_rows, "attention.value_length": own["attention.key_length"]}
    if name == "gpt2":
        only |= {"attention.head_count_kv": n_heads, "attention.key_length": own["embedding_length"] // n_heads}
    else:
        only["rope.dimension_count"] = own["attention.key_length"]
    if wrong := [key for key, value in only.items() if own.get(key, value) != value]:
        got = shown(str(own[wrong[0]]))
        raise ValueError(f"{name}.{wrong[0]}: expected {only[wrong[0]]}, got {got}, which is not supported")
    # Keys of transformers
    config = {theirs: own[key] for key, theirs in keys.items()}
    config |= {"vocab_size": n_rows, "tie_word_embeddings": "output.weight" not in header.tensors}
    if name != "gpt2":
        config["rope_parameters"] = _rope(own)
    if name in ("llama", "qwen3"):
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    if "blk.0.ffn_up.bias" in header.tensors and name != "gpt2":
        config["mlp_bias"] = True
    known = {*keys, *only, *(ROPE if name != "gpt2" else ()), "rope.scaling.finetuned", "tensor_data_layout"}
    config |= {f"{name}.{key}": value for key, value in own.items() if key not in known}
    return config | unknown_keys(header.metadata)


def _rope(own: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters`; a factor without a type is linear, as in llama.cpp."""
    base, kind, factor, linear, original = (own.get(key) for key in ROPE)
    factor = factor or linear
    rope: dict[str, Any] = {"rope_theta": 10000.0 if base is None else base, "rope_type": kind or "linear"}
    if rope["rope_type"] == "none" or (rope["rope_type"] == "linear" and factor in (None, 1.0)):
        return rope | {"rope_type": "default"}
    if rope["rope_type"] == "yarn":
        rope[ORIGINAL] = original
    return rope | {"factor": factor}


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
    """Return the scaling with these divisors and the bounds of Llama 3 (1 and 4 turns); None if there is none.

    >>> scaling_of(10000.0, torch.tensor([1.0, 8.0, 8.0]), 6)
    Llama3Scaling(kind='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_len=135)
    """
    waves = 2 * math.pi / rotary_frequencies(base, d_head)  # tokens per full turn
    if factors.shape != waves.shape or not bool((factors >= 1).all()):
        return None
    factor = round(float(factors.max()), 4)
    kept = (1 / factors - 1 / factor) / (1 - 1 / factor)  # 1 for short waves, 0 for long ones
    between = (kept > 1e-3) & (kept < 1 - 1e-3)
    # A wave makes 1 + 3 · kept turns in the original context
    lengths = (waves * (1 + 3 * kept))[between] if bool(between.any()) else waves[kept < 0.5][:1] - 1
    if not len(lengths):
        return None
    scaling = Llama3Scaling(factor, 1.0, 4.0, round(float(lengths.mean())))
    fits = torch.allclose(frequency_factors(base, scaling, d_head), factors, rtol=1e-4)
    return scaling if fits else None


def neighbours(x: Tensor, n_heads: int) -> Tensor:
    """Reorder the rows of queries or keys within each head: rows i and i + K/2, which rotate together, become adjacent.

    >>> neighbours(torch.arange(8), n_heads=2).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return x.unflatten(0, (n_heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()


def halves(x: Tensor, n_heads: int) -> Tensor:
    """Reorder the rows of queries or keys within each head: the inverse of `neighbours`.

    >>> halves(torch.tensor([0, 2, 1, 3, 4, 6, 5, 7]), n_heads=2).tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    return x.unflatten(0, (n_heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
