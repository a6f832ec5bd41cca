"""Built-in texts: two from the installed Python and one that is generated, without any download.

`builtin:python-docs`    Python's reference manual, as `help()` shows it: prose and code, 0.35 MB.
`builtin:python-stdlib`  the source of the standard library, one document per file: 9 MB.
`builtin:copy-task`      generated records such as "gadbcehf|gadbcehf", to test whether a model learns to copy.

The first two depend on the version of Python, so their size differs a little between versions.
"""

import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from glassformer import files
from glassformer.errors import UserError, did_you_mean

PREFIX = "builtin:"
PARTS = ("train", "valid", "test")
"""Parts of built-in labelled texts and pairs, selected as in `builtin:NAME#test`."""

COPY_LETTERS = "abcdefgh"
COPY_LENGTH = 8
COPY_RECORDS = 20_000

# Excluded folders: tests, encoding tables, installed packages, the IDLE editor, and the text of `python-docs`.
_STDLIB_LEFT_OUT = {
    "__pycache__", "dist-packages", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data",
    "site-packages", "test", "tests", "turtledemo",
}  # fmt: skip


def require_known(path: str) -> None:
    """Raise `UserError` unless `path` is the address of a built-in text."""
    if path not in _TEXTS:
        raise UserError(f"no built-in text is called {path}: {did_you_mean(path, _TEXTS)}")


def documents(path: str) -> Iterator[str]:
    """Iterate over the documents of a built-in text, always the same and in the same order.

    >>> next(documents("builtin:copy-task"))
    'ggdcedgc|ggdcedgc'
    """
    require_known(path)
    return _TEXTS[path]()


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


def stdlib_files() -> list[Path]:
    """Return the source files of the standard library, sorted by path, without the folders `_STDLIB_LEFT_OUT`."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).parts)
    if not paths:
        raise UserError(f"{folder} has no source files of the standard library; use another text")
    # _sysconfigdata_* depends on how this Python was compiled
    paths = [path for path in paths if not path.name.startswith("_sysconfigdata")]
    return [path for path in paths if _STDLIB_LEFT_OUT.isdisjoint(path.relative_to(folder).parts)]


def _python_stdlib() -> Iterator[str]:
    """Yield the text of each file that is not empty."""
    for path in stdlib_files():
        text = files.read_text(path).replace("\r\n", "\n")
        if text.strip():
            yield text


def _copy_task() -> Iterator[str]:
    """Yield distinct records, so that no record is in both the training and the validation text."""
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
