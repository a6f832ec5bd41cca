"""Labelled texts from every kind of file; what is dropped is told; every mistake is named with its place."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glassformer.config.run import LabelData
from glassformer.data.label_files import DroppedLabels, Labelled, Tagged, read_labelled, read_tagged
from glassformer.errors import UserError

Write = Callable[[str, str | bytes], Path]
TEXTS = [Labelled("a dog", None, "0"), Labelled("two cats, big", None, "1")]
SENTENCES = [Tagged(("EU", "rejects"), ("ORG", "O")), Tagged(("Peter",), ("PER",))]


def labelled(path: Path | str, **fields: Any) -> list[Labelled]:
    return list(read_labelled(LabelData(**fields), str(path), DroppedLabels()))


def tagged(path: Path | str, **fields: Any) -> list[Tagged]:
    return list(read_tagged(LabelData(outputs="tags", **fields), str(path), DroppedLabels()))


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("t.tsv", "a dog\t0\ntwo cats, big\t1\n", {}),
        ("t.tsv", "\ufeffid\tlabel\ttext\r\n7\t0\ta dog\r\n8\t1\ttwo cats, big\r\n", {}),
        ("t.csv", 'text,label\n"a dog",0\n"two cats, big",1\n', {}),
        ("t.csv", 'y,x\n0,a dog\n1,"two cats, big"\n', {"text_field": "x", "label_field": "y"}),
        ("t.jsonl", '{"text": "a dog", "label": 0}\n\n{"text": "two cats, big", "label": "1"}\n', {}),
        (
            "t.jsonl",
            '{"of": {"text": "a dog"}, "label": 0}\n{"of": {"text": "two cats, big"}, "label": 1}\n',
            {"text_field": "of.text"},
        ),
    ],
)
def test_texts_with_a_label(write: Write, name: str, content: str, fields: dict[str, str]) -> None:
    assert labelled(write(name, content), **fields) == TEXTS


def test_a_pair_of_texts_and_a_label_that_is_true_or_false(write: Write) -> None:
    path = write("t.jsonl", '{"text": "a", "b": "c", "label": true}\n{"text": "a", "b": "", "label": false}\n')
    dropped = DroppedLabels()
    found = list(read_labelled(LabelData(second_field="b"), str(path), dropped))
    assert found == [Labelled("a", "c", "true")]
    assert dropped.sentences() == [f"1 record has no text or no label and is left out (the first: {path}:2)"]
    with pytest.raises(
        UserError, match=r"has the columns a, b, and not text and b and label \(data.text_field, data.s"
    ):
        labelled(write("t.tsv", "a\tb\n"), second_field="b")


def test_a_record_knows_its_line_and_is_equal_without(write: Write) -> None:
    path = write("t.csv", 'text,label\n"a\ndog",0\nb,1\n')
    assert [record.where for record in labelled(path)] == [f"{path}:3", f"{path}:4"]


def test_what_is_empty_is_dropped_and_a_missing_header_is_told(write: Write) -> None:
    path, dropped = write("t.tsv", "a\t0\n \t1\nc\t \nd\t1\n"), DroppedLabels()
    assert [record.text for record in read_labelled(LabelData(), str(path), dropped)] == ["a", "d"]
    assert dropped.sentences() == [
        f"2 records have no text or no label and are left out (the first: {path}:2)",
        f"{path} has no header with text and label: line 1 is read as a text and its label",
    ]


@pytest.mark.parametrize("header", ["sentence\tlabel", "text\tclass"])
def test_a_header_that_names_one_column_is_no_record(write: Write, header: str) -> None:
    there = header.replace("\t", ", ")
    with pytest.raises(UserError, match=f"has the columns {there}, and not text and label"):
        labelled(write("t.tsv", f"{header}\na\t0\n"))


@pytest.mark.parametrize("label", ["x", "nan", "inf", "1e999", "1,5", "9" * 400])
def test_a_number_must_be_one_and_the_line_is_named(write: Write, label: str) -> None:
    path = write("t.tsv", f"a\t-1.5e3\nb\t{label}\n")
    with pytest.raises(UserError, match=rf"t.tsv:2: the label '{label[:30]}.* is no finite number"):
        labelled(path, outputs="regression")
    assert [record.label for record in labelled(path)] == ["-1.5e3", label]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.txt", "a b", r"is none of .tsv, .csv and .jsonl$"),
        ("t.conll", "a\tX\n", r"is none of .tsv, .csv and .jsonl: words with tags need --data.outputs tags"),
        ("t.csv", "a,b\n", r"has the columns a, b, and not text and label \(data.text_field, data.label_field\)"),
        ("t.tsv", "text\tlabel\na\n", r"t.tsv:2 has 1 columns and the first line 2"),
        ("t.csv", 'text,label\n"a,b\n', r"t.csv:2 is not CSV"),
        ("t.jsonl", '{"text": "a"}\n', r"t.jsonl:1 has no field 'label'; it has text"),
        ("t.jsonl", '{"text": ["a"], "label": 1}\n', r"t.jsonl:1: the field 'text' is no text but \['a'\]"),
        ("t.jsonl", '{"text": "a", "label": [1]}\n', r"t.jsonl:1: the field 'label' is no text but \[1\]"),
        ("t.jsonl", '{"text": "a", "label": "\\ud800"}\n', r"the field 'label' holds half of a surrogate pair"),
        ("t.jsonl", '{"text": "a", "label": ' + "9" * 5000 + "}\n", r"t.jsonl:1 is not JSON"),
        ("t.tsv", b"caf\xe9\t1\n", "is not UTF-8"),
    ],
)
def test_files_that_cannot_be_read(write: Write, name: str, content: str | bytes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        labelled(write(name, content))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.conll", "EU\tORG\nrejects\tO\n\nPeter\tPER\n"),
        ("t.conll", "-DOCSTART- -X- O O\n\nEU NNP I-NP ORG\nrejects VBZ I-VP O\n\n\nPeter NNP I-NP PER"),
        ("t.conll", "EU\tORG\r\nrejects\tO\r\n\r\n-DOCSTART-\tO\r\n\r\nPeter\tPER\r\n"),
        (
            "t.jsonl",
            '{"text": ["EU", "rejects"], "label": ["ORG", "O"]}\n{"text": ["Peter"], "label": ["PER"]}\n',
        ),
    ],
)
def test_words_with_tags(write: Write, name: str, content: str) -> None:
    assert tagged(write(name, content)) == SENTENCES


def test_words_with_a_space_inside_and_the_line_of_a_sentence(write: Write) -> None:
    path = write("t.conll", "\na b\tX\n\nc\tY\nd\tX\n")
    assert tagged(path) == [Tagged(("a b",), ("X",)), Tagged(("c", "d"), ("Y", "X"))]
    assert [record.where for record in tagged(path)] == [f"{path}:2", f"{path}:4"]


def test_a_sentence_without_words_is_dropped(write: Write) -> None:
    path, dropped = write("t.jsonl", '{"text": [], "label": []}\n{"text": ["a"], "label": [1]}\n'), DroppedLabels()
    assert list(read_tagged(LabelData(outputs="tags"), str(path), dropped)) == [Tagged(("a",), ("1",))]
    assert (dropped.n_empty, dropped.first_empty) == (1, f"{path}:1")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.tsv", "a\tb\n", "is neither .conll nor .jsonl"),
        ("t.conll", "a\tX\nb\n", r"t.conll:2 is not a word and its tag: 'b'"),
        ("t.conll", "a\tX\n\n\tX\n", r"t.conll:3 is not a word and its tag"),
        ("t.conll", "a\tX\nb\tc\tX\n", r"t.conll:2 has 3 columns and the first word 2"),
        ("t.jsonl", '{"text": ["a", "b"], "label": ["X"]}\n', r"t.jsonl:1 has 2 words and 1 tags"),
        ("t.jsonl", '{"text": "a b", "label": ["X"]}\n', r"t.jsonl:1: the field 'text' is no list but 'a b'"),
        ("t.jsonl", '{"text": ["a", 1], "label": ["X", "Y"]}\n', r"t.jsonl:1: an item of 'text' is no text but 1"),
        ("t.jsonl", '{"text": ["a", " "], "label": ["X", "Y"]}\n', r"t.jsonl:1: word 2 or its tag is empty"),
    ],
)
def test_tags_that_cannot_be_read(write: Write, name: str, content: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        tagged(write(name, content))


class Rows(list[dict[str, Any]]):
    """What `load_dataset` gives: rows that know their features."""

    def __init__(self, rows: list[dict[str, Any]], **features: Any) -> None:
        super().__init__(rows)
        self.features = features


def use_hub(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *address, split: rows))


def test_the_classes_of_a_dataset_get_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    feature = SimpleNamespace(names=["bad", "good"])
    use_hub(monkeypatch, Rows([{"text": "a", "label": 1}, {"text": "b", "label": 0}], label=feature))
    assert [record.label for record in labelled("hf:some/name")] == ["good", "bad"]
    use_hub(monkeypatch, [{"text": "a", "label": 1}])
    assert labelled("hf:some/name") == [Labelled("a", None, "1")]


def test_a_split_that_hides_its_labels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, Rows([{"text": "a", "label": -1}], label=SimpleNamespace(names=["bad", "good"])))
    with pytest.raises(UserError, match=r"row 1 of hf:name \(train\): the label -1 names no class"):
        labelled("hf:name")


def test_the_tags_of_a_dataset_get_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    feature = SimpleNamespace(feature=SimpleNamespace(names=["O", "PER"]))
    use_hub(monkeypatch, Rows([{"words": ["Peter", "went"], "ner": {"tags": [1, 0]}}], ner={"tags": feature}))
    found = tagged("hf:name", text_field="words", label_field="ner.tags")
    assert found == [Tagged(("Peter", "went"), ("PER", "O"))]


def test_a_builtin_of_the_other_kind_or_with_settings_that_it_lacks_is_refused() -> None:
    with pytest.raises(UserError, match=r"builtin:python-tokens has tags: data.outputs must be tags"):
        labelled("builtin:python-tokens")
    with pytest.raises(UserError, match=r"builtin:docstrings has classes: data.outputs must be classes"):
        tagged("builtin:docstrings")
    for fields in ({"outputs": "regression"}, {"second_field": "b"}):
        with pytest.raises(UserError, match="has classes of single texts"):
            labelled("builtin:docstrings", **fields)


def test_a_jsonl_key_with_a_dot_is_found_as_it_is(write: Write) -> None:
    path = write("t.jsonl", json.dumps({"a.text": "x", "label": "y"}))
    assert labelled(path, text_field="a.text") == [Labelled("x", None, "y")]
