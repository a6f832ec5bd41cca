"""Noise on rows of token ids: pure functions, whose randomness is an argument. A seed and a step give the same noise.

Masks that are never loss masks here: what is taken away is what a model must say.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from glassformer.objectives.loss import NOT_SCORED

Ids = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MASKED, RANDOM = 0.8, 0.1
"""Of the chosen tokens, the share that is masked, and the share that is replaced; the others stay."""


def mask_tokens(
    token_ids: Ids,
    rng: np.random.Generator,
    *,
    mask_id: int,
    replacements: Ids,
    maskable: Bools,
    continues: Bools | None = None,
    share: float = 0.15,
) -> tuple[Ids, Ids]:
    """The 80/10/10 rule (Devlin 2019, section 3.1): the row with some tokens corrupted, and labels, -100 but for these.

    Each `maskable` token is chosen with probability `share`, on its own; with `continues` (True = a token goes on with
    the word before it) words are chosen instead, each whole. At least one is chosen where any can be. A chosen token
    becomes `mask_id`, one of `replacements`, or stays, with probabilities 0.8, 0.1 and 0.1.

    >>> ids = np.array([5, 6, 7, 8])
    >>> everywhere = np.ones(4, dtype=bool)
    >>> corrupted, labels = mask_tokens(ids, np.random.default_rng(3), mask_id=1, replacements=ids, maskable=everywhere)
    >>> corrupted.tolist(), labels.tolist()
    ([1, 6, 7, 8], [5, -100, -100, -100])
    """
    labels = np.full(len(token_ids), NOT_SCORED, dtype=np.int64)
    if not maskable.any():
        return token_ids.copy(), labels
    units = np.arange(len(token_ids)) if continues is None else np.cumsum(~continues)  # tokens, or words
    candidates = np.unique(units[maskable])
    chosen_units = candidates[rng.random(len(candidates)) < share]
    if not len(chosen_units):
        chosen_units = rng.choice(candidates, 1)
    chosen = np.flatnonzero(maskable & np.isin(units, chosen_units))
    labels[chosen] = token_ids[chosen]
    corrupted = token_ids.copy()
    fate = rng.random(len(chosen))
    corrupted[chosen[fate < MASKED]] = mask_id
    replaced = chosen[(fate >= MASKED) & (fate < MASKED + RANDOM)]
    corrupted[replaced] = rng.choice(replacements, len(replaced))
    return corrupted, labels


def infill(
    token_ids: Ids, rng: np.random.Generator, *, mask_id: int, share: float = 0.3, mean_length: float = 3.0
) -> Ids:
    """Text infilling (Lewis 2020, section 2.2): spans of Poisson length are each replaced by one mask.

    A span of length 0 inserts a mask. Spans are drawn until `share` of the tokens, rounded, is taken; the last one is
    cut to that. They are put at random so that a token at least stands between any two; what has no room is left out,
    and so are empty spans that would make the row longer than it was. A row of too few tokens stays as it is.

    >>> infill(np.arange(10, 20), np.random.default_rng(0), mask_id=1).tolist()
    [10, 11, 1, 14, 15, 1, 16, 17, 1, 19]
    """
    n = len(token_ids)
    budget = round(share * n)
    lengths: list[int] = []
    while budget > 0:
        lengths.append(min(int(rng.poisson(mean_length)), budget))
        budget -= lengths[-1]
    while len(lengths) > sum(lengths):
        lengths.remove(0)
    n_kept = n - sum(lengths)
    lengths = lengths[: n_kept + 1]  # kept tokens make so many places
    n_kept = n - sum(lengths)
    # A span goes before the kept token of its place, no two at one place; place n_kept is the end.
    places = np.sort(rng.choice(n_kept + 1, len(lengths), replace=False))
    parts: list[npt.ArrayLike] = []
    read = kept = 0
    for place, length in zip(places.tolist(), rng.permutation(lengths).tolist(), strict=True):
        step = place - kept
        parts += [token_ids[read : read + step], [mask_id]]
        read, kept = read + step + length, place
    return np.concatenate([*parts, token_ids[read:]]).astype(np.int64)


def permute_sentences(token_ids: Ids, rng: np.random.Generator, *, ends_sentence: Bools) -> Ids:
    """Sentence permutation (Lewis 2020, section 2.2): the row is cut behind every end, and the parts are shuffled.

    >>> ends = np.array([False, True, False, True, False])
    >>> permute_sentences(np.array([1, 2, 3, 4, 5]), np.random.default_rng(0), ends_sentence=ends).tolist()
    [5, 1, 2, 3, 4]
    """
    sentences = np.split(token_ids, np.flatnonzero(ends_sentence) + 1)
    order = rng.permutation(len(sentences))
    return np.concatenate([sentences[i] for i in order])


def corrupt_spans(
    token_ids: Ids,
    rng: np.random.Generator,
    *,
    sentinel_ids: Sequence[int],
    share: float = 0.15,
    mean_length: float = 3.0,
) -> tuple[Ids, Ids]:
    """Span corruption (Raffel 2020, section 3.1.4): the row with a sentinel for each span; sentinels and their spans.

    `share` of the tokens, rounded and at least one, fall into spans, as many as make the mean `mean_length`, at most
    one for each sentinel. Spans and what stands between them are cut at random, none empty; a row begins with a token
    that is kept, unless it has only one. The end token that an objective adds closes the last span.

    >>> corrupt_spans(np.arange(10, 20), np.random.default_rng(0), sentinel_ids=[1, 2, 3], share=0.4, mean_length=2)
    (array([10, 11, 12, 13,  1, 17, 18,  2]), array([ 1, 14, 15, 16,  2, 19]))
    """
    n = len(token_ids)
    n_noise = min(max(round(share * n), 1), max(n - 1, 1))
    n_spans = min(max(round(n_noise / mean_length), 1), n_noise, max(n - n_noise, 1), len(sentinel_ids))
    noise = _segments(n_noise, n_spans, rng)
    kept = _segments(n - n_noise, n_spans, rng) if n > n_noise else [0]
    source: list[npt.ArrayLike] = []
    target: list[npt.ArrayLike] = []
    place = 0
    for sentinel, before, length in zip(sentinel_ids, kept, noise, strict=False):
        source += [token_ids[place : place + before], [sentinel]]
        target += [[sentinel], token_ids[place + before : place + before + length]]
        place += before + length
    return np.concatenate(source).astype(np.int64), np.concatenate(target).astype(np.int64)


def restore_spans(source: Ids, target: Ids, sentinel_ids: Sequence[int]) -> Ids:
    """The whole row: every sentinel of `source` gives way to what follows it in `target`, if anything does.

    >>> restore_spans(np.array([10, 1, 14]), np.array([1, 11, 12, 13]), sentinel_ids=[1, 2]).tolist()
    [10, 11, 12, 13, 14]
    """
    spans: dict[int, list[int]] = {}
    latest: list[int] = []
    for token in target.tolist():
        if token in sentinel_ids:
            latest = spans.setdefault(token, [])
        else:
            latest.append(token)
    whole = [i for token in source.tolist() for i in (spans.get(token, []) if token in sentinel_ids else [token])]
    return np.array(whole, dtype=np.int64)


def _segments(total: int, n: int, rng: np.random.Generator) -> list[int]:
    """`total` cut at random into `n` parts, none empty."""
    cuts = np.sort(rng.choice(max(total - 1, 1), n - 1, replace=False)) + 1
    parts: list[int] = np.diff([0, *cuts.tolist(), total]).tolist()
    return parts
