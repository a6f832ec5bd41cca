"""`sweep`: train variants of a run with several seeds, and judge the differences."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.apps.sweep import plan
from glassformer.apps.sweep.runner import Runner
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.run import Run
from glassformer.evaluation.sweep_table import SweepTable
from glassformer.training.checks import check_new_run, run_of

MOST_SEEDS = 1000


def sweep(
    base: Run | str | Path,
    vary: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | None = None,
    budget: str | None = None,
    against: str | None = None,
    metric: str | None = None,
    until_decided: int | None = None,
    stop_early: bool | None = None,
    jobs: int = 0,
    out: str | Path | None = None,
    report: Callable[[str], None] = lambda text: None,
    **changes: Any,
) -> SweepTable:
    """Train variants of a run with several seeds, and return the table with a verdict on each (`evaluation.verdict`).

        table = sweep("mybook.txt", {"learning_rate": [0.001, 0.003]}, seeds=3, budget="300 steps")
        print(table)

    `base` is a `Run`, the name of a recipe, a TOML file, or own data. `vary` has the values of each key; the variants
    are all combinations, and the first one is the baseline, or the one that `against` names. Without `vary`, the base
    alone runs with several seeds (default 3). `against` may also be the folder of an earlier sweep, whose baseline is
    then that of this one: so an idea is judged that changes the code and not a key. `budget` is the length of each run
    in steps, tokens or seconds. `until_decided` adds seeds to the variants that are not decided, up to this number;
    `stop_early` trains a variant no further that is worse in the middle of its runs. A TOML file may have these
    settings in a table [sweep]; arguments replace them. `jobs` runs train at the same time; 0 = one per core, each with
    one thread. `changes` are keys of the base. Every run is a model directory in the folder `out` (default
    sweeps/NAME). The same call continues a sweep that was stopped. Raises `UserError` for a key or a metric that is
    unknown, and for a folder with another sweep.
    """
    of_file: dict[str, Any] = {}
    if isinstance(base, (str, Path)) and str(base).endswith(".toml"):
        run, of_file = plan.split_table(Path(base))
    else:
        run = base if isinstance(base, Run) else run_of(base)[0]
    given = (vary, seeds, budget, against, metric, until_decided, stop_early)
    settings = of_file | {key: value for key, value in zip(plan.KEYS, given, strict=True) if value is not None}
    folder = None if out is None else files.as_path(out, "out")
    planned, folder = _planned(recipes.with_changes(run, changes), folder, **settings)
    require_numbers(jobs=jobs)
    return Runner(planned, folder, report, jobs).run()


def _planned(
    run: Run,
    out: Path | None,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 3,
    budget: str = "",
    against: str = "",
    metric: str = "",
    until_decided: int = 0,
    stop_early: bool = False,
) -> tuple[plan.Sweep, Path]:
    """Return the plan of a sweep and its folder, after all checks that need no run."""
    # 1. The plan
    for name, text in (("budget", budget), ("against", against), ("metric", metric)):
        if not isinstance(text, str):
            raise UserError(f"{name}: expected a text, got {text!r}")
    if not isinstance(stop_early, bool):
        raise UserError(f"stop_early: expected true or false, got {stop_early!r}")
    require_numbers(seeds=seeds, until_decided=until_decided)
    if 0 < until_decided <= seeds:
        raise UserError(f"until_decided: expected more than the {seeds} seeds of each variant, got {until_decided}")
    folder = out or Path("sweeps") / run.name
    earlier = None
    if against and files.exists(Path(against)):
        if Path(against).resolve() == folder.resolve():
            raise UserError(f"against: {against} is the folder of this sweep: give another --out")
        earlier = plan.Earlier.read(Path(against))
    variants = plan.varied(vary or {}, "" if earlier else against, run.name)
    if vary and len(variants) < 2 and earlier is None:
        raise UserError(f"only one variant, {next(iter(variants))}: give two values of a key at least")
    length = plan.Budget.parse(budget) if budget else None
    planned = plan.Sweep(run, variants, metric, length, seeds, until_decided, stop_early, earlier)
    # 2. What can be checked before the first run
    files.require_writable(folder)
    for label in variants:
        check_new_run(planned.run(label, 0), folder / "new")
    plan.require_comparable(planned)
    planned = replace(planned, metric=plan.chosen_metric(run, variants, metric))  # imports torch
    if earlier is not None:
        earlier.require(planned)
    plan.facts_of(folder, planned)  # refuses a folder with other files, before its lock is written
    return planned, folder


def require_numbers(**numbers: int) -> None:
    """Raise `UserError` for a number of seeds or of jobs that is no small whole number."""
    for name, n in numbers.items():
        lowest = 1 if name == "seeds" else 0
        if type(n) is not int or not lowest <= n <= MOST_SEEDS:
            raise UserError(f"{name}: expected a whole number from {lowest} to {MOST_SEEDS:,}, got {n!r}")
