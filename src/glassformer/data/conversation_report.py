"""Statistics of conversations before training: roles, lengths, scored tokens, and what a context cuts or leaves out."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from glassformer.common.chat_messages import ASSISTANT
from glassformer.config.run import ConversationData
from glassformer.data.conversation_rows import ConversationRows
from glassformer.data.conversations import ConversationCorpus
from glassformer.data.pairs import percentiles
from glassformer.tokenization.conversations import ConversationEncoder


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
