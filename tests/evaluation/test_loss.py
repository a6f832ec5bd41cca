"""The reported loss: every target counts once; total nats divided by total tokens, for every batching."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import random_model
from glassformer.common.seeds import Stream, rng
from glassformer.data.batching import Batch, Example, evaluation_windows
from glassformer.data.tokens import TokenFile
from glassformer.evaluation import loss as evaluation
from glassformer.evaluation.loss import EvaluationSums, evaluate_loss, evaluation_rows
from glassformer.evaluation.text import longest_overlap
from glassformer.models.devices import evaluation_mode
from glassformer.objectives.causal import CausalObjective
from tolerances import near

CPU = torch.device("cpu")


def tokens(n: int, starts: tuple[int, ...] = (0,), vocab_size: int = 19) -> TokenFile:
    ids = np.random.default_rng(1).integers(vocab_size, size=n).astype(np.uint16)
    return TokenFile("the text", ids, np.array(starts), n_bytes=3 * n, n_characters=2 * n)


def naive(network: torch.nn.Module, ids: np.ndarray[Any, Any], context: int) -> tuple[float, int]:
    """Compute the loss window by window, target by target."""
    nats, n = 0.0, 0
    with torch.no_grad():
        for first in range(0, len(ids) - 1, context):
            window = torch.from_numpy(ids[first : first + context + 1].astype(np.int64))
            log_p = network(window[None, :-1])[0].log_softmax(-1)
            for position, target in enumerate(window[1:]):
                nats -= float(log_p[position, target])
                n += 1
    return nats, n


@pytest.mark.parametrize("n", [2, 9, 10, 17, 75])
def test_the_loss_equals_a_naive_loop_over_windows(n: int) -> None:
    network, text = random_model("llama"), tokens(n)
    report = evaluate_loss(network, CausalObjective(), evaluation_rows(text, 8, 19, False), CPU).report(text.n_bytes)
    nats, n_targets = naive(network, text.ids, 8)
    assert report.n_tokens == n_targets == n - 1
    assert report.loss == near(nats / n_targets)
    assert report.perplexity == near(math.exp(nats / n_targets))
    assert report.bits_per_byte == near(nats / math.log(2) / (3 * n))


def test_every_model_is_evaluated_with_the_same_draws() -> None:
    drawn: list[float] = []

    class Drawing(CausalObjective):
        def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
            drawn.append(rng.random())
            return super().collate(examples, rng)

    for seed in (0, 1):
        evaluate_loss(random_model("llama", seed), Drawing(), evaluation_rows(tokens(9), 8, 19, False), CPU)
    assert drawn == [rng(0, Stream.EVALUATION).random()] * 2


def test_separate_documents_have_separate_windows() -> None:
    network, starts = random_model("llama"), (0, 1, 14, 30)
    text = tokens(33, starts)
    report = evaluate_loss(network, CausalObjective(), evaluation_rows(text, 8, 19, True), CPU).report()
    parts = [naive(network, text.ids[a:b], 8) for a, b in zip(starts, (*starts[1:], 33), strict=True)]
    assert report.n_tokens == sum(n for _, n in parts) == 33 - 4
    assert report.loss == near(sum(nats for nats, _ in parts) / (33 - 4))
    assert report.bits_per_byte is None


@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
def test_pitfall_20_the_loss_does_not_depend_on_the_batches(batch_size: int) -> None:
    """The last window is shorter: a mean of batch means, or a mean over padding, would differ."""
    network, text = random_model("llama"), tokens(75)
    report = evaluate_loss(network, CausalObjective(), evaluation_windows(text, 8, batch_size), CPU).report()
    nats, n = naive(network, text.ids, 8)
    assert report.loss == near(nats / n)
    assert report.perplexity == near(math.exp(nats / n))


def test_the_size_of_a_batch_is_bounded_by_tokens_and_by_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    text = tokens(1000)
    monkeypatch.setattr(evaluation, "MAX_TOKENS", 80)
    assert {len(rows) for rows in evaluation_rows(text, 8, 19, False)} == {10, 5}
    monkeypatch.setattr(evaluation, "MAX_LOGITS", 19 * 8 * 4)
    assert max(len(rows) for rows in evaluation_rows(text, 8, 19, False)) == 4
    monkeypatch.setattr(evaluation, "MAX_LOGITS", 1)
    assert max(len(rows) for rows in evaluation_rows(text, 8, 19, False)) == 1


@settings(max_examples=40)
@given(st.integers(2, 60), st.integers(1, 20), st.integers(1, 7))
def test_every_target_is_in_exactly_one_window(n: int, context: int, batch_size: int) -> None:
    text = TokenFile("the text", np.arange(n, dtype=np.uint16), np.array([0]), n, n)
    objective = CausalObjective()
    labels: list[int] = []
    for rows in evaluation_windows(text, context, batch_size):
        batch = objective.collate(rows, np.random.default_rng(0))
        labels += batch.labels[batch.labels >= 0].tolist()
        assert bool((batch.labels[batch.labels >= 0] == batch.token_ids[batch.labels >= 0] + 1).all())
    assert sorted(labels) == list(range(1, n))


def test_pitfall_21_evaluation_is_deterministic_and_changes_no_state() -> None:
    network = random_model("gpt").train()
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    text = tokens(60)
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    reports = []
    for _ in range(2):
        with evaluation_mode(network):
            assert not any(module.training for module in network.modules())
            rows = evaluation_rows(text, 8, 19, False)
            reports.append(evaluate_loss(network, CausalObjective(), rows, CPU).report())
        assert all(module.training for module in network.modules())
    assert reports[0] == reports[1]
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert all(p.grad is None for p in network.parameters())


def test_pitfall_21_an_error_restores_the_mode() -> None:
    network = torch.nn.Linear(1, 1)
    with pytest.raises(ZeroDivisionError), evaluation_mode(network):
        raise ZeroDivisionError
    assert network.training
    network.eval()
    with evaluation_mode(network):
        pass
    assert not network.training


def test_progress_counts_targets() -> None:
    seen: list[int] = []
    network, text = random_model("gpt"), tokens(40)
    evaluate_loss(network, CausalObjective(), evaluation_windows(text, 8, 2), CPU, progress=seen.append)
    assert seen == [16, 32, 39]


def test_units() -> None:
    report = EvaluationSums(nats=80 * math.log(2), n_targets=40).report(n_bytes=160)
    assert report.loss == pytest.approx(2 * math.log(2))
    assert report.perplexity == pytest.approx(4.0)
    assert report.bits_per_byte == pytest.approx(0.5)
    assert list(report.to_dict()) == ["loss", "perplexity", "bits_per_byte", "n_tokens", "smoothed_loss"]
    assert math.isfinite(EvaluationSums(nats=1e6, n_targets=10).report().perplexity)


@settings(max_examples=100)
@given(st.text("ab", max_size=12), st.text("ab", max_size=12))
def test_the_longest_overlap_equals_an_exhaustive_search(text: str, corpus: str) -> None:
    stretches = [text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1) if text[i:j] in corpus]
    found = longest_overlap(text, corpus)
    assert len(found) == max(map(len, stretches), default=0) and found in text and found in corpus
