"""Six families and their variants as configurations: logits and gradients equal transformers', in float32."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import late
from configs import random_ids, randomise
from glassformer.config.transformer import (
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    RelativePositions,
    RotaryPositions,
    Scaling,
    SinusoidalPositions,
    Stack,
    TokenHead,
    TransformerConfig,
    YarnScaling,
)
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from parity.pairs import Pairs
from tolerances import assert_close

transformers = late.optional("transformers")

os.environ["HF_HUB_OFFLINE"] = "1"

V, D, HEADS, D_FF, LAYERS, MAX_LEN = 19, 16, 4, 24, 2, 24
STACK = Stack(LAYERS, HEADS, d_ff=D_FF)
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
Names = dict[str, str]

GPT2 = TransformerConfig(
    decoder=STACK,
    d_model=D,
    vocab_size=V,
    max_len=MAX_LEN,
    positions=LearnedPositions(),
    activation="gelu_tanh",
    fused_qkv=True,
)
BERT = TransformerConfig(
    encoder=STACK,
    d_model=D,
    vocab_size=V,
    n_token_types=2,
    max_len=MAX_LEN,
    positions=LearnedPositions(),
    norm_eps=1e-12,
    norm_order="post",
    embedding_norm=True,
    final_norm=False,
    head=TokenHead(transform=True, bias="learned"),
)
BART = TransformerConfig(
    encoder=STACK,
    decoder=STACK,
    d_model=D,
    vocab_size=V,
    max_len=MAX_LEN,
    positions=LearnedPositions(offset=2),
    norm_order="post",
    embedding_norm=True,
    final_norm=False,
    share_embeddings=True,
    head=TokenHead(bias="constant"),
)
MARIAN = replace(
    BART,
    positions=SinusoidalPositions("halves"),
    embedding_norm=False,
    activation="silu",
    embedding_scale=0.0,
)
LLAMA = TransformerConfig(
    decoder=Stack(LAYERS, HEADS, n_kv_heads=2, d_head=6, d_ff=D_FF),
    d_model=D,
    vocab_size=V,
    max_len=MAX_LEN,
    positions=RotaryPositions(base=50.0),
    norm="rmsnorm",
    activation="silu",
    gated_ff=True,
    qkv_bias=False,
    attn_out_bias=False,
    ff_bias=False,
    tie_output=False,
)
T5 = TransformerConfig(
    encoder=replace(STACK, d_head=6),
    decoder=replace(STACK, d_head=6),
    d_model=D,
    vocab_size=V,
    positions=RelativePositions(n_buckets=8, max_distance=12),
    norm="rmsnorm",
    norm_eps=1e-6,
    activation="relu",
    qkv_bias=False,
    attn_out_bias=False,
    ff_bias=False,
    attention_scale=1.0,
    share_embeddings=True,
    logit_scale=0.0,
)
T5_V1_1 = replace(T5, activation="gelu_tanh", gated_ff=True, tie_output=False, logit_scale=1.0)


def gpt2() -> nn.Module:
    sizes = {"n_positions": MAX_LEN, "n_embd": D, "n_layer": LAYERS, "n_head": HEADS, "n_inner": D_FF}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=V, **sizes, **SPECIAL))


def bert() -> nn.Module:
    sizes = {"hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS}
    config = transformers.BertConfig(
        vocab_size=V, intermediate_size=D_FF, max_position_embeddings=MAX_LEN, pad_token_id=0, **sizes
    )
    return transformers.BertForMaskedLM(config)


def bart(kind: str = "Bart", model: str = "BartForConditionalGeneration", **changes: Any) -> nn.Module:
    halves = {"layers": LAYERS, "attention_heads": HEADS, "ffn_dim": D_FF}
    sizes = {f"{half}_{name}": n for half in ("encoder", "decoder") for name, n in halves.items()}
    special = SPECIAL | {"decoder_start_token_id": 2, "forced_eos_token_id": 2}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=V, d_model=D, max_position_embeddings=MAX_LEN, **sizes, **special, **changes
    )
    return getattr(transformers, model)(config)


def marian() -> nn.Module:
    return bart("Marian", "MarianMTModel", activation_function="swish", scale_embedding=True)


def llama(kind: str = "Llama", **changes: Any) -> nn.Module:
    sizes = {"hidden_size": D, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "head_dim": 6}
    rope = changes.pop("rope_parameters", {"rope_type": "default"}) | {"rope_theta": 50.0}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=V,
        intermediate_size=D_FF,
        num_key_value_heads=2,
        max_position_embeddings=changes.pop("max_position_embeddings", MAX_LEN),
        rms_norm_eps=1e-5,
        rope_parameters=rope,
        tie_word_embeddings=False,
        **sizes,
        **SPECIAL,
        **changes,
    )
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def t5(**changes: Any) -> nn.Module:
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
    config = transformers.T5Config(
        vocab_size=V, d_model=D, d_kv=6, d_ff=D_FF, num_layers=LAYERS, num_heads=HEADS, **buckets, **changes
    )
    return transformers.T5ForConditionalGeneration(config)


def t5_v1_1() -> nn.Module:
    model = t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    # transformers 5.23 uses this flag only for "logits are not scaled", and ties the head anyway.
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    return model


GPT2_NAMES = {
    "decoder.embeddings.tokens": "transformer.wte",
    "decoder.embeddings.positions.table": "transformer.wpe",
    "decoder.blocks.{i}.self_attn_norm": "transformer.h.{i}.ln_1",
    "decoder.blocks.{i}.self_attn.qkv_proj": "transformer.h.{i}.attn.c_attn",
    "decoder.blocks.{i}.self_attn.out_proj": "transformer.h.{i}.attn.c_proj",
    "decoder.blocks.{i}.ff_norm": "transformer.h.{i}.ln_2",
    "decoder.blocks.{i}.ff.up_proj": "transformer.h.{i}.mlp.c_fc",
    "decoder.blocks.{i}.ff.down_proj": "transformer.h.{i}.mlp.c_proj",
    "decoder.final_norm": "transformer.ln_f",
}
BERT_NAMES = {
    "encoder.embeddings.tokens": "bert.embeddings.word_embeddings",
    "encoder.embeddings.positions.table": "bert.embeddings.position_embeddings",
    "encoder.embeddings.token_types": "bert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "bert.embeddings.LayerNorm",
    "encoder.blocks.{i}.self_attn.q_proj": "bert.encoder.layer.{i}.attention.self.query",
    "encoder.blocks.{i}.self_attn.k_proj": "bert.encoder.layer.{i}.attention.self.key",
    "encoder.blocks.{i}.self_attn.v_proj": "bert.encoder.layer.{i}.attention.self.value",
    "encoder.blocks.{i}.self_attn.out_proj": "bert.encoder.layer.{i}.attention.output.dense",
    "encoder.blocks.{i}.self_attn_norm": "bert.encoder.layer.{i}.attention.output.LayerNorm",
    "encoder.blocks.{i}.ff.up_proj": "bert.encoder.layer.{i}.intermediate.dense",
    "encoder.blocks.{i}.ff.down_proj": "bert.encoder.layer.{i}.output.dense",
    "encoder.blocks.{i}.ff_norm": "bert.encoder.layer.{i}.output.LayerNorm",
    "output.transform.dense": "cls.predictions.transform.dense",
    "output.transform.norm": "cls.predictions.transform.LayerNorm",
}
LLAMA_NAMES = {
    "decoder.embeddings.tokens": "model.embed_tokens",
    "decoder.blocks.{i}.self_attn_norm": "model.layers.{i}.input_layernorm",
    "decoder.blocks.{i}.self_attn.q_proj": "model.layers.{i}.self_attn.q_proj",
    "decoder.blocks.{i}.self_attn.k_proj": "model.layers.{i}.self_attn.k_proj",
    "decoder.blocks.{i}.self_attn.v_proj": "model.layers.{i}.self_attn.v_proj",
    "decoder.blocks.{i}.self_attn.out_proj": "model.layers.{i}.self_attn.o_proj",
    "decoder.blocks.{i}.ff_norm": "model.layers.{i}.post_attention_layernorm",
    "decoder.blocks.{i}.ff.gate_proj": "model.layers.{i}.mlp.gate_proj",
    "decoder.blocks.{i}.ff.up_proj": "model.layers.{i}.mlp.up_proj",
    "decoder.blocks.{i}.ff.down_proj": "model.layers.{i}.mlp.down_proj",
    "decoder.final_norm": "model.norm",
    "output.proj": "lm_head",
}
QWEN3_NAMES = LLAMA_NAMES | {
    f"decoder.blocks.{{i}}.self_attn.{norm}": f"model.layers.{{i}}.self_attn.{norm}" for norm in ("q_norm", "k_norm")
}


def marian_names() -> Names:
    names = {"encoder.embeddings.tokens": "model.shared"}
    for half in ("encoder", "decoder"):
        ours, theirs = f"{half}.blocks.{{i}}.", f"model.{half}.layers.{{i}}."
        names |= {f"{ours}ff.up_proj": f"{theirs}fc1", f"{ours}ff.down_proj": f"{theirs}fc2"}
        names |= {f"{ours}ff_norm": f"{theirs}final_layer_norm"}
        crosses = {"cross_attn": "encoder_attn"} if half == "decoder" else {}
        for mine, other in ({"self_attn": "self_attn"} | crosses).items():
            names[f"{ours}{mine}_norm"] = f"{theirs}{other}_layer_norm"
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                names[f"{ours}{mine}.{part}"] = f"{theirs}{other}.{part}"
    return names


def bart_names() -> Names:
    names = marian_names()
    for half in ("encoder", "decoder"):
        names[f"{half}.embeddings.positions.table"] = f"model.{half}.embed_positions"
        names[f"{half}.embeddings.norm"] = f"model.{half}.layernorm_embedding"
    return names


def t5_names(ff: Names) -> Names:
    names = {"encoder.embeddings.tokens": "shared"}
    for half in ("encoder", "decoder"):
        first = f"{half}.block.0.layer.0.SelfAttention"
        names[f"{half}.score_bias.table"] = f"{first}.relative_attention_bias"
        names[f"{half}.final_norm"] = f"{half}.final_layer_norm"
        ours, theirs = f"{half}.blocks.{{i}}.", f"{half}.block.{{i}}.layer."
        attentions = {"self_attn": "0.SelfAttention"}
        attentions |= {"cross_attn": "1.EncDecAttention"} if half == "decoder" else {}
        for mine, other in attentions.items():
            names[f"{ours}{mine}_norm"] = f"{theirs}{other[0]}.layer_norm"
            for part in ("q", "k", "v"):
                names[f"{ours}{mine}.{part}_proj"] = f"{theirs}{other}.{part}"
            names[f"{ours}{mine}.out_proj"] = f"{theirs}{other}.o"
        last = len(attentions)
        names[f"{ours}ff_norm"] = f"{theirs}{last}.layer_norm"
        names |= {f"{ours}ff.{mine}": f"{theirs}{last}.DenseReluDense.{other}" for mine, other in ff.items()}
    return names


@dataclass(frozen=True)
class Family:
    config: TransformerConfig
    theirs: Callable[[], nn.Module]
    names: Names


T5_NAMES = t5_names({"up_proj": "wi", "down_proj": "wo"})
T5_V1_1_NAMES = t5_names({"gate_proj": "wi_0", "up_proj": "wi_1", "down_proj": "wo"})


def rope(config: TransformerConfig, scaling: Scaling, **parameters: Any) -> Family:
    positions = RotaryPositions(base=50.0, scaling=scaling)
    return Family(
        replace(config, positions=positions, max_len=64),
        lambda: llama(rope_parameters=parameters, max_position_embeddings=64),
        LLAMA_NAMES,
    )


FAMILIES = {
    "gpt2": Family(GPT2, gpt2, GPT2_NAMES),
    "bert": Family(BERT, bert, BERT_NAMES),
    "bart": Family(BART, bart, bart_names()),
    "marian": Family(MARIAN, marian, marian_names()),
    "llama": Family(LLAMA, llama, LLAMA_NAMES),
    "llama_linear": rope(LLAMA, LinearScaling(4.0), rope_type="linear", factor=4.0),
    "llama3": rope(
        LLAMA,
        Llama3Scaling(4.0, 1.0, 4.0, 16),
        rope_type="llama3",
        factor=4.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=16,
    ),
    "llama_yarn": rope(LLAMA, YarnScaling(4.0, 16), rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    "mistral": Family(
        replace(LLAMA, decoder=replace(LLAMA.decoder, window_pattern=(4,))),
        lambda: llama("Mistral", sliding_window=4),
        LLAMA_NAMES,
    ),
    "qwen2": Family(
        replace(LLAMA, qkv_bias=True),
        lambda: llama("Qwen2"),
        LLAMA_NAMES,
    ),
    "qwen3": Family(replace(LLAMA, qk_norm=True), lambda: llama("Qwen3"), QWEN3_NAMES),
    "t5": Family(T5, t5, T5_NAMES),
    "t5_v1_1": Family(
        T5_V1_1,
        t5_v1_1,
        T5_V1_1_NAMES | {"output.proj": "lm_head"},
    ),
}


def both(name: str) -> tuple[Transformer, nn.Module, Pairs]:
    """Return glassformer's and transformers' model with equal random weights, biases of the logits included."""
    family = FAMILIES[name]
    ours, theirs = build_model(family.config).eval(), family.theirs().eval()
    randomise(theirs)
    pairs = Pairs(ours, theirs)
    for mine, other in family.names.items():
        for i in range(LAYERS if "{i}" in mine else 1):
            pairs.module(mine.format(i=i), other.format(i=i), transposed=name == "gpt2" and ".blocks." in mine)
    if name == "bert":
        pairs.parameter(ours.output.bias, theirs.cls.predictions.bias)
    if hasattr(theirs, "final_logits_bias"):
        theirs.final_logits_bias.copy_(torch.linspace(-1, 1, V))
        ours.output.bias.copy_(theirs.final_logits_bias[0])
    pairs.copy()
    return ours, theirs, pairs


def right_padded(n_rows: int, n_tokens: int, shortest: int) -> Tensor:
    return torch.arange(n_tokens) < torch.linspace(shortest, n_tokens, n_rows).long()[:, None]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_equals_transformers(name: str, padded: bool) -> None:
    ours, theirs, pairs = both(name)
    n_rows, n_tokens, n_source = 3, 11, 8
    # Not padding token 0: transformers zeroes the gradient of its row.
    token_ids = 1 + random_ids(V - 1, n_rows, n_tokens)
    mask = right_padded(n_rows, n_tokens, 5) if padded else torch.ones(n_rows, n_tokens, dtype=torch.bool)
    mine: dict[str, Any] = {"attention_mask": mask if padded else None}
    other: dict[str, Any] = {"use_cache": False}
    if ours.encoder is not None and ours.decoder is not None:
        source_ids = 1 + random_ids(V - 1, n_rows, n_source, seed=2)
        source_mask = right_padded(n_rows, n_source, 2) if padded else None
        mine |= {"source_ids": source_ids, "source_attention_mask": source_mask}
        other |= {"input_ids": source_ids, "attention_mask": source_mask, "decoder_input_ids": token_ids}
        other["decoder_attention_mask"] = mask if padded else None
    else:
        other |= {"input_ids": token_ids, "attention_mask": mask if padded else None}
    if name == "bert":
        mine["token_types"] = other["token_type_ids"] = random_ids(2, n_rows, n_tokens, seed=3)
        del other["use_cache"]
    logits, expected = ours(token_ids, **mine)[mask], theirs(**other).logits[mask]
    assert_close(logits, expected)
    labels = token_ids[mask]
    for x in (logits, expected):
        F.cross_entropy(x, labels).backward()
    pairs.assert_equal_gradients()
