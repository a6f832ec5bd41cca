"""Byte-pair encoding, learned from scratch (Sennrich, Haddow and Birch 2016, section 3.2; Gage 1994).

The algorithm starts from single characters, counts all pairs of adjacent symbols, replaces the most frequent pair by
a new symbol, and repeats. `learn_bpe` updates the counts after each merge. `learn_bpe_by_rescanning` is the same
algorithm in a few lines; a test checks that both give equal results. The rules are those of `tokenizers`:

- Ids: the special tokens as given, the alphabet in code-point order, then one id per merge, in order.
- Of equally frequent pairs, the pair with the lowest left id is merged; of these, the pair with the lowest right id.
  With `bytes_of`, the bytes of the two tokens decide instead of their ids: the greatest in lexicographic order.
- A pair is merged from left to right: `aaa` becomes `aa` `a`.

No two merges produce the same string. If a string has become one token, no merge has crossed its borders, so the same
merges were made inside each of its occurrences. Special tokens need one more rule, because their strings can occur in
the text: a merge that would produce a special token is skipped. `tokenizers` does not have this rule, which ensures
that ordinary text is never encoded to a special token.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.common.errors import Progress, UserError

Pair = tuple[int, int]
"""The ids of two adjacent symbols."""

NO_TEXT = "there is no text to train a tokenizer on: all texts are empty or only white space; use other texts"

_GONE = -1  # in the symbol array: the border of a chunk, or a symbol removed by a merge
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LearnedBPE:
    """The result of training: vocabulary, merges and frequencies."""

    tokens: list[str]
    """All tokens; the index is the id."""
    merges: list[tuple[str, str]]
    """The pairs of tokens that were merged, in order."""
    frequencies: list[int]
    """Count of each token, by id, in the training text after all merges; 0 if merges replaced all its occurrences."""


def learn_bpe(
    chunk_counts: Mapping[str, int],
    *,
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    initial_alphabet: Iterable[str] = (),
    min_frequency: int = 2,
    bytes_of: Callable[[str], bytes] | None = None,
    progress: Progress | None = None,
) -> LearnedBPE:
    """Learn merges until there are `vocab_size` tokens, or until no pair occurs `min_frequency` times.

    `chunk_counts` has the number of occurrences of each chunk of text; merges never cross the border of a chunk.
    `vocab_size=0` means no merges. `bytes_of` returns the bytes of a token; with it, equally frequent pairs are ordered
    by their bytes, the greatest first, and otherwise by ids. Raises `UserError` as `starting_vocabulary` does.

    The time of a merge is proportional to the number of occurrences of its pair, not to the size of the text.

    >>> learn_bpe({"low": 5, "lower": 2, "newest": 6, "widest": 3}, vocab_size=14).merges
    [('e', 's'), ('es', 't'), ('l', 'o'), ('lo', 'w')]
    >>> learn_bpe({"low": 5, "lower": 2, "newest": 6, "widest": 3}, vocab_size=14, bytes_of=str.encode).merges
    [('s', 't'), ('e', 'st'), ('o', 'w'), ('l', 'ow')]
    """
    tokens = starting_vocabulary(chunk_counts, special_tokens, initial_alphabet, vocab_size)
    n_start = len(tokens)
    forbidden = frozenset(special_tokens)
    corpus = _Corpus(chunk_counts, tokens, _order(tokens, bytes_of))
    merges: list[tuple[str, str]] = []
    while len(tokens) < vocab_size and (pair := corpus.pop_most_frequent(min_frequency)) is not None:
        left, right = tokens[pair[0]], tokens[pair[1]]
        if left + right in forbidden:
            continue
        merges.append((left, right))
        tokens.append(left + right)
        corpus.merge(pair, len(tokens) - 1)
        if progress is not None:
            progress(len(merges), vocab_size - n_start)
    return LearnedBPE(tokens, merges, corpus.frequencies(len(tokens)))


def _order(tokens: Sequence[str], bytes_of: Callable[[str], bytes] | None) -> Callable[[Pair], Any]:
    """Return the sort key of equally frequent pairs: their ids, or their bytes from the greatest to the least."""
    if bytes_of is None:
        return lambda pair: pair

    @cache
    def falling(token_id: int) -> tuple[int, ...]:
        return (*(-byte for byte in bytes_of(tokens[token_id])), 1)  # 1: after the tokens that begin with it

    return lambda pair: (falling(pair[0]), falling(pair[1]))


def starting_vocabulary(
    chunk_counts: Mapping[str, int], special_tokens: Sequence[str], initial_alphabet: Iterable[str], vocab_size: int
) -> list[str]:
    """Return the special tokens, then all characters of the chunks and of `initial_alphabet` in code-point order.

    Raises `UserError` if there is no text, or if these tokens alone exceed `vocab_size`.

    >>> starting_vocabulary({"ba": 1}, ["[UNK]"], "c", 8)
    ['[UNK]', 'a', 'b', 'c']
    """
    if not chunk_counts:
        raise UserError(NO_TEXT)
    alphabet = sorted(set(initial_alphabet).union(*chunk_counts))
    check_room(vocab_size, len(alphabet), len(special_tokens))
    return [*special_tokens, *alphabet]


def check_room(vocab_size: int, n_alphabet: int, n_special: int) -> None:
    """Raise `UserError` if the alphabet and the special tokens alone exceed `vocab_size`, unless it is 0."""
    if vocab_size != 0 and vocab_size < n_alphabet + n_special:
        raise UserError(
            f"a vocabulary of {vocab_size} is too small for {n_alphabet} symbols of the alphabet and {n_special} "
            f"special tokens; set vocab_size to at least {n_alphabet + n_special}"
        )


class _Corpus:
    """The distinct chunks as linked lists of symbols, with the count and the places of all pairs of adjacent symbols.

    All chunks are concatenated in one array, so that numpy processes all places of a pair at once. All places
    of a pair are created together, when the newer of its symbols is made; later merges only remove places.
    The count in the heap is therefore never too low. It is corrected when the pair reaches the top.
    """

    def __init__(self, chunk_counts: Mapping[str, int], alphabet: Sequence[str], order: Callable[[Pair], Any]) -> None:
        self.symbols = _symbols(chunk_counts, alphabet)
        self.before = np.arange(-1, len(self.symbols) - 1)  # index of the left neighbour of each symbol
        self.after = np.arange(1, len(self.symbols) + 1)
        n_chunks = len(chunk_counts)
        lengths = np.fromiter(map(len, chunk_counts), np.int64, n_chunks)
        counts = np.fromiter(chunk_counts.values(), np.int64, n_chunks)
        self.weights = np.concatenate([[0], np.repeat(counts, lengths + 1)])  # count of the symbol's chunk
        self.counts: dict[Pair, int] = {}
        self.places: dict[Pair, _Ints] = {}  # ascending indices of the left symbol; some may be outdated
        self.order = order
        self.heap: list[tuple[int, Any, Pair]] = []  # (-count, order of the pair, pair)

        left, right = self.symbols[:-1], self.symbols[1:]
        (at,) = np.nonzero((left != _GONE) & (right != _GONE))
        for key, count, places in _grouped(left[at] * len(alphabet) + right[at], self.weights[at], at):
            self._add(divmod(key, len(alphabet)), count, places)

    def _add(self, pair: Pair, count: int, places: _Ints) -> None:
        self.counts[pair] = count
        self.places[pair] = places
        heapq.heappush(self.heap, (-count, self.order(pair), pair))

    def pop_most_frequent(self, min_frequency: int) -> Pair | None:
        """Remove and return the next pair to merge; None if no pair occurs `min_frequency` times."""
        while self.heap:
            negative_count, order, pair = self.heap[0]
            count = self.counts[pair]
            if count != -negative_count:
                heapq.heapreplace(self.heap, (-count, order, pair))
            elif count < max(min_frequency, 1):
                return None
            else:
                heapq.heappop(self.heap)
                return pair
        return None

    def merge(self, pair: Pair, new: int) -> None:
        """Replace all occurrences of `pair` by `new`, from left to right, and update the adjacent pairs."""
        symbols, after = self.symbols, self.after
        first = self._places_now(pair)
        second = after[first]
        symbols[second] = _GONE
        weights = self.weights[first]

        # x first second y: the pairs (x, first) and (second, y) are removed, if x and y exist.
        # Between two adjacent merges one pair is removed: it is counted once, as (second, y) of the left merge.
        left = self.before[first]
        has_left = symbols[left] != _GONE
        left, left_weights = left[has_left], weights[has_left]
        right = after[second]
        has_right = symbols[right] != _GONE
        for symbol, count, _ in _grouped(symbols[right[has_right]], weights[has_right], right[has_right]):
            self.counts[pair[1], symbol] -= count

        symbols[first] = new
        after[first] = right
        self.before[right] = first

        for symbol, count, places in _grouped(symbols[left], left_weights, left):
            self.counts[symbol, pair[0]] -= count
            self._add((symbol, new), count, places)
        for symbol, count, places in _grouped(symbols[right[has_right]], weights[has_right], first[has_right]):
            self._add((new, symbol), count, places)

    def _places_now(self, pair: Pair) -> _Ints:
        """Return the current places of `pair`; of overlapping places (`aaa`), every second one from the left."""
        at = self.places.pop(pair)
        stands: NDArray[np.bool_] = (self.symbols[at] == pair[0]) & (self.symbols[self.after[at]] == pair[1])
        at = at[stands]
        if pair[0] == pair[1] and len(at) > 0:
            index = np.arange(len(at))
            starts_run = np.concatenate([[True], self.after[at[:-1]] != at[1:]])
            start_of_run = np.maximum.accumulate(np.where(starts_run, index, 0))
            at = at[(index - start_of_run) % 2 == 0]
        return at

    def frequencies(self, n_tokens: int) -> list[int]:
        alive = self.symbols != _GONE
        frequencies = np.zeros(n_tokens, np.int64)
        np.add.at(frequencies, self.symbols[alive], self.weights[alive])
        return [int(n) for n in frequencies]


def _symbols(chunks: Iterable[str], alphabet: Sequence[str]) -> _Ints:
    """Return the ids of all chunks, concatenated, with `_GONE` before, between and after them."""
    border = "\ud800"  # a lone surrogate, which no chunk contains
    code_points = np.frombuffer((border + border.join(chunks) + border).encode("utf-32-le", "surrogatepass"), np.uint32)
    id_of = np.full(0x110000, _GONE, np.int64)
    for i, token in enumerate(alphabet):
        if len(token) == 1:
            id_of[ord(token)] = i
    return id_of[code_points]


def _grouped(keys: _Ints, weights: _Ints, places: _Ints) -> Iterator[tuple[int, int, _Ints]]:
    """Yield each distinct key, the sum of its weights, and its places in the order given."""
    if len(keys) == 0:
        return
    order = np.argsort(keys, kind="stable")
    keys, weights, places = keys[order], weights[order], places[order]
    starts = np.concatenate([[0], np.flatnonzero(keys[1:] != keys[:-1]) + 1])
    totals = np.add.reduceat(weights, starts).tolist()
    bounds = [*starts.tolist(), len(keys)]
    for key, total, (start, end) in zip(keys[starts].tolist(), totals, pairwise(bounds), strict=True):
        yield key, total, places[start:end]


def learn_bpe_by_rescanning(
    chunk_counts: Mapping[str, int],
    *,
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    initial_alphabet: Iterable[str] = (),
    min_frequency: int = 2,
) -> LearnedBPE:
    """Learn merges as `learn_bpe` does, but count the pairs of the whole text again for each merge (reference).

    >>> learn_bpe_by_rescanning({"low": 5, "lower": 2, "newest": 6, "widest": 3}, vocab_size=14).merges
    [('e', 's'), ('es', 't'), ('l', 'o'), ('lo', 'w')]
    """
    tokens = starting_vocabulary(chunk_counts, special_tokens, initial_alphabet, vocab_size)
    chunks = [([tokens.index(character) for character in chunk], n) for chunk, n in chunk_counts.items()]
    merges = []
    while len(tokens) < vocab_size:
        counts = count_pairs(chunks)
        allowed = [pair for pair in counts if tokens[pair[0]] + tokens[pair[1]] not in special_tokens]
        best = min(allowed, key=lambda pair: (-counts[pair], pair), default=None)
        if best is None or counts[best] < min_frequency:
            break
        chunks = [(replace_pair(symbols, best, len(tokens)), n) for symbols, n in chunks]
        left, right = tokens[best[0]], tokens[best[1]]
        merges.append((left, right))
        tokens.append(left + right)
    frequencies = [0] * len(tokens)
    for symbols, n in chunks:
        for symbol in symbols:
            frequencies[symbol] += n
    return LearnedBPE(tokens, merges, frequencies)


def count_pairs(chunks: Iterable[tuple[list[int], int]]) -> Counter[Pair]:
    """Count each pair of adjacent symbols in chunks, given as (symbols, count of the chunk).

    >>> count_pairs([([1, 2, 1], 3), ([1, 2], 1)])
    Counter({(1, 2): 4, (2, 1): 3})
    """
    counts: Counter[Pair] = Counter()
    for symbols, n in chunks:
        for pair in pairwise(symbols):
            counts[pair] += n
    return counts


def replace_pair(symbols: list[int], pair: Pair, new: int) -> list[int]:
    """Replace each occurrence of `pair` by `new`, from left to right.

    >>> replace_pair([1, 1, 1, 2], (1, 1), 9)
    [9, 1, 2]
    """
    replaced: list[int] = []
    i = 0
    while i < len(symbols):
        if i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair:
            replaced.append(new)
            i += 2
        else:
            replaced.append(symbols[i])
            i += 1
    return replaced


def learn_words(
    counts: Counter[str], *, vocab_size: int, special_tokens: Sequence[str], min_frequency: int
) -> dict[str, int]:
    """Select a vocabulary of words; return the count of each token: special tokens, then words by falling count.

    `vocab_size` 0 selects all words that occur `min_frequency` times. Equally frequent words are in alphabetical order.
    The count of `[UNK]` is the number of all other words.

    >>> learn_words(Counter("to be or not to be".split()), vocab_size=3, special_tokens=["[UNK]"], min_frequency=1)
    {'[UNK]': 2, 'be': 2, 'to': 2}
    """
    if "[UNK]" not in special_tokens:
        raise UserError("whole_words needs the special token [UNK] for all other words; add it to special_tokens")
    if not counts:
        raise UserError(NO_TEXT)
    words = [word for word, n in counts.items() if n >= min_frequency and word not in special_tokens]
    if not words:
        raise UserError(f"no word of the text occurs {min_frequency} times; use more text or a lower min_frequency")
    check_room(vocab_size, 1, len(special_tokens))
    words.sort(key=lambda word: (-counts[word], word))
    if vocab_size:
        words = words[: vocab_size - len(special_tokens)]
    n_left_out = counts.total() - sum(counts[word] for word in words)
    special = dict.fromkeys(special_tokens, 0) | {"[UNK]": n_left_out}
    return special | {word: counts[word] for word in words}
