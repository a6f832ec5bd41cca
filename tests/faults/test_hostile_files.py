"""Files from others: nothing in them runs, fetches other files, or asks for memory; a sentence says what is wrong.

The numbers are those of the fault classes; every manifest is correct, since anybody can compute one.
"""

import functools
import io
import json
import os
import pickle
import random
import resource
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from configs import random_model
from glassformer import api, files, recipes
from glassformer.config import Stack, TransformerConfig
from glassformer.data.label_files import Dropped as DroppedLabels
from glassformer.data.labels import read_labels
from glassformer.data.pair_files import Dropped as DroppedPairs
from glassformer.data.pairs import read_pairs
from glassformer.data.sources import read_documents
from glassformer.errors import UserError
from glassformer.recurrent_config import RecurrentConfig
from glassformer.run_config import LabelData, PairData, Run
from glassformer.settings import apply_flags, parse_toml, to_dict
from glassformer.store import checkpoint
from glassformer.store.checkpoint import AVERAGE, OPTIMIZER, STATE, TrainingState
from glassformer.store.model_directory import publish, read_model, weights_of, write_model_files
from glassformer.store.tensors import read_tensors
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.launch import Outcome

from .hostile import WITHIN_S, edit_json, entry, plant, refused, safetensors, sign
from .tally import count, record

TEXT = "to be or not to be"
TOKENIZER = Tokenizer.train([TEXT], vocab_size=0, flavour="char")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with a model and one checkpoint."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    network = random_model("gpt", dtype=torch.float32)
    run, weights = Run(model=network.config), weights_of(network)
    state = TrainingState({"step": 5}, {"a/exp_avg": torch.zeros(2)}, average={"n_updates": torch.tensor(1)})
    checkpoint.save(folder, 5, lambda to: write_model_files(to, weights, TOKENIZER, run, None, ["a", "b"]), state)
    publish(checkpoint.path_of(folder, 5), folder, 5)
    return folder


@pytest.fixture
def directory(published: Path, tmp_path: Path) -> Path:
    """One that may be spoiled."""
    return Path(shutil.copytree(published, tmp_path / "run"))


def read_spoiled(directory: Path) -> Callable[[], object]:
    return functools.partial(read_model, directory)


# 21: pickles


class Payload:
    """What runs when it is unpickled: it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def pickles(mark: Path) -> dict[str, bytes]:
    """Every way in which a pickle comes along; all but the oldest, which is ASCII, are known by their first bytes."""
    found = {f"protocol {n}": pickle.dumps(Payload(mark), n) for n in (0, 2, 3, 4, 5)}
    objects = np.array([Payload(mark)], dtype=object)
    for name, write in {
        "torch.save": lambda file: torch.save(Payload(mark), file),
        "torch.save, old": lambda file: torch.save(Payload(mark), file, _use_new_zipfile_serialization=False),
        "numpy array": lambda file: np.save(file, objects, allow_pickle=True),
        "numpy archive": lambda file: np.savez(file, weights=objects),
    }.items():
        buffer = io.BytesIO()
        write(buffer)
        found[name] = buffer.getvalue()
    return found


def model_with(name: str) -> Callable[[Path, Path], None]:
    """An attack: a file of a model directory is the pickle."""

    def attack(path: Path, directory: Path) -> None:
        plant(directory, name, path.read_bytes())
        read_model(directory)

    return attack


def state_with(name: str) -> Callable[[Path, Path], None]:
    """An attack: a file of a checkpoint's training state is the pickle."""

    def attack(path: Path, directory: Path) -> None:
        step = checkpoint.path_of(directory, 5)
        plant(step, name, path.read_bytes())
        checkpoint.load_state(step)

    return attack


def folder_with(name: str) -> Callable[[Path, Path], None]:
    """An attack: a folder of somebody else's, with the pickle under the name that is usual there."""

    def attack(path: Path, directory: Path) -> None:
        other = directory.parent / "other"
        other.mkdir(exist_ok=True)
        shutil.copyfile(path, other / name)
        api.load(other)

    return attack


def data_as(suffix: str, read: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    """An attack: data that is the pickle."""

    def attack(path: Path, directory: Path) -> None:
        renamed = directory.parent / f"data{suffix}"
        shutil.copyfile(path, renamed)
        read(renamed)

    return attack


PLACES: dict[str, Callable[[Path, Path], None]] = {
    **{name: model_with(name) for name in ("model.safetensors", "config.json", "tokenizer.json", "labels.json")},
    **{name: model_with(name) for name in ("manifest.json", "generation.json", "run.toml")},
    **{name: state_with(name) for name in (STATE, OPTIMIZER, AVERAGE)},
    "pytorch_model.bin": folder_with("pytorch_model.bin"),
    "distributed checkpoint": folder_with(".metadata"),
    "the model directory": lambda path, directory: read_model(path),
    "a tokenizer": lambda path, directory: Tokenizer.load(path) and None,
    "a text": data_as(".txt", lambda path: list(read_documents([path]))),
    "a text called .pt": data_as(".pt", lambda path: list(read_documents([path]))),
    "records": data_as(".jsonl", lambda path: list(read_documents([path]))),
    "pairs": data_as(".tsv", lambda path: read_pairs(PairData(path=str(path)), DroppedPairs())),
    "labels": data_as(".csv", lambda path: read_labels(LabelData(), str(path), DroppedLabels())),
}


@pytest.mark.parametrize("place", PLACES)
def test_fault_21_a_pickle_is_refused_with_the_way_to_convert_it_and_never_runs(
    directory: Path, tmp_path: Path, place: str
) -> None:
    mark = tmp_path / "it ran"
    pickle.loads(pickles(mark)["protocol 4"])
    assert mark.exists(), "the payload is one"
    mark.rmdir()
    manifest = (directory / "manifest.json").read_bytes()
    for kind, content in pickles(mark).items():
        path = tmp_path / "weights.pt"
        path.write_bytes(content)
        (directory / "manifest.json").write_bytes(manifest)
        if kind == "protocol 0":  # ASCII: as a text it is one, and elsewhere it is something else that cannot be read
            try:
                PLACES[place](path, directory)
            except UserError as error:
                assert "\n" not in str(error)
        elif place == "manifest.json":
            (directory / "manifest.json").write_bytes(content)
            refused(read_spoiled(directory), "manifest.json", "pickle")
        else:
            refused(lambda path=path: PLACES[place](path, directory), "is a pickle", "safetensors.torch.save_file")
        assert not mark.exists(), f"a {kind} ran"
    record(21, len(pickles(mark)), len(pickles(mark)), "none: every kind in every place")


# 22: code that a configuration asks for


@pytest.mark.parametrize("key", ["auto_map", "trust_remote_code", "custom_pipelines", "architectures"])
def test_fault_22_code_that_comes_with_a_model_never_runs(directory: Path, tmp_path: Path, key: str) -> None:
    mark = tmp_path / "it ran"
    for name in ("modeling_evil.py", "conftest.py", "__init__.py", "setup.py"):
        (directory / name).write_text(f"open({str(mark)!r}, 'w')")
    sign(directory)
    read_model(directory)  # such files are left alone
    (directory / "tokenizer_config.json").write_text(json.dumps({key: "modeling_evil.Tokenizer"}))
    sign(directory)
    read_model(directory)
    edit_json(directory, "config.json", lambda value: value | {key: {"AutoModel": "modeling_evil.Model"}})
    refused(read_spoiled(directory), f"unknown key {key}", "config.json")
    assert not mark.exists() and "modeling_evil" not in sys.modules
    record(22, 3, 3, "none")


# 23: paths that lead out


def resign(directory: Path, name: str) -> None:
    """A manifest that also vouches for a file of any name, and agrees with itself."""
    from glassformer.store import manifest

    value = json.loads((directory / "manifest.json").read_text())
    del value["sha256"]
    value["files"][name] = {"bytes": 1, "sha256": "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"}
    (directory / "manifest.json").write_text(json.dumps({"sha256": manifest._digest(value), **value}))


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/hostname", "checkpoints/../../x", ".", "", "..", "model.safetensors\0", "\0", "link/x"],
)
def test_fault_23_a_manifest_that_leads_out_is_refused(directory: Path, name: str) -> None:
    (directory.parent / "x").write_text("x")
    (directory / "link").symlink_to(directory.parent)
    resign(directory, name)
    refused(read_spoiled(directory), "manifest.json", "outside of the folder")
    record(23, 1, 1, "none")


@pytest.mark.parametrize(("name", "words"), [("a" * 5000, "File name too long"), ("b\nc", "'b\\nc' is missing")])
def test_fault_23_a_manifest_that_names_what_cannot_be(directory: Path, name: str, words: str) -> None:
    resign(directory, name)
    refused(read_spoiled(directory), words)
    record(23, 1, 1, "none")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "labels.json", "run.toml"])
def test_fault_23_a_link_is_not_followed_out_of_the_folder(directory: Path, name: str) -> None:
    (directory / name).rename(directory.parent / name)
    (directory / name).symlink_to(directory.parent / name)
    refused(read_spoiled(directory), name, "outside of the folder")
    (directory / name).unlink()
    (directory / name).symlink_to(directory / name)  # in a circle
    refused(read_spoiled(directory), name)
    record(23, 2, 2, "none")


@pytest.mark.parametrize("name", ["source_tokenizer.json", "labels.json", AVERAGE])
def test_fault_23_a_file_that_the_manifest_does_not_vouch_for_is_not_read(directory: Path, name: str) -> None:
    folder = checkpoint.path_of(directory, 5) if name == AVERAGE else directory
    (folder / name).unlink(missing_ok=True)
    sign(folder)
    (folder / name).symlink_to("/dev/zero")
    if name == AVERAGE:
        assert checkpoint.load_state(folder).average is None
    else:
        stored = read_model(folder)
        assert stored.source_tokenizer is None or stored.labels == ()
    record(23, 1, 1, "none")


def test_fault_23_names_with_a_nul_are_no_files(tmp_path: Path) -> None:
    refused(lambda: api.load("a\0b"), "no such model directory")
    refused(lambda: Tokenizer.load(Path("a\0b")), "no file can be called")
    run = recipes.parse('[data]\npath = "a\\u0000b"\n', "recipe")
    refused(lambda: api.train(run, tmp_path / "out"), "characters that cannot be written down")
    record(23, 3, 3, "none")


def test_fault_23_a_folder_of_texts_neither_leads_out_nor_hangs(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "a.txt").write_text("open")
    (folder / "b.txt").symlink_to(tmp_path / "secret.txt")
    refused(lambda: list(read_documents([folder])), "b.txt is a link out of")
    (folder / "b.txt").unlink()
    os.mkfifo(folder / "c.txt")
    refused(lambda: list(read_documents([folder])), "c.txt is no ordinary file")
    (folder / "c.txt").unlink()
    (folder / "d.txt").symlink_to(folder / "a.txt")
    assert list(read_documents([folder])) == ["open", "open"]
    record(23, 2, 2, "none")


# 24: absurd sizes and text that says two things


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
    ("decoder.d_value", 10**9),
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
def test_fault_24_an_absurd_configuration_is_refused_before_any_memory_is_asked_for(
    directory: Path, key: str, value: Any
) -> None:
    def change(config: dict[str, Any]) -> None:
        *path, leaf = key.split(".")
        for name in path:
            config = config[name]
        config[leaf] = value

    before = peak_bytes()
    edit_json(directory, "config.json", change)
    refused(read_spoiled(directory), f"model.{key}" if not isinstance(value, str | list | dict | float) else key)
    assert peak_bytes() - before < 1 << 28
    record(24, 1, 1, "none")


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary", "learned", "alibi", "relative", "none"])
@pytest.mark.parametrize("max_len", [10**12, 1 << 24])
def test_fault_24_a_context_that_no_table_could_hold(directory: Path, positions: str, max_len: int) -> None:
    before = peak_bytes()
    edit_json(directory, "config.json", lambda c: c.update(max_len=max_len, positions={"kind": positions}))
    refused(read_spoiled(directory), "model.max_len is 1,000" if max_len > 1 << 24 else "does not fit the model")
    assert peak_bytes() - before < 1 << 28
    record(24, 1, 1, "none")


def test_fault_24_the_largest_sizes_that_are_allowed_ask_for_no_memory_either(directory: Path) -> None:
    before = peak_bytes()
    most = Stack(1000, 8, d_ff=1 << 20)
    config = TransformerConfig(decoder=most, d_model=1 << 20, vocab_size=1 << 24, max_len=1 << 24)
    plant(directory, "config.json", json.dumps(to_dict(config)))
    refused(read_spoiled(directory), "does not fit the model", "more")
    assert peak_bytes() - before < 1 << 29
    record(24, 1, 1, "none")


@pytest.mark.parametrize("key", ["n_layers", "d_embedding", "d_encoder", "d_decoder", "vocab_size", "max_len"])
def test_fault_24_recurrent_sizes_have_bounds_too(directory: Path, key: str) -> None:
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
        ("train.optimizer.learning-rate", "nan", "train.optimizer.learning_rate must be number"),
    ],
)
def test_fault_24_a_slip_of_the_keyboard_is_named(flag: str, value: str, words: str) -> None:
    refused(lambda: apply_flags(Run(), {flag: value}), words)
    record(24, 1, 1, "none")


def test_fault_24_a_model_larger_than_the_memory_is_refused_before_the_data_is_read(tmp_path: Path) -> None:
    run = Run(model=TransformerConfig(decoder=Stack(12, 8, d_ff=1 << 20), d_model=1 << 20))
    refused(lambda: api.train(run, tmp_path / "out"), "the model's weights take", "GiB of memory: make it smaller")
    assert not (tmp_path / "out").exists()
    record(24, 1, 1, "none")


DEEP = 100_000
JSON_ATTACKS = {
    "nested lists": ("[" * DEEP + "]" * DEEP, "nested deeper than 64"),
    "nested, but not much": ("[" * 100 + "]" * 100, "nested deeper than 64"),
    "nested objects": ('{"a":' * DEEP + "1" + "}" * DEEP, "nested deeper than 64"),
    "unfinished": ("[" * DEEP, "nested deeper than 64"),
    "a key twice": ('{"d_model": 8, "d_model": 16}', "the key 'd_model' stands twice"),
    "NaN": ('{"norm_eps": NaN}', "NaN is no number"),
    "infinity": ('{"norm_eps": -Infinity}', "Infinity is no number"),
    "beyond a float": ('{"norm_eps": 1e999}', "beyond any float"),
    "many digits": ('{"d_model": 1' + "0" * 5000 + "}", "a number of 5001 digits"),
    "too large": (" " * (64 * 1024 * 1024 + 1), "that are read at once"),
    "UTF-16": (json.dumps({"d_model": 8}).encode("utf-16-le"), "it has a NUL"),
    "nothing": ("", ""),
    "a number": ("7", ""),
    "a list": ("[]", ""),
    "null": ("null", ""),
}


@pytest.mark.parametrize(
    "name", ["config.json", "generation.json", "tokenizer.json", "labels.json", "manifest.json", STATE]
)
@pytest.mark.parametrize("attack", JSON_ATTACKS)
def test_fault_24_json_that_is_absurd_or_says_two_things(directory: Path, name: str, attack: str) -> None:
    content, words = JSON_ATTACKS[attack]
    if (name, attack) == ("labels.json", "a list"):
        return  # no names of labels are none
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
def test_fault_24_toml_that_is_absurd(directory: Path, text: str) -> None:
    refused(lambda: parse_toml(text, "recipe.toml"), "recipe.toml is no")
    plant(directory, "run.toml", text)
    refused(read_spoiled(directory), "run.toml is no")
    record(24, 2, 2, "none")


HEADERS: dict[str, tuple[bytes, str]] = {
    "over the cap": ((1 << 40).to_bytes(8, "little") + b"{}", "its header would have 1,099,511,627,776 bytes"),
    "empty": (b"", "cannot be read"),
    "cut short": (safetensors({"w": entry()})[:20], "cannot be read"),
    "nested": (safetensors(b"[" * DEEP), "nested deeper than 64"),
    "a list": (safetensors(b"[]"), "its header is no table"),
    "not UTF-8": (safetensors(b"\xff" * 8), "cannot be read"),
    "a name twice": (
        safetensors(b'{"w": %s, "w": %s}' % ((json.dumps(entry()).encode(),) * 2)),
        "the key 'w' stands twice",
    ),
    "overlapping": (safetensors({"v": entry(), "w": entry(shape=[2], offsets=[8, 16])}), "w overlaps"),
    "the same bytes twice": (safetensors({"v": entry(), "w": entry()}), "w overlaps"),
    "a gap": (
        safetensors({"v": entry(shape=[1], offsets=[0, 4]), "w": entry(shape=[2], offsets=[8, 16])}),
        "w follows",
    ),
    "bytes that nobody has": (safetensors({"w": entry(shape=[2], offsets=[0, 8])}), "take 8 bytes and it has 16"),
    "beyond the end": (safetensors({"w": entry(shape=[40], offsets=[0, 160])}), "take 160 bytes and it has 16"),
    "a huge tensor": (safetensors({"w": entry(shape=[10**12], offsets=[0, 4 * 10**12])}), "bytes and it has 16"),
    "a shape that lies": (safetensors({"w": entry(shape=[10**12])}), "w has offsets 0 to 16"),
    "a shape that overflows": (safetensors({"w": entry(shape=[1 << 40, 1 << 40])}), "w has offsets 0 to 16"),
    "nothing, many times": (safetensors({"w": entry(shape=[0] * 10**5, offsets=[0, 0])}), "dimensions"),
    "a negative shape": (safetensors({"w": entry(shape=[-4])}), "must be whole numbers"),
    "a shape of fractions": (safetensors({"w": entry(shape=[4.0])}), "must be whole numbers"),
    "no offsets": (safetensors({"w": {"dtype": "F32", "shape": [4]}}), "w is not told by dtype, shape"),
    "an unknown dtype": (safetensors({"w": entry("F8_E4M3", [16])}), "w is of dtype 'F8_E4M3'; known are F64"),
    "a dtype that is none": (safetensors({"w": entry([])}), "w is of dtype"),  # type: ignore[arg-type]
    "complex numbers": (safetensors({"w": entry("C64", [2])}), "w is of dtype 'C64'"),
}


@pytest.mark.parametrize("attack", HEADERS)
@pytest.mark.parametrize("name", ["model.safetensors", OPTIMIZER, AVERAGE])
def test_fault_24_a_header_that_contradicts_itself(directory: Path, name: str, attack: str) -> None:
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


# 24 and 26: the state of a training

STATE_ATTACKS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a key is missing": (lambda state: state.pop("n_targets") and None, "n_targets is missing"),
    "a key more": (lambda state: state.update(weights=1), "'weights' is unknown"),
    "a step of 1e300": (lambda state: state.update(step=1e300), "step is '1e+300' and must be"),
    "a step of many digits": (lambda state: state.update(step=10**39), "step is"),
    "another step": (lambda state: state.update(step=7), "step is 7, and the checkpoint is that of step 20"),
    "a text for a number": (lambda state: state.update(seconds="1"), "seconds is '1' and must be a number"),
    "a table for a list": (lambda state: state.update(unlogged={}), "unlogged is '{}' and must be pairs"),
    "no pair": (lambda state: state.update(unlogged=[[1.0]]), "unlogged is"),
    "a plateau of nothing": (lambda state: state.update(plateau={}), "plateau is"),
    "a report of nothing": (lambda state: state.update(valid={"loss": 1}), "valid is"),
    "no digest": (lambda state: state.update(data_digest=None), "data_digest is"),
    "a list": (lambda state: [], "must be a table of numbers"),
}


@pytest.fixture
def stopped(trained: Outcome, tmp_path: Path) -> Path:
    """A run that may be spoiled and resumed."""
    return Path(shutil.copytree(trained.folder, tmp_path / "run"))


@pytest.mark.parametrize("attack", STATE_ATTACKS)
def test_fault_24_a_training_state_that_says_what_none_can(stopped: Path, attack: str) -> None:
    change, words = STATE_ATTACKS[attack]
    edit_json(checkpoint.path_of(stopped, 20), STATE, change)
    refused(lambda: api.resume(stopped), "state.json", words)
    record(24, 1, 1, "none")


@pytest.mark.parametrize("attack", ["shape", "part", "extra", "dtype"])
def test_fault_26_an_optimizer_that_does_not_fit(stopped: Path, attack: str) -> None:
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
        tensors[name] = tensors[name].to(torch.complex64)
    save_file(tensors, step / OPTIMIZER)
    sign(step)
    named = "more/exp_avg" if attack == "extra" else name if attack == "dtype" else name.removesuffix("/exp_avg")
    refused(lambda: api.resume(stopped), named)
    record(26, 1, 1, "none")


# 25: tokenizers


def test_fault_25_random_bytes_in_a_tokenizer_give_a_tokenizer_or_a_sentence(tmp_path: Path) -> None:
    n, seed = count(150, 1000), 25
    rng = random.Random(seed)
    originals = [
        Tokenizer.train([TEXT], vocab_size=290).to_json().encode(),
        Tokenizer.train([TEXT], vocab_size=40, flavour="word").to_json().encode(),
        Tokenizer.train([TEXT], vocab_size=0, flavour="whole_words").to_json().encode(),
    ]
    path = tmp_path / "tokenizer.json"
    n_loaded = 0
    for _ in range(n):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice((1, 1, 2, 8))):
            place = rng.randrange(len(data))
            data[place : place + rng.choice((0, 1, 1, 1, 50))] = rng.randbytes(rng.choice((0, 1, 1, 1, 3)))
        path.write_bytes(data)
        begin = time.monotonic()
        try:
            tokenizer = Tokenizer.load(path)
            ids = tokenizer.encode("to be [MASK] é")
            assert all(0 <= i < tokenizer.vocab_size for i in ids)
            tokenizer.decode(range(tokenizer.vocab_size))
            n_loaded += 1
        except UserError as error:
            assert "\n" not in str(error)
        assert time.monotonic() - begin < WITHIN_S
    record(25, n, n, f"{seed}; {n_loaded} loaded")


TOKENIZER_ATTACKS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "an id of 4e9": (lambda d: d["model"]["vocab"].update(zz=4 * 10**9), "without a gap"),
    "an id of 1e40": (lambda d: d["model"]["vocab"].update(zz=10**39), "its vocabulary is no table"),
    "an id below 0": (lambda d: d["model"]["vocab"].update(zz=-1), "its vocabulary is no table"),
    "an id twice": (lambda d: d["model"]["vocab"].update(zz=0), "without a gap"),
    "an id that is a fraction": (lambda d: d["model"]["vocab"].update(zz=1.5), "its vocabulary is no table"),
    "two ids": (lambda d: d["added_tokens"][0].update(id=5), "'[PAD]' has the id 5, and 0"),
    "an added id of 1e9": (lambda d: d["added_tokens"].append(added("[X]", 10**9)), "without a gap"),
    "a token twice": (lambda d: d["added_tokens"].append(d["added_tokens"][0]), "named twice"),
    "an empty token": (lambda d: d["added_tokens"].append(added("", 47)), "have no content"),
    "a token that is a letter": (lambda d: d["added_tokens"].append(added("e", d["model"]["vocab"]["e"])), "too short"),
    "a damaged map of characters": (
        lambda d: d.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        "a part of type Precompiled",
    ),
    "merges of nothing": (lambda d: d["model"].update(merges=[["x", "q"]]), "not a whole tokenizer.json"),
    "merges of three": (lambda d: d["model"].update(merges=[["t", "o", " "]]), "not a whole tokenizer.json"),
    "parts in parts": (
        lambda d: d.update(
            pre_tokenizer=functools.reduce(
                lambda inner, _: {"type": "Sequence", "pretokenizers": [inner]}, range(100), d["pre_tokenizer"]
            )
        ),
        "nested deeper than 64",
    ),
}
SLOW = [
    "(a+)+$",
    "(a|a)*$",
    "(a|aa)+$",
    "(.*a){30}",
    r"(\s*)*x",
    "((a{1000}){1000}){1000}",
    r"^(([a-z])+.)+[A-Z]$",
    "\\",
]


def added(content: str, number: int) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": content, "special": True, **flags}


@pytest.mark.parametrize("attack", TOKENIZER_ATTACKS)
def test_fault_25_a_tokenizer_that_cannot_be(tmp_path: Path, attack: str) -> None:
    change, words = TOKENIZER_ATTACKS[attack]
    description = json.loads(TOKENIZER.to_json())
    del description["model"]["frequencies"]
    change(description)
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(description))
    refused(lambda: Tokenizer.load(path), "tokenizer.json", words)
    record(25, 1, 1, "none")


def test_fault_25_a_token_that_no_byte_spells(tmp_path: Path) -> None:
    description = json.loads(Tokenizer.train([TEXT], vocab_size=290).to_json())
    description["model"]["vocab"]["日"] = len(description["model"]["vocab"])
    del description["model"]["frequencies"]
    refused(lambda: Tokenizer.from_json(json.dumps(description)), "'日', which stands for no byte")
    record(25, 1, 1, "none")


@pytest.mark.parametrize("expression", SLOW)
def test_fault_25_an_expression_that_backtracks_for_ever_is_never_compiled(tmp_path: Path, expression: str) -> None:
    pattern = {"Regex": expression}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    replaced = {"type": "Replace", "pattern": pattern, "content": "x"}
    parts = {
        "pre_tokenizer": [split, {"type": "Sequence", "pretokenizers": [split]}],
        "normalizer": [
            replaced,
            {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [replaced]}]},
        ],
        "decoder": [replaced],
    }
    for name, values in parts.items():
        for value in values:
            description = json.loads(TOKENIZER.to_json()) | {name: value}
            (tmp_path / "t.json").write_text(json.dumps(description))
            refused(lambda: Tokenizer.load(tmp_path / "t.json"), "expression", "none of ours")
    record(25, 5, 5, "none")


# 26: tensors that are not those of the model


def test_fault_26_what_does_not_fit_is_listed_by_name_and_counted(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    names = list(tensors)
    tensors[names[0]] = torch.zeros(3, 5)
    tensors[names[1]] = tensors[names[1]].double()
    tensors[names[2]] = torch.zeros(tensors[names[2]].shape, dtype=torch.int64)
    del tensors[names[3]]
    tensors["head.evil"] = torch.zeros(1)
    save_file(tensors, directory / "model.safetensors")
    sign(directory)
    message = refused(read_spoiled(directory), "model.safetensors does not fit the model", "head.evil is not part of")
    assert f"{names[0]} has shape (3, 5) and not" in message and f"{names[3]} is missing" in message
    assert f"{names[1]} is of float64 and not float32" in message
    assert f"{names[2]} is of int64 and not float32" in message
    save_file({f"x{i}": torch.zeros(1) for i in range(20)}, directory / "model.safetensors")
    sign(directory)
    message = refused(read_spoiled(directory))
    assert message.count(";") == 7 and message.endswith(f"and {len(names) + 12} more")
    record(26, 6, 6, "none")


def test_fault_26_narrower_weights_are_taken_over_exactly(directory: Path) -> None:
    halves = {name: x.to(torch.bfloat16) for name, x in load_file(directory / "model.safetensors").items()}
    save_file(halves, directory / "model.safetensors")
    sign(directory)
    network = read_model(directory).network
    for name, x in network.state_dict().items():
        if name in halves:
            assert x.dtype == torch.float32 and torch.equal(x, halves[name].float())


def test_fault_26_weights_are_compared_before_the_network_takes_any_memory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassformer.store import model_directory

    devices: list[Any] = []
    build = model_directory.build_model
    monkeypatch.setattr(
        model_directory, "build_model", lambda config, device: devices.append(device) or build(config, device)
    )
    read_model(directory)
    assert devices == ["meta", "cpu"]
    devices.clear()
    edit_json(directory, "config.json", lambda config: config.update(d_model=config["d_model"] * 2))
    refused(read_spoiled(directory), "does not fit the model")
    assert devices == ["meta"]


@pytest.mark.parametrize("names", [["a", "a"], ["a", 1], {"a": 1}, "ab", ["a"] * 3])
def test_fault_26_names_of_labels_that_are_none(directory: Path, names: Any) -> None:
    plant(directory, "labels.json", json.dumps(names))
    refused(read_spoiled(directory), "labels.json")
    record(26, 1, 1, "none")


def test_fault_26_an_average_of_models_reads_as_carefully(directory: Path, tmp_path: Path) -> None:
    from glassformer.training.averaging import average_directories

    plant(directory, "model.safetensors", safetensors({"v": entry(), "w": entry()}))
    refused(lambda: average_directories([directory], tmp_path / "mean"), "w overlaps")
    assert not (tmp_path / "mean").exists()


def test_a_whole_model_is_still_read(directory: Path) -> None:
    """The bounds refuse nothing that this package writes."""
    stored = read_model(directory)
    assert stored.labels == ("a", "b") and replace(stored.config) == stored.config
    assert read_tensors(directory / "model.safetensors").keys() == load_file(directory / "model.safetensors").keys()
    assert files.parse_json("[" * 64 + "]" * 64)
