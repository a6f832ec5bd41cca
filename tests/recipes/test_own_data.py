"""Runs for own data: every size is a run that can be built, and only files that are read count."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.run import LabelData, PairData, Run, TextData
from glassformer.config.sizes import learning_rate, width
from glassformer.config.train import MuonConfig
from glassformer.config.transformer import TransformerConfig
from glassformer.data import own_data
from glassformer.data.own_data import label_run, pair_run, sizes, text_run
from glassformer.models.build import build_model
from glassformer.tasks.task import trainable_task

RULES = {
    "text": own_data.TEXT,
    "characters": own_data.CHARACTER_PAIRS,
    "sentences": own_data.SENTENCE_PAIRS,
    "classes": own_data.CLASSES,
    "regression": own_data.CLASSES,
    "tags": own_data.TAGS,
}


def run_of_size(kind: str, n_bytes: int) -> Run:
    if kind == "text":
        return text_run("name", TextData(path="t.txt"), n_bytes)
    if kind in ("characters", "sentences"):
        return pair_run("name", PairData(path="t.tsv"), n_bytes, of_characters=kind == "characters")
    return label_run("name", LabelData(path="t.tsv", outputs=kind), n_bytes)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", RULES)
def test_every_size_is_a_run_and_more_data_gives_a_larger_one(kind: str) -> None:
    runs, n_parameters = [], []
    for level in range(7):
        run = run_of_size(kind, own_data.SMALL * 8**level)
        trainable_task(run).check(run)
        model = replace(run.model, vocab_size=run.tokenizer.vocab_size or 80)
        if isinstance(run.data, LabelData):
            model = replace(model, head=replace(model.head, n_labels=3))
        n_parameters.append(build_model(model, "meta").n_parameters())
        runs.append((run.train.max_steps, run.tokenizer.vocab_size))
        assert isinstance(run.model, TransformerConfig)
        found = sizes(RULES[kind], own_data.SMALL * 8**level)
        assert {stack.n_layers for stack in run.model.stacks.values()} == {found.size}
        assert run.model.d_model == width(found.size) and run.train.eval_every * 8 <= run.train.max_steps
        rates = run.train.optimizer
        assert isinstance(rates, MuonConfig)
        assert rates.learning_rate == float(f"{RULES[kind].rate * learning_rate(found.size):.2g}")
        assert rates.adamw_learning_rate == float(f"{rates.learning_rate * RULES[kind].others:.2g}")
    assert runs == sorted(runs) and n_parameters == sorted(n_parameters) and len(set(n_parameters)) >= 6
    assert sizes(RULES[kind], 0).steps == own_data.FEWEST_STEPS < sizes(RULES[kind], own_data.SMALL).steps
    assert sizes(RULES[kind], own_data.SMALL + 1).size == RULES[kind].sizes[1]


@pytest.mark.parametrize(
    ("source", "target", "of_characters"),
    [
        ("reverse", "esrever", True),
        ("the 21st of november 2026", "2026-11-21", True),
        ("forty thousand two hundred and seventeen", "40,217", True),
        ("40,217", "forty thousand two hundred and seventeen", True),
        ("A dog runs in the snow.", "Ein Hund rennt im Schnee.", False),
    ],
)
def test_words_are_read_by_character_and_sentences_are_not(
    source: str, target: str, of_characters: bool, tmp_path: Path
) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("source\ttarget\n" + f"{source}\t{target}\n" * 20)
    run, evidence = own_data.run_of(path)
    recognised, _, said = evidence.partition(", which are short and are read by character")
    assert recognised == f"{path}: pairs, by the columns source and target" and bool(said) == of_characters
    assert (run.tokenizer.scheme == "char") == of_characters


def test_sizes_count_only_files_that_are_read(tmp_path: Path) -> None:
    folder, alone = tmp_path / "folder", tmp_path / "a.txt"
    (folder / ".git").mkdir(parents=True)
    for place in (folder / "a.txt", alone):
        place.write_text("text " * 600)
    for other in ("film.mp4", "a.py", ".b.txt", ".git/c.txt"):
        with open(folder / other, "wb") as file:
            file.truncate(80_000_000)
    of_folder, of_file = own_data.run_of(folder)[0], own_data.run_of(alone)[0]
    assert replace(of_folder, name="", data=TextData()) == replace(of_file, name="", data=TextData())
    assert own_data.run_of(f"{folder}/*")[0].train.max_steps > of_file.train.max_steps


SPELLINGS: dict[str, Callable[[Path], str | Path]] = {
    "absolute": lambda path: str(path),
    "a Path": lambda path: path,
    "from home": lambda path: f"~/{path.name}",
    "a Path from home": lambda path: Path(f"~/{path.name}"),
    "from here": lambda path: f"./{path.name}",
    "a relative Path": lambda path: Path(path.name),
    "through a folder": lambda path: f"sub/../{path.name}",
    "with a slash at the end": lambda path: f"{path}{os.sep if path.is_dir() else ''}",
    "with two slashes": lambda path: f".//{path.name}",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", ["python-docs", "my book.txt", "docs.d", "~odd"])
def test_every_spelling_of_a_path_gives_the_same_run(
    name: str, spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with the name of a recipe is meant by each spelling but the bare name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "sub").mkdir()
    path = tmp_path / name
    if name == "docs.d":
        path.mkdir()
    (path / "a.txt" if path.is_dir() else path).write_text("one two three " * 50)
    run, _ = own_data.run_of(SPELLINGS[spelling](path))
    assert isinstance(run.data, TextData) and run.data.path is not None
    assert Path(run.data.path).samefile(path) and run.train.max_steps == sizes(own_data.TEXT, 0).steps
    assert run.name == {"my book.txt": "my book"}.get(name, name)


def test_the_name_of_a_run_is_that_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "books" / "sub").mkdir(parents=True)
    (tmp_path / "books" / "a.txt").write_text("one two three")
    monkeypatch.chdir(tmp_path / "books" / "sub")
    assert {own_data.run_of(place)[0].name for place in ("..", "../", "../../books/", "../*.txt", "../**/*.txt")} == {
        "books"
    }
    monkeypatch.chdir(tmp_path / "books")
    assert {own_data.run_of(place)[0].name for place in (".", "*.txt", "./")} == {"books"}


def test_a_bare_name_is_a_recipe_although_a_file_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("python-docs").write_text("one two three")
    assert own_data.run_of("python-docs") == (recipes.load("python-docs"), "")
    with pytest.raises(UserError, match=r"no recipe or file is called './python-docs'"):
        recipes.load("./python-docs")


def test_two_files_are_pairs_by_place_and_by_name(tmp_path: Path) -> None:
    source, target = tmp_path / "t.en", tmp_path / "t.de"
    source.write_text("a dog runs fast\n" * 5)
    target.write_text("ein Hund rennt schnell\n" * 5)
    runs = [
        own_data.run_of(source, target),
        own_data.run_of(changes={"source": source, "target": target}),
        own_data.run_of(changes={"data.source": str(source), "data.target": str(target)}),
    ]
    run, evidence = runs[0]
    assert runs[0] == runs[1] == runs[2] and run.name == "t"
    assert evidence == f"{source} and {target}: pairs, by two files"
    data = run.data
    assert isinstance(data, PairData) and (data.source, data.target) == (str(source), str(target))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("Once upon a time. " * 600, "got a text of 10,800 characters: to train on a text in memory, give a list"),
        ("One line.\nAnother", "got a text of 17 characters: to train on a text"),
        ("python-dox", "no recipe or file is called 'python-dox': did you mean python-docs"),
        ("no/such/file.tsv", "^no such file: no/such/file.tsv$"),
        ("~nobody-here/x.txt", "source: Could not determine home"),
    ],
)
def test_other_texts_are_refused_in_one_short_sentence(source: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        own_data.run_of(source)
    assert len(str(error.value)) < 250


def test_a_recipe_has_a_kind_of_data() -> None:
    with pytest.raises(UserError, match="leave out kind"):
        own_data.run_of("python-docs", kind="pairs")
    with pytest.raises(UserError, match="2 sources are texts, not labels: put the rows in one file"):
        own_data.run_of("a", "b", kind="labels")
    with pytest.raises(UserError, match="no data is given"):
        own_data.run_of()


def test_a_run_is_chosen_without_torch(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "p.tsv").write_text("source\ttarget\none\tenO\n")
    (tmp_path / "t.txt").write_text("one two")
    (tmp_path / "c.conll").write_text("one\tO\n")
    code = (
        "import sys, glassformer.data.own_data as r\n"
        "for place in ('p.tsv', 't.txt', 'c.conll', '*.txt'): r.run_of(place)\n"
        "r.run_in_memory([('a', 'b'), ('c', 'd')])\n"
        "assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True, capture_output=True)
