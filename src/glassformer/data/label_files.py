"""Labelled texts as they stand somewhere: a table, jsonl, a CoNLL file, something built in, a Hugging Face dataset."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from glassformer import files
from glassformer.config.run import LabelData
from glassformer.data import builtin_labels, records
from glassformer.data.builtin import PREFIX
from glassformer.data.records import HUB, SUFFIXES, Record, Wanted, lines
from glassformer.errors import UserError

DOCUMENT_START = "-DOCSTART-"


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
            if data.outputs == "regression":
                _require_number(label, record.where)
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


def _require_number(label: str, where: str) -> None:
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UserError(f"{where}: the label {label!r:.40} is no finite number, and data.outputs is numbers")


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
