"""Marian (Junczys-Dowmunt 2018), as in OPUS-MT: the encoder-decoder of Vaswani (2017) with sinusoids in halves.

So the original Transformer is exported as Marian, after its residual channels are permuted into that order.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.config.transformer import SinusoidalPositions, TokenHead, TransformerConfig
from glassformer.interop.equivalent import with_halves
from glassformer.interop.families import bart
from glassformer.interop.family import Family
from glassformer.interop.hf_config import HFConfig
from glassformer.nn.positions import sinusoid


def read_marian(hf: HFConfig, architecture: str) -> TransformerConfig:
    hf.only("static_position_embeddings", True)
    hf.only("normalize_embedding", False)
    hf.pass_over("extra_pos_embeddings")  # sinusoids have no rows to skip
    tied = hf.take("tie_word_embeddings", bool, True)
    share = hf.take("share_encoder_decoder_embeddings", bool, True)
    n_source = hf.take("vocab_size", int)
    n_target = hf.take("decoder_vocab_size", int, n_source)
    if share and n_target != n_source:
        hf.problem(f"decoder_vocab_size: expected vocab_size ({n_source}) for a shared table, got {n_target}")
    return replace(
        bart.read_common(hf),
        vocab_size=n_target,
        source_vocab_size=0 if share or n_source == n_target else n_source,
        share_embeddings=share and tied,
        tie_output=tied,
        positions=SinusoidalPositions("halves"),
        head=TokenHead(bias="constant"),
    )


def fit_marian(config: TransformerConfig) -> list[str]:
    fit = bart.fit_common(config)
    fit.heads([TokenHead(bias="constant")])
    fit.need("positions", SinusoidalPositions("halves"), SinusoidalPositions("interleaved"))
    untied = config.share_embeddings and not config.tie_output
    fit.check("share_embeddings", not untied, "model.tie_output: expected true with share_embeddings, got false")
    fits = config.pad_id is None or config.pad_id < min(config.vocab_size, config.encoder_vocab_size)
    fit.check("source_vocab_size", fits, "model.pad_id: expected an id that is in both vocabularies")
    fit.holds("source_max_len")
    return fit.done()


def write_marian(config: TransformerConfig) -> dict[str, Any]:
    keys = bart.write_common(config) | {
        "vocab_size": config.encoder_vocab_size,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.share_embeddings,
        "max_position_embeddings": max(config.max_len, config.source_max_len),
        "static_position_embeddings": True,
        "normalize_embedding": False,
        "tie_word_embeddings": config.tie_output,
    }
    if config.activation == "silu":
        keys["activation_function"] = "swish"
    return keys


def positions(config: TransformerConfig) -> dict[str, Tensor]:
    """Return the tables of sinusoids, which older files contain."""
    table = sinusoid(torch.arange(config.max_len), config.d_model, "halves")
    return {f"model.{stack}.embed_positions.weight": table for stack in ("encoder", "decoder")}


MARIAN = Family(
    name="Marian",
    model_type="marian",
    heads={"MarianMTModel": TokenHead(bias="constant")},
    read=read_marian,
    fit=fit_marian,
    write=write_marian,
    table=bart.table_common,
    prefix="model.",
    recast=lambda config, weights: bart.recast_bart(*with_halves(config, weights)),
    repeats=bart.REPEATS,
    fixed=positions,
    derived=(*bart.DERIVED, bart.SHARED),  # a shared table that is not tied is not used
)
