"""The kind of own data: the same records are recognised in every format, and an unclear table is refused."""

import csv
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from glassformer.common.errors import UserError
from glassformer.config.run import ConversationData, LabelData, PairData, TextData
from glassformer.data.conversations import ConversationCorpus
from glassformer.data.labels import LabelCorpus, Labelled
from glassformer.data.pairs import Pair, PairCorpus
from glassformer.data.recognition import aligned, outputs_of, recognise
from glassformer.data.texts import read_documents

Rows = Sequence[tuple[str, str]]


def words(rng: random.Random, n: int) -> str:
    return " ".join("".join(rng.choices("abcdefghij", k=4)) for _ in range(n))


def made_up(kind: str, seed: int) -> Rows:
    """Return 60 records: pairs of different sides, or texts with few labels."""
    rng = random.Random(seed)
    labels = {"classes": ["good", "bad", "so so"], "digits": ["0", "1"], "numbers": ["0.5", "2", "-3.25"]}
    second: Callable[[], str] = (lambda: words(rng, 3)) if kind == "pairs" else lambda: rng.choice(labels[kind])
    return [(words(rng, rng.randint(2, 6)), second()) for _ in range(60)]


def table(path: Path, rows: Rows, names: tuple[str, str] | None) -> str:
    """Write rows as a tsv, a csv or a jsonl file, by the suffix."""
    if path.suffix == ".jsonl":
        assert names is not None
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    else:
        with open(path, "w", newline="") as file:
            dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
            writer = csv.writer(file, lineterminator="\n", **dialect)  # type: ignore[arg-type]
            writer.writerows([names, *rows] if names else rows)
    return str(path)


NAMES = {"pairs": [("source", "target"), ("Source", "TARGET"), ("en", "de")]}
LABEL_NAMES = [("text", "label"), ("Text", "LABEL"), ("body", "stars")]


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
@pytest.mark.parametrize("kind", ["pairs", "classes", "digits", "numbers"])
def test_the_same_records_are_recognised_in_every_format(kind: str, suffix: str, tmp_path: Path) -> None:
    """Also in both orders of the columns, and with foreign names of one word."""
    headers: list[tuple[str, str] | None] = [*NAMES.get(kind, LABEL_NAMES), *([None] if suffix == ".tsv" else [])]
    for seed, names in enumerate(headers):
        rows = made_up(kind, seed)
        found = recognise(table(tmp_path / f"t{suffix}", rows, names))
        if kind == "pairs":
            assert isinstance(found.data, PairData), found
            expected = [Pair(*row) for row in rows]
            assert PairCorpus(found.data).whole() == expected
        else:
            assert isinstance(found.data, LabelData), found
            assert found.data.outputs == ("regression" if kind == "numbers" else "classes")
            assert LabelCorpus(found.data).whole() == [Labelled((row[0],), (row[1],)) for row in rows]
            if names is not None:
                swapped = table(tmp_path / f"s{suffix}", [row[::-1] for row in rows], names[::-1])
                data = recognise(swapped).data
                assert isinstance(data, LabelData)
                assert LabelCorpus(data).whole() == LabelCorpus(found.data).whole()
        assert found.evidence.startswith("pairs, " if kind == "pairs" else "texts with ")


def test_a_first_pair_of_words_is_data_among_such_pairs(tmp_path: Path) -> None:
    rows = [*((words(random.Random(n), 1), words(random.Random(-n), 1)) for n in range(1, 40)), ("a dog", "ein Hund")]
    data = recognise(table(tmp_path / "t.tsv", rows, None)).data
    assert isinstance(data, PairData)
    assert PairCorpus(data).whole() == [Pair(*row) for row in rows]


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_prompts_and_completions_are_recognised_in_every_format(suffix: str, tmp_path: Path) -> None:
    """As conversations, or with `kind` as pairs; the header is never a record."""
    rows = made_up("pairs", 0)
    path = table(tmp_path / f"t{suffix}", rows, ("prompt", "completion"))
    found = recognise(path).data
    assert isinstance(found, ConversationData)
    read = ConversationCorpus(found).whole()
    assert [tuple(message["content"] for message in one.messages) for one in read] == rows
    pairs = recognise(path, "pairs").data
    assert isinstance(pairs, PairData) and PairCorpus(pairs).whole() == [Pair(*row) for row in rows]


def test_tags_are_recognised_as_conll_and_as_lists(tmp_path: Path) -> None:
    rows = [Labelled(("a", "dog"), ("O", "B")), Labelled(("one",), ("O",))]
    conll, lists = tmp_path / "t.conll", tmp_path / "t.jsonl"
    conll.write_text("a\tO\ndog\tB\n\none\tO\n")
    lists.write_text("".join(json.dumps({"text": r.inputs, "label": r.labels}) + "\n" for r in rows))
    for path in (conll, lists):
        data = recognise(str(path)).data
        assert isinstance(data, LabelData) and data.outputs == "tags"
        assert LabelCorpus(data).whole() == rows


@pytest.mark.parametrize("name", ["book.txt", "notes.md", "README", "corpus.jsonl", "folder"])
def test_other_files_are_text(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        (path / "a.txt").write_text("one\ttwo\n")
    else:
        path.write_text(json.dumps({"text": "one\ttwo\n", "title": "x"}))
    data = recognise(str(path)).data
    assert isinstance(data, TextData) and list(read_documents([data.path or ""]))


def test_a_given_kind_decides(tmp_path: Path) -> None:
    rows = made_up("classes", 0)
    path = table(tmp_path / "t.tsv", rows, None)
    assert isinstance(recognise(path, "text").data, TextData)
    pairs, labels = recognise(path, "pairs").data, recognise(path, "labels").data
    assert isinstance(pairs, PairData) and len(PairCorpus(pairs).whole()) == len(rows)
    assert isinstance(labels, LabelData) and labels.outputs == "classes"
    numbers = recognise(
        table(tmp_path / "d.csv", made_up("digits", 0), ("text", "label")), given={"outputs": "regression"}
    )
    assert isinstance(numbers.data, LabelData) and numbers.data.outputs == "regression"


def test_given_columns_decide(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,body,title,stars\n" + "".join(f"{i},text {i},title {i},{i % 3}\n" for i in range(30)))
    labels = recognise(str(path), given={"text_field": "body", "label_field": "stars"}).data
    assert isinstance(labels, LabelData) and (labels.text_field, labels.label_field) == ("body", "stars")
    pairs = recognise(str(path), given={"source_field": "body", "target_field": "title"}).data
    assert isinstance(pairs, PairData) and (pairs.source_field, pairs.target_field) == ("body", "title")
    two = recognise(str(path), given={"text_field": "body", "second_field": "title", "label_field": "stars"}).data
    assert isinstance(two, LabelData) and two.second_field == "title"


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (
            "id,body,stars\n1,a b,2\n",
            None,
            "has the columns id, body, stars: name those to read, with --data.text-field",
        ),
        ("id,body,stars\n1,a b,2\n", "pairs", "--data.source-field NAME and --data.target-field NAME for pairs$"),
        ("a,b\nx,1\nx,2\ny,1\ny,2\n", None, "may be pairs or labels: give --kind pairs or --kind labels"),
        ("source,target,text,label\na,b,c,d\n", None, "has the columns source, target, text, label"),
        ("", None, "is empty"),
        ("a,b\0\n", None, "is not plain text: NUL"),
        ("a,\udcff\n", None, "is not UTF-8: byte 0xff"),
    ],
)
def test_an_unclear_table_is_refused_with_what_to_give(
    content: str, kind: str | None, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=message):
        recognise(str(path), kind)  # type: ignore[arg-type]


def test_labels_before_texts_without_a_header_are_read_by_the_numbers_of_their_columns(tmp_path: Path) -> None:
    rows = made_up("classes", 0)
    data = recognise(table(tmp_path / "t.tsv", [row[::-1] for row in rows], None)).data
    assert isinstance(data, LabelData) and (data.text_field, data.label_field) == ("2", "1")
    expected = LabelCorpus(LabelData(path=table(tmp_path / "u.tsv", rows, None))).whole()
    assert LabelCorpus(data).whole() == expected and len(expected) == len(rows)


def test_two_files_are_the_sides_of_pairs(tmp_path: Path) -> None:
    source, target = tmp_path / "t.en", tmp_path / "t.de"
    source.write_text("a dog\na cat\n")
    target.write_text("ein Hund\neine Katze\n")
    found = aligned(str(source), str(target))
    assert isinstance(found.data, PairData) and found.data.target_language == "de"
    assert PairCorpus(found.data).whole() == [Pair("a dog", "ein Hund"), Pair("a cat", "eine Katze")]
    target.write_text("ein Hund\n")
    with pytest.raises(UserError, match=r"has 2 lines and .* has 1 lines"):
        aligned(str(source), str(target))
    for other in (tmp_path, tmp_path / "x.toml", tmp_path / "x.tsv"):
        with pytest.raises(UserError, match=r"two sources are the text files of pairs, and .* is not such a file"):
            aligned(str(source), str(other))


def test_a_large_file_is_recognised_by_its_first_rows(tmp_path: Path) -> None:
    """The first MiB is read, and ends with a complete row."""
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{'x' * 900} {i}\t{i % 2}\n" for i in range(3000)))
    found = recognise(str(path))
    assert isinstance(found.data, LabelData) and set(found.rows["label_field"]) == {"0", "1"}


@pytest.mark.parametrize(
    ("labels", "outputs"),
    [
        (["1", "2", "3"] * 9, "classes"),
        ([str(i) for i in range(30)], "regression"),
        (["1.5", "2"], "regression"),
        ([True, False], "classes"),
        (["", "a"], "classes"),
        ([1, 2] * 5, "classes"),
    ],
)
def test_the_type_of_labels(labels: list[object], outputs: str) -> None:
    assert outputs_of(labels) == outputs
