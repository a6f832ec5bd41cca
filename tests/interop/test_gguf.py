"""GGUF: every number and tensor as llama.cpp's package and transformers read them, and refusals."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
import late
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.apps.interop.runtimes.gguf import FILE, require_same_ids, tokenizer_numbers, write_gguf
from glassformer.common.errors import UserError
from glassformer.config.transformer import (
    LearnedPositions,
    LinearScaling,
    Llama3Scaling,
    RotaryPositions,
    Stack,
    TransformerConfig,
    YarnScaling,
)
from glassformer.models.transformer import Transformer
from glassformer.store.model_directory import read_model
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from interop.checkpoints import TEXT, VOCAB, model_directory, tiny_tokenizer
from interop.test_llama import llama
from tokenization import families
from tolerances import assert_close

gguf = late.optional("gguf")
transformers = late.optional("transformers")

NO_BIASES = dict.fromkeys(("qkv_bias", "attn_out_bias", "ff_bias"), False)
GPT = TransformerConfig(decoder=Stack(2, 3, d_ff=24), d_model=12, max_len=24, activation="gelu_tanh")
ROTARY = TransformerConfig(
    decoder=Stack(2, 4, 2, d_head=6, d_ff=22),
    d_model=16,
    max_len=64,
    positions=RotaryPositions(base=500.0),
    norm="rmsnorm",
    activation="silu",
    gated_ff=True,
    **NO_BIASES,
)


def turning(scaling: Any) -> TransformerConfig:
    return replace(ROTARY, positions=RotaryPositions(base=500.0, scaling=scaling))


def written(config: TransformerConfig, place: Path, **options: Any) -> tuple[Transformer, Any]:
    """Return a random model and its file as read by gguf's reader."""
    folder = model_directory(config, place / "ours")
    export(folder, place / "out", "gguf", **options)
    network = glassformer.load(folder, device="cpu").network
    assert isinstance(network, Transformer)
    return network, gguf.GGUFReader(place / "out" / FILE)


def metadata(reader: Any) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


def held(reader: Any) -> dict[str, Tensor]:
    return {x.name: torch.from_numpy(x.data.copy()) for x in reader.tensors}


def test_the_end_token_comes_from_the_configuration() -> None:
    """It may differ from the tokenizer's end token."""
    tokenizer = tiny_tokenizer()
    for given, end in ((None, tokenizer.eos_id), (tokenizer.sep_id, tokenizer.sep_id)):
        numbers = tokenizer_numbers(tokenizer, replace(GPT, vocab_size=VOCAB, eos_id=given))
        assert numbers["tokenizer.ggml.eos_token_id"] == end


def test_learned_positions(tmp_path: Path) -> None:
    network, reader = written(GPT, tmp_path)
    tokenizer = tiny_tokenizer()
    numbers = metadata(reader)
    for name, value in {
        "general.architecture": "gpt2",
        "general.name": "ours",
        "general.file_type": 0,
        "gpt2.context_length": 24,
        "gpt2.embedding_length": 12,
        "gpt2.block_count": 2,
        "gpt2.feed_forward_length": 24,
        "gpt2.attention.head_count": 3,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.eos_token_id": tokenizer.eos_id,
        "tokenizer.ggml.bos_token_id": tokenizer.eos_id,  # no text was trained to start from [BOS]
        "tokenizer.ggml.add_bos_token": False,
    }.items():
        assert numbers[name] == value, name
    assert numbers["gpt2.attention.layer_norm_epsilon"] == pytest.approx(1e-5)
    tokens, kinds = numbers["tokenizer.ggml.tokens"], numbers["tokenizer.ggml.token_type"]
    assert tokens[: tokenizer.vocab_size] == list(tokenizer.vocab) and len(tokens) == len(kinds) == VOCAB
    assert kinds[0] == gguf.TokenType.CONTROL and kinds[7] == gguf.TokenType.NORMAL
    assert set(kinds[tokenizer.vocab_size :]) == {gguf.TokenType.UNUSED} and len(set(tokens)) == VOCAB
    assert numbers["tokenizer.ggml.merges"][0] == " ".join(tokenizer.merges[0])
    tensors = held(reader)
    assert network.decoder is not None
    attention = network.decoder.blocks[1].self_attn
    assert isinstance(attention, torch.nn.Module)
    parts = torch.cat([getattr(attention, f"{name}_proj").weight for name in "qkv"])
    assert torch.equal(tensors["blk.1.attn_qkv.weight"], parts)
    assert torch.equal(
        tensors["position_embd.weight"], network.state_dict()["decoder.embeddings.positions.table.weight"]
    )
    assert "output.weight" not in tensors  # tied


def test_rotary_pairs_are_adjacent_rows(tmp_path: Path) -> None:
    network, reader = written(ROTARY, tmp_path)
    numbers, tensors, ours = metadata(reader), held(reader), network.state_dict()
    assert numbers["general.architecture"] == "llama"
    assert numbers["llama.attention.head_count_kv"] == 2 and numbers["llama.rope.dimension_count"] == 6
    assert numbers["llama.rope.freq_base"] == 500.0 and numbers["llama.vocab_size"] == VOCAB
    for name, n_heads in (("q", 4), ("k", 2)):
        x = ours[f"decoder.blocks.0.self_attn.{name}_proj.weight"]
        for head in range(n_heads):
            for i in range(3):  # pairs (i, i + 3) of glassformer are (2i, 2i + 1) in GGUF
                row = tensors[f"blk.0.attn_{name}.weight"][6 * head + 2 * i :]
                assert torch.equal(row[0], x[6 * head + i]) and torch.equal(row[1], x[6 * head + i + 3])
    assert torch.equal(tensors["blk.0.attn_v.weight"], ours["decoder.blocks.0.self_attn.v_proj.weight"])
    assert torch.equal(tensors["blk.1.ffn_gate.weight"], ours["decoder.blocks.1.ff.gate_proj.weight"])


def test_rotary_scalings(tmp_path: Path) -> None:
    linear = metadata(written(turning(LinearScaling(4.0)), tmp_path / "linear")[1])
    assert (linear["llama.rope.scaling.type"], linear["llama.rope.scaling.factor"]) == ("linear", 4.0)
    yarn = metadata(written(turning(YarnScaling(4.0, 16)), tmp_path / "yarn")[1])
    assert yarn["llama.rope.scaling.type"] == "yarn" and yarn["llama.rope.scaling.original_context_length"] == 16
    network, reader = written(turning(Llama3Scaling(8.0, 1.0, 4.0, 32)), tmp_path / "llama3")
    assert "llama.rope.scaling.type" not in metadata(reader)
    assert network.decoder is not None and len(network.decoder.rotaries) == 1
    plain = 500.0 ** -(torch.arange(0, 6, 2) / 6)
    assert_close(plain / held(reader)["rope_freqs.weight"], network.decoder.rotaries[0].inverse_frequencies)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_matrices(tmp_path: Path, dtype: Any) -> None:
    network, reader = written(GPT, tmp_path, dtype=dtype)
    kinds = {x.name: x.tensor_type.name for x in reader.tensors}
    short = {"float16": "F16", "bfloat16": "BF16"}[dtype]
    assert kinds["token_embd.weight"] == kinds["blk.0.ffn_up.weight"] == short
    assert kinds["position_embd.weight"] == kinds["blk.0.attn_norm.weight"] == kinds["blk.0.ffn_up.bias"] == "F32"
    (stored,) = (x for x in reader.tensors if x.name == "token_embd.weight")
    found = torch.from_numpy(gguf.quants.dequantize(stored.data, stored.tensor_type).copy())
    assert torch.equal(
        found, network.state_dict()["decoder.embeddings.tokens.weight"].to(getattr(torch, dtype)).float()
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(GPT, activation="relu"), "activation: expected gelu_tanh, got relu"),
        (replace(GPT, encoder=Stack(1, 3, d_ff=24)), "has an encoder"),
        (replace(GPT, attention_scale=1.0), "attention_scale: expected none, got 1.0"),
        (replace(GPT, positions=LearnedPositions(), decoder=Stack(2, 3, d_ff=24), norm_order="post"), "norm_order"),
        (replace(ROTARY, decoder=Stack(2, 4, 2, d_ff=22, window_pattern=(4,))), "expected no window shorter"),
        (turning(YarnScaling(4.0, 16, beta_fast=24.0)), "expected beta_fast 32"),
        (turning(YarnScaling(4.0, 6)), "original_max_len: expected at least 7"),
        (replace(turning(Llama3Scaling()), qk_norm=True), "scaling: .*got llama3"),
        (replace(ROTARY, qk_norm=True, qkv_bias=True, attn_out_bias=True), "attn_out_bias"),
    ],
)
def test_unsupported_models_are_refused(tmp_path: Path, config: TransformerConfig, words: str) -> None:
    folder = model_directory(config, tmp_path / "ours")
    with pytest.raises(UserError, match=words):
        export(folder, tmp_path / "out", "gguf")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scheme": "char", "vocab_size": 0}, "expected byte-level BPE .*; got char"),
        ({"vocab_size": 0}, "merges"),
        ({"vocab_size": 270, "special_tokens": ()}, "no end token"),
    ],
)
def test_unsupported_tokenizers_are_refused(options: dict[str, Any], words: str) -> None:
    tokenizer = Tokenizer.train([TEXT * 4], **options)
    with pytest.raises(UserError, match=words):
        tokenizer_numbers(tokenizer, replace(GPT, vocab_size=VOCAB))


def metadata_of(tokenizer: Tokenizer) -> dict[str, Any]:
    return tokenizer_numbers(tokenizer, replace(GPT, vocab_size=tokenizer.vocab_size))


@pytest.mark.parametrize(("kind", "split"), [("gpt2", "gpt-2"), ("llama-3", "llama-bpe"), ("qwen", "qwen2")])
def test_imported_tokenizers(kind: str, split: str) -> None:
    """Special tokens are before or after the vocabulary, and some added tokens are not special."""
    rust, roles = getattr(families, kind.replace("-", "_"))([TEXT * 4])
    tokenizer = Tokenizer.imported(rust.to_str(), roles)
    numbers = metadata_of(tokenizer)
    assert require_same_ids(tokenizer, numbers) > tokenizer.vocab_size / 64
    assert numbers["tokenizer.ggml.pre"] == split
    assert numbers["tokenizer.ggml.tokens"] == list(tokenizer.vocab)
    kinds = dict(zip(tokenizer.vocab, numbers["tokenizer.ggml.token_type"], strict=True))
    assert {token for token, kind in kinds.items() if kind == gguf.TokenType.CONTROL} == {*tokenizer.special_tokens}
    named = {token for token, kind in kinds.items() if kind == gguf.TokenType.USER_DEFINED}
    assert named == ({"<tool_call>", "</tool_call>"} if kind == "qwen" else set())
    assert numbers["tokenizer.ggml.add_bos_token"] == (kind == "llama-3")
    assert numbers["tokenizer.ggml.eos_token_id"] == tokenizer.vocab[roles["eos"]]


@pytest.mark.parametrize(
    ("kind", "words"),
    [("t5", "got Unigram"), ("bert", "got WordPiece"), ("llama_2", "and no normalizer but NFC; got BPE")],
)
def test_unsupported_imported_tokenizers_are_refused(kind: str, words: str) -> None:
    options = {"bert": {"lowercase": True}, "llama_2": {"legacy": True}}.get(kind, {})
    rust, roles = getattr(families, kind)([TEXT * 4], **options)
    with pytest.raises(UserError, match=words):
        metadata_of(Tokenizer.imported(rust.to_str(), roles))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("pre_tokenizer", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        ("pre_tokenizer", {"type": "WhitespaceSplit"}),
        ("normalizer", {"type": "Lowercase"}),
    ],
)
def test_other_rules_are_refused(part: str, value: dict[str, Any]) -> None:
    rust, roles = families.gpt2([TEXT * 4])
    text = json.dumps(json.loads(rust.to_str()) | {part: value})
    with pytest.raises(UserError, match=r"expected byte-level BPE with the split into words of gpt-2, .*; got BPE"):
        metadata_of(Tokenizer.imported(text, roles))


def test_other_ids_are_refused() -> None:
    """llama.cpp has no tokens that take the space before them."""
    rust, roles = families.roberta([TEXT * 4])
    tokenizer = Tokenizer.imported(rust.to_str(), roles)
    with pytest.raises(UserError, match=r"as gpt-2, it gives other ids for \d+ of \d+ texts, such as "):
        require_same_ids(tokenizer, metadata_of(tokenizer))


def test_a_missing_normalisation_is_reported(tmp_path: Path) -> None:
    rust, roles = families.qwen(["to be"])
    ids = {f"{role}_token_id": rust.token_to_id(token) for role, token in roles.items()}
    llama("Qwen2", bos_token_id=None, **ids).save_pretrained(tmp_path / "hf")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust, **{f"{role}_token": token for role, token in roles.items()}
    )
    fast.save_pretrained(tmp_path / "hf")
    import_model(tmp_path / "hf", tmp_path / "ours", log=lambda text: None)
    report = export(tmp_path / "ours", tmp_path / "out", "gguf").said
    assert report[-2].startswith("tokenizer qwen2: the ids of ") and "does not normalise a text to NFC" in report[-1]


def test_named_chat_templates(tmp_path: Path) -> None:
    stored = read_model(model_directory(GPT, tmp_path / "ours"))
    templates = [{"name": "default", "template": "a"}, {"name": "tools", "template": "b"}]
    tokenizers = Tokenizers(stored.tokenizers.target.with_chat_template(templates))
    (tmp_path / "out").mkdir()
    write_gguf(replace(stored, tokenizers=tokenizers), tmp_path / "out")
    numbers = metadata(gguf.GGUFReader(tmp_path / "out" / FILE))
    assert numbers["tokenizer.chat_template"] == "a" and numbers["tokenizer.chat_templates"] == ["tools"]
    assert numbers["tokenizer.chat_template.tools"] == "b"


def test_damage_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_directory(GPT, tmp_path / "ours")
    honest = gguf.quants.quantize
    monkeypatch.setattr(gguf.quants, "quantize", lambda x, kind: honest(x + 1e-7, kind))
    with pytest.raises(UserError, match="file read back differs"):
        export(folder, tmp_path / "out", "gguf")
    assert not (tmp_path / "out").exists()


def test_a_wrong_conversion_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tensors of the file, converted back, must compute the model."""
    from glassformer.apps.interop.runtimes import gguf as module

    folder = model_directory(ROTARY, tmp_path / "ours")
    monkeypatch.setattr(module, "neighbours", lambda x, n_heads: x)
    with pytest.raises(UserError, match="the outputs of the model read back differ"):
        export(folder, tmp_path / "out", "gguf")
    assert not (tmp_path / "out").exists()


def test_wrong_arguments_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model_directory(GPT, tmp_path / "ours")
    with pytest.raises(UserError, match="got bfloat16; only gguf and web have other dtypes"):
        export(folder, tmp_path / "out", "hf", dtype="bfloat16")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"pip install 'glassformer\[export\]'"):
        export(folder, tmp_path / "out", "gguf")
