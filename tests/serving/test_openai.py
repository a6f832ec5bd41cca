"""A process of the server with the official `openai` client, and its retries against a server in this process."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import pytest

import late
from glassformer.apps.serving.application import application
from glassformer.apps.serving.settings import Limits
from glassformer.model import Model
from serving.served import WAIT_S, RunningServer, ServerProcess, ServerProcesses, ask, until
from tolerances import near

openai = late.module("openai")

KEY = "a-key-of-the-tests"
USER: Any = {"role": "user", "content": "red dog"}
GREEDY: Any = {"temperature": 0, "max_tokens": 10}


@pytest.fixture
def server(processes: ServerProcesses) -> ServerProcess:
    return processes.start("chat", "decoder", host="::1", GLASSFORMER_API_KEY=KEY)


def test_the_client_against_a_process(server: ServerProcess, models: dict[str, Model]) -> None:
    """One process on an address of IPv6, because its start takes seconds."""
    address = f"{server.address}/v1"
    with openai.OpenAI(base_url=address, api_key=KEY, timeout=120) as client:
        lists_models(client)
        writes(client, models)
        streams(client, models)
        embeds(client, models)
        raises_errors(client, server)
        leaves(client, server)
    asyncio.run(writes_at_the_same_time(address, models))
    never_shows_its_key(server)
    ends_with_0(server)


def lists_models(client: "openai.OpenAI") -> None:
    assert [one.id for one in client.models.list()] == ["chat", "decoder"]
    assert client.models.retrieve("chat").owned_by == "glassformer"


def writes(client: "openai.OpenAI", models: dict[str, Model]) -> None:
    completion = client.completions.create(model="decoder", prompt="ab cd", logprobs=2, echo=True, **GREEDY)
    (choice,) = completion.choices
    assert choice.text == "ab cd" + models["decoder"].generate("ab cd", temperature=0, max_new_tokens=10)
    assert choice.logprobs is not None and choice.logprobs.token_logprobs is not None
    assert completion.usage is not None and len(choice.logprobs.token_logprobs) == completion.usage.total_tokens
    answer = client.chat.completions.create(model="chat", messages=[USER], logprobs=True, top_logprobs=2, **GREEDY)
    message = answer.choices[0].message
    assert message.content == models["chat"].chat([USER], temperature=0, max_new_tokens=10)
    scored = answer.choices[0].logprobs
    assert scored is not None and scored.content is not None and len(scored.content[0].top_logprobs) == 2
    # The message of an answer is sent again as it came
    turns = [USER, message, {"role": "user", "content": "the cat"}]
    plain = [USER, {"role": "assistant", "content": message.content}, turns[2]]
    again = client.chat.completions.create(model="chat", messages=turns, n=1, seed=1, stop=["\n"], **GREEDY)
    assert again.choices[0].message.content == models["chat"].chat(plain, temperature=0, max_new_tokens=10, stop="\n")


def streams(client: "openai.OpenAI", models: dict[str, Model]) -> None:
    parts = [*client.completions.create(model="decoder", prompt="ab cd", stream=True, **GREEDY)]
    expected = models["decoder"].generate("ab cd", temperature=0, max_new_tokens=10)
    assert "".join(part.choices[0].text for part in parts) == expected and len(parts) == 10
    with client.chat.completions.stream(
        model="chat", messages=[USER], stream_options={"include_usage": True}, **GREEDY
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        whole = stream.current_completion_snapshot
    answer = models["chat"].chat([USER], temperature=0, max_new_tokens=10)
    assert "".join(deltas) == whole.choices[0].message.content == answer
    assert whole.usage is not None and whole.usage.completion_tokens > 0


def embeds(client: "openai.OpenAI", models: dict[str, Model]) -> None:
    texts = ["ab cd", "日本"]
    for given in ({}, {"encoding_format": "float"}):
        found: Any = client.embeddings.create(model="decoder", input=texts, **given)
        expected = models["decoder"].embed(texts)
        for one, vector in zip(found.data, expected, strict=True):
            assert one.embedding == near(vector.tolist())


def raises_errors(client: "openai.OpenAI", server: ServerProcess) -> None:
    def raised(kind: "type[openai.APIStatusError]", call: Callable[[], Any]) -> Any:
        with pytest.raises(kind) as caught:
            call()
        return caught.value

    create = client.completions.create
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="wrong") as stranger:
        assert raised(openai.AuthenticationError, stranger.models.list).code == "invalid_api_key"
    assert raised(openai.NotFoundError, lambda: create(model="decodr", prompt="a")).code == "model_not_found"
    raised(openai.NotFoundError, lambda: client.models.retrieve("none"))
    for given, param in (
        ({"n": 99}, "n"),
        ({"extra_body": {"maxtokens": 1}}, "maxtokens"),
        ({"suffix": "b"}, "suffix"),
    ):
        error = raised(openai.BadRequestError, lambda given=given: create(model="decoder", prompt="a", **given))
        assert (error.param, error.type) == (param, "invalid_request_error")
    long = [USER | {"content": "red " * 300}]
    error = raised(openai.BadRequestError, lambda: client.chat.completions.create(model="chat", messages=long))
    assert error.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="decoder", prompt=[9999], stream=True)
    with stopped(server), pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.1, max_retries=0).completions.create(model="decoder", prompt="a")


@contextmanager
def stopped(server: ServerProcess) -> Iterator[None]:
    """Let a server answer nothing inside the block."""
    process = psutil.Process(server.process.pid)
    process.suspend()
    until(lambda: process.status() == psutil.STATUS_STOPPED)
    try:
        yield
    finally:
        process.resume()


def leaves(client: "openai.OpenAI", server: ServerProcess) -> None:
    """A client that leaves its streams ends their requests."""

    def n_ended() -> int:
        return server.log.read_text("utf-8").count("POST /v1/chat/completions")

    n_before = n_ended()
    for _ in range(5):
        stream = client.chat.completions.create(model="chat", messages=[USER], stream=True, max_tokens=140)
        next(iter(stream))
        stream.close()
    until(lambda: n_ended() == n_before + 5)


async def writes_at_the_same_time(address: str, models: dict[str, Model]) -> None:
    prompts = ["ab", "cd ef", "日本 c", "🙂"] * 3
    expected = models["decoder"].generate(prompts, temperature=0, max_new_tokens=10)
    async with openai.AsyncOpenAI(base_url=address, api_key=KEY, timeout=120) as client:

        async def streamed(prompt: str) -> str:
            stream = await client.completions.create(model="decoder", prompt=prompt, stream=True, **GREEDY)
            return "".join([part.choices[0].text async for part in stream])

        whole = [client.completions.create(model="decoder", prompt=prompt, **GREEDY) for prompt in prompts]
        answers = await asyncio.gather(*whole)
        assert [answer.choices[0].text for answer in answers] == expected
        assert await asyncio.gather(*map(streamed, prompts)) == expected


def never_shows_its_key(server: ServerProcess) -> None:
    """Neither in answers, nor in the list of processes, nor in its log."""
    assert ask(f"{server.address}/v1/models")[0] == 401 and ask(f"{server.address}/v1/models", key=KEY)[0] == 200
    answers = [json.dumps(ask(f"{server.address}{path}", key=KEY)[1]) for path in ("/openapi.json", "/v1/none")]
    listed = subprocess.run(["ps", "-o", "args=", "-p", str(server.process.pid)], capture_output=True, check=True)
    for text in (*answers, listed.stdout.decode(), server.log.read_text("utf-8")):
        assert text and KEY not in text


def ends_with_0(server: ServerProcess) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(WAIT_S) == 0
    assert "Traceback" not in server.log.read_text("utf-8")


@pytest.fixture
def running(models: dict[str, Model]) -> Iterator[RunningServer]:
    limits = Limits(max_waiting=1, grace=1)
    found = RunningServer(application({"decoder": models["decoder"]}, limits), limits)
    yield found
    found.close()


@pytest.mark.parametrize("is_freed", [True, False])
def test_the_client_tries_again_while_the_server_is_busy(is_freed: bool, running: RunningServer) -> None:
    """By default two more times, after the time that the server gives."""
    statuses = []
    with ExitStack() as place:
        place.enter_context(running.models.place())

        def seen(response: Any) -> None:
            statuses.append((response.status_code, response.headers.get("retry-after")))
            if is_freed:
                place.close()

        with client_of(running, seen) as client:
            if is_freed:
                assert client.completions.create(model="decoder", prompt="ab").choices[0].text
                assert statuses == [(429, "2"), (200, None)]
                return
            with pytest.raises(openai.RateLimitError) as caught:
                client.completions.create(model="decoder", prompt="ab")
    assert statuses == [(429, "2")] * 3 and caught.value.code == "queue_full"


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_repeats_no_request_that_the_model_fails(
    stream: bool, running: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = []

    def fails() -> None:
        raise RuntimeError("the weights are gone")

    with client_of(running, lambda response: statuses.append(response.status_code)) as client:
        with monkeypatch.context() as patch, pytest.raises(openai.InternalServerError) as caught:
            patch.setattr(running.models.served["decoder"].thread.engine, "step", fails)
            client.completions.create(model="decoder", prompt="ab", stream=stream)
        assert statuses == [500] and "the weights are gone" in caught.value.message
        assert client.completions.create(model="decoder", prompt="ab").choices[0].finish_reason, "the next one works"


def client_of(running: RunningServer, seen: Callable[[Any], None]) -> "openai.OpenAI":
    hooks = openai.DefaultHttpxClient(event_hooks={"response": [seen]})
    return openai.OpenAI(base_url=f"{running.address}/v1", api_key="any", timeout=120, http_client=hooks)
