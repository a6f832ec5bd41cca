"""Choose the next token, search for a translation, and score it with BLEU.

Wu et al. 2016 (length penalty); Papineni et al. 2002 (BLEU).
"""

import math
from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor

from .gpt import GPT
from .transformer import Transformer

NextLogP = Callable[[list[int]], Tensor]
"""Maps all ids so far, the start id first, to the log-probabilities (V,) of the next.
"""


def greedy(next_log_p: NextLogP, start: int, end: int, max_len: int) -> list[int]:
    """Take the most probable next id at each step, until `end` or `max_len` ids.

    `next_log_p` maps a list of ids, which begins with `start`, to the log-probabilities
    (V,) of the next id. Return the ids after `start`, with `end` if it was reached. Of
    equal probabilities, take the smallest id.
    """
    ids: list[int] = []
    while len(ids) < max_len and end not in ids:
        ids.append(int(next_log_p([start, *ids]).argmax()))
    return ids


def length_penalty(length: int, alpha: float) -> float:
    """Return the divisor of the log-probability of a hypothesis, ((5 + n) / 6) to the
    power of α.

    `length` is n, the number of ids of the hypothesis.
    """
    return float(((5 + length) / 6) ** alpha)


def beam_search(
    next_log_p: NextLogP, start: int, end: int, beam: int, max_len: int, alpha: float
) -> tuple[list[int], float]:
    """Search for the best hypothesis with a beam; return its ids after `start`, `end`
    included, and its score.

    The log-probability of a hypothesis is the sum over its ids. Begin with one live
    hypothesis without ids. At each step, continue every live hypothesis with every id,
    and choose the continuations with the largest log-probability: `beam` minus the
    number of finished hypotheses. Those that end with `end` are finished: they are
    kept, and not continued. The others are live. Of equal ones, prefer the one of the
    better live hypothesis, then the smaller id.

    Stop if no hypothesis is live, or at `max_len` ids. The score is the log-probability
    divided by the length penalty of the number of ids, `end` included. The best
    finished hypothesis is the result; if none is finished, the best live one.
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
    scored = [
        (ids, log_p / length_penalty(len(ids), alpha))
        for ids, log_p in finished or live
    ]
    return max(scored, key=lambda one: one[1])


def n_grams(tokens: list[str], n: int) -> Counter[tuple[str, ...]]:
    """Count the n-grams of a text, which are its n neighbouring tokens: {("the",
    "cat"): 2, …}.
    """
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def bleu(hypotheses: list[list[str]], references: list[list[str]]) -> float:
    """Return corpus BLEU, from 0 to 100, of texts as lists of tokens, with one
    reference for each hypothesis.

    For n from 1 to 4, the precision is the number of n-grams of all hypotheses that
    their references contain, divided by the number of n-grams of all hypotheses. An
    n-gram matches at most as often as the reference contains it. BLEU is 100 times the
    geometric mean of the four precisions, times exp(1 - r / c) if all hypotheses
    together have fewer tokens, c, than all references, r. It is 0 if a precision is 0,
    or if all hypotheses are shorter than n tokens. There is no smoothing.
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
    mean = (
        sum(math.log(m / total) for m, total in zip(matches, totals, strict=True)) / 4
    )
    return 100 * math.exp(mean + min(0.0, 1 - r / c))


def with_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Return the probabilities softmax(logits / temperature) over the last axis (…, V).

    At temperature 0, the largest logit has the probability 1, all others 0. Of several
    largest ones, take the first.
    """
    if temperature == 0:
        return torch.zeros_like(logits).scatter(
            -1, logits.argmax(dim=-1, keepdim=True), 1.0
        )
    return (logits / temperature).softmax(dim=-1)


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k largest logits of the last axis (…, V), and those equal to the k-th;
    set the others to -inf.

    All are kept if k is larger than V.
    """
    kth = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < kth, float("-inf"))


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the most probable tokens whose probabilities add up to p, as few as
    possible; set other logits to -inf.

    `logits` (…, V). The token with which the sum reaches p is kept too. At least one
    token is kept, for every p. Of equal logits, the first is kept first.
    """
    probabilities, order = logits.softmax(dim=-1).sort(
        dim=-1, descending=True, stable=True
    )
    before = probabilities.cumsum(dim=-1) - probabilities
    drops = before >= p
    drops[..., 0] = False
    return logits.masked_fill(
        torch.zeros_like(drops).scatter(-1, order, drops), float("-inf")
    )


def draw(probabilities: Tensor, u: float) -> int:
    """Draw an id with the `probabilities` (V,), by a random number u from 0 to below 1.

    Return the first id whose cumulative sum, its own probability included, is larger
    than u. If rounding errors leave none, return the last id.
    """
    return min(int((probabilities.cumsum(dim=0) <= u).sum()), len(probabilities) - 1)


@torch.no_grad()
def generate(
    model: GPT,
    ids: list[int],
    n_new: int,
    *,
    temperature: float = 1.0,
    k: int = 0,
    p: float = 1.0,
    seed: int = 0,
    end: int = -1,
) -> list[int]:
    """Continue the ids of a text with a GPT: return the new ids, at most `n_new`.

    Each logit is divided by the temperature; top-k (0 keeps all) and then top-p act;
    and `draw` takes an id with the next number, `torch.rand(())`, of a generator of its
    own with this seed. At temperature 0, take the largest logit. Stop after `end`,
    which is part of the result. The first step reads the whole text and fills a cache;
    each other step reads one token. When the text has more than `model.max_len` tokens,
    keep the last half of this number, and continue with a new cache. The model is put
    into evaluation mode.
    """
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    read, seen, cache = list(ids), list(ids), model.new_cache()
    new: list[int] = []
    while len(new) < n_new and end not in new:
        logits = model(torch.tensor([read]), cache=cache)[0, -1]
        if temperature:
            logits = logits / temperature
            logits = top_p(top_k(logits, k) if k else logits, p)
        u = torch.rand((), generator=generator).item()
        new.append(draw(with_temperature(logits, 1.0 if temperature else 0.0), u))
        read = [new[-1]]
        seen.append(new[-1])
        if len(seen) > model.max_len:
            read = seen = seen[-(model.max_len // 2) :]
            cache = model.new_cache()
    return new


@torch.no_grad()
def translate(
    model: Transformer,
    source: Tensor,
    is_source: Tensor,
    start: int,
    end: int,
    *,
    beam: int = 4,
    max_len: int = 64,
    alpha: float = 0.6,
) -> list[list[int]]:
    """Translate several sources at once: for each, the ids of the best hypothesis.

    The results are those of `beam_search` for each source, without `end`. All live
    hypotheses of all sources are one batch, and the decoder keeps a cache: a step reads
    one token of each, after the rows of the cache were put in the order of the
    hypotheses. The model is put into evaluation mode.
    """
    model.eval()
    n_texts, cache = len(source), model.new_cache()
    memory = model.encode(source, is_source).repeat_interleave(beam, dim=0)
    is_source = is_source.repeat_interleave(beam, dim=0)
    live: list[list[tuple[list[int], float]]] = [[([], 0.0)] for _ in range(n_texts)]
    finished: list[list[tuple[list[int], float]]] = [[] for _ in range(n_texts)]
    last = torch.full((n_texts * beam, 1), start)
    for _ in range(max_len):
        decoded = model.decode(last, memory, is_source, cache)
        log_p = model.project(decoded)[:, -1].log_softmax(dim=-1)
        n_ids = log_p.shape[-1]
        rows = torch.arange(n_texts * beam)  # of the cache, for the next step
        for text, hypotheses in enumerate(live):
            first, n_live = text * beam, len(hypotheses)
            before = torch.tensor([score for _, score in hypotheses])
            totals = before[:, None] + log_p[first : first + n_live]
            best, places = totals.flatten().sort(descending=True, stable=True)
            live[text] = []
            for place in range(min(beam - len(finished[text]), n_live * n_ids)):
                line, token = divmod(int(places[place]), n_ids)
                one = ([*hypotheses[line][0], token], float(best[place]))
                if token == end:
                    finished[text].append(one)
                else:
                    rows[first + len(live[text])] = first + line
                    last[first + len(live[text])] = token
                    live[text].append(one)
        if not any(live):
            break
        for kept in cache:
            kept[:] = [x[rows] for x in kept]
    found = []
    for text in range(n_texts):
        scored = [
            (log_p / length_penalty(len(ids), alpha), ids)
            for ids, log_p in finished[text] or live[text]
        ]
        best_ids = max(scored, key=lambda one: one[0])[1]
        found.append([i for i in best_ids if i != end])
    return found
