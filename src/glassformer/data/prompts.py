"""Prompts without answers: a model samples the answers, and rewards read the other fields of a record."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from glassformer.chat_messages import text_of
from glassformer.config.run import PromptData
from glassformer.data import addresses
from glassformer.data.conversations import AnsweredCorpus, messages_of
from glassformer.data.records import Request


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
        request = Request("conversations", (data.prompt_field,), "data.prompt_field", split, self.dropped)
        for record in addresses.records(data.path or "", request):
            messages = messages_of(record, data.prompt_field, "user")
            if any(text_of(message).strip() for message in messages):
                yield Prompt(tuple(messages), record.fields, record.where)
            else:
                self.dropped.empty(record.where)
