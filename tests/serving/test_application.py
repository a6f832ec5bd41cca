"""The facts of a server: models and metrics."""

import threading
import urllib.request

import pytest

from glassformer.apps.serving import engine_thread
from glassformer.apps.serving.metrics import Metrics
from serving.conftest import Run, Serve
from serving.served import ask, send, until
from serving.test_safety import blocked

CHAT = {"model": "chat", "messages": [{"role": "user", "content": "red dog"}], "temperature": 0}


def test_the_list_of_models_names_the_abilities_of_each(serve: Serve) -> None:
    status, answer = ask(f"{serve()}/v1/models")
    able = {one["id"]: set(one["abilities"]) for one in answer["data"]}
    assert status == 200 and {"completions", "chat"} <= able["chat"]
    assert "chat" not in able["decoder"] and "translate" in able["recurrent"]
    assert "fill_mask" in able["encoder"] and "classify" in able["classifier"]


def test_the_numbers_of_prometheus_count_answers_and_tokens(running: Run) -> None:
    address = running("chat").address
    _, answer = ask(f"{address}/v1/chat/completions", CHAT)
    with urllib.request.urlopen(f"{address}/metrics", timeout=60) as found:
        text = found.read().decode()
    assert f"glassformer_new_tokens_total {float(answer['usage']['completion_tokens'])}" in text
    assert 'glassformer_answers_total{path="/v1/chat/completions",status="200"} 1.0' in text


def test_the_tokens_of_a_step_are_counted_before_they_are_sent(running: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """So the numbers have all tokens of an answer that a client has read."""
    done: list[str] = []
    count, send_pieces = Metrics.step, engine_thread._send
    monkeypatch.setattr(Metrics, "step", lambda *given: (done.append("counted"), count(*given)))
    monkeypatch.setattr(engine_thread, "_send", lambda *given: (done.append("sent"), send_pieces(*given)))
    assert ask(f"{running('chat').address}/v1/chat/completions", CHAT)[0] == 200
    n_sent = done.count("sent")
    assert done[: 2 * n_sent] == ["counted", "sent"] * n_sent and n_sent  # a step without pieces may follow


def test_the_numbers_of_prometheus_have_the_requests_that_wait_for_a_row(
    running: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = running("chat")

    def is_waiting(n: float) -> bool:
        text = send(f"{server.address}/metrics")[2].decode()
        return f'glassformer_waiting_requests{{model="chat"}} {n}\n' in text

    client = threading.Thread(target=ask, args=[f"{server.address}/v1/chat/completions", CHAT])
    with blocked(monkeypatch):
        client.start()
        until(lambda: is_waiting(1.0))
    client.join()
    assert is_waiting(0.0)
