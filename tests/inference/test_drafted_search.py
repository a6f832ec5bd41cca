"""Greedy search with drafts: targets equal those of beam search with a beam of 1, in fewer steps of the model."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from configs import RECURRENT, SEQ2SEQ, random_model
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.config.transformer import TransformerConfig
from glassformer.errors import UserError
from glassformer.inference import beam, contexts
from glassformer.inference.beam import Hypothesis, Search, decode_sorted, drafted_search
from glassformer.inference.drafters import Drafter, ModelDrafter, PromptLookup
from glassformer.inference.ensemble import Ensemble
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.sampling import log_softmax
from glassformer.nn import kv_cache
from tolerances import NETWORK, near

START, MAX_LEN = 1, 24
TRANSFORMERS = sorted(name for name, config in SEQ2SEQ.items() if isinstance(config, TransformerConfig))
SOURCES = [[3, 1, 4, 9], [5], [9, 2, 6, 5, 3, 5, 8], [8, 9]]


def model_of(name: str, seed: int = 1) -> Any:
    """Return a model with an output layer of its own, so that its targets do not repeat one id."""
    return random_model(replace(SEQ2SEQ[name], tie_output=False), seed, torch.float32)


def similar(model: Any, noise: float = 0.02) -> Any:
    """Return a model with almost the same weights, whose drafts are partly right."""
    other, generator = copy.deepcopy(model), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=generator)
    return other


KINDS = ("lookup", "target", "right", "partly", "wrong", "short")


def drafter_of(kind: str, model: Any, k: int = 4) -> Drafter:
    if kind in ("lookup", "target"):
        return PromptLookup(k, reads_source=kind == "lookup")
    if kind == "short":
        return ModelDrafter(model, k, max_len=7)  # a shorter context than the model's
    if kind == "partly":
        model = similar(model)
    if kind == "wrong":
        model = random_model(model.config, seed=5, dtype=torch.float32)
    return ModelDrafter(model, k, max_len=MAX_LEN)


def same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    assert [[(h.ids, h.ended) for h in row] for row in found] == [[(h.ids, h.ended) for h in row] for row in expected]
    for (ours,), (theirs,) in zip(found, expected, strict=True):
        assert (ours.log_prob, ours.score) == near((theirs.log_prob, theirs.score), terms=NETWORK)


def ends_of(model: Any) -> tuple[int, int]:
    """Return two ids that end some targets early."""
    free = decode_sorted(model, SOURCES, Search(BeamConfig(1, max_new_tokens=20), START, 999, MAX_LEN))
    first, _, third, _ = (list(dict.fromkeys(best.ids)) for (best,) in free)
    return third[-1], first[-1]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_targets_equal_those_of_beam_search(name: str) -> None:
    """In fp32, for rows of unequal length: end ids, suppressed ids, prefixes, and every limit of the output."""
    model = model_of(name)
    end, further = ends_of(model)
    prefix = [token for token in (4, 6, 2, 8) if token not in (end, further)]
    lengths = set()
    for kinds, config, max_len, before in (
        (("lookup", "short"), BeamConfig(1, max_new_tokens=20), MAX_LEN, []),
        (("target", "partly"), BeamConfig(1, max_new_tokens=30, end_ids=(further,)), MAX_LEN, prefix),
        # the context ends first
        (("lookup", "wrong"), BeamConfig(1, 0.6, "average", "never", max_new_tokens=30), 8, []),
        # 12, 10, 13 and 11 ids
        (("lookup", "right"), BeamConfig(1, 0.0, max_new_tokens=30, max_ratio=0.5), MAX_LEN, prefix),
        # the prefix is the whole target
        (("lookup", "partly"), BeamConfig(1, max_new_tokens=len(prefix)), len(prefix), prefix),
    ):
        search = Search(config, START, end, max_len, suppress_ids=[3, 11])
        expected = decode_sorted(model, SOURCES, search, prefix=before)
        for kind in kinds:
            drafter = drafter_of(kind, model)
            same(decode_sorted(model, SOURCES, search, prefix=before, drafter=drafter), expected)
            counts = drafter.counts
            assert 0 <= counts.n_accepted <= counts.n_drafted
            assert kind != "right" or counts.n_accepted == counts.n_drafted
        lengths |= {len(best.ids) for (best,) in expected}
    assert len(lengths) > 3


@pytest.mark.parametrize("seed", range(len(TRANSFORMERS)))
def test_targets_are_equal_for_random_shapes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small first buffers, sources in several batches, one drafter for all of them."""
    draw = np.random.default_rng(seed)
    monkeypatch.setattr(kv_cache, "FIRST_SLOTS", int(draw.integers(1, 4)))
    monkeypatch.setattr(contexts, "PREFILL", int(draw.integers(1, 9)))
    monkeypatch.setattr(beam, "MAX_TOKENS", int(draw.integers(1, 60)))
    model = model_of(TRANSFORMERS[seed], seed)
    sources = [draw.integers(13, size=draw.integers(1, 10)).tolist() for _ in range(draw.integers(1, 9))]
    config = BeamConfig(1, max_new_tokens=int(draw.integers(1, 40)), max_ratio=float(draw.choice([0, 0.5, 2])))
    search = Search(config, START, int(draw.integers(13)), MAX_LEN, suppress_ids=[int(draw.integers(13))])
    prefix = [token for token in draw.integers(13, size=draw.integers(0, 3)).tolist() if token != search.end_id]
    prefix = prefix[: config.max_new_tokens]
    expected = decode_sorted(model, sources, search, prefix=prefix)
    k = int(draw.integers(1, 9))
    for kind in ("lookup", "partly", "short"):
        drafter = drafter_of(kind, model, k)
        same(decode_sorted(model, sources, search, prefix=prefix, drafter=drafter), expected)


@pytest.mark.parametrize("name", ["paper", "unequal_stacks"])
def test_every_kind_of_draft_occurs(name: str) -> None:
    """Count accepted and rejected drafts of each kind."""
    model = model_of(name)
    drafters = {kind: drafter_of(kind, model) for kind in KINDS}
    for drafter in drafters.values():
        decode_sorted(model, SOURCES, Search(BeamConfig(1, max_new_tokens=20), START, 999, MAX_LEN), drafter=drafter)
    rates = {kind: drafter.counts.acceptance_rate for kind, drafter in drafters.items()}
    assert rates["right"] == 1 > rates["partly"] > rates["wrong"]
    assert 1 > rates["lookup"] > 0 < rates["target"]


@pytest.mark.parametrize(("number", "name"), list(enumerate(TRANSFORMERS)))
def test_a_generation_with_sources_takes_drafts(number: int, name: str) -> None:
    """Greedy ids equal those without drafts, in a batch that is refilled too; sampled ones do not depend on it."""
    model, kind = model_of(name), ("lookup", "partly")[number % 2]
    prompts = [[START, 4], [START], [START], [START, 7, 4]]
    greedy = GenerationConfig(max_new_tokens=15, temperature=0.0, end_ids=ends_of(model))

    def generated(config: GenerationConfig, drafter: Drafter | None, batch_size: int = 9) -> list[list[int]]:
        rows: list[list[int]] = [[] for _ in prompts]
        settings = Settings(config, MAX_LEN, batch_size=batch_size)
        for step in Generation(model, prompts, settings, sources=SOURCES, drafter=drafter):
            for row, token in step.items():
                rows[row].append(token)
        return rows

    drawn = replace(greedy, temperature=1.2, top_k=9)
    expected, sampled = generated(greedy, None), generated(drawn, drafter_of(kind, model))
    for batch_size in (1, 3) if name == "paper" else (3,):
        assert generated(greedy, drafter_of(kind, model), batch_size) == expected
        assert generated(drawn, drafter_of(kind, model), batch_size) == sampled


@dataclass(frozen=True)
class Copied:
    """State of `Copying`."""

    sources: Tensor
    lengths: Tensor

    def select(self, rows: Tensor) -> "Copied":
        return Copied(self.sources[rows], self.lengths[rows])

    def crop(self, lengths: Sequence[int]) -> "Copied":
        return Copied(self.sources, torch.tensor(lengths))


class Copying:
    """A model whose target is its source, after a `change` of the ids; it counts its steps."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda ids: ids) -> None:
        self.change, self.shapes = change, list[tuple[int, ...]]()

    def start(self, n_rows: int, max_len: int, sources: Tensor, mask: Tensor | None = None) -> Copied:
        return Copied(self.change(sources), torch.zeros(n_rows, dtype=torch.long))

    def step(self, token_ids: Tensor, state: Copied, mask: Tensor | None = None) -> tuple[Tensor, Copied]:
        self.shapes.append(tuple(token_ids.shape))
        n_new = token_ids.shape[1] if mask is None else mask.sum(dim=1)
        at = state.lengths[:, None] + torch.arange(token_ids.shape[1])
        best = state.sources.gather(1, at.clamp(max=state.sources.shape[1] - 1))
        return 9 * F.one_hot(best, 100).float(), Copied(state.sources, state.lengths + n_new)


@pytest.mark.parametrize("k", [1, 4, 9, 50])
def test_a_copied_source_needs_fewer_steps(k: int) -> None:
    """Each step writes k ids of the draft and one more, from the first step on."""
    source, search = [*range(10, 40), 2], Search(BeamConfig(1, max_new_tokens=90), START, 2, 90)
    plain, drafted, drafter = Copying(), Copying(), PromptLookup(k)
    expected = decode_sorted(plain, [source], search)
    same(decode_sorted(drafted, [source], search, drafter=drafter), expected)
    assert expected[0][0].ids == source and len(plain.shapes) == 31
    assert len(drafted.shapes) == -(-31 // (k + 1)) and drafted.shapes[0] == (1, 1 + k)
    assert drafter.counts.acceptance_rate > 0.6


def test_an_unchanged_part_of_the_source_needs_fewer_steps() -> None:
    """A name in the middle is copied: its first two ids, of one step each, are found in the source."""

    def change(ids: Tensor) -> Tensor:
        return torch.where((ids >= 20) & (ids < 30), ids, ids + 40).where(ids != 2, 2)

    source, search = [*range(10, 40), 2], Search(BeamConfig(1, max_new_tokens=90), START, 2, 90)
    model, plain, blind = Copying(change), Copying(change), Copying(change)
    expected = decode_sorted(plain, [source], search)
    same(decode_sorted(model, [source], search, drafter=PromptLookup(4)), expected)
    same(decode_sorted(blind, [source], search, drafter=PromptLookup(4, reads_source=False)), expected)
    assert (len(plain.shapes), len(blind.shapes), len(model.shapes)) == (31, 31, 23)


def test_a_step_reads_the_last_id_and_the_draft() -> None:
    """A draft model that is always right: after the first step, each step of both reads only new ids."""
    model, small = Copying(), Copying()
    drafter = ModelDrafter(small, 3, max_len=90)
    search = Search(BeamConfig(1, max_new_tokens=10), START, 2, 90)
    ((found,),) = decode_sorted(model, [list(range(10, 40))], search, prefix=[10, 11], drafter=drafter)
    assert found.ids == list(range(10, 20)) and not found.ended
    one = log_softmax(9 * F.one_hot(torch.tensor(0), 100).double())[0]
    assert found.log_prob == near(10 * float(one), terms=NETWORK)
    assert model.shapes == [(1, 6), (1, 4)]  # the start, the prefix and a draft; the last id and a draft
    assert small.shapes == [(1, 2), *[(1, 1)] * 6, (1, 1)]
    assert (drafter.counts.n_drafted, drafter.counts.n_accepted) == (6, 6)


def test_suppressing_every_id_ends_the_search_unfinished() -> None:
    search = Search(BeamConfig(1), START, 2, MAX_LEN, suppress_ids=range(100))
    assert drafted_search(Copying(), [[5, 6]], search, PromptLookup(2)) == [[Hypothesis([], 0.0, 0.0, ended=False)]]


def test_no_sources_give_no_output() -> None:
    assert drafted_search(Copying(), [], Search(BeamConfig(1), START, 2, MAX_LEN), PromptLookup(2)) == []


def test_a_too_long_prefix_is_refused() -> None:
    search = Search(BeamConfig(1, max_new_tokens=3), START, 2, MAX_LEN)
    with pytest.raises(UserError, match="prefix of output 1 has 4 tokens and the output may have 3"):
        drafted_search(Copying(), [[5, 6]], search, PromptLookup(2), prefixes=[[4] * 4])


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_model_takes_no_drafts(name: str) -> None:
    model, search = random_model(name), Search(BeamConfig(1, max_new_tokens=5), START, 2, MAX_LEN)
    with pytest.raises(UserError, match=r"State\) cannot forget tokens \(it has no method crop\), as drafts need"):
        decode_sorted(model, SOURCES, search, drafter=PromptLookup(2))


def test_an_ensemble_takes_drafts_if_each_member_does() -> None:
    """Ensembles as model and as draft model."""
    models = [random_model(SEQ2SEQ[name], dtype=torch.float32) for name in ("paper", "t5")]
    both, search = Ensemble(models), Search(BeamConfig(1, max_new_tokens=20), START, 2, MAX_LEN)
    expected = decode_sorted(both, SOURCES, search)
    for drafter in (PromptLookup(3), ModelDrafter(models[0], 3, max_len=24), ModelDrafter(both, 3, max_len=24)):
        same(decode_sorted(both, SOURCES, search, drafter=drafter), expected)
    assert drafter.counts.acceptance_rate == 1
    recurrent = random_model(replace(RECURRENT["luong"], vocab_size=models[0].config.vocab_size), dtype=torch.float32)
    with pytest.raises(UserError, match="cannot forget tokens"):
        decode_sorted(Ensemble([models[0], recurrent]), SOURCES, search, drafter=PromptLookup(3))
