"""Drafts: greedy ids equal those of one id per step, and sampled ids have the model's distribution."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from configs import CONFIGS, CROSS, GENERATORS, random_model
from glassformer.common.errors import UserError
from glassformer.config.run import GenerationConfig
from glassformer.config.transformer import Stack, TokenHead, TransformerConfig
from glassformer.inference import contexts
from glassformer.inference.constraints import Past
from glassformer.inference.drafts import Draft, DraftCounts, Drafter, ModelDrafter, PromptLookup, verified
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.sampling import Sampler
from glassformer.nn import kv_cache
from tolerances import assert_close

GREEDY = GenerationConfig(max_new_tokens=28, temperature=0.0)
DRAWN = GenerationConfig(max_new_tokens=20, temperature=1.3, top_k=9, top_p=0.95, repetition_penalty=1.2, seed=5)
DECODERS = [name for name in GENERATORS if name not in CROSS and isinstance(CONFIGS[name].head, TokenHead)]
PROMPTS = [[i % 5 for i in range(20)], [3], [1, 2, 1, 2]]
TINY = replace(CONFIGS["llama"], decoder=Stack(1, 2, d_ff=8), d_model=8, vocab_size=6, max_len=12)


def generated(
    model: Any,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    drafter: Drafter | None = None,
    *,
    ends_row: Callable[[int, int], bool] = lambda row, token: False,
    **options: Any,
) -> Iterator[dict[int, int]]:
    """Yield the steps of a generation, in which the caller ends rows by `ends_row(row, id)`."""
    generation = Generation(model, prompts, Settings(config, **{"max_len": 24} | options), drafter=drafter)
    for step in generation:
        yield step
        for row, token in step.items():
            if ends_row(row, token):
                generation.end(row)


def rows_of(steps: Iterable[dict[int, int]]) -> dict[int, list[int]]:
    """Return the ids of every row; check that no row returns after its end."""
    found: dict[int, list[int]] = {}
    before: dict[int, int] = {}
    for step in steps:
        assert not (found.keys() - before.keys()) & step.keys()
        for row, token in step.items():
            found.setdefault(row, []).append(token)
        before = step
    assert list(found) == sorted(found)  # rows begin in order
    return found


def smaller(config: TransformerConfig) -> TransformerConfig:
    assert config.decoder is not None
    return replace(config, decoder=replace(config.decoder, n_layers=1))


def drafters_of(config: TransformerConfig, model: Any) -> list[Drafter]:
    small = random_model(smaller(config)).float()
    return [
        PromptLookup(5),
        ModelDrafter(small, 4, max_len=24),
        ModelDrafter(small, 3, max_len=9),  # a shorter context than the model's
        ModelDrafter(model, 30, max_len=24),
    ]


@pytest.mark.parametrize(("number", "name"), list(enumerate(DECODERS)))
def test_greedy_ids_equal_those_of_one_id_per_step(number: int, name: str) -> None:
    """In fp32, for rows of unequal length that accept different numbers of ids, with end ids and full contexts.

    Each configuration has one of the drafters, with a context that slides or not.
    """
    model = random_model(name).float()
    slide, kind = divmod(number, 4)
    options: dict[str, Any] = {"slide": slide % 2 == 1, "end_ids": [7], "suppress_ids": [2]}
    drafter = drafters_of(CONFIGS[name], model)[kind]
    drafted = list(generated(model, PROMPTS, GREEDY, drafter, **options))
    assert drafted == list(generated(model, PROMPTS, GREEDY, **options))
    assert 0 <= drafter.counts.n_accepted <= drafter.counts.n_drafted > 0
    assert kind < 3 or drafter.counts.acceptance_rate == 1  # the model agrees with itself


@pytest.mark.parametrize("seed", range(12))
def test_greedy_ids_are_equal_for_random_shapes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small first buffers, prompts in parts, a penalty, rows that a caller ends: ids and calls are the same."""
    draw = np.random.default_rng(seed)
    monkeypatch.setattr(kv_cache, "FIRST_SLOTS", int(draw.integers(1, 4)))
    monkeypatch.setattr(contexts, "PREFILL", int(draw.integers(1, 9)))
    max_len, windows = int(draw.integers(8, 30)), tuple(draw.integers(0, 6, size=draw.integers(0, 3)).tolist())
    config = replace(CONFIGS[DECODERS[7 * seed % len(DECODERS)]], max_len=max_len)
    assert config.decoder is not None
    config = replace(config, decoder=replace(config.decoder, window_pattern=windows))
    model, small = random_model(config), random_model(smaller(config))
    slide = bool(draw.integers(2))
    longest = max_len + 5 if slide else max_len
    prompts = [draw.integers(19, size=draw.integers(1, longest + 1)).tolist() for _ in range(draw.integers(1, 5))]
    settings = replace(GREEDY, max_new_tokens=int(draw.integers(1, 2 * max_len)), repetition_penalty=1.3)
    length = int(draw.integers(1, 30))

    def run(drafter: Drafter | None = None) -> tuple[list[dict[int, int]], list[list[int]]]:
        rows: list[list[int]] = [[] for _ in prompts]

        def ends_row(row: int, token: int) -> bool:
            rows[row].append(token)
            return len(rows[row]) == length + 3 * row

        options: dict[str, Any] = {"max_len": max_len, "slide": slide, "end_ids": [5], "ends_row": ends_row}
        return list(generated(model, prompts, settings, drafter, **options)), rows

    expected = run()
    k = int(draw.integers(1, 9))
    assert run(PromptLookup(k)) == expected
    assert run(ModelDrafter(small, k, max_len=int(draw.integers(1, max_len + 1)))) == expected


class Counting:
    """A model that records the shape of each step."""

    def __init__(self, model: Any) -> None:
        self.model, self.shapes = model, list[tuple[int, ...]]()
        self.read = list[tuple[int, ...]]()

    def start(self, *args: Any) -> Any:
        return self.model.start(*args)

    def step(self, token_ids: Tensor, *args: Any) -> Any:
        self.shapes.append(tuple(token_ids.shape))
        return self.model.step(token_ids, *args)


def test_a_step_reads_the_last_id_and_the_draft() -> None:
    """A drafter that is always right: after the prompt, each step of the model and each draft reads only new ids."""
    model, small = Counting(random_model("gpt")), Counting(random_model("gpt"))
    drafter = ModelDrafter(small, 3, max_len=24)
    steps = list(generated(model, [[1, 2, 3]], replace(GREEDY, max_new_tokens=10), drafter))
    assert len(steps) == 10
    assert model.shapes == [(1, 2), (1, 4), (1, 4), (1, 2)]  # ids 1 to 4, 5 to 8, and a draft of the last but one
    assert small.shapes == [(1, 2), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1), (1, 1)]
    assert (drafter.counts.n_drafted, drafter.counts.n_accepted) == (7, 7)
    assert str(drafter.counts) == "accepted 7 of 7 drafted tokens (100%)"


class Scripted:
    """A generator whose `random` returns the given numbers."""

    def __init__(self, *numbers: float) -> None:
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


P = torch.tensor([[2, 4, 2, 0], [2, 2, 0, 4]]).double() / 8
Q = torch.tensor([4, 2, 1, 1]).double() / 8
GRID = [(i + 0.5) / 12 for i in range(12)]
"""Midpoints. All p/q and cumulative remainders are multiples of 1/12, so a mean over the grid is an exact integral."""


@pytest.mark.parametrize("q", [Q, *torch.eye(4).double()], ids=["drawn", "id 0", "id 1", "id 2", "id 3"])
def test_the_first_id_has_exactly_the_distribution_of_the_model(q: Tensor) -> None:
    """Σ over drafts x of q(x) · P(first id = y | x) = p(y), and the second id has its own p (Leviathan 2023, A.1)."""
    is_drawn = bool((q < 1).all())
    first, both = torch.zeros(4).double(), torch.zeros(4, 4).double()
    for x in range(4):
        draft = Draft([x], q[None] if is_drawn else None)
        for u, v in product(GRID, GRID):
            ids = verified(draft, P, Scripted(u, v))  # type: ignore[arg-type]
            first[ids[0]] += q[x] / len(GRID) ** 2
            assert len(ids) == 1 or ids[0] == x
            if len(ids) == 2:
                both[tuple(ids)] += q[x] / len(GRID) ** 2
    assert_close(first, P[0])
    accepted = torch.minimum(P[0], q)
    assert_close(both, accepted[:, None] * P[1])


def exact(model: Any, prompt: Sequence[int], config: GenerationConfig, n: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every sequence of n ids, from `forward`, with the rules applied at each position."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(n):
        longer = {}
        for ids, probability in found.items():
            before = torch.tensor([[*prompt, *ids]])
            with torch.inference_mode():
                logits = model(before)[:, -1]
            shaped = Sampler(config, (), "cpu").shape(logits, [Past(before[0].tolist(), len(prompt))])
            for token, p in enumerate(shaped.double().softmax(dim=-1)[0].tolist()):
                if p:
                    longer[(*ids, token)] = probability * p
        found = longer
    return found


RULES = {
    "plain": GenerationConfig(),
    "rules": GenerationConfig(temperature=1.5, top_k=5, top_p=0.9, min_p=0.05, repetition_penalty=0.7),
}


@pytest.mark.parametrize(("rules", "kind"), [("plain", "lookup"), ("rules", "model")])
def test_sampled_ids_have_the_joint_distribution_of_the_model(rules: str, kind: str) -> None:
    """A chi-square test of the sequences of 3 ids in 4,000 samples; the bound is five standard deviations."""
    model, small, n_samples = random_model(TINY), random_model(replace(TINY, d_model=4)), 4000
    config, prompt = replace(RULES[rules], max_new_tokens=3, seed=3), [1, 2, 0, 1, 2]
    drafter = PromptLookup(2) if kind == "lookup" else ModelDrafter(small, 2, max_len=12)
    options: dict[str, Any] = {"max_len": 12, "samples": range(n_samples)}
    steps = list(generated(model, [prompt], config, drafter, **options))
    counts = dict.fromkeys(exact(model, prompt, config, 3), 0)
    for ids in rows_of(steps).values():
        counts[tuple(ids)] += 1  # an impossible sequence raises KeyError
    expected = {ids: n_samples * p for ids, p in exact(model, prompt, config, 3).items()}
    common = [ids for ids, n in expected.items() if n >= 5]
    pairs = [(counts[ids], expected[ids]) for ids in common]
    pairs.append((n_samples - sum(n for n, _ in pairs), n_samples - sum(n for _, n in pairs) + 1e-9))
    chi_square, freedom = sum((n - m) ** 2 / m for n, m in pairs if m >= 5), len(common)
    assert len(common) > 20 and abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5
    assert 0 < drafter.counts.n_accepted < drafter.counts.n_drafted


@pytest.mark.parametrize(
    ("name", "slide", "config"),
    [("gpt", False, GREEDY), ("gpt", True, DRAWN), ("llama", True, GREEDY), ("llama", False, DRAWN)],
)
def test_a_row_does_not_depend_on_the_batch_that_it_joins(name: str, slide: bool, config: GenerationConfig) -> None:
    """In fp32, with rows of very unequal lengths: end ids, rows that a caller ends, full contexts, several samples."""
    model, small = random_model(CONFIGS[name]).float(), random_model(smaller(CONFIGS[name])).float()
    prompts = [[(i * j) % 7 for j in range(1, 2 + (5 * i) % 22)] for i in range(5)]
    samples = (2, 0) if config.temperature else (0,)

    def rows(
        some: Sequence[int], samples: Sequence[int], drafter: Drafter | None = None, **more: Any
    ) -> list[list[int]]:
        counts = dict.fromkeys(range(len(samples) * len(some)), 0)

        def ends_row(row: int, token: int) -> bool:
            counts[row] += 1
            return counts[row] == 4 + some[row // len(samples)] * 4

        options: dict[str, Any] = {"slide": slide, "samples": samples, "end_ids": [5], "ends_row": ends_row, **more}
        steps = generated(model, [prompts[i] for i in some], config, drafter, **options)
        return list(rows_of(steps).values())

    plain = rows(range(5), samples)
    for drafter in (lambda: PromptLookup(4), lambda: ModelDrafter(small, 3, max_len=13)):
        alone = [row for i in range(5) for sample in samples for row in rows([i], [sample], drafter())]
        assert config.temperature or alone == plain
        assert len({len(row) for row in alone}) > 3
        for batch_size in (3, 100):
            assert rows(range(5), samples, drafter(), batch_size=batch_size) == alone


def test_prompts_join_the_batch_and_equal_ones_are_read_once_without_their_logits() -> None:
    """Six prompts with two samples each, four rows at a time; only ids to verify get logits (B, T, V)."""

    class Reading(Counting):
        def read_at(self, token_ids: Tensor, *args: Any) -> Any:
            self.read.append(tuple(token_ids.shape))
            return self.model.read_at(token_ids, *args)

    model, prompts = Reading(random_model("gpt")), [[1, 2, 3, 4, i] for i in range(6)]
    config = GenerationConfig(max_new_tokens=2, seed=1)
    options: dict[str, Any] = {"samples": (0, 1), "batch_size": 4}
    found = rows_of(generated(model, prompts, config, PromptLookup(3), **options))
    assert [len(row) for row in found.values()] == [2] * 12
    assert model.read[0] == (1, 4)  # the first two prompts begin with the same four ids
    assert all(n_rows <= 2 and width == 4 for n_rows, width in model.read)
    assert all(n_rows <= 4 and width <= 2 for n_rows, width in model.shapes)
    with pytest.raises(UserError, match="batch_size is 0 and must be at least 1"):
        next(generated(model, prompts, config, PromptLookup(3), batch_size=0))


def test_a_draft_beyond_an_end_is_not_generated() -> None:
    """The model would continue after the end id 4."""
    model = random_model("gpt")
    free = [step[0] for step in generated(model, [[1, 2]], GREEDY)]
    end = free[4]
    steps = generated(model, [[1, 2]], GREEDY, ModelDrafter(model, 9, max_len=24), end_ids=[end])
    assert [step[0] for step in steps] == free[: free.index(end) + 1]


def test_a_state_that_cannot_be_cropped_is_an_error() -> None:
    class Uncropped(Counting):
        def start(self, *args: Any) -> Any:
            return self.model.start(*args).lengths

    steps = generated(Uncropped(random_model("gpt")), [[1]], GREEDY, PromptLookup(2))
    with pytest.raises(UserError, match=r"the state of this model \(Tensor\) cannot forget tokens"):
        next(steps)


def test_no_prompts_give_no_output() -> None:
    assert list(generated(random_model("gpt"), [], GREEDY, PromptLookup(2))) == []
    assert DraftCounts().acceptance_rate == 0
