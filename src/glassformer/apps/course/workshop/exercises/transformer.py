"""Chapters 5 to 7: attention, the block, the search for a translation, and BLEU."""

from collections.abc import Callable

import torch
from torch import Tensor

from glassformer.apps.course.mytransformer import attention, block, generate, train
from glassformer.apps.course.workshop.exercise import Exercise, mask, normal, weights

# Chapter 5: scaled dot-product attention, masks and heads

CH05 = "course/05-attention"
QUERIES = f"{CH05}#query-key-and-value"
MASKS = f"{CH05}#masks"
HEADS = f"{CH05}#many-heads"


def padded() -> Tensor:
    """Three rows of five tokens; the second has padding at the left, so its first queries have no key."""
    return torch.tensor([[True] * 5, [False, False, True, True, True], [True, True, True, False, False]])


def softmax_cases() -> list[tuple[Tensor, Tensor]]:
    scores, allowed = normal(2, 4, 5), mask(2, 4, 5, seed=1)
    allowed[0, 2] = False
    scores[1, 1] = 0.0
    low = torch.tensor([[-1e12, -2e12, 0.0], [-3e4, -3e4, 1.0], [-500.0, -501.0, 1.0]])
    return [(scores, allowed), (low, torch.tensor([[True, True, False]] * 3))]


def attention_cases() -> list[tuple[Tensor, ...]]:
    allowed = mask(2, 3, 4, 6, seed=3) | torch.eye(4, 6, dtype=torch.bool)
    query, key, value = normal(2, 3, 4, 8), normal(2, 3, 6, 8, seed=1), normal(2, 3, 6, 5, seed=2)
    scores = torch.tensor([[1e6, 0.0]]), torch.tensor([[-1e6, 0.0], [0.0, 1.0]])  # -1e12 and 0, divided by √2
    low = (*scores, normal(2, 3), torch.tensor([[True, False]]))
    without_keys = allowed.clone()
    without_keys[0, 1, 2] = False
    everything = torch.ones_like(allowed)
    return [(query, key, value, allowed), (3 * query, key, value, everything), low, (query, key, value, without_keys)]


def heads_cases() -> list[tuple[object, ...]]:
    w = weights(4, **dict.fromkeys("qkvo", (6, 6)))
    x, memory, allowed = normal(2, 3, 6), normal(2, 4, 6, seed=1), mask(2, 1, 3, 4, seed=9)
    short = (memory[:, :3], w, 2, allowed[..., :3])  # as many keys as queries
    causal = attention.causal_mask(3)[None, None]
    return [(x, memory, w, 2, allowed), (x, memory, w, 3, allowed), (x, *short), (x, x, w, 2, causal)]


EXERCISES = [
    Exercise(attention.causal_mask, MASKS, lambda: [(1,), (5,)]),
    Exercise(attention.causal_and_padding_mask, MASKS, lambda: [(padded(),), (padded()[:1],)]),
    Exercise(attention.masked_softmax, MASKS, softmax_cases, has_gradient=True),
    Exercise(attention.attention, QUERIES, attention_cases, has_gradient=True),
    Exercise(attention.split_heads, HEADS, lambda: [(normal(2, 3, 8), 4), (normal(1, 5, 6), 1), (normal(2, 3, 8), 3)]),
    Exercise(attention.join_heads, HEADS, lambda: [(normal(2, 4, 3, 2),), (normal(1, 1, 5, 3),)]),
    Exercise(attention.multi_head_attention, HEADS, heads_cases, has_gradient=True),
]


# Chapter 6: norms, the feed-forward layer and the block

CH06 = "course/06-the-block"
NORM = f"{CH06}#layernorm-from-its-formula"
LAYER = f"{CH06}#the-feed-forward-layer"


def norm_cases() -> list[tuple[object, ...]]:
    weight, bias = normal(4, seed=1), normal(4, seed=2)
    x = torch.cat((normal(2, 3, 4) + 2, torch.full((2, 1, 4), 3.0)), dim=1)
    return [(x, weight, bias, 1e-5), (0.01 * x, weight, bias, 1e-3)]


def rms_cases() -> list[tuple[object, ...]]:
    x = torch.cat((normal(2, 3, 4) + 1, torch.zeros(2, 1, 4)), dim=1)
    return [(x, normal(4, seed=1), 1e-5), (0.01 * x, normal(4, seed=1), 1e-3)]


def layer(width: int, d_ff: int) -> dict[str, Tensor]:
    """Draw the weights of a feed-forward layer."""
    return weights(20, up=(width, d_ff), up_bias=(d_ff,), down=(d_ff, width), down_bias=(width,))


def block_cases() -> list[tuple[object, ...]]:
    w = weights(1, **dict.fromkeys("qkvo", (6, 6))) | layer(6, 8)
    w |= weights(10, norm_1=(6,), norm_1_bias=(6,), norm_2=(6,), norm_2_bias=(6,))
    own = torch.eye(4, dtype=torch.bool)
    allowed = torch.stack((own | own.roll(1, 0), own | own.roll(2, 0)))[:, None]  # each query has keys, but not all
    small = (1e-3 * normal(2, 4, 6), w | {"o": 1e-3 * w["o"]}, allowed, 2)  # the numbers that a norm adds matter
    return [(3 * normal(2, 4, 6), w, allowed, 2), (normal(2, 4, 6, seed=9), w, allowed.flip(0), 3), small]


EXERCISES += [
    Exercise(block.layer_norm, NORM, norm_cases, has_gradient=True),
    Exercise(block.rms_norm, NORM, rms_cases, has_gradient=True),
    Exercise(block.gelu, LAYER, lambda: [(3 * normal(2, 20),), (torch.linspace(-6, 6, 49),)], has_gradient=True),
    Exercise(block.feed_forward, LAYER, lambda: [(normal(2, 3, 4), layer(4, 8))], has_gradient=True),
    Exercise(block.block, f"{CH06}#a-block-from-its-parts", block_cases, has_gradient=True),
    Exercise(
        block.dropout,
        f"{CH06}#dropout",
        lambda: [(normal(3, 8), mask(3, 8), 0.3), (normal(5, seed=1), torch.ones(5, dtype=torch.bool), 0.0)],
        has_gradient=True,
    ),
]


# Chapter 7: label smoothing, greedy and beam search, and BLEU

CH07 = "course/07-the-transformer"
START, END = 0, 1
HYPOTHESES = [
    "the cat sat on the mat",
    "the the the the cat",
    "a dog saw the small cat in the house",
    "so it is here now",
]
REFERENCES = ["the cat sat on a mat", "the cat and the dog", "a dog saw the cat in the old house", "so it is here"]


def language(n_ids: int, of_end: float, seed: int) -> Callable[[list[int]], Tensor]:
    """Return a function of all ids so far that gives log-probabilities; `of_end` is added to the logit of the end."""

    def next_log_p(ids: list[int]) -> Tensor:
        number = seed
        for one in ids:
            number = (number * n_ids + one + 1) % 1_000_003
        logits = normal(n_ids, seed=number)
        logits[END] += of_end
        return logits.log_softmax(dim=-1)

    return next_log_p


def table(rows: dict[tuple[int, ...], list[float]]) -> Callable[[list[int]], Tensor]:
    """Return a function that looks up log-probabilities by the ids after the start. After an end, it gives an end."""

    def next_log_p(ids: list[int]) -> Tensor:
        row = rows.get(tuple(ids[1:]), [0, 0.5, 0.25, 0.25])
        if ids[-1] == END:
            row = [0, 1, 0, 0]
        return torch.tensor(row).log()

    return next_log_p


GARDEN_PATH = table({(): [0, 0, 0.6, 0.4], (2,): [0, 0.34, 0.33, 0.33], (3,): [0, 1, 0, 0]})
"""Id 2 is more probable than id 3, and a hypothesis with id 3 is more probable than one with id 2."""
LATE_END = table({(): [0, 0.4, 0.35, 0.25], (2,): [0, 0, 0.55, 0.45], (2, 3): [0, 0, 0, 1], (2, 3, 3): [0, 0, 0, 1]})
"""The third best beginning, (2, 3), has the best end."""

EARLY_END = table({(): [0, 0.4, 0.6, 0], (2,): [0, 1, 0, 0]})
"""The hypothesis that ends first is not the best."""
ONE_PLACE = table({(): [0, 0.4, 0.35, 0.25], (2,): [0, 0.45, 0, 0.55], (2, 3): [0, 0, 0, 1], (2, 3, 3): [0, 1, 0, 0]})
"""With a beam of 2, one place is left after the first end: (2, 3) has it, and not (2, end)."""
EQUAL = table({(): [0, 0.1, 0.45, 0.45], (2,): [0, 0, 0.5, 0.5], (2, 2): [0, 0.5, 0.5, 0]})
"""Each step has two ids of the same probability."""
EQUAL_LINES = table(
    {
        (): [0.125, 0.125, 0.25, 0.5],
        (2,): [0, 0, 0, 1],
        (3,): [0, 0, 0.5, 0.5],
        (2, 3): [0, 1, 0, 0],
        (3, 3): [0, 0.25, 0.5, 0.25],
    }
)
"""(2, 3), (3, 2) and (3, 3) have the same probability, and (3) is better than (2)."""


def searches() -> list[tuple[object, ...]]:
    settings = [(3, 6, 0.0), (3, 6, 1.0), (2, 8, 0.6), (4, 3, 2.0), (1, 5, 1.0), (3, 4, -1.0)]
    cases: list[tuple[object, ...]] = [(GARDEN_PATH, START, END, 2, 5, alpha) for alpha in (0.0, 1.0)]
    tables = (LATE_END, EARLY_END, ONE_PLACE, EQUAL_LINES)
    cases += [(of, START, END, 2, 6, alpha) for of in tables for alpha in (0.0, 2.0)]
    cases.append((EQUAL, START, END, 1, 6, 0.0))
    for seed, (beam, max_len, alpha) in enumerate(settings):
        cases += [(language(6, of_end, seed), START, END, beam, max_len, alpha) for of_end in (0.0, 1.0, -9.0)]
    return cases


def smoothing_cases() -> list[tuple[object, ...]]:
    labels = torch.tensor([[3, 0, -100], [1, -100, -100]])
    large = torch.tensor([[1000.0, 0.0, 0.0]])
    cases: list[tuple[object, ...]] = [(normal(2, 3, 5), labels, smoothing) for smoothing in (0.1, 0.0)]
    return [*cases, (normal(1, 4), labels[1, :1], 0.4), (large, labels[1, :1], 0.1)]


EXERCISES += [
    Exercise(train.label_smoothed_loss, f"{CH07}#training", smoothing_cases, has_gradient=True),
    Exercise(
        generate.greedy,
        f"{CH07}#greedy-search",
        lambda: (
            [(language(5, of_end, seed), START, END, 6) for seed in range(3) for of_end in (-9.0, 0.5)]
            + [(EQUAL, START, END, 3)]
        ),
    ),
    Exercise(
        generate.length_penalty,
        f"{CH07}#length-penalty",
        lambda: [(1, 1.0), (7, 1.0), (7, 0.6), (3, 0.0), (13, 2.0), (4, 1.0)],
    ),
    Exercise(generate.beam_search, f"{CH07}#beam-search", searches),
    Exercise(
        generate.n_grams,
        f"{CH07}#bleu-and-what-it-hides",
        lambda: [(["der", "Hund", "der", "Hund", "sieht"], n) for n in (1, 2, 3, 6)],
    ),
    Exercise(
        generate.bleu,
        f"{CH07}#bleu-and-what-it-hides",
        lambda: (
            [
                ([text.split() for text in HYPOTHESES[:n]], [text.split() for text in REFERENCES[:n]])
                for n in (1, 2, 3, 4)
            ]
            + [([list("abcd")], [list("abcdef")]), ([list("abcde")], [["x"] * 5]), ([list("ab")], [list("abc")])]
            + [([list("abcdef"), list("ghijk")], [list("abcd"), list("ghijklmno")])]
            + [([list("abcde"), list("abcd")], [list("abcd"), list("abcde")])]
            + [([list("abcdef"), ["a"]], [list("abcdef"), list("ab")])]  # a text without n-grams must subtract nothing
        ),
    ),
]
