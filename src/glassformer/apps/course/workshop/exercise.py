"""An exercise of the workshop: a function or class that the reader writes, and the uses of it that are tested."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.apps.course import mytransformer
from glassformer.apps.course.workshop.tables import Known, Mistake

UNWRITTEN = "write this function"
"""The message of the error that a stub raises."""
CLASSICAL = "course/12-classical-mistakes"
PITFALLS = {
    1: f"{CLASSICAL}#score-0-as-a-mask-1",
    2: f"{CLASSICAL}#a-finite-number-as-a-mask-2",
    6: f"{CLASSICAL}#true-means-hidden-6",
    13: "pitfalls",
    18: f"{CLASSICAL}#labels-that-are-not-shifted-18",
    19: f"{CLASSICAL}#padding-as-a-target-and-a-mean-of-means-19",
    20: f"{CLASSICAL}#perplexity-of-averaged-batches-20",
    34: "pitfalls#generation",
}
"""For the number of a pitfall, the section that explains it, if that differs from the section of the exercise."""


@dataclass(frozen=True)
class Use:
    """A use of a class or function, and its result: what differs from the solution's is a fault with this title."""

    title: str
    run: Callable[[Any], Any]

    def __call__(self, mine: Any) -> Any:
        torch.manual_seed(0)
        return self.run(mine)

    @property
    def code(self) -> str:
        """The text of the function that makes this use, where `part` is the reader's class or function."""
        maker = self.run.__qualname__.partition(".")[0]
        return f"# the use “{self.title}”\n" + inspect.getsource(vars(sys.modules[self.run.__module__])[maker])


@dataclass(frozen=True)
class Exercise:
    """A function or class to write: its solution, what is tested, and its known mistakes."""

    solution: Any
    section: str
    """The section of the course that explains it."""
    cases: Callable[[], Sequence[tuple[Any, ...]]]
    """Function that makes the arguments of each test, the same in every call; of a class, uses in place of them."""
    known: Known = Known("")
    has_gradient: bool = False
    """True if the gradients with respect to the tensors of floating-point numbers are compared too."""
    own_work: tuple[str, ...] = ()
    """Names of torch's functions that must not be called, because they are what the reader writes here."""

    @property
    def name(self) -> str:
        return self.solution.__name__

    @property
    def module(self) -> str:
        """Name of the module of the solution, and of the reader's file without its ending."""
        return self.solution.__module__.rsplit(".", 1)[1]

    @property
    def file(self) -> str:
        return f"{self.module}.py"

    @property
    def chapter(self) -> int:
        return int(self.section.removeprefix("course/")[:2])

    def is_named(self, names: Sequence[str]) -> bool:
        """Return True if names of exercises, files or chapters select this exercise; no names select all."""
        return not names or not {self.name, self.file, str(self.chapter)}.isdisjoint(names)

    @property
    def mistakes(self) -> tuple[Mistake, ...]:
        return self.known.mistakes

    def source(self) -> str:
        """Return the solution as text."""
        return textwrap.dedent(inspect.getsource(self.solution))

    def tested(self, mine: Any) -> Callable[..., Any]:
        """Return the function of the arguments of a test."""
        uses = any(isinstance(x, Use) for x in self.cases()[0])
        return (lambda use: use(mine)) if uses else mine

    def with_mistakes(self, *mistakes: Mistake) -> Any:
        """Return the solution with mistakes; raise `ValueError` if an excerpt does not occur exactly once."""
        source = self.source()
        for mistake in mistakes:
            if source.count(mistake.old) != 1:
                raise ValueError(f"{self.name} contains {mistake.old!r} {source.count(mistake.old)} times")
            source = source.replace(mistake.old, mistake.new)
        return self.changed(source)

    def changed(self, source: str) -> Any:
        """Return the function or class of another text, with the names of the solution's module."""
        names = dict(vars(sys.modules[self.solution.__module__]))
        exec(compile(source, f"<{self.name} with a mistake>", "exec"), names)
        return names[self.name]

    def explained(self, mistake: Mistake) -> Mistake:
        """Return the mistake with the section that explains it."""
        return replace(mistake, section=mistake.section or PITFALLS.get(mistake.pitfall, self.section))


# What tests are made of

V, D, H, F, L, N = 11, 8, 2, 12, 2, 9
"""Sizes of the models of the tests: vocabulary, width, heads, inner width, blocks, longest text."""
IS_TOKEN = torch.tensor([[1] * 5, [0, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
IS_SOURCE = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
"""True for the tokens of three texts, and of their sources."""


def uses(**titles: Any) -> list[tuple[Use]]:
    """Return uses by their titles, with spaces in place of underscores."""
    return [(Use(title.replace("_", " "), run),) for title, run in titles.items()]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


_variant = 0
"""A number that is added to every seed, so that each student can be tested with other numbers."""


def use_variant(number: int) -> None:
    """Draw other numbers for all tests of this process; 0 gives the usual ones."""
    global _variant
    _variant = 1000 * number


def variant() -> int:
    """Return what is added to every seed."""
    return _variant


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Draw numbers of the standard normal distribution. Equal seeds give equal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + _variant))


def weights(first_seed: int, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Draw a weight of each shape, with seeds that count up from the first one."""
    return {name: normal(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items(), first_seed)}


def mask(*shape: int, seed: int = 0) -> Tensor:
    """Draw a mask that is True in about two thirds of its places."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed + _variant)) < 0.67


def ids(*shape: int, n: int = 11, seed: int = 0) -> Tensor:
    """Draw ids from 0 to n - 1."""
    return torch.randint(n, shape, generator=torch.Generator().manual_seed(seed + _variant))


OTHER_NAMES: set[str] = set()
"""Classes whose weights have other names than their docstrings state, so that they were matched by shape and order."""


class UnlikeWeights(Exception):
    """The weights of a class have other shapes than the docstring states."""


class Filled:
    """An instance of the reader's class in evaluation mode, with the same weights as the solution's instance.

    Weights belong together by the names of the docstring, and if the names differ, by shape and order.
    """

    def __init__(self, part: type[nn.Module], *sizes: Any, **more: Any) -> None:
        self.module: Any = part(*sizes, **more).eval()
        wanted, own = solution_of(part.__name__)(*sizes, **more), self.module
        trained = [{name: x for name, x in one.named_parameters() if x.requires_grad} for one in (own, wanted)]
        self.weights = matched(*trained)
        if trained[0].keys() != trained[1].keys():
            OTHER_NAMES.add(part.__name__)
        with torch.no_grad():
            for number, weight in enumerate(self.weights.values()):
                weight.copy_(normal(*weight.shape, seed=100 + number) / max(1, weight.dim()))

    def __call__(self, *inputs: Any, **more: Any) -> dict[str, Any]:
        """Return the output, and the gradients of the sum of its sines."""
        output = self.module(*inputs, **more)
        found = torch.autograd.grad(output.sin().sum(), list(self.weights.values()), allow_unused=True)
        zeros = (torch.zeros_like(weight) for weight in self.weights.values())
        gradients = [zero if one is None else one for one, zero in zip(found, zeros, strict=True)]
        return {"output": output, **{f"gradient of {name}": x for name, x in zip(self.weights, gradients, strict=True)}}


def solution_of(name: str) -> Any:
    """Return the class or function of a name from the solutions."""
    for module in vars(mytransformer).values():
        found = getattr(module, name, None)
        if found is not None and getattr(found, "__module__", "") == getattr(module, "__name__", None):
            return found
    raise KeyError(name)


def matched(own: dict[str, nn.Parameter], wanted: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """Return the reader's weights under the names of the solution."""
    if own.keys() == wanted.keys() and all(own[name].shape == x.shape for name, x in wanted.items()):
        return {name: own[name] for name in wanted}
    left = dict(own)
    found = {name: left.pop(name) for name, x in wanted.items() if name in left and left[name].shape == x.shape}
    for name, x in wanted.items():
        if name in found:
            continue
        mine = next((one for one, y in left.items() if y.shape == x.shape), None)
        if mine is None:
            raise UnlikeWeights(
                f"it has no weight {name} of shape {tuple(x.shape)}; it has {_shapes(left) or 'no more'}"
            )
        found[name] = left.pop(mine)
    if left:
        raise UnlikeWeights(f"it has weights too many: {_shapes(left)}")
    return {name: found[name] for name in wanted}


def _shapes(weights: dict[str, nn.Parameter]) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in list(weights.items())[:4])


# Stubs


def stubs(module_source: str, names: Sequence[str]) -> str:
    r"""Return the source of a module without the bodies of the functions and classes in `names`.

    Docstrings stay, also those of the public methods of a class. Everything else is given to the reader.

    >>> print(stubs('import math\n\n\ndef half(x: float) -> float:\n    "Return x / 2."\n    return x / 2\n', ["half"]))
    import math
    <BLANKLINE>
    <BLANKLINE>
    def half(x: float) -> float:
        "Return x / 2."
        raise NotImplementedError("write this function")
    <BLANKLINE>
    """
    lines = module_source.splitlines()
    for node in reversed(ast.parse(module_source).body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            lines[node.lineno - 1 : node.end_lineno] = _stub(node, lines, 4)
    return "\n".join(lines) + "\n"


def _stub(node: ast.FunctionDef | ast.ClassDef, lines: list[str], indent: int) -> list[str]:
    """Return the lines of a function or class without its work."""
    docstring = node.body[0] if ast.get_docstring(node) else None
    begins = node.body[0].lineno - 1 if not isinstance(node.body[0], ast.FunctionDef) else first_line(node.body[0])
    head = lines[node.lineno - 1 : docstring.end_lineno if docstring else begins]
    if isinstance(node, ast.FunctionDef):
        return [*head, f'{" " * indent}raise NotImplementedError("{UNWRITTEN}")']
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    shown = [one for one in methods if one.name == "__init__" or not one.name.startswith("_")]
    for one in shown:
        decorators = lines[first_line(one) : one.lineno - 1]
        head += ["", *decorators, *_stub(one, lines, indent + 4)]
    return head


def definition_of(module_source: str, name: str) -> str:
    """Return the text of the last function or class of a name in a module, as Python uses it; "" without one."""
    nodes = [
        x for x in ast.parse(module_source).body if isinstance(x, ast.FunctionDef | ast.ClassDef) and x.name == name
    ]
    lines = module_source.split("\n")  # as `ast` counts them: splitlines() also splits at a form feed
    return "\n".join(lines[first_line(nodes[-1]) : nodes[-1].end_lineno]) if nodes else ""


def first_line(node: ast.stmt) -> int:
    """Return the place of the first line of a statement, with the decorators of a definition, from 0."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1


def unreadable(path: Path, error: SyntaxError | ValueError) -> str:
    """Return where a file is not valid Python, and why. The place may be in a file that this file imports."""
    if not isinstance(error, SyntaxError) or not error.lineno:
        return f"{path.name}: {error}"
    imported = Path(error.filename or "")
    if imported.is_file():
        path = imported
    return f"{path.name}, line {error.lineno}: {error.msg}"
