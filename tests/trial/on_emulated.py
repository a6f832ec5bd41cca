"""Try the emulated device, with and without faults, and train on it; print the results as JSON.

Call: python on_emulated.py FOLDER
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import emulated
import torch

from configs import CONFIGS, RECURRENT
from glassformer import api
from glassformer.trial import choice
from glassformer.trial.choice import Trial
from runs import Recording, tiny_run, write_text

KINDS = ("gpt", "llama", "paper", "experts", "capped", "gpt_classifier")
"""Configurations whose operations are made wrong; the first one that uses an operation is tried."""
SKIPPED = ("detach", "empty", "empty_like", "empty_strided", "_to_copy", "_copy_from")
DEVICE = torch.device(emulated.NAME, 0)
FAULT = emulated.Fault("_softmax_backward_data", "scaled")


def faults() -> dict[str, Any]:
    """Return the faults that the trials found: of each kind on the right device, and of each wrong operation."""
    trials, uses = {}, dict[str, str]()
    right, wrong = {}, {}
    for name in KINDS:
        emulated.device.used.clear()
        trials[name] = Trial(CONFIGS[name])
        right[name] = trials[name].fault(DEVICE)
        for operation in emulated.device.used - {*SKIPPED}:
            uses.setdefault(operation, name)
    for number, (operation, name) in enumerate(sorted(uses.items())):
        emulated.device.fault = emulated.Fault(operation, ("scaled", "last")[number % 2])
        wrong[operation] = trials[name].fault(DEVICE)
        emulated.device.fault = None
    return {"right": right, "wrong": wrong, "lacks": Trial(RECURRENT["bahdanau"]).fault(DEVICE)}


def run_on(
    device: str, folder: Path, fault: emulated.Fault | None = None, faster: float = 1.1, wraps: bool = False
) -> dict[str, Any]:
    """Train and use a model; return the device of the run, its messages, the loss and a text."""
    emulated.device.fault, emulated.device.wraps, choice.FASTER = fault, wraps, faster
    run = tiny_run(write_text(folder), max_steps=4, eval_every=2)
    run, seen = replace(run, train=replace(run.train, device=device)), Recording()
    api.train(run, folder / "run", reporter=seen)
    model = api.load(folder / "run", device="cpu")
    loss = model.evaluate().loss
    emulated.device.fault, emulated.device.wraps = None, False
    return {"messages": seen.messages, "loss": loss}


def runs(folder: Path) -> dict[str, Any]:
    """Return runs on the CPU, on the device, with int64 of 32 bits, on a slower device, and on a wrong one."""
    cases: dict[str, dict[str, Any]] = {
        "cpu": {"device": "cpu"},
        "device": {"device": "auto", "faster": 1e9},
        "wraps": {"device": "auto", "faster": 1e9, "wraps": True},
        "slower": {"device": "auto", "faster": 0.0},
        "wrong": {"device": "auto", "fault": FAULT},
    }
    found = {}
    for name, case in cases.items():
        place = folder / name
        place.mkdir()
        choice.files.cache_folder = lambda place=place: place / "cache"  # type: ignore[assignment,misc]
        found[name] = run_on(folder=place, **case)
    model = api.load(folder / "device" / "run", device=emulated.NAME)
    found["text"] = [model.generate("ab", max_new_tokens=8, temperature=0.0), str(model.device)]
    found["text_on_cpu"] = api.load(folder / "device" / "run", device="cpu").generate(
        "ab", max_new_tokens=8, temperature=0.0
    )
    return found


if __name__ == "__main__":
    print(json.dumps(faults() | {"runs": runs(Path(sys.argv[1]))}))
