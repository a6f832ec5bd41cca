"""Examples of public objects: Python code of the documents, which tests run, or else of a test.

The names of a file are resolved through its imports, so that a class that a chapter defines is not taken for the class
of the package with the same name.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import glassformer

DOCS = Path(__file__).parent
TESTS = Path(glassformer.__file__).parents[2] / "tests"
FOLDERS = ("", "how-to", "tutorials", "extend", "course", "from-notebooks")
"""The folders of documents whose Python code is run by tests."""
MOST_LINES = 16
"""Length of a block that is shown whole; of a longer one, only the statements that use the object are shown."""
BLOCK = re.compile(r"^```(?:python|\{code-cell\}[^\n]*)\n(?::[^\n]*\n)*(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(eq=False)
class Block:
    """A block of code, its file, and the names that the file imports from the package, with their values."""

    code: str
    path: Path
    names: Mapping[str, object]
    imports: Mapping[str, str]
    """The statement that imports each of the names."""

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.code)

    @cached_property
    def used(self) -> set[int]:
        """The identities of the values that the code uses."""
        return self.used_in(self.tree)

    def used_in(self, tree: ast.AST) -> set[int]:
        """Return the identities of the values that a part of the code uses."""
        return {id(self.value(node)) for node in ast.walk(tree) if isinstance(node, ast.expr)}

    def value(self, node: ast.expr) -> object:
        """Return the value of a name or of an attribute of a module; None if it is not known."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(owner := self.value(node.value), ModuleType):
            return getattr(owner, node.attr, None)
        return None

    def part(self, value: object) -> str:
        """Return the code; if it is long, its statements that use the value."""
        if self.code.count("\n") <= MOST_LINES:
            return self.code
        return "\n".join(self._statements(value, self.tree))

    def with_imports(self, code: str) -> str:
        """Return a part of the code after the imports of the names of the package that it uses and does not import."""
        tree = ast.parse(code)
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(imported(tree)[0])
        lines = sorted({statement for name, statement in self.imports.items() if name in used})
        if lines and not code.startswith(("import ", "from ")):
            lines.append("")
        return "\n".join([*lines, code])

    def _statements(self, value: object, tree: ast.AST) -> Iterator[str]:
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.stmt) and id(value) in self.used_in(node):
                lines = self.code.splitlines()[node.lineno - 1 : node.end_lineno]
                inner = list(self._statements(value, node)) if len(lines) > MOST_LINES else []
                yield from inner or [dedent("\n".join(lines))]


def example(values: Sequence[object]) -> tuple[str, Path] | None:
    """Return the shortest code that uses a value, and its file: of the documents, or else of the tests.

    Code that uses an earlier value comes before code that uses a later one, and code that expects an error comes last.
    """
    for blocks in (of_documents(), of_tests()):
        for value in values:
            found = [(block.part(value), block) for block in blocks if id(value) in block.used]
            if found:
                code, block = min(found, key=lambda one: ("pytest.raises" in one[0], one[0].count("\n")))
                return block.with_imports(code), block.path
    return None


@cache
def of_documents() -> list[Block]:
    """Return the blocks of Python in the documents."""
    blocks = []
    for path in (path for folder in FOLDERS for path in sorted((DOCS / folder).glob("*.md"))):
        codes = [code.strip("\n") for code in BLOCK.findall(path.read_text("utf-8"))]
        names = imported(ast.parse("\n".join(codes)))
        blocks += [Block(code, path, *names) for code in codes]
    return blocks


@cache
def of_tests() -> list[Block]:
    """Return the bodies of the tests that have no decorator, without their docstrings."""
    blocks = []
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        names = imported(tree)
        for test in tree.body:
            if isinstance(test, ast.FunctionDef) and test.name.startswith("test_") and not test.decorator_list:
                body = test.body[ast.get_docstring(test) is not None :]
                lines = text.splitlines()[body[0].lineno - 1 : body[-1].end_lineno]
                blocks.append(Block("\n".join(line.removeprefix("    ") for line in lines), path, *names))
    return blocks


def imported(tree: ast.Module) -> tuple[Mapping[str, object], Mapping[str, str]]:
    """Return the names that a file takes from the package and does not define itself: their values, their imports."""
    values: dict[str, object] = {}
    imports: dict[str, str] = {}
    nodes = list(ast.walk(tree))
    own = {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in nodes:
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if any(module.partition(".")[0] == "glassformer" for module in modules):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                if name not in own:
                    imports[name] = f"import {ast.unparse(alias)}"
                    if isinstance(node, ast.ImportFrom):
                        imports[name] = f"from {node.module} {imports[name]}"
                    exec(imports[name], values)
    return values, imports
