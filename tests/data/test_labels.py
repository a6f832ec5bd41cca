"""Labelled texts from every kind of file, their split and their classes; skipped records are reported; every mistake is
named with its place."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glassformer.common.errors import UserError
from glassformer.config.run import LabelData
from glassformer.data import builtin
from glassformer.data.labels import (
    LabelCorpus,
    Labelled,
    class_names,
    report_of,
    require_known,
    split_labelled,
)

Write = Callable[[str, str | bytes], Path]
HEADER = "text\tlabel\n"


def table(write: Write, name: str, *rows: str) -> str:
    """Write a table; a row is "text label"."""
    return str(write(f"{name}.tsv", HEADER + "".join(row.replace(" ", "\t") + "\n" for row in rows)))


def corpus(path: str, **fields: Any) -> LabelCorpus:
    return LabelCorpus(LabelData(path=path, **fields))


def test_pitfall_22_equal_texts_are_on_one_side() -> None:
    records = [Labelled((f"text {i % 40}",), (str(i % 3),)) for i in range(200)]
    train, valid = split_labelled(records, 0.2)
    assert {r.inputs[0] for r in train}.isdisjoint(r.inputs[0] for r in valid)
    assert 20 <= len(valid) <= 40 and len(train) + len(valid) == 200
    assert [set(side) for side in split_labelled(records[::-1], 0.2)] == [set(train), set(valid)]


def test_pairs_with_the_same_first_text_are_on_one_side() -> None:
    records = [Labelled((f"premise {i % 10}", f"hypothesis {i}"), ("x",)) for i in range(30)]
    train, valid = split_labelled(records, 0.3)
    assert valid and {r.inputs[0] for r in train}.isdisjoint(r.inputs[0] for r in valid)


def test_a_label_that_occurs_once_is_trained_on() -> None:
    for place in range(50):  # for every record
        records = [Labelled((f"word {i}", "b"), ("rare" if i == place else "often", "O")) for i in range(50)]
        train, valid = split_labelled(records, 0.5, "tags")
        assert any("rare" in record.labels for record in train) and len(valid) == 25
    texts = [Labelled((str(i),), (str(i),)) for i in range(10)]
    assert len(split_labelled(texts, 0.5)[1]) == 0 and len(split_labelled(texts, 0.5, outputs="regression")[1]) == 5


def test_pitfall_22_training_texts_in_the_validation_data_are_skipped(write: Write) -> None:
    train, valid = table(write, "t", "a 0", "b 1", "c 0", "a 1"), table(write, "v", "a 0", "x 1")
    found = corpus(train, valid_path=valid)
    assert found.split == (
        [Labelled(("b",), ("1",)), Labelled(("c",), ("0",))],
        [Labelled(("a",), ("0",)), Labelled(("x",), ("1",))],
    )
    assert found.news() == ["2 training texts are also in the validation data and are skipped"]


def test_the_test_data_is_read_if_there_is_any(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    train, valid, test = (table(write, name, "a 0", "b 1", f"{name} 0") for name in "tvx")
    assert corpus(train, valid_fraction=0.4).test is None
    monkeypatch.setattr(builtin, "test_part", lambda name: test)
    assert corpus(train, valid_path=table(write, "w", "w 1")).test == LabelCorpus(LabelData(path=test)).whole()
    monkeypatch.setattr(builtin, "test_part", lambda name: valid)
    report = report_of(corpus(train, valid_path=table(write, "u", "u 1")))
    assert report.statistics["n_test"] == 3
    assert report.statistics["news"] == ["2 of the 3 test texts are also in the training or validation data"]


def test_the_digest_depends_on_the_records_and_the_split(write: Write) -> None:
    path = table(write, "t", *(f"{letter} {i % 2}" for i, letter in enumerate("abcdefgh")))
    digest = corpus(path).digest
    assert corpus(path, batch_tokens=7).digest == digest
    assert corpus(path, valid_fraction=0.5).digest != digest
    table(write, "t", *(f"{letter} {i % 2}" for i, letter in enumerate("abcdefgx")))
    assert corpus(path).digest != digest


def test_digests_distinguish_words_from_joined_words(write: Write) -> None:
    rest = "".join(f"{letter}\tY\n\n" for letter in "cdefgh")
    digests = {
        corpus(str(write(f"{i}.conll", f"{sentence}\n\n{rest}")), outputs="tags").digest
        for i, sentence in enumerate(("a|b\tX", "a\tX\nb\tX", "ab\tX"))
    }
    assert len(digests) == 3


@pytest.mark.parametrize("is_test", [False, True])
def test_a_label_missing_in_training_is_named_with_its_place(
    write: Write, is_test: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = table(write, "t", *(f"text{i} {('positive', 'negative')[i % 2]}" for i in range(8)))
    other = table(write, "v", "x negative", "y positiv")
    found = corpus(train) if is_test else corpus(train, valid_path=other)
    monkeypatch.setattr(builtin, "test_part", lambda name: other if is_test else None)
    with pytest.raises(
        UserError, match=r"v.tsv:3 has the label 'positiv', which no training text has: did you mean "
    ) as e:
        _ = found.split, found.test
    assert str(e.value).endswith("'positive'? The labels are negative, positive")
    with pytest.raises(UserError, match="a record has the label 'z', which no training text has: the labels are 0, 1"):
        require_known([Labelled(("a",), ("z",))], ["0", "1"])


def test_labels_that_are_numbers_have_no_classes(write: Write) -> None:
    found = corpus(
        table(write, "t", "a 1.5", "b -2", "c 3", "d 3.5"), valid_path=table(write, "v", "x 7"), outputs="regression"
    )
    report = report_of(found)
    assert (report.statistics["counts"], report.statistics["imbalance"], report.statistics["numbers"]) == (
        {},
        None,
        (-2.0, 1.5, 3.5),
    )
    assert "labels      from -2 to 3.5, mean 1.5" in str(report) and not found.news()


def test_class_names_are_sorted_by_number_then_by_name() -> None:
    labels = ["b", "10", "2", "-1", "0.5", "nan", "a", "2"]
    assert class_names(Labelled(("",), (label,)) for label in labels) == ["-1", "0.5", "2", "10", "a", "b", "nan"]
    assert class_names([Labelled(("x", "y"), ("B", "A")), Labelled(("x",), ("B",))]) == ["A", "B"]


def test_the_report_counts_classes_and_names_rare_ones(write: Write) -> None:
    rows = [f"text{i} {'rare' if i < 2 else 'often'}" for i in range(14)]
    found = corpus(table(write, "t", *rows), valid_path=table(write, "v", "xyz rare", "u often", "w often"))
    report = report_of(found)
    assert report.statistics["counts"] == {"often": (12, 2), "rare": (2, 1)} and report.statistics["imbalance"] == 6.0
    assert report.statistics["shares"] == {"often": 12 / 14, "rare": 2 / 14}
    assert report.statistics["characters"] == (5, 6)
    message = "the class 'often' occurs 6 times as often as 'rare' (12 and 2 times); prefer macro F1 to accuracy"
    assert found.news() == [message]
    lines = str(report).splitlines()
    assert lines[0] == "records     14 for training, 3 for validation"
    assert lines[3:] == [
        "often               12           2  85.7 %",
        "rare                 2           1  14.3 %",
        "imbalance   6.0: most frequent class / least frequent class; above 5, a run on own data selects its best "
        "step by macro F1",
        f"note        {message}",
    ]
    assert report.statistics["imbalance"] == 6.0 and report.statistics["counts"]["rare"] == (2, 1)


def test_an_imbalance_of_five_is_not_reported_and_tags_count_words(write: Write) -> None:
    train = str(write("t.conll", "a\tX\nb\tX\nc\tX\n\nd\tX\ne\tX\nf\tY\n"))
    valid = str(write("v.conll", "a\tX\nb\tY\n"))
    found = corpus(train, valid_path=valid, outputs="tags")
    assert found.news() == [] and report_of(found).statistics["counts"] == {"X": (5, 1), "Y": (1, 1)}


def test_the_report_shortens_many_classes(write: Write) -> None:
    rows = [f"text{i} class{i % 50}" for i in range(200)]
    report = report_of(corpus(table(write, "t", *rows), valid_path=table(write, "v", "x class0")))
    assert len(report.statistics["counts"]) == 50 and "… and 10 more classes" in str(report)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "data.path is missing; set --data.path FILE"),
        ({"path": "a.conll", "outputs": "tags", "second_field": "b"}, "remove data.second_field"),
    ],
)
def test_wrong_settings_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        LabelCorpus(LabelData(**fields))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["a 0", "a 1"], "has no validation text"),
        ([], "has no training text"),
        (["a 0", "b 0", "c 0"], "has only the label '0'"),
    ],
)
def test_texts_without_training_or_validation_data_are_refused(write: Write, rows: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        _ = corpus(table(write, "t", *rows)).split


@pytest.mark.parametrize("separate", [False, True], ids=["split", "own validation file"])
@pytest.mark.parametrize("n_classes", [2, 40], ids=["swapped", "numbers of rows"])
def test_columns_that_are_swapped_are_named(write: Write, n_classes: int, separate: bool) -> None:
    rows = [f"class {i % n_classes}\ta text, number {i}" for i in range(40)]
    path = str(write("t.tsv", "\n".join(["text\tlabel", *rows])))
    with pytest.raises(
        UserError, match=r"t.tsv is different \(40 labels, \d+ texts\): are the columns swapped\? set data"
    ):
        _ = LabelCorpus(LabelData(path=path, valid_path=path if separate else None)).split


def test_a_file_without_a_record_is_refused(write: Write) -> None:
    with pytest.raises(UserError, match="has no text with a label"):
        LabelCorpus(LabelData(path=table(write, "t"))).whole()


def test_a_dataset_validates_on_its_validation_split(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = {
        name: [{"text": f"{name} {i}", "label": i % 2} for i in range(4)] for name in ("train", "validation", "test")
    }
    hub = SimpleNamespace(
        get_dataset_split_names=lambda *address: list(sides), load_dataset=lambda *address, split: sides[split]
    )
    monkeypatch.setitem(sys.modules, "datasets", hub)
    found = corpus("hf:name")
    for side, name in zip(found.split, sides, strict=False):
        assert [record.inputs[0] for record in side] == [row["text"] for row in sides[name]]
    train, valid = corpus("hf:name#test", valid_fraction=0.25).split
    assert len(train) == 3 and len(valid) == 1


def test_a_builtin_has_fixed_parts() -> None:
    found = corpus("builtin:docstrings")
    train, valid = found.split
    assert found.test == LabelCorpus(LabelData(path="builtin:docstrings#test")).whole()
    assert valid == LabelCorpus(LabelData(path="builtin:docstrings#valid")).whole()
    assert len(train) + len(valid) + len(found.test or []) == len(
        LabelCorpus(LabelData(path="builtin:docstrings")).whole()
    )
    assert found.news() == [] and report_of(found).statistics["news"] == []
    assert corpus("builtin:docstrings#test").test is None


TEXTS = [Labelled(("a dog",), ("0",)), Labelled(("two cats, big",), ("1",))]
SENTENCES = [Labelled(("EU", "rejects"), ("ORG", "O")), Labelled(("Peter",), ("PER",))]


def labelled(path: Path | str, **fields: Any) -> list[Any]:
    data = LabelData(path=str(path), **fields)
    return list(LabelCorpus(data).records(data, "train"))


def tagged(path: Path | str, **fields: Any) -> list[Any]:
    return labelled(path, outputs="tags", **fields)


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
def test_texts_with_a_label_are_read(write: Write, name: str, content: str, fields: dict[str, str]) -> None:
    assert labelled(write(name, content), **fields) == TEXTS


def test_a_pair_of_texts_with_a_boolean_label_is_read(write: Write) -> None:
    path = write("t.jsonl", '{"text": "a", "b": "c", "label": true}\n{"text": "a", "b": "", "label": false}\n')
    pairs = LabelCorpus(LabelData(path=str(path), second_field="b"))
    assert pairs.whole() == [Labelled(("a", "c"), ("true",))]
    assert pairs.dropped.sentences() == [f"1 record has no text or no label and is skipped (the first: {path}:2)"]
    with pytest.raises(
        UserError, match=r"expected the columns text and b and label, got a, b; set data.text_field, data.s"
    ):
        labelled(write("t.tsv", "a\tb\n"), second_field="b")


def test_a_record_has_its_line_which_equality_ignores(write: Write) -> None:
    path = write("t.csv", 'text,label\n"a\ndog",0\nb,1\n')
    assert [record.where for record in labelled(path)] == [f"{path}:3", f"{path}:4"]


def test_empty_records_and_a_missing_header_are_reported(write: Write) -> None:
    path = write("t.tsv", "a\t0\n \t1\nc\t \nd\t1\n")
    texts = LabelCorpus(LabelData(path=str(path)))
    assert [record.inputs for record in texts.whole()] == [("a",), ("d",)]
    assert texts.dropped.sentences() == [
        f"2 records have no text or no label and are skipped (the first: {path}:2)",
        f"{path} has no header with text and label; line 1 is read as data (text, label)",
    ]


@pytest.mark.parametrize("header", ["sentence\tlabel", "text\tclass"])
def test_a_header_with_one_of_the_columns_is_refused(write: Write, header: str) -> None:
    there = header.replace("\t", ", ")
    with pytest.raises(UserError, match=f"expected the columns text and label, got {there}; "):
        labelled(write("t.tsv", f"{header}\na\t0\n"))


@pytest.mark.parametrize("label", ["x", "nan", "inf", "1e999", "1,5", "9" * 400])
def test_a_label_that_is_not_a_number_is_named_with_its_line(write: Write, label: str) -> None:
    path = write("t.tsv", f"a\t-1.5e3\nb\t{label}\n")
    with pytest.raises(UserError, match=rf"t.tsv:2: .* needs a finite number as label, got '{label[:30]}"):
        labelled(path, outputs="regression")
    assert [record.labels for record in labelled(path)] == [("-1.5e3",), (label,)]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.txt", "a b", r"t.txt is not records: expected JSON, or rows"),
        (
            "t.conll",
            "a\tX\n",
            r"expected a .tsv, .csv, .jsonl, .ndjson or .parquet file; for words with tags, set --data.outputs tags",
        ),
        ("t.csv", "a,b\n", r"expected the columns text and label, got a, b; set data.text_field, data.label_field"),
        ("t.tsv", "text\tlabel\na\n", r"t.tsv:2: expected 2 columns as in line 1, got 1"),
        ("t.csv", 'text,label\n"a,b\n', r"t.csv:2 is not valid CSV"),
        ("t.jsonl", '{"text": "a"}\n', r"t.jsonl:1 has no field 'label'; it has 'text'"),
        ("t.jsonl", '{"text": ["a"], "label": 1}\n', r"t.jsonl:1: the field 'text' must be a text, got \['a'\]"),
        ("t.jsonl", '{"text": "a", "label": [1]}\n', r"t.jsonl:1: the field 'label' must be a text, got \[1\]"),
        ("t.jsonl", '{"text": "a", "label": "\\ud800"}\n', r"the field 'label' has a lone surrogate"),
        ("t.jsonl", '{"text": "a", "label": ' + "9" * 5000 + "}\n", r"t.jsonl:1 is not JSON"),
        ("t.tsv", b"caf\xe9\t1\n", "is not UTF-8"),
    ],
)
def test_label_files_that_cannot_be_read_are_named(write: Write, name: str, content: str | bytes, words: str) -> None:
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
def test_tagged_words_are_read(write: Write, name: str, content: str) -> None:
    assert tagged(write(name, content)) == SENTENCES


def test_tagged_words_keep_spaces_and_sentences_have_their_line(write: Write) -> None:
    path = write("t.conll", "\na b\tX\n\nc\tY\nd\tX\n")
    assert tagged(path) == [Labelled(("a b",), ("X",)), Labelled(("c", "d"), ("Y", "X"))]
    assert [record.where for record in tagged(path)] == [f"{path}:2", f"{path}:4"]


def test_a_sentence_without_words_is_dropped(write: Write) -> None:
    path = write("t.jsonl", '{"text": [], "label": []}\n{"text": ["a"], "label": [1]}\n')
    sentences = LabelCorpus(LabelData(path=str(path), outputs="tags"))
    assert sentences.whole() == [Labelled(("a",), ("1",))]
    assert (sentences.dropped.n_empty, sentences.dropped.first_empty) == (1, f"{path}:1")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "t.tsv",
            "a\tb\n",
            r"expected a .jsonl, .ndjson, .parquet or .conll file \(lists of words and of tags, or lines of",
        ),
        ("t.conll", "a\tX\nb\n", r"t.conll:2: expected a word and its tag, got 'b'"),
        ("t.conll", "a\tX\n\n\tX\n", r"t.conll:3: expected a word and its tag"),
        ("t.conll", "a\tX\nb\tc\tX\n", r"t.conll:2: expected 2 columns as for word 1, got 3"),
        ("t.jsonl", '{"text": ["a", "b"], "label": ["X"]}\n', r"t.jsonl:1 has 2 words and 1 tags"),
        ("t.jsonl", '{"text": "a b", "label": ["X"]}\n', r"t.jsonl:1: the field 'text' must be a list, got 'a b'"),
        ("t.jsonl", '{"text": ["a", 1], "label": ["X", "Y"]}\n', r"t.jsonl:1: an item of 'text' must be a text, got 1"),
    ],
)
def test_tags_that_cannot_be_read_are_named(write: Write, name: str, content: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        tagged(write(name, content))


class Rows(list[dict[str, Any]]):
    """The result of `load_dataset`: rows with their features."""

    def __init__(self, rows: list[dict[str, Any]], **features: Any) -> None:
        super().__init__(rows)
        self.features = features


def use_hub(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> None:
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda *address, split: rows))


def test_the_classes_of_a_dataset_get_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    feature = SimpleNamespace(names=["bad", "good"])
    use_hub(monkeypatch, Rows([{"text": "a", "label": 1}, {"text": "b", "label": 0}], label=feature))
    assert [record.labels for record in labelled("hf:some/name")] == [("good",), ("bad",)]
    use_hub(monkeypatch, [{"text": "a", "label": 1}])
    assert labelled("hf:some/name") == [Labelled(("a",), ("1",))]


def test_a_split_that_hides_its_labels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(monkeypatch, Rows([{"text": "a", "label": -1}], label=SimpleNamespace(names=["bad", "good"])))
    with pytest.raises(UserError, match=r"row 1 of hf:name \(train\): the label -1 is not a class"):
        labelled("hf:name")


def test_the_tags_of_a_dataset_get_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    feature = SimpleNamespace(feature=SimpleNamespace(names=["O", "PER"]))
    use_hub(monkeypatch, Rows([{"words": ["Peter", "went"], "ner": {"tags": [1, 0]}}], ner={"tags": feature}))
    found = tagged("hf:name", text_field="words", label_field="ner.tags")
    assert found == [Labelled(("Peter", "went"), ("PER", "O"))]


def test_a_builtin_with_unsuitable_settings_is_refused() -> None:
    with pytest.raises(UserError, match=r"builtin:python-tokens has tags: set data.outputs to tags"):
        labelled("builtin:python-tokens")
    with pytest.raises(UserError, match=r"builtin:docstrings has classes: set data.outputs to classes"):
        tagged("builtin:docstrings")
    for fields in ({"outputs": "regression"}, {"second_field": "b"}):
        with pytest.raises(UserError, match="has classes of single texts"):
            labelled("builtin:docstrings", **fields)


def test_a_jsonl_key_with_a_dot_is_found(write: Write) -> None:
    path = write("t.jsonl", json.dumps({"a.text": "x", "label": "y"}))
    assert labelled(path, text_field="a.text") == [Labelled(("x",), ("y",))]
