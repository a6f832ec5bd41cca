"""The JSON Schema of recipes accepts what `from_dict` accepts, and refuses unknown keys, kinds and values."""

import tomllib
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

import papers
from glassformer.common.errors import UserError
from glassformer.config import recipes
from glassformer.config.run import Run
from glassformer.config.schema import known_keys, to_dict
from glassformer.config.written import json_schema

Faults: TypeAlias = Callable[[Any], list[Any]]


@pytest.fixture(scope="module")
def faults() -> Faults:
    """Return a function that lists the faults of a table."""
    validator = pytest.importorskip("jsonschema").Draft7Validator
    validator.check_schema(json_schema())
    checker = validator(json_schema())
    return lambda table: list(checker.iter_errors(table))


def keys_of(schema: dict[str, Any], prefix: str = "") -> set[str]:
    """Return the dotted names of all properties without properties of their own."""
    options = schema.get("anyOf", [schema])
    tables = [option for option in options if "properties" in option]
    leaves = {prefix.rstrip(".")} if len(tables) < len(options) else set()
    return leaves.union(*(keys_of(x, f"{prefix}{name}.") for one in tables for name, x in one["properties"].items()))


def test_the_schema_has_every_key() -> None:
    with_none = {"model.encoder", "model.decoder", "model.experts", "model.positions.scaling", "train.early_stopping"}
    with_none |= {"source_tokenizer", "lora", "teacher", "result", "model.preset"}
    assert keys_of(json_schema()) - with_none == set(known_keys(Run))


@pytest.mark.parametrize("name", [*recipes.names(), *papers.FILES, "REFERENCE"])
def test_every_recipe_and_its_run_are_accepted(name: str, faults: Faults) -> None:
    assert faults(tomllib.loads(papers.FILES.get(name) or recipes.text(name))) == []
    if name != "REFERENCE":
        assert faults(without_none(to_dict(papers.run_of(name)))) == []


def without_none(table: Any) -> Any:
    """Return a table as TOML has it: without values that equal None, and without infinities."""
    if not isinstance(table, dict):
        return table
    return {key: without_none(value) for key, value in table.items() if value is not None}


@pytest.mark.parametrize(
    "text",
    [
        "train.max_steps = 0",
        "train.max_steps = 1.5",
        "train.max_stepps = 1",
        "train.precision = 'fp8'",
        "train.optimizer = {kind = 'adamx'}",
        "train.optimizer = {kind = 'adamw', momentum = 0.9}",
        "train.optimizer.betas = [0.9]",
        "model.preset = 'gpt5'",
        "data = {source = 'a'}",
    ],
)
def test_what_a_run_refuses_is_refused(text: str, faults: Faults) -> None:
    table = tomllib.loads(text)
    assert faults(table)
    with pytest.raises(UserError):
        recipes.parse(text, "a.toml")
