"""Beams of language models equal the reference; coverage penalties equal formulas; rules that leave no id end a row."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from configs import CONFIGS, CROSS, GENERATORS, RECURRENT, SEQ2SEQ, random_model
from glassformer.common.errors import UserError
from glassformer.config.recurrent import NoAttention
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.data.batching import padded
from glassformer.inference.beam import beam_search
from glassformer.inference.beam_reference import beam_search_reference
from glassformer.inference.constraints import Constraints, Past
from glassformer.inference.continuations import continue_prompts
from glassformer.inference.decodable import Ensemble
from glassformer.inference.drafts import PromptLookup
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Request, Settings, rows_of
from glassformer.inference.search import Hypothesis, Search, coverage_penalties
from glassformer.inference.server_engine import ServerEngine
from tolerances import F64, NETWORK, near

START, END, NOBODY = 1, 2, 999
DECODERS = [name for name in GENERATORS if name not in CROSS]
PROMPTS = [[3, 1, 4, 9], [5], [9, 3, 6, 5, 3, 5, 8], [8, 9], [5]]
SOURCES = [[3, 1, 4, 9], [5, 6], [9, 2, 6, 5, 3]]
ATTENDING = [
    name for name, config in SEQ2SEQ.items() if name not in RECURRENT or not isinstance(config.attention, NoAttention)
]


def same(found: Sequence[Sequence[Hypothesis]], expected: Sequence[Sequence[Hypothesis]]) -> None:
    assert [[(h.ids, h.ended) for h in row] for row in found] == [[(h.ids, h.ended) for h in row] for row in expected]
    for ours, theirs in zip(itertools.chain(*found), itertools.chain(*expected), strict=True):
        assert ours.log_prob == near(theirs.log_prob, terms=NETWORK, dtype=F64)
        assert ours.score == near(theirs.score, terms=NETWORK, dtype=F64)


def drawn_config(draw: random.Random, end_ids: Sequence[int] = ()) -> BeamConfig:
    return BeamConfig(
        draw.randint(1, 5),
        draw.choice([-0.5, 0.0, 0.6, 1.0]),
        draw.choice(["gnmt", "average"]),
        draw.choice(["shrink", "never", "full", "estimate"]),
        max_new_tokens=draw.randint(4, 8),
        min_new_tokens=draw.choice([0, 0, 1, 3]),
        no_repeat_ngram_size=draw.choice([0, 0, 1, 2, 3]),
        repetition_penalty=draw.choice([1.0, 1.0, 0.7, 1.4]),
        end_ids=tuple(end_ids),
    )


@pytest.mark.parametrize(("number", "name"), list(enumerate(DECODERS)))
def test_beams_of_prompts_equal_the_reference(number: int, name: str) -> None:
    """A batch with a cache equals each prompt alone without one; prompts repeat, and have several lengths."""
    model = random_model(name)
    max_len = 11  # the longest prompt reaches it
    free = continue_prompts(model, PROMPTS, Search(BeamConfig(4, max_new_tokens=6), None, NOBODY, max_len, 4))
    (end, _), (other, _) = Counter(token for row in free for h in row for token in h.ids[1:]).most_common(2)
    for case in range(3):
        config = drawn_config(random.Random(100 * number + case), [other] * (case % 2))
        search = Search(config, None, end, max_len, 1 + case % config.beam, suppress_ids=[0])
        found = continue_prompts(model, PROMPTS, search)
        same(found, [beam_search_reference(model, None, search, prompt=prompt) for prompt in PROMPTS])
        for prompt, row in zip(PROMPTS, found, strict=True):
            assert all(len(h.ids) <= min(config.max_new_tokens, max_len + 1 - len(prompt)) for h in row)
            assert all(len(h.ids) > config.min_new_tokens for h in row if h.ended)


@pytest.mark.parametrize(("number", "name"), list(enumerate(SEQ2SEQ)))
def test_rules_in_beams_of_targets_equal_the_reference(number: int, name: str) -> None:
    model = random_model(SEQ2SEQ[name])
    for case in range(2):
        config = drawn_config(random.Random(100 * number + case))
        search = Search(config, START, END, 24, 1 + case % config.beam)
        prefixes = [[4, 5], [], [6]]
        found = beam_search(model, padded(SOURCES, "cpu"), search, prefixes=prefixes)
        pairs = zip(SOURCES, prefixes, strict=True)
        same(found, [beam_search_reference(model, torch.tensor(source), search, prefix) for source, prefix in pairs])


def test_texts_of_a_beam_obey_the_rules() -> None:
    model = random_model("gpt")
    for case in range(20):
        config = drawn_config(random.Random(case))
        for row, prompt in zip(
            continue_prompts(model, PROMPTS, Search(config, None, END, 24, config.beam)), PROMPTS, strict=True
        ):
            for h in row:
                ids, n = [*prompt, *h.ids], config.no_repeat_ngram_size
                grams = [tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)] if n else []
                before = max(0, len(prompt) - n + 1)  # those of the prompt may repeat
                assert all(gram not in grams[:i] for i, gram in enumerate(grams) if i >= before)


class Weights:
    """A tap that keeps the weights of every attention to the source, by name."""

    def __init__(self, prefix: str = "", found: dict[str, list[Tensor]] | None = None) -> None:
        self.prefix, self.found = prefix, {} if found is None else found

    def __call__(self, name: str, x: Tensor) -> Tensor:
        if (self.prefix + name).endswith("cross_attn.weights"):
            self.found.setdefault(self.prefix + name, []).append(x)
        return x

    def scope(self, name: str) -> "Weights":
        return Weights(f"{self.prefix}{name}.", self.found)


def attention_of(model: Any) -> Any:
    """Return the function of token_ids and source_ids that gives the weights (1, T, S) of the last layer."""

    def attention(token_ids: Tensor, source_ids: Tensor) -> Tensor:
        tap = Weights()
        model(token_ids, source_ids=source_ids, tap=tap)
        last = max(tap.found, key=lambda name: [int(part) for part in name.split(".") if part.isdigit()])
        return torch.cat(tap.found[last], dim=2).mean(dim=1)

    return attention


@pytest.mark.parametrize(("number", "name"), list(enumerate(ATTENDING)))
def test_coverage_equals_the_reference(number: int, name: str) -> None:
    model = random_model(SEQ2SEQ[name])
    for case in range(2):
        config = replace(drawn_config(random.Random(number)), beam=3 + case)
        search = Search(config, START, END, 24, 3)
        prefixes = [[4, 5], [], [6]]
        plain = beam_search(model, padded(SOURCES, "cpu"), search, prefixes=prefixes)
        for weight in (0.0, 0.7):
            search = replace(search, config=replace(config, coverage_penalty=weight))
            found = beam_search(model, padded(SOURCES, "cpu"), search, prefixes=prefixes)
            if not weight:
                assert found == plain
                continue
            for source, prefix, row in zip(SOURCES, prefixes, found, strict=True):
                expected = beam_search_reference(
                    model, torch.tensor(source), search, prefix, attention=attention_of(model)
                )
                same([row], [expected])


@torch.no_grad()
@pytest.mark.parametrize("name", ["two_vocabularies", "bahdanau"])
def test_the_best_output_with_coverage_is_that_of_a_brute_force(name: str) -> None:
    """Score every target of at most 3 ids from a vocabulary of 4 by Wu 2016, equation 14."""
    config = SEQ2SEQ[name]
    changes = {"head": SEQ2SEQ["bart"].head} if name not in RECURRENT else {}
    model = random_model(replace(config, vocab_size=4, **changes))
    source, beta, alpha = [3, 1], 3.0, 0.6
    others = [token for token in range(4) if token != END]
    targets = [[*body, END] for n in range(3) for body in itertools.product(others, repeat=n)]
    targets += map(list, itertools.product(others, repeat=3))  # unfinished at the limit
    scores, without = {}, {}
    for target in targets:
        token_ids, source_ids = torch.tensor([[START, *target[:-1]]]), torch.tensor([source])
        log_p = model(token_ids, source_ids=source_ids)[0].log_softmax(-1)
        coverage = attention_of(model)(token_ids, source_ids)[0].sum(dim=0).tolist()
        penalty = sum(math.log(min(x, 1.0)) for x in coverage)
        total = sum(float(log_p[t, token]) for t, token in enumerate(target))
        without[tuple(target)] = total / ((5 + len(target)) / 6) ** alpha
        scores[tuple(target)] = without[tuple(target)] + beta * penalty
    best = sorted(scores, key=lambda target: -scores[target])
    assert best != sorted(scores, key=lambda target: -without[target])  # the penalty changes the order
    for early_stopping in ("shrink", "never"):
        of_search = BeamConfig(4 * len(targets), alpha, "gnmt", early_stopping, 3, coverage_penalty=beta)  # type: ignore[arg-type]
        search = Search(of_search, START, END, 24, len(targets))
        (found,) = beam_search(model, padded([source], "cpu"), search)
        expected = best if early_stopping == "never" else sorted(best, key=lambda target: END not in target)
        assert [tuple(h.ids) for h in found] == expected
        assert [h.score for h in found] == near([scores[tuple(h.ids)] for h in found], terms=NETWORK, dtype=F64)
        (first,) = beam_search(model, padded([source], "cpu"), replace(search, n_best=1))
        assert first == found[:1]  # stopping early gives the same result


def test_a_hypothesis_that_attends_to_all_sources_is_not_punished() -> None:
    config = BeamConfig(coverage_penalty=2.0)
    assert coverage_penalties(torch.tensor([[1.0, 1.0], [1.0, 3.0]]), config).tolist() == [0.0, 0.0]
    assert coverage_penalties(torch.tensor([[1.0, 0.25]]), config).item() < 0
    assert coverage_penalties(torch.tensor([[0.0, 1.0]]), config).isfinite().all()


def test_settings_that_a_search_cannot_follow_are_refused() -> None:
    covering = BeamConfig(2, coverage_penalty=0.5, max_new_tokens=4)
    sources = padded(SOURCES, "cpu")
    paper = random_model(SEQ2SEQ["paper"])
    for model in (random_model(SEQ2SEQ["cho"]), Ensemble([paper, paper])):
        with pytest.raises(UserError, match="coverage_penalty needs the attention of one model to the source"):
            beam_search(model, sources, Search(covering, START, END, 24))
    with pytest.raises(UserError, match="coverage_penalty needs a source, and a language model reads none"):
        continue_prompts(random_model("gpt"), PROMPTS, Search(covering, None, END, 24))
    with pytest.raises(UserError, match="max_ratio needs a source"):
        continue_prompts(random_model("gpt"), PROMPTS, Search(BeamConfig(2, max_ratio=2.0), None, END, 24))
    with pytest.raises(UserError, match="prompt 1 has 4 tokens and the model's context is 3: shorten it"):
        continue_prompts(random_model("gpt"), PROMPTS, Search(BeamConfig(2), None, END, 3))
    with pytest.raises(UserError, match="prompt 2 is empty"):
        continue_prompts(random_model("gpt"), [[3], []], Search(BeamConfig(2), None, END, 9))
    with pytest.raises(UserError, match="min_new_tokens is 5 and max_new_tokens is 4"):
        Search(BeamConfig(2, max_new_tokens=4, min_new_tokens=5), START, END, 24)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("lookup", [0, 3])
def test_a_row_ends_where_no_id_is_allowed(temperature: float, lookup: int) -> None:
    """With each id at most once, a row has as many ids as the vocabulary; the others continue."""
    model = random_model(replace(CONFIGS["gpt"], vocab_size=6, decoder_start_id=None, eos_id=None, pad_id=None))
    config = GenerationConfig(9, temperature, no_repeat_ngram_size=1, seed=4)
    prompts = [[5, 3], [0, 1, 2, 3, 4, 5], [2]]
    for ends in ([], [4]):
        settings = Settings(config, 20, ends)
        written: list[list[int]] = [[] for _ in prompts]
        drafter = PromptLookup(lookup) if lookup else None
        for step in Generation(model, prompts, settings, drafter=drafter):
            for row, token in step.items():
                written[row].append(token)
        engine = ServerEngine(model, max_len=20, device="cpu")
        of_engine: dict[Any, list[int]] = {engine.add(Request(prompt, settings))[0]: [] for prompt in prompts}
        finishes = []
        while not engine.is_idle:
            for one in engine.step():
                of_engine[one.row] += [] if one.token is None else [one.token]
                finishes += [one.finish] if one.finish else []
        assert len(finishes) == len(prompts)
        for row, prompt, by_engine in zip(written, prompts, of_engine.values(), strict=True):
            assert len({*prompt, *row}) == len(prompt) + len(row)
            assert (4 in ends and 4 in row) or len(prompt) + len(row) == 6
            if not lookup or not temperature:
                assert row == by_engine


def test_rules_leave_the_ids_before_the_next_one_unchanged() -> None:
    config = GenerationConfig(9, no_repeat_ngram_size=1, min_new_tokens=5)
    past = Past([4, 2], 1)
    scores = Constraints(config, [0], [5], "cpu").exclude_(torch.zeros(1, 6), [past])
    assert past.ids == [4, 2]
    assert scores.isinf().nonzero()[:, 1].tolist() == [0, 2, 4, 5]


def test_rows_that_differ_have_their_own_draws() -> None:
    """Without `differ`, sample i of each prompt has the draws of sample i."""
    settings = Settings(GenerationConfig(4, seed=3), 20, samples=range(2), differ=True)
    for differ, n_different in ((True, 4), (False, 2)):
        requests = [Request(ids, replace(settings, differ=differ)) for ids in ([1], [2])]
        rows = [row for first, request in zip((0, 2), requests, strict=True) for row in rows_of(request, first)]
        assert len({row.generator.random() for row in rows}) == n_different
