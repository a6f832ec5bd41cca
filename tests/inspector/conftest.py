"""Four tiny trained models, one of each family, and a server of the inspector page."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from runs import LINEAGES, Tiny

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

LABELS = ("classes", "multi_label", "regression", "tags")
FAMILIES = ("decoder", "encoder", "encoder-decoder", "recurrent")


@pytest.fixture(scope="session")
def models(trained: Outcome, tiny: Tiny) -> dict[str, Model]:
    """One tiny trained model of each family, and a classifier."""
    found = {name: glassformer.load(tiny(run)) for name, run in LINEAGES.items()}
    return {"decoder": glassformer.load(trained.folder), **found}


@pytest.fixture(scope="session")
def labelled(tiny: Tiny) -> dict[str, Model]:
    """One tiny trained model of each kind of label."""
    return {kind: glassformer.load(tiny(kind)) for kind in LABELS}


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
