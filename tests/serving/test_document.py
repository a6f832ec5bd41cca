"""The document of the interface is valid and true: made-up requests find no failure of the server."""

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

import late
from glassformer.apps.serving.settings import Limits
from serving.conftest import Serve
from serving.served import WAIT_S, ask

jsonschema = late.module("jsonschema")

N_CASES = {True: 3, False: 10}
"""Number of requests of each kind and address: in the short run, and in the run of all tests."""
LIMITS = Limits(max_tokens=4, max_n=3)
MODELS = {
    "chat": "chat",
    "translate": "encoder-decoder",
    "fill-mask": "encoder",
    "classify": "classifier",
}
"""A model that answers an address, by a part of it; others are answered by `decoder`."""


@pytest.mark.filterwarnings("ignore")  # of schemathesis
@pytest.mark.parametrize("valid", [True, False], ids=["true", "false"])
def test_made_up_requests_find_no_failure(valid: bool, serve: Serve, pytestconfig: pytest.Config) -> None:
    """All answers conform to the document, and false requests are refused.

    True ones may be refused, too, because the document does not know the models.
    """
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    mode = GenerationMode.POSITIVE if valid else GenerationMode.NEGATIVE
    address, n_answered, n_cases = serve(limits=LIMITS), 0, N_CASES[bool(pytestconfig.getoption("draw"))]
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and operation.method == "get":
            continue  # nothing can be false

        @seed(1)
        @settings(
            max_examples=n_cases,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            nonlocal n_answered
            if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
                chosen = [name for part, name in MODELS.items() if part in case.path]
                case.body["model"] = [*chosen, "decoder"][0]
            answer = case.call_and_validate(excluded_checks=[positive_data_acceptance], timeout=WAIT_S)
            n_answered += answer.status_code == 200

        check()
    assert ask(f"{address}/health") == (200, {"status": "ok"})
    assert n_answered > n_cases or mode is GenerationMode.NEGATIVE


def test_the_document_is_valid(serve: Serve) -> None:
    """Its schemas are valid, its references lead somewhere, and each address has a description of its errors."""
    _, document = ask(f"{serve('chat')}/openapi.json")
    schemas = document["components"]["schemas"]
    for one in schemas.values():
        jsonschema.Draft202012Validator.check_schema(one)
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["description"], path
            if path.startswith("/v1/"):
                assert {"200", "400", "401", "404", "429", "500"} <= operation["responses"].keys(), path
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer = document["paths"][path]["post"]["responses"]["200"]["content"]
        assert answer.keys() == {"application/json", "text/event-stream"}


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for one in value.values() for found in _references(one)]
    return [found for one in value for found in _references(one)] if isinstance(value, list) else []
