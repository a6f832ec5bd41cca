"""Changes of a solution of the workshop that make it wrong, one at a time: operators, constants, dropped terms."""

import ast
from collections.abc import Iterator
from typing import Any

OTHERS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
NAMES = {"max": "min", "min": "max", "tril": "triu", "triu": "tril", "amax": "amin", "argmax": "argmin", "any": "all"}


def changed_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield replacements of one node of a function."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in OTHERS:
            yield ast.Compare(node.left, [OTHERS[type(op)]()], node.comparators)  # type: ignore[list-item]
        case ast.BinOp(op=op) if type(op) in OTHERS:
            yield ast.BinOp(node.left, OTHERS[type(op)](), node.right)  # type: ignore[arg-type]
            yield node.left
            yield node.right
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case ast.Constant(value=float(value)):
            yield ast.Constant(2 * value or 0.5)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            yield ast.Constant(value)  # another axis
        case ast.Name(id=name) if name in NAMES:
            yield ast.Name(NAMES[name], ast.Load())
        case ast.Attribute(attr=name) if name in NAMES:
            yield ast.Attribute(node.value, NAMES[name], ast.Load())
        case ast.Call(func=ast.Name(id="max" | "min"), args=[first, second]):
            yield first
            yield second


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """Yield a description and the source of each mutant of a function; its docstring and annotations are kept."""
    tree = ast.parse(source)
    [definition] = tree.body
    assert isinstance(definition, ast.FunctionDef | ast.ClassDef)
    for parent in [node for statement in definition.body[1:] for node in ast.walk(statement)]:
        for field, value in ast.iter_fields(parent):
            if field == "annotation" or isinstance(parent, ast.JoinedStr | ast.arguments):
                continue
            for place, node in enumerate(value if isinstance(value, list) else [value]):
                for other in changed_nodes(node) if isinstance(node, ast.AST) else ():
                    _put(parent, field, value, place, other)
                    yield (
                        f"{ast.unparse(node)} -> {ast.unparse(other)} in {ast.unparse(parent)[:60]}",
                        ast.unparse(tree),
                    )
                    _put(parent, field, value, place, node)


def _put(parent: ast.AST, field: str, value: Any, place: int, node: ast.AST) -> None:
    if isinstance(value, list):
        value[place] = node
    else:
        setattr(parent, field, node)
