"""Chapters 8, 9, 10 and 14: BERT, GPT, BART and T5, and models that answer."""

import torch
from torch import Tensor

from glassformer.apps.course.mytransformer import attention, bart, bert, embeddings, generate, train, tune
from glassformer.apps.course.workshop.exercise import Exercise, normal

# Chapter 8: masked language modelling, pairs of texts, and one vector per text

CH08 = "course/08-bert"
MASKING = f"{CH08}#hide-tokens-and-find-them-again"


def masking_cases() -> list[tuple[object, ...]]:
    generator = torch.Generator().manual_seed(0)
    ids, random_ids = (torch.randint(5, 99, (4, 60), generator=generator) for _ in range(2))
    draws = (torch.rand(4, 60, generator=generator), torch.rand(4, 60, generator=generator))
    is_special = torch.zeros(4, 60, dtype=torch.bool)
    is_special[:, [0, 30, 59]] = True
    cases: list[tuple[object, ...]] = [(ids, is_special, draws, random_ids, 4, rate) for rate in (0.15, 0.4, 1.0)]
    limits = (torch.tensor([[0.25, 0.5, 0.1, 0.2, 0.3]]), torch.tensor([[0.85, 0.1, 0.8, 0.95, 0.9]]))
    cases.append((ids[:1, 1:6], is_special[:1, 1:6], limits, random_ids[:1, 1:6], 4, 0.5))
    return [*cases, (ids[:1], is_special[:1], (draws[0][:1], draws[1][:1]), random_ids[:1], 4, 0.0)]


EXERCISES = [
    Exercise(bert.mask_tokens, MASKING, masking_cases),
    Exercise(
        bert.segments,
        f"{CH08}#the-rest-of-bert",
        lambda: [([7, 8, 9], [10, 11], 1, 2), ([7], [], 1, 2), ([], [7, 7], 3, 4)],
    ),
    Exercise(
        bert.mean_of_tokens,
        f"{CH08}#the-rest-of-bert",
        lambda: [
            (normal(3, 4, 5), torch.tensor([[True] * 4, [True, True, False, False], [False, False, False, True]])),
            (normal(1, 3, 2, seed=1), torch.tensor([[False, True, True]])),
        ],
        has_gradient=True,
    ),
]


# Chapter 9: labels, losses, sampling and the cache of a language model

CH09 = "course/09-gpt"
WRITE = f"{CH09}#write"
CACHE = f"{CH09}#a-context-that-slides"
NATS, COUNTS = [12.0, 3.0, 40.0], [8, 1, 16]


def cache_cases() -> list[tuple[object, ...]]:
    def new(n_tokens: int) -> tuple[Tensor, ...]:
        return tuple(normal(2, 3, n_tokens, 4, seed=seed) for seed in range(3))

    cache = (normal(2, 3, 5, 4, seed=7), normal(2, 3, 5, 4, seed=8))
    return [(*new(4), None), (*new(1), cache), (*new(3), cache)]


EXERCISES += [
    Exercise(
        train.shift,
        f"{CH09}#predict-the-next-token",
        lambda: [(torch.arange(2, 12).view(2, 5),), (torch.tensor([[3, 7]]),)],
    ),
    Exercise(
        train.mean_loss,
        f"{CH09}#training",
        lambda: [(torch.tensor(NATS), torch.tensor(COUNTS)), (torch.tensor([5.0, 1.0]), torch.tensor([3, 0]))],
        has_gradient=True,
    ),
    Exercise(train.perplexity, f"{CH09}#predict-the-next-token", lambda: [(NATS, COUNTS), ([2.0], [4])]),
    Exercise(
        generate.with_temperature,
        WRITE,
        lambda: [
            *((normal(2, 5), t) for t in (0.5, 1.0, 2.0, 0.0)),
            *((normal(2, 3, 5), t) for t in (0.5, 0.0)),
            (torch.tensor([1.0, 3.0, 3.0]), 0.0),
        ],
    ),
    Exercise(
        generate.top_k,
        WRITE,
        lambda: [(normal(2, 6), 2), (normal(2, 6), 6), (normal(2, 6), 9), (torch.tensor([2.0, 1.0, 2.0, 3.0]), 2)],
    ),
    Exercise(
        generate.top_p,
        WRITE,
        lambda: [
            (torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.04, 0.06]]).log(), 0.7),
            (normal(3, 8), 0.6),
            (normal(3, 8), 0.0),
            (normal(3, 8), 1.1),
            (torch.zeros(2), 0.5),
            (torch.tensor([0.4, 0.2, 0.2, 0.2]).log(), 0.5),
        ],
    ),
    Exercise(
        generate.draw,
        WRITE,
        lambda: (
            [(torch.tensor([0.0, 0.5, 0.25, 0.25]), u) for u in (0.0, 0.3, 0.5, 0.8)]
            + [(torch.tensor([0.3, 0.3, 0.39]), u) for u in (0.1, 0.999)]
        ),
    ),
    Exercise(
        embeddings.positions_of,
        CACHE,
        lambda: [(torch.tensor([[False, False, True, True, True], [True] * 5]),), (torch.tensor([[False, True]]),)],
    ),
    Exercise(attention.attend_with_cache, CACHE, cache_cases, has_gradient=True),
]


# Chapter 10: the damage of BART and of T5, and the positions of T5

CH10 = "course/10-bart-and-t5"
T5 = f"{CH10}#t5-damage-and-write-only-what-is-missing"
BART = f"{CH10}#bart-damage-and-write-the-whole-text-again"
IDS = [11, 12, 13, 14, 15, 16, 17]

EXERCISES += [
    Exercise(
        bart.span_corruption,
        T5,
        lambda: [(IDS, spans, 90) for spans in ([(1, 3), (5, 6)], [(0, 2), (4, 7)], [(2, 3)], [])],
    ),
    Exercise(
        bart.infill,
        BART,
        lambda: [(IDS, spans, 5) for spans in ([(1, 3), (5, 6)], [(0, 2), (4, 4)], [(7, 7)], [(3, 7)], [])],
    ),
    Exercise(
        embeddings.relative_bucket,
        T5,
        lambda: [(torch.arange(-140, 141), 32, 128), (torch.arange(-9, 10).view(1, 19), 8, 20)],
    ),
]


# Chapter 14: from a model of text to one that answers

CH14 = "course/14-a-model-that-answers"
SCORED = f"{CH14}#labels-only-the-answers-count"
LORA = f"{CH14}#few-new-numbers-lora"
PREFERENCES = f"{CH14}#preferences-a-better-and-a-worse-answer"
GROUPS = f"{CH14}#rewards-the-models-own-answers"


def conversations() -> list[tuple[Tensor, Tensor]]:
    assistant = [[0, 0, 0, 1, 1, 0, 0, 0, 1, 0], [0, 1, 1, 1, 0, 0, 0, 0, 0, 0]]
    return [(torch.arange(10, 30).view(2, 10), torch.tensor(assistant) > 0)]


def log_p(scale: float) -> tuple[Tensor, ...]:
    return tuple(scale * normal(6, seed=seed) for seed in range(4))


EXERCISES += [
    Exercise(tune.answer_labels, SCORED, conversations),
    Exercise(
        tune.lora,
        LORA,
        lambda: [
            (normal(2, 3, 6), normal(4, 6, seed=1), normal(r, 6, seed=2), normal(4, r, seed=3), alpha)
            for r, alpha in ((2, 8.0), (3, 1.0))
        ],
        has_gradient=True,
    ),
    Exercise(
        tune.merged_lora,
        LORA,
        lambda: [
            (normal(4, 6), normal(2, 6, seed=1), normal(4, 2, seed=2), 8.0),
            (normal(5, 5), normal(3, 5, seed=1), normal(5, 3, seed=2), 1.0),
        ],
    ),
    Exercise(
        tune.dpo_loss,
        PREFERENCES,
        lambda: [(*log_p(1.0), 0.1), (*log_p(3.0), 0.5), (*log_p(400.0), 1.0)],
        has_gradient=True,
    ),
    Exercise(
        tune.group_advantages,
        GROUPS,
        lambda: [
            (torch.tensor([[0.0, 1.0, 0.0, 4.0], [3.0, 3.0, 3.0, 3.0], [-1.0, 1.0, 2.0, 2.0]]),),
            (torch.tensor([[0.0, 1e-4, 2e-4, 1e-4]]),),
        ],
    ),
]
