"""Data in memory is stored in the folder of its run: the run resumes exactly, and evaluates from any folder."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer import api
from glassformer.common.errors import Interrupted, Note, UserError
from glassformer.training.run_folder import RECORDS
from runs import WORDS, made_up_text, remains, signal_at, write_pairs

SMALL: dict[str, Any] = {
    "max_steps": 4,
    "eval_every": 2,
    "log_every": 1,
    "precision": "fp32",
    "device": "cpu",
    "d_model": 16,
}


def pairs(folder: Path) -> list[tuple[str, str]]:
    source, target = write_pairs(folder)
    return list(zip(source.read_text().splitlines(), target.read_text().splitlines(), strict=True))


DATA: dict[str, Callable[[Path], Any]] = {
    "pairs": pairs,
    "numbers": lambda folder: [{"text": source, "label": len(source) / 2} for source, _ in pairs(folder)],
    "text": lambda folder: made_up_text(400).splitlines(),
}


def train(data: Any, out: Path, **settings: Any) -> api.Trained:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)
        return glassformer.train(data, out, **SMALL | settings)


@pytest.mark.parametrize("kind", DATA)
def test_a_run_on_data_in_memory_resumes_exactly_and_evaluates_from_any_folder(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    data = DATA[kind](tmp_path)
    outcome = train(data, Path("whole"))
    assert outcome.run.data.kind == {"numbers": "labels"}.get(kind, kind)
    with monkeypatch.context() as patch:
        signal_at(patch, 2)
        with pytest.raises(Interrupted):
            train(data, Path("parts"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = glassformer.resume("../parts")
    whole, parts = ({**remains(tmp_path / name), "manifest": None} for name in ("whole", "parts"))
    assert whole == parts, "only run.toml differs, which has the path of the records"
    assert resumed.model.evaluate() == resumed.reports["valid"] == outcome.reports["valid"]


def test_a_note_names_the_file_of_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = Path("runs") / "pairs" / RECORDS
    with pytest.warns(Note, match=rf"^80 records are pairs, because .* values; they are written to {place}$"):
        glassformer.train(pairs(tmp_path), **SMALL | {"max_steps": 1})
    assert place.read_text("utf-8").count("\n") == 80 and len(WORDS) > 2


@pytest.mark.parametrize("settings", [{"batch_size": 3}, {"no_such": 1}, {"d_model": 15}, {"lora": {"rank": 2}}])
def test_a_run_that_does_not_begin_leaves_nothing(settings: dict[str, Any], tmp_path: Path) -> None:
    data = pairs(tmp_path)
    with pytest.raises(UserError):
        train(data, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_keeps_its_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    train(["one two three four five"] * 60 + ["six"], tmp_path / "run", max_steps=1)
    before = (tmp_path / "run" / RECORDS).read_bytes()
    with pytest.raises(UserError, match="already contains a run"):
        train(["other"] * 9, tmp_path / "run")
    assert (tmp_path / "run" / RECORDS).read_bytes() == before


def test_lora_without_a_model_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^lora adapts a trained model and needs init\.path"):
        glassformer.train("copy-task", tmp_path / "run", lora={"rank": 4})


def test_two_files_as_settings_and_a_table_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    source, target = write_pairs(tmp_path)
    outcomes = []
    for given, out in (({"source": str(source), "target": str(target)}, "a"), ({"run": "t.tsv"}, "~/b")):
        lines = zip(source.read_text().splitlines(), target.read_text().splitlines(), strict=True)
        Path("t.tsv").write_text("source\ttarget\n" + "".join(f"{s}\t{t}\n" for s, t in lines))
        with pytest.warns(Note, match="pairs, by "):
            outcomes.append(glassformer.train(out=out, **given, **SMALL))
    assert [outcome.folder for outcome in outcomes] == [Path("a"), tmp_path / "b"]
    assert outcomes[0].reports == outcomes[1].reports
