"""Fault 24: absurd sizes and ambiguous text; faults 24 and 26 in the training state.

Every manifest is correct, as an attacker can write one.
"""

import functools
import json
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from faults.hostile import edit_json, entry, plant, read_spoiled, refused, safetensors, sign
from faults.tally import record
from glassformer import api
from glassformer.config.changes import apply_flags
from glassformer.config.recurrent import RecurrentConfig
from glassformer.config.run import Run
from glassformer.config.schema import MAX_INT, to_dict
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.config.written import parse_toml
from glassformer.store import checkpoint
from glassformer.store.checkpoint import AVERAGE, OPTIMIZER, STATE
from glassformer.store.tensors import DTYPES
from glassformer.tasks.reporting import Outcome
from runs import tiny_run, write_text

# 24: absurd sizes and ambiguous text


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


SIZES: list[tuple[str, Any]] = [
    ("vocab_size", 10**12),
    ("vocab_size", 10**39),
    ("vocab_size", 1e12),
    ("d_model", 10**9),
    ("d_embedding", 10**9),
    ("max_len", 10**12),
    ("n_token_types", 10**9),
    ("decoder.n_layers", 10**9),
    ("decoder.n_heads", 10**9),
    ("decoder.d_head", 10**9),
    ("decoder.d_ff", 10**9),
    ("decoder.window_pattern", [10**12]),
    ("decoder.n_layers", -1),
    ("pad_id", 10**12),
    ("eos_id", -1),
    ("positions", {"kind": "learned", "offset": 10**12}),
    ("positions", {"kind": "relative", "n_buckets": 10**9, "max_distance": 10**12}),
    ("positions", {"kind": "rotary", "scaling": {"kind": "yarn", "factor": 2.0, "original_max_len": -1}}),
    ("positions", {"kind": "rotary", "scaling": {"kind": "yarn", "factor": 2.0, "beta_fast": 0.0}}),
    ("head", {"kind": "positions", "n_labels": 10**12}),
    ("d_model", "512; DROP TABLE"),
    ("decoder", [[[]]]),
]


@pytest.mark.parametrize(("key", "value"), SIZES)
def test_fault_24_an_absurd_configuration_allocates_no_memory(directory: Path, key: str, value: Any) -> None:
    def change(config: dict[str, Any]) -> None:
        *path, leaf = key.split(".")
        for name in path:
            config = config[name]
        config[leaf] = value

    before = peak_bytes()
    edit_json(directory, "config.json", change)
    is_no_integer = isinstance(value, str | list | dict | float) or value > MAX_INT  # then the error has the file's key
    refused(read_spoiled(directory), key if is_no_integer else f"model.{key}")
    assert peak_bytes() - before < 1 << 28
    record(24, 1, 1, "none")


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned", "alibi", "relative", "none"])
@pytest.mark.parametrize("max_len", [10**12, 1 << 24])
def test_fault_24_an_absurd_context_allocates_no_memory(directory: Path, positions: str, max_len: int) -> None:
    before = peak_bytes()
    edit_json(directory, "config.json", lambda c: c.update(max_len=max_len, positions={"kind": positions}))
    refused(read_spoiled(directory), "model.max_len is 1,000" if max_len > 1 << 24 else "does not fit the model")
    assert peak_bytes() - before < 1 << 28
    record(24, 1, 1, "none")


def test_fault_24_the_largest_allowed_sizes_allocate_no_memory(directory: Path) -> None:
    before = peak_bytes()
    most = Stack(1000, 8, d_ff=1 << 20)
    config = TransformerConfig(decoder=most, d_model=1 << 20, vocab_size=1 << 24, max_len=1 << 24)
    plant(directory, "config.json", json.dumps(to_dict(config)))
    refused(read_spoiled(directory), "does not fit the model", "more")
    assert peak_bytes() - before < 1 << 29
    record(24, 1, 1, "none")


@pytest.mark.parametrize("key", ["n_layers", "d_embedding", "d_encoder", "d_decoder", "vocab_size", "max_len"])
def test_fault_24_recurrent_sizes_have_bounds(directory: Path, key: str) -> None:
    plant(directory, "config.json", json.dumps(to_dict(RecurrentConfig(vocab_size=9)) | {key: 10**12}))
    refused(read_spoiled(directory), f"model.{key} is 1,000,000,000,000")
    record(24, 1, 1, "none")


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("model.d-model", "5120000000", "model.d_model is 5,120,000,000 and must be at most 1,048,576"),
        ("model.decoder.n-layers", "1000000000", "model.decoder.n_layers is 1,000,000,000"),
        ("model.max-len", "1000000000000", "model.max_len is 1,000,000,000,000"),
        ("model.vocab-size", "1000000000000", "model.vocab_size is 1,000,000,000,000"),
        ("generation.max-new-tokens", "1000000000000", "max_new_tokens is 1000000000000"),
        ("train.optimizer.learning-rate", "nan", "train.optimizer.learning_rate must be a number"),
    ],
)
def test_fault_24_a_typing_error_is_named(flag: str, value: str, words: str) -> None:
    refused(lambda: apply_flags(Run(), {flag: value}), words)
    record(24, 1, 1, "none")


def test_fault_24_a_model_larger_than_memory_is_refused_first(tmp_path: Path) -> None:
    huge = TransformerConfig(decoder=Stack(12, 8, d_ff=1 << 20), d_model=1 << 20)
    run = tiny_run(write_text(tmp_path), model=huge)
    refused(
        lambda: api.train(run, tmp_path / "out"), "the model's weights take", "this machine has", "use a smaller model"
    )
    assert not (tmp_path / "out").exists()
    record(24, 1, 1, "none")


DEEP = 100_000
JSON_ATTACKS = {
    "nested lists": ("[" * DEEP + "]" * DEEP, "nested deeper than 64"),
    "nested, but not much": ("[" * 100 + "]" * 100, "nested deeper than 64"),
    "nested objects": ('{"a":' * DEEP + "1" + "}" * DEEP, "nested deeper than 64"),
    "unfinished": ("[" * DEEP, "nested deeper than 64"),
    "a key twice": ('{"d_model": 8, "d_model": 16}', "the key 'd_model' occurs twice"),
    "NaN": ('{"norm_eps": NaN}', "NaN is not valid JSON"),
    "infinity": ('{"norm_eps": -Infinity}', "Infinity is not valid JSON"),
    "beyond a float": ('{"norm_eps": 1e999}', "too large for a float"),
    "many digits": ('{"d_model": 1' + "0" * 5000 + "}", "has 5001 digits, more than 40"),
    "too large": (" " * (64 * 1024 * 1024 + 1), "more than the limit of"),
    "UTF-16": (json.dumps({"d_model": 8}).encode("utf-16-le"), "is not plain text: NUL at offset"),
    "none": ("", ""),
    "a number": ("7", ""),
    "a list": ("[]", ""),
    "null": ("null", ""),
}


@pytest.mark.parametrize(
    "name", ["config.json", "generation.json", "tokenizer.json", "labels.json", "manifest.json", STATE]
)
@pytest.mark.parametrize("attack", JSON_ATTACKS)
def test_fault_24_absurd_or_ambiguous_json_is_refused(directory: Path, name: str, attack: str) -> None:
    content, words = JSON_ATTACKS[attack]
    if (name, attack) == ("labels.json", "a list"):
        return  # an empty list means that there are no labels
    folder = checkpoint.path_of(directory, 5) if name == STATE else directory
    if name == "manifest.json":
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        plant(folder, name, content)
    read = functools.partial(checkpoint.load_state, folder) if name == STATE else read_spoiled(directory)
    refused(read, name, words)
    record(24, 1, 1, "none")


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * DEEP,
        "a = " + "{a=" * DEEP,
        "a." * DEEP + "a = 1",
        "\n".join("a." * 2000 + f"b{i} = 1" for i in range(60)),
        "[" + "a." * DEEP + "a]",
        "a = 1\na = 2",
        "a = 1" + "0" * 5000,
        "a = 'x" + "x" * (1 << 19) + "'",
        "a = \0",
    ],
)
def test_fault_24_absurd_toml_is_refused(directory: Path, text: str) -> None:
    refused(lambda: parse_toml(text, "recipe.toml"), "recipe.toml is no")
    plant(directory, "run.toml", text)
    refused(read_spoiled(directory), "run.toml is no")
    record(24, 2, 2, "none")


HEADERS: dict[str, tuple[bytes, str]] = {
    "over the cap": ((1 << 40).to_bytes(8, "little") + b"{}", "its header has 1,099,511,627,776 bytes"),
    "empty": (b"", "cannot be read"),
    "cut short": (safetensors({"w": entry()})[:20], "cannot be read"),
    "nested": (safetensors(b"[" * DEEP), "nested deeper than 64"),
    "a list": (safetensors(b"[]"), "its header is not a table"),
    "not UTF-8": (safetensors(b"\xff" * 8), "cannot be read"),
    "a name twice": (
        safetensors(b'{"w": %s, "w": %s}' % ((json.dumps(entry()).encode(),) * 2)),
        "the key 'w' occurs twice",
    ),
    "overlapping": (safetensors({"v": entry(), "w": entry(shape=[2], offsets=[8, 16])}), "w overlaps"),
    "the same bytes twice": (safetensors({"v": entry(), "w": entry()}), "w overlaps"),
    "a gap": (
        safetensors({"v": entry(shape=[1], offsets=[0, 4]), "w": entry(shape=[2], offsets=[8, 16])}),
        "w follows",
    ),
    "bytes that nobody has": (safetensors({"w": entry(shape=[2], offsets=[0, 8])}), "take 8 bytes, but it contains 16"),
    "beyond the end": (safetensors({"w": entry(shape=[40], offsets=[0, 160])}), "take 160 bytes, but it contains 16"),
    "a huge tensor": (safetensors({"w": entry(shape=[10**12], offsets=[0, 4 * 10**12])}), "bytes, but it contains 16"),
    "a shape that lies": (safetensors({"w": entry(shape=[10**12])}), "w has offsets 0 to 16"),
    "a shape that overflows": (safetensors({"w": entry(shape=[1 << 40, 1 << 40])}), "w has offsets 0 to 16"),
    "nothing, many times": (safetensors({"w": entry(shape=[0] * 10**5, offsets=[0, 0])}), "dimensions"),
    "a negative shape": (safetensors({"w": entry(shape=[-4])}), "expected integers of at least 0"),
    "a shape of fractions": (safetensors({"w": entry(shape=[4.0])}), "expected integers of at least 0"),
    "no offsets": (safetensors({"w": {"dtype": "F32", "shape": [4]}}), "w must have dtype, shape"),
    "an unknown dtype": (safetensors({"w": entry("F8_E8M0", [16])}), "w has dtype 'F8_E8M0'; known dtypes are F64"),
    "a dtype that is none": (safetensors({"w": entry([])}), "w has dtype"),  # type: ignore[arg-type]
    "complex numbers": (safetensors({"w": entry("C128", [1])}), "w has dtype 'C128'"),
}


@pytest.mark.parametrize("attack", HEADERS)
@pytest.mark.parametrize("name", ["model.safetensors", OPTIMIZER, AVERAGE])
def test_fault_24_a_contradictory_header_is_refused(directory: Path, name: str, attack: str) -> None:
    content, words = HEADERS[attack]
    before = peak_bytes()
    if name == "model.safetensors":
        plant(directory, name, content)
        refused(read_spoiled(directory), "model.safetensors cannot be read", words)
    else:
        step = checkpoint.path_of(directory, 5)
        plant(step, name, content)
        refused(lambda: checkpoint.load_state(step), name, "cannot be read", words)
    assert peak_bytes() - before < 1 << 28
    record(24, 1, 1, "none")


# 24 and 26: the training state

STATE_ATTACKS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a key is missing": (lambda state: state.pop("n_targets") and None, "n_targets is missing"),
    "a key more": (lambda state: state.update(weights=1), "unknown key weights"),
    "a step of 1e300": (lambda state: state.update(step=1e300), "step must be an integer, not 1e+300"),
    "a step of many digits": (lambda state: state.update(step=10**39), "step is"),
    "another step": (lambda state: state.update(step=7), "expected step 20 as in the manifest, got 7"),
    "a text for a number": (lambda state: state.update(seconds="1"), "seconds must be a number, not '1'"),
    "a table for a list": (
        lambda state: state.update(unlogged={}),
        "unlogged must be list of [number, integer]",
    ),
    "no pair": (
        lambda state: state.update(unlogged=[[1.0]]),
        "must be list of [number, integer], not [[1.0]]",
    ),
    "a plateau of nothing": (lambda state: state.update(plateau={}), "factor is missing (in plateau of"),
    "a report of nothing": (lambda state: state.update(valid={"loss": 1}), "perplexity is missing (in valid of"),
    "no digest": (lambda state: state.update(data_digest=None), "data_digest must be a text, not None"),
    "a negative count": (
        lambda state: state.update(n_targets=-1),
        "n_targets: expected at least 0 and below 2^53, got -1",
    ),
    "a negative count in a list": (
        lambda state: state.update(unlogged=[[1.0, -2]]),
        "unlogged: expected at least 0 and below 2^53, got [(1.0, -2)]",
    ),
    "a negative count in a table": (
        lambda state: state.update(plateau={"factor": 1.0, "best": None, "n_worse": -1}),
        "n_worse: expected at least 0 and below 2^53, got -1",
    ),
    "a huge count": (
        lambda state: state.update(scheduled=[1 << 60]),
        "scheduled: expected at least 0 and below 2^53, got [1152921504606846976]",
    ),
    "a scale of a text": (
        lambda state: state.update(scaler={"factor": "1", "n_good_steps": 0}),
        "factor must be a number",
    ),
    "a list": (lambda state: [], "must be a table of numbers"),
}


@pytest.fixture
def stopped(trained: Outcome, tmp_path: Path) -> Path:
    """A run that a test may change and resume."""
    return Path(shutil.copytree(trained.folder, tmp_path / "run"))


@pytest.mark.parametrize("attack", STATE_ATTACKS)
def test_fault_24_an_impossible_training_state_is_refused(stopped: Path, attack: str) -> None:
    change, words = STATE_ATTACKS[attack]
    edit_json(checkpoint.path_of(stopped, 20), STATE, change)
    refused(lambda: api.resume(stopped), "state.json", words)
    record(24, 1, 1, "none")


@pytest.mark.parametrize("attack", ["shape", "part", "extra", *DTYPES])
def test_fault_26_an_optimizer_that_does_not_fit_is_refused(stopped: Path, attack: str) -> None:
    step = checkpoint.path_of(stopped, 20)
    tensors = load_file(step / OPTIMIZER)
    name = next(name for name in tensors if name.endswith("/exp_avg"))
    if attack == "shape":
        tensors[name] = torch.zeros(3)
    elif attack == "part":
        del tensors[name]
    elif attack == "extra":
        tensors["more/exp_avg"] = torch.zeros(3)
    else:
        tensors[name] = tensors[name].to(DTYPES[attack])
    save_file(tensors, step / OPTIMIZER)
    sign(step)
    if attack == "F32":
        assert api.resume(stopped).folder == stopped
        return
    named = "more/exp_avg" if attack == "extra" else name if attack in DTYPES else name.removesuffix("/exp_avg")
    refused(lambda: api.resume(stopped), named)
    record(26, 1, 1, "none")
