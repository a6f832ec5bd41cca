"""Generation defaults: conversion from and to the `generation_config.json` of transformers."""

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar

from glassformer.common.errors import Log, UserError, shown
from glassformer.config.run import CONSTRAINTS, SHAPES_LOGITS, BeamConfig, GenerationConfig
from glassformer.config.schema import from_dict
from glassformer.config.transformer import TransformerConfig
from glassformer.inference.text import never_written
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.vocabulary import languages, sentinel_ids

BEAM = {"num_beams": "beam", "length_penalty": "length_penalty", "max_new_tokens": "max_new_tokens"}
STOPPING: dict[bool | str, Literal["full", "estimate", "never"]] = {
    True: "full",
    False: "estimate",
    "never": "never",
}
"""For each `early_stopping` of transformers, the value in glassformer."""
LOOKUP = "prompt_lookup_num_tokens"
"""Key of the number of tokens that are copied as a draft: `prompt_lookup` of a language model without beams."""
Made = TypeVar("Made", GenerationConfig, BeamConfig)
UNSET_MAX_LENGTH = 20
"""Default `max_length` in files of transformers: this value means that no length is set."""
_NEUTRAL_AT_0 = """
min_length min_new_tokens min_p diversity_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size epsilon_cutoff
eta_cutoff penalty_alpha renormalize_logits token_healing
"""
_NEUTRAL_AT_1 = """
num_beams num_beam_groups temperature top_p typical_p repetition_penalty length_penalty encoder_repetition_penalty
guidance_scale
"""
_NEVER_NEUTRAL = """
bad_words_ids exponential_decay_length_penalty suppress_tokens begin_suppress_tokens top_h dola_layers sequence_bias
force_words_ids constraints watermarking_config stop_strings
"""
NEUTRAL: dict[str, tuple[Any, ...]] = {"max_length": (UNSET_MAX_LENGTH,), "top_k": (-1, 0, 50)}
NEUTRAL |= dict.fromkeys((*_NEUTRAL_AT_0.split(), LOOKUP), (0,))  # 0 is False, too
NEUTRAL |= dict.fromkeys(_NEUTRAL_AT_1.split(), (1,))
NEUTRAL |= dict.fromkeys(_NEVER_NEUTRAL.split(), ())
"""For settings that can change a text or its drafts, the values without effect (or that only end a search earlier)."""

NOT_TAKEN_OVER = "not imported from the generation defaults"


def read_generation(
    defaults: Mapping[str, Any], config: TransformerConfig, tokenizer: Tokenizer, where: str, log: Log
) -> GenerationConfig | BeamConfig:
    """Convert generation defaults of transformers; `log` receives a message about each unsupported setting.

    Defaults without sampling and beams mean greedy decoding in transformers. For them, glassformer's defaults apply.
    """
    defaults = {key: value for key, value in defaults.items() if value is not None}
    further = tuple(end for end in end_tokens(defaults, where) if end != config.eos_id)
    # Settings with a counterpart, and the others
    if config.is_encoder_decoder:
        settings = _read_beam(defaults, config, where)
        others = NEUTRAL.keys() - BEAM.keys() - {"max_length", "min_length"}
    else:
        settings = _read_sampling(defaults)
        if LOOKUP in defaults and defaults.get("num_beams", 1) == 1:
            settings["prompt_lookup"] = defaults.pop(LOOKUP)
        others = NEUTRAL.keys() - settings.keys()
        if defaults.get("max_length") == config.max_len:
            others = others - {"max_length"}
    settings |= {key: defaults[key] for key in CONSTRAINTS if key in defaults}
    others = others - set(CONSTRAINTS)
    # Suppressed ids that glassformer never writes either
    never = never_written(tokenizer, config.vocab_size)
    suppressed = defaults.get("suppress_tokens")
    if isinstance(suppressed, list) and all(token in never for token in suppressed):
        del defaults["suppress_tokens"]
    if defaults.get("bad_words_ids") == [[config.pad_id]] and config.pad_id in never:
        del defaults["bad_words_ids"]
    # Messages about the others
    for key in sorted(others & defaults.keys()):
        if defaults[key] not in NEUTRAL[key]:
            log(f"{NOT_TAKEN_OVER}: {key} = {shown(str(defaults[key]))}")
    if not config.is_encoder_decoder:
        return replace(_made(GenerationConfig, settings, where), end_ids=further)
    forced, before = defaults.get("forced_bos_token_id"), list(tokenizer.frames.target.before)
    expected = [] if forced is None else [forced]
    if before != expected:
        choice = "; choose its language with --target-language" if languages(tokenizer) else ""
        first = f"with {before}" if before else "without a forced token"
        log(f"{NOT_TAKEN_OVER}: forced_bos_token_id = {forced}: glassformer starts a target {first}{choice}")
    search = {"beam": 1, "length_penalty_type": "average", "early_stopping": "never"}
    return replace(_made(BeamConfig, search | settings, where), end_ids=further)


def _read_beam(defaults: Mapping[str, Any], config: TransformerConfig, where: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"max_new_tokens": _new_tokens(defaults, config.max_len)}
    settings |= {ours: defaults[theirs] for theirs, ours in BEAM.items() if theirs in defaults}
    shortest = defaults.get("min_length", 0)  # with the start token; `min_new_tokens` replaces it
    if type(shortest) is int and shortest > 1:
        settings["min_new_tokens"] = min(shortest - 1, settings["max_new_tokens"])
    stopping = defaults.get("early_stopping", False)  # the default of transformers
    if not (isinstance(stopping, str | bool) and stopping in STOPPING):
        raise UserError(f"{where}: early_stopping: expected true, false or never, got {shown(str(stopping))}")
    if settings.get("beam", 1) != 1:
        settings["early_stopping"] = STOPPING[stopping]
    return settings


def _read_sampling(defaults: Mapping[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    if defaults.get("do_sample") is True:
        settings = {"top_k": 50}  # the default of transformers
        settings |= {key: defaults[key] for key in ("max_new_tokens", *SHAPES_LOGITS) if key in defaults}
        if settings["top_k"] == -1:  # "no limit" of other programs, such as vLLM
            settings["top_k"] = 0
    return settings


def end_tokens(table: Mapping[str, Any], where: str) -> list[int]:
    """Return the ids of `eos_token_id`, which may be one id, a list or null."""
    value = table.get("eos_token_id")
    if value is None:
        return []
    ends = value if isinstance(value, list) else [value]
    if any(type(end) is not int for end in ends):
        raise UserError(f"{where}: eos_token_id: expected an integer or a list of them, got {shown(str(value))}")
    return list(dict.fromkeys(ends))


def _new_tokens(defaults: Mapping[str, Any], max_len: int) -> int:
    """Return the maximum length of a target: `max_length` without the start token, or by default 256 tokens."""
    longest = defaults.get("max_length", UNSET_MAX_LENGTH)
    if type(longest) is not int or longest == UNSET_MAX_LENGTH or longest < 2:
        return min(256, max_len)
    return min(longest - 1, max_len)


def _made(kind: type[Made], settings: Mapping[str, Any], where: str) -> Made:
    """Return an object of type `kind` with the settings; raise `UserError` with the file's name for a wrong value."""
    try:
        return from_dict(kind, _numbers(settings), where)
    except UserError as error:
        raise UserError(str(error) if where in str(error) else f"{where}: {error}") from None


def _numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert integers to floats for the settings that are floats in glassformer."""
    floats = {field.name for field in (*fields(GenerationConfig), *fields(BeamConfig)) if field.type is float}
    return {**settings, **{key: float(settings[key]) for key in floats if type(settings.get(key)) is int}}


def write_generation(
    config: TransformerConfig, generation: GenerationConfig | BeamConfig, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the contents of `generation_config.json`.

    The length of an encoder-decoder is written as `max_length`: `max_new_tokens` and the start token, at most the
    context. A `max_new_tokens` in the file would override the `max_length` of a caller, and generate beyond the
    context. A decoder has no length in the file, because transformers would warn at every `max_new_tokens` of a call.

    The shortest length is written as `min_length`, which counts the start token, or as `min_new_tokens` for a decoder.
    A coverage penalty has no counterpart and is left out.

    The beam search of transformers equals glassformer's if both have the same rule of `early_stopping` and divide by
    length^penalty. Otherwise, the nearest is written: "never" for "shrink", the penalty 1 for Wu's (`gnmt`).
    """
    settings: dict[str, Any] = {key: value for key, value in token_ids(config).items() if value is not None}
    if generation.end_ids:
        settings["eos_token_id"] = [end for end in (config.eos_id, *generation.end_ids) if end is not None]
    if isinstance(generation, BeamConfig):
        return settings | _written_beam(config, generation, tokenizer)
    settings |= _written_constraints(generation)
    settings |= _never(config, tokenizer, generation.end_ids)
    if generation.temperature == 0:
        return settings | {"do_sample": False}
    return settings | {"do_sample": True} | {key: getattr(generation, key) for key in SHAPES_LOGITS}


def _written_constraints(generation: GenerationConfig | BeamConfig) -> dict[str, Any]:
    off = type(generation)()
    values = {key: getattr(generation, key) for key in CONSTRAINTS}
    return {key: value for key, value in values.items() if value != getattr(off, key)}


def _written_beam(config: TransformerConfig, generation: BeamConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    before = tokenizer.frames.target.before
    of_languages = [tokenizer.vocab[token] for token in languages(tokenizer)]  # a caller may force another language
    written = {*before, *of_languages, *sentinel_ids(tokenizer), *generation.end_ids}  # T5 fills spans with sentinels
    settings = _never(config, tokenizer, written)
    settings |= _written_constraints(generation)
    if shortest := settings.pop("min_new_tokens", 0):
        settings["min_length"] = shortest + 1
    settings |= {"num_beams": generation.beam, "max_length": min(generation.max_new_tokens + 1, config.max_len)}
    if len(before) == 1:  # BART's `<s>`
        settings["forced_bos_token_id"] = before[0]
    if generation.beam > 1:  # without beams, transformers warns about both
        names: dict[str, bool | str] = {ours: theirs for theirs, ours in STOPPING.items()}
        settings["early_stopping"] = names.get(generation.early_stopping, "never")
        settings["length_penalty"] = 1.0
        if generation.length_penalty_type == "average":
            settings["length_penalty"] = generation.length_penalty
    return settings


def token_ids(config: TransformerConfig) -> dict[str, int | None]:
    """Return the ids of special tokens by their keys in `config.json`."""
    names = ["pad", "bos", "eos"]
    if config.is_encoder_decoder:
        names.append("decoder_start")
    return {f"{name}_token_id": getattr(config, f"{name}_id") for name in names}


def _never(config: TransformerConfig, tokenizer: Tokenizer, written: Collection[int] = ()) -> dict[str, Any]:
    """Return the suppressed ids: tokens without text, except the end token and those in `written`."""
    if never := never_written(tokenizer, config.vocab_size, but=[*written, config.eos_id]):
        return {"suppress_tokens": never}
    return {}
