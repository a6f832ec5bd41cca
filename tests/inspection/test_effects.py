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
from glassformer.common.errors import UserError
from glassformer.config.run import MaskedConfig
from glassformer.data.batching import Example
from glassformer.inspection.ablation import Part, ablate, all_parts, effects, effects_of_texts, mean_effects
from glassformer.inspection.capture import capture, capture_tensors
from glassformer.inspection.measures import Measure, kl_divergence, loss_of, measure_of
from glassformer.inspection.texts import line_of, validation_texts
from glassformer.objectives.seq2seq import Seq2SeqObjective
from glassformer.tasks.reporting import Outcome
from glassformer.tokenization.frames import Frame
from runs import pair_run, text_run_of
from tolerances import F64, assert_close, near

TRANSFORMERS = [
    "gpt",
    "sandwich",
    "attention_only",
    "gpt_classifier",
    "bert",
    "tagger",
    "paper",
    "unequal_stacks",
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("pairs")
    return api.load(api.train(pair_run(folder, max_steps=1), folder / "run").folder)


def quiet(text: str) -> None:
    """Drop a note."""


def inputs_of(network: Any) -> dict[str, Any]:
    found = random_inputs(network, 1)
    return {"token_ids": found.token_ids, **found.others}


@pytest.mark.parametrize("name", [*TRANSFORMERS, "bahdanau", "luong"])
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
            assert change == near(loss_of(network, inputs, measure) - before, dtype=F64), part
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
    assert loss == near(-score.log_prob / (len(trace.target) - 1))


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


def test_a_masked_model_has_a_divergence_at_its_masks() -> None:
    config = CONFIGS["bert"]
    network = random_model(type(config)(**{**vars(config), "mask_id": 4}))
    part = Part("encoder", 0, 2)
    for ids, positions in (([7, 4, 9, 4], [1, 3]), ([7, 8, 9, 5], [0, 1, 2, 3])):
        inputs = {"token_ids": torch.tensor([ids])}
        measure = measure_of(network, inputs)
        assert measure.name == "kl" and loss_of(network, inputs, measure) == near(0.0, dtype=F64)
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
    ["tagger", "classifier_mean", "classifier_max", "vectors_mean"],
)
def test_a_network_without_its_task_is_compared_with_its_unchanged_output(name: str) -> None:
    network = random_model(name)
    inputs = inputs_of(network)
    found = measure_of(network, inputs)
    assert found.name == "change" and loss_of(network, inputs, found) == near(0.0, dtype=F64)
    with ablate(network, ["encoder.0"]):
        assert loss_of(network, inputs, found) > 0


def test_the_divergence_of_equal_logits_is_zero() -> None:
    logits = torch.randn(2, 3, 5)
    assert_close(kl_divergence(logits, logits + 1), torch.zeros(2, 3))
    assert bool((kl_divergence(logits, torch.randn(2, 3, 5)) > 0).all())


def test_a_text_of_one_token_has_no_loss() -> None:
    with pytest.raises(UserError, match="the text has one token"):
        measure_of(random_model("gpt"), {"token_ids": torch.tensor([[3]])})


def test_the_effects_of_a_trained_masked_model(tmp_path: Path) -> None:
    model = api.load(api.train(text_run_of(tmp_path, MaskedConfig(), max_steps=1), tmp_path / "run").folder)
    assert model.config.mask_id == model.tokenizer.mask_id is not None
    trace = capture(model, "the dog")
    found = effects(model.network, trace.inputs, measure_of(model, trace.inputs))
    assert found.measure == "kl" and found.before == near(0.0)
    assert min(found.changes.values()) >= -1e-6


@pytest.mark.parametrize("by_mean", [False, True])
def test_effects_of_texts_are_means_with_the_effects_of_each(trained: Outcome, by_mean: bool) -> None:
    model = glassformer.load(trained.folder)
    texts, seen = ["the cat sat", "on the mat it sat", "a b c d"], list[tuple[int, int]]()
    found = effects_of_texts(model, texts, by_mean=by_mean, progress=lambda *done: seen.append(done))
    each = []
    for text in texts:
        inputs = capture(model, text, names=["logits"]).inputs
        means = capture_tensors(model.network, inputs) if by_mean else None
        each.append(effects(model.network, inputs, measure_of(model, inputs), means=means))
    assert found.n_texts == 3 and seen == [(1, 3), (2, 3), (3, 3)]
    assert found.before == pytest.approx(np.mean([one.before for one in each]))
    for part, beside in found.beside_others().items():
        values = [one.changes[part] for one in each]
        assert [found.changes[part], beside.own.mean] == pytest.approx([np.mean(values)] * 2)
        assert beside.own.deviation == pytest.approx(np.std(values, ddof=1))
        assert beside.own.quartiles == pytest.approx(np.quantile(values, [0.25, 0.5, 0.75]))
        alike = [x for x in found.changes if (x.head is None, x.feed_forward) == (part.head is None, part.feed_forward)]
        others = [one.changes[x] for one in each for x in alike if x != part]
        assert beside.baseline == pytest.approx(np.mean(others))
        assert not beside.is_beyond, "three texts are too few"
    one = effects_of_texts(model, texts[:1], by_mean=by_mean)
    assert one.n_texts == 1 and one.changes == each[0].changes
    assert all(math.isnan(beside.own.deviation) for beside in one.beside_others().values())
    with pytest.raises(UserError, match="there is no text: give at least one"):
        effects_of_texts(model, [])
    with pytest.raises(UserError, match=r"text 2: the text is empty"):
        effects_of_texts(model, [texts[0], " "])


def test_a_head_that_decides_the_prediction_is_beyond_the_others() -> None:
    """Only head 2 of layer 1 writes: the others have a zero output projection."""
    network = random_model("gpt")
    with torch.no_grad():
        for i, block in enumerate(network.decoder.blocks):
            matrix = block.self_attn.out_proj.weight.view(16, 4, 4)  # (D, H, W)
            matrix[:, [h for h in range(4) if (i, h) != (1, 2)]] = 0.0
    several = []
    for seed in range(8):
        ids = torch.randint(19, (1, 9), generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            best = network(ids)[0].argmax(dim=-1)
        several.append(effects(network, {"token_ids": ids}, Measure("loss", best)))
    heads = {part: one for part, one in mean_effects(several).beside_others().items() if part.head is not None}
    assert [str(part) for part, one in heads.items() if one.is_beyond] == ["decoder.1.head.2"]
    assert not any(one.is_beyond for one in mean_effects(several[:4]).beside_others().values()), (
        "four texts are too few"
    )


def test_a_set_of_pairs_and_of_long_texts(pairs: Any, trained: Outcome) -> None:
    lines = ["red dog sees\tsieht hund rot", "cat sees\tsieht katze"]
    found = effects_of_texts(pairs, lines, [Part("cross", 0, 0)])
    sides = [dict(zip(("source", "target"), line.split("\t"), strict=True)) for line in lines]
    assert found.of_texts == effects_of_texts(pairs, sides, [Part("cross", 0, 0)]).of_texts
    assert line_of(sides[0]) == lines[0]
    model = glassformer.load(trained.folder)
    [one] = effects_of_texts(model, ["a b " * 90], [Part("decoder", 0)]).of_texts
    assert math.isfinite(one.before), "the end of a long text is cut"


def test_validation_texts_are_read_in_the_order_of_the_data(trained: Outcome, pairs: Any) -> None:
    model = glassformer.load(trained.folder)
    few, many = validation_texts(model, 2), validation_texts(model, 10_000, 12)
    assert len(few) == 2 < len(many) and all(set(one) == {"text"} for one in many)
    assert many[0]["text"] and few[0]["text"].startswith(many[0]["text"][:8])
    assert set(validation_texts(pairs, 1)[0]) == {"source", "target"}
