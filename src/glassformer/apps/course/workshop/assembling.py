"""Assemble the functions of the reader and the classes of `lineages.py` in one file, which needs torch alone."""

import ast
import builtins
import inspect
import symtable
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from glassformer.apps.course.workshop import lineages
from glassformer.apps.course.workshop.exercise import UNWRITTEN, unreadable
from glassformer.apps.course.workshop.solutions import LINEAGES_FILE, names, solution_path
from glassformer.common.errors import UserError
from glassformer.common.files import write_text

Import = ast.Import | ast.ImportFrom


class Assembled(NamedTuple):
    """The file with the models, and what the reader should know about it."""

    path: Path
    borrowed: list[str]
    """Names of functions that come from the solutions."""
    left_out: list[str]
    """Statements of the reader's files that define nothing, such as a call, and are left out, with their places."""


def assemble(folder: Path, with_solutions: bool = False) -> Assembled:
    """Write `lineages.py` to the reader's folder.

    Raises `UserError` if the file exists, and without `with_solutions` if a function is not written yet.
    """
    path = folder / f"{LINEAGES_FILE}.py"
    if path.exists():
        raise UserError(f"{path} exists and is not replaced: delete it or give it another name, and assemble again")
    text = inspect.getsource(lineages)
    tree = ast.parse(text)
    imports = [node for node in tree.body if isinstance(node, Import)]
    assembly = Assembly(folder)
    for name, statements in definitions(text).items():
        if not isinstance(statements[-1].node, Import):
            assembly.claim(name, path.name)
    for node in imports:
        assembly.take_imported(node, path.name)
    missing = {name: file for name, file in names().items() if name in assembly.borrowed}
    if missing and not with_solutions:
        places = ", ".join(f"{name} ({file}.py)" for name, file in missing.items())
        raise UserError(f"not written yet: {places}; write them, or take the solutions with --with-solutions")
    head = f'"""{ast.get_docstring(tree)}\n"""\n\n{assembly.import_lines()}'
    classes = "\n".join(text.split("\n")[imports[-1].end_lineno :]).lstrip("\n")
    write_text(path, "\n\n\n".join([head, *assembly.taken.values(), classes]))
    return Assembled(path, list(missing), assembly.left_out())


@dataclass(frozen=True)
class Definition:
    """A statement at the top of a file."""

    node: ast.stmt
    text: str
    is_borrowed: bool = False
    """True if the statement is part of the solutions."""

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, Import)

    @property
    def is_stub(self) -> bool:
        """True for a function that is not written yet: its body is the error of a stub, after an optional docstring."""
        if not isinstance(self.node, ast.FunctionDef):
            return False
        body = self.node.body[ast.get_docstring(self.node) is not None :]
        return len(body) == 1 and isinstance(body[0], ast.Raise) and UNWRITTEN in ast.unparse(body[0])


def definitions(text: str, is_borrowed: bool = False) -> dict[str, list[Definition]]:
    """Return the statements of a file by the names that they define or change, or "" if they define nothing.

    Docstrings and the block `if __name__ == "__main__"` are left out.
    """
    found: dict[str, list[Definition]] = {}
    lines = text.split("\n")  # as `ast` counts them: splitlines() also splits at a form feed
    for node in ast.parse(text).body:
        if isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'":
            continue
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
        definition = Definition(node, "\n".join(lines[first - 1 : node.end_lineno]), is_borrowed)
        symbols = symtable.symtable(ast.unparse(node), "", "exec").get_symbols()
        defined = {symbol.get_name() for symbol in symbols if symbol.is_assigned() or symbol.is_imported()}
        changed = {name for name in names_changed(node) if name in found and not found[name][-1].is_import}
        for name in defined | changed or {""}:
            found.setdefault(name, []).append(definition)
    return found


def names_changed(node: ast.AST) -> Iterator[str]:
    """Yield the names of objects that a statement may change: it sets an item or attribute, or calls a method.

    >>> sorted(names_changed(ast.parse("for k in 'ab': sizes[k] = 1; order.append(k); print(k)")))
    ['order', 'sizes']
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        return
    target: ast.AST | None = None
    if isinstance(node, ast.Subscript | ast.Attribute) and not isinstance(node.ctx, ast.Load):
        target = node
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        target = node.value.func
    if isinstance(target, ast.Subscript | ast.Attribute):
        while isinstance(target, ast.Subscript | ast.Attribute):
            target = target.value
        if isinstance(target, ast.Name):
            yield target.id
    for child in ast.iter_child_nodes(node):
        yield from names_changed(child)


def names_used(text: str) -> list[str]:
    """Return the global names that a statement uses, in alphabetical order.

    >>> names_used("def area(r: float) -> float:\\n    return math.pi * square(r)")
    ['float', 'math', 'square']
    """

    def walk(table: symtable.SymbolTable) -> Iterator[str]:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module"):
                yield symbol.get_name()
        for child in table.get_children():
            yield from walk(child)

    return sorted(set(walk(symtable.symtable(text, "", "exec"))))


@dataclass
class Assembly:
    """The definitions that the models need, each after the definitions that it uses, and the imports that remain."""

    folder: Path
    taken: dict[str, str] = field(default_factory=dict)
    borrowed: set[str] = field(default_factory=set)
    _files: set[str] = field(default_factory=lambda: set(names().values()))
    _chapters: dict[str, dict[str, list[Definition]]] = field(default_factory=dict)
    _origins: dict[str, str] = field(default_factory=dict)
    _imports: set[tuple[str, str]] = field(default_factory=set)
    """Module and name of each `from` import. For other imports, "" and the module."""

    def claim(self, name: str, origin: str) -> bool:
        """Return True if a name is new; raise `UserError` if it has another meaning already."""
        if name not in self._origins:
            self._origins[name] = origin
            return True
        if self._origins[name] != origin:
            raise UserError(
                f"{name} has two meanings, from {self._origins[name]} and from {origin}: rename one of them, because "
                "they would be in one file"
            )
        return False

    def take_imported(self, node: Import, file: str, only: str = "") -> None:
        """Add what an import defines, or only `only`: a definition in a file of the workshop, or else the import."""
        for alias in node.names:
            own_name = alias.asname or alias.name.partition(".")[0]
            if only not in ("", own_name):
                continue
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            chapter = (module or alias.name).rpartition(".")[2]
            if chapter not in self._files:
                is_package = not module and not alias.asname  # `import torch.nn` defines torch
                meaning = own_name if is_package else f"{module}.{alias.name}".lstrip(".")
                self.claim(own_name, f"the import of {meaning}")
                self._imports.add((module, ast.unparse(alias)))
            elif not module or alias.asname or alias.name == "*":
                raise UserError(f"{file} must name what it needs: from {chapter} import NAME, without `as`")
            else:
                self.take(chapter, own_name)

    def take(self, chapter: str, name: str) -> None:
        """Add the definition of a name of a chapter to `taken`, after the definitions that it uses."""
        found = self._chapter(chapter).get(name, [])
        if not found:
            if not hasattr(builtins, name):
                raise UserError(f"{chapter}.py uses {name}, and does not define it at its top level")
        elif all(one.is_import for one in found):
            for one in found:
                self.take_imported(cast(Import, one.node), f"{chapter}.py", name)
        elif len(found) > 1 and not all(isinstance(one.node, ast.FunctionDef) for one in found):
            numbers = ", ".join(str(one.node.lineno) for one in found)
            raise UserError(
                f"{chapter}.py defines or changes {name} in several statements (lines {numbers}): give it its value in "
                "one statement"
            )
        elif self.claim(name, f"{chapter}.py"):
            last = found[-1]  # of several functions with this name, as Python
            for used in names_used(last.text):
                self.take(chapter, used)
            self.taken[name] = last.text
            if last.is_borrowed:
                self.borrowed.add(name)

    def _chapter(self, chapter: str) -> dict[str, list[Definition]]:
        """Return the definitions of a chapter. The solution has the functions that the reader has not written."""
        if chapter not in self._chapters:
            path = self.folder / f"{chapter}.py"
            found = definitions(solution_path(chapter).read_text("utf-8"), is_borrowed=True)
            for name, own in self._own_definitions(path).items():
                if not own[-1].is_stub:  # the last definition counts, as in Python
                    found[name] = [one for one in own if not one.is_stub]
            self._chapters[chapter] = found
        return self._chapters[chapter]

    def _own_definitions(self, path: Path) -> dict[str, list[Definition]]:
        if not path.is_file():
            return {}
        try:
            with tokenize.open(path) as file:  # in the encoding that the file declares
                return definitions(file.read())
        except (SyntaxError, ValueError) as error:
            raise UserError(f"{unreadable(path, error)}; correct it, and repeat") from error

    def left_out(self) -> list[str]:
        """Return the statements that define nothing, for all chapters that the models use."""
        return [
            f"{chapter}.py, line {one.node.lineno}: {one.text.splitlines()[0]}"
            for chapter, found in self._chapters.items()
            for one in found.get("", ())
        ]

    def import_lines(self) -> str:
        """Return the imports, those of Python's library first."""
        by_module: dict[str, list[str]] = {}
        for module, name in sorted(self._imports):
            by_module.setdefault(module, []).append(name)
        lines = [f"import {name}" for name in by_module.pop("", [])]
        lines += [f"from {module} import {', '.join(found)}" for module, found in by_module.items()]
        is_own = [line.split()[1].partition(".")[0] in sys.stdlib_module_names for line in lines]
        groups = ([line for line, own in zip(lines, is_own, strict=True) if own is wanted] for wanted in (True, False))
        return "\n\n".join("\n".join(group) for group in groups if group)
