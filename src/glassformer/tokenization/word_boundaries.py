"""Ends of words and sentences in a row of tokens, determined from the text of the tokens only."""

import unicodedata
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from glassformer.tokenization.tokenizer import Tokenizer

Bools = npt.NDArray[np.bool_]
IDEOGRAPHS = (("\u3400", "\u9fff"), ("\uf900", "\ufaff"), ("\U00020000", "\U0003ffff"))
SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")


@dataclass(frozen=True, eq=False)
class WordBoundaries:
    """Properties of the text of each token, by id (V,)."""

    begins_inside: Bools
    """True if the text begins with a letter, a digit, or a part of a character: it may continue a word."""
    ends_inside: Bools
    ends_sentence: Bools
    """True if the text ends with a full stop, an exclamation mark or a question mark; spaces after it are ignored."""
    special: Bools
    """True for a special token, which has no text."""

    def continues(self, token_ids: npt.NDArray[np.int64]) -> Bools:
        """Return a mask (T,): True if a token continues the word of the token before it.

        >>> tokenizer = Tokenizer.train(["to do"], vocab_size=0, scheme="char", special_tokens=())
        >>> word_boundaries(tokenizer).continues(np.array(tokenizer.encode("to do"))).tolist()
        [False, True, False, False, True]
        """
        inside = self.begins_inside[token_ids]
        inside[1:] &= self.ends_inside[token_ids[:-1]]
        inside[:1] = False
        return inside


@lru_cache(maxsize=8)
def word_boundaries(tokenizer: Tokenizer) -> WordBoundaries:
    """Compute the boundary properties of all tokens of a vocabulary."""
    texts = [piece.decode("utf-8", "surrogateescape") for piece in tokenizer.pieces]
    special = np.isin(np.arange(len(texts)), [tokenizer.vocab[token] for token in tokenizer.special_tokens])
    return WordBoundaries(
        begins_inside=np.array([_is_inside(text[:1]) for text in texts], dtype=np.bool_) & ~special,
        ends_inside=np.array([_is_inside(text[-1:]) for text in texts], dtype=np.bool_) & ~special,
        ends_sentence=np.array([text.rstrip().endswith(SENTENCE_ENDS) for text in texts], dtype=np.bool_) & ~special,
        special=special,
    )


def _is_inside(character: str) -> bool:
    """Return True for a letter, digit, combining mark, "_" or byte of a character; an ideograph is a separate word.

    >>> [_is_inside(character) for character in ("é", "\u0301", "字", "-")]
    [True, True, False, False]
    """
    if any(begin <= character <= end for begin, end in IDEOGRAPHS):
        return False
    if character == "_" or "\udc80" <= character <= "\udcff":
        return True
    return character.isalnum() or (character != "" and unicodedata.category(character).startswith("M"))
