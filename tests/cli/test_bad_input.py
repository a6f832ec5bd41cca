"""Mistakes of the user: one sentence, exit code 2, and no partly written file."""

import json
from pathlib import Path

import pytest

from glassformer.tasks.reporting import Outcome
from runs import write_text

from .conftest import Glassformer, Result


def require_one_sentence(result: Result, *words: str) -> None:
    assert result.code == 2
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("glassformer: "), result.err
    for word in words:
        assert word in lines[0]


def test_a_prompt_longer_than_the_context_is_refused(glassformer: Glassformer, trained: Outcome) -> None:
    words = "tokens and the model's context is 32: shorten it, or let the context slide"
    require_one_sentence(glassformer("generate", trained.folder, "abc " * 100), words)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--train.device", "cuda:77"], "device 'cuda:77' is not available"),
        (["--tokenizer.scheme", "char", "--tokenizer.vocab-size", "5"], "a vocabulary of 5 is too small"),
    ],
)
def test_settings_that_are_checked_with_torch_are_one_sentence(
    glassformer: Glassformer, tmp_path: Path, tiny_recipe: Path, option: list[str], message: str
) -> None:
    """Only torch knows the number of GPUs, and only the text its characters; others: `test_early_errors.py`."""
    given = ["train", tiny_recipe, "--data.path", write_text(tmp_path), "--out", tmp_path / "out"]
    require_one_sentence(glassformer(*given, *option), message)
    assert not (tmp_path / "out").exists() and not list((tmp_path / "here").iterdir())


def test_a_gpu_that_is_missing_is_named(glassformer: Glassformer, trained: Outcome) -> None:
    refused = glassformer("generate", trained.folder, "a", "--device", "cuda:77")
    require_one_sentence(refused, "device 'cuda:77' is not available")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2 of standard input is not JSON"),
        ('{"text": "a"}', 'line 2 of standard input has no text field "prompt"'),
        ('["a"]', 'has no text field "prompt"'),
        (json.dumps({"prompt": "abc " * 100}), "prompt 2 has"),
        ('{"prompt": "\\ud800"}', "surrogate"),
    ],
)
def test_wrong_prompts_are_named_before_any_output(
    glassformer: Glassformer, trained: Outcome, tmp_path: Path, line: str, expected: str
) -> None:
    stdin = f'{{"prompt": "a"}}\n{line}\n'
    result = glassformer("generate", trained.folder, "--input", "-", "--output", tmp_path / "out.jsonl", stdin=stdin)
    require_one_sentence(result, expected)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_damaged_model_is_named(glassformer: Glassformer, trained: Outcome, tmp_path: Path) -> None:
    for path in trained.folder.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[1000] ^= 16
    (tmp_path / "model.safetensors").write_bytes(data)
    for verb in (["generate", "--prompt", "a"], ["evaluate"], ["doctor"]):
        result = glassformer(verb[0], tmp_path, *verb[1:])
        require_one_sentence(result, "is damaged: model.safetensors is not the file that was written")
