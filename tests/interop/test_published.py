"""Published configurations by name: read by the right family, or refused for the right reason.

The keys are those that define the network. Numbers of parameters are those of the published checkpoints.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glassformer.apps.interop.directory import HFFolder
from glassformer.apps.interop.equivalent import shapes_of
from glassformer.apps.interop.importing import find_family, read_config
from glassformer.common.errors import UserError
from glassformer.config.transformer import TransformerConfig
from glassformer.cost.parameters import parameter_counts

Table = dict[str, Any]


def decoder(model_type: str, architecture: str, d_model: int, n_layers: int, n_heads: int, **others: Any) -> Table:
    sizes = {"hidden_size": d_model, "num_hidden_layers": n_layers, "num_attention_heads": n_heads}
    return {"model_type": model_type, "architectures": [architecture]} | sizes | others


def llama(architecture: str, d_model: int, d_ff: int, n_layers: int, n_heads: int, **others: Any) -> Table:
    model_type = architecture.partition("For")[0].lower()
    common = {"rms_norm_eps": 1e-5, "hidden_act": "silu", "intermediate_size": d_ff}
    return decoder(model_type, architecture, d_model, n_layers, n_heads, **common | others)


def bert(architecture: str, model_type: str, d_model: int, n_layers: int, vocab_size: int, **others: Any) -> Table:
    common = {"hidden_act": "gelu", "intermediate_size": 4 * d_model, "vocab_size": vocab_size}
    common |= {"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0}
    return decoder(model_type, architecture, d_model, n_layers, d_model // 64, **common | others)


def roberta(architecture: str, model_type: str, d_model: int, n_layers: int, vocab_size: int, **others: Any) -> Table:
    common = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
    return bert(architecture, model_type, d_model, n_layers, vocab_size, **common | others)


def eurobert(d_model: int, n_layers: int) -> Table:
    """Return a table with the special tokens as texts, beside their ids, as the published files have them."""
    sizes = {"intermediate_size": 4 * d_model, "vocab_size": 128256, "max_position_embeddings": 8192, "head_dim": 64}
    texts = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "mask_token": "<|mask|>"}
    texts |= {"pad_token": "<|end_of_text|>", "clf_pooling": "late"}
    ids = {"bos_token_id": 128000, "eos_token_id": 128001, "mask_token_id": 128002, "pad_token_id": 128001}
    common = {"rms_norm_eps": 1e-5, "rope_theta": 250000, "rope_scaling": None, "hidden_dropout": 0.0}
    common |= {"attention_bias": False, "mlp_bias": False, "is_decoder": False, "tie_word_embeddings": False}
    heads = {"num_key_value_heads": d_model // 64, "hidden_act": "silu", "pretraining_tp": 1}
    both = sizes | texts | ids | common | heads
    return decoder("eurobert", "EuroBertForMaskedLM", d_model, n_layers, d_model // 64, **both)


def modernbert(d_model: int, d_ff: int, n_layers: int) -> Table:
    common = {"vocab_size": 50368, "intermediate_size": d_ff, "max_position_embeddings": 8192, "pad_token_id": 50283}
    common |= {"global_attn_every_n_layers": 3, "local_attention": 128, "classifier_pooling": "mean"}
    common |= {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "hidden_activation": "gelu"}
    common |= {"norm_eps": 1e-5, "layer_norm_eps": 1e-5, "norm_bias": False, "attention_bias": False}
    common |= {"mlp_bias": False, "decoder_bias": True, "classifier_bias": False, "classifier_activation": "gelu"}
    common |= {"position_embedding_type": "absolute", "deterministic_flash_attn": False, "cls_token_id": 50281}
    return decoder("modernbert", "ModernBertForMaskedLM", d_model, n_layers, d_model // 64, **common)


def gpt2(d_model: int, n_layers: int, n_heads: int) -> Table:
    sizes = {"n_embd": d_model, "n_layer": n_layers, "n_head": n_heads, "n_positions": 1024, "n_ctx": 1024}
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257} | sizes


def gpt_neo(d_model: int, n_layers: int, n_heads: int) -> Table:
    sizes = {"hidden_size": d_model, "num_layers": n_layers, "num_heads": n_heads, "max_position_embeddings": 2048}
    kinds = {"attention_types": [[["global", "local"], n_layers // 2]], "window_size": 256, "vocab_size": 50257}
    kinds["attention_layers"] = ["global", "local"] * (n_layers // 2)
    return {"model_type": "gpt_neo", "architectures": ["GPTNeoForCausalLM"], "intermediate_size": None} | sizes | kinds


def opt(d_model: int, n_layers: int, n_heads: int, **others: Any) -> Table:
    common = {"ffn_dim": 4 * d_model, "max_position_embeddings": 2048, "vocab_size": 50272, "prefix": "</s>"}
    common |= {"do_layer_norm_before": True, "_remove_final_layer_norm": False, "word_embed_proj_dim": d_model}
    common |= {"activation_function": "relu", "activation_dropout": 0.0, "layerdrop": 0.0}
    return decoder("opt", "OPTForCausalLM", d_model, n_layers, n_heads, **common | others)


def bloom(d_model: int, n_layers: int, n_heads: int) -> Table:
    """Return a table with the old names of the sizes, which the published files have."""
    sizes = {"n_embed": d_model, "n_layer": n_layers, "num_attention_heads": n_heads, "n_inner": None}
    common = {"vocab_size": 250880, "seq_length": 2048, "offset_alibi": 100, "skip_bias_add": True, "pretraining_tp": 2}
    common |= {"apply_residual_connection_post_layernorm": False, "masked_softmax_fusion": True}
    return {"model_type": "bloom", "architectures": ["BloomForCausalLM"]} | sizes | common


def neox(d_model: int, n_layers: int, n_heads: int, vocab_size: int = 50304) -> Table:
    common = {"intermediate_size": 4 * d_model, "max_position_embeddings": 2048, "rotary_pct": 0.25}
    common |= {"rotary_emb_base": 10000, "use_parallel_residual": True, "vocab_size": vocab_size}
    return decoder("gpt_neox", "GPTNeoXForCausalLM", d_model, n_layers, n_heads, **common)


def phi(d_model: int, n_layers: int, **others: Any) -> Table:
    common = {"intermediate_size": 4 * d_model, "vocab_size": 51200, "max_position_embeddings": 2048}
    common |= {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "layer_norm_eps": 1e-5, "hidden_act": "gelu_new"}
    common |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "num_key_value_heads": None, "qk_layernorm": False}
    return decoder("phi", "PhiForCausalLM", d_model, n_layers, 32, **common | others)


def pair(model_type: str, architecture: str, d_model: int, n_layers: int, **others: Any) -> Table:
    sizes = {"d_model": d_model, "max_position_embeddings": 1024}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": n_layers, f"{side}_attention_heads": d_model // 64, f"{side}_ffn_dim": 4 * d_model}
    return {"model_type": model_type, "architectures": [architecture]} | sizes | others


def t5(model_type: str, architecture: str, d_model: int, d_ff: int, n_layers: int, **others: Any) -> Table:
    common = {"num_heads": d_model // 64, "d_kv": 64, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    sizes = {"d_model": d_model, "d_ff": d_ff, "num_layers": n_layers}
    return {"model_type": model_type, "architectures": [architecture]} | common | sizes | others


PRE_NORM = {"normalize_before": True, "add_final_layer_norm": True, "scale_embedding": True}
MBART = PRE_NORM | {"normalize_embedding": True, "static_position_embeddings": False, "activation_function": "gelu"}
PEGASUS = PRE_NORM | {"normalize_embedding": False, "static_position_embeddings": True, "extra_pos_embeddings": 1}
PEGASUS |= {"activation_function": "relu", "vocab_size": 96103, "add_bias_logits": False}
PHI3 = {"vocab_size": 32064, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096}
PHI3 |= {"sliding_window": 2047, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "rope_scaling": None}
LONG = {"max_position_embeddings": 131072, "sliding_window": 262144}
LONG |= {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}}
PHI4_MINI = {"vocab_size": 200064, "num_key_value_heads": 8, "tie_word_embeddings": True, "partial_rotary_factor": 0.75}
PHI4_MINI |= {"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False, "attention_bias": False}
GEMMA = {"head_dim": 256, "vocab_size": 256000, "max_position_embeddings": 8192, "attention_bias": False}
STARCODER = {"vocab_size": 49152, "max_position_embeddings": 16384, "sliding_window": 4096, "use_bias": True}
STARCODER |= {"norm_epsilon": 1e-5, "norm_type": "layer_norm", "mlp_type": "default", "rope_theta": 999999.442}
STABLE = {"hidden_act": "silu", "partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5, "use_parallel_residual": False}
STABLE |= {"max_position_embeddings": 4096, "qk_layernorm": False, "rope_theta": 10000}
OLMO = {"vocab_size": 50304, "max_position_embeddings": 2048, "hidden_act": "silu", "clip_qkv": None}
QWEN = {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": None}
MIXTRAL = {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02}
MIXTRAL |= {"max_position_embeddings": 32768, "rope_theta": 1e6, "sliding_window": None, "output_router_logits": False}
QWEN3_MOE = QWEN | {"num_key_value_heads": 4, "head_dim": 128, "max_window_layers": 48}
QWEN3_MOE |= {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True}
QWEN3_MOE |= {"decoder_sparse_step": 1, "mlp_only_layers": [], "router_aux_loss_coef": 0.001, "rope_theta": 1e6}
STARCODER2 = ("starcoder2", "Starcoder2ForCausalLM")

READ: dict[str, tuple[Table, str, int]] = {
    "gpt2": (gpt2(768, 12, 12), "GPT-2", 124_439_808),
    "gpt2-xl": (gpt2(1600, 48, 25), "GPT-2", 1_557_611_200),
    "distilgpt2": (gpt2(768, 6, 12), "GPT-2", 81_912_576),
    "bert-base-uncased": (bert("BertForMaskedLM", "bert", 768, 12, 30522), "BERT", 109_514_298),
    "bert-large-uncased": (bert("BertModel", "bert", 1024, 24, 30522), "BERT", 335_141_888),
    "paraphrase-multilingual-MiniLM-L12-v2": (
        bert("BertModel", "bert", 384, 12, 250037, num_attention_heads=12),
        "BERT",
        117_653_760,
    ),
    "roberta-base": (roberta("RobertaForMaskedLM", "roberta", 768, 12, 50265), "RoBERTa", 124_697_433),
    "EuroBERT-210m": (eurobert(768, 12), "EuroBERT", 310_266_624),
    "xlm-roberta-base": (roberta("XLMRobertaForMaskedLM", "xlm-roberta", 768, 12, 250002), "XLM-RoBERTa", 278_295_186),
    "xlm-roberta-large": (
        roberta("XLMRobertaForMaskedLM", "xlm-roberta", 1024, 24, 250002),
        "XLM-RoBERTa",
        560_142_482,
    ),
    "multilingual-e5-base": (roberta("XLMRobertaModel", "xlm-roberta", 768, 12, 250002), "XLM-RoBERTa", 278_043_648),
    "bge-m3": (
        roberta("XLMRobertaModel", "xlm-roberta", 1024, 24, 250002, max_position_embeddings=8194),
        "XLM-RoBERTa",
        567_754_752,
    ),
    "camembert-base": (roberta("CamembertForMaskedLM", "camembert", 768, 12, 32005), "CamemBERT", 110_655_493),
    "ModernBERT-base": (modernbert(768, 1152, 22), "ModernBERT", 149_655_232),
    "ModernBERT-large": (modernbert(1024, 2624, 28), "ModernBERT", 395_881_664),
    "gte-modernbert-base": (
        modernbert(768, 1152, 22) | {"architectures": ["ModernBertModel"]},
        "ModernBERT",
        149_014_272,
    ),
    "gpt-neo-125m": (gpt_neo(768, 12, 12), "GPT-Neo", 125_198_592),
    "gpt-neo-1.3B": (gpt_neo(2048, 24, 16), "GPT-Neo", 1_315_575_808),
    "TinyStories-33M": (gpt_neo(768, 4, 16), "GPT-Neo", 68_514_048),
    "opt-125m": (opt(768, 12, 12), "OPT", 125_239_296),
    "opt-1.3b": (opt(2048, 24, 32), "OPT", 1_315_758_080),
    "opt-6.7b": (opt(4096, 32, 32), "OPT", 6_658_473_984),
    "bloom-560m": (bloom(1024, 24, 16), "BLOOM", 559_214_592),
    "bloom-1b7": (bloom(2048, 24, 16), "BLOOM", 1_722_408_960),
    "bloom-7b1": (bloom(4096, 30, 32), "BLOOM", 7_069_016_064),
    "pythia-70m": (neox(512, 6, 8), "GPT-NeoX", 70_426_624),
    "pythia-1.4b": (neox(2048, 24, 16), "GPT-NeoX", 1_414_647_808),
    "gpt-neox-20b": (neox(6144, 44, 64, 50432), "GPT-NeoX", 20_554_567_680),
    "starcoder2-3b": (
        decoder(*STARCODER2, 3072, 30, 24, num_key_value_heads=2, intermediate_size=12288, **STARCODER),
        "StarCoder2",
        3_030_371_328,
    ),
    "starcoder2-7b": (
        decoder(*STARCODER2, 4608, 32, 36, num_key_value_heads=4, intermediate_size=18432, **STARCODER),
        "StarCoder2",
        7_173_923_840,
    ),
    "stablelm-3b-4e1t": (
        decoder("stablelm", "StableLmForCausalLM", 2560, 32, 32, intermediate_size=6912, vocab_size=50304, **STABLE),
        "StableLM",
        2_795_443_200,
    ),
    "stablelm-2-1_6b": (
        decoder(
            "stablelm",
            "StableLmForCausalLM",
            2048,
            24,
            32,
            intermediate_size=5632,
            vocab_size=100352,
            use_qkv_bias=True,
            **STABLE,
        ),
        "StableLM",
        1_644_515_328,
    ),
    "OLMo-1B-hf": (
        decoder("olmo", "OlmoForCausalLM", 2048, 16, 16, intermediate_size=8192, tie_word_embeddings=True, **OLMO),
        "OLMo",
        1_176_764_416,
    ),
    "OLMo-7B-hf": (
        decoder("olmo", "OlmoForCausalLM", 4096, 32, 32, intermediate_size=11008, **OLMO),
        "OLMo",
        6_888_095_744,
    ),
    "Phi-3-mini-4k-instruct": (llama("Phi3ForCausalLM", 3072, 8192, 32, 32, **PHI3), "Phi-3", 3_821_079_552),
    "Phi-3-mini-128k-instruct": (
        llama("Phi3ForCausalLM", 3072, 8192, 32, 32, **PHI3 | LONG),
        "Phi-3",
        3_821_079_552,
    ),
    "Phi-4-mini-instruct": (
        llama("Phi3ForCausalLM", 3072, 8192, 32, 24, **PHI3 | LONG | PHI4_MINI),
        "Phi-3",
        3_836_021_760,
    ),
    "phi-4": (
        llama(
            "Phi3ForCausalLM",
            5120,
            17920,
            40,
            40,
            num_key_value_heads=10,
            vocab_size=100352,
            max_position_embeddings=16384,
            original_max_position_embeddings=16384,
            rope_theta=250000,
            sliding_window=None,
        ),
        "Phi-3",
        14_659_507_200,
    ),
    "phi-1_5": (phi(2048, 24), "Phi", 1_418_270_720),
    "phi-2": (phi(2560, 32, partial_rotary_factor=0.4), "Phi", 2_779_683_840),
    "SmolLM3-3B": (
        llama(
            "SmolLM3ForCausalLM",
            2048,
            11008,
            36,
            16,
            num_key_value_heads=4,
            vocab_size=128256,
            max_position_embeddings=65536,
            rms_norm_eps=1e-6,
            rope_theta=5000000.0,
            no_rope_layers=[1, 1, 1, 0] * 9,
            no_rope_layer_interval=4,
            layer_types=["full_attention"] * 36,
            use_sliding_window=False,
            sliding_window=None,
            max_window_layers=28,
        ),
        "SmolLM3",
        3_075_098_624,
    ),
    "OLMo-2-0425-1B": (
        llama(
            "Olmo2ForCausalLM",
            2048,
            8192,
            16,
            16,
            vocab_size=100352,
            max_position_embeddings=4096,
            rms_norm_eps=1e-6,
            rope_theta=500000,
        ),
        "OLMo 2",
        1_484_916_736,
    ),
    "granite-3.0-2b-base": (
        llama(
            "GraniteForCausalLM",
            2048,
            8192,
            40,
            32,
            num_key_value_heads=8,
            vocab_size=49155,
            max_position_embeddings=4096,
            embedding_multiplier=12.0,
            logits_scaling=8.0,
            residual_multiplier=0.22,
            attention_multiplier=0.015625,
            tie_word_embeddings=True,
            attention_bias=False,
            mlp_bias=False,
        ),
        "Granite",
        2_533_531_648,
    ),
    "gemma-2b": (
        llama("GemmaForCausalLM", 2048, 16384, 18, 8, num_key_value_heads=1, hidden_act="gelu", **GEMMA),
        "Gemma",
        2_506_172_416,
    ),
    "gemma-7b": (
        llama("GemmaForCausalLM", 3072, 24576, 28, 16, num_key_value_heads=16, hidden_act="gelu", **GEMMA),
        "Gemma",
        8_537_680_896,
    ),
    "gemma-2-2b": (
        decoder(
            "gemma2",
            "Gemma2ForCausalLM",
            2304,
            26,
            8,
            head_dim=256,
            num_key_value_heads=4,
            intermediate_size=9216,
            vocab_size=256000,
            max_position_embeddings=8192,
            rms_norm_eps=1e-6,
            attn_logit_softcapping=50.0,
            final_logit_softcapping=30.0,
            query_pre_attn_scalar=256,
            sliding_window=4096,
        ),
        "Gemma 2",
        2_614_341_888,
    ),
    "gemma-3-1b-it": (
        decoder(
            "gemma3_text",
            "Gemma3ForCausalLM",
            1152,
            26,
            4,
            **GEMMA
            | {"intermediate_size": 6912, "num_key_value_heads": 1, "vocab_size": 262144, "rope_theta": 1000000}
            | {"max_position_embeddings": 32768, "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000}
            | {"rope_scaling": None, "sliding_window": 512, "sliding_window_pattern": 6, "rms_norm_eps": 1e-6}
            | {"hidden_activation": "gelu_pytorch_tanh", "cache_implementation": "hybrid"}
            | {"attn_logit_softcapping": None, "final_logit_softcapping": None},
        ),
        "Gemma 3",
        999_885_952,
    ),
    "mbart-large-cc25": (
        pair("mbart", "MBartForConditionalGeneration", 1024, 12, vocab_size=250027, **MBART),
        "mBART",
        610_851_840,
    ),
    "mbart-large-50": (
        pair("mbart", "MBartForConditionalGeneration", 1024, 12, vocab_size=250054, **MBART),
        "mBART",
        610_879_488,
    ),
    "pegasus-large": (
        pair("pegasus", "PegasusForConditionalGeneration", 1024, 16, **PEGASUS),
        "Pegasus",
        568_699_904,
    ),
    "nllb-200-distilled-600M": (
        pair("m2m_100", "M2M100ForConditionalGeneration", 1024, 12, vocab_size=256206, pad_token_id=1),
        "M2M-100",
        615_073_792,
    ),
    "m2m100_418M": (
        pair("m2m_100", "M2M100ForConditionalGeneration", 1024, 12, vocab_size=128112, pad_token_id=1),
        "M2M-100",
        483_905_536,
    ),
    "bart-large": (
        pair("bart", "BartForConditionalGeneration", 1024, 12, vocab_size=50265, normalize_embedding=True),
        "BART",
        406_291_456,
    ),
    "t5-v1_1-small": (
        t5("t5", "T5ForConditionalGeneration", 512, 1024, 8, num_heads=6, vocab_size=32128),
        "T5",
        76_961_152,
    ),
    "mt5-small": (
        t5("mt5", "MT5ForConditionalGeneration", 512, 1024, 8, num_heads=6, vocab_size=250112),
        "mT5",
        300_176_768,
    ),
    "byt5-small": (
        t5("t5", "T5ForConditionalGeneration", 1472, 3584, 12, num_heads=6, num_decoder_layers=4, vocab_size=384),
        "T5",
        299_637_760,
    ),
    "Llama-3.2-1B": (
        llama(
            "LlamaForCausalLM",
            2048,
            8192,
            16,
            32,
            num_key_value_heads=8,
            head_dim=64,
            vocab_size=128256,
            max_position_embeddings=131072,
            tie_word_embeddings=True,
            rope_theta=500000.0,
            rope_scaling={
                "factor": 32.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
        ),
        "Llama",
        1_235_814_400,
    ),
    "TinyLlama-1.1B": (
        llama(
            "LlamaForCausalLM",
            2048,
            5632,
            22,
            32,
            num_key_value_heads=4,
            vocab_size=32000,
            max_position_embeddings=2048,
        ),
        "Llama",
        1_100_048_384,
    ),
    "Qwen2.5-7B": (
        llama("Qwen2ForCausalLM", 3584, 18944, 28, 28, num_key_value_heads=4, vocab_size=152064, **QWEN),
        "Qwen2",
        7_615_616_512,
    ),
    "Qwen3-Embedding-0.6B": (
        llama(
            "Qwen3ForCausalLM",
            1024,
            3072,
            28,
            16,
            num_key_value_heads=8,
            head_dim=128,
            vocab_size=151669,
            tie_word_embeddings=True,
            **QWEN,
        ),
        "Qwen3",
        595_776_512,
    ),
    "Mixtral-8x7B-v0.1": (
        llama("MixtralForCausalLM", 4096, 14336, 32, 32, vocab_size=32000, **MIXTRAL),
        "Mixtral",
        46_702_792_704,
    ),
    "Mixtral-8x22B-v0.1": (
        llama("MixtralForCausalLM", 6144, 16384, 56, 48, vocab_size=32000, **MIXTRAL),
        "Mixtral",
        140_620_634_112,
    ),
    "Qwen3-30B-A3B": (
        llama("Qwen3MoeForCausalLM", 2048, 6144, 48, 32, vocab_size=151936, **QWEN3_MOE) | {"model_type": "qwen3_moe"},
        "Qwen3-MoE",
        30_532_122_624,
    ),
    "Skywork-Reward-Llama-3.1-8B": (
        llama(
            "LlamaForSequenceClassification",
            4096,
            14336,
            32,
            32,
            num_key_value_heads=8,
            vocab_size=128256,
            max_position_embeddings=131072,
            num_labels=1,
        ),
        "Llama",
        7_504_928_768,
    ),
}
"""Name → configuration, family, number of parameters."""

ACTIVE = {
    "Mixtral-8x7B-v0.1": 12_879_925_248,  # published as 12.9 B
    "Mixtral-8x22B-v0.1": 39_152_031_744,  # 39 B
    "Qwen3-30B-A3B": 3_353_032_704,  # 3.3 B
}
"""Name → number of parameters that a token uses."""

REFUSED: dict[str, tuple[Table, str]] = {
    "opt-350m": (
        opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
        "word_embed_proj_dim 512 differs from hidden_size 1024: positions are added after the projection",
    ),
    "stablelm-2-12b": (
        decoder(
            "stablelm",
            "StableLmForCausalLM",
            5120,
            40,
            32,
            intermediate_size=13824,
            vocab_size=100352,
            num_key_value_heads=8,
            **STABLE | {"use_parallel_residual": True, "qk_layernorm": True},
        ),
        "qk_layernorm True is not supported",
    ),
    "OLMo-7B-0424-hf": (
        decoder("olmo", "OlmoForCausalLM", 4096, 32, 32, intermediate_size=11008, **OLMO | {"clip_qkv": 8.0}),
        "clip_qkv 8.0 is not supported",
    ),
    "OLMoE-1B-7B-0924": (
        llama(
            "OlmoeForCausalLM",
            2048,
            1024,
            16,
            16,
            vocab_size=50304,
            max_position_embeddings=4096,
            num_experts=64,
            num_experts_per_tok=8,
            norm_topk_prob=False,
            clip_qkv=None,
        ),
        "model_type olmoe is not supported",
    ),
    "Qwen1.5-MoE-A2.7B": (
        llama(
            "Qwen2MoeForCausalLM",
            2048,
            5632,
            24,
            16,
            vocab_size=151936,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            num_experts=60,
            num_experts_per_tok=4,
        )
        | {"model_type": "qwen2_moe", "max_position_embeddings": 8192},
        "shared_expert_intermediate_size is not a known key",
    ),
    "mamba-130m": (
        {
            "model_type": "mamba",
            "architectures": ["MambaForCausalLM"],
            "d_state": 16,
            "n_layer": 24,
            "vocab_size": 50280,
        },
        "model_type mamba is not supported",
    ),
}
"""Name → configuration, words of the refusal."""


def folder(table: Table, *tensors: str) -> HFFolder:
    return HFFolder(Path("here"), table | {"torch_dtype": "float32"}, dict.fromkeys(tensors))  # type: ignore[arg-type]


def is_constant(config: TransformerConfig, name: str) -> bool:
    """Return True for the bias of the logits if it is a stored buffer, which no count of parameters contains."""
    return name == "output.bias" and getattr(config.head, "bias", "") == "constant"


@pytest.mark.parametrize("name", READ)
def test_a_published_configuration_is_read(name: str) -> None:
    table, family_name, n_parameters = READ[name]
    given = folder(table, *(["lm_head.weight"] if table["model_type"] in ("t5", "mt5") else []), "pooler.dense.weight")
    family, architecture = find_family(given, log=lambda text: None)
    config, _ = read_config(given, family, architecture, log=lambda text: None)
    config = replace(config, pad_id=table.get("pad_token_id", 0), decoder_start_id=2)
    assert family.name == family_name
    learned = {name: shape for name, shape in shapes_of(config).items() if not is_constant(config, name)}
    assert sum(map(math.prod, learned.values())) == n_parameters
    assert family.misfits(config) == []


@pytest.mark.parametrize("name", ACTIVE)
def test_the_active_parameters_are_those_of_the_experts_that_a_token_uses(name: str) -> None:
    table, _, n_parameters = READ[name]
    given = folder(table)
    config, _ = read_config(given, *find_family(given, log=lambda text: None), log=lambda text: None)
    counts = parameter_counts(config)
    assert (counts.total, counts.active) == (n_parameters, ACTIVE[name])


@pytest.mark.parametrize("name", REFUSED)
def test_a_published_configuration_is_refused(name: str) -> None:
    table, words = REFUSED[name]
    given = folder(table)
    with pytest.raises(UserError) as error:
        family, architecture = find_family(given, log=lambda text: None)
        read_config(given, family, architecture, log=lambda text: None)
    assert words in str(error.value)


def test_there_are_sixty() -> None:
    assert len({*READ, *REFUSED}) >= 60
