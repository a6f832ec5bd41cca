"""Built-in texts: their content, that it never changes, and that their split does not leak."""

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import pytest

from glassformer.common.errors import UserError
from glassformer.data import builtin
from glassformer.data.corpus import Corpus
from glassformer.data.texts import find_sources, read_documents
from runs import text_corpus
from tolerances import about


def side(corpus: Corpus, name: str) -> str:
    return "".join(piece.text for piece in corpus.pieces(name))


def test_every_builtin_text_is_deterministic() -> None:
    for path in ("builtin:python-docs", "builtin:copy-task"):
        (source,) = find_sources([path])
        assert list(read_documents([path])) == list(read_documents([path]))
        assert source.sha256() == source.sha256()


def test_python_docs_is_one_long_document() -> None:
    (document,) = read_documents(["builtin:python-docs"])
    assert len(document) > 200_000
    assert "\n\n\n" not in document
    assert not document.startswith("\n") and document.endswith("\n") and not document.endswith("\n\n")


def test_pitfall_22_sides_of_python_docs_share_no_line() -> None:
    corpus = text_corpus("builtin:python-docs")
    train, valid = ({line.strip() for line in side(corpus, name).split("\n")} for name in ("train", "valid"))
    cut_line = {side(corpus, "train").split("\n")[-1].strip(), side(corpus, "valid").split("\n")[0].strip()}
    assert not (train & valid) - {""} - cut_line
    assert len(valid) > 100


def test_pitfall_22_sides_of_python_docs_share_few_phrases() -> None:
    corpus = text_corpus("builtin:python-docs")

    def phrases(text: str, n: int = 8) -> list[tuple[str, ...]]:
        words = text.split()
        return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]

    train = set(phrases(side(corpus, "train")))
    valid = phrases(side(corpus, "valid"))
    assert sum(phrase in train for phrase in valid) / len(valid) < 0.005


def test_python_stdlib_is_the_source_of_this_python() -> None:
    documents = list(read_documents(["builtin:python-stdlib"]))
    assert len(documents) > 200
    assert sum(map(len, documents)) > 3_000_000
    assert Path(json.__file__).read_text("utf-8") in documents


def test_python_stdlib_skips_tests_and_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "b.py",
        "a/z.py",
        "a.py",
        "site-packages/x.py",
        "json/tests/t.py",
        "test/t.py",
        "_sysconfigdata_x.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(f"# {name}\r\n".encode())
    (tmp_path / "empty.py").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    assert list(read_documents(["builtin:python-stdlib"])) == ["# a/z.py\n", "# a.py\n", "# b.py\n"]


def test_a_python_without_its_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(UserError, match="has no source files of the standard library"):
        list(read_documents(["builtin:python-stdlib"]))


def test_copy_task_records_are_copies_and_distinct() -> None:
    documents = list(read_documents(["builtin:copy-task"]))
    assert len(documents) == len(set(documents)) == builtin.COPY_RECORDS
    for document in documents:
        word, copy = document.split("|")
        assert word == copy and len(word) == builtin.COPY_LENGTH and set(word) <= set(builtin.COPY_LETTERS)


def test_copy_task_letters_have_the_documented_entropy() -> None:
    words = [document.split("|")[0] for document in read_documents(["builtin:copy-task"])]
    pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
    total = pairs.total()
    entropy_of_pairs = -sum(n / total * math.log(n / total) for n in pairs.values())
    # Entropy of a record, the lower bound of its loss: its letters are random, the bar and the copy are determined.
    # In a stream this is 0.92 nats per token (17 characters and the end token). With one record per example, the
    # first letter is not a target, so 7/8 of the entropy is divided by 17 targets: 0.86 nats per token.
    entropy = builtin.COPY_LENGTH * math.log(len(builtin.COPY_LETTERS))
    assert entropy_of_pairs / 2 * builtin.COPY_LENGTH == about(entropy, percent=0.1)


def test_pitfall_22_sides_of_the_copy_task_share_no_record() -> None:
    corpus = text_corpus("builtin:copy-task")
    train, valid = ({piece.text for piece in corpus.pieces(name)} for name in ("train", "valid"))
    assert not train & valid
    assert len(train) + len(valid) == builtin.COPY_RECORDS
    assert 1800 <= len(valid) <= 2000
