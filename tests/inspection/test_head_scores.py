"""Scores of heads equal loops over positions, and are 1 for the attention that they describe."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import glassformer
from configs import CONFIGS, random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.inspection.capture import Trace, capture, capture_tensors
from glassformer.inspection.head_scores import (
    MARGIN,
    NAMES,
    PATTERNS,
    LayerScores,
    duplicate_score,
    entropy,
    excess,
    find_heads,
    first_score,
    head_scores,
    induction_ids,
    induction_ids_of,
    induction_score,
    mean_scores,
    network_scores,
    previous_score,
    random_length,
    ranked_heads,
    score_numbers,
    trace_scores,
    uniform_attention,
)
from glassformer.models.build import build_model
from glassformer.tasks.reporting import Outcome
from tolerances import assert_close, near

IDS = [3, 4, 3, 3, 5, 4, 3, 5]


def weights_of(n: int, is_causal: bool, *shape: int) -> Tensor:
    scores = torch.randn(*shape, n, n)
    return scores.masked_fill(torch.ones(n, n).triu(1).bool() if is_causal else torch.zeros(n, n).bool(), -1e9).softmax(
        -1
    )


def trace_of(network: Any, **inputs: Tensor) -> Trace:
    return Trace(capture_tensors(network, inputs), inputs, [], [], [])


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("ids", [IDS, [3, 3, 3, 3, 3, 3, 3, 3], [1, 2, 3, 4, 5, 6, 7, 7], [1, 2, 3, 4, 5, 6, 7, 8]])
def test_scores_equal_loops_over_positions(is_causal: bool, ids: list[int]) -> None:
    w = weights_of(8, is_causal)
    found = {name: float(x) for name, x in head_scores(w, ids).items()}
    induction, duplicate = [], []
    for t, token in enumerate(ids):
        before = [j for j in range(t) if ids[j] == token]
        if before:
            duplicate.append(sum(float(w[t, j]) for j in before))
        followed = [j for j in before if j + 1 < t]
        if followed:
            induction.append(float(w[t, max(followed) + 1]))
    expected = {
        "previous": mean([float(w[t, t - 1]) for t in range(1, 8)]),
        "induction": mean(induction),
        "duplicate": mean(duplicate),
        "first": mean([float(w[t, 0]) for t in range(1, 8)]),
        "entropy": mean([-sum(float(x) * math.log(x) for x in row if x > 0) for row in w]),
        "sharpness": mean([float(row.max()) for row in w]),
    }
    assert list(found) == list(expected) == list(NAMES)
    assert found == near(expected, nan_ok=True)


def test_each_score_is_one_for_its_attention() -> None:
    ids = induction_ids(50, 6)
    n = len(ids)
    heads = torch.zeros(4, n, n)
    rows = torch.arange(n)
    heads[0, rows, (rows - 1).clamp(min=0)] = 1.0
    heads[1, rows, 0] = 1.0
    heads[2, rows, torch.where(rows < 6, rows, rows - 6)] = 1.0
    heads[3, rows, torch.where(rows < 6, rows, rows - 5)] = 1.0
    assert previous_score(heads)[0] == first_score(heads)[1] == 1
    assert duplicate_score(heads, ids)[2] == induction_score(heads, ids)[3] == 1
    assert duplicate_score(heads, ids)[3] == induction_score(heads, ids)[2] == 0
    assert not entropy(heads).any()


def test_rows_of_zeros_have_no_entropy() -> None:
    w = weights_of(5, True, 2, 3)
    zeroed = torch.cat((w, torch.zeros(2, 3, 4, 5)), dim=2)
    assert_close(entropy(zeroed), entropy(w))
    assert bool(entropy(torch.zeros(2, 2)).isnan())
    assert_close(entropy(torch.full((7, 4), 0.25)), torch.tensor(math.log(4)))


def test_a_batch_of_layers_and_heads_has_the_scores_of_each() -> None:
    w = weights_of(8, True, 2, 3)
    together = head_scores(w, IDS)
    for name, values in together.items():
        for layer in range(2):
            for head in range(3):
                assert_close(values[layer, head], head_scores(w[layer, head], IDS)[name])
    with pytest.raises(ValueError, match="ids: expected 8 × 8 weights to match 7 ids"):
        head_scores(w, IDS[:7])


@pytest.mark.parametrize("name", ["gpt", "bert", "unequal_stacks", "bahdanau", "sutskever"])
def test_the_scores_of_a_trace(name: str) -> None:
    network = random_model(name)
    inputs = random_inputs(network, 1)
    trace = trace_of(network, token_ids=inputs.token_ids, **inputs.others)
    found = trace_scores(trace)
    shapes = {kind: {n: tuple(x.shape) for n, x in scores.items()} for kind, scores in found.items()}
    full = dict.fromkeys(NAMES, (2, 4))
    crossed = ["entropy", "sharpness"]
    assert (
        shapes
        == {
            "gpt": {"decoder": full},
            "bert": {"encoder": full},
            "unequal_stacks": {
                "encoder": dict.fromkeys(NAMES, (1, 2)),
                "decoder": full,
                "cross": dict.fromkeys(crossed, (2, 4)),
            },
            "bahdanau": {"cross": dict.fromkeys(crossed, (1, 1))},
            "sutskever": {},
        }[name]
    )
    if name == "unequal_stacks":
        source = inputs.others["source_ids"][0]
        weights = trace["encoder.blocks.0.self_attn.weights"][0]
        expected = induction_score(weights, source)
        assert_close(found["encoder"]["induction"][0], expected, equal_nan=True)


def one_layer(weights: Tensor, ids: list[int]) -> LayerScores:
    """Return the scores of hand-made heads (H, T, T), beside those of uniform attention to earlier tokens."""
    uniform = uniform_attention(torch.ones(len(ids), len(ids)).tril() > 0)
    return LayerScores([score_numbers(head, ids) for head in weights], score_numbers(uniform, ids))


def hand_made(ids: list[int]) -> dict[str, Tensor]:
    """Return a perfect head of each pattern, a uniform head and a random one, for ids that repeat their first half."""
    n, rows = len(ids), torch.arange(len(ids))
    heads = {name: torch.zeros(n, n) for name in ("previous", "first", "duplicate", "induction")}
    heads["previous"][rows, (rows - 1).clamp(min=0)] = 1.0
    heads["first"][rows, 0] = 1.0
    heads["duplicate"][rows, torch.where(rows < n // 2, rows, rows - n // 2)] = 1.0
    heads["induction"][rows, torch.where(rows < n // 2, rows, rows - n // 2 + 1)] = 1.0
    heads["uniform"] = uniform_attention(torch.ones(n, n).tril() > 0)
    heads["random"] = weights_of(n, True)
    return heads


def test_uniform_attention_has_an_excess_of_0_and_a_perfect_head_of_1() -> None:
    ids = induction_ids(50, 12)
    heads = hand_made(ids)
    scores = one_layer(torch.stack(list(heads.values())), ids)
    for number, name in enumerate(heads):
        for pattern in PATTERNS:
            found = scores.excess(number, pattern)
            if name == pattern:
                assert found == pytest.approx(1)
            elif name == "uniform":
                assert found == near(0)
            elif name == "random":
                assert abs(found) < MARGIN
    mean_of_uniform = sum(1 / (t + 1) for t in range(1, len(ids))) / (len(ids) - 1)
    assert scores.uniform["previous"] == scores.uniform["first"] == pytest.approx(mean_of_uniform)
    assert scores.uniform["entropy"] == pytest.approx(sum(math.log(t + 1) for t in range(len(ids))) / len(ids))
    assert math.isnan(excess(1.0, 1.0)) and math.isnan(scores.excess(0, "nothing"))


def test_each_perfect_head_is_found_and_no_other_one() -> None:
    ids = induction_ids(50, 12)
    heads = hand_made(ids)
    noise = torch.stack([heads["uniform"], heads["random"]])
    for name in PATTERNS:
        layers = {"decoder": [one_layer(noise, ids), one_layer(torch.stack([heads["uniform"], heads[name]]), ids)]}
        found = ranked_heads(layers, layers)
        assert [pattern for pattern, heads in found.items() for head in heads if head.is_found] == [name]
        first = found[name][0]
        assert first[:3] == ("decoder", 1, 1) and first.score == pytest.approx(1)
        assert len(found[name]) == (2 if name == "induction" else 4), "all heads that can show the pattern"
        on_noise = ranked_heads(layers, {"decoder": [one_layer(noise, ids)] * 2})[name]
        assert not any(head.is_found for head in on_noise), "not on random tokens"
        assert [head[:3] for head in on_noise if head.is_on_one] == [("decoder", 1, 1)], "on the text only"


def test_heads_are_ranked_by_their_smaller_excess() -> None:
    ids = induction_ids(50, 12)
    heads = hand_made(ids)
    mixed = [share * heads["previous"] + (1 - share) * heads["uniform"] for share in (0.3, 1.0, 0.6, 0.1)]
    layers = {"decoder": [one_layer(torch.stack(mixed), ids)]}
    ranked = ranked_heads(layers, layers)["previous"]
    assert [head.head for head in ranked] == [1, 2, 0, 3]
    assert [head.is_found for head in ranked] == [True, True, True, False]


def test_an_induction_head_needs_more_than_one_block() -> None:
    ids = induction_ids(50, 12)
    layer = one_layer(hand_made(ids)["induction"][None], ids)
    assert "induction" not in ranked_heads({"decoder": [layer]}, {"decoder": [layer]})
    both = {"decoder": [layer, one_layer(hand_made(ids)["uniform"][None], ids)]}
    assert not ranked_heads(both, both)["induction"][0].is_found


def test_a_window_belongs_to_the_baseline() -> None:
    """A head of a window of 2 tokens gives half of its weight to the previous token by its mask alone."""
    allowed = torch.ones(9, 9).tril().triu(-1) > 0
    weights = uniform_attention(allowed)
    scores = LayerScores([score_numbers(weights, range(9))], score_numbers(uniform_attention(allowed), range(9)))
    assert scores.heads[0]["previous"] == 0.5 and scores.excess(0, "previous") == 0


@pytest.mark.parametrize(("seed", "name"), list(enumerate(CONFIGS)))
def test_models_with_random_initial_weights_have_no_head_found(seed: int, name: str) -> None:
    config = CONFIGS[name]
    limits = [config.vocab_size, config.max_len]
    if config.is_encoder_decoder:
        limits += [config.source_vocab_size or config.vocab_size, config.encoder_max_len]
    torch.manual_seed(seed)
    network = build_model(config).eval()

    def inputs(ids: list[int]) -> dict[str, Tensor]:
        sides = ("token_ids", "source_ids")[: 1 + config.is_encoder_decoder]
        return dict.fromkeys(sides, torch.tensor([ids]))

    n = min(limits) // 2 - 1
    random = mean_scores([network_scores(network, inputs(induction_ids(min(limits), n, i))) for i in range(4)])
    text = torch.randint(min(limits), (n,), generator=torch.Generator().manual_seed(seed)).tolist()
    for heads in ranked_heads(network_scores(network, inputs(text)), random).values():
        assert not any(head.is_found for head in heads), heads


def test_the_heads_of_a_model(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    found = find_heads(model, "abc de fgh")
    trace = capture(model, "abc de fgh")
    scores = trace_scores(trace)["decoder"]
    assert list(found) == list(PATTERNS) and random_length(model) == 15
    for name, head in ((name, head) for name, heads in found.items() for head in heads):
        assert not head.is_found and head.kind == "decoder"
        assert head.score == near(float(scores[name][head.layer, head.head]), nan_ok=True)


def test_the_repeated_random_ids() -> None:
    ids = induction_ids(range(3, 100), 20, seed=3, start=[0])
    assert ids[0] == 0 and ids[1:21] == ids[21:] and len(set(ids[1:21])) == 20 and min(ids[1:]) > 2
    assert ids == induction_ids(range(3, 100), 20, seed=3, start=[0])
    assert ids != induction_ids(range(3, 100), 20, seed=4, start=[0])
    assert sorted(induction_ids([7, 9], 2)) == [7, 7, 9, 9]
    for n in (0, 8):
        with pytest.raises(UserError, match=f"n is {n} and must be from 1 to 7"):
            induction_ids(7, n)


def test_the_repeated_random_ids_of_a_model(trained: Outcome) -> None:
    model = glassformer.load(trained.folder)
    ids = induction_ids_of(model, 10)
    assert len(ids) == 20 and not set(ids) & {model.tokenizer.vocab[t] for t in model.tokenizer.special_tokens}
    trace = capture(model, ids)
    assert trace.inputs["token_ids"].tolist() == [ids]


def test_an_induction_head_by_construction() -> None:
    """Two layers of one head with hand-written weights: previous token, then prefix matching (Olsson 2022)."""
    n_ids, n = 12, 6
    onehot = torch.eye(n_ids)
    ids = torch.tensor(induction_ids(n_ids, n))
    previous = torch.zeros(2 * n, 2 * n)
    previous[torch.arange(1, 2 * n), torch.arange(2 * n - 1)] = 1.0
    before = previous @ onehot[ids]  # layer 0 writes the previous token to another subspace
    scores = (onehot[ids] @ before.T) * 50  # layer 1: query is the token, key the token before the key position
    w = scores.masked_fill(torch.ones(2 * n, 2 * n).triu(1).bool(), -1e9).softmax(-1)
    assert float(induction_score(w, ids)) == near(1.0)
    assert float(previous_score(w)) < 0.2
