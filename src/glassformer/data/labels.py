"""Labelled texts: where they come from, what is dropped, which are held out, and how the classes are spread.

Sources: a `.tsv`, `.csv` or `.jsonl` file with named columns; a `.conll` file of words and tags; `builtin:NAME`
(`builtin_labels`), of which `builtin:NAME#test` is one part; `hf:NAME`, a Hugging Face dataset (extra: data), of
which `hf:NAME#SPLIT` is one split. A record without text or label is dropped and counted; nothing else is.

The split, where no validation data is given: built-in texts have one of their own, and so has a dataset with a split
named validation; else as many texts as come nearest to `valid_fraction` of all validate, chosen by their hash
(`records.held_out_keys`). Equal texts stand on one side, and of each label one text at least is trained on.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from glassformer import files
from glassformer.config.run import NEWEST_READING, LabelData, Reading
from glassformer.data import builtin_labels, records
from glassformer.data.builtin import PREFIX
from glassformer.data.records import (
    HUB,
    SUFFIXES,
    VALIDATION,
    Record,
    Wanted,
    digest_of,
    lines,
    read_sides,
    split_records,
)
from glassformer.errors import UserError, nearest_name

DOCUMENT_START = "-DOCSTART-"
IMBALANCE_TOLD = 5.0
CLASSES_SHOWN = 40


@dataclass(frozen=True)
class Labelled:
    """A text, or a pair of texts, and its label: the name of a class, or a number as it was written."""

    text: str
    second: str | None
    label: str
    where: str = field(default="", compare=False, repr=False)  # it stood there


@dataclass(frozen=True)
class Tagged:
    """The words of a sentence, and a tag for each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str = field(default="", compare=False, repr=False)  # its first word stood there


LabelRecord = Labelled | Tagged


class DroppedLabels(records.Dropped):
    """Labelled records that reading left out."""

    EMPTY: ClassVar = ("record has no text or no label", "records have no text or no label")
    REPEATED: ClassVar = ("text also stands in the validation data", "texts also stand in the validation data")


def read_labelled(data: LabelData, path: str, dropped: DroppedLabels, split: str = "train") -> Iterator[Labelled]:
    """The texts of `path` and their classes or numbers; of a Hugging Face dataset that names none, those of a split.

    Raises `UserError` for columns that are not there, and, where labels are numbers, for one that is none.
    """
    if path.startswith(PREFIX):
        if data.outputs == "regression" or data.second_field is not None:
            raise UserError(f"{path} has classes of single texts: leave out data.outputs and data.second_field")
        for number, (text, label) in enumerate(builtin_labels.texts(path), 1):
            yield Labelled(text, None, label, f"record {number} of {path}")
    elif path.startswith(HUB) or Path(path).suffix.lower() in SUFFIXES:
        texts = (data.text_field,) if data.second_field is None else (data.text_field, data.second_field)
        for record in records.records(path, _wanted(data, texts), split, dropped):
            sides = [record.text(name).strip() for name in texts]
            label = _label(record, record.value(data.label_field), data.label_field)
            if not (all(sides) and label):
                dropped.empty(record.where)
                continue
            if data.outputs == "regression" and not math.isfinite(_number(label)):
                where = record.where
                raise UserError(f"{where}: the label {label!r:.40} is no finite number, and data.outputs is numbers")
            yield Labelled(sides[0], sides[1] if len(sides) > 1 else None, label, record.where)
    else:
        hint = ": words with tags need --data.outputs tags" if path.lower().endswith(".conll") else ""
        raise UserError(f"{path} is none of .tsv, .csv and .jsonl{hint}")


def read_tagged(data: LabelData, path: str, dropped: DroppedLabels, split: str = "train") -> Iterator[Tagged]:
    """The sentences of `path`, word by word, with their tags.

    Of a jsonl file or a Hugging Face dataset both fields hold lists. Raises `UserError` for lists of unequal length.
    """
    suffix = Path(path).suffix.lower()
    if path.startswith(PREFIX):
        for number, (words, tags) in enumerate(builtin_labels.sentences(path), 1):
            yield Tagged(words, tags, f"record {number} of {path}")
    elif path.startswith(HUB) or suffix == ".jsonl":
        for record in records.records(path, _wanted(data, (data.text_field,)), split, dropped):
            tagged = _of_lists(data, record)
            if tagged.words:
                yield tagged
            else:
                dropped.empty(record.where)
    elif suffix == ".conll":
        yield from _of_conll(Path(path))
    else:
        raise UserError(
            f"{path} is neither .conll nor .jsonl: tags of words are read as lines of word TAB tag, or as lists"
        )


def _wanted(data: LabelData, texts: tuple[str, ...]) -> Wanted:
    second = "" if data.second_field is None else "data.second_field, "
    are_named = (data.text_field, data.label_field) != (LabelData.text_field, LabelData.label_field)
    return Wanted((*texts, data.label_field), f"data.text_field, {second}data.label_field", not are_named)


def _label(record: Record, value: Any, name: str) -> str:
    """A label as a text: the name of a class that the dataset numbers, a word, a number; empty where there is none."""
    names = _class_names(record.features, name)
    if names is not None and isinstance(value, int):
        if not 0 <= value < len(names):
            raise UserError(f"{record.where}: the label {value} names no class; some splits of datasets hide theirs")
        return names[value]
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, int | float):
        return "" if value is None else str(value)
    return record.as_text(value, f"the field {name!r}").strip()


def _class_names(features: Any, name: str) -> Sequence[str] | None:
    """The names of the classes that a dataset stores as numbers, in a field or in a list of them."""
    for key in name.split("."):
        features = features.get(key) if isinstance(features, Mapping) else None
    return getattr(getattr(features, "feature", features), "names", None)


def _of_lists(data: LabelData, record: Record) -> Tagged:
    words, tags = (record.value(name) for name in (data.text_field, data.label_field))
    for name, values in ((data.text_field, words), (data.label_field, tags)):
        if not isinstance(values, list):
            raise UserError(f"{record.where}: the field {name!r} is no list but {values!r:.40}")
    if len(words) != len(tags):
        raise UserError(f"{record.where} has {len(words)} words and {len(tags)} tags: each word needs one")
    found = Tagged(
        tuple(record.as_text(word, f"an item of {data.text_field!r}") for word in words),
        tuple(_label(record, tag, data.label_field) for tag in tags),
        record.where,
    )
    for number, (word, tag) in enumerate(zip(found.words, found.tags, strict=True), 1):
        if not (word.strip() and tag):
            raise UserError(f"{record.where}: word {number} or its tag is empty")
    return found


def _of_conll(path: Path) -> Iterator[Tagged]:
    """A word a line, its tag in the last column, a blank line behind each sentence (Tjong Kim Sang 2003).

    Columns are separated by tabs, or where a line has none, by spaces; lines that begin a document are passed over.
    """
    words: list[str] = []
    tags: list[str] = []
    first, n_columns = 0, 0
    for number, line in enumerate([*lines(files.read_text(path)), ""], 1):  # the blank line ends the last sentence
        if line.strip() and not line.startswith(DOCUMENT_START):
            columns = [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]
            n_columns = n_columns or len(columns)
            if len(columns) < 2 or not (columns[0] and columns[-1]):
                raise UserError(f"{path}:{number} is not a word and its tag: {line!r:.40}")
            if len(columns) != n_columns:
                raise UserError(f"{path}:{number} has {len(columns)} columns and the first word {n_columns}")
            first = first or number
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield Tagged(tuple(words), tuple(tags), f"{path}:{first}")
            words, tags, first = [], [], 0


class LabelCorpus:
    """The labelled records of a run and their split. Nothing is read until it is asked for."""

    def __init__(self, data: LabelData) -> None:
        if data.path is None:
            raise UserError("the run names no labelled texts: give --data.path FILE")
        if data.outputs == "tags" and data.second_field is not None:
            raise UserError("tags stand at the words of one text: leave out data.second_field")
        self.data = data
        self.dropped = DroppedLabels()
        self.path = self.name = data.path

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the records of both sides and of their order: equal digests, equal training."""

        def texts(record: LabelRecord) -> tuple[str, ...]:
            inputs = _inputs(record)
            return (str(len(inputs)), *inputs, *labels_in(record))

        return digest_of(f"labels {self.data.reading}", (map(texts, records) for records in self.split))

    @cached_property
    def split(self) -> tuple[list[LabelRecord], list[LabelRecord]]:
        """Training and validation records; `UserError` when a side is empty, or when one has labels of its own."""
        data = self.data
        train, valid, self._share_news = read_sides(
            data,
            None if data.valid_path is None else replace(data, path=data.valid_path),
            lambda of, split: list(_records(of, of.path or "", self.dropped, split)),
            lambda found: split_labelled(
                found, data.valid_fraction, data.reading, keeps_labels=data.outputs != "regression"
            ),
        )
        held = {_inputs(record) for record in valid}
        kept = [record for record in train if _inputs(record) not in held]
        self.dropped.n_repeated = len(train) - len(kept)
        for side, found in (("training", kept), ("validation", valid)):
            if not found:
                again = ", since all of them also stand in the validation data" if train and side == "training" else ""
                raise UserError(
                    f"{self.name} leaves no {side} text{again}: give more, or validation texts of their own"
                )
        if data.outputs != "regression":
            names = class_names(kept)
            self._require_no_header(kept)
            if len(names) == 1:
                raise UserError(f"{self.name} has the label {names[0]!r} alone: nothing can be told apart")
            require_known(valid, names)
        return kept, valid

    @cached_property
    def test(self) -> list[LabelRecord] | None:
        """The records of `test_path`, or of a built-in's own test part; none where there is neither."""
        path = self.data.test_path
        if path is None and self.path.startswith(PREFIX) and "#" not in self.path:
            path = f"{self.path}#test"
        if path is None:
            return None
        records = read_labels(self.data, path, self.dropped, "test")
        if self.data.outputs != "regression":
            require_known(records, class_names(self.split[0]))
        return records

    def news(self) -> list[str]:
        """Read the records, and return in sentences what was left out or guessed, a held-out share that is not reached,
        and whether classes are rare."""
        train, _ = self.split
        counts = {} if self.data.outputs == "regression" else _counts(train)
        return [*self.dropped.sentences(), *self._share_news, *_imbalance_sentences(counts, self.data.outputs)]

    def _require_no_header(self, records: Sequence[LabelRecord]) -> None:
        """`UserError` where the first line of a table without a header is one after all: its label occurs once."""
        counts = _counts(records)
        for record in records if self.dropped.headerless else ():
            if (
                record.where == f"{self.path}:1"
                and counts[labels_in(record)[0]] == 1
                and len(records) > len(counts) * 2
            ):
                raise UserError(
                    f"{self.path}:1 looks like a header, since no other line has the label {labels_in(record)[0]!r}: "
                    "say which columns hold texts and labels (data.text_field, data.label_field)"
                )


def read_labels(
    data: LabelData, path: str, dropped: DroppedLabels | None = None, split: str = VALIDATION
) -> list[LabelRecord]:
    """All records of a path, unsplit; of a dataset that names no split, those of `split`.

    Raises `UserError` for a file that cannot be read, columns that are not there, and a file without a record.
    """
    found = list(_records(data, path, DroppedLabels() if dropped is None else dropped, split))
    if not found:
        raise UserError(f"{path} holds no text with a label")
    return found


def split_labelled(
    records: Sequence[LabelRecord],
    valid_fraction: float,
    reading: Reading = NEWEST_READING,
    *,
    keeps_labels: bool = True,
) -> tuple[list[LabelRecord], list[LabelRecord]]:
    """Training and validation records, in their order; equal texts stand on one side.

    With `keeps_labels`, one text of each label at least is trained on, so that training lacks none.

    >>> train, valid = split_labelled([Labelled(text, None, "x") for text in "abacd"], 0.2)
    >>> [record.text for record in train], [record.text for record in valid]
    (['a', 'b', 'a', 'c'], ['d'])
    """
    keys = [_key(record) for record in records]
    kept: dict[str, str] = {}  # of each label the first text by the alphabet
    for record, key in zip(records, keys, strict=True):
        for label in labels_in(record) if keeps_labels else ():
            kept[label] = min(key, kept.get(label, key))
    return split_records(records, keys, valid_fraction, reading, training=set(kept.values()))


def labels_in(record: LabelRecord) -> tuple[str, ...]:
    """The label of a text, or the tags of its words."""
    return record.tags if isinstance(record, Tagged) else (record.label,)


def class_names(records: Iterable[LabelRecord]) -> list[str]:
    """The labels that occur: numbers first, by their value, then names by the alphabet.

    >>> class_names(Labelled("", None, label) for label in ("10", "b", "1", "a", "0", "1"))
    ['0', '1', '10', 'a', 'b']
    """
    return sorted({label for record in records for label in labels_in(record)}, key=_rank)


def require_known(records: Iterable[LabelRecord], names: Sequence[str]) -> None:
    """`UserError` for the first label that is none of `names`, with its place and the nearest name."""
    known = set(names)
    for record in records:
        for label in labels_in(record):
            if label not in known:
                near = nearest_name(label, names)
                hint = "there are" if near is None else f"did you mean {near!r}? There are"
                more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
                raise UserError(
                    f"{record.where or 'a record'} has the label {label!r}, which no training text has: {hint} "
                    f"{', '.join(names[:20])}{more}"
                )


@dataclass(frozen=True)
class LabelReport:
    """What labelled data is like."""

    n_train: int
    n_valid: int
    n_test: int | None
    characters: tuple[int, int]
    """Of the texts for training and validation: the middle, and the most."""
    counts: dict[str, tuple[int, int]]
    """Records of each class, or words of each tag, for training and for validation; empty where labels are numbers."""
    numbers: tuple[float, float, float] | None
    """The least, the mean and the greatest label for training, where labels are numbers."""
    news: tuple[str, ...] = field(default=())

    @property
    def imbalance(self) -> float | None:
        """How many times as often as the least frequent class the most frequent one occurs in training."""
        return _imbalance({name: n for name, (n, _) in self.counts.items()})

    def shares(self) -> dict[str, float]:
        """The share of each class in the training data, from 0 to 1."""
        n = sum(count for count, _ in self.counts.values())
        return {name: count / n for name, (count, _) in self.counts.items()}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"imbalance": self.imbalance, "shares": self.shares()}

    def __str__(self) -> str:
        test = "" if self.n_test is None else f", {self.n_test:,} for the test"
        lines = [
            f"records     {self.n_train:,} for training, {self.n_valid:,} for validation{test}",
            f"texts       {self.characters[0]:,} characters in the middle, {self.characters[1]:,} at most",
        ]
        if self.numbers is not None:
            least, mean, most = self.numbers
            lines.append(f"labels      from {least:g} to {most:g}, {mean:g} on average")
        if self.counts:
            lines += self._table()
        return "\n".join([*lines, *(f"note        {line}" for line in self.news)])

    def _table(self) -> list[str]:
        """The classes, the most frequent first."""
        ordered = sorted(self.counts, key=lambda name: -self.counts[name][0])
        width, shares = max(12, *(len(name) for name in ordered[:CLASSES_SHOWN])), self.shares()
        lines = [f"{'class':{width}}  training  validation   share"]
        for name in ordered[:CLASSES_SHOWN]:
            train, valid = self.counts[name]
            lines.append(f"{name:{width}}  {train:8,}  {valid:10,}  {100 * shares[name]:4.1f} %")
        if len(ordered) > CLASSES_SHOWN:
            lines.append(f"… and {len(ordered) - CLASSES_SHOWN:,} classes more")
        return [*lines, f"imbalance   {self.imbalance:.1f}: the most frequent over the least frequent"]


def class_report(corpus: LabelCorpus) -> LabelReport:
    """Counts and lengths of a corpus, its test included; texts of the test that are also trained on are told."""
    train, valid = corpus.split
    test, news = corpus.test, corpus.news()
    if test is not None:
        seen = {_inputs(record) for record in (*train, *valid)}
        if n := sum(_inputs(record) in seen for record in test):
            news.append(f"{n:,} of the {len(test):,} texts of the test also stand in the training or validation data")
    are_numbers = corpus.data.outputs == "regression"
    in_train, in_valid = _counts(train), _counts(valid)
    numbers = [float(record.label) for record in train if are_numbers and isinstance(record, Labelled)]
    lengths = sorted(sum(map(len, _inputs(record))) for record in (*train, *valid))
    return LabelReport(
        n_train=len(train),
        n_valid=len(valid),
        n_test=None if test is None else len(test),
        characters=(lengths[len(lengths) // 2], lengths[-1]),
        counts={} if are_numbers else {name: (in_train[name], in_valid[name]) for name in class_names(train)},
        numbers=(min(numbers), math.fsum(numbers) / len(numbers), max(numbers)) if numbers else None,
        news=tuple(news),
    )


def _records(data: LabelData, path: str, dropped: DroppedLabels, split: str) -> Iterable[LabelRecord]:
    return (read_tagged if data.outputs == "tags" else read_labelled)(data, path, dropped, split)


def _inputs(record: LabelRecord) -> tuple[str, ...]:
    """All that a model reads of a record."""
    if isinstance(record, Tagged):
        return record.words
    return (record.text,) if record.second is None else (record.text, record.second)


def _key(record: LabelRecord) -> str:
    """What stands on one side of a split: of a pair of texts, all that share the first."""
    return "\n".join(record.words) if isinstance(record, Tagged) else record.text


def _counts(records: Iterable[LabelRecord]) -> Counter[str]:
    return Counter(label for record in records for label in labels_in(record))


def _imbalance(counts: dict[str, int]) -> float | None:
    return max(counts.values()) / min(counts.values()) if counts else None


def _imbalance_sentences(counts: dict[str, int], outputs: str) -> list[str]:
    found = _imbalance(counts)
    if found is None or found <= IMBALANCE_TOLD:
        return []
    what = "tag" if outputs == "tags" else "class"
    most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    return [
        f"the {what} {most!r} occurs {found:,.0f} times as often as {least!r} ({counts[most]:,} and {counts[least]:,} "
        "times): macro F1 says more than accuracy"
    ]


def _rank(label: str) -> tuple[bool, float, str]:
    number = _number(label)
    return (False, number, label) if math.isfinite(number) else (True, 0.0, label)


def _number(label: str) -> float:
    """NaN where it is none."""
    try:
        return float(label)
    except ValueError:
        return math.nan
