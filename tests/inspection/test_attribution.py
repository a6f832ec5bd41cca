"""The terms of a logit add up to it, equal products of transformers' weights, and show a head that is switched off."""

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from configs import CONFIGS, random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.config.transformer import TokenHead
from glassformer.inspection.ablation import ablate
from glassformer.inspection.attribution import Attribution, Term, attribute, direct_effect
from glassformer.inspection.capture import capture_tensors
from glassformer.models.transforms import convert
from glassformer.nn.layers import FeedForward
from glassformer.tasks.reporting import Outcome
from interop.checkpoints import imported
from tolerances import NETWORK, near, within

ADDITIVE = [
    name
    for name, config in CONFIGS.items()
    if isinstance(config.head, TokenHead) and not config.head.transform and config.norm_order != "post"
    if config.residual_scale == 1 and not config.logit_cap
]
TOKEN, AGAINST = 3, 7


def inputs_of(network: Any) -> dict[str, Any]:
    found = random_inputs(network, 1)
    return {"token_ids": found.token_ids, **found.others}


def values(found: Attribution) -> dict[str, float]:
    return {name: term.value for name, term in found.terms.items()}


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_terms_add_up_to_the_logit_of_the_model(name: str) -> None:
    network = random_model(name)
    inputs = inputs_of(network)
    with torch.no_grad():
        logits = network(**inputs)[0]
    for position in (-1, 2):
        one = attribute(network, inputs, TOKEN, position=position)
        two = attribute(network, inputs, TOKEN, AGAINST, position)
        assert one.logit == near(float(logits[position, TOKEN]), terms=NETWORK)
        assert sum(values(one).values()) == near(one.logit, terms=NETWORK)
        assert two.logit == near(float(logits[position, TOKEN] - logits[position, AGAINST]), terms=NETWORK)
        assert sum(values(two).values()) == near(two.logit, terms=NETWORK)
    stack = network.config.head_stack
    heads = [term for part, term in values(one).items() if ".head." in part]
    assert len(heads) == stack.n_layers * stack.n_heads * (2 if network.config.is_encoder_decoder else 1)
    assert min(abs(term) for term in heads) > 1e-6, "each head writes something"


@pytest.mark.parametrize("name", ADDITIVE)
def test_the_effect_of_a_unit_has_the_terms_of_all_tokens(name: str) -> None:
    """A head has the terms of the attribution. All neurons together have those of the feed-forward without its bias."""
    network = random_model(name)
    stack, blocks = network.config.head_stack_name, getattr(network, network.config.head_stack_name).blocks
    for module in (module for block in blocks for module in (block.ff, block.ff_out_norm) if module is not None):
        bias = getattr(getattr(module, "down_proj", module), "bias", None)
        if bias is not None:
            torch.nn.init.zeros_(bias)
    inputs = inputs_of(network)
    terms = [values(attribute(network, inputs, token, position=2)) for token in (TOKEN, AGAINST)]
    for head in (f"{stack}.1.head.1", "cross.0.head.0")[: 1 + network.config.is_encoder_decoder]:
        effect = direct_effect(network, inputs, head, 2)
        assert effect.shape == (network.config.vocab_size,)
        assert effect[[TOKEN, AGAINST]].tolist() == near([one[head] for one in terms], terms=NETWORK)
    ff = blocks[0].ff
    if isinstance(ff, FeedForward):
        neurons = range(ff.down_proj.in_features)
        total = sum(direct_effect(network, inputs, f"{stack}.0.neuron.{i}", 2) for i in neurons)
        expected = [one[f"{stack}.0.feed_forward"] for one in terms]
        assert total[[TOKEN, AGAINST]].tolist() == near(expected, terms=NETWORK)  # type: ignore[index]
    if network.config.is_encoder_decoder:
        with pytest.raises(UserError, match="writes to the encoder, and the head of the model reads the decoder only"):
            direct_effect(network, inputs, "encoder.0.head.0")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["gpt", "llama", "d_embedding"])
def test_the_terms_of_rounded_weights_add_up_to_the_rounded_logit(name: str, dtype: torch.dtype) -> None:
    network = random_model(name, dtype=torch.float32)
    inputs = inputs_of(network)
    convert(network, dtype)
    found = attribute(network, inputs, TOKEN)
    assert sum(values(found).values()) == within(found.logit, 0.05 * max(map(abs, values(found).values())))
    exact = attribute(random_model(name, dtype=torch.float32), inputs, TOKEN)
    differences = torch.tensor([values(found)[part] - term for part, term in values(exact).items()])
    assert float(differences.abs().max()) < 0.1 * max(map(abs, values(exact).values()))


def test_the_grid_has_every_term_of_a_layer() -> None:
    found = attribute(network := random_model("t5"), inputs_of(network), TOKEN)
    names, rows, columns = found.grid()
    assert rows == ["decoder 0", "cross 0", "decoder 1", "cross 1"]
    assert columns == [*(f"head {i}" for i in range(4)), "bias", "feed-forward"]
    assert names[2][1] == "decoder.1.head.1" and names[1][4:] == ["cross.0.attention_bias", None]
    assert {name for row in names for name in row} - {None} == found.terms.keys() - {"embedding", "output_bias"}
    assert "decoder 1" in found._repr_html_() and "output_bias" in found._repr_html_()


@pytest.mark.parametrize("name", ["gpt", "d_embedding"])
def test_the_baseline_is_the_mean_over_all_tokens(name: str) -> None:
    network = random_model(name)
    inputs = inputs_of(network)
    each = [values(attribute(network, inputs, token)) for token in range(network.config.vocab_size)]
    one, two = attribute(network, inputs, TOKEN), attribute(network, inputs, TOKEN, AGAINST)
    for part, term in one.terms.items():
        of_tokens = torch.tensor([terms[part] for terms in each], dtype=torch.float64)
        assert term.mean == near(float(of_tokens.mean()))
        assert term.deviation == near(float(of_tokens.std(unbiased=False)))
        assert two.terms[part].mean == 0
        assert two.terms[part].deviation == near(2**0.5 * term.deviation)
    assert Term(2.1, 0.0, 1.0).is_beyond and Term(-2.1, 0.0, 1.0).is_beyond and not Term(1.9, 0.0, 1.0).is_beyond


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_head_that_is_off_changes_its_term_and_later_ones_only(name: str) -> None:
    """Earlier vectors are unchanged: their terms change by the scale of the final norm alone."""
    network = random_model(name)
    inputs, part = inputs_of(network), "decoder.1.head.2"

    def terms_and_scale() -> tuple[dict[str, float], float]:
        last = capture_tensors(network, inputs, ["decoder.blocks.1.residual"])["decoder.blocks.1.residual"][0, -1]
        if name == "gpt":
            last = last - last.mean()
        return values(attribute(network, inputs, TOKEN)), float(
            (last.square().mean() + network.config.norm_eps).rsqrt()
        )

    before, scale = terms_and_scale()
    with ablate(network, part):
        after, scale_without = terms_and_scale()
    is_later = False
    for term, value in before.items():
        is_later = is_later or term == part
        expected = value * scale_without / scale
        if term == part and name == "llama":
            assert after[term] == near(0.0) and abs(value) > 1e-3
        elif term == part:
            assert abs(after[term] - expected) > 1e-3
        elif term == "decoder.1.feed_forward":
            assert is_later and abs(after[term] - expected) > 1e-3
        elif term == "output_bias":
            assert after[term] == near(value)
        else:
            assert after[term] == near(expected, terms=NETWORK), term


@torch.no_grad()
def test_the_terms_of_gpt2_of_transformers(tmp_path: Path) -> None:
    """Products of the weights of transformers, with the inputs of its modules from forward hooks."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=290, n_embd=16, n_layer=2, n_head=4, n_positions=40)
    both, ids = imported(transformers.GPT2LMHeadModel(config), tmp_path), torch.randint(290, (1, 9))
    theirs, kept = both.theirs.transformer, dict[str, Any]()
    for name, module in theirs.named_modules():
        module.register_forward_hook(lambda module, args, output, name=name: kept.update({name: (args[0], output)}))
    logit = float(both.theirs(ids).logits[0, -1, TOKEN])
    last, found = kept["ln_f"][0][0, -1], attribute(both.network, {"token_ids": ids}, TOKEN)

    def term(x: torch.Tensor) -> float:
        normed = (x - x.mean()) / torch.sqrt(last.var(unbiased=False) + theirs.ln_f.eps) * theirs.ln_f.weight
        return float(normed @ both.theirs.lm_head.weight[TOKEN])

    expected = {"embedding": term(kept["h.0"][0][0, -1])}
    for i, block in enumerate(theirs.h):
        matrix, bias = block.attn.c_proj.weight, block.attn.c_attn.bias[32:]  # (H · W, D), (H · W,)
        without = kept[f"h.{i}.attn.c_proj"][0][0, -1] - bias
        for head in range(4):
            own = slice(4 * head, 4 * head + 4)
            expected[f"decoder.{i}.head.{head}"] = term(without[own] @ matrix[own])
        expected[f"decoder.{i}.attention_bias"] = term(bias @ matrix + block.attn.c_proj.bias)
        expected[f"decoder.{i}.feed_forward"] = term(kept[f"h.{i}.mlp"][1][0, -1])
    expected["output_bias"] = float(theirs.ln_f.bias @ both.theirs.lm_head.weight[TOKEN])
    assert list(found.terms) == list(expected)
    assert values(found) == near(expected, terms=NETWORK)
    assert sum(expected.values()) == near(logit, terms=NETWORK)


def test_a_model_gives_the_terms_of_its_prediction(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    trace = model.trace("a b c", names=["logits"])
    best = int(trace["logits"][0, -1].argmax())
    token = model.tokenizer.decode([best])
    found = model.logit_attribution("a b c")
    assert found.token == best and found == model.logit_attribution("a b c", token)
    assert sum(values(found).values()) == near(float(trace["logits"][0, -1, best]), terms=NETWORK)
    earlier = model.logit_attribution("a b c", token, position=1)
    assert earlier.logit == near(float(trace["logits"][0, 1, best]), terms=NETWORK)
    for given, message in (
        (("a b c", "zqzq"), r"the answer 'zqzq' has \d tokens"),
        (("a b c", token, token), "both tokens are token"),
    ):
        with pytest.raises(UserError, match=message):
            model.logit_attribution(*given)
    with pytest.raises(UserError, match="the position is 99"):
        model.logit_attribution("a b c", token, position=99)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("post_norm", "this model is post-norm, and its norms mix all parts"),
        ("capped", r"this model bounds its logits \(model.logit_cap\)"),
        ("scaled", "this model multiplies what its parts add by model.residual_scale"),
        ("bert_relative", "the head of this model has a layer with an activation"),
        ("luong", "this model is recurrent and has no residual stream"),
        ("gpt_classifier", "this model predicts labels or vectors"),
    ],
)
def test_models_without_a_sum_are_refused(name: str, message: str) -> None:
    network = random_model(name)
    with pytest.raises(UserError, match=message):
        attribute(network, inputs_of(network), TOKEN)
