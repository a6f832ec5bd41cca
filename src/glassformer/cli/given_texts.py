"""Texts that a verb reads: one on the command line, the lines of a file, or those of standard input."""

from collections.abc import Sequence
from pathlib import Path

from glassformer import files
from glassformer.cli.arguments import read_stdin
from glassformer.data.records import lines
from glassformer.errors import UserError


def given_texts(text: str | None, input: str | None) -> list[str]:
    """One text a line, without empty lines; `UserError` when there is none, or when both are given."""
    if text is not None and input is not None:
        raise UserError("give a text or --input FILE, not both")
    if text is not None:
        found: Sequence[str] = [text]
    else:
        found = lines(read_stdin() if input in (None, "-") else files.read_text(Path(str(input))))
    texts = [line for line in found if line.strip()]
    if not texts:
        raise UserError("there is no text: give one, or --input FILE, or lines on standard input")
    return texts
