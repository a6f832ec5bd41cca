"""EuroBERT in and out, and modern encoders of ours as EuroBERT."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

import glassformer  # noqa: E402
from configs import LLAMA  # noqa: E402
from glassformer.config import Stack, TokenHead, TransformerConfig  # noqa: E402
from glassformer.errors import UserError  # noqa: E402
from glassformer.inference.fill import masked_ids  # noqa: E402
from glassformer.interop.export import export  # noqa: E402
from glassformer.run_config import MaskedConfig  # noqa: E402
from interop.checkpoints import VOCAB, imported, model_directory  # noqa: E402

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {
        "hidden_size": 12,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 6,
        "intermediate_size": 17,
    },
    "tied": {"tie_word_embeddings": True, "attention_bias": True},
    "biases": {"mlp_bias": True, "hidden_act": "gelu"},
    "scaled": {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}},
}


def eurobert(**changes: Any) -> Any:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"vocab_size": VOCAB, "intermediate_size": 24, "max_position_embeddings": 24, "rms_norm_eps": 1e-5}
    ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "mask_token_id": 6}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}
    return transformers.EuroBertForMaskedLM(transformers.EuroBertConfig(**sizes | ids | rope | changes))


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_same_and_back(tmp_path: Path, case: str, mask: bool) -> None:
    both = imported(eurobert(**CASES[case]), tmp_path)
    both.assert_same(mask, seed=len(case))
    both.assert_comes_back(tmp_path / "back")


ENCODER = replace(LLAMA, decoder=None, encoder=Stack(2, 4, d_ff=24))
OURS: dict[str, TransformerConfig] = {
    "as mlm-python-docs": replace(ENCODER, gated_ff=False, activation="gelu", tie_output=True),
    "gated, with a bias of the logits": replace(ENCODER, head=TokenHead(bias="learned")),
    "biases": replace(ENCODER, ff_bias=True, qkv_bias=True, attn_out_bias=True, fused_qkv=True),
    "no scales": replace(ENCODER, norm_weight=False, gated_ff=False, activation="relu2"),
}


@pytest.mark.parametrize("name", OURS)
def test_models_of_ours(tmp_path: Path, name: str) -> None:
    """`export` holds the logits against transformers."""
    exported = export(model_directory(OURS[name], tmp_path / "ours", objective=MaskedConfig()), tmp_path / "hf")
    assert exported.said[0].startswith("EuroBERT (EuroBertForMaskedLM)")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ids = tokenizer("to be [MASK]")["input_ids"]
    ours = glassformer.load(tmp_path / "ours", device="cpu").tokenizer
    assert ids == ours.frames.text.around(masked_ids(ours, "to be [MASK]"))


def test_what_it_cannot_hold(tmp_path: Path) -> None:
    folder = model_directory(replace(ENCODER, qk_norm=True), tmp_path / "ours", objective=MaskedConfig())
    with pytest.raises(UserError, match=r"nearest is EuroBERT.*: model\.qk_norm is true, and it must be false$"):
        export(folder, tmp_path / "hf")
