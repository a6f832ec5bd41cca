"""Conversations, preferences and prompts: reading, and the split into training and validation data.

A record has `messages` (objects with `role` and `content`), or a `prompt` and its `completion`, each a text or a list
of messages. Two other forms are read: ShareGPT (messages with `from` and `value`, and a text `system` beside them) and
Alpaca (`instruction`, `output`, and an `input`, which follows the instruction after an empty line). A record is skipped
and counted if a message lacks its content, or if training would score no answer of the assistant.

`RecordCorpus` makes the split, by a hash of the messages before the first answer. All conversations with equal messages
before the first answer are on one side.

A preference has a `prompt`, and the answers `chosen` and `rejected`, each a text or a list of messages. If the answers
do not begin with a message of the assistant, they are whole conversations; the messages with which both begin are the
prompt. A prompt has no answer. A model samples the answers, and rewards read the other fields of the record.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from glassformer.common.chat_messages import (
    ASSISTANT,
    is_answer,
    is_trained,
    require_messages,
    text_of,
    texts_in,
    usual_role,
)
from glassformer.common.errors import UserError
from glassformer.config.run import ConversationData, PreferenceData, PromptData
from glassformer.data import addresses
from glassformer.data.records import ALPACA_PROMPT, Record, with_fields
from glassformer.data.split import RecordCorpus, split_records

Messages = tuple[dict[str, Any], ...]
CALL, SAID = "function_call", ("from", "value")
"""`CALL`: role of a message that calls a tool in ShareGPT. `SAID`: keys of the role and of the text of a message."""


@dataclass(frozen=True)
class Conversation:
    """The messages of a conversation."""

    messages: Messages
    where: str = field(default="", compare=False, repr=False)  # place in the file, for messages

    @cached_property
    def text(self) -> str:
        """The messages as JSON; equal texts mean equal conversations."""
        return json.dumps(self.messages, ensure_ascii=False, sort_keys=True)

    @property
    def question(self) -> Messages:
        """The messages before the first answer."""
        n = next(i for i, message in enumerate(self.messages) if message["role"] == ASSISTANT)
        return self.messages[:n]


def messages_of(record: Record, name: str, role: str | None = None) -> list[dict[str, Any]]:
    """Return the messages in a field of a record, [] if it is missing; with `role`, a text becomes one message."""
    listed = _listed(record, name, role)
    if listed is None or listed == []:
        return []
    messages = require_messages(listed, f"{record.where}: {name}")
    for text in texts_in(messages):
        record.as_text(text, "a message")
    return messages


def _listed(record: Record, name: str, role: str | None) -> Any:
    """Return the value of a field, unchecked; messages of ShareGPT get the keys `role` and `content`."""
    value = record.value(name)
    if role is not None and isinstance(value, str):
        rest = record.fields.get("input")
        if name == ALPACA_PROMPT and isinstance(rest, str) and rest.strip():
            value = f"{value}\n\n{rest}"
        return [{"role": role, "content": value}]
    if not isinstance(value, list) or not any(_is_said(one) for one in value):
        return value
    messages = [_of_sharegpt(one) if _is_said(one) else one for one in value]
    system = record.fields.get("system")
    if isinstance(system, str) and system.strip() and messages[0].get("role") != "system":
        messages.insert(0, {"role": "system", "content": system})
    return messages


def _is_said(message: Any) -> bool:
    return isinstance(message, Mapping) and all(key in message for key in SAID)


def _of_sharegpt(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message of ShareGPT with the usual keys; a call of a tool, which is JSON, becomes `tool_calls`.

    >>> _of_sharegpt({"from": "gpt", "value": "Yes.", "weight": 0})
    {'role': 'gpt', 'content': 'Yes.', 'weight': 0}
    """
    role, value = (message[key] for key in SAID)
    others = {key: one for key, one in message.items() if key not in SAID}
    if role != CALL:
        return {"role": role, "content": value, **others}
    try:
        called = json.loads(value)
    except (TypeError, ValueError):
        return {"role": ASSISTANT, "content": value, **others}  # a call that is not JSON stays a text
    calls = [{"type": "function", "function": one} for one in (called if isinstance(called, list) else [called])]
    return {"role": ASSISTANT, "content": None, "tool_calls": calls, **others}


def is_missing(value: Any) -> bool:
    """Return True for None, for an empty list, and for a list in which a message has content None and calls no tool.

    >>> is_missing(None), is_missing([]), is_missing([{"role": "user", "content": None}]), is_missing("text")
    (True, True, True, False)
    """
    if not isinstance(value, list):
        return value is None
    return not value or any(
        isinstance(one, Mapping) and "content" in one and one["content"] is None and not one.get("tool_calls")
        for one in value
    )


D = TypeVar("D", bound=ConversationData | PreferenceData | PromptData)
R = TypeVar("R", bound="Conversation | Preference | Prompt")


class AnsweredCorpus(RecordCorpus[D, R]):
    """The records of a run. All records with the same question are on one side of the split."""

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
    REASON = ("conversation has no answer or lacks a content", "conversations have no answer or lack a content")

    def __init__(self, data: ConversationData) -> None:
        super().__init__(data)
        self.n_of_roles: Counter[tuple[str, str]] = Counter()
        """Number of messages whose role is renamed. The key is (role in the data, usual name of the role)."""
        self.n_not_trained = 0
        """Number of messages of the assistant with the weight 0."""

    def news(self) -> list[str]:
        news = super().news()
        if self.n_of_roles:
            renamed = [f"{n:,} of {old} as {new}" for (old, new), n in sorted(self.n_of_roles.items())]
            news.append(f"messages are read with the usual names of their roles: {', '.join(renamed)}")
        if n := self.n_not_trained:
            news.append(
                f"{n:,} answer{'s have' if n > 1 else ' has'} the weight 0, and {'are' if n > 1 else 'is'} not scored"
            )
        return news

    def records(self, data: ConversationData, split: str) -> Iterator[Conversation]:
        request = self.request(data, split, ("prompt_field", "completion_field"))
        records = addresses.records(data.path or "", request)
        for record in with_fields(records, request.names, (data.messages_field, "data.messages_field")):
            parts: list[tuple[str, str | None]] = [(data.messages_field, None)]
            if record.value(data.prompt_field) is not None:
                parts = [(data.prompt_field, "user"), (data.completion_field, ASSISTANT)]
            found = [_listed(record, *part) for part in parts]
            if any(map(is_missing, found)):
                self.dropped.empty(record.where)
                continue
            messages = [message for part in parts for message in messages_of(record, *part)]
            if not any(map(is_answer, messages)):
                self.dropped.empty(record.where)
                continue
            self._count(found, messages)
            yield Conversation(tuple(messages), record.where)

    def training_texts(self) -> Iterator[str]:
        """Yield the messages of the training data, each after its role, for training a tokenizer."""
        return (f"{message['role']}\n{text_of(message)}" for one in self.split[0] for message in one.messages)

    def _count(self, found: Sequence[list[Mapping[str, Any]]], messages: Sequence[Mapping[str, Any]]) -> None:
        """Count the messages whose role is renamed, and the answers that are not scored, for the notes."""
        roles = [str(message["role"]) for part in found for message in part]
        self.n_of_roles.update((role, usual_role(role)) for role in roles if role != usual_role(role))
        self.n_not_trained += sum(message["role"] == ASSISTANT and not is_trained(message) for message in messages)


# Preferences and prompts


@dataclass(frozen=True)
class Preference:
    """Two different answers to the messages of a question."""

    question: Messages
    chosen: Messages
    rejected: Messages
    where: str = field(default="", compare=False, repr=False)  # place in the file, for messages

    @cached_property
    def text(self) -> str:
        """The messages as JSON; equal texts mean equal preferences."""
        return json.dumps([self.question, self.chosen, self.rejected], ensure_ascii=False, sort_keys=True)


def _conversation(data: PreferenceData, record: Record, name: str) -> list[dict[str, Any]]:
    """Return the messages of a record's prompt and of one answer; [] if the prompt or the answer is missing.

    An answer that does not begin with a message of the assistant is a whole conversation and is returned alone.
    """
    messages = messages_of(record, name, ASSISTANT)
    if not messages or messages[0]["role"] != ASSISTANT:
        return messages
    prompt = messages_of(record, data.prompt_field, "user")
    return prompt and prompt + messages


class PreferenceCorpus(AnsweredCorpus[PreferenceData, Preference]):
    """The preferences of a run and their split."""

    NOUN, USABLE = "preference", "usable preference"
    REASON = ("preference has no two different answers", "preferences have no two different answers")

    def records(self, data: PreferenceData, split: str) -> Iterator[Preference]:
        request = self.request(data, split, data.columns)
        names = request.names
        n_found, without_prompt = 0, None
        for record in with_fields(addresses.records(data.path or "", request), names[1:]):
            chosen, rejected = (_conversation(data, record, name) for name in names[1:])
            n_same = next((i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b), None)
            if n_same is None:
                self.dropped.empty(record.where)
                without_prompt = without_prompt or record.absent(names)
                continue
            if any(messages[n_same]["role"] != ASSISTANT for messages in (chosen, rejected)):
                raise UserError(
                    f"{record.where}: {data.chosen_field} and {data.rejected_field} must answer the same messages, and "
                    f"message {n_same + 1} is not of the assistant in both: give both answers to one prompt"
                )
            n_found += 1
            yield Preference(tuple(chosen[:n_same]), tuple(chosen[n_same:]), tuple(rejected[n_same:]), record.where)
        if not n_found and without_prompt is not None:
            raise without_prompt  # no record is usable, and a record lacks its prompt


@dataclass(frozen=True)
class Prompt:
    """The messages of a prompt, and all fields of its record."""

    question: Messages
    fields: Mapping[str, Any]
    where: str = field(default="", compare=False, repr=False)  # place in the file, for messages

    @cached_property
    def text(self) -> str:
        """The record as JSON; equal texts mean equal prompts."""
        return json.dumps(self.fields, ensure_ascii=False, sort_keys=True, default=str)


class PromptCorpus(AnsweredCorpus[PromptData, Prompt]):
    """The prompts of a run and their split."""

    NOUN, USABLE = "prompt", "usable prompt"
    REASON = ("prompt is empty", "prompts are empty")

    def records(self, data: PromptData, split: str) -> Iterator[Prompt]:
        request = self.request(data, split, data.columns)
        for record in with_fields(addresses.records(data.path or "", request), request.names):
            messages = messages_of(record, data.prompt_field, "user")
            if any(text_of(message).strip() for message in messages):
                yield Prompt(tuple(messages), record.fields, record.where)
            else:
                self.dropped.empty(record.where)
