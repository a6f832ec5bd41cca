"""Limits of the cost of a request: endless work delays neither other requests nor the end of the process."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from glassformer.apps.serving.models import PREPARING
from glassformer.apps.serving.settings import Limits
from glassformer.model import Model
from glassformer.tokenization.conversations import ConversationEncoder
from glassformer.tokenization.tokenizer import Tokenizer
from serving.conftest import Run
from serving.served import WAIT_S, ask, send, until

CHAT: Any = {"model": "chat", "messages": [{"role": "user", "content": "red dog"}], "temperature": 0, "max_tokens": 4}
TEXT: Any = {"model": "decoder", "prompt": "ab", "temperature": 0, "max_tokens": 4}


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let the rendering of conversations wait until the event is set."""
    may_go, prompt = threading.Event(), ConversationEncoder.prompt

    def waiting(encoder: ConversationEncoder, messages: Any) -> list[int]:
        may_go.wait()
        return prompt(encoder, messages)

    monkeypatch.setattr(ConversationEncoder, "prompt", waiting)
    yield may_go
    may_go.set()


def test_other_models_answer_while_templates_run(running: Run, stuck: threading.Event) -> None:
    server, n_stuck = running("chat", "decoder"), PREPARING + 2
    with ThreadPoolExecutor(n_stuck) as clients:
        answers = [clients.submit(ask, f"{server.address}/v1/chat/completions", CHAT) for _ in range(n_stuck)]
        until(lambda: server.models.n_requests == n_stuck)
        assert ask(f"{server.address}/v1/completions", TEXT)[0] == 200
        assert ask(f"{server.address}/health")[0] == 200
        assert not [one for one in answers if one.done()]
        stuck.set()
        assert [one.result()[0] for one in answers] == [200] * n_stuck


@pytest.mark.parametrize("path", ["", "/prompt"])
def test_a_template_that_does_not_end_has_a_deadline_and_a_bounded_queue(
    running: Run, stuck: threading.Event, path: str
) -> None:
    server = running("chat", limits=Limits(deadline=0.2, max_waiting=2))
    assert "chat" in server.models.served["chat"].abilities  # found once, before the first deadline
    statuses = list[int]()

    def is_refused() -> bool:
        more = {"stream": len(statuses) == 1}
        status, _, answer = send(f"{server.address}/v1/chat/completions{path}", json.dumps(CHAT | more).encode())
        assert json.loads(answer)["error"]["message"]
        statuses.append(status)
        return status == 503

    until(is_refused)
    assert is_refused()
    preparing = server.models.served["chat"].preparing
    # On a busy machine, the deadline of a request may come before its job waits: then one more is accepted
    assert preparing.n_jobs == 3 and len(statuses) >= 5 and {*statuses[:-2]} == {504}
    assert server.models.n_requests == 0
    stuck.set()
    until(lambda: preparing.n_jobs == 0)


def test_texts_are_prepared_in_threads_of_their_own(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the event loop nor the thread of models encodes a prompt or a conversation."""
    server, names = running(), set[str]()

    def noting(run: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any, **more: Any) -> Any:
            names.add(re.sub("_[0-9]+$", "", threading.current_thread().name))
            return run(*given, **more)

        return noted

    for kind, name in ((Tokenizer, "encode"), (Tokenizer, "encode_with_offsets"), (ConversationEncoder, "prompt")):
        monkeypatch.setattr(kind, name, noting(getattr(kind, name)))
    for path in ("", "/prompt"):
        assert ask(f"{server.address}/v1/chat/completions{path}", CHAT)[0] == 200
        assert ask(f"{server.address}/v1/completions{path}", TEXT)[0] == 200
    assert names == {"preparing"}


# Large requests


def large_requests() -> dict[str, tuple[str, Any]]:
    """Return requests of up to 1 MB, each with much of one thing."""
    many, text = 900_000, "red dog " * 110_000
    history = [{"role": ("user", "assistant")[number % 2], "content": "red"} for number in range(1023)]
    tools = [{"type": "function", "function": {"name": f"f{number}"}} for number in range(10_000)]
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    chat, texts = "/v1/chat/completions", "/v1/completions"
    return {
        "long stop": (texts, TEXT | {"stop": "a" * many}),
        "many stops": (texts, TEXT | {"stop": ["a"] * 200_000}),
        "stops at the limit": (texts, TEXT | {"stop": ["a" * number + "b" for number in range(1000, 1016)]}),
        "bias": (texts, TEXT | {"logit_bias": {f"{number}x": 1 for number in range(60_000)}}),
        "ids": (texts, TEXT | {"prompt": [1] * 300_000}),
        "wrong ids": (texts, TEXT | {"prompt": ["a"] + [1] * 300_000}),
        "prompts": (texts, TEXT | {"prompt": ["a"] * 200_000}),
        "long prompt": (texts, TEXT | {"prompt": text}),
        "huge n": (texts, TEXT | {"n": 10**300}),
        "long message": (chat, CHAT | {"messages": [{"role": "user", "content": text}]}),
        "many messages": (chat, CHAT | {"messages": history, "truncation": "auto"}),
        "special tokens": (chat, CHAT | {"messages": [{"role": "user", "content": "<|im_end|>" * 90_000}]}),
        "parts": (chat, CHAT | {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 30_000}]}),
        "tools": (chat, CHAT | {"tools": tools}),
        "calls": (chat, CHAT | {"messages": [{"role": "assistant", "content": None, "tool_calls": tools}]}),
        "deep": (chat, CHAT | {"metadata": deep}),
        "unknown names": (chat, CHAT | {f"max_tokenz{number}": 1 for number in range(40_000)}),
        "vectors": ("/v1/embeddings", {"model": "encoder", "input": ["red"] * 100_000}),
        "long text": ("/v1/embeddings", {"model": "encoder", "input": text, "truncation": "auto"}),
        "words": ("/v1/tag", {"model": "encoder", "sentences": [["a"]] * 100_000}),
        "key": ("/session", {"key": "a" * many}),
    }


def test_large_requests_get_a_sentence_while_another_client_is_answered(running: Run) -> None:
    """A refused request takes no job of the thread of models, so no step of another client waits for it."""
    server, jobs = running(), list[str]()
    worker = server.models.batches.worker
    post: Callable[..., None] = worker.post

    def noted(job: Callable[..., object], *given: Any) -> None:
        jobs.append(job.__name__)
        post(job, *given)

    worker.post = noted  # type: ignore[method-assign]

    refused = []
    for what, (path, body) in large_requests().items():
        data = json.dumps(body).encode()
        assert len(data) < 1 << 20, what
        with ThreadPoolExecutor(1) as clients:
            large = clients.submit(send, server.address + path, data)
            assert ask(f"{server.address}/v1/completions", TEXT | {"prompt": "cd"})[0] == 200, what
            status, _, answer = large.result()
        assert status in (200, 204, 400), (what, status)
        if status == 400:
            refused.append(what)
            assert 0 < len(json.loads(answer)["error"]["message"]) <= 400, what
            assert jobs.count("_add") == 1 and set(jobs) == {"_add", "_step"}, what  # of the other client
        jobs.clear()
    assert len(refused) >= 12, refused


# The end of the process

SCRIPT = """
import sys, time
from glassformer.inference.engine import Engine
from glassformer.apps.serving.settings import Limits
from glassformer.apps.serving.run import serve
from glassformer.tokenization.conversations import ConversationEncoder

def runs(*_):
    print("at work", flush=True)
    while True:
        pass

def sleeps(*_):
    print("at work", flush=True)
    time.sleep(1e6)

{patch}
serve({{"chat": sys.argv[1]}}, port=0, limits=Limits(grace=1, deadline={deadline}))
"""
PATCHES = {
    "a template": "ConversationEncoder.prompt = runs",
    "a step": "Engine.step = runs",
    "a native call": "Engine.step = sleeps",
}


@pytest.mark.parametrize(
    ("what", "deadline"), [("a template", 0.5), ("a template", 600.0), ("a step", 600.0), ("a native call", 600.0)]
)
def test_a_signal_ends_the_process_during_any_work(
    what: str, deadline: float, models: dict[str, Model], tmp_path: Path, environment: dict[str, str]
) -> None:
    models["chat"].save(tmp_path / "chat")
    script = SCRIPT.format(patch=PATCHES[what], deadline=deadline)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "chat")],
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | environment,
        )
    assert process.stdout is not None
    with process, ThreadPoolExecutor(1) as clients:
        try:
            found = re.search(r"http://.*/v1(?=  )", process.stdout.readline().decode())
            assert found is not None, (tmp_path / "log").read_text("utf-8")
            asked = clients.submit(ask, f"{found[0]}/chat/completions", CHAT)
            assert process.stdout.readline() == b"at work\n"
            if deadline < 1:
                assert asked.result()[0] == 504
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 1
            if deadline > 1:
                status, answer = asked.result()
                assert status == 503 and answer["error"]["message"] == "the server is stopping"
        finally:
            process.kill()
    assert "the process ends without it" in (tmp_path / "log").read_text("utf-8")
