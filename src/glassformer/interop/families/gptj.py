"""GPT-J (Wang 2021): a decoder whose sublayers read one norm; adjacent channels of a head rotate together."""

import math

from glassformer.config.transformer import NormalInit, RotaryPositions, TokenHead, TransformerConfig
from glassformer.interop.equivalent import with_scales_and_biases
from glassformer.interop.families import gpt2, phi
from glassformer.interop.family import Family, Rule, decoder_heads, lines, output_name, rule
from glassformer.interop.hf_config import Fields, HFConfig, settings

SETTINGS = gpt2.SETTINGS | settings(bool, False, tie_output="tie_word_embeddings")
SETTINGS |= settings(float, 0.0, embedding_dropout="embd_pdrop", residual_dropout="resid_pdrop")
SETTINGS |= settings(float, 0.0, attention_dropout="attn_pdrop")


def read_gptj(hf: HFConfig, fields: Fields) -> Fields:
    d_head = fields["d_model"] // max(fields["decoder.n_heads"], 1)
    width = hf.take("rotary_dim", int, 64)
    if not 0 < width <= d_head:
        hf.problem(f"rotary_dim: expected 1 to {d_head}, the width of a head, got {width}")
        width = d_head
    fraction = width / max(d_head, 1)
    if int(fraction * d_head) < width:  # the quotient is rounded down
        fraction = math.nextafter(fraction, 1.0)
    d_ff = hf.take("n_inner", int, 4 * fields["d_model"])
    return {"decoder.d_ff": d_ff, "positions": RotaryPositions(fraction=fraction)}


def rotated_width(config: TransformerConfig) -> int:
    """Return the number of rotated channels per head; without rotary positions, the number of all channels."""
    d_head = config.attention_widths(config.head_stack).d_head
    return config.positions.width(d_head) if isinstance(config.positions, RotaryPositions) else d_head


BLOCK = {"self_attn_norm": "ln_1", "ff.up_proj": "mlp.fc_in", "ff.down_proj": "mlp.fc_out"}
BLOCK |= {"self_attn.v_proj": "attn.v_proj", "self_attn.out_proj": "attn.out_proj"}


def table_gptj(config: TransformerConfig) -> list[Rule]:
    ours, theirs = "decoder.blocks.{i}.", "transformer.h.{i}."
    pairs = (config.head_stack.n_heads, rotated_width(config))
    turned = [rule(f"{ours}self_attn.{x}_proj", f"{theirs}attn.{x}_proj", pairs=pairs) for x in "qk"]
    return [
        *lines("decoder.", "transformer.", {"embeddings.tokens": "wte", "final_norm": "ln_f"}),
        *turned,
        *lines(ours, theirs, BLOCK),
        rule("output.proj", output_name(config)),
        rule("output", "lm_head"),  # the bias
    ]


GPTJ = Family(
    name="GPT-J",
    model_type="gptj",
    heads=decoder_heads("GPTJ", has_tags=False) | {"GPTJForCausalLM": TokenHead(bias="learned")},
    settings=SETTINGS,
    table=table_gptj,
    always=phi.ONE_NORM | {"qkv_bias": False, "attn_out_bias": False, "init": NormalInit(0.02)},
    unused="n_ctx rotary summary_type summary_use_proj summary_activation summary_first_dropout summary_proj_to_labels",
    read_others=read_gptj,
    write_others=lambda config: {"n_inner": config.head_stack.d_ff, "rotary_dim": rotated_width(config)},
    prefix="transformer.",
    recast=lambda config, weights: with_scales_and_biases(config, weights, "norm_bias", "ff_bias", logits=True),
    repeats={"lm_head.weight": "transformer.wte.weight"},
    derived=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias", "transformer.h.*.attn.embed_positions"),
    other_heads={"vectors": ("lm_head.*",)},
    builder=gpt2.GPT2.builder,
    roles=dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
)
