"""Models with attention learn a task within seconds, and `compare` shows how another run differs.

They are evaluated once, at their end, which changes no step. Without attention the task is not learned in the full 400
steps either: the recipe `reverse-gru` states that.
"""

import json
from pathlib import Path

from .conftest import Glassformer


def test_attention_learns_a_task_and_is_compared(glassformer: Glassformer, tmp_path: Path) -> None:
    short = ("--train.max-steps", "100", "--train.eval-every", "100")
    trained = glassformer("train", "reverse-gru", "--out", tmp_path / "reverse-gru", "--train.device", "cpu", *short)
    assert trained.code == 0, trained.err
    name = "reverse-bahdanau"
    steps = ("--train.max-steps", "250", "--train.eval-every", "250")
    reproduced = glassformer("reproduce", name, "--out", tmp_path / name, "--train.device", "cpu", *steps)
    assert reproduced.code == 0 and reproduced.out.startswith("PASS"), reproduced.err
    compared = glassformer(
        "compare", tmp_path / "reverse-gru", tmp_path / "reverse-bahdanau", "--data.path", "builtin:reverse#test",
        "--score", "exact_match", "--json",
    )  # fmt: skip
    without, with_attention = (json.loads(line) for line in compared.out.splitlines())
    assert "no attention" in without["kind"] and "additive attention before" in with_attention["kind"]
    assert with_attention["score"] > 99 and without["score"] < 60
    assert with_attention["n_parameters"] < 2 * without["n_parameters"]


def test_a_transformer_learns_the_task(glassformer: Glassformer, tmp_path: Path) -> None:
    name = "reverse-transformer"
    reproduced = glassformer(
        "reproduce", name, "--out", tmp_path / name, "--train.device", "cpu", "--train.eval-every", "600"
    )
    assert reproduced.code == 0 and reproduced.out.startswith(f"PASS  {name}: exact_match 99"), reproduced.err
