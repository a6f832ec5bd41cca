"""Hints of the command line work: each is parsed again, for every verb and for the names of other toolkits."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest

from glassformer.apps.cli.arguments import OPTIONS, OUTPUT, PLACES, WRITES_NOTHING, Group, Signature
from glassformer.apps.cli.main import VERBS
from glassformer.common.errors import UserError
from glassformer.config.changes import NO_KEY
from glassformer.config.schema import SAME

from .conftest import Glassformer

FOREIGN = sorted({*OPTIONS, *PLACES, *SAME, *NO_KEY, "tokeniser", "devise", "x", "zzqqxx"})


def functions() -> dict[str, Callable[..., Any]]:
    """Return the function of every verb."""
    found: dict[str, Callable[..., Any]] = {}
    for verb in VERBS:
        main = import_module(f"glassformer.apps.cli.{verb}").main
        if isinstance(main, Group):
            found |= {f"{verb} {name}": function for name, function in main.verbs.items()}
        else:
            found[verb] = main
    return found


SIGNATURES = {verb: Signature.of(function, verb) for verb, function in functions().items()}


def is_known(signature: Signature, name: str) -> bool:
    """Return True if an option of a verb is accepted."""
    try:
        return any(option.name == name for option in signature.options) or bool(signature._key(name))
    except UserError:
        return False


@pytest.mark.parametrize("verb", SIGNATURES)
def test_a_hint_for_the_option_of_another_toolkit_works(verb: str) -> None:
    """A suggested option is one of the verb; a value without an option has a place; printed results exist."""
    signature = SIGNATURES[verb]
    for name in FOREIGN:
        if is_known(signature, name.replace("_", "-")):
            continue
        message = str(signature.unknown(name))
        if suggested := re.search(r"did you mean --?([\w.-]+)\?", message):
            assert is_known(signature, suggested[1]), message
        elif "without an option" in message:
            places = [place.metavar for place in signature.places if place.doc]
            assert message.endswith(signature.usage) and places, message
            assert name not in OUTPUT or any(place.name == "out" for place in signature.places), message
        elif "results are printed" in message:
            assert name in OUTPUT and not verb.startswith(WRITES_NOTHING)
            assert not {"out", "output"} & {option.name for option in signature.options}, message
        elif "put -- before it" in message:
            assert any(place.type is str for place in signature.places), message
        else:
            assert re.fullmatch(r"unknown option --?[\w.-]+", message), message
        assert len(message) <= 400


@pytest.mark.parametrize(("words", "hint"), [("--lr 3", "learning_rate"), ("--bs 3", "batch_size")])
def test_a_hint_for_a_key_works_as_an_option(glassformer: Glassformer, words: str, hint: str) -> None:
    refused = glassformer("train", "python-docs", *words.split())
    assert f"did you mean {hint}, here train." in refused.err and refused.code == 2
    option = "--" + hint.replace("_", "-")
    again = glassformer("train", "python-docs", option, "-3")  # known, and its value is read
    assert "unknown" not in again.err and "must be" in again.err


class Unread:
    """Standard input that no verb may read before it has looked at its model."""

    def isatty(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"standard input was read: {name}")


WITH_MODEL = [
    verb
    for verb, signature in SIGNATURES.items()
    if signature.places and "DIR" in signature.places[0].metavar and not verb.startswith("course")
]
GIVEN = {
    "import": ["new"],
    "export": ["new"],
    "average": ["--out", "new"],
    "embed": ["--query", "x"],
}


@pytest.mark.parametrize("verb", WITH_MODEL)
def test_a_missing_model_is_named_before_all_else(
    verb: str, glassformer: Glassformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    signature = SIGNATURES[verb]
    words = list(GIVEN.get(verb, []))
    for option in signature.options:
        if option.is_required and f"--{option.name}" not in words:
            words += [f"--{option.name}", "5" if option.type is int else "x"]
    read = sys.stdin
    refused = glassformer(*verb.split(), "nothere", *words, terminal=True)
    assert refused.code == 2 and "nothere" in refused.err and "Traceback" not in refused.err
    assert sys.stdin is not read


@pytest.mark.parametrize("verb", ["generate", "chat", "translate", "classify", "tag", "fill", "embed"])
def test_no_text_is_read_for_a_missing_model(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Unread())
    main = functions()[verb]
    places, options = SIGNATURES[verb].read(["nothere", *GIVEN.get(verb, [])])
    with pytest.raises(UserError, match="no such model directory: nothere"):
        main(*places, **options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("plot curves demo -o y.png", "unknown option -o: did you mean --out?"),
        ("export model --out new", "unknown option --out: give it without an option: glassformer export DIR PATH"),
        ("import model --out new", "unknown option --out: give it without an option: glassformer import HF_DIR"),
        ("generate --model runs/a text", "unknown option --model: give it without an option: glassformer generate DIR"),
        ("resume run --out new", "unknown option --out (see"),
        ("tokenizer encode tokenizer.json -s", "unknown option -s; if it is a text, put -- before it: -- -s"),
        ("train text.txt --out-dir new", "unknown option --out-dir: did you mean --out?"),
    ],
)
def test_hints_name_the_right_place(words: str, message: str, glassformer: Glassformer) -> None:
    refused = glassformer(*words.split())
    assert refused.code == 2 and message in refused.err
