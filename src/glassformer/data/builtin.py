"""Built-in texts, and the table of all built-in data. No data is downloaded. `builtin_records` makes the other kinds.

`builtin:python-docs`    Python's reference manual, as `help()` shows it: prose and code, 0.35 MB.
`builtin:python-stdlib`  the source of the standard library, one document per file: 9 MB.
`builtin:copy-task`      generated records such as "gadbcehf|gadbcehf", to test whether a model learns to copy.

The first two depend on the version of Python, so their size differs a little between versions. Data of the other kinds
has parts: `builtin:NAME#train`, `#valid` and `#test`.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from glassformer.common import files
from glassformer.common.errors import UserError, nearest_name, suggestion
from glassformer.data import builtin_records
from glassformer.data.records import Kind, Record, Request

PREFIX = "builtin:"
PARTS = ("train", "valid", "test")

COPY_LETTERS = "abcdefgh"
COPY_LENGTH = 8
COPY_RECORDS = 20_000

Row = tuple[Any, ...]
"""Values of one record: a text, source and target, text and label, words and tags, or the fields of a conversation."""


@dataclass(frozen=True)
class Builtin:
    """Built-in records of one kind; texts have no parts."""

    kind: Kind
    rows: Callable[[], Iterable[tuple[Row, str]]]
    """Every row, with the name of its part."""
    names: tuple[str, ...] = ()
    """Names of the values of a row. If empty, they are the names of the request (`Request.names`), in their order."""


def read(address: str, request: Request) -> Iterator[Record]:
    """Yield the records of `builtin:NAME` or of one of its parts, with their own names of fields or the request's."""
    names = find(address, request.kind).names or request.names
    for number, row in enumerate(rows(address, request.kind), 1):
        yield Record(f"record {number} of {address}", dict(zip(names, row, strict=True)), request.settings)


def rows(address: str, kind: Kind) -> Iterator[Row]:
    """Iterate over the rows of `builtin:NAME`, or of a part of it, always the same and in the same order.

    >>> next(rows("builtin:reverse#train", "pairs"))
    ('ccbmpiljcbbn', 'nbbcjlipmbcc')
    """
    part = address.partition("#")[2]
    return (row for row, part_of_row in find(address, kind).rows() if part in ("", part_of_row))


def documents(address: str) -> Iterator[str]:
    """Iterate over the documents of a built-in text.

    >>> next(documents("builtin:copy-task"))
    'ggdcedgc|ggdcedgc'
    """
    return (text for (text,) in rows(address, "text"))


def has_parts(address: str) -> bool:
    """Return True for the address of built-in records with all of their parts, such as `builtin:NAME`."""
    return address.startswith(PREFIX) and "#" not in address


def test_part(address: str | None) -> str | None:
    """Return the address of the test part of built-in records; None for other data, and for the address of a part."""
    return f"{address}#test" if address is not None and has_parts(address) else None


def find(address: str, kind: Kind) -> Builtin:
    """Return the built-in records of an address; raise `UserError` for an unknown one, or one of another kind."""
    name, mark, part = address.removeprefix(PREFIX).partition("#")
    records = BUILTIN.get(name)
    if records is not None and {kind, records.kind} == {"labels", "tags"}:
        outputs = "tags" if records.kind == "tags" else "classes"
        raise UserError(f"{PREFIX}{name} has {outputs}: set data.outputs to {outputs}")
    if records is None or records.kind != kind:
        names = [other for other, others in BUILTIN.items() if others.kind == kind]
        near = nearest_name(name, names)
        hint = suggestion(near and PREFIX + near, f": use one of {', '.join(PREFIX + other for other in names)}")
        raise UserError(f"no built-in {_CONTENTS[kind]} are called {PREFIX}{name}{hint}")
    if mark and (part not in PARTS or kind == "text"):
        addresses = [f"{PREFIX}{name}#{part}" for part in PARTS if kind != "text"] or [f"{PREFIX}{name}"]
        raise UserError(f"{address} is not a part; use one of {', '.join(addresses)}")
    return records


def _python_docs() -> Iterator[str]:
    """Yield all topics as one document, in alphabetical order, without repeated lines.

    Topics quote whole sections of one another: 9 % of the 8-grams of words of the validation text are also in
    the training text, and 0.04 % after repeated lines are removed. The comparison of lines ignores indentation.
    Blank lines are kept, but a removed passage leaves only one blank line.

    With one document the split is a single cut near the end. Topics on the same subject (`typesmapping`,
    `typesmethods`, `typesseq`) are neighbours in the alphabet, so they are on the same side of the split.
    """
    from pydoc_data.topics import topics  # imported here: it is large, and other texts do not need it

    seen: set[str] = set()
    lines: list[str] = []
    for topic in sorted(topics):
        for line in ["", *topics[topic].splitlines()]:
            content = line.strip()
            if content and content not in seen:
                seen.add(content)
                lines.append(line)
            elif not content and lines and lines[-1]:
                lines.append("")
    yield "\n".join(lines).strip("\n") + "\n"


def _python_stdlib() -> Iterator[str]:
    for path in builtin_records.stdlib_files():
        text = files.read_text(path).replace("\r\n", "\n")
        if text.strip():
            yield text


def _copy_task() -> Iterator[str]:
    """Return distinct records, so that no record is in both the training and the validation text."""
    rng = random.Random(0)
    words = builtin_records.distinct(lambda: "".join(rng.choices(COPY_LETTERS, k=COPY_LENGTH)), COPY_RECORDS)
    return (f"{word}|{word}" for word in words)


def _whole(documents: Callable[[], Iterator[str]]) -> Builtin:
    return Builtin("text", lambda: (((text,), "") for text in documents()))


_CONTENTS: dict[Kind, str] = {
    "text": "texts",
    "pairs": "pairs",
    "labels": "labelled texts",
    "tags": "tagged words",
    "conversations": "conversations",
}
BUILTIN = {
    "python-docs": _whole(_python_docs),
    "python-stdlib": _whole(_python_stdlib),
    "copy-task": _whole(_copy_task),
    **{name: Builtin("pairs", rows) for name, rows in builtin_records.PAIRS.items()},
    "docstrings": Builtin("labels", builtin_records.docstrings),
    "python-tokens": Builtin("tags", builtin_records.python_tokens),
    "characters": Builtin("conversations", builtin_records.characters, ("prompt", "completion")),
    "docstring-questions": Builtin("conversations", builtin_records.docstring_questions, ("prompt", "completion")),
    "sums": Builtin("conversations", builtin_records.sums, builtin_records.SUMS),
}
