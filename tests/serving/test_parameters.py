"""Parameters that the server does not have: one that would change the text is refused, and any other one is named."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.requests import Request

import late
from glassformer.apps.serving.guard import IGNORED, MAX_IGNORED, note_ignored
from glassformer.apps.serving.schemas import REFUSED, ChatRequest, CompletionRequest
from glassformer.model import Model
from serving.conftest import Run, Serve
from serving.served import RunningServer, send, until

openai = late.module("openai")

USER: Any = {"role": "user", "content": "red dog"}
CHAT: Any = {"model": "chat", "messages": [USER], "temperature": 0, "max_tokens": 6}
PATH = "/v1/chat/completions"
CALL = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
TOOL: Any = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}
HISTORY: Any = [
    USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "noon"},
    {"role": "assistant", "content": "the cat"},
    {"role": "user", "content": [{"type": "text", "text": "red "}, {"type": "text", "text": "dog"}]},
]


def posted(address: str, body: Any) -> tuple[int, list[str], Any]:
    """Return the status, the names of ignored parameters, and the answer."""
    status, headers, answer = send(address, json.dumps(body).encode())
    return status, [name for name in headers.get(IGNORED, "").split(", ") if name], json.loads(answer)


@pytest.fixture
def client(running: Run) -> "Iterator[openai.OpenAI]":
    with openai.OpenAI(base_url=f"{running('chat', 'encoder').address}/v1", api_key="any", max_retries=0) as found:
        yield found


def test_the_client_of_openai_may_send_all_of_its_parameters(client: "openai.OpenAI") -> None:
    plain = client.chat.completions.create(**CHAT).choices[0].message.content
    unused: Any = {
        "metadata": {"a": "b"},
        "parallel_tool_calls": True,
        "prediction": {"type": "content", "content": "red"},
        "prompt_cache_key": "a",
        "reasoning_effort": "none",
        "safety_identifier": "a",
        "service_tier": "auto",
        "tools": [TOOL],
        "user": "a",
        "verbosity": "low",
    }
    nothing: Any = {
        "function_call": "none",
        "functions": [],
        "modalities": ["text"],
        "response_format": {"type": "text"},
        "store": False,
        "tool_choice": "auto",
        "web_search_options": {},
    }
    answer = client.chat.completions.with_raw_response.create(**CHAT, **unused, **nothing, seed=-1)
    assert answer.parse().choices[0].message.content == plain
    # those that ask for what the server does anyway are not named
    expected = {*unused, "function_call", "modalities", "response_format", "tool_choice"}
    assert set(answer.headers[IGNORED].split(", ")) == expected
    stream = client.chat.completions.with_raw_response.create(
        **CHAT, stream=True, stream_options={"include_usage": True, "include_obfuscation": True}
    )
    parts = [*stream.parse()]
    assert "".join(part.choices[0].delta.content or "" for part in parts if part.choices) == plain
    assert stream.headers[IGNORED] == "stream_options.include_obfuscation"
    found = client.embeddings.with_raw_response.create(model="encoder", input="red dog", user="a")
    assert found.headers[IGNORED] == "user"
    for refused in ({"audio": {"voice": "a", "format": "wav"}}, {"tool_choice": "required", "tools": [TOOL]}):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**CHAT, **refused)
        assert caught.value.param in refused and "would change the text" in caught.value.message


def test_several_greedy_texts_are_equal_and_count_as_several(client: "openai.OpenAI") -> None:
    one = client.chat.completions.create(**CHAT)
    three = client.chat.completions.create(**CHAT, n=3)
    assert [choice.message.content for choice in three.choices] == [one.choices[0].message.content] * 3
    assert one.usage is not None and three.usage is not None
    assert three.usage.completion_tokens == 3 * one.usage.completion_tokens
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    texts = client.completions.create(model="chat", prompt=["red", "blue"], n=2, temperature=0, max_tokens=4).choices
    assert [choice.index for choice in texts] == [0, 1, 2, 3]
    assert texts[0].text == texts[1].text and texts[2].text == texts[3].text


READS_CALLS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }} {{ call.function.arguments.zone }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML that also writes the name and one argument of a call, which it reads as an object."""


def test_a_history_with_calls_of_tools_is_read(serve: Serve, models: dict[str, Model]) -> None:
    plain = [{key: m.get(key) or "" for key in ("role", "content")} for m in HISTORY[:-1]] + [USER]
    plain[1]["content"] = "clock UTC"
    tokenizer = models["chat"].tokenizer.with_chat_template(READS_CALLS)
    tokenizers = replace(models["chat"].tokenizers, target=tokenizer)
    address = serve(chat=replace(models["chat"], tokenizers=tokenizers))
    with openai.OpenAI(base_url=f"{address}/v1", api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(**CHAT | {"messages": HISTORY, "tools": [TOOL]}, tool_choice="auto")
    assert answer.choices[0].message.content == models["chat"].chat(plain, temperature=0, max_new_tokens=6)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(models["chat"].conversation_encoder.prompt(plain))


def test_calls_of_tools_are_refused_if_the_template_does_not_read_them(client: "openai.OpenAI") -> None:
    with pytest.raises(openai.BadRequestError, match="message 2 calls a tool, and the chat template does not read"):
        client.chat.completions.create(**CHAT | {"messages": HISTORY})


def test_a_template_reads_calls_with_their_arguments_as_objects() -> None:
    body = ChatRequest(messages=HISTORY)
    call = body.messages[1].to_message()["tool_calls"][0]
    assert call["function"] == {"name": "clock", "arguments": {"zone": "UTC"}}
    assert body.messages[2].to_message() == {"role": "tool", "content": "noon", "tool_call_id": "call_1"}
    assert body.messages[4].to_message() == USER
    bad = {"function": {"name": "a", "arguments": "{"}}
    assert (
        ChatRequest(messages=[HISTORY[1] | {"tool_calls": [bad, {}]}]).messages[0].to_message()["tool_calls"][0] == bad
    )


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one, max_size=2))


@settings(max_examples=300)
@given(st.dictionaries(st.text(st.characters(categories=["L", "N"])) | st.sampled_from([*REFUSED]), JSON, max_size=8))
def test_a_parameter_is_refused_or_named_or_asks_for_nothing(given: dict[str, Any]) -> None:
    """Nothing that asks for something disappears in silence."""
    for kind, body in ((ChatRequest, {"messages": [USER]}), (CompletionRequest, {"prompt": "a"})):
        unknown = {name: value for name, value in given.items() if name not in kind.model_fields}
        try:
            named = [*kind.model_validate(body | unknown).ignored()]
        except ValidationError as error:
            (problem,) = error.errors()
            name = problem["ctx"]["name"]
            assert problem["type"] == "unknown_parameter" or unknown[name] not in REFUSED[name]
        else:
            assert named == [name for name, value in unknown.items() if value not in (None, False, "", [], {})]
            assert not [name for name in named if name in REFUSED and unknown[name] not in REFUSED[name]]


def test_names_in_the_header_and_the_log_are_bounded_and_plain(running: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "glassformer.serving")
    address = running("chat").address + PATH
    status, ignored, _ = posted(address, CHAT | {"a\r\nx-evil: 1, é\ud800": 1, "b" * 5000: 1})
    assert status == 200 and ignored[0] == "a%0D%0Ax-evil%3A%201%2C%20%C3%A9%5Cud800" and ignored[1] == "b" * 60
    until(lambda: len(caplog.records) == 1)  # the line of a request is written after its answer
    assert " 200 " in caplog.text and f"ignored: {ignored[0]}" in caplog.text
    status, ignored, _ = posted(address, CHAT | {"user": "a", "": 1})
    assert status == 200 and ignored == ["user", '""']
    status, ignored, _ = posted(address, CHAT | {f"z{number}": 1 for number in range(32)})
    assert status == 200 and ignored == [f"z{number}" for number in range(20)] + ["and others"]
    status, _, answer = posted(address, CHAT | {f"z{number}": 1 for number in range(33)})
    assert status == 400 and "33 parameters" in answer["error"]["message"]


@settings(max_examples=300)
@given(st.lists(st.text(st.characters()) | st.sampled_from(["", " ", "\t", ",", "\ud800"]), unique=True, max_size=25))
def test_a_header_can_carry_any_names(names: list[str]) -> None:
    """The library of the server accepts the header, and each name of the first ones is read from it again."""
    request = Request({"type": "http"})
    note_ignored(request, names)
    text = getattr(request.state, IGNORED)
    h11.Response(status_code=200, headers=[(IGNORED.encode(), text.encode())])
    found = [unquote(name.removeprefix('""')) for name in text.split(", ")] if names else []
    shown = [name[:60].encode("utf-8", "backslashreplace").decode() for name in names]
    assert found == shown[:MAX_IGNORED] + ["and others"] * (len(names) > MAX_IGNORED)


# Sentences


def test_addresses_come_before_bodies(serve: Serve) -> None:
    address = serve("chat")
    for path, expected in (("/v1/responses", 404), ("/v1/models", 405), (PATH, 415)):
        assert send(address + path, b"a", content_type="text/plain")[0] == expected
    status, _, answer = send(address + PATH, json.dumps(CHAT).encode(), content_encoding="gzip")
    assert status == 415 and "without content-encoding" in json.loads(answer)["error"]["message"]


BODIES = {
    b"[" * 100_000: "nested too deeply",
    b'{"prompt": "\xff"}': "not text in UTF-8: the byte 12 is wrong",
    b'{"seed": 1' + b"0" * 9000 + b"}": "too many digits",
    b"{'a'}": "the request is not JSON",
    b'{"prompt": "a", "logit_bias": {"' + b"x" * 900_000 + b'": 1}}': "logit_bias." + "x" * 60 + ":",
    b'{"prompt": "a", "' + b"y" * 900_000 + b'max_tokens": null}': "",
    b'{"prompt": "a", "stop": "' + b"x" * 900_000 + b'"}': "at most 1024 characters, got 'xxx",
}


@pytest.mark.parametrize("body", BODIES)
def test_bodies_that_cannot_be_read_get_our_own_short_sentence(body: bytes, running: Run) -> None:
    server: RunningServer = running("chat")
    status, _, answer = send(f"{server.address}/v1/completions", body)
    if not BODIES[body]:
        assert status == 200
        return
    error = json.loads(answer)["error"]
    assert status == 400 and BODIES[body] in error["message"] and len(error["message"]) <= 400
    assert error["param"] is None or len(error["param"]) <= 200
    assert "parsing the body" not in error["message"]
