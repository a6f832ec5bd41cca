"""Labelled texts, conversations, preferences and prompts as rows of token ids; and the report on conversations.

Special tokens are added here, so training and inference use the same ones.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from glassformer.common.chat_messages import ASSISTANT, Message
from glassformer.common.errors import UserError, placed
from glassformer.config.run import Run
from glassformer.data.batching import NOT_SCORED, Example, pack
from glassformer.data.conversations import Conversation, ConversationCorpus, Messages, Preference, Prompt
from glassformer.data.kinds import DataReport, Phase, notes
from glassformer.data.split import percentiles, spread
from glassformer.data.tokens import NO_DROPOUT, BpeDropout, learn_tokenizer
from glassformer.tokenization.conversations import (
    ConversationEncoder,
    EncodedConversation,
    Scored,
    ToolCallsNotReadError,
    with_template,
)
from glassformer.tokenization.frames import Frame
from glassformer.tokenization.tokenizer import Tokenizer


def encode_texts(
    tokenizer: Tokenizer,
    texts: Sequence[Sequence[str]],
    max_len: int,
    *,
    dropout: BpeDropout = NO_DROPOUT,
    frame: Frame | None = None,
) -> tuple[list[Example], int]:
    """Encode texts or pairs with special tokens (`[CLS] A [SEP] B [SEP]`); return rows and the number of cut rows.

    If a pair is too long, the longer text is cut, token by token (Devlin 2019). `frame` has the special tokens around a
    single text, by default those of the tokenizer. Raises `UserError` for a text without any token.
    """
    first, second = [text[0] for text in texts], [text[1] if len(text) > 1 else "" for text in texts]
    encoded = tokenizer.encode_batch([*first, *second], dropout=dropout.share, seed=dropout.seed)
    rows, n_cut = [], 0
    for number, (a, b) in enumerate(zip(encoded[: len(texts)], encoded[len(texts) :], strict=True)):
        # 1. The number of tokens that fit between the special tokens
        is_pair = len(texts[number]) > 1
        around = tokenizer.frames.pair if is_pair else frame or tokenizer.frames.text
        room = max_len - around.n_added
        if room < 1 + is_pair:
            raise UserError(f"max_len is {max_len}, too small for a text and its special tokens; raise it")
        # 2. Cut the longer text, and add the special tokens
        n_cut += len(a) + len(b) > room
        n_a, n_b = _cut_to(len(a), len(b), room)
        token_types: np.ndarray | None = None
        if is_pair:
            ids, types = around.around_pair(a[:n_a], b[:n_b])
            token_types = np.array(types, dtype=np.int64)
        else:
            ids = around.around(a[:n_a])
        if not ids:
            raise UserError(
                "a text has no token, and this tokenizer adds no special tokens to a text; use a text that is not empty"
            )
        rows.append(Example(np.array(ids, dtype=np.int64), token_types=token_types))
    return rows, n_cut


def _cut_to(n: int, m: int, room: int) -> tuple[int, int]:
    """Shorten the longer of two lengths, or the second of equal ones, by 1 until their sum is at most `room`.

    >>> _cut_to(10, 3, 9), _cut_to(10, 9, 8), _cut_to(5, 5, 9), _cut_to(2, 3, 9)
    ((6, 3), (4, 4), (5, 4), (2, 3))
    """
    if n + m <= room:
        return n, m
    half = (room + 1) // 2
    if n <= half:
        return n, room - n
    if m <= room - half:
        return room - m, m
    return half, room - half


def encode_tagged(
    tokenizer: Tokenizer,
    sentences: Sequence[Sequence[str]],
    max_len: int,
    tags: Sequence[Sequence[int]] | None = None,
    *,
    dropout: BpeDropout = NO_DROPOUT,
) -> tuple[list[Example], int]:
    """Encode words with special tokens around them; the first token of a word has its label, all other tokens -100.

    Without `tags` the label of every word is 0. Each word except the first is encoded with a space before it. Tokens
    after `max_len` are cut off. Returns the rows and the number of cut rows.
    """
    frame, alone = tokenizer.frames.text, tokenizer.words_stand_alone
    room = max_len - frame.n_added
    space = "" if alone else " "
    flat = [space * (i > 0) + word for sentence in sentences for i, word in enumerate(sentence)]
    encoded = iter(tokenizer.encode_batch(flat, dropout=dropout.share, seed=dropout.seed))
    if tags is None:
        tags = [[0] * len(sentence) for sentence in sentences]
    rows, n_cut = [], 0
    for number, sentence in enumerate(sentences):
        ids: list[int] = []
        labels: list[int] = []
        for word, tag in zip(sentence, tags[number], strict=True):
            ids_of_word = next(encoded)
            if not ids_of_word:
                raise UserError(f"the word {word!r} has no token in this tokenizer; remove or replace it")
            ids += ids_of_word
            labels += [tag, *[NOT_SCORED] * (len(ids_of_word) - 1)]
        n_cut += len(ids) > room
        ids, labels = ids[:room], labels[:room]
        labels = [NOT_SCORED] * len(frame.before) + labels + [NOT_SCORED] * len(frame.after)
        rows.append(Example(np.array(frame.around(ids), dtype=np.int64), labels=np.array(labels, dtype=np.int64)))
    return rows, n_cut


# Conversations


@dataclass
class ConversationRows:
    """Encoder of conversations to examples, which counts what is scored, cut and left out.

    A row has at most `max_ids` ids. A longer conversation is cut after its last answer that fits whole. A conversation
    without such an answer is left out. So is a conversation that calls tools, if the chat template does not read calls.
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
            # A conversation that is too long ends with its last answer that fits
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
        n = self.n_conversations - self.n_left_out - self.n_with_calls
        lost = {
            f"conversations are cut after an answer at {self.max_ids:,} tokens": self.n_cut,
            f"are left out: no answer ends before {self.max_ids:,} tokens": self.n_left_out,
            "are left out: they call tools, which the chat template does not read": self.n_with_calls,
        }
        return _summary(f"{n:,} conversations", self.n_tokens, self.n_scored, lost)


def _summary(records: str, n_tokens: int, n_scored: int, lost: Mapping[str, int]) -> str:
    """Describe the rows of some records; `lost` maps what happened to other records to the number of them."""
    told = [f"{n:,} {text}" for text, n in lost.items() if n]
    return ", ".join([f"{records} of {n_tokens:,} tokens", f"{n_scored / max(1, n_tokens):.0%} of them scored", *told])


def encoded_at(
    where: str, encoder: ConversationEncoder, messages: Sequence[Message], scored: Scored = "assistant"
) -> EncodedConversation:
    """Return a conversation as ids; raise `UserError`, with its place `where`, if it cannot be encoded."""
    with placed(where):
        return encoder.encode(messages, scored)


def example_of(encoded: EncodedConversation, length: int) -> Example:
    """Return the first `length` ids of a conversation, with the id of each scored token as its label, else -100."""
    ids = np.array(encoded.ids[:length], dtype=np.int64)
    return Example(ids, labels=np.where(encoded.is_scored[:length], ids, NOT_SCORED))


def n_scored(example: Example) -> int:
    """Return the number of scored tokens; the first token of a row is never predicted."""
    assert example.labels is not None
    return int((example.labels[1:] != NOT_SCORED).sum())


def joined(parts: Sequence[Example]) -> Example:
    """Join examples to one row; `document_ids` has, for each token, the number of its example."""
    ids = np.concatenate([part.token_ids for part in parts])
    labels = np.concatenate([part.labels for part in parts if part.labels is not None])
    return Example(ids, np.repeat(np.arange(len(parts)), [len(part.token_ids) for part in parts]), labels=labels)


def packed(examples: Sequence[Example], max_ids: int) -> list[Example]:
    """Pack whole conversations into rows of at most `max_ids` ids; `batching.pack` chooses the row of each.

    >>> one = Example(np.array([1, 2, 3]), labels=np.array([-100, 2, 3]))
    >>> [row] = packed([one, one], max_ids=8)
    >>> row.token_ids.tolist(), row.document_ids.tolist(), row.labels.tolist()
    ([1, 2, 3, 1, 2, 3], [0, 0, 0, 1, 1, 1], [-100, 2, 3, -100, 2, 3])
    """
    lengths = np.array([len(example.token_ids) for example in examples], dtype=np.int64)
    row_of = pack(lengths, max_ids)
    by_row = np.split(np.argsort(row_of, kind="stable"), np.cumsum(np.bincount(row_of))[:-1])
    return [joined([examples[place] for place in places]) for places in by_row]


# Preferences and prompts


@dataclass
class PreferenceRows:
    """Encoder of preferences to examples, which counts what is scored and left out.

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
        """Return the example of a question with one answer; earlier answers, in the question, are not scored."""
        encoded = encoded_at(preference.where, self.encoder, preference.question + answer)
        n_before = sum(message["role"] == ASSISTANT for message in preference.question)
        begin = encoded.ends[n_before - 1] if n_before else 0
        encoded.is_scored[:begin] = [False] * begin
        return example_of(encoded, len(encoded.ids))

    def __str__(self) -> str:
        lost = {f"are left out: an answer ends after {self.max_ids:,} tokens": self.n_left_out}
        return _summary(f"{self.n_preferences - self.n_left_out:,} preferences", self.n_tokens, self.n_scored, lost)


@dataclass
class PromptRows:
    """Encoder of prompts. A prompt of more than `longest` tokens leaves no space for an answer, and is left out."""

    encoder: ConversationEncoder
    longest: int
    n_prompts: int = field(default=0, init=False)
    n_left_out: int = field(default=0, init=False)
    n_cut: ClassVar[int] = 0

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[Prompt, list[int]]]:
        """Return the prompts that fit, each with its ids."""
        rows = [(prompt, self.encoder.prompt(prompt.question)) for prompt in prompts]
        fitting = [(prompt, ids) for prompt, ids in rows if len(ids) <= self.longest]
        self.n_prompts += len(fitting)
        self.n_left_out += len(rows) - len(fitting)
        return fitting

    def __str__(self) -> str:
        left_out = f", {self.n_left_out:,} of more than {self.longest:,} tokens are left out" if self.n_left_out else ""
        return f"{self.n_prompts:,} prompts{left_out}"


def report_of(corpus: ConversationCorpus, run: Run, tokenizer: Tokenizer | None, phase: Phase) -> DataReport:
    """Return the report on the conversations of a run."""
    if tokenizer is None:
        tokenizer = learn_tokenizer(run.tokenizer, corpus.training_texts(), phase)
    return conversation_report(corpus, ConversationEncoder(with_template(tokenizer), run.name), run.model.max_len)


def conversation_report(corpus: ConversationCorpus, encoder: ConversationEncoder, context: int) -> DataReport:
    """Return the report on conversations, for a model that reads `context` tokens."""
    train, valid = corpus.split
    rows = ConversationRows(encoder, context + 1, corpus.data.scored)  # the last id is only predicted
    rows.encode([*train, *valid])
    roles_of = [[message["role"] for message in one.messages] for one in (*train, *valid)]
    roles = dict(Counter(role for roles in roles_of for role in roles))
    answers, tokens = percentiles([roles.count(ASSISTANT) for roles in roles_of]), percentiles(rows.lengths)
    n_repeats, news = len(train) - len({one.text for one in train}), corpus.news()
    share = rows.n_scored / max(1, rows.n_tokens)
    lines = [
        ("conversations", f"{len(train):,} for training, {len(valid):,} for validation"),
        ("messages", ", ".join(f"{n:,} of the {role}" for role, n in roles.items())),
        ("answers", f"{spread(answers)} per conversation"),
        ("tokens", f"{spread(tokens)} per conversation"),
        ("scored", f"{rows.n_scored:,} of {rows.n_tokens:,} tokens, {share:.0%}"),
        (
            "context",
            f"of {context:,} tokens: {rows.n_cut:,} conversations are cut after an answer, {rows.n_left_out:,} are "
            "left out",
        ),
        ("repeats", f"{n_repeats:,} training conversations repeat an earlier one"),
    ]
    if rows.n_with_calls:
        lines.append(("tools", f"{rows.n_with_calls:,} conversations with calls of tools are left out"))
    return DataReport(
        {
            "n_train": len(train),
            "n_valid": len(valid),
            "roles": roles,
            "answers": answers,
            "tokens": tokens,
            "context": context,
            **{name: getattr(rows, name) for name in ("n_tokens", "n_scored", "n_cut", "n_left_out", "n_with_calls")},
            "n_not_trained": corpus.n_not_trained,
            "n_repeats": n_repeats,
            "news": news,
        },
        [*lines, *notes(news)],
    )
