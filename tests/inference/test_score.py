"""Forced scores equal the log-probabilities of one uncached forward pass, for every batching."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from configs import CONFIGS, GENERATORS, SEQ2SEQ, random_ids, random_model
from glassformer.common.errors import UserError
from glassformer.inference.score import (
    Score,
    continuation_scores,
    fit_context,
    forced_scores,
    split_pair,
    text_scores,
    windows,
)
from glassformer.tokenization.tokenizer import Tokenizer
from tolerances import F64, near

SOURCES = [[3, 1, 4, 9], [5], [9, 2, 6, 5, 3, 5, 8], [8, 9], [5]]
TARGETS = [[4, 4, 2], [7, 8, 9, 1, 0, 3, 5, 2], [2], [6, 2], []]
CONTEXTS = [[3, 1, 4, 9], [5], [3, 1, 4, 9], [8, 9], [8, 9]]  # two shared contexts, one with targets of unequal length
ALONE = [name for name in GENERATORS if name not in SEQ2SEQ]


@pytest.mark.parametrize(("name", "max_tokens"), [("paper", 1), ("paper", 1000), *((name, 12) for name in SEQ2SEQ)])
def test_every_token_equals_an_uncached_forward(name: str, max_tokens: int) -> None:
    model = random_model(SEQ2SEQ[name])
    scores = forced_scores(model, SOURCES, TARGETS, start_id=1, max_tokens=max_tokens)
    for source, target, score in zip(SOURCES, TARGETS, scores, strict=True):
        with torch.no_grad():
            log_probs = model(torch.tensor([[1, *target]]), source_ids=torch.tensor([source])).log_softmax(-1)[0]
        expected = [float(log_probs[t, token]) for t, token in enumerate(target)]
        assert score == near(expected, dtype=F64)
        assert sum(score) == near(sum(expected), dtype=F64)


@pytest.mark.parametrize(("name", "max_tokens"), [("gpt", 1), ("gpt", 1000), *((name, 25) for name in ALONE)])
def test_every_token_after_its_context_equals_an_uncached_forward(name: str, max_tokens: int) -> None:
    model = random_model(name)
    scores = continuation_scores(model, CONTEXTS, TARGETS, max_tokens=max_tokens)
    for context, target, score in zip(CONTEXTS, TARGETS, scores, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*context, *target]]))[0, len(context) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(target, dtype=torch.long)[:, None]).squeeze(1)
        assert score == near(expected.tolist(), dtype=F64)


def test_a_shared_context_is_read_once() -> None:
    model = random_model("gpt")
    read: list[tuple[int, ...]] = []

    class Counting:
        start = model.start

        def step(self, token_ids: torch.Tensor, *rest: object) -> object:
            read.append(tuple(token_ids.shape))
            return model.step(token_ids, *rest)

    continuation_scores(Counting(), [[1, 2, 3]] * 4, [[4], [5], [6], [7]])  # type: ignore[arg-type]
    assert read == [(1, 3)]


def test_probabilities_of_all_continuations_sum_to_one() -> None:
    model = random_model(SEQ2SEQ["paper"])
    source = random_ids(19, 6).tolist()
    scores = forced_scores(model, [source] * 19, [[4, token] for token in range(19)], start_id=1)
    assert sum(torch.tensor(s[1]).exp().item() for s in scores) == near(1)


def test_a_source_without_its_target_is_an_error() -> None:
    with pytest.raises(ValueError, match="shorter"):
        forced_scores(random_model(SEQ2SEQ["paper"]), [[1], [2]], [[3]], start_id=1)


@pytest.mark.parametrize("start", [[], [99], [98, 99]])
@pytest.mark.parametrize("n", range(12))
def test_windows_score_every_id_once(n: int, start: list[int]) -> None:
    ids = list(range(n))
    found = list(windows(ids, start, 4))
    assert [i for _, target in found for i in target] == ids[not start :]
    assert all(len(context) + len(target) <= 5 and context for context, target in found)
    assert all(len(context) + len(target) == 5 for context, target in found[1:])
    read: Sequence[int] = [*start, *ids]
    for context, target in found:
        at = read.index(target[0])
        assert read[at - len(context) : at] == context


def test_texts_follow_a_start_token_and_targets_follow_a_context() -> None:
    tokenizer = Tokenizer.train(["ab ba"], vocab_size=0, scheme="char", special_tokens=("[BOS]",))
    model = random_model("gpt")
    start, ids = [0], tokenizer.encode("ab ba")
    with torch.no_grad():
        log_probs = model(torch.tensor([[*start, *ids]])).log_softmax(-1)[0]
        unstarted = model(torch.tensor([ids])).log_softmax(-1)[0]
    expected = [float(log_probs[t, token]) for t, token in enumerate(ids)]
    whole, empty = text_scores(model, tokenizer, ["ab ba", ""], start=start)
    assert whole.log_prob == pytest.approx(sum(expected)) and (whole.n_tokens, whole.n_bytes) == (5, 5)
    assert whole.bits_per_byte == pytest.approx(-sum(expected) / 5 / math.log(2)) == whole.bits_per_token
    assert whole.perplexity == pytest.approx(math.exp(-sum(expected) / 5))
    assert (empty.log_prob, empty.n_tokens) == (0, 0) and math.isnan(empty.perplexity + empty.bits_per_byte)
    (first,) = text_scores(model, tokenizer, [""], ["ab"], start=start)
    assert first.log_prob == pytest.approx(sum(expected[:2]))
    (second,) = text_scores(model, tokenizer, ["ab"], [" ba"], start=start)
    assert second.log_prob == pytest.approx(sum(expected[2:])), "a context begins with the start token"
    model.config = replace(model.config, max_len=3)
    cut = text_scores(model, tokenizer, ["ab ba ab ba", "ba"], ["ab", "ab"], start=start)
    model.config = replace(model.config, max_len=24)
    assert cut[0].log_prob == near(cut[1].log_prob, dtype=F64), "the first tokens of a long context are dropped"
    assert replace(cut[0], log_prob=cut[1].log_prob) == cut[1]
    (bare,) = text_scores(model, tokenizer, ["ab ba"], start=[])
    assert (bare.n_tokens, bare.n_bytes) == (4, 4), "the first token has no prediction, so its byte does not count"
    assert bare.log_prob == pytest.approx(sum(float(unstarted[t, ids[t + 1]]) for t in range(4)))
    (alone,) = text_scores(model, tokenizer, [""], ["ab"], start=[])
    assert (alone.n_tokens, alone.n_bytes) == (1, 1)
    assert alone.log_prob == pytest.approx(float(unstarted[0, ids[1]]))
    (one,) = text_scores(model, tokenizer, [""], ["a"], start=[])
    assert (one.log_prob, one.n_tokens, one.n_bytes) == (0, 0, 0)


@pytest.mark.parametrize(("context", "target", "n_bytes"), [(" ", "be", 0), (" ", "be or", 3), ("\n ", "be or", 5)])
def test_bytes_of_a_target_after_a_white_space_context(context: str, target: str, n_bytes: int) -> None:
    """The first token is not scored; it has the context's white space and the first bytes of the target."""
    tokenizer = Tokenizer.train(["to be or not to be"] * 2, vocab_size=300, special_tokens=())
    model = random_model(replace(CONFIGS["gpt"], vocab_size=tokenizer.vocab_size))
    (found,) = text_scores(model, tokenizer, [context], [target], start=[])
    scored = split_pair(tokenizer, context, target)[1][1:]
    assert found.n_tokens == len(scored) and found.n_bytes == n_bytes
    assert n_bytes == min(len(target), tokenizer.n_bytes_of(scored))


@pytest.mark.parametrize("start", [[], [8], [8, 9]], ids=len)
@pytest.mark.parametrize("n", range(1, 12))
def test_windows_read_the_whole_start_and_score_every_id_once(start: list[int], n: int) -> None:
    ids, max_len = list(range(10, 10 + n)), 4
    found = list(windows(ids, start, max_len))
    assert [token for _, target in found for token in target] == (ids if start else ids[1:])
    assert all(context and len(context) + len(target) <= max_len + 1 for context, target in found)
    if found:
        assert found[0][0] == (start or ids[:1])


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(UserError, match="has 5 tokens and the model's context is 4"):
        fit_context([1], [1, 2, 3, 4, 5], 4)
    tokenizer = Tokenizer.train(["abc abc abc"], vocab_size=300, special_tokens=())
    with pytest.raises(UserError, match="'c' has no token of its own after 'ab'"):
        split_pair(tokenizer, "ab", "c")
    assert Score(-1e6, 1, 1).perplexity == math.inf


def test_a_pair_of_empty_texts_has_the_score_0() -> None:
    """Without a start token, nothing is read."""
    tokenizer, network = Tokenizer.train(["abc"] * 3, vocab_size=0, scheme="char"), random_model("gpt")
    first, second = text_scores(network, tokenizer, ["", "ab"], ["", ""], start=[])
    assert first == Score(0.0, 0, 0) and second.log_prob == second.n_tokens == 0
