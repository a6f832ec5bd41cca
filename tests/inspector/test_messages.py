"""The inspector on a conversation: the page shows the ids that the model reads, and its address restores them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

import glassformer
from glassformer.apps.inspector import server
from glassformer.apps.inspector.web_file import facts_of
from glassformer.common.errors import UserError
from glassformer.inspection.texts import validation_messages
from glassformer.model import Model
from glassformer.tokenization.chat_template import CHATML
from glassformer.tokenization.tokenizer import Tokenizers
from inspector.browsing import Open, hash_of
from inspector.conftest import Serve
from inspector.direct import Inspector
from runs import conversation_run

QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "red <|im_end|> dog"}]
ANSWERED = [*QUESTION, {"role": "assistant", "content": "rot"}]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Model:
    where = tmp_path_factory.mktemp("chat")
    return glassformer.train(conversation_run(where), where / "run").model


def test_the_ids_are_those_that_the_model_reads(chat: Model) -> None:
    how, _ = chat.chat_settings()
    [prompt] = chat.encode_conversations(how, [QUESTION])
    asked, answered = (Inspector(chat).run(messages=messages)["target"] for messages in (QUESTION, ANSWERED))
    assert [token["id"] for token in asked] == prompt.ids
    encoded = chat.conversation_encoder.encode(ANSWERED).ids
    assert [token["id"] for token in answered] == encoded and encoded[: len(prompt.ids)] == prompt.ids
    controls = [token["text"] for token in answered if token["is_special"]]
    assert controls == ["<|im_start|>", "<|im_end|>"] * 2, "the token in the message of the user is ordinary text"


def test_an_answer_that_fills_the_context_is_cut_there(chat: Model) -> None:
    long = [*QUESTION, {"role": "assistant", "content": "rot " * 60}]
    found = Inspector(chat).run(messages=long)
    ids, n = chat.conversation_encoder.read(long), chat.config.max_len
    assert [token["id"] for token in found["target"]] == ids[:n]
    assert found["cut"] == f"The model reads the first {n} of {len(ids)} tokens."
    assert Inspector(chat).run(messages=ANSWERED)["cut"] == ""


def test_wrong_messages_are_one_sentence(chat: Model, models: dict[str, Model]) -> None:
    with pytest.raises(UserError, match="content of message 1 must be a text"):
        Inspector(chat).run(messages=[{"role": "user"}])
    with pytest.raises(UserError, match="expected a list"):
        Inspector(chat).run(messages=[])
    with pytest.raises(UserError, match="has no chat template"):
        Inspector(models["decoder"]).run(messages=QUESTION)
    with pytest.raises(UserError, match="has no chat template"):
        server.inspect(models["decoder"], messages=QUESTION)


def test_inspect_begins_with_the_messages(chat: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr(server, "serve", lambda inspector, *_, **named: served.append(inspector.examples))
    chat.inspect(messages=ANSWERED)
    assert served == [[{"messages": ANSWERED}]]


def test_the_page_shows_and_restores_a_conversation(chat: Model, serve: Serve, visit: Open) -> None:
    found = visit(serve(Inspector(chat, [{"messages": ANSWERED}])).address + hash_of())
    page, tokens = found.page, chat.tokenizer.tokens(chat.conversation_encoder.read(ANSWERED))
    assert found.tokens("target").count() == len(tokens)
    assert page.locator(".messages span").all_inner_texts() == ["user", "assistant"]
    boxes = page.locator("#input textarea")
    assert [box.input_value() for box in boxes.all()] == [one["content"] for one in ANSWERED]
    assert json.loads(unquote(found.view()["messages"])) == ANSWERED
    assert {"Why", "Change", "Write"} <= set(page.locator("#tabs [role=tab]").all_inner_texts())
    # Another answer
    boxes.nth(1).fill("blau\nrot")
    assert page.locator("body.is-old").count() == 1
    page.get_by_role("button", name="Run", exact=True).click()
    found.settle()
    assert page.locator("body.is-old").count() == 0
    changed = [*QUESTION, {"role": "assistant", "content": "blau\nrot"}]
    assert json.loads(unquote(found.view()["messages"])) == changed
    n_changed = len(chat.conversation_encoder.read(changed))
    assert found.tokens("target").count() == n_changed
    # The link in another page, and a text in place of the messages
    other = visit(page.url)
    assert other.tokens("target").count() == n_changed
    other.page.get_by_role("button", name="as text").click()
    other.run("red dog")
    assert "messages" not in other.view() and other.tokens("target").count() == len(chat.prompt_ids("red dog"))
    other.page.get_by_role("button", name="as message").click()
    other.page.get_by_role("button", name="Run", exact=True).click()
    other.settle()
    read = chat.conversation_encoder.read([{"role": "user", "content": "red dog"}])
    assert other.tokens("target").count() == len(read)


def test_an_exported_page_reads_messages(chat: Model, visit: Open, tmp_path: Path) -> None:
    glassformer.export(chat, tmp_path / "chat.html", to="web")
    found = visit((tmp_path / "chat.html").as_uri())
    [first, *_] = validation_messages(chat, 3)
    asked, n = first["messages"], chat.config.max_len
    box = found.page.locator("#input textarea")
    assert (box.count(), box.input_value()) == (1, asked[0]["content"])
    assert found.page.locator(".messages span").all_inner_texts() == ["user"]
    assert found.tokens("target").count() == len(chat.conversation_encoder.read(asked))
    for text in (QUESTION[0]["content"], "dog " * 90):
        box.fill(text)
        found.page.get_by_role("button", name="Run", exact=True).click()
        ids = chat.conversation_encoder.read([{"role": "user", "content": text}])
        found.becomes(found.tokens("target").count, min(n, len(ids)))
    assert f"The model reads the first {n} of {len(ids)} tokens." in found.page.locator("body").inner_text()


def test_a_page_without_its_template_has_no_messages(chat: Model) -> None:
    other = replace(chat, tokenizers=Tokenizers(chat.tokenizer.with_chat_template(CHATML.replace("\n", " "))))
    facts = facts_of(Inspector(other))["model"]
    assert not facts["has_template"] and facts["examples"] == []
    with pytest.raises(UserError, match="a cell reads messages in ChatML only"):
        other.inspect(messages=QUESTION, in_cell=True)


def test_messages_of_an_address_that_are_damaged_are_ignored(chat: Model, serve: Serve, visit: Open) -> None:
    found = visit(serve(Inspector(chat)).address + hash_of(text="red dog", messages='[{"role": "user"'))
    assert found.tokens("target").count() == len(chat.prompt_ids("red dog"))


def test_a_conversation_fits_a_phone(chat: Model, serve: Serve, visit: Open, tmp_path: Path) -> None:
    long = [*ANSWERED * 2, {"role": "user", "content": "dog " * 12}]
    found = visit(serve(Inspector(chat)).address + hash_of(messages=json.dumps(long)), width=390, height=844)
    assert found.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert found.page.locator(".messages textarea").count() == len(long)
