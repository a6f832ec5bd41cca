"""`glassformer plan`: its output for every form of a configuration."""

import json
from pathlib import Path

import pytest

import papers
from glassformer.config import recipes
from glassformer.config.presets import PRESETS
from glassformer.data import own_data
from glassformer.tasks.reporting import Outcome

from .conftest import Glassformer
from .test_bad_input import require_one_sentence


def test_plan_of_a_preset_prints_its_costs(glassformer: Glassformer) -> None:
    shown = glassformer("plan", "gpt2", "--gpu", "t4", "--batch-size", 4, "--tokens", "1e9")
    assert shown.code == 0 and not shown.err
    for line in (
        "gpt2: Transformer decoder 12 × 768, vocabulary 50,257",
        "parameters           124,439,808",
        "FLOPs per token      285 MFLOP forward, 854 MFLOP training",
        "memory per GPU       micro-batch 4 × 1,024 tokens, fp32\n",
        "weights                474.7 MiB",
        "optimizer              949.4 MiB",
        "training             1.0 G tokens, 8.54e+17 FLOPs",
        "on 1 × t4 at 40 % of 8.1 TFLOP/s",
        "of the memory of t4",
    ):
        assert line in shown.out, line
    assert "note: " not in glassformer("plan", "gpt2").out


def test_plan_of_several_gpus_prints_the_divided_memory(glassformer: Glassformer) -> None:
    shown = glassformer("plan", "gpt2", "--gpus", 8, "--batch-size", 4, "--train.max_steps=10").out
    for line in (
        "note: 8 GPUs share the micro-batches of a step, so train.grad_accumulation 1 becomes 8: a step reads 32,768 "
        "tokens, not 4,096",
        ": fits into 126.9 GiB, 90 % of the memory of h200\n",
        "total with fsdp",
        "training             327.7 k tokens",
    ):
        assert line in shown, line
    muon = glassformer("plan", "gpt3-175b", "--gpus", 8, "--train.optimizer.kind", "muon").out
    assert "total with fsdp" in muon and "whole matrices" not in muon
    assert muon.count("does not fit") == 2 and "lower --batch-size or --context, set" in muon
    assert len(json.loads(glassformer("plan", "gpt2", "--gpus", 8, "--json").out)["notes"]) == 1


@pytest.mark.parametrize("name", [*PRESETS, *recipes.names(), *papers.FILES])
def test_plan_takes_every_preset_and_recipe(glassformer: Glassformer, name: str) -> None:
    flags = []
    if name in papers.FILES:
        Path(name).write_text(papers.FILES[name])
    if name not in PRESETS:
        run = papers.run_of(name)
        if not run.model.vocab_size and not run.tokenizer.vocab_size:
            flags += ["--model.vocab-size", 64]
        if run.source_tokenizer is not None and not run.source_tokenizer.vocab_size:
            flags += ["--model.source-vocab-size", 64]
        if run.lora is not None:
            refused = glassformer("plan", name, *flags)
            assert refused.code == 2 and "plan supports only runs that train all weights" in refused.err
            return
    plan = json.loads(glassformer("plan", name, *flags, "--json").out)
    assert plan["name"] == name.removesuffix(".toml") and plan["seconds"] > 0 and plan["parameters"]["total"] > 0


def test_plan_takes_a_file_and_its_model(glassformer: Glassformer, tiny_recipe: Path, trained: Outcome) -> None:
    plan = json.loads(glassformer("plan", tiny_recipe, "--model.d-model", 32, "--context", 16, "--json").out)
    assert plan["micro_batch"] == {"n_rows": 3, "n_tokens": 16, "n_source": 0, "n_scored": 0}
    assert plan["n_tokens"] == 20 * 3 * 16 and "vocabulary 290" in plan["assumptions"][0]
    stored = json.loads(glassformer("plan", trained.folder, "--json").out)
    assert stored["assumptions"] == [] and stored["name"] == trained.run.name


def test_plan_of_a_text_is_the_plan_of_the_run_that_train_starts(glassformer: Glassformer, tmp_path: Path) -> None:
    text = tmp_path / "texts" / "book.txt"
    text.parent.mkdir()
    text.write_text("Some words of a book.\n" * 1000)
    for place in (text, text.parent):
        run, _ = own_data.run_of(place)
        plan = json.loads(glassformer("plan", place, "--train.max-steps", 7, "--json").out)
        assert plan["name"] == run.name == place.stem
        assert plan["n_tokens"] == 7 * run.train.batch_size * run.model.max_len


WIDTHS = ("d-model", "decoder.n-heads", "decoder.d-head")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "missing arguments of glassformer plan: CONFIG"),
        (["gtp2"], "is named 'gtp2': did you mean gpt2?"),
        (["nowhere/at/all"], "no preset, recipe, file or model directory is named 'nowhere/at/all'"),
        (["none.toml"], "no such file: none.toml"),
        (["."], "is not a model directory: it has no run.toml, and no text: . has no .txt, .md or .jsonl file"),
        (["gpt2", "--gpu", "h20"], "numbers like 24GB,80TF,1TB/s: did you mean h200?"),
        (["gpt2", "--gpus", "0"], "--gpus is 0 and must be at least 1"),
        (["gpt2", "--gpus", "1.5"], "--gpus must be an integer, not '1.5'"),
        (["gpt2", "--tokens", "inf"], "--tokens must be an integer, not 'inf'"),
        (["gpt2", "--mfu", "40"], "--mfu is 40.0 and must be above 0 and at most 1"),
        (["gpt2", "--mfu", "nan"], "--mfu must be a number, not 'nan'"),
        (["gpt2", "--batch-size", "0"], "train.batch_size is 0 and must be at least 1"),
        (["gpt2", "--context", "2000"], "the context is 2000 and must be from 1 to model.max_len, 1024"),
        (["gpt2", "--precision", "fp8"], "train.precision"),
        (["gpt2", "--gpu", "v100-16gb", "--precision", "bf16"], "does not support bf16: use --precision fp16"),
        (["gpt2", "--mfus", "0.3"], "did you mean --mfu?"),
        (["gpt2", "--model.d-modl", "3"], "did you mean"),
        (["gpt2", "--model.d-model", "12000000000000"], "model.d_model is 12,000,000,000,000 and must be at most"),
        (
            ["gpt2", *(f"--model.{name}={1 << 20}" for name in WIDTHS), "--model.fused-qkv"],
            "has too many elements for PyTorch",
        ),
        (["reverse-luong"], "the vocabulary size of this run depends on its text: give --model.vocab-size N"),
    ],
)
def test_wrong_plans_are_one_sentence(glassformer: Glassformer, words: list[str], expected: str) -> None:
    require_one_sentence(glassformer("plan", *words), expected)
