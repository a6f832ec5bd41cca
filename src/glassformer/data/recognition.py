"""Recognise the kind of data from its name and its first rows: text, pairs, texts with labels, or conversations.

A `.conll` file has words with tags. Another file without records is text. Files with records are `.tsv`, `.csv`,
`.jsonl`, `.parquet`, `hf:NAME`, and any file with JSON or tab-separated rows. The names of their columns decide.
`messages`, or `prompt` and `completion`, are conversations (also in the forms of ShareGPT and Alpaca). `source` and
`target` are pairs, `text` and `label` are labels, and `text` alone is text. A table of two columns with other names is
recognised by its values: a column of few short values is the label, and two columns of mostly different values are
pairs. If a table has further columns, and the values of each begin alike, such as licences, only the first two columns
are read. In every other case `UserError` asks for the kind or the columns. Only a table that may be a text is then read
as text, with a note.
"""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

from glassformer.common import files
from glassformer.common.errors import UserError, shown
from glassformer.config.run import ConversationData, LabelData, PairData, TextData
from glassformer.data import addresses, builtin, records, tables
from glassformer.data.formats import KNOWN_COLUMNS, aligned_lines, are_clearly_records, layout_of, not_records
from glassformer.data.in_memory import PARTS, Rows, json_lines
from glassformer.data.records import ALPACA_PROMPT, Request, present
from glassformer.data.tables import dialect_of
from glassformer.data.text_files import UTF_8, suffix_of

Kind = Literal["text", "pairs", "labels", "conversations"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PAIR_FIELDS, LABEL_FIELDS = PairData.columns, LabelData.columns[:2]
CONVERSATION_FIELDS = ConversationData.columns[:1], ConversationData.columns[1:]
OTHER_FORMS = {
    "ShareGPT": {"messages_field": "conversations"},
    "Alpaca": {"prompt_field": ALPACA_PROMPT, "completion_field": "output"},
}
"""Other forms of conversations. Each maps the setting for a column to the name of this column in the form."""
FIELDS = (*PairData.columns, *LabelData.columns, *ConversationData.columns)
READING = ("format", "encoding", "on_bad", "front_matter")
"""Keys of `[data]` that set how files are read."""
SETTINGS = (*FIELDS, "outputs", *READING)
"""Keys of `[data]` that decide how a table is read."""

N_ROWS = 1000
HEAD_CHARACTERS = 1 << 20
LABEL_CHARACTERS = 40
"""A column with a value of more characters is not recognised as labels."""
FEW_LABELS = 10
"""A column of n rows has few values if it has at most n / 10 different ones, or at most this number and n / 3."""
MIN_ALIKE = 5
"""Columns after the second are not read if the values of each begin with the same characters, at least this many."""
MANY = 0.6
"""Two columns are pairs if at least this fraction of the values in each column is different."""

_WORD = re.compile(r"[^\W\d_][\w-]{0,30}")

Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Recognised:
    """Data of a recognised kind."""

    data: TextData | PairData | LabelData | ConversationData
    evidence: str = ""
    """The kind, and the reason for it, in words; empty for files of text."""
    rows: Columns = field(default_factory=dict)
    """Values of the first rows. The key is the setting for the column, such as `source_field`. Empty for text."""


def recognise(address: str, kind: Kind | None = None, given: Mapping[str, str] | None = None) -> Recognised:
    """Recognise the data at a path or an address.

    `given` are settings of `[data]` (`SETTINGS`): names of columns, the type of the labels, and how files are read.
    Raises `UserError` if the kind is not clear.
    """
    given = given or {}
    kind = kind or implied_kind(given)
    form, encodings = _form_of(given)
    source = addresses.source_of(address)
    if source is None and form != "text" and addresses.is_single_file(address):
        return _by_content(address, kind, given)
    # The kinds that its records can have: no kind for files of text, folders, patterns and built-in texts
    kinds: tuple[records.Kind, ...] = ()
    if source is not None and not address.startswith(builtin.PREFIX) and not Path(address).is_dir():
        kinds = source.kinds
    if kinds == ("tags",) and kind != "text":
        evidence = f"words with tags, by its suffix {suffix_of(address)}"
        return Recognised(LabelData(path=address, outputs="tags"), evidence)
    if "pairs" in kinds and (kind != "text" or "text" in kinds):
        return _Reading(address, kind, given, *read_sample(address, form, encodings)).recognised()
    if kind in ("pairs", "labels", "conversations"):
        tables = ", ".join(addresses.suffixes_of("pairs"))
        raise UserError(
            f"{address} has no columns: pairs are two files (source and target) or a table ({tables}), labels a table "
            "or a .conll file, conversations a table or a jsonl file with messages"
        )
    return Recognised(TextData(path=address))


def _form_of(given: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    return given.get("format", "auto"), tuple(given.get("encoding", "utf-8").split())


PLAIN = " (--kind text reads it as plain text)"


def _by_content(address: str, kind: Kind | None, given: Mapping[str, str]) -> Recognised:
    """Recognise a file of another suffix: records if it cannot be prose, or if a kind other than text is given."""
    form, encodings = _form_of(given)
    path, is_json = files.as_path(address, "path"), suffix_of(address) == ".json"
    # 1. A text, without a look at its rows
    if kind == "text" and form == "auto" and not (is_json or "text_field" in given):
        return Recognised(TextData(path=address))
    if kind in ("text", None) and form == "auto" and not are_clearly_records(path, encodings):
        return Recognised(TextData(path=address))
    if (layout := layout_of(path, form, encodings)) == "":
        raise not_records(path)
    # 2. Records, by their columns; if these are unclear, a table may still be a text
    shape = "JSON records" if layout != "table" else f"a table {dialect_of(path, form, encodings)}"
    try:
        found = _Reading(address, kind, given, *read_sample(address, form, encodings)).recognised()
    except UserError as error:
        if kind == "text" and is_json:
            return Recognised(TextData(path=address, format="text"))
        if kind is not None or form != "auto" or given.keys() & set(FIELDS):
            raise
        if layout != "table":
            raise UserError(f"{error}; --kind text reads it as plain text") from error
        return Recognised(TextData(path=address, format="text"), f"{shape}, read as plain text: {error}")
    # 3. Records with a text alone: only those of JSON are documents
    data = found.data
    if isinstance(data, TextData):
        if layout == "table":
            return Recognised(
                TextData(path=address, format="text"), f"{shape} with one text column, read as plain text"
            )
        data = replace(data, format="auto" if is_json else "json")
    return replace(found, data=data, evidence=f"{found.evidence}, {shape}" + PLAIN * (kind is None))


def recognise_rows(rows: Rows, kind: Kind | None, given: Mapping[str, str]) -> tuple[Recognised, list[str]]:
    """Recognise the kind of records; return it, and each record as a line of JSON with only the fields to read.

    The items of tuples get the default names of their fields.
    """
    recognised = _Reading("the data", kind or implied_kind(given), given, columns_of(_first(rows))).recognised()
    fields = {name: column for name in FIELDS if (column := getattr(recognised.data, name, None)) is not None}
    new_names = {old: setting.removesuffix("_field") for setting, old in fields.items() if old in PARTS}
    default = {setting: new_names[old] for setting, old in fields.items() if old in new_names}
    names = {name for row in rows for name in row}
    outer = {name if name in names else name.partition(".")[0] for name in fields.values()}
    outer |= set(recognised.data.beside or ())
    lines = json_lines(rows, outer, new_names)
    return replace(recognised, data=replace(recognised.data, **default)), lines  # type: ignore[arg-type]


def implied_kind(given: Mapping[str, str]) -> Kind | None:
    """Return the kind that the given settings imply; None if they fit several kinds.

    >>> implied_kind({"label_field": "stars"}), implied_kind({"text_field": "body"})
    ('labels', None)
    """
    if any(name in given for name in PAIR_FIELDS):
        return "pairs"
    if any(name in given for fields in CONVERSATION_FIELDS for name in fields):
        return "conversations"
    return "labels" if any(name in given for name in ("label_field", "second_field", "outputs")) else None


def aligned(source: str, target: str, encodings: Sequence[str] = UTF_8) -> Recognised:
    """Return two text files as the sides of pairs; the suffix of the target, such as `.de`, names its language."""
    for side in map(Path, (source, target)):
        if addresses.source_of(str(side)) or side.suffix.lower() == ".toml" or side.is_dir():
            raise UserError(
                f"two sources are the text files of pairs, and {side} is not such a file: give one source; for several "
                "texts, their folder or a pattern in quotes"
            )
    language = Path(target).suffix.removeprefix(".").lower()
    try:
        pairs = aligned_lines(Path(source), Path(target), encodings)[:N_ROWS]
    except UserError as error:
        raise UserError(f"two files are the sides of pairs: {error}; two texts are --kind text") from error
    rows = {name: [pair[i] for pair in pairs] for i, name in enumerate(PAIR_FIELDS)}
    data = PairData(source=source, target=target)
    if len(language) == 2 and language.isalpha():
        data = replace(data, target_language=language)
    return Recognised(data, "pairs, by two files", rows)


@dataclass(frozen=True)
class _Reading:
    """The first rows of a table, and the settings that are given for it."""

    address: str
    kind: Kind | None
    given: Mapping[str, str]
    columns: Columns
    """The values of its first rows."""
    line_1: Sequence[str] = ()
    """The first line of a table of two columns that may have no header; if set, `columns` contains this line too."""

    def recognised(self) -> Recognised:
        """Return the recognised data: by the names of the columns, else by the values of two columns."""
        if self.kind is None and self.columns.keys() >= {"chosen", "rejected"}:
            raise UserError(
                f"{self.address} has preferences (columns chosen and rejected), which a trained model learns: give a "
                'TOML file with path in [init], path and kind = "preferences" in [data], and kind = "preference" in '
                "[objective]; or give --kind"
            )
        # 1. Names of columns that mean conversations
        talks = next(filter(None, map(self._named, CONVERSATION_FIELDS)), {})
        form = None if talks else next((name for name in OTHER_FORMS if self._has_form(name)), None)
        if (talks or form) and self.kind in ("conversations", None):
            named = f"conversations{(form and f' in the form of {form}') or ''}"
            talks = talks or OTHER_FORMS[form or ""]
            return Recognised(ConversationData(path=self.address, **talks), f"{named}, {by_names(talks)}")
        # 2. Names that mean pairs, labels or a text
        pairs, labels = self._named(PAIR_FIELDS), self._named(LABEL_FIELDS)
        if pairs and labels and self.kind is None:
            raise self._unclear()
        if pairs and self.kind in ("pairs", None):
            return self._pairs(pairs, by_names(pairs))
        if labels and self.kind in ("labels", None):
            return self._labels(labels, by_names(labels))
        if self.kind in ("text", None) and (text := self._named(LABEL_FIELDS[:1])):
            return Recognised(TextData(path=self.address, **text), f"text, {by_names(text)}")
        # 3. The values of two columns
        if self.kind not in ("text", "conversations") and len(self.columns) == 2:
            return self._by_values(*self.columns)
        raise self._unclear()

    def _has_form(self, name: str) -> bool:
        """Return True if the table has the columns of a form in `OTHER_FORMS`, and its messages, if any, are lists."""
        columns, fields = self.columns, OTHER_FORMS[name]
        lists = columns.get(fields.get("messages_field", ""), ())
        is_table = all(column in columns for column in fields.values())
        return is_table and all(isinstance(one, list) for one in lists if one is not None)

    def _named(self, settings: Sequence[str]) -> dict[str, Any]:
        """Return the column of each setting: the given one, else one with the default name; {} if one is missing."""
        columns = {}
        for setting in settings:
            default = setting.removesuffix("_field")
            name = self.given.get(setting) or next((c for c in self.columns if c.casefold() == default), None)
            if name is None:
                return {}
            columns[setting] = name
        return columns

    def _by_values(self, *names: str) -> Recognised:
        values = [_as_texts(self.columns[name]) for name in names]
        label = _label_column(*(self.columns[name] for name in names))
        if label is None and self.kind == "labels":
            label = int(len(set(values[1])) <= len(set(values[0])))
        if label is not None and self.kind != "pairs":
            return self._labels_at(names, label)
        if self.kind != "pairs" and not all(len(set(side)) >= MANY * len(side) for side in values):
            raise self._unclear()
        fields = dict(zip(PAIR_FIELDS, names, strict=True))
        different = "have mostly different values"
        if (line_1 := self.line_1) and _names_columns(line_1, values):
            return self._below_line_1().recognised()
        if line_1:
            return self._pairs(fields, f"because its two columns {different}", has_names=False)
        return self._pairs(fields, f"because the columns {' and '.join(map(shown, names))} {different}")

    def _labels_at(self, names: Sequence[str], label: int) -> Recognised:
        """Recognise labels in column `label`, 0 or 1; line 1 is a header if no other line has the label of line 1."""
        fields, line_1 = dict(zip(LABEL_FIELDS, (names[1 - label], names[label]), strict=True)), self.line_1
        if not line_1:
            return self._labels(fields, f"by the repeated values of the column {shown(names[label])}")
        if self.columns[names[label]].count(line_1[label]) == 1:
            return self._below_line_1().recognised()
        if label == 0:
            return self._labels(fields, "by the repeated values of column 1")
        return self._labels(fields, "by the repeated values of column 2", has_names=False)

    def _below_line_1(self) -> "_Reading":
        """Return the same table with line 1 as the names of its columns."""
        columns = zip(self.line_1, self.columns.values(), strict=True)
        return replace(self, columns={name: values[1:] for name, values in columns}, line_1=())

    def _pairs(self, fields: Mapping[str, Any], evidence: str, *, has_names: bool = True) -> Recognised:
        data = PairData(path=self.address)
        if has_names:
            data = replace(data, **fields)
        return Recognised(data, f"pairs, {evidence}", self._rows(fields))

    def _labels(self, fields: Mapping[str, str], evidence: str, *, has_names: bool = True) -> Recognised:
        rows = self._rows(fields)
        labels = rows["label_field"]
        outputs = self.given.get("outputs") or outputs_of(labels)
        n_classes = f"{len(set(map(str, labels))):,} in the first {len(labels):,} rows"
        kinds = {"tags": "words with tags", "regression": "texts with numbers"}
        kind = kinds.get(outputs, f"texts with classes ({n_classes})")
        settings = {"outputs": outputs}
        if has_names:
            settings |= fields
        if "second_field" in self.given:
            settings["second_field"] = self.given["second_field"]
        data = LabelData(path=self.address, **settings)  # type: ignore[arg-type]
        return Recognised(data, f"{kind}, {evidence}", rows)

    def _rows(self, fields: Mapping[str, str]) -> Columns:
        return {setting: self.columns.get(name, ()) for setting, name in fields.items()}

    def _unclear(self) -> UserError:
        """Return the error that asks for the kind, or for the columns."""
        names = list(self.columns)
        if len(names) == 2 and self.kind is None:
            return UserError(
                f"{self.address} may be pairs or labels: give --kind pairs or --kind labels (Python: kind=)"
            )
        flags = {"pairs": _flags(PAIR_FIELDS), "labels": _flags(LABEL_FIELDS), "text": _flags(LABEL_FIELDS[:1])}
        flags["conversations"] = _flags(CONVERSATION_FIELDS[0])
        asked = [f"{flags[kind]} for {kind}" for kind in KINDS if self.kind in (kind, None)]
        columns = ", ".join(map(shown, names[:12])) or "none"
        return UserError(f"{self.address} has the columns {columns}: name those to read, with {'; or '.join(asked)}")


def by_names(fields: Mapping[str, str]) -> str:
    """Describe the columns that decided.

    >>> by_names({"text_field": "text", "label_field": "label"})
    'by the columns text and label'
    """
    return f"by the column{'s' * (len(fields) > 1)} {' and '.join(map(shown, fields.values()))}"


def _flags(settings: Sequence[str]) -> str:
    return " and ".join(f"--data.{setting.replace('_', '-')} NAME" for setting in settings)


def _as_texts(values: Sequence[Any]) -> list[str]:
    """Return values as texts; the items of a list are joined."""
    lists = [value if isinstance(value, list) else [value] for value in values]
    return [" ".join(map(str, items)) for items in lists]


def outputs_of(labels: Sequence[Any]) -> str:
    """Return the type of labels: tags for lists, regression for fractions or mostly different numbers, else classes.

    >>> outputs_of([["N", "V"]]), outputs_of(["1", "0", "1", "0"]), outputs_of([0.5, 2]), outputs_of(["good"])
    ('tags', 'classes', 'regression', 'classes')
    """
    if any(isinstance(label, list) for label in labels):
        return "tags"
    if any(isinstance(label, bool) for label in labels):
        return "classes"
    try:
        numbers = [float(label) for label in labels]
    except (TypeError, ValueError):
        return "classes"
    are_many = len(set(numbers)) > max(2, len(numbers) / 2)
    return "regression" if are_many or any(not number.is_integer() for number in numbers) else "classes"


def _label_column(first: Sequence[Any], second: Sequence[Any]) -> int | None:
    """Return which of two columns has the labels, 0 or 1; None if this is not clear.

    If only one column has numbers that are not texts, this column has the labels; else the only column of few short
    values. Of two columns of lists, the one with fewer different items has the tags.
    """
    columns = (first, second)
    if not (first and second):
        return None
    if all(isinstance(value, list) for value in (*first, *second)):
        n_items = [len({str(item) for value in column for item in value}) for column in columns]
        return int(n_items[1] <= n_items[0])
    numeric = [all(isinstance(value, Real) for value in values) for values in columns]
    if sum(numeric) == 1:
        return numeric.index(True)
    few = [_has_few_values(_as_texts(values)) for values in columns]
    return few.index(True) if sum(few) == 1 else None


def _has_few_values(values: Sequence[str]) -> bool:
    few = max(len(values) / 10, min(FEW_LABELS, len(values) / 3))
    return len(set(values)) <= few and max(map(len, values), default=0) <= LABEL_CHARACTERS


def _names_columns(line_1: Sequence[str], values: Sequence[Sequence[str]]) -> bool:
    """Return True if line 1 has one word in each column, such as English and Deutsch, and no other row has.

    `values` are the columns, line 1 included.

    >>> _names_columns(["English", "Deutsch"], [["English", "A dog runs."], ["Deutsch", "Ein Hund rennt."]])
    True
    >>> _names_columns(["dog", "Hund"], [["dog", "cat"], ["Hund", "Katze"]])
    False
    """
    rows = list(zip(*(column[1:] for column in values), strict=False))  # missing values are left out of a column
    is_named = len(rows) > 0 and all(map(_WORD.fullmatch, line_1))
    return is_named and not any(all(map(_WORD.fullmatch, row)) for row in rows)


# The first rows


def read_sample(address: str, form: str, encodings: Sequence[str]) -> tuple[Columns, Sequence[str]]:
    """Read the first rows of a table; return its columns, and line 1 if it may be data (`_Reading`)."""
    path = files.as_path(address, "path")
    line_1: Sequence[str] = ()
    if addresses.reads_content(address) and layout_of(path, form, encodings) == "table":
        columns, line_1 = _sample_of_table(path, form, encodings)
    else:
        request = Request("pairs", (), "", format=form, encoding=encodings)
        columns = columns_of(_first(dict(record.fields) for record in addresses.records(address, request)))
    if not columns:
        raise UserError(f"{address} is empty; use a file with rows")
    return columns, line_1


def _sample_of_table(path: Path, form: str, encodings: Sequence[str]) -> tuple[Columns, Sequence[str]]:
    """Return the columns of the first rows, and line 1 of a table of two columns if line 1 may be data; not for csv."""
    table = tables.rows(path, dialect_of(path, form, encodings), encodings)
    rows = (row for _, row in table if any(cell.strip() for cell in row))
    header = next(rows, [])
    numbers = [str(number) for number in range(1, len(header) + 1)]
    is_named = any(not known.isdisjoint(name.strip().casefold() for name in header) for known in KNOWN_COLUMNS)
    if suffix_of(path) == ".csv" or is_named or len(header) < 2:
        return columns_of(_first(dict(zip(header, row, strict=False)) for row in rows)), ()
    body = list(_first(dict(zip(numbers, row, strict=True)) for row in rows if len(row) == len(header)))
    line_1 = dict(zip(numbers, header, strict=True))
    columns = columns_of(iter([line_1, *body]))
    if len(header) == 2:
        return columns, header
    # Further columns: if the values of each begin alike, such as licences, the first two columns are read
    texts = {name: columns[name][1:] for name in numbers[2:]}
    common = os.path.commonprefix  # of texts, character by character
    alike = {name: common([*one] * (len(one) > 1)) for name, one in texts.items()}
    read = numbers[:2] if all(len(beginning) >= MIN_ALIKE for beginning in alike.values()) else numbers
    is_data = read != numbers and all(line_1[name].startswith(beginning) for name, beginning in alike.items())
    if is_data or len(set(header)) < len(header):
        return {name: columns[name] for name in read}, ()
    return {line_1[name]: columns[name][1:] for name in read}, ()


def _first(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the first rows: at most `N_ROWS`, and no more after `HEAD_CHARACTERS`."""
    n_characters = 0
    for row in itertools.islice(rows, N_ROWS):
        yield row
        n_characters += sum(len(str(value)) for value in row.values())
        if n_characters > HEAD_CHARACTERS:
            return


def columns_of(rows: Iterator[Mapping[str, Any]]) -> Columns:
    """Return the values of each field of some records, without missing values (`records.present`).

    >>> columns_of(iter([{"a": 1, "b": 2}, {"a": 3, "b": ""}]))
    {'a': [1, 3], 'b': [2]}
    """
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            column = columns.setdefault(name, [])
            if present(value) is not None:
                column.append(value)
    return columns
