"""Attention masks against the rule of each kind."""

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer.nn.masks import Mask, positions_from_mask

CPU = torch.device("cpu")


@settings(max_examples=40)
@given(st.booleans(), st.integers(0, 4), st.integers(0, 99), st.sets(st.sampled_from("kqd")))
def test_the_dense_mask_follows_the_rules(causal: bool, window: int, seed: int, given: set[str]) -> None:
    n_rows, n_queries, n_keys = 2, 3, 5
    generator = torch.Generator().manual_seed(seed)
    keys = torch.rand(n_rows, n_keys, generator=generator) > 0.4
    index = torch.randint(6, (n_rows, n_queries), generator=generator)
    documents = (
        torch.randint(2, (n_rows, n_queries), generator=generator),
        torch.randint(2, (n_rows, n_keys), generator=generator),
    )
    mask = Mask(
        causal,
        window,
        keys if "k" in given else None,
        index if "q" in given else None,
        documents if "d" in given else None,
    )
    dense = mask.dense(n_queries, n_keys).expand(n_rows, 1, n_queries, n_keys)
    for b, t, s in itertools.product(range(n_rows), range(n_queries), range(n_keys)):
        stands_at = int(index[b, t]) if "q" in given else t
        may = True
        may &= not causal or s <= stands_at
        may &= not window or abs(s - stands_at) < window
        may &= "k" not in given or bool(keys[b, s])
        may &= "d" not in given or bool(documents[0][b, t] == documents[1][b, s])
        assert bool(dense[b, 0, t, s]) == may
    assert torch.equal(mask.materialized(n_queries, n_keys, CPU).dense(n_queries, n_keys), mask.dense(3, 5))
    if not mask.may_leave_a_row_empty and not window:
        assert dense.any(-1).all()


def test_only_a_causal_mask_needs_no_matrix() -> None:
    keys = torch.ones(1, 3, dtype=torch.bool)
    assert Mask(causal=True).is_only_causal and Mask().is_trivial
    assert Mask(causal=True).materialized(3, 3, CPU).allowed is None
    assert Mask(causal=True, bias=torch.zeros(1, 1, 3, 3)).materialized(3, 3, CPU).allowed is not None
    others = [
        Mask(causal=True, window=2),
        Mask(causal=True, keys=keys),
        Mask(causal=True, query_index=torch.arange(3)),
        Mask(causal=True, documents=(keys, keys)),
    ]
    for mask in others:
        assert not mask.is_only_causal and not mask.is_trivial
        assert mask.materialized(3, 3, CPU).allowed is not None
    assert not Mask(window=2).is_trivial


def test_positions_count_real_tokens() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 0, 0]]).bool()
    assert positions_from_mask(mask)[0, 2:].tolist() == [0, 1]
    assert positions_from_mask(mask)[1, :3].tolist() == [0, 1, 2]
    assert positions_from_mask(mask).min() == 0


def test_pairs_and_key_positions() -> None:
    """Keys may have any order of positions, and visibility can be given per pair of query and key."""
    where = torch.tensor([[3, 0, 1, 2]])
    query = torch.tensor([[1, 3]])
    pairs = torch.tensor([[[True, True, True, False], [True, False, True, True]]])
    both = Mask(causal=True, window=3, query_index=query, key_index=where, pairs=pairs)
    assert both.dense(2, 4)[0, 0].tolist() == [[False, True, True, False], [True, False, True, True]]
    assert Mask(query_index=query, key_index=where, window=2).dense(2, 4)[0, 0].tolist() == [
        [False, True, True, True],
        [True, False, False, True],
    ]
    for mask in (Mask(pairs=pairs), Mask(causal=True, key_index=where)):
        assert not mask.is_only_causal and not mask.is_trivial
