"""`glassformer launch`: the job files run the right command, and resume a run that has begun."""

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from .conftest import Glassformer

STAND_INS = {
    "scontrol": 'echo node0; echo node1; test "$*" = "show hostnames node[0-1]"',
    "srun": '"$@"',
    "torchrun": 'printf "%s\\n" "$@"',
}
ENVIRONMENT = {
    "SLURM_JOB_NODELIST": "node[0-1]",
    "SLURM_NNODES": "2",
    "SLURM_JOB_ID": "7",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}


def words_after(script: str, folder: Path) -> list[str]:
    """Return what the script gives to torchrun from the module's name on; `folder` is the working directory."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    environment = os.environ | ENVIRONMENT | {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e"], input=script, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    return words[words.index("glassformer") + 1 :]


@pytest.mark.parametrize("to", ["slurm", "skypilot"])
def test_a_job_trains_and_then_resumes(to: str, tmp_path: Path, glassformer: Glassformer) -> None:
    line = [
        "launch",
        "python-docs",
        "--out",
        "my runs/x",
        "--to",
        to,
        "--train.grad-accumulation",
        "8",
        "--hours",
        "1.5",
    ]
    script = glassformer(*line, "--data.path", "a b.txt").out
    if to == "skypilot":
        job = yaml.safe_load(script)
        assert job["resources"] == {"accelerators": "H100:8"} and job["name"] == "python-docs"
        script = job["run"]
    else:
        assert "--time=01:30:00" in script
    limit = ["--train.max-time", "4800"]
    keys = ["--train.grad-accumulation", "8", "--data.path", "a b.txt"]
    assert words_after(script, tmp_path) == ["train", "python-docs", "--out", "my runs/x", *keys, *limit]
    (tmp_path / "my runs/x/checkpoints/step-000010").mkdir(parents=True)
    assert words_after(script, tmp_path) == ["resume", "my runs/x", *limit]
