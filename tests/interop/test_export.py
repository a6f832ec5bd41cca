"""`glassformer export`: every export is checked; a refusal names the nearest change."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import late
from configs import CONFIGS, GPT, LLAMA, RECURRENT
from glassformer import api
from glassformer.apps.cli.main import run
from glassformer.apps.interop import hf
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families import FAMILIES
from glassformer.apps.interop.hf import choose_family
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.presets import PRESETS
from glassformer.config.run import GenerationConfig, LoraConfig
from glassformer.config.transformer import TransformerConfig
from interop.checkpoints import model_directory, tensors
from interop.family_configs import FAMILY_CONFIGS
from runs import conversation_run

transformers = late.optional("transformers")

GPT2 = replace(GPT, activation="gelu_tanh", max_len=64)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_is_exported_or_refused_with_reasons(tmp_path: Path, name: str) -> None:
    """`export` compares accepted models with transformers, to 1e-5; a refusal names the necessary changes."""
    folder = model_directory(CONFIGS[name], tmp_path / "ours")
    try:
        exported = export(folder, tmp_path / "hf")
    except UserError as error:
        assert str(error).startswith(
            "no model family of transformers can represent this model exactly; the nearest is "
        )
        assert "model." in str(error) or "the model has no" in str(error)
        assert [path.name for path in tmp_path.iterdir()] == ["ours"]
    else:
        assert any(" differ by" in line for line in exported.said)


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = model_directory(GPT2, tmp_path / "ours")
    assert run(["export", str(folder), str(tmp_path / "hf"), "--to", "hf"]) == 0
    printed = capfd.readouterr()
    assert "GPT-2 (GPT2LMHeadModel): 28 tensors" in printed.out
    assert "loaded with transformers: logits differ by" in printed.out
    assert printed.err == ""  # no progress bars or warnings of transformers
    names = {"config.json", "generation_config.json", "model.safetensors"}
    names |= {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "README.md"}
    assert {path.name for path in (tmp_path / "hf").iterdir()} == names


def test_an_exported_model_generates_the_same_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Auto classes load the folder without output, and their greedy text equals glassformer's."""
    import glassformer

    greedy = GenerationConfig(max_new_tokens=20, temperature=0.0)
    export(model_directory(GPT2, tmp_path / "ours", generation=greedy), tmp_path / "hf")
    capfd.readouterr()
    transformers.utils.logging.disable_progress_bar()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    ours = glassformer.load(tmp_path / "ours", device="cpu")
    for prompt in ("to be", "or not", "Ist es edler", "16"):
        inputs = tokenizer(prompt, return_tensors="pt")
        assert inputs["input_ids"][0].tolist() == ours.tokenizer.encode(prompt)
        # glassformer never generates special tokens except the end; transformers needs `suppress_tokens`.
        suppress_ids = [i for i in range(VOCABULARY) if i in special_ids(ours) or i >= ours.tokenizer.vocab_size]
        written = theirs.generate(**inputs, max_new_tokens=20, suppress_tokens=suppress_ids)[
            0, inputs["input_ids"].shape[1] :
        ]
        assert tokenizer.decode(written, skip_special_tokens=True) == ours.generate(prompt)
    assert capfd.readouterr().err == ""


VOCABULARY = 290


def special_ids(model: Any) -> set[int]:
    return {model.tokenizer.vocab[token] for token in model.tokenizer.special_tokens} - {model.tokenizer.eos_id}


@pytest.mark.parametrize("fused", [False, True])
def test_fused_and_separate_projections_export_equally(tmp_path: Path, fused: bool) -> None:
    export(model_directory(replace(GPT2, fused_qkv=fused), tmp_path / "ours"), tmp_path / "hf")
    found = tensors(tmp_path / "hf")
    assert found["transformer.h.0.attn.c_attn.weight"].shape == (16, 48)
    import_model(tmp_path / "hf", tmp_path / "again")
    export(tmp_path / "again", tmp_path / "hf2")
    again = tensors(tmp_path / "hf2")
    assert found.keys() == again.keys() and all(torch.equal(x, again[name]) for name, x in found.items())


def test_shards(tmp_path: Path) -> None:
    from glassformer.store.model_directory import read_model

    stored = read_model(model_directory(GPT2, tmp_path / "ours"))
    (tmp_path / "hf").mkdir()
    hf.write_hf(stored, tmp_path / "hf", max_shard_bytes=4000)
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    files = sorted((tmp_path / "hf").glob("model-*.safetensors"))
    assert {path.name for path in files} == set(index["weight_map"].values()) and len(files) > 2
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in tensors(tmp_path / "hf").values())


@pytest.mark.parametrize("name", ["GPT-2", "EuroBERT"])
def test_missing_ids_override_the_defaults_of_transformers(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The classes have default ids, which may exceed a small vocabulary: transformers warns, then fails."""
    family = next(family for family in FAMILIES if family.name == name)
    config = replace(GPT2 if name == "GPT-2" else replace(LLAMA, decoder=None, encoder=LLAMA.decoder), mask_id=6)
    ids = dict.fromkeys(("pad_id", "bos_id", "eos_id"))
    table = hf.their_config(family, replace(config, vocab_size=VOCABULARY, **ids), ())  # type: ignore[arg-type]
    transformers.utils.logging.enable_propagation()
    theirs = type(transformers.AutoConfig.for_model(family.model_type))(**table)
    transformers.utils.logging.disable_propagation()
    assert (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id) == (None, None, None)
    assert caplog.text == ""
    getattr(transformers, family.architecture(config))(theirs)


@pytest.mark.parametrize(("to", "others"), [("gguf", "13"), ("ct2", "9, 12, 13")])
def test_end_tokens_that_a_format_has_no_name_for_are_reported(tmp_path: Path, to: Any, others: str) -> None:
    """GGUF names three end tokens, and CTranslate2 one."""
    pytest.importorskip({"gguf": "gguf", "ct2": "ctranslate2"}[to])
    config = replace(FAMILY_CONFIGS["Qwen3"], max_len=32)
    ours = model_directory(config, tmp_path / "ours", generation=GenerationConfig(end_ids=(9, 12, 13)))
    said = export(ours, tmp_path / to, to).said
    assert f"the files do not name all end tokens: give the ids of the others ({others}) to the program" in said[-1]


def test_a_chat_model_returns_from_gguf_with_its_template_and_end_tokens(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    chats = conversation_run(tmp_path, max_steps=1, eval_every=1)
    family = replace(FAMILY_CONFIGS["Llama"], max_len=64, vocab_size=0)
    chats = replace(chats, model=family, generation=GenerationConfig(max_new_tokens=6, end_ids=(2,)))
    model = api.train(chats, tmp_path / "run").model
    export(model, tmp_path / "gguf", "gguf")
    import_model(tmp_path / "gguf" / "model.gguf", tmp_path / "back", log=print)
    back = api.load(tmp_path / "back")
    assert back.tokenizer.chat_template == model.tokenizer.chat_template
    assert (back.config.eos_id, back.generation.end_ids) == (model.config.eos_id, (2,))
    assert back.chat("red dog", temperature=0, max_new_tokens=6) == model.chat("red dog", temperature=0)


def test_a_recurrent_model_is_refused(tmp_path: Path) -> None:
    folder = model_directory(next(iter(RECURRENT.values())), tmp_path / "ours")
    with pytest.raises(UserError, match="transformers has no recurrent encoder-decoder"):
        export(folder, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_an_adapted_model_must_be_merged_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from glassformer.apps.interop import export as module
    from glassformer.store.model_directory import read_model

    stored = read_model(model_directory(GPT2, tmp_path / "ours"))
    adapted = replace(stored, run=replace(stored.run, lora=LoraConfig()))
    monkeypatch.setattr(module, "read_model", lambda path: adapted)
    with pytest.raises(UserError, match="glassformer merge"):
        export(tmp_path / "ours", tmp_path / "hf")


def test_a_refusal_names_the_nearest_change() -> None:
    config: TransformerConfig = replace(GPT2, qk_norm=True)
    with pytest.raises(UserError, match=r"nearest is GPT-2.*model\.qk_norm: expected false, got true"):
        choose_family(config)
    assert choose_family(replace(config, qk_norm=False)).name == "GPT-2"


def test_rounding_is_not_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If fp32 rounding exceeds the tolerance, double precision decides; the model stays bit-equal."""
    from glassformer.store.model_directory import read_model, weights_of

    stored = read_model(model_directory(GPT2, tmp_path / "ours"))
    before = {name: x.clone() for name, x in weights_of(stored.network).items()}
    (tmp_path / "hf").mkdir()
    monkeypatch.setattr(hf, "TOLERANCE", 1e-10)
    lines = [line for line in hf.write_hf(stored, tmp_path / "hf") if "differ by" in line]
    assert len(lines) == 2 and all(float(line.split("differ by at most ")[1].split()[0]) < 1e-12 for line in lines)
    assert all(torch.equal(x, before[name]) for name, x in weights_of(stored.network).items())


def test_an_unequal_recast_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export is read back and compared with the original, with or without transformers."""

    def recast(config: TransformerConfig, weights: dict[str, torch.Tensor]) -> Any:
        return config, {name: x * 1.01 if name.endswith("up_proj.weight") else x for name, x in weights.items()}

    monkeypatch.setattr(hf, "FAMILIES", (replace(GPT2_FAMILY, recast=recast),))
    folder = model_directory(GPT2, tmp_path / "ours")
    with pytest.raises(UserError, match="the outputs of the model read back differ by"):
        export(folder, tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


def test_an_unequal_export_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check against transformers finds a wrong table and removes the folder."""
    wrong = replace(GPT2_FAMILY, table=swapped)
    monkeypatch.setattr(hf, "FAMILIES", (wrong,))
    monkeypatch.setattr("glassformer.apps.interop.importing.FAMILIES", (wrong,))
    folder = model_directory(GPT2, tmp_path / "ours")
    with pytest.raises(UserError, match="the logits of transformers differ by"):
        export(folder, tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


GPT2_FAMILY = next(family for family in FAMILIES if family.model_type == "gpt2")


def swapped(config: TransformerConfig) -> Any:
    """Return GPT-2's table with the two norms of a block exchanged."""
    names = {"transformer.h.{i}.ln_1": "transformer.h.{i}.ln_2", "transformer.h.{i}.ln_2": "transformer.h.{i}.ln_1"}
    return [
        replace(line, theirs=tuple(names.get(name, name) for name in line.theirs)) for line in GPT2_FAMILY.table(config)
    ]


def test_wrong_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_directory(GPT2, tmp_path / "ours")
    assert run(["export", str(folder), str(folder)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert run(["export", str(folder), str(tmp_path / "x"), "--to", "tflite"]) == 2
    assert run(["export", str(tmp_path / "none"), str(tmp_path / "x")]) == 2
    assert "no such model directory" in capsys.readouterr().err
    with pytest.raises(UserError, match="unknown export target 'tflite'"):
        export(folder, tmp_path / "x", "tflite")  # type: ignore[arg-type]


PRESET_FAMILIES = {
    "gpt": "GPT-2",
    "modern": "Qwen3",
    "bert": "BERT",
    "bart": "BART",
    "transformer": "Marian",
    "marian": "Marian",
    "llama": "Llama",
    "t5": "T5",
}


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_family(name: str) -> None:
    config = PRESETS[name]
    if config.decoder_start_id is None:  # a tokenizer defines it
        config = replace(config, vocab_size=config.vocab_size or 1000, pad_id=0, eos_id=3, decoder_start_id=2)
    (expected,) = (family for begin, family in PRESET_FAMILIES.items() if name.startswith(begin))
    assert choose_family(config).name == expected
