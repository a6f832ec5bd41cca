"""Prompts without answers: a model samples the answers, and rewards read the other fields of a record."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from glassformer.common.chat_messages import text_of
from glassformer.config.run import PromptData
from glassformer.data import addresses
from glassformer.data.conversations import AnsweredCorpus, messages_of
from glassformer.data.records import Request, with_fields


@dataclass(frozen=True)
class Prompt:
    """The messages of a prompt, and all fields of its record."""

    question: tuple[dict[str, Any], ...]
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
        setting = "data.prompt_field"
        request = Request(
            "conversations", (data.prompt_field,), setting, split, self.dropped, False, data.format, data.encoding
        )
        for record in with_fields(addresses.records(data.path or "", request), request.names):
            messages = messages_of(record, data.prompt_field, "user")
            if any(text_of(message).strip() for message in messages):
                yield Prompt(tuple(messages), record.fields, record.where)
            else:
                self.dropped.empty(record.where)
