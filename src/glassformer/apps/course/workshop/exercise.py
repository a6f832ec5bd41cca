"""An exercise of the workshop: a function that the reader writes, the known mistakes, and random arguments of tests."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]
_SOLUTIONS = "glassformer.apps.course.workshop.solutions"
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
class Mistake:
    """A change of the solution that makes a known mistake."""

    sentence: str
    """The sentence that names the mistake and its correction."""
    old: str
    """The excerpt of the solution that the mistake replaces. It occurs once in the solution."""
    new: str
    """The code that replaces the excerpt."""
    section: str = ""
    """The section of the documentation that explains the mistake. Default: the section of the pitfall or exercise."""
    pitfall: int = 0
    """The number of the mistake in docs/pitfalls.md; 0 if it is not listed there."""


@dataclass(frozen=True)
class Exercise:
    """A function to write: its solution, the arguments of its tests, and its known mistakes."""

    solution: Function
    section: str
    """The section of the course that explains the function."""
    cases: Callable[[], Sequence[tuple[Any, ...]]]
    """Function that makes the arguments of each test, the same in every call."""
    mistakes: tuple[Mistake, ...] = ()
    has_gradient: bool = False
    """True if the gradients with respect to the tensors of floating-point numbers are compared too."""

    @property
    def name(self) -> str:
        return self.solution.__name__

    @property
    def file(self) -> str:
        """Name of the reader's file, and of the module of the solution."""
        return self.solution.__module__.rsplit(".", 1)[1]

    def source(self) -> str:
        """Return the solution as text."""
        return textwrap.dedent(inspect.getsource(self.solution))

    def with_mistakes(self, *mistakes: Mistake) -> Function:
        """Return the solution with mistakes; raise `ValueError` if an excerpt does not occur exactly once."""
        source = self.source()
        for mistake in mistakes:
            if source.count(mistake.old) != 1:
                raise ValueError(f"{self.name} contains {mistake.old!r} {source.count(mistake.old)} times")
            source = source.replace(mistake.old, mistake.new)
        code = compile(source, f"<{self.name} with a mistake>", "exec")
        [body] = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        names = dict(vars(sys.modules[self.solution.__module__]))
        names[self.name] = FunctionType(body, names)  # a recursive function must call itself
        function: Function = names[self.name]
        return function

    def explained(self, mistake: Mistake) -> Mistake:
        """Return the mistake with the section that explains it."""
        return replace(mistake, section=mistake.section or PITFALLS.get(mistake.pitfall, self.section))


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Draw numbers of the standard normal distribution. Equal seeds give equal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(first_seed: int, **shapes: tuple[int, ...]) -> dict[str, Tensor]:
    """Draw a weight of each shape, with seeds that count up from the first one."""
    return {name: normal(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items(), first_seed)}


def mask(*shape: int, seed: int = 0) -> Tensor:
    """Draw a mask that is True in about two thirds of its places."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.67


def stubs(module_source: str) -> str:
    r"""Return the source of a module without the bodies of its functions; docstrings stay.

    If the module imports from another solution, the stub imports from the reader's file of the same name.

    >>> print(stubs('import math\n\n\ndef half(x: float) -> float:\n    "Return x / 2."\n    return x / 2\n'))
    import math
    <BLANKLINE>
    <BLANKLINE>
    def half(x: float) -> float:
        "Return x / 2."
        raise NotImplementedError("write this function")
    <BLANKLINE>
    """
    lines = module_source.replace(f"from {_SOLUTIONS}.", "from ").splitlines()
    for node in reversed(ast.parse(module_source).body):
        if isinstance(node, ast.FunctionDef):
            docstring = node.body[0]
            assert docstring.end_lineno is not None and node.end_lineno is not None
            lines[docstring.end_lineno : node.end_lineno] = [f'    raise NotImplementedError("{UNWRITTEN}")']
    return "\n".join(lines) + "\n"


def unreadable(path: Path, error: SyntaxError | ValueError) -> str:
    """Return where a file is not valid Python, and why. The place may be in a file that this file imports."""
    if not isinstance(error, SyntaxError) or not error.lineno:
        return f"{path.name}: {error}"
    imported = Path(error.filename or "")
    if imported.is_file():
        path = imported
    return f"{path.name}, line {error.lineno}: {error.msg}"
