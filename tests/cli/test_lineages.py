"""Recurrent and attention models trained on the same task: `compare` shows the benefit of attention."""

import json
from pathlib import Path

import pytest

from .conftest import Glassformer


def test_attention_learns_a_task_that_one_vector_cannot(glassformer: Glassformer, tmp_path: Path) -> None:
    for name in ("reverse-gru", "reverse-bahdanau"):
        reproduced = glassformer("reproduce", name, "--out", tmp_path / name, "--train.device", "cpu")
        assert reproduced.code == 0 and reproduced.out.startswith("PASS"), reproduced.err
    compared = glassformer(
        "compare", tmp_path / "reverse-gru", tmp_path / "reverse-bahdanau", "--data.path", "builtin:reverse#test",
        "--score", "exact_match", "--json",
    )  # fmt: skip
    without, with_attention = (json.loads(line) for line in compared.out.splitlines())
    assert "no attention" in without["kind"] and "additive attention before" in with_attention["kind"]
    assert with_attention["score"] > 99 and without["score"] < 60
    assert with_attention["n_parameters"] < 2 * without["n_parameters"]


@pytest.mark.parametrize(("name", "n_steps"), [("reverse-luong", 200), ("reverse-transformer", 600)])
def test_the_other_lineages_learn_the_task(glassformer: Glassformer, tmp_path: Path, name: str, n_steps: int) -> None:
    steps = ("--train.max-steps", n_steps, "--train.eval-every", n_steps)
    reproduced = glassformer("reproduce", name, "--out", tmp_path / name, "--train.device", "cpu", *steps)
    assert reproduced.code == 0 and reproduced.out.startswith(f"PASS  {name}: exact_match 99"), reproduced.err
