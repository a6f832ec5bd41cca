"""Parquet files by name: the same records as in a jsonl file, for texts, pairs, labels and tags; datasets."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import late
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.run import ConversationData, LabelData, PairData, PreferenceData, PromptData, TextData
from glassformer.data.conversations import (
    Conversation,
    ConversationCorpus,
    Preference,
    PreferenceCorpus,
    Prompt,
    PromptCorpus,
)
from glassformer.data.in_memory import place_of
from glassformer.data.kinds import look_at
from glassformer.data.labels import LabelCorpus, Labelled
from glassformer.data.own_data import run_for
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.recognition import recognise
from glassformer.data.texts import Counts, read_documents, read_pieces
from runs import text_corpus

datasets = late.module("datasets")

Rows = list[dict[str, Any]]

TEXTS: Rows = [{"text": f"text number {i}\n", "stars": i} for i in range(30)]
PAIRS: Rows = [{"en": f"a house {i}", "de": f"ein Haus {i}"} for i in range(30)]
CLASSES: Rows = [{"body": f"film {i}", "stars": i % 2} for i in range(30)]
NUMBERS: Rows = [{"text": f"film {i}", "label": i / 4} for i in range(30)]
TAGS: Rows = [{"text": ["a", f"dog{i}"], "label": ["D", "N"]} for i in range(30)]


def written(path: Path, rows: Rows) -> str:
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("rows", [TEXTS, PAIRS, CLASSES, NUMBERS, TAGS], ids=["text", "pairs", "01", "0.5", "tags"])
def test_a_parquet_file_is_recognised_as_a_jsonl_file_of_its_rows(rows: Rows, tmp_path: Path) -> None:
    jsonl = tmp_path / "same.jsonl"
    jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, same = recognise(written(tmp_path / "same.parquet", rows)), recognise(str(jsonl))
    assert type(found.data) is type(same.data) and found.evidence == same.evidence
    if isinstance(found.data, PairData) and isinstance(same.data, PairData):
        assert (
            PairCorpus(found.data).whole()
            == PairCorpus(same.data).whole()
            == [Pair(row["en"], row["de"]) for row in rows]
        )
    elif isinstance(found.data, LabelData) and isinstance(same.data, LabelData):
        records = LabelCorpus(found.data).whole()
        assert records == LabelCorpus(same.data).whole() and len(records) == len(rows)
    else:
        assert list(read_documents([str(found.data.path)])) == [row["text"] for row in rows]
    look_at(found.data)
    run, _ = run_for([str(found.data.path)])
    assert run == recipes.with_changes(run_for([jsonl])[0], path=found.data.path)


def test_tags_and_class_names_that_datasets_stored_are_read(tmp_path: Path) -> None:
    features = datasets.Features(
        {"text": datasets.List(datasets.Value("string")), "label": datasets.List(datasets.ClassLabel(names=["D", "N"]))}
    )
    path = tmp_path / "tags.parquet"
    datasets.Dataset.from_list([{"text": ["a", "dog"], "label": [0, 1]}], features=features).to_parquet(path)
    assert LabelCorpus(LabelData(outputs="tags", path=str(path))).whole() == [Labelled(("a", "dog"), ("D", "N"))]
    classes = tmp_path / "classes.parquet"
    one = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])})
    datasets.Dataset.from_list([{"text": "a", "label": 1}], features=one).to_parquet(classes)
    assert LabelCorpus(LabelData(path=str(classes))).whole() == [Labelled(("a",), ("good",))]


def test_columns_inside_of_columns_are_named_with_dots(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", [{"translation": {"en": "a dog", "de": "ein Hund"}}])
    data = PairData(path=path, source_field="translation.en", target_field="translation.de")
    assert PairCorpus(data).whole() == [Pair("a dog", "ein Hund")]


def test_a_text_column_is_a_corpus_with_unix_line_ends_in_a_file_and_in_a_pattern(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / f"{name}.parquet", [{"text": f"{name} one\r\ntwo"}, {"text": " "}, {"text": name}])
    pattern, counts = str(tmp_path / "*.parquet"), Counts()
    assert [piece.text for piece in read_pieces([pattern], counts=counts)] == ["a one\ntwo", "a", "b one\ntwo", "b"]
    assert (counts.n_crlf, counts.n_blank_documents) == (2, 2)
    assert recognise(pattern).data == TextData(path=pattern)
    assert text_corpus(pattern, valid_fraction=0.5).n_bytes == 2 * len("a one\ntwo" + "a")


def test_the_size_of_a_run_follows_from_the_texts_and_not_from_their_compressed_bytes(tmp_path: Path) -> None:
    rows = [{"text": "the same words again and again. " * 2000}] * 20
    path = written(tmp_path / "large.parquet", rows)
    assert Path(path).stat().st_size < 1 << 17
    jsonl = tmp_path / "large.jsonl"
    jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_for([path])[0].tokenizer == run_for([jsonl])[0].tokenizer


ASKED = [[{"role": "user", "content": f"{i}?"}] for i in range(6)]
ANSWERED = [[{"role": "assistant", "content": f"{i}"}] for i in range(6)]
ANSWERS: dict[str, tuple[Any, Any, Rows, Sequence[object]]] = {
    "conversations": (
        ConversationCorpus,
        ConversationData(),
        [{"messages": asked + answered} for asked, answered in zip(ASKED, ANSWERED, strict=True)],
        [Conversation((*asked, *answered)) for asked, answered in zip(ASKED, ANSWERED, strict=True)],
    ),
    "preferences": (
        PreferenceCorpus,
        PreferenceData(),
        [{"prompt": ASKED[0], "chosen": ANSWERED[i], "rejected": ANSWERED[i - 1]} for i in range(6)],
        [Preference((*ASKED[0],), (*ANSWERED[i],), (*ANSWERED[i - 1],)) for i in range(6)],
    ),
    "prompts": (
        PromptCorpus,
        PromptData(),
        [{"prompt": asked, "answer": 7} for asked in ASKED],
        [Prompt((*asked,), {"prompt": asked, "answer": 7}) for asked in ASKED],
    ),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_dataset_has_conversations_preferences_or_prompts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name on the hub, where its validation split is the validation data, and in memory."""
    corpus, data, rows, expected = ANSWERS[kind]
    sides = {"train": datasets.Dataset.from_list(rows), "validation": datasets.Dataset.from_list(rows[:1])}
    monkeypatch.setattr("datasets.get_dataset_split_names", lambda name: [*sides])
    monkeypatch.setattr("datasets.load_dataset", lambda name, split: sides[split])
    assert corpus(replace(data, path="hf:some/name")).split == (expected[1:], expected[:1])
    with place_of(sides["train"], data) as place:
        assert corpus(replace(data, path=str(place))).whole() == expected


def test_mistakes_name_the_file_the_row_and_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "t.parquet", [{"text": "a", "label": "x"}, {"text": None, "label": "x"}])
    with pytest.raises(UserError, match=r"^row 1 of .*t\.parquet has no field 'body'; it has 'text', 'label' \(set "):
        LabelCorpus(LabelData(text_field="body", path=path)).whole()
    assert list(read_documents([path])) == ["a"], "a missing text is skipped"
    with pytest.raises(UserError, match=r"t\.parquet is empty; use a file with rows$"):
        recognise(written(tmp_path / "t.parquet", []))
    (tmp_path / "no.parquet").write_text("text")
    with pytest.raises(UserError, match=r"no\.parquet cannot be read as Parquet: "):
        recognise(str(tmp_path / "no.parquet"))
    with pytest.raises(UserError, match=r"^no such file: .*missing\.parquet$"):
        recognise(str(tmp_path / "missing.parquet"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UserError, match=r"^a Parquet file needs the package pyarrow: pip install 'glassformer\[data\]'$"
    ):
        recognise(path)
