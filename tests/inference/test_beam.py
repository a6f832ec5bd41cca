"""Batched beam search equals the readable reference for one sentence, hypothesis by hypothesis."""

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from configs import SEQ2SEQ, random_model
from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.inference.beam import SentenceSearch, beam_search
from glassformer.inference.beam_reference import beam_search_reference
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.score import forced_scores
from glassformer.inference.search import Hypothesis, Search, length_penalty
from tolerances import F64, NETWORK, near

NUMBERED = pytest.mark.parametrize(("number", "name"), list(enumerate(SEQ2SEQ)))
START, MAX_LEN, NOBODY, END = 1, 24, 999, 2
SOURCES = [[3, 1, 4, 9], [5], [9, 2, 6, 5, 3, 5, 8], [8, 9]]
PENALTIES = [(a, n) for a in (0.0, 0.6, 1.0, -0.5) for n in ("gnmt", "average")]


def batch(sources: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return (N, S) ids, padded with a real id that would change the result, and their mask."""
    width = max(map(len, sources))
    ids = torch.tensor([[*row, *[7] * (width - len(row))] for row in sources])
    return ids, torch.arange(width) < torch.tensor([[len(row)] for row in sources])


def searched(
    model: Any,
    sources: Sequence[Sequence[int]],
    config: BeamConfig,
    end: int,
    prefixes: Sequence[Sequence[int]] = (),
    **options: Any,
) -> list[list[Hypothesis]]:
    search = Search(config, START, end, **{"max_len": MAX_LEN} | options)
    return beam_search(model, batch(sources), search, prefixes=prefixes)


def by_reference(
    forward: Any,
    sources: Sequence[Sequence[int]],
    config: BeamConfig,
    end: int,
    prefixes: Sequence[Sequence[int]] | None = None,
    **options: Any,
) -> list[list[Hypothesis]]:
    search = Search(config, START, end, **{"max_len": MAX_LEN} | options)
    return [
        beam_search_reference(forward, torch.tensor(source), search, prefix)
        for source, prefix in zip(sources, prefixes or [()] * len(sources), strict=True)
    ]


def same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[(h.ids, h.ended) for h in row] for row in found] == [[(h.ids, h.ended) for h in row] for row in expected]
    for ours, theirs in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert ours.log_prob == near(theirs.log_prob, dtype=F64)
        assert ours.score == near(theirs.score, dtype=F64)


class Remembered:
    """The forward of a model, which computes each pair of a source and a target once; references need many again."""

    def __init__(self, model: Any) -> None:
        self.model, self.logits = model, dict[tuple[tuple[int, ...], ...], Tensor]()

    def __call__(self, token_ids: Tensor, source_ids: Tensor) -> Tensor:
        key = tuple(token_ids[0].tolist()), tuple(source_ids[0].tolist())
        if key not in self.logits:
            self.logits[key] = self.model(token_ids, source_ids=source_ids)
        return self.logits[key]


@functools.cache
def with_an_end(name: str) -> tuple[Any, Remembered, int]:
    """Return a model, its forward, and the id whose first position varies most.

    As the end token, this id gives hypotheses of many lengths.
    """
    model = random_model(SEQ2SEQ[name])
    found = searched(model, SOURCES, BeamConfig(5, 0.0, max_new_tokens=9), NOBODY, n_best=5)
    first = {(token, h.ids.index(token)) for row in found for h in row for token in h.ids}
    return model, Remembered(model), Counter(token for token, _ in first).most_common(1)[0][0]


@NUMBERED
def test_batched_equals_the_reference(number: int, name: str) -> None:
    """Vary beam, penalty, n-best and limits; hypotheses end at several lengths."""
    model, forward, end = with_an_end(name)
    seen: list[Hypothesis] = []
    settings = list(enumerate(itertools.product((1, 2, 3, 5), PENALTIES)))
    for i, (beam, (penalty, length_penalty_type)) in settings[(number + 4) % 9 :: 9]:  # each has two or three models
        config = BeamConfig(beam, penalty, length_penalty_type, max_new_tokens=4 + i % 5)  # type: ignore[arg-type]
        n_best = 1 + i % beam
        for early_stopping in ("shrink", "never", "full", "estimate"):
            config = replace(config, early_stopping=early_stopping, end_ids=(end + 1,) * (i % 2))  # type: ignore[arg-type]
            found = searched(model, SOURCES, config, end, n_best=n_best)
            same(found, by_reference(forward, SOURCES, config, end, n_best=n_best))
            seen += itertools.chain(*found)
    assert len({len(h.ids) for h in seen if h.ended}) > 2


LIMITS = (
    (BeamConfig(4, 1.0, max_new_tokens=8), 24),
    (BeamConfig(4, 1.0, early_stopping="never", max_new_tokens=8), 24),
    (BeamConfig(3, 0.6, "average", max_new_tokens=30), 6),  # the context ends first
    (BeamConfig(2, 0.0, max_new_tokens=30, max_ratio=0.5), 24),  # 12, 10, 13 and 11 ids
    (BeamConfig(4, 1.0, max_new_tokens=5), 24),  # a prefix as long as the output
    (BeamConfig(4, 1.0, "average", early_stopping="never", max_new_tokens=8), 24),
)
"""Settings with the context of the model; each model has two of them."""


@NUMBERED
def test_prefixes_limits_and_banned_ids(number: int, name: str) -> None:
    model, forward, end = with_an_end(name)
    prefixes = [[4, 4], [], [6, 2, 8, 3, 0], [5]]
    prefixes = [[token if token != end else 9 for token in prefix] for prefix in prefixes]
    suppress_ids = [token for token in (0, 3, 11, 12) if token != end]
    for config, max_len in LIMITS[number % 3 :: 3]:
        options = {"prefixes": prefixes, "suppress_ids": suppress_ids, "max_len": max_len, "n_best": 2}
        found = searched(model, SOURCES, config, end, **options)
        same(found, by_reference(forward, SOURCES, config, end, **options))
        for source, prefix, row in zip(SOURCES, prefixes, found, strict=True):
            for h in row:
                assert h.ids[: len(prefix)] == prefix and not set(h.ids[len(prefix) :]) & set(suppress_ids)
                assert len(h.ids) <= Search(config, START, end, max_len).limit(len(source))
                assert h.ended == (h.ids[-1:] == [end])


@NUMBERED
def test_beam_one_is_greedy_for_every_penalty(number: int, name: str) -> None:
    model, _, end = with_an_end(name)
    greedy = GenerationConfig(max_new_tokens=12, temperature=0.0)
    prompts = [[START], [START, 4 if end != 4 else 5], [START], [START]]
    rows = [prompt[1:] for prompt in prompts]
    for step in Generation(model, prompts, Settings(greedy, 9, [end], [3]), sources=SOURCES):
        for row, token in step.items():
            rows[row].append(token)
    for penalty, length_penalty_type in PENALTIES[number % 4 :: 4]:
        early_stopping = "never" if penalty else "shrink"
        config = BeamConfig(1, penalty, length_penalty_type, early_stopping, max_new_tokens=12)  # type: ignore[arg-type]
        prefixes = [prompt[1:] for prompt in prompts]
        found = searched(model, SOURCES, config, end, max_len=9, suppress_ids=[3], prefixes=prefixes)
        assert [row[0].ids for row in found] == rows


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_a_batch_equals_single_searches_and_forced_scores(name: str) -> None:
    model, _, end = with_an_end(name)
    config = BeamConfig(4, 1.0, max_new_tokens=10)
    found = searched(model, SOURCES, config, end, n_best=3)
    same(found, [searched(model, [source], config, end, n_best=3)[0] for source in SOURCES])
    pairs = [(source, h) for source, row in zip(SOURCES, found, strict=True) for h in row]
    scores = forced_scores(model, [source for source, _ in pairs], [h.ids for _, h in pairs], start_id=START)
    for (_, h), score in zip(pairs, scores, strict=True):
        assert h.log_prob == near(sum(score), dtype=F64)
        assert h.score == near(sum(score) / length_penalty(len(h.ids), config), dtype=F64)


@pytest.mark.parametrize(("penalty", "length_penalty_type"), PENALTIES)
def test_an_exhaustive_beam_finds_the_best_output(penalty: float, length_penalty_type: Any) -> None:
    """Score every target of at most 3 tokens from a vocabulary of 5."""
    model = random_model(replace(SEQ2SEQ["two_vocabularies"], vocab_size=5, head=SEQ2SEQ["bart"].head))
    end, source = 2, SOURCES[0]
    others = [token for token in range(5) if token != end]
    targets = [[*body, end] for n in range(3) for body in itertools.product(others, repeat=n)]
    config = BeamConfig(len(targets) * 5, penalty, length_penalty_type, max_new_tokens=3)
    scores = forced_scores(model, [source] * len(targets), targets, start_id=START)
    best = sorted((-sum(s) / length_penalty(len(t), config), t) for s, t in zip(scores, targets, strict=True))
    found = searched(model, [source], config, end, n_best=len(targets))[0]
    assert [h.ids for h in found] == [target for _, target in best]
    assert all(h.ended for h in found)
    same([found[:1]], searched(model, [source], config, end))  # stopping early gives the same result


class Scripted:
    """A model whose next token depends only on the last one, by a table of logits."""

    def __init__(self, table: Tensor) -> None:
        self.table, self.rows_of_steps = table, []

    def start(self, n_rows: int, max_len: int, source_ids: Tensor, source_attention_mask: Tensor | None) -> Any:
        return _Nothing()

    def step(self, token_ids: Tensor, state: Any, attention_mask: Tensor | None = None) -> tuple[Tensor, Any]:
        self.rows_of_steps.append(len(token_ids))
        return self.table[token_ids], state

    def __call__(self, token_ids: Tensor, source_ids: Tensor) -> Tensor:
        return self.table[token_ids]


class _Nothing:
    def select(self, rows: Tensor) -> "_Nothing":
        return self


def test_ties_prefer_the_better_parent_then_the_smaller_id() -> None:
    for n_ids, beam in ((6, 3), (40, 5)):
        model = Scripted(torch.zeros(n_ids, n_ids))
        config = BeamConfig(beam, 1.0, max_new_tokens=3)
        found = searched(model, SOURCES, config, NOBODY, n_best=beam)
        assert [h.ids for h in found[0]] == [[0, 0, token] for token in range(beam)]
        same(found, by_reference(model, SOURCES, config, NOBODY, n_best=beam))


@pytest.mark.parametrize("n_ids", [12, 300, 512])  # searched one by one, and in chunks
@pytest.mark.parametrize("n_levels", [3, 1000])
def test_the_search_is_exact_for_every_vocabulary_size(n_ids: int, n_levels: int) -> None:
    """Few distinct probabilities make many ties."""
    table = torch.randint(0, n_levels, (n_ids, n_ids), generator=torch.Generator().manual_seed(3)) * (3 / n_levels)
    model = Scripted(table.double())
    for beam in range(1, 6):
        config, suppress_ids = BeamConfig(beam, 0.6, max_new_tokens=6), [0, 7, n_ids - 1]
        found = searched(model, SOURCES, config, 5, n_best=beam, suppress_ids=suppress_ids)
        same(found, by_reference(model, SOURCES, config, 5, n_best=beam, suppress_ids=suppress_ids))


def test_finished_sentences_and_hypotheses_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, end = with_an_end("paper")
    rows: list[int] = []
    step = model.step
    monkeypatch.setattr(model, "step", lambda ids, *rest: (rows.append(len(ids)), step(ids, *rest))[1])
    found = searched(model, SOURCES, BeamConfig(4, 0.0, max_new_tokens=20), end, n_best=4)
    lengths = [[len(h.ids) for h in row] for row in found]
    # one row per sentence, then one row per unfinished hypothesis
    expected = [sum(sum(n > step for n in of_one) for of_one in lengths) for step in range(1, max(map(max, lengths)))]
    assert rows == [len(SOURCES), *expected] and len(set(rows)) > 2


def test_the_search_stops_when_no_open_hypothesis_can_win() -> None:
    """The end is nearly certain in step 1: the other three hypotheses need not reach the limit."""
    logits = torch.zeros(8, 8)
    logits[:, 2] = 9.0
    model = Scripted(logits)
    found = searched(model, SOURCES, BeamConfig(4, 0.6, max_new_tokens=20), 2)
    assert [row[0].ids for row in found] == [[2]] * 4
    assert model.rows_of_steps == [4]


def test_half_precision_scores_are_summed_in_fp32() -> None:
    """log p of 20 tokens from bfloat16 logits equals the sum in double precision."""
    table = (torch.randn(9, 9, generator=torch.Generator().manual_seed(1)) * 2).bfloat16()
    config = BeamConfig(3, 1.0, max_new_tokens=20)
    found = searched(Scripted(table), SOURCES[:1], config, NOBODY)[0][0]
    expected = searched(Scripted(table.double()), SOURCES[:1], config, NOBODY)[0][0]
    assert found.ids == expected.ids
    assert found.log_prob == near(expected.log_prob, terms=NETWORK)


def test_suppressing_every_id_ends_the_search_unfinished() -> None:
    found = searched(Scripted(torch.zeros(4, 4)), SOURCES, BeamConfig(2), NOBODY, suppress_ids=[0, 1, 2, 3])
    assert found == [[Hypothesis([], 0.0, 0.0, ended=False)]] * 4


def test_impossible_settings_are_refused() -> None:
    model = random_model(SEQ2SEQ["paper"])
    with pytest.raises(UserError, match="n_best is 5 and must be from 1 to the beam, 4"):
        searched(model, SOURCES, BeamConfig(4), 2, n_best=5)
    with pytest.raises(UserError, match="prefix of output 3 has 4 tokens and the output may have 3"):
        searched(model, SOURCES, BeamConfig(4, max_new_tokens=3), 2, prefixes=[[], [4], [4] * 4, []])
    with pytest.raises(ValueError, match="prefix of output 1 contains the end token"):
        searched(model, SOURCES, BeamConfig(4), 2, prefixes=[[2], [], [], []])
    with pytest.raises(ValueError, match="slide"):
        Generation(model, [[1]], Settings(GenerationConfig(), 9, slide=True), sources=[[3, 1]])


def test_length_penalties() -> None:
    for n in (1, 7, 40):
        assert length_penalty(n, BeamConfig(length_penalty=0.0)) == 1.0
        assert length_penalty(n, BeamConfig(length_penalty=0.6)) == pytest.approx(((5 + n) / 6) ** 0.6)
        assert length_penalty(n, BeamConfig(length_penalty=-0.5, length_penalty_type="average")) == pytest.approx(
            1 / math.sqrt(n)
        )


@pytest.mark.parametrize(("penalty", "best"), [(-1.0, [5, END]), (1.0, [5, 5, 5, END])])
def test_a_search_continues_while_a_live_hypothesis_can_win(penalty: float, best: list[int]) -> None:
    """The best possible score is that of the next length for a negative penalty, and that of the limit otherwise."""
    config = BeamConfig(2, penalty, "average", early_stopping="never", max_new_tokens=10)
    search = SentenceSearch(Search(config, START, END, MAX_LEN), 10, [], 0.0)
    search.advance([(-math.log(p), 0, token) for p, token in ((0.7, 5), (0.3, END))])
    while not search.is_done:
        ends = len(search.live[0][0]) + 1 == len(best)
        cost = -search.live[0][1]
        search.advance([(cost - math.log(0.99), 0, END if ends else 5)])
    assert search.result()[0].ids == best


def test_the_limit_bounds_the_score_that_a_live_hypothesis_can_reach() -> None:
    search = Search(BeamConfig(2, 1.0, "average", early_stopping="never"), START, END, MAX_LEN)
    finished = [Hypothesis([END], -0.2, -0.2, ended=True)]
    assert not search.is_decided(finished, ([5, 5], -1.0), 10), "-1 / 10 would be better"
    assert search.is_decided(finished, ([5, 5], -1.0), 4), "-1 / 4 would be worse"
