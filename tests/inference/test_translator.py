"""Many sources in batches by length: results have the sources' order and equal single translations."""

from typing import Any

import pytest
import torch

from configs import SEQ2SEQ, random_model
from glassformer.config.run import BeamConfig
from glassformer.data.batching import batches_by_length
from glassformer.inference import beam
from glassformer.inference.beam import decode_sorted
from glassformer.inference.beam_reference import beam_search_reference
from glassformer.inference.search import Search
from tolerances import F64, near

SOURCES = [[int(i * j) % 13 for j in range(1, 2 + (5 * i) % 7)] for i in range(1, 12)]


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_batches_keep_the_order_and_change_no_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(SEQ2SEQ[name])
    config = BeamConfig(3, 0.6, max_new_tokens=6, max_ratio=1.0)
    search = Search(config, 1, 2, 24, n_best=2, suppress_ids=[5])
    sources = SOURCES if name == "paper" else SOURCES[:4]
    expected = [beam_search_reference(model, torch.tensor(source), search, prefix=[4]) for source in sources]
    for max_tokens in (1, 24, 60, 10_000) if name == "paper" else (60,):
        monkeypatch.setattr(beam, "MAX_TOKENS", max_tokens)
        found = decode_sorted(model, sources, search, prefix=[4])
        assert [[(h.ids, h.ended) for h in row] for row in found] == [[(h.ids, h.ended) for h in x] for x in expected]
        for ours, theirs in zip(found, expected, strict=True):
            assert [h.log_prob for h in ours] == near([h.log_prob for h in theirs], dtype=F64)


def test_progress_counts_sources_up_to_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[tuple[int, ...], bool]] = []
    search = beam.beam_search

    def recorded(model: Any, sources: Any, *args: Any, **options: Any) -> Any:
        source_ids, mask = sources
        shapes.append((tuple(source_ids.shape), mask is None))
        return search(model, sources, *args, **options)

    monkeypatch.setattr(beam, "beam_search", recorded)
    monkeypatch.setattr(beam, "MAX_TOKENS", 20)
    calls: list[tuple[int, int]] = []
    decode_sorted(
        random_model(SEQ2SEQ["paper"]),
        [[3] * 5, [3] * 2, [3] * 5, [3] * 4],
        Search(BeamConfig(2, max_new_tokens=3), 1, 2, 24),
        progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(2, 4), (4, 4)]
    assert shapes == [((2, 5), True), ((2, 4), False)]  # no mask without padding


def test_no_sources_give_no_output() -> None:
    assert decode_sorted(random_model(SEQ2SEQ["paper"]), [], Search(BeamConfig(), 1, 2, 24)) == []


def test_batches_hold_every_row_once_within_the_budget() -> None:
    lengths = [(7 * i) % 31 + 1 for i in range(100)]
    batches = list(batches_by_length(lengths, 64))
    assert sorted(i for batch in batches for i in batch) == list(range(100))
    assert all(len(batch) * max(lengths[i] for i in batch) <= 64 for batch in batches)
    assert [lengths[i] for batch in batches for i in batch] == sorted(lengths, reverse=True)
