"""Import and export of T5 1.0 and 1.1: odd shapes, all kinds of tying and scaling, against transformers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import glassformer
import late
from glassformer.apps.interop.export import export
from glassformer.apps.interop.hf import choose_family
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.run import SpansConfig
from glassformer.config.transformer import RelativePositions, RotaryPositions, Stack, TransformerConfig
from glassformer.inference.fill import restore_spans
from interop.checkpoints import (
    VOCAB,
    Both,
    config_of,
    imported,
    model_directory,
    randomise,
    save,
    tensors,
)
from interop.decoding import assert_same_beams, assert_same_greedy
from tokenization.families import t5 as t5_tokenizer

transformers = late.optional("transformers")

GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CASES: dict[str, dict[str, Any]] = {
    "v1.0": {},
    "odd": {"d_model": 15, "d_kv": 7, "num_heads": 3, "num_layers": 3, "num_decoder_layers": 1, "d_ff": 17},
    "v1.1_tied": GATED | {"num_decoder_layers": 3},
    "silu": GATED | {"feed_forward_proj": "gated-silu"},
    "gelu": {"feed_forward_proj": "gelu", "layer_norm_epsilon": 1e-4},
}


def t5(untied: bool = False, **changes: Any) -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 16, "d_kv": 6, "d_ff": 22, "num_layers": 2, "num_heads": 4}
    buckets = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "n_positions": 48}
    config = transformers.T5Config(**sizes | buckets | changes, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config)
    if untied:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone() + 0.1)
    return model


@pytest.mark.parametrize("case", CASES)
def test_import_equals_transformers_and_exports_back(tmp_path: Path, case: str) -> None:
    both = imported(t5(**CASES[case]), tmp_path)
    both.assert_same()
    both.assert_same(mask=True, seed=1)
    both.assert_comes_back(tmp_path / "back")


@pytest.mark.parametrize("scaled", [False, True])
def test_an_untied_head(tmp_path: Path, scaled: bool) -> None:
    both = imported(t5(untied=True, **({} if scaled else GATED)), tmp_path)
    assert (both.network.config.logit_scale == 0) is scaled and not both.network.config.tie_output
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")


def change_config(hf: Path, **changes: Any) -> None:
    """Change keys of the configuration; remove keys with the value None."""
    config = {key: value for key, value in (config_of(hf) | changes).items() if value is not None}
    (hf / "config.json").write_text(json.dumps(config))


def change_tensors(hf: Path, **changes: torch.Tensor) -> None:
    save_file(tensors(hf) | changes, hf / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("case", ["v1.0", "v1.1"])
def test_older_files(tmp_path: Path, case: str) -> None:
    """Only `tie_word_embeddings` defines tying and scaling; tables have copies; cross-attention has an unused bias."""
    theirs = t5(untied=case == "v1.1", **({} if case == "v1.0" else GATED)).eval()
    randomise(theirs)
    hf = save(theirs, tmp_path / "hf")
    new = {"scale_decoder_outputs": None, "is_gated_act": None, "dense_act_fn": None}
    change_config(hf, tie_word_embeddings=None if case == "v1.0" else False, output_past=True, **new)
    shared = tensors(hf)["shared.weight"]
    repeats = {name: shared.clone() for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")}
    if case == "v1.0":
        repeats["lm_head.weight"] = shared.clone()
    unread = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
    change_tensors(hf, **repeats, **{unread: torch.ones(8, 4)})
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    both = Both(theirs, glassformer.load(tmp_path / "ours", device="cpu"), hf, tmp_path / "ours")
    assert both.network.config.tie_output is (both.network.config.logit_scale == 0) is (case == "v1.0")
    both.assert_same(mask=True)


def test_an_unequal_tied_head_is_refused(tmp_path: Path) -> None:
    hf = save(t5(), tmp_path / "hf")
    change_config(hf, scale_decoder_outputs=None)
    change_tensors(hf, **{"lm_head.weight": tensors(hf)["shared.weight"] + 1})
    with pytest.raises(UserError, match=r"lm_head\.weight differs from shared\.weight, .*set tie_word_embeddings to f"):
        import_model(hf, tmp_path / "ours")


@pytest.mark.parametrize("case", ["v1.0", "v1.1"])
def test_greedy_and_beam_search_equal_transformers(tmp_path: Path, case: str) -> None:
    """A decoder deeper than its encoder is not tested: transformers 5.23 builds its cache with the encoder's depth."""
    both = imported(t5(untied=case == "v1.1", **({"num_decoder_layers": 1} if case == "v1.0" else GATED)), tmp_path)
    assert_same_greedy(both)
    assert_same_beams(both)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "activation": ({"feed_forward_proj": "gated-quick_gelu"}, "feed_forward_proj gated-quick_gelu is not supported"),
    "gate": ({"is_gated_act": True}, "is_gated_act True is not supported (known: False)"),
    "dense": ({"dense_act_fn": "silu"}, "dense_act_fn silu is not supported (known: relu)"),
    "key": ({"layerdrop": 0.1}, "layerdrop is not a known key"),
    "heads": (
        {"num_heads": 3},
        "encoder.block.0.layer.0.SelfAttention.q.weight: expected shape [18, 16], got [24, 16]",
    ),
    "layers": ({"num_decoder_layers": 3}, "decoder.block.2.layer.0.SelfAttention.k.weight is missing"),
    "architecture": (
        {"architectures": ["T5ForTokenClassification"]},
        "architectures T5ForTokenClassification is not supported for T5 (known: T5ForCond",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_settings_are_refused(tmp_path: Path, name: str) -> None:
    changes, words = REFUSED[name]
    hf = save(t5(), tmp_path / "hf")
    change_config(hf, **changes)
    with pytest.raises(UserError) as error:
        import_model(hf, tmp_path / "ours", log=lambda text: None)
    assert words in str(error.value)
    assert not (tmp_path / "ours").exists()


STACK = Stack(2, 4, d_head=6, d_ff=20)
T5 = TransformerConfig(
    encoder=STACK,
    decoder=replace(STACK, n_layers=1),
    d_model=16,
    max_len=48,
    share_embeddings=True,
    positions=RelativePositions(n_buckets=8, max_distance=12),
    norm="rmsnorm",
    qkv_bias=False,
    attn_out_bias=False,
    ff_bias=False,
    attention_scale=1.0,
    decoder_start_id=0,
)
OURS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tie_output": False, "gated_ff": True, "activation": "silu"},
    "untied_scaled": {"tie_output": False, "logit_scale": 0.0},
    "fused": {"fused_qkv": True, "logit_scale": 0.0, "activation": "gelu_tanh", "gated_ff": True},
    "norms": {"norm_weight": False, "activation": "relu2"},
}


@pytest.mark.parametrize("name", OURS)
def test_models_of_glassformer_survive_export_and_import(tmp_path: Path, name: str) -> None:
    """Each export equals transformers, and its import exports equally."""
    export(model_directory(replace(T5, **OURS[name]), tmp_path / "ours"), tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "again", log=lambda text: None)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf").eval()
    both = Both(theirs, glassformer.load(tmp_path / "again", device="cpu"), tmp_path / "hf", tmp_path / "again")
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "scale": ({"attention_scale": None}, "model.attention_scale: expected 1.0, got none"),
    "exact_gelu": ({"gated_ff": True}, "model.activation: expected gelu_tanh, got gelu"),
    "tables": ({"share_embeddings": False}, "model.share_embeddings: expected true, got false"),
    "heads": ({"decoder": replace(STACK, n_heads=2)}, "model.encoder.n_heads: expected 2, got 4"),
    "positions": ({"positions": RotaryPositions()}, "model.positions: expected relative, got rotary"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_t5_cannot_represent_is_refused(name: str) -> None:
    changes, words = MISFITS[name]
    with pytest.raises(UserError, match=f"the nearest is T5.*{words}"):
        choose_family(replace(T5, vocab_size=VOCAB, **changes))


def test_translate_and_fill_equal_transformers(tmp_path: Path) -> None:
    """`translate` and `fill` give the texts of transformers; `<extra_id_0>` is the first `[MASK]`."""
    words = ["alpha", "beta", "gamma", "delta", "world", "walking", "speaking", "questions", "answers"]
    rust, roles = t5_tokenizer([f"the cat sat on the mat and said {word} to be or not to be" for word in words * 9])
    named = {f"{role}_token": token for role, token in roles.items()}
    sentinels = [f"<extra_id_{i}>" for i in range(5)]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, additional_special_tokens=sentinels, **named
    )
    n_tokens = len(tokenizer)
    theirs = t5(untied=True, vocab_size=n_tokens + 7, **GATED).eval()
    randomise(theirs)
    theirs.save_pretrained(tmp_path / "hf")
    tokenizer.save_pretrained(tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours")
    ours = glassformer.load(tmp_path / "ours", device="cpu")
    assert ours.run.objective == SpansConfig(n_sentinels=5)
    ids = tokenizer.convert_tokens_to_ids(sentinels)

    def written(text: str, suppress_ids: list[int]) -> tuple[list[int], list[int]]:
        inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        suppress_ids = [*suppress_ids, tokenizer.pad_token_id, tokenizer.unk_token_id, *range(n_tokens, n_tokens + 7)]
        found = theirs.generate(**inputs, do_sample=False, max_new_tokens=9, suppress_tokens=suppress_ids)[0, 1:]
        return inputs["input_ids"][0].tolist(), found.tolist()

    for text in ("the cat sat on the mat", "questions and answers", "to be"):
        source, target = written(text, suppress_ids=ids)
        assert ours.encode_source(text) == source
        assert ours.translate(text, beam=1, max_new_tokens=9) == tokenizer.decode(target, skip_special_tokens=True)
    for text in ("the cat <extra_id_0> on the mat <extra_id_1> to be", "<extra_id_0> said gamma"):
        source, target = written(text, suppress_ids=[])
        whole = restore_spans(source[:-1], [token for token in target if token != tokenizer.eos_token_id], ids)
        masked = text.replace(sentinels[0], "[MASK]").replace(sentinels[1], "[MASK]")
        assert ours.fill(masked, beam=1, max_new_tokens=9).text == ours.tokenizer.decode(whole)
    export(tmp_path / "ours", tmp_path / "back")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "back")(text)["input_ids"] == source
