"""Tiny runs that start from a model that answers: preferences, and rewards of sampled answers."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer import api
from glassformer.config.run import (
    ConversationConfig,
    ConversationData,
    GenerationConfig,
    GroupPolicyConfig,
    PreferenceConfig,
    PreferenceData,
    PromptData,
    Run,
    TokenizerConfig,
)
from glassformer.config.train import AdamWConfig, ConstantSchedule, TrainConfig
from runs import MODEL

TRAIN: dict[str, Any] = {"max_steps": 12, "eval_every": 6, "log_every": 4, "device": "cpu"}


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return str(path)


def trained_start(folder: Path) -> Path:
    """Train a tiny model, which answers with a digit at random, and return its folder."""
    rows = [{"prompt": f"{i % 10}?", "completion": f"{i * 7 % 10}"} for i in range(100)]
    run = Run(
        name="start",
        model=replace(MODEL, max_len=32),
        tokenizer=TokenizerConfig(vocab_size=0, scheme="char"),
        data=ConversationData(path=written(folder / "conversations.jsonl", rows), batch_tokens=512),
        objective=ConversationConfig(),
        train=TrainConfig(**TRAIN | {"max_steps": 60, "eval_every": 60, "optimizer": AdamWConfig(learning_rate=0.01)}),
    )
    return api.train(run, folder / "start").folder


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
