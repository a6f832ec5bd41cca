"""Import and export of Marian: one vocabulary and two, and glassformer's original Transformer as Marian."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer
import late
from glassformer import api
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families.bart import MARIAN
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import SinusoidalPositions, TokenHead, TransformerConfig
from glassformer.nn.positions import sinusoid
from interop.checkpoints import VOCAB, imported, save, tensors
from interop.decoding import assert_same_beams, assert_same_greedy
from interop.seq2seq import PAPER, lines_of
from runs import pair_run

transformers = late.optional("transformers")

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "odd": {"d_model": 30, "encoder_attention_heads": 3, "decoder_attention_heads": 5, "encoder_ffn_dim": 17},
    "uneven": {"encoder_layers": 3, "decoder_layers": 1, "decoder_ffn_dim": 9, "max_position_embeddings": 13},
    "relu_unscaled": {"scale_embedding": False, "activation_function": "relu"},
    "two_tables": {"share_encoder_decoder_embeddings": False},
    "two_vocabularies": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCAB + 7},
    "untied": {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": VOCAB + 7,
        "tie_word_embeddings": False,
    },
}


def marian(**changes: Any) -> Any:
    sizes = {"vocab_size": VOCAB, "d_model": 16, "max_position_embeddings": 24}
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": 2, f"{stack}_attention_heads": 4, f"{stack}_ffn_dim": 24}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 0}
    special |= {"forced_eos_token_id": None}
    words = {"activation_function": "swish", "scale_embedding": True}
    return transformers.MarianMTModel(transformers.MarianConfig(**sizes | special | words | changes))


@pytest.mark.parametrize("case", CASES)
def test_import_equals_transformers_and_exports_back(tmp_path: Path, case: str) -> None:
    both = imported(marian(**CASES[case]), tmp_path)
    both.assert_same()
    both.assert_same(mask=True, seed=1)
    both.assert_comes_back(tmp_path / "back")


@pytest.mark.parametrize("case", ["plain", "two_vocabularies"])
def test_greedy_and_beam_search_equal_transformers(tmp_path: Path, case: str) -> None:
    both = imported(marian(**CASES[case]), tmp_path)
    assert_same_greedy(both)
    assert_same_beams(both)


def test_shards_and_an_unused_table(tmp_path: Path) -> None:
    both = imported(marian(tie_word_embeddings=False), tmp_path, max_shard_size="4KB")
    assert len(list(both.hf.glob("model-*.safetensors"))) > 2
    both.assert_same()
    export(both.folder, tmp_path / "back")
    before, after = tensors(both.hf), tensors(tmp_path / "back")
    assert before.keys() - after.keys() == {"model.shared.weight"}, "only a tied model uses this table"
    assert all(torch.equal(x, before[name]) for name, x in after.items())


OURS: dict[str, TransformerConfig] = {
    "paper": PAPER,
    "fused": replace(PAPER, fused_qkv=True, activation="gelu_tanh", source_max_len=50),
    "halves": replace(PAPER, positions=SinusoidalPositions("halves"), head=TokenHead(bias="constant")),
    "learned_bias": replace(PAPER, head=TokenHead(bias="learned"), embedding_scale=1.0),
    "apart": replace(PAPER, share_embeddings=False),
    "untied": replace(PAPER, share_embeddings=False, tie_output=False),
}


@pytest.mark.parametrize("name", OURS)
def test_an_export_generates_the_same_text(tmp_path: Path, name: str) -> None:
    """A few training steps make texts differ; `apart` and `untied` have two vocabularies."""
    separate = not OURS[name].share_embeddings
    run = pair_run(tmp_path, model=OURS[name], separate=separate, max_steps=15, eval_every=15)
    outcome = api.train(run, tmp_path / "run")
    exported = export(outcome.folder, tmp_path / "hf")
    assert "Marian (MarianMTModel)" in exported.said[0] and "loaded with transformers" in exported.said[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "hf")
        source = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
        target = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf", subfolder="target" if separate else "")
    ours = glassformer.load(outcome.folder, device="cpu")
    texts, targets = lines_of(tmp_path / "train.en"), lines_of(tmp_path / "train.de")
    assert source(texts)["input_ids"] == [ours.translator.source_ids(text) for text in texts]
    given = target(targets, add_special_tokens=False)["input_ids"]
    assert given == ours.tokenizer.encode_batch(targets)
    batch = source(texts, return_tensors="pt", padding=True)
    for beam in (1, 4):
        search: dict[str, Any] = {"num_beams": beam, "max_new_tokens": 10}
        search |= {"early_stopping": "never"} if beam > 1 else {}
        found = target.batch_decode(theirs.generate(**batch, **search), skip_special_tokens=True)
        settings = {"beam": beam, "max_new_tokens": 10, "length_penalty_type": "average", "early_stopping": "never"}
        assert ours.translate(texts, **settings) == found
    import_model(tmp_path / "hf", tmp_path / "again", log=lambda text: None)
    again = glassformer.load(tmp_path / "again", device="cpu")
    assert again.translate(texts, beam=1) == ours.translate(texts, beam=1)


def test_positions_in_old_files(tmp_path: Path) -> None:
    theirs = marian()
    hf = save(theirs, tmp_path / "hf")
    file = hf / "model.safetensors"
    stored, table = load_file(file), sinusoid(torch.arange(24), 16, "halves")
    names = [f"model.{stack}.embed_positions.weight" for stack in ("encoder", "decoder")]
    save_file(stored | {name: table.half() for name in names[:1]} | {names[1]: table.clone()}, file, {"format": "pt"})
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    save_file(stored | {names[0]: sinusoid(torch.arange(24), 16, "interleaved")}, file, {"format": "pt"})
    with pytest.raises(UserError, match=r"encoder\.embed_positions\.weight differs from the values that config\.json"):
        import_model(hf, tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"decoder_vocab_size": 300}, r"decoder_vocab_size: expected vocab_size \(290\) for a shared table, got 300"),
        ({"normalize_before": True}, "normalize_before True is not supported"),
        ({"normalize_embedding": True}, "normalize_embedding True is not supported"),
        ({"activation_function": "quick_gelu"}, "activation_function quick_gelu is not supported"),
        ({"n_hashes": 3}, "n_hashes is not a known key"),
        ({"d_model": 18}, "expected shape"),
        ({"encoder_layers": 1}, r"model\.encoder\.layers\.1\.\S+ is not a tensor of this model"),
        ({"decoder_layers": 3}, r"model\.decoder\.layers\.2\.\S+ is missing"),
    ],
)
def test_unsupported_settings_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    hf = save(marian(encoder_attention_heads=2, decoder_attention_heads=2), tmp_path / "hf")
    config = json.loads((hf / "config.json").read_text())
    (hf / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(UserError, match=words):
        import_model(hf, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_the_limit_of_positions_is_that_of_the_longer_side() -> None:
    for max_len, source_max_len in ((10, 50), (50, 10), (30, 0)):
        written = MARIAN.write(replace(PAPER, max_len=max_len, source_max_len=source_max_len))
        assert written["max_position_embeddings"] == max(max_len, source_max_len)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"norm_order": "pre"}, "model.norm_order: expected post, got pre"),
        ({"final_norm": True}, "model.final_norm: expected false, got true"),
        ({"norm": "rmsnorm"}, "model.norm: expected layernorm, got rmsnorm"),
        ({"tie_output": False}, "model.share_embeddings: expected false, got true"),
        ({"gated_ff": True}, "model.gated_ff: expected false, got true"),
        ({"decoder_start_id": None}, "model.decoder_start_id is missing"),
        ({"head": TokenHead(transform=True)}, "model.head.transform: expected false, got true"),
        (
            {"share_embeddings": False, "source_vocab_size": 3, "pad_id": 4},
            "model.pad_id: expected an id that is in both vocabularies",
        ),
    ],
)
def test_a_model_that_does_not_fit_is_refused(changes: dict[str, Any], words: str) -> None:
    config = replace(PAPER, vocab_size=9, decoder_start_id=2)
    assert MARIAN.misfits(config) == []
    assert words in MARIAN.misfits(replace(config, **changes))
