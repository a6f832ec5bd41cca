"""The model card of an export."""

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import late
from configs import CONFIGS, GPT
from glassformer.apps.interop.export import Target, export
from glassformer.config.run import TextData
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.training import metrics_log
from interop.checkpoints import model_directory

huggingface_hub = late.optional("huggingface_hub")
late.optional("transformers")

DIGEST = "ab" * 32


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A run's folder with a measured loss and the digest of its data."""
    data = TextData(path="/home/me/sec:ret/book.txt")
    folder = model_directory(GPT, tmp_path / "ours", data=data)
    Manifest.of(folder, "model", 7, list(Manifest.read(folder).entries)).write(folder)
    lines = [{"step": 5, "eval/valid_loss": 9.0}, {"step": 7, "eval/valid_loss": 2.5, "sample": "x"}]
    (folder / metrics_log.NAME).write_text("".join(json.dumps(line) + "\n" for line in lines))
    state = checkpoint.path_of(folder, 7) / checkpoint.STATE
    state.parent.mkdir(parents=True)
    state.write_text(json.dumps({"data_digest": DIGEST}))
    return folder


def test_the_card_names_data_loss_and_licence_and_no_path(run_folder: Path, tmp_path: Path) -> None:
    export(run_folder, tmp_path / "hf", license="apache-2.0")
    card = huggingface_hub.ModelCard.load(tmp_path / "hf" / "README.md")
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "tags": ["glassformer"],
    }
    assert DIGEST in card.text and "valid_loss 2.5000" in card.text and "`book.txt`" in card.text
    assert "step 7." in card.text and "9.0" not in card.text
    assert "secret" not in card.content and "sec:ret" not in card.content


def test_a_card_without_a_licence_states_that_it_is_unknown(tmp_path: Path) -> None:
    export(model_directory(GPT, tmp_path / "ours"), tmp_path / "hf")
    card = huggingface_hub.ModelCard.load(tmp_path / "hf" / "README.md")
    assert card.data.license is None and "The licence is unknown" in card.text


@pytest.mark.parametrize(
    ("to", "name"),
    [
        ("hf", "llama"),
        ("hf", "bert"),
        ("hf", "bart"),
        ("hf", "t5"),
        ("hf", "vectors_mean"),
        ("gguf", "llama"),
        ("ct2", "gpt"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # of the other packages
def test_the_code_of_the_card_runs(to: Target, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if to != "hf":
        pytest.importorskip({"gguf": "gguf", "ct2": "ctranslate2"}[to])
    folder = tmp_path / "out"
    config = CONFIGS[name] if name != "bart" else replace(CONFIGS["bart"], decoder_start_id=2)
    export(model_directory(config, tmp_path / "ours"), folder, to=to)
    run_card(folder, monkeypatch)


def run_card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the code of the card in the folder of an export."""
    text = (folder / "README.md").read_text("utf-8")
    code = text.split("## How to run it\n\n```")[1].split("```")[0]
    assert all(path.name in code for path in folder.glob("*.onnx"))
    if file := next(folder.glob("*.gguf"), None):
        assert code == f'shell\nllama-cli -m {file.name} -p "…"\n'
        return
    if "sentence_transformers" in code and find_spec("sentence_transformers") is None:
        assert 'SentenceTransformer("FOLDER_OR_NAME").encode(' in code and (folder / "modules.json").exists()
        return
    body = code.removeprefix("python\n").replace("FOLDER_OR_NAME", ".").replace('"FOLDER"', '"."').replace("…", "to be")
    monkeypatch.chdir(folder)
    exec(compile(body, "README.md", "exec"), {})  # a process of its own would import transformers for 8 s
