"""Texts that a verb reads: one on the command line, the lines of a file, or those of standard input."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from glassformer import files
from glassformer.cli.arguments import read_stdin
from glassformer.data.records import lines
from glassformer.errors import UserError


@dataclass(frozen=True)
class GivenTexts:
    """One text a line, and where they stood."""

    texts: list[str]
    source: str | None
    """A file, or standard input; none where the text stood on the command line."""

    def where(self, place: int) -> str:
        """How a message about a text begins: `notes.txt:3: `."""
        return "" if self.source is None else f"{self.source}:{place + 1}: "

    @contextmanager
    def at(self, place: int) -> Iterator[None]:
        """Names the place of a text in what is said of it."""
        try:
            yield
        except UserError as error:
            raise UserError(f"{self.where(place)}{error}") from error


def given_texts(text: str | None, input: str | None) -> GivenTexts:
    """The text of the command line, or the lines of a file or of standard input; an empty file gives no texts.

    `UserError` when both are given, and for an empty text or line: each gives a line of output, or a row.
    """
    if text is not None and input is not None:
        raise UserError("give a text or --input FILE, not both")
    if text is not None:
        found = GivenTexts([text], None)
    elif input in (None, "-"):
        found = GivenTexts(lines(read_stdin()), "standard input")
    else:
        found = GivenTexts(lines(files.read_text(Path(str(input)))), str(input))
    if found.texts and not any(line.strip() for line in found.texts):
        raise UserError("there is no text: give one, or --input FILE, or lines on standard input")
    for place, line in enumerate(found.texts):
        if not line.strip():
            raise UserError(f"{found.where(place)}the line is empty: take it out, or put a text there")
    return found
