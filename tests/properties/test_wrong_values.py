"""A value of the wrong kind, at any public entry, gets one short sentence that does not repeat the value."""

import inspect
import io
import pathlib
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer
from glassformer import plot, presets
from glassformer.apps import course, doctor
from glassformer.apps.cli.arguments import Group
from glassformer.apps.cli.main import VERBS, _verb, run
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.model import Model
from glassformer.tasks.reporting import Outcome

LONGEST = 400
WORDS = "It was the best of times, it was the worst of times, "
VALUES: dict[str, Callable[[Path], Any]] = {
    "a long text": lambda folder: WORDS * 1200,
    "a text of lines": lambda folder: (WORDS + "\n") * 100,
    "a long word": lambda folder: "x" * 3000,
    "a long path": lambda folder: "/".join(["folder name"] * 300),
    "a text with NUL": lambda folder: "a\0b",
    "bytes": lambda folder: b"text" * 5000,
    "binary text": lambda folder: "".join(map(chr, range(1, 3000))),
    "a surrogate": lambda folder: "a\udcff" * 500,
    "a list of numbers": lambda folder: list(range(20_000)),
    "a list of long texts": lambda folder: [WORDS * 300] * 3 + [5],
    "a dictionary": lambda folder: {WORDS * 40: list(range(5000))},
    "an array": lambda folder: np.zeros((300, 300)),
    "nothing": lambda folder: None,
    "a number": lambda folder: 3.5,
    "a folder": lambda folder: folder,
    "a module": lambda folder: pathlib,
}
MODULES = {"course": course, "doctor": doctor, "plot": plot, "presets": presets, "recipes": recipes}
TENSORS = ("nn", "models", "inspection")
"""Modules of layers and of functions of tensors, which raise what Python raises."""
NOT_CALLED = {
    "glassformer.follow": "waits for a file",
    "glassformer.recipes.parse": "called by train and load",
    "model.inspect": "shows any text on a page until Ctrl-C",
    "glassformer.UserError": "an exception of any text",
}


def public(owner: Any, name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions of a module, or the public methods of an object."""
    of = owner if inspect.ismodule(owner) else type(owner)
    for key in sorted(key for key in dir(of) if not key.startswith("_")):
        found = inspect.getattr_static(of, key)
        is_method = of is not owner and isinstance(found, (classmethod, staticmethod))
        home = str(getattr(found, "__module__", ""))
        if is_method or (inspect.isfunction(found) and (home == getattr(owner, "__name__", home))):
            yield f"{name}.{key}", getattr(owner, key)


def entries(model: Model) -> dict[str, Callable[..., Any]]:
    """Return every public function, class and method by name."""
    found: dict[str, Callable[..., Any]] = {}
    for name in glassformer.__all__:
        entry = getattr(glassformer, name)
        if name in MODULES:
            found |= dict(public(MODULES[name], f"glassformer.{name}"))
        elif name not in TENSORS:
            found[f"glassformer.{name}"] = entry
    found |= dict(public(model, "model"))
    found |= dict(public(model.tokenizer, "tokenizer"))
    return {name: entry for name, entry in found.items() if name not in NOT_CALLED}


def arguments(entry: Callable[..., Any], value: Any) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the value as all required arguments; without any, as each of the others alone."""
    parameters = list(inspect.signature(entry).parameters.values())
    parameters = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p for p in parameters if p.default is p.empty]
    by_name = {p.name: value for p in required if p.kind == p.KEYWORD_ONLY}
    yield [value] * (len(required) - len(by_name)), by_name
    for p in () if required else parameters:
        yield [], {p.name: value}


def mistake(call: Callable[[], Any]) -> Exception | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = call()
            if inspect.isgenerator(found):
                next(found, None)
        except Exception as error:
            return error
    return None


@pytest.fixture(scope="module")
def model(trained: Outcome) -> Model:
    return glassformer.load(trained.folder)


@pytest.mark.parametrize("kind", VALUES)
def test_every_entry_answers_a_wrong_value_with_a_short_sentence(
    kind: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    wrong = []
    for name, entry in entries(model).items():
        for given, named in arguments(entry, VALUES[kind](tmp_path / "folder")):
            error = mistake(lambda entry=entry, given=given, named=named: entry(*given, **named))
            is_known = error is None or isinstance(error, (UserError, TypeError, ValueError))
            if not is_known or len(str(error)) > LONGEST:
                wrong.append(f"{name}: {type(error).__name__}, {len(str(error))} characters: {str(error)[:150]!r}")
    assert not wrong, "\n" + "\n".join(wrong)


TEXTS = ("a long text", "a text of lines", "a long word", "a long path", "binary text")


def verbs() -> Iterator[str]:
    for name in VERBS:
        verb = _verb(name)
        yield from [f"{name} {sub}" for sub in verb.verbs] if isinstance(verb, Group) else [name]


@pytest.mark.parametrize("verb", list(verbs()))
def test_every_verb_answers_a_wrong_argument_with_a_short_sentence(
    verb: str, trained: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for kind in TEXTS:
        value = VALUES[kind](tmp_path)
        for words in (
            [value],
            [value, value],
            ["--out", value],
            [f"--{value}"],
            [str(trained.folder), "--output", value],
        ):
            if verb in ("demo", "course write") and words[0] == "--out":
                continue
            monkeypatch.setattr(sys, "stdin", io.StringIO(""))
            code = run([*verb.split(), *words])
            printed = capsys.readouterr()
            last = printed.err.rstrip("\n").rpartition("\n")[2] if code == 2 else ""
            if code not in (0, 1, 2) or "Traceback" in printed.err or (len(printed.err) > LONGEST + 60 and code == 2):
                wrong.append(f"{[word[:30] for word in words]}: {code}, {len(printed.err)} characters: {last[:200]!r}")
    assert not wrong, "\n" + "\n".join(wrong)
