"""The check of what a conversation trains finds each known mistake of a mask."""

from dataclasses import replace

import pytest

from glassformer import api
from glassformer.apps import doctor
from glassformer.apps.doctor.glassformer_models import (
    ANSWERS,
    TURNS,
    border_problems,
    chat_mask,
    mask_problems,
    scored_parts,
    whole_problems,
)
from glassformer.model import Model
from glassformer.tokenization.chat_template import CHATML
from glassformer.tokenization.conversations import ConversationEncoder, with_template
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers
from runs import conversation_run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("mask")
    return api.train(conversation_run(folder, max_steps=1, eval_every=1), folder / "run").model


def test_a_trained_model_passes_and_shows_what_it_scores(model: Model) -> None:
    result = chat_mask(model)
    assert result.passed and result.detail == "scored: 'Four.<|im_end|>' and 'Five.<|im_end|>'"
    report = doctor.check_model(model)
    assert report.results[-1] == result


def test_answers_that_are_trained_after_other_ids_than_chat_reads_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "assistant user\n\n What is two plus two? Four.\n\n" * 3
    encoder = ConversationEncoder(with_template(Tokenizer.train([text], vocab_size=290)), "the model")
    assert border_problems(encoder) == []
    monkeypatch.setattr(ConversationEncoder, "_cuts", lambda *_: iter(()))
    problems = border_problems(encoder)
    assert "an answer that begins with '\\n\\n' is trained after other ids than chat reads" in problems
    monkeypatch.setattr(ConversationEncoder, "_are_trained", lambda _, messages, n: [True] * n)
    assert border_problems(encoder)[-1] == "an answer with the weight 0 is scored"


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (
            CHATML.replace("{{ message.content }}", "{% generation %}{{ message.content }}{% endgeneration %}"),
            "does not end an answer with a special token",
        ),
        (
            CHATML.replace(
                "{{ message.content }}<|im_end|>", "{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}"
            ),
            "parts are scored, and the conversation has 2 answers",
        ),
        (CHATML.replace("<|im_end|>", "[SEP]"), "without a token at its end that ends a generation"),
    ],
    ids=["end token outside (TRL 4147)", "user scored", "another end token"],
)
def test_a_wrong_template_is_found(model: Model, template: str, problem: str) -> None:
    wrong = replace(model, tokenizers=Tokenizers(model.tokenizer.with_chat_template(template)))
    result = chat_mask(wrong)
    assert not result.passed and problem in result.detail


def test_wrong_labels_are_named(model: Model) -> None:
    tokenizer, end = model.tokenizer, model.conversation_encoder.end_id
    four, five = (tokenizer.encode(answer) for answer in ANSWERS)
    assert mask_problems([[*four, end], [*five, end]], ANSWERS, tokenizer, [end]) == []
    for scored, problem in (
        ([[*four, end]], "1 parts are scored"),
        ([four, [*five, end]], "'Four.' is scored without a token at its end"),
        ([[*four[:-1], end], [*five, end]], "'Four' is scored in place of the answer 'Four.'"),
        ([[*tokenizer.encode("two Four."), end], [*five, end]], "'two Four.' is scored in place of"),
    ):
        assert any(problem in one for one in mask_problems(scored, ANSWERS, tokenizer, [end])), problem
    assert list(scored_parts([-100, -100])) == []


def test_all_tokens_are_shown_if_all_are_scored(model: Model) -> None:
    scores_all = replace(model, run=replace(model.run, data=replace(model.run.data, scored="all")))
    result = chat_mask(scores_all)
    shown = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in TURNS)
    begin = "scored, as data.scored is all: 'system\\nAnswer in one word.<|im_end|>\\n"
    assert result.passed and result.detail.startswith(begin) and result.detail.endswith(repr(shown)[1:])
    wrong = replace(
        scores_all, tokenizers=Tokenizers(model.tokenizer.with_chat_template(CHATML.replace("<|im_end|>", "[SEP]")))
    )
    assert not chat_mask(wrong).passed


def test_a_token_that_is_not_scored_is_found(model: Model) -> None:
    end = model.conversation_encoder.end_id
    ids = model.conversation_encoder.encode(TURNS).ids
    assert whole_problems([ids[1:]], ids, end, [end]) == []
    assert whole_problems([ids[1:5], ids[6:]], ids, end, [end]) == [
        f"{len(ids) - 2} tokens are scored, and {len(ids) - 1} follow the first one"
    ]
    assert whole_problems([ids[1:]], ids, end, []) == ["no answer has a token at its end that ends a generation"]
