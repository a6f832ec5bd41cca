"""The network in JavaScript equals PyTorch: every named tensor of every configuration, and steps with the cache."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import safetensors.torch
import torch
from torch import Tensor

from configs import CONFIGS, RECURRENT, random_inputs, random_model
from glassformer.apps.inspector.web_file import Dtype, stored_weights, tied_names, unfollowed
from glassformer.config.schema import to_dict
from glassformer.inspection.capture import FLOW, capture_tensors
from glassformer.models.build import Network
from inspector.network.node import run_node

REFUSED = {name: settings for name, config in (CONFIGS | RECURRENT).items() if (settings := [*unfollowed(config)])}
"""Configurations that a page refuses, with the settings that it does not follow."""
NAMES = [name for name in CONFIGS | RECURRENT if name not in REFUSED]
ABSENT = re.compile(r"_attn\.[qk]_norm(\.input)?$")
"""Names of `FLOW` in which the page has no tensor: the norms of queries and keys, whose results are these."""
TOLERANCE = 1e-4


def case(name: str, dtype: Dtype, folder: Path) -> tuple[Network, dict[str, Tensor]]:
    """Write a network, its weights rounded to a dtype, and one input; return both."""
    network: Network = random_model(name, dtype=torch.float32)
    inputs = random_inputs(network, n_rows=1)
    source_ids = inputs.others.get("source_ids", torch.zeros(1, 0, dtype=torch.long))
    safetensors.torch.save_file(stored_weights(network, dtype), folder / f"{name}-{dtype}.safetensors")
    settings = {"config": to_dict(network.config), "tied": tied_names(network)}
    settings |= {"ids": inputs.token_ids[0].tolist(), "source_ids": source_ids[0].tolist()}
    (folder / f"{name}-{dtype}.json").write_text(json.dumps(settings))
    given = {"token_ids": inputs.token_ids}
    if "source_ids" in inputs.others:
        given["source_ids"] = source_ids
    return network, given


Case = tuple[dict[str, Tensor], dict[str, Tensor]]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Case]]:
    """By name and dtype: the tensors of PyTorch and those of JavaScript."""
    folder = tmp_path_factory.mktemp("networks")
    expected = {}
    for name in NAMES:
        expected[name, "float32"] = capture_tensors(*case(name, "float32", folder), FLOW)
    for name in ("llama", "paper", "bahdanau"):
        for dtype in get_args(Dtype)[1:]:
            expected[name, dtype] = capture_tensors(*case(name, dtype, folder), FLOW)
    run_node("run.mjs", folder)
    found = {}
    for name, dtype in expected:
        tensors = json.loads((folder / f"{name}-{dtype}.out.json").read_text())
        of_case = {key: torch.tensor(x["data"]).reshape(x["shape"]) for key, x in tensors.items()}
        found[name, dtype] = (expected[name, dtype], of_case)
    yield found


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest number above 1."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))


def test_only_these_configurations_are_refused() -> None:
    assert REFUSED == {
        "rotary_pattern": ["positions.base_pattern", "qk_norm"],
        "rotary_longrope": ["positions.scaling"],
        "capped": ["score_cap", "logit_cap"],
        "scaled": ["residual_scale"],
        "no_first_norm": ["first_norm"],
        "modernbert": ["positions.base_pattern", "first_norm", "head_bias"],
        "tagger_transform": ["head_bias"],
        "classifier_norm": ["head.pooler_norm", "head_bias"],
        "experts": ["experts"],
        "experts_one_active": ["experts"],
        "experts_in_both_stacks": ["experts"],
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_equals_that_of_pytorch(name: str, cases: dict[tuple[str, str], Case]) -> None:
    expected, found = cases[name, "float32"]
    for key, x in expected.items():
        has_one_table = key.endswith(".embeddings.tokens") and (CONFIGS | RECURRENT)[name].share_embeddings
        if not ABSENT.search(key) and not has_one_table:  # a hook of PyTorch joins the rows of both sides
            is_shared = key.endswith(".positions")  # by all rows of a batch
            assert difference(found[key], x[None] if is_shared else x) < TOLERANCE, key
    if found["steps"].numel():
        assert difference(found["steps"], expected["logits"]) < TOLERANCE


@pytest.mark.parametrize("dtype", get_args(Dtype)[1:])
@pytest.mark.parametrize("name", ["llama", "paper", "bahdanau"])
def test_rounded_weights_are_those_of_the_rounded_network(
    name: str, dtype: str, cases: dict[tuple[str, str], Case]
) -> None:
    expected, found = cases[name, dtype]
    assert difference(found["logits"], expected["logits"]) < TOLERANCE
    exact = cases[name, "float32"][0]["logits"]
    assert difference(expected["logits"], exact) > TOLERANCE  # the weights are not those of float32
