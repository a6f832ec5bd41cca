"""Inject every fault the full number of times and print one line per fault: `make faults`.

python tests/faults/table.py [--quick] [PYTEST OPTIONS …]
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

FAULTS = {
    1: "SIGKILL while a checkpoint is written",
    2: "SIGKILL at random steps, three times in a run; the final weights are bit-identical",
    3: "the process ends before, during or after any write, fsync, rename or other disk operation",
    4: "the process ends during the deletion of old checkpoints",
    5: "SIGTERM, SIGINT, time limit: checkpoint saved, exit code correct, resumed bit-exactly",
    6: "resumed after every step of an epoch and at its end",
    7: "tokenizer training and data preparation killed",
    8: "two trainers in one run folder",
    9: "a flipped bit in a file",
    10: "a truncated, empty, longer, missing or additional file",
    11: "the newest checkpoint damaged; all damaged",
    12: "a disk that is full, read-only, faulty or missing",
    13: "NaN, Inf, fp16 overflow: stop, skip, rollback; in one of two processes",
    14: "no target, all tokens masked, shortest and longest rows",
    15: "SIGKILL of one process under torchrun; the run recovers",
    16: "a process that hangs",
    17: "resumed with another number of processes",
    18: "one of several processes cannot write",
    19: "SIGKILL while a checkpoint is written in the background",
    20: "data: binary, NUL characters, huge lines, unequal counts, truncated cache, changed files",
    21: "pickles in place of weights, data and configurations",
    22: "configurations that request code",
    23: "paths that lead out of a folder",
    24: "huge sizes, overlapping tensors, deep nesting, duplicate keys, NaN",
    25: "changed bytes in tokenizer.json; malicious ids and patterns",
    26: "tensors with another shape or type, missing or additional tensors",
    27: "server: clients that disconnect at random moments",
    28: "server: clients that stop reading their answer",
    29: "server: bodies cut short",
    30: "server: requests at once, several times more than it allows",
    31: "server: the thread of the models fails during answers",
    32: "server: a full disk of logs",
    33: "server: SIGTERM and SIGINT under load",
    34: "server: requests without growth of memory",
    35: "server: random and hostile requests to all endpoints",
}


def main(argv: list[str]) -> int:
    """Run the fault tests and print the table; return the exit code of the tests."""
    root = Path(__file__).parents[2]
    places = ["tests/faults", "tests/distributed/test_processes.py", "tests/serving/test_faults.py"]
    with tempfile.TemporaryDirectory() as folder:
        tally = Path(folder) / "tally.jsonl"
        amount = "quick" if "--quick" in argv else "full"
        environment = os.environ | {"GLASSFORMER_FAULTS": amount, "GLASSFORMER_FAULTS_TALLY": str(tally)}
        options = [word for word in argv if word != "--quick"] or ["-q", "--numprocesses", "auto"]
        command = [sys.executable, "-m", "pytest", *places, *options]
        code = subprocess.run(command, cwd=root, env=environment, check=False).returncode
        lines = [json.loads(line) for line in tally.read_text("utf-8").splitlines()] if tally.exists() else []
    print(table(lines))
    return code


def table(lines: list[dict[str, object]]) -> str:
    """Return a Markdown table with one line per fault."""
    injected: dict[int, int] = defaultdict(int)
    survived: dict[int, int] = defaultdict(int)
    seeds: dict[int, dict[str, None]] = defaultdict(dict)
    for line in lines:
        fault = int(str(line["fault"]))
        injected[fault] += int(str(line["injected"]))
        survived[fault] += int(str(line["survived"]))
        seeds[fault][str(line["seeds"])] = None
    rows = ["| | fault | injected | survived | seeds |", "|---:|---|---:|---:|---|"]
    for fault, what in FAULTS.items():
        n = injected[fault]
        share = f"{survived[fault]} ({100 * survived[fault] / n:.0f} %)" if n else "-"
        rows.append(f"| {fault} | {what} | {n} | {share} | {'; '.join(s for s in seeds[fault] if s != '-') or '-'} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
