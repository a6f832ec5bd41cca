"""Generation with the cache equals full recomputation, alone and in batches; ends, contexts, waiting rows."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from configs import CONFIGS, CROSS, GENERATORS, RECURRENT, SEQ2SEQ, random_ids, random_inputs, random_model
from glassformer.common.errors import UserError
from glassformer.config.run import GenerationConfig
from glassformer.config.transformer import (
    AlibiPositions,
    LearnedPositions,
    NoPositions,
    RelativePositions,
    RotaryPositions,
    SinusoidalPositions,
    Stack,
    TransformerConfig,
)
from glassformer.inference import contexts
from glassformer.inference.constraints import Past
from glassformer.inference.decodable import read_at
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.sampling import Sampler, choose
from glassformer.models.state import TransformerState
from glassformer.nn import kv_cache
from tolerances import assert_close

GREEDY = GenerationConfig(max_new_tokens=10, temperature=0.0)
DRAWN = GenerationConfig(max_new_tokens=10, temperature=1.3, top_k=12, top_p=0.95, repetition_penalty=1.2, seed=5)
DECODERS = [name for name in GENERATORS if name not in CROSS]
PROMPTS = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5], [8, 9]]


def generated(
    model: Any,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    *,
    sources: Any = (),
    ends_row: Callable[[int, int], bool] = lambda row, token: False,
    **options: Any,
) -> Iterator[dict[int, int]]:
    """Yield the steps of a generation, in which the caller ends rows by `ends_row(row, id)`."""
    options = {"max_len": model.config.max_len} | options
    generation = Generation(model, prompts, Settings(config, **options), sources=sources)
    for step in generation:
        yield step
        for row, token in step.items():
            if ends_row(row, token):
                generation.end(row)


def grown(model: Any, prompts: Sequence[Sequence[int]], config: GenerationConfig, **options: Any) -> list[list[int]]:
    """Return the new ids of every row; check that each row has no break, and that rows begin in order.

    With a `batch_size`, also check that at most as many rows are live.
    """
    found: dict[int, list[int]] = {}
    before: dict[int, int] = {}
    for step in generated(model, prompts, config, **options):
        assert len(step) <= (options.get("batch_size") or len(prompts) * len(options.get("samples", (0,))))
        assert not (found.keys() - before.keys()) & step.keys()  # a row that has ended does not return
        for row, token in step.items():
            found.setdefault(row, []).append(token)
        before = step
    assert list(found) == sorted(found)
    return list(found.values())


def recomputed(model: Any, prompt: Sequence[int], config: GenerationConfig) -> list[int]:
    """Return the reference: `forward` on the whole sequence for every token."""
    ids, draws = list(prompt), np.random.default_rng(config.seed)
    for _ in range(config.max_new_tokens):
        with torch.inference_mode():
            logits = model(torch.tensor([ids]))[:, -1]
        shaped = Sampler(config, (), "cpu").shape(logits, [Past(ids, len(prompt))])
        uniform = torch.tensor([draws.random()], dtype=torch.float64) if config.temperature else None
        ids.append(int(choose(shaped, uniform)))
    return ids[len(prompt) :]


@pytest.mark.parametrize(("name", "config"), [("gpt", GREEDY), *((name, DRAWN) for name in DECODERS)])
def test_pitfall_31_the_cache_changes_nothing(name: str, config: GenerationConfig) -> None:
    """Drawn ids depend on all logits; greedy ones of a random model soon repeat."""
    model = random_model(name)
    for prompt in PROMPTS[:2]:
        assert grown(model, [prompt], config)[0] == recomputed(model, prompt, config)


class Counting:
    """A model that records the number of tokens of each step."""

    def __init__(self, model: Any) -> None:
        self.model, self.config, self.widths = model, model.config, []

    def start(self, *args: Any) -> Any:
        return self.model.start(*args)

    def step(self, token_ids: Tensor, *args: Any) -> Any:
        self.widths.append(tuple(token_ids.shape))
        return self.model.step(token_ids, *args)


def test_pitfall_31_after_the_prompt_each_step_reads_one_token() -> None:
    model = Counting(random_model("gpt"))
    grown(model, PROMPTS, GREEDY)
    assert model.widths == [(4, 7)] + [(4, 1)] * 9


def test_a_long_prompt_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Counting(random_model("llama"))
    whole = grown(model, PROMPTS, DRAWN)
    monkeypatch.setattr(contexts, "PREFILL", 3)
    model.widths.clear()
    assert grown(model, PROMPTS, DRAWN) == whole
    assert model.widths[:3] == [(4, 3), (4, 3), (4, 1)]


def test_finished_rows_are_not_computed() -> None:
    model = Counting(random_model("llama"))
    alone = [grown(model, [prompt], DRAWN)[0] for prompt in PROMPTS]
    end = alone[1][2]
    cut = [row[: row.index(end) + 1] if end in row else row for row in alone]
    model.widths.clear()
    assert grown(model, PROMPTS, DRAWN, end_ids=[end]) == cut
    assert min(width[0] for width in model.widths) < 4


def test_a_caller_ends_a_row() -> None:
    model = random_model("llama")
    calls: list[tuple[int, int]] = []

    def ends_row(row: int, token: int) -> bool:
        calls.append((row, token))
        return row == 1 and len([call for call in calls if call[0] == 1]) == 3

    rows = grown(model, PROMPTS, DRAWN, ends_row=ends_row)
    assert [len(row) for row in rows] == [10, 3, 10, 10]
    assert [token for row, token in calls if row == 2] == rows[2]


def test_banned_ids_are_never_chosen() -> None:
    model = random_model("gpt")
    suppress_ids = [i for i in range(19) if i not in (4, 7)]
    for config in (GREEDY, DRAWN):
        assert set(grown(model, [[1, 2]], config, suppress_ids=suppress_ids)[0]) <= {4, 7}


def test_the_seed_determines_the_output() -> None:
    model = random_model("gpt")
    first, again, other = (grown(model, [[1]], replace(DRAWN, seed=seed))[0] for seed in (1, 1, 2))
    assert first == again != other


def test_generation_uses_no_global_generator_and_no_gradient() -> None:
    model, before = random_model("gpt"), torch.get_rng_state()
    grown(model, PROMPTS, DRAWN)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("prompts", [[[1, 2], []], [[1] * 25], [[1], [2] * 30]])
def test_pitfall_33_a_too_long_prompt_is_refused_before_computation(prompts: list[list[int]]) -> None:
    model = Counting(random_model("gpt"))
    with pytest.raises(UserError, match=r"is empty|has (25|30) tokens and the model's context is 24.*--context slide"):
        grown(model, prompts, GREEDY)
    assert not model.widths


def test_pitfall_33_a_full_context_ends_the_row() -> None:
    model = random_model("gpt")
    config = replace(GREEDY, max_new_tokens=100)
    rows = grown(model, [[1] * 24, [1] * 20, [1]], config)
    assert [len(row) for row in rows] == [1, 5, 24]  # the last token is predicted from a full context


def slid(model: Any, prompt: list[int], config: GenerationConfig, max_len: int) -> list[int]:
    """Apply the documented rule without a cache: when the context is full, drop its older half."""
    ids, context = list(prompt), list(prompt)[-max_len:]
    draws = np.random.default_rng(config.seed)
    for _ in range(config.max_new_tokens):
        if len(context) > max_len:
            context = context[-(max_len // 2) :]
        with torch.inference_mode():
            logits = model(torch.tensor([context]))[:, -1]
        uniform = torch.tensor([draws.random()], dtype=torch.float64) if config.temperature else None
        token = int(choose(Sampler(config, (), "cpu").shape(logits, [Past(ids, len(prompt))]), uniform))
        ids.append(token)
        context.append(token)
    return ids[len(prompt) :]


@pytest.mark.parametrize(("name", "config"), [("gpt", GREEDY), ("gpt", DRAWN), ("llama", DRAWN), ("alibi", DRAWN)])
def test_pitfall_33_a_sliding_context_drops_the_older_half_of_its_own_row(name: str, config: GenerationConfig) -> None:
    """In a batch too: a full row must not shorten the context of other rows."""
    model = random_model(name)
    config = replace(config, max_new_tokens=30)
    prompts = [list(range(10)), [3], [i % 19 for i in range(22)], [i % 7 for i in range(33)]]
    expected = [slid(model, prompt, config, 24) for prompt in prompts]
    assert [grown(model, [prompt], config, slide=True)[0] for prompt in prompts] == expected
    assert grown(model, prompts, config, slide=True) == expected


class Sizes:
    """A model that records the largest number of slots of its buffers, over all rows."""

    def __init__(self, model: Any) -> None:
        self.model, self.config, self.most = model, model.config, 0

    def start(self, *args: Any) -> Any:
        return self._seen(self.model.start(*args))

    def step(self, *args: Any) -> Any:
        logits, state = self.model.step(*args)
        return logits, self._seen(state)

    def _seen(self, state: TransformerState) -> TransformerState:
        shape = state.layers[0].keys.shape
        self.most = max(self.most, shape[0] * shape[2])
        return state


def test_the_memory_of_generation_depends_on_filled_slots_not_on_max_len() -> None:
    config = replace(CONFIGS["llama"], max_len=131_072)
    model = Sizes(random_model(config))
    lengths = [0] * 8

    def ends_row(row: int, token: int) -> bool:
        lengths[row] += 1
        return lengths[row] == 6 + 2 * row

    prompts = random_ids(config.vocab_size, 8, 4).tolist()
    grown(model, prompts, replace(DRAWN, max_new_tokens=20), ends_row=ends_row)
    assert lengths == [6, 8, 10, 12, 14, 16, 18, 20]
    n_filled = 8 * (4 + 20)
    assert model.most <= 2 * n_filled


POSITIONS = (
    AlibiPositions(),
    LearnedPositions(),
    NoPositions(),
    RelativePositions(n_buckets=6, max_distance=9),
    RotaryPositions(),
    RotaryPositions(fraction=0.5),
    SinusoidalPositions(),
)


@pytest.mark.parametrize("seed", range(2 * len(POSITIONS)))
def test_pitfall_31_growing_buffers_change_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random shapes, small first buffers, uneven prompts, rows with different ends; contexts that slide or end."""
    draw = np.random.default_rng(seed)
    monkeypatch.setattr(kv_cache, "FIRST_SLOTS", int(draw.integers(1, 4)))
    monkeypatch.setattr(contexts, "PREFILL", int(draw.integers(1, 9)))
    max_len, n_groups = int(draw.integers(8, 30)), int(draw.integers(1, 3))
    stack = Stack(
        n_layers=2,
        n_heads=n_groups * int(draw.integers(1, 3)),
        n_kv_heads=n_groups,
        d_head=4,
        d_ff=8,
        window_pattern=tuple(draw.integers(0, 6, size=draw.integers(0, 3)).tolist()),
    )
    slide, number = divmod(seed, len(POSITIONS))
    model = random_model(
        TransformerConfig(decoder=stack, d_model=8, vocab_size=11, max_len=max_len, positions=POSITIONS[number])
    )
    longest = max_len + 5 if slide else max_len
    prompts = [draw.integers(11, size=draw.integers(1, longest + 1)).tolist() for _ in range(draw.integers(1, 5))]
    config = replace(DRAWN, temperature=2.0, max_new_tokens=int(draw.integers(1, 2 * max_len)), seed=seed)
    expected = []
    for prompt in prompts:
        n_new = config.max_new_tokens if slide else min(config.max_new_tokens, max_len - len(prompt) + 1)
        new = slid(model, prompt, replace(config, max_new_tokens=n_new), max_len)
        expected.append(new[: new.index(5) + 1] if 5 in new else new)
    assert grown(model, prompts, config, slide=bool(slide), end_ids=[5]) == expected


MANY = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5], [7] * 20, [1], [8, 2, 8], [4] * 12]
WAYS = [(GREEDY, False), (DRAWN, False), (DRAWN, True)]
"""Settings, and whether the context slides; each configuration has one of them."""


def up_to(row: list[int], ends: Sequence[int]) -> list[int]:
    """Return the ids up to the first that ends a row."""
    return row[: min((i for i, token in enumerate(row) if token in ends), default=len(row)) + 1]


@pytest.mark.parametrize(("number", "name"), list(enumerate(DECODERS)))
def test_pitfall_32_a_row_does_not_depend_on_the_batch_that_it_joins(number: int, name: str) -> None:
    """In fp32, with rows of very unequal lengths: end tokens, full contexts, several samples."""
    model = random_model(name, dtype=torch.float32)
    config, slide = WAYS[number % len(WAYS)]
    config = replace(config, max_new_tokens=12)
    samples = (2, 0) if config.temperature else (0,)
    options: dict[str, Any] = {"samples": samples, "slide": slide}
    free = [row for prompt in MANY for row in grown(model, [prompt], config, **options)]
    ends = [free[0][2], free[2 * len(samples)][6]]
    expected = [up_to(row, ends) for row in free]
    assert len({len(row) for row in expected}) > 1
    for batch_size in (1, 3, 100) if name == "gpt" else (3, 100):
        assert grown(model, MANY, config, batch_size=batch_size, end_ids=ends, **options) == expected


@pytest.mark.parametrize("name", sorted(SEQ2SEQ))
def test_a_row_with_a_source_does_not_depend_on_the_batch_that_it_joins(name: str) -> None:
    model = random_model(SEQ2SEQ[name])
    sources = [row[:9] for row in MANY]
    prompts = [[1, 2][: 1 + i % 2] for i in range(len(MANY))]
    config = replace(DRAWN, max_new_tokens=12)
    free = []
    for prompt, source in zip(prompts, sources, strict=True):
        free += grown(model, [prompt], config, sources=[source])
    ends = [free[0][1], free[1][3]]
    expected = [up_to(row, ends) for row in free]
    for batch_size in (3, 100):
        assert grown(model, prompts, config, batch_size=batch_size, sources=sources, end_ids=ends) == expected


OF_EACH_STATE = ["gpt", "alibi", "paper", "t5", "sutskever", "bahdanau", "luong"]


@pytest.mark.parametrize(
    ("name", "same_size"),
    [*((name, False) for name in sorted(SEQ2SEQ) + DECODERS), *((name, True) for name in OF_EACH_STATE)],
)
def test_joined_states_step_as_before(name: str, same_size: bool) -> None:
    """Lengths of rows, and sizes of sources and of buffers, may differ."""
    model = random_model((SEQ2SEQ | CONFIGS)[name])
    vocab_size, states = model.config.vocab_size, []
    sizes = [(2, 5, 3), (3, 5, 3)] if same_size else [(2, 5, 3), (3, 8, 7)]
    for n_rows, n_source, n_tokens in sizes:
        source: tuple[Tensor, ...] = ()
        if name in SEQ2SEQ:
            ids = random_ids(model.config.encoder_vocab_size, n_rows, n_source, seed=n_rows)
            source = (ids, torch.arange(n_source) < n_source - torch.arange(n_rows)[:, None])
        mask = None if same_size else torch.arange(n_tokens) <= torch.arange(n_rows)[:, None] + 2
        start = model.start(n_rows, 9 + n_rows, *source[: 1 + (n_rows == 3)])
        states.append(model.step(random_ids(vocab_size, n_rows, n_tokens), start, mask)[1])
    joined = states[0].joined(states[1])
    lengths = torch.cat([state.lengths for state in states])
    for n in range(3):
        assert torch.equal(joined.lengths, lengths + n)
        ids = random_ids(vocab_size, 5, 1, seed=n)
        together, joined = model.step(ids, joined)
        (first, states[0]), (second, states[1]) = model.step(ids[:2], states[0]), model.step(ids[2:], states[1])
        assert_close(together, torch.cat((first, second)))


def test_rows_join_together_when_a_quarter_of_the_batch_is_free() -> None:
    """Rows of 1, 2, … new ids: the batch of 8 has 7 and then 6 live rows before 2 new ones are read."""
    model = Counting(random_model("llama"))
    lengths = [0] * 12

    def ends_row(row: int, token: int) -> bool:
        lengths[row] += 1
        return lengths[row] == row + 1

    prompts = [[1, row] for row in range(12)]
    config = replace(GREEDY, max_new_tokens=20)
    rows = grown(model, prompts, config, batch_size=8, ends_row=ends_row)
    assert [len(row) for row in rows] == list(range(1, 13))
    assert model.widths[:9] == [(8, 2), (7, 1), (6, 1), (2, 2), (7, 1), (6, 1), (2, 2), (7, 1), (6, 1)]


def test_samples_of_a_prompt_are_read_once() -> None:
    model = Counting(random_model("llama"))
    grown(model, [[1, 2], [3, 4, 5]], replace(DRAWN, max_new_tokens=2), batch_size=4, samples=range(3))
    assert model.widths == [(2, 3), (4, 1), (1, 3), (2, 1)]


def test_a_slid_row_is_read_again_without_the_others() -> None:
    model = Counting(random_model("llama"))
    grown(model, [[1] * 23, [2] * 3], replace(GREEDY, max_new_tokens=5), slide=True)
    assert model.widths == [(2, 23), (2, 1), (1, 1), (1, 12), (2, 1), (2, 1)]


@pytest.mark.parametrize("batch_size", [0, -3])
def test_a_batch_size_below_one_is_refused(batch_size: int) -> None:
    with pytest.raises(UserError, match=f"batch_size is {batch_size} and must be at least 1"):
        Generation(random_model("gpt"), [[1]], Settings(GREEDY, 9, batch_size=batch_size))


@dataclass
class Unjoined:
    """A state without `joined`."""

    state: Any

    @property
    def lengths(self) -> Tensor:
        return self.state.lengths

    def select(self, rows: Tensor) -> "Unjoined":
        return Unjoined(self.state.select(rows))


class WithoutJoin(Counting):
    """A model of a user, whose state has only `lengths` and `select`."""

    def start(self, *args: Any) -> Any:
        return Unjoined(self.model.start(*args))

    def step(self, token_ids: Tensor, state: Any, *args: Any) -> Any:
        logits, state = self.model.step(token_ids, state.state, *args)
        return logits, Unjoined(state)


@pytest.mark.parametrize(
    "options",
    [{"slide": True}, {"batch_size": 2, "ends_row": lambda row, _: row == 0}],
    ids=["slide", "batch_size"],
)
def test_a_state_that_cannot_be_joined_is_an_error(options: dict[str, Any]) -> None:
    model, prompts = WithoutJoin(random_model("gpt")), [[1] * 23, [2, 3], [4]]
    assert len(list(generated(model, prompts[1:], GREEDY))) == GREEDY.max_new_tokens  # it is not needed
    with pytest.raises(TypeError, match=r"batch size, or of several rows .* a method joined, got Unjoined$"):
        list(generated(model, prompts, GREEDY, **options))


def test_no_prompts_give_no_output() -> None:
    assert list(generated(random_model("gpt"), [], GREEDY)) == []


def test_the_configurations_have_the_tested_properties() -> None:
    assert "gpt" in DECODERS and "llama" in DECODERS and CONFIGS["gpt"].max_len == 24


@pytest.mark.parametrize("name", [*GENERATORS, *RECURRENT])
def test_a_prompt_is_read_without_unused_logits(name: str) -> None:
    model = random_model(name).eval()
    inputs = random_inputs(model)
    source = [inputs.others["source_ids"]] if "source_ids" in inputs.others else []
    real = torch.ones_like(inputs.token_ids, dtype=torch.bool)
    real[1, 3:] = False
    at = real.sum(dim=1) - 1
    logits, state = model.step(inputs.token_ids, model.start(2, 20, *source), real)
    found, after = read_at(model, inputs.token_ids, model.start(2, 20, *source), real, at)
    assert_close(found, logits[torch.arange(2), at])
    rows = []
    model.output.register_forward_hook(lambda _module, inputs, _found: rows.append(inputs[0].shape[:-1].numel()))
    read_at(model, inputs.token_ids, model.start(2, 20, *source), real, at)
    assert rows == [2]
    next_ids = inputs.token_ids[:, :1]
    assert_close(model.step(next_ids, after)[0], model.step(next_ids, state)[0])


def test_a_model_without_a_method_for_it_reads_a_prompt_with_all_logits() -> None:
    model = random_model("gpt")
    assert grown(Counting(model), PROMPTS, GREEDY) == grown(model, PROMPTS, GREEDY)
