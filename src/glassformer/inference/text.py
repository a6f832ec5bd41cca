"""Ids and text of a model: special tokens around a text, ids that end a text, ids without text, and stop texts."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Integral

from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.tokenization.frames import Frame
from glassformer.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class EncodedPrompt:
    """Prompt as ids for the model."""

    ids: list[int]
    is_spaced: bool = False
    """True if the prompt's text ends with a space that is not in the ids, because some tokenizers drop it."""


def causal_frame(tokenizer: Tokenizer, config: ModelConfig) -> Frame:
    """Return the special tokens that a causal model reads around a text, as in its training.

    Before the text are the tokens from the tokenizer's file (`<s>` for Llama), otherwise the start token in the model's
    configuration. The frame is empty if training added no token, or no token is recorded. All functions that pass text
    to a causal model use this frame: prompts, scores and vectors.
    """
    start = () if config.decoder_start_id is None else (config.decoder_start_id,)
    return Frame(before=tokenizer.frames.prompt.before or start)


def end_ids_of(tokenizer: Tokenizer, config: ModelConfig, generation: GenerationConfig | BeamConfig) -> frozenset[int]:
    """Return the ids that end a text: the model's end token, or else the tokenizer's, and `generation.end_ids`."""
    own = [end for end in (config.eos_id, tokenizer.eos_id) if end is not None]
    return frozenset((*own[:1], *generation.end_ids))


def never_written(tokenizer: Tokenizer, vocab_size: int, but: Collection[int | None] = ()) -> list[int]:
    """Return the ids without text, except the end token and the ids in `but`.

    Ids without text are the special tokens, and the rows of the embedding table beyond the vocabulary.
    """
    special = [tokenizer.vocab[token] for token in tokenizer.special_tokens]
    without_text = [*special, *range(tokenizer.vocab_size, vocab_size)]
    return [i for i in without_text if i != tokenizer.eos_id and i not in but]


def check_ids(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Raise `UserError` for an id that is not in the vocabulary.

    >>> check_ids([[0, 1], [2, 9]], 9)
    Traceback (most recent call last):
    glassformer.common.errors.UserError: prompt 2 has the id 9, and the vocabulary has 9 tokens, with the ids 0 to 8
    """
    for number, prompt in enumerate(prompts, 1):
        for token in prompt:
            if not (isinstance(token, Integral) and 0 <= token < vocab_size):
                raise UserError(
                    f"prompt {number} has the id {token!r:.40}, and the vocabulary has {vocab_size:,} tokens, with the "
                    f"ids 0 to {vocab_size - 1}"
                )


class StopWatch:
    """Filter that passes text until one of the stop texts appears, even if it is split between pieces.

    A character costs the same number of operations, on average, for stop texts of any length (Knuth, Morris and Pratt
    1977).

    >>> watch = StopWatch(["END"])
    >>> watch.push("one E"), watch.push("ND two"), watch.stopped
    ('one ', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.stopped = False
        self._matches = [_Match(stop) for stop in stops if stop]
        self._held = ""

    def push(self, piece: str) -> str:
        """Return the text that is certainly before any stop text; hold the rest back."""
        if self.stopped:
            return ""
        text, first = self._held + piece, len(self._held)
        begins = [first + at - len(one.stop) for one in self._matches if (at := one.read(piece))]
        n_held = max((one.n for one in self._matches), default=0)
        end = min(begins, default=len(text) - n_held)
        self.stopped, self._held = bool(begins), "" if begins else text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return the text that was held back, at the end of the stream."""
        held, self._held = self._held, ""
        return held


class _Match:
    """A stop text. Its first `n` characters, and no more, equal the last `n` characters that were read."""

    def __init__(self, stop: str) -> None:
        self.stop, self.n = stop, 0
        self._shorter = [0, 0]
        """Item n: the largest m < n for which the first n characters of `stop` end with the first m characters."""

    def read(self, piece: str) -> int:
        """Read a piece; return the number of its characters up to the end of the stop text, or 0 if it does not end."""
        for number, character in enumerate(piece, 1):
            self.n = self._after(self.n, character)
            if self.n == len(self.stop):
                return number
            if self.n == len(self._shorter):
                self._shorter.append(self._after(self._shorter[-1], character))
        return 0

    def _after(self, n: int, character: str) -> int:
        """Return the value of `n` after one more character, if it was `n` before."""
        while n and self.stop[n] != character:
            n = self._shorter[n]
        return n + (self.stop[n] == character)
