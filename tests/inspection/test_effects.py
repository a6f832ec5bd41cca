"""Effects in batches equal one part at a time; measures equal the losses of the objectives."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import glassformer
from configs import CONFIGS, RECURRENT, random_inputs, random_model
from glassformer import api
from glassformer.config.run import MaskedConfig
from glassformer.data.batching import Example
from glassformer.errors import UserError
from glassformer.inspection.ablation import Part, ablate, all_parts
from glassformer.inspection.capture import capture, capture_tensors
from glassformer.inspection.effects import effects
from glassformer.inspection.measures import kl_divergence, loss_of, measure_of
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.reporting import Outcome
from glassformer.tokenization.special_tokens_template import Frame
from runs import text_run_of

ATTENDING = [name for name in RECURRENT if all_parts(random_model(name))]


def quiet(text: str) -> None:
    """Drop a note."""


def inputs_of(network: Any) -> dict[str, Any]:
    found = random_inputs(network, 1)
    return {"token_ids": found.token_ids, **found.others}


@pytest.mark.parametrize("name", [*CONFIGS, *ATTENDING])
@pytest.mark.parametrize("is_mean", [False, True])
def test_batched_effects_equal_one_part_at_a_time(name: str, is_mean: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_model(name)
    inputs = inputs_of(network)
    measure = measure_of(network, inputs)
    means = capture_tensors(network, inputs) if is_mean else None
    row = max(x.shape[1] for x in inputs.values())
    monkeypatch.setattr(sys.modules[effects.__module__], "MAX_BYTES", 4 * 8 * (row * 200))  # a few rows per batch
    found = effects(network, inputs, measure, means=means)
    assert list(found.changes) == all_parts(network)
    before = loss_of(network, inputs, measure)
    assert found.before == pytest.approx(before) and math.isfinite(before)
    for part, change in found.changes.items():
        with ablate(network, [part], means):
            assert change == pytest.approx(loss_of(network, inputs, measure) - before, abs=1e-9), part
    assert is_mean or any(abs(change) > 1e-6 for change in found.changes.values())


def test_effects_are_grouped_by_heads_and_layers() -> None:
    network = random_model("unequal_stacks")
    inputs = inputs_of(network)
    found = effects(network, inputs, measure_of(network, inputs))
    assert [len(found.heads("encoder")), len(found.heads("decoder")), len(found.heads("cross"))] == [1, 2, 2]
    assert found.heads("cross")[1][3] == found.changes[Part("cross", 1, 3)]
    assert found.feed_forwards("decoder") == [found.changes[Part("decoder", i, feed_forward=True)] for i in (0, 1)]
    assert found.layers("encoder") == [found.changes[Part("encoder", 0)]]


def test_the_loss_of_a_causal_model_is_that_of_its_score(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    trace = capture(model, "the cat sat on the mat")
    score = model.score("the cat sat on the mat", log=quiet)
    loss = loss_of(model.network, trace.inputs, measure_of(model, trace.inputs))
    assert loss == pytest.approx(-score.log_prob / (len(trace.target) - 1), rel=1e-5)


@pytest.mark.parametrize("name", ["paper", "bahdanau"])
def test_the_loss_of_an_encoder_decoder_is_that_of_its_objective(name: str) -> None:
    config = (CONFIGS | RECURRENT)[name]
    network = random_model(type(config)(**{**vars(config), "eos_id": 2}))
    objective = Seq2SeqObjective(1, Frame(after=(2,)), Frame(after=(2,)))
    batch = objective.collate([Example(np.array([5, 6, 7]), source_ids=np.array([3, 4]))], np.random.default_rng(0))
    sums = objective.loss(network, batch)
    assert batch.source_ids is not None
    inputs = {"token_ids": batch.token_ids, "source_ids": batch.source_ids}
    measure = measure_of(network, inputs)
    assert measure.name == "loss" and sums.n_targets == 4
    assert loss_of(network, inputs, measure) == pytest.approx(float(sums.nats) / 4)


def test_a_masked_model_with_a_reference_has_a_loss_at_its_masks() -> None:
    config = CONFIGS["bert"]
    network = random_model(type(config)(**{**vars(config), "mask_id": 4}))
    text, reference = [7, 4, 9, 4], [7, 8, 9, 10]
    inputs = {"token_ids": torch.tensor([text])}
    measure = measure_of(network, inputs, reference)
    with torch.no_grad():
        expected = F.cross_entropy(network(**inputs)[0, [1, 3]], torch.tensor([8, 10]))
    assert measure.name == "loss" and loss_of(network, inputs, measure) == pytest.approx(float(expected))
    for wrong, message in (
        ([7, 8], r"the text has 4 tokens and the reference 2: write one \[MASK\] per token"),
        (None, r"the text has no \[MASK\]"),
    ):
        given = {"token_ids": torch.tensor([reference])} if wrong is None else inputs
        with pytest.raises(UserError, match=message):
            measure_of(network, given, wrong or reference)
    with pytest.raises(UserError, match="a reference text needs a masked language model"):
        measure_of(random_model("gpt"), inputs, reference)


def test_a_masked_model_without_a_reference_has_a_divergence_at_its_masks() -> None:
    config = CONFIGS["bert"]
    network = random_model(type(config)(**{**vars(config), "mask_id": 4}))
    part = Part("encoder", 0, 2)
    for ids, positions in (([7, 4, 9, 4], [1, 3]), ([7, 8, 9, 5], [0, 1, 2, 3])):
        inputs = {"token_ids": torch.tensor([ids])}
        measure = measure_of(network, inputs)
        assert measure.name == "kl" and loss_of(network, inputs, measure) == pytest.approx(0.0, abs=1e-12)
        with torch.no_grad():
            unchanged = network(**inputs)
            with ablate(network, [part]):
                changed = network(**inputs)
                found = loss_of(network, inputs, measure)
        rows = zip(changed[0, positions], unchanged[0, positions], strict=True)
        each = [F.kl_div(q.log_softmax(-1), p.log_softmax(-1), log_target=True, reduction="sum") for q, p in rows]
        assert found == pytest.approx(float(torch.stack(each).mean()))


@pytest.mark.parametrize(
    "name",
    ["tagger", "classifier_mean", "classifier_max", "vectors_mean", "answers"],
)
def test_a_network_without_its_task_is_compared_with_its_unchanged_output(name: str) -> None:
    network = random_model(name)
    inputs = inputs_of(network)
    found = measure_of(network, inputs)
    assert found.name == "change" and loss_of(network, inputs, found) == pytest.approx(0.0, abs=1e-12)
    with ablate(network, ["encoder.0"]):
        assert loss_of(network, inputs, found) > 0


def test_the_divergence_of_equal_logits_is_zero() -> None:
    logits = torch.randn(2, 3, 5)
    torch.testing.assert_close(kl_divergence(logits, logits + 1), torch.zeros(2, 3), atol=1e-6, rtol=0)
    assert bool((kl_divergence(logits, torch.randn(2, 3, 5)) > 0).all())


def test_a_text_of_one_token_has_no_loss() -> None:
    with pytest.raises(UserError, match="the text has one token"):
        measure_of(random_model("gpt"), {"token_ids": torch.tensor([[3]])})


def test_the_effects_of_a_trained_masked_model(tmp_path: Path) -> None:
    model = api.load(api.train(text_run_of(tmp_path, MaskedConfig(), max_steps=1), tmp_path / "run").folder)
    assert model.config.mask_id == model.tokenizer.mask_id is not None
    trace = capture(model, "the dog")
    found = effects(model.network, trace.inputs, measure_of(model, trace.inputs))
    assert found.measure == "kl" and found.before == pytest.approx(0.0, abs=1e-6)
    assert min(found.changes.values()) >= -1e-6
