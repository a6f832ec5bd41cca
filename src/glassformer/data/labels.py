"""Labelled texts: reading, the split into training and validation data, and the report on classes.

Labelled texts are the records of a source (`addresses.SOURCES`). A record whose text or label is missing
(`records.present`) is skipped and counted.

`RecordCorpus` makes the split. Equal texts are on one side. Every label but a number is in at least one training text.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from glassformer.common.errors import UserError, nearest_name
from glassformer.config.run import LabelData
from glassformer.config.train import UNBALANCED
from glassformer.data import addresses, builtin
from glassformer.data.kinds import DataReport, notes
from glassformer.data.records import Kind, Record, present, with_fields
from glassformer.data.split import RecordCorpus, split_records

CLASSES_SHOWN = 40
MANY = 10
"""With at most this number of classes, each text may have a class of its own."""


@dataclass(frozen=True)
class Labelled:
    """A text or a pair of texts with its labels, or the words of a sentence with one tag each."""

    inputs: tuple[str, ...]
    """The text, the two texts, or the words."""
    labels: tuple[str, ...]
    """The name of a class, a number as written in the file, any number of names (`multi_label`), or the tags."""
    where: str = field(default="", compare=False, repr=False)  # place in the file, for messages


def _labelled(data: LabelData, record: Record) -> Labelled | None:
    """Return a text or a pair of texts with its label; None if a text or the label is missing."""
    fields = filter(None, (data.text_field, data.second_field))
    inputs, value = tuple(record.text(name).strip() for name in fields), record.value(data.label_field)
    if not all(inputs) or value is None:
        return None
    if data.outputs == "multi_label":
        labels = _labels(record, value, data.label_field)
    elif data.outputs == "classes" and isinstance(value, float) and value.is_integer():
        labels = (str(int(value)),)  # pandas converts whole numbers to floats if one is missing
    else:
        labels = (_label(record, value, data.label_field),)
    if "" in labels:
        return None
    if data.outputs == "regression" and not math.isfinite(_number(labels[0])):
        where = record.where
        raise UserError(f"{where}: data.outputs = regression needs a finite number as label, got {labels[0]!r:.40}")
    return Labelled(inputs, labels, record.where)


def _label(record: Record, value: Any, name: str) -> str:
    """Return a label as a text: for a class index of a dataset, the class name; for a missing label, ''."""
    features: Any = record.features  # of a dataset, whose field may contain class indices, or lists of them
    for key in name.split("."):
        features = features.get(key) if isinstance(features, Mapping) else None
    names: Sequence[str] | None = getattr(getattr(features, "feature", features), "names", None)
    if names is not None and isinstance(value, int):
        if not 0 <= value < len(names):
            raise UserError(f"{record.where}: the label {value} is not a class; use a split that has labels")
        return names[value]
    value = present(value)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return ""
    if isinstance(value, int | float):
        return str(value)
    return record.as_text(value, f"the field {name!r}").strip()


def _labels(record: Record, values: Any, name: str) -> tuple[str, ...]:
    """Return the labels in the list that a field contains; the list may be empty, and a missing label becomes ''."""
    if not isinstance(values, list):
        raise UserError(
            f"{record.where}: data.outputs = multi_label needs a list of labels in the field {name!r}, got "
            f"{values!r:.40}; use a .jsonl file"
        )
    return tuple(_label(record, value, name) for value in values)


def _tagged(data: LabelData, record: Record) -> Labelled | None:
    """Return the words and tags that two fields contain as lists; None if a list, a word or a tag is missing."""
    words, tags = (record.value(name) for name in (data.text_field, data.label_field))
    if words is None or tags is None:
        return None
    for name, values in ((data.text_field, words), (data.label_field, tags)):
        if not isinstance(values, (list, tuple)):
            raise UserError(f"{record.where}: the field {name!r} must be a list, got {values!r:.40}")
    if len(words) != len(tags):
        raise UserError(f"{record.where} has {len(words)} words and {len(tags)} tags; each word needs one tag")
    names = tuple(_label(record, tag, data.label_field) for tag in tags)
    if not words or None in map(present, words) or "" in names:
        return None
    return Labelled(
        tuple(record.as_text(word, f"an item of {data.text_field!r}") for word in words), names, record.where
    )


class LabelCorpus(RecordCorpus[LabelData, Labelled]):
    """The labelled records of a run and their split."""

    NOUN, USABLE = "text", "text with a label"
    REASON = ("record has no text or no label", "records have no text or no label")

    def __init__(self, data: LabelData) -> None:
        if data.path is None:
            raise UserError("data.path is missing; set --data.path FILE to a file of labelled texts")
        if data.outputs == "tags" and data.second_field is not None:
            raise UserError("data.outputs = tags needs single texts; remove data.second_field")
        super().__init__(data, data.path)

    def records(self, data: LabelData, split: str) -> Iterator[Labelled]:
        """Yield the labelled texts of `data.path`, or for tags its sentences as words with their tags.

        Raises `UserError` for missing columns, for a number that is not finite, and for lists of words and tags of
        unequal length.
        """
        path = data.path or ""
        if path.startswith(builtin.PREFIX) and (data.second_field or data.outputs not in ("classes", "tags")):
            raise UserError(f"{path} has classes of single texts: remove data.outputs and data.second_field")
        kind: Kind = "labels"
        read: Callable[[LabelData, Record], Labelled | None] = _labelled
        if data.outputs == "tags":
            kind, read = "tags", _tagged
        may_lack_header = (data.text_field, data.label_field) == (LabelData.text_field, LabelData.label_field)
        settings = [name for name in ("text_field", "second_field", "label_field") if getattr(data, name)]
        request = self.request(data, split, settings, kind, may_lack_header)
        for record in with_fields(addresses.records(path, request), request.names):
            labelled = read(data, record)
            if labelled is None:
                self.dropped.empty(record.where)
            else:
                yield labelled

    def texts(self, record: Labelled) -> tuple[str, ...]:
        return str(len(record.inputs)), *record.inputs, *record.labels

    def divide(self, records: list[Labelled]) -> tuple[list[Labelled], list[Labelled]]:
        return split_labelled(records, self.data.valid_fraction, self.data.outputs)

    def identity(self, record: Labelled) -> Hashable:
        return record.inputs

    def distinct(self, train: list[Labelled], valid: list[Labelled]) -> list[Labelled]:
        """Return the training records that are not validation records; raise `UserError` if a side or a label is wrong.

        Labels are wrong if nearly all differ, if there is only one, if line 1 looks like a header, and if a validation
        label is not a training label.
        """
        if self.data.outputs == "classes":
            self._require_few_labels(train)
        train = super().distinct(train, valid)
        if self.data.outputs != "regression":
            names = class_names(train)
            self._require_no_header(train)
            if len(names) == 1:
                raise UserError(f"{self.name} has only the label {names[0]!r}; add texts with another label")
            require_known(valid, names)
        return train

    @cached_property
    def test(self) -> list[Labelled] | None:
        """Records of the test part of built-in texts; None for other texts."""
        path = builtin.test_part(self.name)
        if path is None:
            return None
        test = LabelCorpus(replace(self.data, path=path))
        test.dropped = self.dropped
        records = test.whole("test")
        if self.data.outputs != "regression":
            require_known(records, class_names(self.split[0]))
        return records

    @cached_property
    def counts(self) -> Counter[str]:
        """Number of training records of each class, or of training words of each tag."""
        return _counts(self.split[0])

    def news(self) -> list[str]:
        """Read the records and return notes: skipped records, missing headers, too few held-out texts, rare classes."""
        news = super().news()
        if self.data.outputs != "regression":
            news += _imbalance_sentences(self.counts, self.data.outputs)
        return news

    def _require_few_labels(self, records: Sequence[Labelled]) -> None:
        """Raise `UserError` if nearly every text has its own label, so that no text can be held out for validation."""
        n_labels, n_texts = len(_counts(records)), len({record.inputs for record in records})
        if n_labels > MANY and n_labels > 0.9 * n_texts:
            raise UserError(
                f"nearly every label of {self.name} is different ({n_labels:,} labels, {n_texts:,} texts): are the "
                "columns swapped? set data.text_field and data.label_field"
            )

    def _require_no_header(self, records: Sequence[Labelled]) -> None:
        """Raise `UserError` if line 1 was read as data but looks like a header: no other line has its label."""
        counts = _counts(records)
        if not self.dropped.headerless or len(records) <= 2 * len(counts):
            return
        for label in (record.labels[0] for record in records if record.where == f"{self.name}:1"):
            if counts[label] == 1:
                raise UserError(
                    f"{self.name}:1 looks like a header, because no other line has the label {label!r}; "
                    "set data.text_field and data.label_field to the columns of texts and labels"
                )


def split_labelled(
    records: Sequence[Labelled], valid_fraction: float, outputs: str = "classes"
) -> tuple[list[Labelled], list[Labelled]]:
    """Split into training and validation records, in their order.

    Records with equal first texts, or with equal words, are on one side. Except for numbers, at least one text of every
    label is a training text.

    >>> train, valid = split_labelled([Labelled((text,), ("x",)) for text in "abacd"], 0.2)
    >>> [record.inputs[0] for record in train], [record.inputs[0] for record in valid]
    (['a', 'b', 'a', 'c'], ['d'])
    """
    keys = ["\n".join(record.inputs) if outputs == "tags" else record.inputs[0] for record in records]
    if outputs == "regression":
        return split_records(records, keys, valid_fraction)
    first: dict[str, str] = {}  # label → its alphabetically first text
    for record, key in zip(records, keys, strict=True):
        for label in record.labels:
            first[label] = min(key, first.get(label, key))
    return split_records(records, keys, valid_fraction, training=set(first.values()))


def class_names(records: Iterable[Labelled]) -> list[str]:
    """Return the distinct labels: numbers first, by value, then names in alphabetical order.

    >>> class_names([Labelled(("",), ("10", "b", "1", "a", "0", "1"))])
    ['0', '1', '10', 'a', 'b']
    """
    return sorted({label for record in records for label in record.labels}, key=_rank)


def require_known(records: Iterable[Labelled], names: Sequence[str]) -> None:
    """Raise `UserError` for the first label that is not in `names`, with its place and the nearest name."""
    training = set(names)
    for record in records:
        for label in record.labels:
            if label not in training:
                near = nearest_name(label, names)
                hint = "the labels are" if near is None else f"did you mean {near!r}? The labels are"
                more = f" and {len(names) - 20:,} more" if len(names) > 20 else ""
                raise UserError(
                    f"{record.where or 'a record'} has the label {label!r}, which no training text has: {hint} "
                    f"{', '.join(names[:20])}{more}"
                )


def report_of(corpus: LabelCorpus, *_: Any) -> DataReport:
    """Return the report on labelled data and its test part; a note counts test texts that are also in the data."""
    train, valid = corpus.split
    test, news = corpus.test, corpus.news()
    n_test, for_testing = None, ""
    if test is not None:
        n_test, for_testing = len(test), f", {len(test):,} for testing"
        seen = {record.inputs for record in (*train, *valid)}
        if n := sum(record.inputs in seen for record in test):
            news.append(f"{n:,} of the {len(test):,} test texts are also in the training or validation data")
    # The texts
    lengths = sorted(sum(map(len, record.inputs)) for record in (*train, *valid))
    median, longest = lengths[len(lengths) // 2], lengths[-1]
    lines = [
        ("records", f"{len(train):,} for training, {len(valid):,} for validation{for_testing}"),
        ("texts", f"median {median:,} characters, maximum {longest:,}"),
    ]
    # The labels: numbers, or counts of classes and tags for training and validation
    counts: dict[str, tuple[int, int]] = {}
    numbers: tuple[float, float, float] | None = None
    if corpus.data.outputs == "regression":
        values = [float(record.labels[0]) for record in train]
        numbers = min(values), math.fsum(values) / len(values), max(values)
        lines.append(("labels", f"from {numbers[0]:g} to {numbers[2]:g}, mean {numbers[1]:g}"))
    else:
        in_train, in_valid = _counts(train), _counts(valid)
        counts = {name: (in_train[name], in_valid[name]) for name in class_names(train)}
        lines += _table(counts)
    n_labels = sum(n for n, _ in counts.values())
    return DataReport(
        {
            "n_train": len(train),
            "n_valid": len(valid),
            "n_test": n_test,
            "characters": (median, longest),
            "counts": counts,
            "numbers": numbers,
            "news": news,
            "imbalance": imbalance_of({name: n for name, (n, _) in counts.items()}),
            "shares": {name: n / n_labels for name, (n, _) in counts.items()},
        },
        [*lines, *notes(news)],
    )


def _table(counts: Mapping[str, tuple[int, int]]) -> list[tuple[str, str]]:
    """Return the lines of the table of classes, most frequent class first."""
    ordered = sorted(counts, key=lambda name: -counts[name][0])
    width, n_labels = max(12, *(len(name) for name in ordered[:CLASSES_SHOWN])), sum(n for n, _ in counts.values())
    lines = [f"{'class':{width}}  training  validation   share"]
    for name in ordered[:CLASSES_SHOWN]:
        train, valid = counts[name]
        lines.append(f"{name:{width}}  {train:8,}  {valid:10,}  {100 * (train / n_labels):4.1f} %")
    if len(ordered) > CLASSES_SHOWN:
        lines.append(f"… and {len(ordered) - CLASSES_SHOWN:,} more classes")
    imbalance = counts[ordered[0]][0] / counts[ordered[-1]][0]
    selects = ""
    if imbalance > UNBALANCED:
        selects = f"; above {UNBALANCED:g}, a run on own data selects its best step by macro F1"
    text = f"{imbalance:.1f}: most frequent class / least frequent class{selects}"
    return [*(("", line) for line in lines), ("imbalance", text)]


def _counts(records: Iterable[Labelled]) -> Counter[str]:
    return Counter(label for record in records for label in record.labels)


def imbalance_of(counts: Mapping[str, int]) -> float | None:
    """Return the count of the most frequent label divided by that of the least frequent one; None without labels."""
    return max(counts.values()) / min(counts.values()) if counts else None


def _imbalance_sentences(counts: Mapping[str, int], outputs: str) -> list[str]:
    imbalance = imbalance_of(counts)
    if imbalance is None or imbalance <= UNBALANCED:
        return []
    what = "tag" if outputs == "tags" else "class"
    most, least = max(counts, key=lambda name: counts[name]), min(counts, key=lambda name: counts[name])
    return [
        f"the {what} {most!r} occurs {imbalance:,.0f} times as often as {least!r} ({counts[most]:,} and "
        f"{counts[least]:,} times); prefer macro F1 to accuracy"
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
