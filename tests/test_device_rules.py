"""Training, inference, the doctor and inspection keep the rules of Apple's device (`device_rules.py`)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import glassformer
from configs import CONFIGS, RECURRENT, random_inputs, random_model
from device_rules import apple_rules
from glassformer import api, inspection
from glassformer.apps.doctor import check_model
from glassformer.config.run import LoraConfig, Run
from glassformer.config.train import MuonConfig
from glassformer.model import Model
from preference_runs import policy_run, preference_run, trained_start
from runs import TINY, tiny_run, write_text

CPU = torch.device("cpu")
TEXT = "the cat sat on the mat"


def test_the_rules_hold_on_the_device_and_not_on_the_host() -> None:
    with apple_rules():
        layer = nn.Linear(2, 2).to(CPU)
        x = layer(torch.ones(2, 2, device=CPU))
        for refused in (lambda: x.double(), lambda: x.T.double(), lambda: torch.ones(1, dtype=torch.float64).to(CPU)):
            with pytest.raises(TypeError, match="does not support"):
                refused()
        with pytest.raises(NotImplementedError, match="linalg_eigh"):
            torch.linalg.eigh(x)
        assert x.cpu().double().sum() == x.to("cpu", torch.float64).sum()
        x.sum().backward()


def few(run: Run, **changes: Any) -> Run:
    return replace(run, train=replace(run.train, max_steps=2, eval_every=2, log_every=1, device="cpu", **changes))


VERBS: dict[str, Callable[[Model], Any]] = {
    "text": lambda model: [
        model.generate(TEXT, max_new_tokens=3, temperature=0),
        model.generate([TEXT, "a"], max_new_tokens=3, temperature=0.9, top_p=0.9, repetition_penalty=1.1),
        model.generate(TEXT, max_new_tokens=3, draft=model),
        model.score(TEXT, log=lambda text: None),
        model.evaluate(),
        model.embed(TEXT),
        model.logit_lens(TEXT),
        model.logit_attribution(TEXT),
        model.strongest_texts([TEXT], "decoder.0.head").baseline(0),
        inspection.find_heads(model, TEXT),
        inspection.effects_of_texts(model, [TEXT, "a b c"]).beside_others(),
    ],
    "masked": lambda model: [model.fill("the [MASK] sat"), model.evaluate(), model.pseudo_perplexity()],
    "infilling": lambda model: [model.fill("the [MASK] sat"), model.evaluate()],
    "spans": lambda model: model.evaluate(),
    "pairs": lambda model: [
        model.translate(["the dog", "two"], beam=2, length_penalty=1.0),
        model.score("the dog", "die hund"),
        model.evaluate(),
        model.attention(source="the dog"),
        glassformer.ensemble([model, model]).translate("the dog"),
    ],
    "recurrent pairs": lambda model: [model.translate("the dog"), model.evaluate(), model.attention(source="the dog")],
    "classes": lambda model: [model.classify(["a", "b"]), model.evaluate()],
    "regression": lambda model: [model.classify("a"), model.evaluate()],
    "multi_label": lambda model: [model.classify("a dog")],
    "tags": lambda model: [model.tag("the dog"), model.evaluate()],
    "conversations": lambda model: [model.chat("the dog"), model.evaluate()],
}


@pytest.mark.parametrize("kind", VERBS)
def test_training_and_verbs_of_every_task(kind: str, tmp_path: Path) -> None:
    run = tiny_run(write_text(tmp_path)) if kind == "text" else TINY[kind](tmp_path)
    with apple_rules():
        folder = api.train(few(run), tmp_path / "run").folder
        VERBS[kind](glassformer.load(folder, device="cpu"))


def test_training_by_preferences_rewards_and_a_teacher(tmp_path: Path) -> None:
    start = trained_start(tmp_path)
    with apple_rules():
        api.train(few(preference_run(tmp_path, start)), tmp_path / "preferences")
        api.train(few(policy_run(tmp_path, start)), tmp_path / "policy")


@pytest.mark.parametrize("change", ["lora", "muon", "bf16", "experts", "teacher"])
def test_training_with_other_settings(change: str, tmp_path: Path) -> None:
    run = few(tiny_run(write_text(tmp_path)))
    with apple_rules():
        if change == "lora":
            start = api.train(run, tmp_path / "start").folder
            adapted = replace(run, init=replace(run.init, path=str(start)), lora=LoraConfig(rank=2))
            folder = api.train(adapted, tmp_path / "run").folder
            for dtype in ("fp16", "bf16"):
                glassformer.load(folder, device="cpu", dtype=dtype).generate(TEXT, max_new_tokens=2)
        elif change == "teacher":
            api.train(run, tmp_path / "run", teacher=api.train(run, tmp_path / "start").folder)
        elif change == "experts":
            model = replace(run.model, experts=CONFIGS["experts"].experts)
            api.train(replace(run, model=model), tmp_path / "run")
        else:
            changed = {"optimizer": MuonConfig()} if change == "muon" else {"precision": "bf16"}
            api.train(few(run, **changed), tmp_path / "run")


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_the_doctor_finds_no_fault(name: str) -> None:
    network = random_model(name, dtype=torch.float32)
    on_host = check_model(network).failed
    with apple_rules():
        assert check_model(network.to(CPU)).failed == on_host


@pytest.mark.parametrize("name", [*CONFIGS, *RECURRENT])
def test_the_forward_and_backward_of_every_network(name: str) -> None:
    network = random_model(name, dtype=torch.float32)
    inputs = random_inputs(network)
    with apple_rules():
        others = {key: x.to(CPU) for key, x in inputs.others.items()}
        network.to(CPU)(inputs.token_ids.to(CPU), **others).sum().backward()
