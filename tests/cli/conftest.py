"""Setup of every command: a separate cache, a separate folder, and no terminal."""

import io
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from glassformer.apps.cli.main import run
from glassformer.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Result:
    """The result of a command: its exit code and its output."""

    code: int
    out: str
    err: str


class Terminal(io.StringIO):
    """Standard input of a terminal."""

    def isatty(self) -> bool:
        return True


Glassformer = Callable[..., Result]


@pytest.fixture
def glassformer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Glassformer:
    """Run a command in this process, in an empty folder; `stdin` is its input, from a terminal or not."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def call(*words: object, stdin: str = "", terminal: bool = False) -> Result:
        monkeypatch.setattr(sys, "stdin", Terminal(stdin) if terminal else io.StringIO(stdin))
        capsys.readouterr()
        code = run([str(word) for word in words])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the texts that tokenizers encode, in order."""
    texts: list[str] = []
    encode_batch = Tokenizer.encode_batch

    def recorded(self: Tokenizer, given: Iterable[str], **settings: Any) -> list[list[int]]:
        given = list(given)
        texts.extend(given)
        return encode_batch(self, given, **settings)

    monkeypatch.setattr(Tokenizer, "encode_batch", recorded)
    return texts


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> Path:
    """A recipe of 20 steps without a text."""
    path = tmp_path / "tiny.toml"
    path.write_text(
        'name = "tiny"\n[model]\nd_model = 16\nmax_len = 32\n[model.decoder]\nn_layers = 2\nn_heads = 2\nd_ff = 32\n'
        "[tokenizer]\nvocab_size = 290\n[train]\nmax_steps = 20\nbatch_size = 3\neval_every = 10\n"
        "[generation]\nmax_new_tokens = 3\n[result]\nat_most = 9.0\n"
    )
    return path
