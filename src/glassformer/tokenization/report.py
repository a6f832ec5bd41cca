"""What a tokenizer makes of a text, in numbers."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenReport:
    """Counts over some texts. A word is what stands between white space."""

    vocab_size: int
    n_texts: int
    n_words: int
    n_bytes: int
    """UTF-8 bytes."""
    n_tokens: int
    n_unknown: int
    """Tokens among them that stand for unknown characters."""
    frequencies: Counter[int]
    """How often each id occurs."""

    @property
    def tokens_per_word(self) -> float:
        return self.n_tokens / max(self.n_words, 1)

    @property
    def bytes_per_token(self) -> float:
        return self.n_bytes / max(self.n_tokens, 1)

    @property
    def n_unused(self) -> int:
        """Ids that do not occur."""
        return self.vocab_size - len(self.frequencies)
