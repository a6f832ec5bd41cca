"""Byte-pair encoding, from counts of pairs to a tokenizer (Sennrich et al. 2016)."""

import json
import re
from collections import Counter
from itertools import chain, pairwise
from pathlib import Path

import torch
from torch import Tensor

Pair = tuple[str, str]


def count_pairs(words: dict[tuple[str, ...], int]) -> dict[Pair, int]:
    """Count how often two symbols are neighbours.

    `words` maps each word, a tuple of symbols, to the number of its occurrences in the
    text. Return the number of occurrences in the text of every pair of neighbours:
    {("l", "o"): 7, …}. A pair that occurs twice in a word counts twice for each
    occurrence of the word.
    """
    counts: dict[Pair, int] = {}
    for word, n in words.items():
        for pair in pairwise(word):
            counts[pair] = counts.get(pair, 0) + n
    return counts


def most_frequent_pair(counts: dict[Pair, int]) -> Pair:
    """Return the pair with the largest count; of several such pairs, the smallest in
    alphabetical order.

    The rule for equal counts makes the vocabulary independent of the order of the text.
    Python compares tuples of texts in alphabetical order.
    """
    return min(counts, key=lambda pair: (-counts[pair], pair))


def merge_pair(symbols: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    """Replace each occurrence of a pair by one symbol, from left to right.

    ("l", "o", "l", "o") with the pair ("l", "o") becomes ("lo", "lo"). A symbol is part
    of one occurrence only: ("a", "a", "a") with ("a", "a") becomes ("aa", "a").
    """
    merged: list[str] = []
    i = 0
    while i < len(symbols):
        if symbols[i : i + 2] == pair:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return tuple(merged)


def learn_merges(words: dict[str, int], n_merges: int) -> list[Pair]:
    """Learn byte-pair encoding: merge the most frequent pair of all words, `n_merges`
    times.

    `words` maps each word to the number of its occurrences; at first, the symbols of a
    word are its characters. Return the pairs in the order in which they were merged.
    Stop earlier if no word has two symbols.
    """
    split = {tuple(word): n for word, n in words.items()}
    merges: list[Pair] = []
    for _ in range(n_merges):
        counts = count_pairs(split)
        if not counts:
            break
        pair = most_frequent_pair(counts)
        split = {merge_pair(word, pair): n for word, n in split.items()}
        merges.append(pair)
    return merges


def encode(word: str, merges: list[Pair]) -> list[str]:
    """Split a word into the symbols of a learned vocabulary.

    Begin with all characters, spaces included, and apply all merges in the order in
    which they were learned.
    """
    symbols = tuple(word)
    for pair in merges:
        symbols = merge_pair(symbols, pair)
    return list(symbols)


class Tokenizer:
    """A byte-pair tokenizer of words: `pieces` cuts a text into words with their space.

    Symbols are characters. With `is_bytes`, a symbol is one byte, written as the
    character of this number, so that no text is unknown. Ids count the `special`
    tokens, then the `alphabet`, then the merged symbols in their order, each symbol
    once. Attributes: `merges`, `alphabet`, `symbols` (a list: id → symbol), `ids` (a
    dict: symbol → id), `is_bytes`, `special`.
    """

    def __init__(
        self,
        merges: list[Pair],
        alphabet: list[str],
        is_bytes: bool = False,
        special: tuple[str, ...] = ("[PAD]", "[UNK]", "[BOS]", "[EOS]"),
    ) -> None:
        self.merges, self.is_bytes, self.special = list(merges), is_bytes, special
        self.alphabet = list(alphabet)
        self.symbols = list(dict.fromkeys([*special, *alphabet, *map("".join, merges)]))
        self.ids = {symbol: number for number, symbol in enumerate(self.symbols)}
        self.ranks = {pair: rank for rank, pair in enumerate(self.merges)}

    @classmethod
    def train(cls, text: str, n_merges: int, is_bytes: bool = False) -> "Tokenizer":
        """Learn `n_merges` merges from a text, fewer if no pair is left.

        The merges are those of `learn_merges` for the pieces of the text. Keep the
        counts of all pairs, and for each pair the words that contain it: a merge then
        changes a few words, not all. The alphabet has the characters of the text,
        sorted, or 256 bytes.
        """
        counted = Counter(pieces(text, is_bytes))
        words, counts = [tuple(word) for word in counted], list(counted.values())
        pairs: Counter[Pair] = Counter()
        places: dict[Pair, set[int]] = {}
        merges: list[Pair] = []

        def count(number: int, sign: int) -> None:
            for pair in pairwise(words[number]):
                pairs[pair] += sign * counts[number]
                if sign > 0:
                    places.setdefault(pair, set()).add(number)
                elif not pairs[pair]:
                    del pairs[pair]

        for number in range(len(words)):
            count(number, 1)
        while pairs and len(merges) < n_merges:
            pair = most_frequent_pair(pairs)
            for number in places.pop(pair):
                count(number, -1)
                words[number] = merge_pair(words[number], pair)
                count(number, 1)
            merges.append(pair)
        alphabet = map(chr, range(256)) if is_bytes else sorted(set(text))
        return cls(merges, list(alphabet), is_bytes)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text: each piece with all merges, in their order.

        A symbol without an id becomes `[UNK]`.
        """
        found = []
        known: dict[str, list[int]] = {}  # a word occurs often
        for piece in pieces(text, self.is_bytes):
            if piece not in known:
                symbols = tuple(piece)
                while pairs := [p for p in pairwise(symbols) if p in self.ranks]:
                    symbols = merge_pair(
                        symbols, min(pairs, key=self.ranks.__getitem__)
                    )
                known[piece] = [self.ids.get(x, self.ids["[UNK]"]) for x in symbols]
            found += known[piece]
        return found

    def encode_longest(self, text: str) -> list[int]:
        """Return the ids of the longest symbol at each place of each piece.

        A character without a symbol becomes one `[UNK]`.
        """
        found = []
        longest = max(map(len, self.symbols))
        for piece in pieces(text, self.is_bytes):
            while piece:
                n = next((n for n in range(longest, 1, -1) if piece[:n] in self.ids), 1)
                found.append(self.ids.get(piece[:n], self.ids["[UNK]"]))
                piece = piece[n:]
        return found

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without special tokens.

        Bytes that are not UTF-8 become �.
        """
        symbols = (self.symbols[i] for i in ids)
        text = "".join(symbol for symbol in symbols if symbol not in self.special)
        return (
            text.encode("latin-1").decode("utf-8", "replace") if self.is_bytes else text
        )

    def pad(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Fill rows at the right with `[PAD]`: ids (B, T), and True for tokens."""
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), self.ids["[PAD]"])
        is_token = torch.arange(ids.shape[1]) < lengths[:, None]
        ids[is_token] = torch.tensor(list(chain.from_iterable(rows)), dtype=torch.long)
        return ids, is_token

    def save(self, path: str | Path) -> None:
        """Write a JSON file that `load` reads."""
        kept = {
            "merges": self.merges,
            "alphabet": self.alphabet,
            "is_bytes": self.is_bytes,
            "special": self.special,
        }
        Path(path).write_text(json.dumps(kept), "utf-8")

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a file of `save`."""
        kept = json.loads(Path(path).read_text("utf-8"))
        merges = [(first, second) for first, second in kept["merges"]]
        special = tuple(kept["special"])
        return cls(merges, kept["alphabet"], kept["is_bytes"], special)


def pieces(text: str, is_bytes: bool = False) -> list[str]:
    """Cut a text into words, other signs and spaces, which join to the text again.

    The space before a word belongs to it. With `is_bytes`, each byte of a piece in
    UTF-8 becomes the character of this number.
    """
    found = re.findall(r" ?\w+| ?[^\w\s]+|\s+(?!\S)|\s", text)
    return [x.encode("utf-8").decode("latin-1") for x in found] if is_bytes else found
