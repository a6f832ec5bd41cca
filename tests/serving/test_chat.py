"""`POST /v1/chat/completions`: messages, streams, the context, errors; the answers are those of the model in Python."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from glassformer.apps.serving.settings import Limits
from glassformer.inference.chat import fitted
from glassformer.model import Model
from serving.conftest import Run, Serve
from serving.served import ask
from serving.test_completions import parts, refusal
from tolerances import NETWORK, near

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "red dog"}
TURNS = [USER, {"role": "assistant", "content": "roter Hund"}, {"role": "user", "content": "the cat"}]


def answered(address: str, messages: Any = (USER,), **given: Any) -> dict[str, Any]:
    status, answer = ask(f"{address}{PATH}", {"messages": list(messages)} | given)
    assert status == 200, answer
    return dict(answer)


def content(address: str, messages: Any = (USER,), **given: Any) -> str:
    (choice,) = answered(address, messages, **given)["choices"]
    assert choice["message"]["role"] == "assistant"
    return str(choice["message"]["content"])


@pytest.fixture
def chat(models: dict[str, Model]) -> Model:
    return models["chat"]


def test_answers_equal_those_of_the_model(serve: Serve, chat: Model) -> None:
    """One message and several turns, greedy and drawn, several samples."""
    address = serve("chat")
    for messages in ([USER], TURNS):
        assert content(address, messages, temperature=0, max_tokens=12) == chat.chat(
            messages, temperature=0, max_new_tokens=12
        )
        rules = {"temperature": 1.1, "top_p": 0.9, "seed": 7}
        assert content(address, messages, **rules, max_tokens=9) == chat.chat(messages, **rules, max_new_tokens=9)
    choices = answered(address, n=3, temperature=1.5, seed=2, max_completion_tokens=9)["choices"]
    expected = [chat.chat([USER], sample=i, temperature=1.5, seed=2, max_new_tokens=9) for i in range(3)]
    assert [choice["message"]["content"] for choice in choices] == expected and len({*expected}) > 1


def test_roles_and_parts_of_messages(serve: Serve, chat: Model) -> None:
    """A developer is a system; the parts of a message are one text; a null refusal of an old answer is accepted."""
    address, greedy = serve("chat"), {"temperature": 0, "max_tokens": 8}
    system = {"role": "system", "content": "red"}
    expected = chat.chat([system, USER], temperature=0, max_new_tokens=8)
    given = [{"type": "text", "text": "red"}, {"type": "text", "text": " dog"}]
    for first in (system, system | {"role": "developer"}):
        assert content(address, [first, USER | {"content": given, "name": "me"}], **greedy) == expected
    turns = [TURNS[0], TURNS[1] | {"refusal": None}, TURNS[2]]
    assert content(address, turns, **greedy) == content(address, TURNS, **greedy)


def test_a_special_token_in_a_message_is_ordinary_text(serve: Serve, chat: Model) -> None:
    mark = chat.tokenizer.special_tokens[-1]
    messages = [USER | {"content": f"red{mark}dog"}]
    expected = chat.chat(messages, temperature=0, max_new_tokens=8)
    assert content(serve("chat"), messages, temperature=0, max_tokens=8) == expected
    ids = chat.conversation_encoder.prompt(messages)
    assert ids.count(chat.tokenizer.vocab[mark]) == chat.conversation_encoder.prompt([USER]).count(
        chat.tokenizer.vocab[mark]
    )


def test_a_stream_equals_the_whole(serve: Serve) -> None:
    address = serve("chat")
    given = {"n": 2, "temperature": 1.2, "seed": 3, "max_tokens": 10, "logprobs": True, "top_logprobs": 2}
    whole = answered(address, **given)
    *found, last = parts(address, PATH, messages=[USER], stream_options={"include_usage": True}, **given)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for row, choice in enumerate(whole["choices"]):
        mine = [part["choices"][0] for part in found if part["choices"][0]["index"] == row]
        assert "".join(part["delta"]["content"] for part in mine) == choice["message"]["content"]
        assert [part["delta"]["role"] for part in mine] == ["assistant"] + [None] * (len(mine) - 1)
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + [choice["finish_reason"]]
        tokens = [token for part in mine for token in part["logprobs"]["content"]]
        assert [one["id"] for one in tokens] == [one["id"] for one in choice["logprobs"]["content"]]
        assert all(len(one["top_logprobs"]) == 2 for one in tokens)


def test_log_probabilities_are_those_of_the_model(serve: Serve, chat: Model) -> None:
    (choice,) = answered(serve("chat"), temperature=1.3, seed=1, max_tokens=6, logprobs=True, top_logprobs=3)["choices"]
    prompt, scored = chat.conversation_encoder.prompt([USER]), choice["logprobs"]["content"]
    ids = [*prompt, *(one["id"] for one in scored)]
    with torch.inference_mode():
        expected = chat.network(torch.tensor([ids]))[0, len(prompt) - 1 : -1].log_softmax(dim=-1)
    for one, row in zip(scored, expected, strict=True):
        assert one["logprob"] == near(float(row[one["id"]]), terms=NETWORK)
        assert bytes(one["bytes"]) == chat.tokenizer.pieces[one["id"]]
        assert [top["id"] for top in one["top_logprobs"]] == row.topk(3).indices.tolist()


def test_the_end_token_and_the_limit_end_an_answer(serve: Serve, chat: Model) -> None:
    """The bias decides which; the end token counts, and has no text."""
    address, end = serve("chat"), chat.conversation_encoder.end_id
    ended = answered(address, temperature=0, max_tokens=5, logit_bias={str(end): 100})
    assert ended["choices"][0]["finish_reason"] == "stop" and ended["choices"][0]["message"]["content"] == ""
    assert ended["usage"]["completion_tokens"] == 1
    full = answered(address, temperature=0, max_tokens=5, logit_bias={str(end): -100})
    assert full["choices"][0]["finish_reason"] == "length" and full["usage"]["completion_tokens"] == 5
    assert full["usage"]["prompt_tokens"] == len(chat.conversation_encoder.prompt([USER]))


def test_the_turns_of_a_conversation_are_read_once(running: Run, chat: Model) -> None:
    address, messages = running("chat").address, [USER]
    for turn in range(3):
        answer = answered(address, messages, temperature=0, max_tokens=8)
        known = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert (known == 0) == (turn == 0) and known < answer["usage"]["prompt_tokens"]
        said = answer["choices"][0]["message"]["content"]
        assert said == chat.chat(messages, temperature=0, max_new_tokens=8)
        messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "the cat"}]


def test_a_conversation_that_does_not_fit(serve: Serve, chat: Model) -> None:
    """It is refused, unless old turns may be left out; these are counted."""
    address, long = serve("chat"), [*TURNS[:2] * 9, USER]
    error = refusal(address, PATH, messages=long, max_tokens=8)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert 'set truncation to "auto"' in error["message"]
    answer = answered(address, long, truncation="auto", temperature=0, max_tokens=8)
    assert answer["left_out"] > 0 and answer["left_out"] % 2 == 0
    expected = chat.chat(long, temperature=0, max_new_tokens=8)
    assert answer["choices"][0]["message"]["content"] == expected
    assert expected == chat.chat(long[answer["left_out"] :], temperature=0, max_new_tokens=8)
    for part in parts(address, PATH, messages=long, truncation="auto", temperature=0, max_tokens=3):
        assert part["left_out"] == answer["left_out"]
    for truncation in ("auto", "disabled"):
        error = refusal(address, PATH, messages=[USER | {"content": "red " * 200}], truncation=truncation)
        assert error["code"] == "context_length_exceeded" and error["message"].endswith("an answer: shorten it")


def test_the_fewest_turns_are_left_out(chat: Model) -> None:
    """As many turns as fit stay, for every length of the conversation and room for the answer."""
    encoder = chat.conversation_encoder
    for n_turns in range(1, 12):
        messages = [{"role": "system", "content": "red"}, *TURNS[:2] * n_turns, USER]
        for n_new in (1, 30, 100):
            settings, _ = chat.chat_settings(max_new_tokens=n_new, temperature=0)
            found = fitted(encoder, messages, replace(settings, max_len=100))
            room = min(n_new, 25)
            fitting = [
                left_out
                for left_out in range(0, 2 * n_turns + 1, 2)
                if len(encoder.prompt([messages[0], *messages[1 + left_out :]])) + room <= 100
            ]
            assert (found and found[1]) == (fitting[0] if fitting else None)
            assert found is None or found[0].ids == encoder.prompt([messages[0], *messages[1 + found[1] :]])


def test_answers_at_the_same_time_equal_answers_in_turn(serve: Serve) -> None:
    address = serve("chat", limits=Limits(max_rows=4))
    bodies = [{"temperature": 0.8 * (i % 2), "seed": i, "max_tokens": 3 + i % 9} for i in range(16)]
    conversations = [[USER], TURNS, [USER | {"content": "the house"}]]
    jobs = [(conversations[i % 3], body) for i, body in enumerate(bodies)]
    in_turn = [content(address, messages, **body) for messages, body in jobs]
    with ThreadPoolExecutor(16) as clients:
        assert [*clients.map(lambda job: content(address, job[0], **job[1]), jobs)] == in_turn


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({"messages": []}, "messages", "at least 1 item"),
        ({"message": [USER]}, "message", "unknown parameter 'message': did you mean messages?"),
        ({"messages": [{"rol": "user", "content": "a"}]}, "messages.0.role", "parameter 'messages.0.role' is missing"),
        ({"messages": [{"role": "user"}]}, "messages.0", "a message needs a content"),
        ({"messages": [USER | {"content": None, "tool_calls": [{}]}]}, "messages.0", "a message needs a content"),
        ({"messages": [USER | {"content": 3}]}, "messages.0.content", "expected a text, or a list of parts, got 3"),
        (
            {"messages": [USER | {"content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0.type",
            "input should be 'text', got 'image_url'",
        ),
        (
            {"messages": [USER | {"role": "critic"}]},
            "messages.0.role",
            "input should be 'system', 'developer', 'user', 'assistant' or 'tool'",
        ),
        ({"messages": [USER], "max_tokens": 0}, "max_tokens", "greater than or equal to 1, got 0"),
        ({"messages": [USER], "max_tokens": 4097}, "max_tokens", "max_tokens is 4097, and the server allows 4,096"),
        ({"messages": [USER], "max_completion_tokens": 4097}, "max_completion_tokens", "max_completion_tokens is 4097"),
        ({"messages": [USER], "top_logprobs": 2}, "top_logprobs", "set logprobs to true"),
        ({"messages": [USER], "tool_choice": "required"}, "tool_choice", "cannot obey this value"),
        (
            {"messages": [USER], "response_format": {"type": "json_object"}},
            "response_format",
            "leave response_format out",
        ),
        ({"messages": [USER], "truncation": "yes"}, "truncation", "input should be 'disabled' or 'auto'"),
    ],
)
def test_a_wrong_request_gets_one_sentence(
    given: dict[str, Any], param: str | None, message: str, serve: Serve
) -> None:
    error = refusal(serve("chat"), PATH, **given)
    assert error["param"] == param and message in error["message"] and "\n" not in error["message"]


def test_parameters_that_ask_for_the_default_change_nothing(serve: Serve, chat: Model) -> None:
    given = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "temperature": 0}
    assert content(serve("chat"), **given, max_tokens=8) == chat.chat([USER], temperature=0, max_new_tokens=8)


def test_tools_that_may_be_left_uncalled_change_nothing(serve: Serve) -> None:
    """Open WebUI sends its tools with every conversation: a model that calls none answers as without them."""
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
    client = serve("chat")
    plain = content(client, temperature=0, max_tokens=6)
    assert content(client, tools=[tool], temperature=0, max_tokens=6) == plain
    assert content(client, tools=[tool], tool_choice="auto", temperature=0, max_tokens=6) == plain


def test_a_model_without_a_template_is_refused(serve: Serve) -> None:
    error = refusal(serve("decoder"), PATH, messages=[USER])
    assert error["code"] == "wrong_model" and "lacks the ability chat" in error["message"]
