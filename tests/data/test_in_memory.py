"""Data in memory: the same records as a list, dictionaries, a DataFrame and a Dataset are the same data as a file."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glassformer
import late
from glassformer.common.errors import UserError
from glassformer.config.run import ConversationData, LabelData, PairData, TextData
from glassformer.data.conversations import Conversation, ConversationCorpus
from glassformer.data.in_memory import address_of, place_of, rows_of
from glassformer.data.kinds import require_readable
from glassformer.data.labels import LabelCorpus, Labelled
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.recognition import recognise_rows
from glassformer.data.texts import read_documents

pandas = late.module("pandas")

PAIRS = [(f"source {i}", f"target {i}") for i in range(12)]
LABELS = [(f"text {i}", ["good", "bad"][i % 2]) for i in range(12)]


class Dataset(list[dict[str, Any]]):
    """A list of records with features, as a `datasets.Dataset` has them."""

    features: ClassVar = {"label": SimpleNamespace(names=["good", "bad"]), "text": SimpleNamespace()}


FORMS: dict[str, Callable[[list[tuple[str, str]], tuple[str, str]], Any]] = {
    "tuples": lambda rows, names: rows,
    "lists": lambda rows, names: [list(row) for row in rows],
    "iterator": lambda rows, names: iter(rows),
    "dictionaries": lambda rows, names: [dict(zip(names, row, strict=True)) for row in rows],
    "data frame": lambda rows, names: pandas.DataFrame(rows, columns=list(names)),
}


def read(data: Any, folder: Path) -> list[Any]:
    """Store data in memory and read it back."""
    found, lines = recognise_rows(rows_of(data), None, {})
    path = folder / "records.jsonl"
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    place = replace(found.data, path=str(path))
    if isinstance(place, PairData):
        return PairCorpus(place).whole()
    if isinstance(place, ConversationData):
        return ConversationCorpus(place).whole()
    return (
        list(read_documents([path]))
        if isinstance(place, TextData)
        else list(LabelCorpus(replace(place, path=str(path))).whole())
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [("source", "target"), ("en", "de")])
def test_pairs_in_memory(form: str, names: tuple[str, str], tmp_path: Path) -> None:
    assert read(FORMS[form](PAIRS, names), tmp_path) == [Pair(*pair) for pair in PAIRS]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", [("text", "label"), ("body", "stars")])
def test_labels_in_memory(form: str, names: tuple[str, str], tmp_path: Path) -> None:
    assert read(FORMS[form](LABELS, names), tmp_path) == [Labelled((text,), (label,)) for text, label in LABELS]


def test_a_dataset_gives_names_of_classes(tmp_path: Path) -> None:
    data = Dataset({"text": text, "label": i % 2} for i, (text, _) in enumerate(LABELS))
    assert read(data, tmp_path) == [Labelled((text,), (label,)) for text, label in LABELS]


def test_texts_in_memory(tmp_path: Path) -> None:
    texts = ["one\ntwo", "é\u2028", '{"a": 1}']
    assert read(texts, tmp_path) == texts
    assert read(pandas.DataFrame({"text": texts, "n": [1, 2, 3]}), tmp_path) == texts


@pytest.mark.parametrize("form", ["dictionaries", "data frame"])
def test_conversations_in_memory(form: str, tmp_path: Path) -> None:
    answered = [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in PAIRS]
    expected = [Conversation(tuple(messages)) for messages in answered]
    assert read(FORMS[form](PAIRS, ("prompt", "completion")), tmp_path) == expected
    assert read(FORMS[form]([(messages,) for messages in answered], ("messages",)), tmp_path) == expected


def test_numbers_and_tags_in_memory() -> None:
    found, lines = recognise_rows(rows_of([("a", np.float64(0.5)), ("b", 2)] * 3), None, {})
    assert isinstance(found.data, LabelData) and found.data.outputs == "regression"
    assert json.loads(lines[0]) == {"text": "a", "label": 0.5}
    for names in (("text", "label"), ("ner", "tokens")):
        tagged = [dict(zip(names, (["a", "b", "c"], ["X", "Y", "X"]), strict=True))] * 3
        found, _ = recognise_rows(rows_of(tagged), None, {})
        assert isinstance(found.data, LabelData) and found.data.outputs == "tags" and found.data.text_field == names[0]


def test_missing_values_of_a_data_frame_are_skipped_when_read(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"text": [text for text, _ in LABELS], "label": ["a", float("nan"), "b"] * 4})
    frame = frame.assign(day=pandas.Timestamp("2026"))
    assert len(read(frame, tmp_path)) == 8


VALUES = st.recursive(
    st.text(max_size=5) | st.integers(-(2**40), 2**40) | st.booleans(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(max_size=3), parts, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=4))
def test_arrays_of_any_depth_are_read_as_lists(values: list[Any]) -> None:
    """Arrays of objects, in which lists are arrays again, are what `read_parquet` returns."""

    def packed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: packed(item) for key, item in value.items()}
        if not isinstance(value, list):
            return value
        array = np.empty(len(value), dtype=object)
        array[:] = [packed(item) for item in value]
        return array

    column = pandas.Series([packed(value) for value in values], dtype=object)
    assert rows_of(pandas.DataFrame({"x": column, 0: 1})) == [{"x": value, "0": 1} for value in values]


@pytest.mark.parametrize("kind", ["messages", "tags", "pairs", "labels"])
def test_lists_from_a_parquet_file_and_numbers_as_names_of_columns_are_read(kind: str, tmp_path: Path) -> None:
    answered = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
    frames = {
        "messages": pandas.DataFrame({"messages": [answered] * 12}),
        "tags": pandas.DataFrame({"text": [["a", "b"]] * 12, "label": [["X", "Y"]] * 12}),
        "pairs": pandas.DataFrame([[f"a {i}", f"b {i}"] for i in range(12)]),
        "labels": pandas.DataFrame([[f"a {i}", "xy"[i % 2]] for i in range(12)]),
    }
    frame = frames[kind]
    if kind in ("messages", "tags"):
        frame.to_parquet(tmp_path / "t.parquet")
        frame = pandas.read_parquet(tmp_path / "t.parquet")
    found, lines = recognise_rows(rows_of(frame), None, {})
    expected = {"messages": "conversations", "tags": "labels"}
    assert found.data.kind == expected.get(kind, kind) and len(lines) == 12
    with address_of(lines) as address:
        require_readable(replace(found.data, path=address))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match=r"the data has 2 columns named 'text': rename or remove all but one"):
        rows_of(pandas.DataFrame([["a", "b"]], columns=["text", "text"]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "expected a recipe, a path, a Run, or data .* got int"),
        ([], "the data is empty"),
        ([1], "record 1 of the data must be a text, a pair or a dictionary, got 1"),
        ([("a", "b", "c")], "record 1 of the data must be"),
        ({"train": [1]}, "got a dictionary with train: give one of its values"),
        ([__file__], "its first item .* is a file: give a folder or a pattern"),
        ([{"text": "a", "label": object()}], "the data has a value of type object"),
    ],
)
def test_other_objects_are_refused(data: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        recognise_rows(rows_of(data), None, {})


WRONG: dict[str, tuple[list[Any], str]] = {
    "pairs": ([*PAIRS, ("a", 5)], r"^record 13 of the data: the field 'target' must be a text, got 5$"),
    "text": (["a"] * 12 + ["b\ud800"], r"^record 13 of the data: the field 'text' has a lone surrogate, "),
    "labels": ([*LABELS, (5, "good")], r"^record 13 of the data: the field 'text' must be a text, got 5$"),
    "numbers": ([("a", i / 4) for i in range(12)] + [("b", float("inf"))], r"^record 13 of the data cannot be stored"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_value_is_named_by_its_record_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    data, message = WRONG[kind]
    with pytest.raises(UserError, match=message) as caught:
        glassformer.train(data, tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists() and ".jsonl" not in str(caught.value)


def test_a_wrong_value_of_an_evaluation_is_named_by_its_record() -> None:
    message = r"^record 13 of the data: the field 'target' must be a text, got 5$"
    with place_of([*PAIRS, ("a", 5)], PairData()) as place, pytest.raises(UserError, match=message):
        PairCorpus(PairData(path=str(place))).whole()
    message = r"^the data has no text with a label; use another file$"
    with place_of([("", "x")], LabelData()) as place, pytest.raises(UserError, match=message):
        LabelCorpus(LabelData(path=str(place))).whole()
