"""Attention of one state over a memory: scores by their formulas, masks, taps and widths."""

import math

import pytest
import torch
from torch import Tensor

from configs import Recorder, randomise
from glassformer.nn.recurrence import SingleHeadAttention
from tolerances import assert_close

B, T, S, D_QUERY, D_MEMORY, A = 3, 4, 5, 6, 8, 7
MASK = torch.tensor([[True] * S, [False, True, False, True, True], [False] * S])
SCORES = {"additive": A, "dot": None, "general": None, "scaled_dot": A}


def made(score: str) -> tuple[SingleHeadAttention, Tensor, Tensor]:
    """Return the module with random parameters, queries (B, T, ·) and a memory (B, S, D_MEMORY)."""
    d_query = D_MEMORY if score == "dot" else D_QUERY
    attention = SingleHeadAttention(d_query, D_MEMORY, SCORES[score], score).double()
    randomise(attention)
    generator = torch.Generator().manual_seed(1)
    query, memory = (torch.randn(B, *s, generator=generator).double() for s in ((T, d_query), (S, D_MEMORY)))
    return attention, query.requires_grad_(), memory.requires_grad_()


def by_hand(attention: SingleHeadAttention, score: str, h: Tensor, memory: Tensor, real: Tensor) -> Tensor:
    """Compute the context of one state (·,) over the real rows of a memory (S, D_MEMORY), position by position."""
    p = dict(attention.named_parameters())
    scores, values = [], []
    for s in memory[real]:
        match score:
            case "additive":
                scores.append(p["vector"] @ torch.tanh(p["q_proj.weight"] @ h + p["k_proj.weight"] @ s))
            case "dot":
                scores.append(h @ s)
            case "general":
                scores.append(h @ p["k_proj.weight"] @ s)
            case "scaled_dot":
                scores.append((p["q_proj.weight"] @ h) @ (p["k_proj.weight"] @ s) / math.sqrt(A))
        values.append(p["v_proj.weight"] @ s if score == "scaled_dot" else s)
    if not scores:
        return torch.zeros(attention.d_context, dtype=h.dtype)
    shares = torch.stack(scores).exp() / torch.stack(scores).exp().sum()
    return sum(share * value for share, value in zip(shares, values, strict=True))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("masked", [False, True])
def test_the_context_follows_the_formulas(score: str, masked: bool) -> None:
    attention, query, memory = made(score)
    context, _ = attention(query, attention.project_memory(memory), MASK if masked else None)
    assert context.shape == (B, T, attention.d_context)
    for b in range(B):
        real = MASK[b] if masked else torch.ones(S, dtype=torch.bool)
        for t in range(T):
            assert_close(context[b, t], by_hand(attention, score, query[b, t], memory[b], real))


def test_luongs_concat_equals_the_additive_score() -> None:
    """Compare with vᵀ tanh(W[h; s]), where W = [W₁ W₂]."""
    attention, query, memory = made("additive")
    joined = torch.cat((attention.q_proj.weight, attention.k_proj.weight), dim=1)
    pairs = torch.cat((query[:, :, None].expand(-1, -1, S, -1), memory[:, None].expand(-1, T, -1, -1)), dim=3)
    tap = Recorder()
    attention(query, attention.project_memory(memory), tap=tap)
    assert_close(tap.seen["scores"][:, 0], torch.tanh(pairs @ joined.T) @ attention.vector)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_are_finite_and_reach_all_but_padding(score: str) -> None:
    attention, query, memory = made(score)
    attention(query, memory, MASK)[0].square().sum().backward()
    assert memory.grad is not None and torch.equal(memory.grad.abs().sum(dim=2) > 0, MASK)
    assert query.grad is not None and torch.equal(query.grad.abs().sum(dim=(1, 2)) > 0, MASK.any(dim=1))
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in attention.parameters())


@pytest.mark.parametrize("score", SCORES)
def test_a_tap_receives_one_head_and_its_result_is_used(score: str) -> None:
    attention, query, memory = made(score)
    projected = attention.project_memory(memory)
    values, tap = projected[1], Recorder()
    assert_close([*attention(query, projected, MASK, tap=tap)], [*attention(query, memory, MASK)])
    assert {name: x.shape for name, x in tap.seen.items()} == {
        "scores": (B, 1, T, S),
        "weights": (B, 1, T, S),
        "context": (B, 1, T, attention.d_context),
    }
    sums = tap.seen["weights"].sum(dim=3)
    assert_close(sums, MASK.any(dim=1)[:, None, None].expand(B, 1, T).double())
    assert not tap.seen["weights"].masked_select(~MASK[:, None, None]).any()
    last_only = Recorder({"weights": lambda w: torch.zeros_like(w).index_fill(3, torch.tensor(S - 1), 1.0)})
    assert_close(attention(query, projected, MASK, tap=last_only)[0], values[:, -1:].expand(-1, T, -1))
    evened = Recorder({"scores": torch.zeros_like})
    assert_close(attention(query, projected, tap=evened)[0][:, 0], values.mean(dim=1))
    doubled = Recorder({"context": lambda c: 2 * c})
    assert_close(attention(query, projected, MASK, tap=doubled)[0], 2 * attention(query, memory, MASK)[0])


def test_no_score_overrides_the_mask() -> None:
    """The hidden position scores +30000, the visible one -30000."""
    attention = SingleHeadAttention(1, 1, score="dot")
    memory = torch.tensor([[[-300.0], [300.0]]])
    context, _ = attention(torch.tensor([[[100.0]]]), memory, torch.tensor([[True, False]]))
    assert context.item() == -300.0


def test_widths() -> None:
    with pytest.raises(ValueError, match=r"6 and 8"):
        SingleHeadAttention(D_QUERY, D_MEMORY, score="dot")
    assert SingleHeadAttention(D_QUERY, D_MEMORY, score="additive").vector.shape == (D_QUERY,)
    assert SingleHeadAttention(D_QUERY, D_MEMORY, score="scaled_dot").d_context == D_QUERY
    n_parameters = {s: sum(p.numel() for p in made(s)[0].parameters()) for s in SCORES}
    assert n_parameters == {
        "additive": A * (D_QUERY + D_MEMORY + 1),
        "dot": 0,
        "general": D_QUERY * D_MEMORY,
        "scaled_dot": A * (D_QUERY + 2 * D_MEMORY),
    }
