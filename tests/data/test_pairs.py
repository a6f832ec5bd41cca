"""Pairs from every kind of source; skipped pairs are reported; the split is by source; mistakes are one sentence."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from glassformer.common.errors import UserError
from glassformer.config.run import PairData
from glassformer.data.pairs import Pair, PairCorpus, report_of

PAIRS = [Pair("a dog", "ein hund"), Pair("two cats", "zwei katzen"), Pair("a dog", "der hund")]

EN_DE = {"source_field": "en", "target_field": "de"}


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def aligned(folder: Path, source: str, target: str, name: str = "") -> dict[str, str]:
    return {"source": write(folder / f"{name}s.txt", source), "target": write(folder / f"{name}t.txt", target)}


def test_two_aligned_files_are_read(tmp_path: Path) -> None:
    data = PairData(**aligned(tmp_path, "a dog\ntwo cats\na dog\n", "ein hund\nzwei katzen\nder hund"))
    assert PairCorpus(data).whole() == PAIRS


def test_windows_line_ends_and_rare_separators_are_read(tmp_path: Path) -> None:
    data = PairData(**aligned(tmp_path, "\ufeffa\u2028dog\r\nb\x0bc\r\n", "ein\x85hund\nd\n"))
    assert PairCorpus(data).whole() == [Pair("a\u2028dog", "ein\x85hund"), Pair("b\x0bc", "d")]


@pytest.mark.parametrize(
    ("name", "content", "fields"),
    [
        ("p.tsv", "a dog\tein hund\ntwo cats\tzwei katzen\na dog\tder hund\n", {}),
        ("p.tsv", "id\ttarget\tsource\n1\tein hund\ta dog\n2\tzwei katzen\ttwo cats\n3\tder hund\ta dog\n", {}),
        ("p.csv", 'source,target\n"a dog",ein hund\ntwo cats,"zwei katzen"\na dog,der hund\n', {}),
        ("p.csv", "en,de\na dog,ein hund\ntwo cats,zwei katzen\na dog,der hund\n", EN_DE),
        ("p.jsonl", "".join(json.dumps({"source": p.source, "target": p.target}) + "\n\n" for p in PAIRS), {}),
        (
            "p.jsonl",
            "".join(json.dumps({"translation": {"en": p.source, "de": p.target}}) + "\n" for p in PAIRS),
            {"source_field": "translation.en", "target_field": "translation.de"},
        ),
    ],
)  # fmt: skip
def test_one_file_with_both_sides_is_read(tmp_path: Path, name: str, content: str, fields: dict[str, str]) -> None:
    assert PairCorpus(PairData(path=write(tmp_path / name, content), **fields)).whole() == PAIRS  # type: ignore[arg-type]


def test_a_quotation_mark_in_a_tsv_is_kept(tmp_path: Path) -> None:
    assert PairCorpus(PairData(path=write(tmp_path / "p.tsv", '"a\tb"\n'))).whole() == [Pair('"a', 'b"')]


def test_an_empty_side_is_skipped_and_reported_with_its_line(tmp_path: Path) -> None:
    files = aligned(tmp_path, "a\n\nc\nd\ne\nf\n", "1\n2\n \n4\n5\n6\n")
    corpus = PairCorpus(PairData(**files, valid_fraction=0.3))
    assert sum(map(len, corpus.split)) == 4
    assert corpus.news() == [f"2 pairs have an empty side and are skipped (the first: line 2 of {files['source']})"]
    corpus = PairCorpus(PairData(**files))
    corpus.whole()
    assert corpus.dropped.n_empty == 2


def test_pitfall_22_training_pairs_in_the_validation_data_are_skipped(tmp_path: Path) -> None:
    files = aligned(tmp_path, "a\nb\nc\na\n", "1\n2\n3\n9\n")
    valid = {f"valid_{name}": path for name, path in aligned(tmp_path, "a\nx\n", "1\n7\n", "valid-").items()}
    corpus = PairCorpus(PairData(**files, **valid))
    assert corpus.split == ([Pair("b", "2"), Pair("c", "3"), Pair("a", "9")], [Pair("a", "1"), Pair("x", "7")])
    assert corpus.news() == ["1 training pair is also in the validation data and is skipped"]


def test_pitfall_22_all_targets_of_a_source_are_on_one_side(tmp_path: Path) -> None:
    lines = [f"source {i % 40}\ttarget {i}\n" for i in range(200)]

    def split(lines: list[str]) -> tuple[list[Pair], list[Pair]]:
        return PairCorpus(PairData(path=write(tmp_path / "p.tsv", "".join(lines)), valid_fraction=0.2)).split

    train, valid = split(lines)
    assert {p.source for p in train}.isdisjoint(p.source for p in valid)
    assert 20 <= len(valid) <= 40 and len(train) + len(valid) == 200
    assert [set(side) for side in split(lines[::-1])] == [set(train), set(valid)]


def test_the_digest_depends_on_the_pairs_and_the_split(tmp_path: Path) -> None:
    files = aligned(tmp_path, "a\nb\nc\nd\n", "1\n2\n3\n4\n")
    digest = PairCorpus(PairData(**files)).digest
    assert PairCorpus(PairData(**files, batch_tokens=7)).digest == digest
    assert PairCorpus(PairData(**files, valid_fraction=0.5)).digest != digest
    write(tmp_path / "t.txt", "1\n2\n3\n5\n")
    assert PairCorpus(PairData(**files)).digest != digest


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "no pairs are given; set --data.source FILE and --data.target FILE"),
        ({"source": "a"}, "the target side is missing; set --data.target FILE"),
        ({"target": "a"}, "the source side is missing; set --data.source FILE"),
        ({"path": "a.tsv", "source": "a"}, "data.path contains both sides"),
        ({"path": "a.tsv", "valid_target": "a"}, "the validation source side is missing; set --data.valid-source"),
        ({"path": "a.tsv", "valid_path": "b", "valid_source": "a", "valid_target": "a"}, "remove data.valid_source"),
    ],
)
def test_missing_sides_are_named(given: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        PairCorpus(PairData(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.txt", "a b", r"p.txt is not records: expected JSON, or rows of equally many columns"),
        ("p.tsv", "a\tb\tc\n", "expected the columns source and target, got a, b, c"),
        ("p.tsv", "a\tb\nc\n", r"p.tsv:2: expected 2 columns as in line 1, got 1"),
        ("p.csv", "a,b\n", "expected the columns source and target, got a, b"),
        ("p.jsonl", "{}\n", r"p.jsonl:1 has no field 'source'"),
        ("p.jsonl", "[1]\n", r"p.jsonl:1 is not a JSON object"),
        ("p.jsonl", '{"source": 1, "target": "a"}\n', "the field 'source' must be a text, got 1"),
        ("p.jsonl", '{"source": \n', r"p.jsonl:1 is not JSON"),
        ("p.tsv", b"caf\xe9\tb\n", "is not UTF-8"),
        ("p.tsv", "\t\n", "has no pair with both sides"),
        ("p.tsv", "", "expected the columns source and target, got none"),
        ("p.csv", 'source,target\na,b\n"c,d\ne,f\n', r"p.csv:4 is not valid CSV: unexpected end of data"),
        ("p.csv", 'source,target\n"a\nb",c\nd\n', r"p.csv:4: expected 2 columns as in line 1, got 1"),
        (
            "p.jsonl",
            '{"source": "\\ud800", "target": "a"}\n',
            r"p.jsonl:1: the field 'source' has a lone surrogate",
        ),
    ],
)
def test_pair_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: str | bytes, words: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=words):
        PairCorpus(PairData(path=path)).whole()


def test_unequal_numbers_of_lines_name_both(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"s.txt has 2 lines and .*t.txt has 1 lines"):
        PairCorpus(PairData(**aligned(tmp_path, "a\nb\n", "1\n"))).whole()


def test_a_single_source_leaves_no_validation_pair(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no validation pair"):
        _ = PairCorpus(PairData(**aligned(tmp_path, "a\na\n", "1\n2\n"))).split


class FakeHub:
    """The two calls of `datasets` that are used."""

    def __init__(self, splits: dict[str, list[dict[str, Any]]]) -> None:
        self.splits, self.asked = splits, []  # type: ignore[var-annotated]

    def module(self) -> SimpleNamespace:
        return SimpleNamespace(get_dataset_split_names=self.names, load_dataset=self.load)

    def names(self, *address: str) -> list[str]:
        return list(self.splits)

    def load(self, *address: str, split: str) -> list[dict[str, Any]]:
        self.asked.append((*address, split))
        if address[0] == "no/such":
            raise FileNotFoundError("Couldn't find it\nand more lines")
        return self.splits[split]


def test_a_hub_dataset_is_read_by_name_and_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"translation": {"en": p.source, "de": p.target}} for p in PAIRS]
    hub = FakeHub({"train": rows, "validation": rows[1:2]})
    monkeypatch.setitem(sys.modules, "datasets", hub.module())
    fields = {"source_field": "translation.en", "target_field": "translation.de"}
    corpus = PairCorpus(PairData(path="hf:some/name:de-en", **fields))  # type: ignore[arg-type]
    assert corpus.split == ([PAIRS[0], PAIRS[2]], [PAIRS[1]])
    assert hub.asked == [("some/name", "de-en", "train"), ("some/name", "de-en", "validation")]
    refusal = r"hf:no/such cannot be read: Couldn't find it; check the name and the network$"
    with pytest.raises(UserError, match=refusal):
        PairCorpus(PairData(path="hf:no/such")).whole()


def test_training_and_validation_may_name_a_split_of_a_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"source": p.source, "target": p.target} for p in PAIRS]
    hub = FakeHub({"train": rows, "validation": rows[1:2], "test": rows[:1]})
    monkeypatch.setitem(sys.modules, "datasets", hub.module())
    assert PairCorpus(PairData(path="hf:name#test")).whole() == PAIRS[:1]
    assert PairCorpus(PairData(path="hf:name")).whole() == PAIRS[1:2]
    assert PairCorpus(PairData(path="hf:name#train", valid_path="hf:name#test")).split == (PAIRS[1:], PAIRS[:1])
    assert hub.asked[-2:] == [("name", "train"), ("name", "test")]


def test_a_dataset_error_and_a_value_that_is_not_text_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub({"validation": [{"source": "a", "target": b"b"}]})
    monkeypatch.setitem(sys.modules, "datasets", hub.module())
    refusal = r"row 1 of hf:name \(validation\): the field 'target' must be a text, got b'b'"
    with pytest.raises(UserError, match=refusal):
        PairCorpus(PairData(path="hf:name")).whole()
    monkeypatch.setattr(FakeHub, "load", lambda *_, **__: (_ for _ in ()).throw(ValueError()))
    monkeypatch.setitem(sys.modules, "datasets", hub.module())
    with pytest.raises(UserError, match=r"hf:name cannot be read: ValueError"):
        PairCorpus(PairData(path="hf:name")).whole()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'glassformer\[data\]'"):
        PairCorpus(PairData(path="hf:some/name")).whole()


def test_a_builtin_has_a_fixed_split_with_readable_parts() -> None:
    corpus = PairCorpus(PairData(path="builtin:reverse"))
    train, valid = corpus.split
    test = PairCorpus(PairData(path="builtin:reverse#test")).whole()
    assert PairCorpus(PairData(path="builtin:reverse#valid")).whole() == valid
    sources = [{pair.source for pair in side} for side in (train, valid, test)]
    assert sum(map(len, sources)) == len(set.union(*sources)) == 20_000
    assert all(pair.target == pair.source[::-1] for pair in test)


def test_a_part_of_a_builtin_is_split_like_other_pairs() -> None:
    train, valid = PairCorpus(PairData(path="builtin:reverse#test", valid_fraction=0.5)).split
    assert {*train, *valid} == set(PairCorpus(PairData(path="builtin:reverse#test")).whole()) and abs(
        len(valid) - len(train)
    ) <= 1


def test_the_report_counts_pairs(tmp_path: Path) -> None:
    report = report_of(
        PairCorpus(PairData(**aligned(tmp_path, "a\na\nbb\n\nc\n", "1\n1\n22\n3\n4\n"), valid_fraction=0.3))
    )
    assert (report.statistics["n_train"], report.statistics["n_valid"], report.statistics["n_distinct_sources"]) == (
        3,
        1,
        3,
    )
    assert report.statistics["source_characters"] == (1, 1, 2)
    assert "note        1 pair has an empty side" in str(report) and report.statistics["n_train"] == 3
