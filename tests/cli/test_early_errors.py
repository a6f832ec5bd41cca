"""Mistakes that are known without torch: each verb names them in one sentence before torch is imported."""

import json
import shutil
import subprocess
import sys
from importlib import import_module

import pytest

from glassformer.cli.arguments import Group
from glassformer.cli.main import VERBS
from glassformer.reporting import Outcome
from glassformer.store.lock import locked

PROGRAM = """
import io, json, sys, traceback
from contextlib import redirect_stderr, redirect_stdout


class Refused:
    names = ["torch", "numpy", "tokenizers", "rich", "transformers", "matplotlib"]

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            raise RuntimeError(f"{name} is imported")


sys.meta_path.insert(0, Refused())
from glassformer.cli.main import run

results = []
for line in sys.stdin.read().splitlines():
    if line.startswith("TRAINS ") and "rich" in Refused.names:
        Refused.names.remove("rich")  # the reporter of a training
    line = line.removeprefix("TRAINS ")
    out, err = io.StringIO(), io.StringIO()
    stdin, sys.stdin = sys.stdin, io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(line.split())
    except RuntimeError:
        code = traceback.format_exc()
    sys.stdin = stdin
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
"""Run command lines, one per line, in a process that cannot import torch and other large libraries."""

LINES = {
    "demo x.txt": "demo takes no file",
    "demo --train.max-stes 5": "did you mean train.max_steps?",
    "train": "nothing to train on: give a recipe, a file, data",
    "train nothing": "no recipe or file is called 'nothing'",
    "train none.txt": "no such file: none.txt",
    "train empty.txt": "empty.txt is empty; use a file with text",
    "train blank.txt": "contains only white space",
    "train short.txt": "fewer than one window of 65 (data.context 64",
    "train latin.txt": "is not UTF-8: byte 0xe9 at offset 3",
    "train records.jsonl": "records.jsonl has the columns txt: name those to read",
    "train folder": "folder has 1 .dat file and no .txt or .jsonl file: glassformer train 'folder/**/*.dat'",
    "train tiny.toml": "has no data.path: give a text with --data.path FILE",
    "train wrong.toml": "unknown key train.max_stes: did you mean train.max_steps?",
    "train tiny.toml --data.path text.txt --data.valid-path none.txt": "no such file: none.txt",
    "train tiny.toml --data.path builtin:python-doc": "did you mean builtin:python-docs?",
    "train tiny.toml --data.path text.txt --tokenizer.path none.json": "no such file: none.json",
    "train tiny.toml --data.path text.txt --init nowhere": "no such model directory: nowhere",
    "train tiny.toml --data.path text.txt --init folder": "folder is not a model directory: it has no manifest.json",
    "train text.txt --out model": "model already contains a run: continue it with `glassformer resume",
    "train text.txt --out locked": "locked is being trained by process",
    "train text.txt --out text.txt/run": "cannot write text.txt/run: ",
    "train texts --out texts/run": "would become part of the data",
    "train pairs.toml --data.source text.txt": "the target side is missing; set --data.target FILE",
    "train pairs.toml --data.source text.txt --data.target short.txt": "line i of one file must be the other side",
    "train pairs.toml --data.path none.tsv": "no such file: none.tsv",
    "train labels.toml --data.path none.tsv": "no such file: none.tsv",
    "train labels.toml --data.path table.tsv": "expected the columns text and label, got a, b, c",
    "train labels.toml": "data.path is missing",
    "resume": "resume needs one folder",
    "resume nowhere": "no such run: nowhere",
    "resume folder": "folder has no intact checkpoint to resume from",
    "resume locked": "locked is being trained by process",
    "resume locked --verify": "locked is being trained by process",
    "resume model --train.max-time soon": "train.max_time must be number, not 'soon'",
    "resume model --train.seed 1": "resume cannot change train.seed",
    "checkpoint list nowhere": "no such run: nowhere",
    "checkpoint verify nowhere": "no such run: nowhere",
    "checkpoint prune folder": "folder has no checkpoints",
    "checkpoint prune locked": "locked is being trained by process",
    "generate": "missing arguments of glassformer generate: DIR",
    "generate model": "no prompt given: give --prompt TEXT or --input FILE",
    "generate nowhere --prompt a": "no such model directory: nowhere",
    "generate text.txt --prompt a": "text.txt is a file: give a model directory",
    "generate folder --prompt a": "folder is not a model directory: it has no manifest.json",
    "generate model --prompt a --checkpoint 3": "has no checkpoint of step 3; existing steps: 10, 20",
    "generate model --prompt a --draft nowhere": "no such model directory: nowhere",
    "generate model --prompt a --temperature -1": "temperature is -1.0 and must not be negative",
    "generate model --prompt a --dtype int4": "--dtype: expected one of fp32, bf16, fp16, int8; got 'int4'",
    "generate model --input none.txt": "no such file: none.txt",
    "generate model --input latin.txt": "is not UTF-8",
    "generate model --input blank.txt": "blank.txt has no prompt",
    "generate model --input text.txt --output text.txt": "which is an input: choose another place",
    "generate model --input text.txt --output text.txt/out": "cannot write text.txt",
    "generate model --input text.txt --output folder": "folder is a folder: give the name of a file to write",
    "translate nowhere --input text.txt": "no such model directory: nowhere",
    "translate model nowhere --input text.txt": "no such model directory: nowhere",
    "translate model --input none.txt": "no such file: none.txt",
    "translate model --input latin.txt": "is not UTF-8",
    "translate model --input text.txt --beam 0": "beam is 0 and must be from 1",
    "score model": "the target side is missing: give --target FILE",
    "score model --target none.txt": "no such file: none.txt",
    "score nowhere --target text.txt": "no such model directory: nowhere",
    "score model --source short.txt --target text.txt": "line i of one file must be the other side",
    "fill nowhere [MASK]": "no such model directory: nowhere",
    "fill model --input none.txt": "no such file: none.txt",
    "answer nowhere why --context a": "no such model directory: nowhere",
    "answer model why --input none.txt": "no such file: none.txt",
    "answer model why --input text.txt --context a": "give --context TEXT or --input FILE, not both",
    "classify nowhere --input text.txt": "no such model directory: nowhere",
    "classify model --input latin.txt": "is not UTF-8",
    "classify model --input text.txt --second a": "--second needs a text on the command line",
    "tag nowhere --input text.txt": "no such model directory: nowhere",
    "tag model --input none.txt": "no such file: none.txt",
    "embed model": "no output requested",
    "embed nowhere --query a --input text.txt": "no such model directory: nowhere",
    "embed model --input text.txt --output text.txt": "which is an input",
    "evaluate": "give at least one model directory",
    "evaluate nowhere": "no such model directory: nowhere",
    "evaluate model --data.path none.txt": "no such file: none.txt",
    "evaluate model --data.path latin.txt": "is not UTF-8",
    "evaluate model --data.path folder": "no .txt or .jsonl file",
    "evaluate model --checkpoint 3": "has no checkpoint of step 3",
    "evaluate model --num-beams 3": "did you mean --beam?",
    "average --out new": "average needs at least two model directories",
    "average model --out model": "model already exists: name another folder",
    "average model nowhere --out new": "no such model directory: nowhere",
    "average model --out text.txt/new": "cannot write text.txt/new",
    "merge nowhere --out new": "no such model directory: nowhere",
    "merge model --out model": "model already exists: name another folder",
    "import nowhere new": "no such folder: nowhere",
    "import folder new": "is not a checkpoint of transformers: it has no config.json",
    "import folder model": "model already exists: name another folder",
    "export nowhere new": "no such model directory: nowhere",
    "export model model": "model already exists: name another folder",
    "export model new --to nothing": "--to: expected one of hf, onnx, gguf, ct2; got 'nothing'",
    "export model new --dtype float16": "only gguf supports other dtypes",
    "compare": "give at least one model directory",
    "compare model nowhere": "no such model directory: nowhere",
    "compare model --data.path none.txt": "no such file: none.txt",
    "compare model --plot out.txt": "expected .png or .svg, got .txt",
    "inspect nowhere": "no such model directory: nowhere",
    "inspect model model": "inspect takes one folder",
    "inspect model --checkpoint 3": "has no checkpoint of step 3",
    "inspect --html page.html": "inspect --html needs a folder",
    "plot alignment nowhere --source a": "no such model directory: nowhere",
    "plot attention nowhere --text a": "no such model directory: nowhere",
    "plot attention model": "give --text TEXT for a model with one stack",
    "plot lens nowhere --text a": "no such model directory: nowhere",
    "plot ablation nowhere --text a": "no such model directory: nowhere",
    "plot patching nowhere --clean a --corrupted b": "no such model directory: nowhere",
    "plot positions nowhere": "no such model directory: nowhere",
    "plot positions model --out out.txt": "expected .png or .svg, got .txt",
    "plot schedule nothing": "no recipe or file is called 'nothing'",
    "plot curves nowhere": "no such run: nowhere",
    "plot confusion model --data.path none.tsv": "no such file: none.tsv",
    "tokenizer train none.txt --vocab-size 300 --out t.json": "no such file: none.txt",
    "tokenizer train latin.txt --vocab-size 300 --out t.json": "is not UTF-8",
    "tokenizer train text.txt --vocab-size 300 --out text.txt": "which is an input",
    "tokenizer encode none.json a": "no such file: none.json",
    "tokenizer decode none.json 1": "no such file: none.json",
    "tokenizer explain folder a": "no such file: folder/tokenizer.json",
    "tokenizer report none.json text.txt": "no such file: none.json",
    "data report none.txt": "no such file: none.txt",
    "data report latin.txt": "is not UTF-8",
    "data report text.txt --tokenizer none.json": "no such file: none.json",
    "data pairs": "no pairs are given",
    "data labels --data.path none.tsv": "unknown option --data.path: did you mean --path?",
    "data labels --path none.tsv": "no such file: none.tsv",
    "doctor nowhere": "no such model directory: nowhere",
    "doctor folder": "folder is not a model directory",
    "reproduce": "reproduce needs one recipe",
    "reproduce python-doc": "did you mean python-docs?",
    "reproduce tiny.toml --data.path text.txt": "has no [result] to compare with",
    "reproduce copy-task --out model": "model already contains a run",
    "plan": "plan needs one preset",
    "plan nothing": "no preset, recipe, file or model directory is named 'nothing'",
    "plan folder": "folder is not a model directory: it has no run.toml, and no text",
    "plan gpt2 --gpu h2000": "did you mean h200?",
    "presets gtp2": "did you mean gpt2?",
    "recipes python-doc": "did you mean python-docs?",
    "nothing": "unknown verb 'nothing'",
}
"""Command line → a part of the sentence on standard error."""


TRAIN = ("demo ", "train ", "resume ", "reproduce ")

FILES = {
    "text.txt": b"some words and others\n" * 100,
    "texts/text.txt": b"some words and others\n" * 100,
    "empty.txt": b"",
    "blank.txt": b" \n\n ",
    "short.txt": b"only a few words here",
    "latin.txt": b"caf\xe9 au lait\n" * 100,
    "records.jsonl": b'{"txt": "a"}\n',
    "table.tsv": b"a\tb\tc\n1\t2\t3\n",
    "folder/file.dat": b"x",
    "tiny.toml": b"[train]\nmax_steps = 1",
    "wrong.toml": b"[train]\nmax_stes = 1",
    "pairs.toml": b'[data]\nkind = "pairs"\n[objective]\nkind = "seq2seq"',
    "labels.toml": b'[data]\nkind = "labels"\n[objective]\nkind = "classification"',
}


@pytest.fixture(scope="module")
def results(trained: Outcome, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int | str, str, str]]:
    """Exit code, output and errors of each line. All lines run in one other process, and write no file."""
    folder = tmp_path_factory.mktemp("early")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    for name in ("model", "locked"):
        shutil.copytree(trained.folder, folder / name)
    order = sorted(LINES, key=lambda line: line.startswith(TRAIN))  # those that may import rich are last
    lines = ["TRAINS " * line.startswith(TRAIN) + line for line in order]
    with locked(folder / "locked"):
        before = set(folder.rglob("*"))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input="\n".join(lines),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert set(folder.rglob("*")) == before
    assert done.returncode == 0, done.stderr
    return dict(zip(order, map(tuple, json.loads(done.stdout)), strict=True))


@pytest.mark.parametrize("line", LINES)
def test_a_mistake_is_named_before_torch_is_imported(results: dict[str, tuple[int | str, str, str]], line: str) -> None:
    code, out, err = results[line]
    assert (code, out) == (2, "") and err.startswith("glassformer: ") and err.count("\n") == 1, (code, out, err)
    assert LINES[line] in err


def test_the_table_has_every_verb() -> None:
    for verb in VERBS:
        main = import_module(f"glassformer.cli.{verb}").main
        for name in [f"{verb} {inner}" for inner in main.verbs] if isinstance(main, Group) else [verb]:
            assert any(f"{line} ".startswith(f"{name} ") for line in LINES), name
