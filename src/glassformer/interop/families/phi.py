"""Phi-1, 1.5 and 2 (Li 2023): decoders whose attention and feed-forward read one norm; all layers have biases."""

from typing import Any

from glassformer.config.transformer import NormalInit, TokenHead, TransformerConfig
from glassformer.interop.equivalent import BIASES, Recast, Weights, with_norm_scales, with_zero_biases
from glassformer.interop.families import llama
from glassformer.interop.family import Family, Rule, attention, decoder_heads, lines, rule
from glassformer.interop.hf_config import Fields, HFConfig, inside, settings

ONE_NORM: Fields = {"norm_order": "parallel", "shared_norm": True}
"""Parallel sublayers that read one norm."""
SETTINGS = llama.SETTINGS | inside("decoder", llama.SIZES) | settings(float, 1e-5, norm_eps="layer_norm_eps")
SETTINGS |= settings(float, 0.0, embedding_dropout="embd_pdrop", residual_dropout="resid_pdrop")
SETTINGS |= settings(str, "gelu_new", activation="hidden_act")


def read_phi(hf: HFConfig, fields: Fields) -> Fields:
    return llama.read_common(hf, fields, fraction=0.5)


def write_phi(config: TransformerConfig) -> dict[str, Any]:
    return llama.write_common(config, with_fraction=True)


BLOCK = {"self_attn_norm": "input_layernorm", "ff.up_proj": "mlp.fc1", "ff.down_proj": "mlp.fc2"}
BLOCK |= attention("self_attn.{}", ("q_proj", "k_proj", "v_proj", "dense"))


def table_phi(config: TransformerConfig) -> list[Rule]:
    return [
        *lines("decoder.", "model.", {"embeddings.tokens": "embed_tokens", "final_norm": "final_layernorm"}),
        *lines("decoder.blocks.{i}.", "model.layers.{i}.", BLOCK),
        rule("output.proj", "lm_head" if isinstance(config.head, TokenHead) else "score"),
        rule("output", "lm_head"),  # the bias
    ]


def recast_phi(config: TransformerConfig, weights: Weights) -> Recast:
    return with_zero_biases(*with_norm_scales(config, weights), *BIASES, logits=True)


PHI = Family(
    name="Phi",
    model_type="phi",
    heads=decoder_heads("Phi") | {"PhiForCausalLM": TokenHead(bias="learned")},
    settings=SETTINGS,
    table=table_phi,
    always=ONE_NORM | {"init": NormalInit(0.02)},
    only={"qk_layernorm": False},
    read_others=read_phi,
    write_others=write_phi,
    prefix="model.",
    bare=frozenset({"PhiModel"}),
    recast=recast_phi,
    repeats=llama.REPEATS,
    derived=llama.DERIVED,
    other_heads={"vectors": ("lm_head.*",)},
    roles=dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
)
