"""Answers of the panels: one registered function answers over HTTP, and a script asks for it."""

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.apps.inspector import app
from glassformer.apps.inspector.app import application, route
from glassformer.apps.inspector.inspector import FOLDER, Inspector
from glassformer.apps.inspector.panels import calls
from glassformer.apps.inspector.panels.tokens import Input, run
from glassformer.apps.inspector.worker import Worker
from glassformer.model import Model
from inspector.browsing import given_to

PATH = "/api/run/{run}/longest"


def longest(inspector: Inspector, run: str) -> dict[str, Any]:
    """Answer the longest token of a run."""
    shown = inspector.run_of(run)
    return {**shown.names, "longest": max(shown.trace.target, key=len)}


def test_a_panel_is_registered_in_one_place(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "ROUTES", registered := [*app.ROUTES])
    monkeypatch.setattr("glassformer.apps.inspector.panels.ROUTES", registered)
    route("GET", PATH)(longest)
    model = models["decoder"]
    inspector, given = Inspector(model), given_to(model)
    with TestClient(application(calls(inspector), FOLDER, ["testserver"], Worker())) as client:
        name = client.post("/api/run", json=given).json()["run"]
        answer = client.get(PATH.format(run=name)).json()
        refused = client.get(PATH.format(run="other"))
    tokens = run(inspector, Input(**given))["target"]
    assert answer["run"] == name and answer["longest"] == max((token["text"] for token in tokens), key=len)
    assert refused.status_code == 400 and "is no longer kept" in refused.json()["error"]


def test_each_module_answers_and_each_answer_is_asked_for() -> None:
    modules = {path.stem for path in (FOLDER / "panels").glob("*.py")} - {"__init__"}
    assert {call.function.__module__.rpartition(".")[2] for call in app.ROUTES} == modules
    scripts = "".join(path.read_text("utf-8") for path in FOLDER.glob("*/*.js"))
    for call in app.ROUTES:
        assert re.search(rf"[/\"'`]{call.path.rpartition('/')[2]}\b", scripts), call.path


def test_the_scripts_of_the_panels_are_served_and_nothing_else_beside_them(models: dict[str, Model]) -> None:
    with TestClient(application(calls(Inspector(models["decoder"])), FOLDER, ["testserver"], Worker())) as client:
        assert client.get("/").text == (FOLDER / "page" / "index.html").read_text("utf-8")
        for path in sorted([*FOLDER.glob("page/*.js"), *FOLDER.glob("panels/*.js")]):
            answer = client.get(f"/{path.relative_to(FOLDER).as_posix()}")
            assert answer.text == path.read_text("utf-8") and "javascript" in answer.headers["content-type"]
        for path in (Path("panels/outputs.py"), Path("panels"), Path("app.py"), Path("panels/../app.py")):
            assert client.get(f"/{path}").status_code == 404
