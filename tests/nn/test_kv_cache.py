"""Buffers of keys and values: the slots of tokens, and the result of select and crop."""

from dataclasses import replace

import pytest
import torch

from configs import random_ids, random_model
from glassformer.models.state import TransformerState
from glassformer.nn import kv_cache
from glassformer.nn.kv_cache import LayerCache, Slots
from tolerances import assert_close

N_ROWS, G, MAX_LEN, K, W = 3, 2, 6, 4, 5


def layer() -> LayerCache:
    return LayerCache(torch.zeros(N_ROWS, G, MAX_LEN + 1, K), torch.zeros(N_ROWS, G, MAX_LEN + 1, W))


def state() -> TransformerState:
    lengths = torch.tensor([2, 4, 1])
    memory = [(torch.randn(N_ROWS, G, 3, K), torch.randn(N_ROWS, G, 3, W))]
    mask = torch.eye(3).bool()
    return TransformerState([layer()], MAX_LEN, lengths, 4, uniform=False, memory=memory, memory_mask=mask)


def test_a_run_of_slots() -> None:
    cache = layer()
    key, value = torch.randn(N_ROWS, G, 2, K), torch.randn(N_ROWS, G, 2, W)
    cache.slots = Slots(0, 2)
    cache.append(key, value)
    cache.slots = Slots(2, 4)
    keys, values = cache.append(key + 1, value + 1)
    assert torch.equal(keys, torch.cat([key, key + 1], 2)) and torch.equal(values, torch.cat([value, value + 1], 2))


def test_a_slot_for_each_token() -> None:
    """Row 0 writes slots 2 and 3; row 1 slot 0, after padding; row 2 slot 5, before padding."""
    cache = layer()
    key, value = torch.randn(N_ROWS, G, 2, K), torch.randn(N_ROWS, G, 2, W)
    cache.slots = Slots(None, 6, torch.tensor([[2, 3], [MAX_LEN, 0], [5, MAX_LEN]]))
    keys, values = cache.append(key, value)
    expected_keys, expected_values = torch.zeros(N_ROWS, G, 6, K), torch.zeros(N_ROWS, G, 6, W)
    for row, slot, token in ((0, 2, 0), (0, 3, 1), (1, 0, 1), (2, 5, 0)):
        expected_keys[row, :, slot] = key[row, :, token]
        expected_values[row, :, slot] = value[row, :, token]
    assert torch.equal(keys, expected_keys) and torch.equal(values, expected_values)


def test_select_copies_the_rows_of_every_buffer() -> None:
    before = state()
    rows = torch.tensor([1, 1, 0, 2])
    after = before.select(rows)
    assert after.lengths.tolist() == [4, 4, 2, 1]
    assert before.memory and after.memory and after.memory_mask is not None and before.memory_mask is not None
    assert torch.equal(after.memory[0][1], before.memory[0][1][rows])
    assert torch.equal(after.memory_mask, before.memory_mask[rows])
    after.layers[0].keys[0] = 7
    assert before.layers[0].keys.abs().sum() == 0 and after.layers[0].keys[1].abs().sum() == 0


def test_buffers_double_when_full_and_keep_their_contents() -> None:
    """Start with two slots; the slot for padding is not copied, and unfilled slots are 0."""
    cache = LayerCache(torch.full((N_ROWS, G, 2, K), torch.nan), torch.full((N_ROWS, G, 2, W), torch.nan))
    grown = TransformerState([cache], 20, torch.zeros(N_ROWS, dtype=torch.long), 0)
    key, value = torch.randn(N_ROWS, G, 20, K), torch.randn(N_ROWS, G, 20, W)
    sizes = []
    for t in range(20):
        grown.make_room(Slots(t, t + 1))
        keys, values = cache.append(key[:, :, t : t + 1], value[:, :, t : t + 1])
        assert torch.equal(keys, key[:, :, : t + 1]) and torch.equal(values, value[:, :, : t + 1])
        sizes.append(cache.n_slots)
        if t:
            assert cache.keys[:, :, t + 1 :].abs().sum() == 0 and cache.values[:, :, t + 1 :].abs().sum() == 0
    assert sizes == [2, 4, 4, *[8] * 4, *[16] * 8, *[21] * 5]


def test_select_copies_only_the_slots_of_its_rows() -> None:
    """The longest row, which has 4 tokens, is left out."""
    before = state()
    before.layers[0].keys[:, :, :4] = torch.randn(N_ROWS, G, 4, K)
    before.layers[0].keys[:, :, 4:] = torch.nan
    rows = torch.tensor([2, 0])
    found = before.select(rows)
    after = found.layers[0].keys
    assert found.longest == 2 and torch.equal(after[:, :, :2], before.layers[0].keys[rows, :, :2])
    assert after.shape == (2, G, MAX_LEN + 1, K) and after[:, :, 2:].abs().sum() == 0


def test_the_memory_of_a_long_row_ends_with_it() -> None:
    lengths = torch.tensor([900, 40, 5])
    cache = LayerCache(torch.ones(N_ROWS, G, 1000, K), torch.ones(N_ROWS, G, 1000, W))
    before = TransformerState([cache], 1000, lengths, 900, uniform=False)
    assert before.select(torch.tensor([1, 2])).layers[0].n_slots == 80
    assert before.select(torch.tensor([2])).layers[0].n_slots == kv_cache.FIRST_SLOTS
    assert before.select(torch.tensor([0, 2])).layers[0].n_slots == 1000


def test_joined_states_copy_only_filled_slots_of_both() -> None:
    first, second = state(), state()
    second.layers[0].grow(20)
    second = replace(second, max_len=19, lengths=torch.tensor([5, 5, 5]), longest=5, uniform=True)
    for part in (first, second):
        for buffer in (part.layers[0].keys, part.layers[0].values):
            buffer[:, :, : part.longest] = torch.randn(N_ROWS, G, part.longest, buffer.shape[3])
            buffer[:, :, part.longest :] = torch.nan
    joined = first.joined(second)
    keys = joined.layers[0].keys
    assert keys.shape == (2 * N_ROWS, G, 20, K) and joined.layers[0].values.shape == (2 * N_ROWS, G, 20, W)
    assert torch.equal(keys[:N_ROWS, :, :4], first.layers[0].keys[:, :, :4]) and keys[:N_ROWS, :, 4:].abs().sum() == 0
    assert torch.equal(keys[N_ROWS:, :, :5], second.layers[0].keys[:, :, :5]) and keys[N_ROWS:, :, 5:].abs().sum() == 0
    assert (joined.max_len, joined.longest, joined.uniform) == (19, 5, False)
    assert joined.lengths.tolist() == [2, 4, 1, 5, 5, 5]


def test_joined_states_are_uniform_if_all_rows_have_the_same_length() -> None:
    one = TransformerState([layer()], MAX_LEN, torch.full((N_ROWS,), 3), 3)
    assert one.joined(one).uniform
    assert not one.joined(replace(one, lengths=torch.full((N_ROWS,), 2), longest=2)).uniform


def test_joined_sources_are_padded_and_masked() -> None:
    first, second = state(), state()
    second = replace(second, memory=[(torch.randn(N_ROWS, G, 5, K), torch.randn(N_ROWS, G, 5, W))], memory_mask=None)
    joined = first.joined(second)
    assert joined.memory is not None and joined.memory_mask is not None and first.memory is not None
    assert torch.equal(joined.memory[0][1][:N_ROWS, :, :3], first.memory[0][1])
    assert joined.memory[0][0].shape == (2 * N_ROWS, G, 5, K)
    assert joined.memory_mask.tolist()[1] == [False, True, False, False, False] and joined.memory_mask[N_ROWS:].all()


def test_a_branched_state_is_not_joined() -> None:
    with pytest.raises(ValueError, match="have not branched"):
        state().joined(state().branched())


def test_a_branching_state_copies_only_filled_slots() -> None:
    branched = state().branched()
    assert branched.layers[0].keys.shape == (N_ROWS, G, 4 + 1, K)
    branched.make_room(Slots(9, 10))  # more than max_len: tokens of several branches
    assert branched.layers[0].values.shape == (N_ROWS, G, 11, W)


def test_a_growing_buffer_drops_the_slot_of_padding() -> None:
    """The slot for padding becomes a token's slot; shorter rows mask it, but NaN times 0 would be NaN."""
    cache = LayerCache(torch.randn(N_ROWS, G, 4, K), torch.randn(N_ROWS, G, 4, W))
    cache.keys[:, :, -1] = cache.values[:, :, -1] = torch.nan
    kept = cache.keys[:, :, :3].clone(), cache.values[:, :, :3].clone()
    cache.grow(8)
    for buffer, before in zip((cache.keys, cache.values), kept, strict=True):
        assert buffer.shape[2] == 8 and torch.equal(buffer[:, :, :3], before) and buffer[:, :, 3:].abs().sum() == 0


@pytest.mark.parametrize("lengths", [[0, 3, 1], [2, 2, 2], [5, 5, 5], [1, 4, 0]])
@pytest.mark.parametrize("name", ["gpt", "llama", "alibi_window", "relative"])
def test_a_cropped_state_gives_the_logits_of_the_remaining_tokens(name: str, lengths: list[int]) -> None:
    """Rows are cropped to equal or other lengths, some to no token, and read one and several tokens."""
    model, tokens = random_model(name), random_ids(19, 3, 5)
    with torch.inference_mode():
        _, cropped = model.step(tokens, model.start(3, 20))
        cropped = cropped.crop(lengths)
        assert cropped.lengths.tolist() == lengths and cropped.uniform == (len(set(lengths)) == 1)
        rows = [tokens[row, :n] for row, n in enumerate(lengths)]
        for n_new in (1, 3, 1):
            new = random_ids(19, 3, n_new, seed=n_new)
            logits, cropped = model.step(new, cropped)
            rows = [torch.cat(pair) for pair in zip(rows, new, strict=True)]
            for row, found in zip(rows, logits, strict=True):
                assert_close(found, model(row[None])[0, -n_new:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("lengths", [[3, 3, 3], [3, 1, 2]])
def test_a_cropped_state_of_half_precision_forgets_its_last_tokens(dtype: torch.dtype, lengths: list[int]) -> None:
    """Keys and values stay in fp32, and the logits are those of a state that never had the tokens, bit for bit."""
    model, tokens = random_model("llama", dtype=dtype), random_ids(19, 3, 5)
    mask = torch.arange(3) < torch.tensor(lengths)[:, None]
    with torch.inference_mode():
        _, state = model.step(tokens[:, :3], model.start(3, 20), mask)
        _, longer = model.step(random_ids(19, 3, 4, seed=1), model.step(tokens[:, :3], model.start(3, 20), mask)[1])
        cropped = longer.crop(lengths)
        assert {layer.keys.dtype for layer in cropped.layers} == {torch.float32}
        expected, found = model.step(tokens[:, 3:], state)[0], model.step(tokens[:, 3:], cropped)[0]
    assert torch.equal(found, expected)  # the same operations with the same shapes


def test_crop_refuses_more_tokens_and_branched_rows() -> None:
    with pytest.raises(ValueError, match="expected at most 4 tokens, got 5"):
        state().crop([2, 5, 1])
    with pytest.raises(ValueError, match="branched rows share their slots"):
        state().branched().crop([1, 1, 1])
