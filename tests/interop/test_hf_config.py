"""Published configurations: every key is known, and the model has the published number of parameters."""

import functools
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from glassformer.apps.interop.equivalent import shapes_of
from glassformer.apps.interop.families import FAMILIES
from glassformer.apps.interop.family import Family
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.common.errors import UserError
from glassformer.config.presets import preset
from glassformer.config.transformer import Llama3Scaling, PositionHead, RotaryPositions, SequenceHead, TransformerConfig

COMMON = {"torch_dtype": "bfloat16", "transformers_version": "4.43.0", "use_cache": True, "initializer_range": 0.02}
COMMON |= {"bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.0, "hidden_act": "silu"}
LLAMA_3_1_8B = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "eos_token_id": [128001, 128008, 128009],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
MISTRAL_7B = COMMON | {
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN2_5_500M = COMMON | {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_600M = COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
T5_SMALL = {
    "architectures": ["T5WithLMHeadModel"],
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}},
    "vocab_size": 32128,
}
FLAN_T5_SMALL = T5_SMALL | {
    "architectures": ["T5ForConditionalGeneration"],
    "d_ff": 1024,
    "feed_forward_proj": "gated-gelu",
    "num_decoder_layers": 8,
    "num_heads": 6,
    "num_layers": 8,
    "relative_attention_max_distance": 128,
    "tie_word_embeddings": False,
    "transformers_version": "4.23.1",
    "use_cache": True,
}
SMOL_LM_2_135M = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_interleaved": False,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "vocab_size": 49152,
}
R1_DISTILL_QWEN_1_5B = COMMON | {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "max_position_embeddings": 131072,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
BERT = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "type_vocab_size": 2,
}
CROSS_ENCODER = BERT | {
    "_name_or_path": "cross-encoder/ms-marco-MiniLM-L-6-v2",
    "architectures": ["BertForSequenceClassification"],
    "gradient_checkpointing": False,
    "hidden_size": 384,
    "id2label": {"0": "LABEL_0"},
    "intermediate_size": 1536,
    "label2id": {"LABEL_0": 0},
    "num_hidden_layers": 6,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity",
    "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.0.1"},
    "use_cache": True,
    "vocab_size": 30522,
}
BERT_BASE_NER = BERT | {
    "_num_labels": 9,
    "architectures": ["BertForTokenClassification"],
    "hidden_size": 768,
    "id2label": {str(i): f"TAG_{i}" for i in range(9)},
    "intermediate_size": 3072,
    "max_length": 512,
    "num_hidden_layers": 12,
    "output_past": True,
    "pad_token_id": 0,
    "pooler_fc_size": 768,
    "vocab_size": 28996,
}
GPT2_MEDIUM = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 1024,
    "n_head": 16,
    "n_layer": 24,
    "n_positions": 1024,
    "n_special": 0,
    "predict_special_tokens": True,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-3.1-8B": (LLAMA_3_1_8B, 8_030_261_248),
    "Mistral-7B-v0.1": (MISTRAL_7B, 7_241_732_096),
    "Qwen2.5-0.5B": (QWEN2_5_500M, 494_032_768),
    "Qwen3-0.6B": (QWEN3_600M, 596_049_920),
    "t5-small": (T5_SMALL, 60_506_624),
    "flan-t5-small": (FLAN_T5_SMALL, 76_961_152),
    "SmolLM2-135M": (SMOL_LM_2_135M, 134_515_008),
    "DeepSeek-R1-Distill-Qwen-1.5B": (R1_DISTILL_QWEN_1_5B, 1_777_088_000),
    "ms-marco-MiniLM-L-6-v2": (CROSS_ENCODER, 22_713_601),
    "bert-base-NER": (BERT_BASE_NER, 107_726_601),
    "gpt2-medium": (GPT2_MEDIUM, 354_823_168),
}
HARMLESS: dict[str, Any] = {
    "_num_labels": 3,
    "is_llama_config": True,
    "max_sequence_length": 77,
    "neftune_noise_alpha": 5.0,
    "sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid",
    "sentence_transformers": {"version": "4.0.1"},
    "transformers.js_config": {"dtype": "q4"},
    "unsloth_fixed": True,
    "unsloth_version": "2025.1",
    "rope_interleaved": False,
    "use_mrope": False,
}
"""Keys of published configurations that do not change the model's outputs."""


def read(table: dict[str, Any], *tensors: str, ignore: tuple[str, ...] = ()) -> tuple[Family, TransformerConfig]:
    (family,) = (family for family in FAMILIES if table["architectures"][0] in family.heads)
    assert family.model_type == table["model_type"]
    given = HFConfig(table, "config.json", tensors, ignore)
    config = family.read(given, table["architectures"][0])
    given.done()
    return family, labelled(config, table)


def labelled(config: TransformerConfig, table: dict[str, Any]) -> TransformerConfig:
    """Return the table with one label per name."""
    if isinstance(config.head, (PositionHead, SequenceHead)):
        return replace(config, head=replace(config.head, n_labels=len(table.get("id2label", "ab"))))
    return config


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_key_is_known_and_every_parameter_counted(name: str) -> None:
    table, n_parameters = PUBLISHED[name]
    family, config = read(table, "lm_head.weight")
    assert sum(map(math.prod, shapes_of(config).values())) == n_parameters
    assert family.misfits(config) == []
    written = family.write(config)
    for key in written.keys() & table.keys():
        assert written[key] == table[key] or table[key] is None, key


def test_published_configurations_equal_the_presets() -> None:
    """Ids, dropout and initialisation may differ."""
    for table, name in ((LLAMA_3_1_8B, "llama-3.1-8b"), (T5_SMALL, "t5-small")):
        _, config = read(table)
        ours = preset(name)
        for field in ("decoder", "encoder", "positions", "norm_eps", "activation", "tie_output", "attention_scale"):
            assert getattr(config, field) == getattr(ours, field), field
    assert read(LLAMA_3_1_8B)[1].positions == RotaryPositions(500000.0, scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192))


SIZES = dict.fromkeys(("hidden_size", "dim", "n_embd", "d_model"), 64) | dict.fromkeys(
    ("num_attention_heads", "n_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), 32
)
SIZES |= {"vocab_size": 290, "num_layers": 3, "encoder_layers": 3, "decoder_layers": 2, "n_layer": 2, "n_layers": 2}
SIZES |= {"num_hidden_layers": 2, "d_kv": 2}
SIZES_OF = {
    "gpt_neo": {"num_layers": 24},  # its default kinds of layers are for this number
    "gpt_neox": {"hidden_size": 256},
    "stablelm": {"hidden_size": 256},  # a quarter of each head is rotated
    "phi": {"hidden_size": 128},  # half of each head is rotated
}


def sizes_of(model_type: str, theirs: Any) -> dict[str, Any]:
    known = theirs().to_dict()
    return {key: value for key, value in SIZES.items() if key in known} | SIZES_OF.get(model_type, {})


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_missing_key_has_the_default_of_transformers(family: Family) -> None:
    """Sizes and other required keys must be present; every other key is optional."""
    transformers = pytest.importorskip("transformers")
    theirs = type(transformers.AutoConfig.for_model(family.model_type))

    def whole(keys: dict[str, Any]) -> dict[str, Any]:
        table: dict[str, Any] = json.loads(theirs(**keys).to_json_string(use_diff=False))
        return table | {"architectures": [next(iter(family.heads))]}

    sizes = sizes_of(family.model_type, theirs)
    given = whole(sizes)
    compared = 0
    for key in given.keys() - {"model_type", "architectures", *sizes}:
        table = {name: value for name, value in given.items() if name != key}
        try:
            _, found = read(table)
        except UserError as error:
            assert f"has no {key}, which" in str(error)
            continue
        assert found == read(whole(table))[1], key
        compared += 1
    assert compared > 20


@functools.cache
def table_of(model_type: str) -> dict[str, Any]:
    """Return a small configuration with every key that transformers writes."""
    transformers = pytest.importorskip("transformers")
    theirs = type(transformers.AutoConfig.for_model(model_type))
    table: dict[str, Any] = json.loads(theirs(**sizes_of(model_type, theirs)).to_json_string(use_diff=False))
    return table


def whole_config(family: Family) -> dict[str, Any]:
    return table_of(family.model_type) | {"architectures": [next(iter(family.heads))]}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_keys_without_effect_are_ignored(family: Family) -> None:
    table = whole_config(family)
    assert read(table | HARMLESS) == read(table)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("key", ["rope_interleaved", "use_mrope"])
def test_an_unsupported_option_is_refused_when_it_is_on(family: Family, key: str) -> None:
    with pytest.raises(UserError, match=f"{key} True is not supported"):
        read(whole_config(family) | {key: True}, ignore=(key,))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_an_unknown_key_is_ignored_only_on_request(family: Family) -> None:
    table = whole_config(family) | {"n_experts": 8, "style": "new"}
    with pytest.raises(UserError, match="n_experts is not a known key; style is not a known key; --ignore-keys NAME"):
        read(table)
    with pytest.raises(UserError, match="exactly: style is not a known key; --ignore-keys NAME"):
        read(table, ignore=("n_experts",))
    assert read(table, ignore=("n_experts", "style")) == read(whole_config(family))


def test_a_known_key_cannot_be_ignored() -> None:
    with pytest.raises(UserError, match="hidden_act tanh is not supported"):
        read(LLAMA_3_1_8B | {"hidden_act": "tanh"}, ignore=("hidden_act",))


def test_an_unknown_rotary_key_is_ignored_only_on_request() -> None:
    table = QWEN2_5_500M | {"rope_scaling": {"type": "linear", "factor": 2.0, "mrope_section": [1, 2]}}
    with pytest.raises(UserError, match="mrope_section is not a known key"):
        read(table)
    given = HFConfig(table, "config.json", ignore=("mrope_section",))
    FAMILIES_BY_TYPE["qwen2"].read(given, "Qwen2ForCausalLM")
    given.done()
    assert given.ignored == {"mrope_section": [1, 2]}


FAMILIES_BY_TYPE = {family.model_type: family for family in FAMILIES}
