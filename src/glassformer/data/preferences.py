"""Preferences: a prompt with a preferred and a rejected answer.

A record has a `prompt`, and the answers `chosen` and `rejected`, each a text or a list of messages. Answers that do
not begin with a message of the assistant are whole conversations: what both begin with is their prompt.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from glassformer.common.chat_messages import ASSISTANT
from glassformer.common.errors import UserError
from glassformer.config.run import PreferenceData
from glassformer.data import addresses
from glassformer.data.conversations import AnsweredCorpus, messages_of
from glassformer.data.kinds import Kind
from glassformer.data.records import Record, with_fields

Messages = tuple[dict[str, Any], ...]


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
    """Return the prompt of a record and one of its answers; nothing if one of them is missing."""
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
            raise without_prompt  # single answers in all records, which need a prompt


PREFERENCES = Kind(PreferenceCorpus)
