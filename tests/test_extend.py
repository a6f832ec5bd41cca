"""The pages of docs/extend: their Python code runs in order in one process and prints the output that the page shows.

`test_pages_of_docs.py` follows the links of all pages; `cli/test_documented_commands.py` runs the commands of guides.
"""

import os
import re
import shutil
import sys
import textwrap
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest

from faults.children import done, forget

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "extend").glob("*.md"))
GUIDES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
NAMED = re.compile(r"`((?:src|tests|docs)/[\w/.-]+)(?:::(\w+))?`")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_LINES = 60
"""Largest number of lines of a page with its Python code, without blank lines."""


def blocks(page: Path, language: str) -> str:
    return "".join(text for found, text in BLOCK.findall(page.read_text("utf-8")) if found == language)


def printed(program: str, folder: Path, source: Path | None = None) -> str:
    """Return what a program prints in a folder. Its process is a child of this one, where torch is imported already.

    With `source`, the program imports glassformer from there.
    """

    def work() -> None:
        if source is not None:
            forget("glassformer", "configs", "cost", "runs")
            sys.path.insert(0, str(source))
        main = sys.modules["__main__"] = ModuleType("__main__")
        os.chdir(folder)
        warnings.resetwarnings()
        with Path("printed").open("w", encoding="utf-8") as file, redirect_stdout(file):
            exec(compile(program, "<page>", "exec"), vars(main))

    assert done(work) == 0
    return (folder / "printed").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_prints_the_output_that_it_shows(page: Path, tmp_path: Path) -> None:
    assert printed(blocks(page, "python"), tmp_path) == blocks(page, "text")


FOLLOWED = """
from dataclasses import replace
from cost.test_activations import SHAPE, predicted, saved_bytes
from configs import CONFIGS
from glassformer.config.run import Run
from glassformer.config.changes import apply_changes
from glassformer.config.transformer import LogPositions, Stack
from glassformer.cost.activations import Kernels
from glassformer.cost.hardware import find_gpu
from glassformer.cost.parameters import parameter_counts
from glassformer.cost.plan import plan_run
from glassformer.inspection.plots import plot_positions
from glassformer.models.build import build_model
import torch

for name in ("gpt", "paper", "window"):
    config = replace(CONFIGS[name], positions=LogPositions())
    network = build_model(config)
    assert predicted(config, Kernels(on_cpu=True)) == saved_bytes(config, torch.float32), name
    assert parameter_counts(config).total == network.n_parameters() == sum(p.numel() for p in network.parameters())
    stacks = [stack for stack in (config.encoder, config.decoder) if stack is not None]
    bare = build_model(replace(config, positions=CONFIGS["no_positions"].positions)).n_parameters()
    assert network.n_parameters() == bare + sum(stack.n_heads for stack in stacks)
    plan = plan_run(Run(model=config), find_gpu("h200"))
    assert plan.n_parameters == network.n_parameters() and plan.memory.weights == 4 * network.n_parameters()
    assert plot_positions(network).axes[0].get_title(loc="left").startswith("Log positions: score bias of each of")
print("equal")
"""


def test_a_position_scheme_needs_three_files(tmp_path: Path) -> None:
    """On a copy of the source that follows the page, the plan equals the network and the bytes that autograd saves."""
    page = ROOT / "docs" / "extend" / "position-scheme.md"
    source = Path(shutil.copytree(ROOT / "src", tmp_path / "src"))
    package = source / "glassformer"

    def change(file: str, old: str, new: str) -> None:
        text = (package / file).read_text("utf-8")
        assert text.count(old) == 1
        (package / file).write_text(text.replace(old, new), "utf-8")

    steps = re.findall(r"^   ```python\n(.*?)^   ```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    setting, choice = map(textwrap.dedent, steps)
    module = blocks(page, "python").split("\n\n\n")[1]
    assert module.startswith("class LogBias")
    with (package / "nn" / "positions.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\n{module}\n")
    config = "config/transformer.py"
    change(config, "@checked\nclass AlibiPositions:", f"{setting}\n\n@checked\nclass AlibiPositions:")
    change(config, "\nPositions = ", "\nPositions = LogPositions | ")
    case = "        case c.AlibiPositions("
    change("models/build.py", case, textwrap.indent(choice, "        ") + case)
    assert printed(FOLLOWED, tmp_path, source) == "equal\n"


PLANNED = """
from glassformer.apps.cli.plan import report
from glassformer.config.changes import apply_changes
from glassformer.cost.hardware import find_gpu
from glassformer.cost.plan import plan_run
from glassformer.cost.room import Room, least_memory, way_that_fits
from glassformer.models.devices import WHOLE
from runs import Recording

foreign, gpu = model.run, find_gpu("h200")
built_in = apply_changes(foreign, {"objective.kind": "causal"})
for run in (foreign, built_in):
    is_foreign = run is foreign
    plan, least, recorder = plan_run(run, gpu), least_memory(run, on_cpu=True), Recording()
    found, text = plan.to_dict(), report(plan)
    glassformer.train(run, f"again-{run.objective.kind}", recorder)
    [told] = [message for message in recorder.messages if message.startswith("memory ")]
    unknown = "what the loss of objective.kind focal keeps is unknown: it is not built in"
    words = (found["unknown"] == unknown, unknown in text, unknown in told, "at least" in told, "may fit" in text)
    for has_it in words:
        assert has_it == is_foreign
    for number in (found["memory_bytes"]["logits"], found["memory_bytes"]["total"], found["fits"]):
        assert (number is None) == is_foreign
    assert ("  counted " in text) == ("  total " not in text) == is_foreign
    assert (least.activations + least.logits == 0) == is_foreign
small = Room("this machine", least_memory(foreign, True).total, None, is_cpu=True)
assert way_that_fits(foreign, small) == WHOLE != way_that_fits(built_in, small)  # is not divided for an unknown loss
wide = apply_changes(foreign, {"model.d_model": 65536, "model.decoder.n_layers": 64})
assert plan_run(wide, gpu).to_dict()["fits"] is False
print("unknown")
"""


def test_the_memory_of_a_task_of_another_package_is_unknown(tmp_path: Path) -> None:
    """With the task of the page, `plan`, its JSON and the memory check name what they do not count."""
    program = blocks(ROOT / "docs" / "extend" / "own-task.md", "python") + PLANNED
    assert printed(program, tmp_path).endswith("\nunknown\n")


FOLLOWED_MODULE = """
from dataclasses import replace
import torch
from configs import CONFIGS
from glassformer.cost.flops import Shape, forward_flops
from glassformer.cost.memory import cache_bytes
from glassformer.cost.parameters import parameter_counts
from glassformer.models.build import build_model
from glassformer.nn.linear_attention import LinearAttention

for name in ("gpt", "paper"):
    config = replace(CONFIGS[name], linear_attention=True)
    network = build_model(config).eval()
    blocks = network.decoder.blocks
    assert all(isinstance(block.self_attn, LinearAttention) for block in blocks)
    assert parameter_counts(config).total == network.n_parameters()
    flops, plain = (forward_flops(c, Shape(2, 9, n_source=5)) for c in (config, CONFIGS[name]))
    assert flops.attention != plain.attention and flops.head == plain.head
    source = {} if network.encoder is None else {"source_ids": torch.arange(10).view(2, 5)}
    state = network.start(2, 7, **source)
    kept = [layer.state for layer in state.layers] + [x for layer in state.memory or [] for x in layer]
    assert cache_bytes(config, 2, 7, n_source=5 * bool(source)) == sum(x.nbytes for x in kept)
print("equal")
"""


def test_an_attention_module_needs_four_files(tmp_path: Path) -> None:
    """On a copy of the source that follows the page, FLOPs, parameters and cache are those of the network."""
    page = ROOT / "docs" / "extend" / "attention-module.md"
    source = Path(shutil.copytree(ROOT / "src", tmp_path / "src"))
    setting, choice = re.findall(r"`(linear_attention: .*?|if config.*?)`", page.read_text("utf-8"))
    module = BLOCK.findall(page.read_text("utf-8"))[0][1]
    (source / "glassformer/nn/linear_attention.py").write_text(module, "utf-8")
    config, build = source / "glassformer/config/transformer.py", source / "glassformer/models/build.py"
    for file, before, line in (
        (config, "    fused_qkv: bool", f"    {setting}\n"),
        (build, "    widths = config.attention_widths(stack)\n    qk_norm", f"    {choice}\n"),
        (
            build,
            "from glassformer.nn.attention import",
            "from glassformer.nn.linear_attention import LinearAttention\n",
        ),
    ):
        text = file.read_text("utf-8")
        assert text.count(before) == 1
        file.write_text(text.replace(before, line + before), "utf-8")
    assert printed(FOLLOWED_MODULE, tmp_path, source) == "equal\n"


SAYINGS_SETTINGS = """
@checked
class SayingData(Columns):
    \"""What people said, by their names.\"""

    kind: ClassVar[str] = "sayings"
    section: ClassVar[str] = "data."
    columns: ClassVar[tuple[str, ...]] = ("name_field", "saying_field")
    scores: ClassVar[tuple[str, ...]] = ("conversations",)
    path: str | None = setting(None, "jsonl")
    valid_path: str | None = setting(None, "validation data")
    name_field: str = setting("name", "field of the name")
    saying_field: str = setting("saying", "field of what was said")
    scored: Literal["assistant", "all"] = setting("assistant", "tokens that are learned")
    packing: bool = setting(False, "pack the sayings into rows")
    format: TableFormat = setting("auto", FORMAT_DOC)
    encoding: tuple[str, ...] = setting(("utf-8",), ENCODING_DOC, ENCODINGS)
    valid_fraction: float = setting(0.1, "fraction held out", "(0, 1)")
    batch_tokens: int = setting(4096, "tokens per micro-batch", "≥ 1")


"""
SAYINGS_DATA = """
from glassformer.data import addresses
from glassformer.data.conversations import AnsweredCorpus, Conversation, ConversationCorpus
from glassformer.data.kinds import DataReport
from glassformer.data.records import with_fields

class SayingCorpus(AnsweredCorpus):
    NOUN, USABLE, REASON = "saying", "usable saying", ("saying is empty", "sayings are empty")
    training_texts = ConversationCorpus.training_texts

    def records(self, data, split):
        request = self.request(data, split, data.columns)
        for record in with_fields(addresses.records(data.path, request), request.names):
            name, saying = map(record.text, request.names)
            if name and saying:
                messages = {"role": "user", "content": name}, {"role": "assistant", "content": saying}
                yield Conversation(messages, record.where)
            else:
                self.dropped.empty(record.where)

def report_of(corpus, run, tokenizer, phase):
    return DataReport({"n_train": len(corpus.split[0])}, [])
"""
SAYINGS_USE = """
import json
from dataclasses import replace
from typing import ClassVar
import glassformer
from glassformer.apps.cli.main import run as command
from glassformer.config.run import SayingData
from glassformer.config.schema import checked, setting
from glassformer.tasks.conversation import ConversationTask
from glassformer.tasks.task import register
from glassformer.tasks.requirements import Facts
from runs import conversation_run
from pathlib import Path

@checked
class SayingConfig:
    kind: ClassVar[str] = "saying"
    label_smoothing: float = setting(0.0, "smoothing")

class SayingTask(ConversationTask):
    settings, data, facts = SayingConfig, SayingData, Facts(("chat", "generate", "score"), "speak as a person")

register(SayingTask())
rows = [{"name": f"person {i % 7}", "saying": f"number {i}"} for i in range(60)] + [{"name": "nobody", "saying": None}]
Path("sayings.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
base = conversation_run(Path("."), max_steps=2, eval_every=2)
run = replace(base, objective=SayingConfig(), data=SayingData(path="sayings.jsonl", batch_tokens=160))
outcome = glassformer.train(run, "run")
assert any(note.startswith("1 saying is empty") for note in outcome.notes), outcome.notes
model = glassformer.load("run", device="cpu")
assert model.evaluate() == outcome.reports["valid"]
assert model.evaluate(path=rows).n_tokens > model.evaluate().n_tokens
Path("run.toml").write_text("[data]\\nkind = 'sayings'\\npath = 'sayings.jsonl'\\n")
command(["data", "run.toml", "--json"])
try:
    glassformer.train(replace(run, data=SayingData(path="none.jsonl")), "other")
except glassformer.UserError as error:
    print(error)
"""


def test_a_kind_of_data_needs_its_settings_its_file_its_line_and_its_task(tmp_path: Path) -> None:
    """On a copy of the source: reading, training, evaluation on data in memory, the report and the first look."""
    source = Path(shutil.copytree(ROOT / "src", tmp_path / "src"))
    package = source / "glassformer"
    (package / "data" / "sayings.py").write_text(SAYINGS_DATA, "utf-8")
    for name, before, line in (
        ("config/run.py", "DataConfig = TextData |", SAYINGS_SETTINGS),
        ("config/run.py", "TextData | PairData |", "SayingData | "),
        ("data/kinds.py", '    "pairs": Kind(', '    "sayings": Kind("sayings:SayingCorpus", "sayings:report_of"),\n'),
    ):
        text = (package / name).read_text("utf-8")
        assert text.count(before) == 1
        (package / name).write_text(text.replace(before, line + before), "utf-8")
    found = printed(SAYINGS_USE, tmp_path, source)
    assert '{"n_train": 5' in found and "none.jsonl" in found.splitlines()[-1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_short(page: Path) -> None:
    lines = [line for line in page.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) <= MAX_LINES


def test_the_reading_guide_states_the_files_and_lines_of_its_paths() -> None:
    """All files that a path names are counted; the lines are stated to a hundred. Only further reading is left out."""
    text = (ROOT / "docs" / "reading.md").read_text("utf-8")
    stated = [
        (int(n), int(lines.replace(",", ""))) for n, lines in re.findall(r"(\d+) files with ([\d,]+) lines", text)
    ]
    sections = text.split("\n## ")[1:]
    assert [section.splitlines()[0] for section in sections[len(stated) :]] == ["Other tasks"]
    needed = [section.partition("\nAfter this path, in any order")[0] for section in sections[: len(stated)]]
    paths = [sorted(set(re.findall(r"`([\w/]+\.py)\b", part))) for part in needed]
    assert [n for n, _ in stated] == [len(files) for files in paths]
    fewest, most = (choose(map(len, paths)) for choose in (min, max))
    assert f"four paths through it, {fewest} to {most} files each" in (ROOT / "README.md").read_text("utf-8")
    for (_, lines), files in zip(stated, paths, strict=True):
        counted = sum(len((ROOT / file).read_text("utf-8").splitlines()) for file in files)
        assert abs(lines - counted) <= 100


def test_the_reading_guide_quotes_lines_of_its_files() -> None:
    text = (ROOT / "docs" / "reading.md").read_text("utf-8")
    quoted = re.findall(r"`([\w/]+\.py)::\w+`: `([^`]+)`", text)
    assert len(quoted) > 15
    for path, line in quoted:
        assert line in (ROOT / path).read_text("utf-8"), f"{path} has no longer {line}"


@pytest.mark.parametrize("page", [*PAGES, *GUIDES, ROOT / "docs" / "reading.md"], ids=lambda page: page.stem)
def test_files_and_tests_that_a_page_names_exist(page: Path) -> None:
    for path, name in NAMED.findall(page.read_text("utf-8")):
        if "NAME" not in path:
            assert (ROOT / path).exists(), path
            text = (ROOT / path).read_text("utf-8") if name else ""
            assert not name or re.search(rf"^\s*(def|class) {name}\b|^{name}\b", text, re.MULTILINE), f"{path}::{name}"
