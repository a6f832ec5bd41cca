"""Prompts without answers: a model samples the answers, and rewards read the other fields of a record."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from glassformer.common.chat_messages import text_of
from glassformer.config.run import PromptData
from glassformer.data import addresses
from glassformer.data.conversations import AnsweredCorpus, messages_of
from glassformer.data.kinds import Kind
from glassformer.data.records import with_fields

if TYPE_CHECKING:
    from glassformer.tokenization.conversations import ConversationEncoder


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
        request = self.request(data, split, data.columns)
        for record in with_fields(addresses.records(data.path or "", request), request.names):
            messages = messages_of(record, data.prompt_field, "user")
            if any(text_of(message).strip() for message in messages):
                yield Prompt(tuple(messages), record.fields, record.where)
            else:
                self.dropped.empty(record.where)


@dataclass
class PromptRows:
    """Encoded prompts; one with more than `longest` tokens leaves no room for an answer, and is left out."""

    encoder: "ConversationEncoder"
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


PROMPTS = Kind(PromptCorpus)
