"""Preferences as rows of tokens: both answers, each after its question, are the two documents of one row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from glassformer.common.chat_messages import ASSISTANT
from glassformer.data.batching import Example
from glassformer.data.conversation_rows import encoded_at, example_of, joined, n_scored
from glassformer.data.preferences import Messages, Preference
from glassformer.tokenization.conversations import ConversationEncoder


@dataclass
class PreferenceRows:
    """Encoded preferences as examples, and what was scored and left out.

    Document 0 of a row is the question with the chosen answer, document 1 the question with the rejected one. Only the
    answers are scored. A preference with a document of more than `max_ids` ids is left out.
    """

    encoder: ConversationEncoder
    max_ids: int
    n_preferences: int = field(default=0, init=False)
    n_tokens: int = field(default=0, init=False)
    n_scored: int = field(default=0, init=False)
    n_left_out: int = field(default=0, init=False)
    n_cut: ClassVar[int] = 0

    def encode(self, preferences: Sequence[Preference]) -> list[Example]:
        """Return one row per preference that fits; raise `UserError`, with the place, if one cannot be encoded."""
        rows = []
        for one in preferences:
            self.n_preferences += 1
            parts = [self._part(one, answer) for answer in (one.chosen, one.rejected)]
            if max(len(part.token_ids) for part in parts) > self.max_ids:
                self.n_left_out += 1
                continue
            rows.append(joined(parts))
            self.n_tokens += len(rows[-1].token_ids)
            self.n_scored += sum(map(n_scored, parts))
        return rows

    def _part(self, preference: Preference, answer: Messages) -> Example:
        """Return a question and one of its answers; answers in the question are not scored."""
        encoded = encoded_at(preference.where, self.encoder, preference.question + answer)
        n_before = sum(message["role"] == ASSISTANT for message in preference.question)
        begin = encoded.ends[n_before - 1] if n_before else 0
        encoded.is_scored[:begin] = [False] * begin
        return example_of(encoded, len(encoded.ids))

    def __str__(self) -> str:
        parts = [f"{self.n_preferences - self.n_left_out:,} preferences of {self.n_tokens:,} tokens"]
        parts.append(f"{self.n_scored / max(1, self.n_tokens):.0%} of them scored")
        if self.n_left_out:
            parts.append(f"{self.n_left_out:,} are left out: an answer ends after {self.max_ids:,} tokens")
        return ", ".join(parts)
