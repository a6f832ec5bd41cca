"""Import of GGUF files: transformers reads them, and the model and its tokenizer equal those that were exported."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
import late
from glassformer.apps.interop.export import export
from glassformer.apps.interop.gguf_files import SPLITS
from glassformer.apps.interop.importing import import_model
from glassformer.apps.interop.runtimes.gguf import FILE
from glassformer.common.errors import UserError
from glassformer.config.transformer import LinearScaling, Llama3Scaling, TransformerConfig, YarnScaling
from glassformer.model import Model
from interop.checkpoints import TEXT, VOCAB, imported, model_directory, tiny_tokenizer
from interop.gguf_files import rewritten
from interop.test_gguf import ROTARY, turning
from interop.test_gpt2 import gpt2
from interop.test_llama import llama

gguf = late.optional("gguf")
late.optional("transformers")
late.optional("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and accelerate

TEXTS = (
    TEXT,
    "  two  spaces\n\nand lines\t ü 日本 🙂 don't WE'LL",
    "12345 1,000.50 2024-01-31 x86_64 ²½ ١٢٣",
    "\r\n\r\n if x:\n\treturn y  # e\u0301\u00a0 camelCaseWord ABCdef/",
)
IDS = torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(0))


def read(path: Path, out: Path) -> Model:
    import_model(path, out, log=lambda text: None)
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


MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: gpt2(n_inner=64),
    "gpt2_untied": lambda: gpt2(n_inner=64, tie_word_embeddings=False),
    "llama": llama,
    "llama_odd": lambda: llama(hidden_size=20, num_attention_heads=5, num_key_value_heads=1, head_dim=6),
    "qwen2": lambda: llama("Qwen2"),
    "qwen3": lambda: llama("Qwen3"),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_architecture(tmp_path: Path, name: str) -> None:
    both = imported(MODELS[name](), tmp_path)
    export(both.folder, tmp_path / "out", "gguf")
    model = read(tmp_path / "out" / FILE, tmp_path / "back")
    assert torch.equal(logits(model), logits(both.ours))
    assert model.config.positions == both.ours.config.positions and model.config.norm_eps == 1e-5
    for text in TEXTS:
        ids = model.tokenizer.encode(text)
        assert ids == both.ours.tokenizer.encode(text)
        assert model.tokenizer.decode(ids) == text
    assert model.config.eos_id == both.ours.config.eos_id
    export(tmp_path / "back", tmp_path / "again", "gguf")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_half_precision(tmp_path: Path, name: str, dtype: Any) -> None:
    """The model has the rounded matrices in float32."""
    both = imported(MODELS[name](), tmp_path)
    export(both.folder, tmp_path / "out", "gguf", dtype=dtype)
    model = read(tmp_path / "out" / FILE, tmp_path / "back")
    with torch.no_grad():
        for x in both.network.parameters():
            if x.dim() > 1 and len(x) != 24:  # positions stay in float32
                x.copy_(x.to(getattr(torch, dtype)))
    assert torch.equal(logits(model), logits(both.ours))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_NL"])
def test_quantised_tensors(tmp_path: Path, kind: str) -> None:
    """The model has the weights that the package gguf reads from the file, also those of queries in another order."""
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1}
    imported(llama(**sizes), tmp_path)
    export(tmp_path / "ours", tmp_path / "out", "gguf")
    path = rewritten(tmp_path / "out" / FILE, tmp_path / FILE, {}, kind)
    plain = rewritten(path, tmp_path / "plain.gguf", {})
    reader = gguf.GGUFReader(path)
    (table,) = (x for x in reader.tensors if x.name == "token_embd.weight")
    assert table.tensor_type.name == kind
    model = read(path, tmp_path / "back")
    dequantised = torch.from_numpy(gguf.quants.dequantize(table.data, table.tensor_type))
    assert torch.equal(model.network.state_dict()["decoder.embeddings.tokens.weight"], dequantised)
    assert torch.equal(logits(model), logits(read(plain, tmp_path / "other")))


@pytest.mark.parametrize(
    "config",
    [turning(LinearScaling(4.0)), turning(YarnScaling(4.0, 16)), turning(Llama3Scaling(8.0, 1.0, 4.0, 49))],
    ids=["linear", "yarn", "llama3"],
)
def test_rotary_scalings_are_refused(tmp_path: Path, config: TransformerConfig) -> None:
    """Transformers does not read them, and would compute other logits."""
    export(model_directory(config, tmp_path / "ours"), tmp_path / "out", "gguf")
    with pytest.raises(UserError, match="it does not read the rotary scaling of the file"):
        read(tmp_path / "out" / FILE, tmp_path / "back")
    assert not (tmp_path / "back").exists()


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
    assert tokenizer.encode("<|im_end|>", allow_special=["<|im_end|>"]) == [tokens]
    assert tokens not in tokenizer.encode("<|im_end|>")
    assert tokenizer.frames.prompt.before == (2,) and model.config.decoder_start_id == 2
    assert model.config.eos_id == tiny_tokenizer().eos_id and model.generation.end_ids == (5,)
    assert tokenizer.chat_template == "{{ messages }}"


@pytest.mark.parametrize("split", SPLITS)
def test_every_split_is_that_of_llama_cpp(tmp_path: Path, file: Path, split: str) -> None:
    """Transformers knows fewer splits; those of `SPLITS` are compared with llama.cpp."""
    path = rewritten(file, tmp_path / FILE, {"tokenizer.ggml.pre": split, "tokenizer.ggml.add_bos_token": False})
    model = read(path, tmp_path / "back")
    export(tmp_path / "back", tmp_path / "out", "gguf")
    name = gguf.GGUFReader(tmp_path / "out" / FILE).fields["tokenizer.ggml.pre"].contents()
    assert SPLITS[name] == SPLITS[split]
    assert read(tmp_path / "out" / FILE, tmp_path / "again").tokenizer.to_json() == model.tokenizer.to_json()


REFUSED: dict[str, tuple[Callable[[Path, Path], Any], str]] = {
    "text": (lambda path, out: out.write_bytes(b"text"), "it is not a GGUF file"),
    "pickle": (lambda path, out: out.write_bytes(b"\x80\x04K\x01."), "is a pickle"),
    "empty": (lambda path, out: out.write_bytes(b""), "it is not a GGUF file"),
    "only_magic": (lambda path, out: out.write_bytes(path.read_bytes()[:4]), "transformers cannot read it"),
    "cut_header": (lambda path, out: out.write_bytes(path.read_bytes()[:500]), "transformers cannot read it"),
    "cut_tensors": (lambda path, out: out.write_bytes(path.read_bytes()[:-100]), "transformers cannot read it"),
    "architecture": (lambda path, out: rewritten(path, out, {"general.architecture": "mamba"}), "cannot read it"),
    "missing": (lambda path, out: rewritten(path, out, {}, skip="blk.1.ffn_up.weight"), "its tensors are not those"),
    "shape": (lambda path, out: rewritten(path, out, {"llama.feed_forward_length": 24}), "transformers cannot read it"),
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


def test_places_and_a_missing_package(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"to import model\.gguf, give the path of this file"):
        read(file.parent, tmp_path / "other")
    (tmp_path / "back").mkdir()
    with pytest.raises(UserError, match="already exists"):
        read(file, tmp_path / "back")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"pip install 'glassformer\[export\]'"):
        read(file, tmp_path / "new")
