"""Damaged or hostile folders: one clear sentence, no code is run, no partial output."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import glassformer
import late
from glassformer.apps.cli.main import run
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from interop.checkpoints import VOCAB, randomise, save

transformers = late.optional("transformers")


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete folder, in shards."""
    sizes = {"vocab_size": VOCAB, "n_positions": 24, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_inner": 24}
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **special))
    randomise(model)
    return save(model, tmp_path_factory.mktemp("whole") / "hf", max_shard_size="4KB")


def change_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def change_index(old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "model.safetensors.index.json"
        path.write_text(path.read_text().replace(old, new))

    return change


def change_tensors(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    """Change the tensors and save them in one file without an index."""

    def changed(folder: Path) -> None:
        tensors = {}
        for shard in folder.glob("model-*.safetensors"):
            tensors |= load_file(shard)
            shard.unlink()
        (folder / "model.safetensors.index.json").unlink()
        change(tensors)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return changed


def one_missing(folder: Path) -> None:
    (folder / "model-00002-of-00009.safetensors").unlink(missing_ok=True)
    next(iter(sorted(folder.glob("model-*.safetensors")))).unlink()


def pickles_only(folder: Path) -> None:
    for path in folder.glob("model*"):
        path.unlink()
    torch.save({"x": torch.ones(2)}, folder / "pytorch_model.bin")


def cut(folder: Path) -> None:
    shard = sorted(folder.glob("model-*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-7])


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def set_shape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.weight"] = torch.ones(15)


def add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.extra"] = torch.ones(3)


def add_bare(tensors: dict[str, torch.Tensor]) -> None:
    tensors["wte.weight"] = tensors["transformer.wte.weight"] + 1


def untie(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1


def drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["transformer.h.1.ln_1.bias"]


def whole_numbers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.weight"] = torch.ones(16, dtype=torch.int64)


def lfs_pointer(name: str) -> Callable[[Path], None]:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 548105171\n"

    def change(folder: Path) -> None:
        change_tensors(lambda tensors: None)(folder)
        (folder / name).write_text(pointer)

    return change


def empty(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        change_tensors(lambda tensors: None)(folder)
        (folder / name).write_bytes(b"")

    return change


def adapter(folder: Path) -> None:
    """Write the files of peft next to a copy of the base model's configuration."""
    for path in folder.glob("model*"):
        path.unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8}))
    save_file({"base_model.model.x.lora_A.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")


def poison(value: float) -> Callable[[Path], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors["transformer.h.1.mlp.c_fc.weight"][3, 5] = value

    return change_tensors(change)


def too_large_for_float32(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer.ln_f.weight"] = torch.full((16,), 1e300, dtype=torch.float64)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a shard is missing": (one_missing, "is incomplete: model-00001-of-"),
    "a shard is cut": (cut, "cannot be read"),
    "a path outside the folder": (change_index("model-00001", "../model-00001"), "which is not a file in this folder"),
    "an absolute path": (change_index("model-00001", "/tmp/model-00001"), "which is not a file in this folder"),
    "a wrong index": (
        change_index("transformer.ln_f.bias", "transformer.ln_f.bios"),
        "wrong entries: transformer.ln_f.bi",
    ),
    "custom code": (
        change_config(model_type="evil", auto_map={"AutoModel": "evil.Model"}),
        "custom code (auto_map) is never run",
    ),
    "pickled weights": (pickles_only, "pytorch_model.bin"),
    "no configuration": (remove("config.json"), "has no config.json"),
    "no tokenizer": (remove("tokenizer.json"), "has no tokenizer.json"),
    "another family": (change_config(model_type="mamba"), "model_type mamba is not supported"),
    "no family": (change_config(model_type=None), "model_type None is not supported"),
    "another head": (
        change_config(architectures=["GPT2DoubleHeadsModel"]),
        "not supported for GPT-2 (known: GPT2LMHeadModel, GPT2ForSequenceClassification, GPT2ForTokenClassification, "
        "GPT2Model)",
    ),
    "an unknown key": (change_config(n_experts=8), "n_experts is not a known key"),
    "an unsupported option": (change_config(scale_attn_by_inverse_layer_idx=True), "is not supported"),
    "an unknown activation": (change_config(activation_function="quick_gelu"), "activation_function quick_gelu"),
    "quantised": (change_config(quantization_config={"bits": 4}), "quantization_config"),
    "a width of the wrong type": (change_config(n_embd="16"), "n_embd: expected int, got 16"),
    "a width that heads do not divide": (change_config(n_head=5), "not divisible"),
    "too many layers": (change_config(n_layer=3), "transformer.h.2.ln_1.weight is missing"),
    "too few layers": (change_config(n_layer=1), "transformer.h.1.ln_1.bias is not a tensor of"),
    "an impossible size": (change_config(n_embd=1 << 40), "at most"),
    "a fractional id": (
        change_config(eos_token_id=0.5),
        "eos_token_id: expected an integer or a list of them, got 0.5",
    ),
    "a smaller vocabulary than the tokenizer's": (change_config(vocab_size=100), "the tokenizer has 280 tokens"),
    "a wrong shape": (change_tensors(set_shape), "transformer.ln_f.weight: expected shape [16], got [15]"),
    "an extra tensor": (change_tensors(add), "--ignore-tensors transformer.extra"),
    "a missing tensor": (change_tensors(drop), "transformer.h.1.ln_1.bias is missing"),
    "two names of one tensor": (change_tensors(add_bare), "are two names of the same tensor"),
    "unequal tied weights": (change_tensors(untie), "lm_head.weight differs from transformer.wte.weight"),
    "a Git LFS pointer instead of weights": (
        lfs_pointer("model.safetensors"),
        "model.safetensors is a Git LFS pointer",
    ),
    "a Git LFS pointer instead of a tokenizer": (lfs_pointer("tokenizer.json"), "tokenizer.json is a Git LFS pointer"),
    "empty weights": (empty("model.safetensors"), "model.safetensors cannot be read: it is empty"),
    "an empty configuration": (empty("config.json"), "config.json is empty, expected JSON"),
    "an adapter": (adapter, "contains only a LoRA adapter: merge it into its base model"),
    "a NaN": (
        poison(float("nan")),
        "NaN or Inf in its weights (as float32): transformer.h.1.mlp.c_fc.weight (1 of 384",
    ),
    "an infinite number": (poison(float("-inf")), "transformer.h.1.mlp.c_fc.weight (1 of 384 values)"),
    "values beyond float32": (change_tensors(too_large_for_float32), "transformer.ln_f.weight (16 of 16 values)"),
    "integer weights": (change_tensors(whole_numbers), "expected floats, got int64"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_in_one_sentence(
    hf: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "hf"
    shutil.copytree(hf, folder)
    change, expected = DAMAGES[damage]
    change(folder)
    assert run(["import", str(folder), str(tmp_path / "ours")]) == 2
    message = capsys.readouterr().err.strip()
    assert expected in message, message
    assert message.startswith("glassformer: ") and "\n" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_an_existing_folder_is_not_overwritten(hf: Path, tmp_path: Path) -> None:
    import_model(hf, tmp_path / "ours")
    before = {path: path.read_bytes() for path in (tmp_path / "ours").iterdir()}
    with pytest.raises(UserError, match="already exists"):
        import_model(hf, tmp_path / "ours")
    assert before == {path: path.read_bytes() for path in (tmp_path / "ours").iterdir()}


def test_an_ignored_tensor(hf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    shutil.copytree(hf, folder)
    change_tensors(add)(folder)
    import_model(folder, tmp_path / "ours", ignore_tensors=["transformer.extr*"])
    assert (tmp_path / "ours" / "manifest.json").exists()


def test_an_ignored_key_is_reported(hf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "hf"
    shutil.copytree(hf, folder)
    change_config(n_experts=8)(folder)
    assert run(["import", str(folder), str(tmp_path / "ours"), "--ignore-keys", "n_experts"]) == 0
    assert "ignored (--ignore-keys): n_experts = 8 in config.json" in capsys.readouterr().err
    for key in ("n_expert", "n_embd"):  # a misspelled key, and a key that is read
        assert run(["import", str(folder), str(tmp_path / "x"), "--ignore-keys", "n_experts", key]) == 2
        assert f"config.json has no unknown key {key}: remove it from --ignore-keys" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_float_is_imported_and_loads(
    hf: Path, tmp_path: Path, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "hf"
    shutil.copytree(hf, folder)
    before: dict[str, torch.Tensor] = {}

    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        tensors |= {name: x.to(dtype) for name, x in tensors.items()}
        before.update(tensors)

    change_tensors(narrow)(folder)
    assert run(["import", str(folder), str(tmp_path / "ours")]) == 0
    is_reported = "float64 tensors are converted to float32" in capsys.readouterr().err
    assert is_reported == (dtype == torch.float64)
    network = glassformer.load(tmp_path / "ours", device="cpu").network
    held = network.state_dict()["decoder.embeddings.tokens.weight"]
    assert torch.equal(held, before["transformer.wte.weight"].float())


def test_files_that_are_not_imported_are_reported(hf: Path, tmp_path: Path) -> None:
    folder, messages = tmp_path / "hf", list[str]()
    shutil.copytree(hf, folder)
    import_model(folder, tmp_path / "plain", log=messages.append)
    assert messages == []
    (folder / "additional_chat_templates").mkdir()
    import_model(folder, tmp_path / "ours", log=messages.append)
    assert [line.split(" are not imported")[0] for line in messages] == ["the templates of additional_chat_templates"]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"auto_map": {"AutoTokenizer": ["a.B", None]}}))
    import_model(folder, tmp_path / "again", log=messages.append)
    assert messages[2].startswith("tokenizer_config.json requires custom code (auto_map), which is never run")


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_an_id_beyond_the_vocabulary_is_ignored_with_a_warning(hf: Path, tmp_path: Path, token: int) -> None:
    """Old configurations use -1 for a missing id, and small models have the default of large ones."""
    folder = tmp_path / "hf"
    shutil.copytree(hf, folder)
    change_config(bos_token_id=token)(folder)
    messages: list[str] = []
    model = import_model(folder, tmp_path / "ours", log=messages.append).run.model
    assert model.bos_id == 2  # the id of the tokenizer
    assert f"bos_token_id {token} is not an id of the vocabulary, and is ignored" in messages


def test_a_missing_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", str(tmp_path / "none"), str(tmp_path / "ours")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_hub_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*args: object, **kwargs: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nand more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(
        UserError, match="cannot download hf:openai-community/gpt2, and it is not in the cache: no conn"
    ):
        import_model("hf:openai-community/gpt2", tmp_path / "ours")


def test_hub_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    true_import = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name == "huggingface_hub":
            raise ImportError(name)
        return true_import(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="needs the package huggingface_hub"):
        import_model("hf:gpt2", tmp_path / "ours")


def test_hub_downloads_no_code_and_no_pickles(hf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked = {}

    def download(name: str, allow_patterns: list[str]) -> str:
        asked[name] = allow_patterns
        return str(hf)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    import_model("hf:somebody/model", tmp_path / "ours")
    (patterns,) = asked.values()
    assert not any(pattern.endswith((".py", ".bin", "*")) for pattern in patterns)
    import_model(f"hf:{hf}", tmp_path / "local")
    assert len(asked) == 1, "a local folder is not downloaded"
