"""Tiny trained models of all lineages, and servers of them: in this process, or as a process of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import glassformer
from glassformer.apps.serving.application import application
from glassformer.apps.serving.settings import Access, Limits
from glassformer.model import Model
from glassformer.tasks.reporting import Outcome
from runs import LINEAGES, Tiny
from serving.served import RunningServer, ServerProcesses

Serve = Callable[..., str]
"""A function that starts a server of models in a thread, and returns its address without a slash at the end."""
Run = Callable[..., RunningServer]
"""A function that starts a server of models in a thread, and returns the server."""


@pytest.fixture(scope="session")
def models(trained: Outcome, tiny: Tiny) -> dict[str, Model]:
    """One tiny trained model of each lineage; `chat` has a chat template."""
    found = {name: glassformer.load(tiny(run)) for name, run in (LINEAGES | {"chat": "long conversations"}).items()}
    return {"decoder": glassformer.load(trained.folder), **found}


@pytest.fixture
def running(models: dict[str, Model]) -> Iterator[Run]:
    """Start servers; all of them stop at the end of the test."""
    started: list[RunningServer] = []

    def start(
        *names: str,
        limits: Limits | None = None,
        access: Access | None = None,
        log_texts: bool = False,
        **others: Model,
    ) -> RunningServer:
        """Serve the models of the tests with these names, by default all, and others by keyword."""
        chosen = {name: models[name] for name in names} | others or models
        limits = limits or Limits(grace=1)
        started.append(RunningServer(application(chosen, limits, access, log_texts=log_texts), limits))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(scope="session")
def shared(models: dict[str, Model]) -> Iterator[Serve]:
    """Servers of the models of a name, for all tests that only read: the start of one takes processor time."""
    started: dict[tuple[str, ...], RunningServer] = {}
    limits = Limits(grace=1)

    def start(*names: str) -> str:
        if names not in started:
            chosen = {name: models[name] for name in names} or models
            started[names] = RunningServer(application(chosen, limits), limits)
        return started[names].address

    yield start
    for server in started.values():
        server.close()


@pytest.fixture
def serve(running: Run, shared: Serve) -> Serve:
    """Start servers, and return their addresses; a server with default settings is one that other tests read, too."""

    def start(*names: str, limits: Limits | None = None, key: str | None = None, **others: Model) -> str:
        if limits or key or others:
            return running(*names, limits=limits, access=Access(key=key), **others).address
        return shared(*names)

    return start


@pytest.fixture
def processes(models: dict[str, Model], tmp_path: Path, environment: dict[str, str]) -> Iterator[ServerProcesses]:
    """Start `glassformer serve` in processes, which end with the test."""
    started = ServerProcesses(tmp_path, models, environment)
    yield started
    started.stop()
