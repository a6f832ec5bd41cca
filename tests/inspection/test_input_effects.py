"""Effects of input tokens: exact against a table with the mean as one more token, estimates against derivatives."""

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from configs import CONFIGS, random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import PositionHead, SequenceHead
from glassformer.inspection.ablation import Part, ablate, effects
from glassformer.inspection.capture import Trace, capture, model_hooks
from glassformer.inspection.input_effects import InputEffects, input_effects
from glassformer.inspection.measures import logit_measure
from glassformer.inspection.patching import rank_correlation
from glassformer.model import Model
from glassformer.tasks.reporting import Outcome
from tolerances import NETWORK, about, near

KINDS = {
    "gpt": {},
    "llama": {},
    "d_embedding": {},
    "bert": {"position": 2},
    "tagger": {"position": 2},
    "classifier_first": {},
    "gpt_classifier": {},
    "two_vocabularies": {},
    "paper": {"position": 3},
    "bart": {},
    "bart_classifier": {},
    "bahdanau": {},
    "sutskever": {"position": 4},
    "luong_dot": {},
}
CONFIGS_OF = CONFIGS | {
    "bart_classifier": dataclasses.replace(CONFIGS["bart"], head=SequenceHead(3, "last"), decoder_start_id=2)
}


def given(name: str) -> tuple[Any, Trace]:
    """Return a stand-in for a model with random weights, and the inputs of a trace."""
    network = random_model(CONFIGS_OF.get(name, name))
    found = random_inputs(network, 1, n_tokens=6, n_source=5)
    inputs = {"token_ids": found.token_ids}
    if "source_ids" in found.others and not getattr(network.config, "reads_text_twice", False):
        inputs["source_ids"] = found.others["source_ids"]
    has_labels = isinstance(getattr(network.config, "head", None), PositionHead | SequenceHead)
    model = SimpleNamespace(network=network, name=name, classes=("a", "b", "c") if has_labels else ())
    return model, Trace({}, inputs, [], [], [])


def logit_of(outputs: Tensor, found: InputEffects) -> Tensor:
    """Return the logits (R,) that an effect is about."""
    if found.measure.positions is not None:
        outputs = outputs[:, int(found.measure.positions.nonzero())]
    return outputs[:, int(found.measure.reference[0])]


def tokens_of(trace: Trace) -> list[tuple[str, int]]:
    """Return the input and the position of each token, those of a source first."""
    names = [name for name in ("source_ids", "token_ids") if name in trace.inputs]
    return [(name, t) for name in names for t in range(trace.inputs[name].shape[1])]


def table_of(network: Any, side: str) -> nn.Embedding:
    """Return the table of the tokens of a source or of the other input."""
    stack = network.encoder if side == "source_ids" or network.decoder is None else network.decoder
    return getattr(stack, "embeddings", stack).tokens


def with_mean_token(network: Any) -> Any:
    """Return a copy of a network whose tables of input tokens have one more row: the mean of the others."""
    changed = copy.deepcopy(network)
    for stack in (changed.encoder, changed.decoder):
        holder = getattr(stack, "embeddings", stack)
        if holder is not None:
            rows = holder.tokens.weight.detach()
            holder.tokens = nn.Embedding.from_pretrained(torch.cat([rows, rows.mean(0, keepdim=True)]))
    return changed


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_the_exact_effects_equal_a_loop_over_the_tokens(name: str) -> None:
    model, trace = given(name)
    found = input_effects(model, trace, **KINDS[name])
    changed = with_mean_token(model.network)
    before = float(logit_of(model.network(**trace.inputs), found)[0])
    assert found.logit == near(before, terms=NETWORK)
    for (side, t), effect in zip(tokens_of(trace), found.exact.tolist(), strict=True):
        inputs = {one: x.clone() for one, x in trace.inputs.items()}
        inputs[side][0, t] = table_of(changed, side).num_embeddings - 1
        expected = before - float(logit_of(changed(**inputs), found)[0])
        assert effect == near(expected, terms=NETWORK), (side, t)
    assert float(found.exact.abs().max()) > 1e-3


@pytest.mark.parametrize("name", KINDS)
@torch.no_grad()
def test_the_estimates_equal_small_steps_to_the_mean(name: str) -> None:
    """d m / d s at s = 0 for x + s (x̄ − x), by central differences in double precision."""
    model, trace = given(name)
    network, inputs = model.network, trace.inputs
    found = input_effects(model, trace, **KINDS[name])
    changed = with_mean_token(network)
    ids = {side: torch.full_like(x, table_of(changed, side).num_embeddings - 1) for side, x in inputs.items()}
    means = capture_embeddings(changed, ids)
    own = capture_embeddings(network, inputs)

    def logit_at(share: float, side: str, t: int) -> float:
        """Return the logit with the token moved by a share of the way to the mean."""

        def moved(path: str, x: Tensor) -> Tensor:
            at = t
            if "source_ids" in inputs and path.startswith("encoder") != (side == "source_ids"):
                return x
            if "source_ids" not in inputs and network.encoder is not None and path.startswith("decoder"):
                at += 1  # this decoder reads the text one position later
            x = x.clone()
            x[:, at : at + 1] += share * (means[path] - own[path])[:, at : at + 1]
            return x

        with model_hooks(network, dict.fromkeys(own, moved)):
            return float(logit_of(network(**inputs), found)[0])

    for place, estimate in zip(tokens_of(trace), found.estimated.tolist(), strict=True):
        expected = (logit_at(-1e-5, *place) - logit_at(1e-5, *place)) / 2e-5
        assert estimate == about(expected, 1e-4), place


def capture_embeddings(network: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs of the first blocks, in the precision of the network."""
    kept: dict[str, Tensor] = {}
    names = [f"{stack}.embeddings" for stack in ("encoder", "decoder") if getattr(network, stack) is not None]
    with model_hooks(network, dict.fromkeys(names, lambda path, x: kept.update({path: x.clone()}))):
        network(**inputs)
    return kept


def test_the_estimates_equal_the_gradient_by_hand() -> None:
    model, trace = given("gpt")
    network, found = model.network, input_effects(model, trace, position=4)
    rows, ids = network.decoder.embeddings.tokens.weight, trace.inputs["token_ids"]
    x = rows[ids].detach().requires_grad_()
    handle = network.decoder.embeddings.tokens.register_forward_hook(lambda module, args, output: x)
    logits = network(ids)[0, 4]
    handle.remove()
    (gradient,) = torch.autograd.grad(logits[int(logits.argmax())], x)
    expected = ((x - rows.mean(dim=0)) * gradient)[0].sum(dim=1).detach().float()
    assert found.estimated.numpy() == near(expected.numpy(), terms=NETWORK)
    assert float(expected[5]) == 0 == float(found.exact[5]), "a later token has no effect"
    assert found.correlation == pytest.approx(rank_correlation(found.exact, found.estimated))


def test_both_are_equal_for_a_linear_model() -> None:
    """Attention with equal weights, no norm and no feed-forward: each logit is linear in all embeddings."""
    model, trace = given("attention_only")
    network = model.network
    for block in network.decoder.blocks:
        block.self_attn_norm = nn.Identity()
        for projection in (block.self_attn.q_proj, block.self_attn.k_proj):
            nn.init.zeros_(projection.weight)
            nn.init.zeros_(projection.bias)
    network.decoder.final_norm = None
    found = input_effects(model, trace)
    exact, estimated = found.exact, found.estimated
    assert exact.numpy() == near(estimated.numpy(), terms=NETWORK)
    assert found.correlation == pytest.approx(1) and float(exact.abs().min()) > 1e-3


@pytest.fixture(scope="module")
def decoder(trained: Outcome) -> Model:
    return glassformer.load(trained.folder)


def test_a_difference_of_two_logits_is_the_difference_of_the_effects(decoder: Model) -> None:
    trace, calls = capture(decoder, "abc de fgh"), list[tuple[int, int]]()
    one, other = (input_effects(decoder, trace, token, position=3) for token in ("a", "b"))
    both = input_effects(decoder, trace, "a", "b", 3, progress=lambda *numbers: calls.append(numbers))
    assert both.logit == near(one.logit - other.logit, terms=NETWORK)
    for name in ("exact", "estimated"):
        x, y, z = (getattr(found, name).numpy() for found in (one, other, both))
        assert z == near(x - y, terms=NETWORK)
    assert calls[-1] == (4, 4) and len(trace.target) > 4, "later tokens are not replaced"
    assert both.tokens == trace.target and "rank correlation" in both._repr_html_()


def test_the_measure_of_a_logit_is_the_logit(decoder: Model) -> None:
    trace = capture(decoder, "abc de fgh")
    measure, a, b = logit_measure(decoder, trace.inputs, "a", "b", 2), *(decoder.tokenizer.encode(x)[0] for x in "ab")
    logits = trace["logits"]
    assert float(measure(logits)[0]) == near(float(logits[0, 2, a] - logits[0, 2, b]))
    best = logit_measure(decoder, trace.inputs)
    assert float(best(logits)[0]) == near(float(logits[0, -1].max()))
    part = "decoder.0.head.1"
    with ablate(decoder, part):
        off = capture(decoder, "abc de fgh", names=["logits"])["logits"]
    found = effects(decoder.network, trace.inputs, measure)
    assert found.measure == "logit" and found.before == near(float(measure(logits)[0]))
    assert found.changes[Part.parse(part)] == near(float((measure(off) - measure(logits))[0]), terms=NETWORK)
    assert "Δ logit" in found._repr_html_()
    for named, message in (
        ({"token": "zqzq"}, "the answer 'zqzq' has"),
        ({"token": "a", "against": "a"}, "give two different tokens"),
        ({"position": 99}, "the position is 99"),
    ):
        with pytest.raises(UserError, match=message):
            logit_measure(decoder, trace.inputs, **named)


@torch.no_grad()
def test_labels_are_named() -> None:
    model, trace = given("classifier_first")
    found = logit_measure(model, trace.inputs, "b", "c")
    outputs = model.network(**trace.inputs)
    assert float(found(outputs)[0]) == near(float(outputs[0, 1] - outputs[0, 2]))
    with pytest.raises(UserError, match="there is no label 'x': labels are a, b, c"):
        logit_measure(model, trace.inputs, "x")
    with pytest.raises(UserError, match="is of the whole text: leave out the position"):
        logit_measure(model, trace.inputs, position=0)
    model, trace = given("vectors_mean")
    model.is_regression = False
    with pytest.raises(UserError, match="vectors_mean has no logits of tokens or labels"):
        logit_measure(model, trace.inputs)
    model, trace = given("classifier_max")
    model.classes, model.is_regression = (), True
    assert logit_measure(model, trace.inputs).reference.tolist() == [0]
    with pytest.raises(UserError, match="has no logits of tokens or labels"):
        logit_measure(model, trace.inputs, "a")
