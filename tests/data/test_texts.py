"""Reading: encodings, line ends, jsonl, folders, and one sentence for each mistake."""

import glob
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from glassformer.common.errors import UserError
from glassformer.config.run import TextData
from glassformer.data.addresses import is_pattern, reads
from glassformer.data.texts import Counts, cut, find_sources, joined, read_pieces
from glassformer.tokenization.schemes import SCHEMES, pipeline

Write = Callable[[str, str | bytes], Path]


def read(*paths: Path | str, field: str = "text", counts: Counts | None = None) -> list[str]:
    return [piece.text for piece in joined(read_pieces(paths, TextData(text_field=field), counts=counts))]


def message(*paths: Path | str, field: str = "text") -> str:
    with pytest.raises(UserError) as caught:
        read(*paths, field=field)
    return str(caught.value)


# Reading


def test_a_txt_file_is_one_document(write: Write) -> None:
    assert read(write("a.txt", "one\n\ntwo\n")) == ["one\n\ntwo\n"]


def test_a_file_of_another_name_is_read_as_text(write: Write) -> None:
    assert read(write("notes.md", "# title\n")) == ["# title\n"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_byte_order_mark_is_skipped(write: Write, name: str) -> None:
    content = json.dumps({"text": "é"}, ensure_ascii=False) if name == "a.jsonl" else "é"
    assert read(write(name, b"\xef\xbb\xbf" + content.encode())) == ["é"]


def test_a_later_byte_order_mark_is_kept(write: Write) -> None:
    assert read(write("a.txt", "a\ufeffb")) == ["a\ufeffb"]


@pytest.mark.parametrize("block", [1, 2, 3, 1 << 18])
def test_crlf_becomes_lf_and_a_lone_cr_is_kept(write: Write, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.data.text_files.BLOCK_BYTES", block)
    counts = Counts()
    assert read(write("a.txt", "a\r\nb\rc\r\r\né\r"), counts=counts) == ["a\nb\rc\r\né\r"]
    assert counts.n_crlf == 2


@pytest.mark.parametrize("block", [1, 2, 3, 5])
def test_characters_are_whole_for_every_block_size(write: Write, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.data.text_files.BLOCK_BYTES", block)
    text = "\ufeffa é 漢字 🙂 \u0301x"
    assert read(write("a.txt", text)) == [text[1:]]


def test_jsonl_gives_the_named_field_of_each_line(write: Write) -> None:
    lines = [{"body": "one\r\ntwo", "id": 1}, {"id": 2, "body": "a\u2028b"}]
    path = write("a.jsonl", "\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    assert read(path, field="body") == ["one\ntwo", "a\u2028b"]


def test_blank_documents_are_dropped_and_counted(write: Write) -> None:
    counts = Counts()
    jsonl = write("d/a.jsonl", '{"text": ""}\n\n{"text": " \\n"}\n{"text": "x"}\n')
    write("d/empty.txt", "")
    write("d/white.txt", b"\xef\xbb\xbf \n")
    assert read(jsonl.parent, counts=counts) == ["x"]
    assert counts.n_blank_documents == 4


def test_a_folder_is_read_with_its_subfolders_sorted_by_path(write: Write, tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/b/c.TXT", "c.jsonl", "photo.png", ".hidden.txt", ".git/x.txt"):
        write(f"top/{name}", '{"text": "c.jsonl"}' if name.endswith("jsonl") else name)
    counts = Counts()
    assert read(tmp_path / "top", counts=counts) == ["a/b/c.TXT", "a/z.txt", "b.txt", "c.jsonl"]
    assert [path.name for path in counts.other_files] == ["photo.png"]


def test_several_paths_keep_their_order(write: Write) -> None:
    assert read(write("b.txt", "B"), write("a.txt", "A")) == ["B", "A"]


# Errors: one sentence that names the place


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert message(tmp_path / "none.txt") == f"no such file: {tmp_path}/none.txt"


def test_an_empty_file_is_refused(write: Write) -> None:
    assert "a.txt is empty" in message(write("a.txt", ""))


def test_a_folder_without_text_is_refused(write: Write) -> None:
    assert "has no .txt, .md or .jsonl file" in message(write("d/photo.png", b"\x89PNG").parent)


def test_a_name_that_is_too_long_is_refused() -> None:
    assert message("a" * 5000).startswith("path: expected a path, got a text of 5,000 characters: 'aaa")


@pytest.mark.parametrize("block", [1, 4, 1 << 18])
def test_invalid_utf8_names_offset_and_line(write: Write, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.data.text_files.BLOCK_BYTES", block)
    assert "a.txt is not UTF-8: byte 0xff at offset 8 (line 2)" in message(write("a.txt", b"caf\xc3\xa9\nab\xffc\n"))
    assert "byte 0xc3 at offset 2 (line 1)" in message(write("cut.txt", b"ab\xc3"))


def test_invalid_utf8_in_jsonl_names_offset_and_line(write: Write) -> None:
    first = b'{"text": "\xc3\xa9"}\n'
    path = write("a.jsonl", b"\xef\xbb\xbf" + first + b'{"text": "\xe9"}\n')
    assert f"byte 0xe9 at offset {3 + len(first) + 10} (line 2)" in message(path)
    assert "byte 0xe9 at offset 13 (line 1)" in message(write("b.jsonl", b'\xef\xbb\xbf{"text": "\xe9"}\n'))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{text: 1}", "a.jsonl:2 is not JSON"),
        ("[" * 100_000, "a.jsonl:2 is not JSON"),
        ('["x"]', "a.jsonl:2 is not a JSON object"),
        ('{"text": 5}', "a.jsonl:2: the field 'text' must be a text, got 5"),
        ('{"text": "a\\ud83d"}', "a.jsonl:2: the field 'text' has a lone surrogate, '\\ud83d'"),
    ],
)
def test_bad_lines_of_jsonl_name_file_and_line(write: Write, line: str, words: str) -> None:
    found = message(write("a.jsonl", '{"text": "fine"}\n' + line + "\n"))
    assert words in found and "\n" not in found


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_git_lfs_pointer_is_not_a_text(write: Write, name: str) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 548105171\n"
    assert f"{name} is a Git LFS pointer, not the file itself" in message(write(name, pointer))


def test_a_jsonl_file_of_one_endless_line_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.data.text_files.MAX_LINE_CHARACTERS", 20)
    assert "a.jsonl has a line of more than 20 characters" in message(write("a.jsonl", '{"text": "0123456789"}'))


def test_an_unknown_builtin_suggests_the_nearest() -> None:
    assert "did you mean builtin:python-docs?" in message("builtin:pythondocs")


# Streaming


def small_pieces(monkeypatch: pytest.MonkeyPatch, size: int, most: int) -> None:
    monkeypatch.setattr("glassformer.data.texts.PIECE_CHARACTERS", size)
    monkeypatch.setattr("glassformer.data.texts.MAX_PIECE_CHARACTERS", most)


def test_a_file_streams_in_pieces_of_bounded_size(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, 64, 256)
    monkeypatch.setattr("glassformer.data.text_files.BLOCK_BYTES", 100)
    lines = "".join(f"line {i}\n\n" for i in range(300))
    text = lines + "x" * 3000 + " y" * 1000
    pieces = list(read_pieces([write("a.txt", text)]))
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.ends_document for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert max(len(piece.text) for piece in pieces) <= 256
    assert len(pieces) > 40


WORDS = st.sampled_from(
    [
        "a",
        "don't",
        "'s",
        "12",
        ".",
        "é",
        "漢",
        "🙂",
        " ",
        "  ",
        "\n",
        "\r",
        "\t",
        "\u00a0",
        "\u2003",
        "\x1c",
        "\x85",
    ]
)


@settings(max_examples=150)
@given(st.lists(WORDS, max_size=60), st.integers(1, 7))
@example(["a", " ", "\n", "\x1c", "b"], 9)  # white space for Python, not for the tokenizers
@example(["a", "\n", "\n", " ", "b"], 9)
def test_pieces_cut_at_line_ends_keep_the_chunks(words: list[str], block: int) -> None:
    text = "".join(words)
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_pieces(monkeypatch, 1, 10_000)
        pieces = [p.text for p in cut([text[i : i + block] for i in range(0, len(text), block)])]
    assert "".join(pieces) == text
    for scheme in SCHEMES:
        chunks = pipeline(scheme).chunks
        assert [chunk for piece in pieces for chunk in chunks(piece)] == chunks(text), scheme


def test_a_long_document_without_line_ends_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, 64, 256)
    searched: list[int] = []

    class Counting:
        def search(self, text: str, first: int, last: int) -> None:
            searched.append(min(last, len(text)) - first)

    monkeypatch.setattr("glassformer.data.texts._LINE_CUT", Counting())
    monkeypatch.setattr("glassformer.data.texts._SPACE_CUT", Counting())
    assert "".join(piece.text for piece in cut(["x" * 50_000])) == "x" * 50_000
    assert sum(searched) <= 2 * 50_000


SPACES = st.tuples(st.sampled_from(["", " ", "\n", "\u00a0", "\x1c "]), st.sampled_from([" ", "\t", "\r"]))


@settings(max_examples=150)
@given(st.lists(st.tuples(SPACES.map("".join), st.sampled_from(["a", "don't", "12", ".", "漢"])), max_size=30))
def test_pieces_cut_between_words_keep_the_chunks(
    words: list[tuple[str, str]],
) -> None:
    text = "".join(map("".join, words))
    with pytest.MonkeyPatch.context() as monkeypatch:
        small_pieces(monkeypatch, 12, 24)
        monkeypatch.setattr("glassformer.data.texts._LINE_CUT", re.compile("(?!)"))  # matches nothing
        pieces = [piece.text for piece in cut([text])]
    assert "".join(pieces) == text
    assert len(text) <= 24 or len(pieces) > 1
    for scheme in ("byte", "word", "whitespace"):
        chunks = pipeline(scheme).chunks
        assert [chunk for piece in pieces for chunk in chunks(piece)] == chunks(text), scheme


def test_sources_are_hashed_by_their_bytes(write: Write) -> None:
    (first,), (second,), (builtin,) = (
        find_sources([path]) for path in (write("a.txt", "a\r\n"), write("b.txt", "a\n"), "builtin:copy-task")
    )
    assert len({first.sha256(), second.sha256(), builtin.sha256()}) == 3
    assert find_sources([write("c.txt", "a\n")])[0].sha256() == second.sha256()


# Patterns


FILES = ["a.py", "b.md", "s/c.py", "s/d.txt", "s/t/e.py", "s/t/f.md", "u/g.py", ".hidden/h.py", "s/.i.py", "[x].py"]
PATTERNS = ["*.py", "**/*.py", "s/*.py", "s/**/*.py", "**/*", "*", "**/[ef].*", "?/?.py", "s/t/e.py", "**/t/*.md", "*/"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_finds_the_files_that_a_shell_finds(pattern: str, write: Write, tmp_path: Path) -> None:
    """The result equals that of Python's `glob`, and `reads` agrees for every file."""
    paths = [write(name, f"text of {name}\n") for name in FILES]
    place = str(tmp_path / pattern)
    expected = {Path(found) for found in glob.glob(place, recursive=True) if Path(found).is_file()}
    if not expected:
        assert message(place).startswith("no file matches")
        return
    found = [source.path for source in find_sources([place])]
    assert set(found) == expected and found == sorted(expected, key=lambda path: path.relative_to(tmp_path).parts)
    if is_pattern(place):
        assert {path for path in paths if reads(Path(place), path)} == expected


def test_a_pattern_never_follows_links_out_of_its_folder(write: Write, tmp_path: Path) -> None:
    write("in/a.py", "x")
    write("out/b.py", "y")
    (tmp_path / "in" / "there").symlink_to(tmp_path / "out")
    assert read(tmp_path / "in" / "**" / "*.py") == ["x"]
    (tmp_path / "in" / "c.py").symlink_to(tmp_path / "out" / "b.py")
    assert "is a link to a file outside" in message(tmp_path / "in" / "*.py")


def test_a_file_whose_name_has_wildcards_is_that_file(write: Write) -> None:
    path = write("a[1]*.txt", "one")
    write("a1.txt", "two")
    assert read(path) == ["one"]


def test_a_folder_of_other_texts_names_the_pattern_to_give(write: Write, tmp_path: Path) -> None:
    """The most frequent files of text count; the suggested command finds them."""
    folder = tmp_path / "my code"
    for i in range(5):
        write(f"my code/{i}.mp4", b"\xff\xfe\0" * 9)
    for i in range(3):
        write(f"my code/s/{i}.py", f"x = {i}\n")
    found = message(folder)
    assert found.startswith(f"{folder} has 3 .py files and no .txt, .md or .jsonl file: glassformer train '")
    assert read(shlex.split(found)[-1]) == ["x = 0\n", "x = 1\n", "x = 2\n"]


def test_the_records_of_a_dataset_are_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"body": "one"}, {"body": " "}, {"body": "two"}]
    asked = []

    def load(*address: str, split: str) -> list[dict[str, str]]:
        asked.append((*address, split))
        return rows

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    counts = Counts()
    assert read("hf:some/name", "hf:other#test", field="body", counts=counts) == ["one", "two"] * 2
    assert asked == [("some/name", "train"), ("other", "test")] and counts.n_blank_documents == 2
    [source] = find_sources(["hf:some/name"], TextData(text_field="body"))
    before = source.sha256()
    rows.append({"body": "three"})
    assert source.sha256() != before
