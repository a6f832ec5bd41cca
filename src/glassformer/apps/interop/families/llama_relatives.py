"""Decoders with Llama's blocks and other norms, biases, factors or fused matrices.

They are StarCoder2, StableLM 2, OLMo 1 and 2, Phi-3, SmolLM3, Granite, and Phi-1, 1.5 and 2 (Li 2023). In Phi-1 to 2,
attention and feed-forward read the output of one norm, and all layers have biases.
"""

from typing import Any

from glassformer.apps.interop import equivalent
from glassformer.apps.interop.families import bert, llama, rotary
from glassformer.apps.interop.family import Rule, attention, decoder_heads, lines, output_name, rule
from glassformer.apps.interop.hf_config import STACK, Converter, Fields, HFConfig, inside, settings
from glassformer.config.transformer import LongRopeScaling, TokenHead, TransformerConfig

LAYER_NORM: Fields = {"norm": "layernorm", "init": llama.ALWAYS["init"]}
ONE_NORM: Fields = {"norm_order": "parallel_shared"}
"""Fields of a model whose sublayers are parallel and read the output of one norm."""


def table_starcoder2(config: TransformerConfig) -> list[Rule]:
    names = {"decoder.blocks.{i}.ff.up_proj": "c_fc", "decoder.blocks.{i}.ff.down_proj": "c_proj"}
    others = [entry for entry in llama.table_llama(config) if ".ff." not in entry.ours[0]]
    return others + lines("", "model.layers.{i}.mlp.", names)


def recast_starcoder2(config: TransformerConfig, weights: equivalent.Weights) -> equivalent.Recast:
    config, weights = equivalent.with_scales_and_biases(config, weights, "norm_bias")
    return equivalent.with_equal_biases(config, weights, "qkv_bias", "attn_out_bias", "ff_bias")


STARCODER2 = llama.family(
    "Starcoder2",
    llama.settings_of("decoder")
    | settings(bool, True, qkv_bias="use_bias", attn_out_bias="use_bias", ff_bias="use_bias")
    | settings(bool, True, tie_output="tie_word_embeddings")
    | settings(float, 1e-5, norm_eps="norm_epsilon")
    | settings(float, 0.0, embedding_dropout="embedding_dropout", residual_dropout="residual_dropout")
    | settings(str, "gelu_pytorch_tanh", activation="hidden_act"),
    name="StarCoder2",
    table=table_starcoder2,
    always=LAYER_NORM,
    only={"mlp_type": "default", "norm_type": "layer_norm"},
    unused="layer_norm_epsilon attention_softmax_in_fp32 scale_attention_softmax_in_fp32",
    others=(llama.common(n_kv_heads=2), rotary.window()),
    recast=recast_starcoder2,
)


def read_stablelm(hf: HFConfig, fields: Fields) -> Fields:
    read = {
        "decoder.n_kv_heads": hf.take("num_key_value_heads", int, 32),
        "decoder.d_head": fields["d_model"] // max(fields["decoder.n_heads"], 1),
        "positions": rotary.read_rotary(hf, fields["max_len"], fraction=0.25),
    }
    if hf.take("use_parallel_residual", bool, False):
        read |= ONE_NORM
    return read


def write_stablelm(config: TransformerConfig) -> dict[str, Any]:
    keys = {"num_key_value_heads": config.attention_widths(config.head_stack).n_kv_heads}
    keys |= {"use_parallel_residual": config.norm_order == "parallel_shared"}
    return keys | rotary.write_rotary(config.positions, with_fraction=True)


STABLELM = llama.family(
    "StableLm",
    llama.settings_of("decoder")
    | settings(bool, False, qkv_bias="use_qkv_bias")
    | settings(float, 1e-5, norm_eps="layer_norm_eps")
    | settings(float, 0.0, residual_dropout="hidden_dropout"),
    name="StableLM",
    always=llama.ALWAYS | {"norm": "layernorm"},
    only={"qk_layernorm": False},
    others=(Converter(read_stablelm, write_stablelm),),
    recast=lambda config, weights: equivalent.with_scales_and_biases(config, weights, "norm_bias"),
)
OLMO = llama.family(
    "Olmo",
    llama.SETTINGS | inside("decoder", STACK) | llama.BIASES,
    name="OLMo",
    heads=decoder_heads("Olmo", has_tags=False),
    always=llama.ALWAYS | {"norm": "layernorm", "norm_weight": False, "norm_eps": 1e-5},
    only={"clip_qkv": None},
    others=(llama.common(),),
    recast=equivalent.with_relu2_as_gate,
)


PHI_BLOCK = {"self_attn_norm": "input_layernorm", "ff.up_proj": "mlp.fc1", "ff.down_proj": "mlp.fc2"}
PHI_BLOCK |= attention("self_attn.{}", ("q_proj", "k_proj", "v_proj", "dense"))


def table_phi(config: TransformerConfig) -> list[Rule]:
    return [
        *lines("decoder.", "model.", {"embeddings.tokens": "embed_tokens", "final_norm": "final_layernorm"}),
        *lines("decoder.blocks.{i}.", "model.layers.{i}.", PHI_BLOCK),
        rule("output.proj", output_name(config, of_tags="score")),
        rule("output", "lm_head"),  # the bias
    ]


PHI = llama.family(
    "Phi",
    llama.SETTINGS
    | inside("decoder", STACK)
    | settings(float, 1e-5, norm_eps="layer_norm_eps")
    | settings(float, 0.0, embedding_dropout="embd_pdrop", residual_dropout="resid_pdrop")
    | settings(str, "gelu_new", activation="hidden_act"),
    heads=decoder_heads("Phi") | {"PhiForCausalLM": TokenHead(bias="learned")},
    table=table_phi,
    always=ONE_NORM | {"init": llama.ALWAYS["init"]},
    only={"qk_layernorm": False},
    others=(llama.common(fraction=0.5),),
    recast=bert.recast_bert,
    other_heads={"vectors": ("lm_head.*",)},
    roles=dict.fromkeys(("unk", "bos", "eos"), "<|endoftext|>"),
)


def read_phi3(hf: HFConfig, fields: Fields) -> Fields:
    """Read the keys of Phi-3. Longrope scaling is read for short texts only, in which cached keys stay valid."""
    original, max_len = hf.take("original_max_position_embeddings", int, 4096), fields["max_len"]
    common = llama.common(fraction=1.0, original=original).read(hf, fields)
    scaling = common["positions"].scaling
    if isinstance(scaling, LongRopeScaling) and max_len > original:
        common["max_len"] = original
        hf.notes.append(
            f"max_len is {original:,}, not {max_len:,}: with longrope scaling, a longer text turns all its keys "
            "differently, which makes cached keys stale"
        )
    elif scaling is not None and not isinstance(scaling, LongRopeScaling):
        hf.problem(
            "rope_parameters: Phi-3 has no linear, llama3 or yarn scaling in transformers: only default and longrope "
            "are supported"
        )
    return common


def write_original(config: TransformerConfig) -> dict[str, Any]:
    if isinstance(getattr(config.positions, "scaling", None), LongRopeScaling):
        return {"original_max_position_embeddings": max(config.max_len, 2)}
    return {}


def limits_phi3(config: TransformerConfig) -> dict[str, bool]:
    """Return the limit of longrope scaling, for which transformers computes the width of a head from d_model."""
    stack, scaling = config.head_stack, getattr(config.positions, "scaling", None)
    usual = config.d_model // stack.n_heads
    reason = f"model.decoder.d_head: expected d_model / n_heads = {usual} with longrope scaling, got {stack.d_head}"
    return {reason: isinstance(scaling, LongRopeScaling) and stack.d_head not in (0, usual)}


def table_phi3(config: TransformerConfig) -> list[Rule]:
    ours, theirs = "decoder.blocks.{i}.", "model.layers.{i}."
    parts = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "ff.gate_proj", "ff.up_proj")
    fused = tuple(f"{ours}{part}" for part in parts)
    return [
        *(entry for entry in llama.table_llama(config) if entry.ours[0] not in fused),
        rule(fused[:3], f"{theirs}self_attn.qkv_proj"),
        rule(fused[3:], f"{theirs}mlp.gate_up_proj"),
    ]


PHI3 = llama.family(
    "Phi3",
    llama.settings_of("decoder", norm_eps=1e-5)
    | settings(float, 0.0, embedding_dropout="embd_pdrop", residual_dropout="resid_pdrop"),
    name="Phi-3",
    table=table_phi3,
    always=llama.ALWAYS | {"fused_qkv": True},
    only={"lm_head_bias": False},
    unused="full_attn_mod interpolate_factor",
    others=(Converter(read_phi3, llama.common(fraction=1.0).write), rotary.window(), Converter(write=write_original)),
    limits=limits_phi3,
)


def read_smollm3(hf: HFConfig, fields: Fields) -> Fields:
    """Read the layers without rotary positions: a 0 in `no_rope_layers`, by default every fourth layer."""
    positions, n_layers = fields["positions"], fields["decoder.n_layers"]
    interval, turned = hf.take("no_rope_layer_interval", int, 4), hf.maybe("no_rope_layers", list)
    if turned is None:
        turned = [int((i + 1) % max(interval, 1) != 0) for i in range(n_layers)]
    if len(turned) != n_layers or any(x not in (0, 1) for x in turned):
        hf.problem(f"no_rope_layers must have {n_layers} numbers, each 0 or 1")
    if any(kind != rotary.FULL for kind in hf.maybe("layer_types", list) or ()):
        hf.problem(f"layer_types: only {rotary.FULL} is supported")
    return {"positions": rotary.with_bases(positions, [positions.base if x else 0.0 for x in turned])}


def write_smollm3(config: TransformerConfig) -> dict[str, Any]:
    n_layers, bases = config.head_stack.n_layers, getattr(config.positions, "bases", (1.0,))
    turned = [int(bases[i % len(bases)] != 0) for i in range(n_layers)]
    return {"no_rope_layers": turned, "layer_types": [rotary.FULL] * n_layers, "use_sliding_window": False}


SMOLLM3 = llama.family(
    "SmolLM3",
    llama.settings_of("decoder")
    | llama.BIASES
    | llama.FF_BIAS
    | settings(bool, True, tie_output="tie_word_embeddings"),
    only={"use_sliding_window": False},
    unused="sliding_window max_window_layers",
    others=(llama.common(n_kv_heads=4, base=2e6), Converter(read_smollm3, write_smollm3)),
)


def table_olmo2(config: TransformerConfig) -> list[Rule]:
    before = ("blocks.{i}.self_attn_norm", "blocks.{i}.ff_norm")
    names = {"self_attn_out_norm": "post_attention_layernorm", "ff_out_norm": "post_feedforward_layernorm"}
    others = [entry for entry in llama.table_llama(config) if not entry.ours[0].endswith(before)]
    return others + lines("decoder.blocks.{i}.", "model.layers.{i}.", names)


OLMO2 = llama.family(
    "Olmo2",
    llama.settings_of("decoder", norm_eps=1e-5) | llama.BIASES,
    name="OLMo 2",
    heads=decoder_heads("Olmo2", has_tags=False),
    table=table_olmo2,
    always=llama.ALWAYS | {"norm_order": "output", "qk_norm": "all"},
    others=(llama.common(),),
)


def read_granite(hf: HFConfig, fields: Fields) -> Fields:
    scale, divisor = hf.take("attention_multiplier", float, 1.0), hf.take("logits_scaling", float, 1.0)
    if not divisor > 0:
        hf.problem(f"logits_scaling: expected above 0, got {divisor}")
        divisor = 1.0
    is_usual = scale == max(fields["decoder.d_head"], 1) ** -0.5
    return {"attention_scale": None if is_usual else scale, "logit_scale": 1 / divisor}


def write_granite(config: TransformerConfig) -> dict[str, Any]:
    scale = config.attention_scale
    if scale is None:
        scale = config.attention_widths(config.head_stack).d_head ** -0.5
    divisor = 1 / (config.logit_scale or config.d_model**-0.5)
    return {"attention_multiplier": scale, "logits_scaling": divisor}


GRANITE = llama.family(
    "Granite",
    llama.settings_of("decoder")
    | llama.BIASES
    | llama.FF_BIAS
    | settings(float, 1.0, embedding_scale="embedding_multiplier", residual_scale="residual_multiplier"),
    heads={name: x for name, x in decoder_heads("Granite").items() if not name.endswith("Classification")},
    others=(llama.common(), Converter(read_granite, write_granite)),
)
