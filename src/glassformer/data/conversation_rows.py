"""Conversations as rows of tokens: cut where an answer ends, and packed; and the report on them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from glassformer.common.chat_messages import ASSISTANT, Message
from glassformer.common.errors import UserError
from glassformer.config.run import ConversationData, Run
from glassformer.data.batching import NOT_SCORED, Example, pack
from glassformer.data.conversations import Conversation, ConversationCorpus
from glassformer.data.kinds import Phase
from glassformer.data.record_corpus import percentiles
from glassformer.data.tokens import learn_tokenizer
from glassformer.tokenization.conversations import (
    ConversationEncoder,
    EncodedConversation,
    Scored,
    ToolCallsNotReadError,
    with_template,
)
from glassformer.tokenization.tokenizer import Tokenizer


@dataclass
class ConversationRows:
    """Encoded conversations as examples, and what was scored, cut and left out.

    A row has at most `max_ids` ids. A longer conversation ends at its last answer that fits whole; one without such an
    answer is left out. So is one that calls tools, if the chat template does not read such calls.
    """

    encoder: ConversationEncoder
    max_ids: int
    scored: Scored = "assistant"
    n_conversations: int = field(default=0, init=False)
    n_tokens: int = field(default=0, init=False)
    n_scored: int = field(default=0, init=False)
    n_cut: int = field(default=0, init=False)
    n_left_out: int = field(default=0, init=False)
    n_with_calls: int = field(default=0, init=False)
    """Number of conversations that are left out because they call tools, and the template does not read such calls."""
    lengths: list[int] = field(default_factory=list, init=False)
    """Number of ids of each conversation, before a cut."""

    def encode(self, conversations: Sequence[Conversation]) -> list[Example]:
        """Return one example per conversation that fits; raise `UserError`, with the place, if one cannot be encoded.

        `labels` has the id of each scored token, and -100 for the others.
        """
        examples = []
        for conversation in conversations:
            self.n_conversations += 1
            try:
                encoded = encoded_at(conversation.where, self.encoder, conversation.messages, self.scored)
            except ToolCallsNotReadError:
                self.n_with_calls += 1
                continue
            length = len(encoded.ids)
            self.lengths.append(length)
            if length > self.max_ids:
                length = max(
                    (end for end in encoded.ends if end <= self.max_ids and any(encoded.is_scored[:end])), default=0
                )
                self.n_cut += length > 0
                self.n_left_out += length == 0
            if length == 0:
                continue
            example = example_of(encoded, length)
            self.n_tokens += length
            self.n_scored += n_scored(example)
            examples.append(example)
        return examples

    def __str__(self) -> str:
        parts = [
            f"{self.n_conversations - self.n_left_out - self.n_with_calls:,} conversations of {self.n_tokens:,} tokens"
        ]
        parts.append(f"{self.n_scored / max(1, self.n_tokens):.0%} of them scored")
        if self.n_cut:
            parts.append(f"{self.n_cut:,} conversations are cut after an answer at {self.max_ids:,} tokens")
        if self.n_left_out:
            parts.append(f"{self.n_left_out:,} are left out: no answer ends before {self.max_ids:,} tokens")
        if self.n_with_calls:
            parts.append(f"{self.n_with_calls:,} are left out: they call tools, which the chat template does not read")
        return ", ".join(parts)


def encoded_at(
    where: str, encoder: ConversationEncoder, messages: Sequence[Message], scored: Scored = "assistant"
) -> EncodedConversation:
    """Return a conversation as ids; raise `UserError`, with its place `where`, if it cannot be encoded."""
    try:
        return encoder.encode(messages, scored)
    except UserError as error:
        raise type(error)(f"{where}: {error}") from error


def example_of(encoded: EncodedConversation, length: int) -> Example:
    """Return the first `length` ids of a conversation, with the id of each scored token as its label, else -100."""
    ids = np.array(encoded.ids[:length], dtype=np.int64)
    return Example(ids, labels=np.where(encoded.is_scored[:length], ids, NOT_SCORED))


def n_scored(example: Example) -> int:
    """Return the number of scored tokens; the first token of a row is never predicted."""
    assert example.labels is not None
    return int((example.labels[1:] != NOT_SCORED).sum())


def joined(parts: Sequence[Example]) -> Example:
    """Join examples to one row, whose `document_ids` number them."""
    ids = np.concatenate([part.token_ids for part in parts])
    labels = np.concatenate([part.labels for part in parts if part.labels is not None])
    return Example(ids, np.repeat(np.arange(len(parts)), [len(part.token_ids) for part in parts]), labels=labels)


def packed(examples: Sequence[Example], max_ids: int) -> list[Example]:
    """Pack whole conversations into rows of at most `max_ids` ids (`batching.pack`), which `joined` makes.

    >>> one = Example(np.array([1, 2, 3]), labels=np.array([-100, 2, 3]))
    >>> [row] = packed([one, one], max_ids=8)
    >>> row.token_ids.tolist(), row.document_ids.tolist(), row.labels.tolist()
    ([1, 2, 3, 1, 2, 3], [0, 0, 0, 1, 1, 1], [-100, 2, 3, -100, 2, 3])
    """
    lengths = np.array([len(example.token_ids) for example in examples], dtype=np.int64)
    row_of = pack(lengths, max_ids)
    by_row = np.split(np.argsort(row_of, kind="stable"), np.cumsum(np.bincount(row_of))[:-1])
    return [joined([examples[place] for place in places]) for places in by_row]


@dataclass(frozen=True)
class ConversationReport:
    """Statistics of the conversations of both sides of the split."""

    n_train: int
    n_valid: int
    roles: dict[str, int]
    """Number of messages of each role."""
    answers: tuple[int, int, int]
    """Median, 99th percentile and maximum number of answers in a conversation."""
    tokens: tuple[int, int, int]
    """The same of its tokens, before a cut."""
    context: int
    n_tokens: int
    """Number of tokens that fit the context; the following numbers are those of a training with it."""
    n_scored: int
    n_cut: int
    n_left_out: int
    n_with_calls: int
    """Number of conversations that are left out because they call tools, and the template does not read such calls."""
    n_not_trained: int
    """Number of answers with the weight 0, which are not scored."""
    n_repeats: int
    """Number of training conversations that repeat an earlier one."""
    news: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        roles = ", ".join(f"{n:,} of the {role}" for role, n in self.roles.items())
        share = self.n_scored / max(1, self.n_tokens)
        lines = [
            f"conversations  {self.n_train:,} for training, {self.n_valid:,} for validation",
            f"messages       {roles}",
            f"answers        {_spread(self.answers)} per conversation",
            f"tokens         {_spread(self.tokens)} per conversation",
            f"scored         {self.n_scored:,} of {self.n_tokens:,} tokens, {share:.0%}",
            f"context        of {self.context:,} tokens: {self.n_cut:,} conversations are cut after an answer, "
            f"{self.n_left_out:,} are left out",
            f"repeats        {self.n_repeats:,} training conversations repeat an earlier one",
        ]
        if self.n_with_calls:
            lines.append(f"tools          {self.n_with_calls:,} conversations with calls of tools are left out")
        return "\n".join([*lines, *(f"note           {line}" for line in self.news)])


def conversation_report(corpus: ConversationCorpus, encoder: ConversationEncoder, context: int) -> ConversationReport:
    """Compute the statistics of conversations for a model that reads `context` tokens."""
    assert isinstance(corpus.data, ConversationData)
    train, valid = corpus.split
    rows = ConversationRows(encoder, context + 1, corpus.data.scored)  # the last id is only predicted
    rows.encode([*train, *valid])
    roles = [[message["role"] for message in one.messages] for one in (*train, *valid)]
    return ConversationReport(
        n_train=len(train),
        n_valid=len(valid),
        roles=dict(Counter(role for of_one in roles for role in of_one)),
        answers=percentiles([of_one.count(ASSISTANT) for of_one in roles]),
        tokens=percentiles(rows.lengths),
        context=context,
        n_tokens=rows.n_tokens,
        n_scored=rows.n_scored,
        n_cut=rows.n_cut,
        n_left_out=rows.n_left_out,
        n_with_calls=rows.n_with_calls,
        n_not_trained=corpus.n_not_trained,
        n_repeats=len(train) - len({one.text for one in train}),
        news=tuple(corpus.news()),
    )


def _spread(of: tuple[int, int, int]) -> str:
    return f"median {of[0]:,}, 99th percentile {of[1]:,}, maximum {of[2]:,}"


def report_of(run: Run, data: ConversationData, tokenizer: Tokenizer | None, phase: Phase) -> ConversationReport:
    """Return the report on the conversations of a run."""
    corpus = ConversationCorpus(data)
    if tokenizer is None:
        tokenizer = learn_tokenizer(run.tokenizer, corpus.training_texts(), phase)
    return conversation_report(corpus, ConversationEncoder(with_template(tokenizer), run.name), run.model.max_len)
