"""A process that trains the runs of a sweep, one after another: it reads jobs and writes results, a JSON line each.

`python -m glassformer.apps.sweep.worker` starts it. Torch is imported once for all runs. If its input ends, because the
process of the sweep ended in any way, the current run is saved and the process ends.
"""

import json
import os
import queue
import shutil
import signal
import statistics
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer import api
from glassformer.common import files
from glassformer.common.errors import Interrupted, UserError, notes_to
from glassformer.config import recipes
from glassformer.config.run import Run
from glassformer.evaluation import metrics
from glassformer.store import checkpoint
from glassformer.store.lock import require_free
from glassformer.store.manifest import Manifest
from glassformer.tasks.reporting import Evaluation, Silent
from glassformer.training.checks import check_new_run
from glassformer.training.metrics_log import NAME, read_lines
from glassformer.training.run import train_run
from glassformer.training.trainer_state import read_progress

LONGEST_SAVE = 60.0
"""Seconds to wait for a run that another process still saves."""
N_TIMED = 20
"""Steps that are timed for a budget in seconds, after as many that are not."""


class PausedAt(Silent):
    """A reporter that stops a run as a signal does, at the first evaluation from a step on."""

    def __init__(self, until: int) -> None:
        self.until, self.is_paused = until, False

    def evaluation(self, evaluation: Evaluation) -> None:
        if evaluation.step >= self.until and not self.is_paused:
            self.is_paused = True
            signal.raise_signal(signal.SIGTERM)


def do(job: dict[str, Any]) -> dict[str, Any]:
    """Train the run of a job, or continue it, and return its values; or time its steps, if the job has no metric."""
    folder, run = Path(job["folder"]), recipes.parse(job["run"], job["folder"])
    wait_until_free(folder)
    if "metric" not in job:
        return {"seconds_per_step": seconds_per_step(run, folder)}
    result, begun = folder.with_suffix(".json"), time.monotonic()
    until: int | None = job.get("until")
    if until and (known := value_in_the_middle(folder, until, job["metric"])):
        return known
    if result.exists():
        return dict(files.read_json(result))
    reporter = PausedAt(until or run.train.max_steps + 1)
    try:
        if checkpoint.steps(folder):
            api.resume(folder, reporter)
        else:
            check_new_run(run, folder)
            train_run(run, folder, reporter)
    except Interrupted:
        if until and (known := value_in_the_middle(folder, until, job["metric"])):
            return known | {"seconds": round(time.monotonic() - begun, 3)}
        if reporter.is_paused:
            raise UserError(
                f"stop_early: the training does not measure {job['metric']}: watch it or leave out one"
            ) from None
        raise
    found = measured(folder, run, job["metric"]) | {"seconds": round(time.monotonic() - begun, 3)}
    found["data"] = digest_of(folder)
    files.write_json(result, found)
    shutil.rmtree(folder / checkpoint.FOLDER, ignore_errors=True)  # the run is done; its folder keeps the model
    return found if until is None else value_in_the_middle(folder, until, job["metric"]) or found


def value_in_the_middle(folder: Path, until: int, metric: str) -> dict[str, Any] | None:
    """Return the first evaluation of a run from a step on; None if it is not there yet."""
    for line in read_lines(folder / NAME):
        if line["step"] >= until and f"eval/valid_{metric}" in line:
            found = {"value": line[f"eval/valid_{metric}"], "step": line["step"], "seconds": 0.0}
            return found | {"data": digest_of(folder)}
    return None


def digest_of(folder: Path) -> str:
    """Return the hash of the data of a run, from its result or its newest checkpoint; "" if neither is there."""
    result = folder.with_suffix(".json")
    if result.exists():
        return str(files.read_json(result).get("data", ""))
    if not checkpoint.steps(folder):
        return ""
    return str(read_progress(checkpoint.newest(folder, lambda note: None)).data_digest)


def wait_until_free(folder: Path) -> None:
    """Wait for the worker of a sweep that was killed, which saves its run; raise `UserError` after `LONGEST_SAVE`."""
    begun = time.monotonic()
    while True:
        try:
            return require_free(folder)
        except UserError:
            if time.monotonic() - begun > LONGEST_SAVE:
                raise
            time.sleep(0.1)


def measured(folder: Path, run: Run, metric: str) -> dict[str, Any]:
    """Return the metric of the model of a run, from the evaluation of its step, or measured now; and the curve."""
    lines = [line for line in read_lines(folder / NAME) if f"eval/valid_{metric}" in line]
    step = Manifest.read(folder).step
    curve = [[line["step"], line[f"eval/valid_{metric}"]] for line in lines]
    values = [value for at, value in curve if at == step]
    if values and run.train.select != "average":  # the mean of several steps was not evaluated
        return {"value": values[-1], "step": step, "curve": curve}
    model = api.load(folder)
    if metric in metrics.names("losses"):
        value = model.evaluate(loss_only=True).to_dict()[metric]
    else:
        value = model.scores()[metric]
    return {"value": value, "step": step, "curve": curve}


def seconds_per_step(run: Run, folder: Path) -> float:
    """Return the time of a step, without evaluations, after the first steps."""
    train = replace(run.train, max_steps=2 * N_TIMED, eval_every=2 * N_TIMED, log_every=1, checkpoint_every=2 * N_TIMED)
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
    try:
        train_run(replace(run, train=train), folder, Silent())
        times = [line["step_ms"] / 1000 for line in read_lines(folder / NAME) if "step_ms" in line]
        return statistics.median(times[-N_TIMED:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a job, with the sentence of its error if it fails; raise `Interrupted` after a signal."""
    try:
        with notes_to(lambda note: None):
            return do(job)
    except UserError as error:
        return {"error": str(error)}
    except (Interrupted, KeyboardInterrupt):
        raise
    except Exception as error:
        traceback.print_exc()  # into the log of the workers
        return {"error": f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"}


def main() -> None:
    """Answer the jobs of the standard input until it ends."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing but results goes to the sweep
    jobs: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            jobs.put(line)
        jobs.put("")
        signal.raise_signal(signal.SIGTERM)  # the sweep has ended: save the current run

    threading.Thread(target=read, daemon=True).start()
    while line := jobs.get():
        job = json.loads(line)
        try:
            found = answer(job)
        except (Interrupted, KeyboardInterrupt):
            found = {"interrupted": True}
        results.write(json.dumps({"folder": job["folder"], **found}) + "\n")
        results.flush()
        if "interrupted" in found:
            break


if __name__ == "__main__":
    main()
