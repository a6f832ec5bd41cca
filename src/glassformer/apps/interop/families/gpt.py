"""GPT-2 (Radford 2019) and decoders after it: GPT-Neo (Black 2021), GPT-NeoX and Pythia (Black 2022), BLOOM, OPT.

GPT-2 is a pre-norm decoder with learned positions; its matrices are stored (in, out). GPT-Neo has unscaled scores,
no biases of queries, keys and values, and windows. GPT-NeoX has parallel sublayers and rotates a part of each head.
BLOOM (Le Scao 2022) has ALiBi and a norm on the embeddings. OPT (Zhang 2022) has learned positions from row 2 on, and
norms before (pre) or after (post) each sublayer.
"""

from dataclasses import replace
from typing import Any

from glassformer.apps.interop import equivalent
from glassformer.apps.interop.families import bart
from glassformer.apps.interop.families.rotary import read_rotary, shortest, windows_of, write_rotary
from glassformer.apps.interop.family import QKV_OUT, Family, Rule, attention, decoder_heads, lines, output_name, rule
from glassformer.apps.interop.hf_config import SIZES, STACK, Converter, Fields, HFConfig, inside, settings
from glassformer.apps.interop.vocabulary_files import byte_level
from glassformer.config import transformer as c

BLOCKS = "decoder.blocks.{i}."
END_OF_TEXT = dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>")
HEADS = {name.replace("ForCausalLM", "LMHeadModel"): head for name, head in decoder_heads("GPT2").items()}
SETTINGS = inside("decoder", settings(int, n_layers="n_layer", n_heads="n_head"))
SETTINGS |= settings(int, d_model="n_embd", vocab_size="vocab_size", max_len="n_positions")
SETTINGS |= settings(float, 0.1, embedding_dropout="embd_pdrop", residual_dropout="resid_pdrop")
SETTINGS |= settings(float, 0.1, attention_dropout="attn_pdrop")
SETTINGS |= settings(float, 1e-5, norm_eps="layer_norm_epsilon")
SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings")
SETTINGS |= settings(str, "gelu_new", activation="activation_function")


def read_gpt2(hf: HFConfig, fields: Fields) -> Fields:
    max_len = fields["max_len"]
    if hf.take("n_ctx", int, max_len) != max_len:
        hf.problem(f"n_ctx {hf.table['n_ctx']} differs from n_positions {max_len}")
    attention_scale = None if hf.take("scale_attn_weights", bool, True) else 1.0
    return {"decoder.d_ff": hf.take("n_inner", int, 4 * fields["d_model"]), "attention_scale": attention_scale}


def write_gpt2(config: c.TransformerConfig) -> dict[str, Any]:
    scale = config.attention_scale is None
    return {"n_ctx": config.max_len, "n_inner": config.head_stack.d_ff, "scale_attn_weights": scale}


def table_gpt2(config: c.TransformerConfig) -> list[Rule]:
    theirs = "transformer.h.{i}."
    matrices = {"self_attn.out_proj": "attn.c_proj", "ff.up_proj": "mlp.c_fc", "ff.down_proj": "mlp.c_proj"}
    return [
        *lines("decoder.embeddings.", "transformer.", {"tokens": "wte", "positions.table": "wpe"}),
        *lines(BLOCKS, theirs, {"self_attn_norm": "ln_1", "ff_norm": "ln_2"}),
        rule(tuple(f"{BLOCKS}self_attn.{name}_proj" for name in "qkv"), f"{theirs}attn.c_attn", transposed=True),
        *lines(BLOCKS, theirs, matrices, transposed=True),
        rule("decoder.final_norm", "transformer.ln_f"),
        rule("output.proj", output_name(config)),
    ]


GPT2 = Family(
    name="GPT-2",
    model_type="gpt2",
    heads=HEADS,
    settings=SETTINGS,
    table=table_gpt2,
    always={"positions": c.LearnedPositions(), "fused_qkv": True, "init": c.NormalInit(0.02, residual="scaled")},
    only={"scale_attn_by_inverse_layer_idx": False, "n_special": 0},
    # Keys of a head that is not supported, and of scores in fp32
    unused="summary_type summary_use_proj summary_activation summary_first_dropout summary_proj_to_labels "
    "reorder_and_upcast_attn predict_special_tokens",
    others=(Converter(read_gpt2, write_gpt2),),
    prefix="transformer.",
    recast=equivalent.with_scales_and_biases,
    repeats={"lm_head.weight": "transformer.wte.weight"},
    derived=("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias"),
    builder=byte_level,
    roles=END_OF_TEXT,
)

# GPT-Neo

GLOBAL, LOCAL = "global", "local"
NEO = inside("decoder", settings(int, n_layers="num_layers", n_heads="num_heads")) | SIZES
NEO |= settings(float, 0.0, embedding_dropout="embed_dropout", residual_dropout="resid_dropout")
NEO |= settings(float, 0.0, attention_dropout="attention_dropout")
NEO |= {name: SETTINGS[name] for name in ("norm_eps", "tie_output", "activation")}


def read_neo(hf: HFConfig, fields: Fields) -> Fields:
    """Read the window of each layer from `attention_types`: pairs of a list of kinds and its number of repetitions."""
    d_ff = hf.take("intermediate_size", int, 4 * fields["d_model"])
    window, n_layers = hf.take("window_size", int, 256), fields["decoder.n_layers"]
    types = hf.maybe("attention_types", list) or [[[GLOBAL, LOCAL], 12]]
    hf.pass_over("attention_layers")  # transformers derives it from attention_types
    try:
        kinds = [kind for kinds, n in types for _ in range(min(n, c.MAX_LAYERS)) for kind in kinds]
    except (TypeError, ValueError):
        kinds = []
    if len(kinds) != n_layers or any(kind not in (GLOBAL, LOCAL) for kind in kinds):
        hf.problem(f"attention_types must name {n_layers} layers, each {GLOBAL} or {LOCAL}, as [[[KIND, …], TIMES], …]")
    if window < 1:
        hf.problem(f"window_size: expected at least 1, got {window}")
    windows = shortest([window if kind == LOCAL else 0 for kind in kinds])
    return {"decoder.d_ff": d_ff, "decoder.window_pattern": windows}


def write_neo(config: c.TransformerConfig) -> dict[str, Any]:
    windows = windows_of(config)
    kinds = [LOCAL if window else GLOBAL for window in windows]
    n = len(kinds)
    period = next((k for k in range(1, n) if n % k == 0 and kinds == kinds[:k] * (n // k)), n)
    return {
        "intermediate_size": config.head_stack.d_ff,
        "attention_types": [[kinds[:period], n // max(period, 1)]],
        "attention_layers": kinds,
        "window_size": max(windows, default=0) or 256,
    }


def table_neo(config: c.TransformerConfig) -> list[Rule]:
    block = attention("attn.attention.{}_proj", QKV_OUT) | {"self_attn_norm": "ln_1", "ff_norm": "ln_2"}
    block |= {"ff.up_proj": "mlp.c_fc", "ff.down_proj": "mlp.c_proj"}
    return [
        *lines("decoder.embeddings.", "transformer.", {"tokens": "wte", "positions.table": "wpe"}),
        *lines(BLOCKS, "transformer.h.{i}.", block),
        rule("decoder.final_norm", "transformer.ln_f"),
        rule("output.proj", output_name(config)),
    ]


GPT_NEO = replace(
    GPT2,
    name="GPT-Neo",
    model_type="gpt_neo",
    heads=decoder_heads("GPTNeo"),
    settings=NEO,
    table=table_neo,
    always={"positions": c.LearnedPositions(), "attention_scale": 1.0, "qkv_bias": False, "init": c.NormalInit(0.02)},
    only={},
    others=(Converter(read_neo, write_neo),),
    recast=lambda config, weights: equivalent.with_scales_and_biases(
        config, weights, "norm_bias", "attn_out_bias", "ff_bias"
    ),
    derived=("transformer.h.*.attn.attention.bias", "transformer.h.*.attn.attention.masked_bias"),
)


# BLOOM


def table_fused(theirs: str, attention: str, config: c.TransformerConfig) -> list[Rule]:
    """Return the rules for a block of BLOOM or GPT-NeoX: one matrix has queries, keys and values, head by head."""
    n_groups = config.attention_widths(config.head_stack).n_kv_heads
    parts = tuple(f"{BLOCKS}self_attn.{name}_proj" for name in "qkv")
    block = {"self_attn.out_proj": f"{attention}.dense"}
    block |= {"self_attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm"}
    block |= {"ff.up_proj": "mlp.dense_h_to_4h", "ff.down_proj": "mlp.dense_4h_to_h"}
    return [rule(parts, f"{theirs}{attention}.query_key_value", n_groups=n_groups), *lines(BLOCKS, theirs, block)]


def table_bloom(config: c.TransformerConfig) -> list[Rule]:
    embeddings = {"tokens": "word_embeddings", "norm": "word_embeddings_layernorm"}
    return [
        *lines("decoder.embeddings.", "transformer.", embeddings),
        *table_fused("transformer.h.{i}.", "self_attention", config),
        rule("decoder.final_norm", "transformer.ln_f"),
        rule("output.proj", output_name(config)),
    ]


BLOOM = Family(
    name="BLOOM",
    model_type="bloom",
    heads=decoder_heads("Bloom"),
    settings=inside("decoder", settings(int, n_layers="n_layer", n_heads="n_head"))
    | settings(int, d_model="hidden_size", vocab_size="vocab_size")
    | settings(int, 2048, max_len="seq_length")  # ALiBi has no maximum length
    | settings(float, 0.0, residual_dropout="hidden_dropout", attention_dropout="attention_dropout")
    | settings(float, 1e-5, norm_eps="layer_norm_epsilon")
    | settings(bool, True, tie_output="tie_word_embeddings"),
    table=table_bloom,
    always={
        "positions": c.AlibiPositions(),
        "embedding_norm": True,
        "activation": "gelu_tanh",
        "fused_qkv": True,
        "init": c.NormalInit(0.02),
    },
    only={"apply_residual_connection_post_layernorm": False},
    unused="slow_but_exact offset_alibi skip_bias_add skip_bias_add_qkv masked_softmax_fusion n_inner "
    "attention_softmax_in_fp32 bias_dropout_fusion",
    others=(Converter(lambda hf, fields: {"decoder.d_ff": 4 * fields["d_model"]}),),
    prefix="transformer.",
    recast=equivalent.with_scales_and_biases,
    repeats={"lm_head.weight": "transformer.word_embeddings.weight"},
    old_keys={"n_embed": "hidden_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    roles={"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
)

# GPT-NeoX

NEOX = SIZES | settings(float, 0.0, embedding_dropout="hidden_dropout", residual_dropout="hidden_dropout")
NEOX |= settings(float, 0.0, attention_dropout="attention_dropout")
NEOX |= settings(float, 1e-5, norm_eps="layer_norm_eps")
NEOX |= settings(bool, False, tie_output="tie_word_embeddings")
NEOX |= settings(bool, True, qkv_bias="attention_bias", attn_out_bias="attention_bias")
NEOX |= settings(str, "gelu", activation="hidden_act")
OLD_KEYS = {"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"}
"""For each old name of a key of GPT-NeoX, the current name."""


def read_neox(hf: HFConfig, fields: Fields) -> Fields:
    is_parallel = hf.take("use_parallel_residual", bool, True)
    positions = read_rotary(hf, fields["max_len"], fraction=0.25)
    rope = hf.maybe("rope_scaling", dict) or hf.maybe("rope_parameters", dict) or {}
    read = {"rotary_pct": (positions.fraction, 0.25), "rotary_emb_base": (positions.base, 10000.0)}
    for old, (value, default) in read.items():
        current = OLD_KEYS[old]
        if current not in rope and hf.table.get(old) is None and value != default:
            hf.problem(f"{current}: transformers reads only rope_parameters or {old}, and uses {default}, not {value}")
    return {"norm_order": "parallel" if is_parallel else "pre", "positions": positions}


def write_neox(config: c.TransformerConfig) -> dict[str, Any]:
    keys = write_rotary(config.positions, with_fraction=True)
    old = {"rotary_emb_base": keys["rope_theta"], "rotary_pct": keys["partial_rotary_factor"]}
    return {"use_parallel_residual": config.norm_order == "parallel"} | keys | old


def table_neox(config: c.TransformerConfig) -> list[Rule]:
    return [
        *lines("decoder.", "gpt_neox.", {"embeddings.tokens": "embed_in", "final_norm": "final_layer_norm"}),
        *table_fused("gpt_neox.layers.{i}.", "attention", config),
        rule("output.proj", output_name(config, "embed_out")),
    ]


def recast_neox(config: c.TransformerConfig, weights: equivalent.Weights) -> equivalent.Recast:
    config, weights = equivalent.with_scales_and_biases(config, weights, "norm_bias", "ff_bias")
    return equivalent.with_equal_biases(config, weights, "qkv_bias", "attn_out_bias")


GPT_NEOX = Family(
    name="GPT-NeoX",
    model_type="gpt_neox",
    heads=decoder_heads("GPTNeoX"),
    settings=NEOX | inside("decoder", STACK),
    table=table_neox,
    always={"fused_qkv": True, "init": c.NormalInit(0.02)},
    others=(Converter(read_neox, write_neox),),
    prefix="gpt_neox.",
    recast=recast_neox,
    repeats={"embed_out.weight": "gpt_neox.embed_in.weight"},
    derived=tuple(f"gpt_neox.layers.*.attention.{name}" for name in ("bias", "masked_bias", "rotary_emb.inv_freq")),
    old_names={"lm_head.weight": "embed_out.weight"},
    old_keys=OLD_KEYS,
    roles=END_OF_TEXT,
)

# OPT

OPT_SETTINGS = inside("decoder", STACK | settings(int, d_ff="ffn_dim")) | SIZES
OPT_SETTINGS |= settings(float, 0.1, residual_dropout="dropout")
OPT_SETTINGS |= settings(float, 0.0, attention_dropout="attention_dropout")
OPT_SETTINGS |= settings(bool, True, tie_output="tie_word_embeddings", norm_weight="layer_norm_elementwise_affine")
OPT_SETTINGS |= settings(bool, True, qkv_bias="enable_bias", attn_out_bias="enable_bias", ff_bias="enable_bias")
OPT_SETTINGS |= settings(str, "relu", activation="activation_function")


def read_opt(hf: HFConfig, fields: Fields) -> Fields:
    width, d_model = hf.take("word_embed_proj_dim", int, fields["d_model"]), fields["d_model"]
    if width != d_model:
        hf.problem(
            f"word_embed_proj_dim {width} differs from hidden_size {d_model}: positions are added after the projection "
            "between them, and in glassformer before it"
        )
    if hf.take("do_layer_norm_before", bool, True):
        return {"norm_order": "pre", "final_norm": True}
    return {"norm_order": "post", "final_norm": False}


def write_opt(config: c.TransformerConfig) -> dict[str, Any]:
    return {"do_layer_norm_before": config.norm_order != "post", "word_embed_proj_dim": config.d_model}


def table_opt(config: c.TransformerConfig) -> list[Rule]:
    stack = {"embeddings.tokens": "embed_tokens", "embeddings.positions.table": "embed_positions"}
    return [
        *lines("decoder.", "model.decoder.", stack | {"final_norm": "final_layer_norm"}),
        *lines(BLOCKS, "model.decoder.layers.{i}.", bart.BLOCK),  # without cross-attention
        rule("output.proj", output_name(config)),
    ]


def recast_opt(config: c.TransformerConfig, weights: equivalent.Weights) -> equivalent.Recast:
    if config.norm_weight:
        config, weights = equivalent.with_zero_biases(config, weights, "norm_bias")
    return equivalent.with_equal_biases(config, weights, "qkv_bias", "attn_out_bias", "ff_bias")


OPT = Family(
    name="OPT",
    model_type="opt",
    heads=decoder_heads("OPT", has_tags=False),
    settings=OPT_SETTINGS,
    table=table_opt,
    always={"positions": c.LearnedPositions(offset=2), "norm_eps": 1e-5, "init": c.NormalInit(0.02)},
    only={"_remove_final_layer_norm": False},
    unused="layerdrop activation_dropout",
    others=(Converter(read_opt, write_opt),),
    prefix="model.",
    recast=recast_opt,
    repeats={"lm_head.weight": "model.decoder.embed_tokens.weight"},
    builder=byte_level,
    roles={"bos": "</s>", "eos": "</s>", "unk": "</s>", "pad": "<pad>"},
)
