"""glassformer checkpoint list|verify|prune, and resume --verify."""

import json
import shutil
from pathlib import Path

import pytest

from glassformer import api
from glassformer.apps.cli.main import run
from glassformer.store import checkpoint
from glassformer.store.model_directory import publish
from glassformer.tasks.reporting import Outcome
from runs import tiny_run, write_text


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    settings = {"checkpoint_every": 4, "keep_checkpoints": 9}
    return api.train(tiny_run(write_text(folder), **settings), folder / "run").folder


@pytest.fixture
def copy(several: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(several, tmp_path / "run"))


def test_checkpoint_list_prints_every_checkpoint(several: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "list", str(several)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "4", "8", "10", "12", "16", "20"]
    assert lines[-1].endswith(f"the model in {several}") and lines[1].split()[2] == "-"
    assert run(["checkpoint", "list", str(several), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in rows if row["is_model"]] == [20] and rows[2]["valid_loss"] > 0


def test_checkpoint_verify_finds_damage(copy: Path, trained: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "verify", str(copy)]) == 0
    assert capsys.readouterr().out.count("intact") == 7
    with (copy / "checkpoints" / "step-8" / "training_state" / "optimizer.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    assert run(["checkpoint", "verify", str(copy)]) == 1
    out = capsys.readouterr().out
    assert out.count("intact") == 6 and "step-8 is damaged: training_state/optimizer.safetensors is not the file" in out
    assert run(["checkpoint", "verify", str(checkpoint.path_of(trained.folder, 20))]) == 0


def test_prune_keeps_the_newest_and_the_model(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", "prune", str(copy), "--keep", "2"]) == 0
    assert capsys.readouterr().out == "deleted 4 checkpoints; kept those of steps 16, 20\n"
    assert checkpoint.steps(copy) == [16, 20]
    assert run(["resume", str(copy), "--verify"]) == 0
    assert "steps 17 to 20" in capsys.readouterr().out


def test_prune_keeps_the_best(copy: Path) -> None:
    publish(checkpoint.path_of(copy, 8), copy, 8)  # as if step 8 were the best
    assert run(["checkpoint", "prune", str(copy)]) == 0
    assert checkpoint.steps(copy) == [8, 20]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["list", "nowhere"], "no such run: nowhere"),
        (["verify", "nowhere"], "no such run: nowhere"),
        (["prune", "."], ". has no checkpoints"),
        (["lst", "."], "unknown verb `checkpoint lst`: expected one of list, verify, prune"),
        (["prune", "{run}", "--keep", "0"], "--keep: expected at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    words: list[str], sentence: str, several: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["checkpoint", *(word.format(run=several) for word in words)]) == 2
    assert capsys.readouterr().err == f"glassformer: {sentence}\n"


def test_a_replay_that_differs_exits_with_1(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassformer.training import loop

    monkeypatch.setattr(loop, "schedule_factor", lambda *a: 0.123)
    assert run(["resume", str(copy), "--verify"]) == 1
    assert "different when repeated, in" in capsys.readouterr().out
    assert run(["resume", str(copy), "--verify", "--train.max-time", "1"]) == 2


def test_prune_refuses_a_run_with_a_damaged_model(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "manifest.json").unlink()
    assert run(["checkpoint", "verify", str(copy)]) == 1
    assert f"{copy} is not a model directory" in capsys.readouterr().out
    assert run(["checkpoint", "prune", str(copy)]) == 2
    assert len(checkpoint.steps(copy)) == 6
    assert run(["resume", str(copy)]) == 0
    assert run(["checkpoint", "prune", str(copy)]) == 0


def test_an_unreadable_state_does_not_hide_the_others(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "checkpoints" / "step-8" / "training_state" / "state.json").write_text('{"valid": []}')
    assert run(["checkpoint", "list", str(copy)]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 7 and "step-8" in err


def test_prune_reports_a_checkpoint_that_cannot_be_deleted(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(path: Path) -> None:
        raise OSError(39, "Directory not empty")

    monkeypatch.setattr(shutil, "rmtree", busy)
    assert run(["checkpoint", "prune", str(copy)]) == 2
    assert capsys.readouterr().err.startswith(f"glassformer: cannot write {copy}: Directory not empty")
