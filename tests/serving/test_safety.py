"""The server refuses what is not allowed, in one sentence, and an error ends one request and nothing else."""

import ast
import contextlib
import http.client
import itertools
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest

from glassformer.apps.serving.engine_thread import EngineThread
from glassformer.apps.serving.lineages import Classify
from glassformer.apps.serving.settings import Access, Limits, read_key
from glassformer.common.errors import UserError
from glassformer.inference.engine import Engine, Step
from glassformer.inference.writer import RowText
from serving.conftest import Run, Serve
from serving.served import WAIT_S, RunningServer, ask, send, until

KEY = "secret-of-the-tests"
TEXT = "red dog"
CHAT = {"model": "chat", "messages": [{"role": "user", "content": TEXT}], "temperature": 0, "max_tokens": 4}


def message_of(body: bytes) -> str:
    """Return the sentence of an error object."""
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and "\n" not in error["message"]
    sentence: str = error["message"]
    return sentence


# Access


def test_every_path_but_the_open_ones_needs_the_key(running: Run) -> None:
    server = running("chat", access=Access(key=KEY))
    paths = {path: set(methods) for path, methods in server.app.openapi()["paths"].items()}
    closed = {path: methods for path, methods in paths.items() if path not in ("/", "/health", "/session")}
    assert {"/v1/models", "/v1/models/{name}", "/v1/chat/completions", "/v1/completions"} <= set(closed)
    others = ("/openapi.json", "/look/", "/healthy", "/health/", "/pages", "/page", "/session/x")
    closed |= {path: {"get"} for path in others}
    for path, methods in closed.items():
        for method in methods:
            body = b"{}" if method == "post" else None
            for key in ({}, {"authorization": "Bearer other"}, {"cookie": "glassformer=other"}):
                status, _, answer = send(server.address + path, body, **key)
                assert status == 401 and "Bearer KEY" in message_of(answer), (method, path)
    assert ask(f"{server.address}/health")[0] == 200
    assert ask(f"{server.address}/v1/models", key=KEY)[0] == 200
    assert send(f"{server.address}/v1/models", authorization=f"bearer  {KEY} ")[0] == 200


def test_another_host_is_refused_on_every_path(running: Run) -> None:
    """A page of another site whose name leads to this computer (DNS rebinding) reaches nothing."""
    address = running("chat").address
    for host in ("example.org", "localhost.example.org", "127.0.0.1.example.org:8000", "[", "", "[::1]"):
        for path in ("/health", "/v1/models", "/"):
            status, _, answer = send(address + path, host=host)
            assert status == 400 and "Host" in message_of(answer)
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1"):
        assert send(f"{address}/health", host=host)[0] == 200


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"host": "0.0.0.0"}, "other computers reach 0.0.0.0, and the server has no key"),
        ({"key": ""}, "one word of printable ASCII"),
        ({"key": "two words"}, "one word of printable ASCII"),
        ({"key": "line\nbreak"}, "one word of printable ASCII"),
        ({"key": "schlüssel"}, "one word of printable ASCII"),
    ],
)
def test_access_that_is_not_safe_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        Access(**given)


def test_the_key_is_that_of_the_file_or_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLASSFORMER_API_KEY", "of-the-environment")
    (tmp_path / "key").write_text("of-the-file\n", "utf-8")
    assert read_key(None) == "of-the-environment" and read_key(tmp_path / "key") == "of-the-file"
    assert "of-the-file" not in repr(Access(key=read_key(tmp_path / "key")))


# Bodies


def test_a_body_is_json_of_a_limited_size(running: Run) -> None:
    address = running("chat", limits=Limits(max_body=1000)).address + "/v1/chat/completions"
    body = json.dumps(CHAT).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"):
        status, _, answer = send(address, body, content_type=kind)
        assert status == 415 and "application/json" in message_of(answer)
    for kind in ("Application/JSON", "application/json; charset=utf-8"):
        assert send(address, body, content_type=kind)[0] == 200
    large = body + b" " * 1000
    for given in (large, iter([large[:500], large[500:]])):
        status, _, answer = send(address, given)
        assert status == 413 and message_of(answer) == "the request has more than 1,000 bytes"
    assert send(address, iter([body[:5], body[5:]]))[0] == 200


HOSTILE: dict[str, bytes] = {
    "deep": b"[" * 100_000,
    "deep, closed": b'{"metadata": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001,
    "deep lists": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no JSON": b"{'a': 1}",
    "empty": b"",
    "null": b"null",
    "list": b"[]",
    "cut": json.dumps(CHAT).encode()[:-1],
    "NaN": b'{"messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
    "infinity": b'{"messages": [{"role": "user", "content": "a"}], "temperature": -Infinity}',
    "huge float": b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e999}',
    "huge seed": b'{"messages": [{"role": "user", "content": "a"}], "seed": 1' + b"0" * 4000 + b"}",
    "more digits than Python reads": b'{"messages": [{"role": "user", "content": "a"}], "seed": 1' + b"0" * 9000 + b"}",
    "invalid UTF-8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "UTF-16": '{"messages": []}'.encode("utf-16"),
    "surrogate in a text": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "surrogate in a name": b'{"message\\ud800": 1, "messages": [{"role": "user", "content": "a"}]}',
    "surrogate in the model": b'{"model": "\\udfff", "messages": [{"role": "user", "content": "a"}]}',
    "surrogate in a stop": b'{"messages": [{"role": "user", "content": "a"}], "stop": ["\\ud800"]}',
    "surrogate as an id": b'{"messages": [{"role": "user", "content": "a"}], "logit_bias": {"\\ud800": 1}}',
    "long name": b'{"' + b"a" * 100_000 + b'": 1}',
    "many names": json.dumps({f"a{number}": 1 for number in range(20_000)}).encode(),
    "negative id": b'{"messages": [{"role": "user", "content": "a"}], "logit_bias": {"-1": 1}}',
    "unknown id": b'{"messages": [{"role": "user", "content": "a"}], "logit_bias": {"99999999": 1}}',
    "n": b'{"messages": [{"role": "user", "content": "a"}], "n": 17}',
    "long prompt": json.dumps(CHAT | {"messages": [{"role": "user", "content": "a " * 5000}]}).encode(),
    "role": b'{"messages": [{"role": "critic", "content": "a"}]}',
}


def test_hostile_json_is_refused_in_one_sentence(running: Run) -> None:
    server = running("chat")
    for what, body in HOSTILE.items():
        status, _, answer = send(f"{server.address}/v1/chat/completions", body)
        expected = 404 if what == "surrogate in the model" else 400
        assert status == expected and 0 < len(message_of(answer)) <= 400, (what, answer)
    twice = b'{"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "max_tokens": 2}'
    assert json.loads(send(f"{server.address}/v1/chat/completions", twice)[2])["usage"]["completion_tokens"] <= 2
    assert ask(f"{server.address}/v1/chat/completions", CHAT)[0] == 200


def test_prompts_that_the_model_does_not_have_are_refused(serve: Serve) -> None:
    address = serve("chat", "encoder-decoder", limits=Limits(max_n=2)) + "/v1/completions"
    for model in ("chat", "encoder-decoder"):
        for prompt in ([-1], [2**31], [99_999], [[0], [99_999]], [1] * 5000, "red " * 5000, ["a"] * 3, [], [[]], [1.5]):
            status, answer = ask(address, {"model": model, "prompt": prompt})
            assert status == 400 and len(answer["error"]["message"]) < 600, (model, prompt)
        assert ask(address, {"model": model, "prompt": "a", "n": 3})[0] == 400


# Limits


@contextlib.contextmanager
def blocked(monkeypatch: pytest.MonkeyPatch, n_steps: int = 0) -> Iterator[None]:
    """Let all engines together make no more than `n_steps` steps inside the block."""
    may_go, step, numbers = threading.Event(), Engine.step, itertools.count()

    def waiting(engine: Engine) -> Any:
        if next(numbers) >= n_steps:
            may_go.wait()
        return step(engine)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "step", waiting)
        try:
            yield
        finally:
            may_go.set()


def test_requests_above_the_limit_are_refused_with_a_time_to_return(
    running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, answers = running("chat", limits=Limits(max_waiting=2)), list[int]()
    address = f"{server.address}/v1/chat/completions"
    with blocked(monkeypatch):
        threads = [threading.Thread(target=lambda: answers.append(ask(address, CHAT)[0])) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: server.models.n_requests == 2)
        for more in ({}, {"stream": True}):
            status, headers, answer = send(address, json.dumps(CHAT | more).encode())
            assert status == 429 and int(headers["retry-after"]) >= 1 and "try again later" in message_of(answer)
    for thread in threads:
        thread.join()
    assert answers == [200, 200] and server.models.n_requests == 0


def test_a_request_ends_at_the_deadline(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    server = running("chat", limits=Limits(deadline=0.2))
    with blocked(monkeypatch):
        status, headers, answer = send(f"{server.address}/v1/chat/completions", json.dumps(CHAT).encode())
    assert status == 504 and headers["x-should-retry"] == "false" and "deadline" in message_of(answer)
    assert server.models.n_requests == 0


def connect(server: RunningServer) -> socket.socket:
    """Return a connection whose buffers are small on both sides."""
    parts = urlsplit(server.address)
    assert parts.hostname is not None and parts.port is not None
    server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client = socket.socket()
    client.settimeout(WAIT_S)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((parts.hostname, parts.port))
    return client


def request_bytes(body: dict[str, Any], length: int | None = None) -> bytes:
    """Return a request to the endpoint of chats; another `length` may be claimed than the body has."""
    data = json.dumps(body).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {length or len(data)}\r\n\r\n".encode() + data


def rest(client: socket.socket) -> bytes:
    """Return all that a connection still has, until the server ends it."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(1 << 16):
            data += part
    return data


LARGE = CHAT | {"stream": True, "n": 16, "logprobs": True, "top_logprobs": 20, "max_tokens": 100}
LARGE |= {"temperature": 1, "seed": 0}


def test_clients_that_are_too_slow_lose_their_place(running: Run) -> None:
    """The deadline ends a request whose body does not arrive, and one whose answer is not read."""
    server = running("chat", limits=Limits(deadline=1))
    with connect(server) as half_body, connect(server) as stalled:
        half_body.sendall(request_bytes(CHAT, length=500))
        answer = http.client.HTTPResponse(half_body)
        answer.begin()
        assert answer.status == 504
        stalled.sendall(request_bytes(LARGE))
        assert stalled.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: server.models.n_requests == 0)
        until(lambda: server.models.served["chat"].thread.engine.is_idle)
        assert b"[DONE]" not in rest(stalled)
    assert ask(f"{server.address}/v1/chat/completions", CHAT)[0] == 200


def test_a_connection_is_kept_between_requests_and_ends_when_it_is_not_used(running: Run) -> None:
    parts = urlsplit(running("chat").address)
    assert parts.hostname is not None
    client = http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT_S)
    with contextlib.closing(client):
        client.connect()
        first = client.sock
        for _ in range(3):
            client.request("GET", "/health")
            assert client.getresponse().read() and client.sock is first
        assert rest(first) == b""


# Failures


FAILURES: dict[str, tuple[Any, str]] = {
    "a step": (Engine, "step"),
    "a new request": (Engine, "add"),
    "a new row": (RowText, "__init__"),
    "the text of a row": (RowText, "push"),
    "a piece": (EngineThread, "_put"),
}
ERRORS = [RuntimeError("broken"), MemoryError(), SystemExit(3), KeyboardInterrupt()]


@pytest.mark.parametrize("place", FAILURES)
def test_an_error_of_the_model_ends_its_request_only(
    running: Run, monkeypatch: pytest.MonkeyPatch, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = running("chat")
    address = f"{server.address}/v1/chat/completions"
    for error in ERRORS:

        def fail(*_: Any, error: BaseException = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(*FAILURES[place], fail)
            status, headers, answer = send(address, json.dumps(CHAT).encode())
            assert status == 500 and type(error).__name__ in message_of(answer), error
            assert headers["x-should-retry"] == "false"
            status, _, answer = send(address, json.dumps(CHAT | {"stream": True}).encode())
            assert status == 500 and message_of(answer)
            assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2
            caplog.clear()
        assert ask(address, CHAT)[0] == 200
        until(lambda: server.models.n_requests == 0 and server.models.served["chat"].thread.engine.is_idle)


def test_an_error_of_a_batch_ends_its_requests_only(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    server, body = running("classifier"), {"texts": [TEXT, "blue cat"]}
    for name in ("n_tokens", "answers"):
        for error in ERRORS:
            with monkeypatch.context() as patch:
                patch.setattr(Classify, name, Mock(side_effect=error))
                status, answer = ask(f"{server.address}/v1/classify", body)
                assert status == 500 and type(error).__name__ in answer["error"]["message"]
            assert ask(f"{server.address}/v1/classify", body)[0] == 200
    assert server.models.n_requests == 0


def test_an_error_of_one_request_does_not_end_those_beside_it(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    server, answers = running("chat"), list[int]()
    address, put = f"{server.address}/v1/chat/completions", EngineThread._put

    def fails_for_one(thread: EngineThread, step: Step, pieces: Any) -> None:
        if step.row.request.n_new == 3:
            raise RuntimeError("broken")
        put(thread, step, pieces)

    monkeypatch.setattr(EngineThread, "_put", fails_for_one)
    with blocked(monkeypatch):
        threads = [
            threading.Thread(target=lambda n=n: answers.append(ask(address, CHAT | {"max_tokens": n})[0]))
            for n in (3, 4, 5)
        ]
        for thread in threads:
            thread.start()
        until(lambda: server.models.n_requests == 3)
    for thread in threads:
        thread.join()
    assert sorted(answers) == [200, 200, 500]


def test_an_error_outside_of_the_models_is_an_error_object(running: Run, caplog: pytest.LogCaptureFixture) -> None:
    server = running("chat")

    @server.app.get("/broken")
    async def broken() -> None:
        raise ValueError(TEXT)

    status, _, answer = send(f"{server.address}/broken")
    assert status == 500 and "ValueError" in message_of(answer)
    assert "ValueError in" in caplog.text and TEXT not in caplog.text and "ASGI" not in caplog.text


def test_requests_that_outlast_the_grace_get_an_error_object(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    server, answers = running("chat", limits=Limits(grace=1)), list[bytes]()

    def ask_for_the_whole() -> None:
        answers.append(send(f"{server.address}/v1/chat/completions", json.dumps(CHAT).encode())[2])

    with blocked(monkeypatch, n_steps=1), connect(server) as client:
        client.sendall(request_bytes(CHAT | {"stream": True}))
        stream = http.client.HTTPResponse(client)
        stream.begin()  # with the first part: the other request does not take the only step
        whole = threading.Thread(target=ask_for_the_whole)
        whole.start()
        until(lambda: server.models.n_requests == 2)
        server.stop()
        whole.join()
        *parts, last = stream.read().decode().strip().split("\n\n")
    assert message_of(answers[0]) == "the server is stopping"
    assert parts and message_of(last.removeprefix("data: ").encode()) == "the server is stopping"


# The log


def test_the_log_has_no_texts_unless_asked_and_no_lines_of_clients(
    running: Run, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "glassformer.serving")
    server = running("chat", access=Access(key=KEY))
    path = f"{server.address}/v1/chat/completions"
    for body in (CHAT, CHAT | {"stream": True}, CHAT | {"unknown": TEXT}, CHAT | {"stop": 5 * [TEXT], "n": 99}):
        send(path, json.dumps(body).encode(), authorization=f"Bearer {KEY}")
    send(f"{server.address}/v1/a%0A2026%20GET%1b[31m{'x' * 5000}", authorization=f"Bearer {KEY}")
    until(lambda: len(caplog.records) == 5)
    messages = [record.getMessage() for record in caplog.records]
    assert all(message.isprintable() and len(message) < 300 for message in messages)
    assert TEXT not in caplog.text and KEY not in caplog.text and r"/v1/a\n2026 GET\x1b" in messages[-1]


def test_with_log_texts_requests_and_answers_are_logged(running: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "glassformer.serving")
    server = running("chat", log_texts=True)
    _, _, answer = send(f"{server.address}/v1/chat/completions", json.dumps(CHAT).encode())
    until(lambda: len(caplog.records) == 3)
    texts = [record.getMessage() for record in caplog.records[1:]]
    assert all(text.isprintable() for text in texts)
    given, written = (json.loads(ast.literal_eval(text.partition(": ")[2])) for text in texts)
    assert given == CHAT and written == json.loads(answer)
    caplog.clear()
    send(f"{server.address}/session", json.dumps({"key": KEY}).encode())
    until(lambda: len(caplog.records) == 1)
    assert KEY not in caplog.text
