"""Ablation and effects of input tokens in JavaScript equal those of the server, for each lineage and kind of label."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from glassformer.model import Model
from inspector.browsing import given_to
from inspector.conftest import LABELS
from inspector.direct import Inspector
from inspector.network.answers import require_equal, with_large_effects, write_requests
from inspector.network.node import cases_of, run_node
from inspector.network.test_attribution import single_tokens

OFF = {
    "decoder": ("decoder.0.head.1,decoder.0.head.0,decoder.1.feed_forward", "decoder.1"),
    "encoder": ("encoder.0.head.1,encoder.1.feed_forward", "encoder.0"),
    "encoder-decoder": ("encoder.0.head.0,cross.0.head.1,decoder.0.feed_forward", "encoder.0,decoder.0"),
}
NAMES = (*OFF, *LABELS, "recurrent")
NO_GRADIENTS = {"estimate": None, "correlation": None}
"""The results that need gradients."""


def requests_of(name: str) -> list[dict[str, Any]]:
    """Return the bodies of the ablations of a model."""
    parts, layers = OFF.get(name, OFF["encoder"])
    return [{"off": parts, "mean": False}, {"off": parts, "mean": True}, {"off": layers, "mean": False}]


@pytest.fixture(scope="module")
def answers(
    request: pytest.FixtureRequest,
    models: dict[str, Model],
    labelled: dict[str, Model],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, tuple[Any, Any]]]:
    """By name of the model: the answers of JavaScript and those of the server."""
    folder, expected = tmp_path_factory.mktemp("ablations"), {}
    names = cases_of(request)
    for name in names:
        model = with_large_effects((models | labelled)[name])
        inspector = Inspector(model)
        run = inspector.run(**given_to(model))["run"]
        whole = name in ("classes", "multi_label", "regression")  # these have no logits of a position
        of_inputs: list[dict[str, Any]] = [{} if whole else {"position": 1}]
        if name not in LABELS:
            of_inputs.append({"position": 1} | dict(zip(("token", "against"), single_tokens(model), strict=True)))
        ablations = [] if name == "recurrent" else requests_of(name)
        bytes_ = [] if whole else [("logits?position=1&off={off}&mean={mean:d}", one) for one in ablations]
        means = [False, True][: len(ablations)]
        gets = [f"inputs?{urlencode(query)}" for query in of_inputs] + [f"effects?mean={mean:d}" for mean in means]
        paths, posts = [path.format(**one) for path, one in bytes_], [["ablate", one] for one in ablations]
        write_requests(folder, name, inspector, given_to(model), gets=gets, posts=posts, bytes=paths)
        expected[name] = [inspector.inputs(run, **query) | NO_GRADIENTS for query in of_inputs]
        expected[name] += [inspector.effects(run, mean=mean) for mean in means]
        expected[name] += [inspector.ablate(run, **one) for one in ablations]
        expected[name] += [inspector.logits(run, position=1, **one) for _, one in bytes_]
    run_node("answers.mjs", folder)
    yield {name: (json.loads((folder / f"{name}.out.json").read_text()), expected[name]) for name in names}


@pytest.mark.parametrize("name", NAMES)
def test_ablation_equals_that_of_the_server(name: str, answers: dict[str, tuple[Any, Any]]) -> None:
    found, expected = answers[name]
    require_equal(found, expected)
    assert sum(abs(x) > 1e-3 for x in expected[0]["exact"]) > 1, "the tokens have effects"
    if name == "recurrent":
        return
    effects = next(one for one in expected if "layers" in one)
    kind = next(iter(effects["layers"]))
    changes = [*effects["layers"][kind], *effects["feed_forward"][kind], *effects[kind][0]]
    assert sum(abs(x) > 1e-3 for x in changes) > len(changes) / 2, "most parts have an effect"
