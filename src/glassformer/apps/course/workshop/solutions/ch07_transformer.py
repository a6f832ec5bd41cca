"""Chapter 7: the loss of the Transformer, its search for a translation, and BLEU.

Vaswani et al. 2017, section 5.4 (label smoothing); Wu et al. 2016 (length penalty); Papineni et al. 2002 (BLEU).
"""

import math
from collections import Counter
from collections.abc import Callable

from torch import Tensor

NextLogP = Callable[[list[int]], Tensor]
"""Maps all ids so far, the start id first, to the log-probabilities (V,) of the next id."""


def label_smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the mean cross-entropy with label smoothing ε, a tensor without axes.

    `logits` (…, V), `labels` (…). The target of a position has the probability 1 - ε for its label, and ε is spread
    equally over all V tokens, the label included. Positions with the label -100 are not scored, and do not count in
    the mean. The value is finite for all finite logits.
    """
    log_p = logits.log_softmax(dim=-1)
    is_scored = labels != -100
    of_label = log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    losses = -(1 - smoothing) * of_label - smoothing * log_p.mean(dim=-1)
    return losses[is_scored].mean()


def greedy(next_log_p: NextLogP, start: int, end: int, max_len: int) -> list[int]:
    """Take the most probable next id at each step, until `end` or `max_len` ids.

    `next_log_p` maps a list of ids, which begins with `start`, to the log-probabilities (V,) of the next id. Return
    the ids after `start`, with `end` if it was reached. Of equal probabilities, take the smallest id.
    """
    ids: list[int] = []
    while len(ids) < max_len and end not in ids:
        ids.append(int(next_log_p([start, *ids]).argmax()))
    return ids


def length_penalty(length: int, alpha: float) -> float:
    """Return the divisor of the log-probability of a hypothesis, ((5 + n) / 6) to the power of α.

    `length` is n, the number of ids of the hypothesis.
    """
    return float(((5 + length) / 6) ** alpha)


def beam_search(
    next_log_p: NextLogP, start: int, end: int, beam: int, max_len: int, alpha: float
) -> tuple[list[int], float]:
    """Search for the best hypothesis with a beam; return its ids after `start`, `end` included, and its score.

    The log-probability of a hypothesis is the sum over its ids. Begin with one live hypothesis without ids. At each
    step, continue every live hypothesis with every id, and choose the continuations with the largest log-probability:
    `beam` minus the number of finished hypotheses. Those that end with `end` are finished: they are kept, and not
    continued. The others are live. Of equal ones, prefer the one of the better live hypothesis, then the smaller id.

    Stop if no hypothesis is live, or at `max_len` ids. The score is the log-probability divided by the length penalty
    of the number of ids, `end` included. The best finished hypothesis is the result; if none is finished, the best
    live one.
    """
    live: list[tuple[list[int], float]] = [([], 0.0)]
    finished: list[tuple[list[int], float]] = []
    for _ in range(max_len):
        continuations = [
            ([*ids, token], log_p + more)
            for ids, log_p in live
            for token, more in enumerate(next_log_p([start, *ids]).tolist())
        ]
        continuations.sort(key=lambda one: -one[1])
        chosen = continuations[: beam - len(finished)]
        finished += [(ids, log_p) for ids, log_p in chosen if ids[-1] == end]
        live = [(ids, log_p) for ids, log_p in chosen if ids[-1] != end]
    scored = [(ids, log_p / length_penalty(len(ids), alpha)) for ids, log_p in finished or live]
    return max(scored, key=lambda one: one[1])


def n_grams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams of a text, which are its n neighbouring tokens: {("the", "cat"): 2, …}."""
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def bleu(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    """Return corpus BLEU, from 0 to 100, of texts as lists of tokens, with one reference for each hypothesis.

    For n from 1 to 4, the precision is the number of n-grams of all hypotheses that their references contain, divided
    by the number of n-grams of all hypotheses. An n-gram matches at most as often as the reference contains it. BLEU is
    100 times the geometric mean of the four precisions, times exp(1 - r / c) if all hypotheses together have fewer
    tokens, c, than all references, r. It is 0 if a precision is 0, or if all hypotheses
    are shorter than n tokens. There is no smoothing.
    """
    matches, totals = [0] * 4, [0] * 4
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        for n in range(1, 5):
            found, wanted = n_grams(hypothesis, n), n_grams(reference, n)
            matches[n - 1] += (found & wanted).total()
            totals[n - 1] += found.total()
    if 0 in matches:
        return 0.0
    c, r = sum(map(len, hypotheses)), sum(map(len, references))
    mean = sum(math.log(m / total) for m, total in zip(matches, totals, strict=True)) / 4
    return 100 * math.exp(mean + min(0.0, 1 - r / c))
