"""Beams of a language model in Python and on the command line: texts, scores, and one sentence for wrong uses."""

import json
from typing import Any

import pytest

from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.inference.continuations import beam_settings
from glassformer.inference.search import length_penalty
from glassformer.model import Model
from glassformer.tasks.reporting import Outcome
from tolerances import NETWORK, near

from .conftest import Glassformer
from .test_bad_input import require_one_sentence

PROMPTS = ["abc d", "é日", "a"]
FEW: dict[str, Any] = {"beam": 3, "max_new_tokens": 6}


@pytest.fixture
def model(trained: Outcome) -> Model:
    return api.load(trained.folder, device="cpu")


def test_scores_of_continuations_are_those_of_score(model: Model) -> None:
    """log p of the ids of a result is that of teacher forcing, and the best comes first."""
    for prompt, found in zip(PROMPTS, model.continuations(PROMPTS, n=3, **FEW), strict=True):
        ids = [model.prompt_ids(prompt) + one.hypothesis.ids for one in found]
        assert len(found) == 3 and len({tuple(row) for row in ids}) == 3
        for one in found:
            log_prob = model.score(prompt, one.text).log_prob if model.tokenizer.encode(one.text) else 0.0
            if model.tokenizer.encode(one.text) == one.hypothesis.ids:
                assert one.hypothesis.log_prob == near(log_prob, terms=NETWORK)
            penalty = length_penalty(len(one.hypothesis.ids), BeamConfig())
            assert one.hypothesis.score == pytest.approx(one.hypothesis.log_prob / penalty)
        scores = [one.hypothesis.score for one in found if one.hypothesis.ended]
        assert scores == sorted(scores, reverse=True)


def test_a_batch_of_beams_equals_each_prompt_alone(model: Model) -> None:
    for settings in (FEW, FEW | {"no_repeat_ngram_size": 2, "min_new_tokens": 3, "early_stopping": "never"}):
        texts = model.generate(PROMPTS, n=2, **settings)
        assert texts == [model.generate(prompt, n=2, **settings) for prompt in PROMPTS]
        assert texts == model.generate(PROMPTS, n=2, batch_size=1, **settings)
        assert [best for best, _ in texts] == model.generate(PROMPTS, **settings)
    greedy = model.generate(PROMPTS, temperature=0.0, max_new_tokens=6)
    assert model.generate(PROMPTS, beam=1, max_new_tokens=6) == greedy


def test_a_text_of_a_beam_ends_before_a_stop_text(model: Model) -> None:
    (whole,) = model.continuations("abc d", **FEW)
    stop = whole.text[2:4]
    assert model.generate("abc d", stop=stop, **FEW) == whole.text[: whole.text.index(stop)]


def test_beams_have_the_settings_of_the_model() -> None:
    defaults = GenerationConfig(7, no_repeat_ngram_size=2, end_ids=(4,), repetition_penalty=1.5, prompt_lookup=3)
    _, config = beam_settings(defaults, {"beam": 2, "repetition_penalty": 2.0})
    expected = BeamConfig(2, max_new_tokens=7, no_repeat_ngram_size=2, end_ids=(4,), repetition_penalty=2.0)
    assert config == expected


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"temperature": 0.5}, "temperature is for samples, and beam asks for a search: leave one out"),
        ({"seed": 1}, "seed is for samples"),
        ({"sample": 1}, "sample is for samples"),
        ({"slide": True}, "slide is for samples"),
        ({"prompt_lookup": 2}, "prompt_lookup is for samples"),
        ({"draft": None}, "draft is for samples"),
        ({"n": 4}, "n_best is 4 and must be from 1 to the beam, 3"),
        ({"n": 0}, "n is 0 and must be at least 1"),
        ({"beam": 0}, "beam"),
        ({"beams": 3}, "has no field beams: did you mean beam"),
        ({"coverage_penalty": 1.0}, "coverage_penalty needs a source"),
        ({"min_new_tokens": 7}, "min_new_tokens is 7 and max_new_tokens is 6"),
    ],
)
def test_settings_that_beams_do_not_have_are_refused(model: Model, settings: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        model.generate("abc", **FEW | settings)


def test_texts_that_are_written_token_by_token_have_no_beams(model: Model) -> None:
    with pytest.raises(UserError, match="beam is for generate and continuations: a search knows its text only at the"):
        list(model.stream("abc", beam=2))


def test_generate_prints_the_best_texts_of_a_beam(glassformer: Glassformer, trained: Outcome, model: Model) -> None:
    few = ["--beam", 3, "--max-new-tokens", 6]
    found = model.continuations(PROMPTS, n=2, **FEW)
    one = glassformer("generate", trained.folder, PROMPTS[0], *few)
    assert one.out == f"{PROMPTS[0]}{found[0][0].text}\n"
    two = glassformer("generate", trained.folder, PROMPTS[0], "-n", 2, *few)
    assert two.out == "".join(f"--- score {x.hypothesis.score:.4f}\n{PROMPTS[0]}{x.text}\n" for x in found[0])
    stdin = "".join(f"{prompt}\n" for prompt in (*PROMPTS, ""))
    listed = glassformer("generate", trained.folder, "-n", 2, "--input", "-", *few, stdin=stdin)
    lines = [json.loads(line) for line in listed.out.splitlines()]
    assert [(line["prompt"], line["text"]) for line in lines[:6]] == [
        (prompt, x.text) for prompt, best in zip(PROMPTS, found, strict=True) for x in best
    ]
    scores = [x.hypothesis.score for best in found for x in best]
    assert [line["score"] for line in lines[:6]] == near(scores, terms=NETWORK)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--length-penalty", 2], "--length-penalty has no effect without beams"),
        (["--beam", 1, "--length-penalty", 2], "--length-penalty has no effect without beams"),
        (["--beam", 2, "--temperature", 0], "temperature is for samples, and beam asks for a search"),
        (["--beam", 2, "--sample", 1], "sample is for samples"),
        (["--beam", 2, "--context", "slide"], "slide is for samples"),
        (["--beam", 2, "--no-repeat-ngram-size", -1], "no_repeat_ngram_size"),
        (["--beam", 2, "-n", 3], "n_best is 3 and must be from 1 to the beam, 2"),
    ],
)
def test_wrong_options_of_beams_are_one_sentence(
    glassformer: Glassformer, trained: Outcome, options: list[Any], words: str
) -> None:
    require_one_sentence(glassformer("generate", trained.folder, "abc", *options), words)
