"""Time before the first result of a command: seconds of CPU of the whole program."""

import resource
import subprocess
import sys
from pathlib import Path

from task import Task

TEXT = "The quick brown fox jumps over the lazy dog.\n"
STEPS = ["--train.max-steps", "1", "--train.eval-every", "1", "--model.decoder.n-layers", "1"]


def trained(folder: str) -> Task:
    """Train a tiny model in `folder` for the commands that load one."""
    text = Path(folder) / "text.txt"
    text.write_text(TEXT * 400, encoding="utf-8")
    _run([sys.executable, "-m", "glassformer", "train", str(text), "--out", str(Path(folder) / "run"), *STEPS])
    return Task(lambda: None)


def command(folder: str, words: list[str]) -> Task:
    """Run `python WORDS`; the word RUN stands for the model of `trained`."""
    whole = [sys.executable, *(str(Path(folder) / "run") if word == "RUN" else word for word in words)]
    return Task(lambda: _run(whole), measures=True, runs_programs=True)


def _run(words: list[str]) -> float:
    """Run a program to its end; return its seconds of CPU, in user mode and in the kernel."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise RuntimeError(f"{' '.join(words[1:4])} ended with exit status {done.returncode}: {(said or ['-'])[-1]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
