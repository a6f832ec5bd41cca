"""Records: named values with their place, from which texts, pairs and labelled texts are made.

Every source (`addresses.SOURCES`) yields them, so every error message can name the place of a value.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from glassformer.errors import UserError, nearest_name, suggestion

Kind = Literal["text", "pairs", "labels", "tags", "conversations"]
"""Kinds of data that records are made into; tags are lists of words with a list of labels."""


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
    """One sentence per table of two columns without a header."""

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
        return [*sentences, *self.headerless]


@dataclass(frozen=True)
class Request:
    """A description of the records to read from a source."""

    kind: Kind
    names: tuple[str, ...]
    """The fields to read; a source without names of its own uses them in this order."""
    settings: str
    """The settings with these names, for messages."""
    split: str = "train"
    """The split of a dataset whose address names no split."""
    dropped: Dropped = field(default_factory=Dropped)
    may_lack_header: bool = False
    """True if the fields have their default names: a tsv of two columns then needs no header."""
    beside: tuple[str, ...] = ()
    """Fields that are read where a table has them."""


@dataclass(frozen=True)
class Record:
    """The fields of one record and its place `where`; `features` describes them in a Hugging Face dataset."""

    where: str
    fields: Mapping[str, Any]
    settings: str
    features: Any = None

    def value(self, name: str) -> Any:
        """Return the value of a field; `translation.de` is the field `de` of the field `translation`.

        >>> Record("", {"translation": {"de": "Hund"}}, "").value("translation.de")
        'Hund'
        """
        if name in self.fields:
            return self.fields[name]
        value: Any = self.fields
        for key in name.split("."):
            if not isinstance(value, Mapping) or key not in value:
                names = list(value) if isinstance(value, Mapping) else []
                near, has = nearest_name(key, names), ", ".join(map(repr, names[:8])) or "no fields"
                hint = suggestion(near and repr(near), f"; it has {has}")
                raise UserError(f"{self.where} has no field {name!r}{hint} (set {self.settings})")
            value = value[key]
        return value

    def text(self, name: str) -> str:
        """Return the text of a field; raise `UserError` if its value is not a valid text."""
        return self.as_text(self.value(name), f"the field {name!r}")

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


Read: TypeAlias = Callable[[str, Request], Iterator[Record]]
"""Reader of a source: from an address and a request to records."""
