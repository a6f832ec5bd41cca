"""Import of GGUF files: equal to transformers' and gguf's reading of the same file, and to the exported model."""

import json
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
import late
from glassformer.config.transformer import (
    LinearScaling,
    Llama3Scaling,
    RotaryPositions,
    Stack,
    TransformerConfig,
    YarnScaling,
)
from glassformer.errors import UserError
from glassformer.interop.export import export
from glassformer.interop.gguf_header import TYPES, read_header
from glassformer.interop.gguf_tokenizer import SPLITS, WHOLE_WORDS, read_tokenizer
from glassformer.interop.importing import import_model
from glassformer.interop.runtimes.gguf import FILE
from glassformer.model import Model
from glassformer.tokenization.tokenizer import Tokenizer
from interop.checkpoints import TEXT, VOCAB, imported, model_directory, tiny_tokenizer
from interop.gguf_files import rewritten
from interop.test_gguf import ROTARY, turning
from interop.test_gpt2 import gpt2
from interop.test_llama import llama
from tolerances import assert_close

gguf = late.optional("gguf")
transformers = late.optional("transformers")

TEXTS = (
    TEXT,
    "  two  spaces\n\nand lines\t ü 日本 🙂 don't WE'LL",
    "12345 1,000.50 2024-01-31 x86_64 ²½ ١٢٣",
    "\r\n\r\n if x:\n\treturn y  # e\u0301\u00a0 camelCaseWord ABCdef/",
)
IDS = torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(0))


def read(path: Path, out: Path, **options: Any) -> Model:
    import_model(path, out, log=lambda text: None, **options)
    return glassformer.load(out, device="cpu")


def logits(model: Model) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model.network(token_ids=IDS)
    return found


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with rotary positions, exported by glassformer."""
    place = tmp_path_factory.mktemp("gguf")
    export(model_directory(ROTARY, place / "ours"), place / "out", "gguf")
    return place / "out" / FILE


MODELS: dict[str, tuple[Any, dict[str, int]]] = {  # settings that transformers does not read from the file
    "gpt2": (lambda: gpt2(n_inner=64), {"n_positions": 24}),
    "gpt2_untied": (lambda: gpt2(n_inner=64, tie_word_embeddings=False), {"n_positions": 24}),
    "llama": (llama, {}),
    "llama_odd": (lambda: llama(hidden_size=20, num_attention_heads=5, num_key_value_heads=1, head_dim=6), {}),
    "qwen2": (lambda: llama("Qwen2"), {}),
    "qwen3": (lambda: llama("Qwen3"), {"head_dim": 6}),
}


def read_by_transformers(folder: Path, not_read: dict[str, int]) -> Any:
    """Do the same as `from_pretrained(folder, gguf_file=…)`, which also needs the package accelerate."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.AutoConfig.from_pretrained(folder, gguf_file=FILE, **not_read)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    read = load_gguf_checkpoint(str(folder / FILE), return_tensors=True, model_to_load=model)["tensors"]
    wrong = model.load_state_dict(read, strict=False)
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    assert wrong.missing_keys == tied and not wrong.unexpected_keys
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture(tmp_path: Path, name: str) -> None:
    make, not_read = MODELS[name]
    both = imported(make(), tmp_path)
    export(both.folder, tmp_path / "out", "gguf")
    model = read(tmp_path / "out" / FILE, tmp_path / "back")
    assert torch.equal(logits(model), logits(both.ours))
    assert model.config.positions == both.ours.config.positions and model.config.norm_eps == 1e-5
    with torch.inference_mode():
        assert_close(logits(model), read_by_transformers(tmp_path / "out", not_read)(input_ids=IDS).logits)
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", gguf_file=FILE)
    for text in TEXTS:
        ids = model.tokenizer.encode(text)
        assert ids == reader.encode(text, add_special_tokens=False) == both.ours.tokenizer.encode(text)
        assert model.tokenizer.decode(ids) == text
    assert model.tokenizer.vocab == both.ours.tokenizer.vocab and model.tokenizer.scheme == "byte"
    assert model.config.eos_id == both.ours.config.eos_id
    export(tmp_path / "back", tmp_path / "again", "gguf")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_half_precision(tmp_path: Path, name: str, dtype: Any) -> None:
    make, not_read = MODELS[name]
    both = imported(make(), tmp_path)
    export(both.folder, tmp_path / "out", "gguf", dtype=dtype)
    found = logits(read(tmp_path / "out" / FILE, tmp_path / "back"))
    with torch.inference_mode():
        assert_close(found, read_by_transformers(tmp_path / "out", not_read)(input_ids=IDS).logits)
    assert not torch.equal(found, logits(both.ours))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose rows are whole blocks of every tensor type."""
    place = tmp_path_factory.mktemp("wide")
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    imported(llama(**sizes), place)
    export(place / "ours", place / "out", "gguf")
    return place / "out" / FILE


@pytest.mark.parametrize("kind", [kind for kind, n_values, _ in TYPES.values() if n_values > 1])
def test_quantised_tensors(tmp_path: Path, wide: Path, kind: str) -> None:
    path = rewritten(wide, tmp_path / FILE, {}, kind)
    assert {place.kind for place in read_header(path).tensors.values()} == {"F32", kind}
    model = read(path, tmp_path / "back")
    theirs = read_by_transformers(tmp_path, {})
    tables = theirs.model.embed_tokens.weight, model.network.state_dict()["decoder.embeddings.tokens.weight"]
    assert torch.equal(*tables)
    with torch.inference_mode():
        assert_close(logits(model), theirs(input_ids=IDS).logits)


def test_sizes_of_tensor_types() -> None:
    known = {kind.value: (kind.name, *sizes) for kind, sizes in gguf.GGML_QUANT_SIZES.items()}
    assert {number: known[number] for number in TYPES} == TYPES


@pytest.mark.parametrize(
    "config",
    [
        turning(LinearScaling(4.0)),
        turning(YarnScaling(4.0, 16)),
        turning(Llama3Scaling(8.0, 1.0, 4.0, 49)),  # no frequency is blended
        replace(
            ROTARY,
            decoder=Stack(1, 2, 1, d_head=32, d_ff=22),
            positions=RotaryPositions(base=500000.0, scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192)),
        ),
    ],
)
def test_rotary_scalings(tmp_path: Path, config: TransformerConfig) -> None:
    folder = model_directory(config, tmp_path / "ours")
    export(folder, tmp_path / "out", "gguf")
    model = read(tmp_path / "out" / FILE, tmp_path / "back")
    assert model.config.positions == config.positions
    assert torch.equal(logits(model), logits(glassformer.load(folder, device="cpu")))


@pytest.mark.parametrize("split", ["gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_splits_into_words_equal_transformers(tmp_path: Path, file: Path, split: str) -> None:
    """The others of `SPLITS` are compared with llama.cpp."""
    changes = {"tokenizer.ggml.pre": split, "tokenizer.ggml.add_bos_token": False}
    rewritten(file, tmp_path / FILE, changes)
    reader = transformers.AutoTokenizer.from_pretrained(tmp_path, gguf_file=FILE)
    tokenizer = read(tmp_path / FILE, tmp_path / "back").tokenizer
    for text in TEXTS:
        assert tokenizer.encode(text) == reader.encode(text, add_special_tokens=False)


def test_kinds_of_tokens(tmp_path: Path, file: Path) -> None:
    """Special and user-defined tokens, several ends of a text, a first token and a chat template."""
    tokens = tiny_tokenizer().vocab_size
    names = [*tiny_tokenizer().vocab, "<|im_end|>", "<think>", *(f"[PAD{i}]" for i in range(tokens + 2, VOCAB))]
    kinds = gguf.GGUFReader(file).fields["tokenizer.ggml.token_type"].contents()
    kinds[tokens : tokens + 2] = [gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED]
    changes = {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.eot_token_id": 5,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ messages }}",
    }
    model = read(rewritten(file, tmp_path / FILE, changes), tmp_path / "back")
    tokenizer = model.tokenizer
    assert tokenizer.vocab_size == tokens + 2  # rows without a token are not part of the vocabulary
    assert tokenizer.encode("a<think>b")[1] == tokens + 1 and tokens not in tokenizer.encode("<|im_end|>")
    assert tokenizer.encode("<|im_end|>", allow_special=["<|im_end|>"]) == [tokens]
    assert tokenizer.frames.prompt.before == (2,) and model.config.decoder_start_id == 2
    assert model.config.eos_id == tiny_tokenizer().eos_id
    ends = json.loads((tmp_path / "back" / "generation.json").read_text())["end_ids"]
    assert ends == [5, tokens]
    assert tokenizer.chat_template == "{{ messages }}"


@pytest.mark.parametrize("split", SPLITS)
def test_an_export_restores_the_tokenizer(tmp_path: Path, file: Path, split: str) -> None:
    """Its metadata are those of the file that was imported; names of the same rules are one."""
    tokens = tiny_tokenizer().vocab_size
    kinds = gguf.GGUFReader(file).fields["tokenizer.ggml.token_type"].contents()
    kinds[tokens : tokens + 2] = [gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED]
    unused = [f"[UNUSED{i}]" for i in range(tokens + 2, VOCAB)]
    changes = {
        "tokenizer.ggml.pre": split,
        "tokenizer.ggml.tokens": [*tiny_tokenizer().vocab, "<|im_end|>", "<think>", *unused],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.eot_token_id": tokens,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.add_bos_token": split != "gpt-2",
        "tokenizer.chat_template": "{{ messages }}",
    }
    path = rewritten(file, tmp_path / FILE, changes)
    first = read(path, tmp_path / "back").tokenizer
    export(tmp_path / "back", tmp_path / "out", "gguf")
    was, now = (read_header(file).metadata for file in (path, tmp_path / "out" / FILE))
    name = now["tokenizer.ggml.pre"]
    assert SPLITS[name] == SPLITS[split] and (name in WHOLE_WORDS) == (split in WHOLE_WORDS)
    assert now | {"tokenizer.ggml.pre": split} == was | {"general.name": "back"}
    second = read(tmp_path / "out" / FILE, tmp_path / "again").tokenizer
    assert second.to_json() == first.to_json()


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece(tmp_path: Path, prefix: bool) -> None:
    """The ids are those of the SentencePiece model whose pieces and scores the metadata contain."""
    sentencepiece = pytest.importorskip("sentencepiece")
    (tmp_path / "text.txt").write_text(f"{TEXT}  two  spaces don't x86_64\n" * 4)
    options = {"model_type": "bpe", "vocab_size": 340, "byte_fallback": True, "minloglevel": 2}
    options |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": prefix}
    place = {"input": str(tmp_path / "text.txt"), "model_prefix": str(tmp_path / "bpe")}
    sentencepiece.SentencePieceTrainer.train(**place, **options)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "bpe.model"))
    n = theirs.vocab_size()
    kinds = [6 if theirs.is_byte(i) else 3 if theirs.is_control(i) else 1 for i in range(n)]
    metadata = {"model": "llama", "tokens": [theirs.id_to_piece(i) for i in range(n)], "token_type": [2, *kinds[1:]]}
    metadata |= {"scores": [theirs.get_score(i) for i in range(n)], "add_space_prefix": prefix}
    text, settings, ends = read_tokenizer({f"tokenizer.ggml.{name}": value for name, value in metadata.items()})
    roles = {role: settings[f"{role}_token"] for role in ("bos", "eos", "unk")}  # llama.cpp's defaults
    tokenizer = Tokenizer.imported(text, roles)
    for text in (*TEXTS, "a", " a", "", "   ", "<s>", "<0x0A>"):
        ids = tokenizer.encode(text)
        assert ids == theirs.encode(text), text
        assert tokenizer.decode(ids) == text
    assert tokenizer.frames.prompt.before == (1,) and ends == [2]


def changed(*changes: tuple[str, Any], **options: Any) -> Callable[[Path, Path], Any]:
    return lambda path, out: rewritten(path, out, dict(changes), **options)


def patched(change: Callable[[bytes], bytes]) -> Callable[[Path, Path], Any]:
    return lambda path, out: out.write_bytes(change(path.read_bytes()))


def put(data: bytes, at: int, code: str, value: int) -> bytes:
    return data[:at] + struct.pack(code, value) + data[at + struct.calcsize(code) :]


def with_type(data: bytes, number: int) -> bytes:
    """Change the tensor type of the token table."""
    name = b"token_embd.weight"
    return put(data, data.index(name) + len(name) + 4 + 2 * 8, "<I", number)


TOKEN = "tokenizer.ggml."
REFUSED: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "text": (patched(lambda data: b"text"), "it is not a GGUF file"),
    "pickle": (patched(lambda data: b"\x80\x04K\x01."), "is a pickle"),
    "empty": (patched(lambda data: b""), "it is not a GGUF file"),
    "only_magic": (patched(lambda data: data[:4]), "it is cut"),
    "cut_header": (patched(lambda data: data[:500]), "it is cut"),
    "cut_tensors": (patched(lambda data: data[:-100]), "it is cut: its tensors end at byte"),
    "version": (patched(lambda data: put(data, 4, "<I", 1)), "its version is 1"),
    "big_endian": (patched(lambda data: put(data, 4, ">I", 3)), "little-endian"),
    "n_tensors": (patched(lambda data: put(data, 8, "<Q", 1 << 60)), "tensors has .* items, more than"),
    "n_metadata": (patched(lambda data: put(data, 16, "<Q", 1 << 60)), "metadata has .* items, more than"),
    "length": (patched(lambda data: put(data, 24, "<Q", 1 << 40)), "a text in its header has"),
    "utf8": (patched(lambda data: data.replace(b"general.name", b"general.nam\xff")), "is not UTF-8"),
    "twice": (patched(lambda data: data.replace(b"general.name", b"general.type")), "general.type twice"),
    "tensor_twice": (patched(lambda data: data.replace(b"blk.1.attn_q.", b"blk.0.attn_q.")), "attn_q.weight twice"),
    "value_type": (patched(lambda data: put(data, 24 + 8 + 20, "<I", 77)), "has the unknown type 77"),
    "tensor_type": (patched(lambda data: with_type(data, 16)), "tensor type 16, which is not supported"),
    "blocks": (patched(lambda data: with_type(data, 12)), "not whole blocks of 256"),
    "alignment": (changed(("general.alignment", 3)), "general.alignment: expected a power of two"),
    "adapter": (changed(("general.type", "adapter")), "general.type: expected model, got adapter"),
    "split": (changed(("split.count", 2)), "one part of a split file"),
    "architecture": (changed(("general.architecture", "mamba")), "general.architecture mamba is not supported"),
    "experts": (changed(("llama.expert_count", 8)), "mixture of 8 experts"),
    "no_size": (changed(("llama.block_count", None)), "llama.block_count: expected a positive int, got None"),
    "list": (changed(("llama.feed_forward_length", [22, 22])), "feed_forward_length: expected a positive int"),
    "layers": (changed(("llama.block_count", 1 << 31)), "num_hidden_layers = 2147483648"),
    "partial": (changed(("llama.rope.dimension_count", 4)), "rope.dimension_count: expected 6, got 4"),
    "longrope": (changed(("llama.rope.scaling.type", "longrope")), "rope_type longrope is not supported"),
    "unknown_key": (changed(("llama.attention.clamp_kqv", 2.0)), "llama.attention.clamp_kqv is not a known key"),
    "unknown_token_key": (changed((f"{TOKEN}lowercase", True)), f"{TOKEN}lowercase is not a known key"),
    "missing": (changed(skip="blk.1.ffn_up.weight"), "blk.1.ffn_up.weight is missing"),
    "no_table": (changed(skip="token_embd.weight"), "it has no tensor token_embd.weight"),
    "shape": (changed(("llama.feed_forward_length", 24)), r"blk.0.ffn_gate.weight: expected shape \[24, 16\], got"),
    "tokenizer": (changed((f"{TOKEN}model", "rwkv")), f"{TOKEN}model rwkv is not supported"),
    "pre": (changed((f"{TOKEN}pre", "viking")), f"{TOKEN}pre viking, its split into words, is not supported"),
    "no_pre": (changed((f"{TOKEN}pre", None)), "None, its split into words, is not supported"),
    "no_tokens": (changed((f"{TOKEN}tokens", None)), f"it has no {TOKEN}tokens"),
    "kinds": (changed((f"{TOKEN}token_type", [1, 1])), "290 tokens and 2 types"),
    "merge": (changed((f"{TOKEN}merges", ["a b c"])), "is not a pair of tokens: a b c"),
    "merge_of_none": (changed((f"{TOKEN}merges", ["zz zz"])), "cannot be used as a tokenizer"),
    "same_token": (changed((f"{TOKEN}tokens", ["a"] * VOCAB)), "has a token twice"),
    "special": (changed((f"{TOKEN}eos_token_id", 9999)), "its eos token has the id 9999"),
    "scores": (changed((f"{TOKEN}model", "llama")), "expected one score per token"),
    "scores_of_ints": (
        changed((f"{TOKEN}model", "llama"), (f"{TOKEN}scores", [1] * VOCAB)),
        "expected one score per token",
    ),
    "pre_list": (changed((f"{TOKEN}pre", [1])), rf"{TOKEN}pre: expected str, got \[1\]"),
    "template": (changed(("tokenizer.chat_template", 5)), "chat_template: expected a text"),
    "heads_list": (changed(("llama.attention.head_count_kv", [2, 2])), "head_count_kv: expected a positive int"),
    "split_list": (changed(("split.count", [2])), "one part of a split file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_damaged_and_unsupported_files(tmp_path: Path, file: Path, case: str) -> None:
    """Each is refused with one sentence that names the file, and nothing is written."""
    make, words = REFUSED[case]
    make(file, tmp_path / "x.gguf")
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path / "x.gguf", tmp_path / "back")
    assert "x.gguf" in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "back").exists()


def test_a_part_by_its_name(tmp_path: Path, file: Path) -> None:
    path = tmp_path / "m-00001-of-00003.gguf"
    path.write_bytes(file.read_bytes())
    with pytest.raises(UserError, match="one part of a split file"):
        read(path, tmp_path / "back")


def test_options_and_places(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = rewritten(file, tmp_path / "x.gguf", {"llama.attention.clamp_kqv": 2.0})
    model = read(path, tmp_path / "back", ignore_keys=["llama.attention.clamp_kqv"])
    assert model.config.vocab_size == VOCAB
    with pytest.raises(UserError, match=r"to import x\.gguf, give the path of this file"):
        read(tmp_path, tmp_path / "other")
    with pytest.raises(UserError, match="already exists"):
        read(path, tmp_path / "back")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"pip install 'glassformer\[export\]'"):
        read(file, tmp_path / "new")


def test_other_rotary_factors_are_refused(tmp_path: Path) -> None:
    export(model_directory(turning(Llama3Scaling(8.0, 1.0, 4.0, 49)), tmp_path / "ours"), tmp_path / "out", "gguf")
    path = tmp_path / "out" / FILE
    data, place = path.read_bytes(), read_header(path).tensors["rope_freqs.weight"]
    path.write_bytes(data[: place.begin] + struct.pack("<3f", 1.0, 5.0, 3.0) + data[place.end :])
    with pytest.raises(UserError, match="has other factors than the rotary scaling of Llama 3"):
        read(path, tmp_path / "back")
