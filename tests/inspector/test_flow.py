"""The tensors of the flow equal those of `model.trace`, for every family; wrong requests are one sentence."""

import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from configs import CONFIGS, RECURRENT, random_inputs, random_model
from glassformer.apps.inspector.app import Packed
from glassformer.apps.inspector.inspector import Shown
from glassformer.common.errors import UserError
from glassformer.config.run import Run
from glassformer.config.schema import to_dict
from glassformer.inspection.capture import FLOW, capture_tensors, tensor_shapes
from glassformer.model import Model
from inspector.browsing import given_to
from inspector.direct import Inspector
from inspector.network.node import run_node
from tolerances import NETWORK, assert_close

FAMILIES = ["gpt", "llama", "t5", "bart", "bert", "paper", "sandwich", "one_wide_kv_head", *RECURRENT]
EDGES = ["fused_qkv", "rotary_partial_qk_norm", "attention_only", "d_embedding", "token_types", "unequal_stacks"]
"""Configurations whose tensors have other names or widths."""


def unpacked(found: Packed) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(zlib.decompress(found.data), "<f4").reshape(found.shape).copy())


def shown_with(inspector: Inspector, given: Model, name: str) -> Shown:
    """Return a kept run of a random network: its trace has inputs of the network's own sizes."""
    shown = inspector.run_of(inspector.run(**given_to(given))["run"])
    network = random_model(name, dtype=torch.float32)
    inputs = {"token_ids": torch.randint(4, network.config.vocab_size, (1, 6))}
    if network.config.is_encoder_decoder:
        inputs["source_ids"] = torch.randint(4, network.config.encoder_vocab_size, (1, 5))
    shown.model = replace(shown.model, network=network, run=Run(model=network.config))
    shown.trace = replace(shown.trace, inputs=inputs)
    return shown


@pytest.mark.parametrize("name", [*FAMILIES, *EDGES])
def test_every_tensor_of_the_flow_is_that_of_the_trace(models: dict[str, Model], name: str) -> None:
    inspector = Inspector(models["decoder"])
    shown = shown_with(inspector, models["decoder"], name)
    expected = capture_tensors(shown.model.network, shown.trace.inputs, FLOW)
    answer = inspector.flow(run=shown.name)
    assert answer["config"]["vocab_size"] == shown.model.config.vocab_size
    assert {"logits"} == {key for key in expected if key not in dict(answer["tensors"]) and expected[key].ndim > 2}
    for key, shape in answer["tensors"]:
        x = expected[key] if key.endswith(".positions") else expected[key][0]
        assert list(x.shape) == list(shape)
        if x.ndim == 2:
            assert_close(unpacked(inspector.tensor(run=shown.name, name=key)), x, terms=NETWORK)
            continue
        for head in range(x.shape[0]):
            found = unpacked(inspector.tensor(run=shown.name, name=key, head=head))
            assert_close(found, x[head], terms=NETWORK)


def test_a_part_of_the_tokens_is_that_part(models: dict[str, Model]) -> None:
    inspector = Inspector(models["decoder"])
    run = inspector.run(**given_to(models["decoder"]))["run"]
    whole = unpacked(inspector.tensor(run=run, name="decoder.embeddings"))
    part = unpacked(inspector.tensor(run=run, name="decoder.embeddings", first=2, count=3))
    assert torch.equal(part, whole[2:5])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"name": "decoder.blocks.9.ff"}, "the run has no tensor 'decoder.blocks.9.ff': reload the page"),
        ({"name": "logits"}, "the run has no tensor 'logits': reload the page"),
        ({"name": "decoder.final", "head": 0}, "decoder.final has no heads: leave out head"),
        ({"name": "decoder.blocks.0.self_attn.query", "head": 99}, "head: expected 0 to"),
        ({"name": "decoder.final", "first": 10**6}, "expected first from 0 to"),
        ({"name": "decoder.final", "count": 65}, "count from 1 to 64"),
    ],
)
def test_a_wrong_request_is_one_sentence(models: dict[str, Model], given: dict[str, object], sentence: str) -> None:
    inspector = Inspector(models["decoder"])
    run = inspector.run(**given_to(models["decoder"]))["run"]
    with pytest.raises(UserError) as error:
        inspector.tensor(run=run, **given)
    assert sentence in str(error.value)


def test_each_stage_of_each_configuration_has_tensors_of_the_model(tmp_path: Path) -> None:
    """The page asks only for tensors that the model has, of every stack and block, and leaves no sublayer out."""
    flows = {}
    for name in (*CONFIGS, *RECURRENT):
        network = random_model(name, dtype=torch.float32)
        inputs = random_inputs(network, n_rows=1)
        shapes = tensor_shapes(network, {"token_ids": inputs.token_ids, **inputs.others}, FLOW)
        flows[name] = {"tensors": list(shapes.items()), "config": to_dict(network.config), "formulas": {}}
    (tmp_path / "flows.json").write_text(json.dumps(flows))
    run_node("stages.mjs", tmp_path / "flows.json")
