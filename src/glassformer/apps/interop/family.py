"""A model family of transformers: conversion of its configuration and of its tensor names.

Each family has a table of settings and a table of tensor names. Import and export use the same tables. A line of the
second table pairs a glassformer module with a transformers module (`Rule`). Weights are only transposed, or divided,
joined or reordered by rows, so importing an exported model returns every tensor bit for bit. Only the norms of Gemma
are changed: 1 is added to their weights.

A family can represent a configuration if its written keys, read again, give the same one (`Family.misfits`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.interop import equivalent
from glassformer.apps.interop.generation import token_ids
from glassformer.apps.interop.hf_config import Converter, Fields, HFConfig, Settings, written
from glassformer.apps.interop.vocabulary_files import MERGES, VOCAB, Builder
from glassformer.config import transformer as c

Shapes = Mapping[str, Sequence[int]]
Names = tuple[str, ...]
QKV_OUT = ("q", "k", "v", "out")


@dataclass(frozen=True)
class Rule:
    """One line of a family's table: names of modules or tensors. `{i}` is the number of a block.

    If one side has several names, their tensors are concatenated by rows into the one tensor of the other side. The
    other fields state how transformers stores the tensors. By default, it stores them as glassformer does.
    """

    ours: Names
    theirs: Names
    transposed: bool = False
    """True if the matrix is stored as (in, out): GPT-2's Conv1D."""
    is_row: bool = False
    """True if the tensor has a first dimension of 1: the constant bias of BART's logits."""
    n_groups: int = 0
    """Number of key-value heads, if the fused matrix is stored by group: queries, key, value of a group; else 0."""
    offset: float = 0.0
    """Number that an import adds to the tensors, since Gemma's norms multiply by 1 + weight. The sum is in float32."""
    rows: tuple[int, ...] = ()
    """Number of rows of each part. `filled_in` sets it for the tensors of each block."""

    def to_ours(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return glassformer's tensors of this rule, given those of transformers: the inverse of `to_theirs`."""
        parts = [self._transposed(theirs[name]) for name in self.theirs]
        if self.offset:
            parts = [x.float() + self.offset for x in parts]
        if self.is_row:
            parts = [x[0] for x in parts]
        if self.n_groups:  # each group together → all queries, all keys, all values
            rows = [n // self.n_groups for n in self.rows]
            grouped = [x.unflatten(0, (self.n_groups, -1)).split_with_sizes(rows, dim=1) for x in parts]
            parts = [torch.cat([part.flatten(0, 1) for part in one]) for one in grouped]
        return dict(zip(self.ours, self._cut(parts, len(self.ours)), strict=True))

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of transformers for this rule by name, given those of glassformer.

        >>> fused = Rule(("q", "k"), ("qk",), transposed=True, rows=(1, 1))
        >>> fused.to_theirs({"q": torch.tensor([[1, 2]]), "k": torch.tensor([[3, 4]])})
        {'qk': tensor([[1, 3],
                [2, 4]])}
        >>> {name: x.tolist() for name, x in fused.to_ours({"qk": torch.tensor([[1, 3], [2, 4]])}).items()}
        {'q': [[1, 2]], 'k': [[3, 4]]}
        >>> Rule(("qkv",), ("grouped",), n_groups=2, rows=(4, 2, 2)).to_theirs({"qkv": torch.arange(8)})
        {'grouped': tensor([0, 1, 4, 6, 2, 3, 5, 7])}
        """
        parts = self._cut([ours[name] for name in self.ours], len(self.theirs))
        if self.offset:
            parts = [x.float() - self.offset for x in parts]
        if self.n_groups:  # all queries, all keys, all values → each group together
            apart = [[part.unflatten(0, (self.n_groups, -1)) for part in x.split_with_sizes(self.rows)] for x in parts]
            parts = [torch.cat(one, dim=1).flatten(0, 1) for one in apart]
        if self.is_row:
            parts = [x[None] for x in parts]
        return {name: self._transposed(x).contiguous() for name, x in zip(self.theirs, parts, strict=True)}

    def shapes_of_theirs(self, shapes: Shapes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the transformers tensors, given those of the glassformer tensors."""
        theirs = self.to_theirs({name: torch.empty(tuple(shapes[name]), device="meta") for name in self.ours})
        return {name: tuple(x.shape) for name, x in theirs.items()}

    def _transposed(self, x: Tensor) -> Tensor:
        return x.mT if self.transposed and x.dim() == 2 else x

    def _cut(self, tensors: list[Tensor], n_parts: int) -> list[Tensor]:
        """Divide one tensor by rows into `n_parts`, or join several into one. Leave `n_parts` tensors unchanged."""
        if len(tensors) == n_parts:
            return [x.contiguous() for x in tensors]
        if n_parts == 1:
            return [torch.cat(tensors)]
        return [part.contiguous() for x in tensors for part in x.split_with_sizes(self.rows)]


def rule(ours: str | Names, theirs: str | Names, **layout: Any) -> Rule:
    """Return a line of a table, with one or several names per side; `layout` has other fields of `Rule`."""
    mine, other = ((names,) if isinstance(names, str) else names for names in (ours, theirs))
    return Rule(mine, other, **layout)


def filled_in(table: Iterable[Rule], config: c.TransformerConfig, shapes: Shapes) -> list[Rule]:
    """Return the table for a model with tensors of these `shapes`: one rule for each tensor of each block.

    Lines for tensors that the model does not have are left out. One tensor of glassformer stacks the matrices of all
    experts, which have equal numbers of rows. Raises `ValueError` if the table maps a tensor twice or not at all, which
    is a bug in the table.
    """
    filled: list[Rule] = []
    for entry in table:
        stack = config.stacks.get(entry.ours[0].partition(".")[0], config.head_stack)
        widths = config.attention_widths(stack)
        for i in range(stack.n_layers if "{i}" in entry.ours[0] else 1):
            for part in ("", ".weight", ".bias"):
                ours = tuple(name.format(i=i) + part for name in entry.ours)
                if not all(name in shapes for name in ours):
                    continue
                theirs = tuple(name.format(i=i) + part for name in entry.theirs)
                rows = [shapes[name][0] for name in ours]
                if len(theirs) > 1 and ".ff." in ours[0]:
                    rows = [rows[0] // len(theirs)] * len(theirs)
                elif len(theirs) > 1 or entry.n_groups:
                    rows = [widths.query, widths.key, widths.key]
                filled.append(replace(entry, ours=ours, theirs=theirs, rows=tuple(rows)))
    named = [name for entry in filled for name in entry.ours]
    if set(named) != set(shapes) or len(named) != len(set(named)):
        raise ValueError(f"the table must map each tensor once: {sorted(set(shapes) ^ set(named)) or sorted(named)}")
    return filled


def renamed(name: str, old: Mapping[str, str]) -> str:
    """Return the current name of a tensor: replace an ending in `old`, from older files, by the new ending.

    >>> renamed("bert.LayerNorm.gamma", {".gamma": ".weight"})
    'bert.LayerNorm.weight'
    """
    for ending, new in old.items():
        if name.endswith(ending):
            return name.removesuffix(ending) + new
    return name


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return True if a name matches one of the patterns, such as `h.*.attn.bias`."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def lines(ours: str, theirs: str, names: Mapping[str, str], **layout: Any) -> list[Rule]:
    """Return a table for a module and its counterpart from pairs of names inside them; `layout` is as for `rule`.

    >>> [entry.ours for entry in lines("decoder.", "transformer.", {"final_norm": "ln_f"})]
    [('decoder.final_norm',)]
    """
    return [rule(ours + mine, theirs + other, **layout) for mine, other in names.items()]


def decoder_heads(prefix: str, *, has_tags: bool = True) -> dict[str, c.Head]:
    """Return the heads of a family of decoders by class name; all class names begin with `prefix`.

    `has_tags` is False if transformers has no class of the family that tags tokens.

    >>> list(decoder_heads("OPT", has_tags=False))
    ['OPTForCausalLM', 'OPTForSequenceClassification', 'OPTModel']
    """
    heads: dict[str, c.Head] = {
        f"{prefix}ForCausalLM": c.TokenHead(),
        f"{prefix}ForSequenceClassification": c.SequenceHead(pooling="last", bias=False),
    }
    if has_tags:
        heads[f"{prefix}ForTokenClassification"] = c.PositionHead()
    return heads | {f"{prefix}Model": c.VectorHead(pooling="mean")}


def output_name(config: c.TransformerConfig, of_tokens: str = "lm_head", of_tags: str = "classifier") -> str:
    """Return the name of a decoder's logits module: `of_tokens` for a token head, `of_tags` for a head that tags.

    >>> output_name(c.TransformerConfig(decoder=c.Stack(), head=c.PositionHead()))
    'classifier'
    """
    return {"tokens": of_tokens, "positions": of_tags}.get(config.head.kind, "score")


def attention(theirs: str, parts: Iterable[str], ours: str = "self_attn") -> dict[str, str]:
    """Return the names of the four projections of an attention inside a block, for `lines`.

    >>> attention("attn.{}", "qkvo")["self_attn.out_proj"]
    'attn.o'
    """
    return {f"{ours}.{mine}_proj": theirs.format(part) for mine, part in zip(QKV_OUT, parts, strict=True)}


def with_fused(table: Iterable[Rule]) -> list[Rule]:
    """Return a table in which one matrix has the queries, keys and values of self-attention, given one with three.

    In the given table, the lines of queries, keys and values must follow each other.
    """
    fused: list[Rule] = []
    for entry in table:
        module, _, part = entry.ours[0].rpartition(".")
        ours = (f"{module}.qkv_proj",)
        if not module.endswith("self_attn") or part not in ("q_proj", "k_proj", "v_proj"):
            fused.append(entry)
        elif fused[-1].ours == ours:
            fused[-1] = replace(fused[-1], theirs=fused[-1].theirs + entry.theirs)
        else:
            fused.append(replace(entry, ours=ours))
    return fused


def nested(fields: Fields) -> Fields:
    """Return the arguments of `TransformerConfig`: `encoder.n_layers` becomes a field of the encoder's `Stack`.

    >>> nested({"d_model": 8, "encoder.n_layers": 2, "encoder.n_heads": 1, "encoder.d_ff": 16})["encoder"].n_layers
    2
    """
    whole = {name: value for name, value in fields.items() if "." not in name}
    parts: dict[str, Fields] = {}
    for name, value in fields.items():
        outer, _, inner = name.rpartition(".")
        if outer:
            parts.setdefault(outer, {})[inner] = value
    return whole | {outer: replace(whole.get(outer, c.Stack()), **inner) for outer, inner in parts.items()}


@dataclass(frozen=True)
class Family:
    """One `model_type` of transformers: its settings and tensor names. The first five fields are always needed."""

    name: str
    """Name for messages, such as GPT-2."""
    model_type: str
    heads: Mapping[str, c.Head]
    """Supported classes of transformers, each with its head in glassformer. An export uses the first with its head."""
    settings: Settings
    """Fields that equal a key of `config.json`, for import and export; `encoder.n_layers` is a field of a stack."""
    table: Callable[[c.TransformerConfig], list[Rule]]
    """Function that returns a configuration's table of tensor names. Our queries, keys and values are separate in
    it."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Classes of this family that are not supported, each with the reason."""
    always: Mapping[str, Any] = field(default_factory=dict)
    """Fields that have the same value in every model of the family. A field in no table has its default."""
    only: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `config.json` with one supported value."""
    unused: str = ""
    """Keys of `config.json` that do not change the outputs."""
    others: tuple[Converter, ...] = ()
    """Converters of the other settings, in the order in which they read and write."""
    limits: Callable[[c.TransformerConfig], dict[str, bool]] = lambda config: {}
    """Function that returns, for a configuration, possible reasons why transformers cannot compute the model although
    the keys can express it. The value of a reason is True if it applies."""
    prefix: str = ""
    """Prefix of the tensor names of the network without its head. Files of a model without a head may omit it."""
    drawn: tuple[str, ...] = ()
    """Patterns of tensors that glassformer never uses, and that transformers draws at random if a file lacks them."""
    recast: Callable[[c.TransformerConfig, equivalent.Weights], equivalent.Recast] = equivalent.as_it_is
    """Function that returns an equivalent model that the table can map, or otherwise the model unchanged."""
    repeats: Mapping[str, str] = field(default_factory=dict)
    """For the name of a second copy of a tied tensor, the name of the original, which may be in this map, too."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """For each tensor that transformers requires and never uses, the tensor to write there if the model has it."""
    fixed: Callable[[c.TransformerConfig], Mapping[str, Tensor]] = lambda config: {}
    """Function that returns the tensors of old files that a configuration determines. Other values are an error."""
    stores_fixed: bool = False
    """True if transformers requires the `fixed` tensors in a file."""
    other_heads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For a kind of head, patterns of tensors of other heads in published files: they are skipped, with a message."""
    derived: tuple[str, ...] = ()
    """Patterns of tensors of old files that can be computed from the configuration. They are skipped."""
    old_names: Mapping[str, str] = field(default_factory=dict)
    """For each ending of a tensor name in old files, the current ending."""
    old_keys: Mapping[str, str] = field(default_factory=dict)
    """For each old key of `config.json`, the current key."""
    builder: Builder | None = None
    """Function that builds the tokenizer of a folder with a vocabulary and no `tokenizer.json`."""
    vocabulary: tuple[str, ...] = (VOCAB, MERGES)
    """Files that `builder` needs."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """The special token of each role that a folder does not define, as in the tokenizer class of transformers."""

    @property
    def bare(self) -> frozenset[str]:
        """Classes without a head. An export writes their tensors without the prefix."""
        names = (name for name in self.heads if name.endswith("Model"))
        return frozenset(name for name in names if not name.endswith(("LMHeadModel", "MTModel")))

    @property
    def stacks(self) -> frozenset[str]:
        """Names of the stacks: encoder, decoder or both."""
        return frozenset(name.split(".")[0] for name in self.settings if name.startswith(("encoder.", "decoder.")))

    def architecture(self, config: c.TransformerConfig) -> str:
        """Return the class of transformers that has the head of a configuration."""
        return next(name for name, head in self.heads.items() if head.kind == config.head.kind)

    def read(self, hf: HFConfig, architecture: str) -> c.TransformerConfig:
        """Return the configuration of a model of class `architecture`, read from `hf`, which records problems."""
        return c.TransformerConfig(**self._fields(hf, architecture))

    def write(self, config: c.TransformerConfig) -> dict[str, Any]:
        """Return the keys of `config.json` for a configuration, except the keys that all families share."""
        keys = written(self.settings, config)
        for other in self.others:
            keys |= other.write(config)
        return keys

    def misfits(self, config: c.TransformerConfig) -> list[str]:
        """Return the reasons why the family cannot represent a configuration exactly; empty if it can.

        The keys of an equivalent configuration are written and read again. A field that is different afterwards does
        not fit. So if a family forgets a setting, it rejects models with that setting, and never exports a wrong model.
        """
        if misfits := equivalent.stack_misfits(config, self.stacks):
            return misfits
        kinds = dict.fromkeys(head.kind for head in self.heads.values())
        if config.head.kind not in kinds:
            misfit = f"model.head.kind: expected {' or '.join(kinds)}, got {config.head.kind}"
            return [misfit, *self.misfits(replace(config, head=next(iter(self.heads.values()))))]
        config, weights = self.recast(config, dict(equivalent.without_values(config)))
        stored = [rule for rule in self.table(config) if f"{rule.ours[0]}.weight" in weights]
        names = [f"{name}.weight" for rule in stored for name in rule.theirs]
        hf = HFConfig(token_ids(config) | self.write(config), self.name, names)
        read = self._fields(hf, self.architecture(config))
        read["head"] = _head_with_modules(config.head, read["head"])
        limits = [reason for reason, applies in self.limits(config).items() if applies]
        return [*equivalent.differences(config, read), *limits] or hf.problems()

    def _fields(self, hf: HFConfig, architecture: str) -> Fields:
        hf.rename(self.old_keys)
        hf.pass_over(*self.unused.split())
        for key, value in self.only.items():
            hf.only(key, value)
        fields = {**self.always, **hf.fields(self.settings), "head": self.heads[architecture]}
        for other in self.others:
            fields |= other.read(hf, fields)
        return nested(fields)

    def rules(self, config: c.TransformerConfig) -> list[Rule]:
        """Return the table, filled in for a configuration."""
        table = self.table(config)
        if config.fused_qkv:
            table = with_fused(table)
        return filled_in(table, config, equivalent.shapes_of(config))


def _head_with_modules(ours: c.Head, read: c.Head) -> c.Head:
    """Return the head that was read, with the settings of `ours` that modules of sentence-transformers can express.

    The modules can express every vector head that does not apply its pooler: see `sentence_files.write_modules`.
    """
    if not isinstance(ours, c.VectorHead) or not isinstance(read, c.VectorHead):
        return read
    if ours.pooler in ("tanh", "relu"):
        return replace(read, max_tokens=ours.max_tokens)
    return replace(ours, pooler="none" if read.pooler == "none" else "unused")
