"""The report: its numbers are correct, and it names skipped texts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from glassformer.data.report import report
from runs import text_corpus

Write = Callable[[str, str | bytes], Path]


def test_the_numbers_of_the_report_fit_the_text(write: Write, utf8: Any) -> None:
    texts = ["é\nb\n", "b\n\nb\n", "é\nb\n", " ", *(f"line {i}\n" for i in range(30))]
    path = write("a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = report(text_corpus(path), utf8)
    kept = [text for text in texts if text.strip()]
    n_bytes = sum(len(text.encode()) for text in kept)
    assert (found.statistics["n_files"], found.statistics["n_documents"], found.statistics["n_repeated_documents"]) == (
        1,
        33,
        1,
    )
    assert (found.statistics["shortest_document"], found.statistics["longest_document"]) == (4, 8)
    assert (found.statistics["n_lines"], found.statistics["n_repeated_lines"]) == (36, 4)
    assert found.statistics["total"]["n_characters"] == sum(map(len, kept))
    assert found.statistics["total"]["n_bytes"] == n_bytes
    assert found.statistics["total"]["n_tokens"] == n_bytes + 33  # one end token per document
    assert [side["name"] for side in found.statistics["sides"]] == ["training", "validation"]
    assert sum(side["n_documents"] for side in found.statistics["sides"]) == 33
    assert found.statistics["notes"] == ["1 document skipped: only white space"]


def test_the_table_has_all_numbers_and_notes(write: Write, utf8: Any, tmp_path: Path) -> None:
    write("d/a.txt", "one\r\ntwo\r\n" * 50)
    write("d/b.pdf", b"%PDF")
    assert str(report(text_corpus(tmp_path / "d"), utf8)) == (
        f"{tmp_path}/d (1 file)\n"
        "\n"
        "            documents  characters  bytes  tokens  bytes per token\n"
        "training            1         360    360     360             1.00\n"
        "validation          1          40     40      40             1.00\n"
        "total               1         400    400     400             1.00\n"
        "\n"
        "document lengths    400 to 400 characters\n"
        "repeated documents  0 of 1\n"
        "repeated lines      98 of 100 non-blank lines (98%)\n"
        "note                1 file skipped: neither txt, md nor jsonl (.pdf)\n"
        "note                100 line ends converted from CRLF to LF"
    )


def test_a_text_that_cannot_be_split_is_reported_unsplit(write: Write) -> None:
    found = report(text_corpus(write("a.txt", "x")))
    assert [side["name"] for side in found.statistics["sides"]] == ["text"]
    assert "cannot be split" in found.statistics["notes"][0]
    assert found.statistics["total"]["n_tokens"] is None
    assert "-" in str(found)


def test_documents_left_out_of_training_are_named(write: Write) -> None:
    train, valid = write("a.jsonl", '{"text": "a"}\n{"text": "b"}\n'), write("b.txt", "b")
    found = report(text_corpus(train, valid_path=str(valid)))
    assert "1 document excluded from training: also in the validation text" in found.statistics["notes"]
    assert [side["n_documents"] for side in found.statistics["sides"]] == [1, 1]
    assert found.statistics["n_files"] == 2


def test_held_out_documents_are_counted_by_length(write: Write) -> None:
    texts = [f"poem {i:02} " * 9 for i in range(60)] + [f"page {i} of a long book\n" * 900 for i in range(8)]
    found = report(text_corpus(write("a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))))
    assert found.statistics["notes"] == [
        "held out for validation: 6 of 60 documents of 10 to 99 characters; "
        "0 and the end of 1 of 8 documents of 10,000 to 99,999 characters"
    ]
    assert [side["n_documents"] for side in found.statistics["sides"]] == [62, 7]


def test_repeats_are_counted_exactly(write: Write) -> None:
    n_distinct = 50_000
    lines = [f"{i}\n{i % (n_distinct // 2)}" for i in range(n_distinct)]
    found = report(text_corpus(write("a.txt", "\n".join(lines) + "\n"), valid_path=str(write("b.txt", "b"))))
    assert (found.statistics["n_lines"], found.statistics["n_repeated_lines"]) == (2 * n_distinct + 1, n_distinct)
