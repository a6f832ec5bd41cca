"""glassformer plan CONFIG"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from glassformer.api import run_to_plan
from glassformer.apps.cli.arguments import Json, with_flags
from glassformer.apps.cli.progress import print_json
from glassformer.common.formatting import count, duration, show, size
from glassformer.config import recipes
from glassformer.cost.hardware import GPUS, MFU, USABLE, find_gpu, require_mfu
from glassformer.data import own_data
from glassformer.evaluation.compare import describe_model

if TYPE_CHECKING:
    from glassformer.cost.memory import Memory
    from glassformer.cost.plan import Plan


RECOMPUTED = ("", ", blocks recomputed", ", every second block recomputed")
"""Words of the report for each value of `Plan.recompute_every`."""


GPU = f"GPU: {', '.join(GPUS)}; or memory, TFLOP/s and TB/s, such as 24GB,80TF,1TB/s: see `find_gpu`."


def main(
    config: Annotated[str, "CONFIG"],
    /,
    *,
    gpus: int = 1,
    gpu: Annotated[str, "NAME", GPU] = "h200",
    mfu: float = MFU,
    context: int | None = None,
    tokens: int | None = None,
    here: bool = False,
    json_: Json = False,
    **keys: str,
) -> int:
    """Estimate the cost of a run before it starts: parameters, memory by part, FLOPs and time.

    Args:
        config: A preset, a recipe, a TOML file, a text file, a folder of texts, or a model directory.
        gpus: Number of GPUs.
        mfu: Model FLOPs utilization: the fraction of the GPU's peak rate that training reaches.
        context: Tokens per row (default data.context, or model.max_len).
        tokens: Number of training tokens, such as 300e9 (default steps × tokens per step).
        here: Measure steps of this run on this machine, in about ten seconds, in place of a GPU's data sheet.

    Examples:
        glassformer plan gpt2 --gpus 8 --gpu h100
        glassformer plan mybook.txt --batch-size 64 --gpu 24GB,80TF,1TB/s
        glassformer plan mybook.txt --here
    """
    require_mfu(mfu)
    base, evidence = run_to_plan(config, keys)
    run = with_flags(base, recipes.whole_changes(base, keys))
    if here:
        from glassformer.training.forecast import forecast  # imports torch

        own_data.note(evidence)
        found = forecast(run, context)
        if json_:
            print_json(asdict(found))
        else:
            show(str(found))
        return 0
    card = find_gpu(gpu)
    from glassformer.cost.plan import plan_run  # imports torch

    plan = plan_run(run, card, gpus, n_tokens=tokens, context=context, mfu=mfu)
    own_data.note(evidence)
    if json_:
        print_json(plan.to_dict())
    else:
        show(report(plan))
    return 0


def report(plan: "Plan") -> str:
    """Return the plan as text."""
    # Numbers in words
    parts = plan.parameters
    shape, recomputed = plan.shape, RECOMPUTED[plan.recompute_every]
    n_read = shape.n_rows * shape.n_tokens
    rows = f"{shape.n_rows} × {shape.n_tokens:,} tokens"
    if shape.n_source:
        rows += f" (sources of {shape.n_source:,})"
    # Hours have a decimal only if they are few
    hours = f"{plan.gpu_hours:,.0f}" if plan.gpu_hours >= 100 else f"{plan.gpu_hours:.3g}"
    time = f"{plan.seconds / 86400:,.1f} days" if plan.seconds >= 2 * 86400 else duration(plan.seconds)
    return "\n".join(
        [
            f"{plan.name}: {describe_model(plan.config)}, vocabulary {plan.config.vocab_size:,}",
            *(f"assumed: {sentence}" for sentence in plan.assumptions),
            *(f"note: {sentence}" for sentence in plan.notes),
            "",
            f"parameters           {plan.n_parameters:,}",
            f"  embeddings {count(parts.embeddings)}, layers {count(parts.layers)}, head {count(parts.head)}",
            *([f"  active {parts.active:,}: a token does not use the other experts"] if parts.inactive else []),
            f"FLOPs per token      {_flops(plan.forward_per_token)} forward, {_flops(plan.training_per_token)} training"
            f"{recomputed}",
            f"  layers {_flops(plan.forward.layers / n_read)}, attention {_flops(plan.forward.attention / n_read)}, "
            f"head {_flops(plan.forward.head / n_read)}; attention over full rows, not halved for the causal mask",
            "",
            f"memory per GPU       micro-batch {rows}, {plan.precision}{recomputed}",
            *_memory(plan),
            "",
            f"training             {count(plan.n_tokens)} tokens, {plan.total_flops:.3g} FLOPs",
            f"time                 {time} on {plan.n_gpus:,} × {plan.gpu.name} at {100 * plan.mfu:g} % of "
            f"{_flops(plan.gpu.flops(plan.precision))}/s ({hours} GPU hours)",
        ]
    )


def _memory(plan: "Plan") -> list[str]:
    names = {"half_copies": "16-bit copies"}
    lines = [f"  {names.get(part, part):<19}{size(n):>13}" for part, n in asdict(plan.memory).items() if n]
    if plan.unknown is not None:
        lines.append(f"  {'loss':<19}unknown    {plan.unknown}")
    usable = f"{size(plan.gpu.usable_bytes)}, {100 * USABLE:g} % of the memory of {plan.gpu.name}"
    total = "total" if plan.unknown is None else "counted"
    lines.append(f"  {total:<19}{size(plan.memory.total):>13}: {_verdict(plan, plan.memory)} into {usable}")
    if plan.sharded is not None:
        lines.append(f"  {total + ' with fsdp':<19}{size(plan.sharded.total):>13}: {_verdict(plan, plan.sharded)}")
    if plan.fits(plan.sharded or plan.memory) is False:
        lines.append("  lower --batch-size or --context, set --train.activation-checkpointing true, or use more --gpus")
    if plan.cache_bytes:
        lines.append(f"generation cache     {size(plan.cache_bytes)} per row at the full context")
    if plan.generated_per_second:
        lines.append(f"generation           at most {plan.generated_per_second:,.0f} tokens per second and row")
    return lines


def _verdict(plan: "Plan", memory: "Memory") -> str:
    return {True: "fits", False: "does not fit", None: "may fit"}[plan.fits(memory)]


def _flops(n: float) -> str:
    for unit, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= scale:
            return f"{n / scale:.3g} {unit}FLOP"
    return f"{n:.0f} FLOP"
