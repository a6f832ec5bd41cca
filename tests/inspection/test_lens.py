"""The lens of the last layer gives the logits of the model; of the others, the head of their states."""

from typing import Any

import pytest
import torch

import glassformer
from configs import CONFIGS, RECURRENT, random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import TokenHead
from glassformer.inspection.capture import capture, capture_tensors
from glassformer.inspection.lens import NAMES, lens, lens_cells, lens_labels, lens_logits
from glassformer.tasks.reporting import Outcome
from tolerances import NETWORK, assert_close

WITH_TOKENS = [name for name, config in CONFIGS.items() if isinstance(config.head, TokenHead)]


def inputs_of(network: Any) -> dict[str, Any]:
    found = random_inputs(network, 1)
    return {"token_ids": found.token_ids, **found.others}


@pytest.mark.parametrize("name", WITH_TOKENS)
def test_the_last_layer_gives_the_logits_of_the_model(name: str) -> None:
    network = random_model(name)
    inputs = inputs_of(network)
    found = dict(lens(network, capture_tensors(network, inputs, NAMES)))
    n_layers = network.config.head_stack.n_layers
    assert list(found) == ["embeddings", *[f"block {i}" for i in range(n_layers)]]
    logits = capture_tensors(network, inputs, ["logits"])["logits"]
    assert_close(found[f"block {n_layers - 1}"].float(), logits, terms=NETWORK)
    assert (found["block 0"].float() - logits).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gpt", "post_norm", "bert", "t5"])
def test_every_layer_equals_a_network_cut_after_it(name: str) -> None:
    network = random_model(name)
    inputs = inputs_of(network)
    found = dict(lens(network, capture_tensors(network, inputs, NAMES)))
    stack = network.encoder if network.decoder is None else network.decoder
    blocks = stack.blocks
    for n in range(len(blocks) + 1):
        stack.blocks = blocks[:n]
        with torch.no_grad():
            expected = network(**inputs)
        name_of = "embeddings" if n == 0 else f"block {n - 1}"
        assert_close(found[name_of], expected, terms=NETWORK, dtype=torch.float32, msg=name_of)  # taps give fp32


def test_the_norm_is_optional() -> None:
    network = random_model("gpt")
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    with torch.no_grad():
        assert_close(lens_logits(network, x, norm=False), network.head(x))
        assert_close(lens_logits(network, x), network.head(network.decoder.final_norm(x)))
    post = random_model("post_norm")
    assert_close(lens_logits(post, x), lens_logits(post, x, norm=False))


@pytest.mark.parametrize("norm", [True, False])
def test_the_cells_of_the_lens(norm: bool) -> None:
    network = random_model("gpt")
    inputs = inputs_of(network)
    trace = capture_tensors(network, inputs)
    labels = lens_labels(network, inputs)
    assert labels == [*inputs["token_ids"][0, 1:].tolist(), -100]
    cells = lens_cells(network, trace, labels, k=3, norm=norm)
    assert cells.layers == ["embeddings", "block 0", "block 1"]
    assert cells.top_ids.shape == cells.top_probabilities.shape == (3, 9, 3)
    for layer, (_, logits) in enumerate(lens(network, trace, norm)):
        for t, label in enumerate(labels[:-1]):
            p = logits[0, t].softmax(-1)
            assert cells.label_probability[layer, t].item() == pytest.approx(float(p[label]))
            assert cells.label_rank[layer, t].item() == sorted(p.tolist(), reverse=True).index(float(p[label]))
            order = p.argsort(descending=True)[:3]
            assert cells.top_ids[layer, t].tolist() == order.tolist()
            assert_close(cells.top_probabilities[layer, t], p[order])
    assert cells.label_rank[:, -1].tolist() == [-1] * 3 and bool(cells.label_probability[:, -1].isnan().all())


def test_the_labels_of_other_models() -> None:
    ids = {"token_ids": torch.tensor([[1, 5, 6]])}
    source = {"source_ids": torch.tensor([[3, 4]])}
    paper, bert = CONFIGS["paper"], CONFIGS["bert"]
    paper = type(paper)(**{**vars(paper), "eos_id": 2})
    assert lens_labels(random_model(paper), ids | source) == [5, 6, 2]
    assert lens_labels(random_model("paper"), ids | source) == [5, 6, -100]
    assert lens_labels(random_model(type(bert)(**{**vars(bert), "mask_id": 5})), ids) == [1, -100, 6]


def test_more_candidates_than_tokens() -> None:
    network = random_model("gpt")
    inputs = inputs_of(network)
    cells = lens_cells(network, capture_tensors(network, inputs), lens_labels(network, inputs), k=50)
    assert cells.top_ids.shape == (3, 9, 19)


def test_models_without_a_lens_are_refused() -> None:
    with pytest.raises(UserError, match="this model is recurrent and has no residual stream"):
        next(lens(random_model(next(iter(RECURRENT))), {}))
    for name in ("tagger", "gpt_classifier", "vectors_mean"):
        with pytest.raises(
            UserError, match="needs a Transformer with a head over tokens: this model predicts labels or vectors"
        ):
            next(lens(random_model(name), {}))
    with pytest.raises(UserError, match=r"the trace has no tensor decoder.embeddings: capture it"):
        next(lens(random_model("gpt"), {}))


def test_the_lens_of_a_trained_model(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    trace = capture(model, "the cat")
    cells = lens_cells(model.network, trace, lens_labels(model.network, trace.inputs))
    assert_close(cells.top_ids[-1, :, 0], trace["logits"][0].argmax(-1))
