"""Formats: the same records in every format give the same corpus; separator and quoting are decided by content."""

import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glassformer.common.errors import UserError
from glassformer.config.run import LabelData, PairData, TextData
from glassformer.data import tables
from glassformer.data.kinds import require_readable
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.recognition import recognise
from glassformer.data.text_files import text_lines
from glassformer.data.texts import read_documents

Rows = Sequence[tuple[str, str]]
NAMES = ("source", "target")


def objects(rows: Rows) -> list[dict[str, str]]:
    return [dict(zip(NAMES, row, strict=True)) for row in rows]


def json_text(value: object, **options: int) -> bytes:
    return json.dumps(value, ensure_ascii=False, **options).encode()  # type: ignore[arg-type]


def json_lines(rows: Rows) -> bytes:
    return b"".join(json_text(row) + b"\n" for row in objects(rows))


def quoted(
    rows: Rows, delimiter: str, quoting: int = csv.QUOTE_MINIMAL, end: str = "\r\n", before: str = "", bom: str = ""
) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
    writer.writerows([NAMES, *rows])
    return (bom + before + file.getvalue()).encode()


def as_excel(rows: Rows) -> bytes:
    """Write tabs like a spreadsheet: a cell with a comma, a quotation mark, a tab or a line break is quoted."""

    def cell(text: str) -> str:
        return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\t\n') else text

    return "".join("\t".join(map(cell, row)) + "\r\n" for row in (NAMES, *rows)).encode("utf-8-sig")


def raw(rows: Rows, *, header: bool = True) -> bytes:
    return "".join("\t".join(row) + "\n" for row in ((NAMES,) if header else ()) + tuple(rows)).encode()


def as_parquet(rows: Rows) -> bytes:
    from pyarrow import Table, parquet

    file = io.BytesIO()
    parquet.write_table(Table.from_pylist(objects(rows)), file)
    return file.getvalue()


FORMATS: dict[str, Callable[[Rows], bytes]] = {
    "p.jsonl": json_lines,
    "p.ndjson": json_lines,
    "lines.txt": json_lines,
    "lines.json": json_lines,
    "list.json": lambda rows: json_text(objects(rows)),
    "list.txt": lambda rows: json_text(objects(rows), indent=1),
    "wrapped.json": lambda rows: json_text({"version": "1", "data": objects(rows)}, indent=2),
    "quoted.tsv": lambda rows: quoted(rows, "\t"),
    "all.tsv": lambda rows: quoted(rows, "\t", csv.QUOTE_ALL, "\n"),
    "excel.tsv": as_excel,
    "excel.txt": as_excel,
    "bom.csv": lambda rows: quoted(rows, ",", bom="\ufeff"),
    "all.csv": lambda rows: quoted(rows, ",", csv.QUOTE_ALL),
    "semicolon.csv": lambda rows: quoted(rows, ";", end="\n"),
    "semicolon.txt": lambda rows: quoted(rows, ";"),
    "sep.csv": lambda rows: quoted(rows, "|", before="sep=|\r\n"),
    "sep.tsv": lambda rows: quoted(rows, ",", before="sep=,\n", bom="\ufeff"),
    "tab.csv": lambda rows: quoted(rows, "\t"),
    "p.parquet": as_parquet,
    "packed.jsonl.gz": lambda rows: gzip.compress(json_lines(rows)),
    "packed.csv.gz": lambda rows: gzip.compress(quoted(rows, ";")),
}
WORDS = st.sampled_from(
    [
        "the",
        "dog,",
        '"Go!"',
        'said "no"',
        "a;b",
        "x\ty",
        "one\ntwo",
        "Straße",
        "日本語",
        "🙂",
        "'",
        "|",
        "#",
        "a\u2028b",
    ]
)
CELLS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
ROWS = st.lists(st.tuples(CELLS, CELLS), min_size=3, max_size=12)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=ROWS)
def test_the_same_pairs_are_read_in_every_format(name: str, rows: Rows, tmp_path: Path) -> None:
    """Asked for as pairs, and recognised from the file alone."""
    path = tmp_path / name
    path.write_bytes(FORMATS[name](rows))
    expected = [Pair(*row) for row in rows]
    assert PairCorpus(PairData(path=str(path))).whole() == expected
    data = recognise(str(path)).data
    assert isinstance(data, PairData) and PairCorpus(data).whole() == expected


RAW_WORDS = st.sampled_from(
    ["the", "dog,", '"Go!', 'no"', "a;b", '"', '""', "Straße", "日本語", "5'", '6"', "a\u2028b"]
)
RAW_CELLS = st.lists(RAW_WORDS, min_size=1, max_size=4).map(" ".join)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=st.lists(st.tuples(RAW_CELLS, RAW_CELLS), min_size=3, max_size=12), suffix=st.sampled_from(["tsv", "txt"]))
def test_quotation_marks_between_tabs_swallow_no_row(rows: Rows, suffix: str, tmp_path: Path) -> None:
    """Without quoting, every row is read; its marks are kept, unless quoting would explain all of them."""
    path = tmp_path / f"p.{suffix}"
    path.write_bytes(raw(rows))
    found = PairCorpus(PairData(path=str(path))).whole()
    assert len(found) == len(rows)
    rows = [*rows, ('an unquoted "mark"', "is text")]
    path.write_bytes(raw(rows))
    assert PairCorpus(PairData(path=str(path))).whole() == [Pair(*row) for row in rows]
    assert PairCorpus(PairData(path=str(path), format="tab")).whole() == [Pair(*row) for row in rows]


SENTENCES = [f"Sentence {i} has, at most, {i % 7} words." for i in range(60)]
PAIRS = [(sentence, sentence[::-1]) for sentence in SENTENCES]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.tsv", as_excel(PAIRS), "separated by tabs, cells quoted as spreadsheets do"),
        ("a.csv", quoted(PAIRS, ";"), "separated by semicolons, cells quoted"),
        ("a.txt", raw(PAIRS), "separated by tabs, quotation marks are text"),
        ("a.tsv", raw(PAIRS), ""),
        ("a.csv", quoted(PAIRS, ","), ""),
    ],
)
def test_a_note_names_how_an_unusual_table_is_read(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    notes = [note for note in PairCorpus(PairData(path=str(path))).news() if "held" not in note]
    assert len(notes) == bool(said) and all(said in note for note in notes)


def test_a_licence_in_a_third_column_is_not_read(tmp_path: Path) -> None:
    """The file of the tutorials on translation: English, French, and the licence with the names of the authors."""
    path = tmp_path / "fra.txt"
    path.write_text("".join(f"{a}\t{b}\tCC-BY 2.0 (France) Attribution: #{i}\n" for i, (a, b) in enumerate(PAIRS)))
    found = recognise(str(path))
    assert found.data == PairData(path=str(path), source_field="1", target_field="2")
    assert "--kind text reads it as plain text" in found.evidence and "separated by tabs" in found.evidence
    assert PairCorpus(found.data).whole() == [Pair(*row) for row in PAIRS]
    path.write_text("en\tfr\tlicence\n" + "".join(f"{a}\t{b}\tCC-BY 2.0 #{i}\n" for i, (a, b) in enumerate(PAIRS)))
    assert recognise(str(path)).data == PairData(path=str(path), source_field="en", target_field="fr")


def test_labels_between_tabs_are_recognised_in_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("".join(f"{text}\t{'ab'[i % 2]}\n" for i, text in enumerate(SENTENCES)))
    data = recognise(str(path)).data
    assert isinstance(data, LabelData)
    require_readable(data)
    assert recognise(str(path), "text").data == TextData(path=str(path))


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.csv"])
def test_preferences_name_their_objective(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    rows = [{"prompt": f"p {i}", "chosen": "good", "rejected": f"bad {i}"} for i in range(9)]
    table = "prompt,chosen,rejected\n" + "".join(",".join(row.values()) + "\n" for row in rows)
    path.write_text(table if name == "a.csv" else "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=r'has preferences \(columns chosen and rejected\).* "preference" in') as caught:
        recognise(str(path))
    assert len(str(caught.value)) <= 400


PROSE = {
    "book.txt": "\n".join(SENTENCES),
    "Makefile": "all: a b\n\tcc -o a b\n\nclean:\n\trm -f a\tb\n",
    "indented.txt": "".join(f"\t{sentence}\n" for sentence in SENTENCES),
    "table.md": "# Numbers\n\n| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 30,
    "notes.txt": "shopping,list\n" + "".join(f"{i} apples, please\n" for i in range(30)),
    "some.txt": "".join(f"{s}\n" if i % 9 else f"key\tvalue {s}\n" for i, s in enumerate(SENTENCES, 1)),
    "settings.json": '{\n  "name": "x",\n  "sizes": [1, 2, 3]\n}\n',
    "brace.txt": "{ a set } of words\n" * 20,
    "one.txt": "a\tb\n",
}


@pytest.mark.parametrize("name", PROSE)
def test_a_text_stays_a_text_without_a_note(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(PROSE[name])
    found = recognise(str(path))
    assert found.data == TextData(path=str(path)) and found.evidence == ""
    assert list(read_documents([str(path)])) == [PROSE[name]]


def test_a_table_that_is_not_clear_is_a_text_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(f"{i}\t{i % 5}\tx{i}\t{i * i}\n" for i in range(40)))
    found = recognise(str(path))
    assert found.data == TextData(path=str(path), format="text") and "read as plain text" in found.evidence


def test_json_records_with_a_text_are_documents(tmp_path: Path) -> None:
    rows = [{"id": i, "text": text} for i, text in enumerate(SENTENCES)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"data": rows}))
    assert list(read_documents([path])) == SENTENCES == list(read_documents([recognise(str(path)).data.path or ""]))
    whole = [path.read_text()]
    assert list(read_documents([path], TextData(format="text"))) == whole
    assert list(read_documents([path], TextData(text_field="body"))) == whole
    (lines := tmp_path / "b.txt").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = recognise(str(lines)).data
    assert isinstance(data, TextData) and list(read_documents([lines], data)) == SENTENCES
    assert list(read_documents([lines])) == [lines.read_text()]


def test_a_row_after_the_head_that_contradicts_the_format_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head is 500 characters; every cure in a message makes the file readable."""
    monkeypatch.setattr(tables, "HEAD_CHARACTERS", 500)
    plain = [("one", "two")] * 200
    path = tmp_path / "p.tsv"

    def refused(content: bytes, words: str) -> None:
        path.write_bytes(content)
        with pytest.raises(UserError, match=words):
            PairCorpus(PairData(path=str(path))).whole()

    refused(raw([*plain, ('"a, b"', "c")]), r"p.tsv:202 is the first row with a quoted cell: set data.format to tab_")
    assert PairCorpus(PairData(path=str(path), format="tab")).whole()[-1] == Pair('"a, b"', "c")
    assert PairCorpus(PairData(path=str(path), format="tab_quoted")).whole()[-1] == Pair("a, b", "c")
    refused(
        as_excel([("a, b", "c"), *plain]) + b'"a" b\tc\n', r"p.tsv:203 is not a valid table .* data.format to tab if"
    )
    assert len(PairCorpus(PairData(path=str(path), format="tab")).whole()) == 202
    refused(raw([('no "mark"', '"a'), *plain]) + b'"a\nb"\tc\n', r"p.tsv:203: expected 2 columns .* to tab_quoted$")


def test_a_large_table_is_never_in_memory_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader asks for a block only when the rows of the last one are used."""
    monkeypatch.setattr("glassformer.data.text_files.BLOCK_BYTES", 1 << 10)
    path, n_lines = tmp_path / "p.csv", 0
    path.write_bytes(quoted(PAIRS * 100, ","))
    lines = text_lines

    def counted(*arguments: object) -> object:
        nonlocal n_lines
        for line in lines(*arguments):  # type: ignore[arg-type]
            n_lines += 1
            yield line

    monkeypatch.setattr(tables, "text_lines", counted)
    rows = tables.rows(path, tables.dialect_of(path))
    next(rows)
    before = n_lines
    for _ in range(100):
        next(rows)
    assert n_lines - before <= 101


def test_a_gzip_file_that_is_not_complete_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = random.Random(0).randbytes(3000).hex()
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(noise.encode()))
    assert list(read_documents([tmp_path / "a.txt.gz"])) == [noise]
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(noise.encode())[:-20])
    with pytest.raises(UserError, match=r"cut\.txt\.gz is not a complete gzip file"):
        list(read_documents([tmp_path / "cut.txt.gz"]))
    monkeypatch.setattr("glassformer.data.text_files.MAX_UNPACKED", 1 << 20)
    (tmp_path / "bomb.txt.gz").write_bytes(gzip.compress(b"a" * (1 << 22)))
    with pytest.raises(UserError, match=r"bomb\.txt\.gz unpacks to more than 1,048,576 bytes"):
        list(read_documents([tmp_path / "bomb.txt.gz"]))
