"""Built-in labelled texts: two tasks made from the standard library of the installed Python.

`builtin:docstrings`     classify which package of `PACKAGES` a docstring comes from. A text is the docstring on one
                         line, cut at 400 characters. The names of the packages are masked in it, so that the label
                         is not in the text. About 2,800 texts in 16 classes; the most frequent class has 12 %.
`builtin:python-tokens`  tag every token of a statement with its class from the module `tokenize`: KEYWORD, NAME,
                         NUMBER, STRING, OP, COMMENT. About 16,000 statements of 3 to 40 tokens; 47 % of tokens are OP.

`builtin:NAME#train`, `#valid` and `#test` are the parts. The SHA-1 of the text, or of the path of a statement's file,
selects the part: a tenth is for testing (last byte modulo 10 is 0), a tenth for validation (it is 1). All statements of
a file are therefore in one part, and a statement of several files is kept only for the first. The numbers are for
Python 3.11; they depend on the version of Python.
"""

import ast
import functools
import hashlib
import io
import keyword
import re
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from glassformer.common import files
from glassformer.common.errors import UserError

PACKAGES = (
    "asyncio", "email", "http", "importlib", "inspect", "ipaddress", "logging", "mailbox", "multiprocessing", "pydoc",
    "tarfile", "turtle", "typing", "unittest", "urllib", "xml",
)  # fmt: skip
"""Packages and modules with many docstrings that every distribution of Python has (unlike tkinter and idlelib)."""

MASK = "___"
DOCSTRING_CHARACTERS = (20, 400)
STATEMENT_TOKENS = (3, 40)
TOKEN_CHARACTERS = 40  # statements with a longer token, or a token of several lines, are skipped
STATEMENTS_OF_A_FILE = 200  # maximum, so that no file dominates

Words = tuple[str, ...]

# Excluded folders: tests, encoding tables, installed packages, the IDLE editor, and the text of `python-docs`.
_STDLIB_LEFT_OUT = {
    "__pycache__", "dist-packages", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data",
    "site-packages", "test", "tests", "turtledemo",
}  # fmt: skip
_NAMES = re.compile("|".join(PACKAGES), re.IGNORECASE)


def stdlib_files() -> list[Path]:
    """Return the source files of the standard library, sorted by path, without the folders `_STDLIB_LEFT_OUT`."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).parts)
    if not paths:
        raise UserError(f"{folder} has no source files of the standard library; use another text")
    # _sysconfigdata_* depends on how this Python was compiled
    paths = [path for path in paths if not path.name.startswith("_sysconfigdata")]
    return [path for path in paths if _STDLIB_LEFT_OUT.isdisjoint(path.relative_to(folder).parts)]


def part_of(key: str) -> str:
    """Return the part that a key belongs to.

    >>> part_of("inspect.py"), part_of("turtle.py"), part_of("tarfile.py")
    ('train', 'valid', 'test')
    """
    return {0: "test", 1: "valid"}.get(hashlib.sha1(key.encode()).digest()[-1] % 10, "train")


def masked(docstring: str) -> str:
    """Join a docstring to one line, mask the names of `PACKAGES` in it, and cut it between two words.

    >>> masked("Parse an Email message.\\n\\nSee email.message.")
    'Parse an ___ message. See ___.message.'
    """
    text, most = " ".join(_NAMES.sub(MASK, docstring).split()), DOCSTRING_CHARACTERS[1]
    return text if len(text) <= most else text[: most + 1].rpartition(" ")[0] or text[:most]


def tokens(source: str) -> Iterator[tuple[Words, Words]]:
    """Yield tokens and token classes of every statement of Python source; comments before a statement are skipped.

    >>> list(tokens("# one\\nif x > 0: # so"))
    [(('if', 'x', '>', '0', ':', '# so'), ('KEYWORD', 'NAME', 'OP', 'NUMBER', 'OP', 'COMMENT'))]
    """
    statement: list[tuple[str, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        ends = token.type == tokenize.NEWLINE
        if ends and statement:
            words, tags = zip(*statement, strict=True)
            yield words, tags
        if ends or (token.type == tokenize.NL and all(tag == "COMMENT" for _, tag in statement)):
            statement = []
        elif token.string.strip():
            statement.append((token.string, _tag(token)))


def _tag(token: tokenize.TokenInfo) -> str:
    name = tokenize.tok_name[token.type]
    if name == "NAME" and keyword.iskeyword(token.string):
        return "KEYWORD"
    return "STRING" if "STRING" in name else name  # Python 3.12 and later split an f-string into parts: FSTRING_START …


@functools.cache  # all parts use the same records
def docstrings() -> Sequence[tuple[tuple[str, str], str]]:
    """Return text and class of every docstring, with its part."""
    packages: dict[str, set[str]] = {}  # text → its packages
    for package, _, source in _sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = masked(ast.get_docstring(node) or "")
                if len(text) >= DOCSTRING_CHARACTERS[0]:
                    packages.setdefault(text, set()).add(package)
    # drop texts of several packages: their class is ambiguous
    alone = {text: min(owners) for text, owners in packages.items() if len(owners) == 1}
    return [((text, package), part_of(text)) for text, package in alone.items()]


@functools.cache
def python_tokens() -> Sequence[tuple[tuple[Words, Words], str]]:
    """Return words and tags of every statement, with its part."""
    least, most = STATEMENT_TOKENS
    statements: dict[Words, tuple[Words, str]] = {}
    for _, path, source in _sources():
        n_kept = 0
        for words, tags in tokens(source):
            fits = least <= len(words) <= most and all(len(w) <= TOKEN_CHARACTERS and "\n" not in w for w in words)
            if fits and words not in statements:
                statements[words] = tags, part_of(path)
                n_kept += 1
            if n_kept == STATEMENTS_OF_A_FILE:
                break
    return [((words, tags), part) for words, (tags, part) in statements.items()]


def _sources() -> Iterator[tuple[str, str, str]]:
    """Yield package, path and text of every file of `PACKAGES`, sorted, without tests."""
    folder = Path(sysconfig.get_path("stdlib"))
    for path in stdlib_files():
        inside = path.relative_to(folder)
        if (package := inside.parts[0].removesuffix(".py")) in PACKAGES:
            yield package, inside.as_posix(), files.read_text(path)
