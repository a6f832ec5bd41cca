"""`glassformer launch`: the job files run the right command, and resume a run that has begun."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from .conftest import Glassformer
from .test_bad_input import require_one_sentence

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
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}


def words_of(script: str, folder: Path) -> tuple[list[str], list[str]]:
    """Return what the script gives to torchrun itself, and to glassformer; `folder` is the working directory."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, body in STAND_INS.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    environment = os.environ | ENVIRONMENT | {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder)}
    done = subprocess.run(["bash", "-e"], input=script, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    n = words.index("glassformer")
    return words[: n + 1], words[n + 1 :]


LAUNCH = ["launch", "python-docs", "--out", "my runs/x", "--hours", "1.5"]
KEYS = ["--train.grad-accumulation", "16", "--data.path", "a b.txt"]
LIMIT = ["--train.max-time", "4800"]


def require_train_and_resume(script: str, folder: Path, torchrun: list[str]) -> None:
    """Require that the script trains, and that it resumes if the run has a checkpoint."""
    words = [*torchrun, "-m", "glassformer"]
    assert words_of(script, folder) == (words, ["train", "python-docs", "--out", "my runs/x", *KEYS, *LIMIT])
    (folder / "my runs/x/checkpoints/step-000010").mkdir(parents=True)
    assert words_of(script, folder) == (words, ["resume", "my runs/x", *LIMIT])


def test_a_job_of_slurm_trains_and_then_resumes(tmp_path: Path, glassformer: Glassformer) -> None:
    script = glassformer(*LAUNCH, "--nodes", "2", *KEYS).out
    assert "--nodes=2 " in script and "--gpus-per-node=8\n" in script and "--time=01:30:00 " in script
    torchrun = ["--nnodes", "2", "--nproc-per-node", "8", "--rdzv-backend", "c10d"]
    torchrun += ["--rdzv-endpoint", "node0:29500", "--rdzv-id", "7"]
    require_train_and_resume(script, tmp_path, torchrun)


def test_the_task_of_a_machine_has_cpus_for_all_its_gpus(glassformer: Glassformer) -> None:
    """Slurm gives a task one CPU by default, and `srun` does not inherit the number of `sbatch`."""
    for words, n in (([], 32), (["--gpus", "2"], 8), (["--gpus", "2", "--cpus-per-gpu", "7"], 14)):
        lines = glassformer(*LAUNCH, *words, *KEYS).out.splitlines()
        (asked,) = [line for line in lines if line.startswith("#SBATCH") and "--cpus-per-task" in line]
        assert f" --ntasks-per-node=1 --cpus-per-task={n} " in asked
        (started,) = [line for line in lines if line.startswith("srun")]
        assert started.startswith('srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun ')


@pytest.mark.parametrize("name", ["nodes", "gpus", "cpus-per-gpu"])
def test_a_job_without_machines_is_refused(name: str, glassformer: Glassformer) -> None:
    words = f"{name.replace('-', '_')} is 0 and must be at least 1"
    require_one_sentence(glassformer(*LAUNCH, *KEYS, f"--{name}", "0"), words)


def test_a_job_of_skypilot_trains_and_then_resumes(tmp_path: Path, glassformer: Glassformer) -> None:
    job = yaml.safe_load(glassformer(*LAUNCH, "--to", "skypilot", *KEYS).out)
    assert job["resources"] == {"accelerators": "H100:8"} and job["name"] == "python-docs"
    require_train_and_resume(job["run"], tmp_path, ["--standalone", "--nproc-per-node", "8"])


def test_the_name_of_a_job_has_letters_and_digits(tmp_path: Path, glassformer: Glassformer) -> None:
    """Both schedulers refuse names with spaces, and YAML reads some names as numbers."""
    recipe = tmp_path / "own.toml"
    for name, of_job in (("my run: 2", "my-run-2"), ("2026", "2026")):
        recipe.write_text(f'name = "{name}"\n[data]\npath = "a.txt"\n')
        words = ["launch", str(recipe), "--out", "x", "--gpus", "1"]
        assert f"#SBATCH --job-name={of_job}\n" in glassformer(*words).out
        assert yaml.safe_load(glassformer(*words, "--to", "skypilot").out)["name"] == of_job


def test_the_example_of_the_help_prints_a_job(glassformer: Glassformer) -> None:
    shown = glassformer("launch", "--help").out
    (example,) = re.findall("^  glassformer (launch .*)$", shown, re.MULTILINE)
    assert glassformer(*example.split()).out.startswith("#!/bin/bash\n")


def test_the_job_of_the_documentation_is_the_printed_one(glassformer: Glassformer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text("utf-8")
    command, job = page.split("```shell\nglassformer launch ")[1].split("\n```\n```text\n")
    assert glassformer("launch", *command.split()).out == job.split("```")[0]
