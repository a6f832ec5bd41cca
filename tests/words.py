"""Check the sentences of the project against the word list in `words.toml`: `python tests/words.py [FOLDER]`.

Sentences are docstrings, comments and text literals of the source, docstrings, comments and names of the tests, the
prose of the documents, and the tables of known mistakes. Code in back quotes is left out, and so are worked examples.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile")
CODE = re.compile(r"```.*?^```|`[^`\n]+`|^\s*(?:>>>|\.\.\.).*(?:\n(?!\s*\n).*)*", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Sign:
    """A refused pattern, what to write instead, and the allowed phrases that contain it."""

    pattern: str
    instead: str
    allowed: list[str] = field(default_factory=list)
    only: str = ""

    def found(self, text: str) -> list[str]:
        """Return the matches of the pattern in a text, outside of allowed phrases and of code.

        >>> Sign("behind", "after", ["the years behind"]).found("the head behind `behind` is not the years behind")
        ['behind']
        """
        prose = CODE.sub(" ", text)
        for phrase in self.allowed:
            prose = prose.replace(phrase, " ")
        return [match[0] for match in re.finditer(self.pattern, prose, re.MULTILINE if not self.only else 0)]


@dataclass(frozen=True)
class Sentence:
    """A text of the project and its place."""

    where: str
    text: str
    is_docstring: bool = False


def of_python(path: Path, name: str, *, is_test: bool) -> Iterator[Sentence]:
    """Yield the docstrings, comments and text literals of a file; for a test the function names instead of literals."""
    source = path.read_text("utf-8")
    tree, docstrings = ast.parse(source), set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for first in body if isinstance(body, list) else []:
            is_expression = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            if is_expression and isinstance(first.value.value, str):
                docstrings.add(first.value)
                yield Sentence(f"{name}:{first.lineno}", first.value.value, is_docstring=True)
        if is_test and isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield Sentence(f"{name}:{node.lineno}", node.name.replace("_", " "))
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
        if is_text and not is_test and node not in docstrings:
            yield Sentence(f"{name}:{node.lineno}", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Sentence(f"{name}:{token.start[0]}", token.string.lstrip("# "))


def sentences(root: Path) -> Iterator[Sentence]:
    """Yield every sentence below a folder of the project."""
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not {".venv", "_build", "build"} & set(path.parts):
            yield from of_python(path, name, is_test=name.startswith("tests/"))
    texts = (path for kind in ("*.md", "*.toml", "*.mistakes") for path in root.rglob(kind))
    for path in sorted([*texts, *(root / name for name in DOCUMENTS)]):
        is_ours = path.name not in ("CHANGELOG.md", "words.toml") and path.exists()
        if is_ours and not {".venv", "_build", "generated"} & set(path.parts):
            prose = CODE.sub(lambda code: "\n" * code[0].count("\n"), path.read_text("utf-8"))
            for number, line in enumerate(prose.splitlines(), 1):
                yield Sentence(f"{path.relative_to(ROOT).as_posix()}:{number}", line)


def problems(root: Path, signs: list[Sign]) -> Iterator[str]:
    """Yield one line for each refused phrase."""
    for sentence in sentences(root):
        for sign in signs:
            if sign.only and not sentence.is_docstring:
                continue
            for phrase in sign.found(sentence.text):
                yield f"{sentence.where}: {phrase!r}: write {sign.instead}"


def main() -> int:
    """Print every problem; exit with 1 if there are any."""
    signs = [Sign(**sign) for sign in tomllib.loads((ROOT / "tests/words.toml").read_text("utf-8"))["sign"]]
    found = [line for place in sys.argv[1:] or ["."] for line in problems((ROOT / place).resolve(), signs)]
    print("\n".join(found), end="\n" * bool(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
