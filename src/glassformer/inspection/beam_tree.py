"""Tree of a beam search: every hypothesis that was kept, finished or pruned, with the results of the search.

A node is a token, and the tokens on the path from the root to a node are a hypothesis. `inference/beam.py` describes
the rules of the search, and the results equal the results of `beam_search`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from glassformer.inference.beam import beam_search
from glassformer.inference.decodable import Decodable
from glassformer.inference.score import forced_scores
from glassformer.inference.search import Hypothesis, Search, Step
from glassformer.tasks.trained_model import TrainedModel


@dataclass(frozen=True)
class Node:
    """A token of a hypothesis."""

    id: int
    """Index in `BeamTree.nodes`; a parent comes before its children."""
    parent: int | None
    """Index of the parent; None for the root."""
    token_id: int
    """Id of the token; the start id at the root."""
    log_prob: float
    """Log-probability of the path from the root, in nats."""
    step_log_prob: float
    """Log-probability of the token given the path before it."""
    length: int
    """Number of tokens of the path without the root; this is also the number of the step."""
    state: Literal["root", "kept", "pruned", "finished"]
    """`kept`: live after its step; `finished`: the end token; `pruned`: a candidate that was not chosen."""


@dataclass(frozen=True)
class BeamTree:
    """All nodes of a search, and the results as pairs (index of the last node, hypothesis), best first."""

    nodes: list[Node]
    results: list[tuple[int, Hypothesis]]


def beam_tree(
    model: TrainedModel, source: str, *, n_best: int | None = None, n_pruned: int | None = None, **settings: Any
) -> BeamTree:
    """Return the tree of the beam search of `model.translate(source, **settings)`.

    `settings` are fields of `BeamConfig`. The number of results, `n_best`, is the beam by default. `n_pruned` limits
    the pruned nodes of a step, by default to the beam.

    ```python
    tree = beam_tree(model, "a sentence", beam=4)
    [model.tokenizer.decode(hypothesis.ids) for _, hypothesis in tree.results]
    ```
    """
    translator, config = model.translator, model.translator.beam(settings)
    if n_best is None:
        n_best = config.beam
    return search_tree(
        translator.model,
        translator.source_ids(source),
        translator.search(config, n_best),
        n_pruned=n_pruned,
        prefix=translator.tokenizer.frames.target.before,
        device=translator.device,
    )


def search_tree(
    model: Decodable,
    source_ids: Sequence[int],
    search: Search,
    *,
    n_pruned: int | None = None,
    prefix: Sequence[int] = (),
    device: torch.device | str = "cpu",
) -> BeamTree:
    """Return the tree of `beam_search` for the ids of one source; `beam_tree` explains `n_pruned`."""
    n_pruned = search.config.beam if n_pruned is None else n_pruned
    # The root, and the nodes of each step
    assert search.start_id is not None  # the search of a source
    nodes = [Node(0, None, search.start_id, 0.0, 0.0, 0, "root")]
    places: dict[tuple[int, ...], int] = {(): 0}  # ids of a hypothesis → its last node

    def add(ids: Sequence[int], log_prob: float, state: Literal["kept", "pruned", "finished"]) -> None:
        parent = nodes[places[tuple(ids[:-1])]]
        places[tuple(ids)] = len(nodes)
        step_log_prob = log_prob - parent.log_prob
        nodes.append(Node(len(nodes), parent.id, ids[-1], log_prob, step_log_prob, parent.length + 1, state))

    def observe(_: int, step: Step) -> None:
        live = {tuple(ids) for ids, _ in step.live}
        finished = {tuple(hypothesis.ids) for hypothesis in step.finished}
        n_left = n_pruned
        for cost, parent, token in step.ranked:
            ids = (*step.before[parent][0], token)
            if ids in live:
                add(ids, -cost, "kept")
            elif ids in finished:
                add(ids, -cost, "finished")
            elif n_left > 0:
                n_left -= 1
                add(ids, -cost, "pruned")

    # The forced prefix
    if prefix:
        (forced,) = forced_scores(model, [source_ids], [prefix], start_id=search.start_id, device=device)
        for n in range(1, len(prefix) + 1):
            add(prefix[:n], sum(forced[:n]), "kept")
    # The search
    sources = torch.tensor([list(source_ids)], device=device), None
    (results,) = beam_search(model, sources, search, prefixes=[prefix], observer=observe)
    return BeamTree(nodes, [(places[tuple(hypothesis.ids)], hypothesis) for hypothesis in results])
