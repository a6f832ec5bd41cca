"""Addresses: one entry of `SOURCES` adds a source for texts, pairs and labels; folders, patterns and `hf:` places."""

import json
import sqlite3
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.common.errors import Note, UserError
from glassformer.config.run import LabelData, PairData, TextData
from glassformer.data import addresses
from glassformer.data.addresses import SOURCES, Source, absolute, local_path
from glassformer.data.kinds import look_at
from glassformer.data.own_data import run_for
from glassformer.data.pairs import PairCorpus
from glassformer.data.records import Record, Request
from glassformer.data.texts import read_documents
from runs import made_up_text, text_corpus, write_labels, write_pairs

SMALL: dict[str, Any] = {"max_steps": 2, "eval_every": 2, "precision": "fp32", "device": "cpu", "d_model": 16}

Rows = list[dict[str, Any]]


def read_database(address: str, request: Request) -> Iterator[Record]:
    """Yield the rows of the table `records` of an SQLite database."""
    with sqlite3.connect(address.removeprefix("sqlite:")) as connection:
        connection.row_factory = sqlite3.Row
        for number, row in enumerate(connection.execute("select * from records"), 1):
            yield Record(f"row {number} of {address}", dict(row), request.settings)


def texts(folder: Path) -> Rows:
    return [{"text": line} for line in made_up_text(300).splitlines()]


def pairs(folder: Path) -> Rows:
    sides = (path.read_text("utf-8").splitlines() for path in write_pairs(folder))
    return [{"source": source, "target": target} for source, target in zip(*sides, strict=True)]


def labels(folder: Path) -> Rows:
    rows = [line.split("\t") for line in write_labels(folder).read_text("utf-8").splitlines()[1:]]
    return [{"text": text, "label": label} for text, _, label, _ in rows]


KINDS = {"text": texts, "pairs": pairs, "labels": labels}


def database(path: Path, rows: Rows) -> Path:
    names = list(rows[0])
    with sqlite3.connect(path) as connection:
        connection.execute(f"create table records ({', '.join(names)})")
        connection.executemany(
            f"insert into records values ({', '.join('?' * len(names))})", [[*r.values()] for r in rows]
        )
    return path


def jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def train(place: str | Path, out: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)
        return glassformer.train(place, out, **SMALL)


@pytest.mark.parametrize("entry", [".sqlite", "sqlite:"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_source_is_one_entry(kind: str, entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on a database, known by a suffix or by a prefix, equals the run on a jsonl file of its rows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(SOURCES, entry, Source(read_database))
    rows = KINDS[kind](tmp_path)
    path = database(tmp_path / "rows.sqlite", rows)
    place = f"sqlite:{path}" if entry == "sqlite:" else str(path)
    trained, expected = train(place, tmp_path / "a"), train(jsonl(tmp_path / "rows.jsonl", rows), tmp_path / "b")
    assert trained.run.data.kind == kind and trained.reports == expected.reports
    assert trained.model.evaluate(place) == expected.model.evaluate(tmp_path / "rows.jsonl")


def test_a_new_source_is_named_where_a_file_of_another_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SOURCES, ".sqlite", Source(read_database, ("pairs",)))
    with pytest.raises(
        UserError, match=r"^a\.conll: expected a \.tsv, \.csv, \.jsonl, \.ndjson, \.parquet or \.sqlite file; for"
    ):
        PairCorpus(PairData(path="a.conll")).whole()


def test_a_folder_of_parquet_files_is_read_like_a_folder_of_jsonl_files(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    for name in ("b", "s/a"):
        path = tmp_path / f"data/{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(Table.from_pylist([{"text": f"text {i} of {name}"} for i in range(4)]), path)
    (tmp_path / "data/_SUCCESS").touch()
    folder = str(tmp_path / "data")
    expected = [f"text {i} of {name}" for name in ("b", "s/a") for i in range(4)]
    assert list(read_documents([folder])) == expected
    assert text_corpus(folder).digest == text_corpus(f"{folder}/**/*.parquet").digest
    look_at(TextData(path=folder))
    assert run_for([folder])[0].data == TextData(path=folder)
    (tmp_path / "data/c.txt").write_text("a text")
    assert list(read_documents([folder])) == ["a text"], "Parquet files are left out beside txt and jsonl, as before"


def test_after_hf_comes_a_local_folder_or_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    assert local_path("hf:data#train") == Path("data") and absolute("hf:data#train") == f"hf:{tmp_path}/data#train"
    for address in ("hf:owner/name:config#train", "builtin:dates", "memory:1"):
        assert local_path(address) is None and absolute(address) == address
    assert absolute("data/*.txt") == f"{tmp_path}/data/*.txt"


@pytest.mark.parametrize("data", [TextData(path="memory:0"), PairData(path="memory:0"), LabelData(path="memory:0")])
def test_data_in_memory_has_no_address_outside_of_its_call(data: TextData | PairData | LabelData) -> None:
    with pytest.raises(UserError, match="memory:0: data in memory is given in Python, as a list, a DataFrame or a"):
        look_at(data)


def test_a_lone_colon_is_part_of_a_file_name(tmp_path: Path) -> None:
    path = tmp_path / "12:30.txt"
    path.write_text("noon")
    assert addresses.is_file("12:30.txt") and list(read_documents([path])) == ["noon"]
