"""Runs with a teacher: its tokenizers, exact resume, accumulation, processes, refusals, and what a student gains."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from configs import RECURRENT
from faults.children import ranks_done
from glassformer import api
from glassformer.common.errors import Interrupted, UserError
from glassformer.config.run import InitConfig, MaskedConfig, Run, SpansConfig, TeacherConfig, TokenizerConfig
from glassformer.config.train import AdamWConfig
from glassformer.cost.flops import Shape, forward_flops
from glassformer.cost.hardware import find_gpu
from glassformer.cost.parameters import parameter_counts
from glassformer.cost.plan import plan_run
from glassformer.models.devices import Fit
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import read_run
from runs import (
    Recording,
    conversation_run,
    label_run,
    label_set_run,
    pair_run,
    remains,
    signal_at,
    text_run_of,
    tiny_run,
    write_text,
)
from tolerances import NETWORK, assert_close

RUNS: dict[str, Callable[..., Run]] = {
    "text": lambda folder, **train: tiny_run(write_text(folder), **train),
    "masked": lambda folder, **train: text_run_of(folder, MaskedConfig(), **train),
    "spans": lambda folder, **train: text_run_of(folder, SpansConfig(), **train),
    "pairs": partial(pair_run, separate=True),
    "classes": label_run,
    "tags": partial(label_run, outputs="tags"),
    "conversations": conversation_run,
}

FAST = AdamWConfig(learning_rate=0.01)


def wider(run: Run, width: int = 24) -> Run:
    return replace(run, model=replace(run.model, d_model=width))


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Run, Path]]:
    """Return the function that gives a run by name and the folder of its teacher, which is wider and trained once."""
    made: dict[str, tuple[Run, Path]] = {}

    def teacher(name: str) -> tuple[Run, Path]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            run = RUNS[name](folder, max_steps=6, eval_every=6)
            made[name] = run, api.train(wider(run), folder / "teacher").folder
        return made[name]

    return teacher


def taught(run: Run, teacher: Path, **settings: Any) -> Run:
    return replace(run, teacher=TeacherConfig(path=str(teacher), **settings))


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("name", RUNS)
def test_a_student_takes_the_tokenizers_and_learns_from_the_probabilities(
    name: str, teachers: Callable[[str], tuple[Run, Path]], tmp_path: Path
) -> None:
    run, teacher = teachers(name)
    before = {path: path.read_bytes() for path in teacher.rglob("*") if path.is_file()}
    student = api.train(run, tmp_path / "student", teacher=teacher)
    keys = ["tokenizer", "source_tokenizer"] if name == "pairs" else ["tokenizer"]
    assert [getattr(student.run, key).path for key in keys] == [str(teacher / f"{key}.json") for key in keys]
    assert student.model.tokenizer.fingerprint == api.load(teacher).tokenizer.fingerprint
    assert student.model.evaluate(log=print).loss == student.reports["valid"].loss, "that of the labels alone"
    assert {path: path.read_bytes() for path in teacher.rglob("*") if path.is_file()} == before


def test_a_run_with_weight_zero_has_the_bits_of_a_run_without_a_teacher(
    teachers: Callable[[str], tuple[Run, Path]], tmp_path: Path
) -> None:
    run, teacher = teachers("text")
    copied = shutil.copy(teacher / "tokenizer.json", tmp_path / "copied.json")
    run = replace(run, tokenizer=TokenizerConfig(path=str(copied)))
    alone, zero, half = (
        weights(api.train(one, tmp_path / str(i)).folder)
        for i, one in enumerate([run, taught(run, teacher, weight=0.0), taught(run, teacher)])
    )
    assert all(torch.equal(x, zero[name]) for name, x in alone.items())
    assert not any(torch.equal(x, half[name]) for name, x in alone.items() if x.dim() > 1)


@pytest.mark.parametrize("name", ["text", "pairs"])
def test_a_resumed_run_ends_with_the_same_bits(
    name: str, teachers: Callable[[str], tuple[Run, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, teacher = teachers(name)
    run = taught(run, teacher)
    run = replace(run, train=replace(run.train, grad_accumulation=2, checkpoint_every=3))
    api.train(run, tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        signal_at(patch, 4)
        api.train(run, tmp_path / "stopped")
    api.resume(tmp_path / "stopped")
    assert remains(tmp_path / "stopped") == remains(tmp_path / "whole")
    assert api.replay(tmp_path / "whole").differing == []


def test_a_changed_or_missing_teacher_is_refused_on_resume(
    teachers: Callable[[str], tuple[Run, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, source = teachers("text")
    teacher, hidden = tmp_path / "teacher", tmp_path / "hidden"
    shutil.copytree(source, teacher)
    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        signal_at(patch, 4)
        api.train(taught(run, teacher), tmp_path / "run")
    recorded = read_run(tmp_path / "run").teacher
    assert recorded is not None and recorded.digest == Manifest.read(source).entries["model.safetensors"][1]
    teacher.rename(hidden)
    with pytest.raises(UserError, match=f"the teacher of the run: no such model directory: {teacher}"):
        api.resume(tmp_path / "run")
    other = replace(run, train=replace(run.train, seed=5, max_steps=1))
    api.train(wider(other), teacher)
    with pytest.raises(UserError, match=r"the weights of the teacher .* are not those with which the run began"):
        api.resume(tmp_path / "run")
    with pytest.raises(UserError, match=r"the weights of the teacher .* are not those with which the run began"):
        api.train(taught(run, teacher, digest=recorded.digest), tmp_path / "new")
    shutil.rmtree(teacher)
    hidden.rename(teacher)
    assert api.resume(tmp_path / "run").reports


def test_two_processes_and_parts_learn_the_same(
    teachers: Callable[[str], tuple[Run, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process with two micro-batches; the same in single rows; one micro-batch in each of two processes."""
    run, teacher = teachers("text")
    run = replace(taught(run, teacher), train=replace(run.train, grad_accumulation=2, max_steps=2))
    api.train(run, tmp_path / "one")
    assert ranks_done(2, lambda: api.train(run, tmp_path / "two")) == [0, 0]
    from glassformer.training import run as runs_of_training

    monkeypatch.setattr(runs_of_training, "way_that_fits", lambda *_: Fit(3))
    api.train(run, tmp_path / "parts")
    expected = weights(tmp_path / "one")
    for name in ("two", "parts"):
        assert_close(weights(tmp_path / name), expected, terms=NETWORK)


@pytest.fixture(scope="module")
def good_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    run = RUNS["text"](folder, max_steps=150, eval_every=150)
    return api.train(wider(replace(run, train=replace(run.train, optimizer=FAST)), 32), folder / "teacher").folder


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_good_teacher_lowers_the_loss_of_the_labels(seed: int, good_teacher: Path, tmp_path: Path) -> None:
    run = RUNS["text"](tmp_path, max_steps=40, eval_every=40)
    run = replace(run, train=replace(run.train, seed=seed, optimizer=FAST))
    student = api.train(run, tmp_path / "student", reporter := Recording(), teacher=good_teacher)
    assert f"teacher {good_teacher}, Transformer decoder 2 × 32, " in " ".join(reporter.messages)
    alone = api.train(replace(student.run, teacher=None), tmp_path / "alone")
    assert student.reports["valid"].loss < alone.reports["valid"].loss - 0.02


def test_a_recurrent_student_learns_from_a_transformer(
    teachers: Callable[[str], tuple[Run, Path]], tmp_path: Path
) -> None:
    run, teacher = teachers("pairs")
    recurrent = replace(RECURRENT["bahdanau"], vocab_size=0, source_vocab_size=0, max_len=32)
    student = api.train(replace(run, model=recurrent), tmp_path / "run", teacher=teacher)
    assert student.model.config.vocab_size == api.load(teacher).tokenizer.vocab_size


def test_other_tokens_labels_and_losses_are_refused(
    teachers: Callable[[str], tuple[Run, Path]], tmp_path: Path
) -> None:
    (text, teacher), (pairs, of_pairs), (classes, of_classes) = map(teachers, ("text", "pairs", "classes"))
    of_labels = "has the labels cat, dog, and the run"
    renamed = tmp_path / "renamed.tsv"
    renamed.write_text(Path(classes.data.path or "").read_text().replace("\tcat\t", "\tfox\t"))
    other_tokens = "the tokens of the run are not those of its teacher"
    numbers = label_run(tmp_path, "regression")
    refused = {
        of_labels: taught(replace(classes, data=replace(classes.data, path=str(renamed))), of_classes),
        "the loss of objective.kind classification on this data is not a cross-entropy": taught(numbers, of_classes),
        "on this data is not a cross-entropy over tokens or classes, which a teacher needs: leave out": taught(
            label_set_run(tmp_path), of_classes
        ),
        other_tokens: taught(replace(text, init=InitConfig(path=str(of_pairs), model="recipe")), teacher),
        f"{other_tokens} {of_pairs}": taught(
            replace(pairs, source_tokenizer=TokenizerConfig(path=str(of_pairs / "tokenizer.json"))), of_pairs
        ),
    }
    for sentence, run in refused.items():
        with pytest.raises(UserError, match=sentence):
            api.train(run, tmp_path / "run")
    one_tokenizer = api.train(replace(pairs, source_tokenizer=None), tmp_path / "joint").folder
    with pytest.raises(UserError, match=other_tokens):
        api.train(taught(pairs, one_tokenizer), tmp_path / "run")


def test_another_tokenizer_is_refused_before_torch_is_imported(
    teachers: Callable[[str], tuple[Run, Path]], tmp_path: Path
) -> None:
    run, teacher = teachers("text")
    other = teachers("classes")[1] / "tokenizer.json"
    words = ["train", run.data.path, "--teacher", teacher, "--model.max-len", 32, "--out", tmp_path / "run"]
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from glassformer.apps.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *map(str, words), "--tokenizer.path", str(other)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "the tokens of the run are not those of its teacher" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_plan_counts_the_teacher(teachers: Callable[[str], tuple[Run, Path]]) -> None:
    run, teacher = teachers("text")
    model, theirs = (replace(one.model, vocab_size=api.load(teacher).tokenizer.vocab_size) for one in (run, wider(run)))
    planned = plan_run(taught(run, teacher), find_gpu("h200"))
    alone = plan_run(replace(run, model=model), find_gpu("h200"))
    assert planned.config == model and not planned.assumptions, "the vocabulary is that of the teacher"
    n_logits = 3 * 32 * model.vocab_size
    assert planned.memory.teacher == 4 * parameter_counts(theirs).total + 4 * n_logits
    assert planned.memory.total - alone.memory.total == planned.memory.teacher
    extra = (planned.training_per_token - alone.training_per_token) * 3 * 32
    assert extra == pytest.approx(forward_flops(theirs, Shape(3, 32)).total)
