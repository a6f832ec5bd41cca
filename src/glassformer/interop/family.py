"""What a family of models is to us: its words for a configuration, and its names for the tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from glassformer.config.transformer import Head, Stack, TransformerConfig
from glassformer.interop.equivalent import Recast, Weights, as_it_is
from glassformer.interop.hf_config import HFConfig
from glassformer.interop.keymap import Key, Rule, keys, rule
from glassformer.interop.vocabulary_files import MERGES, VOCAB, Builder
from glassformer.models.build import build_model
from glassformer.store.model_directory import weights_of


def nothing(config: TransformerConfig) -> dict[str, Any]:
    """No tensors."""
    return {}


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
    unread: Callable[[TransformerConfig], Mapping[str, str]] = nothing
    """Tensors that theirs must have and never reads → the one that is written in its place."""
    fixed: Callable[[TransformerConfig], Mapping[str, Tensor]] = nothing
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

        return keys(self.table(config), lambda name: stack_of(name).n_layers, rows, self.shapes(config))

    def shapes(self, config: TransformerConfig) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor of ours."""
        return {name: tuple(x.shape) for name, x in weights_of(build_model(config, "meta")).items()}


def attention_lines(config: TransformerConfig, ours: str, q: str, k: str, v: str, out: str) -> list[Rule]:
    """The projections of an attention that theirs keeps apart, and ours apart or in one matrix."""
    if config.fused_qkv and ours.endswith("self_attn"):
        return [rule(f"{ours}.qkv_proj", (q, k, v)), rule(f"{ours}.out_proj", out)]
    theirs = {"q_proj": q, "k_proj": k, "v_proj": v, "out_proj": out}
    return [rule(f"{ours}.{mine}", other) for mine, other in theirs.items()]
