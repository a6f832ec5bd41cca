"""Mistakes of the user: one sentence, exit code 2, and no partly written file."""

import json
from pathlib import Path

import pytest

from glassformer.reporting import Outcome
from runs import write_text

from .conftest import Glassformer, Result


def require_one_sentence(result: Result, *words: str) -> None:
    assert result.code == 2
    assert result.out == ""
    lines = result.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("glassformer: "), result.err
    for word in words:
        assert word in lines[0]


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.txt", None, "no such file: "),
        ("empty.txt", b"", "is empty; use a file with text"),
        ("blank.txt", b" \n\n ", "contains only white space"),
        ("short.txt", b"only a few words here", "fewer than one window of 65 (data.context 64"),
        ("latin.txt", b"caf\xe9 au lait\n" * 100, "is not UTF-8: byte 0xe9 at offset 3 (line 1); convert it"),
        ("records.jsonl", b'{"txt": "a"}\n', "has the columns txt: name those to read, with --data.text-field"),
        ("records.jsonl", b'{"text": \n', "is not JSON"),
        ("recipe.toml", b"[train]\nmax_stes = 1", "unknown key train.max_stes: did you mean train.max_steps?"),
        ("recipe.toml", b"[train\n", "recipe.toml is not valid TOML"),
        ("recipe.toml", b'[model]\npreset = "gtp2"', "did you mean gpt2?"),
        ("recipe.toml", b"[model.decoder]\nn_heads = 7", "d_model 512 is not divisible by model.decoder.n_heads 7"),
        ("recipe.toml", b'name = "x"', "has no data.path: give a text with --data.path FILE"),
    ],
)
def test_a_file_that_cannot_be_trained_on_is_refused(
    glassformer: Glassformer, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    require_one_sentence(glassformer("train", path, "--out", tmp_path / "out"), words)
    assert not (tmp_path / "out").exists() and everything(tmp_path / "here") == set()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--train.max-stes", "5"], "unknown key train.max_stes: did you mean train.max_steps?"),
        (["--max-stes", "5"], "unknown option --max-stes: did you mean --train.max-steps?"),
        (["--ot", "x"], "unknown option --ot: did you mean --out?"),
        (["--train.max-steps", "x"], "train.max_steps must be integer, not 'x' (in the command line)"),
        (["--train.max-steps"], "--train.max-steps needs a value"),
        (["--out"], "--out needs a value"),
        (["--objective.kind", "masks"], "objective.kind 'masks' is unknown"),
        (["--model.decoder.n-kv-heads", "-1"], "n_kv_heads is -1 and must not be negative"),
        (["--train.schedule.final-ratio", "-5"], "train.schedule.final_ratio is -5.0 and must be from 0 to 1"),
        (["--train.max-steps", "0"], "train.max_steps is 0 and must be at least 1"),
        (["--train.device", "cuda:77"], "device 'cuda:77' is not available"),
        (["--model.d-model", "15"], "model.d_model 15 is not divisible by model.decoder.n_heads 2"),
        (["--model.encoder.n-layers", "1"], "d_model 16 is not divisible|with only [model.decoder]"),
        (["--train.optimizer.learning-rate=-1"], "train.optimizer.learning_rate is -1.0"),
        (["--data.valid-fraction", "1"], "data.valid_fraction: expected a number above 0 and below 1, got 1.0"),
        (["--data.context", "33"], "data.context: expected at most model.max_len (32), got 33"),
        (["--data.valid-path", "none.txt"], "no such file: none.txt"),
        (["--tokenizer.vocab-size", "100"], "a vocabulary of 100 is too small"),
        (["--tokenizer.path", "none.json"], "no such file: none.json"),
        (["--data.path", "builtin:python-doc"], "did you mean builtin:python-docs?"),
        (["more.txt"], "two sources are the text files of pairs, and "),
        (["--train.batch-size", "100000000"], "train.batch_size is 100,000,000 and must be at most 16,777,216"),
        (
            ["--train.grad-accumulation", "2147483648"],
            "train.grad_accumulation is 2,147,483,648 and must be at most 1,048,576",
        ),
        (["--train.optimizer.kind", "muon", "--train.optimizer.n-steps", "2147483648"], "must be at most 1,000"),
    ],
)
def test_wrong_flags_are_named(
    glassformer: Glassformer, tmp_path: Path, tiny_recipe: Path, flags: list[str], words: str
) -> None:
    text = write_text(tmp_path)
    given = ["train", tiny_recipe, "--data.path", text, "--out", tmp_path / "out", *flags]
    result = glassformer(*given)
    require_one_sentence(result)
    assert any(word in result.err for word in words.split("|")), result.err
    assert not (tmp_path / "out").exists() and everything(tmp_path / "here") == set()


@pytest.mark.parametrize("place", ["file/out", "file/a/b/c", "/dev/null/out", "/proc/nothing/out"])
def test_an_output_folder_that_cannot_be_written_is_named(
    glassformer: Glassformer, tmp_path: Path, tiny_recipe: Path, place: str
) -> None:
    (tmp_path / "file").write_text("x")
    text = write_text(tmp_path)
    before = everything(tmp_path)
    result = glassformer("train", tiny_recipe, "--data.path", text, "--out", tmp_path / place)
    require_one_sentence(result, "cannot write", place.rsplit("/", 1)[0])
    assert everything(tmp_path) == before, "the tokens were prepared before the folder was checked"


def test_a_folder_with_a_run_is_refused(glassformer: Glassformer, trained: Outcome, tiny_recipe: Path) -> None:
    before = (trained.folder / "manifest.json").read_bytes()
    result = glassformer("train", tiny_recipe, "--data.path", "x.txt", "--out", trained.folder)
    require_one_sentence(
        result, "already contains a run: continue it with `glassformer resume", "or choose another --out"
    )
    assert (trained.folder / "manifest.json").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trian", "x"], "unknown verb 'trian': did you mean train?"),
        (["xyzzy"], "unknown verb 'xyzzy': expected one of demo, train"),
        (["train"], "nothing to train on: give a recipe, a file"),
        (["train", "shakespear-char"], "no recipe or file is called 'shakespear-char': did you mean shakespeare-char?"),
        (["resume"], "resume needs one folder"),
        (["resume", "nowhere"], "no such run: nowhere"),
        (["resume", "x", "--train.seed", "1"], "resume cannot change train.seed"),
        (["generate", "nowhere", "--prompt", "x"], "no such model directory: nowhere"),
        (["generate", ".", "--prompt", "x"], "is not a model directory: it has no manifest.json"),
        (["evaluate", "nowhere", "--json"], "no such model directory: nowhere"),
        (["presets", "gtp2"], "did you mean gpt2?"),
        (["presets", "a", "b"], "presets takes at most one name"),
        (["recipes", "python-doc"], "did you mean python-docs?"),
        (["recipes", "nothing.toml"], "no recipe"),
        (["reproduce"], "reproduce needs one recipe"),
        (["reproduce", "python-doc"], "did you mean python-docs?"),
        (["demo", "x.txt"], "demo takes no file"),
        (["doctor", "nowhere"], "no such model directory: nowhere"),
        (["data", "reprt", "x"], "unknown verb `data reprt`: expected one of report, pairs"),
        (["data", "report"], "give at least one text file"),
        (["data", "report", "none.txt"], "no such file: none.txt"),
        (["tokenizer", "tran"], "unknown verb `tokenizer tran`"),
        (["tokenizer", "train", "--vocab-size", "300", "--out", "t.json"], "give at least one text file"),
        (["tokenizer", "train", "none.txt", "--vocab-size", "300", "--out", "t.json"], "no such file: none.txt"),
        (["tokenizer", "encode", "none.json", "x"], "no such file: none.json"),
    ],
)
def test_wrong_commands_are_one_sentence(
    glassformer: Glassformer, tmp_path: Path, words: list[str], expected: str
) -> None:
    require_one_sentence(glassformer(*words), expected)
    assert everything(tmp_path / "here") == set()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["generate", "DIR", "--promt", "x"], "unknown option --promt: did you mean --prompt?"),
        (["generate", "DIR", "--top-k", "x"], "--top-k: expected INT, got 'x'"),
        (["generate", "DIR", "--context", "drop"], "--context: expected one of refuse, slide; got 'drop'"),
        (["evaluate", "DIR", "--jsn"], "did you mean --json?"),
        (["generate", "DIR", "x"], "unexpected arguments: 'x'; remove them"),
        (["generate", "DIR", "--top-k", "9", "x", "y"], "unexpected arguments: 'x', 'y'; remove them"),
        (["embed", "DIR", "--n", "1.5"], "--n: expected INT, got '1.5'"),
        (["embed", "DIR", "--input"], "--input needs a value"),
        (["evaluate", "DIR", "--length-penalty", "x"], "--length-penalty: expected FLOAT, got 'x'"),
        (["tokenizer", "decode", "DIR", "a"], "expected numbers (INT), got 'a' (see glassformer"),
        (
            ["tokenizer", "decode", "DIR", "1", "a", "3", "1.0"],
            "expected numbers (INT), got 'a', '1.0' (see glassformer",
        ),
        (
            ["data", "labels", "--outputs", "x"],
            "--outputs: expected one of classes, multi_label, regression, tags; got 'x' (see glassformer",
        ),
        (["plot", "attention", "DIR", "--stack", "x"], "--stack: expected one of encoder, decoder, cross; got 'x'"),
        (["export", "DIR"], "missing arguments of glassformer export: PATH"),
        (
            ["tokenizer", "train", "x.txt", "--out", "t.json"],
            "missing arguments of glassformer tokenizer train: --vocab-size",
        ),
        (["data", "report", "x.txt", "--tokeniser", "t"], "did you mean --tokenizer?"),
    ],
)
def test_wrong_options_are_one_sentence(glassformer: Glassformer, words: list[str], expected: str) -> None:
    verb = " ".join(words[: 1 + (words[0] in ("tokenizer", "data", "plot"))])
    require_one_sentence(glassformer(*words), expected, f"(see glassformer {verb} --help)")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--prompt", "abc " * 100], "tokens and the model's context is 32: shorten it, or let the context slide"),
        (["--prompt", "a", "--temperature", "-1"], "temperature is -1.0 and must not be negative"),
        (["--prompt", "a", "--top-p", "0"], "top_p is 0.0"),
        (["--prompt", "a", "--max-new-tokens", "0"], "max_new_tokens is 0"),
        (["--prompt", "a", "--input", "x"], "give --prompt or --input, not both"),
        (["--prompt", "a", "--device", "cuda:77"], "device 'cuda:77' is not available"),
        (["--prompt", "a", "--checkpoint", "3"], "has no checkpoint of step 3; existing steps: 10, 20"),
        ([], "no prompt given: give --prompt TEXT or --input FILE,"),
        (["--input", "none.jsonl"], "no such file: none.jsonl"),
        (["--input", "-"], "- has no prompt"),
    ],
)
def test_wrong_generation_settings_are_one_sentence(
    glassformer: Glassformer, trained: Outcome, options: list[str], expected: str
) -> None:
    require_one_sentence(glassformer("generate", trained.folder, *options), expected)


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


def test_generate_names_an_output_that_cannot_be_written(glassformer: Glassformer, trained: Outcome) -> None:
    stdin = '{"prompt": "a"}\n'
    result = glassformer("generate", trained.folder, "--input", "-", "--output", "/dev/null/x", stdin=stdin)
    require_one_sentence(result, "cannot write")


def test_a_damaged_model_is_named(glassformer: Glassformer, trained: Outcome, tmp_path: Path) -> None:
    for path in trained.folder.glob("*.*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = bytearray((tmp_path / "model.safetensors").read_bytes())
    data[1000] ^= 16
    (tmp_path / "model.safetensors").write_bytes(data)
    for verb in (["generate", "--prompt", "a"], ["evaluate"], ["doctor"]):
        result = glassformer(verb[0], tmp_path, *verb[1:])
        require_one_sentence(result, "is damaged: model.safetensors is not the file that was written")
