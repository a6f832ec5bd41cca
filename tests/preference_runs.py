"""Tiny runs that start from a model that answers: preferences, and rewards of sampled answers."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.config.run import (
    GenerationConfig,
    GroupPolicyConfig,
    PreferenceConfig,
    PreferenceData,
    PromptData,
    Run,
)
from glassformer.config.train import AdamWConfig, ConstantSchedule, TrainConfig
from kept import kept_run
from runs import written

TRAIN: dict[str, Any] = {"max_steps": 12, "eval_every": 6, "log_every": 4, "device": "cpu"}


def trained_start(folder: Path) -> Path:
    """Return a copy of a tiny model, which answers with a digit at random."""
    return Path(shutil.copytree(kept_run("start") / "run", folder / "start"))


def preference_run(folder: Path, start: Path, **changes: Any) -> Run:
    """Return a run of 12 steps, in which the better answer is one digit."""
    rows = [{"prompt": f"{i}?", "chosen": f"{i % 10}", "rejected": f"{i * 3 % 10}?"} for i in range(60)]
    run = Run(
        name="preferences",
        data=PreferenceData(path=written(folder / "preferences.jsonl", rows), batch_tokens=400),
        objective=PreferenceConfig(),
        train=TrainConfig(**TRAIN, select="last"),
    )
    return replace(run, init=replace(run.init, path=str(start)), **changes)


def policy_run(folder: Path, start: Path, **changes: Any) -> Run:
    """Return a run of 12 steps, in which the best answer is 7."""
    rows = [{"prompt": f"{i}?", "answer": "7"} for i in range(10)]
    run = Run(
        name="policy",
        data=PromptData(path=written(folder / "prompts.jsonl", rows), valid_fraction=0.3),
        objective=GroupPolicyConfig(n_prompts=4, group=8, beta=0.01),
        train=TrainConfig(
            **TRAIN, select="last", schedule=ConstantSchedule(), optimizer=AdamWConfig(learning_rate=0.02)
        ),
        generation=GenerationConfig(max_new_tokens=4),
    )
    return replace(run, init=replace(run.init, path=str(start)), **changes)
