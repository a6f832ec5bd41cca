"""One candidate in its own process: build it, then run one round per line of standard input.

    echo '{"make": "rates:measured", "arguments": {}}' | python benchmarks/worker.py

The first line is the order (`turns.py`). Every reply is one line of JSON. `turns.py` starts this program.
"""

import json
import os
import resource
import sys
import time
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from task import Task

QUIET_SECONDS, LONGEST_WAIT = 0.02, 1.0


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # packages may print; standard output is only for the replies

    def reply(**values: Any) -> None:
        print(json.dumps(values), file=replies, flush=True)

    try:
        order = json.loads(sys.stdin.readline())
        module, name = order["make"].split(":")
        task: Task = getattr(import_module(module), name)(**order["arguments"])
        with freed_memory_kept() if order.get("keeps_memory") else nullcontext():
            reply(**facts(task))
            for line in sys.stdin:
                if line.strip() == "end":
                    break
                reply(seconds=seconds_of(task))
        reply(peak_bytes=peak_bytes(task.runs_programs))
    except Exception as error:
        lines = str(error).strip().splitlines()
        reply(error=f"{type(error).__name__}: {lines[0] if lines else 'no message'}")


def freed_memory_kept() -> Any:
    """Return the context of glassformer's trainer; peers do not import it."""
    from glassformer.models.devices import freed_memory_kept

    return freed_memory_kept()


def facts(task: Task) -> dict[str, Any]:
    """Return the size of the work, and the threads and the GPU of torch if the candidate uses torch."""
    torch = sys.modules.get("torch")
    sizes = {name: getattr(task, name) for name in ("amount", "flops", "bytes_read", "parameters")}
    threads = {} if torch is None else {"threads": torch.get_num_threads()}
    device = {"device": torch.cuda.get_device_name()} if torch is not None and of_gpu() else {}
    return sizes | dict(task.found) | threads | device


def seconds_of(task: Task) -> float:
    """Run one round; return the seconds per call."""
    total = 0.0
    for _ in range(task.first_calls):
        task.call()
    task.wait()
    began = time.perf_counter()
    for _ in range(task.calls):
        found = task.call()
        total += float(found) if task.measures else 0.0  # type: ignore[arg-type]
    task.wait()
    wall = time.perf_counter() - began
    settle()
    if torch := of_gpu():
        torch.cuda.empty_cache()  # the other candidates need the memory
    return (total if task.measures else wall) / task.calls


def settle() -> None:
    """Wait until the threads of this process sleep: idle OpenMP threads spin for some milliseconds after their work."""
    end = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < end:
        before = time.process_time()
        time.sleep(QUIET_SECONDS)
        if time.process_time() - before < QUIET_SECONDS / 10:
            return


def of_gpu() -> Any:
    """Return torch if this process uses a GPU, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def peak_bytes(of_programs: bool) -> int:
    """Return the largest memory so far: allocated on the GPU, or resident in this process or in programs it has run."""
    if torch := of_gpu():
        return int(torch.cuda.max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_CHILDREN if of_programs else resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


if __name__ == "__main__":
    main()
