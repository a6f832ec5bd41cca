"""What a family of models is to us: its words for a configuration, and its names for the tensors.

Which tensor of ours is which of theirs is one table a family, read in both directions. A line of a table says that some
module of ours is some module of theirs, perhaps stored the other way round (`transposed`), or that several of one side
lie row by row in one of the other. Nothing else is done to a weight: importing what was exported gives every tensor
back, bit by bit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from glassformer.config.transformer import Head, Stack, TransformerConfig
from glassformer.interop.equivalent import Recast, Weights, as_it_is, shapes_of
from glassformer.interop.hf_config import HFConfig
from glassformer.interop.vocabulary_files import MERGES, VOCAB, Builder

Shapes = Mapping[str, Sequence[int]]
Names = tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """One line of a family's table: modules, or tensors without a part. `{i}` is the number of a block.

    Where one side has several names, they lie row by row in the one name of the other.
    """

    ours: Names
    theirs: Names
    transposed: bool = False
    """Theirs is stored (in, out): GPT-2's Conv1D."""
    is_row: bool = False
    """Theirs has a first dimension of 1: the constant bias of BART's logits."""


def rule(ours: str | Names, theirs: str | Names, *, transposed: bool = False, is_row: bool = False) -> Rule:
    """A line, of one name or several a side."""
    return Rule(_names(ours), _names(theirs), transposed, is_row)


@dataclass(frozen=True)
class Key:
    """A line filled in: names of tensors, with the rows that each part has."""

    ours: Names
    theirs: Names
    rows: tuple[int, ...]
    transposed: bool
    is_row: bool

    def to_ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of theirs, in the order of `theirs`, as ours."""
        found = [x.mT if self.transposed and x.dim() == 2 else x for x in theirs]
        found = [x[0] if self.is_row else x for x in found]
        return self._cut(found, len(self.ours))

    def to_theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        """The inverse of `to_ours`.

        >>> key = Key(("q", "k"), ("qk",), rows=(1, 1), transposed=True, is_row=False)
        >>> key.to_theirs([torch.tensor([[1, 2]]), torch.tensor([[3, 4]])])
        [tensor([[1, 3],
                [2, 4]])]
        >>> [x.tolist() for x in key.to_ours([torch.tensor([[1, 3], [2, 4]])])]
        [[[1, 2]], [[3, 4]]]
        """
        found = self._cut(list(ours), len(self.theirs))
        found = [x[None] if self.is_row else x for x in found]
        return [x.mT.contiguous() if self.transposed and x.dim() == 2 else x for x in found]

    def shapes_of_theirs(self, shapes: Shapes) -> list[tuple[int, ...]]:
        """What their tensors' shapes are, from those of ours."""
        ours = [torch.empty(tuple(shapes[name]), device="meta") for name in self.ours]
        return [tuple(x.shape) for x in self.to_theirs(ours)]

    def _cut(self, found: list[Tensor], n_parts: int) -> list[Tensor]:
        if len(found) == n_parts:
            return [x.contiguous() for x in found]
        parts = [part.contiguous() for x in found for part in x.split_with_sizes(self.rows)] if n_parts > 1 else found
        return parts if n_parts > 1 else [torch.cat(parts)]


def keys(
    table: Iterable[Rule], n_layers: Callable[[str], int], rows: Callable[[str], Sequence[int]], shapes: Shapes
) -> list[Key]:
    """A table filled in for a model of ours: `n_layers` of the stack of a name, the `rows` of queries, keys and values
    in a matrix of that name that holds all three, and the shapes of its tensors.

    A line that names what this model does not have (a bias, an untied head) is left out. `ValueError` where the
    table says nothing of a tensor, or says two things: a mistake of the table, which no user can make.
    """
    found: list[Key] = []
    for entry in table:
        for i in range(n_layers(entry.ours[0]) if "{i}" in entry.ours[0] else 1):
            for part in ("", ".weight", ".bias"):
                ours = tuple(name.format(i=i) + part for name in entry.ours)
                if all(name in shapes for name in ours):
                    theirs = tuple(name.format(i=i) + part for name in entry.theirs)
                    parts = [shapes[name][0] for name in ours] if len(theirs) == 1 else rows(ours[0])
                    found.append(Key(ours, theirs, tuple(parts), entry.transposed, entry.is_row))
    named = [name for key in found for name in key.ours]
    if set(named) != set(shapes) or len(named) != len(set(named)):
        raise ValueError(f"the table names {sorted(set(shapes) ^ set(named)) or sorted(named)} not once")
    return found


def renamed(name: str, old: Mapping[str, str]) -> str:
    """A tensor's name of today, where a file has the one of an older version.

    >>> renamed("bert.LayerNorm.gamma", {".gamma": ".weight"})
    'bert.LayerNorm.weight'
    """
    for ending, new in old.items():
        if name.endswith(ending):
            return name.removesuffix(ending) + new
    return name


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of those that patterns such as `h.*.attn.bias` mean."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _names(names: str | Names) -> Names:
    return (names,) if isinstance(names, str) else names


def attention_lines(config: TransformerConfig, ours: str, q: str, k: str, v: str, out: str) -> list[Rule]:
    """The projections of an attention that theirs keeps apart, and ours apart or in one matrix."""
    if config.fused_qkv and ours.endswith("self_attn"):
        return [rule(f"{ours}.qkv_proj", (q, k, v)), rule(f"{ours}.out_proj", out)]
    theirs = {"q_proj": q, "k_proj": k, "v_proj": v, "out_proj": out}
    return [rule(f"{ours}.{mine}", other) for mine, other in theirs.items()]


@dataclass(frozen=True)
class Family:
    """One `model_type` of transformers."""

    name: str
    """As people say it: GPT-2."""
    model_type: str
    heads: Mapping[str, Head]
    """The classes of transformers whose checkpoints are read → our head; the first of its kind is written."""
    read: Callable[[HFConfig, str], TransformerConfig]
    """Their configuration, and the architecture → ours; what does not fit is told to `HFConfig`."""
    fit: Callable[[TransformerConfig], list[str]]
    """Why the family cannot hold a configuration of ours exactly, sentence by sentence; empty where it can."""
    write: Callable[[TransformerConfig], dict[str, Any]]
    """Ours, which fits → their configuration, without the keys that all families share."""
    table: Callable[[TransformerConfig], list[Rule]]
    """Our names and theirs."""
    prefix: str = ""
    """What stands before the names of the network without its head; the files of a bare network may lack it."""
    bare: frozenset[str] = frozenset()
    """Architectures without a head, whose files are written without the prefix."""
    drawn: tuple[str, ...] = ()
    """Patterns of tensors that transformers draws at random where a file has none, and that no output of ours reads."""
    recast: Callable[[TransformerConfig, Weights], Recast] = as_it_is
    """A model of ours that fits → an equal one of the table."""
    repeats: Mapping[str, str] = field(default_factory=dict)
    """Names under which a file may hold another tensor once more, where it is tied; the other may be a repeat too."""
    unread: Callable[[TransformerConfig], Mapping[str, str]] = lambda config: {}
    """Tensors that theirs must have and never reads → the one that is written in its place."""
    fixed: Callable[[TransformerConfig], Mapping[str, Tensor]] = lambda config: {}
    """Tensors that old files hold and the configuration determines: other numbers are an error."""
    derived: tuple[str, ...] = ()
    """Patterns of tensors that are worked out from the configuration, which old files hold: left out."""
    old_names: Mapping[str, str] = field(default_factory=dict)
    """Endings of names in old files → those of today."""
    builder: Builder | None = None
    """Makes the tokenizer of a folder that has its vocabulary and no `tokenizer.json`."""
    vocabulary: tuple[str, ...] = (VOCAB, MERGES)
    """The files that the `builder` needs."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """What special tokens are for in folders that do not say it, as the tokenizer's class in transformers has it."""

    @property
    def architectures(self) -> tuple[str, ...]:
        return tuple(self.heads)

    def architecture(self, config: TransformerConfig) -> str:
        """The class of transformers that has this head."""
        return next(name for name, head in self.heads.items() if head.kind == config.head.kind)

    def keys(self, config: TransformerConfig) -> list[Key]:
        """The table, filled in for a configuration."""

        def stack_of(name: str) -> Stack:
            return config.stacks[name.split(".")[0]]

        def rows(name: str) -> list[int]:
            """Of queries, keys and values in a matrix that holds all three."""
            widths = config.attention_widths(stack_of(name))
            return [widths.query, widths.key, widths.value]

        return keys(self.table(config), lambda name: stack_of(name).n_layers, rows, shapes_of(config))
