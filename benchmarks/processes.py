"""Time of saving checkpoints, and speed of one process with two threads and of two processes with one thread.

    python benchmarks/processes.py [--steps 200] [--every 20]

Each line is a separate run of the recipe `python-docs` (the model of the demo) from the command line. Rates are medians
from the log, without the first line. The share of saving is the sum of `save_ms`, divided by that sum plus the time of
the steps. With the default of `--every`, checkpoints are far more frequent than in real runs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "glassformer", "train", "python-docs"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *COMMAND[1:]]
WAYS: dict[str, tuple[list[str], int, list[str]]] = {
    "1 process, 2 threads": (COMMAND, 2, []),
    "1 process, 1 thread": (COMMAND, 1, []),
    "2 processes of 1 thread, ddp": (TORCHRUN, 1, []),
    "2 processes of 1 thread, fsdp": (TORCHRUN, 1, ["--parallel.strategy", "fsdp"]),
}


def lines_of(command: list[str], threads: int, words: list[str]) -> tuple[list[dict[str, float]], float, int]:
    """Train; return the log lines with a rate, the total seconds, and the bytes of the last checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        began = time.perf_counter()
        subprocess.run([*command, "--out", str(out), *words], env=environment, check=True, capture_output=True)
        seconds = time.perf_counter() - began
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text("utf-8").splitlines()]
        newest = max((out / "checkpoints").glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
        size = sum(path.stat().st_size for path in newest.rglob("*") if path.is_file())
    return [line for line in lines if "tokens_per_s" in line], seconds, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    arguments = parser.parse_args()
    steps = ["--train.max-steps", str(arguments.steps), "--train.eval-every", str(arguments.steps)]
    steps += ["--train.log-every", "10"]

    print(f"{arguments.steps} steps of python-docs, a checkpoint every {arguments.every}")
    print(f"{'':<34} {'MB each':>8} {'loop ms per checkpoint':>22} {'share of the run':>17}")
    saving = [*steps, "--train.checkpoint-every", str(arguments.every), "--train.batch-size", "8"]
    for name, flag in (("written in the background", "true"), ("written in the loop", "false")):
        lines, _, size = lines_of(COMMAND, 1, [*saving, "--train.background-saving", flag])
        taken = [line["save_ms"] for line in lines if "save_ms" in line]
        n_saved = (arguments.steps - 1) // arguments.every  # the save of the last step comes after the last log line
        total = sum(taken) + sum(line["step_ms"] * 10 for line in lines)
        print(f"{name:<34} {size / 1e6:>8.1f} {sum(taken) / n_saved:>22.1f} {sum(taken) / total:>17.2%}")

    print()
    print(f"{'':<34} {'tokens/s':>10} {'total seconds':>19}")
    rows = [
        "--train.batch-size",
        "16",
        "--train.grad-accumulation",
        "2",
        "--train.optimizer.kind",
        "adamw",
    ]
    rows += ["--train.optimizer.learning-rate", "0.002"]
    for name, (command, threads, words) in WAYS.items():
        lines, seconds, _ = lines_of(command, threads, [*steps, *rows, *words])
        print(f"{name:<34} {statistics.median(line['tokens_per_s'] for line in lines[1:]):>10,.0f} {seconds:>19.1f}")


if __name__ == "__main__":
    main()
