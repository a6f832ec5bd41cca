"""Generation defaults from and to transformers; settings without counterpart are reported."""

import json
from dataclasses import replace
from typing import Any

import pytest

from configs import GPT, PAPER
from glassformer.apps.interop.generation import read_generation, write_generation
from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.tokenization.tokenizer import Tokenizer

TOKENIZER = Tokenizer.train(["to be"], vocab_size=0, scheme="char")
SPECIAL = {"pad_id": 0, "bos_id": 2, "eos_id": 3}


def read(settings: dict[str, Any], config: Any = GPT) -> tuple[Any, list[str]]:
    messages: list[str] = []
    return read_generation(settings, config, TOKENIZER, "generation_config.json", messages.append), messages


def test_sampling_is_imported() -> None:
    settings = {"do_sample": True, "temperature": 1, "top_p": 0.9, "top_k": 40, "max_new_tokens": 33}
    found, messages = read(settings)
    assert found == GenerationConfig(max_new_tokens=33, temperature=1.0, top_p=0.9, top_k=40)
    assert messages == []


@pytest.mark.parametrize("settings", [{}, {"do_sample": True}])
def test_a_top_k_of_minus_one_means_no_limit(settings: dict[str, Any]) -> None:
    found, messages = read(settings | {"top_k": -1})
    assert found.top_k == 0 and messages == []
    with pytest.raises(UserError, match=r"^generation_config\.json.*top_k"):
        read({"do_sample": True, "top_k": -2})


@pytest.mark.parametrize("settings", [{}, {"do_sample": True}])
def test_prompt_lookup_is_imported_for_a_decoder(settings: dict[str, Any]) -> None:
    found, messages = read(settings | {"prompt_lookup_num_tokens": 7})
    assert found.prompt_lookup == 7 and messages == []


def test_prompt_lookup_is_not_imported_for_an_encoder_decoder() -> None:
    found, messages = read({"prompt_lookup_num_tokens": 7}, PAPER)
    assert found.beam == 1
    assert messages == ["not imported from the generation defaults: prompt_lookup_num_tokens = 7"]


def test_missing_top_k_means_50() -> None:
    """transformers omits its own defaults from the file: Llama 3's file has only these keys."""
    found, _ = read({"do_sample": True, "temperature": 0.6, "top_p": 0.9})
    assert found == GenerationConfig(temperature=0.6, top_p=0.9, top_k=50)
    transformers = pytest.importorskip("transformers")
    assert transformers.GenerationConfig._get_default_generation_params()["top_k"] == 50


def test_settings_without_sampling_give_the_defaults() -> None:
    assert read({"max_length": 20, "bos_token_id": 3, "_from_model_config": True}) == (GenerationConfig(), [])


def test_settings_without_counterpart_are_reported() -> None:
    settings = {
        "do_sample": True,
        "encoder_no_repeat_ngram_size": 3,
        "typical_p": 0.5,
        "min_length": 0,
        "suppress_tokens": None,
    }
    _, messages = read(settings)
    assert [line.split(": ")[1] for line in messages] == ["encoder_no_repeat_ngram_size = 3", "typical_p = 0.5"]
    settings = {
        "renormalize_logits": True,
        "sequence_bias": [[[5], -9.0]],
        "guidance_scale": 1.0,
        "forced_bos_token_id": 7,
    }
    _, messages = read(settings, PAPER)
    assert [line.split(": ")[1].split(" =")[0] for line in messages] == [
        "renormalize_logits",
        "sequence_bias",
        "forced_bos_token_id",
    ]


@pytest.mark.parametrize("value", [5, [[1]], "all"])
def test_invalid_token_lists_are_reported(value: Any) -> None:
    _, messages = read({"suppress_tokens": value}, PAPER)
    assert "suppress_tokens" in messages[0]


def test_beam_search_is_imported() -> None:
    settings = {"num_beams": 5, "length_penalty": 2, "max_new_tokens": 20, "early_stopping": "never"}
    found, messages = read(settings, PAPER)
    assert found == BeamConfig(5, 2.0, "average", "never", max_new_tokens=20)
    assert messages == []


@pytest.mark.parametrize(
    ("stopping", "expected"), [(None, "estimate"), (False, "estimate"), (True, "full"), ("never", "never")]
)
def test_the_stopping_rule_survives_import_and_export(stopping: Any, expected: str) -> None:
    """Without the key, transformers stops by a heuristic (False)."""
    found, messages = read({"num_beams": 4, "early_stopping": stopping}, PAPER)
    assert (found.early_stopping, messages) == (expected, [])
    assert write_generation(PAPER, found, TOKENIZER)["early_stopping"] == (stopping or False)
    for without_beams in ({"num_beams": 1}, {}):
        found, messages = read(without_beams | {"early_stopping": stopping}, PAPER)
        assert (found.beam, messages) == (1, [])


@pytest.mark.parametrize("stopping", ["always", 3, [True]])
def test_an_unknown_stopping_rule_is_refused(stopping: Any) -> None:
    with pytest.raises(UserError, match=r"generation_config.json: early_stopping: expected true, false or never, got"):
        read({"num_beams": 4, "early_stopping": stopping}, PAPER)


@pytest.mark.parametrize(
    "generation",
    [
        GenerationConfig(),
        GenerationConfig(temperature=0.7, top_k=5, top_p=0.8, min_p=0.1, repetition_penalty=1.5),
        GenerationConfig(end_ids=(7, 1)),
        GenerationConfig(no_repeat_ngram_size=3, min_new_tokens=4),
    ],
)
def test_sampling_survives_export_and_import(generation: GenerationConfig) -> None:
    written = json.loads(json.dumps(write_generation(replace(GPT, **SPECIAL), generation, TOKENIZER)))  # type: ignore[arg-type]
    ends = [3, *generation.end_ids]
    assert (written["pad_token_id"], written["bos_token_id"]) == (0, 2)
    assert written["eos_token_id"] == (ends if generation.end_ids else 3)
    assert set(written["suppress_tokens"]).isdisjoint(ends)
    assert read(written, replace(GPT, **SPECIAL)) == (generation, [])  # type: ignore[arg-type]


RULES = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 5}


@pytest.mark.parametrize("how", [{}, {"do_sample": False}, {"do_sample": True, "top_k": 0}])
def test_rules_are_imported_with_and_without_sampling(how: dict[str, Any]) -> None:
    assert read(how | RULES) == (GenerationConfig(**RULES), [])  # type: ignore[arg-type]
    found, messages = read({"min_length": 5})
    assert found == GenerationConfig() and "min_length = 5" in messages[0]  # it counts the prompt


def test_rules_of_greedy_texts_and_of_beams_survive_export_and_import() -> None:
    greedy = write_generation(GPT, GenerationConfig(temperature=0.0, **RULES), TOKENIZER)  # type: ignore[arg-type]
    assert RULES.items() <= greedy.items() and not greedy["do_sample"]
    for beam in (1, 4):
        config = BeamConfig(beam, 1.0, "average", "never", max_new_tokens=20, **RULES)  # type: ignore[arg-type]
        written = write_generation(PAPER, config, TOKENIZER)
        assert written["min_length"] == 6 and "min_new_tokens" not in written  # with the start token
        assert read(written, PAPER) == (config, [])


def test_the_shortest_length_of_bart_is_imported() -> None:
    """BART for summaries sets these; `min_new_tokens` replaces `min_length`, as in transformers."""
    settings = {"num_beams": 4, "min_length": 11, "no_repeat_ngram_size": 3, "early_stopping": True}
    found, messages = read(settings, PAPER)
    assert (found.min_new_tokens, found.no_repeat_ngram_size, messages) == (10, 3, [])
    assert read(settings | {"min_new_tokens": 4}, PAPER)[0].min_new_tokens == 4
    assert read(settings | {"min_length": 99}, PAPER)[0].min_new_tokens == found.max_new_tokens


@pytest.mark.parametrize("value", ["3", 2.5, -1])
def test_a_wrong_rule_is_refused(value: Any) -> None:
    for config in (GPT, PAPER):
        with pytest.raises(UserError, match="no_repeat_ngram_size"):
            read({"no_repeat_ngram_size": value}, config)


def test_no_length_of_a_decoder_is_exported() -> None:
    """A `max_new_tokens` in the file would override the `max_length` of a caller; beside a `max_length`, transformers
    warns about the `max_new_tokens` of a caller."""
    written = write_generation(GPT, GenerationConfig(max_new_tokens=9), TOKENIZER)
    assert written.keys().isdisjoint({"max_length", "max_new_tokens"})
    assert read({"max_length": GPT.max_len - 1})[1] == [
        f"not imported from the generation defaults: max_length = {GPT.max_len - 1}"
    ]


@pytest.mark.parametrize(("max_new_tokens", "expected"), [(5, 5), (22, 22), (23, 23), (24, 23), (300, 23)])
def test_the_length_of_a_target_survives_export_and_import(max_new_tokens: int, expected: int) -> None:
    """The length of transformers counts the start token and is at most the context."""
    written = write_generation(PAPER, BeamConfig(1, max_new_tokens=max_new_tokens), TOKENIZER)
    assert PAPER.max_len == 24 and written["max_length"] == expected + 1
    if written["max_length"] != 20:
        assert read(written, PAPER)[0].max_new_tokens == expected


@pytest.mark.parametrize(("settings", "expected"), [({}, 24), ({"max_length": 20}, 24), ({"max_length": 512}, 24)])
def test_a_missing_or_too_large_length_is_the_context(settings: dict[str, Any], expected: int) -> None:
    """transformers once wrote `max_length` 20 into every file."""
    assert read(settings, PAPER)[0].max_new_tokens == expected


def test_greedy_is_exported_as_greedy() -> None:
    written = write_generation(GPT, GenerationConfig(temperature=0.0), TOKENIZER)
    special = [TOKENIZER.vocab[token] for token in TOKENIZER.special_tokens if token != "[EOS]"]
    suppress_ids = [*special, *range(TOKENIZER.vocab_size, GPT.vocab_size)]
    assert written == {"do_sample": False, "suppress_tokens": suppress_ids}


def test_beam_search_survives_export_and_import() -> None:
    beam = BeamConfig(4, 0.6, "average", "never", max_new_tokens=20, end_ids=(8,))
    written = write_generation(PAPER, beam, TOKENIZER)
    assert written["early_stopping"] == "never"
    assert read(written, PAPER) == (beam, [])
    beam = replace(beam, end_ids=())
    special = [TOKENIZER.vocab[token] for token in TOKENIZER.special_tokens if token != "[EOS]"]
    assert written["suppress_tokens"] == [*special, *range(TOKENIZER.vocab_size, PAPER.vocab_size)], (
        "these ids must be suppressed"
    )
    _, messages = read({"suppress_tokens": [TOKENIZER.vocab["b"]], "bad_words_ids": [[0]]}, PAPER)
    assert len(messages) == 2 and "suppress_tokens" in messages[1], (
        "suppressed letters and an unknown padding id are reported"
    )
    assert read({"bad_words_ids": [[0]]}, replace(PAPER, pad_id=0))[1] == []


def test_transformers_reads_the_export_without_a_warning() -> None:
    transformers = pytest.importorskip("transformers")
    for config, generation in (
        (GPT, GenerationConfig()),
        (GPT, GenerationConfig(temperature=0.0)),
        (PAPER, BeamConfig(beam=1)),
        (PAPER, BeamConfig(beam=4)),
    ):
        transformers.GenerationConfig(**write_generation(config, generation, TOKENIZER)).validate(strict=True)


def test_all_special_tokens_but_sentinels_and_end_are_suppressed() -> None:
    special = ("[PAD]", "[BOS]", "[EOS]", "[MASK]", "[SPAN_0]", "[SPAN_1]")
    tokenizer = Tokenizer.train(["ab"], vocab_size=0, special_tokens=special)
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "mask_id": 3, "decoder_start_id": 1}
    config = replace(PAPER, vocab_size=tokenizer.vocab_size, **ids)
    assert write_generation(config, BeamConfig(1), tokenizer)["suppress_tokens"] == [0, 1, 3]


def test_only_an_encoder_decoder_exports_a_decoder_start() -> None:
    written = write_generation(replace(GPT, decoder_start_id=1), GenerationConfig(), TOKENIZER)
    assert "decoder_start_token_id" not in written
    assert write_generation(replace(PAPER, decoder_start_id=1), BeamConfig(1), TOKENIZER)["decoder_start_token_id"] == 1
