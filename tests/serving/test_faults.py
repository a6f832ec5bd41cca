"""Injected faults of clients, of the models, of the disk and of the process; the server answers the others rightly."""

import contextlib
import gc
import itertools
import json
import logging
import random
import resource
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Any

import psutil
import pytest

from faults.tally import count, injected
from glassformer.apps.serving.settings import Limits
from glassformer.inference.engine import Engine
from inspector.test_hostile_requests import FLOATS, INTS, LISTS, TEXTS
from serving.conftest import Run
from serving.served import WAIT_S, RunningServer, ServerProcesses, ask, send, until

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "red dog"}], "temperature": 0, "max_tokens": 20}
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        CHAT,
        CHAT | {"stream": True},
        CHAT | {"stream": True, "n": 3, "temperature": 1, "max_tokens": 80},
        CHAT | {"n": 2, "temperature": 1, "logprobs": True, "top_logprobs": 5, "max_tokens": 60},
    ],
    "/v1/completions": [
        {"model": "chat", "prompt": ["red", "blue cat"], "stream": True, "max_tokens": 40},
        {"model": "encoder-decoder", "prompt": "red dog", "stream": True},
    ],
    "/v1/translate": [{"model": "encoder-decoder", "sources": ["red dog", "blue cat"], "beam": 3}],
    "/v1/embeddings": [{"model": "encoder", "input": ["red dog"] * 8}],
    "/v1/classify": [{"model": "classifier", "texts": "red dog"}],
}
"""Bodies of requests by path."""
NAMES = ("chat", "encoder", "encoder-decoder", "classifier")


def is_free(server: RunningServer) -> bool:
    """Return True if no request has a place, and no engine a row."""
    models = server.models
    engines = [one.thread.engine for one in models.served.values() if "completions" in one.abilities]
    return models.n_requests == 0 and all(engine.is_idle for engine in engines)


class Reference:
    """The answer that a server gives without faults."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.text = self._text()

    def _text(self) -> str:
        status, answer = ask(f"{self.server.address}/v1/chat/completions", CHAT)
        assert status == 200, answer
        text: str = answer["choices"][0]["message"]["content"]
        return text

    def require(self) -> None:
        """Require that the server becomes free, and then gives the same answer."""
        until(lambda: is_free(self.server))
        assert self._text() == self.text
        until(lambda: is_free(self.server))


def connect(server: RunningServer) -> socket.socket:
    """Return a connection with a small buffer for what the client receives."""
    client = socket.socket()
    client.settimeout(WAIT_S)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(server.listener.getsockname())
    return client


def random_request(draw: random.Random) -> tuple[bytes, bytes]:
    """Return the head and the body of a request that the server would answer."""
    path = draw.choice(list(REQUESTS))
    body = json.dumps(draw.choice(REQUESTS[path])).encode()
    if draw.random() < 0.2:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
        length = "transfer-encoding: chunked"
    else:
        length = f"content-length: {len(body)}"
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{length}\r\n\r\n"
    return head.encode(), body


def leave(client: socket.socket, draw: random.Random) -> None:
    """End a connection, sometimes with a reset."""
    if draw.random() < 0.5:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


# Clients


def test_clients_that_disconnect_leave_no_place_and_no_row(running: Run) -> None:
    server, draw = running(*NAMES), random.Random("disconnect")
    reference, n_clients, at_once = Reference(server), count(40, 1000), 20
    for path, given in REQUESTS.items():
        for one in given:
            assert send(server.address + path, json.dumps(one).encode())[0] == 200, one
    with injected(27, "disconnect") as tally:
        for _ in range(n_clients // at_once):
            clients = [connect(server) for _ in range(at_once)]
            tally.injected += at_once
            for client in clients:
                head, body = random_request(draw)
                given = head + body
                cut = draw.randrange(len(given)) if draw.random() < 0.3 else len(given)
                client.sendall(given[:cut])
            draw.shuffle(clients)
            for client in clients:
                time.sleep(draw.random() ** 4 / 20)
                if draw.random() < 0.3:
                    client.settimeout(0.05)
                    with contextlib.suppress(TimeoutError):
                        client.recv(draw.randrange(1, 5000))
                leave(client, draw)
            reference.require()
            tally.survived += at_once


def test_clients_that_stop_reading_lose_their_place(running: Run) -> None:
    """The others are answered meanwhile."""
    server = running("chat", limits=Limits(deadline=2))
    server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    reference, n_readers = Reference(server), count(5, 50)
    large_answer = {"stream": True, "n": 4, "temperature": 1, "seed": 0, "top_logprobs": 20, "logprobs": True}
    large = json.dumps(CHAT | large_answer).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with injected(28, "-") as tally, contextlib.ExitStack() as stack:
        clients = list[socket.socket]()
        for _ in range(n_readers):
            clients.append(stack.enter_context(connect(server)))
            clients[-1].sendall(b"%scontent-length: %d\r\n\r\n%s" % (head, len(large), large))
            tally.injected += 1
            assert clients[-1].recv(100).startswith(b"HTTP/1.1 200")
        assert ask(f"{server.address}/v1/chat/completions", CHAT)[0] == 200
        reference.require()
        for client in clients:
            data = b""
            with contextlib.suppress(ConnectionResetError):
                while part := client.recv(1 << 16):
                    data += part
            tally.survived += b"[DONE]" not in data


def test_bodies_that_are_cut_short_leave_no_place(running: Run, caplog: pytest.LogCaptureFixture) -> None:
    server, draw = running(*NAMES), random.Random("cut")
    reference = Reference(server)
    with injected(29, "cut") as tally:
        for number in range(count(10, 100)):
            tally.injected += 1
            with connect(server) as client:
                head, body = random_request(draw)
                client.sendall(head + body[: draw.randrange(len(body))])
                if number % 2:
                    client.shutdown(socket.SHUT_WR)
                    client.recv(1 << 16)
                else:
                    leave(client, draw)
            if number % 10 == 9:
                reference.require()
            tally.survived += 1
    assert "Traceback" not in caplog.text and " in\n" not in caplog.text


def test_more_requests_than_allowed_are_answered_or_sent_away(running: Run) -> None:
    server, n_requests = running("chat", limits=Limits(max_waiting=16)), count(60, 200)
    reference, body = Reference(server), json.dumps(CHAT | {"max_tokens": 40}).encode()
    begin = threading.Barrier(n_requests)

    def request(_: int) -> tuple[int, Mapping[str, str], bytes]:
        begin.wait()
        return send(f"{server.address}/v1/chat/completions", body)

    with injected(30, "-") as tally, ThreadPoolExecutor(n_requests) as clients:
        tally.injected += n_requests
        answers = list(clients.map(request, range(n_requests)))
        statuses = Counter(status for status, _, _ in answers)
        assert set(statuses) <= {200, 429} and statuses[200] >= 16, statuses
        assert (
            len({json.loads(answer)["choices"][0]["message"]["content"] for code, _, answer in answers if code == 200})
            == 1
        )
        assert all("retry-after" in headers for code, headers, _ in answers if code == 429)
        reference.require()
        tally.survived += n_requests


# Models


def test_a_failure_of_the_models_ends_the_requests_of_that_moment(
    running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, draw = running("chat"), random.Random("model")
    reference, step = Reference(server), Engine.step
    address = f"{server.address}/v1/chat/completions"
    with injected(31, "model") as tally, ThreadPoolExecutor(6) as clients:
        for _ in range(count(3, 20)):
            numbers, broken = itertools.count(), draw.randrange(5)
            error = draw.choice([RuntimeError("broken"), MemoryError(), SystemExit(1), KeyboardInterrupt()])

            def fails(engine: Engine) -> Any:
                if next(numbers) == broken:  # noqa: B023
                    raise error  # noqa: B023
                return step(engine)

            with monkeypatch.context() as patch:
                patch.setattr(Engine, "step", fails)
                tally.injected += 1
                bodies = [
                    json.dumps(CHAT | {"n": 2, "temperature": 1, "seed": number, "stream": number % 2 == 0}).encode()
                    for number in range(6)
                ]
                answers = list(clients.map(lambda body: send(address, body), bodies))
            failed = [answer for _, _, answer in answers if type(error).__name__.encode() in answer]
            done = [answer for _, _, answer in answers if b"[DONE]" in answer or b'"finish_reason":"' in answer]
            assert failed and len(failed) + len([one for one in done if one not in failed]) == 6, answers
            reference.require()
            tally.survived += 1


# The process


def load(address: str, outcomes: list[str], may_go: threading.Event) -> None:
    """Send requests, one after the other, until the server has gone; note how each has ended."""
    for number in itertools.count():
        if not may_go.is_set():
            return
        try:
            status, _, answer = send(address, json.dumps(CHAT | {"stream": number % 2 == 0}).encode())
        except ConnectionError:
            outcomes.append("refused")
            return
        except (HTTPException, OSError) as error:
            outcomes.append(f"lost: {error!r}")
            return
        is_whole = status == 200 and (b"[DONE]" in answer or b'"finish_reason":"' in answer)
        outcomes.append("whole" if is_whole else f"{status} {answer!r:.200}")


def loaded(address: str, outcomes: list[str], may_go: threading.Event) -> list[threading.Thread]:
    """Start clients, and wait until they have got some answers."""
    may_go.set()
    threads = [threading.Thread(target=load, args=[address, outcomes, may_go]) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(outcomes) >= 16)
    return threads


def test_the_end_of_a_server_loses_no_answer_that_has_begun(running: Run) -> None:
    for _ in range(count(3, 20)):
        server, outcomes = running("chat", limits=Limits(grace=60)), list[str]()
        threads = loaded(f"{server.address}/v1/chat/completions", outcomes, threading.Event())
        server.stop()
        for thread in threads:
            thread.join()
        assert set(outcomes) == {"whole", "refused"} and outcomes.count("refused") == 8


def test_a_signal_under_load_and_a_full_disk_of_logs(processes: ServerProcesses) -> None:
    """The log has one line for each whole answer; after its disk is full, the server answers as before."""
    draw, which = random.Random("signal"), itertools.cycle([signal.SIGTERM, signal.SIGINT])
    with injected(32, "-") as disk, injected(33, "signal") as signals:
        for _ in range(count(1, 20)):
            server, outcomes = processes.start("chat", options=["--grace", "60"]), list[str]()
            threads = loaded(f"{server.address}/v1/chat/completions", outcomes, may_go := threading.Event())
            may_go.clear()
            for thread in threads:
                thread.join()
            assert set(outcomes) == {"whole"}
            line = "POST /v1/chat/completions 200"
            until(lambda: server.log.read_text("utf-8").count(line) == len(outcomes))  # noqa: B023
            size = server.log.stat().st_size
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, size))
            disk.injected += 1
            threads = loaded(f"{server.address}/v1/chat/completions", outcomes, may_go)
            disk.survived += 1
            time.sleep(draw.random() / 5)
            signals.injected += 1
            server.process.send_signal(next(which))
            for thread in threads:
                thread.join()
            assert set(outcomes) == {"whole", "refused"} and outcomes.count("refused") == 8
            assert server.process.wait(WAIT_S) == 0 and server.log.stat().st_size == size
            signals.survived += 1


# Many requests


def test_memory_does_not_grow_with_the_number_of_requests(running: Run) -> None:
    server, draw = running(*NAMES, limits=Limits(prefix_mb=1)), random.Random("many")
    n_requests, process, sizes = count(300, 24_000), psutil.Process(), list[int]()
    words = ["red", "blue", "dog", "cat", "runs", "sleeps"]
    with injected(34, "many") as tally:
        for half in range(2):
            for number in range(n_requests // 2):
                text = " ".join(draw.choices(words, k=draw.randrange(1, 6)))
                kind, status = number % 6, 200
                if kind == 0:
                    path, body = (
                        "/v1/chat/completions",
                        CHAT | {"messages": [{"role": "user", "content": text}], "max_tokens": 3},
                    )
                elif kind == 1:
                    path, body = "/v1/completions", {"model": "chat", "prompt": text, "max_tokens": 3, "stream": True}
                elif kind == 2:
                    path, body = "/v1/embeddings", {"model": "encoder", "input": text, "truncation": "auto"}
                elif kind == 3:
                    path, body = "/v1/classify", {"model": "classifier", "texts": text, "truncation": "auto"}
                elif kind == 4:
                    path, body, status = "/v1/completions", {"model": text, "prompt": "a"}, 404
                else:
                    path, body, status = f"/{number}-{half}", {}, 404
                tally.injected += 1
                found, _, answer = send(server.address + path, json.dumps(body).encode())
                assert found == status, answer
                tally.survived += 1
            gc.collect()
            used = process.memory_info()
            sizes.append(used.rss - used.shared)  # the system may drop pages of libraries, and read them again
    grown = sizes[1] - sizes[0]
    print(f"{n_requests:,} requests: {sizes[0] / 2**20:.1f} MiB after one half, {grown / 2**20:+.1f} MiB in the other")
    assert grown < 8 * 2**20


def bodies(draw: random.Random, document: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield paths and random bodies without end: real names of parameters, with values of any type."""
    schemas = document["components"]["schemas"]
    paths = [path for path, methods in document["paths"].items() if "post" in methods]
    for number in itertools.count():
        path = paths[number % len(paths)]
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        names = schemas[content["$ref"].rpartition("/")[2]]["properties"]
        valid = draw.choice(REQUESTS.get(path, [{}]))
        body = valid | {name: hostile(draw, 2) for name in names if draw.random() < 0.15}
        if draw.random() < 0.7:
            body["model"] = valid.get("model", draw.choice(NAMES))
        data = json.dumps(body).encode()
        if draw.random() < 0.1:
            place = draw.randrange(len(data))
            data = data[:place] + draw.randbytes(3) + data[place + draw.randrange(3) :]
        yield path, data


def hostile(draw: random.Random, depth: int) -> Any:
    """Return a value of any type."""
    kind = draw.randrange(6 if depth else 4)
    if kind == 4:
        return [hostile(draw, depth - 1) for _ in range(draw.randrange(4))]
    if kind == 5:
        return {draw.choice(TEXTS)[:50]: hostile(draw, depth - 1) for _ in range(draw.randrange(3))}
    return draw.choice([INTS, FLOATS, TEXTS, [*LISTS, None, True, False]][kind])


def test_no_request_is_a_defect(running: Run, caplog: pytest.LogCaptureFixture) -> None:
    server, draw = running(limits=Limits(max_tokens=20)), random.Random("hostile")
    given, statuses, problems = bodies(draw, server.app.openapi()), Counter[int](), list[str]()
    with injected(35, "hostile") as tally:
        for path, body in itertools.islice(given, count(200, 2000)):
            tally.injected += 1
            status, _, answer = send(server.address + path, body)
            statuses[status] += 1
            is_answer = status in (200, 204)
            if not is_answer and status in (400, 401, 404):
                sentence = json.loads(answer)["error"]["message"]
                is_answer = 0 < len(sentence) < 600 and sentence.isprintable()
            if not is_answer:
                problems.append(f"{path} {body!r:.300}: {status} {answer!r:.300}")
            tally.survived += is_answer
    assert not problems, "\n".join(problems)
    assert statuses[200] > 10 and statuses[400] > 50, statuses
    until(lambda: is_free(server))
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
