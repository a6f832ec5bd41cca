"""The answers of the page of a model, which node computes, beside those of the server."""

import copy
import dataclasses
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from glassformer.apps.inspector.app import Packed
from glassformer.apps.inspector.web_file import stored_weights, web_model
from glassformer.common.errors import UserError
from glassformer.model import Model
from inspector.direct import Inspector
from tolerances import NETWORK, near


def with_large_effects(model: Model) -> Model:
    """Return a model with random numbers added to the weights, so that no part has a small effect by chance."""
    network = copy.deepcopy(model.network)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for x in network.parameters():
            x.add_(torch.randn(x.shape, generator=generator), alpha=0.2)
    return dataclasses.replace(model, network=network)


def write_requests(folder: Path, name: str, inspector: Inspector, body: dict[str, Any], **asked: list[Any]) -> None:
    """Write a model, the input of its run, and requests ("gets", "posts", "bytes") for `answers.mjs`."""
    model = inspector.model_of(None)
    requests = {"gets": [], "posts": [], "bytes": []} | asked | {"web": web_model(inspector), "body": body}
    safetensors.torch.save_file(stored_weights(model.network, "float32"), folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps(requests))


def answered(function: Callable[..., Any], **named: Any) -> Any:
    """Return the answer of a route of the server, or its refusal in the form of `answers.mjs`."""
    try:
        return function(**named)
    except UserError as error:
        return {"error": str(error)}


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
        assert found == near(expected, terms=NETWORK), where
    else:
        assert found == expected, where
