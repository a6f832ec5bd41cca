"""Requests of the tests, and `glassformer serve` as a process of its own."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.model import Model

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

    def start(self, *names: str, options: Sequence[str] = (), **variables: str) -> ServerProcess:
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
        command = [sys.executable, "-m", "glassformer", "serve", *given, "--port", str(port), *options]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=os.environ | self.environment | variables)
        server = ServerProcess(process, f"http://127.0.0.1:{port}", log)
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
