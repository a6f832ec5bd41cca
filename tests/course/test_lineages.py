"""The lineages of the workshop: assembled from the reader's functions, equal to the package's models, and trained."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import glassformer
from glassformer.apps.cli.main import run
from glassformer.apps.course.workshop import lineages, solutions
from glassformer.apps.course.workshop.assembling import assemble
from glassformer.apps.course.workshop.exercises import every_exercise
from glassformer.apps.course.workshop.folder import check, start
from glassformer.apps.course.workshop.lineage_checks import EVERY_LINEAGE, Lineage, padded_rows
from glassformer.apps.course.workshop.solutions import LINEAGES, names, require_checked, solution_path
from glassformer.common.errors import UserError
from glassformer.config.run import InfillingConfig, MaskedConfig
from runs import made_up_text, pair_run, text_run_of, tiny_run, write_text
from test_extend import printed
from tolerances import NETWORK, assert_close

ROOT, MAX_LINES = Path(__file__).parents[2], 500


def solved(folder: Path) -> Path:
    """Write the files of the chapters with all functions written, which import one another."""
    folder.mkdir(exist_ok=True)
    for file in set(names().values()):
        text = solution_path(file).read_text("utf-8").replace(f"from {solutions.__name__}.", "from ")
        (folder / f"{file}.py").write_text(text, "utf-8")
    return folder


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text("utf-8")
    assert text.count(old) == 1, f"{path.name} contains {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, new), "utf-8")


# The file


def test_the_assembled_file_is_short_needs_torch_alone_and_equals_the_package(tmp_path: Path) -> None:
    path, borrowed, left_out = assemble(solved(tmp_path))
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= MAX_LINES and not borrowed and not left_out
    assert "import glassformer" not in text and "from glassformer" not in text and "import ch0" not in text
    progress = check(tmp_path, ["lineages"])
    assert [(one.name, str(one)) for one in progress.verdicts] == [(name, f"{name}: right.") for name in LINEAGES]
    assert progress.n_right == len(LINEAGES) and "✓ bahdanau" in str(progress)
    assert check(tmp_path, ["causal_mask"]).n_right == len(LINEAGES) + 1, "the states of the models are kept"


def test_functions_that_are_not_written_are_named_and_solutions_are_taken_on_demand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solved(tmp_path)
    replace_in(tmp_path / "ch05_attention.py", "def masked_softmax(", "def other_softmax(")
    (tmp_path / "ch03_recurrent.py").unlink()
    missing = r"not written yet: gru_step \(ch03_recurrent.py\), masked_softmax \(ch05_attention.py\); write them, or"
    with pytest.raises(UserError, match=missing):
        assemble(tmp_path)
    assert run(["course", "assemble", str(tmp_path), "--with-solutions"]) == 0
    assert "from the solutions: gru_step, masked_softmax\n" in capsys.readouterr().out
    assert run(["course", "check", str(tmp_path), "bahdanau", "bert"]) == 0
    path = tmp_path / "lineages.py"
    replace_in(path, "reset * h_new", "h_new")
    assert run(["course", "check", str(tmp_path), "bahdanau", "bert"]) == 1
    path.write_text("# mine\n", "utf-8")
    with pytest.raises(UserError, match=r"lineages.py exists and is not replaced: delete it"):
        assemble(tmp_path, with_solutions=True)
    assert path.read_text("utf-8") == "# mine\n"


def test_the_readers_own_helpers_constants_and_imports_come_along(tmp_path: Path) -> None:
    solved(tmp_path)
    attention, block = tmp_path / "ch05_attention.py", tmp_path / "ch06_block.py"
    replace_in(attention, "math.sqrt(query.shape[-1])", "root(query.shape[-1])")
    with attention.open("a", encoding="utf-8") as file:
        file.write("\n\nHALF = 0.5\n\n\n@cache\ndef root(n: int) -> float:\n    return pow(n, HALF)\n")
    replace_in(attention, "import math\n", "from functools import cache, partial\nimport torch.nn.functional as F\n")
    replace_in(attention, "hidden.masked_fill(is_empty, 0.0).softmax(", "F.softmax(hidden.masked_fill(is_empty, 0.0), ")
    replace_in(block, "import torch\n", "import torch.nn\nfrom torch.nn import functional as F\n")
    replace_in(block, "x * (1 + torch.erf(x / math.sqrt(2))) / 2", "F.gelu(torch.nn.Identity()(x))")
    text = assemble(tmp_path).path.read_text("utf-8")
    assert "from functools import cache\n" in text
    assert text.index("HALF = 0.5") < text.index("@cache\ndef root") < text.index("def attention(")
    assert check(tmp_path, ["gpt", "bert"]).n_right == 2


def test_the_last_of_several_functions_of_one_name_is_taken(tmp_path: Path) -> None:
    """As in Python: a reader may keep an earlier trial above."""
    solved(tmp_path)
    replace_in(tmp_path / "ch06_block.py", "def gelu(", "def gelu(x):\n    return x\n\n\ndef gelu(")
    text = assemble(tmp_path).path.read_text("utf-8")
    assert text.count("def gelu(") == 1 and every_exercise()["gelu"].source().strip() in text


REFUSED = {
    "Norm has two meanings, from lineages.py and from ch06_block.py: rename one": {
        "return x * (1 +": "return Norm(x) * (1 +", "def gelu(": "def Norm(x):\n    return x\n\n\ndef gelu(",
    },
    "pi has two meanings, from ch05_attention.py and from the import of math.pi": {
        "def gelu(": "from math import pi\nfrom ch05_attention import causal_mask\n\n\ndef gelu(",
        "return x * (1 +": "causal_mask(1)\n    return x / pi * (1 +",
    },
    "ch06_block.py uses one, and does not define it": {"return x * (1 +": "return x * (one +"},
    "ch06_block.py must name what it needs: from ch05_attention import NAME, without `as`": {
        "import math\n": "import math\nfrom ch05_attention import attention as att\n",
        "+ multi_head_attention(": "+ att(",
    },
    "ch06_block.py, line \\d+: .*; correct it": {"def gelu(": "def gelu(("},
    r"ch06_block.py defines or changes BIG in several statements \(lines \d+, \d+\): give it its value in one": {
        "def gelu(": "BIG = 1\nBIG = BIG * 2\n\n\ndef gelu(", "return x * (1 +": "return BIG * x * (1 +",
    },
    r"ch06_block.py defines or changes EPS in several": {
        "def gelu(": "EPS = {}\nEPS['x'] = 1.0\n\n\ndef gelu(", "return x * (1 +": "return EPS['x'] * x * (1 +",
    },
    r"ch06_block.py defines or changes ORDER in several": {
        "def gelu(": "ORDER = []\nfor k in 'ab':\n    ORDER.append(k)\n\n\ndef gelu(",
        "return x * (1 +": "return len(ORDER) * x * (1 +",
    },
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSED)
def test_functions_that_cannot_be_one_file_are_refused_with_a_sentence(sentence: str, tmp_path: Path) -> None:
    solved(tmp_path)
    replace_in(tmp_path / "ch05_attention.py", "dtype=torch.bool).tril()", "dtype=torch.bool).tril(int(pi))")
    with (tmp_path / "ch05_attention.py").open("a", encoding="utf-8") as file:
        file.write("\n\npi = 0.0\n")
    for old, new in REFUSED[sentence].items():
        replace_in(tmp_path / "ch06_block.py", old, new)
    with pytest.raises(UserError, match=sentence):
        assemble(tmp_path)
    assert not (tmp_path / "lineages.py").exists()


STUB_LINE = "raise NotImplementedError('write this function')"
HARMLESS = {
    "a form feed and another separator": ("\f\n", "'\u2028\x85'\n    ", "utf-8"),
    "a byte order mark": ("", "", "utf-8-sig"),
    "its own encoding": ("", "'\xe9'\n    ", "latin-1"),
    "a part for programs": ("if __name__ == '__main__':\n    import torch\n    gelu = 1\n\n\n", "", "utf-8"),
    "two imports of one package": ("import torch.utils.data\nimport torch.nn\n\n\n", "", "utf-8"),
    "the stub above": (f"def gelu(x):\n    {STUB_LINE}\n\n\n", "", "utf-8"),
    "a name that is changed and not needed": ("SEEN = []\nSEEN.append(1)\n\n\n", "", "utf-8"),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_a_chapter_is_read_as_python_reads_it(case: str, tmp_path: Path) -> None:
    path = solved(tmp_path) / "ch06_block.py"
    before, inside, encoding = HARMLESS[case]
    replace_in(path, "def gelu(", f"{before}def gelu(")
    replace_in(path, "return x * (1 +", f"{inside}return x * (1 +")
    text = path.read_text("utf-8")
    if encoding == "latin-1":  # without the signs that it lacks
        text = f"# -*- coding: latin-1 -*-\n{text.encode('latin-1', 'ignore').decode('latin-1')}"
    path.write_text(text, encoding)
    written, borrowed, _ = assemble(tmp_path)
    assembled = written.read_text("utf-8")
    compile(assembled, written, "exec")
    assert not borrowed and f"{inside}return x * (1 +" in assembled and "__main__" not in assembled
    assert assembled.count("def gelu(") == 1 and "SEEN" not in assembled
    assert assembled.count("import torch.utils.data\n") == before.count("import torch.utils.data\n")


def test_statements_that_define_nothing_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A function that the reader calls may change what another one needs."""
    path = solved(tmp_path) / "ch06_block.py"
    text = path.read_text("utf-8")
    added = "SIZES = []\n\n\ndef fill(sizes):\n    sizes.append(1)\n\n\nfill(\n    SIZES\n)\n'a note'\n"
    path.write_text(f"{text}\n\n{added}", "utf-8")
    assert run(["course", "assemble", str(tmp_path)]) == 0
    number = text.count("\n") + 2 + 8
    shown = [line for line in capsys.readouterr().out.splitlines() if "left out" in line]
    assert shown == [f"left out, because it defines nothing: ch06_block.py, line {number}: fill("]


def test_a_written_function_that_keeps_the_last_line_of_its_stub_is_written(tmp_path: Path) -> None:
    path = solved(tmp_path) / "ch06_block.py"
    replace_in(path, "math.sqrt(2))) / 2", f"math.sqrt(2))) / 2\n    {STUB_LINE}")
    assert STUB_LINE in assemble(tmp_path).path.read_text("utf-8")


NO_CODE = {
    "# coding: nothing\n": "ch06_block.py: unknown encoding for .*; correct it",
    "\n\n\nx = '\xe9'\n": "ch06_block.py: 'utf-8' codec can't decode byte 0xe9 .*; correct it",
    "x = '\0'\n": "ch06_block.py.*: source code .* null bytes; correct it",
}


@pytest.mark.parametrize("text", NO_CODE)
def test_a_file_that_is_no_python_code_is_refused_with_its_name(text: str, tmp_path: Path) -> None:
    (solved(tmp_path) / "ch06_block.py").write_text(text, "latin-1")
    with pytest.raises(UserError, match=NO_CODE[text]):
        assemble(tmp_path)


# The check


MISTAKES = {
    "the mask of padding for the queries": (
        "& is_token[:, None, None, :]", "& is_token[:, None, :, None]", "transformer bart gpt",
        "first part that differs is decoder.blocks.0.* In lineages.py, causal_and_padding_mask: mistake. Padding is",
    ),
    "a GRU without its reset gate": (
        "reset * h_new", "h_new", "bahdanau luong", "is bridge.hidden.0. In lineages.py, gru_step: mistake",
    ),
    "attention without its root": (
        " / math.sqrt(query.shape[-1])", "", "transformer bart bert gpt", r"lineages.py, attention: mistake. .* √d",
    ),
    "a connection past the layer that is missing in a class": (
        "x + self.ff(x)", "self.ff(x)", "transformer bart bert",
        "differs is encoder.blocks.0.ff_norm. The functions that it calls are right: look at its classes",
    ),
    "weights without a gradient": (
        "matrix.weight.mT", "matrix.weight.mT.detach()", "transformer bart bert gpt",
        "The logits are right, and the gradient of .*q_proj.weight differs, at .*: 0 instead of",
    ),
    "a class that is missing": ("class GPT(", "class GPT2(", "gpt", "raises AttributeError: .* has no attribute 'GPT'"),
    "another name of a weight": (
        "self.vector = ", "self.v = self.vector = ", "bahdanau",
        "raises RuntimeError: .* Missing key.*decoder.cross_attn.v",
    ),
    "an error of a function": (
        "return weights @ memory, weights", "return weights @ memory.T, weights", "bahdanau luong",
        r"Line \d+: return weights @ memory.T, weights In lineages.py, context: wrong",
    ),
    "a wrong shape": (
        'self.output["proj"](self.decoder(token_ids, attention_mask, first',
        'self.output["proj"](self.decoder(token_ids[:, :2], attention_mask, first', "bahdanau luong", "shape|size",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> str:
    return assemble(solved(tmp_path_factory.mktemp("complete"))).path.read_text("utf-8")


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_makes_its_models_wrong_and_is_found(case: str, complete: str, tmp_path: Path) -> None:
    old, new, wrong, sentence = MISTAKES[case]
    path = solved(tmp_path) / "lineages.py"
    path.write_text(complete, "utf-8")
    replace_in(path, old, new)
    progress = check(tmp_path, LINEAGES)
    assert [name for name in LINEAGES if progress.states[name] == "wrong"] == wrong.split()
    assert progress.n_right == len(LINEAGES) - len(wrong.split())
    for verdict in progress.verdicts:
        assert verdict.is_right or re.search(sentence, verdict.sentence), verdict


def test_without_the_file_the_models_are_empty(tmp_path: Path) -> None:
    start(tmp_path)
    progress = check(tmp_path)
    assert {progress.states[name] for name in LINEAGES} == {"empty"} and "empty" not in str(progress)
    assert "gpt: empty. glassformer course assemble writes it" in str(check(tmp_path, ["gpt"]))
    for name in ("gpt", "lineages", "ch05_attention", "causal_mask"):
        require_checked(name)
    with pytest.raises(UserError, match="no exercise 'gtp'; did you mean gpt"):
        check(tmp_path, ["gtp"])


def test_files_and_names_select_what_is_checked(tmp_path: Path) -> None:
    progress = check(solved(tmp_path), ["ch05_attention", "gelu"])
    assert [one.name for one in progress.verdicts] == [
        *(x for x, f in names().items() if f == "ch05_attention"),
        "gelu",
    ]


# Training


RUNS = {
    "bahdanau": pair_run,
    "luong": pair_run,
    "transformer": pair_run,
    "bart": lambda folder, **train: text_run_of(folder, InfillingConfig(), **train),
    "bert": lambda folder, **train: text_run_of(folder, MaskedConfig(), **train),
    "gpt": lambda folder, **train: tiny_run(write_text(folder), **train),
}


@pytest.mark.parametrize("lineage", EVERY_LINEAGE, ids=lambda lineage: lineage.name)
def test_a_model_of_the_package_that_is_trained_gives_its_weights(lineage: Lineage, tmp_path: Path) -> None:
    config = replace(lineage.config, vocab_size=0, max_len=64)
    run = replace(RUNS[lineage.name](tmp_path, max_steps=2, eval_every=2), model=config)
    network = glassformer.train(run, tmp_path / "run").model.network.eval()
    mine = lineage.build(lineages, network.config)
    mine.load_state_dict(network.state_dict())
    inputs = padded_rows(lineage)
    real = inputs["attention_mask"]
    assert_close(mine(**inputs)[real], network(**inputs)[real], terms=NETWORK)


def test_the_page_leads_from_functions_to_a_trained_model_in_the_inspector(tmp_path: Path) -> None:
    """Its Python code prints what it shows, with few steps: weights of the package's run, own training, the doctor."""
    assemble(solved(tmp_path / "mycourse"))
    (tmp_path / "mybook.txt").write_text(made_up_text(), "utf-8")
    page = (ROOT / "docs" / "course" / "workshop.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == page.count("```python") == 3
    program = "".join(code for code, _ in blocks).replace("max_steps=200", "max_steps=3")
    assert printed(program, tmp_path) == "".join(shown for _, shown in blocks)
    assert run(["export", str(tmp_path / "runs/mygpt"), str(tmp_path / "page.html"), "--to", "web"]) == 0
    assert (tmp_path / "page.html").stat().st_size > 100_000


def test_models_of_borrowed_functions_are_not_right(tmp_path: Path) -> None:
    """`assemble --with-solutions` in a folder of stubs writes models that run, and the reader has written nothing."""
    start(tmp_path)
    assemble(tmp_path, with_solutions=True)
    progress = check(tmp_path)
    assert progress.n_right == 0 and {progress.states[name] for name in LINEAGES} == {"empty"}
    assert "gpt: empty. It runs with functions of the solutions: write" in str(check(tmp_path, ["gpt"]))
