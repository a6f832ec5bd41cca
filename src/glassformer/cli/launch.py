"""glassformer launch RECIPE|FILE.toml --out DIR"""

import re
import shlex
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from glassformer import recipes
from glassformer.cli.train import run_for
from glassformer.config.schema import checked, setting
from glassformer.errors import UserError

MARGIN = 600
"""Seconds before the end of the job at which the run saves and stops."""

SLURM = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes} --ntasks-per-node=1 --cpus-per-task={cpus} --gpus-per-node={gpus}
#SBATCH --time={time} --signal=TERM@120
#SBATCH --requeue --open-mode=append
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
{resume_or_train}
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes "$SLURM_NNODES" --nproc-per-node {gpus} \\
    --rdzv-backend c10d --rdzv-endpoint "$head:29500" --rdzv-id "$SLURM_JOB_ID" \\
    -m glassformer "${{verb[@]}}" --train.max-time {seconds}
"""
"""One task per machine. Since Slurm 22.05, `srun` does not take the CPUs of a task from the options of `sbatch`."""

SKYPILOT = """name: "{name}"
resources:
  accelerators: {gpu}:{gpus}
workdir: .
setup: |
  ~/.local/bin/uv venv --allow-existing --python 3.11 ~/glassformer
  ~/.local/bin/uv pip install --python ~/glassformer . -c constraints.txt
run: |
  export PATH=~/glassformer/bin:"$PATH"
  {resume_or_train}
  torchrun --standalone --nproc-per-node "$SKYPILOT_NUM_GPUS_PER_NODE" -m glassformer "${{verb[@]}}" \\
      --train.max-time {seconds}
"""


@checked
class Machines:
    """Machines of the job."""

    section: ClassVar[str] = ""
    is_usual: ClassVar[bool] = True
    nodes: int = setting(1, "Number of machines.", "≥ 1")
    gpus: int = setting(8, "GPUs of each machine.", "≥ 1")
    cpus_per_gpu: int = setting(4, "CPUs for each GPU, as Slurm counts them; SkyPilot gives all of the machine.", "≥ 1")
    gpu: Annotated[str, "NAME"] = setting("H100", "Type of the GPUs, as SkyPilot names it.")
    hours: float = setting(4.0, "Time of the job; the run saves and stops ten minutes before its end.", "> 0")


def main(
    source: Annotated[str, "RECIPE|FILE.toml", "What to train."],
    /,
    *,
    out: Path,
    to: Literal["slurm", "skypilot"] = "slurm",
    machines: Machines,
    **keys: str,
) -> int:
    """Print a job file that trains a recipe on several GPUs, and that resumes the run if the job starts again.

    Args:
        out: The run folder, which all machines must share.
        to: The scheduler: sbatch reads the file for slurm, and `sky launch` the file for skypilot.

    Examples:
        glassformer launch openwebtext-gpt2 --out /shared/runs/gpt2 --nodes 2 --gpus 4
    """
    run, notes = run_for(source, kind=None, init=None, teacher=None, **keys)
    if run.train.max_time:
        raise UserError("launch sets train.max_time from --hours: leave train.max_time out")
    n = machines.nodes * machines.gpus
    if run.train.grad_accumulation % n:
        raise UserError(
            f"train.grad_accumulation is {run.train.grad_accumulation} and must be a multiple of the {n} processes: "
            f"add --train.grad-accumulation {n}, which makes a step of {n} micro-batches"
        )
    if to == "skypilot" and machines.nodes > 1:
        raise UserError("machines of SkyPilot share no disk for the run folder: use one node, or --to slurm")
    if 3600 * machines.hours <= 2 * MARGIN:
        raise UserError(f"--hours is {machines.hours:g}, and the run stops {MARGIN} s before its end: give more")
    recipes.note(notes)
    template = SLURM if to == "slurm" else SKYPILOT
    print(template.format(**values(run.name, source, out, machines, keys)), end="")
    return 0


def values(name: str, source: str, out: Path, machines: Machines, keys: dict[str, str]) -> dict[str, object]:
    """Return the values for the places of the templates."""
    flags = [word for key, value in keys.items() for word in (f"--{key.replace('_', '-')}", value)]
    train = shlex.join(["train", source, "--out", str(out), *flags])
    minutes = round(60 * machines.hours)
    folder = shlex.quote(str(out))
    is_begun = f"ls -d {folder}/checkpoints/step-* > /dev/null 2>&1"
    return {
        "name": re.sub("[^a-zA-Z0-9]+", "-", name).strip("-") or "glassformer",  # what both schedulers accept
        "nodes": machines.nodes,
        "gpus": machines.gpus,
        "cpus": machines.cpus_per_gpu * machines.gpus,
        "gpu": machines.gpu,
        "time": f"{minutes // 60:02}:{minutes % 60:02}:00",
        "seconds": 60 * minutes - MARGIN,
        "resume_or_train": f"if {is_begun}; then verb=(resume {folder}); else verb=({train}); fi",
    }
