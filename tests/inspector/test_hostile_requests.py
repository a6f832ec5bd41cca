"""Random and hostile arguments of every route are answered with a result or with one sentence, never with a defect."""

import json
import random
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from glassformer.apps.inspector.app import Call, accepted, application
from glassformer.apps.inspector.inspector import FOLDER, Inspector
from glassformer.apps.inspector.panels import calls
from glassformer.apps.inspector.worker import Worker
from glassformer.model import Model
from inspector.browsing import given_to
from inspector.conftest import FAMILIES

N_REQUESTS = 300
INTS = (0, 1, -1, -5, 3, 99, 2**31, 2**63, -(2**63), 10**40)
FLOATS = (0.0, 1.0, -1.0, 1e-320, 1e308, float("nan"), float("inf"), -float("inf"))
TEXTS = (
    "",
    " ",
    "abc de",
    "red dog",
    "a\nb\r\n\tc",
    "\x00",
    "\ud800",
    "é€🂡שלום",
    "[MASK]",
    "[MASK] [MASK]",
    "a" * 5000,
    "decoder",
    "encoder",
    "cross",
    "average",
    "heads",
    "decoder.0.head",
    "encoder.1.neuron",
    "cross.0.head",
    "decoder.0.head.0",
    "decoder.0.head.0,,encoder.0",
    "cross.0",
    "encoder.0.head.99999999999999999999",
    "../../etc",
    "/etc/passwd@1",
    "@",
    "%",
    "<script>",
)
LISTS = (
    ["abc de", "fgh"],
    ["a" * 50, "", "é🂡"],
    [],
    [0],
    [5, 6, 7],
    [-1],
    [10**6],
    [2**63],
    [10**40],
    [1] * 500,
    [0] * 33,
)
LEFT_OUT = {"/api/train"}
"""Routes that start a process."""


@pytest.fixture(scope="module")
def inspectors(models: dict[str, Model]) -> dict[str, Inspector]:
    return {name: Inspector(models[name]) for name in (*FAMILIES, "classifier")}


def value_of(draw: random.Random, name: str, inspector: Inspector) -> Any:
    """Return a value for an argument: one that exists, or a hostile one of any type."""
    run = next(reversed(inspector.runs), "r1")
    real = {"run": [run], "model": [inspector.first], "first": [inspector.first], "folder": [str(inspector.folder)]}
    if name in real and draw.random() < 0.7:
        return real[name][0]
    kinds: list[Any] = [draw.choice(INTS), draw.choice(FLOATS), draw.choice(TEXTS), draw.choice(LISTS)]
    return draw.choice([*kinds, draw.choice(TEXTS), draw.choice(INTS), None, True, {"a": [1]}])


def of_type(draw: random.Random, name: str, hint: str, inspector: Inspector) -> Any:
    """Return a value of the type of an argument, in most cases."""
    for _ in range(40):
        value = value_of(draw, name, inspector)
        found = type(value).__name__
        if isinstance(value, list):
            found = "list[str]" if value and isinstance(value[0], str) else "list[int]"
        if found in hint:
            return value
    return value


def request_of(draw: random.Random, call: Call, inspector: Inspector) -> tuple[str, dict[str, Any]]:
    """Return a path and arguments: real names of arguments, with some left out and some that do not exist."""
    hints = {name: str(hint) for name, hint in accepted(call.function).items()}
    given = {
        name: of_type(draw, name, hint, inspector) if draw.random() < 0.9 else value_of(draw, name, inspector)
        for name, hint in hints.items()
        if draw.random() < 0.7 or f"{{{name}}}" in call.path
    }
    if draw.random() < 0.05:
        given["unknown"] = 1
    run = quote(str(given.pop("run", "r1")).encode("utf-8", "replace"), safe="") or "r1"
    return call.path.replace("{run}", run), given


@pytest.mark.parametrize("name", [*FAMILIES, "classifier"])
def test_no_request_is_a_defect(inspectors: dict[str, Inspector], models: dict[str, Model], name: str) -> None:
    inspector, draw = inspectors[name], random.Random(name)
    routes = [call for call in calls(inspector) if call.path not in LEFT_OUT]
    app, n_answers = application(calls(inspector), FOLDER, ["testserver"], Worker()), 0
    problems: list[str] = []
    with TestClient(app, raise_server_exceptions=False) as client:
        for number in range(N_REQUESTS):
            if number % 10 == 0:
                assert client.post("/api/run", json=given_to(models[name])).status_code == 200
            call = routes[number % len(routes)]
            path, given = request_of(draw, call, inspector)
            if call.method == "GET":
                query = {key: str(x).encode("utf-8", "replace") for key, x in given.items() if x is not None}
                answer = client.get(path, params=query)
            else:
                headers = {"content-type": "application/json"}
                answer = client.post(path, content=json.dumps(given), headers=headers)
            request = f"{call.method} {path} {given!r:.300}"
            n_answers += answer.status_code == 200
            if answer.status_code not in (200, 404, 405):
                sentence = answer.json()["error"]
                is_sentence = answer.status_code == 400 and 0 < len(sentence) < 600 and "\n" not in sentence
                if not is_sentence or "Traceback" in sentence or "defect" in sentence:
                    problems.append(f"{request}: {answer.status_code} {sentence}")
    assert not problems, "\n".join(problems)
    assert n_answers > N_REQUESTS // 10, "some requests are right"
