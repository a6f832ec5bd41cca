"""glassformer plan CONFIG"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from glassformer import recipes
from glassformer.cli.arguments import Words, fail, read_words, with_flags
from glassformer.config.presets import PRESETS, preset
from glassformer.config.run import MaskedConfig, Run
from glassformer.cost.hardware import GIB, GPUS, USABLE, find_gpu
from glassformer.cost.plan import MFU, Layout, Plan, plan_run
from glassformer.errors import UserError, nearest_name
from glassformer.evaluation.compare import describe_model
from glassformer.files import exists
from glassformer.formatting import count, duration
from glassformer.store.model_directory import RUN, read_run

T = TypeVar("T", int, float)

HELP = f"""usage: glassformer plan CONFIG [--gpus N] [--gpu NAME] [--section.key value …] [--json]

What a run needs before it is started: parameters, memory by part, FLOPs, time, and the layout that fits.
CONFIG is a preset, a recipe, a TOML file or a model directory; every key of a recipe is a flag, as in train.

  --gpus N           how many there are (default 1)
  --gpu NAME         {", ".join(GPUS)} (default h200)
  --batch-size N     rows of a micro-batch on each GPU (default train.batch_size)
  --context N        tokens of a row (default data.context, or model.max_len)
  --precision NAME   fp32, bf16 or fp16 (default train.precision)
  --tokens N         tokens that the run reads, such as 300e9 (default steps × tokens of a step)
  --mfu X    share of the GPU's peak rate that is reached (default {MFU})
  --price X          of a GPU for an hour, in your currency; without it no cost is told
  --json             print one JSON object"""

OPTIONS = ["gpus", "gpu", "batch-size", "context", "precision", "tokens", "mfu", "price"]


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(HELP)
        return 0
    words = read_words([word for word in argv if word != "--json"], OPTIONS)
    plan = plan_of(words)
    if "--json" in argv:
        json.dump(plan.to_dict(), sys.stdout)
        print()
    else:
        print(report(plan))
    return 0


def plan_of(words: Words) -> Plan:
    """The plan that the words of a command line mean."""
    if len(words.places) != 1:
        fail("plan needs one preset, recipe, TOML file or model directory; see `glassformer presets` and `recipes`")
    given = words.options
    same = {"batch-size": "train.batch_size", "precision": "train.precision"}
    flags = {key: given[name] for name, key in same.items() if name in given} | words.flags
    return plan_run(
        with_flags(run_of(words.places[0]), flags),
        find_gpu(given.get("gpu", "h200")),
        _number(given, "gpus", _whole) or 1,
        n_tokens=_number(given, "tokens", _whole),
        mfu=_number(given, "mfu", float) or MFU,
        price=_number(given, "price", float),
        context=_number(given, "context", _whole),
        given=flags,
    )


def run_of(place: str) -> Run:
    """The run that a preset, a recipe, a file or a model directory means."""
    if place in PRESETS:
        config = preset(place)
        run = Run(name=place, model=config)
        return replace(run, objective=MaskedConfig()) if config.decoder is None else run
    if place.endswith(".toml") or place in recipes.names():
        return recipes.load(place)
    path = Path(place)
    if not exists(path):
        near = nearest_name(place, [*PRESETS, *recipes.names()], cutoff=0.4)
        see = "; see `glassformer presets` and `glassformer recipes`"
        hint = see if near is None else f": did you mean {near}?"
        raise UserError(f"no preset, recipe, file or model directory is called {place!r}{hint}")
    if not (path / RUN).exists():
        raise UserError(f"{place} is no model directory: it has no {RUN}; give a preset, a recipe or a TOML file")
    return read_run(path)


def _whole(text: str) -> int:
    """300e9 too."""
    number = float(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)


def _number(given: dict[str, str], name: str, read: Callable[[str], T]) -> T | None:
    if name not in given:
        return None
    try:
        number = read(given[name])
    except (ValueError, OverflowError):
        kind = "a number" if read is float else "a whole number"
        raise UserError(f"--{name} must be {kind}, not {given[name]!r}") from None
    if not number > 0 and name != "price":
        raise UserError(f"--{name} is {number} and must be above 0")
    return number


def report(plan: Plan) -> str:
    """The plan in words."""
    parts = plan.parameters
    shape, layout = plan.shape, plan.layout
    n_read = shape.n_rows * shape.n_tokens
    rows = f"{shape.n_rows} × {shape.n_tokens:,} tokens"
    rows += f" (sources of {shape.n_source:,})" if shape.n_source else ""
    lines = [
        f"{plan.name}: {describe_model(plan.config)}, vocabulary {plan.config.vocab_size:,}",
        *(f"assumed: {sentence}" for sentence in plan.assumptions),
        *(f"note: {sentence}" for sentence in plan.notes),
        "",
        f"parameters           {plan.n_parameters:,}",
        f"  embeddings {count(parts.embeddings)}, layers {count(parts.layers)}, head {count(parts.head)}",
        f"FLOPs per token      {_flops(plan.forward_per_token)} forward, {_flops(plan.training_per_token)} training"
        + (", blocks recomputed" if layout.checkpointing else ""),
        f"  layers {_flops(plan.forward.layers / n_read)}, attention {_flops(plan.forward.attention / n_read)}, "
        f"head {_flops(plan.forward.head / n_read)}; attention over whole rows, not halved for the causal rule",
        "",
        f"memory of a GPU      micro-batch {rows}, {plan.precision}, {_named(layout)}",
        *_memory(plan),
        "",
        *_layouts(plan),
        "",
        f"training             {count(plan.n_tokens)} tokens, {plan.total_flops:.3g} FLOPs",
        f"time                 {_time(plan.seconds)} on {_gpus(plan)} at {100 * plan.mfu:g} % of "
        f"{_flops(plan.gpu.flops(plan.precision))}/s ({_hours(plan.gpu_hours)} GPU hours)",
    ]
    if plan.cost is not None:
        lines.append(f"cost                 {plan.cost:,.2f} at {plan.price:g} a GPU hour")
    return "\n".join(lines)


def _memory(plan: Plan) -> list[str]:
    names = {"half_copies": "half copies", "gathered": "gathered layers"}
    memory = plan.layout.memory
    lines = [
        f"  {names.get(part, part):<19}{_bytes(n)}"
        for part, n in plan.to_dict()["memory_bytes"].items()
        if n and part != "total"
    ]
    verdict = "fits" if plan.layout.fits else "does not fit"
    usable = f"{plan.gpu.usable_bytes / GIB:,.1f} GiB, {100 * USABLE:g} % of the {plan.gpu.name}'s memory"
    lines.append(f"  {'total':<19}{_bytes(memory.total)}: {verdict} into {usable}")
    if plan.cache_bytes:
        lines.append(f"generation cache     {_bytes(plan.cache_bytes).strip()} a row at the full context")
    return lines


def _layouts(plan: Plan) -> list[str]:
    lines = [f"{'layouts of ' + _gpus(plan):<36}{'a GPU':>13}"]
    for layout in plan.layouts:
        chosen = "  ← the simplest that fits" if layout.fits and layout is plan.layout else ""
        fits = "fits" if layout.fits else "does not fit"
        lines.append(f"  {_named(layout):<34}{_bytes(layout.memory.total)}  {fits}{chosen}")
    if plan.layout.fits:
        lines.append(f"flags                {plan.flags or 'none are needed'}")
    elif plan.least_gpus is None:
        lines.append(
            "no number of GPUs is enough: what each has for itself is too large; lower --batch-size or --context"
        )
    else:
        lines.append(f"at least {plan.least_gpus:,} of them are needed: --gpus {plan.least_gpus}")
    return lines


def _named(layout: Layout) -> str:
    return layout.strategy.replace("none", "one GPU") + (" + activation checkpointing" if layout.checkpointing else "")


def _gpus(plan: Plan) -> str:
    return f"{plan.n_gpus:,} × {plan.gpu.name}"


def _bytes(n: int) -> str:
    """In a column; whole bytes are for --json."""
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:>9,.1f} {unit}"
    return f"{n:>9} B  "


def _flops(n: float) -> str:
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}FLOP"
    return f"{n:.0f} FLOP"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"


def _time(seconds: float) -> str:
    return f"{seconds / 86400:,.1f} days" if seconds >= 2 * 86400 else duration(seconds)
