"""The classical mistakes of attention and of models, by their numbers in `docs/pitfalls.md`."""

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from configs import (
    BERT,
    CONFIGS,
    GPT,
    LLAMA,
    PAPER,
    RECURRENT,
    SEQ2SEQ,
    Recorder,
    random_ids,
    random_inputs,
    random_model,
)
from glassformer.common.errors import UserError
from glassformer.config.recurrent import NoAttention
from glassformer.config.run import BeamConfig
from glassformer.config.transformer import LearnedPositions, SinusoidalPositions, Stack, TransformerConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.score import forced_scores
from glassformer.inference.search import Search, length_penalty
from glassformer.models import init
from glassformer.models.build import build_model
from glassformer.nn.attention import HeadSizes, MultiHeadAttention, attention_fused, attention_reference
from glassformer.nn.layers import LayerNorm
from glassformer.nn.masks import Mask
from glassformer.nn.positions import sinusoid
from tolerances import F64, assert_close, near, sampled, sampled_mean

PATHS = pytest.mark.parametrize("fused", [True, False])


def attend(fused: bool, query: Tensor, key: Tensor, value: Tensor, mask: Mask, scale: float = 1.0) -> Tensor:
    if fused:
        return attention_fused(query, key, value, mask, scale=scale)
    return attention_reference(query, key, value, mask, scale=scale)[0]


@PATHS
def test_pitfall_01_a_score_of_exactly_zero_is_not_masked(fused: bool) -> None:
    """All scores are zero: every visible key has an equal weight."""
    zero, value = torch.zeros(1, 1, 4, 2), torch.arange(4.0)[None, None, :, None]
    context = attend(fused, zero, zero, value, Mask(causal=True))
    assert_close(context.flatten(), torch.tensor([0.0, 0.5, 1.0, 1.5]))


@PATHS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_pitfall_02_no_score_overrides_a_mask(fused: bool, dtype: torch.dtype) -> None:
    """Visible keys score -30000, hidden keys +30000: a finite mask value would be too small, or overflow."""
    query = torch.full((1, 1, 3, 1), 100.0, dtype=dtype)
    key = torch.tensor([-300.0, 300.0, 300.0], dtype=dtype)[None, None, :, None]
    value = torch.tensor([1.0, 7.0, 9.0], dtype=dtype)[None, None, :, None]
    only_first = Mask(keys=torch.tensor([[True, False, False]]))
    assert attend(fused, query, key, value, only_first).flatten().tolist() == [1.0, 1.0, 1.0]
    assert attend(fused, query, key, value, Mask(causal=True))[0, 0, 0].item() == 1.0


@PATHS
def test_pitfall_03_padding_combines_with_causality(fused: bool) -> None:
    """Compare weights with the causal mask and padding combined; one-hot values make the context the weights."""
    keys = torch.tensor([[True, True, True, False], [False, True, True, True]])
    query, key = torch.randn(2, 1, 4, 3), torch.randn(2, 1, 4, 3)
    weights = attend(fused, query, key, torch.eye(4).expand(2, 1, 4, 4), Mask(causal=True, keys=keys))
    may = torch.ones(4, 4).tril().bool() & keys[:, None, None]
    assert torch.equal(weights > 0, may)


@PATHS
def test_pitfall_04_padding_masks_keys_not_queries(fused: bool) -> None:
    keys = torch.tensor([[True, False]])
    query, key = torch.randn(1, 1, 3, 2), torch.randn(1, 1, 2, 2)
    weights = attend(fused, query, key, torch.eye(2).expand(1, 1, 2, 2), Mask(keys=keys))
    assert weights[0, 0].tolist() == [[1.0, 0.0]] * 3  # a padding query still attends to the real key


@PATHS
def test_pitfall_05_a_fully_masked_row_is_zero_with_finite_gradients(fused: bool) -> None:
    keys = torch.tensor([[False, False, False], [True, True, False]])
    leaves = [torch.randn(2, 2, 3, 4, requires_grad=True) for _ in range(3)]
    query, key, value = leaves
    context = attend(fused, query, key, value, Mask(causal=True, keys=keys))
    assert context[0].abs().sum() == 0 and context[1].abs().sum() > 0
    context.square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in leaves)


@pytest.mark.parametrize("name", ["gpt", "bert", "paper", "alibi", "relative", "t5"])
def test_pitfall_05_fully_masked_rows_of_a_model_are_finite(name: str) -> None:
    """One row of only padding, in source and target: finite logits and gradients, other rows unchanged."""
    model = random_model(name)
    inputs = random_inputs(model)
    mask = torch.ones_like(inputs.token_ids, dtype=torch.bool)
    mask[1] = False
    others = dict(inputs.others)
    if "source_ids" in others:
        others["source_attention_mask"] = torch.ones_like(others["source_ids"], dtype=torch.bool)
        others["source_attention_mask"][1] = False
    logits = model(inputs.token_ids, mask, **others)
    assert logits.isfinite().all()
    assert_close(logits[:1], model(inputs.token_ids[:1], **inputs.rows(slice(1)).others))
    logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@PATHS
def test_pitfall_06_true_means_may_attend(fused: bool) -> None:
    value = torch.tensor([3.0, 5.0])[None, None, :, None]
    zero = torch.zeros(1, 1, 2, 1)
    context = attend(fused, zero, zero, value, Mask(keys=torch.tensor([[False, True]])))
    assert context.flatten().tolist() == [5.0, 5.0]


@pytest.mark.parametrize("d_head", [None, 9])
def test_pitfall_07_scores_are_scaled_by_the_head_width(d_head: int | None) -> None:
    attention, tap = MultiHeadAttention(16, 4, sizes=HeadSizes(d_head=d_head)), Recorder()
    attention(torch.randn(1, 5, 16), tap=tap)
    raw = tap.seen["query"] @ tap.seen["key"].mT
    assert_close(tap.seen["scores"], raw / (d_head or 4) ** 0.5)


@pytest.mark.parametrize("name", ["paper", *RECURRENT])
@pytest.mark.parametrize(("n_target", "n_source"), [(1, 7), (7, 1), (3, 5)])
def test_pitfall_08_source_and_target_may_differ_in_length(name: str, n_target: int, n_source: int) -> None:
    """Later target tokens and other rows do not change what a position reads from the source."""
    model = random_model(name)
    inputs = random_inputs(model, 2, n_target, n_source)
    logits = model(inputs.token_ids, **inputs.others)
    assert logits.shape == (2, n_target, 19)
    for row in range(2):
        alone = inputs.rows(slice(row, row + 1))
        for t in range(n_target):
            one = model(alone.token_ids[:, : t + 1], **alone.others)
            assert_close(one[0, t], logits[row, t])


def test_pitfall_09_every_mask_argument_changes_the_logits() -> None:
    """Every mask argument changes the logits, in every kind of model that takes it."""
    for name in ("gpt", "bert", "paper"):
        model = random_model(name)
        inputs = random_inputs(model)
        token_ids, others = inputs.token_ids, inputs.others
        plain = model(token_ids, **others)[:, -1]
        mask = torch.arange(9)[None] > torch.tensor([[1], [3]])
        documents = (torch.arange(9) > 4).long().expand(2, 9)
        changes = [{"attention_mask": mask}, {"document_ids": documents}, {"positions": torch.arange(9) + 3}]
        if name == "paper":
            changes.append({"source_attention_mask": torch.arange(7)[None] > torch.tensor([[1], [3]])})
        for change in changes:
            altered = model(token_ids, **(others | change))[:, -1]
            assert (altered - plain).abs().amin(dim=0).max() > 1e-6, (name, change)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["window", "fused_qkv", "relative", "alibi_window", "unequal_stacks"])
def test_pitfall_10_the_fused_path_keeps_window_mask_and_scale(name: str, training: bool) -> None:
    """Compare the reference path (with a tap) and the fused path, with padding on the left."""
    model = random_model(name).train(training)
    inputs = random_inputs(model)
    mask = torch.arange(9)[None] > torch.tensor([[-1], [3]])
    fused, in_the_open = (model(inputs.token_ids, mask, **inputs.others, tap=tap) for tap in (None, Recorder()))
    assert_close(fused, in_the_open)


@PATHS
def test_pitfall_10_the_fused_path_applies_dropout(fused: bool) -> None:
    """With values of 1, a context entry is a sum of kept weights / (1 - p): mean 1, with variance from dropout."""
    zero, one = torch.zeros(4, 4, 64, 2), torch.ones(4, 4, 64, 1)
    path = attention_fused if fused else lambda *a, **k: attention_reference(*a, **k)[0]
    context = path(zero, zero, one, Mask(), dropout=0.5)
    assert context.mean().item() == sampled_mean(1, context.numel(), 1 / 8)
    assert context.std().item() == sampled((1 / 64) ** 0.5, context.numel())  # √(p / (1-p) / 64)


def test_pitfall_11_computed_positions_have_no_limit_or_parameters() -> None:
    """They work far beyond max_len, on the device of the input, without parameters or buffers on another device."""
    for name in ("paper", "llama", "alibi", "no_positions", "relative"):
        config = CONFIGS[name]
        assert config.max_len == 24
        model = build_model(config)
        inputs = random_inputs(model, 1, 60)
        assert model(inputs.token_ids, **inputs.others).isfinite().all()
        fixed = {"paper": "sinus", "llama": "rotary", "alibi": "slopes"}.get(name, "none")
        assert not any(fixed in parameter for parameter, _ in model.named_parameters())
        assert not any(fixed in key for key in model.state_dict())
        meta = build_model(config, device="meta")
        moved = {k: x.to("meta") for k, x in inputs.others.items()}
        assert meta(inputs.token_ids.to("meta"), **moved).is_meta


def test_pitfall_11_learned_positions_refuse_more_than_max_len() -> None:
    model = random_model("learned_offset")
    assert model(random_ids(19, 1, 24)).isfinite().all()
    with pytest.raises(ValueError, match=r"at most 24 tokens, .*, got 25"):
        model(random_ids(19, 1, 25))
    _, state = model.step(random_ids(19, 1, 24), model.start(1, 30))
    with pytest.raises(ValueError, match=r"at most 24 tokens, .*, got 25"):
        model.step(random_ids(19, 1, 1), state)
    with pytest.raises(ValueError, match=r"at most 30 tokens, .*, got 31"):
        random_model(replace(PAPER, positions=LearnedPositions(), source_max_len=30))(
            random_ids(19, 1, 2), source_ids=random_ids(19, 1, 31)
        )


@pytest.mark.parametrize("norm_order", ["pre", "no_first_norm", "post", "sandwich", "output", "parallel", "shared"])
def test_pitfall_12_the_norm_order_follows_the_configuration(norm_order: str) -> None:
    is_shared = norm_order == "shared"
    orders = {"shared": "parallel_shared", "no_first_norm": "pre"}
    order: Any = orders.get(norm_order, norm_order)
    has_first = norm_order != "no_first_norm"
    model = random_model(replace(GPT, norm_order=order, first_norm=has_first))
    tap = Recorder()
    model(random_ids(19, 2, 5), tap=tap)
    block = model.decoder.blocks[0]
    x = first = tap.seen["decoder.embeddings"]
    for sublayer, name in ((block.self_attn, "self_attn"), (block.ff, "ff")):
        norm, out_norm = getattr(block, f"{name}_norm"), getattr(block, f"{name}_out_norm")

        def run(h: Tensor, sublayer: torch.nn.Module = sublayer, name: str = name) -> Tensor:
            return sublayer(h, mask=Mask(causal=True)) if name == "self_attn" else sublayer(h)

        assert (out_norm is not None) == (norm_order in ("sandwich", "output"))
        if norm_order == "post":
            x = norm(x + run(x))
        elif is_shared:
            assert block.ff_norm is None
            x = x + run(block.self_attn_norm(first))
        elif norm_order == "parallel":
            x = x + run(norm(first))
        elif norm_order == "no_first_norm" and name == "self_attn":
            norms = [each.self_attn_norm for each in model.decoder.blocks]
            assert [isinstance(each, torch.nn.Identity) for each in norms] == [True, False]
            x = x + run(x)
        elif norm_order == "output":
            assert norm is None
            x = x + out_norm(run(x))
        else:
            x = x + (run(norm(x)) if out_norm is None else out_norm(run(norm(x))))
    assert_close(tap.seen["decoder.blocks.0.residual"], x)


@pytest.mark.parametrize("name", [n for n, c in RECURRENT.items() if not isinstance(c.attention, NoAttention)])
def test_pitfall_12_the_recurrent_attention_order_follows_the_configuration(name: str) -> None:
    """The query is the previous state for attention before the step, and the new state for attention after it."""
    model, tap = random_model(name), Recorder()
    inputs = random_inputs(model, n_tokens=6)
    _, state = model.step(inputs.token_ids[:, :5], model.start(2, 6, **inputs.others))
    _, after = model.step(inputs.token_ids[:, 5:], state, tap=tap)
    looks = state if model.config.attention.kind == "before" else after
    context, _ = model.decoder.cross_attn(looks.layers[-1][0][:, None], state.source.memory)
    assert_close(tap.seen["decoder.cross_attn.context"][:, 0], context)


def test_pitfall_13_variance_is_biased_and_eps_inside_the_root() -> None:
    """x = (0, 2): mean 1, biased variance 1; with eps 3 the divisor is √(1 + 3) = 2."""
    assert LayerNorm(2, eps=3.0)(torch.tensor([0.0, 2.0])).tolist() == [-0.5, 0.5]


DROPOUTS = {
    f"{name}_dropout": p
    for name, p in (("embedding", 0.11), ("residual", 0.12), ("attention", 0.13), ("ff", 0.14), ("token", 0.15))
}


@pytest.mark.parametrize("tapped", [False, True])
def test_pitfall_14_each_dropout_acts_once_and_in_training_only(tapped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    dropout, sdpa = F.dropout, F.scaled_dot_product_attention

    def counted(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        calls.append(p if training else 0.0)
        return dropout(x, p, training, inplace)

    def counted_sdpa(*args: Tensor, dropout_p: float = 0.0, **kwargs: object) -> Tensor:
        calls.append(dropout_p)
        return sdpa(*args, dropout_p=dropout_p, **kwargs)

    monkeypatch.setattr(F, "dropout", counted)
    monkeypatch.setattr(F, "scaled_dot_product_attention", counted_sdpa)
    for config, expected in (
        (GPT, {0.11: 1, 0.12: 4, 0.13: 2, 0.14: 2, 0.15: 1}),  # 2 blocks of 2 sublayers
        (PAPER, {0.11: 2, 0.12: 4 + 6, 0.13: 2 + 4, 0.14: 4, 0.15: 2}),
    ):
        model = random_model(replace(config, **DROPOUTS))
        inputs = random_inputs(model)
        for training in (True, False):
            calls.clear()
            model.train(training)(inputs.token_ids, **inputs.others, tap=Recorder() if tapped else None)
            assert {p: calls.count(p) for p in set(calls) if p} == (expected if training else {})


def test_pitfall_14_dropout_keeps_the_mean() -> None:
    model = random_model(replace(GPT, embedding_dropout=0.25, max_len=512)).train()
    token_ids = random_ids(19, 4, 512)
    trained, plain = Recorder(), Recorder()
    model(token_ids, tap=trained)
    model.eval()(token_ids, tap=plain)
    dropped, x = trained.seen["decoder.embeddings"], plain.seen["decoder.embeddings"]
    assert (dropped == 0).double().mean().item() == sampled_mean(0.25, dropped.numel(), 0.25**0.5 * 0.75**0.5)
    assert_close(dropped[dropped != 0], x[dropped != 0] / 0.75)


def test_pitfall_14_evaluation_is_deterministic_and_draws_nothing() -> None:
    model = random_model(replace(GPT, **DROPOUTS))
    token_ids = random_ids(19, 2, 5)
    before = torch.get_rng_state()
    assert torch.equal(model(token_ids), model(token_ids))
    _, state = model.step(token_ids[:, :4], model.start(2, 5))
    assert_close(model.step(token_ids[:, 4:], state)[0], model(token_ids)[:, 4:])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["gpt", "d_embedding", "bert", "bert_narrow_table", "paper", "two_vocabularies"])
def test_pitfall_15_tied_tables_stay_tied(name: str) -> None:
    """After a copy, a cast, a saved state and an optimizer step, one parameter has all its names."""
    fresh = build_model(CONFIGS[name])
    loaded = build_model(CONFIGS[name])
    loaded.load_state_dict(fresh.state_dict())
    for model in (fresh, loaded, copy.deepcopy(fresh), copy.deepcopy(fresh).to(torch.float64)):
        stack = model.decoder or model.encoder
        assert model.output.proj.weight is stack.embeddings.tokens.weight
        if name == "paper":
            assert model.encoder.embeddings.tokens.weight is model.output.proj.weight
        if name == "two_vocabularies":
            assert model.encoder.embeddings.tokens.weight is not model.output.proj.weight
        names = [n for n, _ in model.named_parameters()]
        assert "output.proj.weight" not in names and len(names) == len(set(names))
        inputs = random_inputs(model)
        model(inputs.token_ids, **inputs.others).square().sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        assert torch.equal(model.output.proj.weight, stack.embeddings.tokens.weight)


def test_pitfall_15_tied_tables_are_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Tensor] = []
    for function in ("_draw_table", "_draw_matrix"):
        original = getattr(init, function)
        monkeypatch.setattr(init, function, lambda w, *a, f=original, **k: (drawn.append(w), f(w, *a, **k)))
    model = build_model(PAPER)
    assert sum(x is model.output.proj.weight for x in drawn) == 1


def test_pitfall_16_widths_that_do_not_divide_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="7"):
        sinusoid(torch.arange(3), 7)
    with pytest.raises(UserError, match="15"):
        TransformerConfig(decoder=Stack(1, 3), d_model=15, vocab_size=9, positions=SinusoidalPositions())
    for numbers, kwargs in (((16, 3), {}), ((4, 3), {"n_kv_heads": 3})):
        n_heads = 4 if kwargs else 3
        pattern = ".*".join(re.escape(str(n)) for n in numbers)
        with pytest.raises(ValueError, match=pattern):
            MultiHeadAttention(16, n_heads, sizes=HeadSizes(**kwargs))
        with pytest.raises(UserError, match=pattern):
            TransformerConfig(decoder=Stack(1, n_heads, **kwargs), d_model=16, vocab_size=9)


def test_pitfall_30_logits_and_tables_have_the_vocabularys_size() -> None:
    for config in (GPT, LLAMA, BERT, CONFIGS["two_vocabularies"]):
        model = build_model(config)
        inputs = random_inputs(model)
        assert model(inputs.token_ids, **inputs.others).shape[-1] == config.vocab_size
        with pytest.raises(ValueError, match="expected ids from 0 to"):
            model(inputs.token_ids + config.vocab_size, **inputs.others)
    source = random_ids(19, 1, 4) % 13
    assert random_model("two_vocabularies")(source, source_ids=source).isfinite().all()
    with pytest.raises(ValueError, match="expected ids from 0 to 12"):  # 13 source tokens, 19 target tokens
        random_model("two_vocabularies")(source, source_ids=source + 13)


@pytest.mark.parametrize("config", [GPT, BERT, CONFIGS["tagger"]])
def test_pitfall_30_a_model_without_a_vocabulary_is_refused(config: TransformerConfig) -> None:
    with pytest.raises(UserError, match="vocab_size"):
        build_model(replace(config, vocab_size=0))


@pytest.mark.parametrize(("number", "name"), list(enumerate(SEQ2SEQ)))
def test_pitfall_35_finished_hypotheses_are_never_extended(number: int, name: str) -> None:
    """An end token is only ever the last token of a hypothesis, and is never fed back to the model."""
    model, fed, end = random_model(SEQ2SEQ[name]), [], 4 + number % 4
    step = model.step
    model.step = lambda ids, *rest: (fed.append(ids), step(ids, *rest))[1]
    source_ids = random_ids(13, 4, 5)
    search = Search(BeamConfig(5, 0.0, max_new_tokens=12), 1, end, 24, n_best=5)
    found = beam_search(model, (source_ids, None), search)
    assert not (torch.cat([ids.flatten() for ids in fed]) == end).any()
    for hypothesis in (h for row in found for h in row):
        assert end not in hypothesis.ids[:-1]
        assert hypothesis.ended == (hypothesis.ids[-1] == end)


@pytest.mark.parametrize("length_penalty_type", ["gnmt", "average"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, -0.5])
def test_pitfall_35_the_length_penalty_is_applied_once(penalty: float, length_penalty_type: str) -> None:
    """The score of each hypothesis is log p from forced decoding, divided by one penalty."""
    model = random_model("paper")
    source_ids = random_ids(19, 6, 5)
    config = BeamConfig(5, penalty, length_penalty_type, max_new_tokens=12)
    found = beam_search(model, (source_ids, None), Search(config, 1, 6, 24, n_best=5))
    sources = [source for source, row in zip(source_ids.tolist(), found, strict=True) for _ in row]
    hypotheses = [h for row in found for h in row]
    assert len({len(h.ids) for h in hypotheses if h.ended}) > 2
    scores = forced_scores(model, sources, [h.ids for h in hypotheses], start_id=1)
    for h, forced in zip(hypotheses, scores, strict=True):
        n = len(h.ids)
        once = ((5 + n) / 6) ** penalty if length_penalty_type == "gnmt" else n**penalty
        assert h.score == near(sum(forced) / once, dtype=F64)
        assert length_penalty(n, config) == pytest.approx(once)
    for row in found:
        ended = [h.score for h in row if h.ended]
        assert ended == sorted(ended, reverse=True)
