"""glassformer plan CONFIG"""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from glassformer import recipes
from glassformer.api import run_to_plan
from glassformer.cli.arguments import fail, with_flags
from glassformer.cost.hardware import GIB, MFU, USABLE, find_gpu, require_rates
from glassformer.evaluation.compare import describe_model
from glassformer.formatting import count, duration, show

if TYPE_CHECKING:
    from glassformer.cost.plan import Layout, Plan


def main(
    *configs: Annotated[str, "CONFIG"],
    gpus: int = 1,
    gpu: Annotated[str, "NAME"] = "h200",
    batch_size: int | None = None,
    context: int | None = None,
    precision: str | None = None,
    tokens: int | None = None,
    mfu: float = MFU,
    price: float | None = None,
    json_: bool = False,
    **keys: str,
) -> int:
    """Estimate the cost of a run before it starts: parameters, memory by part, FLOPs, time, and a layout that fits.

    Args:
        configs: A preset, a recipe, a TOML file, a text file, a folder of texts, or a model directory.
        gpus: Number of GPUs.
        gpu: GPU model: h200, h100, a100-80gb, a100-40gb, l40s, rtx-4090, t4 or v100-16gb.
        batch_size: Rows per micro-batch on each GPU (default train.batch_size).
        context: Tokens per row (default data.context, or model.max_len).
        precision: fp32, bf16 or fp16 (default train.precision).
        tokens: Number of training tokens, such as 300e9 (default steps × tokens per step).
        mfu: Model FLOPs utilization: the fraction of the GPU's peak rate that training reaches.
        price: Price per GPU hour, in your currency; without it no cost is printed.
        json_: Print one JSON object.

    Examples:
        glassformer plan gpt2 --gpus 8 --gpu h100
        glassformer plan mybook.txt --batch-size 64
    """
    if len(configs) != 1:
        one = "plan needs one preset, recipe, TOML file, text file or model directory"
        fail(f"{one}; see `glassformer presets` and `recipes`")
    require_rates(mfu, price)
    same = {"train.batch_size": batch_size, "train.precision": precision}
    given = {key: str(value) for key, value in same.items() if value is not None} | keys
    base, evidence = run_to_plan(configs[0], given)
    given = recipes.whole_changes(base, given)
    run = with_flags(base, given)
    gpu_type = find_gpu(gpu)
    from glassformer.cost.plan import plan_run  # imports torch

    plan = plan_run(run, gpu_type, gpus, n_tokens=tokens, context=context, given=given).at(mfu, price)
    recipes.note(evidence)
    if json_:
        print(json.dumps(plan.to_dict()))
    else:
        show(report(plan))
    return 0


def report(plan: "Plan") -> str:
    """Return the plan as text."""
    parts = plan.parameters
    shape, layout = plan.shape, plan.layout
    n_read = shape.n_rows * shape.n_tokens
    rows = f"{shape.n_rows} × {shape.n_tokens:,} tokens"
    rows += f" (sources of {shape.n_source:,})" if shape.n_source else ""
    hours = f"{plan.gpu_hours:,.0f}" if plan.gpu_hours >= 100 else f"{plan.gpu_hours:.3g}"
    time = f"{plan.seconds / 86400:,.1f} days" if plan.seconds >= 2 * 86400 else duration(plan.seconds)
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
        f"head {_flops(plan.forward.head / n_read)}; attention over full rows, not halved for the causal mask",
        "",
        f"memory per GPU       micro-batch {rows}, {plan.precision}, {_named(layout)}",
        *_memory(plan),
        "",
        *_layouts(plan),
        "",
        f"training             {count(plan.n_tokens)} tokens, {plan.total_flops:.3g} FLOPs",
        f"time                 {time} on {_gpus(plan)} at {100 * plan.mfu:g} % of "
        f"{_flops(plan.gpu.flops(plan.precision))}/s ({hours} GPU hours)",
    ]
    if plan.cost is not None:
        lines.append(f"cost                 {plan.cost:,.2f} at {plan.price:g} per GPU hour")
    return "\n".join(lines)


def _memory(plan: "Plan") -> list[str]:
    names = {"half_copies": "16-bit copies", "gathered": "gathered layers"}
    memory = plan.layout.memory
    lines = [f"  {names.get(part, part):<19}{_bytes(n)}" for part, n in asdict(memory).items() if n]
    if plan.unknown is not None:
        lines.append(f"  {'loss':<19}unknown    {plan.unknown}")
    verdict = _verdict(plan, plan.layout)
    usable = f"{plan.gpu.usable_bytes / GIB:,.1f} GiB, {100 * USABLE:g} % of the {plan.gpu.name}'s memory"
    total = "total" if plan.unknown is None else "counted"
    lines.append(f"  {total:<19}{_bytes(memory.total)}: {verdict} into {usable}")
    if plan.cache_bytes:
        lines.append(f"generation cache     {_bytes(plan.cache_bytes).strip()} per row at the full context")
    return lines


def _layouts(plan: "Plan") -> list[str]:
    lines = [f"{'layouts for ' + _gpus(plan):<36}{'per GPU':>13}"]
    for layout in plan.layouts:
        chosen = f"  ← the simplest that {_verdict(plan, layout)}" if layout.fits and layout is plan.layout else ""
        fits = _verdict(plan, layout)
        lines.append(f"  {_named(layout):<34}{_bytes(layout.memory.total)}  {fits}{chosen}")
    if plan.layout.fits:
        lines.append(f"flags                {plan.flags or 'not needed'}")
    elif plan.least_gpus is None:
        lines.append(
            "does not fit on any number of GPUs: the memory per GPU that cannot be sharded is too large; "
            "lower --batch-size or --context"
        )
    else:
        lines.append(f"at least {plan.least_gpus:,} GPUs are needed: --gpus {plan.least_gpus}")
    return lines


def _verdict(plan: "Plan", layout: "Layout") -> str:
    if not layout.fits:
        return "does not fit"
    return "fits" if plan.unknown is None else "may fit"


def _named(layout: "Layout") -> str:
    return layout.strategy.replace("none", "one GPU") + (" + activation checkpointing" if layout.checkpointing else "")


def _gpus(plan: "Plan") -> str:
    return f"{plan.n_gpus:,} × {plan.gpu.name}"


def _bytes(n: int) -> str:
    """Format a size for a column; --json prints exact bytes."""
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if n >= size:
            return f"{n / size:>9,.1f} {unit}"
    return f"{n:>9} B  "


def _flops(n: float) -> str:
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return f"{n / size:.3g} {unit}FLOP"
    return f"{n:.0f} FLOP"
