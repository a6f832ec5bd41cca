"""Every supported class of transformers, tied and untied: import, export, and load again with equal outputs.

transformers must find every tensor of the exported folder, and no other.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import late
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families import FAMILIES
from glassformer.config.transformer import TokenHead
from interop.checkpoints import VOCAB, imported, prepared

transformers = late.optional("transformers")

IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
COMMON = {"vocab_size": VOCAB, "max_position_embeddings": 24, **IDS}
ENCODER = COMMON | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 24}
DECODER = ENCODER | {"num_key_value_heads": 2, "head_dim": 4}
PAIR = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 1), ("attention_heads", 2))}
PAIR |= COMMON | {"encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "d_model": 16, "decoder_start_token_id": 3}
PAIR |= {"forced_eos_token_id": None}
HALF_TURNED = {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}
T5 = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 4, "d_ff": 20, "num_layers": 2, "num_heads": 4} | IDS
T5 |= {"decoder_start_token_id": 0, "n_positions": 24}
SIZES: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": VOCAB, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 20} | IDS,
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), DECODER),
    "eurobert": DECODER | {"mask_token_id": 4},
    "bert": ENCODER,
    "roberta": ENCODER | {"pad_token_id": 1},
    "distilbert": COMMON | {"dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 24},
    "bart": PAIR,
    "marian": PAIR,
    "t5": T5,
    "mt5": T5,
    **dict.fromkeys(("xlm-roberta", "camembert"), ENCODER | {"pad_token_id": 1}),
    "gpt_neo": COMMON
    | {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "attention_types": [[["local", "global"], 1]]},
    "opt": COMMON | {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 20},
    "bloom": {"vocab_size": VOCAB, "hidden_size": 16, "n_layer": 2, "n_head": 4} | IDS,
    "gpt_neox": ENCODER | {"rope_parameters": HALF_TURNED},
    **dict.fromkeys(("starcoder2", "olmo", "phi3"), DECODER),
    "stablelm": ENCODER | {"num_key_value_heads": 2, "rope_parameters": HALF_TURNED},
    **dict.fromkeys(("smollm3", "olmo2", "granite", "gemma"), DECODER),
    "gemma2": DECODER | {"sliding_window": 3},
    "gemma3_text": DECODER | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
    "phi": ENCODER | {"num_key_value_heads": 2, "rope_parameters": HALF_TURNED},
    **dict.fromkeys(("mbart", "pegasus", "m2m_100"), PAIR),
    "modernbert": ENCODER | {"local_attention": 4, "cls_token_id": 2, "sep_token_id": 3},
    "mixtral": DECODER | {"num_local_experts": 4},
    "qwen3_moe": DECODER | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12},
}
LABELS = {"ForSequenceClassification": 3, "ForTokenClassification": 5}
OLD_NAMES = ("T5WithLMHeadModel", "BertForPreTraining")
"""Classes that come back under another name."""
CASES = [
    (family.model_type, name, tied)
    for family in FAMILIES
    for number, (name, head) in enumerate(family.heads.items())
    # Without logits over tokens a tied table is a key alone: the classes of a family take turns.
    for tied in ((True, False) if isinstance(head, TokenHead) else (number % 2 == 0,))
    if name not in OLD_NAMES and (tied or name != "BartModel")  # which is refused without a tied table
]


def drawn(model_type: str, name: str, tied: bool) -> Any:
    """Return a model of transformers with random weights."""
    n_labels = next((n for ending, n in LABELS.items() if name.endswith(ending)), 2)
    cls = getattr(transformers, name)
    sizes = SIZES[model_type] | {"num_labels": n_labels, "tie_word_embeddings": tied}
    if name == "EuroBertForSequenceClassification":
        sizes |= {"classifier_pooling": "mean"}
    torch.manual_seed(0)
    return cls(cls.config_class(**sizes))


@pytest.mark.parametrize(("model_type", "name", "tied"), CASES)
def test_every_class_comes_back(model_type: str, name: str, tied: bool, tmp_path: Path) -> None:
    both = imported(drawn(model_type, name, tied), tmp_path, after=prepared)
    both.assert_same(mask=True)
    export(both.folder, tmp_path / "back")
    again, info = getattr(transformers, name).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    replace(both, theirs=again.eval()).assert_same(mask=True, seed=1)
