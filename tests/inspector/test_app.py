"""The application checks hosts, sizes and types, answers errors as one sentence, and never lets requests compete."""

import asyncio
import threading
import warnings
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from glassformer.apps.inspector.app import MAX_BODY, Call, Packed, application, arguments
from glassformer.apps.inspector.worker import Busy, Worker
from glassformer.common.errors import UnknownText, UserError, count_unknown


def double(number: int, word: str = "", flag: bool = False, ids: list[int] | None = None) -> dict[str, Any]:
    if number == 13:
        raise UserError("13 is refused")
    if number == 14:
        raise RuntimeError("a mistake of ours")
    return {"number": 2 * number, "word": word, "flag": flag, "ids": ids}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    for folder in ("page", "panels"):
        (tmp_path / folder).mkdir()
    (tmp_path / "page" / "index.html").write_text("<!doctype html><title>page</title>")
    calls = [
        Call("GET", "/api/double/{number}", double),
        Call("POST", "/api/double", double),
        Call("GET", "/api/bytes", lambda: Packed(b"abc", (1, 3)), is_quick=True),
    ]
    app = application(calls, tmp_path, ["testserver"], Worker())
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def test_words_of_a_path_and_a_query_get_their_types(client: TestClient) -> None:
    found = client.get("/api/double/21?flag=1&word=7").json()
    assert found == {"number": 42, "word": "7", "flag": True, "ids": None}


def test_a_body_keeps_its_types(client: TestClient) -> None:
    assert client.post("/api/double", json={"number": 1, "ids": [1, 2]}).json()["ids"] == [1, 2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "the argument 'number' is missing"),
        ({"nunber": 1}, "unknown argument 'nunber': did you mean number?"),
        ({"number": "1"}, "number: expected int, got '1'"),
        ({"number": True}, "number: expected int, got True"),
        ({"number": 1, "ids": [1, "2"]}, "ids: expected list[int] or NoneType, got [1, '2']"),
        ({"number": 13}, "13 is refused"),
        ([1], "expected a JSON object"),
    ],
)
def test_a_wrong_request_is_answered_with_a_sentence(client: TestClient, body: Any, words: str) -> None:
    answer = client.post("/api/double", json=body)
    assert answer.status_code == 400 and answer.json() == {"error": words}


def test_a_word_in_place_of_a_number_is_refused(client: TestClient) -> None:
    answer = client.get("/api/double/x")
    assert answer.status_code == 400 and answer.json() == {"error": "number: expected int, got 'x'"}


def test_a_defect_is_named(client: TestClient) -> None:
    answer = client.get("/api/double/14")
    assert answer.status_code == 500 and "RuntimeError: a mistake of ours" in answer.json()["error"]


def test_another_host_name_is_refused(client: TestClient) -> None:
    """A page of another site cannot reach the server under its own name (DNS rebinding)."""
    assert client.get("/", headers={"host": "evil.example"}).status_code == 400


def test_another_content_type_is_refused(client: TestClient) -> None:
    """A form of another site can send text, but no JSON without permission (CORS)."""
    answer = client.post("/api/double", content='{"number": 1}', headers={"content-type": "text/plain"})
    assert answer.status_code == 400 and "application/json" in answer.json()["error"]


def test_a_large_or_broken_body_is_refused(client: TestClient) -> None:
    headers = {"content-type": "application/json"}
    assert client.post("/api/double", content=b" " * (MAX_BODY + 1), headers=headers).status_code == 413
    for broken in (b"{", b"\xff", b"[" * 100_000):
        answer = client.post("/api/double", content=broken, headers=headers)
        assert answer.status_code == 400 and "not JSON" in answer.json()["error"]


@pytest.mark.parametrize("path", ["/", "/api/double/1", "/api/nothing", "/../pyproject.toml"])
def test_every_answer_has_the_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_bytes_come_with_their_shape(client: TestClient) -> None:
    answer = client.get("/api/bytes")
    assert answer.content == b"abc" and answer.headers["x-shape"] == "1,3"


def test_a_missing_path_is_answered_with_json(client: TestClient) -> None:
    answer = client.get("/api/nothing")
    assert answer.status_code == 404 and answer.json()["error"]


def test_a_float_may_be_an_int() -> None:
    def call(temperature: float) -> dict[str, Any]:
        return {}

    assert arguments(call, {}, {}, {"temperature": 1}) == {"temperature": 1}
    assert arguments(call, {}, {"temperature": "0.5"}, {}) == {"temperature": 0.5}


def in_a_thread(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a thread of its own: that of the tests has an event loop if a browser is open."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, coroutine).result()


def test_jobs_run_one_after_the_other() -> None:
    running, most = 0, 0

    def job() -> dict[str, Any]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        threading.Event().wait(0.01)
        running -= 1
        return {}

    async def all_jobs(worker: Worker) -> None:
        await asyncio.gather(*(worker.run(job) for _ in range(8)))

    in_a_thread(all_jobs(Worker()))
    assert most == 1


def test_a_full_queue_and_a_missed_deadline_are_refused() -> None:
    release = threading.Event()

    async def crowd() -> None:
        worker = Worker(limit=1, deadline=60)
        first, second = (asyncio.ensure_future(worker.run(release.wait)) for _ in range(2))
        while worker.n_jobs < 2:
            await asyncio.sleep(0)
        with pytest.raises(Busy, match="2 requests wait already"):
            await worker.run(release.wait)
        release.set()
        assert await first and await second
        assert await worker.run(lambda: 5) == 5, "a place is free again"
        release.clear()
        slow = Worker(deadline=0.05)
        with pytest.raises(Busy, match=r"no result within 0\.05 seconds"):
            await slow.run(release.wait)
        release.set()
        worker.close()
        with pytest.raises(Busy, match="stopping"):
            await worker.run(release.wait)

    in_a_thread(crowd())


def test_a_client_may_leave_in_the_middle_of_a_body(client: TestClient) -> None:
    """Nothing is raised, so the server writes no traceback."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/double",
        "query_string": b"",
        "headers": [(b"host", b"testserver"), (b"content-type", b"application/json")],
    }
    parts: Any = iter([{"type": "http.request", "body": b'{"num', "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        pass

    in_a_thread(client.app(scope, receive, send))


def test_a_job_whose_request_has_ended_keeps_its_place_and_never_begins() -> None:
    """The queue is bounded also while a job that does not end holds the thread."""
    release, begun = threading.Event(), list[int]()

    async def crowd() -> None:
        worker = Worker(limit=1, deadline=0.01)
        for job in (release.wait, lambda: begun.append(1)):
            with pytest.raises(Busy, match="no result"):
                await worker.run(job)
        with pytest.raises(Busy, match="2 requests wait already"):
            await worker.run(release.wait)
        release.set()
        while worker.n_jobs:
            await asyncio.sleep(0.001)
        worker.close(waits=True)

    in_a_thread(crowd())
    assert not begun


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_job_is_in_the_block_of_unknown_texts_of_its_server(is_silent: bool) -> None:
    """So a server for other programs gives no notes, which would contain texts of its clients."""

    async def read() -> None:
        worker = Worker()
        with UnknownText(is_silent=is_silent):
            await worker.run(count_unknown, 1, lambda: ["'é' at character 1 of 'é'"])
        worker.close(waits=True)

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        in_a_thread(read())
    assert len(notes) == (not is_silent)
