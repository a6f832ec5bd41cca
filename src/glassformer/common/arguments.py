"""Arguments of public functions: checks with one clear sentence, and the names that other libraries give arguments."""

import functools
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from glassformer.common.errors import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])


def one_of(name: str, value: Any, names: Collection[str]) -> Any:
    """Return a name that is in `names`; raise `ValueError` for another value.

    >>> one_of("pooling", "mean", ("first", "mean"))
    'mean'
    """
    if not (isinstance(value, str) and value in names):
        raise ValueError(f"{name}: expected one of {', '.join(names)}, got {value!r:.60}")
    return value


def number(name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, whole: bool = False) -> Any:
    """Return a number between `low` and `high`; raise `TypeError` for another type, `ValueError` for another number.

    >>> number("dropout", 0.5, 0, 1)
    0.5
    """
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise TypeError(f"{name}: expected {'a whole number' if whole else 'a number'}, got {value!r:.60}")
    if not low <= value <= high:
        raise ValueError(f"{name}: expected a number from {low} to {high}, got {value}")
    return value


def function(name: str, value: Any) -> Any:
    """Return a function; raise `TypeError` for another type.

    >>> function("qk_norm", abs)(-1)
    1
    """
    if not callable(value):
        raise TypeError(f"{name}: expected a function, got {value!r:.60}")
    return value


# Names of other libraries

OTHER_NAMES = {
    "d_model": "embed_dim hidden_size dim n_embd embed_size model_dim d emb_dim embedding_dim hidden_dim input_dim "
    "in_size out_size features width",
    "d_embedding": "emb_dim embedding_dim embedding_size embed_size",
    "d_decoder": "dec_hid_dim hidden_size hidden_dim hid_dim units",
    "d_encoder": "enc_hid_dim",
    "n_heads": "num_heads nhead heads n_head num_attention_heads head_count h",
    "n_kv_heads": "num_kv_heads num_key_value_heads kv_heads",
    "n_layers": "num_layers N n_layer depth num_hidden_layers n_blocks num_blocks layers",
    "d_ff": "dim_feedforward d_inner intermediate_size ff_dim d_hidden mlp_dim ffn_dim hidden_dim ff_size",
    "width": "normalized_shape features hidden_size dim d_model emb_dim",
    "max_len": "max_seq_len seq_len block_size max_length context_length n_ctx n_positions max_position_embeddings "
    "input_length max_tokens",
    "vocab_size": "n_vocab num_embeddings vocabulary_size num_tokens n_tokens tgt_vocab_size trg_vocab_size output_dim",
    "dropout": "dropout_p p drop dropout_rate drop_rate",
    "activation": "act activation_function nonlinearity hidden_act",
    "merges": "num_merges n_merges",
    "token_ids": "input_ids idx ids inputs tgt tgt_ids decoder_input_ids target_ids x",
    "source_ids": "src src_ids encoder_input_ids input_ids source",
    "attention_mask": "mask tgt_mask decoder_attention_mask",
    "source_attention_mask": "src_mask source_mask encoder_attention_mask attention_mask",
    "target_attention_mask": "tgt_mask decoder_attention_mask",
    "mask": "attn_mask attention_mask input_mask",
    "x": "query q hidden_states inputs",
    "values": "value v",
    "positions": "position_ids max_len seq_len n_positions",
    "token_types": "token_type_ids segment_ids",
    "weight": "gamma",
    "bias": "beta",
    "n": "size sz T seq_len",
    "causal": "is_causal",
    "memory": "encoder_output encoder_hidden_states context enc encoder_outputs key k",
    "query": "q dec decoder_state hidden",
    "key": "k keys",
    "value": "v values",
    "need_weights": "return_attention return_weights output_attentions need_attention return_attn",
    "d_attention": "hid_size attention_dim attn_dim hidden_size",
    "d_query": "dec_size decoder_dim dec_hid_dim query_dim query_size",
    "d_memory": "enc_size encoder_dim enc_hid_dim key_dim key_size kdim",
    "n_labels": "num_labels num_classes n_classes",
    "source_vocab_size": "src_vocab_size",
    "target_vocab_size": "tgt_vocab_size trg_vocab_size",
    "source_max_len": "src_seq_len src_max_len",
    "target_max_len": "tgt_seq_len tgt_max_len",
    "eps": "epsilon layer_norm_eps norm_eps",
    "temperature": "temp",
}
"""The name of an argument here, and the names that other libraries and teaching notebooks give to it."""


def names_here(name: str) -> list[str]:
    """Return the arguments here that have this name in another library.

    >>> names_here("dim_feedforward"), names_here("no_such_name")
    (['d_ff'], [])
    """
    return [here for here, others in OTHER_NAMES.items() if name in others.split()]


ADVICE = {
    "batch_first": "leave it out, because the first axis is always the batch",
    "padding_mask": "use attention_mask, where True = a real token: ~padding_mask, if True = padding there",
    "key_padding_mask": "use mask=~key_padding_mask, because True = may attend here",
    "src_key_padding_mask": "give the opposite, ~mask, as attention_mask, or as source_attention_mask beside a target",
    "tgt_key_padding_mask": "use attention_mask=~tgt_key_padding_mask, because True = a real token here",
    "memory_key_padding_mask": "use source_attention_mask=~memory_key_padding_mask, because True = a real token here",
    "n_kv_heads": "use sizes=HeadSizes(n_kv_heads=…)",
    "num_kv_heads": "use sizes=HeadSizes(n_kv_heads=…)",
    "kdim": "use projections=Projections(d_memory=…)",
    "bias": "use projections=Projections(qkv_bias=…, out_bias=…)",
    "norm_first": 'norm_first=True is norm_order="pre", and False is "post"',
    "elementwise_affine": "elementwise_affine=False is weight=False",
    "add_special_tokens": "tokenizer.frames.text.around(ids) puts the special tokens around a text",
    "padding": "leave it out, because rows of unequal length are padded",
    "truncation": "leave it out, because max_len cuts",
    "return_tensors": "torch.from_numpy(ids) is a tensor of the ids",
    "targets": "a network returns logits: loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())",
    "max_len": "leave it out, because this layer reads any length",
    "seq_len": "leave it out, because this layer reads any length",
    "labels": "a network returns logits: loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())",
}
"""Advice for an argument of another library that has no equal here."""

WITHOUT_EFFECT = {"batch_first": (True,), "truncation": (True,), "padding": (True, "max_length", "longest")}
"""Values of arguments of other libraries that ask for what is always so here."""


def renamed(owner: str, named: Mapping[str, Any], parameters: Iterable[str]) -> dict[str, Any]:
    """Return arguments by the names of `parameters`, where an argument may have its name in another library.

    Raises `TypeError` for a name that has no equal, and for an argument that is given twice.

    >>> renamed("Layer", {"embed_dim": 8, "num_heads": 2}, ["d_model", "n_heads"])
    {'d_model': 8, 'n_heads': 2}
    """
    parameters = [*parameters]
    named = {k: v for k, v in named.items() if k in parameters or v not in WITHOUT_EFFECT.get(k, ())}
    if "decoder_input_ids" in named and "attention_mask" in named:  # in transformers, this is the mask of the source
        named["source_attention_mask"] = named.pop("attention_mask")
    found = {name: value for name, value in named.items() if name in parameters}
    meanings = {name: [here for here in names_here(name) if here in parameters] for name in named if name not in found}
    for name in sorted(meanings, key=lambda name: len(meanings[name])):  # the names of one meaning first
        if not meanings[name]:
            advice = ADVICE.get(name) or did_you_mean(name, parameters, "the arguments are")
            raise TypeError(f"{owner} has no argument {name!r}: {advice}")
        if free := [here for here in meanings[name] if here not in found]:
            found[free[0]] = named[name]
            continue
        both = found[meanings[name][0]], named[name]
        are_simple = all(isinstance(value, int | float | str) for value in both)  # others, as tensors, are not compared
        if both[0] is not both[1] and not (are_simple and both[0] == both[1]):
            raise TypeError(f"{owner}: {meanings[name][0]} is given twice, the second time as {name}")
    return found


def takes_other_names(function: F, also: Iterable[str] = ()) -> F:
    """Let a function take its arguments by the names of other libraries, too (`OTHER_NAMES`).

    `also` has names that the function takes in a dictionary.

    >>> @takes_other_names
    ... def area(d_model: int, n_heads: int) -> int:
    ...     return d_model * n_heads
    >>> area(d_model=8, num_heads=2)
    16
    """
    signature = inspect.signature(function).parameters
    by_position = [name for name, one in signature.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    skipped = ("self", "cls")
    parameters = [name for name, one in signature.items() if name not in skipped and one.kind is not one.VAR_KEYWORD]
    parameters = [*dict.fromkeys([*parameters, *also])]
    owner = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if len(args) > len(by_position):
            first = ", ".join(by_position).removeprefix("self, ").removeprefix("cls, ")
            rest = ", ".join(name for name in parameters if name not in by_position)
            raise TypeError(f"{owner}: only {first} are given by position; give others by name: {rest}")
        if any(name not in parameters for name in named):
            given = by_position[: len(args)]
            named = renamed(owner, named, [name for name in parameters if name not in given])
        return function(*args, **named)

    return call  # type: ignore[return-value]
