"""The file for Slurm in the documents runs the right command, and resumes a run that has begun."""

import os
import subprocess
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "slurm.md"
STAND_INS = {
    "scontrol": 'test "$*" = "show hostnames node[0-1]" && echo node0 && echo node1',
    "srun": 'test "$1" = --cpus-per-task=32 && shift && "$@"',
    "torchrun": 'printf "%s\\n" "$@"',
}
ENVIRONMENT = {
    "SLURM_JOB_NODELIST": "node[0-1]",
    "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "32",
    "SLURM_JOB_ID": "7",
}


def words_of(script: str, folder: Path) -> tuple[list[str], list[str]]:
    """Return what the script gives to torchrun itself, and to glassformer; `folder` is the working directory."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    environment = os.environ | ENVIRONMENT | {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-e"], input=script, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    n = words.index("glassformer")
    return words[: n + 1], words[n + 1 :]


def test_the_job_trains_and_then_resumes(tmp_path: Path) -> None:
    script = PAGE.read_text("utf-8").split("```bash\n")[1].split("```")[0].replace("/shared/runs/gpt2", "'my runs/x'")
    torchrun = ["--nnodes", "2", "--nproc-per-node", "8", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", "node0:29500", "--rdzv-id", "7", "-m", "glassformer"]
    limit = ["--train.max-time", "13800"]
    first = ["train", "/shared/gpt2.toml", "--out", "my runs/x", "--train.grad-accumulation", "80", *limit]
    assert words_of(script, tmp_path) == (torchrun, first)
    (tmp_path / "my runs/x/checkpoints/step-000010").mkdir(parents=True)
    assert words_of(script, tmp_path) == (torchrun, ["resume", "my runs/x", *limit])
