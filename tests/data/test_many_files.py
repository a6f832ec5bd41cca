"""Many files at once: one error names all bad ones, several encodings, patterns with braces, front matter."""

import os
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from glassformer.common.errors import UserError
from glassformer.config.run import PairData, TextData
from glassformer.data.addresses import expanded, joined, reads
from glassformer.data.corpus import Corpus
from glassformer.data.own_data import run_for
from glassformer.data.pairs import PairCorpus
from glassformer.data.report import report
from glassformer.data.texts import Counts, find_sources, read_documents, read_pieces
from runs import text_corpus

Write = Callable[[str, str | bytes], Path]
WORDS = ["schöne", "Grüße", "für", "Straße", "über", "Käse", "and", "the", "note", "Bücher"]


def note(number: int) -> str:
    """Return a made-up German note, with a character outside of ASCII."""
    rng = random.Random(number)
    return f"Übung {number}\n" + " ".join(rng.choices(WORDS, k=30)) + "\n"


def error_of(folder: Path | str, data: TextData | None = None) -> str:
    with pytest.raises(UserError) as caught:
        list(read_documents([folder], data))
    assert len(str(caught.value)) <= 400
    return str(caught.value)


@pytest.mark.parametrize("n_foreign", [2, 10, 60])
def test_one_error_names_all_bad_files_and_its_cure_reads_them(n_foreign: int, write: Write, tmp_path: Path) -> None:
    texts = {f"n/{i:03}.{'md' if i % 2 else 'txt'}": note(i) for i in range(80)}
    foreign = random.Random(n_foreign).sample(sorted(texts), n_foreign)
    for name, text in texts.items():
        write(name, text.encode("latin-1" if name in foreign else "utf-8"))
    found = error_of(tmp_path / "n")
    assert found.startswith(f"{n_foreign} of 80 files cannot be read: ")
    if n_foreign <= 10:
        assert all(name.removeprefix("n/") in found for name in foreign)
    assert 'set data.encoding to "utf-8 cp1252" (cp1252 is probable), or set data.on_bad to skip' in found
    # The two cures
    data = TextData(encoding=("utf-8", "cp1252"))
    assert list(read_documents([tmp_path / "n"], data)) == [texts[name] for name in sorted(texts)]
    counts = Counts()
    skipped = [piece.text for piece in read_pieces([tmp_path / "n"], TextData(on_bad="skip"), counts=counts)]
    assert skipped == [texts[name] for name in sorted(texts) if name not in foreign]
    assert {str(file.path.relative_to(tmp_path)) for file in counts.bad_files} == set(foreign)
    assert any(f"{n_foreign} files skipped, not text: " in line for line in counts.sentences())
    news = Corpus(replace(data, path=str(tmp_path / "n"))).news()
    assert f"files by encoding: {n_foreign} as cp1252, {80 - n_foreign} as utf-8" in news


def test_every_kind_of_bad_file_is_named_at_once(write: Write, tmp_path: Path) -> None:
    good = write("n/good.txt", "text")
    write("n/nul.txt", "a\0b")
    write("n/wide.txt", "wide".encode("utf-16"))
    write("n/pickle.txt", b"\x80\x04K\x01.")
    write("n/empty.txt", "")
    (tmp_path / "n/gone.txt").symlink_to(tmp_path / "nothing.txt")
    (tmp_path / "n/out.txt").symlink_to(write("elsewhere/out.txt", "text"))
    os.mkfifo(tmp_path / "n/pipe.txt")
    found = error_of(tmp_path / "n")
    names = ("gone.txt", "nul.txt", "out.txt", "pickle.txt", "pipe.txt", "wide.txt")
    assert found.startswith("6 of 8 files cannot be read, 1 of them as UTF-8: " + ", ".join(names))
    counts = Counts()
    pieces = list(read_pieces([tmp_path / "n"], TextData(on_bad="skip"), counts=counts))
    assert [piece.text for piece in pieces] == [good.read_text()]
    assert [file.path.name for file in counts.bad_files] == [*names]
    assert "1 document skipped: only white space" in next(counts.sentences()) and "empty.txt" in next(
        counts.sentences()
    )
    with pytest.raises(UserError, match=r"gone\.txt is a link to a file that does not exist"):
        find_sources([tmp_path / "n/gone.txt"])


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "Une journée à la plage avec mes élèves, très agréable. "),
        ("cp1251", "Привет, это заметка о погоде. Сегодня холодно и ветрено. "),
        ("shift_jis", "今日は天気がいいです。公園に行きましょう。"),
        ("gb18030", "今天天气很好，我们去公园散步。"),
        ("utf-16", "A wide note about things. "),
    ],
)
def test_the_probable_encoding_of_an_error_reads_the_file(encoding: str, text: str, write: Write) -> None:
    path = write("a.txt", (text * 5).encode(encoding))
    found = error_of(path)
    guess = found.partition("set data.encoding to ")[2].partition(",")[0]
    assert list(read_documents([path], TextData(encoding=(guess,)))) == [text * 5]
    table = write("p.tsv", "".join(f"{text}\t{i}\n" for i in range(3)).encode(encoding))
    data = PairData(path=str(table), encoding=(guess,))
    assert [pair.source for pair in PairCorpus(data).whole()] == [text.strip()] * 3


@pytest.mark.parametrize("names", [("none",), (), ("base64",), ("utf-8", "nothing")])
def test_an_unknown_encoding_is_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"data\.encoding is .* must be names of encodings, such as utf-8"):
        TextData(encoding=names)


# Patterns


def test_braces_and_several_patterns_name_the_same_files(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [
        write(f"{folder}/{name}", f"{folder} {name}") for folder in ("a", "b/c") for name in ("x.txt", "y.md", "z.py")
    ]
    monkeypatch.chdir(tmp_path)
    texts = {f"{folder} {name}" for folder in ("a", "b/c") for name in ("x.txt", "y.md")}
    for sources in (
        ["{a,b/c}/*.{txt,md}"],
        ["a", "b"],
        ["a/*.txt", "b/c/*.txt", "**/*.md"],
        [str(tmp_path / "a"), "b/**/*.{txt,md}"],
        ["a/x.txt", "a/y.md", "b/c/x.txt", "b/c/y.md"],
    ):
        data = run_for(sources)[0].data
        assert isinstance(data, TextData) and data.path is not None
        assert set(read_documents([data.path])) == texts
        place = Path(data.path)
        assert {path for path in paths if reads(place, path)} <= {path for path in paths if path.suffix != ".py"}
        assert run_for([data.path])[0] == run_for(sources)[0] or len(sources) > 1
    assert isinstance(run_for(["a/x.txt", "a/y.md"])[0].data, PairData)
    assert isinstance(run_for(["a/x.txt", "a/y.md"], "text")[0].data, TextData)
    with pytest.raises(UserError, match=r"3 sources are texts, not pairs"):
        run_for(["a/x.txt", "a/y.md", "b"], "pairs")
    with pytest.raises(UserError, match=r"several sources are texts, and a/t\.tsv is not one"):
        run_for(["a/x.txt", "a", "a/t.tsv"])
    with pytest.raises(UserError, match="has a comma or a brace in its name"):
        run_for(["a", "b,c"])
    with pytest.raises(UserError, match=r"mean more than 4,096 patterns"):
        expanded("{a,b}" * 13 + "".join(f"{{{i},x}}" for i in range(13)))
    assert joined(["a/b", "a/c/d"]) == "a/{b,c/d}"


def test_a_file_whose_name_has_braces_is_that_file(write: Write, tmp_path: Path) -> None:
    write("{a,b}.txt", "braces")
    write("a.txt", "a")
    assert list(read_documents([tmp_path / "{a,b}.txt"])) == ["braces"]


# Front matter


FRONT = "---\ntitle: A note\ntags:\n  - one\n---\n\n"
BODIES = {
    "note.md": (FRONT + "Body.\n", "Body.\n"),
    "windows.md": (FRONT.replace("\n", "\r\n") + "Body.\r\n", "Body.\n"),
    "dots.txt": ("---\ndate: 2026\n...\nBody.\n", "Body.\n"),
    "rule.md": ("---\n\nBody after a rule.\n\n---\nMore.\n", None),
    "open.md": ("---\ntitle: never closed\n\nBody.\n", None),
    "later.md": ("Body.\n" + FRONT, None),
    "prose.md": ("--- one: two ---\n---\n", None),
}


@pytest.mark.parametrize("block", [1, 3, 1 << 18])
def test_front_matter_is_counted_and_dropped_if_asked(
    block: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.data.text_files.BLOCK_BYTES", block)
    for name, (content, body) in BODIES.items():
        path, counts = write(name, content.encode()), Counts()
        whole = content.replace("\r\n", "\n")
        assert ["".join(p.text for p in read_pieces([path], counts=counts))] == [whole], name
        assert counts.n_front_matter == (body is not None), name
        assert list(read_documents([path], TextData(front_matter="drop"))) == [whole if body is None else body], name


def test_the_report_names_front_matter_and_the_share_of_repeated_lines(write: Write, tmp_path: Path) -> None:
    for i in range(20):
        write(f"n/{i}.md", FRONT + f"Body of note {i}.\n" * 2)
    table = str(report(text_corpus(tmp_path / "n")))
    assert "20 files with front matter, which is learned; data.front_matter drops it" in table
    assert "repeated lines      116 of 140 non-blank lines (83%)" in table
    dropped = str(report(text_corpus(tmp_path / "n", front_matter="drop")))
    assert "front matter of 20 files dropped" in dropped and "20 of 40 non-blank lines (50%)" in dropped
