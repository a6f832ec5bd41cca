"""Labelled texts: reading, split into training and validation data, and the distribution of the classes.

Sources: a `.tsv`, `.csv`, `.jsonl` or `.parquet` file with named columns; a `.conll` file of words and tags;
`builtin:NAME` (`builtin_labels`) or a part of it, such as `builtin:NAME#test`; `hf:NAME`, a Hugging Face dataset, or
one split of it, `hf:NAME#SPLIT` (extra for both, and for Parquet: data).
Only records without text or label are skipped; they are counted.

`records.read_sides` makes the split. Equal texts are on one side, and every label is in at least one training text.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from glassformer import files
from glassformer.config.run import LabelData
from glassformer.data import builtin_labels, records
from glassformer.data.builtin import PREFIX
from glassformer.data.records import (
    HUB,
    SUFFIXES,
    VALIDATION,
    Record,
    Wanted,
    digest_of,
    is_parquet,
    read_sides,
    split_records,
)
from glassformer.errors import UserError, nearest_name

DOCUMENT_START = "-DOCSTART-"
IMBALANCE_TOLD = 5.0
CLASSES_SHOWN = 40
MANY = 10
"""Up to this number of classes, each text may have its own."""


@dataclass(frozen=True)
class Labelled:
    """A text, or a pair of texts, and its label: the name of a class, a number as written in the file, or a tuple.

    A tuple contains the names of all labels of the text, in any number.
    """

    text: str
    second: str | None
    label: str | tuple[str, ...]
    where: str = field(default="", compare=False, repr=False)  # place in the file, for messages


@dataclass(frozen=True)
class Tagged:
    """The words of a sentence, and one tag per word."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    where: str = field(default="", compare=False, repr=False)  # place of the first word


LabelRecord = Labelled | Tagged


class DroppedLabels(records.Dropped):
    """Counts of the labelled records that were skipped."""

    EMPTY: ClassVar = ("record has no text or no label", "records have no text or no label")
    REPEATED: ClassVar = ("text is also in the validation data", "texts are also in the validation data")


def read_labelled(data: LabelData, path: str, dropped: DroppedLabels, split: str = "train") -> Iterator[Labelled]:
    """Yield the texts of `path` with their classes or numbers; `split` is for a dataset whose address names no split.

    Raises `UserError` for missing columns and, for regression, for a label that is not a finite number.
    """
    if path.startswith(PREFIX):
        if data.outputs != "classes" or data.second_field is not None:
            raise UserError(f"{path} has classes of single texts: remove data.outputs and data.second_field")
        for number, (text, label) in enumerate(builtin_labels.texts(path), 1):
            yield Labelled(text, None, label, f"record {number} of {path}")
    elif path.startswith(HUB) or Path(path).suffix.lower() in SUFFIXES:
        texts = (data.text_field,) if data.second_field is None else (data.text_field, data.second_field)
        for record in records.records(path, _wanted(data, texts), split, dropped):
            sides = [record.text(name).strip() for name in texts]
            if data.outputs == "multi_label":
                labels = _labels(record, data.label_field)
                if all(sides):
                    yield Labelled(sides[0], sides[1] if len(sides) > 1 else None, labels, record.where)
                else:
                    dropped.empty(record.where)
                continue
            label = _label(record, record.value(data.label_field), data.label_field)
            if not (all(sides) and label):
                dropped.empty(record.where)
                continue
            if data.outputs == "regression" and not math.isfinite(_number(label)):
                where = record.where
                raise UserError(f"{where}: data.outputs = regression needs a finite number as label, got {label!r:.40}")
            yield Labelled(sides[0], sides[1] if len(sides) > 1 else None, label, record.where)
    else:
        hint = "; for words with tags, set --data.outputs tags" if path.lower().endswith(".conll") else ""
        raise UserError(f"{path}: expected a .tsv, .csv, .jsonl or .parquet file{hint}")


def read_tagged(data: LabelData, path: str, dropped: DroppedLabels, split: str = "train") -> Iterator[Tagged]:
    """Yield the sentences of `path` as words with their tags.

    In a jsonl or Parquet file or a Hugging Face dataset both fields hold lists. Raises `UserError` for lists of unequal
    length.
    """
    suffix = Path(path).suffix.lower()
    if path.startswith(PREFIX):
        for number, (words, tags) in enumerate(builtin_labels.sentences(path), 1):
            yield Tagged(words, tags, f"record {number} of {path}")
    elif path.startswith(HUB) or suffix == ".jsonl" or is_parquet(path):
        for record in records.records(path, _wanted(data, (data.text_field,)), split, dropped):
            if (tagged := _of_lists(data, record)).words:
                yield tagged
            else:
                dropped.empty(record.where)
    elif suffix == ".conll":
        yield from _of_conll(files.as_path(path, "path"))
    else:
        raise UserError(
            f"{path}: expected a .conll file (lines of word TAB tag), or a .jsonl or .parquet file (lists of words and "
            "of tags)"
        )


def _wanted(data: LabelData, texts: tuple[str, ...]) -> Wanted:
    second = "" if data.second_field is None else "data.second_field, "
    are_named = (data.text_field, data.label_field) != (LabelData.text_field, LabelData.label_field)
    return Wanted((*texts, data.label_field), f"data.text_field, {second}data.label_field", not are_named)


def _label(record: Record, value: Any, name: str) -> str:
    """Return a label as text; class indices of a dataset become class names, and a missing label becomes ''."""
    names = _class_names(record.features, name)
    if names is not None and isinstance(value, int):
        if not 0 <= value < len(names):
            raise UserError(f"{record.where}: the label {value} is not a class; use a split that has labels")
        return names[value]
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, int | float):
        return "" if value is None else str(value)
    return record.as_text(value, f"the field {name!r}").strip()


def _labels(record: Record, name: str) -> tuple[str, ...]:
    """Return the labels of a text, which a field holds as a list; the list may be empty."""
    values = record.value(name)
    if not isinstance(values, list):
        raise UserError(
            f"{record.where}: data.outputs = multi_label needs a list of labels in the field {name!r}, got "
            f"{values!r:.40}; use a .jsonl file"
        )
    found = tuple(_label(record, value, name) for value in values)
    if not all(found):
        raise UserError(f"{record.where} has an empty label; remove it")
    return found


def _class_names(features: Any, name: str) -> Sequence[str] | None:
    """Return the class names of a field, or list field, in which a dataset stores class indices; else None."""
    for key in name.split("."):
        features = features.get(key) if isinstance(features, Mapping) else None
    return getattr(getattr(features, "feature", features), "names", None)


def _of_lists(data: LabelData, record: Record) -> Tagged:
    words, tags = (record.value(name) for name in (data.text_field, data.label_field))
    for name, values in ((data.text_field, words), (data.label_field, tags)):
        if not isinstance(values, list):
            raise UserError(f"{record.where}: the field {name!r} must be a list, got {values!r:.40}")
    if len(words) != len(tags):
        raise UserError(f"{record.where} has {len(words)} words and {len(tags)} tags; each word needs one tag")
    texts = tuple(record.as_text(word, f"an item of {data.text_field!r}") for word in words)
    found = Tagged(texts, tuple(_label(record, tag, data.label_field) for tag in tags), record.where)
    for number, (word, tag) in enumerate(zip(found.words, found.tags, strict=True), 1):
        if not (word.strip() and tag):
            raise UserError(f"{record.where}: word {number} or its tag is empty; fill it in or remove it")
    return found


def _of_conll(path: Path) -> Iterator[Tagged]:
    """Read one word per line, its tag in the last column, a blank line after each sentence (Tjong Kim Sang 2003).

    Columns are separated by tabs or, in a line without tabs, by spaces. Lines that begin a document are skipped.
    """
    words: list[str] = []
    tags: list[str] = []
    first, n_columns = 0, 0
    for number, line in enumerate([*records.lines(files.read_text(path)), ""], 1):  # a blank line ends a sentence
        if line.strip() and not line.startswith(DOCUMENT_START):
            columns = [cell.strip() for cell in (line.split("\t") if "\t" in line else line.split())]
            n_columns = n_columns or len(columns)
            if len(columns) < 2 or not (columns[0] and columns[-1]):
                raise UserError(f"{path}:{number}: expected a word and its tag, got {line!r:.40}")
            if len(columns) != n_columns:
                raise UserError(f"{path}:{number}: expected {n_columns} columns as for word 1, got {len(columns)}")
            first = first or number
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield Tagged(tuple(words), tuple(tags), f"{path}:{first}")
            words, tags, first = [], [], 0


class LabelCorpus:
    """The labelled records of a run and their split; files are read on first use."""

    def __init__(self, data: LabelData) -> None:
        if data.path is None:
            raise UserError("data.path is missing; set --data.path FILE to a file of labelled texts")
        if data.outputs == "tags" and data.second_field is not None:
            raise UserError("data.outputs = tags needs single texts; remove data.second_field")
        self.data = data
        self.dropped = DroppedLabels()
        self.path = self.name = data.path

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the records of both sides in their order; equal digests mean equal data."""

        def texts(record: LabelRecord) -> tuple[str, ...]:
            inputs = inputs_of(record)
            return (str(len(inputs)), *inputs, *labels_in(record))

        return digest_of("labels", (map(texts, records) for records in self.split))

    @cached_property
    def split(self) -> tuple[list[LabelRecord], list[LabelRecord]]:
        """Training and validation records; raises `UserError` for an empty side or an unknown validation label."""
        data = self.data
        train, valid, self._share_news = read_sides(
            data,
            None if data.valid_path is None else replace(data, path=data.valid_path),
            lambda of, split: list(_records(of, of.path or "", self.dropped, split)),
            lambda found: split_labelled(found, data.valid_fraction, keeps_labels=data.outputs != "regression"),
        )
        if data.outputs == "classes":
            self._require_few_labels(train)
        held = {inputs_of(record) for record in valid}
        kept = [record for record in train if inputs_of(record) not in held]
        self.dropped.n_repeated = len(train) - len(kept)
        for side, found in (("training", kept), ("validation", valid)):
            if not found:
                again = ", because all of them are also validation data" if train and side == "training" else ""
                raise UserError(
                    f"the split of {self.name} has no {side} text{again}; use more texts, or set data.valid_path"
                )
        if data.outputs != "regression":
            names = class_names(kept)
            self._require_no_header(kept)
            if len(names) == 1:
                raise UserError(f"{self.name} has only the label {names[0]!r}; add texts with another label")
            require_known(valid, names)
        return kept, valid

    @cached_property
    def test(self) -> list[LabelRecord] | None:
        """Records of `test_path`, or of the test part of built-in texts; None without either."""
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
        """Read the records and return notes: skipped records, missing headers, too few held-out texts, rare classes."""
        train, _ = self.split
        counts = {} if self.data.outputs == "regression" else _counts(train)
        return [*self.dropped.sentences(), *self._share_news, *_imbalance_sentences(counts, self.data.outputs)]

    def _require_few_labels(self, records: Sequence[LabelRecord]) -> None:
        """Raise `UserError` if nearly every text has its own label: none is left for validation."""
        n_labels, n_texts = len(_counts(records)), len({inputs_of(record) for record in records})
        if n_labels > MANY and n_labels > 0.9 * n_texts:
            raise UserError(
                f"nearly every label of {self.name} is different ({n_labels:,} labels, {n_texts:,} texts): are the "
                "columns swapped? set data.text_field and data.label_field"
            )

    def _require_no_header(self, records: Sequence[LabelRecord]) -> None:
        """Raise `UserError` if line 1 of a table without a header looks like one: no other line has its label."""
        counts = _counts(records)
        for record in records if self.dropped.headerless else ():
            if (
                record.where == f"{self.path}:1"
                and counts[labels_in(record)[0]] == 1
                and len(records) > len(counts) * 2
            ):
                raise UserError(
                    f"{self.path}:1 looks like a header, because no other line has the label {labels_in(record)[0]!r}; "
                    "set data.text_field and data.label_field to the columns of texts and labels"
                )


def read_labels(
    data: LabelData, path: str, dropped: DroppedLabels | None = None, split: str = VALIDATION
) -> list[LabelRecord]:
    """Read all records of a path; `split` is for a dataset whose address names no split.

    Raises `UserError` for an unreadable file, missing columns, and a file without any record.
    """
    found = list(_records(data, path, DroppedLabels() if dropped is None else dropped, split))
    if not found:
        raise UserError(f"{path} has no text with a label; use another file")
    return found


def split_labelled(
    records: Sequence[LabelRecord],
    valid_fraction: float,
    *,
    keeps_labels: bool = True,
) -> tuple[list[LabelRecord], list[LabelRecord]]:
    """Split into training and validation records, in their order; records with equal first texts are on one side.

    With `keeps_labels`, at least one text of every label is a training text.

    >>> train, valid = split_labelled([Labelled(text, None, "x") for text in "abacd"], 0.2)
    >>> [record.text for record in train], [record.text for record in valid]
    (['a', 'b', 'a', 'c'], ['d'])
    """
    keys = ["\n".join(record.words) if isinstance(record, Tagged) else record.text for record in records]
    kept: dict[str, str] = {}  # label → its alphabetically first text
    for record, key in zip(records, keys, strict=True):
        for label in labels_in(record) if keeps_labels else ():
            kept[label] = min(key, kept.get(label, key))
    return split_records(records, keys, valid_fraction, training=set(kept.values()))


def labels_in(record: LabelRecord) -> tuple[str, ...]:
    """Return the label of a text, or the tags of its words."""
    if isinstance(record, Tagged):
        return record.tags
    return record.label if isinstance(record.label, tuple) else (record.label,)


def class_names(records: Iterable[LabelRecord]) -> list[str]:
    """Return the distinct labels: numbers first, by value, then names in alphabetical order.

    >>> class_names(Labelled("", None, label) for label in ("10", "b", "1", "a", "0", "1"))
    ['0', '1', '10', 'a', 'b']
    """
    return sorted({label for record in records for label in labels_in(record)}, key=_rank)


def require_known(records: Iterable[LabelRecord], names: Sequence[str]) -> None:
    """Raise `UserError` for the first label that is not in `names`, with its place and the nearest name."""
    known = set(names)
    for record in records:
        for label in labels_in(record):
            if label not in known:
                near = nearest_name(label, names)
                hint = "the labels are" if near is None else f"did you mean {near!r}? The labels are"
                more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
                raise UserError(
                    f"{record.where or 'a record'} has the label {label!r}, which no training text has: {hint} "
                    f"{', '.join(names[:20])}{more}"
                )


@dataclass(frozen=True)
class LabelReport:
    """Statistics of labelled data."""

    n_train: int
    n_valid: int
    n_test: int | None
    characters: tuple[int, int]
    """Median and maximum length of the training and validation texts."""
    counts: dict[str, tuple[int, int]]
    """Training and validation records per class, or words per tag; empty for regression."""
    numbers: tuple[float, float, float] | None
    """Minimum, mean and maximum of the training labels, for regression."""
    news: tuple[str, ...] = field(default=())

    @property
    def imbalance(self) -> float | None:
        """Training count of the most frequent class divided by that of the least frequent one."""
        return _imbalance({name: n for name, (n, _) in self.counts.items()})

    def shares(self) -> dict[str, float]:
        """Return the fraction of each class in the training data, from 0 to 1."""
        n = sum(count for count, _ in self.counts.values())
        return {name: count / n for name, (count, _) in self.counts.items()}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"imbalance": self.imbalance, "shares": self.shares()}

    def __str__(self) -> str:
        test = "" if self.n_test is None else f", {self.n_test:,} for testing"
        lines = [
            f"records     {self.n_train:,} for training, {self.n_valid:,} for validation{test}",
            f"texts       median {self.characters[0]:,} characters, maximum {self.characters[1]:,}",
        ]
        if self.numbers is not None:
            least, mean, most = self.numbers
            lines.append(f"labels      from {least:g} to {most:g}, mean {mean:g}")
        if self.counts:
            lines += self._table()
        return "\n".join([*lines, *(f"note        {line}" for line in self.news)])

    def _table(self) -> list[str]:
        """Return the lines of the table of classes, most frequent class first."""
        ordered = sorted(self.counts, key=lambda name: -self.counts[name][0])
        width, shares = max(12, *(len(name) for name in ordered[:CLASSES_SHOWN])), self.shares()
        lines = [f"{'class':{width}}  training  validation   share"]
        for name in ordered[:CLASSES_SHOWN]:
            train, valid = self.counts[name]
            lines.append(f"{name:{width}}  {train:8,}  {valid:10,}  {100 * shares[name]:4.1f} %")
        if len(ordered) > CLASSES_SHOWN:
            lines.append(f"… and {len(ordered) - CLASSES_SHOWN:,} more classes")
        return [*lines, f"imbalance   {self.imbalance:.1f}: most frequent class / least frequent class"]


def class_report(corpus: LabelCorpus) -> LabelReport:
    """Compute the statistics of a corpus and its test data; a note counts test texts that are also in the corpus."""
    train, valid = corpus.split
    test, news = corpus.test, corpus.news()
    if test is not None:
        seen = {inputs_of(record) for record in (*train, *valid)}
        if n := sum(inputs_of(record) in seen for record in test):
            news.append(f"{n:,} of the {len(test):,} test texts are also in the training or validation data")
    are_numbers = corpus.data.outputs == "regression"
    in_train, in_valid = _counts(train), _counts(valid)
    numbers = [float(labels_in(record)[0]) for record in train if are_numbers]
    lengths = sorted(sum(map(len, inputs_of(record))) for record in (*train, *valid))
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


def inputs_of(record: LabelRecord) -> tuple[str, ...]:
    """Return the input texts of a record, without its labels."""
    if isinstance(record, Tagged):
        return record.words
    return (record.text,) if record.second is None else (record.text, record.second)


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
        "times); prefer macro F1 to accuracy"
    ]


def _rank(label: str) -> tuple[bool, float, str]:
    number = _number(label)
    return (False, number, label) if math.isfinite(number) else (True, 0.0, label)


def _number(label: str) -> float:
    """Convert a label to a number; NaN if it is not a number."""
    try:
        return float(label)
    except ValueError:
        return math.nan
