"""Chapter 4: attention over the source."""

import torch
from torch import Tensor

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.exercises.draws import normal
from glassformer.course.workshop.solutions.ch04_alignment import (
    additive_scores,
    context,
    dot_scores,
    general_scores,
)

SECTION = "course/04-attention-is-alignment"
SCORES = f"{SECTION}#multiplicative-and-additive-scores"
MISTAKES = "course/12-classical-mistakes"
ALSO_EMPTY = "A source without tokens needs zeros too."
FROM_MASK_TO_WEIGHTS = """scores = scores.masked_fill(~allowed, float("-inf")).masked_fill(is_empty, 0.0)
    weights = scores.softmax(dim=-1).masked_fill(is_empty, 0.0)"""


def hidden_layer(d_query: int, d_memory: int) -> dict[str, Tensor]:
    """Draw the weights of additive scores with a hidden layer of width 3."""
    return {"query": normal(d_query, 3, seed=5), "memory": normal(d_memory, 3, seed=6), "vector": normal(3, seed=7)}


def context_cases() -> list[tuple[Tensor, Tensor, Tensor]]:
    is_token = torch.tensor([[True, True, True, True], [True, True, False, False], [False] * 4])
    scores, memory = normal(3, 4, 4), normal(3, 4, 5, seed=1)
    scores[0, 0, 1] = scores[1, 2, 0] = 0.0
    low = torch.tensor([[[-1e12, -2e12, 5.0]]])
    return [(scores, memory, is_token), (low, normal(1, 3, 2), torch.tensor([[True, True, False]]))]


EXERCISES = (
    Exercise(
        dot_scores,
        f"{SECTION}#score-weights-context",
        lambda: [
            (normal(2, 3, 4), normal(2, 5, 4, seed=1)),
            (normal(1, 3, 4), normal(1, 3, 4, seed=1)),
            (normal(1, 2, 4), normal(1, 2, 6, seed=1)),
        ],
        (
            Mistake(
                "The scores have one row for each source state: they must have one row for each query.",
                "query @ memory.transpose(1, 2)",
                "memory @ query.transpose(1, 2)",
            ),
            Mistake(
                "The scores are divided by the root of the width: the Transformer does that (chapter 5), here the "
                "score is the dot product.",
                "query @ memory.transpose(1, 2)",
                "query @ memory.transpose(1, 2) / query.shape[-1] ** 0.5",
            ),
            Mistake(
                "These are cosines: the score is the dot product, which grows with the lengths of both vectors.",
                "query @ memory.transpose(1, 2)",
                "(query / query.norm(dim=-1, keepdim=True))"
                " @ (memory / memory.norm(dim=-1, keepdim=True)).transpose(1, 2)",
            ),
            Mistake(
                "These are the weights: return the scores, without the softmax.",
                "query @ memory.transpose(1, 2)",
                "(query @ memory.transpose(1, 2)).softmax(dim=-1)",
            ),
            Mistake(
                "Different widths end in an error of torch about matrices: raise ValueError with both widths before "
                "that.",
                "raise ValueError",
                "raise RuntimeError",
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        general_scores,
        SCORES,
        lambda: [
            (normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(4, 4, seed=2)),
            (normal(1, 2, 4), normal(1, 3, 6, seed=1), normal(4, 6, seed=2)),
        ],
        (
            Mistake(
                "The matrix is transposed: use it so that its rows belong to the query, its columns to the memory.",
                "query @ w @",
                "query @ w.T @",
            ),
            Mistake("The matrix is not used.", "query @ w @", "query @"),
            Mistake("This score must not have a tanh.", "query @ w @", "(query @ w).tanh() @"),
            Mistake(
                "The scores have one row for each source state: they must have one row for each query.",
                "query @ w @ memory.transpose(1, 2)",
                "(query @ w @ memory.transpose(1, 2)).transpose(1, 2)",
            ),
            Mistake(
                "The scores are divided by the root of the width: the Transformer does that (chapter 5), not this "
                "score.",
                "memory.transpose(1, 2)",
                "memory.transpose(1, 2) / query.shape[-1] ** 0.5",
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        additive_scores,
        SCORES,
        lambda: [
            (normal(2, 3, 4), normal(2, 5, 4, seed=1), hidden_layer(4, 4)),
            (normal(1, 2, 4), normal(1, 3, 6, seed=1), hidden_layer(4, 6)),
        ],
        (
            Mistake(
                "The tanh is missing: without it, the weights of the softmax do not depend on the query.",
                "hidden.tanh()",
                "hidden",
            ),
            Mistake(
                "The tanh is applied to the score: apply it to the sum inside, before the product with v.",
                'hidden.tanh() @ w["vector"]',
                '(hidden @ w["vector"]).tanh()',
            ),
            Mistake(
                "The tanh is applied to both parts separately: apply it to their sum.",
                '(query @ w["query"])[:, :, None] + (memory @ w["memory"])[:, None]\n    return hidden.tanh()',
                '(query @ w["query"]).tanh()[:, :, None] + (memory @ w["memory"]).tanh()[:, None]\n    return hidden',
            ),
            Mistake(
                "The two parts are multiplied: add them.",
                "[:, :, None] + (memory",
                "[:, :, None] * (memory",
            ),
            Mistake(
                "The scores have one row for each source state: they must have one row for each query.",
                '(query @ w["query"])[:, :, None] + (memory @ w["memory"])[:, None]',
                '(query @ w["query"])[:, None] + (memory @ w["memory"])[:, :, None]',
            ),
            Mistake(
                "The two matrices are exchanged: W₁ belongs to the query, W₂ to the memory.",
                'query @ w["query"])[:, :, None] + (memory @ w["memory"]',
                'query @ w["memory"])[:, :, None] + (memory @ w["query"]',
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        context,
        f"{SECTION}#score-weights-context",
        context_cases,
        (
            Mistake(
                "The padding of the source gets weight: give its scores -inf before the softmax.",
                'scores = scores.masked_fill(~allowed, float("-inf")).masked_fill(is_empty, 0.0)',
                "scores = scores.masked_fill(is_empty, 0.0)",
                pitfall=9,
            ),
            Mistake(
                "The mask is inverted: the tokens are hidden. True means a token.",
                "allowed = is_token[:, None]",
                "allowed = ~is_token[:, None]",
                pitfall=6,
            ),
            Mistake(
                "The mask is applied after the softmax, so the weights of the tokens do not add up to 1: hide the "
                "scores "
                "before it.",
                'scores = scores.masked_fill(~allowed, float("-inf")).masked_fill(is_empty, 0.0)\n'
                "    weights = scores.softmax(dim=-1).masked_fill(is_empty, 0.0)",
                "weights = scores.softmax(dim=-1).masked_fill(~allowed, 0.0)",
                f"{MISTAKES}#zero-after-the-softmax",
            ),
            Mistake(
                "The scores of padding are set to 0, which is an ordinary score: use -inf.",
                'float("-inf")',
                "0.0",
                f"{MISTAKES}#zero-after-the-softmax",
            ),
            Mistake(
                "Scores are hidden where they are 0 after a multiplication by the mask, so a real score of 0 is hidden "
                "too: use the mask itself.",
                'scores.masked_fill(~allowed, float("-inf"))',
                '(scores * allowed).masked_fill(scores * allowed == 0, float("-inf"))',
                pitfall=1,
            ),
            Mistake(
                "The scores of padding are a finite number such as -1e9, and real scores can be lower: use -inf.",
                'float("-inf")',
                "-1e9",
                pitfall=2,
            ),
            Mistake(
                "A source without tokens gives NaN, 0 / 0: give it finite scores before the softmax, and zeros "
                "after it.",
                ".masked_fill(is_empty, 0.0)\n    weights = scores.softmax(dim=-1).masked_fill(is_empty, 0.0)",
                "\n    weights = scores.softmax(dim=-1)",
                "pitfalls",
                pitfall=5,
            ),
            Mistake(
                "A source without tokens has equal weights for its padding: they must be zeros.",
                "softmax(dim=-1).masked_fill(is_empty, 0.0)",
                "softmax(dim=-1)",
                "pitfalls",
                pitfall=5,
            ),
            Mistake(
                "The mask hides queries: use it for the axis of the source, the last one.",
                "    allowed = is_token[:, None]\n    is_empty = ~allowed.any(dim=-1, keepdim=True)",
                "    allowed = is_token[:, :, None]\n    is_empty = ~allowed",
                "pitfalls",
                pitfall=4,
            ),
            Mistake(
                "Your softmax is over the queries: take the last axis, that of the keys.",
                "softmax(dim=-1)",
                "softmax(dim=1)",
            ),
            Mistake(
                "The scores of padding are a finite number such as -1e9, and real scores can be lower: use -inf."
                f" {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "weights = scores.masked_fill(~allowed, -1e9).softmax(dim=-1)",
                pitfall=2,
            ),
            Mistake(
                f"The scores of padding are set to 0, which is an ordinary score: use -inf. {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "weights = scores.masked_fill(~allowed, 0.0).softmax(dim=-1)",
                f"{MISTAKES}#zero-after-the-softmax",
            ),
            Mistake(
                f"A real score of 0 is hidden too: use the mask itself. {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                'weights = (scores * allowed).masked_fill(scores * allowed == 0, float("-inf")).softmax(dim=-1)',
                pitfall=1,
            ),
            Mistake(
                f"The padding of the source gets weight: give its scores -inf before the softmax. {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "weights = scores.softmax(dim=-1)",
                pitfall=9,
            ),
            Mistake(
                f"The softmax is over the queries: the weights of each query must add up to 1. {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                'weights = scores.masked_fill(~allowed, float("-inf")).softmax(dim=1)',
            ),
            Mistake(
                f"The mask is inverted: the tokens are hidden. True means a token. {ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                'weights = scores.masked_fill(allowed, float("-inf")).softmax(dim=-1)',
                pitfall=6,
            ),
            Mistake(
                "A mask of 0 and -10000 is added, as in the first BERT, and real scores can be lower: use -inf. "
                f"{ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "weights = (scores - 10000.0 * ~allowed).softmax(dim=-1)",
                pitfall=2,
            ),
            Mistake(
                "The scores of padding are a finite number such as -1e9, and real scores can be lower: use -inf. "
                f"{ALSO_EMPTY}",
                FROM_MASK_TO_WEIGHTS,
                "weights = (scores - 1e9 * ~allowed).softmax(dim=-1)",
                pitfall=2,
            ),
            Mistake(
                "The weights are set to 0 after the softmax and divided by their sum, which is 0 if a score of padding "
                "is much larger: hide the scores before the softmax.",
                FROM_MASK_TO_WEIGHTS,
                "weights = scores.softmax(dim=-1) * allowed\n"
                "    weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-13)",
                f"{MISTAKES}#zero-after-the-softmax",
            ),
            Mistake(
                "The mask is multiplied by -inf, and 0 · -inf is NaN: write -inf only where the mask hides.",
                FROM_MASK_TO_WEIGHTS,
                'weights = (scores + ~allowed * float("-inf")).softmax(dim=-1)',
            ),
        ),
        has_gradient=True,
    ),
)
