"""Compatibility of a configuration with a model family of transformers: the list of fields that do not fit."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from glassformer.config.transformer import Head, Stack, TokenHead, TransformerConfig, VectorHead

CHANGES_NO_FORWARD = """
init token_dropout embedding_dropout residual_dropout attention_dropout ff_dropout
vocab_size max_len pad_id bos_id eos_id unk_id mask_id decoder_start_id
"""
"""Fields that every family supports, or that only affect training."""

HAS = {"encoder": "the model has an encoder", "decoder": "the model has a decoder"}
NEEDS = {"encoder": "the model has no encoder", "decoder": "the model has no decoder"}


def distance(misfits: Sequence[str]) -> int:
    """Count the misfits between a model and a family; a missing or extra stack counts as 100.

    >>> distance(["the model has an encoder", "model.head: expected tokens, got sequence"])
    101
    """
    stacks = {*HAS.values(), *NEEDS.values()}
    return sum(100 if misfit in stacks else 1 for misfit in misfits)


class Compatibility:
    """Checker of a configuration, field by field. A field that was not checked must have its default.

    So a family that forgets a field rejects too many models, but never exports a wrong model.
    """

    def __init__(self, config: TransformerConfig) -> None:
        self.config = config
        self.misfits: list[str] = []
        self._seen: set[str] = set(CHANGES_NO_FORWARD.split())

    def need(self, name: str, *allowed: Any) -> None:
        """Require a field of the model to have one of the `allowed` values."""
        value = getattr(self.config, name)
        fine = value in allowed
        whole = any(type(one) is type(value) for one in allowed)  # same kind, other settings
        must = " or ".join(dict.fromkeys(_formatted(one, whole) for one in allowed))
        self.check(name, fine, f"model.{name}: expected {must}, got {_formatted(value, whole)}")

    def needs(self, **fields: Any) -> None:
        """Require each of these fields of the model to have the given value."""
        for name, value in fields.items():
            self.need(name, value)

    def check(self, name: str, fine: bool, misfit: str) -> None:
        """Mark a field as checked, and record `misfit` if it is not `fine`."""
        self._seen.add(name)
        if not fine:
            self.misfits.append(misfit)

    def holds(self, *names: str) -> None:
        """Mark fields that the family supports with any value."""
        self._seen.update(names)

    def stack(self, name: str, present: bool, *holds: str) -> None:
        """Require a stack to be present or absent; `holds` names its optional fields that the family supports."""
        stack: Stack | None = getattr(self.config, name)
        if stack is None or not present:
            misfit = NEEDS[name] if present else HAS[name]
            self.check(name, (stack is not None) == present, misfit)
            return
        self._seen.add(name)
        if not stack.d_ff:
            self.misfits.append(f"model.{name}.d_ff: expected at least 1, got 0")
        widths, d_head = self.config.attention_widths(stack), self.config.d_model // stack.n_heads
        if "n_kv_heads" not in holds and widths.n_kv_heads != stack.n_heads:
            self.misfits.append(f"model.{name}.n_kv_heads: expected 0, got {stack.n_kv_heads}")
        if "d_head" not in holds and (widths.d_head != d_head or self.config.d_model % stack.n_heads):
            self.misfits.append(f"model.{name}.d_head: expected d_model / n_heads, got {stack.d_head}")
        if widths.d_value != widths.d_head:
            self.misfits.append(f"model.{name}.d_value: expected 0, got {stack.d_value}")
        if "window_pattern" not in holds and any(stack.window_pattern):
            self.misfits.append(f"model.{name}.window_pattern: expected [], got {list(stack.window_pattern)}")

    def head(self, *allowed: Head) -> None:
        """Require the head to be one of the `allowed` heads, with any number of labels."""
        self._seen.add("head")
        head = self.config.head
        same_kind = [one for one in allowed if one.kind == head.kind]
        if not same_kind:
            kinds = " or ".join(one.kind for one in allowed)
            self.misfits.append(f"model.head.kind: expected {kinds}, got {head.kind}")
            return
        for field in dataclasses.fields(head):
            value, must = getattr(head, field.name), getattr(same_kind[0], field.name)
            if field.name != "n_labels" and value != must:
                self.misfits.append(f"model.head.{field.name}: expected {_formatted(must)}, got {_formatted(value)}")

    def heads(self, heads: Iterable[Head], *poolers: str) -> None:
        """Require the head to be one of `heads`; if logits over tokens may have a bias, any or none fits.

        A vector head with one of the `poolers` may have any pooling, since the export writes sentence-transformers
        modules. `max_tokens` may have any value.
        """
        head, allowed = self.config.head, []
        for one in heads:
            if isinstance(one, TokenHead) and isinstance(head, TokenHead) and one.bias != "none":
                one = dataclasses.replace(one, bias=head.bias)
            elif isinstance(one, VectorHead) and isinstance(head, VectorHead):
                one = head if head.pooler in poolers else dataclasses.replace(one, max_tokens=head.max_tokens)
            allowed.append(one)
        self.head(*allowed)

    def done(self) -> list[str]:
        """Return all misfits, including unchecked fields that differ from their default."""
        for field in dataclasses.fields(self.config):
            if field.name not in self._seen:
                self.need(field.name, field.default)
        return self.misfits


def _formatted(value: Any, whole: bool = False) -> str:
    """Format the value of a field; format a table as its kind, followed by all its fields if `whole`."""
    kind = getattr(value, "kind", None)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if kind is None:
        return str(value)
    fields = [f"{field.name} {_formatted(getattr(value, field.name))}" for field in dataclasses.fields(value)]
    return f"{kind} ({', '.join(fields)})" if whole and fields else str(kind)
