"""Changes of a solution, one at a time: another operator, number, axis or order, or a part that is left out.

`checking` looks for the change that gives the reader's results, and the tests require that each change is found.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_PAIRS: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq)),
    *((ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr)),
)
OTHERS = {one: other for pair in _PAIRS for one, other in (pair, pair[::-1])}
NAMES = {"max": "min", "min": "max", "tril": "triu", "triu": "tril", "amax": "amin", "argmax": "argmin", "any": "all"}


@dataclass(frozen=True)
class Change:
    """A solution in which one part is replaced."""

    old: str
    new: str
    """The code that replaces the part; "" if it is left out."""
    place: str
    """The code around the part, with the change."""
    source: str
    """The whole solution with the change, without comments."""

    def __str__(self) -> str:
        """Return the change as the end of a sentence."""
        if not self.new:
            return f"without `{in_line(self.old)}`"
        is_short = len(self.place) < 80 and "\n" not in self.place
        return f"with `{in_line(self.new)}` in place of `{in_line(self.old)}`" + f", in `{self.place}`" * is_short


def in_line(code: str, limit: int = 80) -> str:
    """Return code in one line, with "…" in place of what is beyond the limit.

    >>> in_line("if x:\\n    y", 9)
    'if x: y'
    """
    line = " ".join(code.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def changed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield replacements of one node of a function."""
    match node:
        # Operators
        case ast.Compare(ops=[op]) if type(op) in OTHERS:
            yield ast.Compare(node.left, [OTHERS[type(op)]()], node.comparators)  # type: ignore[list-item]
        case ast.BinOp(op=op) if type(op) in OTHERS:
            yield ast.BinOp(node.left, OTHERS[type(op)](), node.right)  # type: ignore[arg-type]
            yield node.left
            yield node.right
        case ast.BoolOp(values=[first, second]):
            yield first
            yield second
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            yield ast.Constant(value)  # another axis
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub()):
            yield node.operand
        # Constants and names
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(2 * value or 0.5)
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name], ast.Load())
        case ast.Attribute(attr=name) if name in NAMES:
            yield ast.Attribute(node.value, NAMES[name], ast.Load())
        # Calls and choices: one of two values, another order, a step less
        case ast.Call(func=ast.Name(id="max" | "min"), args=[first, second]):
            yield first
            yield second
        case ast.Call(func=ast.Attribute(value=value), args=[], keywords=[]) if not isinstance(value, ast.Call):
            yield value
        case ast.IfExp():
            yield node.body
            yield node.orelse
        case ast.Tuple(elts=[first, second], ctx=ast.Load()) if ast.dump(first) != ast.dump(second):
            yield ast.Tuple([second, first], ast.Load())
        # Statements that are left out
        case ast.Expr() | ast.AugAssign() | ast.If(orelse=[]):
            yield ast.Pass()


def changes(source: str) -> Iterator[Change]:
    """Yield each change of a function or class; its docstring and annotations are kept."""
    tree = ast.parse(source)
    [definition] = tree.body
    assert isinstance(definition, ast.FunctionDef | ast.ClassDef)
    for parent in _nodes(definition):
        for field, value in _fields(parent):
            for place, node in enumerate(value if isinstance(value, list) else [value]):
                for other in changed_nodes(node) if isinstance(node, ast.AST) else ():
                    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                        continue  # a docstring
                    _put(parent, field, value, place, other)
                    new = "" if isinstance(other, ast.Pass) else ast.unparse(other)
                    yield Change(ast.unparse(node), new, ast.unparse(parent), ast.unparse(tree))
                    _put(parent, field, value, place, node)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what it consists of, without annotations, decorators, texts and default values."""
    yield node
    for _, value in _fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child)


def _fields(node: ast.AST) -> Iterator[tuple[str, Any]]:
    left = ("annotation", "returns", "decorator_list")
    if not isinstance(node, ast.JoinedStr | ast.arguments):
        yield from ((name, value) for name, value in ast.iter_fields(node) if name not in left)


def _put(parent: ast.AST, field: str, value: Any, place: int, node: ast.AST) -> None:
    if isinstance(value, list):
        value[place] = node
    else:
        setattr(parent, field, node)
