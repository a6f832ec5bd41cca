"""Speed of glassformer and of other packages: every candidate in its own process, one round at a time, in turns.

    python benchmarks/run.py [NAME …] [--rounds N] [--seconds S] [--data FOLDER] [--json FILE]
    python benchmarks/run.py --page [--json FILE]

Without NAME, all benchmarks run, except those that need a GPU (`make gpu`). `--json` adds the results to a file;
`--page` writes the tables of docs/benchmarks.md from such a file (docs/benchmarks.json). Tables show medians, and the
median of the ratios of each round.
"""

import argparse
import functools
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import page
import tables
from catalogue import BENCHMARKS, ON_GPU, Benchmark
from results import Result, Row, write
from turns import Candidate, Measured, take_turns

PACKAGES = ("torch", "transformers", "x-transformers", "tokenizers", "ctranslate2", "xllamacpp", "tiktoken")


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--rounds", type=int, default=0, help="rounds per candidate; 0 = the default of each benchmark")
    parser.add_argument("--seconds", type=float, default=600.0, help="time of each benchmark, rates included")
    parser.add_argument("--data", type=Path, help="folder with train.en and train.de of Multi30k")
    parser.add_argument("--json", type=Path, help="file of results")
    parser.add_argument("--page", action="store_true", help="write docs/benchmarks.md; measure nothing")
    arguments = parser.parse_args(words)
    known = BENCHMARKS | ON_GPU
    if unknown := [name for name in arguments.names if name not in known]:
        parser.error(f"unknown benchmark {unknown[0]!r}: choose from {', '.join(known)}")
    if arguments.page:
        page.write_page(arguments.json or page.RESULTS)
        return
    for name in arguments.names or BENCHMARKS:
        benchmark = known[name]()
        if benchmark.needs_data and arguments.data is None:
            print(f"{name} skipped: give the folder of train.en and train.de with --data FOLDER\n", flush=True)
            continue
        print(f"{name}: {benchmark.title}", flush=True)
        result = measure(benchmark, arguments.rounds or benchmark.rounds, arguments.data, arguments.seconds)
        print(tables.facts(result), end="\n\n")
        print("\n\n".join(map(tables.as_text, tables.tables(result))), end="\n\n", flush=True)
        if arguments.json is not None:
            write(arguments.json, {name: result})


def measure(benchmark: Benchmark, rounds: int, data: Path | None = None, seconds: float = 600.0) -> Result:
    """Prepare the data, measure the rates of the machine before and after the rounds, and return the result.

    All this takes about `seconds`. Settings in bf16 are skipped on a machine that is not faster in bf16.
    """
    began = time.monotonic()
    end, name, has_bf16 = began + seconds, *machine(benchmark.device)
    skipped = dict.fromkeys(one.setting for one in benchmark.candidates if one.precision == "bf16" and not has_bf16)
    for setting in skipped:
        print(f"skipped: {setting}, bf16 has no gain on this processor", flush=True)
    for_rates = {"device": benchmark.device, "seconds": min(60.0, seconds / 10)}
    with tempfile.TemporaryDirectory() as folder:
        candidates = [_with_folder(one, folder) for one in benchmark.candidates if one.setting not in skipped]
        before = rates(for_rates) if benchmark.share else {}
        took = time.monotonic() - began
        measured = prepared(benchmark, candidates, folder, data, end)
        measured = measured or turns(benchmark, candidates, rounds, end - min(took, seconds / 10))
    has_time = time.monotonic() + took < end
    after = rates(for_rates) if benchmark.share and has_time else before
    best = {name: max(before[name], after[name]) for name in before}
    rows = [
        Row(
            one.candidate.name,
            one.candidate.setting,
            one.candidate.precision,
            [] if one.error else one.seconds,
            one.facts,
            one.peak_bytes,
            one.error,
        )
        for one in measured
    ]
    return Result(
        benchmark.title,
        benchmark.work,
        benchmark.share,
        benchmark.reference,
        benchmark.picks_best,
        made(measured, name, skipped),
        best,
        rows,
    )


def prepared(
    benchmark: Benchmark, candidates: list[Candidate], folder: str, data: Path | None, end: float
) -> list[Measured]:
    """Fill the folder in a process of its own; if it fails, return every candidate with the reason."""
    if benchmark.prepare is None:
        return []
    make, arguments = benchmark.prepare
    arguments = {"folder": folder, **arguments} | ({"data": str(data)} if benchmark.needs_data else {})
    [one] = take_turns([Candidate("preparation", make, arguments)], 0, 0, end=end)
    return [Measured(candidate, error=one.error) for candidate in candidates] if one.error else []


def turns(benchmark: Benchmark, candidates: list[Candidate], rounds: int, end: float) -> list[Measured]:
    """Run the candidates of each setting in turns, or all together for the fastest setting of each.

    Each setting gets an equal part of the time that is left.
    """
    settings = [] if benchmark.picks_best else dict.fromkeys(one.setting for one in candidates)
    groups = [[one for one in candidates if one.setting == setting] for setting in settings] or [candidates]
    measured = []
    for number, group in enumerate(groups):
        now = time.monotonic()
        its_end = now + (end - now) / (len(groups) - number)
        measured += take_turns(group, rounds, benchmark.warmups, end=its_end)
    return measured


def rates(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Measure the rates of the machine in a process of their own."""
    [one] = take_turns([Candidate("rates of the machine", "rates:measured", arguments)], 0, 0)
    if one.error:
        raise SystemExit("the rates of the machine are needed for this table")
    return {name: one.facts[name] for name in ("fp32", "bf16", "copy") if name in one.facts}


@functools.cache
def machine(device: str) -> tuple[str, bool]:
    """Return the cores and the name of the processor, and whether the device is faster in bf16."""
    [one] = take_turns([Candidate("kind of the machine", "rates:machine", {"device": device})], 0, 0)
    if one.error:
        raise SystemExit("the kind of the machine is needed to choose the settings")
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return f"{cores} cores of {one.facts['processor']}", bool(one.facts["has_bf16"])


def made(measured: list[Measured], processor: str, skipped: Iterable[str]) -> dict[str, str]:
    """Return the date, the processor, the GPU, the threads, the versions of the packages and the skipped settings."""
    found = {"date": time.strftime("%Y-%m-%d"), "processor": processor}
    if devices := sorted({one.device for one in measured if one.device}):
        found["device"] = " and ".join(devices)
    threads = sorted({int(one.facts["threads"]) for one in measured if "threads" in one.facts})
    if threads:
        found["threads"] = f"{'/'.join(map(str, threads))} thread{'s' * (threads != [1])} of torch"
    found["python"] = f"Python {platform.python_version()}"
    for package in PACKAGES:
        try:
            found[package] = f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
    if settings := "; ".join(skipped):
        found["skipped"] = f"bf16 has no gain here, so not measured: {settings}"
    return found


def _with_folder(candidate: Candidate, folder: str) -> Candidate:
    arguments: Mapping[str, Any] = candidate.arguments
    return replace(candidate, arguments={**arguments, "folder": folder}) if "folder" in arguments else candidate


if __name__ == "__main__":
    main()
