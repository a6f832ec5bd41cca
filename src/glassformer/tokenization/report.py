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
    """How often each id occurs; those that do not are left out."""
    most_frequent: tuple[tuple[str, int], ...]
    """The most frequent tokens, readable, and how often each occurs."""

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

    def __str__(self) -> str:
        rows = [
            ("vocabulary", f"{self.vocab_size:,} tokens, {self.n_unused:,} of them unused here"),
            ("texts", f"{self.n_texts:,}"),
            ("words", f"{self.n_words:,}"),
            ("bytes", f"{self.n_bytes:,}"),
            ("tokens", f"{self.n_tokens:,}, {self.n_unknown:,} of them unknown"),
            ("tokens per word", f"{self.tokens_per_word:.3f}"),
            ("bytes per token", f"{self.bytes_per_token:.3f}"),
            ("most frequent", "  ".join(f"{token!r} {n:,}" for token, n in self.most_frequent)),
        ]
        return "\n".join(f"{name:>15}  {value}" for name, value in rows)
