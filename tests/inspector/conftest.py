"""Four tiny trained models, one of each family, and a server of the inspector page."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

import glassformer
from glassformer.inspector.app import application
from glassformer.inspector.inspector import FOLDER, Inspector
from glassformer.inspector.panels import calls
from glassformer.inspector.worker import Worker
from glassformer.model import Model
from glassformer.reporting import Outcome
from inspector.browsing import Open, Visit, given_to, hash_of, visits
from runs import label_run, label_set_run, lineage_runs

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

LABELS = ("classes", "multi_label", "regression", "tags")
FAMILIES = ("decoder", "encoder", "encoder-decoder", "recurrent")


@pytest.fixture(scope="session")
def models(trained: Outcome, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """One tiny trained model of each family, and a classifier."""

    def place(name: str) -> Path:
        return tmp_path_factory.mktemp(name)

    found = {name: glassformer.train(run, place(name) / "run").model for name, run in lineage_runs(place).items()}
    return {"decoder": glassformer.load(trained.folder), **found}


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """One tiny trained model of each kind of label."""
    found = {}
    for kind in LABELS:
        folder = tmp_path_factory.mktemp(kind)
        run = label_set_run(folder) if kind == "multi_label" else label_run(folder, kind)
        found[kind] = glassformer.train(run, folder / "run").model
    return found


@dataclass
class Served:
    """A server of the inspector in a thread of this process."""

    inspector: Inspector
    port: int
    stop: Callable[[], None]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


Serve = Callable[..., Served]
OpenModel = Callable[..., Visit]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers of inspectors; all of them stop at the end of the test."""
    stops = []

    def start(inspector: Inspector, port: int = 0) -> Served:
        app = application(calls(inspector), FOLDER, ["127.0.0.1"], Worker())
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.01)
            assert thread.is_alive(), "the server has ended at its start"
        (socket,) = server.servers[0].sockets

        def stop() -> None:
            server.should_exit = True
            thread.join()

        stops.append(stop)
        return Served(inspector, socket.getsockname()[1], stop)

    yield start
    for stop in stops:
        stop()


@pytest.fixture
def visit(window: "BrowserContext", serve: Serve) -> Iterator[Open]:
    """Open pages; the test fails if one reports an error or calls another host."""
    with visits(window) as open_page:
        yield open_page


@pytest.fixture
def open_model(models: dict[str, Model], serve: Serve, visit: Open) -> OpenModel:
    """Open the page of a model with its input, at the panel of the attention or at the given view."""
    panels = {"encoder-decoder": "alignment", "recurrent": "alignment"}

    def open_page(name: str, view: dict[str, Any] | None = None, *, first_view: bool = False, **options: Any) -> Visit:
        served = serve(Inspector(models[name]))
        chosen = {"panel": "" if first_view else panels.get(name, "attention")}
        return visit(served.address + hash_of(**given_to(models[name]), **(chosen | (view or {}))), **options)

    return open_page
