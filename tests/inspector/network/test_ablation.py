"""Ablation in JavaScript equals that of the server, for every lineage and every kind of label."""

import copy
import dataclasses
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from configs import random_model
from glassformer.config.run import AnsweringConfig
from glassformer.config.transformer import SpanHead
from glassformer.inspector.app import Packed
from glassformer.inspector.web_file import stored_weights, web_model
from glassformer.model import Model
from inspector.browsing import given_to
from inspector.conftest import LABELS
from inspector.direct import Inspector
from inspector.network.node import run_node

OFF = {
    "decoder": ("decoder.0.head.1,decoder.0.head.0,decoder.1.feed_forward", "decoder.1"),
    "encoder": ("encoder.0.head.1,encoder.1.feed_forward", "encoder.0"),
    "encoder-decoder": ("encoder.0.head.0,cross.0.head.1,decoder.0.feed_forward", "encoder.0,decoder.0"),
}
NAMES = (*OFF, *LABELS, "span")


def requests_of(name: str) -> list[dict[str, Any]]:
    """Return the bodies of the ablations of a model."""
    parts, layers = OFF.get(name, OFF["encoder"])
    return [{"off": parts, "mean": False}, {"off": parts, "mean": True}, {"off": layers, "mean": False}]


def span_model(model: Model) -> Model:
    """Return a model with random weights that marks a span of a text, with the tokenizer of another one."""
    config = dataclasses.replace(model.config, head=SpanHead())
    run = dataclasses.replace(model.run, model=config, objective=AnsweringConfig())
    return dataclasses.replace(model, network=random_model(config, dtype=torch.float32), run=run)


def with_large_effects(model: Model) -> Model:
    """Return a model with random numbers added to the weights, so that no part has a small effect by chance."""
    network = copy.deepcopy(model.network)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for x in network.parameters():
            x.add_(torch.randn(x.shape, generator=generator), alpha=0.2)
    return dataclasses.replace(model, network=network)


@pytest.fixture(scope="module")
def answers(
    models: dict[str, Model], labelled: dict[str, Model], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Any, Any]]]:
    """By name of the model: the answers of JavaScript and those of the server."""
    folder, expected = tmp_path_factory.mktemp("ablations"), {}
    for name in NAMES:
        model = with_large_effects((models | labelled | {"span": span_model(models["encoder"])})[name])
        inspector = Inspector(model)
        run = inspector.run(**given_to(model))["run"]
        bytes_ = [("logits?position=1&off={off}&mean={mean:d}", one) for one in requests_of(name)]
        if name in ("classes", "multi_label", "regression", "span"):
            bytes_ = []  # these have no logits of a position
        safetensors.torch.save_file(stored_weights(model.network, "float32"), folder / f"{name}.safetensors")
        asked = {
            "web": web_model(inspector),
            "body": given_to(model),
            "gets": ["effects", "effects?mean=1"],
            "posts": [["ablate", one] for one in requests_of(name)],
            "bytes": [path.format(**one) for path, one in bytes_],
        }
        (folder / f"{name}.json").write_text(json.dumps(asked))
        expected[name] = [inspector.effects(run), inspector.effects(run, mean=True)]
        expected[name] += [inspector.ablate(run, **one) for one in requests_of(name)]
        expected[name] += [inspector.logits(run, position=1, **one) for _, one in bytes_]
    run_node("answers.mjs", folder)
    yield {name: (json.loads((folder / f"{name}.out.json").read_text()), expected[name]) for name in NAMES}


def require_equal(found: Any, expected: Any, where: str = "") -> None:
    """Compare two answers, numbers within 1e-4; the name of the run and of the model may differ."""
    if isinstance(expected, Packed):
        expected = np.frombuffer(zlib.decompress(expected.data), "<f4").tolist()
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected.keys() - {"run", "model"}:
            require_equal(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), where
        for i, (x, y) in enumerate(zip(found, expected, strict=True)):
            require_equal(x, y, f"{where}[{i}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-4, rel=1e-4), where
    else:
        assert found == expected, where


@pytest.mark.parametrize("name", NAMES)
def test_ablation_equals_that_of_the_server(name: str, answers: dict[str, tuple[Any, Any]]) -> None:
    found, expected = answers[name]
    require_equal(found, expected)
    effects = expected[0]
    kind = next(iter(effects["layers"]))
    changes = [*effects["layers"][kind], *effects["feed_forward"][kind], *effects[kind][0]]
    assert sum(abs(x) > 1e-3 for x in changes) > len(changes) / 2, "most parts have an effect"
