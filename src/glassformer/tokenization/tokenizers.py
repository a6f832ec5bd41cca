"""The tokenizers of a model: one, or one for each side of a pair; and the special tokens that stand for spans."""

from dataclasses import dataclass

from glassformer.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Tokenizers:
    """The tokenizer of a text or of a pair's target; and the source's own, where the two have no joint one."""

    target: Tokenizer
    separate_source: Tokenizer | None = None

    @property
    def source(self) -> Tokenizer:
        return self.separate_source or self.target


def sentinels(n: int) -> tuple[str, ...]:
    """The special tokens that stand for spans.

    >>> sentinels(2)
    ('[SPAN_0]', '[SPAN_1]')
    """
    return tuple(f"[SPAN_{i}]" for i in range(n))


def sentinel_ids(tokenizer: Tokenizer) -> list[int]:
    """The ids of the sentinels that a tokenizer has, in their order: ours, or T5's."""
    for spelling in ("[SPAN_{}]", "<extra_id_{}>"):
        found: list[int] = []
        while (token := tokenizer.token_to_id(spelling.format(len(found)))) is not None:
            found.append(token)
        if found:
            break
    return found
