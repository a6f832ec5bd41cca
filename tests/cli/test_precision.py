"""--dtype of the verbs that use a model."""

import json
from pathlib import Path

import numpy as np
import pytest

from glassformer import api
from glassformer.common.errors import UserError
from runs import Tiny, tiny_run, write_text
from tolerances import within

from .conftest import Glassformer

NEAR = 0.05
"""Largest difference in nats per token between half precision and fp32, for models of two layers."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    text = api.train(tiny_run(write_text(folder), precision="bf16"), folder / "text").folder
    return {"text": text} | {kind: tiny(kind) for kind in ("pairs", "classes", "tags", "masked")}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_every_verb_takes_a_dtype(
    dtype: str, glassformer: Glassformer, models: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "texts").write_text("the dog runs\nthe cat sees the tree\n")
    lines, vectors = tmp_path / "texts", tmp_path / "vectors.npy"
    commands = {
        "generate": ("text", "--prompt", "abc", "--max-new-tokens", 5),
        "translate": ("pairs", "--input", lines),
        "fill": ("masked", "ab [MASK] cd"),
        "classify": ("classes", "the dog runs"),
        "tag": ("tags", "the dog runs"),
        "embed": ("classes", "--input", lines, "--output", vectors),
        "score": ("text", "--target", lines, "--json"),
        "evaluate": ("text", "--json"),
    }
    for verb, (model, *words) in commands.items():
        done = glassformer(verb, models[str(model)], *words, "--dtype", dtype)
        assert done.code == 0, (verb, done.err)
        if verb == "score":
            found = [json.loads(line)["log_prob"] for line in done.out.splitlines()]
            scores = api.load(models["text"]).score(lines.read_text().splitlines(), log=str)
            exact = [score.log_prob for score in scores]
            assert found == within(exact, 20 * NEAR) and (found == exact) == (dtype == "fp32")
        if verb == "evaluate":
            exact_loss = api.load(models["text"], dtype="fp32").evaluate().loss
            assert json.loads(done.out)["loss"] == within(exact_loss, NEAR)
            assert (json.loads(done.out)["loss"] == exact_loss) == (dtype == "fp32")
    exact_vectors = api.load(models["classes"]).embed(lines.read_text().splitlines())
    assert np.abs(np.load(vectors) - exact_vectors).max() < NEAR


def test_evaluate_without_a_dtype_gives_the_trainers_loss(models: dict[str, Path]) -> None:
    lines = [json.loads(line) for line in (models["text"] / "metrics.jsonl").read_text().splitlines()]
    best = min(line["eval/valid_loss"] for line in lines if "eval/valid_loss" in line)
    assert api.load(models["text"]).evaluate().loss == best != api.load(models["text"], dtype="fp32").evaluate().loss


def test_every_model_of_an_ensemble_is_converted(glassformer: Glassformer, models: dict[str, Path]) -> None:
    done = glassformer("evaluate", models["pairs"], models["pairs"], "--loss-only", "--json", "--dtype", "bf16")
    exact = api.load(models["pairs"]).evaluate().loss
    assert json.loads(done.out)["loss"] == within(exact, NEAR)


def test_an_unknown_dtype_is_one_sentence(glassformer: Glassformer, models: dict[str, Path]) -> None:
    done = glassformer("generate", models["text"], "--prompt", "a", "--dtype", "int4")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "--dtype must be fp32 | bf16 | fp16, not 'int4'" in done.err
    with pytest.raises(UserError, match="must be fp32, bf16 or fp16"):
        api.load(models["text"], dtype="float16")
