"""No verb overwrites its input, by any path or link."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from glassformer.apps.cli.inputs_outputs import require_output
from glassformer.common.errors import UserError
from glassformer.common.files import require_apart, require_new_folder
from glassformer.config.run import PairData, Run
from glassformer.tasks.reporting import Outcome
from glassformer.training.run_folder import require_apart as require_apart_of_run
from runs import write_text

from .conftest import Glassformer
from .test_bad_input import require_one_sentence


def same(path: Path) -> Path:
    return path


def dotted(path: Path) -> Path:
    return path.parent / "." / "x" / ".." / path.name


def relative(path: Path) -> Path:
    return Path(os.path.relpath(path))


def symbolic_link(path: Path) -> Path:
    link = path.with_name("link" + path.suffix)
    link.symlink_to(path)
    return link


def hard_link(path: Path) -> Path:
    link = path.with_name("hard" + path.suffix)
    link.hardlink_to(path)
    return link


def through_a_linked_folder(path: Path) -> Path:
    link = path.parent.with_name(path.parent.name + "-link")
    link.symlink_to(path.parent)
    return link / path.name


WAYS = [same, dotted, relative, symbolic_link, hard_link, through_a_linked_folder]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a text and prompts; the folder `x` exists so that `x/..` is a path."""
    folder = tmp_path / "place"
    (folder / "x").mkdir(parents=True)
    write_text(folder)
    (folder / "prompts.jsonl").write_text('{"prompt": "a"}\n')
    (folder / "picture.png").write_text("a text in spite of its name\n" * 400)
    return folder


@pytest.fixture
def model(trained: Outcome, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained.folder, tmp_path / "model"))


# The input file, by name; the words of a command with IN, OUT and DIR for a model directory.
COMMANDS = {
    "tokenizer train": ("text.txt", "tokenizer train IN --vocab-size 300 --out OUT"),
    "tokenizer train, folder": ("text.txt", "tokenizer train PLACE --vocab-size 300 --out OUT"),
    "generate": ("prompts.jsonl", "generate DIR --input IN --output OUT"),
    "translate": ("text.txt", "translate DIR --input IN --output OUT"),
    "embed": ("text.txt", "embed DIR --input IN --output OUT"),
    "plot confusion": ("picture.png", "plot confusion DIR --data.path IN --out OUT"),
}
OF_A_MODEL = {
    "tokenizer train": "tokenizer train DIR/tokenizer.json --vocab-size 300 --out DIR/tokenizer.json",
    "generate": "generate DIR --input IN --output DIR/model.safetensors",
    "generate, checkpoint": "generate DIR --input IN --output DIR/checkpoints/step-20/config.json",
    "translate": "translate DIR --input IN --output DIR/manifest.json",
    "embed": "embed DIR --input IN --output DIR/metrics.jsonl",
    "average": "average DIR --out DIR/checkpoints/step-99",
    "merge": "merge DIR --out DIR/checkpoints/step-99",
    "export": "export DIR DIR/checkpoints/step-99",
}


def words(command: str, **names: Path) -> list[str]:
    for name, path in names.items():
        command = command.replace(name, str(path))
    return command.split()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("verb", COMMANDS)
def test_an_output_that_is_the_input_is_refused(
    glassformer: Glassformer, place: Path, model: Path, verb: str, way: Callable[[Path], Path]
) -> None:
    name, command = COMMANDS[verb]
    out = way(place / name)
    before = contents(place.parent)
    result = glassformer(*words(command, IN=place / name, OUT=out, PLACE=place, DIR=model))
    require_one_sentence(result, "which is an input: choose another place for the output")
    assert contents(place.parent) == before


@pytest.mark.parametrize("verb", OF_A_MODEL)
def test_an_output_inside_a_model_or_its_checkpoints_is_refused(
    glassformer: Glassformer, place: Path, model: Path, verb: str
) -> None:
    before = contents(place.parent)
    result = glassformer(*words(OF_A_MODEL[verb], IN=place / "prompts.jsonl", DIR=model))
    require_one_sentence(result, "which is an input: choose another place for the output")
    assert contents(place.parent) == before


def test_an_output_inside_a_folder_of_texts_is_refused(glassformer: Glassformer, place: Path) -> None:
    (place / "prompts.jsonl").unlink()
    result = glassformer("tokenizer", "train", place, "--vocab-size", 300, "--out", place / "x" / "new.txt")
    require_one_sentence(result, "is inside", "which is an input")
    assert glassformer("tokenizer", "train", place, "--vocab-size", 300, "--out", place / "t.json").code == 0
    assert glassformer("tokenizer", "train", place, "--vocab-size", 300, "--out", place / "t.json").code == 0


@pytest.mark.parametrize("name", ["metrics.jsonl", ".text.tmp.txt"])
def test_train_into_the_folder_of_its_text_is_refused(glassformer: Glassformer, tmp_path: Path, name: str) -> None:
    """These names equal those of files that a run appends to or deletes."""
    folder = tmp_path / "folder"
    folder.mkdir()
    text = write_text(tmp_path).rename(folder / name)
    if text.suffix == ".jsonl":
        text.write_text('{"text": "some words and others"}\n' * 400)
    before = contents(folder)
    done = glassformer("train", text, "--out", folder)
    require_one_sentence(done, "contains", "which is an input")
    assert contents(folder) == before


def test_train_inside_the_folder_of_its_texts_is_refused(
    glassformer: Glassformer, place: Path, tiny_recipe: Path
) -> None:
    """Its metrics.jsonl would change the text, and the run could never be resumed."""
    result = glassformer("train", tiny_recipe, "--data.path", place, "--out", place / "run")
    require_one_sentence(result, "would become part of the data")
    assert not (place / "run").exists()


def test_train_into_the_checkpoints_of_its_start_is_refused(glassformer: Glassformer, place: Path, model: Path) -> None:
    out = model / "checkpoints" / "step-99"
    result = glassformer("train", place / "text.txt", "--init", model, "--out", out)
    require_one_sentence(result, "is inside", "which is an input")
    assert not out.exists()


def test_a_folder_may_have_the_name_of_a_hub_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(data=PairData(path="hf:owner/pairs#train"))
    for out in (Path("owner/pairs"), Path("owner")):
        require_apart_of_run(run, out)
    require_output(Path("pairs"), ["hf:pairs"])
    (tmp_path / "owner" / "pairs").mkdir(parents=True)  # now the name means this folder
    with pytest.raises(UserError, match="contains owner/pairs"):
        require_apart_of_run(run, Path("owner"))


def test_nested_paths_are_refused_and_separate_paths_accepted(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    for fine in ("b", "a-b", "aa/file", "a/file2"):
        require_apart(tmp_path / fine, [tmp_path / "a" / "file"])
    for output, given in (("a", "a"), ("a", "a/file"), ("a/new", "a"), ("a/x/../file", "a/file"), ("no", "no")):
        with pytest.raises(UserError, match="which is an input"):
            require_apart(tmp_path / output, [tmp_path / given])
    require_apart(tmp_path / "b", [tmp_path / "a\0b"])


def test_a_new_folder_is_not_put_in_place_of_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match="already exists: name another folder"):
        require_new_folder(tmp_path / "link")


@pytest.mark.parametrize("split", ["", "#test"])
def test_an_output_inside_a_local_data_set_is_refused(split: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with pytest.raises(UserError, match=r"out\.tsv is inside .*data, which is an input"):
        require_output(folder / "out.tsv", [f"hf:{folder}{split}"])
    require_output(tmp_path / "out.tsv", [f"hf:{folder}{split}", "hf:a/name", None, "-"])
