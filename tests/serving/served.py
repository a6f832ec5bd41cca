"""Requests of the tests, servers in a thread, and `glassformer serve` as a process of its own."""

import gc
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI

from glassformer.inspector.listener import listen, url
from glassformer.model import Model
from glassformer.serving.limits import Limits
from glassformer.serving.models import Models
from glassformer.serving.run import uvicorn_server

START_S = 120


def ask(address: str, body: Any = None, key: str | None = None) -> tuple[int, Any]:
    """Send a request, a POST if there is a body; return the status and the answer, read as JSON."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=120) as answer:
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
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    given = {name.replace("_", "-"): value for name, value in ({"content_type": "application/json"} | headers).items()}
    try:
        connection.request(method or ("GET" if body is None else "POST"), parts.path, body, given)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


class RunningServer:
    """An application in a thread of this process."""

    def __init__(self, app: FastAPI, limits: Limits) -> None:
        self.app, self._server, self.listener = app, uvicorn_server(app, limits), listen("127.0.0.1", 0)
        self._thread = threading.Thread(target=self._server.run, args=[[self.listener]], daemon=True)
        self._thread.start()
        self.address = url("127.0.0.1", self.listener).removesuffix("/")
        while not self._server.started:
            self._thread.join(0.01)
            assert self._thread.is_alive(), "the server has ended at its start"

    @property
    def models(self) -> Models:
        """The models of the server, and the number of its requests."""
        models: Models = self.app.state.models
        return models

    def stop(self) -> None:
        """End the server, after the requests that run.

        A browser may connect while the server ends. Python then closes the socket, with a warning, when it collects the
        objects of the event loop. This collects them here, without the warning, and not during a later test.
        """
        self._server.should_exit = True
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            self._thread.join()
            gc.collect()

    def cut(self) -> None:
        """Cut all connections in the middle of their answers, and let the server end without another answer."""
        connections = list(self._server.server_state.connections)

        def cut() -> None:
            for connection in connections:
                connection.transport.abort()  # type: ignore[union-attr]
            self._server.force_exit = self._server.should_exit = True

        connections[0].loop.call_soon_threadsafe(cut)  # type: ignore[union-attr]


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
    running: list[ServerProcess] = field(default_factory=list)

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
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = self.folder / f"log-{len(self.running)}.txt"
        command = [sys.executable, "-m", "glassformer", "serve", *given, "--host", host, "--port", str(port), *options]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | self.environment | variables)
        server = ServerProcess(process, f"http://{f'[{host}]' if ':' in host else host}:{port}", log)
        self.running.append(server)
        end = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < end:
            try:
                if ask(f"{server.address}/health")[0] == 200:
                    return server
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"the server does not answer: {log.read_text('utf-8')}")

    def stop(self) -> None:
        """Kill what still runs."""
        for server in self.running:
            server.process.kill()
            server.process.wait()
