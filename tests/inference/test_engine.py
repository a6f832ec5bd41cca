"""Continuous batching: a row has the ids that it has alone, whichever rows join and leave; scores; ends; errors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from configs import CROSS, GENERATORS, RECURRENT, random_model
from glassformer.common.seeds import Stream, rng
from glassformer.config.run import GenerationConfig
from glassformer.inference import server_engine
from glassformer.inference.constraints import Past
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Likely, Penalties, Request, Row, Settings
from glassformer.inference.sampling import Sampler, choose
from glassformer.inference.server_engine import ServerEngine
from tolerances import near

V, MAX_LEN = 19, 24
"""Vocabulary and context of the models."""
END = 5
GREEDY = GenerationConfig(max_new_tokens=8, temperature=0.0)
DRAWN = GenerationConfig(max_new_tokens=8, temperature=1.3, top_k=12, top_p=0.95, repetition_penalty=1.2, seed=5)
DECODERS = ["gpt", "llama", "alibi_window", "relative"]
WITH_SOURCE = ["paper", "t5", "bahdanau", "luong"]
LONG = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3]
SOURCE = (7, 8, 9, 2)


def engine_of(model: Any, **options: Any) -> ServerEngine:
    return ServerEngine(model, **{"max_len": MAX_LEN, "device": "cpu"} | options)


def n_live(engine: ServerEngine) -> int:
    """Return the number of rows that are continued or read, and have not ended."""
    rows = [*engine._live, *(row for one in engine._reading for row in one.rows)]
    return sum(row not in engine._ended for row in rows)


def request_of(ids: Sequence[int], config: GenerationConfig = GREEDY, **options: Any) -> Request:
    samples = options.pop("samples", (0,))
    return Request(ids, Settings(config, MAX_LEN, end_ids=[END], samples=samples), **options)


class Written:
    """Output of an engine: the ids of each row, their scores, and the reason of its end."""

    def __init__(self) -> None:
        self.ids: dict[Row, list[int]] = {}
        self.likely: dict[Row, list[Likely]] = {}
        self.finish: dict[Row, str] = {}

    def take(self, engine: ServerEngine) -> None:
        """Let the engine make one step."""
        for step in engine.step():
            assert step.row not in self.finish, "a row that has ended has no more ids"
            ids = self.ids.setdefault(step.row, [])
            if step.token is not None:
                ids.append(step.token)
            if step.likely is not None:
                self.likely.setdefault(step.row, []).append(step.likely)
            if step.finish is not None:
                self.finish[step.row] = step.finish

    def take_all(self, engine: ServerEngine) -> "Written":
        while not engine.is_idle:
            self.take(engine)
        return self


def alone(model: Any, request: Request) -> tuple[list[Row], Written]:
    """Run one request in an engine of its own; return its rows and what they wrote."""
    engine = engine_of(model, max_rows=1)
    samples = engine.add(request)
    return samples, Written().take_all(engine)


def ids_of(model: Any, request: Request) -> list[list[int]]:
    samples, written = alone(model, request)
    return [written.ids[sample] for sample in samples]


def assert_equal_scores(found: Sequence[Likely], expected: Sequence[Likely]) -> None:
    assert [one.token for one in found] == [one.token for one in expected]
    assert [one.log_prob for one in found] == near([one.log_prob for one in expected])
    for mine, theirs in zip(found, expected, strict=True):
        assert [i for i, _ in mine.top] == [i for i, _ in theirs.top]
        assert [x for _, x in mine.top] == near([x for _, x in theirs.top])


class Schedule:
    """Random requests, and when they join and are ended."""

    def __init__(self, seed: int, has_source: bool) -> None:
        self.draw, self.has_source = np.random.default_rng(seed), has_source
        self.beginnings = [self._ids(int(self.draw.integers(5, 16))) for _ in range(2)]

    def _ids(self, n: int) -> list[int]:
        return [int(i) for i in self.draw.integers(V, size=n)]

    def request(self) -> Request:
        draw = self.draw
        longest = MAX_LEN if not self.has_source else 3
        ids = self._ids(int(draw.integers(1, 9)))
        if draw.random() < 0.6:
            ids = self.beginnings[draw.integers(2)] + ids
        config = GenerationConfig(
            max_new_tokens=int(draw.integers(1, 9)),
            temperature=float(draw.choice([0.0, 0.7, 1.5])),
            top_k=int(draw.choice([0, 7])),
            repetition_penalty=float(draw.choice([1.0, 1.3])),
            seed=int(draw.integers(100)),
        )
        penalties = Penalties({int(draw.integers(V)): 2.0}, float(draw.choice([0, 0.8])), float(draw.choice([0, 0.5])))
        return request_of(
            ids[:longest],
            config,
            samples=range(1 if config.temperature == 0 else int(draw.integers(1, 4))),
            source=tuple(self._ids(int(draw.integers(1, 10)))) if self.has_source else (),
            penalties=penalties,
            n_new=int(draw.integers(0, 9)) if draw.random() < 0.3 else None,
            n_top=2 if draw.random() < 0.5 else None,
            scores_prompt=bool(draw.random() < 0.2),
        )


@pytest.mark.parametrize(("seed", "name"), list(enumerate(DECODERS + WITH_SOURCE)))
def test_a_row_has_the_ids_that_it_has_alone(seed: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests join at random steps; random rows are ended; prompts are read in parts and share beginnings."""
    model, schedule = random_model(name), Schedule(seed, has_source=name in WITH_SOURCE)
    requests = [schedule.request() for _ in range(9)]
    expected = [alone(model, request) for request in requests]
    draw = schedule.draw
    monkeypatch.setattr(server_engine, "MIN_SHARED", 3)
    monkeypatch.setattr(server_engine, "PREFILL", int(draw.integers(2, 12)))
    monkeypatch.setattr(server_engine, "PART_BETWEEN", int(draw.integers(1, 6)))
    engine = engine_of(model, max_rows=int(draw.integers(1, 7)), max_bytes=int(draw.choice([0, 20_000, 1 << 30])))
    written, joined, ended = Written(), list[list[Row]](), set[Row]()
    while len(joined) < len(requests) or not engine.is_idle:
        while len(joined) < len(requests) and draw.random() < 0.4:
            joined.append(engine.add(requests[len(joined)]))
        running = [sample for samples in joined for sample in samples if sample not in written.finish]
        if running and draw.random() < 0.1:
            sample = running[draw.integers(len(running))]
            ended.add(sample)
            engine.end(sample)
        written.take(engine)
        assert engine.prefixes.n_bytes <= engine.prefixes.max_bytes
    n_compared = 0
    for samples, (references, reference) in zip(joined, expected, strict=True):
        for sample, other in zip(samples, references, strict=True):
            ids = written.ids.get(sample, [])
            if sample in ended and sample not in written.finish:
                assert ids == reference.ids[other][: len(ids)]
                continue
            n_compared += 1
            assert ids == reference.ids[other] and written.finish[sample] == reference.finish[other]
            assert_equal_scores(written.likely.get(sample, []), reference.likely.get(other, []))
            assert_equal_scores(sample.prompt, other.prompt)
    assert n_compared > 4


def recomputed(model: Any, request: Request, sample: int) -> tuple[list[int], list[Likely]]:
    """Return the reference for one row, by `forward` on the whole sequence: its ids, and all of them with scores."""
    ids, config, penalties = list(request.ids), request.settings.sampling, request.penalties
    generator = rng(config.seed, Stream.SAMPLES, sample)
    for _ in range(config.max_new_tokens if request.n_new is None else request.n_new):
        logits = logits_of(model, request, ids)[-1:]
        for token in range(V):
            n = ids[len(request.ids) :].count(token)
            logits[0, token] += penalties.bias.get(token, 0) - n * penalties.frequency - (n > 0) * penalties.presence
        uniform = torch.tensor([generator.random()], dtype=torch.float64) if config.temperature else None
        ids.append(int(choose(Sampler(config, (), "cpu").shape(logits, [Past(ids, len(request.ids))]), uniform)))
        if ids[-1] == END or len(ids) > MAX_LEN:
            break
    log_probs = logits_of(model, request, ids[:-1]).log_softmax(dim=-1)
    scored = []
    for token, row in zip(ids[1:], log_probs, strict=True):
        best = sorted(range(V), key=lambda i: -float(row[i]))[: request.n_top]
        scored.append(Likely(token, float(row[token]), tuple((i, float(row[i])) for i in best)))
    return ids[len(request.ids) :], scored


def logits_of(model: Any, request: Request, ids: Sequence[int]) -> Tensor:
    given = {"source_ids": torch.tensor([request.source])} if request.source else {}
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids]), **given)[0]
    return logits.float()


@pytest.mark.parametrize("config", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("name", DECODERS + WITH_SOURCE)
def test_ids_and_scores_equal_a_plain_reference(name: str, config: GenerationConfig) -> None:
    """With bias, penalties, log probabilities of the prompt and of the new ids, and several samples."""
    model, n_samples = random_model(name), 3 if config.temperature else 1
    source = SOURCE if name in WITH_SOURCE else ()
    penalties = Penalties({3: 1.5, 8: -100.0}, presence=0.7, frequency=0.4)
    request = request_of(
        [3, 1, 4], config, source=source, samples=range(n_samples), penalties=penalties, n_top=4, scores_prompt=True
    )
    samples, written = alone(model, request)
    for number, sample in enumerate(samples):
        ids, scored = recomputed(model, request, number)
        assert written.ids[sample] == ids and 8 not in ids
        assert_equal_scores([*sample.prompt, *written.likely[sample]], scored)
    assert len({tuple(written.ids[sample]) for sample in samples}) == n_samples


def test_penalties_change_the_ids() -> None:
    """Each by itself, or the comparison with the reference would show nothing."""
    model = random_model("gpt")
    plain = ids_of(model, request_of([3, 1], GREEDY))
    for penalties in (Penalties({7: 50.0}), Penalties(presence=2.0), Penalties(frequency=2.0)):
        assert ids_of(model, request_of([3, 1], GREEDY, penalties=penalties)) != plain


@pytest.mark.parametrize(("name", "config"), list(zip(DECODERS + WITH_SOURCE, [GREEDY, DRAWN] * 4, strict=True)))
def test_ids_equal_those_of_a_generation(name: str, config: GenerationConfig) -> None:
    """Also at the end of the context, whose last id is chosen after all others are read."""
    model, config = random_model(name), replace(config, max_new_tokens=30)
    prompts = [[3, 1, 4], [1], LONG, [2, 7] * 12]
    settings = Settings(config, MAX_LEN, end_ids=[END], samples=range(2) if config.temperature else (0,))
    sources = [SOURCE, (1, 2), SOURCE, (9,)] if name in WITH_SOURCE else []
    expected: dict[int, list[int]] = {}
    for step in Generation(model, prompts, settings, sources=sources):
        for row, token in step.items():
            expected.setdefault(row, []).append(token)
    engine, written = engine_of(model), Written()
    samples = []
    for number, prompt in enumerate(prompts):
        samples += engine.add(Request(prompt, settings, sources[number] if sources else ()))
    written.take_all(engine)
    assert [written.ids[sample] for sample in samples] == list(expected.values())
    assert len(expected[len(samples) - 1]) == 1, "a full context has one more id"


class Widths:
    """A model that records the number of rows and of tokens of each step, and may fail at one of them."""

    def __init__(self, model: Any, fails_at: int = -1) -> None:
        self.model, self.fails_at, self.widths = model, fails_at, list[tuple[int, ...]]()

    def start(self, *args: Any) -> Any:
        return self.model.start(*args)

    def step(self, token_ids: Tensor, *args: Any) -> Any:
        self.widths.append(tuple(token_ids.shape))
        if len(self.widths) == self.fails_at:
            raise RuntimeError("the model has failed")
        return self.model.step(token_ids, *args)


def test_a_long_prompt_is_read_between_the_steps_of_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row that runs gets an id in each step; prompts are read whole if no row runs."""
    monkeypatch.setattr(server_engine, "PART_BETWEEN", 5)
    model = Widths(random_model("llama"))
    engine, written = engine_of(model), Written()
    (first,) = engine.add(request_of([8, 2], replace(GREEDY, max_new_tokens=20)))
    written.take(engine)
    (second,) = engine.add(request_of(LONG, scores_prompt=False))
    (third,) = engine.add(request_of(LONG[::-1], scores_prompt=True))
    for n in range(2, 6):
        written.take(engine)
        assert len(written.ids[first]) == n and (second in written.ids) == (n == 5)
    written.take_all(engine)
    assert model.widths[:9] == [(1, 2), *[(1, 1), (1, 5)] * 3, (1, 1), (1, 3)]
    assert max(n for _, n in model.widths) == 5
    expected = [ids_of(random_model("llama"), sample.request)[0] for sample in (first, second, third)]
    assert [written.ids[sample] for sample in (first, second, third)] == expected


def test_short_prompts_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "PREFILL", 12)
    model = Widths(random_model("llama"))
    engine = engine_of(model)
    for prompt in ([1, 2, 3], [4, 5, 6, 7], [8, 9], [2, 1, 2]):
        engine.add(request_of(prompt))
    Written().take_all(engine)
    assert model.widths[:3] == [(3, 4), (3, 1), (1, 3)]


def test_at_most_max_rows_run_and_a_request_with_more_runs_alone() -> None:
    model = Widths(random_model("llama"))
    engine, written = engine_of(model, max_rows=3), Written()
    counts = [2, 1, 1, 5, 2]
    requests = [request_of([1, 2 + i], DRAWN, samples=range(n)) for i, n in enumerate(counts)]
    rows = [engine.add(request) for request in requests]
    assert len(engine._waiting) == 5
    while not engine.is_idle:
        written.take(engine)
        live = {sample.request for sample in engine._live if sample not in written.finish}
        assert n_live(engine) <= 3 or live <= {requests[3]}
    assert [len(samples) for samples in rows] == counts and len(written.finish) == sum(counts)
    assert max(n for n, _ in model.widths) == 5
    assert [written.ids[sample] for sample in rows[3]] == ids_of(random_model("llama"), requests[3])


def test_rows_are_ended_before_during_and_after_their_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_engine, "PART_BETWEEN", 5)
    engine, written = engine_of(random_model("llama"), max_rows=2), Written()
    (kept,) = engine.add(request_of([3, 1], replace(GREEDY, max_new_tokens=6)))
    written.take(engine)
    (read,) = engine.add(request_of(LONG))
    (waiting,) = engine.add(request_of([7]))
    engine.end(waiting)
    written.take(engine)
    assert not engine._waiting and n_live(engine) == 2
    engine.end(read)
    written.take(engine)
    assert n_live(engine) == 1
    several = engine.add(request_of([2], DRAWN, samples=range(2)))
    engine.end(several[0])
    written.take_all(engine)
    assert {*written.ids} == {kept, several[1]} == {*written.finish}
    assert written.ids[several[1]] == ids_of(random_model("llama"), several[1].request)[1]
    assert engine.is_idle and n_live(engine) == 0


def test_a_request_without_new_ids_only_scores_its_prompt() -> None:
    model = random_model("gpt")
    for scores_prompt in (True, False):
        request = request_of(LONG, n_new=0, n_top=1, scores_prompt=scores_prompt)
        (sample,), written = alone(model, request)
        assert written.ids[sample] == [] and written.finish[sample] == "length"
        assert_equal_scores(sample.prompt, recomputed(model, request, 0)[1] if scores_prompt else [])


def test_after_an_error_of_the_model_the_engine_is_empty_and_works() -> None:
    """The error comes from a step of the rows, or from the reading of a prompt."""
    expected = ids_of(random_model("llama"), request_of([3, 1]))
    for fails_at in (1, 2, 3):
        engine = engine_of(Widths(random_model("llama"), fails_at), max_bytes=1 << 20)
        engine.add(request_of(LONG))
        with pytest.raises(RuntimeError, match="the model has failed"):
            Written().take_all(engine)
        engine.reset()
        assert engine.is_idle and n_live(engine) == len(engine._waiting) == 0
        (sample,) = engine.add(request_of([3, 1]))
        assert [Written().take_all(engine).ids[sample]] == expected


def test_the_states_of_a_conversation_are_found_again() -> None:
    """Each turn reads only what is new, also after an answer; other settings change nothing."""
    model = random_model("llama")
    engine, ids = engine_of(model, max_bytes=1 << 20, max_len=64), [3, 1, 4, 1] * 4
    for turn in range(3):
        request = Request(ids, Settings(replace(DRAWN, seed=turn), 64))
        (sample,) = engine.add(request)
        n_read = engine.n_read
        new = Written().take_all(engine).ids[sample]
        (other,) = engine_of(model, max_len=64).add(request)
        assert sample.n_shared == (len(ids) - 3 if turn else 0)
        assert engine.n_read - n_read == len(ids) - sample.n_shared
        engine_alone = engine_of(model, max_len=64)
        (other,) = engine_alone.add(request)
        assert new == Written().take_all(engine_alone).ids[other]
        ids = [*ids, *new, 7, 8]  # the last new id is not read yet
    assert engine.prefixes.n_shared_ids == sum(len(ids) - 3 for ids in ([0] * 26, [0] * 36))


def test_a_common_beginning_is_read_once_by_prompts_that_come_together() -> None:
    model = Widths(random_model("llama"))
    engine, beginning = engine_of(model, max_bytes=1 << 20), LONG
    samples = [engine.add(request_of([*beginning, 10 + i, i]))[0] for i in range(4)]
    written = Written().take_all(engine)
    assert [sample.n_shared for sample in samples] == [0, 18, 18, 18] and engine.n_read == 20 + 3 * 2
    assert (3, 2) in model.widths, "prompts that share a known beginning are read together"
    for sample in samples:
        assert [written.ids[sample]] == ids_of(random_model("llama"), sample.request)
    engine = engine_of(random_model("llama"))
    samples = [engine.add(request_of([*beginning, 10 + i, i]))[0] for i in range(4)]
    Written().take_all(engine)
    assert engine.n_read == 4 * 20 and not any(sample.n_shared for sample in samples), "without a cache all is read"


def test_sources_are_not_kept() -> None:
    engine = engine_of(random_model("paper"), max_bytes=1 << 20)
    for _ in range(2):
        engine.add(request_of(LONG, source=SOURCE))
        Written().take_all(engine)
    assert len(engine.prefixes) == 0 and engine.n_read == 2 * len(LONG)


def test_the_configurations_are_those_of_all_lineages() -> None:
    assert {*DECODERS} <= {*GENERATORS} - {*CROSS} and {*WITH_SOURCE} <= {*CROSS, *RECURRENT}
