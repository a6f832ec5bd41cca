"""Drafts of `translate`: greedy targets stay the same; wrong uses are one sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs import RECURRENT
from glassformer import DraftCounts, api
from glassformer.config.run import BeamConfig
from glassformer.errors import UserError
from glassformer.inference.drafters import PromptLookup
from glassformer.inspection.beam_tree import beam_tree
from glassformer.model import Model
from glassformer.models.build import build_model
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from runs import WORDS, Tiny, pair_run
from tolerances import NETWORK, near

SOURCES = ["the dog", "red tree", "the red dog runs", "a " * 12]


@pytest.fixture(scope="module")
def models(tiny: Tiny) -> dict[str, Model]:
    """Models with a joint vocabulary and with one per side."""
    return {"joint": api.load(tiny("pairs")), "separate": api.load(tiny("separate pairs"))}


@pytest.mark.parametrize("prefix", ["", "hund und"])
@pytest.mark.parametrize("kind", ["joint", "separate"])
def test_drafts_change_no_target(models: dict[str, Model], kind: str, prefix: str) -> None:
    model = models[kind]
    other = replace(model, network=build_model(model.config).eval())
    greedy: dict[str, Any] = {"beam": 1, "prefix": prefix}
    expected = model.translate(SOURCES, **greedy)
    for drafts in ({"prompt_lookup": 5}, {"draft": model}, {"draft": model, "draft_tokens": 2}, {"draft": other}):
        counts = DraftCounts()
        assert model.translate(SOURCES, **greedy, **drafts, counts=counts) == expected
        assert counts.n_drafted > 0 and (drafts.get("draft") is not model or counts.acceptance_rate == 1)
    assert model.translate(SOURCES[0], **greedy, prompt_lookup=5) == expected[0]


def test_scores_of_targets_are_those_without_drafts(models: dict[str, Model]) -> None:
    plain = models["joint"].translations(SOURCES, beam=1)
    drafted = models["joint"].translations(SOURCES, beam=1, prompt_lookup=5)
    for (one,), (two,) in zip(plain, drafted, strict=True):
        assert (two.text, two.hypothesis.ended) == (one.text, one.hypothesis.ended)
        assert two.hypothesis.log_prob == near(one.hypothesis.log_prob, terms=NETWORK)


def test_only_a_source_with_the_tokens_of_the_target_is_copied(models: dict[str, Model]) -> None:
    """In the first step, an id of the source is the only one that can be copied."""
    for kind, n_drafted in (("joint", 1), ("separate", 0)):
        counts = DraftCounts()
        models[kind].translate("the dog", beam=1, max_new_tokens=2, prompt_lookup=1, counts=counts)
        assert counts.n_drafted == n_drafted


def test_stored_prompt_lookup_is_used_by_every_greedy_search(
    models: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """translate and the scores of an evaluation; a tree of the search has no drafts."""
    model = models["joint"]
    expected = model.translate(SOURCES, beam=1)
    scores = model.scores(beam=1)
    saved = replace(model, generation=BeamConfig(1, max_new_tokens=12, prompt_lookup=4)).save(tmp_path / "saved")
    stored = api.load(saved, device="cpu")
    counts = DraftCounts()
    assert stored.translate(SOURCES, counts=counts) == expected and counts.n_drafted > 0
    n_steps, draft = 0, PromptLookup.draft

    def counted(*args: Any) -> Any:
        nonlocal n_steps
        n_steps += 1
        return draft(*args)

    monkeypatch.setattr(PromptLookup, "draft", counted)
    assert stored.scores() == scores and n_steps > 1
    assert len(beam_tree(stored, "the dog", beam=3).results) == 3
    with pytest.raises(UserError, match=r"prompt_lookup is 4 and beam is 3: only a greedy search has drafts; set beam"):
        stored.translate("the dog", beam=3)
    assert stored.translate("the dog", beam=3, prompt_lookup=0)


def test_wrong_drafts_are_one_sentence(models: dict[str, Model]) -> None:
    model = models["joint"]
    others = Tokenizers(Tokenizer.train([" ".join(WORDS)[:40]], vocab_size=0, scheme="char"))
    shorter = replace(model.config, source_max_len=9)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"prompt_lookup": 3, "beam": 2}, "prompt_lookup is 3 and beam is 2: only a greedy search has drafts"),
        ({"draft": model, "beam": 2}, "a draft model is given and beam is 2: only a greedy search has drafts"),
        ({"draft": model, "prompt_lookup": 3}, "a draft model is given, and prompt_lookup is 3: use one of them"),
        ({"draft": "runs/small"}, r"draft: expected a Model, such as glassformer.load\(DIR\), got 'runs/small'"),
        ({"counts": 3}, "counts: expected a DraftCounts"),
        ({"draft": replace(model, tokenizers=others)}, "have different vocabularies"),
        ({"draft": replace(model, tokenizers=Tokenizers(model.tokenizer, others.target))}, "have different source voc"),
        ({"draft": models["separate"]}, "have different vocabularies"),
        (
            {"draft": replace(model, network=build_model(shorter))},
            "reads at most 9 source tokens and .* 32: use a draft",
        ),
    ]
    for drafts, words in wrong:
        with pytest.raises(UserError, match=words) as refused:
            model.translate("the dog", **({"beam": 1} | drafts))
        assert "\n" not in str(refused.value)


def test_a_recurrent_model_neither_takes_drafts_nor_drafts(models: dict[str, Model], tmp_path: Path) -> None:
    config = replace(RECURRENT["luong"], vocab_size=0, max_len=32)
    recurrent = api.train(pair_run(tmp_path, model=config, max_steps=1), tmp_path / "run").model
    sentence = r"cannot forget tokens .* leave out prompt_lookup and the draft model"
    with pytest.raises(UserError, match=sentence):
        recurrent.translate("the dog", beam=1, prompt_lookup=3)
    with pytest.raises(UserError, match=sentence):
        models["joint"].translate("the dog", beam=1, draft=recurrent)
