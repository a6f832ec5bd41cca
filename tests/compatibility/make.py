"""Make the folders that later versions must still read: a small run of each kind, and the numbers that it gave.

    PYTHONPATH=src:tests python tests/compatibility/make.py OUT.tar.xz

Run it with the code of the version to preserve. Each run folder has the model of the last step, and the checkpoint of
step 3 of 6 to resume from. `numbers.json` has the reported loss, and the results of the model on fixed inputs.
"""

import json
import shutil
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glassformer import api
from glassformer.config.recurrent import RecurrentConfig
from glassformer.config.run import (
    ExampleRows,
    InfillingConfig,
    InitConfig,
    LoraConfig,
    MaskedConfig,
    NoObjective,
    PackedRows,
    Run,
    SpansConfig,
    TokenizerConfig,
)
from glassformer.config.transformer import RotaryPositions, Stack, TransformerConfig, VectorHead
from glassformer.models.build import build_model
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import MODEL_FILES, weights_of, write_model_files
from runs import label_run, pair_run, text_run_of, tiny_run, write_documents, write_text

MADE_IN = Path("/tmp/glassformer-compatibility")
"""The folder of the runs: their recipes name data in it."""
SMALL = TransformerConfig(decoder=Stack(1, 2, d_ff=16), d_model=8, max_len=24, positions=RotaryPositions())
ENCODER = replace(SMALL, encoder=SMALL.decoder, decoder=None)
BOTH = replace(SMALL, encoder=SMALL.decoder)
LETTERS = TokenizerConfig(scheme="char", vocab_size=0)


def sized(run: Run, model: Any, tokenizer: TokenizerConfig = LETTERS, data: dict[str, Any] | None = None) -> Run:
    train = replace(run.train, max_steps=6, eval_every=3, checkpoint_every=3, select="last", log_every=1)
    head = {"head": run.model.head} if isinstance(model, TransformerConfig) else {}
    return replace(
        run, model=replace(model, **head), tokenizer=tokenizer, train=train, data=replace(run.data, **(data or {}))
    )


def texts(folder: Path, packing: Any) -> Run:
    return sized(tiny_run(write_documents(folder)), SMALL, data={"packing": packing})


RUNS: dict[str, Callable[[Path], Run]] = {
    "windows": lambda folder: sized(tiny_run(write_text(folder)), SMALL),
    "windows-of-documents": lambda folder: sized(tiny_run(write_documents(folder)), SMALL),
    "examples": lambda folder: texts(folder, ExampleRows()),
    "packed": lambda folder: texts(folder, PackedRows()),
    "merges-left-out": lambda folder: sized(
        tiny_run(write_text(folder)), SMALL, TokenizerConfig(scheme="char", vocab_size=60, bpe_dropout=0.3)
    ),
    "masked": lambda folder: sized(text_run_of(folder, MaskedConfig()), ENCODER),
    "infilling": lambda folder: sized(text_run_of(folder, InfillingConfig()), BOTH),
    "spans": lambda folder: sized(text_run_of(folder, SpansConfig(n_sentinels=8)), BOTH),
    "pairs": lambda folder: sized(pair_run(folder), BOTH),
    "pairs-split": lambda folder: sized(pair_run(folder), BOTH, data={"valid_source": None, "valid_target": None}),
    "recurrent": lambda folder: sized(
        pair_run(folder), RecurrentConfig(cell="lstm", d_embedding=8, d_encoder=8, d_decoder=8, max_len=24)
    ),
    "classes": lambda folder: sized(label_run(folder), ENCODER),
    "tags": lambda folder: sized(label_run(folder, "tags"), ENCODER, TokenizerConfig(scheme="word", vocab_size=60)),
    "numbers": lambda folder: sized(label_run(folder, "regression"), ENCODER),
}


def lora(folder: Path) -> Run:
    run = RUNS["windows"](folder)
    start = InitConfig(path=str(folder.parent / "windows" / "run"))
    return replace(run, init=start, lora=LoraConfig(rank=2, dropout=0.1))


def numbers(folder: Path) -> dict[str, Any]:
    """Return the results of a model directory."""
    model = api.load(folder, device="cpu")
    kind = model.run.objective.kind
    found: dict[str, Any] = {}
    if kind != "none":
        report = model.evaluate(log=print).to_dict()
        found["loss"], found["n_tokens"] = report["loss"], report["n_tokens"]
    if kind == "causal":
        found["continued"] = model.generate("abc de", temperature=0.0, max_new_tokens=12)
        found["drawn"] = model.generate("abc de", temperature=1.0, top_k=0, seed=3, max_new_tokens=12)
        found["after"] = model.score("abc", " def").log_prob
    if kind == "seq2seq":
        found["translated"] = model.translate("red dog", beam=2, max_new_tokens=8)
        found["forced"] = model.score("red dog", "hund rot").log_prob
    if kind == "masked":
        found["filled"] = model.fill("ab [MASK] cd").text
    if kind == "classification":
        found["said"] = [list(row.values()) for row in model.classify(["red dog", "the blue cat"])]
    if kind == "tagging":
        found["tagged"] = [[tag, p] for tag, p in model.tag([["red", "dog"]])[0]]
    if kind in ("masked", "none", "classification"):
        found["vector"] = model.embed(["red dog"])[0].tolist()
    return found


def vectors(folder: Path) -> None:
    """Write a model that gives vectors, like an imported one."""
    tokenizer = api.load(folder.parent / "masked" / "run").tokenizer
    config = replace(ENCODER, vocab_size=tokenizer.vocab_size, head=VectorHead())
    torch.manual_seed(0)
    run = Run(name="vectors", model=config, objective=NoObjective())
    (folder / "run").mkdir(parents=True)
    write_model_files(folder / "run", weights_of(build_model(config)), tokenizer, run)
    Manifest.of(folder / "run", "model", 0, MODEL_FILES).write(folder / "run")


def main(archive: Path) -> None:
    shutil.rmtree(MADE_IN, ignore_errors=True)
    found = {}
    for name, make in (RUNS | {"lora": lora}).items():
        folder = MADE_IN / name
        folder.mkdir(parents=True)
        api.train(make(folder), folder / "run")
        shutil.rmtree(checkpoint.path_of(folder / "run", 6))
        shutil.rmtree(folder / "cache", ignore_errors=True)
        found[name] = numbers(folder / "run")
    vectors(MADE_IN / "vectors")
    found["vectors"] = numbers(MADE_IN / "vectors" / "run")
    for cache in MADE_IN.glob("*/cache"):
        shutil.rmtree(cache)
    (MADE_IN / "numbers.json").write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", "utf-8")
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(MADE_IN, arcname=".")
    print(f"{archive}: {archive.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
