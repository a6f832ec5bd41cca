"""Bad data: all bytes are either read correctly or refused by a sentence that names the place (fault 20)."""

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.hostile import WITHIN_S, refused
from faults.tally import count, record
from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import LabelData, PairData
from glassformer.data.labels import LabelCorpus
from glassformer.data.pair_rows import prepare_pairs
from glassformer.data.pairs import PairCorpus
from glassformer.data.texts import read_documents
from glassformer.data.tokens import TokenCache, prepare
from glassformer.store import checkpoint
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from runs import made_up_text, text_corpus, tiny_run, write_pairs, write_text

LINES = made_up_text(40).splitlines()
TAGS = LabelData(outputs="tags", text_field="words", label_field="tags")

READERS: dict[str, tuple[Callable[[Path], Any], Callable[[str], str]]] = {
    ".txt": (lambda path: list(read_documents([path])), lambda line: line),
    ".jsonl": (lambda path: list(read_documents([path])), lambda line: json.dumps({"text": line}, ensure_ascii=False)),
    ".tsv": (lambda path: PairCorpus(PairData(path=str(path))).whole(), lambda line: f"{line}\t{line[::-1]}"),
    ".csv": (lambda path: LabelCorpus(LabelData(path=str(path))).whole(), lambda line: f'"{line}",{line[:1]}'),
    ".conll": (
        lambda path: LabelCorpus(replace(TAGS, path=str(path))).whole(),
        lambda line: line.replace(" ", "\tO\n") + "\tO\n",
    ),
}
"""The reader and an example line of each kind of file."""
HEADERS = {".csv": "text,label\n"}


def written(suffix: str, lines: list[str] = LINES) -> bytes:
    line_of = READERS[suffix][1]
    return (HEADERS.get(suffix, "") + "".join(line_of(line) + "\n" for line in lines)).encode()


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("spoil", ["byte", "nul"])
def test_fault_20_invalid_utf8_and_nul_are_named_with_their_place(tmp_path: Path, suffix: str, spoil: str) -> None:
    n, seed = count(5, 50), 20
    rng = random.Random(seed)
    whole = written(suffix)
    ascii_places = [place for place, byte in enumerate(whole) if 32 < byte < 128]
    path = tmp_path / f"data{suffix}"
    for _ in range(n):
        place, data = rng.choice(ascii_places), bytearray(whole)
        data[place] = 0xFF if spoil == "byte" else 0
        path.write_bytes(data)
        line = data.count(b"\n", 0, place) + 1
        what = "is not UTF-8: byte 0xff" if spoil == "byte" else "is not plain text: NUL"
        refused(lambda: READERS[suffix][0](path), path.name, what, f"at offset {place}", f"(line {line})")
    record(20, n, n, str(seed))


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_fault_20_other_encodings_are_never_taken_for_utf8(tmp_path: Path, suffix: str, encoding: str) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_bytes(written(suffix, ["ab cd", "cd ab"]).decode().encode(encoding))
    refused(lambda: READERS[suffix][0](path), path.name)
    record(20, 1, 1, "none")


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("content", [b"", b"\n", b" \r\n\t\n", b"\xef\xbb\xbf"])
def test_fault_20_an_empty_file_is_named(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_bytes(content)

    def used() -> None:
        """Read the file like the first step of a run."""
        if suffix in (".txt", ".jsonl"):
            _ = text_corpus(path).plan
        else:
            READERS[suffix][0](path)

    refused(used, path.name)
    record(20, 1, 1, "none")


@pytest.mark.parametrize("suffix", READERS)
def test_fault_20_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"data{suffix}"
    path.write_bytes(written(suffix))
    plain = READERS[suffix][0](path)
    path.write_bytes(b"\xef\xbb\xbf" + written(suffix).replace(b"\n", b"\r\n"))
    assert READERS[suffix][0](path) == plain
    record(20, 1, 1, "none")


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("words", [True, False])
def test_fault_20_a_line_of_10_mb_is_read_whole(tmp_path: Path, suffix: str, words: bool) -> None:
    n = 2_000_000 if suffix == ".conll" and words else 10_000_000  # CoNLL has one line per word, which is slow
    line = ("ab cd " * (n // 6)).strip() if words else "ab" * (n // 2)
    path = tmp_path / f"data{suffix}"
    path.write_bytes(written(suffix, [line]))
    begin = time.process_time()
    (found,) = READERS[suffix][0](path)
    assert time.process_time() - begin < WITHIN_S
    if suffix in (".txt", ".jsonl"):
        assert found == line + ("\n" if suffix == ".txt" else "")
    elif suffix == ".tsv":
        assert (found.source, found.target) == (line, line[::-1])
    else:
        assert " ".join(found.inputs) == line
    record(20, 1, 1, "none")


def seconds_of_processor() -> float:
    """Return the time of this process and of its ended children."""
    return sum(os.times()[:4])


def test_fault_20_a_line_of_10_mb_becomes_tokens(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("ab" * 5_000_000)
    tokenizer = Tokenizer.train(["abab ab"], vocab_size=270, min_frequency=1)
    begin = seconds_of_processor()
    splits = prepare(text_corpus(path), tokenizer, TokenCache(tmp_path / "cache"))
    assert seconds_of_processor() - begin < 60
    assert splits.train.n_bytes + splits.valid.n_bytes == 10_000_000
    assert tokenizer.decode(splits.valid.ids.tolist()) == "ab" * 500_000
    record(20, 1, 1, "none")


@pytest.mark.parametrize("cut", ["source", "target"])
def test_fault_20_parallel_files_of_unequal_length_are_named_with_both_counts(tmp_path: Path, cut: str) -> None:
    source, target = write_pairs(tmp_path)
    shorter = source if cut == "source" else target
    rng = random.Random(20)
    lines = shorter.read_text().splitlines(keepends=True)
    for n in rng.sample(range(1, len(lines)), count(5, 50)):
        shorter.write_text("".join(lines[:n]))
        refused(
            lambda: PairCorpus(PairData(source=str(source), target=str(target))).whole(),
            f"{shorter} has {n} lines",
            "has 80 lines",
        )
    record(20, count(5, 50), count(5, 50), "20")


@pytest.mark.parametrize("kind", ["text", "pairs"])
def test_fault_20_a_damaged_shard_of_tokens_is_prepared_again(tmp_path: Path, kind: str) -> None:
    n, seed = count(12, 100), 20
    rng = random.Random(seed)
    tokenizer = Tokenizer.train(LINES, vocab_size=300)
    if kind == "text":
        path = tmp_path / "data.txt"
        path.write_text("\n".join(LINES), "utf-8")

        def prepared() -> list[Any]:
            splits = prepare(text_corpus(path), tokenizer, TokenCache(tmp_path / "cache"))
            return [splits.train.ids.copy(), splits.valid.ids.copy(), splits.train.document_starts]
    else:
        source, target = write_pairs(tmp_path)

        def prepared() -> list[Any]:
            corpus = PairCorpus(PairData(source=str(source), target=str(target)))
            splits = prepare_pairs(corpus, Tokenizers(tokenizer), TokenCache(tmp_path / "cache"))
            return [side.ids.copy() for half in (splits.train, splits.valid) for side in (half.source, half.target)]

    whole = prepared()
    (folder,) = (tmp_path / "cache").iterdir()
    for _ in range(n):
        shard = rng.choice([path for path in sorted(folder.iterdir()) if path.stat().st_size])
        data = bytearray(shard.read_bytes())
        how = rng.choice(["cut", "flip", "longer", "gone", "other type"])
        if how == "cut":
            del data[rng.randrange(len(data)) :]
        elif how == "flip":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif how == "longer":
            data += b"\0\0"
        shard.unlink()
        if how == "other type":
            shard = folder / "tokens.json"
            text = shard.read_text() if shard.exists() else "{}"
            data = bytearray(text.replace('"<u2"', '"|O"').encode())
        if how != "gone":
            shard.write_bytes(data)
        again = prepared()
        assert all(np.array_equal(x, y) for x, y in zip(whole, again, strict=True)), (shard.name, how)
    record(20, n, n, str(seed))


def test_fault_20_data_changed_since_the_checkpoint_prevents_resume(tmp_path: Path) -> None:
    path = write_text(tmp_path)
    folder = api.train(tiny_run(path, max_steps=2, eval_every=2), tmp_path / "run").folder
    whole = path.read_bytes()
    before = (checkpoint.path_of(folder, 2) / checkpoint.STATE).read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 2):
        data = bytearray(whole)
        data[place] = ord("z") if data[place] != ord("z") else ord("y")
        path.write_bytes(bytes(data))
        with pytest.raises(UserError, match=r"has changed since|is not UTF-8"):
            api.resume(folder)
    path.unlink()
    refused(lambda: api.resume(folder), "no such file", path.name)
    path.write_bytes(whole)
    assert (checkpoint.path_of(folder, 2) / checkpoint.STATE).read_bytes() == before
    api.resume(folder)
    record(20, 4, 4, "none")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[" * 100_000, "nested deeper than 64"),
        ('{"text": "a", "text": "b"}', "the key 'text' occurs twice"),
        ('{"text": "a", "n": 1' + "0" * 5000 + "}", "has 5001 digits, more than 40"),
        ('{"text": "a", "n": Infinity}', "Infinity is not valid JSON"),
        ('{"text": "\\ud800"}', "has a lone surrogate"),
        ('{"text": ["a"]}', "must be a text, got"),
    ],
)
def test_fault_20_an_ambiguous_record_is_named_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    refused(lambda: list(read_documents([path])), f"{path}:2", words)
    record(20, 1, 1, "none")


def test_fault_20_nan_is_a_missing_value(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "a", "n": NaN}\n{"text": NaN, "n": 1}\n')
    assert list(read_documents([path])) == ["a"]
    record(20, 1, 1, "none")
