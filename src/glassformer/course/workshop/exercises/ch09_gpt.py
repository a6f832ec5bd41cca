"""Chapter 9: labels, losses, sampling and the cache of a language model."""

import torch

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.exercises.draws import normal
from glassformer.course.workshop.solutions.ch09_gpt import (
    attend_with_cache,
    draw,
    mean_loss,
    perplexity,
    positions_of,
    shift,
    top_k,
    top_p,
    with_temperature,
)

CHAPTER = "course/09-gpt"
WRITE = f"{CHAPTER}#write"
CACHE = f"{CHAPTER}#a-context-that-slides"
SCALE = "course/05-attention#why-the-scores-are-divided-by-d_k"
MISTAKES = "course/12-classical-mistakes"
POSITIONS = f"{MISTAKES}#positions-counted-from-the-first-column-32"
NATS, COUNTS = [12.0, 3.0, 40.0], [8, 1, 16]


def cache_cases() -> list[tuple[object, ...]]:
    def new(n_tokens: int) -> tuple[torch.Tensor, ...]:
        return tuple(normal(2, 3, n_tokens, 4, seed=seed) for seed in range(3))

    cache = (normal(2, 3, 5, 4, seed=7), normal(2, 3, 5, 4, seed=8))
    return [(*new(4), None), (*new(1), cache), (*new(3), cache)]


EXERCISES = (
    Exercise(
        shift,
        f"{CHAPTER}#predict-the-next-token",
        lambda: [(torch.arange(2, 12).view(2, 5),), (torch.tensor([[3, 7]]),)],
        (
            Mistake(
                "Labels equal the inputs, so the model learns to copy: take the next id.",
                "ids[:, 1:]",
                "ids[:, :-1]",
                pitfall=18,
            ),
            Mistake(
                "The labels are shifted twice: take the next id, not the one after it.",
                "ids[:, :-1], ids[:, 1:]",
                "ids[:, :-2], ids[:, 2:]",
                pitfall=18,
            ),
            Mistake(
                "The model predicts the id before: exchange inputs and labels.",
                "ids[:, :-1], ids[:, 1:]",
                "ids[:, 1:], ids[:, :-1]",
                pitfall=18,
            ),
            Mistake(
                "The shift is along the axis of the texts.",
                "ids[:, :-1], ids[:, 1:]",
                "ids[:-1], ids[1:]",
                pitfall=18,
            ),
            Mistake(
                "Inputs and labels are the same ids, as for Hugging Face's models, which shift inside: shift here.",
                "ids[:, :-1], ids[:, 1:]",
                "ids, ids",
                pitfall=18,
            ),
            Mistake(
                "The last id has no label: leave it out of the inputs, in place of the label -100.",
                "ids[:, :-1], ids[:, 1:]",
                "ids, torch.nn.functional.pad(ids[:, 1:], (0, 1), value=-100)",
            ),
            Mistake(
                "The ids are rolled, so the last label is the first id of the text: cut off the last input.",
                "ids[:, :-1], ids[:, 1:]",
                "ids, ids.roll(-1, 1)",
            ),
        ),
    ),
    Exercise(
        mean_loss,
        f"{CHAPTER}#training",
        lambda: [(torch.tensor(NATS), torch.tensor(COUNTS)), (torch.tensor([5.0, 1.0]), torch.tensor([3, 0]))],
        (
            Mistake(
                "This is the mean of the means, in which a token of a small micro-batch counts more: divide once, by "
                "the number of all labels.",
                "nats.sum() / counts.sum()",
                "(nats / counts).mean()",
                pitfall=19,
            ),
            Mistake(
                "The sum is divided by the number of micro-batches: divide by the number of all labels.",
                "nats.sum() / counts.sum()",
                "nats.mean()",
                pitfall=19,
            ),
            Mistake(
                "The means of the micro-batches are added, so the loss grows with their number.",
                "nats.sum() / counts.sum()",
                "(nats / counts).sum()",
                pitfall=19,
            ),
            Mistake(
                "This is the sum: divide by the number of all labels.",
                "nats.sum() / counts.sum()",
                "nats.sum()",
                pitfall=19,
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        perplexity,
        f"{CHAPTER}#predict-the-next-token",
        lambda: [(NATS, COUNTS), ([2.0], [4])],
        (
            Mistake(
                "This is exp of the mean of the batches' means: add all nats, and divide by all tokens.",
                "sum(nats) / sum(counts)",
                "sum(x / n for x, n in zip(nats, counts)) / len(nats)",
                pitfall=20,
            ),
            Mistake(
                "This is the mean of the batches' perplexities: add nats first, and take exp once.",
                "math.exp(sum(nats) / sum(counts))",
                "sum(math.exp(x / n) for x, n in zip(nats, counts)) / len(nats)",
                pitfall=20,
            ),
            Mistake(
                "The nats are divided by the number of batches: divide by the number of tokens.",
                "sum(counts)",
                "len(counts)",
                pitfall=20,
            ),
            Mistake("This is the loss in nats: return its exponential.", "math.exp(", "float("),
            Mistake("The base is 2, but the loss is in nats: use exp.", "math.exp(", "math.pow(2, "),
            Mistake(
                "This is the weighted mean of the batches' perplexities: add nats first, and take exp once.",
                "math.exp(sum(nats) / sum(counts))",
                "sum(n * math.exp(x / n) for x, n in zip(nats, counts)) / sum(counts)",
                pitfall=20,
            ),
        ),
    ),
    Exercise(
        with_temperature,
        WRITE,
        lambda: [
            *((normal(2, 5), t) for t in (0.5, 1.0, 2.0, 0.0)),
            *((normal(2, 3, 5), t) for t in (0.5, 0.0)),
            (torch.tensor([1.0, 3.0, 3.0]), 0.0),
        ],
        (
            Mistake(
                "Temperature 0 divides by zero: take the largest logit in this case.",
                "    if temperature == 0:",
                "    if temperature < 0:",
                pitfall=34,
            ),
            Mistake(
                "Temperature 0 is treated like 1: the largest logit must have the probability 1.",
                "torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)",
                "logits.softmax(dim=-1)",
                pitfall=34,
            ),
            Mistake(
                "At temperature 0, equal logits share the probability: give it all to the first.",
                "torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)",
                "(logits / 1e-8).softmax(dim=-1)",
            ),
            Mistake(
                "The logits are multiplied by the temperature: divide.",
                "return (logits / temp",
                "return (logits * temp",
            ),
            Mistake(
                "The probabilities are divided, so they do not add up to 1: divide the logits before the softmax.",
                "return (logits / temperature).softmax(dim=-1)",
                "return logits.softmax(dim=-1) / temperature",
            ),
        ),
    ),
    Exercise(
        top_k,
        WRITE,
        lambda: [(normal(2, 6), 2), (normal(2, 6), 6), (normal(2, 6), 9), (torch.tensor([2.0, 1.0, 2.0, 3.0]), 2)],
        (
            Mistake(
                "A k that is larger than the vocabulary fails: keep all tokens then.",
                "min(k, logits.shape[-1])",
                "k",
                pitfall=34,
            ),
            Mistake(
                "The others get the logit 0, which is not the probability 0: set them to -inf.",
                'float("-inf")',
                "0.0",
            ),
            Mistake(
                "Of the logits that equal the k-th, only some are kept: keep all of them.",
                "kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]\n"
                '    return logits.masked_fill(logits < kth, float("-inf"))',
                "kept = logits.topk(min(k, logits.shape[-1]), dim=-1)\n"
                '    return torch.full_like(logits, float("-inf")).scatter(-1, kept.indices, kept.values)',
            ),
            Mistake("Only k - 1 tokens are kept: keep the k-th too.", "logits < kth", "logits <= kth"),
            Mistake("The largest logits are removed: keep them.", "logits < kth", "logits >= kth"),
            Mistake(
                "The k largest logits of all rows are kept: keep the k largest of each row.",
                "logits < kth",
                "logits < kth.max()",
            ),
        ),
    ),
    Exercise(
        top_p,
        WRITE,
        lambda: [
            (torch.tensor([[0.2, 0.5, 0.3], [0.9, 0.04, 0.06]]).log(), 0.7),
            (normal(3, 8), 0.6),
            (normal(3, 8), 0.0),
            (normal(3, 8), 1.1),
            (torch.zeros(2), 0.5),
            (torch.tensor([0.4, 0.2, 0.2, 0.2]).log(), 0.5),
        ],
        (
            Mistake(
                "The token with which the sum reaches p is removed, so too few tokens are left, or none: keep it.",
                "before >= p",
                "probabilities.cumsum(dim=-1) > p",
                pitfall=34,
            ),
            Mistake("For p = 0 no token is left: keep at least one.", "    drops[..., 0] = False\n", "", pitfall=34),
            Mistake(
                "Tokens are removed by their place in the sorted order: undo the sort first.",
                "torch.zeros_like(drops).scatter(-1, order, drops)",
                "drops",
            ),
            Mistake(
                "The least probable tokens are kept: begin the sorted order with the largest probability.",
                "descending=True",
                "descending=False",
            ),
            Mistake(
                "Each token with a probability below p is removed: compare the sum of the more probable tokens with p.",
                "before >= p",
                "probabilities < p",
            ),
            Mistake(
                "The others get the logit 0, which is not the probability 0: set them to -inf.", 'float("-inf")', "0.0"
            ),
            Mistake(
                "A token is kept after the sum has reached p exactly: keep as few as possible.",
                "before >= p",
                "before > p",
            ),
            Mistake(
                "Of equal logits, the last is kept first, as after Hugging Face's rising sort: sort in falling order, "
                "with stable=True.",
                "logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)",
                "(x.flip(-1) for x in logits.softmax(dim=-1).sort(dim=-1, stable=True))",
            ),
            Mistake(
                "All logits that equal the last kept one are kept: of equal logits, keep only the first ones.",
                "torch.zeros_like(drops).scatter(-1, order, drops)",
                'logits < logits.gather(-1, order).masked_fill(drops, float("inf")).amin(dim=-1, keepdim=True)',
            ),
        ),
    ),
    Exercise(
        draw,
        WRITE,
        lambda: (
            [(torch.tensor([0.0, 0.5, 0.25, 0.25]), u) for u in (0.0, 0.3, 0.5, 0.8)]
            + [(torch.tensor([0.3, 0.3, 0.39]), u) for u in (0.1, 0.999)]
        ),
        (
            Mistake(
                "An id with the probability 0 can be drawn: the cumulative sum must be larger than u, not equal.",
                "<= u",
                "< u",
            ),
            Mistake(
                "The most probable id is returned for every u: choose the id by u.",
                "min(int((probabilities.cumsum(dim=0) <= u).sum()), len(probabilities) - 1)",
                "int(probabilities.argmax())",
            ),
            Mistake(
                "u is compared with single probabilities: compare it with their cumulative sum.",
                "probabilities.cumsum(dim=0)",
                "probabilities",
            ),
            Mistake(
                "Rounding errors can give an id that does not exist: return the last one in this case.",
                "min(int((probabilities.cumsum(dim=0) <= u).sum()), len(probabilities) - 1)",
                "int((probabilities.cumsum(dim=0) <= u).sum())",
            ),
        ),
    ),
    Exercise(
        positions_of,
        POSITIONS,
        lambda: [(torch.tensor([[False, False, True, True, True], [True] * 5]),), (torch.tensor([[False, True]]),)],
        (
            Mistake(
                "Positions are counted from the first column: count tokens, so that padding does not move them.",
                "(is_token.long().cumsum(dim=1) - 1).clamp(min=0)",
                "torch.arange(is_token.shape[1]).expand(is_token.shape)",
                POSITIONS,
                pitfall=32,
            ),
            Mistake("The positions begin with 1: subtract 1.", "cumsum(dim=1) - 1)", "cumsum(dim=1))"),
            Mistake("Padding gets the position -1, which is not in the table: replace it by 0.", ".clamp(min=0)", ""),
            Mistake(
                "Tokens are counted along the axis of the texts: count along the axis of the tokens.", "dim=1", "dim=0"
            ),
            Mistake(
                "Padding gets the position 1, as in Hugging Face's generation: its position is 0.",
                ".clamp(min=0)",
                ".masked_fill(~is_token, 1)",
            ),
            Mistake(
                "The positions begin with 2, and that of padding is 1, as in fairseq: begin with 0, also for padding.",
                "(is_token.long().cumsum(dim=1) - 1).clamp(min=0)",
                "is_token.long().cumsum(dim=1) * is_token + 1",
            ),
        ),
    ),
    Exercise(
        attend_with_cache,
        CACHE,
        cache_cases,
        (
            Mistake(
                "The mask ignores the tokens of the cache, so new tokens do not see the last ones: shift its diagonal "
                "by their number.",
                ".tril(n_all - n_new)",
                ".tril()",
                pitfall=31,
            ),
            Mistake(
                "New tokens see the new tokens after them: make the mask causal among the new tokens.",
                ".tril(n_all - n_new)",
                "",
                pitfall=31,
            ),
            Mistake(
                "The new keys and values come before those of the cache: put them after those.",
                "torch.cat([cache[0], key], dim=2), torch.cat([cache[1], value], dim=2)",
                "torch.cat([key, cache[0]], dim=2), torch.cat([value, cache[1]], dim=2)",
                pitfall=31,
            ),
            Mistake(
                "The new keys and values are missing in the cache that is returned.",
                "@ value, (key, value)",
                "@ value, (cache or (key, value))",
                pitfall=31,
            ),
            Mistake(
                "The cache is not used: put the new keys and values after those of the cache.",
                "if cache is not None:",
                "if False:",
                pitfall=31,
            ),
            Mistake("The scores are not divided by √d.", " / math.sqrt(query.shape[-1])", "", SCALE, pitfall=7),
            Mistake(
                "Several new tokens see only the first keys, as with is_causal=True, whose triangle begins at the top "
                "left: shift its diagonal by the number of tokens in the cache.",
                ".tril(n_all - n_new)",
                ".tril(0 if n_new > 1 else n_all)",
                pitfall=31,
            ),
            Mistake(
                "New tokens see the new tokens after them: make the mask causal among the new tokens.",
                ".tril(n_all - n_new)",
                ".tril(0 if cache is None else n_all)",
                pitfall=31,
            ),
            Mistake(
                "A new token does not see itself: the last allowed key must be the token itself.",
                ".tril(n_all - n_new)",
                ".tril(n_all - n_new - 1)",
                pitfall=31,
            ),
            Mistake(
                "A new token sees the one after it: the last allowed key must be the token itself.",
                ".tril(n_all - n_new)",
                ".tril(n_all - n_new + 1)",
                pitfall=31,
            ),
            Mistake(
                "The cache that is returned has only the new tokens: return those before them too.",
                "@ value, (key, value)",
                "@ value, (key[:, :, -n_new:], value[:, :, -n_new:])",
                pitfall=31,
            ),
            Mistake(
                "The scores are divided by the root of the width of the model: take the smaller width of a head.",
                "math.sqrt(query.shape[-1])",
                "math.sqrt(query.shape[1] * query.shape[-1])",
                SCALE,
                pitfall=7,
            ),
        ),
        has_gradient=True,
    ),
)
