"""Integers of more than 64 bits: one sentence that names the key, for every key and every position."""

import pytest

from glassformer.apps.cli.arguments import Option, all_flags
from glassformer.common.errors import UserError
from glassformer.config.changes import apply_flags
from glassformer.config.run import Run
from glassformer.config.schema import MAX_INT, from_dict
from glassformer.config.written import parse_toml

from .conftest import Glassformer
from .test_bad_input import require_one_sentence

HUGE = "99999999999999999999999"
KINDS = {key: entry.type.split(" | ") for entry in all_flags() if (key := entry.key).endswith(".kind")}
INTEGERS = list(dict.fromkeys(entry.key for entry in all_flags() if "integer" in entry.type and "." in entry.key))


def with_kind(key: str, value: str) -> list[dict[str, str]]:
    """Return flags that set a key, one dictionary per kind of each table above it."""
    flags: list[dict[str, str]] = [{key: value}]
    parts = key.split(".")
    for n in range(1, len(parts)):
        kinds = KINDS.get(f"{'.'.join(parts[:n])}.kind")
        if kinds is not None:
            flags = [{f"{'.'.join(parts[:n])}.kind": kind} | one for kind in kinds for one in flags]
    return flags


def test_no_integer_setting_takes_more_than_64_bits() -> None:
    assert len(INTEGERS) > 50
    for key in INTEGERS:
        messages = []
        for flags in with_kind(key, HUGE):
            with pytest.raises(UserError) as error:
                apply_flags(Run(), flags)
            messages.append(str(error.value))
        assert any(f"{key} is {HUGE} and must have at most 64 bits" in text for text in messages), (key, messages)


@pytest.mark.parametrize("huge", [f"-{HUGE}", str(MAX_INT + 1), str(-MAX_INT - 2)])
def test_the_limit_of_an_integer_is_that_of_64_bits(huge: str) -> None:
    with pytest.raises(UserError, match=f"train.seed is {huge} and must have at most 64 bits"):
        apply_flags(Run(), {"train.seed": huge})
    assert apply_flags(Run(), {"train.seed": str(MAX_INT)}).train.seed == MAX_INT


def test_a_recipe_with_an_integer_of_more_than_64_bits_is_refused() -> None:
    with pytest.raises(UserError, match=r"train.seed is 99999999999999999999999 and must have at most 64 bits"):
        from_dict(Run, parse_toml(f"[train]\nseed = {HUGE}", "here"), "here")
    assert from_dict(Run, parse_toml(f"[train]\nseed = {MAX_INT}", "here"), "here").train.seed == MAX_INT


def test_keys_and_options_read_the_same_numbers() -> None:
    """A key of a run and an option of a verb take 2e3, 2,000 and 2_000, and no NaN."""
    option = Option.of("n", int, 0, "")
    for text in ("2e3", "2,000", "2_000", "2000"):
        assert apply_flags(Run(), {"train.max_steps": text}).train.max_steps == 2000 == option.read([text], "--n")
    for text in ("1.5", "1e-3", "1e999", "nan", "x"):
        with pytest.raises(UserError, match="integer"):
            apply_flags(Run(), {"train.max_steps": text})
        with pytest.raises(UserError, match="must be an integer"):
            option.read([text], "--n")
    with pytest.raises(UserError, match="must be a number, not 'nan'"):
        Option.of("x", float, 0.0, "").read(["nan"], "--x")


@pytest.mark.parametrize(
    "words",
    [
        ["train", "RECIPE", "--train.seed", HUGE],
        ["plan", "gpt2", "--train.seed", HUGE],
        ["generate", "DIR", "--prompt", "a", "--seed", HUGE],
        ["generate", "DIR", "--prompt", "a", "--checkpoint", HUGE],
        ["tokenizer", "train", "a.txt", "--out", "b.json", "--vocab-size", HUGE],
        ["average", "DIR", "--out", "out", "--last", HUGE],
    ],
)
def test_integers_on_the_command_line_are_limited(
    glassformer: Glassformer, tiny_recipe: object, words: list[str]
) -> None:
    given = [str(tiny_recipe) if word == "RECIPE" else word for word in words]
    require_one_sentence(glassformer(*given), f"is {HUGE} and must have at most 64 bits: up to {MAX_INT:,}")
