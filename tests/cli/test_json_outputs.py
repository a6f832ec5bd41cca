"""The keys and types of the JSON that verbs print are those of the tables in `docs/reference/json.md`."""

import json
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from glassformer import api
from glassformer.apps.cli.arguments import Group, Signature
from glassformer.apps.cli.main import VERBS
from glassformer.apps.course.workshop.exercises import exercise_of
from glassformer.apps.course.workshop.folder import PACKAGE, start
from preference_runs import policy_run, preference_run, trained_start
from runs import TINY, Tiny, write_conversations, write_labels, write_pairs, write_text

from .conftest import Glassformer

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", PAGE, re.MULTILINE))
TYPES: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "list": (list,),
    "null": (type(None),),
}
FREE = {
    "classes": "LABEL",
    "counts": "LABEL",
    "shares": "LABEL",
    "roles": "ROLE",
    "[].states": "EXERCISE",
    "rows[].values": "SEED",
}
"""Objects whose keys depend on the data, and the names of these keys on the page."""

Keys = dict[str, set[type]]


def documented(verb: str) -> Keys:
    """Return the types of each key in the tables of a verb's section, and in that of all verbs."""
    found: Keys = {}
    text = SECTIONS["Common rules"] + SECTIONS[verb]
    for keys, words in re.findall(r"^\| `(.+?)` \| (.+?) \| .+ \|$", text, re.MULTILINE):
        names = re.sub("true or false|true, false", "boolean", words).split(" or ")
        for key in keys.split("`, `"):
            found.setdefault(key, set()).update(*(TYPES[name] for name in names))
    return found


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, type]]:
    """Yield the path and the type of each value, with `[]` for the items of a list; an empty list is a leaf itself."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{FREE.get(path, key)}" if path else key)
    elif isinstance(value, list):
        if not value:
            yield path, list
        for inner in value:
            yield from leaves(inner, f"{path}[]" if path else "[]")
    else:
        yield path, type(value)


def keys_of(text: str) -> Keys:
    """Return the keys of one JSON object or several, with their types."""
    found: Keys = {}
    values, decoder = [], json.JSONDecoder()
    while text := text.strip():
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:]
    for path, kind in (leaf for value in values for leaf in leaves(value)):
        found.setdefault(path, set()).add(kind)
    return found


def require_documented(verb: str, printed: Keys) -> None:
    """Require that each printed key is in the tables of the verb, with its type."""
    tables = documented(verb)
    for path, kinds in printed.items():
        if kinds == {list} and path not in tables:
            assert any(key.startswith(f"{path}[]") for key in tables), f"{verb}: {path} is not on the page"
            continue
        if path.partition("[]")[0] in tables and path not in tables and list in tables[path.partition("[]")[0]]:
            continue  # a list whose items the page describes in words
        assert path in tables, f"{verb}: {path} is not on the page"
        assert kinds <= tables[path], f"{verb}: {path} is {kinds}, and the page has {tables[path]}"


class Models(dict[str, Path]):
    """Folders of models by their names; each is made when it is first asked for."""

    def __init__(self, make: Callable[[str], Path]) -> None:
        self.make = make

    def __missing__(self, name: str) -> Path:
        self[name] = self.make(name)
        return self[name]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Models:
    """A tiny run of each kind."""

    def made(name: str) -> Path:
        if name in TINY:
            return tiny(name)
        folder = tmp_path_factory.mktemp(name)
        run = {"preferences": preference_run, "rewards": policy_run}[name]
        return api.train(run(folder, trained_start(folder)), folder / "run").folder

    return Models(made)


CASES = {
    "generate": ["{text} --input prompts.jsonl -n 2"],
    "score": ["{pairs} --source one.en --target one.de --json", "{text} --target one.de --json"],
    "fill": ["{masked} --input masks.txt --json", "{infilling} --input masks.txt --json"],
    "classify": [
        "{classes} --input one.en --json",
        "{classes} --input one.en --threshold 0.5 --label dog --json",
        "{regression} --input one.en --json",
    ],
    "tag": ["{tags} --input one.en --json"],
    "evaluate": [
        "{text} --json",
        "{pairs} --json",
        "{classes} --json",
        "{regression} --json",
        "{tags} --json",
        "{masked} --pseudo-perplexity --json",
        "{preferences} --json",
        "{rewards} --json",
    ],
    "compare": ["{text} {pairs} --json"],
    "sweep": ["text.txt --vary d_model=64,96 --seeds 2 --budget 2 --quiet --json"],
    "checkpoint list": ["{text} --json"],
    "data": [
        "text.txt --json",
        "train.en train.de --json",
        "labels.tsv --json",
        "labels.tsv --outputs regression --label-field number --json",
        "conversations.jsonl --max-len 40 --json",
    ],
    "doctor": ["{text} --json"],
    "plan": ["gpt2 --json", "gpt2 --gpus 2 --json"],
    "course check": ["mine shift --json"],
    "course grade": ["mine --only shift --json"],
}
"""The commands that print JSON, by section of the page."""


def write_exercise(folder: Path, name: str) -> None:
    """Write the reader's package of the course with one exercise solved."""
    start(folder)
    exercise = exercise_of(name)
    with (folder / PACKAGE / exercise.file).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{exercise.source()}")


@pytest.mark.parametrize("verb", CASES)
def test_printed_keys_are_those_of_the_page(verb: str, glassformer: Glassformer, models: Models) -> None:
    here = Path.cwd()
    write_text(here)
    write_pairs(here)
    write_labels(here)
    write_conversations(here)
    Path("prompts.jsonl").write_text('{"prompt": "ab"}\n')
    Path("masks.txt").write_text("ab [MASK]\n")
    Path("one.en").write_text("the red dog\n")
    Path("one.de").write_text("hund rot\n")
    write_exercise(here / "mine", "shift")
    printed: Keys = {}
    for case in CASES[verb]:
        result = glassformer(*verb.split(), *case.format_map(models).split())
        assert result.code == 0, result.err
        for key, kinds in keys_of(result.out).items():
            printed.setdefault(key, set()).update(kinds)
    require_documented(verb, printed)
    unprinted = {key for key in documented(verb) if not any(path.startswith(key) for path in printed)}
    assert unprinted <= {"notes[]", "news[]", "assumptions[]"}, f"{verb}: no case prints {unprinted}"


def test_every_verb_with_json_has_a_section_and_a_case() -> None:
    verbs = {"checkpoint list": "checkpoint", "course check": "course", "course grade": "course"}
    mains = {verb: import_module(f"glassformer.apps.cli.{verb}").main for verb in VERBS}
    functions = {verb: main.functions if isinstance(main, Group) else [main] for verb, main in mains.items()}
    with_json = {
        verb
        for verb, of_verb in functions.items()
        if any(option.name == "json" for function in of_verb for option in Signature.of(function, verb).options)
    }
    with_json -= {"train", "resume"}  # tests/test_terminal.py has the JSON of a training command
    assert with_json | {"generate"} == {verbs.get(verb, verb) for verb in CASES}
    assert set(CASES) <= set(SECTIONS)


@pytest.mark.parametrize("verb", CASES)
def test_examples_of_the_page_have_its_keys(verb: str) -> None:
    examples = re.findall(r"^```json\n(.*?)^```", SECTIONS[verb], re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        require_documented(verb, keys_of(example))
