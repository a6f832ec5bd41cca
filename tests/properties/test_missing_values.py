"""Missing values: the same records give the same corpus and the same counts, in every format and container."""

import csv
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import late
from glassformer.common.errors import UserError
from glassformer.config.run import ConversationData, LabelData, PairData, TextData
from glassformer.data import kinds
from glassformer.data.in_memory import address_of, place_of, rows_of
from glassformer.data.kinds import look_at
from glassformer.data.recognition import recognise, recognise_rows
from runs import text_corpus

pandas = late.module("pandas")

Rows = list[dict[str, Any]]
N = 60
MISSING: dict[str, Callable[[random.Random], Any]] = {
    "dictionaries": lambda draw: draw.choice(["absent", None, float("nan"), "", " \t", pandas.NA, pandas.NaT]),
    "tuples": lambda draw: draw.choice([None, np.float32("nan"), "", " ", pandas.NaT]),
    "data frame": lambda draw: draw.choice([None, float("nan"), "", pandas.NA]),
    "jsonl": lambda draw: draw.choice(["absent", None, float("nan"), "", "\t "]),
    "csv": lambda draw: draw.choice(["", "  "]),
    "tsv": lambda draw: draw.choice(["", "  "]),
    "parquet": lambda draw: draw.choice([None, "", " "]),
}
"""The missing value of each container; `absent` is a key that is left out."""
KINDS: dict[str, tuple[str, str]] = {
    "pairs": ("source", "target"),
    "classes": ("text", "label"),
    "numbers": ("text", "label"),
    "conversations": ("prompt", "completion"),
}


def records(kind: str, draw: random.Random) -> Rows:
    """Return complete records; two fields each."""
    first, second = KINDS[kind]
    value: dict[str, Callable[[int], Any]] = {
        "pairs": lambda i: f"ziel {i} {draw.random():.3f}",
        "classes": lambda i: ["good", "bad"][i % 2],
        "numbers": lambda i: i + 0.5,
        "conversations": lambda i: f"answer {i}",
    }
    return [{first: f"text {i} {draw.random():.3f}", second: value[kind](i)} for i in range(N)]


def with_missing(rows: Rows, holes: set[tuple[int, str]], container: str, draw: random.Random) -> Rows:
    """Replace the values at some places by missing ones."""
    changed = []
    for number, row in enumerate(rows):
        new = {name: MISSING[container](draw) if (number, name) in holes else value for name, value in row.items()}
        changed.append({name: value for name, value in new.items() if not isinstance(value, str) or value != "absent"})
    return changed


def stored(rows: Rows, container: str, folder: Path) -> Any:
    """Return data in memory, or the path of a file."""
    path, names = folder / f"rows.{container}", list(dict.fromkeys(name for row in rows for name in row))
    if container == "tuples":
        return [tuple(row.values()) for row in rows]
    if container == "data frame":
        return pandas.DataFrame(rows)
    if container == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif container in ("csv", "tsv"):
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, names, delimiter={"csv": ",", "tsv": "\t"}[container], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    elif container == "parquet":
        columns = {name: pandas.Series([row[name] for row in rows], dtype=object) for name in names}
        if any(isinstance(value, float) for value in columns[names[1]]):
            columns[names[1]] = pandas.to_numeric(columns[names[1]].replace(["", " "], None))
        pandas.DataFrame(columns).to_parquet(path)
    return str(path) if path.exists() else rows


def corpus_of(data: Any, kind: str) -> tuple[Any, list[Any], int]:
    """Recognise data and read it: the settings without path, the records and the number of skipped ones."""
    if isinstance(data, str):
        found = recognise(data).data
        corpus = kinds.corpus_of(found)
        return replace(found, path=None), corpus.whole(), corpus.dropped.n_empty
    recognised, lines = recognise_rows(rows_of(data), None, {})
    with address_of(lines) as address:
        corpus = kinds.corpus_of(replace(recognised.data, path=address))
        return replace(recognised.data, path=None), corpus.whole(), corpus.dropped.n_empty


@pytest.mark.parametrize("container", MISSING)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_missing_values_are_skipped_and_counted_alike(kind: str, container: str, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"{seed} {kind}")
    rows = records(kind, draw)
    holes = {(number, name) for number, row in enumerate(rows) for name in row if draw.random() < 0.15}
    kept = [row for number, row in enumerate(rows) if all((number, name) not in holes for name in row)]
    if container == "tuples" and kind == "conversations":
        pytest.skip("tuples are pairs or labels")
    settings, expected, _ = corpus_of(stored(kept, container, tmp_path), kind)
    data = stored(with_missing(rows, holes, container, draw), container, tmp_path)
    n_blank = 0
    if container in ("csv", "tsv"):  # a row without any value is a blank line, not a record
        n_blank = sum(all((number, name) in holes for name in row) for number, row in enumerate(rows))
    assert corpus_of(data, kind) == (settings, expected, N - len(kept) - n_blank)
    assert len(expected) == len(kept)


@pytest.mark.parametrize("container", ["dictionaries", "data frame", "jsonl"])
def test_texts_that_are_missing_are_skipped_and_counted(container: str, tmp_path: Path) -> None:
    draw = random.Random(container)
    rows = [{"text": f"text {i}"} for i in range(N)]
    holes = {(i, "text") for i in range(N) if draw.random() < 0.3}
    changed = with_missing(rows, holes, container, draw)
    data = stored(changed, container, tmp_path)
    lines = [] if isinstance(data, str) else recognise_rows(rows_of(data), "text", {})[1]
    with address_of(lines) as address:
        corpus = text_corpus(data if isinstance(data, str) else address)
        assert corpus.scans[0].n_documents == N - len(holes) and corpus.scans[0].counts.n_blank_documents == len(holes)
        assert any(f"{len(holes):,} " in note for note in corpus.news())


def test_whole_numbers_stay_whole_where_a_data_frame_has_missing_ones() -> None:
    frame = pandas.DataFrame({"text": [f"a {i}" for i in range(20)], "label": [0, 1, None, 1] * 5})
    settings, found, n_skipped = corpus_of(frame, "classes")
    assert settings.outputs == "classes" and {one.labels for one in found} == {("0",), ("1",)} and n_skipped == 5


def test_a_field_that_no_record_has_is_refused_and_one_that_some_lack_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b", "label": "x"}\n')
    look_at(LabelData(path=str(path)))
    with pytest.raises(UserError, match=r"rows.jsonl:1 has no field 'lable'.* \(set data.text_field"):
        look_at(LabelData(path=str(path), label_field="lable"))
    with pytest.raises(UserError, match=r":1 has no field 'texts': did you mean 'text'"):
        look_at(TextData(path=str(path), text_field="texts"))
    for data in (PairData(), ConversationData()):
        with pytest.raises(UserError, match=r"rows.jsonl:1 has no field"):
            look_at(replace(data, path=str(path)))
    with place_of([{"text": "a"}, {"text": "b", "label": "x"}], LabelData()):
        pass
    with pytest.raises(UserError, match="record 1 of the data has no 'label'"), place_of([{"text": "a"}], LabelData()):
        pass
