"""Prepared tokens: the ids of the text, reused by content, complete or not used."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.data import tokens
from glassformer.data.texts import read_documents
from glassformer.data.tokens import BpeDropout, TokenCache, encode_text, prepare
from glassformer.tokenization import processes
from glassformer.tokenization.schemes import SCHEMES
from glassformer.tokenization.tokenizer import Tokenizer
from runs import text_corpus
from tokenization.families import families

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def prose() -> str:
    (document,) = read_documents(["builtin:python-docs"])
    return document[:40_000] + "naïve café — 漢字 🙂\r\n\n\tdon't  \n" + document[40_000:60_000]


@pytest.fixture
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.data.texts.PIECE_CHARACTERS", 50)
    monkeypatch.setattr("glassformer.data.text_files.BLOCK_BYTES", 999)
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 300)


def jsonl(texts: Sequence[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


# Ids of the text


def test_a_single_text_has_no_end_token(write: Write, utf8: Any, cache: Path) -> None:
    text = "abcé\n" * 40
    splits = prepare(text_corpus(write("a.txt", text)), utf8, TokenCache(cache))
    assert utf8.eos_id not in splits.train.ids and utf8.eos_id not in splits.valid.ids
    assert utf8.decode(splits.train.ids) == text[:180]
    assert utf8.decode(splits.valid.ids) == text[180:]
    assert (splits.train.n_bytes, splits.train.n_characters, splits.train.n_documents) == (216, 180, 1)
    assert (splits.valid.n_bytes, splits.valid.n_characters, splits.valid.n_documents) == (24, 20, 1)


def test_each_of_several_documents_is_followed_by_the_end_token(write: Write, utf8: Any, cache: Path) -> None:
    texts = [f"document {i}\n" * (i + 1) for i in range(30)]
    corpus = text_corpus(write("a.jsonl", jsonl(texts)))
    splits = prepare(corpus, utf8, TokenCache(cache))
    found = []
    for side in (splits.train, splits.valid):
        for start, length in zip(side.document_starts, side.document_lengths, strict=True):
            ids = side.ids[start : start + length]
            assert ids[-1] == utf8.eos_id and utf8.eos_id not in ids[:-1]
            found.append(utf8.decode(ids))
        assert side.n_bytes == side.n_tokens - side.n_documents
    assert sorted(found) == sorted(texts)


def test_a_tokenizer_without_an_end_token_adds_nothing(write: Write, utf8: Any, cache: Path) -> None:
    utf8.eos_id = None
    splits = prepare(text_corpus(write("a.jsonl", jsonl(["ab", "cd", "ef"]))), utf8, TokenCache(cache))
    assert (splits.train.n_tokens, splits.train.n_documents, splits.valid.n_tokens) == (4, 2, 2)


def test_validation_follows_the_rule_of_the_training_text(write: Write, utf8: Any, cache: Path) -> None:
    one, several = write("one.txt", "alone"), write("several.jsonl", jsonl(["x", "y"]))
    assert prepare(text_corpus(one, valid_path=str(several)), utf8, TokenCache(cache)).valid.n_tokens == 2
    assert prepare(text_corpus(several, valid_path=str(one)), utf8, TokenCache(cache)).valid.n_tokens == 6


@pytest.mark.parametrize(("vocab_size", "bytes_per_id"), [(65_536, 2), (65_537, 4)])
def test_ids_have_two_bytes_if_they_fit(
    write: Write, utf8: Any, cache: Path, vocab_size: int, bytes_per_id: int
) -> None:
    utf8.vocab_size = vocab_size
    utf8.encode_batch = lambda texts, **_: [[vocab_size - 1] * len(text) for text in texts]
    splits = prepare(text_corpus(write("a.txt", "x" * 100)), utf8, TokenCache(cache))
    assert splits.train.ids.tolist() == [vocab_size - 1] * 90
    assert (splits.folder / "train.bin").stat().st_size == 90 * bytes_per_id


@pytest.mark.parametrize("scheme", SCHEMES)
def test_streamed_ids_equal_those_of_the_whole_text(
    write: Write, cache: Path, prose: str, scheme: Any, in_small_pieces: None
) -> None:
    tokenizer = Tokenizer.train([prose], vocab_size=600, scheme=scheme, learner="tokenizers")
    path, text = write("a.txt", prose), prose.replace("\r\n", "\n")
    splits = prepare(text_corpus(path), tokenizer, TokenCache(cache))
    cut = int(len(text) * 0.9)
    assert splits.train.ids.tolist() == tokenizer.encode(text[:cut])
    assert splits.valid.ids.tolist() == tokenizer.encode(text[cut:])
    assert encode_text(tokenizer, [text]).ids.tolist() == tokenizer.encode(text)


def test_dropout_changes_the_training_ids_only(write: Write, cache: Path, prose: str) -> None:
    tokenizer = Tokenizer.train([prose], vocab_size=600, learner="tokenizers")
    corpus = text_corpus(write("a.txt", prose[:8000]))
    plain, dropped = (
        prepare(corpus, tokenizer, TokenCache(cache)),
        prepare(corpus, tokenizer, TokenCache(cache), dropout=BpeDropout(0.3)),
    )
    assert dropped.train.n_tokens > plain.train.n_tokens
    assert tokenizer.decode(dropped.train.ids.tolist()) == tokenizer.decode(plain.train.ids.tolist())
    assert dropped.valid.ids.tolist() == plain.valid.ids.tolist()


def test_ids_are_mapped_from_disk_and_cannot_be_changed(write: Write, utf8: Any, cache: Path) -> None:
    ids = prepare(text_corpus(write("a.txt", "x" * 100)), utf8, TokenCache(cache)).train.ids
    assert isinstance(ids.base, np.memmap) and type(ids) is np.ndarray
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_memory_does_not_grow_with_the_text(
    write: Write, utf8: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glassformer.data.texts.PIECE_CHARACTERS", 1 << 12)
    monkeypatch.setattr("glassformer.data.text_files.BLOCK_BYTES", 1 << 13)
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 1 << 13)

    def peak(n_bytes: int) -> int:
        corpus = text_corpus(write(f"{n_bytes}.txt", "one more line\n" * (n_bytes // 14)))
        tracemalloc.start()
        prepare(corpus, utf8, TokenCache(cache))
        (_, most), _ = tracemalloc.get_traced_memory(), tracemalloc.stop()
        return most

    assert peak(1 << 21) < 1.5 * peak(1 << 18)


def test_progress_counts_the_bytes_of_the_text(write: Write, utf8: Any, cache: Path, in_small_pieces: None) -> None:
    seen: list[tuple[int, int]] = []
    prepare(text_corpus(write("a.txt", "é\n" * 2000)), utf8, TokenCache(cache, lambda *now: seen.append(now)))
    assert len(seen) > 10
    assert [total for _, total in seen] == [6000] * len(seen)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen}) and seen[-1][0] == 6000


# Reuse by content


def test_tokens_are_prepared_once_and_reused(write: Write, utf8: Any, cache: Path) -> None:
    path = write("a.txt", "text\n" * 100)
    first = prepare(text_corpus(path), utf8, TokenCache(cache))
    n_calls = utf8.n_calls
    again = prepare(text_corpus(write("elsewhere/b.txt", path.read_bytes())), utf8, TokenCache(cache))
    assert utf8.n_calls == n_calls
    assert again.folder == first.folder
    assert again.train.ids.tolist() == first.train.ids.tolist()
    assert (again.train.n_bytes, again.train.n_characters) == (first.train.n_bytes, first.train.n_characters)
    assert again.valid.document_starts.tolist() == [0]


def test_a_changed_setting_prepares_the_tokens_again(write: Write, utf8: Any, cache: Path) -> None:
    path = write("a.txt", "text\n" * 100)
    folders = {prepare(text_corpus(path), utf8, TokenCache(cache)).folder}
    folders.add(prepare(text_corpus(path, valid_fraction=0.2), utf8, TokenCache(cache)).folder)
    folders.add(prepare(text_corpus(path), utf8, TokenCache(cache), dropout=BpeDropout(0.1)).folder)
    utf8.fingerprint = "another"
    folders.add(prepare(text_corpus(path), utf8, TokenCache(cache)).folder)
    path.write_text("text\n" * 99 + "Text\n")
    folders.add(prepare(text_corpus(path), utf8, TokenCache(cache)).folder)
    assert len(folders) == 5


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def change_a_number(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"450", b"451").replace(b"\0\0", b"\0\1"))


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, empty, change_a_number, Path.unlink])
@pytest.mark.parametrize("name", ["train.bin", "valid.bin", "train.starts", "tokens.json"])
def test_damaged_tokens_are_prepared_again(
    write: Write, utf8: Any, cache: Path, damage: Callable[[Path], None], name: str
) -> None:
    corpus = text_corpus(write("a.txt", "text\n" * 100))
    first = prepare(corpus, utf8, TokenCache(cache))
    whole = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    damage(first.folder / name)
    again = prepare(corpus, utf8, TokenCache(cache))
    assert {path.name: path.read_bytes() for path in again.folder.iterdir()} == whole
    assert utf8.decode(again.valid.ids) == "text\n" * 10


# Several processes


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch, in_small_pieces: None) -> Callable[[int], None]:
    """Return a function that sets the number of processes, for tiny texts too."""
    monkeypatch.setattr(tokens, "PAYS_FROM", 1000)
    return lambda n: monkeypatch.setattr(processes, "n_processors", lambda: n)


def files_of(splits: tokens.TokenSplits) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in splits.folder.iterdir()}


@pytest.mark.parametrize("scheme", [*SCHEMES, "whole_words"])
def test_several_processes_write_the_files_of_one(
    write: Write, tmp_path: Path, prose: str, scheme: Any, in_processes: Callable[[int], None]
) -> None:
    tokenizer = Tokenizer.train([prose], vocab_size=600, scheme=scheme, learner="tokenizers")
    write("texts/a.txt", prose)
    write("texts/b.jsonl", jsonl(prose[:9000].split("\n")))
    corpus = text_corpus(tmp_path / "texts")
    found = []
    for n in (1, 2):
        in_processes(n)
        found.append(files_of(prepare(corpus, tokenizer, TokenCache(tmp_path / str(n)), start_id=tokenizer.eos_id)))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["bert", "llama-2", "t5"])
def test_several_processes_of_an_imported_tokenizer_write_the_files_of_one(
    write: Write, tmp_path: Path, prose: str, name: str, in_processes: Callable[[int], None]
) -> None:
    rust, roles = families(prose[:20_000].splitlines())[name]
    tokenizer = Tokenizer.imported(rust.to_str(), roles)
    corpus = text_corpus(write("a.jsonl", jsonl([prose[i : i + 400] for i in range(0, 12_000, 400)])))
    found = []
    for n in (1, 2):
        in_processes(n)
        found.append(files_of(prepare(corpus, tokenizer, TokenCache(tmp_path / str(n)), start_id=tokenizer.start_id)))
    assert found[0] == found[1]


def test_several_processes_draw_the_dropout_of_one(
    write: Write, tmp_path: Path, prose: str, in_processes: Callable[[int], None]
) -> None:
    tokenizer = Tokenizer.train([prose], vocab_size=600, learner="tokenizers")
    corpus = text_corpus(write("a.txt", prose[:6000]))
    found = []
    for n in (1, 2):
        in_processes(n)
        found.append(files_of(prepare(corpus, tokenizer, TokenCache(tmp_path / str(n)), dropout=BpeDropout(0.3, 5))))
    assert found[0] == found[1]


def test_errors_in_several_processes_are_those_of_one(
    write: Write, cache: Path, in_processes: Callable[[int], None]
) -> None:
    text = "a b\n" * 2000
    letters = Tokenizer.train([text], vocab_size=0, scheme="char", special_tokens=())
    for bad, sentence in ((b"\xff", "invalid UTF-8|not UTF-8"), ("ß".encode(), "ß")):
        path = write("a.txt", text.encode() + bad + text.encode())
        corpus = text_corpus(write("good.txt", text * 2 + "a"))
        assert corpus.plan is not None  # the text becomes wrong after the first pass
        path.replace(tmp := path.with_name("good.txt"))
        raised = []
        for n in (1, 2):
            in_processes(n)
            with pytest.raises(UserError, match=sentence) as error:
                prepare(corpus, letters, TokenCache(cache))
            raised.append(str(error.value))
            assert list(cache.iterdir()) == []
        assert raised[0] == raised[1] and tmp.exists()


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from glassformer.data import tokens
from glassformer.config.run import TextData
from glassformer.data.corpus import Corpus
from glassformer.tokenization import Tokenizer, processes

signal.signal(signal.SIGINT, signal.default_int_handler)  # also if it is ignored, as in a background job
processes.n_processors = lambda: 2
tokens.PAYS_FROM = tokens.BATCH_CHARACTERS = 1 << 16

def interrupt(done, total):
    if done > total // 2:
        os.killpg(os.getpgrp(), signal.SIGINT)  # as Ctrl-C in a terminal

tokenizer = Tokenizer.train(["text"] * 2, vocab_size=300)
tokens.prepare(Corpus(TextData(path=sys.argv[1])), tokenizer, tokens.TokenCache(Path(sys.argv[2]), interrupt))
"""


def test_an_interrupted_preparation_leaves_no_process_and_no_files(write: Write, cache: Path) -> None:
    path = write("a.txt", "text\n" * 200_000)
    command = [sys.executable, "-c", INTERRUPTED, path, cache]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True, timeout=300)
    assert ran.returncode == -signal.SIGINT and ran.stderr.count("Traceback") == 1
    assert ran.stderr.endswith("KeyboardInterrupt\n")  # all processes that could write here have ended
    assert list(cache.iterdir()) == []


# Complete or not used


def test_a_preparation_that_fails_leaves_nothing(write: Write, utf8: Any, cache: Path, in_small_pieces: None) -> None:
    corpus = text_corpus(write("a.txt", "text\n" * 1000))

    def fail(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(corpus, utf8, TokenCache(cache, fail))
    assert list(cache.iterdir()) == []
    assert utf8.decode(prepare(corpus, utf8, TokenCache(cache)).train.ids) == "text\n" * 900


KILLED = """
import os, sys
from pathlib import Path
from glassformer.config.run import TextData
from glassformer.data.corpus import Corpus
from glassformer.data.tokens import TokenCache, prepare

class Killed:
    vocab_size, eos_id, fingerprint, encodes_in_pieces = 257, 0, "utf-8", True
    def encode_batch(self, texts, **_):
        return [[1] * len(text) for text in texts]

def kill(done, total):
    if done > total // 2:
        os.kill(os.getpid(), 9)

prepare(Corpus(TextData(path=sys.argv[1])), Killed(), TokenCache(Path(sys.argv[2]), kill))
"""


def test_a_killed_preparation_leaves_nothing_that_is_used(write: Write, utf8: Any, cache: Path) -> None:
    path = write("a.txt", "text\n" * 1_000_000)
    killed = subprocess.run([sys.executable, "-c", KILLED, path, cache], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr
    [left] = cache.iterdir()  # it was killed during a write
    assert ".tmp-" in left.name
    prepared = prepare(text_corpus(path), utf8, TokenCache(cache))
    assert set(prepared.train.ids[:5]) == {byte + 1 for byte in b"text\n"}
    assert list(cache.iterdir()) == [prepared.folder], "the next preparation removes it"


def test_only_folders_of_ended_processes_are_removed(write: Write, utf8: Any, cache: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    key, dead, day = "0123456789abcdef" * 2, ended.pid, 86400

    def left(name: str, age: float = 0.0) -> str:
        (cache / name).mkdir(parents=True)
        (cache / name / "train.bin").write_bytes(b"x")
        for path in (cache / name / "train.bin", cache / name):
            os.utime(path, (time.time() - age,) * 2)
        return name

    host = files._host()
    other = "00000000" if host != "00000000" else "11111111"
    gone = [
        left(f".{key}.tmp-{dead}"),
        left(f".{key}.tmp-{dead}-{host}"),
        left(f".{key}.tmp-{dead}-{other}", 1.1 * day),
    ]
    kept = [
        left(f".{key}.tmp-{os.getpid()}", 9 * day),
        left(f".{key}.tmp-{os.getppid()}-{host}", 9 * day),
        left(f".{key}.tmp-{dead}-{other}".replace("0123", "3210"), 0.9 * day),  # the process may be alive on that host
        left(f".{key}.tmp-{os.getpid()}-{other}"),
        left(f".notes.tmp-{dead}", 9 * day),  # not a folder of glassformer
        left(key, 9 * day),
    ]
    (cache / f".{key}.tmp-{dead}1-{other}").symlink_to(write("a.txt", "text\n" * 100).parent)
    prepared = prepare(text_corpus(write("b.txt", "text\n" * 100)), utf8, TokenCache(cache))
    names = {path.name for path in cache.iterdir()}
    assert not names & set(gone)
    assert names == {*kept, f".{key}.tmp-{dead}1-{other}", prepared.folder.name}


def test_a_recent_folder_of_another_host_is_kept(cache: Path) -> None:
    folder = cache / f".{'a' * 32}.tmp-7-{'0' * 8}"
    folder.mkdir(parents=True)
    os.utime(folder, (time.time() - 1e6,) * 2)
    (folder / "train.bin").write_bytes(b"new")
    os.utime(folder, (time.time() - 1e6,) * 2)
    files.clean_unfinished(cache, tokens.KEY)
    assert folder.exists()
    os.utime(folder / "train.bin", (time.time() - 1e6,) * 2)
    files.clean_unfinished(cache, tokens.KEY)
    assert not folder.exists()
    files.clean_unfinished(cache / "nowhere", tokens.KEY)


def test_a_cache_that_cannot_be_written_is_named(write: Write, utf8: Any) -> None:
    path = write("a.txt", "text\n" * 100)
    with pytest.raises(UserError, match=r"cannot write .*a\.txt/cache"):
        prepare(text_corpus(path), utf8, TokenCache(path / "cache"))


def test_an_unknown_character_leaves_nothing(write: Write, cache: Path) -> None:
    corpus = text_corpus(write("a.txt", "a b " * 30 + "ß" * 12))
    tokenizer = Tokenizer.train(corpus.training_texts(), vocab_size=0, scheme="char", special_tokens=())
    with pytest.raises(UserError, match="ß"):
        prepare(corpus, tokenizer, TokenCache(cache))
    assert list(cache.iterdir()) == []


def test_a_text_without_any_token_is_refused(write: Write, utf8: Any, cache: Path) -> None:
    utf8.encode_batch = lambda texts, **_: [[] for _ in texts]
    with pytest.raises(UserError, match="has no tokens; use more text"):
        prepare(text_corpus(write("a.txt", "text\n" * 100)), utf8, TokenCache(cache))
    with pytest.raises(UserError, match="has no tokens; use more text"):
        encode_text(utf8, ["text"])
    with pytest.raises(UserError, match="has no tokens; use more text"):
        encode_text(utf8, [])


# In memory


def test_encode_text_equals_prepare(utf8: Any, in_small_pieces: None) -> None:
    single = encode_text(utf8, ["é" * 400], name="the poem")
    assert utf8.eos_id not in single.ids and single.name == "the poem"
    assert (single.n_tokens, single.n_bytes, single.n_characters, single.n_documents) == (800, 800, 400, 1)
    several = encode_text(utf8, (text for text in ["a\n" * 300, "b", "c"]))
    assert several.document_starts.tolist() == [0, 601, 603]
    assert several.ids[several.document_starts + several.document_lengths - 1].tolist() == [0, 0, 0]
    assert several.ids.dtype == np.uint16 and several.n_bytes == 602
