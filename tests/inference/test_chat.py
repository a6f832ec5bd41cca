"""Chat: the same answers with and without the cache of earlier turns, drafts, full contexts, interruptions."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from glassformer import api
from glassformer.common.errors import UserError
from glassformer.config.run import Run
from glassformer.config.train import AdamWConfig
from glassformer.inference.chat import fitting
from glassformer.inference.drafts import DraftCounts
from glassformer.model import Model
from runs import conversation_run

QUESTIONS = ("red dog", "blue cat", "two trees", "the house")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("chat")
    run: Run = conversation_run(folder, max_steps=60, eval_every=60, optimizer=AdamWConfig(learning_rate=0.02))
    run = replace(run, model=replace(run.model, max_len=160))
    return api.train(run, folder / "run").model


@pytest.mark.parametrize(
    "settings", [{"temperature": 0}, {"seed": 3, "temperature": 1.0}, {"prompt_lookup": 3, "temperature": 0}]
)
def test_a_cached_conversation_answers_like_one_that_is_read_again(model: Model, settings: dict[str, float]) -> None:
    chat = model.conversation([{"role": "system", "content": "small"}])
    for question in QUESTIONS:
        chat.add("user", question)
        answer = "".join(chat.answer(*model.chat_settings(**settings)))
        assert answer == model.chat(chat.messages[:-1], **settings)
        assert chat.messages[-1] == {"role": "assistant", "content": answer}


def test_a_draft_model_changes_no_answer(model: Model) -> None:
    """Each turn of a conversation; the draft model has almost the same weights, so its drafts are partly right."""
    draft, counts = replace(model, network=copy.deepcopy(model.network)), DraftCounts()
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in draft.network.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=noise)
    chat = model.conversation([{"role": "system", "content": "small"}])
    for question in QUESTIONS:
        chat.add("user", question)
        answer = "".join(chat.answer(*model.chat_settings(temperature=0, draft=draft, counts=counts)))
        assert answer == model.chat(chat.messages[:-1], temperature=0)
    assert 0 < counts.n_accepted < counts.n_drafted


def test_each_turn_reads_only_what_is_new(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    step, read_at = model.network.step, model.network.read_at

    def count(ids: torch.Tensor) -> None:
        read.append(ids.shape[1])

    monkeypatch.setattr(model.network, "step", lambda ids, *a, **k: (count(ids), step(ids, *a, **k))[1])
    monkeypatch.setattr(model.network, "read_at", lambda ids, *a, **k: (count(ids), read_at(ids, *a, **k))[1])
    chat = model.conversation()
    for question in QUESTIONS[:3]:
        chat.add("user", question)
        "".join(chat.answer(*model.chat_settings(temperature=0)))
    whole = len(model.conversation_encoder.prompt(chat.messages[:-1]))
    assert sum(read) < whole + 3 * 8 + 8, "no turn reads the conversation again"


def test_a_batch_of_conversations_gets_the_answers_of_single_ones(model: Model) -> None:
    given = [question if i % 2 else [{"role": "user", "content": question}] for i, question in enumerate(QUESTIONS)]
    together = model.chat(given, temperature=0, batch_size=3)
    assert together == [model.chat(one, temperature=0) for one in given]
    assert "".join(model.chat("red dog", stream=True, temperature=0)) == model.chat("red dog", temperature=0)


def test_whole_turns_are_left_out_when_the_context_is_full(model: Model) -> None:
    notes: list[str] = []
    chat = model.conversation([{"role": "system", "content": "small"}], log=notes.append)
    for _ in range(8):
        chat.add("user", "the red dog sees the blue cat")
        answer = "".join(chat.answer(*model.chat_settings(temperature=0)))
    prompt, n_unread = fitting(chat.encoder, chat.messages[:-1], model.chat_settings()[0])
    assert n_unread > 0 and n_unread % 2 == 0 and len(prompt.ids) <= 160
    assert notes and "the context of 160 tokens is full" in notes[0]
    assert len(chat.messages) == 17, "the conversation itself is kept"
    kept = [chat.messages[0], *chat.messages[1 + n_unread : -1]]
    assert answer == model.chat(kept, temperature=0)
    assert chat.read_messages == [*kept, chat.messages[-1]]


def test_a_message_that_does_not_fit_is_refused(model: Model) -> None:
    with pytest.raises(
        UserError, match=r"the last message does not fit the model's context of 160 tokens, .* shorten it"
    ):
        model.chat("the red dog " * 60)


def test_an_interrupted_answer_is_kept_and_the_next_one_is_right(model: Model) -> None:
    chat = model.conversation()
    chat.add("user", "red dog")
    pieces = chat.answer(*model.chat_settings(temperature=0))
    first = next(pieces)
    pieces.close()
    assert chat.messages[-1]["content"] == first
    chat.add("user", "blue cat")
    assert "".join(chat.answer(*model.chat_settings(temperature=0))) == model.chat(chat.messages[:-1], temperature=0)


def test_a_model_without_a_template_does_not_chat(tmp_path: Path) -> None:
    from runs import tiny_run, write_documents

    model = api.train(tiny_run(write_documents(tmp_path), max_steps=1), tmp_path / "run").model
    with pytest.raises(UserError, match="has no chat template"):
        model.chat("red")
