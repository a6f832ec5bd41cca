"""Whether a family of theirs can hold a configuration of ours exactly, and if not, why."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from glassformer.config.transformer import Head, Stack, TransformerConfig

_CHANGES_NO_FORWARD = """
init token_dropout embedding_dropout residual_dropout attention_dropout ff_dropout
vocab_size max_len pad_id bos_id eos_id unk_id mask_id decoder_start_id
"""
CHANGES_NO_FORWARD = frozenset(_CHANGES_NO_FORWARD.split())
"""Fields that every family can hold, or that only training knows."""

HAS = {"encoder": "it has an encoder", "decoder": "it has a decoder"}
NEEDS = {"encoder": "it has no encoder", "decoder": "it has no decoder"}


def distance(misfits: Sequence[str]) -> int:
    """How far a model is from a family: misfits, of which a stack too many or too few counts as many others.

    >>> distance(["it has an encoder", "model.head is sequence, and it must be tokens"])
    101
    """
    stacks = {*HAS.values(), *NEEDS.values()}
    return sum(100 if misfit in stacks else 1 for misfit in misfits)


class Compatibility:
    """Looks at a configuration field by field. A field that nobody looked at must have its default.

    So a family that forgets one refuses too much rather than writing another model than it was given.
    """

    def __init__(self, config: TransformerConfig) -> None:
        self.config = config
        self.misfits: list[str] = []
        self._seen: set[str] = set(CHANGES_NO_FORWARD)

    def need(self, name: str, *allowed: Any) -> None:
        """A field of the model that must be one of these values."""
        value = getattr(self.config, name)
        fine = value in allowed
        whole = any(type(one) is type(value) for one in allowed)  # of one kind with other numbers
        must = " or ".join(dict.fromkeys(_said(one, whole) for one in allowed))
        self.check(name, fine, f"model.{name} is {_said(value, whole)}, and it must be {must}")

    def check(self, name: str, fine: bool, misfit: str) -> None:
        """A field that has been looked at, and the sentence for when it does not fit."""
        self._seen.add(name)
        if not fine:
            self.misfits.append(misfit)

    def holds(self, *names: str) -> None:
        """Fields that the family holds whatever their value."""
        self._seen.update(names)

    def stack(self, name: str, present: bool, *holds: str) -> None:
        """A stack that must be there or not; fields of it beside layers, heads and d_ff, that the family `holds`."""
        stack: Stack | None = getattr(self.config, name)
        if stack is None or not present:
            self.check(name, (stack is not None) == present, NEEDS[name] if present else HAS[name])
            return
        self._seen.add(name)
        if not stack.d_ff:
            self.misfits.append(f"model.{name}.d_ff is 0: it has no feed-forward")
        widths, d_head = self.config.attention_widths(stack), self.config.d_model // stack.n_heads
        if "n_kv_heads" not in holds and widths.n_kv_heads != stack.n_heads:
            self.misfits.append(f"model.{name}.n_kv_heads is {stack.n_kv_heads}, and it must be 0")
        if "d_head" not in holds and (widths.d_head != d_head or self.config.d_model % stack.n_heads):
            self.misfits.append(f"model.{name}.d_head is {stack.d_head}, and it must be d_model / n_heads")
        if widths.d_value != widths.d_head:
            self.misfits.append(f"model.{name}.d_value is {stack.d_value}, and it must be 0")
        if "window_pattern" not in holds and any(stack.window_pattern):
            self.misfits.append(f"model.{name}.window_pattern is {list(stack.window_pattern)}, and it must be empty")

    def head(self, *allowed: Head) -> None:
        """The head must be one of these, with any number of labels."""
        self._seen.add("head")
        head = self.config.head
        same_kind = [one for one in allowed if one.kind == head.kind]
        if not same_kind:
            kinds = " or ".join(one.kind for one in allowed)
            self.misfits.append(f"model.head.kind is {head.kind}, and it must be {kinds}")
        for field in dataclasses.fields(same_kind[0]) if same_kind else ():
            value, must = getattr(head, field.name), getattr(same_kind[0], field.name)
            if field.name != "n_labels" and value != must:
                self.misfits.append(f"model.head.{field.name} is {_said(value)}, and it must be {_said(must)}")

    def done(self) -> list[str]:
        """All misfits, those of fields that were not looked at included."""
        for field in dataclasses.fields(self.config):
            if field.name not in self._seen:
                self.need(field.name, field.default)
        return self.misfits


def _said(value: Any, whole: bool = False) -> str:
    """A value of a field; of a table its kind, and all that it says where it is told `whole`."""
    kind = getattr(value, "kind", None)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if kind is None:
        return str(value)
    fields = [f"{field.name} {_said(getattr(value, field.name))}" for field in dataclasses.fields(value) if whole]
    return f"{kind} ({', '.join(fields)})" if fields else str(kind)
