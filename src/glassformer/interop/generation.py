"""Generation defaults: conversion from and to the `generation_config.json` of transformers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Literal

from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.config.schema import from_dict
from glassformer.config.transformer import TransformerConfig
from glassformer.errors import Log, UserError, shown
from glassformer.inference.text import never_written
from glassformer.tokenization.tokenizer import Tokenizer, sentinel_ids

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Sampling settings with the same name and meaning in transformers and glassformer."""
BEAM = {"num_beams": "beam", "length_penalty": "length_penalty", "max_new_tokens": "max_new_tokens"}
STOPPING: dict[bool | str, Literal["full", "estimate", "never"]] = {
    True: "full",
    False: "estimate",
    "never": "never",
}
"""`early_stopping` of transformers → glassformer."""
LOOKUP = "prompt_lookup_num_tokens"
"""Number of tokens that are copied as a draft; glassformer's `prompt_lookup`, for a model that continues texts."""
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
NEUTRAL: dict[str, tuple[Any, ...]] = {"max_length": (UNSET_MAX_LENGTH,), "top_k": (0, 50)}
NEUTRAL |= dict.fromkeys((*_NEUTRAL_AT_0.split(), LOOKUP), (0,))  # 0 is False, too
NEUTRAL |= dict.fromkeys(_NEUTRAL_AT_1.split(), (1,))
NEUTRAL |= dict.fromkeys(_NEVER_NEUTRAL.split(), ())
"""Settings that change a generated text, or its drafts → values without effect (or that only end a search earlier)."""

NOT_TAKEN_OVER = "not imported from the generation defaults"


def read_generation(
    said: Mapping[str, Any], config: TransformerConfig, tokenizer: Tokenizer, where: str, log: Log
) -> GenerationConfig | BeamConfig:
    """Convert generation defaults of transformers; `log` receives a message about each unsupported setting.

    If they set neither sampling nor beams, which means greedy in transformers, the defaults of glassformer apply.
    """
    said = {key: value for key, value in said.items() if value is not None}
    further = tuple(end for end in end_tokens(said, where) if end != config.eos_id)
    found: dict[str, Any] = {}
    if config.is_encoder_decoder:
        found = {ours: said[theirs] for theirs, ours in BEAM.items() if theirs in said}
        found = {"max_new_tokens": _new_tokens(said, config.max_len)} | found
        left = NEUTRAL.keys() - BEAM.keys() - {"max_length"}
        stopping = said.get("early_stopping", False)  # the default of transformers
        if not (isinstance(stopping, str | bool) and stopping in STOPPING):
            raise UserError(f"{where}: early_stopping: expected true, false or never, got {shown(str(stopping))}")
        if found.get("beam", 1) != 1:
            found["early_stopping"] = STOPPING[stopping]
    else:
        if said.get("do_sample") is True:
            found = {"top_k": 50}  # the default of transformers
            found |= {key: said[key] for key in ("max_new_tokens", *SAMPLING) if key in said}
        found |= {"prompt_lookup": said[LOOKUP]} if LOOKUP in said else {}
        left = NEUTRAL.keys() - found.keys() - {LOOKUP}
        left -= {"max_length"} if said.get("max_length") == config.max_len else set()
    never = never_written(tokenizer, config.vocab_size)
    suppressed = said.get("suppress_tokens")
    if isinstance(suppressed, list) and all(token in never for token in suppressed):
        del said["suppress_tokens"]
    if said.get("bad_words_ids") == [[config.pad_id]] and config.pad_id in never:
        del said["bad_words_ids"]
    for key in sorted(left & said.keys()):
        if said[key] not in NEUTRAL[key]:
            log(f"{NOT_TAKEN_OVER}: {key} = {shown(str(said[key]))}")
    if config.is_encoder_decoder:
        forced, before = said.get("forced_bos_token_id"), list(tokenizer.frames.target.before)
        if before != ([] if forced is None else [forced]):
            first = f"with {before}" if before else "without a forced token"
            log(f"{NOT_TAKEN_OVER}: forced_bos_token_id = {forced}: glassformer starts a target {first}")
        search = {"beam": 1, "length_penalty_type": "average", "early_stopping": "never"}
        return replace(from_dict(BeamConfig, search | _numbers(found), where), end_ids=further)
    return replace(from_dict(GenerationConfig, _numbers(found), where), end_ids=further)


def end_tokens(said: Mapping[str, Any], where: str) -> list[int]:
    """Return the ids of `eos_token_id`, which may be one id, a list or null."""
    given = said.get("eos_token_id")
    ends = given if isinstance(given, list) else [] if given is None else [given]
    if any(type(end) is not int for end in ends):
        raise UserError(f"{where}: eos_token_id: expected an integer or a list of them, got {shown(str(given))}")
    return list(dict.fromkeys(ends))


def _new_tokens(said: Mapping[str, Any], max_len: int) -> int:
    """Return the maximum length of a target: `max_length` without the start token, or by default 256 tokens."""
    longest = said.get("max_length", UNSET_MAX_LENGTH)
    if type(longest) is not int or longest == UNSET_MAX_LENGTH or longest < 2:
        return min(256, max_len)
    return min(longest - 1, max_len)


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    """Convert integers to floats for the settings that are floats in glassformer."""
    floats = ("temperature", "top_p", "min_p", "repetition_penalty", "length_penalty")
    return {key: float(value) if key in floats and type(value) is int else value for key, value in found.items()}


def write_generation(
    config: TransformerConfig, generation: GenerationConfig | BeamConfig, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return the contents of `generation_config.json`.

    The length of an encoder-decoder is written as `max_length`: the start token and `max_new_tokens`, within the
    context. A `max_new_tokens` in the file would override the `max_length` of a caller, and generate beyond the
    context. A decoder has no length in the file, because transformers would warn at every `max_new_tokens` of a call.

    The beam search of transformers equals glassformer's, with the same rule of `early_stopping` and division by
    length^penalty. "shrink" is written as "never", and Wu's penalty (`gnmt`) as the penalty 1: the nearest ones.
    """
    found: dict[str, Any] = {key: value for key, value in token_ids(config).items() if value is not None}
    if generation.end_ids:
        found["eos_token_id"] = [end for end in (config.eos_id, *generation.end_ids) if end is not None]
    if isinstance(generation, BeamConfig):
        penalty = generation.length_penalty if generation.length_penalty_type == "average" else 1.0
        found |= {"num_beams": generation.beam, "max_length": min(generation.max_new_tokens + 1, config.max_len)}
        before = tokenizer.frames.target.before
        found |= {"forced_bos_token_id": before[0]} if len(before) == 1 else {}  # BART's `<s>`
        written = {*before, *sentinel_ids(tokenizer), *generation.end_ids}  # T5 fills spans with sentinels
        found |= _never(config, tokenizer, written)
        if generation.beam > 1:  # without beams, transformers warns about both
            names: dict[str, bool | str] = {ours: theirs for theirs, ours in STOPPING.items()}
            found |= {"length_penalty": penalty, "early_stopping": names.get(generation.early_stopping, "never")}
        return found
    found |= _never(config, tokenizer, generation.end_ids)
    if generation.temperature == 0:
        return found | {"do_sample": False}
    return found | {"do_sample": True} | {key: getattr(generation, key) for key in SAMPLING}


def token_ids(config: TransformerConfig) -> dict[str, int | None]:
    """Return the ids of special tokens by their keys in `config.json`."""
    names = ("pad", "bos", "eos", *(["decoder_start"] if config.is_encoder_decoder else []))
    return {f"{name}_token_id": getattr(config, f"{name}_id") for name in names}


def _never(config: TransformerConfig, tokenizer: Tokenizer, written: Collection[int] = ()) -> dict[str, Any]:
    """Return the suppressed ids: tokens without text, except the end token and those in `written`."""
    never = never_written(tokenizer, config.vocab_size, but=[*written, config.eos_id])
    return {"suppress_tokens": never} if never else {}
