"""States after prefixes: the longest known beginning, its limit in bytes, and what is dropped first."""

import random
from typing import Any

import pytest
import torch

from configs import random_ids, random_model
from glassformer.inference.contexts import n_shared
from glassformer.inference.server_engine import MIN_SHARED, PrefixCache, tensors_of
from tolerances import assert_close

MODEL = random_model("llama")


def state_after(ids: tuple[int, ...], model: Any = MODEL) -> Any:
    return model.step(torch.tensor([ids]), model.start(1, 24))[1]


def ids_of(n: int, seed: int = 0, end: tuple[int, ...] = ()) -> tuple[int, ...]:
    return (*random_ids(19, n, seed=seed).tolist(), *end)


def bytes_of(state: Any) -> int:
    return sum(x.untyped_storage().nbytes() for x in tensors_of(state))


def test_the_state_after_the_longest_known_beginning_is_found() -> None:
    cache, beginning = PrefixCache(1 << 20), ids_of(18)
    cache.add((*beginning, 1, 2), state_after((*beginning, 1, 2)))
    cache.add((*beginning, 3), state_after((*beginning, 3)))
    cache.add(ids_of(20, seed=9), state_after(ids_of(20, seed=9)))
    for new, n in (((3, 4, 5), 19), ((1, 2, 3), 20), ((1, 3), 19), ((4,), 18), ((), 17)):
        ids = (*beginning, *new)
        assert cache.n_known(ids) == n, "at least the last id is left"
        found, state = cache.find(ids)
        assert found == n and state.lengths.tolist() == [n]
        logits, _ = MODEL.step(torch.tensor([ids[n:]]), state)
        assert_close(logits[0, -1], MODEL(torch.tensor([ids]))[0, -1])
    assert cache.n_shared_ids == 19 + 20 + 19 + 18 + 17


def test_fewer_shared_ids_are_read_again() -> None:
    cache, beginning = PrefixCache(1 << 20), ids_of(MIN_SHARED - 1)
    cache.add((*beginning, 1), state_after((*beginning, 1)))
    assert cache.find((*beginning, 2, 3)) == (0, None)
    assert cache.find((*beginning, 1)) == (0, None), "the last id must be read"
    assert cache.find((*beginning, 1, 2))[0] == MIN_SHARED
    assert PrefixCache(1 << 20).find(beginning) == (0, None)


def test_a_copy_is_found_and_the_kept_state_stays() -> None:
    cache, ids = PrefixCache(1 << 20), ids_of(18)
    cache.add(ids, state_after(ids))
    expected = MODEL(torch.tensor([[*ids, 4, 5]]))[0, -1]
    for token in (7, 8):
        _, state = cache.find((*ids, token))
        MODEL.step(torch.tensor([[token, token]]), state)
    logits, _ = MODEL.step(torch.tensor([[4, 5]]), cache.find((*ids, 4))[1])
    assert_close(logits[0, -1], expected)


def test_bytes_are_limited_and_what_was_used_last_stays() -> None:
    prefixes = [ids_of(18, seed=seed) for seed in range(4)]
    size = bytes_of(state_after(prefixes[0]))
    cache = PrefixCache(2 * size + 10)
    for prefix in prefixes[:2]:
        cache.add(prefix, state_after(prefix))
    assert cache.n_bytes == 2 * size and len(cache) == 2
    assert cache.n_known((*prefixes[0], 1)) == 18  # a question is no use
    cache.add(prefixes[2], state_after(prefixes[2]))
    assert [cache.n_known((*prefix, 1)) for prefix in prefixes] == [0, 18, 18, 0]
    assert cache.find((*prefixes[1], 1))[0] == 18
    cache.add(prefixes[3], state_after(prefixes[3]))
    assert [cache.n_known((*prefix, 1)) for prefix in prefixes] == [0, 18, 0, 18] and cache.n_bytes == 2 * size


def test_a_state_that_is_too_large_drops_nothing() -> None:
    small, large = ids_of(18), ids_of(18, seed=1)
    state = state_after(small)
    cache = PrefixCache(bytes_of(state))
    cache.add(small, state)
    both = MODEL.step(torch.tensor([large, large]), MODEL.start(2, 24))[1]
    cache.add(large, both)
    assert cache.n_known((*small, 1)) == 18 and len(cache) == 1
    assert PrefixCache(0).add(small, state) is None and PrefixCache(0).find((*small, 1)) == (0, None)


def test_a_longer_prefix_replaces_its_beginnings() -> None:
    cache, ids = PrefixCache(1 << 20), ids_of(22)
    for n in (17, 19, 22, 18, 22):
        cache.add(ids[:n], state_after(ids[:n]))
    assert len(cache) == 1 and cache.n_known((*ids, 1)) == 22 and cache.n_known(ids[:20]) == 19
    assert cache.n_bytes == bytes_of(state_after(ids))


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_beginning_of_many_is_that_of_a_search_through_all(seed: int) -> None:
    draw = random.Random(seed)
    state, cache = state_after(ids_of(24)), PrefixCache(1 << 30)
    stems = [tuple(draw.choices(range(2), k=draw.randint(0, 18))) for _ in range(4)]
    added = []

    def drawn() -> tuple[int, ...]:
        ids = (*draw.choice(stems), *draw.choices(range(3), k=24))
        return ids[: draw.randint(1, 24)]

    for _ in range(60):
        added.append(drawn())
        cache.add(added[-1], state)
        ids = drawn()
        n = min(max(n_shared(ids, one) for one in added), len(ids) - 1)
        assert cache.n_known(ids) == (n if n >= MIN_SHARED else 0)
        assert cache._sorted == sorted(cache._states) and len(cache._sorted) == len({*cache._sorted})
        assert cache.n_bytes == len(cache) * bytes_of(state)


def test_a_state_that_cannot_forget_tokens_is_not_kept() -> None:
    model = random_model("luong")
    state = model.step(torch.tensor([ids_of(18)]), model.start(1, 24, torch.tensor([[1, 2]])))[1]
    cache = PrefixCache(1 << 20)
    cache.add(ids_of(18), state)
    assert len(cache) == 0 and cache.n_bytes == 0
