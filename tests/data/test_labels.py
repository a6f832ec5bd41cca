"""The split of labelled texts, their classes and how these are spread; labels that training lacks are named."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glassformer.config.run import LabelData
from glassformer.data.label_files import Labelled, Tagged
from glassformer.data.labels import (
    LabelCorpus,
    class_names,
    class_report,
    labels_in,
    read_labels,
    require_known,
    split_labelled,
)
from glassformer.errors import UserError

Write = Callable[[str, str | bytes], Path]
HEADER = "text\tlabel\n"


def table(write: Write, name: str, *rows: str) -> str:
    """A table; a row is "text label"."""
    return str(write(f"{name}.tsv", HEADER + "".join(row.replace(" ", "\t") + "\n" for row in rows)))


def corpus(path: str, **fields: Any) -> LabelCorpus:
    return LabelCorpus(LabelData(path=path, **fields))


def test_pitfall_22_equal_texts_stand_on_one_side_whatever_the_order_and_the_label() -> None:
    records = [Labelled(f"text {i % 40}", None, str(i % 3)) for i in range(200)]
    train, valid = split_labelled(records, 0.2)
    assert {r.text for r in train}.isdisjoint(r.text for r in valid)  # type: ignore[union-attr]
    assert 20 <= len(valid) <= 40 and len(train) + len(valid) == 200
    assert [set(side) for side in split_labelled(records[::-1], 0.2)] == [set(train), set(valid)]


def test_pairs_that_share_their_first_text_stand_on_one_side() -> None:
    records = [Labelled(f"premise {i % 10}", f"hypothesis {i}", "x") for i in range(30)]
    train, valid = split_labelled(records, 0.3)
    assert valid and {r.text for r in train}.isdisjoint(r.text for r in valid)  # type: ignore[union-attr]


def test_a_label_that_occurs_once_is_trained_on() -> None:
    for place in range(50):  # whichever record has it
        records = [Tagged((f"word {i}", "b"), ("rare" if i == place else "often", "O")) for i in range(50)]
        train, valid = split_labelled(records, 0.5)
        assert any("rare" in labels_in(record) for record in train) and len(valid) == 25
    texts = [Labelled(str(i), None, str(i)) for i in range(10)]
    assert len(split_labelled(texts, 0.5)[1]) == 0 and len(split_labelled(texts, 0.5, keeps_labels=False)[1]) == 5


def test_pitfall_22_training_texts_that_validate_too_are_left_out_and_told(write: Write) -> None:
    train, valid = table(write, "t", "a 0", "b 1", "c 0", "a 1"), table(write, "v", "a 0", "x 1")
    found = corpus(train, valid_path=valid)
    assert found.split == (
        [Labelled("b", None, "1"), Labelled("c", None, "0")],
        [Labelled("a", None, "0"), Labelled("x", None, "1")],
    )
    assert found.news() == ["2 training texts also stand in the validation data and are left out"]


def test_the_test_is_read_where_it_is_named(write: Write) -> None:
    train, valid, test = (table(write, name, "a 0", "b 1", f"{name} 0") for name in "tvx")
    assert corpus(train, valid_fraction=0.4).test is None
    assert corpus(train, valid_path=table(write, "w", "w 1"), test_path=test).test == read_labels(LabelData(), test)
    report = class_report(corpus(train, valid_path=table(write, "u", "u 1"), test_path=valid))
    assert report.n_test == 3
    assert report.news == ("2 of the 3 texts of the test also stand in the training or validation data",)


def test_the_digest_follows_the_records_and_the_split(write: Write) -> None:
    path = table(write, "t", *(f"{letter} {i % 2}" for i, letter in enumerate("abcdefgh")))
    digest = corpus(path).digest
    assert corpus(path, batch_tokens=7).digest == digest
    assert corpus(path, valid_fraction=0.5).digest != digest
    table(write, "t", *(f"{letter} {i % 2}" for i, letter in enumerate("abcdefgx")))
    assert corpus(path).digest != digest


def test_digests_tell_words_from_their_sums(write: Write) -> None:
    rest = "".join(f"{letter}\tY\n\n" for letter in "cdefgh")
    digests = {
        corpus(str(write(f"{i}.conll", f"{sentence}\n\n{rest}")), outputs="tags").digest
        for i, sentence in enumerate(("a|b\tX", "a\tX\nb\tX", "ab\tX"))
    }
    assert len(digests) == 3


@pytest.mark.parametrize("side", ["valid_path", "test_path"])
def test_a_label_that_training_lacks_is_named_with_its_place(write: Write, side: str) -> None:
    train = table(write, "t", *(f"text{i} {('positive', 'negative')[i % 2]}" for i in range(8)))
    other = table(write, "v", "x negative", "y positiv")
    found = corpus(train, **{side: other})
    with pytest.raises(
        UserError, match=r"v.tsv:3 has the label 'positiv', which no training text has: did you mean "
    ) as e:
        _ = found.split, found.test
    assert str(e.value).endswith("'positive'? There are negative, positive")
    with pytest.raises(UserError, match="a record has the label 'z', which no training text has: there are 0, 1"):
        require_known([Labelled("a", None, "z")], ["0", "1"])


def test_labels_that_are_numbers_have_no_classes(write: Write) -> None:
    found = corpus(
        table(write, "t", "a 1.5", "b -2", "c 3", "d 3.5"), valid_path=table(write, "v", "x 7"), outputs="regression"
    )
    report = class_report(found)
    assert (report.counts, report.imbalance, report.numbers) == ({}, None, (-2.0, 1.5, 3.5))
    assert "labels      from -2 to 3.5, 1.5 on average" in str(report) and not found.news()


def test_class_names_are_in_the_order_of_their_numbers_then_of_the_alphabet() -> None:
    labels = ["b", "10", "2", "-1", "0.5", "nan", "a", "2"]
    assert class_names(Labelled("", None, label) for label in labels) == ["-1", "0.5", "2", "10", "a", "b", "nan"]
    assert class_names([Tagged(("x", "y"), ("B", "A")), Tagged(("x",), ("B",))]) == ["A", "B"]


def test_the_report_counts_classes_and_tells_of_rare_ones(write: Write) -> None:
    rows = [f"text{i} {'rare' if i < 2 else 'often'}" for i in range(14)]
    found = corpus(table(write, "t", *rows), valid_path=table(write, "v", "xyz rare", "u often", "w often"))
    report = class_report(found)
    assert report.counts == {"often": (12, 2), "rare": (2, 1)} and report.imbalance == 6.0
    assert report.shares() == {"often": 12 / 14, "rare": 2 / 14}
    assert report.characters == (5, 6)
    told = "the class 'often' occurs 6 times as often as 'rare' (12 and 2 times): macro F1 says more than accuracy"
    assert found.news() == [told]
    lines = str(report).splitlines()
    assert lines[0] == "records     14 for training, 3 for validation"
    assert lines[3:] == [
        "often               12           2  85.7 %",
        "rare                 2           1  14.3 %",
        "imbalance   6.0: the most frequent over the least frequent",
        f"note        {told}",
    ]
    assert report.to_dict()["imbalance"] == 6.0 and report.to_dict()["counts"]["rare"] == (2, 1)


def test_five_times_as_often_is_not_told_and_tags_are_counted_by_the_word(write: Write) -> None:
    train = str(write("t.conll", "a\tX\nb\tX\nc\tX\n\nd\tX\ne\tX\nf\tY\n"))
    valid = str(write("v.conll", "a\tX\nb\tY\n"))
    found = corpus(train, valid_path=valid, outputs="tags")
    assert found.news() == [] and class_report(found).counts == {"X": (5, 1), "Y": (1, 1)}


def test_many_classes_are_not_all_shown(write: Write) -> None:
    rows = [f"text{i} class{i % 50}" for i in range(200)]
    report = class_report(corpus(table(write, "t", *rows), valid_path=table(write, "v", "x class0")))
    assert len(report.counts) == 50 and "… and 10 classes more" in str(report)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "names no labelled texts: give --data.path FILE"),
        ({"path": "a.conll", "outputs": "tags", "second_field": "b"}, "leave out data.second_field"),
    ],
)
def test_settings_that_cannot_be(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        LabelCorpus(LabelData(**fields))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["a 0", "a 1"], "leaves no validation text"),
        ([], "leaves no training text"),
        (["a 0", "b 0", "c 0"], "has the label '0' alone"),
    ],
)
def test_texts_that_teach_nothing(write: Write, rows: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        _ = corpus(table(write, "t", *rows)).split


def test_a_file_without_a_record_is_refused(write: Write) -> None:
    with pytest.raises(UserError, match="holds no text with a label"):
        read_labels(LabelData(), table(write, "t"))


def test_a_dataset_validates_on_its_own_split(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = {
        name: [{"text": f"{name} {i}", "label": i % 2} for i in range(4)] for name in ("train", "validation", "test")
    }
    hub = SimpleNamespace(
        get_dataset_split_names=lambda *address: list(sides), load_dataset=lambda *address, split: sides[split]
    )
    monkeypatch.setitem(sys.modules, "datasets", hub)
    found = corpus("hf:name", test_path="hf:name")
    assert found.test is not None
    for side, name in zip((*found.split, found.test), sides, strict=True):
        assert [record.text for record in side] == [row["text"] for row in sides[name]]  # type: ignore[union-attr]
    train, valid = corpus("hf:name#test", valid_fraction=0.25).split
    assert len(train) == 3 and len(valid) == 1


def test_a_builtin_has_parts_of_its_own() -> None:
    found = corpus("builtin:docstrings")
    train, valid = found.split
    assert found.test == read_labels(LabelData(), "builtin:docstrings#test")
    assert valid == read_labels(LabelData(), "builtin:docstrings#valid")
    assert len(train) + len(valid) + len(found.test or []) == len(read_labels(LabelData(), "builtin:docstrings"))
    assert found.news() == [] and class_report(found).news == ()
    assert corpus("builtin:docstrings#test").test is None
