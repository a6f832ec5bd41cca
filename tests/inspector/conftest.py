"""Four tiny trained models, one of each family, and a server of the inspector page."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

import glassformer
from glassformer.apps.inspector.app import application
from glassformer.apps.inspector.inspector import FOLDER, Inspector
from glassformer.apps.inspector.panels import calls
from glassformer.apps.inspector.worker import Worker
from glassformer.model import Model
from glassformer.tasks.reporting import Outcome
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
PageOf = Callable[[str], Visit]


@contextmanager
def servers() -> Iterator[Serve]:
    """Give a function that starts servers of inspectors; all of them stop at the end."""
    started: list[Served] = []

    def start(inspector: Inspector, port: int = 0) -> Served:
        started.append(Served(inspector, port))
        return started[-1]

    yield start
    for served in started:
        served.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers of inspectors; all of them stop at the end of the test."""
    with servers() as start:
        yield start


@pytest.fixture
def visit(window: "BrowserContext", serve: Serve) -> Iterator[Open]:
    """Open pages; the test fails if one reports an error or calls another host."""
    with visits(window) as open_page:
        yield open_page


def view_of(model: Model, name: str, view: dict[str, Any] | None) -> str:
    """Return the part of an address that shows a model with its input, at the panel of the attention or at a view."""
    panel = "alignment" if name in ("encoder-decoder", "recurrent") else "attention"
    return hash_of(**{**given_to(model), "panel": panel, **(view or {})})


@pytest.fixture
def open_model(models: dict[str, Model], serve: Serve, visit: Open) -> OpenModel:
    """Open a new page of a model with its input, at the panel of the attention or at the given view."""

    def open_page(name: str, view: dict[str, Any] | None = None, **options: Any) -> Visit:
        return visit(serve(Inspector(models[name])).address + view_of(models[name], name, view), **options)

    return open_page


@pytest.fixture(scope="module")
def page_of(models: dict[str, Model], window: "BrowserContext") -> Iterator[PageOf]:
    """Open a page of a model once for all tests of a file: to load it takes more processor time than most tests."""
    with servers() as serve, visits(window) as visit:
        yield cache(lambda name: visit(serve(Inspector(models[name])).address + view_of(models[name], name, None)))


@pytest.fixture
def show_model(models: dict[str, Model], page_of: PageOf) -> Iterator[OpenModel]:
    """Show a view of a model as `open_model` does, by a change of the address of a page that the tests of a file share.

    It is for tests that change only what the address names, such as a slider or a text that was run.
    """
    yield from shown(models, page_of)


def shown(models: dict[str, Model], page_of: PageOf) -> Iterator[OpenModel]:
    """Give a function that shows a view of a model in its page; at the end, the page must have had no problem."""
    used: list[Visit] = []

    def show(name: str, view: dict[str, Any] | None = None, *, width: int = 1280, height: int = 800) -> Visit:
        used.append(page_of(name))
        used[-1].show(view_of(models[name], name, view), width, height)
        return used[-1]

    yield show
    assert [problem for page in used for problem in page.problems] == []
