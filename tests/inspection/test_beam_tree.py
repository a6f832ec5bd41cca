"""The tree contains every hypothesis of a beam search; its results equal those of `beam_search`."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from configs import SEQ2SEQ, random_ids, random_model
from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.beam_reference import beam_search_reference
from glassformer.inference.search import Search
from glassformer.inspection.beam_tree import BeamTree, beam_tree, search_tree
from runs import pair_run

SOURCE = [9, 2, 6, 5, 3, 5, 8]


def whole_beam(config: BeamConfig, end: int = 2, **options: Any) -> Search:
    """Return a search whose results are all hypotheses of its beam."""
    return Search(config, 1, end, 24, config.beam, **options)


def path(tree: BeamTree, node: int | None) -> list[int]:
    """Return the token ids from the root, without it, to a node."""
    ids: list[int] = []
    while node is not None:
        ids.append(tree.nodes[node].token_id)
        node = tree.nodes[node].parent
    return ids[-2::-1]


def check(tree: BeamTree, beam: int) -> None:
    """Check the invariants of a tree."""
    root = tree.nodes[0]
    assert (root.parent, root.state, root.length, root.log_prob) == (None, "root", 0, 0.0)
    assert [node.id for node in tree.nodes] == list(range(len(tree.nodes)))
    kept: dict[int, int] = {}
    for node in tree.nodes[1:]:
        assert node.parent is not None and node.parent < node.id and node.state != "root"
        parent = tree.nodes[node.parent]
        assert parent.state in ("root", "kept") and node.length == parent.length + 1
        assert node.log_prob == pytest.approx(parent.log_prob + node.step_log_prob) and node.step_log_prob <= 1e-9
        kept[node.length] = kept.get(node.length, 0) + (node.state == "kept")
    assert max(kept.values(), default=0) <= beam
    assert len({tuple(path(tree, node.id)) for node in tree.nodes}) == len(tree.nodes), "each hypothesis is one node"
    for place, hypothesis in tree.results:
        node = tree.nodes[place]
        assert path(tree, place) == hypothesis.ids
        assert node.log_prob == hypothesis.log_prob and node.state == ("finished" if hypothesis.ended else "kept")


CONFIGS = (BeamConfig(1), BeamConfig(4), BeamConfig(3, early_stopping="never"))


@pytest.mark.parametrize(("number", "name"), list(enumerate(SEQ2SEQ)))
def test_the_results_equal_beam_search(number: int, name: str) -> None:
    model = random_model(SEQ2SEQ[name])
    config = replace(CONFIGS[number % 3], max_new_tokens=10)
    source = [i % model.config.encoder_vocab_size for i in SOURCE]
    for end in (2, 7, 11):
        search = whole_beam(config, end)
        (expected,) = beam_search(model, (torch.tensor([source]), None), search)
        tree = search_tree(model, source, search)
        assert [hypothesis for _, hypothesis in tree.results] == expected
        check(tree, config.beam)


@pytest.mark.parametrize("name", ["paper", "bahdanau"])
def test_the_tree_contains_the_candidates_of_a_step(name: str) -> None:
    """The first step shows the most probable tokens in order, with their log-probabilities."""
    model = random_model(name)
    n = model.config.vocab_size
    tree = search_tree(model, SOURCE, whole_beam(BeamConfig(3, max_new_tokens=2)), n_pruned=n)
    with torch.no_grad():
        log_probs = model(torch.tensor([[1]]), source_ids=torch.tensor([SOURCE]))[0, -1].log_softmax(-1)
    first = [node for node in tree.nodes if node.length == 1]
    for node in first:
        assert node.step_log_prob == pytest.approx(float(log_probs[node.token_id]))
    ranked = log_probs.argsort(descending=True)[: len(first)].tolist()
    assert [node.token_id for node in first] == ranked and len(first) >= 6
    assert [node.state != "pruned" for node in first] == [i < 3 for i in range(len(first))]


def test_the_number_of_pruned_nodes() -> None:
    model = random_model("paper")
    for n_pruned, most in ((0, 0), (2, 2), (None, 4)):
        tree = search_tree(model, SOURCE, whole_beam(BeamConfig(4, max_new_tokens=6)), n_pruned=n_pruned)
        by_step = [sum(x.state == "pruned" and x.length == t for x in tree.nodes) for t in range(1, 7)]
        assert by_step == [most] * 6 or (max(by_step) == most and tree.nodes[-1].length < 6)


@pytest.mark.parametrize("name", ["paper", "luong"])
def test_a_prefix_is_a_chain(name: str) -> None:
    model = random_model(name)
    search = whole_beam(BeamConfig(3, max_new_tokens=8), suppress_ids=[3])
    tree = search_tree(model, SOURCE, search, prefix=[5, 6])
    assert [(x.token_id, x.parent, x.state) for x in tree.nodes[1:3]] == [(5, 0, "kept"), (6, 1, "kept")]
    (expected,) = beam_search(model, (torch.tensor([SOURCE]), None), search, prefixes=[[5, 6]])
    assert [h for _, h in tree.results] == expected
    assert not any(node.token_id == 3 for node in tree.nodes)
    full = search_tree(model, SOURCE, whole_beam(BeamConfig(3, max_new_tokens=2)), prefix=[5, 6])
    assert [(place, h.ids, h.ended) for place, h in full.results] == [(2, [5, 6], False)]


def test_the_results_equal_the_reference() -> None:
    model = random_model("t5")
    search = Search(BeamConfig(4, max_new_tokens=12, length_penalty=0.6), 1, 11, 24, n_best=2)
    tree = search_tree(model, SOURCE, search)
    expected = beam_search_reference(model, torch.tensor(SOURCE), search)
    assert [h.ids for _, h in tree.results] == [h.ids for h in expected] and len(expected) == 2


def test_an_observer_changes_no_result_of_a_batch() -> None:
    model = random_model("paper")
    sources, search = (random_ids(19, 3, 6), None), whole_beam(BeamConfig(3, max_new_tokens=9), 4)
    seen: list[int] = []
    expected = beam_search(model, sources, search)
    found = beam_search(model, sources, search, observer=lambda i, step: seen.append(i))
    assert found == expected and set(seen) == {0, 1, 2}
    assert all(a <= b or b == 0 for a, b in pairwise(seen)), "sources in order, step by step"


def test_the_tree_of_a_trained_model(tmp_path: Path) -> None:
    model = api.load(api.train(pair_run(tmp_path, max_steps=2), tmp_path / "run").folder)
    for settings in ({"beam": 3, "max_new_tokens": 8}, {"beam": 2, "length_penalty": 0.0, "max_new_tokens": 8}):
        tree = beam_tree(model, "the dog", **settings)
        expected = model.translations("the dog", n_best=settings["beam"], **settings)
        assert [h for _, h in tree.results] == [one.hypothesis for one in expected]
        check(tree, int(settings["beam"]))
    with pytest.raises(UserError, match="n_best is 5 and must be from 1 to the beam, 2"):
        beam_tree(model, "the dog", beam=2, n_best=5)
