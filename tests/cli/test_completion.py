"""Completion of verbs, options, keys and their values in a shell; bash runs the script."""

import shutil
import subprocess

import pytest

from glassformer.apps.cli.completion import script
from glassformer.apps.cli.main import VERBS

from .conftest import Glassformer

CASES = {
    "glassformer tran": {"translate"},
    "glassformer plot att": {"attention"},
    "glassformer tokenizer train --vo": {"--vocab-size"},
    "glassformer train --train.max-s": {"--train.max-steps"},
    "glassformer train book.txt --train.optimizer.kind ad": {"adam", "adamw"},
    "glassformer export a b --to on": {"onnx"},
    "glassformer generate runs/a": set(),
    "glassformer generate --max-new-tokens 3": set(),
}
"""Line → the words that end it; none: bash completes the names of files."""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("line", CASES)
def test_bash_completes_a_word(line: str) -> None:
    words = line.split()
    typed = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _glassformer; echo ${{COMPREPLY[@]}}"
    program = f"{script('bash', VERBS)}\n{typed}"
    found = subprocess.run(["bash", "-u", "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert set(found.stdout.split()) == CASES[line] and not found.stderr


def test_each_shell_has_every_verb(glassformer: Glassformer) -> None:
    texts = {shell: glassformer("--completion", shell).out for shell in ("bash", "zsh", "fish")}
    assert texts["zsh"].endswith(texts["bash"]) and "bashcompinit" in texts["zsh"]
    assert all(verb in text for text in texts.values() for verb in VERBS)
    line = "complete -c glassformer -n \"__fish_seen_subcommand_from export\" -l to -x -a 'hf onnx gguf ct2 web' -d"
    assert line in texts["fish"]
    wrong = glassformer("--completion", "tcsh")
    assert wrong.code == 2 and wrong.err == "glassformer: --completion: expected one of bash, zsh, fish, got 'tcsh'\n"
