"""Random configurations of families, against transformers: logits, hidden states, padding, generated ids, tensors.

The default is one configuration per family; GLASSFORMER_FAMILIES=full compares twenty.
"""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import late
from interop.checkpoints import VOCAB, Both, imported, prepared
from interop.decoding import assert_same_beams, assert_same_greedy

transformers = late.optional("transformers")

N_SEEDS = 20 if os.environ.get("GLASSFORMER_FAMILIES") == "full" else 1
ENDS = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
Table = dict[str, Any]


def stack(draw: Random, n_layers: str = "num_hidden_layers", n_heads: str = "num_attention_heads") -> Table:
    """Draw sizes of a stack of blocks, under the names of a family."""
    heads = draw.choice((2, 4))
    width = heads * draw.choice((4, 8))
    return {
        "hidden_size": width,
        n_layers: draw.randint(1, 3),
        n_heads: heads,
        "max_position_embeddings": draw.randint(24, 64),
        "tie_word_embeddings": draw.random() < 0.5,
    } | ENDS


def eps(draw: Random) -> float:
    return draw.choice((1e-3, 1e-5, 1e-6))


def rope(draw: Random, *fractions: float, kinds: bool = True) -> Table:
    table: Table = {"rope_theta": draw.choice((50.0, 10000.0)), "rope_type": "default"}
    if fractions:
        table["partial_rotary_factor"] = draw.choice(fractions)
    if kinds and draw.random() < 0.5:
        table |= {"rope_type": "linear", "factor": 2.0}
    return {"rope_parameters": table}


def inner(draw: Random) -> int:
    return draw.randint(9, 40)


def llama(draw: Random) -> Table:
    return stack(draw) | {"num_key_value_heads": draw.choice((1, 2)), "intermediate_size": inner(draw)}


def encoder(draw: Random) -> Table:
    drawn = stack(draw) | {"intermediate_size": inner(draw), "layer_norm_eps": eps(draw)}
    return drawn | {"type_vocab_size": draw.choice((1, 2)), "pad_token_id": draw.choice((0, 1))}


def gpt_neo(draw: Random) -> Table:
    kinds, times = draw.choice((["global"], ["global", "local"], ["local", "global", "global"])), draw.randint(1, 2)
    drawn = stack(draw, "num_layers", "num_heads") | {"num_layers": len(kinds) * times}
    drawn |= {"attention_types": [[kinds, times]], "window_size": 256, "layer_norm_epsilon": eps(draw)}
    if "local" in kinds:
        drawn["window_size"] = draw.randint(1, 6)
    return drawn | {"intermediate_size": inner(draw), "activation_function": draw.choice(ACTIVATIONS)}


def opt(draw: Random) -> Table:
    drawn = stack(draw) | {"ffn_dim": inner(draw), "enable_bias": draw.random() < 0.7}
    drawn |= {"do_layer_norm_before": draw.random() < 0.5, "activation_function": draw.choice(ACTIVATIONS)}
    return drawn | {"layer_norm_elementwise_affine": draw.random() < 0.7}


def bloom(draw: Random) -> Table:
    heads = draw.choice((1, 3, 4, 6))
    drawn = {"hidden_size": heads * 4, "n_head": heads, "n_layer": draw.randint(1, 3), "layer_norm_epsilon": eps(draw)}
    return drawn | {"tie_word_embeddings": draw.random() < 0.5} | ENDS


def gpt_neox(draw: Random) -> Table:
    drawn = stack(draw) | {
        "intermediate_size": inner(draw),
        "layer_norm_eps": eps(draw),
        "use_parallel_residual": draw.random() < 0.7,
    }
    return drawn | {"attention_bias": draw.random() < 0.5} | rope(draw, 0.5, 1.0)


def starcoder2(draw: Random) -> Table:
    drawn = llama(draw) | {"norm_epsilon": eps(draw), "use_bias": draw.random() < 0.5} | rope(draw)
    return drawn | {"sliding_window": draw.choice((None, 4)), "hidden_act": draw.choice(ACTIVATIONS)}


def stablelm(draw: Random) -> Table:
    drawn = llama(draw) | {"use_qkv_bias": draw.random() < 0.5, "use_parallel_residual": draw.random() < 0.5}
    return drawn | {"layer_norm_eps": eps(draw)} | rope(draw, 0.5, 1.0)


def olmo(draw: Random) -> Table:
    return llama(draw) | {"attention_bias": draw.random() < 0.5} | rope(draw)


def phi3(draw: Random) -> Table:
    drawn = llama(draw) | {"rms_norm_eps": eps(draw), "sliding_window": draw.choice((None, 5))}
    return drawn | rope(draw, 0.5, 1.0, kinds=False)


def phi(draw: Random) -> Table:
    drawn = llama(draw) | {"layer_norm_eps": eps(draw), "hidden_act": draw.choice(ACTIVATIONS)}
    return drawn | rope(draw, 0.5, 1.0)


def smollm3(draw: Random) -> Table:
    drawn = llama(draw) | {"rms_norm_eps": eps(draw), "attention_bias": draw.random() < 0.5} | rope(draw)
    turned = [draw.choice((0, 1)) for _ in range(drawn["num_hidden_layers"])]
    return drawn | {"no_rope_layers": turned, "mlp_bias": draw.random() < 0.5}


def olmo2(draw: Random) -> Table:
    return llama(draw) | {"rms_norm_eps": eps(draw), "attention_bias": draw.random() < 0.5} | rope(draw)


def granite(draw: Random) -> Table:
    drawn = olmo2(draw) | {"mlp_bias": draw.random() < 0.5, "embedding_multiplier": draw.choice((1.0, 12.0))}
    drawn |= {"attention_multiplier": draw.choice((0.5, 0.1)), "residual_multiplier": draw.choice((1.0, 0.22))}
    return drawn | {"logits_scaling": draw.choice((1.0, 8.0))}


def gemma(draw: Random) -> Table:
    drawn = llama(draw) | {"rms_norm_eps": eps(draw), "head_dim": draw.choice((4, 8))}
    return drawn | {"hidden_act": draw.choice(("gelu_pytorch_tanh", "relu", "silu"))} | rope(draw)


def gemma2(draw: Random) -> Table:
    drawn = gemma3(draw) | {"attn_logit_softcapping": draw.choice((None, 2.0)), "rope_parameters": None} | rope(draw)
    return drawn | {"final_logit_softcapping": draw.choice((None, 3.0))}


def gemma3(draw: Random) -> Table:
    drawn = llama(draw) | {"rms_norm_eps": eps(draw), "head_dim": draw.choice((4, 8))}
    drawn |= two_kinds(draw, drawn["num_hidden_layers"])
    return drawn | {"sliding_window": draw.randint(2, 6), "query_pre_attn_scalar": draw.choice((4, 8, 12))}


def two_kinds(draw: Random, n_layers: int) -> Table:
    """Draw layers with and without a window, one more than `n_layers`, and their rotary bases."""
    kinds = [draw.choice(("full_attention", "sliding_attention")) for _ in range(n_layers)] + ["sliding_attention"]
    local = {"rope_type": "default", "rope_theta": draw.choice((30.0, 200.0))}
    bases = {"full_attention": rope(draw)["rope_parameters"], "sliding_attention": local}
    return {"layer_types": kinds, "num_hidden_layers": len(kinds), "rope_parameters": bases}


def of_experts(draw: Random) -> int:
    """Draw a width that the grouped product of transformers accepts."""
    return 4 * draw.randint(3, 10)


def mixtral(draw: Random) -> Table:
    n_experts = draw.randint(2, 6)
    drawn = llama(draw) | {"num_local_experts": n_experts, "num_experts_per_tok": draw.randint(2, n_experts)}
    drawn |= {"intermediate_size": of_experts(draw), "head_dim": draw.choice((4, 8))}
    drawn |= {
        "sliding_window": draw.choice((None, 5)),
        "rms_norm_eps": eps(draw),
        "hidden_act": draw.choice(ACTIVATIONS),
    }
    return drawn | {"router_aux_loss_coef": draw.choice((0.0, 0.02))} | rope(draw)


def qwen3_moe(draw: Random) -> Table:
    n_experts, normalize, width = draw.randint(2, 6), draw.random() < 0.5, of_experts(draw)
    drawn = llama(draw) | {"num_experts": n_experts, "norm_topk_prob": normalize}
    drawn |= {"moe_intermediate_size": width, "intermediate_size": width}
    drawn |= {"num_experts_per_tok": draw.randint(1 + normalize, n_experts), "attention_bias": draw.random() < 0.5}
    drawn |= {"head_dim": draw.choice((4, 8)), "rms_norm_eps": eps(draw)} | rope(draw)
    if draw.random() < 0.5:
        drawn |= {"use_sliding_window": True, "sliding_window": 5}
    return drawn


def modernbert(draw: Random) -> Table:
    drawn, activation = stack(draw) | {"intermediate_size": inner(draw)}, draw.choice(ACTIVATIONS)
    drawn |= two_kinds(draw, drawn["num_hidden_layers"]) | {"cls_token_id": 2, "sep_token_id": 3}
    drawn |= {"norm_eps": eps(draw), "local_attention": 2 * draw.randint(0, 5), "hidden_activation": activation}
    drawn |= {"classifier_activation": activation}
    biases = ("norm_bias", "attention_bias", "mlp_bias", "classifier_bias", "decoder_bias")
    return drawn | {name: draw.random() < 0.4 for name in biases}


def modernbert_tagger(draw: Random) -> Table:
    """Draw a table without the key that only the masked language model reads: an export does not have it."""
    return {name: value for name, value in modernbert(draw).items() if name != "decoder_bias"}


def pair(draw: Random) -> Table:
    drawn: Table = {"d_model": draw.choice((16, 24)), "max_position_embeddings": draw.randint(24, 64)} | ENDS
    for side in ("encoder", "decoder"):
        sizes = {"layers": draw.randint(1, 3), "attention_heads": draw.choice((2, 4)), "ffn_dim": inner(draw)}
        drawn |= {f"{side}_{name}": value for name, value in sizes.items()}
    drawn |= {"decoder_start_token_id": draw.choice((0, 3)), "scale_embedding": draw.random() < 0.5}
    drawn |= {"activation_function": draw.choice(ACTIVATIONS), "forced_eos_token_id": None}
    return drawn


def m2m100(draw: Random) -> Table:
    return pair(draw) | {"decoder_start_token_id": 3, "pad_token_id": draw.choice((0, 1))}


ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu")
ROWS: dict[str, tuple[str, Callable[[Random], Table]]] = {
    "XLM-RoBERTa": ("XLMRobertaForMaskedLM", encoder),
    "CamemBERT": ("CamembertForMaskedLM", encoder),
    "ModernBERT": ("ModernBertForMaskedLM", modernbert),
    "ModernBERT tagger": ("ModernBertForTokenClassification", modernbert_tagger),
    "GPT-Neo": ("GPTNeoForCausalLM", gpt_neo),
    "OPT": ("OPTForCausalLM", opt),
    "BLOOM": ("BloomForCausalLM", bloom),
    "GPT-NeoX": ("GPTNeoXForCausalLM", gpt_neox),
    "StarCoder2": ("Starcoder2ForCausalLM", starcoder2),
    "StableLM": ("StableLmForCausalLM", stablelm),
    "OLMo": ("OlmoForCausalLM", olmo),
    "Phi-3": ("Phi3ForCausalLM", phi3),
    "Phi": ("PhiForCausalLM", phi),
    "SmolLM3": ("SmolLM3ForCausalLM", smollm3),
    "OLMo 2": ("Olmo2ForCausalLM", olmo2),
    "Granite": ("GraniteForCausalLM", granite),
    "Gemma": ("GemmaForCausalLM", gemma),
    "Gemma 2": ("Gemma2ForCausalLM", gemma2),
    "Gemma 3": ("Gemma3ForCausalLM", gemma3),
    "Mixtral": ("MixtralForCausalLM", mixtral),
    "Qwen3-MoE": ("Qwen3MoeForCausalLM", qwen3_moe),
    "mBART": ("MBartForConditionalGeneration", pair),
    "Pegasus": ("PegasusForConditionalGeneration", pair),
    "M2M-100": ("M2M100ForConditionalGeneration", m2m100),
}
AUTO = {"MaskedLM": "MaskedLM", "CausalLM": "CausalLM", "ConditionalGeneration": "Seq2SeqLM"}
AUTO |= {"TokenClassification": "TokenClassification"}


@pytest.mark.parametrize("seed", range(N_SEEDS))
@pytest.mark.parametrize("name", ROWS)
def test_a_random_configuration_equals_transformers(name: str, seed: int, tmp_path: Path) -> None:
    architecture, table = ROWS[name]
    cls = getattr(transformers, architecture)
    both = imported(cls(cls.config_class(**table(Random(f"{name}{seed}")))), tmp_path, after=prepared)
    both.assert_same(mask=False)
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")
    auto = getattr(transformers, f"AutoModelFor{AUTO[architecture.partition('For')[2]]}")
    again = Both(auto.from_pretrained(tmp_path / "back").eval(), both.ours, both.hf, both.folder)
    assert type(again.theirs) is cls
    again.assert_same(mask=True, seed=1)
    if both.network.config.decoder is not None:
        assert_same_greedy(both, must_vary=False)
    if both.network.config.is_encoder_decoder:
        assert_same_beams(both, must_vary=False)
