"""Requests of the tests, servers in a thread, and `glassformer serve` as a process of its own."""

import http.client
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI

from glassformer.apps.serving.models import Models
from glassformer.apps.serving.run import uvicorn_server
from glassformer.apps.serving.settings import Limits
from glassformer.model import Model
from server_thread import ServerThread

WAIT_S = 300


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"the condition does not hold after {WAIT_S} seconds"
        time.sleep(0.01)


def ask(address: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
    """Send a request, a POST if there is a body; return the status and the answer, read as JSON."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=WAIT_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def send(
    address: str, body: bytes | Iterable[bytes] | None = None, *, method: str | None = None, **headers: str
) -> tuple[int, Mapping[str, str], bytes]:
    """Send any bytes, and headers whose names have `_` for `-`; return the status, the headers and the body.

    A body in several parts is sent in chunks, without a length.
    """
    parts = urlsplit(address)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=WAIT_S)
    given = {name.replace("_", "-"): value for name, value in ({"content_type": "application/json"} | headers).items()}
    try:
        connection.request(method or ("GET" if body is None else "POST"), parts.path, body, given)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


class RunningServer(ServerThread):
    """An application in a thread of this process."""

    def __init__(self, app: FastAPI, limits: Limits) -> None:
        super().__init__(uvicorn_server(app, limits))
        self.app = app

    @property
    def models(self) -> Models:
        """The models of the server, and the number of its requests."""
        models: Models = self.app.state.models
        return models


@dataclass
class ServerProcess:
    """A running `glassformer serve`."""

    process: "subprocess.Popen[bytes]"
    address: str
    log: Path


@dataclass
class ServerProcesses:
    """Starts processes of the server; the folder keeps their models and logs."""

    folder: Path
    models: Mapping[str, Model]
    environment: Mapping[str, str]
    running: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def start(
        self, *names: str, host: str = "127.0.0.1", options: Sequence[str] = (), **variables: str
    ) -> ServerProcess:
        """Serve models of the tests by name; wait until the server answers."""
        given = []
        for name in names:
            directory = self.folder / name
            if not directory.exists():
                self.models[name].save(directory)
            given.append(f"{name}={directory}")
        log = self.folder / f"log-{len(self.running)}.txt"
        command = [sys.executable, "-m", "glassformer", "serve", *given, "--host", host, "--port", "0", *options]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | self.environment | variables)
        self.running.append(process)
        end = time.monotonic() + WAIT_S
        while process.poll() is None and time.monotonic() < end:
            if found := re.search(r"^serving .*: (http://.*)/v1  ", log.read_text("utf-8"), re.MULTILINE):
                assert ask(f"{found[1]}/health")[0] == 200
                return ServerProcess(process, found[1], log)
            time.sleep(0.05)
        raise AssertionError(f"the server does not answer: {log.read_text('utf-8')}")

    def stop(self) -> None:
        """Kill what still runs."""
        for process in self.running:
            process.kill()
            process.wait()
