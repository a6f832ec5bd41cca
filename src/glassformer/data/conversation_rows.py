"""Conversations as rows of tokens: cut where an answer ends, and packed."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from glassformer.data.batching import NOT_SCORED, Example, pack
from glassformer.data.conversations import Conversation
from glassformer.errors import UserError
from glassformer.tokenization.conversations import ConversationEncoder, Scored


@dataclass
class ConversationRows:
    """Encoded conversations as examples, and what was scored, cut and left out.

    A row has at most `max_ids` ids. A longer conversation ends at its last answer that fits whole; one without such an
    answer is left out.
    """

    encoder: ConversationEncoder
    max_ids: int
    scored: Scored = "assistant"
    n_conversations: int = field(default=0, init=False)
    n_tokens: int = field(default=0, init=False)
    n_scored: int = field(default=0, init=False)
    n_cut: int = field(default=0, init=False)
    n_left_out: int = field(default=0, init=False)

    def encode(self, conversations: Sequence[Conversation]) -> list[Example]:
        """Return one example per conversation that fits; raise `UserError`, with the place, if one cannot be encoded.

        `labels` has the id of each scored token, and -100 at the other places.
        """
        examples = []
        for conversation in conversations:
            self.n_conversations += 1
            try:
                encoded = self.encoder.encode(conversation.messages, self.scored)
            except UserError as error:
                raise UserError(f"{conversation.where}: {error}") from error
            length = len(encoded.ids)
            if length > self.max_ids:
                length = max((end for end in encoded.ends if end <= self.max_ids), default=0)
                self.n_cut += length > 0
                self.n_left_out += length == 0
            if length == 0:
                continue
            ids = np.array(encoded.ids[:length], dtype=np.int64)
            labels = np.where(encoded.is_scored[:length], ids, NOT_SCORED)
            self.n_tokens += length
            self.n_scored += int((labels[1:] != NOT_SCORED).sum())
            examples.append(Example(ids, labels=labels))
        return examples

    def __str__(self) -> str:
        parts = [f"{self.n_conversations - self.n_left_out:,} conversations of {self.n_tokens:,} tokens"]
        parts.append(f"{self.n_scored / max(1, self.n_tokens):.0%} of them scored")
        if self.n_cut:
            parts.append(f"{self.n_cut:,} conversations are cut after an answer at {self.max_ids:,} tokens")
        if self.n_left_out:
            parts.append(f"{self.n_left_out:,} are left out: no answer ends before {self.max_ids:,} tokens")
        return ", ".join(parts)


def packed(examples: Sequence[Example], max_ids: int) -> list[Example]:
    """Pack whole conversations into rows of at most `max_ids` ids (`batching.pack`); `document_ids` distinguishes them.

    >>> one = Example(np.array([1, 2, 3]), labels=np.array([-100, 2, 3]))
    >>> [row] = packed([one, one], max_ids=8)
    >>> row.token_ids.tolist(), row.document_ids.tolist(), row.labels.tolist()
    ([1, 2, 3, 1, 2, 3], [0, 0, 0, 1, 1, 1], [-100, 2, 3, -100, 2, 3])
    """
    lengths = np.array([len(example.token_ids) for example in examples], dtype=np.int64)
    row_of = pack(lengths, max_ids)
    by_row = np.split(np.argsort(row_of, kind="stable"), np.cumsum(np.bincount(row_of))[:-1])
    rows = []
    for places in by_row:
        parts = [examples[place] for place in places]
        ids = np.concatenate([part.token_ids for part in parts])
        labels = np.concatenate([part.labels for part in parts if part.labels is not None])
        rows.append(Example(ids, np.repeat(np.arange(len(parts)), lengths[places]), labels=labels))
    return rows
