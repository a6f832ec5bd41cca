"""Preferences: DPO and IPO tune a model that answers, compared with its initial weights."""

import json
import math
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer import api
from glassformer.config.run import (
    ConversationConfig,
    ConversationData,
    LoraConfig,
    PreferenceConfig,
    PreferenceData,
    Run,
)
from glassformer.config.train import TrainConfig
from glassformer.errors import Interrupted, UserError
from glassformer.tasks.preference import PreparedPreferences
from glassformer.store import checkpoint
from runs import MODEL, remains, signal_at, write_text
from glassformer.config.run import TokenizerConfig, GenerationConfig

TRAIN = {"max_steps": 20, "eval_every": 10, "log_every": 5, "device": "cpu"}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has read a few answers."""
    folder = tmp_path_factory.mktemp("start")
    lines = [json.dumps({"prompt": f"{i} + {i}", "completion": f"= {2 * i}"}) for i in range(60)]
    (folder / "conversations.jsonl").write_text("\n".join(lines), "utf-8")
    run = Run(
        name="start",
        model=replace(MODEL, max_len=64),
        tokenizer=TokenizerConfig(vocab_size=0, scheme="char"),
        data=ConversationData(path=str(folder / "conversations.jsonl"), batch_tokens=512),
        objective=ConversationConfig(),
        train=TrainConfig(**TRAIN),
    )
    return api.train(run, folder / "run").folder


def preference_run(folder: Path, start: Path, **changes: Any) -> Run:
    """Return a run of 20 steps on sums with a right and a wrong answer."""
    rows = [{"prompt": f"{i} + {i}", "chosen": f"= {2 * i}", "rejected": f"= {2 * i + 1} ?"} for i in range(60)]
    path = folder / "preferences.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    run = Run(
        name="preferences",
        data=PreferenceData(path=str(path), batch_tokens=400),
        objective=PreferenceConfig(),
        train=TrainConfig(**TRAIN, select="last"),
    )
    return replace(run, init=replace(run.init, path=str(start)), **changes)


def test_training_prefers_the_chosen_answers_and_resumes_to_the_bit(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = preference_run(tmp_path, start)
    outcome = api.train(run, tmp_path / "whole")
    model, valid = outcome.model, outcome.reports["valid"]
    assert valid.loss < math.log(2) and valid.perplexity is None
    found = model.evaluate(log=print)
    assert found == valid, "the trainer's loss, computed again"
    assert found.scores["reward_accuracy"] == 100 and found.scores["reward_margin"] > 0
    with monkeypatch.context() as patch:
        signal_at(patch, 7, signal.SIGTERM)
        with pytest.raises(Interrupted):
            api.train(run, tmp_path / "stopped")
    api.resume(tmp_path / "stopped")
    assert remains(tmp_path / "stopped") == remains(tmp_path / "whole")
    print(outcome.history)
