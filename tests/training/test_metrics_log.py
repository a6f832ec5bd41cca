"""`metrics.jsonl`: complete lines, and no line twice after a resume."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.common.errors import Interrupted, UserError
from glassformer.store.lock import locked
from glassformer.training import metrics_log
from glassformer.training.metrics_log import MetricsLog, follow, read_lines
from glassformer.training.run import resume_run, train_run
from runs import Recording, tiny_run, write_text


def test_lines_are_json_and_reach_the_disk_at_once(tmp_path: Path) -> None:
    with MetricsLog(tmp_path, 0) as log:
        log.write(5, loss=1.5, sample="é\n")
        assert read_lines(tmp_path / "metrics.jsonl") == [{"step": 5, "loss": 1.5, "sample": "é\n"}]


def test_a_resumed_log_drops_later_and_incomplete_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (5, 10, 10, 15)) + '{"step": 1')
    with MetricsLog(tmp_path, 10) as log:
        log.write(15, again=True)
    assert [line["step"] for line in read_lines(path)] == [5, 10, 10, 15]
    assert read_lines(path)[-1]["again"]


def test_a_new_run_drops_the_notes_of_one_that_died_before_its_first_checkpoint(tmp_path: Path) -> None:
    """A run that is stopped and resumed keeps them, once."""
    run = tiny_run(write_text(tmp_path), max_steps=2)
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / metrics_log.NAME).write_text('{"step": 0, "notes": ["of a dead run"]}\n{"step": 1}\n')
    with pytest.raises(Interrupted):
        train_run(replace(run, train=replace(run.train, max_time=1e-9)), folder, Recording())
    outcome = resume_run(folder, Recording(), {"train.max-time": "0"})
    first, *others = read_lines(folder / metrics_log.NAME)
    assert first["step"] == 0 and "the validation data has only" in first["notes"][0]
    assert [line["step"] for line in others] == [2, 2] and not any("notes" in line for line in others)
    assert outcome.notes == ()


def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "metrics.jsonl") == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_equal_numbers_and_hides_only_later_ones(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with MetricsLog(tmp_path, 0, tensorboard=True) as log:
        for step in (5, 10, 15):
            log.write(step, **{"eval/valid_loss": float(step), "sample": "text"})
    with MetricsLog(tmp_path, 10, tensorboard=True) as log:
        log.write(15, **{"eval/valid_loss": 99.0})
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("eval/valid_loss")] == [
        (5, 5.0),
        (10, 10.0),
        (15, 99.0),
    ]


def test_tensorboard_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(UserError, match=r"glassformer\[log\]"):
        MetricsLog(tmp_path, 0, tensorboard=True)
    assert metrics_log.NAME == "metrics.jsonl"


def test_followed_lines_come_as_they_are_written_and_again_after_a_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = locked(tmp_path)
    run.__enter__()
    log = MetricsLog(tmp_path, 0)

    def first() -> None:
        log.write(5, loss=3.0)
        log.write(10, loss=2.0)

    def rollback() -> None:
        log.back_to(5)
        log.write(10, loss=2.5)

    def end() -> None:
        log.write(15, loss=1.0)
        log.close()
        run.__exit__(None, None, None)

    waits = iter([first, lambda: None, rollback, end])
    monkeypatch.setattr(metrics_log.time, "sleep", lambda seconds: next(waits)())
    assert [(line["step"], line["loss"]) for line in follow(tmp_path)] == [(5, 3.0), (10, 2.0), (10, 2.5), (15, 1.0)]
    assert [line["step"] for line in follow(str(tmp_path))] == [5, 10, 15]


def test_a_folder_without_a_run_is_not_followed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give the folder of a run that trains or has trained"):
        next(follow(tmp_path))
