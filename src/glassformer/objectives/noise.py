"""Noise on rows of token ids: pure functions, whose randomness is an argument: the same seed, the same noise.

A row is (T,) ids, and no function changes the row that it is given. A mask here is a token in the place of what was
taken away, never what attention may see. In the examples an id is a word's place in `words`, and "_" stands for a mask.
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
    mask_prob: float = 0.15,
) -> tuple[Ids, Ids]:
    """The 80/10/10 rule (Devlin 2019, section 3.1): the row with some tokens corrupted, and labels, -100 but for these.

    Each `maskable` token is chosen with probability `mask_prob`, on its own, so that their number is binomial (BERT's
    own code takes a fixed number); at least one is chosen where any can be. With `continues` (True = a token goes on
    with the word before it) words are chosen so instead, each with all its maskable tokens. A chosen token becomes
    `mask_id`, one of `replacements`, or stays, with probabilities 0.8, 0.1 and 0.1, each for itself. One that stays is
    seen by the model and is its label, as the rule means it; of the others nothing is left but the label.

    >>> words = np.array("_ the cat sat on the warm mat".split())
    >>> row = np.arange(1, 8)
    >>> rng, everywhere = np.random.default_rng(4), np.ones(7, dtype=bool)
    >>> corrupted, labels = mask_tokens(row, rng, mask_id=0, replacements=row, maskable=everywhere, mask_prob=0.4)
    >>> print(*words[corrupted])
    the cat sat _ the cat mat
    >>> print(*words[labels[labels != NOT_SCORED]])
    on warm
    """
    labels = np.full(len(token_ids), NOT_SCORED, dtype=np.int64)
    if not maskable.any():
        return token_ids.copy(), labels
    units = np.arange(len(token_ids)) if continues is None else np.cumsum(~continues)  # tokens, or words
    candidates = np.unique(units[maskable])
    chosen_units = candidates[rng.random(len(candidates)) < mask_prob]
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
    token_ids: Ids, rng: np.random.Generator, *, mask_id: int, noise_density: float = 0.3, mean_span_length: float = 3.0
) -> Ids:
    """Text infilling (Lewis 2020, section 2.2): spans of Poisson length are each replaced by one mask.

    A span of length 0 inserts a mask. Spans are drawn until `noise_density` of the tokens, rounded, is taken; the last
    one is cut to that. They are put at random so that a token at least stands between any two: masks never touch,
    unless the row held some. (The outermost tokens, which have neighbours on one side alone, are taken about half as
    often.) What has no room is left out: a `noise_density` of a half is always reached, one above mean_span_length /
    (mean_span_length + 1) is not. Empty spans that would make the row longer than it was are left out too. A row of
    which no token is to be removed, an empty one for instance, stays as it is.

    >>> words = np.array("_ the cat sat on the warm mat".split())
    >>> print(*words[infill(np.arange(1, 8), np.random.default_rng(2), mask_id=0, noise_density=0.5)])
    the _ sat on _
    """
    n = len(token_ids)
    budget = round(noise_density * n)
    drawn: list[int] = []
    while budget > 0:
        drawn.append(min(int(rng.poisson(mean_span_length)), budget))
        budget -= drawn[-1]
    # Each span but the last needs a kept token behind it; with a token more than there are, every span does.
    full = [length for length in drawn if length]
    full = [length for length, needed in zip(full, np.cumsum(np.array(full) + 1), strict=True) if needed <= n + 1]
    n_empty = min(drawn.count(0), sum(full) - len(full), n + 1 - sum(full) - len(full))
    lengths = full + [0] * n_empty
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

    What stands behind the last end is a part too. Every order is as likely, that of before among them.

    >>> words = np.array("It rains . We stay in . Do you".split())
    >>> print(*words[permute_sentences(np.arange(9), np.random.default_rng(0), ends_sentence=words == ".")])
    Do you It rains . We stay in .
    """
    sentences = np.split(token_ids, np.flatnonzero(ends_sentence) + 1)
    order = rng.permutation(len(sentences))
    return np.concatenate([sentences[i] for i in order])


def corrupt_spans(
    token_ids: Ids,
    rng: np.random.Generator,
    *,
    sentinel_ids: Sequence[int],
    noise_density: float = 0.15,
    mean_span_length: float = 3.0,
) -> tuple[Ids, Ids]:
    """Span corruption (Raffel 2020, section 3.1.4): the row with a sentinel for each span; sentinels and their spans.

    `noise_density` of the tokens, rounded, at least one and not all, fall into spans: as many as make the mean
    `mean_span_length`, at most one for each sentinel. Spans and what stands between them are cut at random, none empty,
    so that a row begins with a token that is kept and ends with a span; only a row of one token, or none, gives all to
    its span. No sentinel closes the target: the end token that an objective adds does. Together, source and target hold
    every token once and every sentinel in use twice.

    >>> words = np.array("<0> <1> <2> the cat sat on the warm mat".split())
    >>> rng, row = np.random.default_rng(1), np.arange(3, 10)
    >>> source, target = corrupt_spans(row, rng, sentinel_ids=[0, 1, 2], noise_density=0.4, mean_span_length=2)
    >>> print(*words[source])
    the cat <0> on the <1>
    >>> print(*words[target])
    <0> sat <1> warm mat
    """
    if not sentinel_ids:
        raise ValueError("corrupt_spans needs a sentinel at least")
    n = len(token_ids)
    n_noise = min(max(round(noise_density * n), 1), max(n - 1, 1))
    n_spans = min(max(round(n_noise / mean_span_length), 1), n_noise, max(n - n_noise, 1), len(sentinel_ids))
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


def _segments(total: int, n: int, rng: np.random.Generator) -> list[int]:
    """`total` cut at random into `n` parts, none empty."""
    cuts = np.sort(rng.choice(max(total - 1, 1), n - 1, replace=False)) + 1
    parts: list[int] = np.diff([0, *cuts.tolist(), total]).tolist()
    return parts
