"""EuroBERT (Boizard 2025): Llama's blocks as an encoder, for masked language models."""

from typing import Any

from glassformer.config import TokenHead, TransformerConfig
from glassformer.interop.families.llama import (
    DERIVED,
    REPEATS,
    fit_common,
    need_divisible,
    need_same_biases,
    read_common,
    recast_llama,
    table,
    write_common,
)
from glassformer.interop.family import Family
from glassformer.interop.given import Given
from glassformer.interop.keymap import Line, line
from glassformer.interop.recast import Recast, Weights, with_zero_biases

ARCHITECTURE = "EuroBertForMaskedLM"


def read(given: Given, architecture: str) -> TransformerConfig:
    bias, ff_bias = given.take("attention_bias", bool, False), given.take("mlp_bias", bool, False)
    given.pass_over("classifier_pooling", "clf_pooling")  # of heads that are not read
    head = TokenHead(bias="learned" if ff_bias else "none")
    differences: dict[str, Any] = {"qkv_bias": bias, "attn_out_bias": bias, "ff_bias": ff_bias, "head": head}
    return read_common(given, norm_eps=1e-5, side="encoder", **differences)


def fit(config: TransformerConfig) -> list[str]:
    fit = fit_common(config, any_ff=True, side="encoder")
    need_divisible(fit)
    need_same_biases(fit)
    fit.holds("ff_bias")
    bias = config.head.bias if isinstance(config.head, TokenHead) else "none"
    fit.head(TokenHead(bias=bias))
    return fit.done()


def write(config: TransformerConfig) -> dict[str, Any]:
    ids = {} if config.mask_id is None else {"mask_token_id": config.mask_id}
    return write_common(config) | ids | {"attention_bias": config.qkv_bias, "mlp_bias": config.ff_bias}


def recast(config: TransformerConfig, weights: Weights) -> Recast:
    """The biases of the feed-forward and of the logits are there or not together."""
    config, weights = recast_llama(config, weights)
    has_bias = config.ff_bias or (isinstance(config.head, TokenHead) and config.head.bias != "none")
    return with_zero_biases(config, weights, "ff_bias", logits=True) if has_bias else (config, weights)


def lines(config: TransformerConfig) -> list[Line]:
    return [*table(config), line("output.bias", "lm_head.bias")]


EUROBERT = Family(
    name="EuroBERT",
    model_type="eurobert",
    architectures=(ARCHITECTURE,),
    read=read,
    fit=fit,
    architecture=lambda config: ARCHITECTURE,
    write=write,
    table=lines,
    recast=recast,
    repeats=REPEATS,
    derived=DERIVED,
)
