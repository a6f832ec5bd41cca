"""The runs of a sweep: who trains which, several at once, until the table is decided or the seeds are used up.

All that is known is in files: `sweep.json`, a folder per run, and `seed-N.json` beside it when the run is done. So a
sweep that was killed continues with the same command, and its table is the same.
"""

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from glassformer.apps.sweep.plan import NAME, Sweep, as_text, facts_of
from glassformer.common import files
from glassformer.common.errors import Interrupted, UserError
from glassformer.common.formatting import duration, plural
from glassformer.common.processes import close_pipes, n_processors
from glassformer.evaluation.sweep_table import FILE, SweepTable
from glassformer.evaluation.verdict import Verdict, verdicts
from glassformer.store.lock import locked

WORKER = [sys.executable, "-P", "-m", "glassformer.apps.sweep.worker"]
LOG, TABLE = "workers.log", "table.csv"
Report = Callable[[str], None]
Values = dict[str, dict[int, float]]
"""Values of the metric by variant and seed."""


class Worker:
    """A process that trains one run at a time (`worker`). Ctrl-C does not reach it: it ends when its input ends."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        """Take the folder of the sweep, and variables of the environment."""
        self.folder, self.settings = folder, settings
        self.process: subprocess.Popen[str] | None = None
        self.is_ended, self.starting = False, threading.Lock()

    def do(self, job: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a job; start the process if none runs. A process that was killed is an error."""
        with self.starting:
            if self.is_ended:
                return {"folder": job["folder"], "interrupted": True}
            process = self.process = self.process or self._started()
            assert process.stdin is not None and process.stdout is not None
            with suppress(OSError):  # a process that was killed gives no result
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()
        line = process.stdout.readline()
        if line.endswith("\n"):  # else the process was killed while it wrote
            return dict(json.loads(line))
        code = process.wait()
        self.process = None
        close_pipes(process)
        why = f"signal {-code}, perhaps for lack of memory" if code < 0 else f"exit code {code}"
        return {"folder": job["folder"], "error": f"the process ended ({why}): see {self.folder / LOG}"}

    def end(self) -> None:
        """Start no more runs, and wait until the process has saved the run that it trains, if any."""
        with self.starting:
            self.is_ended = True
            if self.process is not None and self.process.stdin is not None:
                with suppress(OSError):  # of a process that was killed
                    self.process.stdin.close()
                self.process.wait()

    def close(self) -> None:
        """End the process; no other thread waits for a result any more."""
        self.end()
        if self.process is not None:
            close_pipes(self.process)

    def _started(self) -> "subprocess.Popen[str]":
        pipe, own_group = subprocess.PIPE, dict[str, Any](process_group=0)
        if os.name == "nt":
            own_group = {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
        with open(self.folder / LOG, "a", encoding="utf-8") as log:
            return subprocess.Popen(
                WORKER,
                env=os.environ | self.settings,
                encoding="utf-8",
                stdin=pipe,
                stdout=pipe,
                stderr=log,
                **own_group,
            )


def judge(
    sweep: Sweep,
    table: SweepTable,
    train: Callable[[list[tuple[str, int]]], None],
    begin: Callable[[list[tuple[str, int]]], Values],
) -> None:
    """Give the table a verdict on each variant; `train` puts the values of variants and seeds into the table.

    With `stop_early`, `begin` trains the first half of all runs and returns the values there; a variant that is worse
    stops (one step of successive halving, Jamieson and Talwalkar 2016, by the test and not by rank). After each look, a
    decided variant gets no more seeds. The level of all looks together is `verdict.LEVEL`.
    """
    looks, going = sweep.looks, [label for label in sweep.variants if label != sweep.baseline]
    baseline = [] if sweep.earlier else [sweep.baseline]
    n_looks = looks.last - looks.first + 1 + sweep.stop_early

    def judged(values: Values) -> dict[str, Verdict]:
        known = {label: values[label] for label in going}
        return verdicts(values[sweep.baseline], known, higher_is_better=table.higher_is_better, n_looks=n_looks)

    # 1. The middle of the runs
    if sweep.stop_early:
        values = begin([(label, seed) for seed in range(looks.first) for label in sweep.labels])
        going = [label for label in going if label not in table.errors]
        if sweep.baseline in table.errors:
            return
        for label, verdict in judged(values).items():
            if verdict.word == "worse":
                table.verdicts[label] = replace(verdict, is_early=True)
                going.remove(label)
    # 2. Whole runs
    for n in range(looks.first, looks.last + 1):
        new = range(n) if n == looks.first else [n - 1]
        train([(label, seed) for seed in new for label in [*baseline, *going]])
        going = [label for label in going if label not in table.errors]
        if not going or sweep.baseline in table.errors:
            return
        for label, verdict in judged(table.values).items():
            if verdict.word != "not known" or n == looks.last:
                table.verdicts[label] = verdict
                going.remove(label)


def visible_gpus() -> list[str]:
    """Return the names of NVIDIA's GPUs for CUDA_VISIBLE_DEVICES: those of this variable, or else their numbers."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    if shutil.which("nvidia-smi") is None:
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return [str(n) for n in range(len(re.findall(r"^GPU ", listed, re.MULTILINE)))]


class Runner:
    """The state of a sweep in a folder."""

    def __init__(self, sweep: Sweep, folder: Path, report: Report, n_jobs: int = 0) -> None:
        self.sweep, self.folder, self.report = sweep, folder, report
        self.facts: dict[str, Any] = {}
        self.digests: dict[str, tuple[str, str]] = {}
        """The hash of the data, and a run that was trained on it, by the settings of the data."""
        n_cores = n_processors()
        self.gpus = visible_gpus() if sweep.base.train.device in ("auto", "cuda") else []
        self.n_jobs = min(n_jobs or len(self.gpus) or n_cores, len(sweep.variants) * sweep.looks.last)
        self.n_threads = max(1, n_cores // self.n_jobs)
        self.table = SweepTable(sweep.metric, sweep.baseline, {label: {} for label in sweep.labels})
        if sweep.earlier is not None:
            self.table.values[sweep.baseline] |= {n: sweep.earlier.values[n] for n in range(sweep.looks.last)}
            self.digests[repr(sweep.earlier.run.data)] = (sweep.earlier.digest, sweep.earlier.name)

    def run(self) -> SweepTable:
        """Train what is missing, and return the table."""
        with locked(self.folder):
            self.facts = {"threads": self.n_threads} | facts_of(self.folder, self.sweep)  # bits depend on the threads
            if earlier := " and ".join(str(rule[1]) for rule in self._earlier()):
                self.table.note = (
                    f"note: the sweep was judged before, with {earlier} seeds or another rule; all its tables together "
                    "may be wrong in more than 5 % of all cases: use --until-decided from the start"
                )
            files.write_json(self.folder / NAME, self.facts)
            self.table.folders = {label: self._place(label, 0).parent.name for label in self.sweep.variants}
            self._keep_table()
            workers = [Worker(self.folder, self._settings(n)) for n in range(self.n_jobs)]
            try:
                self._measure_steps(workers)
                judge(self.sweep, self.table, partial(self._train, workers), partial(self._begin, workers))
                self._keep_table()
                files.write_text(self.folder / TABLE, self.table.csv())
                files.write_json(self.folder / NAME, self.facts | {"judged": [*self._earlier(), self._rule()]})
            except KeyboardInterrupt:
                self.report(f"the table so far:\n{self.table}")
                message = f"the runs are saved in {self.folder}: the same command continues them"
                raise Interrupted(message, signal.SIGINT) from None
            finally:
                for worker in workers:
                    worker.close()
        return self.table

    def _rule(self) -> list[Any]:
        return [*self.sweep.looks, self.sweep.stop_early, self.sweep.baseline]

    def _earlier(self) -> list[list[Any]]:
        """Return the other rules (looks, whether runs stop early, baseline) by which the folder was judged."""
        return [rule for rule in self.facts.get("judged", []) if rule != self._rule()]

    def _measure_steps(self, workers: list[Worker]) -> None:
        """Decide the number of steps of each variant, and keep it: with a budget in seconds, steps are timed."""
        sweep = self.sweep
        if sweep.budget is None or "steps" in self.facts:
            return
        seconds = dict.fromkeys(sweep.variants, 0.0)
        if sweep.budget.unit == "seconds":
            self.report("timing the steps of each variant")
            for label in sweep.variants:  # one at a time, as many at once as later
                jobs = [self._job(label, -1 - n) for n in range(len(workers))]
                for job in jobs:
                    del job["metric"]
                found = [result for _, result in self._done(workers, jobs)]
                for result in found:
                    if "error" in result:
                        raise UserError(f"{label}: {result['error']}")
                seconds[label] = max(result["seconds_per_step"] for result in found)
        steps = {label: sweep.budget.steps(sweep.run(label, 0), seconds[label]) for label in sweep.variants}
        self.facts["steps"] = steps
        files.write_json(self.folder / NAME, self.facts)

    def _begin(self, workers: list[Worker], wanted: list[tuple[str, int]]) -> Values:
        """Train runs up to the evaluation in the middle, and return the values there."""
        values: Values = {label: {} for label in self.sweep.labels}

        def add(label: str, seed: int, result: dict[str, Any]) -> str:
            if result["value"] is None:  # of a run that ended before
                return self.table.fail(label, seed, f"{self.sweep.metric} is undefined")
            self._require_data(label, seed, result)
            values[label][seed] = result["value"]
            return f": {self.sweep.metric} {result['value']:.4f} at step {result['step']}"

        places = {self._place(*place): place for place in wanted}
        self._results(workers, places, [self._job(*place, is_half=True) for place in wanted], add)
        return values

    def _train(self, workers: list[Worker], wanted: list[tuple[str, int]]) -> None:
        """Train the runs of variants and seeds that are not done, and put the values of all into the table."""
        places = {self._place(label, seed): (label, seed) for label, seed in wanted}
        for folder in [folder for folder in places if folder.with_suffix(".json").exists()]:
            label, seed = places.pop(folder)
            result = files.read_json(folder.with_suffix(".json"))
            self._require_data(label, seed, result)
            self.table.add(label, seed, result)
        self._keep_table()
        self._results(workers, places, [self._job(*place) for place in places.values()], self._add)

    def _add(self, label: str, seed: int, result: dict[str, Any]) -> str:
        """Put the result of a new run into the table; a run on changed data is deleted."""
        try:
            self._require_data(label, seed, result)
        except UserError:
            place = self._place(label, seed)
            place.with_suffix(".json").unlink(missing_ok=True)
            shutil.rmtree(place, ignore_errors=True)
            raise
        return self.table.add(label, seed, result)

    def _require_data(self, label: str, seed: int, result: dict[str, Any]) -> None:
        """Raise `UserError` if the data of a run is not that of an earlier run with the same settings of the data."""
        data, name, digest = self.sweep.run(label, seed).data, f"{label} seed {seed}", result.get("data", "")
        known, earlier = self.digests.setdefault(repr(data), (digest, name))
        if digest and known and digest != known:
            raise UserError(
                f"the data of {name} is not that of {earlier}: restore the data, or choose another --out for new data"
            )

    def _results(
        self,
        workers: list[Worker],
        places: dict[Path, tuple[str, int]],
        jobs: list[dict[str, Any]],
        add: Callable[[str, int, dict[str, Any]], str],
    ) -> None:
        """Give the jobs to the workers, keep each result with `add`, and report it, with the time left."""
        seconds: list[float] = []
        with closing(self._done(workers, jobs)) as results:
            for n_done, (folder, result) in enumerate(results, start=1):
                label, seed = places[folder]
                what = f"{label} seed {seed}"
                if "error" in result:
                    what += self.table.fail(label, seed, result["error"])
                else:
                    what += add(label, seed, result)
                    seconds.append(result["seconds"])
                self._keep_table()
                n_left = len(places) - n_done
                left = (
                    f", about {duration(sum(seconds) / len(seconds) * n_left / len(workers))} left" if seconds else ""
                )
                self.report(f"{n_done} of {plural(len(places), 'run')}{left if n_left else ''}: {what}")

    def _keep_table(self) -> None:
        """Write the table so far for the page of `glassformer inspect`."""
        with suppress(UserError):  # on Windows, a page may read the file now
            files.write_json(self.folder / FILE, asdict(replace(self.table, curves={})))

    def _done(
        self, workers: list[Worker], jobs: list[dict[str, Any]]
    ) -> Generator[tuple[Path, dict[str, Any]], None, None]:
        """Yield the folder and the result of each job when it is done; raise `KeyboardInterrupt` after Ctrl-C."""
        idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in workers:
            idle.put(worker)

        def do(job: dict[str, Any]) -> dict[str, Any]:
            worker = idle.get()
            try:
                return worker.do(job)
            finally:
                idle.put(worker)

        with ThreadPoolExecutor(len(workers)) as pool:
            futures = [pool.submit(do, job) for job in jobs]
            try:
                for future in as_completed(futures):
                    result = future.result()
                    if "interrupted" in result:
                        raise KeyboardInterrupt
                    yield Path(result["folder"]), result
            finally:  # after Ctrl-C, wherever it arrived: the pool waits for what still runs
                for future in futures:
                    future.cancel()
                if not all(future.done() for future in futures):
                    for worker in workers:
                        worker.end()

    def _settings(self, number: int) -> dict[str, str]:
        """Return the variables of the environment of a worker: its threads and, if there are GPUs, its GPU."""
        threads = {"OMP_NUM_THREADS": str(self.facts["threads"])}
        return threads | ({"CUDA_VISIBLE_DEVICES": self.gpus[number % len(self.gpus)]} if self.gpus else {})

    def _job(self, label: str, seed: int, *, is_half: bool = False) -> dict[str, Any]:
        run = self.sweep.run(label, max(0, seed), self.facts.get("steps", {}).get(label))
        train = run.train if run.train.select == "average" else replace(run.train, keep_checkpoints=1)
        folder = str(self._place(label, seed))
        run, middle = replace(run, train=train), 0
        if self.sweep.stop_early:
            run, middle = self.sweep.halved(run)
        job = {"folder": folder, "run": as_text(run), "metric": self.sweep.metric}
        return job | ({"until": middle} if is_half else {})

    def _place(self, label: str, seed: int) -> Path:
        number = list(self.facts["variants"]).index(label)  # the order of the first command
        name = re.sub(r"[^\w=.-]+", "-", label)[:80]
        return self.folder / f"{number}-{name}" / f"seed-{seed}"
