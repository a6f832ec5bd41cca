"""Marian (Junczys-Dowmunt 2018), as in OPUS-MT: the encoder-decoder of Vaswani (2017) with sinusoids in halves.

So the original Transformer is exported as Marian, after its residual channels are permuted into that order.
"""

from typing import Any

import torch
from torch import Tensor

from glassformer.apps.interop.equivalent import with_halves
from glassformer.apps.interop.families import bart
from glassformer.apps.interop.family import Family
from glassformer.apps.interop.hf_config import Fields, HFConfig
from glassformer.config.transformer import SinusoidalPositions, TokenHead, TransformerConfig

STATIC = {"static_position_embeddings": True, "normalize_embedding": False}


def read_marian(hf: HFConfig, fields: Fields) -> Fields:
    share = hf.take("share_encoder_decoder_embeddings", bool, True)
    n_source = hf.take("vocab_size", int)
    n_target = hf.take("decoder_vocab_size", int, n_source)
    if share and n_target != n_source:
        hf.problem(f"decoder_vocab_size: expected vocab_size ({n_source}) for a shared table, got {n_target}")
    return {
        "vocab_size": n_target,
        "source_vocab_size": 0 if share or n_source == n_target else n_source,
        "share_embeddings": share and fields["tie_output"],
        **bart.read_scale(hf),
    }


def write_marian(config: TransformerConfig) -> dict[str, Any]:
    keys: dict[str, Any] = {
        "vocab_size": config.encoder_vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.share_embeddings,
        "max_position_embeddings": max(config.max_len, config.source_max_len),
        "forced_eos_token_id": None,
        **bart.write_scale(config),
        **STATIC,
    }
    if config.activation == "silu":
        keys["activation_function"] = "swish"
    return keys


def limits_marian(config: TransformerConfig) -> dict[str, bool]:
    in_one = config.pad_id is not None and config.pad_id >= min(config.vocab_size, config.encoder_vocab_size)
    return bart.limits_bart(config) | {"model.pad_id: expected an id that is in both vocabularies": in_one}


def positions(config: TransformerConfig) -> dict[str, Tensor]:
    """Return the tables of sinusoids, which older files contain, with the precision of transformers."""
    place, width = (torch.arange(n, dtype=torch.float64) for n in (config.max_len, config.d_model // 2))
    angle = place[:, None] / 10000 ** (2 * width / config.d_model)
    table = torch.cat((angle.sin(), angle.cos()), dim=-1).float()
    return {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}


MARIAN = Family(
    name="Marian",
    model_type="marian",
    heads={"MarianMTModel": TokenHead(bias="constant")},
    settings=bart.SETTINGS,
    table=bart.table_bart,
    always=bart.ALWAYS | {"positions": SinusoidalPositions("halves")},
    only=bart.ONLY | STATIC,
    unused=f"{bart.UNUSED} extra_pos_embeddings",  # sinusoids have no rows to skip
    read_others=read_marian,
    write_others=write_marian,
    limits=limits_marian,
    prefix="model.",
    recast=lambda config, weights: bart.recast_bart(*with_halves(config, weights)),
    repeats=bart.REPEATS,
    fixed=positions,
    derived=(*bart.DERIVED, bart.SHARED),  # a shared table that is not tied is not used
)
