"""The strongest texts of each unit equal a search over all texts; memory is bounded; the baseline is a random text."""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from configs import RECURRENT, random_model, randomise
from glassformer import api
from glassformer.common.errors import UserError
from glassformer.inspection.attribution import direct_effect
from glassformer.inspection.capture import capture
from glassformer.inspection.strongest import Strongest, Units, activities, strongest
from glassformer.model import Model
from glassformer.tasks.reporting import Outcome
from runs import made_up_text, pair_run
from tolerances import NETWORK, assert_close, near

K = 4
TEXTS = [" ".join(line.split()[:5]) for line in made_up_text(30, seed=3).splitlines()]


@pytest.fixture(scope="module")
def model(trained: Outcome) -> Model:
    found = glassformer.load(trained.folder)
    randomise(found.network)  # value biases are not zero
    return found


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("pairs")
    found = api.load(api.train(pair_run(folder, max_steps=1), folder / "run").folder)
    randomise(found.network)
    yield found


def of_heads(model: Model, trace: dict[str, Tensor], block: str) -> Tensor:
    """Length of weights · (x W_V) W_O, from the weights and the values without their bias: (T, H)."""
    attention = model.network.get_submodule(block)
    bias = attention.v_proj.bias.view(attention.n_kv_heads, 1, -1)
    values = trace[f"{block}.value"][0] - bias
    matrices = attention.out_proj.weight.T.view(attention.n_heads, -1, attention.d_model)  # (H, W, D)
    return (trace[f"{block}.weights"][0] @ values @ matrices).norm(dim=-1).T


@torch.no_grad()
def direct(model: Model, text: str, units: str) -> Tensor:
    """Activity of each unit at each token after the first, (T - 1, U)."""
    trace = dict(capture(model, text))
    block = f"decoder.blocks.{units.split('.')[1]}"
    found = of_heads(model, trace, f"{block}.self_attn") if "head" in units else trace[f"{block}.ff.activations"][0]
    return found[1:]


@pytest.mark.parametrize("units", ["decoder.0.head", "decoder.1.head", "decoder.1.neuron"])
def test_the_strongest_texts_are_those_of_a_search_over_all(model: Model, units: str) -> None:
    found = strongest(model, iter(TEXTS), units, K)
    activity = [direct(model, text, units) for text in TEXTS]
    strengths = torch.stack([x.amax(dim=0) for x in activity])  # (N, U)
    assert found.n_texts == len(TEXTS) and found.n_units == strengths.shape[1]
    assert_close(found.strengths, strengths.T.sort(dim=1, descending=True).values[:, :K])
    for unit in range(0, found.n_units, 5):
        texts = found.texts(unit)
        numbers = [text.number for text in texts]  # two texts may have equal strengths
        assert len(set(numbers)) == K
        assert_close(strengths[numbers, unit], strengths[:, unit].topk(K).values)
        for text in texts:
            expected = activity[text.number][:, unit]
            assert math.isnan(text.activity[0]), "the first token of a decoder is left out"
            assert text.activity[1:] == near(expected.tolist(), terms=NETWORK)
            assert text.strength == near(float(expected.max()), terms=NETWORK)
            assert text.tokens == model.tokenizer.tokens(model.text_ids(TEXTS[text.number]))
        quantiles = torch.quantile(strengths[:, unit].double(), torch.tensor([0.5, 0.95], dtype=torch.float64))
        assert found.baseline(unit) == near(quantiles.tolist(), terms=NETWORK)


@pytest.mark.parametrize("units", ["decoder.0.head", "decoder.1.neuron"])
def test_the_moved_tokens_are_those_of_the_mean_effect(model: Model, units: str) -> None:
    found = strongest(model, TEXTS, units, K)
    effects = []
    for text in found.texts(1):
        place = text.activity.index(text.strength)
        inputs = capture(model, TEXTS[text.number]).inputs
        effects.append(direct_effect(model.network, inputs, f"{units}.1", place))
    mean = torch.stack(effects).mean(0)
    assert_close(found.effects(1), mean - mean.mean())
    (raised, lowered), order = found.tokens(1, 3), (mean - mean.mean()).sort(descending=True)
    assert [*raised] == model.tokenizer.tokens(order.indices[:3].tolist())
    assert [*lowered] == model.tokenizer.tokens(order.indices.flip(0)[:3].tolist())
    assert [*raised.values()] == near(order.values[:3].tolist(), terms=NETWORK)


def test_memory_is_bounded(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[strongest.__module__]
    monkeypatch.setattr(module, "SAMPLE", 6)
    monkeypatch.setattr(module, "PRUNE_EVERY", 3)
    seen, kept, add = list[tuple[int, int]](), list[int](), Strongest.add

    def counted(found: Strongest, *given: Any) -> None:
        add(found, *given)
        kept.append(len(found.traces) - len(set(found.numbers.flatten().tolist())))

    monkeypatch.setattr(Strongest, "add", counted)
    found = strongest(model, TEXTS, "decoder.0.head", 2, progress=lambda *done: seen.append(done))
    assert max(kept) < 3, "at most as many texts that are not needed as are read between two prunings"
    whole = strongest(model, iter(TEXTS), "decoder.0.head", 2)
    assert torch.equal(found.numbers, whole.numbers)
    assert found.traces.keys() == set(found.numbers.flatten().tolist())
    assert len(found.sample) == 6 and found.n_texts == len(TEXTS)
    assert seen == [(i, len(TEXTS)) for i in range(1, len(TEXTS) + 1)]
    strengths = torch.stack([direct(model, text, "decoder.0.head").amax(dim=0) for text in TEXTS])
    places = [int((strengths - one).abs().sum(1).argmin()) for one in found.sample]
    assert len(set(places)) == 6 and max(places) >= 6, "a random text of all, not one of the first"


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_rounded_weights_give_nearly_the_same_activity(trained: Outcome, dtype: Any) -> None:
    exact = glassformer.load(trained.folder)
    inputs = capture(exact, TEXTS[0], names=["logits"]).inputs
    rounded = glassformer.load(trained.folder, dtype=dtype)
    for units in ("decoder.0.head", "decoder.1.neuron"):
        expected, found = (activities(one.network, inputs, Units.parse(units))[1:] for one in (exact, rounded))
        assert float((found.float() - expected).abs().max()) < 0.05 * float(expected.abs().max())


def test_a_text_has_its_place_in_the_whole_set(model: Model) -> None:
    found = strongest(model, ["", "a b c", " ", "a b"], "decoder.0.neuron", 2)
    assert found.n_texts == 2 and {text.number for text in found.texts(0)} == {1, 3}


def test_blank_texts_and_texts_of_one_token_are_left_out(model: Model) -> None:
    found = strongest(model, ["", "  \n", "a", "a b " * 60, "a b"], "decoder.0.neuron", K)
    n_one = len(model.text_ids("a"))
    assert found.n_texts == (2 if n_one == 1 else 3)
    assert max(len(text.tokens) for text in found.texts(0)) == model.config.max_len, "the end of a long text is cut"
    with pytest.raises(UserError, match="there is no text of two tokens or more"):
        strongest(model, ["", " "], "decoder.0.head")


@pytest.mark.parametrize("units", ["encoder.0.neuron", "encoder.0.head", "cross.0.head", "decoder.0.head"])
def test_an_encoder_decoder_reads_sources_with_their_targets(pairs: Model, units: str) -> None:
    lines = ["red dog sees\tsieht hund rot", "cat sees\tsieht katze", "dog\thund"]
    found = strongest(pairs, lines, units, 2)
    kind = units.split(".")[0]
    for unit in range(2):
        best = found.texts(unit)[0]
        source, target = lines[best.number].split("\t")
        trace = capture(pairs, source=source, target=target, names=["logits"])
        assert best.tokens == trace.axes(kind)[0]  # type: ignore[index]
        assert len(best.activity) == len(best.tokens)
        assert math.isnan(best.activity[0]) is (kind == "decoder")


def test_units_that_do_not_exist_are_refused(model: Model) -> None:
    for units, message in (
        ("decoder.0", "units: expected a name such as decoder.0.head or decoder.0.neuron"),
        ("cross.0.neuron", "units: expected a name such as"),
        ("decoder.9.head", "there is no layer 9: the model has 2"),
        ("encoder.0.head", "this model has no encoder"),
        ("cross.0.head", "this model has no cross.0.head"),
    ):
        with pytest.raises(UserError, match=message):
            model.strongest_texts(TEXTS, units)
    found = model.strongest_texts(TEXTS[:3], "decoder.0.head")
    for call in (found.texts, found.baseline):
        with pytest.raises(UserError, match="there is no head 7: the model has 2"):
            call(7)
    with pytest.raises(UserError, match="this model is recurrent"):
        activities(random_model(next(iter(RECURRENT))), {}, found.units)
    with pytest.raises(UserError, match=r"has no decoder\.0\.neuron"):
        activities(random_model("attention_only"), {}, type(found.units)("decoder", 0, "neuron"))


def test_texts_of_a_file_are_read_one_by_one(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", "utf-8")
    with open(path, encoding="utf-8") as file:
        found = model.strongest_texts(file, "decoder.0.head", k=3)
    whole = strongest(model, [f"{text}\n" for text in TEXTS], "decoder.0.head", 3)
    assert found.n_texts == len(TEXTS) and torch.equal(found.numbers, whole.numbers)
