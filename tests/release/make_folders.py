"""Make the folders of `tests/release/folders/VERSION`: run this once per release, before its tag.

    python tests/release/make_folders.py

Each folder is a model directory of one kind after two steps of training, with `expected.json`: values that later
versions must compute from it. `run` is a run folder with a checkpoint.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

import glassformer
from glassformer.config.recurrent import RecurrentConfig
from glassformer.config.run import InfillingConfig, LoraConfig, MaskedConfig, Run
from runs import label_run, pair_run, text_run_of, tiny_run, write_text

FOLDERS = Path(__file__).parent / "folders"
TEXT, SOURCE, TARGET, MASKED = "red dog sees", "red dog", "hund rot", "red [MASK] sees"
RECURRENT = RecurrentConfig(d_embedding=8, d_encoder=8, d_decoder=8, max_len=32)


def values(model: glassformer.Model, kind: str) -> dict[str, Any]:
    """Return what the model computes for the fixed texts."""
    if kind in ("causal", "lora", "run"):
        return {"nats": model.score(TEXT).nats_per_token}
    if kind in ("pairs", "recurrent", "denoising"):
        return {"nats": model.score(TARGET, source=SOURCE).nats_per_token}
    if kind == "masked":
        return {"vector": model.embed(TEXT).tolist()}
    if kind == "tags":
        return {"probabilities": [p for _, p in model.tag(TEXT)]}
    return {"probabilities": list(model.classify(TEXT).values())}


def lora_run(folder: Path) -> Run:
    """Return a run that adapts a model that was trained before."""
    base = glassformer.train(short(tiny_run(write_text(folder))), folder / "base")
    return replace(
        tiny_run(folder / "text.txt"), lora=LoraConfig(rank=2), init=replace(Run().init, path=str(base.folder))
    )


RUNS: dict[str, Callable[[Path], Run]] = {
    "causal": lambda folder: tiny_run(write_text(folder)),
    "masked": lambda folder: text_run_of(folder, MaskedConfig()),
    "denoising": lambda folder: text_run_of(folder, InfillingConfig()),
    "pairs": pair_run,
    "recurrent": lambda folder: pair_run(folder, model=RECURRENT, separate=True),
    "classes": label_run,
    "regression": lambda folder: label_run(folder, "regression"),
    "tags": lambda folder: label_run(folder, "tags"),
    "lora": lora_run,
}


def short(run: Run) -> Run:
    return replace(run, train=replace(run.train, max_steps=2, eval_every=2, precision="fp32"))


def make(version: str) -> None:
    torch.set_num_threads(1)
    out = FOLDERS / version
    work = Path(tempfile.gettempdir(), "glassformer-release")  # its name is stored in the folders
    try:
        for kind, run_of in RUNS.items():
            data = work / kind
            data.mkdir(parents=True)
            outcome = glassformer.train(short(run_of(data)), data / "run")
            outcome.model.save(out / kind)
            record(out / kind, kind)
            if kind == "causal":
                shutil.copytree(outcome.folder, out / "run")
                record(out / "run", "run")
    finally:
        shutil.rmtree(work)


def record(folder: Path, kind: str) -> None:
    expected = values(glassformer.load(folder, device="cpu"), kind)
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    make(glassformer.__version__)
