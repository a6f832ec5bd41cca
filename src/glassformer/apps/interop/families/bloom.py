"""BLOOM (Le Scao 2022): a decoder with ALiBi and a norm on the embeddings, without a maximum length."""

from glassformer.apps.interop.equivalent import with_scales_and_biases
from glassformer.apps.interop.family import Family, Rule, decoder_heads, lines, output_name, rule
from glassformer.apps.interop.hf_config import inside, settings
from glassformer.config.transformer import AlibiPositions, NormalInit, TransformerConfig

SETTINGS = inside("decoder", settings(int, n_layers="n_layer", n_heads="n_head"))
SETTINGS |= settings(int, d_model="hidden_size", vocab_size="vocab_size") | settings(int, 2048, max_len="seq_length")
SETTINGS |= settings(float, 0.0, residual_dropout="hidden_dropout", attention_dropout="attention_dropout")
SETTINGS |= settings(float, 1e-5, norm_eps="layer_norm_epsilon")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")


BLOCK = {"self_attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm"}
BLOCK |= {"ff.up_proj": "mlp.dense_h_to_4h", "ff.down_proj": "mlp.dense_4h_to_h"}


def table_heads(theirs: str, config: TransformerConfig) -> list[Rule]:
    """Return the lines of a block whose queries, keys and values are one matrix, sorted by groups."""
    ours, n_groups = "decoder.blocks.{i}.", config.attention_widths(config.head_stack).n_kv_heads
    parts = tuple(f"{ours}self_attn.{name}_proj" for name in "qkv")
    fused = rule(parts, f"{theirs}query_key_value", n_groups=n_groups)
    return [fused, rule(f"{ours}self_attn.out_proj", f"{theirs}dense")]


def table_bloom(config: TransformerConfig) -> list[Rule]:
    embeddings = {"tokens": "word_embeddings", "norm": "word_embeddings_layernorm"}
    return [
        *lines("decoder.embeddings.", "transformer.", embeddings),
        *table_heads("transformer.h.{i}.self_attention.", config),
        *lines("decoder.blocks.{i}.", "transformer.h.{i}.", BLOCK),
        rule("decoder.final_norm", "transformer.ln_f"),
        rule("output.proj", output_name(config)),
    ]


BLOOM = Family(
    name="BLOOM",
    model_type="bloom",
    heads=decoder_heads("Bloom"),
    settings=SETTINGS,
    table=table_bloom,
    always={
        "positions": AlibiPositions(),
        "embedding_norm": True,
        "activation": "gelu_tanh",
        "fused_qkv": True,
        "init": NormalInit(0.02),
    },
    only={"apply_residual_connection_post_layernorm": False},
    unused="slow_but_exact offset_alibi skip_bias_add skip_bias_add_qkv masked_softmax_fusion n_inner "
    "attention_softmax_in_fp32 bias_dropout_fusion",
    read_others=lambda hf, fields: {"decoder.d_ff": 4 * fields["d_model"]},
    prefix="transformer.",
    recast=with_scales_and_biases,
    repeats={"lm_head.weight": "transformer.word_embeddings.weight"},
    old_keys={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    roles={"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
)
