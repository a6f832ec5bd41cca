"""The requests of `docs/reference/server.md` have answers of the shape that it shows, and no endpoint is missing."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import glassformer
from glassformer.apps.serving import lineage_schemas
from glassformer.apps.serving.application import application
from glassformer.apps.serving.settings import Limits
from glassformer.model import Model
from runs import label_run
from serving.conftest import Serve
from serving.served import ask

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "server.md").read_text("utf-8")
EXAMPLES = re.findall(r"^```bash\n(curl .*?)^```$(?:\n\n```json\n(.*?)^```$)?", PAGE, re.MULTILINE | re.DOTALL)
NAMES = {
    "en-de": "encoder-decoder",
    "animals": "classifier",
    "bert": "encoder",
    "mybook": "decoder",
    "answers": "chat",
}
"""Models of the page, and those of the tests in their place."""


def shape(value: Any) -> Any:
    """Return a value with the names of types in place of texts and numbers, and one item for equal ones of a list."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        shapes = [shape(one) for one in value]
        return [one for n, one in enumerate(shapes) if one not in shapes[:n]]
    return "number" if isinstance(value, (int, float)) and not isinstance(value, bool) else type(value).__name__


def test_the_requests_of_the_page_have_the_answers_that_it_shows(
    serve: Serve, models: dict[str, Model], tmp_path: Path
) -> None:
    tags = glassformer.train(label_run(tmp_path, "tags"), tmp_path / "tags").model
    named = {name: models[own] for name, own in NAMES.items()}
    address = serve(**named, tags=tags)
    paths = set()
    for command, shown in EXAMPLES:
        words = shlex.split(command.replace("\\\n", " "))
        body = json.loads(words[words.index("-d") + 1]) if "-d" in words else None
        status, answer = ask(words[1].replace("http://127.0.0.1:8000", address), body)
        expected = json.loads(shown) if shown else {}
        assert status == (400 if "error" in expected else 200), f"{command}: {answer}"
        assert not shown or shape(answer) == shape(expected), command
        paths.add(words[1].removeprefix("http://127.0.0.1:8000"))
    assert {path for path in documented() if path.startswith("/v1")} - {"/v1/models"} <= paths | {"/v1/models/NAME"}


def documented() -> list[str]:
    """Return the paths of the table of endpoints."""
    return re.findall(r"`(?:GET|POST) (/[^`]+)`", PAGE)


def test_the_page_names_all_endpoints() -> None:
    paths = application({}, Limits()).openapi()["paths"]
    own = {path for path in paths if not path.endswith("/prompt") and path != "/session"}  # used by the server's page
    assert set(documented()) == {path.replace("{name}", "NAME") for path in own}


def test_each_parameter_of_the_lineages_has_a_meaning_and_each_body_an_example() -> None:
    document = application({}, Limits()).openapi()
    routes = [
        route["post"] for route in document["paths"].values() if "lineages" in route.get("post", {"tags": ()})["tags"]
    ]
    assert len(routes) == 6
    for route in routes:
        name = route["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        schema = document["components"]["schemas"][name]
        assert all(field.get("description") for field in schema["properties"].values()), name
        for example in schema["examples"]:
            getattr(lineage_schemas, name).model_validate(example)
