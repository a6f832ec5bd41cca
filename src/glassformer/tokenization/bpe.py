"""Byte-pair encoding, learned from scratch (Sennrich, Haddow and Birch 2016, section 3.2; Gage 1994).

Start from single characters; count every pair of neighbours; give the most frequent pair one new symbol;
repeat. `learn_bpe` does this with counts that are kept up to date. `learn_bpe_by_rescanning` is the same
thing in a few lines, and a test holds the two equal. The rules are those of the `tokenizers` library:

- Ids: the special tokens as given, the alphabet in code-point order, then one id for each merge, in order.
- Of equally frequent pairs the one with the lowest left id wins, then the one with the lowest right id.
- A pair is merged from left to right: `aaa` becomes `aa` `a`.

No two merges spell the same string: wherever a string ends up as one token, no merge crossed its borders, so
inside it the same merges were made. A special token is another matter, since its string may stand in the
text. Here one rule is ours: a merge that would spell a special token is never made, so that no text can
produce one.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from glassformer.errors import UserError

Progress = Callable[[int, int], None]
"""Called with (merges made, merges asked for)."""

Pair = tuple[int, int]
"""The ids of two neighbours."""

NO_TEXT = "there is no text to learn a tokenizer from: every text is empty, or only white space"

_GONE = -1  # in the symbol array: the border of a chunk, or a symbol that a merge has swallowed
_Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LearnedBPE:
    """The result of learning."""

    tokens: list[str]
    """Every token, at the index that is its id."""
    merges: list[tuple[str, str]]
    """The pairs of tokens that were joined, in order."""
    frequencies: list[int]
    """How often each token stands in the training text when all merges are made, by id; 0 for one used up by others."""


def learn_bpe(
    chunk_counts: Mapping[str, int],
    *,
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    initial_alphabet: Iterable[str] = (),
    min_frequency: int = 2,
    progress: Progress | None = None,
) -> LearnedBPE:
    """Learns merges until there are `vocab_size` tokens, or fewer if no pair occurs `min_frequency` times any
    more.

    `chunk_counts` says how often each chunk of text occurs; merges never cross the border of a chunk.
    `vocab_size=0` asks for no merges at all. Raises `UserError` as `starting_vocabulary` does.

    The work of a merge is that of the places where its pair stands, never that of the corpus.

    >>> learn_bpe({"low": 5, "lower": 2, "newest": 6, "widest": 3}, vocab_size=14).merges
    [('e', 's'), ('es', 't'), ('l', 'o'), ('lo', 'w')]
    """
    tokens = starting_vocabulary(chunk_counts, special_tokens, initial_alphabet, vocab_size)
    n_start = len(tokens)
    forbidden = frozenset(special_tokens)
    corpus = _Corpus(chunk_counts, tokens)
    merges: list[tuple[str, str]] = []
    while len(tokens) < vocab_size and (pair := corpus.pop_most_frequent(min_frequency)) is not None:
        left, right = tokens[pair[0]], tokens[pair[1]]
        if left + right in forbidden:
            continue
        corpus.merge(pair, len(tokens))
        merges.append((left, right))
        tokens.append(left + right)
        if progress is not None:
            progress(len(merges), vocab_size - n_start)
    return LearnedBPE(tokens, merges, corpus.frequencies(len(tokens)))


def starting_vocabulary(
    chunk_counts: Mapping[str, int], special_tokens: Sequence[str], initial_alphabet: Iterable[str], vocab_size: int
) -> list[str]:
    """The special tokens, then every character of the chunks and of `initial_alphabet` in code-point order.

    Raises `UserError` when there is nothing to learn from, or when these alone are more than `vocab_size`.

    >>> starting_vocabulary({"ba": 1}, ["[UNK]"], "c", 8)
    ['[UNK]', 'a', 'b', 'c']
    """
    if not chunk_counts:
        raise UserError(NO_TEXT)
    alphabet = sorted(set(initial_alphabet).union(*chunk_counts))
    check_room(vocab_size, len(alphabet), len(special_tokens))
    return [*special_tokens, *alphabet]


def check_room(vocab_size: int, n_alphabet: int, n_special: int) -> None:
    """Refuses a vocabulary size, other than 0, that the alphabet and the special tokens alone exceed."""
    if vocab_size != 0 and vocab_size < n_alphabet + n_special:
        raise UserError(
            f"a vocabulary of {vocab_size} is too small: the alphabet has {n_alphabet} symbols and there are "
            f"{n_special} special tokens; ask for {n_alphabet + n_special} or more"
        )


class _Corpus:
    """The distinct chunks as linked lists of symbols, with the count and the places of every pair of neighbours.

    All chunks lie end to end in one array, so that numpy handles all places of a pair at once. A pair comes
    into being at one moment, when the younger of its symbols is made, and from then on loses places only. So
    its place in the heap can be too high, never too low, and is corrected when it comes to the top.
    """

    def __init__(self, chunk_counts: Mapping[str, int], alphabet: Sequence[str]) -> None:
        self.symbols = _symbols(chunk_counts, alphabet)
        self.before = np.arange(-1, len(self.symbols) - 1)  # where the left neighbour of each symbol stands
        self.after = np.arange(1, len(self.symbols) + 1)
        n_chunks = len(chunk_counts)
        lengths = np.fromiter(map(len, chunk_counts), np.int64, n_chunks)
        counts = np.fromiter(chunk_counts.values(), np.int64, n_chunks)
        self.weights = np.concatenate([[0], np.repeat(counts, lengths + 1)])  # how often the symbol's chunk occurs
        self.counts: dict[Pair, int] = {}
        self.places: dict[Pair, _Ints] = {}  # of the left symbol, in rising order; some may be out of date
        self.heap: list[tuple[int, Pair]] = []  # (-count, pair)

        left, right = self.symbols[:-1], self.symbols[1:]
        (at,) = np.nonzero((left != _GONE) & (right != _GONE))
        for key, count, places in _grouped(left[at] * len(alphabet) + right[at], self.weights[at], at):
            self._add(divmod(key, len(alphabet)), count, places)

    def _add(self, pair: Pair, count: int, places: _Ints) -> None:
        self.counts[pair] = count
        self.places[pair] = places
        heapq.heappush(self.heap, (-count, pair))

    def pop_most_frequent(self, min_frequency: int) -> Pair | None:
        """The pair to merge next; it is not given a second time. None when none occurs `min_frequency` times."""
        while self.heap:
            negative_count, pair = self.heap[0]
            count = self.counts[pair]
            if count != -negative_count:
                heapq.heapreplace(self.heap, (-count, pair))
            elif count < max(min_frequency, 1):
                return None
            else:
                heapq.heappop(self.heap)
                return pair
        return None

    def merge(self, pair: Pair, new: int) -> None:
        """Writes the symbol `new` wherever `pair` stands, from left to right, and corrects the pairs around it."""
        symbols, after = self.symbols, self.after
        first = self._places_now(pair)
        second = after[first]
        symbols[second] = _GONE
        weights = self.weights[first]

        # x first second y: the pairs (x, first) and (second, y) end, where there are such neighbours.
        # Between two merges side by side one such pair ends: it is counted once, as the left one's (second, y).
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
        """Where `pair` stands now; of places that overlap (`aaa`), every second one from the left."""
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
    """All chunks end to end, as ids, with `_GONE` before, between and after them."""
    border = "\ud800"  # half of a surrogate pair: in no chunk
    code_points = np.frombuffer((border + border.join(chunks) + border).encode("utf-32-le", "surrogatepass"), np.uint32)
    id_of = np.full(0x110000, _GONE, np.int64)
    for i, token in enumerate(alphabet):
        if len(token) == 1:
            id_of[ord(token)] = i
    symbols: _Ints = id_of[code_points]
    return symbols


def _grouped(keys: _Ints, weights: _Ints, places: _Ints) -> Iterator[tuple[int, int, _Ints]]:
    """For each distinct key: the key, the sum of its weights, and its places in the order given."""
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
    """The reference for `learn_bpe`, with the same arguments: counts the pairs of the whole corpus for each merge.

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
    """How often each pair of neighbours occurs in chunks (symbols, how often the chunk occurs).

    >>> count_pairs([([1, 2, 1], 3), ([1, 2], 1)])
    Counter({(1, 2): 4, (2, 1): 3})
    """
    counts: Counter[Pair] = Counter()
    for symbols, n in chunks:
        for pair in pairwise(symbols):
            counts[pair] += n
    return counts


def replace_pair(symbols: list[int], pair: Pair, new: int) -> list[int]:
    """Puts `new` for each occurrence of `pair`, from left to right.

    >>> replace_pair([1, 1, 1, 2], (1, 1), 9)
    [9, 1, 2]
    """
    replaced: list[int] = []
    i = 0
    while i < len(symbols):
        matches = i + 1 < len(symbols) and (symbols[i], symbols[i + 1]) == pair
        replaced.append(new if matches else symbols[i])
        i += 2 if matches else 1
    return replaced


def learn_words(
    counts: Counter[str], *, vocab_size: int, special_tokens: Sequence[str], min_frequency: int
) -> dict[str, int]:
    """How often each token occurs, by id: special tokens, then words by their frequency, equal ones by the alphabet.

    `vocab_size` 0 takes all words that occur `min_frequency` times; `[UNK]` occurs for all that were left out.

    >>> learn_words(Counter("to be or not to be".split()), vocab_size=3, special_tokens=["[UNK]"], min_frequency=1)
    {'[UNK]': 2, 'be': 2, 'to': 2}
    """
    if "[UNK]" not in special_tokens:
        raise UserError("whole words need the special token [UNK], which stands for all other words")
    if not counts:
        raise UserError(NO_TEXT)
    known = [word for word, n in counts.items() if n >= min_frequency and word not in special_tokens]
    if not known:
        raise UserError(f"no word of the text occurs {min_frequency} times: give more text")
    check_room(vocab_size, 1, len(special_tokens))
    known.sort(key=lambda word: (-counts[word], word))
    known = known[: vocab_size - len(special_tokens)] if vocab_size else known
    n_left_out = counts.total() - sum(counts[word] for word in known)
    special = {token: n_left_out if token == "[UNK]" else 0 for token in special_tokens}
    return special | {word: counts[word] for word in known}
