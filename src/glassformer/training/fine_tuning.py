"""Settings of a run on own data that starts from a trained model, in place of those for a small new model."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from glassformer.common import files
from glassformer.config import recipes
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.run import Run
from glassformer.config.train import AdamWConfig, LinearSchedule
from glassformer.data import own_data
from glassformer.store import checkpoint
from glassformer.store.model_directory import read_config

RATE = 0.05
"""Peak learning rate × width of the model, as an optimum of Adam falls with the width (Yang 2022)."""
LORA_RATES = 10
"""The learning rate of low-rank matrices as a multiple of the rate of all weights."""
MAX_RATE = 0.003
WARMUP = 20
"""The warm-up is this part of the steps."""


def run_of(
    *sources: str | Path, kind: own_data.Kind | None = None, changes: Mapping[str, Any] | None = None
) -> tuple[Run, str]:
    """Return the run of `own_data.run_of`, with settings for the model that own data starts from, and notes."""
    run, evidence = own_data.run_of(*sources, kind=kind, changes=changes)
    if any(map(recipes.is_written, sources)):
        return run, evidence
    run, note = for_start(run, changes or {})
    return run, "; ".join(filter(None, (evidence, note)))


def for_start(run: Run, changes: Mapping[str, Any]) -> tuple[Run, str]:
    """Return a run on own data with settings for the model that `changes` name as its start, and a note about them.

    They are for a model that is wider than a new one would be, and for LoRA: AdamW with a rate that suits the width,
    and the dropouts of the model. The run is unchanged otherwise, and if it keeps its own model (`init.model`).
    """
    adamw = replace(run, train=replace(run.train, optimizer=AdamWConfig(weight_decay=0.0)))
    whole = recipes.whole_changes(adamw, changes)
    if whole.get("init.path") is None or whole.get("init.model") == "recipe":
        return run, ""
    folder = files.as_path(whole["init.path"], "init.path")
    checkpoint.find(folder)
    start, _ = read_config(folder)
    adapts = any(key.partition(".")[0] == "lora" for key in whole)
    if width(start) <= width(run.model) and not adapts:
        return run, ""
    rate = RATE / width(start)
    if adapts:
        rate *= LORA_RATES
    optimizer = AdamWConfig(learning_rate=float(f"{min(rate, MAX_RATE):.1g}"), weight_decay=0.0)
    schedule = LinearSchedule(warmup_steps=run.train.max_steps // WARMUP)
    names = {field.name for field in fields(start) if field.name.endswith("dropout")}
    dropouts = {name: getattr(start, name) for name in names if hasattr(run.model, name)}
    note = (
        f"settings for the trained model {folder}, where you give none: adamw with learning rate "
        f"{optimizer.learning_rate:g}, {schedule.warmup_steps} steps of warm-up, its own dropouts"
    )
    train = replace(run.train, optimizer=optimizer, schedule=schedule)
    return replace(run, model=replace(run.model, **dropouts), train=train), note


def width(model: ModelConfig) -> int:
    """Return the width of the states that a model predicts from."""
    return model.d_decoder if isinstance(model, RecurrentConfig) else model.d_model
