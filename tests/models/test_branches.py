"""Rows that branch: for every order of branches, a row's logits equal a forward pass over its own past."""

import random

import pytest
import torch
from torch import Tensor

from configs import CROSS, GENERATORS, SEQ2SEQ, random_ids, random_model
from glassformer.data.batching import padded
from glassformer.models.branches import Branches
from glassformer.nn.kv_cache import LayerCache
from tolerances import assert_close

CPU = torch.device("cpu")
LENGTHS = (3, 1, 5)  # lengths before the rows branch
EVERY = {name: name for name in GENERATORS} | {"alibi_source": SEQ2SEQ["alibi_source"]}


WITHOUT_BRANCHES = ["gpt", "llama", "alibi_window", "relative", "paper", "unequal_stacks"]


@pytest.mark.parametrize(("name", "width"), [*((name, 4) for name in EVERY), *((name, 1) for name in WITHOUT_BRANCHES)])
def test_every_row_has_its_own_past(name: str, width: int) -> None:
    """Rows are expanded, reordered, mixed with neighbouring groups and dropped; groups end; buffers are compacted."""
    model, draw = random_model(EVERY[name]), random.Random(width)
    source: dict[str, Tensor] = {}
    if model.encoder is not None:
        source["source_ids"] = random_ids(13, 3, 6, seed=2)
        source["source_attention_mask"] = torch.arange(6) < torch.tensor([6, 3, 5])[:, None]
    tokens = random_ids(model.config.vocab_size, 3, 5)
    mask = torch.arange(5) < torch.tensor(LENGTHS)[:, None]
    pasts = [tokens[group, :n].tolist() for group, n in enumerate(LENGTHS)]
    owners = [0, 1, 2]
    with torch.inference_mode():
        _, state = model.step(tokens, model.start(3, 20, **source), mask)
        state = state.branched()
        n_compacted = 0
        for step in range(14):
            rows = [
                row
                for group in range(3)
                if group != 1 or step < 8
                for row in draw.choices(
                    [r for r, owner in enumerate(owners) if owner == group], k=draw.randint(1, width)
                )
            ]
            if step % 5 == 3:
                draw.shuffle(rows)
            new = random_ids(model.config.vocab_size, len(rows), 1, seed=step)
            owners, pasts = [owners[r] for r in rows], [[*pasts[r], int(t)] for r, t in zip(rows, new, strict=True)]
            assert state.branches is not None
            n_slots = state.branches.n_slots
            state = state.select(torch.tensor(rows))
            assert state.branches is not None
            n_compacted += state.branches.n_slots < n_slots
            logits, state = model.step(new, state)
            assert state.lengths.tolist() == [len(past) for past in pasts]
            ids, real = padded(pasts, CPU)
            whole = model(ids, real, **{key: x[owners] for key, x in source.items()})
            expected = whole[torch.arange(len(pasts)), state.lengths - 1]
            assert_close(logits[:, 0], expected)
    assert n_compacted == 0 if width == 1 else n_compacted > 0


def test_the_tested_models_cover_both_kinds() -> None:
    assert set(CROSS) < set(EVERY) and "gpt" in EVERY


def test_a_grid_folds_and_unfolds_rows() -> None:
    seen, positions = torch.ones(4, 1, dtype=torch.bool), torch.zeros(3, 1)
    full, ragged = Branches.of([0, 0, 1, 1], seen, positions[:2]), Branches.of([2, 0, 2], seen[:3], positions)
    assert full.rows is None and ragged.rows is not None
    x = torch.arange(12.0).view(4, 1, 3)
    assert torch.equal(full.fold(x), x.view(2, 2, 3)) and torch.equal(full.unfold(full.fold(x)), x)
    folded = ragged.fold(x[:3])
    assert folded.tolist() == [[[3, 4, 5], [3, 4, 5]], [[0, 1, 2], [0, 1, 2]], [[0, 1, 2], [6, 7, 8]]]
    assert torch.equal(ragged.unfold(folded), x[:3])


def test_compacting_keeps_the_order_of_every_past() -> None:
    """Compare a row's slots before and after; group 0 ends, and most slots of group 1 are released."""
    branches, lengths = Branches.at(torch.tensor([2, 1, 2]), 2), torch.tensor([2, 1, 2])
    for _ in range(4):
        branches, _ = branches.select(torch.arange(len(lengths)).repeat_interleave(1 if len(lengths) == 9 else 3))
        lengths = torch.tensor([2, 2, 2, 1, 1, 1, 2, 2, 2]) if len(lengths) == 3 else lengths + 1
        branches = branches.grown(lengths)
    n_slots = branches.n_slots
    buffer = torch.randn(3, 2, n_slots + 3, 4)
    rows = torch.tensor([7, 3, 7])
    before = [buffer[branches.groups[row]][:, : branches.n_slots][:, branches.seen[row]] for row in rows.tolist()]
    positions = [branches.positions[branches.groups[row]][branches.seen[row]] for row in rows.tolist()]
    compact, kept = branches.select(rows)
    assert kept is not None and kept[0].tolist() == [1, 2] and compact.groups == [1, 0, 1]
    moved = LayerCache(buffer, buffer.clone()).compacted(*kept).keys
    assert moved.shape == (2, 2, n_slots + 3, 4) and compact.n_slots == 6  # 2 tokens at first and 4 later
    for row, group in enumerate(compact.groups):
        assert torch.equal(moved[group][:, : compact.n_slots][:, compact.seen[row]], before[row])
        assert torch.equal(compact.positions[group][compact.seen[row]], positions[row])


def test_a_branched_state_takes_one_token_per_row() -> None:
    model = random_model("paper")
    with torch.inference_mode():
        state = model.start(2, 9, random_ids(19, 2, 4)).branched()
        with pytest.raises(ValueError, match="one token per row"):
            model.step(random_ids(19, 2, 2), state)


def test_the_memory_of_branches_depends_on_filled_slots_not_on_max_len() -> None:
    model, n_steps = random_model("paper"), 12
    with torch.inference_mode():
        source = {"source_ids": random_ids(13, 2, 4), "source_attention_mask": None}
        _, state = model.step(random_ids(19, 2, 3), model.start(2, 1_000_000_000, **source))
        state = state.branched().select(torch.arange(2).repeat_interleave(3))
        for step in range(n_steps):
            _, state = model.step(random_ids(19, 6, 1, seed=step), state)
    assert state.branches is not None and state.branches.n_slots == 3 + 3 * n_steps
    assert 3 + 3 * n_steps < state.layers[0].n_slots <= 2 * (3 + 3 * n_steps)
