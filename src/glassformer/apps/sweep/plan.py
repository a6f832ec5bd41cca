"""The plan of a sweep: the variants of a base run, the seeds, the budget and the metric; and its file `sweep.json`."""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from glassformer.common import files
from glassformer.common.errors import UserError, did_you_mean, quoted
from glassformer.config import recipes
from glassformer.config.run import Run
from glassformer.config.schema import to_dict
from glassformer.config.written import parse_toml, to_toml
from glassformer.evaluation import metrics
from glassformer.store.lock import LOCK, OWNER
from glassformer.tasks.task import trainable_task

NAME = "sweep.json"
MOST = 1e15
UNITS = ("steps", "tokens", "seconds")
KEYS = ("vary", "seeds", "budget", "against", "metric", "until_decided", "stop_early")
"""Keys of the table `[sweep]` of a TOML file, which are the options of the command."""
COMPARABLE = ("bits_per_byte",)
"""Losses that can be compared between tokenizers: others are per token."""


@dataclass(frozen=True)
class Budget:
    """The length of each run: a number of steps, of tokens (padding included) or of seconds."""

    amount: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Budget":
        """Read a budget; a number without a unit counts steps.

        >>> Budget.parse("2e6 tokens"), str(Budget.parse("500"))
        (Budget(amount=2000000.0, unit='tokens'), '500 steps')
        """
        match = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([a-z]*)", text.strip().replace(",", ""))
        unit = next((unit for unit in UNITS if match and match[2] and unit.startswith(match[2])), "steps")
        try:
            amount = float(match[1]) if match and (not match[2] or unit.startswith(match[2])) else 0.0
        except ValueError:
            amount = 0.0
        if not 0 < amount <= MOST:
            raise UserError(f"budget: expected a number of {', '.join(UNITS)}, such as '500 steps', got {quoted(text)}")
        return cls(amount, unit)

    def __str__(self) -> str:
        return f"{self.amount:,g} {self.unit}" if self.amount < 1e6 else f"{self.amount:g} {self.unit}"

    def steps(self, run: Run, seconds_per_step: float) -> int:
        """Return the number of steps of a run; `seconds_per_step` is only used for a budget in seconds."""
        if self.unit == "steps":
            return math.ceil(self.amount)
        if self.unit == "seconds":
            return max(1, int(self.amount / seconds_per_step))
        batch = trainable_task(run).micro_batch(run)
        tokens = batch.budget or batch.n_rows * (batch.row_length or run.model.max_len)
        return max(1, math.ceil(self.amount / (tokens * run.train.grad_accumulation)))


class Looks(NamedTuple):
    """The looks at a table that grows by a seed at a time: from `first` seeds to `last`."""

    first: int
    last: int


@dataclass(frozen=True)
class Earlier:
    """The baseline of an earlier sweep, for an idea that is in the code and not in a key."""

    name: str
    metric: str
    budget: str
    run: Run
    values: Mapping[int, float]
    digest: str
    """Hash of the data; "" if it is unknown."""

    @classmethod
    def read(cls, folder: Path) -> "Earlier":
        """Read the baseline of the sweep in a folder; raise `UserError` if a file is missing or damaged."""
        try:
            facts = files.read_json(folder / NAME) if (folder / NAME).exists() else {}
            results = {path.stem: files.read_json(path) for path in folder.glob("0-*/seed-*.json")}
            values = {int(name.partition("-")[2]): found["value"] for name, found in sorted(results.items())}
            run = recipes.parse(next(iter(facts["variants"].values())), str(folder / NAME))
            known = {seed: float(value) for seed, value in values.items() if value is not None}
            digest = str(next(iter(results.values())).get("data", ""))
            return cls(f"earlier {folder}", str(facts["metric"]), str(facts["budget"]), run, known, digest)
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration):
            raise UserError(f"against: {folder} is no folder of a sweep, or its files are damaged") from None

    def require(self, sweep: "Sweep") -> None:
        """Raise `UserError` if the sweep has another metric, budget, length or validation data, or more seeds."""
        own = sweep.run(next(iter(sweep.variants)), 0)
        for what, ours, theirs in (
            ("metric", sweep.metric, self.metric),
            ("budget", str(sweep.budget or "none"), self.budget or "none"),
            ("number of steps", sweep.budget or own.train.max_steps, sweep.budget or self.run.train.max_steps),
            ("validation data", held_out(own), held_out(self.run)),
            ("objective", own.objective.kind, self.run.objective.kind),
        ):
            if ours != theirs:
                raise UserError(f"against: {self.name} has another {what}: {theirs}, not {ours}")
        if sweep.stop_early:
            raise UserError("stop_early: the baseline of an earlier sweep has no value in the middle: leave out one")
        if missing := set(range(sweep.looks.last)) - set(self.values):
            raise UserError(f"against: {self.name} lacks seed {min(missing)}: continue it with more seeds first")


@dataclass(frozen=True)
class Sweep:
    """A base run and what varies: `variants` has the changed keys of each variant by its label, the baseline first.

    If `earlier` is given, the baseline is not trained: it is that of another sweep.
    """

    base: Run
    variants: Mapping[str, Mapping[str, Any]]
    metric: str
    budget: Budget | None = None
    """The length of each run; None = that of the base."""
    seeds: int = 3
    until_decided: int = 0
    """Largest number of seeds for variants that are not decided; 0 = `seeds` for all."""
    stop_early: bool = False
    """True: a variant that is worse in the middle of its runs is not trained further."""
    earlier: Earlier | None = None

    @property
    def baseline(self) -> str:
        return self.earlier.name if self.earlier else next(iter(self.variants))

    @property
    def labels(self) -> list[str]:
        """The rows of the table."""
        return list(dict.fromkeys([self.baseline, *self.variants]))

    @property
    def looks(self) -> "Looks":
        """The numbers of seeds after which the table is judged."""
        return Looks(self.seeds, max(self.seeds, self.until_decided))

    def run(self, label: str, seed: int, n_steps: int | None = None) -> Run:
        """Return the run of a variant with a seed; `n_steps` replaces its number of steps."""
        run = recipes.with_changes(self.base, self.variants[label], "vary")
        steps = run.train.max_steps if n_steps is None else n_steps
        return replace(run, name=label, train=replace(run.train, seed=seed, max_steps=steps))

    def halved(self, run: Run) -> tuple[Run, int]:
        """Return a run that is evaluated in its middle, and this step: equal parts of the schedules are compared."""
        half = run.train.max_steps / 2
        n = max(1, round(half / run.train.eval_every))
        every = max(1, round(half / n))
        return replace(run, train=replace(run.train, eval_every=every)), n * every

    def stored(self) -> dict[str, Any]:
        """Return what must not change while the sweep grows, for `sweep.json`."""
        variants = {label: as_text(self.run(label, 0)) for label in self.variants}
        return {"metric": self.metric, "budget": str(self.budget or ""), "variants": variants}


def varied(vary: Mapping[str, Sequence[Any]], against: str = "", alone: str = "base") -> dict[str, dict[str, Any]]:
    """Return the changes of every combination of values, by labels, the baseline first.

    The baseline is the combination of the first values, or the one that `against` names. Keys that are joined by "/"
    vary together; so do their values. If nothing varies, the base itself is the only variant, with the label `alone`.

    >>> list(varied({"d_model": [64, 96], "d_ff": [256]}, against="d_model=96"))
    ['d_model=96 d_ff=256', 'd_model=64 d_ff=256']
    >>> varied({"batch_size/grad_accumulation": ["8/4", "32/1"]})["batch_size=32 grad_accumulation=1"]
    {'batch_size': '32', 'grad_accumulation': '1'}
    """
    if not isinstance(vary, Mapping) or not all(isinstance(values, (list, tuple)) for values in vary.values()):
        raise UserError("vary: expected a table of keys, each with a list of values, such as {d_model = [64, 96]}")
    by_key = [[_changes(key, value) for value in values] for key, values in vary.items()]
    found = {}
    for combination in itertools.product(*by_key):
        changes = {key: value for part in combination for key, value in part.items()}
        found[" ".join(f"{key}={value}" for key, value in changes.items()) or alone] = changes
    if not found:
        raise UserError("no variant: give one value of each key at least")
    if not against:
        return found
    named = [label for label in found if set(against.split()) <= set(label.split())]
    if len(named) != 1:
        what = "no variant and no folder is" if not named else f"{len(named)} variants are"
        raise UserError(f"{what} {quoted(against)}: {did_you_mean(against, list(found), 'the variants are')}")
    return {named[0]: found[named[0]], **found}


def _changes(key: str, value: Any) -> dict[str, Any]:
    """Return the changes of a key, or of keys that are joined, with its value or values."""
    if "/" not in key:
        return {key: value}
    keys, values = key.split("/"), [type(value)(part) for part in str(value).split("/")]
    if len(keys) != len(values):
        raise UserError(f"{key}={value}: expected {len(keys)} values that are joined by /, got {len(values)}")
    return dict(zip(keys, values, strict=True))


def chosen_metric(base: Run, variants: Mapping[str, Mapping[str, Any]], metric: str = "") -> str:
    """Return the metric of a sweep: the given one, or bits per byte for texts, or else what selects the best step.

    Raises `UserError` for a metric that the run does not have, and for a loss per token of several tokenizers.
    """
    if metric and metric not in metrics.METRICS:  # before torch is imported
        raise UserError(f"metric: {did_you_mean(metric, list(metrics.METRICS), 'known metrics are')}")
    known = {"loss", *trainable_task(base).metrics(base)}
    watched = base.train.early_stopping.metric if base.train.early_stopping else "loss"
    usual = "bits_per_byte" if "bits_per_byte" in known else watched
    name = metric or (usual if usual in known else "loss")
    if name not in known:
        raise UserError(f"metric: expected one of {', '.join(sorted(known))}, got {quoted(name)}")
    tokenizers = {
        repr((run.tokenizer, run.source_tokenizer))
        for changes in variants.values()
        for run in [recipes.with_changes(base, changes, "vary")]
    }
    if len(tokenizers) > 1 and name in metrics.names("losses") and name not in COMPARABLE:
        raise UserError(
            f"{name} is per token, and the variants have several tokenizers: give another --metric, such as "
            f"{next((one for one in sorted(known) if one in COMPARABLE or one not in metrics.names('losses')), 'bleu')}"
        )
    return name


def split_table(path: Path) -> tuple[Run, dict[str, Any]]:
    """Return the run of a TOML file, and its table `[sweep]`; raise `UserError` for an unknown key of this table."""
    table = parse_toml(files.read_text(path), str(path))
    own = table.pop("sweep", {})
    for key in own:
        if key not in KEYS:
            raise UserError(f"unknown key sweep.{key} (in {path}): {did_you_mean(key, KEYS, 'known keys are')}")
    return recipes.parse(to_toml(table), str(path)), own


def facts_of(folder: Path, sweep: Sweep) -> dict[str, Any]:
    """Return what `sweep.json` has, or for a new folder what it will have; raise `UserError` for another sweep."""
    path, facts = folder / NAME, sweep.stored()
    if path.exists():
        stored = files.read_json(path)
        for key, value in facts.items():
            if not isinstance(stored, dict) or stored.get(key) != value:
                raise UserError(f"{folder} has a sweep with other {key}: choose another --out, or delete the folder")
        return dict(stored)
    strangers = [one.name for one in folder.glob("*") if one.name not in (LOCK, OWNER) and ".tmp" not in one.name]
    if strangers:
        raise UserError(
            f"{folder} is not empty (it contains {min(strangers)}), and has no {NAME}: choose another --out"
        )
    return facts


def require_comparable(sweep: Sweep) -> None:
    """Raise `UserError` if two variants are the same run, or if their losses are of different data or objectives."""
    runs = {label: replace(sweep.run(label, 0, 1 if sweep.budget else None), name="") for label in sweep.variants}
    known: dict[str, str] = {}
    for label, run in runs.items():
        other = known.setdefault(as_text(run), label)
        if other != label:
            raise UserError(f"the variants {other} and {label} are the same run: leave one out")
        if run.train.max_time:
            raise UserError("train.max_time would stop the runs at different steps: leave it out, and give a budget")
    for what, facts_of_run in (("validation data", held_out), ("objectives", lambda run: run.objective.kind)):
        if len({repr(facts_of_run(run)) for run in runs.values()}) > 1:
            raise UserError(f"the variants have different {what}, so that their values cannot be compared")


def held_out(run: Run) -> list[Any]:
    """Return the settings that decide the validation data: its own paths, or the data and the fraction held out."""
    own = [getattr(run.data, name, None) for name in ("valid_path", "valid_source", "valid_target")]
    if any(own):
        return own
    return [getattr(run.data, name, None) for name in ("path", "source", "target", "valid_fraction", "text_field")]


def as_text(run: Run) -> str:
    """Return a run as TOML, for `sweep.json` and for the workers."""
    return to_toml(to_dict(run))
