"""Import and export of BART: odd shapes, tied and untied, against transformers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import late
from glassformer import api
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families.bart import BART
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.run import InitConfig, TokenizerConfig
from glassformer.config.transformer import TokenHead
from interop.checkpoints import VOCAB, config_of, imported, randomise, save, tensors
from interop.decoding import assert_same_beams, assert_same_greedy
from interop.seq2seq import DENOISER
from runs import pair_run

transformers = late.optional("transformers")

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {"d_model": 15, "encoder_attention_heads": 3, "decoder_attention_heads": 5, "encoder_ffn_dim": 17},
    "uneven": {"encoder_layers": 3, "decoder_layers": 1, "decoder_ffn_dim": 9, "max_position_embeddings": 13},
    "scaled_relu": {"scale_embedding": True, "activation_function": "relu"},
    "untied": {"tie_word_embeddings": False},
}


def bart(kind: str = "BartForConditionalGeneration", **changes: Any) -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 16, "max_position_embeddings": 24}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 24}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 3}
    given = sizes | special | {"forced_eos_token_id": None} | changes
    return getattr(transformers, kind)(transformers.BartConfig(**given))


@pytest.mark.parametrize("case", CASES)
def test_import_equals_transformers_and_exports_back(tmp_path: Path, case: str) -> None:
    both = imported(bart(**CASES[case]), tmp_path)
    both.assert_same()
    both.assert_same(mask=True, seed=1)
    if case == "untied":  # the export writes the encoder's table as the unused shared table
        stored = tensors(both.hf)
        stored["model.shared.weight"] = stored["model.encoder.embed_tokens.weight"].clone()
        both.theirs.save_pretrained(both.hf, state_dict=stored)
    both.assert_comes_back(tmp_path / "back")


def test_training_keeps_the_decoder_start_of_the_checkpoint(tmp_path: Path) -> None:
    both = imported(bart(max_position_embeddings=40), tmp_path)
    run = pair_run(tmp_path, model=both.network.config, max_steps=2, eval_every=2)
    run = replace(run, tokenizer=TokenizerConfig(), init=InitConfig(path=str(both.folder)))
    outcome = api.train(run, tmp_path / "run")
    after = api.load(outcome.folder)
    assert after.network.config.decoder_start_id == both.network.config.decoder_start_id == 3
    assert after.tokenizer.bos_id == 2, "the default start token of a new model"


def test_greedy_and_beam_search_equal_transformers(tmp_path: Path) -> None:
    both = imported(
        bart(scale_embedding=True, d_model=32), tmp_path
    )  # larger weights, so that outputs have different tokens
    assert_same_greedy(both)
    assert_same_beams(both)


def test_a_bare_network(tmp_path: Path) -> None:
    """`facebook/bart-base` is such a file: no prefix, no bias, every copy of the table."""
    theirs = bart("BartModel").eval()
    randomise(theirs)
    hf = save(theirs, tmp_path / "hf")
    stored = load_file(hf / "model.safetensors")
    repeats = {f"{stack}.embed_tokens.weight": stored["shared.weight"].clone() for stack in ("encoder", "decoder")}
    save_file(stored | repeats, hf / "model.safetensors", {"format": "pt"})
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    export(tmp_path / "ours", tmp_path / "back")
    after = tensors(tmp_path / "back")
    assert after.keys() == stored.keys(), "the import must not add a bias of the logits"
    assert all(torch.equal(x, stored[name]) for name, x in after.items())
    assert config_of(tmp_path / "back")["architectures"] == ["BartModel"]
    repeats["decoder.embed_tokens.weight"][0, 0] += 1
    save_file(stored | repeats, hf / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"decoder\.embed_tokens\.weight differs from model\.shared\.weight"):
        import_model(hf, tmp_path / "other")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_an_export_loads_in_transformers(tmp_path: Path, fused: bool, tied: bool) -> None:
    model = replace(DENOISER, fused_qkv=fused, share_embeddings=tied, tie_output=tied)
    outcome = api.train(pair_run(tmp_path, model=model, max_steps=2, eval_every=2), tmp_path / "run")
    exported = export(outcome.folder, tmp_path / "hf")
    assert "BART (BartForConditionalGeneration)" in exported.said[0] and "loaded with transformers" in exported.said[-1]
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
    assert (theirs.lm_head.weight is theirs.model.shared.weight) == tied


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"share_embeddings": False}, "model.share_embeddings: expected true, got false"),
        ({"embedding_norm": False}, "model.embedding_norm: expected true, got false"),
        ({"source_max_len": 9}, "model.source_max_len: expected 0, got 9"),
        ({"norm_eps": 1e-6}, "model.norm_eps: expected 1e-05, got 1e-06"),
        ({"head": TokenHead(transform=True, bias="learned")}, "model.head.transform: expected false, got true"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    config = replace(DENOISER, vocab_size=9, decoder_start_id=2)
    assert BART.misfits(config) == []
    assert words in BART.misfits(replace(config, **changes))


def test_unsupported_settings_are_refused(tmp_path: Path) -> None:
    hf = save(bart(), tmp_path / "hf")
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps(config | {"architectures": ["BartForCausalLM"]}))
    with pytest.raises(UserError, match=r"not supported for BART \(known: BartForCond.*, BartModel\)"):
        import_model(hf, tmp_path / "ours")
    changes = {"static_position_embeddings": True, "add_final_layer_norm": True, "extra_pos_embeddings": 3}
    (hf / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError, match=r"add_final_layer_norm .*; extra_pos_emb.* 3 .*; static_position_embeddings"):
        import_model(hf, tmp_path / "ours")


def test_every_target_begins_with_the_forced_token(tmp_path: Path) -> None:
    """BART has `<s> … </s>` around sources and targets, and `generate` is forced to begin with `<s>`."""
    theirs = bart().eval()
    randomise(theirs)
    hf = save(theirs, tmp_path / "hf")
    file = json.loads((hf / "tokenizer.json").read_text())
    frame = [{"SpecialToken": {"id": token, "type_id": 0}} for token in ("[BOS]", "[EOS]")]
    single = [frame[0], {"Sequence": {"id": "A", "type_id": 0}}, frame[1]]
    special = {name: {"id": name, "ids": [i], "tokens": [name]} for name, i in (("[BOS]", 2), ("[EOS]", 3))}
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}, frame[1]]
    file["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}
    (hf / "tokenizer.json").write_text(json.dumps(file))
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    ours = api.load(tmp_path / "ours", device="cpu")
    export(tmp_path / "ours", tmp_path / "back")
    again = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    texts = ["to be", "or not to be", "that is the question"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    assert batch["input_ids"][0, :1].tolist() == [2], "a source begins with the start token"
    found = again.generate(**batch, num_beams=1, max_new_tokens=9)
    assert found[:, 1].tolist() == [2, 2, 2]
    assert tokenizer.batch_decode(found, skip_special_tokens=True) == ours.translate(texts, beam=1, max_new_tokens=9)


def test_an_imported_bart_fills_masks(tmp_path: Path) -> None:
    """BART was pre-trained to restore texts: its `fill` writes the text, for every task of the checkpoint."""
    both = imported(bart(), tmp_path)
    filling = both.ours.fill("to [MASK] or not", max_new_tokens=5)
    ids = both.ours.tokenizer.encode("to [MASK] or not".replace(" [MASK]", "[MASK]"), allow_special=["[MASK]"])
    assert both.ours.tokenizer.mask_id in ids and filling.candidates == [] and isinstance(filling.text, str)
