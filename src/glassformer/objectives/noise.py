"""Noise for rows of token ids, and masked language modelling, the objective that predicts the masked ids.

The functions of noise are pure: the random generator is an argument, so the same seed gives the same noise.

A row is (T,) ids, and no function changes its input. Here, a mask is a token that replaces removed tokens, not an
attention mask. In the examples, an id is the index of a word in `words`, and "_" is the mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from glassformer.data.batching import NOT_SCORED, Batch, Example, pad, padded
from glassformer.objectives.loss import TokenObjective
from glassformer.tokenization.frames import Frame
from glassformer.tokenization.vocabulary import WordBoundaries

Ids = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MASKED_SHARE, RANDOM_SHARE = 0.8, 0.1
"""`MASKED_SHARE`: fraction of the chosen tokens that become a mask. `RANDOM_SHARE`: fraction of the chosen tokens that
become a random token. The others stay unchanged."""


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
    """Apply the 80/10/10 rule (Devlin 2019, section 3.1); return the corrupted row and the labels (-100 = not chosen).

    Each `maskable` token is chosen independently with probability `mask_prob`, so the number of chosen tokens is
    binomial (BERT's code uses a fixed number). At least one token is chosen if any is maskable. With `continues` (True
    = the token continues the word before it), whole words are chosen instead, each with all its maskable tokens.
    Independently, each chosen token becomes `mask_id`, becomes one of `replacements`, or stays, with probabilities 0.8,
    0.1 and 0.1. A token that stays is both input and label, as the rule requires.

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
    corrupted[chosen[fate < MASKED_SHARE]] = mask_id
    replaced = chosen[(fate >= MASKED_SHARE) & (fate < MASKED_SHARE + RANDOM_SHARE)]
    corrupted[replaced] = rng.choice(replacements, len(replaced))
    return corrupted, labels


def infill(
    token_ids: Ids, rng: np.random.Generator, *, mask_id: int, noise_density: float = 0.3, mean_span_length: float = 3.0
) -> Ids:
    """Apply text infilling (Lewis 2020, section 2.2): replace spans of Poisson-distributed length by one mask each.

    A span of length 0 inserts a mask. Spans are drawn until they cover `noise_density` of the tokens (rounded); the
    last span is shortened to fit. At least one token is kept between two spans, so masks never touch, unless the row
    already has masks. (The first and last token have one neighbour, so they are removed about half as often.) Spans
    that do not fit are dropped. So a `noise_density` of up to 0.5 is always reached, and a density above
    mean_span_length / (mean_span_length + 1) is not. Empty spans that would make the row longer than before are also
    dropped. If no token is to be removed, for example in an empty row, the row stays unchanged.

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
    # Each span except the last needs a kept token after it. With one extra token at the end, every span has one.
    full = [length for length in drawn if length]
    full = [length for length, needed in zip(full, np.cumsum(np.array(full) + 1), strict=True) if needed <= n + 1]
    n_empty = min(drawn.count(0), sum(full) - len(full), n + 1 - sum(full) - len(full))
    lengths = full + [0] * n_empty
    n_kept = n - sum(lengths)
    # A span is inserted before the kept token at its place, at most one per place; place n_kept is the end.
    places = np.sort(rng.choice(n_kept + 1, len(lengths), replace=False))
    parts: list[npt.ArrayLike] = []
    read = kept = 0
    for place, length in zip(places.tolist(), rng.permutation(lengths).tolist(), strict=True):
        step = place - kept
        parts += [token_ids[read : read + step], [mask_id]]
        read, kept = read + step + length, place
    return np.concatenate([*parts, token_ids[read:]]).astype(np.int64)


def permute_sentences(token_ids: Ids, rng: np.random.Generator, *, ends_sentence: Bools) -> Ids:
    """Permute sentences (Lewis 2020, section 2.2): cut the row after every sentence end and shuffle the parts.

    The text after the last end is also a part. All orders have equal probability, including the original one.

    >>> words = np.array("It rains . We stay in . Do you".split())
    >>> print(*words[permute_sentences(np.arange(9), np.random.default_rng(0), ends_sentence=words == ".")])
    Do you It rains . We stay in .
    """
    sentences = np.split(token_ids, np.flatnonzero(ends_sentence) + 1)
    return np.concatenate([sentences[i] for i in rng.permutation(len(sentences))])


def corrupt_spans(
    token_ids: Ids,
    rng: np.random.Generator,
    *,
    sentinel_ids: Sequence[int],
    noise_density: float = 0.15,
    mean_span_length: float = 3.0,
) -> tuple[Ids, Ids]:
    """Corrupt spans (Raffel 2020, 3.1.4): return the row with a sentinel for each span, and a target.

    Spans cover `noise_density` of the tokens (rounded, at least one, not all). The number of spans is the one for which
    their mean length is about `mean_span_length`, but at most the number of sentinels. The lengths of spans and of the
    kept parts between them are random and at least 1. A row begins with a kept token and ends with a span; a row of at
    most one token becomes one span. The target has each sentinel and, after it, the tokens of its span, but no final
    sentinel; the objective adds the end token. Source and target together contain every token once and every used
    sentinel twice.

    >>> words = np.array("<0> <1> <2> the cat sat on the warm mat".split())
    >>> rng, row = np.random.default_rng(1), np.arange(3, 10)
    >>> source, target = corrupt_spans(row, rng, sentinel_ids=[0, 1, 2], noise_density=0.4, mean_span_length=2)
    >>> print(*words[source])
    the cat <0> on the <1>
    >>> print(*words[target])
    <0> sat <1> warm mat
    """
    if not sentinel_ids:
        raise ValueError("sentinel_ids is empty: give at least one id")
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
    """Divide `total` at random into `n` parts of at least 1."""
    boundaries = np.sort(rng.choice(max(total - 1, 1), n - 1, replace=False)) + 1
    return np.diff([0, *boundaries.tolist(), total]).tolist()


@dataclass(frozen=True)
class MaskedObjective(TokenObjective):
    """Masked language modelling: maximise Σ log p(tokenᵢ | text with masks) over the chosen tokens (Devlin 2019, 3.1).

    The chosen tokens are drawn again at every step, from (seed, step). The head computes logits only for the chosen
    tokens.
    """

    mask_id: int
    edges: WordBoundaries
    """Word boundaries of the tokenizer; special tokens are never chosen."""
    mask_prob: float = 0.15
    whole_words: bool = False
    frame: Frame = Frame()
    """Special tokens around every row: `[CLS]` and `[SEP]`."""
    label_smoothing: float = 0.0

    def collate(self, examples: Sequence[Example], rng: np.random.Generator) -> Batch:
        """Make a batch of rows `[CLS]` ids `[SEP]` with some ids masked, and the original ids as labels."""
        masked = [self._masked(self.whole(e.token_ids), rng) for e in examples]
        token_ids, mask = padded([ids for ids, _ in masked])  # (B, T)
        labels, _ = pad([labels for _, labels in masked], NOT_SCORED)
        loss_positions = (labels.flatten() != NOT_SCORED).nonzero().squeeze(1)
        return Batch(
            token_ids=token_ids,
            attention_mask=mask,
            labels=labels,
            n_targets=len(loss_positions),
            loss_positions=loss_positions,
        )

    def whole(self, token_ids: np.ndarray) -> np.ndarray:
        """Return the ids of a row with the special tokens of `frame` before and after them."""
        return np.concatenate((self.frame.before, token_ids, self.frame.after)).astype(np.int64)

    def _masked(self, row: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        text = np.flatnonzero(~self.edges.special)
        continues = self.edges.continues(row) if self.whole_words else None
        return mask_tokens(
            row,
            rng,
            mask_id=self.mask_id,
            replacements=text,
            maskable=~self.edges.special[row],
            continues=continues,
            mask_prob=self.mask_prob,
        )
