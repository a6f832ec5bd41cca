"""Records: named values with their place, from which texts, pairs and labelled texts are made.

Every source (`addresses.SOURCES`) yields records. An error message about a value names the place of its record.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Number
from typing import Any, Literal, TypeAlias

from glassformer.common.errors import UserError, nearest_name, shown, suggestion

ALPACA_PROMPT = "instruction"
"""Name of the prompt's field in Alpaca's form. The field `input` of the same record is a part of the prompt."""
Kind = Literal["text", "pairs", "labels", "tags", "conversations"]
"""Kinds of data made from records. A record of the kind `tags` has a list of words and a list of their labels."""


def present(value: Any) -> Any:
    """Return a value; None if it is missing: None, NaN, NA and NaT of pandas, and a text of only white space.

    This is the one rule for all kinds of data, in files and in memory. An absent field is missing too
    (`Record.value`). Records in which a needed value is missing are skipped and counted.

    >>> [present(value) for value in (float("nan"), " \\t", "a ", 0, [])]
    [None, None, 'a ', 0, []]
    """
    if isinstance(value, str):
        return value if value.strip() else None
    if type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, Number) and value != value):
        return None
    return value


@dataclass
class Dropped:
    """Counts of skipped records, the place of the first one, and tables read without a header, for notes."""

    noun: str = "record"
    """Name of a record in notes."""
    reason: tuple[str, str] = ("record is empty", "records are empty")
    """Why a record is skipped: the words for one record, and for several."""
    n_empty: int = 0
    first_empty: str = ""
    n_repeated: int = 0
    """Training records that are also in the validation data."""
    headerless: list[str] = field(default_factory=list)
    """One sentence for each table that is read without a header."""
    notes: list[str] = field(default_factory=list)
    """Other sentences, such as how a table is written."""

    def note(self, sentence: str) -> None:
        """Add a sentence, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def empty(self, where: str) -> None:
        self.first_empty = self.first_empty or where
        self.n_empty += 1

    def sentences(self) -> list[str]:
        """Return one sentence per reason."""
        sentences, are = [], ("is", "are")
        if n := self.n_empty:
            sentences.append(f"{n:,} {self.reason[n > 1]} and {are[n > 1]} skipped (the first: {self.first_empty})")
        if n := self.n_repeated:
            nouns, be = self.noun + "s" * (n > 1), are[n > 1]
            sentences.append(f"{n:,} training {nouns} {be} also in the validation data and {be} skipped")
        return [*sentences, *self.headerless, *self.notes]


@dataclass(frozen=True)
class Request:
    """A description of the records to read from a source."""

    kind: Kind
    names: tuple[str, ...]
    """The fields to read; a source without names of its own uses them in this order."""
    settings: str
    """The settings that name these fields, as a text for messages."""
    split: str = "train"
    """The split that is read of a dataset, unless the address names a split."""
    dropped: Dropped = field(default_factory=Dropped)
    may_lack_header: bool = False
    """True if a table of two columns, other than csv, may lack a header."""
    format: str = "auto"
    """The format of the file (`data.format`)."""
    encoding: Sequence[str] = ("utf-8",)
    """Encodings of the file (`data.encoding`)."""


@dataclass(frozen=True)
class Record:
    """The fields of one record and its place `where`; `features` describes them in a Hugging Face dataset."""

    where: str
    fields: Mapping[str, Any]
    settings: str
    features: Any = None

    def value(self, name: str) -> Any:
        """Return the value of a field, or None if it is missing (`present`).

        `translation.de` is the field `de` of the field `translation`.

        >>> Record("", {"translation": {"de": "Hund"}}, "").value("translation.de")
        'Hund'
        """
        if name in self.fields:
            return present(self.fields[name])
        value: Any = self.fields
        for key in name.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return present(value)

    def absent(self, names: Iterable[str], settings: str | None = None) -> UserError | None:
        """Return the error for the first field in `names` that the record lacks; None if it has all of them.

        `settings` are the settings that name these fields, for the message; by default those of the record.
        """
        for name in names:
            value: Any = self.fields
            for key in (name,) if name in self.fields else name.split("."):
                if not isinstance(value, Mapping) or key not in value:
                    if value is None:
                        break  # the outer field is missing, so the inner one is
                    fields = list(value) if isinstance(value, Mapping) else []
                    near, has = nearest_name(key, fields), ", ".join(shown(repr(one)) for one in fields[:8])
                    hint = suggestion(near and shown(repr(near)), f"; it has {has or 'no fields'}")
                    return UserError(f"{self.where} has no field {name!r}{hint} (set {settings or self.settings})")
                value = value[key]
        return None

    def text(self, name: str) -> str:
        """Return the text of a field, '' if it is missing; raise `UserError` if its value is not a valid text."""
        value = self.value(name)
        return "" if value is None else self.as_text(value, f"the field {name!r}")

    def as_text(self, value: Any, name: str) -> str:
        """Return the value; raise `UserError` if it is not a text that can be encoded as UTF-8."""
        if not isinstance(value, str):
            raise UserError(f"{self.where}: {name} must be a text, got {value!r:.40}")
        try:
            value.encode()
        except UnicodeEncodeError as error:  # JSON escapes can contain lone surrogates
            half = value[error.start]
            raise UserError(f"{self.where}: {name} has a lone surrogate, {half!a}; remove it") from error
        return value


def with_fields(
    records: Iterable[Record], names: Sequence[str], instead: tuple[str, str] | None = None
) -> Iterator[Record]:
    """Yield the records; at their end, raise `UserError` if no record has all fields.

    If only some records lack a field, its value is missing in them. If all records lack it, its name is wrong.
    `instead` has a field that replaces all others, and the setting that names it. The error is about this field, unless
    the first record has one of the others.
    """
    first: UserError | None = None
    is_found = False
    for record in records:
        if not is_found:
            own, other = record.absent(names), record.absent(instead[:1], instead[1]) if instead else None
            is_found = own is None or (instead is not None and other is None)
            has_one = any(record.absent([name]) is None for name in names)
            first = first or (own if instead is None or has_one else other)
        yield record
    if first is not None and not is_found:
        raise first


Read: TypeAlias = Callable[[str, Request], Iterator[Record]]
"""Function that reads a source: it gets an address and a request, and yields records."""
