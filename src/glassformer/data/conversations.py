"""Conversations: reading, and the split into training and validation data.

A record has `messages` (objects with `role` and `content`), or a `prompt` and its `completion`, each a text or a list
of messages. Sources: a `.jsonl` or `.parquet` file, a `.tsv` or `.csv` file with the columns of a prompt and its
completion, `hf:NAME` and data in memory. Records without an answer of the assistant are skipped and counted.

`RecordCorpus` makes the split, by a hash of what comes before the first answer: all conversations with the same
beginning are on one side.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeVar

from glassformer.chat_messages import require_messages
from glassformer.config.run import ConversationData, PreferenceData, PromptData
from glassformer.data import addresses
from glassformer.data.record_corpus import RecordCorpus
from glassformer.data.records import Record, Request, with_fields
from glassformer.data.split import split_records
from glassformer.errors import UserError

ASSISTANT = "assistant"


@dataclass(frozen=True)
class Conversation:
    """The messages of a conversation."""

    messages: tuple[dict[str, Any], ...]
    where: str = field(default="", compare=False, repr=False)  # place in the file, for messages

    @cached_property
    def text(self) -> str:
        """The messages as JSON; equal texts mean equal conversations."""
        return json.dumps(self.messages, ensure_ascii=False, sort_keys=True)

    @property
    def question(self) -> tuple[dict[str, Any], ...]:
        """The messages before the first answer."""
        n = next(i for i, message in enumerate(self.messages) if message["role"] == ASSISTANT)
        return self.messages[:n]


def messages_of(record: Record, name: str, role: str | None = None) -> list[dict[str, Any]]:
    """Return the messages in a field of a record, none if it is missing; with a `role`, a text is one message of it."""
    value = record.value(name)
    if value is None or value == []:
        return []
    if role is not None and isinstance(value, str):
        value = [{"role": role, "content": value}]
    messages = require_messages(value, f"{record.where}: {name}")
    for message in messages:
        record.as_text(message["content"], "a message")
    return messages


class Answered(Protocol):
    """A record with a question and its answers, if it has any."""

    @property
    def text(self) -> str: ...

    @property
    def question(self) -> tuple[dict[str, Any], ...]: ...


D = TypeVar("D", bound=ConversationData | PreferenceData | PromptData)
R = TypeVar("R", bound=Answered)


class AnsweredCorpus(RecordCorpus[D, R]):
    """The records of a run and their split, by question."""

    def __init__(self, data: D) -> None:
        if data.path is None:
            raise UserError(f"no {data.kind} are given; set --data.path FILE")
        super().__init__(data, data.path)

    def texts(self, record: R) -> tuple[str, ...]:
        return (record.text,)

    def divide(self, records: list[R]) -> tuple[list[R], list[R]]:
        return split_records(records, [str(one.question) for one in records], self.data.valid_fraction)


class ConversationCorpus(AnsweredCorpus[ConversationData, Conversation]):
    """The conversations of a run and their split."""

    NOUN, USABLE = "conversation", "usable conversation"
    REASON = ("conversation has no answer", "conversations have no answer")

    def records(self, data: ConversationData, split: str) -> Iterator[Conversation]:
        names, settings = (data.prompt_field, data.completion_field), "data.prompt_field, data.completion_field"
        request = Request("conversations", names, settings, split, self.dropped, False, data.format, data.encoding)
        records = addresses.records(data.path or "", request)
        for record in with_fields(records, names, (data.messages_field,)):
            if record.value(data.prompt_field) is not None:
                messages = messages_of(record, data.prompt_field, "user")
                messages += messages_of(record, data.completion_field, ASSISTANT)
            else:
                messages = messages_of(record, data.messages_field)
            if any(message["role"] == ASSISTANT and message["content"].strip() for message in messages):
                yield Conversation(tuple(messages), record.where)
            else:
                self.dropped.empty(record.where)
