"""Phi-1, 1.5 and 2 (Li 2023): decoders whose attention and feed-forward read one norm; all layers have biases."""

from glassformer.apps.interop.families import bert, llama
from glassformer.apps.interop.family import Family, Rule, attention, decoder_heads, lines, output_name, rule
from glassformer.apps.interop.hf_config import Fields, inside, settings
from glassformer.config.transformer import NormalInit, TokenHead, TransformerConfig

ONE_NORM: Fields = {"norm_order": "parallel_shared"}
"""Parallel sublayers that read one norm."""
SETTINGS = llama.SETTINGS | inside("decoder", llama.SIZES) | settings(float, 1e-5, norm_eps="layer_norm_eps")
SETTINGS |= settings(float, 0.0, embedding_dropout="embd_pdrop", residual_dropout="resid_pdrop")
SETTINGS |= settings(str, "gelu_new", activation="hidden_act")


BLOCK = {"self_attn_norm": "input_layernorm", "ff.up_proj": "mlp.fc1", "ff.down_proj": "mlp.fc2"}
BLOCK |= attention("self_attn.{}", ("q_proj", "k_proj", "v_proj", "dense"))


def table_phi(config: TransformerConfig) -> list[Rule]:
    return [
        *lines("decoder.", "model.", {"embeddings.tokens": "embed_tokens", "final_norm": "final_layernorm"}),
        *lines("decoder.blocks.{i}.", "model.layers.{i}.", BLOCK),
        rule("output.proj", output_name(config, of_tags="score")),
        rule("output", "lm_head"),  # the bias
    ]


PHI = Family(
    name="Phi",
    model_type="phi",
    heads=decoder_heads("Phi") | {"PhiForCausalLM": TokenHead(bias="learned")},
    settings=SETTINGS,
    table=table_phi,
    always=ONE_NORM | {"init": NormalInit(0.02)},
    only={"qk_layernorm": False},
    read_others=lambda hf, fields: llama.read_common(hf, fields, fraction=0.5),
    write_others=lambda config: llama.write_common(config, with_fraction=True),
    prefix="model.",
    recast=bert.recast_bert,
    repeats=llama.REPEATS,
    derived=llama.DERIVED,
    other_heads={"vectors": ("lm_head.*",)},
    roles=dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
)
