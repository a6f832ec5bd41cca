"""Verbs that need no torch do not load it, so they start fast."""

import json
import subprocess
import sys
from pathlib import Path

from glassformer.tasks.reporting import Outcome

PROGRAM = """
import json, sys
from glassformer.apps.cli.main import VERBS, run
for words in [*json.loads(sys.argv[1]), *([verb, "--help"] for verb in VERBS)]:
    code = run(words)
    assert code in (0, 2), f"{words} ended with {code}"
    assert "torch" not in sys.modules, f"{words} loaded torch"
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
    ["data", "--help"],
    ["checkpoint", "prune", "--help"],
    ["tokenizer"],
    ["tokenizer", "encode", "TOKENIZER", "words", "--merges"],
    ["tokenizer", "encode", "TOKENIZER", "words"],
    ["train", "--help", "train.optimizer.kind"],
]


def test_verbs_without_tensors_load_no_torch(trained: Outcome, environment: dict[str, str], tmp_path: Path) -> None:
    """All run in one process, which starts without torch; the help of every verb too."""
    given = [[str(trained.folder) if word == "TOKENIZER" else word for word in words] for words in WITHOUT_TORCH]
    command = [sys.executable, "-c", PROGRAM, json.dumps(given)]
    found = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr
