"""Four tiny trained models, one of each family, and a server of the inspector page."""

from collections.abc import Callable, Iterator
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
from server_thread import ServerThread

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


class Served(ServerThread):
    """A server of the inspector in a thread of this process."""

    def __init__(self, inspector: Inspector, port: int) -> None:
        app = application(calls(inspector), FOLDER, ["127.0.0.1"], Worker())
        super().__init__(uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)), port)

    @property
    def address(self) -> str:
        return f"{super().address}/"


Serve = Callable[..., Served]
OpenModel = Callable[..., Visit]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers of inspectors; all of them stop at the end of the test."""
    started: list[Served] = []

    def start(inspector: Inspector, port: int = 0) -> Served:
        started.append(Served(inspector, port))
        return started[-1]

    yield start
    for served in started:
        served.close()


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
