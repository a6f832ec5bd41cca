"""Chapters 1 to 4: tokens, positions, recurrent cells and attention over the source."""

import torch
from torch import Tensor

from glassformer.apps.course.mytransformer import embeddings, recurrent, tokenizer, train
from glassformer.apps.course.workshop.exercise import Exercise, normal, weights

# Chapter 1: byte-pair encoding

CH01 = "course/01-text-to-ids"
TEXT = {"low": 5, "lower": 2, "newest": 6, "widest": 3, "banana": 4, "aaa": 1}
TIES = {"ba": 2, "ab": 2, "bb": 2, "cc": 1}
MERGES = [("e", "s"), ("es", "t"), ("l", "o"), ("lo", "w"), ("n", "e"), ("ne", "w"), ("a", "n"), ("an", "an")]

EXERCISES = [
    Exercise(
        tokenizer.count_pairs,
        CH01,
        lambda: [({tuple(word): n for word, n in TEXT.items()},), ({("lo", "w"): 3, ("lo",): 9},), ({},)],
    ),
    Exercise(
        tokenizer.most_frequent_pair,
        CH01,
        lambda: [
            ({("l", "o"): 7, ("o", "w"): 7, ("e", "r"): 2},),
            ({("o", "w"): 7, ("l", "o"): 7, ("e", "r"): 9},),
            ({("z", "a"): 3, ("b", "z"): 3, ("b", "c"): 3},),
            ({("ab", "a"): 1, ("a", "c"): 1},),
        ],
    ),
    Exercise(
        tokenizer.merge_pair,
        CH01,
        lambda: [
            (("l", "o", "l", "o"), ("l", "o")),
            (("a", "a", "a"), ("a", "a")),
            (("a", "a", "a", "a", "b"), ("a", "a")),
            (("n", "e", "w"), ("e", "n")),
            (("an", "a", "n"), ("a", "n")),
            (("le", "s"), ("e", "s")),
            (("ab", "c", "a", "bc"), ("a", "bc")),
            ((), ("a", "n")),
        ],
    ),
    Exercise(tokenizer.learn_merges, CH01, lambda: [(TEXT, 1), (TEXT, 9), (TIES, 3), ({"ab": 1}, 5), ({}, 2)]),
    Exercise(
        tokenizer.encode,
        CH01,
        lambda: [(word, MERGES) for word in ("newest", "lowest", "banana", "low", "xyz", "", "wow", "nest", " new")],
    ),
]


# Chapter 2: softmax, positions and the first gradient

CH02 = "course/02-embeddings-and-positions"
LOSS = f"{CH02}#a-loss-and-its-gradient"
LARGE = torch.tensor([[1000.0, 1001.0, 999.0], [-1000.0, -1001.0, -1002.0]])

EXERCISES += [
    Exercise(
        train.softmax,
        LOSS,
        lambda: [(normal(2, 3, 4),), (LARGE,), (torch.tensor([[1000.0, 0.0, 0.0]]),)],
        has_gradient=True,
    ),
    Exercise(embeddings.sinusoids, f"{CH02}#sines-and-cosines", lambda: [(5, 6), (40, 16), (1, 2), (3, 5)]),
    Exercise(
        embeddings.rotate,
        f"{CH02}#rotary-positions",
        lambda: [
            (normal(2, 3, 5, 8), torch.arange(5)),
            (normal(1, 2, 3, 4, seed=1), torch.tensor([7, 8, 9])),
            (normal(1, 1, 4, 6, seed=2), torch.tensor([0, 0, 1, 30])),
        ],
        has_gradient=True,
    ),
    Exercise(
        train.gradient_of_softmax_cross_entropy,
        LOSS,
        lambda: [(normal(5), 2), (normal(3, seed=1), 0), (LARGE[0], 1)],
    ),
]


# Chapter 3: the recurrent cells, the loss and a step of training

GATES = "course/03-recurrent-encoder-decoder#gates-gru-and-lstm"
TRAINING = "course/03-recurrent-encoder-decoder#the-loss-and-a-step-of-training"


def cell(n_gates: int, width: int = 4) -> dict[str, Tensor]:
    """Draw the weights of a cell with inputs of width 3 and states of `width`."""
    n = width * n_gates
    return weights(0, weight_ih=(n, 3), weight_hh=(n, width), bias_ih=(n,), bias_hh=(n,))


def loss_cases() -> list[tuple[Tensor, Tensor]]:
    logits, labels = normal(2, 4, 5), torch.tensor([[1, 4, 0, 2], [3, 2, -100, -100]])
    large = torch.tensor([[[1000.0, 0.0, 0.0], [0.0, 2.0, -1000.0]]])
    return [(logits, labels), (logits, labels.clamp(min=0)), *((large, torch.tensor([[label, 1]])) for label in (0, 1))]


def clip_cases() -> list[tuple[list[Tensor], float]]:
    long, short = [3 * normal(2, 3), normal(4, seed=1)], [torch.tensor([0.3, 0.4]), torch.tensor([[0.1]])]
    return [(long, 1.0), (short, 1.0), (short, 0.45), ([torch.zeros(3)], 1.0)]


def adamw_cases() -> list[tuple[object, ...]]:
    weight, gradient = 3 * normal(2, 3), normal(2, 3, seed=1)
    begin = (torch.zeros(2, 3), torch.zeros(2, 3))
    later = (normal(2, 3, seed=2), normal(2, 3, seed=3).square())
    tiny = torch.tensor([1e-4, 2e-5, 1e-8, 0.0])
    return [
        (weight, gradient, begin, 1, 0.1, 0.5),
        (weight, gradient, later, 7, 0.01, 0.0),
        (torch.ones(4), tiny, (torch.zeros(4), torch.zeros(4)), 1, 0.1, 0.1),
    ]


EXERCISES += [
    Exercise(
        recurrent.gru_step,
        GATES,
        lambda: [(normal(2, 3, seed=8), normal(2, 4, seed=9), cell(3))],
        has_gradient=True,
    ),
    Exercise(
        recurrent.lstm_step,
        GATES,
        lambda: [
            (normal(2, 3, seed=7), normal(2, width, seed=8), normal(2, width, seed=9), cell(4, width))
            for width in (4, 6)
        ],
        has_gradient=True,
    ),
    Exercise(train.cross_entropy, TRAINING, loss_cases, has_gradient=True),
    Exercise(train.clip_gradients, TRAINING, clip_cases),
    Exercise(train.adamw_step, TRAINING, adamw_cases),
    Exercise(
        train.warmup_then_inverse_root,
        TRAINING,
        lambda: [(step, warmup, peak) for warmup, peak in ((4, 1.0), (100, 3.0)) for step in (1, 2, 4, 5, 100, 1000)],
    ),
]


# Chapter 4: attention over the source

CH04 = "course/04-attention-is-alignment"
SCORES = f"{CH04}#multiplicative-and-additive-scores"


def hidden_layer(d_query: int, d_memory: int) -> dict[str, Tensor]:
    """Draw the weights of additive scores with a hidden layer of width 3."""
    return weights(5, query=(d_query, 3), memory=(d_memory, 3), vector=(3,))


def context_cases() -> list[tuple[Tensor, Tensor, Tensor]]:
    is_token = torch.tensor([[True, True, True, True], [True, True, False, False], [False] * 4])
    scores, memory = normal(3, 4, 4), normal(3, 4, 5, seed=1)
    scores[0, 0, 1] = scores[1, 2, 0] = 0.0
    low = torch.tensor([[[-1e12, -2e12, 5.0]]])
    return [(scores, memory, is_token), (low, normal(1, 3, 2), torch.tensor([[True, True, False]]))]


EXERCISES += [
    Exercise(
        recurrent.dot_scores,
        f"{CH04}#score-weights-context",
        lambda: [
            (normal(2, 3, 4), normal(2, 5, 4, seed=1)),
            (normal(1, 3, 4), normal(1, 3, 4, seed=1)),
            (normal(1, 2, 4), normal(1, 2, 6, seed=1)),
        ],
        has_gradient=True,
    ),
    Exercise(
        recurrent.general_scores,
        SCORES,
        lambda: [
            (normal(2, 3, 4), normal(2, 5, 4, seed=1), normal(4, 4, seed=2)),
            (normal(1, 2, 4), normal(1, 3, 6, seed=1), normal(4, 6, seed=2)),
        ],
        has_gradient=True,
    ),
    Exercise(
        recurrent.additive_scores,
        SCORES,
        lambda: [
            (normal(2, 3, 4), normal(2, 5, 4, seed=1), hidden_layer(4, 4)),
            (normal(1, 2, 4), normal(1, 3, 6, seed=1), hidden_layer(4, 6)),
        ],
        has_gradient=True,
    ),
    Exercise(recurrent.context, f"{CH04}#score-weights-context", context_cases, has_gradient=True),
]
