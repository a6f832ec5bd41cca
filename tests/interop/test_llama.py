"""Import and export of Llama, Mistral, Qwen2 and Qwen3: odd shapes, windows, biases and rotary scalings."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import glassformer
import late
from configs import LLAMA
from glassformer.apps.interop.export import export
from glassformer.apps.interop.families.llama_relatives import PHI3
from glassformer.apps.interop.hf import choose_family
from glassformer.apps.interop.hf_config import HFConfig
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import (
    LinearScaling,
    RotaryPositions,
    TransformerConfig,
    YarnScaling,
)
from glassformer.inference.text import never_written
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
from interop.decoding import assert_same_greedy

transformers = late.optional("transformers")

LLAMA_STACK = LLAMA.head_stack

MAX_LEN = 64
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 24.0, "beta_slow": 2.0}
ORIGINAL = {"original_max_position_embeddings": 16}
HALF = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
TURNS = ["sliding_attention", "full_attention", "sliding_attention"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_odd": ("Llama", {"hidden_size": 20, "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True, "num_hidden_layers": 1, "hidden_act": "gelu"}),
    "llama_biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": None}),
    "llama_linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama_llama3": ("Llama", {"rope_parameters": LLAMA3 | ORIGINAL}),
    "llama_yarn": ("Llama", {"rope_parameters": YARN | ORIGINAL}),
    "mistral": ("Mistral", {"sliding_window": 4}),
    "mistral_everywhere": ("Mistral", {"sliding_window": None, "hidden_size": 18}),
    "qwen2": ("Qwen2", {}),
    "qwen2_half": ("Qwen2", HALF | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"attention_bias": True}),
    "qwen3_turns": ("Qwen3", HALF | {"num_hidden_layers": 3, "layer_types": TURNS, "max_window_layers": 0}),
}


def llama(kind: str = "Llama", **changes: Any) -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 22, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "max_position_embeddings": MAX_LEN, "rms_norm_eps": 1e-5}
    if kind == "Qwen3":
        sizes["head_dim"] = 6
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    rope = {"rope_theta": 50.0, "rope_type": "default"} | changes.pop("rope_parameters", {})
    config = getattr(transformers, f"{kind}Config")
    config = config(vocab_size=VOCAB, rope_parameters=rope, **sizes | special | changes)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


@pytest.mark.parametrize("case", CASES)
def test_import_equals_transformers_and_exports_back(tmp_path: Path, case: str) -> None:
    kind, changes = CASES[case]
    both = imported(llama(kind, **changes), tmp_path)
    both.assert_same()
    both.assert_same(mask=True, seed=1)
    both.assert_comes_back(tmp_path / "back")


def test_shards_and_prompt_ids(tmp_path: Path) -> None:
    both = imported(llama(), tmp_path, max_shard_size="4KB")
    assert len(list(both.hf.glob("model-*.safetensors"))) > 2
    both.assert_same()


@pytest.mark.parametrize("case", ["llama_odd", "llama_yarn", "mistral", "qwen2_half", "qwen3_turns"])
def test_greedy_equals_transformers(tmp_path: Path, case: str) -> None:
    kind, changes = CASES[case]
    assert_same_greedy(imported(llama(kind, **changes), tmp_path))


def test_several_end_tokens(tmp_path: Path) -> None:
    """An import keeps all of them, the tokenizer's first, and an export writes them back."""
    hf = save(llama(eos_token_id=[5, 3, 999, 8]), tmp_path / "hf")
    messages: list[str] = []
    import_model(hf, tmp_path / "ours", log=messages.append)
    ours = glassformer.load(tmp_path / "ours", device="cpu")
    assert (ours.network.config.eos_id, ours.generation.end_ids) == (3, (5, 8))
    assert messages == ["eos_token_id 999 is not an id of the vocabulary, and is ignored"]
    export(tmp_path / "ours", tmp_path / "again")
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text())["eos_token_id"] == [3, 5, 8]
    import_model(tmp_path / "again", tmp_path / "ours2")
    assert glassformer.load(tmp_path / "ours2", device="cpu").generation == ours.generation


@pytest.mark.parametrize("own", [None, 5, [5, 8]])
def test_the_generation_settings_define_the_end_tokens(tmp_path: Path, own: Any) -> None:
    """`generation_config.json` takes precedence over `config.json`, as in `generate` of transformers."""
    hf = save(llama(eos_token_id=own), tmp_path / "hf")
    path = hf / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [9, 7]}))
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    ours = glassformer.load(tmp_path / "ours", device="cpu")
    assert (ours.network.config.eos_id, ours.generation.end_ids) == (9, (7,))


def test_older_files(tmp_path: Path) -> None:
    """transformers 4 wrote two keys for the positions, frequencies as weights, and a copy of the tied head."""
    theirs = llama(tie_word_embeddings=True, rope_parameters=LINEAR).eval()
    randomise(theirs)
    hf = save(theirs, tmp_path / "hf")
    config = config_of(hf)
    del config["rope_parameters"]
    old = {"rope_theta": 50.0, "rope_scaling": {"type": "linear", "factor": 4.0}, "pretraining_tp": 1}
    (hf / "config.json").write_text(json.dumps(config | old))
    held = tensors(hf)
    assert "lm_head.weight" not in held
    held |= {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": torch.ones(2) for i in range(2)}
    held["lm_head.weight"] = held["model.embed_tokens.weight"].clone()
    save_file(held, hf / "model.safetensors", metadata={"format": "pt"})
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    Both(theirs, glassformer.load(tmp_path / "ours", device="cpu"), hf, tmp_path / "ours").assert_same()


def test_older_files_have_windows_from_a_layer_on(tmp_path: Path) -> None:
    """transformers 4 wrote `max_window_layers` without the kind of each layer."""
    theirs = llama("Qwen2", **HALF | {"num_hidden_layers": 3}).eval()
    randomise(theirs)
    hf = save(theirs, tmp_path / "hf")
    config = config_of(hf)
    del config["layer_types"]
    (hf / "config.json").write_text(json.dumps(config))
    import_model(hf, tmp_path / "ours", log=lambda text: None)
    both = Both(theirs, glassformer.load(tmp_path / "ours", device="cpu"), hf, tmp_path / "ours")
    assert both.network.config.head_stack.window_pattern == (0, 4, 4)
    both.assert_same()


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "key": ("Llama", {"rope_interleaved": True}, "rope_interleaved True is not supported"),
    "activation": ("Llama", {"hidden_act": "quick_gelu"}, "hidden_act quick_gelu is not supported (known: relu, gelu,"),
    "window": ("Mistral", {"sliding_window": 0}, "sliding_window: expected at least 1, got 0"),
    "layers": ("Qwen2", {"layer_types": ["full_attention", "chunked_attention"]}, "layer_types must name 2 layers"),
    "few": ("Qwen3", {"layer_types": ["full_attention"]}, "layer_types must name 2 layers, each full_attention or"),
    "unused": (
        "Qwen2",
        {"layer_types": ["sliding_attention"] * 2},
        "has sliding_attention, but sliding_window is not used",
    ),
    "longrope": ("Llama", {"rope_parameters": {"rope_type": "longrope"}}, "its frequencies change with the length"),
    "deep": ("Qwen3", {"num_hidden_layers": 10**12, "layer_types": None}, "n_layers is 1,000,000,000,000 and must be"),
    "size": ("Llama", {"hidden_size": None}, "has no hidden_size, which this model_type requires"),
    "shape": ("Llama", {"num_key_value_heads": 4}, "k_proj.weight: expected shape [16, 16], got [8, 16]"),
    "bias": ("Llama", {"attention_bias": True}, "model.layers.0.self_attn.q_proj.bias is missing"),
    "norm": (
        "Qwen3",
        {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
        "--ignore-tensors model.layers.0.self_attn.k_norm.weight skips a tensor that is not needed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_settings_are_refused(tmp_path: Path, name: str) -> None:
    kind, changes, words = REFUSED[name]
    hf = save(llama(kind), tmp_path / "hf")
    (hf / "config.json").write_text(json.dumps(config_of(hf) | changes))
    with pytest.raises(UserError) as error:
        import_model(hf, tmp_path / "ours", log=lambda text: None)
    assert words in str(error.value)
    assert not (tmp_path / "ours").exists()


MODERN = replace(LLAMA, norm_weight=False, qk_norm=True, activation="relu2", gated_ff=False, tie_output=True)
WINDOWS = replace(LLAMA, decoder=replace(LLAMA_STACK, window_pattern=(5,)))
OURS: dict[str, tuple[TransformerConfig, str]] = {
    "llama": (LLAMA, "Llama"),
    "all_biases": (replace(LLAMA, qkv_bias=True, attn_out_bias=True, ff_bias=True), "Llama"),
    "without_gate": (replace(LLAMA, gated_ff=False, norm_weight=False), "Llama"),
    "d_model_not_by_heads": (replace(LLAMA, d_model=18), "Mistral"),
    "windows": (WINDOWS, "Mistral"),
    "qkv_bias": (replace(LLAMA, qkv_bias=True), "Qwen2"),
    "windows_in_turns": (
        replace(LLAMA, qkv_bias=True, decoder=replace(LLAMA_STACK, n_layers=3, window_pattern=(5, 0))),
        "Qwen2",
    ),
    "qk_norm": (replace(LLAMA, qk_norm=True), "Qwen3"),
    "modern": (MODERN, "Qwen3"),
    "modern_windows": (replace(MODERN, decoder=replace(LLAMA_STACK, window_pattern=(0, 3))), "Qwen3"),
}


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", OURS)
def test_models_of_glassformer_survive_export_and_import(tmp_path: Path, name: str, fused: bool) -> None:
    """Each is exported as the family that represents it, equal to transformers; its import exports equally."""
    config, kind = OURS[name]
    export(model_directory(replace(config, fused_qkv=fused, max_len=64), tmp_path / "ours"), tmp_path / "hf")
    assert config_of(tmp_path / "hf")["architectures"] == [f"{kind}ForCausalLM"]
    import_model(tmp_path / "hf", tmp_path / "again", log=lambda text: None)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    both = Both(theirs, glassformer.load(tmp_path / "again", device="cpu"), tmp_path / "hf", tmp_path / "again")
    both.assert_same(mask=True)
    both.assert_comes_back(tmp_path / "back")


def test_loading_an_export_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`AutoModelForCausalLM` and `AutoTokenizer` load the export without output and generate the same text."""
    transformers.utils.logging.disable_progress_bar()
    for name in ("llama", "windows", "qkv_bias", "modern"):
        config = replace(OURS[name][0], max_len=64, positions=RotaryPositions(scaling=YarnScaling(4.0, 16)))
        export(model_directory(config, tmp_path / name), tmp_path / f"{name}-hf")
        capfd.readouterr()
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}-hf")
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / f"{name}-hf")
        ours = glassformer.load(tmp_path / name, device="cpu")
        inputs = tokenizer("to be, or", return_tensors="pt", return_token_type_ids=False)
        suppress_ids = never_written(ours.tokenizer, VOCAB)
        ids = theirs.generate(**inputs, do_sample=False, max_new_tokens=20, suppress_tokens=suppress_ids)[0]
        text = tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert text == ours.generate("to be, or", temperature=0.0, max_new_tokens=20)
        assert capfd.readouterr().err == ""


NO_SCALING = (
    "rope_parameters: Phi-3 has no linear, llama3 or yarn scaling in transformers: only default and longrope are "
    "supported"
)
MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "cap": ({"score_cap": 30.0}, "nearest is Llama.*: model.score_cap: expected 0.0, got 30.0"),
    "fraction": (
        {"positions": RotaryPositions(fraction=0.5), "decoder": replace(LLAMA_STACK, d_head=8), "qk_norm": True},
        "model.positions.fraction: expected 1.0, got 0.5",
    ),
    "gate": (
        {"gated_ff": False, "d_model": 18, "decoder": WINDOWS.head_stack},
        "model.gated_ff: expected true, got false",
    ),
    "windows": (
        {"decoder": replace(LLAMA_STACK, window_pattern=(3, 4))},
        r"window_pattern: expected \[.*\], got \[3, 4\]",
    ),
    "biases": (
        {"attn_out_bias": True},
        "model.(attn_out_bias: expected false, got true|qkv_bias: expected true, got false)",
    ),
}


def test_phi3_is_read_and_written_without_rotary_scaling() -> None:
    """The configuration of Phi-3 in transformers refuses each kind except longrope."""
    stack = replace(LLAMA_STACK, d_head=8)
    config = replace(LLAMA, positions=RotaryPositions(fraction=0.5), decoder=stack, vocab_size=VOCAB)
    assert choose_family(config) is PHI3
    for scaling in (LinearScaling(2.0), YarnScaling(2.0, 16)):
        scaled = replace(config, positions=RotaryPositions(fraction=0.5, scaling=scaling))
        assert PHI3.misfits(scaled) == [NO_SCALING]
        with pytest.raises(UserError, match="no model family of transformers can represent this model exactly"):
            choose_family(scaled)
    for rope in ({"rope_type": "default"}, LINEAR, LLAMA3 | ORIGINAL, YARN | ORIGINAL):
        hf = HFConfig(PHI3.write(config) | {"rope_parameters": rope}, "config.json")
        PHI3.read(hf, "Phi3ForCausalLM")
        assert hf.problems() == ([] if rope["rope_type"] == "default" else [NO_SCALING])


@pytest.mark.parametrize("name", MISFITS)
def test_what_no_family_represents_is_refused(name: str) -> None:
    changes, words = MISFITS[name]
    with pytest.raises(UserError, match=words):
        choose_family(replace(LLAMA, **changes))
