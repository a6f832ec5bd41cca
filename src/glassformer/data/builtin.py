"""Texts that every machine with Python has already, and one that is made up: nothing is downloaded.

`builtin:python-docs`    Python's own reference manual, as `help()` shows it: prose and code, 0.35 MB.
`builtin:python-stdlib`  the source of the standard library, a document a file: 9 MB.
`builtin:copy-task`      records such as "gadbcehf|gadbcehf", for a model that must learn to copy.

The first two follow the Python that runs, so their size changes a little from version to version.
"""

import math
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from glassformer import files
from glassformer.errors import UserError, did_you_mean

PREFIX = "builtin:"
PARTS = ("train", "valid", "test")
"""Of labelled texts and of pairs: `builtin:NAME#test` is one of them."""

COPY_LETTERS = "abcdefgh"
COPY_LENGTH = 8
COPY_RECORDS = 20_000
# What no model can predict of a record, in nats: its letters are drawn, the bar and the copy follow from them.
# In a stream that is 0.92 nats for each of the 18 tokens (17 characters, end token); where each record is an
# example, its first letter is no target, so 7/8 of it over 17 targets: 0.86.
COPY_ENTROPY_NATS = COPY_LENGTH * math.log(len(COPY_LETTERS))

# Not written for readers, or not source: tests, tables, an editor, and the text of `python-docs`.
_STDLIB_LEFT_OUT = {
    "__pycache__", "dist-packages", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data",
    "site-packages", "test", "tests", "turtledemo",
}  # fmt: skip


def require_known(path: str) -> None:
    """`UserError` for an address that is not `builtin:` and a name from this module."""
    if path not in _TEXTS:
        raise UserError(f"no built-in text is called {path}: {did_you_mean(path, _TEXTS)}")


def documents(path: str) -> Iterator[str]:
    """The documents of a built-in text, always the same ones in the same order.

    >>> next(documents("builtin:copy-task"))
    'ggdcedgc|ggdcedgc'
    """
    require_known(path)
    return _TEXTS[path]()


def _python_docs() -> Iterator[str]:
    """All topics as one document, in alphabetical order, without the lines that came before.

    Topics quote whole sections of one another: of the validation text's runs of eight words, 9 % also stood
    in the training text, and 0.04 % do so without the repeats. A line repeats another whatever its
    indentation; blank ones stay, but the gap that a dropped passage leaves becomes one blank line.

    One document, so that the split is one cut near the end: topics that share their matter (`typesmapping`,
    `typesmethods`, `typesseq`) stand side by side in the alphabet, and so on the same side.
    """
    from pydoc_data.topics import topics  # here, because it is large and other texts do not need it

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


def stdlib_files() -> list[Path]:
    """The source files of the standard library in the order of their paths, without those of `_STDLIB_LEFT_OUT`."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).parts)
    if not paths:
        raise UserError(f"this Python keeps no source of its standard library in {folder}; use other text")
    # _sysconfigdata_* says how this very Python was compiled
    return [
        path
        for path in paths
        if _STDLIB_LEFT_OUT.isdisjoint(path.relative_to(folder).parts)
        and not path.relative_to(folder).name.startswith("_sysconfigdata")
    ]


def _python_stdlib() -> Iterator[str]:
    """The files, without empty ones."""
    for path in stdlib_files():
        text = files.read_text(path).replace("\r\n", "\n")
        if text.strip():
            yield text


def _copy_task() -> Iterator[str]:
    """Distinct records, so that none can stand on both sides of a split."""
    rng = random.Random(0)
    seen: set[str] = set()
    while len(seen) < COPY_RECORDS:
        word = "".join(rng.choices(COPY_LETTERS, k=COPY_LENGTH))
        if word not in seen:
            seen.add(word)
            yield f"{word}|{word}"


_TEXTS = {
    f"{PREFIX}python-docs": _python_docs,
    f"{PREFIX}python-stdlib": _python_stdlib,
    f"{PREFIX}copy-task": _copy_task,
}
