"""Files on disk: complete and verified, tied tensors stored once, no file that could run code."""

import ast
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import glassformer
from configs import CONFIGS, random_ids, random_inputs, random_model
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.run import GenerationConfig, LoraConfig, Run
from glassformer.config.schema import to_dict
from glassformer.config.written import to_toml
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.models.transforms import add_lora
from glassformer.store import checkpoint, manifest, model_directory
from glassformer.store.checkpoint import TrainingState
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import MODEL_FILES, load_weights, publish, read_model, weights_of
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

TOKENIZER = Tokenizer.train(["to be or not to be"], vocab_size=0, scheme="char")
STATE = TrainingState({"step": 5, "best": 1.5}, {"0.exp_avg": torch.arange(6.0).reshape(2, 3).T})


def model(name: str = "gpt") -> tuple[Transformer, Run]:
    network = random_model(name, dtype=torch.float32)
    return network, Run(model=network.config, generation=GenerationConfig(stop=("\n", 'a "b"')))


def save(folder: Path, step: int = 5, name: str = "gpt", state: TrainingState = STATE) -> Transformer:
    """Write a run folder with one checkpoint; each step has other weights."""
    network, run = model(name)
    next(network.parameters()).data.add_(step)
    checkpoint.save(
        folder,
        step,
        lambda to: model_directory.write_model_files(to, weights_of(network), Tokenizers(TOKENIZER), run),
        state,
    )
    return network


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save(tmp_path / "run")
    publish(tmp_path / "run" / "checkpoints" / "step-5", tmp_path / "run", 5)
    return tmp_path / "run"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_model_is_loaded_unchanged(name: str, tmp_path: Path) -> None:
    network, before = save(tmp_path, name=name), torch.get_rng_state()
    stored = read_model(checkpoint.path_of(tmp_path, 5))
    assert torch.equal(torch.get_rng_state(), before), "weights were drawn, which takes time, before they were read"
    assert stored.config == network.config
    assert stored.generation.stop == ("\n", 'a "b"') and stored.run.generation == stored.generation
    assert stored.tokenizers.target.vocab == TOKENIZER.vocab
    assert (stored.manifest.kind, stored.manifest.step) == ("checkpoint", 5)
    inputs = random_inputs(network)
    assert not stored.network.training
    with torch.no_grad():
        expected = network(inputs.token_ids, **inputs.others)
        assert torch.equal(stored.network(inputs.token_ids, **inputs.others), expected)


def test_a_published_model_is_a_model_directory(directory: Path) -> None:
    stored = read_model(directory)
    assert (stored.manifest.kind, stored.manifest.step) == ("model", 5)
    assert sorted(stored.manifest.entries) == sorted(MODEL_FILES)
    assert {path.name for path in directory.iterdir()} == {*MODEL_FILES, "manifest.json", "checkpoints"}


@pytest.mark.parametrize("name", ["gpt", "paper", "bert", "two_vocabularies"])
def test_a_tied_table_is_stored_once(name: str, tmp_path: Path) -> None:
    network = save(tmp_path, name=name)
    stored = load_file(tmp_path / "checkpoints" / "step-5" / "model.safetensors")
    assert sum(x.numel() for x in stored.values()) == sum(p.numel() for p in network.parameters()) + sum(
        x.numel() for n, x in network.state_dict().items() if n in dict(network.named_buffers())
    )
    assert len({x.data_ptr() for x in weights_of(network).values()}) == len(weights_of(network))


@pytest.mark.parametrize("place", [0.0, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("name", [*MODEL_FILES, "manifest.json"])
def test_a_flipped_bit_is_detected(directory: Path, name: str, place: float) -> None:
    data = bytearray((directory / name).read_bytes())
    data[int(place * len(data))] ^= 1
    (directory / name).write_bytes(data)
    with pytest.raises(UserError, match=r"damaged|not valid JSON|not UTF-8"):
        read_model(directory)


def test_every_flipped_bit_of_a_manifest_is_detected(directory: Path) -> None:
    path = directory / "manifest.json"
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        for bit in (1, 4, 32):
            data = bytearray(whole)
            data[place] ^= bit
            path.write_bytes(data)
            with pytest.raises(UserError):
                Manifest.read(directory).verify(directory)


@pytest.mark.parametrize("name", MODEL_FILES)
def test_a_damaged_model_error_names_the_file_and_the_checkpoints(directory: Path, name: str) -> None:
    data = (directory / name).read_bytes()
    (directory / name).write_bytes(data[:-1])
    with pytest.raises(UserError, match=f"{name} is not the file that was written; an intact checkpoint may be in"):
        read_model(directory)
    (directory / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        read_model(directory)


@pytest.mark.parametrize("name", [checkpoint.STATE, checkpoint.OPTIMIZER])
def test_a_damaged_training_state_is_detected(directory: Path, name: str) -> None:
    path = checkpoint.path_of(directory, 5)
    (path / name).write_bytes((path / name).read_bytes()[:-1])
    with pytest.raises(UserError, match="no intact checkpoint"):
        checkpoint.newest(directory, lambda text: None)


def test_a_path_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such model directory"):
        read_model(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"is not a model directory: it has no manifest.json"):
        read_model(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file: give a model directory"):
        read_model(tmp_path / "file")


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_checkpoint_of_hugging_face_is_named_with_the_command_that_imports_it(tmp_path: Path, weights: str) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / weights).write_bytes(b"x")
    with pytest.raises(UserError) as raised:
        glassformer.load(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path} is a Hugging Face checkpoint: run `glassformer import {tmp_path} OUT`, or in Python "
        f"glassformer.import_model('{tmp_path}', 'OUT'), and use OUT"
    )
    for text in ("[]", "{", '{"d_model": 4}'):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"has no manifest\.json|pickle"):
            glassformer.load(tmp_path)


def rewrite(folder: Path, **changes: Any) -> None:
    """Write a manifest with other content and the correct digest."""
    value = json.loads((folder / "manifest.json").read_text()) | changes
    del value["sha256"]
    (folder / "manifest.json").write_text(json.dumps({"sha256": manifest._digest(value), **value}))


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "checkpoints/../../secret", "."])
def test_a_manifest_that_names_files_outside_is_refused(directory: Path, name: str) -> None:
    (directory.parent / "secret").write_text("x")
    rewrite(directory, files={name: {"bytes": 1, "sha256": "0" * 64}})
    with pytest.raises(UserError, match="which is outside the folder"):
        read_model(directory)


def test_a_link_out_of_the_folder_is_refused(directory: Path) -> None:
    (directory / "config.json").rename(directory.parent / "config.json")
    (directory / "config.json").symlink_to(directory.parent / "config.json")
    with pytest.raises(UserError, match="outside the folder"):
        read_model(directory)


@pytest.mark.parametrize("changes", [{"files": []}, {"files": {"a": 1}}, {"step": "x"}, {"format_version": None}])
def test_a_manifest_of_another_form_is_damaged(directory: Path, changes: dict[str, Any]) -> None:
    rewrite(directory, **changes)
    with pytest.raises(UserError, match=r"manifest.json is damaged"):
        read_model(directory)


def test_a_newer_format_is_named(directory: Path) -> None:
    rewrite(directory, format_version=2)
    with pytest.raises(UserError, match=r"newer format .2.: update glassformer"):
        read_model(directory)


def test_a_manifest_without_a_needed_file_is_refused(directory: Path) -> None:
    entries = json.loads((directory / "manifest.json").read_text())["files"]
    del entries["tokenizer.json"]
    rewrite(directory, files=entries)
    with pytest.raises(UserError, match=r"has no tokenizer.json"):
        read_model(directory)


def test_pitfall_30_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    config = replace(CONFIGS["gpt"], vocab_size=TOKENIZER.vocab_size - 1)
    network = build_model(config)
    run = Run(model=config)
    checkpoint.save(
        tmp_path,
        1,
        lambda to: model_directory.write_model_files(to, weights_of(network), Tokenizers(TOKENIZER), run),
        STATE,
    )
    size = TOKENIZER.vocab_size
    with pytest.raises(UserError, match=f"tokenizer has {size} tokens, but the model only {size - 1}"):
        read_model(checkpoint.path_of(tmp_path, 1))


def test_pitfall_15_weights_stay_tied_on_load(tmp_path: Path) -> None:
    network = save(tmp_path)
    loaded = read_model(checkpoint.path_of(tmp_path, 5)).network
    assert sum(1 for _ in loaded.parameters()) == sum(1 for _ in network.parameters())
    assert loaded.decoder is not None
    with torch.no_grad():
        ids = random_ids(19, 1, 4)
        before = loaded(ids)
        loaded.decoder.embeddings.tokens.weight += 1
        assert not torch.equal(loaded(ids), before)


def test_weights_that_do_not_fit_are_listed(tmp_path: Path) -> None:
    network = random_model("gpt", dtype=torch.float32)
    tensors = weights_of(network)
    first, second, *_ = tensors
    wrong = {name: x for name, x in tensors.items() if name != first} | {second: torch.zeros(3), "more": torch.zeros(1)}
    save_file(wrong, tmp_path / "w.safetensors")
    before = {name: x.clone() for name, x in tensors.items()}
    with pytest.raises(UserError) as caught:
        load_weights(network, tmp_path / "w.safetensors")
    message = str(caught.value)
    assert f"{first} is missing" in message and "more is not part of this model" in message
    assert f"{second} has shape (3,)" in message
    assert all(torch.equal(x, before[name]) for name, x in weights_of(network).items()), (
        "a part of the weights was loaded"
    )
    (tmp_path / "w.safetensors").write_bytes(b"no tensors")
    with pytest.raises(UserError, match="cannot be read"):
        load_weights(network, tmp_path / "w.safetensors")


def test_a_save_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checkpoint.save(tmp_path, 5, write, STATE)
    assert list((tmp_path / "checkpoints").iterdir()) == []
    assert checkpoint.steps(tmp_path) == []


def test_a_save_that_fails_keeps_the_old_checkpoint(directory: Path) -> None:
    def write(folder: Path) -> None:
        raise UserError("the disk is full")

    with pytest.raises(UserError, match="the disk is full"):
        checkpoint.save(directory, 5, write, STATE)
    Manifest.read(checkpoint.path_of(directory, 5)).verify(checkpoint.path_of(directory, 5))


def test_the_training_state_is_loaded_unchanged(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3), "b": torch.tensor(7)}
    save(tmp_path, state=replace(STATE, average=tensors, weights={"w": torch.ones(2)}))
    path = checkpoint.path_of(tmp_path, 5)
    state = checkpoint.load_state(path)
    assert state.numbers == STATE.numbers
    assert torch.equal(state.optimizer["0.exp_avg"], STATE.optimizer["0.exp_avg"])
    assert state.average is not None and torch.equal(state.average["a"], tensors["a"])
    assert torch.equal(load_file(checkpoint.weights_path(path))["w"], torch.ones(2))


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8, 10):
        save(tmp_path, step)
    (tmp_path / "checkpoints" / ".step-7.tmp-123").mkdir()  # of a process that was killed
    (tmp_path / "checkpoints" / "mine").mkdir()
    checkpoint.prune(tmp_path, latest=10, keep=2, always={4})
    checkpoint.clean(tmp_path)
    assert checkpoint.steps(tmp_path) == [4, 8, 10]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-4", "step-8", "step-10", "mine"}


@pytest.mark.parametrize(
    "use",
    [
        checkpoint.require_one,
        checkpoint.clean,
        lambda run: checkpoint.find(run, 5),
        lambda run: checkpoint.newest(run, print),
    ],
    ids=["check", "clean", "load", "resume"],
)
def test_a_checkpoint_that_a_killed_process_was_replacing_is_restored(
    use: Callable[[Path], object], tmp_path: Path
) -> None:
    save(tmp_path)
    path = checkpoint.path_of(tmp_path, 5)
    path.rename(path.with_name(".step-5.tmp-7-0123abcd-replaced"))
    use(tmp_path)
    assert [found.name for found in path.parent.iterdir()] == ["step-5"]


def test_a_damaged_newest_checkpoint_prevents_pruning(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step)
    (checkpoint.path_of(tmp_path, 6) / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match="damaged"):
        checkpoint.prune(tmp_path, latest=6, keep=1, always=set())
    assert checkpoint.steps(tmp_path) == [2, 4, 6]


def test_later_checkpoints_do_not_count_when_pruning(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, latest=4, keep=1, always=set())
    assert checkpoint.steps(tmp_path) == [4, 6]


def test_a_missing_checkpoint_is_named_with_the_existing_ones(directory: Path) -> None:
    assert checkpoint.find(directory, 5).name == "step-5"
    with pytest.raises(UserError, match="no checkpoint of step 6; existing steps: 5"):
        checkpoint.find(directory, 6)


def test_an_interrupted_publication_is_detected_and_repaired(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(directory, 10)
    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", lambda self, folder, name: (_ for _ in ()).throw(KeyboardInterrupt))
        (directory / "model.safetensors").write_bytes(b"older weights")
        with pytest.raises(KeyboardInterrupt):
            publish(checkpoint.path_of(directory, 10), directory, 10)
    assert not model_directory.is_published(directory, 10)
    publish(checkpoint.path_of(directory, 10), directory, 10)
    assert model_directory.is_published(directory, 10)
    assert read_model(directory).manifest.step == 10


@pytest.mark.parametrize("until", ["the weights are replaced", "the end"])
def test_a_model_published_during_a_read_is_read_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch, until: str
) -> None:
    """The weights are newer than the verified manifest; the manifest itself may still be the older one."""
    save(directory, 10)
    newer = checkpoint.path_of(directory, 10)
    expected = weights_of(read_model(newer).network)
    older = weights_of(read_model(directory).network)
    assert not all(torch.equal(tensor, older[name]) for name, tensor in expected.items())
    calls: list[Path] = []

    def load(network: nn.Module, path: Path) -> None:
        if not calls and until == "the end":
            publish(newer, directory, 10)
        elif not calls:
            shutil.copyfile(newer / path.name, directory / "copy")
            (directory / "copy").replace(path)
        calls.append(path)
        load_weights(network, path)
        if len(calls) == 1:
            publish(newer, directory, 10)

    monkeypatch.setattr(model_directory, "load_weights", load)
    stored = read_model(directory)
    assert stored.manifest.step == 10 and len(calls) == 2
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(stored.network).items())


def test_a_folder_that_is_always_replaced_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(network: nn.Module, path: Path) -> None:
        load_weights(network, path)
        publish(checkpoint.path_of(directory, 5), directory, 5)

    monkeypatch.setattr(model_directory, "load_weights", load)
    with pytest.raises(UserError, match="was replaced during each of 5 reads"):
        read_model(directory)


def dotted(node: ast.expr) -> str:
    """Return a name or an attribute of a name as it is written, such as torch.load; other expressions give ''."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


MAY_RUN_CODE = re.compile(
    r"pickle|dill|joblib|shelve|marshal|\b(torch|yaml|np|numpy)\.(load|save)\b|(?<![.\w])(eval|exec|compile)\("
)
"""Text of every file that the next test refuses; other files are not parsed, which would take seconds."""


def test_no_code_reads_or_writes_pickles() -> None:
    """No file can run code when it is read. A process may exchange pickles with its own children through pipes.

    The workshop of the course compiles changed solutions, which are source of the package itself.
    """
    calls = {"eval", "exec", "compile", "torch.load", "torch.save", "yaml.load", "np.load", "numpy.load"}
    package = Path(glassformer.__file__).parent
    for path in set(package.rglob("*.py")) - {package / "tokenization" / "processes.py"}:
        text = path.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if MAY_RUN_CODE.search(text) else ():
            found = ""
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None) or ""}
                found = ", ".join(names & {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"})
            elif isinstance(node, ast.Call) and dotted(node.func) in calls:
                found = dotted(node.func)
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                found = "allow_pickle"
            if path == package / "apps" / "course" / "workshop" / "exercise.py" and found in ("compile", "exec"):
                continue
            assert not found, f"{path}:{node.lineno} uses {found}"


def test_an_adapted_network_is_described_by_its_own_configuration(tmp_path: Path) -> None:
    """The recipe is not used: it describes how the model was trained, not its architecture."""
    network, run = model()
    lora = LoraConfig(targets=("*.q_proj",), rank=2, alpha=4.0)
    add_lora(network, lora.targets, lora.rank, lora.alpha)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("lora_b"):
                parameter.normal_()

    def written(to: Path) -> None:
        model_directory.write_model_files(to, weights_of(network), Tokenizers(TOKENIZER), replace(run, lora=lora))
        files.write_text(to / model_directory.RUN, to_toml(to_dict(run)))

    checkpoint.save(tmp_path, 5, written, STATE)
    stored = read_model(checkpoint.path_of(tmp_path, 5))
    assert stored.config == run.model and stored.run.lora is None
    inputs = random_inputs(network)
    with torch.no_grad():
        expected = network.eval()(inputs.token_ids, **inputs.others)
        assert torch.equal(stored.network(inputs.token_ids, **inputs.others), expected)


@pytest.mark.parametrize("lora", [5, [], {"rank": "x"}, {"rak": 3}, {"rank": 0}, {"rank": 3}])
def test_a_wrong_lora_configuration_is_refused(lora: Any, tmp_path: Path) -> None:
    network, run = model()

    def written(to: Path) -> None:
        model_directory.write_model_files(to, weights_of(network), Tokenizers(TOKENIZER), run)
        files.write_json(to / "config.json", files.read_json(to / "config.json") | {"lora": lora})

    checkpoint.save(tmp_path, 5, written, STATE)
    with pytest.raises(UserError, match="lora"):
        read_model(checkpoint.path_of(tmp_path, 5))
