"""Strict reader of `config.json`: a key that is neither used nor listed as a key without effect is an error."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from glassformer.common.errors import UserError, listed, shown
from glassformer.config.transformer import TransformerConfig

T = TypeVar("T")
UNKNOWN = "is not a known key"

_SAYS_NOTHING = """
_attn_implementation_autoset architectures model_type auto_map _name_or_path _model_name_or_path name_or_path
torch_dtype dtype transformers_version
use_cache output_attentions output_hidden_states output_past return_dict return_dict_in_generate output_scores
torchscript use_bfloat16 tf_legacy_loss gradient_checkpointing chunk_size_feed_forward initializer_range init_std
initializer_factor task_specific_params finetuning_task problem_type id2label label2id num_labels
tokenizer_class prefix is_encoder_decoder pretraining_tp classifier_dropout
max_length max_new_tokens min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id forced_eos_token_id
remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
pad_token_id bos_token_id eos_token_id sep_token_id unk_token_id mask_token_id decoder_start_token_id
_num_labels is_llama_config max_sequence_length neftune_noise_alpha sbert_ce_default_activation_function
language name bos_token eos_token pad_token unk_token mask_token sep_token cls_token
sentence_transformers transformers.js_config unsloth_fixed unsloth_version
"""
SAYS_NOTHING = frozenset(_SAYS_NOTHING.split())
"""Keys that do not change the forward pass: for training, generation, versions and other programs, and the ids of
special tokens, which `importing.py` reads."""
ONLY: dict[str, tuple[Any, ...]] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (),
    "pruned_heads": ({},),
    "tie_encoder_decoder": (False,),
    "quantization_config": (),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,),
    "scale_attn_weights": (True,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
}
"""For some keys, the values that every family supports. Null is also supported."""

ACTIVATIONS: dict[str, Any] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
}
"""For each activation of transformers, the name in glassformer. (`gelu_fast`, `quick_gelu` are other
approximations.)"""
ACTIVATION_NAMES = {"relu": "relu", "gelu": "gelu", "gelu_tanh": "gelu_new", "silu": "silu", "relu2": "relu2"}


@dataclass(frozen=True)
class Setting:
    """A key of `config.json` that has the value of a field in glassformer."""

    key: str
    kind: type
    default: Any
    """Value if the key is missing. None means that the key is required."""


Settings = dict[str, Setting]
"""For each field in glassformer, the key of `config.json`, for import and export. `ACTIVATIONS` maps activations."""
Fields = dict[str, Any]
"""Fields of a `TransformerConfig` by name; `encoder.n_layers` is a field of a stack."""


@dataclass(frozen=True)
class Converter:
    """Two functions, for import and export, that convert settings without a key of the same value."""

    read: Callable[["HFConfig", Fields], Fields] = lambda hf, fields: {}
    """Function of `config.json` and the fields read so far that returns further fields; `HFConfig` records problems."""
    write: Callable[[TransformerConfig], dict[str, Any]] = lambda config: {}
    """Function of a configuration that returns further keys of `config.json`: the inverse of `read`. It accepts every
    configuration with the stacks of the family, and writes the nearest value."""


def settings(kind: type, default: Any = None, **keys: str) -> Settings:
    """Return settings of one type, with the same default. Each keyword argument is FIELD="KEY"."""
    return {name: Setting(key, kind, default) for name, key in keys.items()}


def inside(outer: str, table: Settings) -> Settings:
    """Return settings for a part of the configuration, such as `encoder`: the names of their fields get this prefix."""
    return {f"{outer}.{name}": setting for name, setting in table.items()}


STACK = settings(int, n_layers="num_hidden_layers", n_heads="num_attention_heads", d_ff="intermediate_size")
"""Usual keys of the sizes of a stack."""
SIZES = settings(int, d_model="hidden_size", vocab_size="vocab_size", max_len="max_position_embeddings")
"""Usual keys of the other sizes."""


def written(table: Settings, config: TransformerConfig) -> dict[str, Any]:
    """Return the keys of `config.json` with the values of a configuration: the inverse of `HFConfig.fields`.

    If the configuration lacks a field, such as a field of other positions, the key of the field is null.
    """
    values = {setting.key: _value(config, name) for name, setting in table.items()}
    if "activation" in table:
        values[table["activation"].key] = ACTIVATION_NAMES[config.activation]
    return values


def _value(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part, None)
    return config


class HFConfig:
    """Reader of a `config.json`, key by key; `done` raises one `UserError` that lists all problems.

    Unknown keys in `ignore` are accepted; `ignored` collects the ones that the file contains.
    """

    def __init__(
        self, table: Mapping[str, Any], where: str, tensors: Collection[str] = (), ignore: Collection[str] = ()
    ) -> None:
        self.table, self.where = dict(table), where
        self.tensors = tensors
        """Names of the weights in the folder, for settings that only the weights determine."""
        self._ignore = ignore
        self.ignored: dict[str, Any] = {}
        """Ignored keys and their values."""
        self.notes: list[str] = []
        """Messages about supported settings that change the model."""
        self._seen: set[str] = set()
        self._problems: list[str] = []

    def rename(self, old: Mapping[str, str]) -> None:
        """Read old keys under their current names; record a problem if a file has both and they differ."""
        for key, current in old.items():
            value = self.table.get(key)
            self._seen.add(key)
            if value is not None and self.table.get(current) not in (None, value):
                self.problem(f"{key} and {current} disagree")
            elif value is not None:
                self.table[current] = value

    def part(self, table: Mapping[str, Any], name: str) -> "HFConfig":
        """Return a reader of a nested table, with the same keys to ignore and the same `ignored`."""
        inner = HFConfig(table, f"{self.where}: {name}", ignore=self._ignore)
        inner.ignored = self.ignored
        return inner

    def holds(self, ending: str) -> bool:
        """Return True if the name of a weight has this ending, for settings that no key defines."""
        return any(f".{name}".endswith(f".{ending}") for name in self.tensors)

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return the value of a key, of type `kind`; a missing key or null gives the default, or an error."""
        self._seen.add(key)
        value = self.table.get(key)
        if value is None:
            if default is None:
                raise UserError(f"{self.where} has no {key}, which this model_type requires")
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise UserError(f"{self.where}: {key}: expected {kind.__name__}, got {shown(str(value))}")
        return value

    def fields(self, table: Settings) -> dict[str, Any]:
        """Return the fields of glassformer that have the values of keys."""
        plain = {name: setting for name, setting in table.items() if name != "activation"}
        values = {name: self.take(setting.key, setting.kind, setting.default) for name, setting in plain.items()}
        if "activation" in table:
            values["activation"] = self.choose(table["activation"].key, ACTIVATIONS, table["activation"].default)
        return values

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """Return the value of a key; None if it is missing or null."""
        self._seen.add(key)
        if self.table.get(key) is None:
            return None
        return self.take(key, kind)

    def choose(self, key: str, meanings: Mapping[Any, T], default: Any) -> T:
        """Return the meaning of a key's value; record a problem and return the first meaning if it is unsupported."""
        self._seen.add(key)
        value = self.table.get(key)
        if value is None:
            value = default
        if isinstance(value, (list, dict)) or value not in meanings:
            self.problem(f"{key} {shown(str(value))} is not supported (known: {', '.join(map(str, meanings))})")
            return next(iter(meanings.values()))
        return meanings[value]

    def only(self, key: str, *allowed: Any) -> None:
        """Require a key to have one of the `allowed` values, or to be missing or null."""
        self._seen.add(key)
        value = self.table.get(key)
        if value is None or value in allowed:
            return
        supported = f" (known: {', '.join(map(str, allowed))})" if allowed else ""
        self.problem(f"{key} {shown(str(value))} is not supported{supported}")

    def pass_over(self, *keys: str) -> None:
        """Mark keys that have no effect for this family."""
        self._seen.update(keys)

    def problem(self, text: str) -> None:
        """Record an unsupported setting; `done` reports all of them."""
        self._problems.append(text)

    def done(self) -> None:
        """Raise `UserError` if a key is unknown or a value is not supported."""
        if problems := self.problems():
            hint = ""
            if any(problem.endswith(UNKNOWN) for problem in problems):
                hint = "; --ignore-keys NAME ignores a key that does not affect outputs"
            what = f"{self.where} cannot be imported exactly: "
            raise UserError(what + listed(problems, beside=what + hint) + hint)

    def problems(self) -> list[str]:
        """Return all problems, including unrecognised keys."""
        for key, allowed in ONLY.items():
            if key not in self._seen:
                self.only(key, *allowed)
        known = self._seen | SAYS_NOTHING
        unknown = [key for key, value in self.table.items() if value is not None and key not in known]
        self.ignored.update((key, self.table[key]) for key in unknown if key in self._ignore)
        unknown = [key for key in unknown if key not in self._ignore]
        return self._problems + [f"{shown(key)} {UNKNOWN}" for key in unknown]
