"""A vocabulary of whole words: the frequent ones, and [UNK] for all others (Bahdanau 2015's shortlist)."""

from collections import Counter
from collections.abc import Sequence

from glassformer.errors import UserError
from glassformer.tokenization.bpe import NO_TEXT, check_room


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
