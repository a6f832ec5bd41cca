"""Verbs that need no torch do not load it, so they start fast."""

import subprocess
import sys
from pathlib import Path

import pytest

from glassformer.reporting import Outcome

PROGRAM = """
import sys
from glassformer.cli.main import run
code = run(sys.argv[1:])
assert code in (0, 2), code
assert "torch" not in sys.modules, "torch was loaded"
"""
WITHOUT_TORCH = [
    [],
    ["--help"],
    ["--version"],
    ["presets"],
    ["presets", "gpt2"],
    ["recipes"],
    ["recipes", "copy-task"],
    ["plot"],
    ["plot", "attention", "--help"],
    ["data"],
    ["data", "report", "--help"],
    ["checkpoint", "prune", "--help"],
    ["tokenizer"],
    ["tokenizer", "explain", "TOKENIZER", "words"],
    ["tokenizer", "encode", "TOKENIZER", "words"],
    ["tokenizer", "decode", "TOKENIZER", "20"],
    ["train", "--help", "train.optimizer.kind"],
]


@pytest.mark.parametrize("words", WITHOUT_TORCH, ids=" ".join)
def test_a_verb_without_tensors_loads_no_torch(
    words: list[str], trained: Outcome, environment: dict[str, str], tmp_path: Path
) -> None:
    given = [str(trained.folder) if word == "TOKENIZER" else word for word in words]
    command = [sys.executable, "-c", PROGRAM, *given]
    found = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr


def test_no_help_loads_torch(environment: dict[str, str]) -> None:
    program = (
        "import sys\nfrom glassformer.cli.main import VERBS, run\n"
        "for verb in VERBS:\n    assert run([verb, '--help']) == 0 and 'torch' not in sys.modules, verb\n"
    )
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, timeout=120)
