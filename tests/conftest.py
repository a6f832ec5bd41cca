"""Shared setup of all tests: the helpers `configs` and `parity.pairs` importable from every folder, and the seeds."""

import asyncio
import gc
import os
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import settings

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

    from glassformer.tasks.reporting import Outcome

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("GLASSFORMER_KERNELS", "bf16")  # a choice that no measurement makes, also in child processes
torch.set_num_threads(1)  # tiny tensors: more threads only wait for one another
# No test switches the machine off, and waiting for the disk takes minutes of a run. A closed file is still an error.
os.fsync = os.fstat
import collecting  # noqa: E402, in this folder
import draw  # noqa: E402
import processors  # noqa: E402

settings.register_profile("draw", settings.get_profile("ci"), max_examples=30)
settings.register_profile("all", settings.get_profile("ci"), max_examples=200)

WAIT_MS = 180_000
"""Bound of every wait in a browser: only a page that hangs reaches it, on a busy machine too."""
CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Programs for the tests of pages; the first one, which has no windows, starts in half the processor time."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processor", choices=[*processors.SUMS], help="run the tests as on another processor")
    parser.addoption("--draw", action="store_true", help="draw some tests of the groups in tests/draw.toml")
    parser.addoption("--seed", type=int, help="seed of the draw, by default the tree of the commit")
    parser.addoption("--progress", action="store_true", help="show how far the tests are, and what they cost")
    parser.addoption("--minutes", type=float, help="skip the tests that begin later")


def pytest_configure(config: pytest.Config) -> None:
    if kind := config.getoption("processor"):
        processors.become(kind)
    config.pluginmanager.register(collecting.Collecting())
    in_worker = hasattr(config, "workerinput")
    if minutes := config.getoption("minutes"):
        config.option.until = getattr(config.option, "until", time.time() + 60 * minutes)  # equal in all processes
        config.pluginmanager.register(draw.Deadline(config.option.until))
    if config.getoption("draw"):
        if config.option.seed is None:
            config.option.seed = draw.seed_of_the_tree()  # the processes of the tests have these options, too
        config.pluginmanager.register(draw.Draw(config.option.seed))
        if not in_worker:
            print(
                f"some groups of tests are drawn: SEED={config.option.seed} draws the same again, ALL=1 runs all tests"
            )
    if config.getoption("progress"):
        import costs  # needs a system with `resource`

        config.pluginmanager.register(costs.Costs())
        if not in_worker:
            config.pluginmanager.register(costs.Progress(config))
    from glassformer.tasks import conversation, language_modeling

    # The text that each evaluation shows: in full length, it would take a third of the time of a tiny run.
    language_modeling.SAMPLE_LENGTH = conversation.LENGTH_OF_SAMPLE = 4


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> None:
    """Seed a fixture that several tests share by its name: its weights do not depend on the order of the tests."""
    if fixturedef.scope != "function":
        torch.default_generator.manual_seed(zlib.crc32(fixturedef.argname.encode()))


@pytest.fixture(scope="module", autouse=True)
def short_garbage_collections() -> None:
    """Leave what is in memory out of later garbage collections, which then take milliseconds instead of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def another_order(request: pytest.FixtureRequest) -> Iterator[None]:
    """In the short run, a drawn quarter of the files in processors.txt runs with another order of sums."""
    name, seed = request.node.nodeid, request.config.getoption("seed")
    if seed is None or request.config.getoption("processor") or not draw.is_reordered(name, seed):
        yield
        return
    with processors.order(seed):
        yield


@pytest.fixture(autouse=True)
def one_seed() -> None:
    torch.default_generator.manual_seed(0)  # `torch.manual_seed` takes up to 1 ms for the devices that are missing


@pytest.fixture(scope="session")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Return a function that copies a run of `kept.py`. At the end, no kept file may have changed."""
    from kept import kept_run, state_of

    seen: dict[Path, object] = {}

    def copied(name: str) -> Path:
        kept = kept_run(name)
        seen.setdefault(kept, state_of(kept))
        return Path(shutil.copytree(kept / "run", tmp_path_factory.mktemp(name) / "run"))

    yield copied
    for kept, before in seen.items():
        assert state_of(kept) == before, f"a test has written into {kept}"


@pytest.fixture(scope="session")
def trained(copies: Callable[[str], Path]) -> "Outcome":
    """A finished tiny run, for tests that only read it: its folder and the reports of its last evaluation."""
    from kept import outcome_of

    return replace(outcome_of("text"), folder=copies("text"))


@pytest.fixture(scope="session")
def tiny(copies: Callable[[str], Path]) -> Callable[[str], Path]:
    """Return a function that copies the finished run of a name in `runs.TINY`."""
    return copies


@pytest.fixture
def rising_perplexity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a higher perplexity count as better, so that a run that learns stops early."""
    from glassformer.evaluation.metrics import METRICS

    monkeypatch.setitem(METRICS, "perplexity", replace(METRICS["perplexity"], higher_is_better=True))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a separate process."""
    return os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}


@pytest.fixture(scope="session")
def chromium() -> Iterator[tuple["BrowserContext", asyncio.AbstractEventLoop]]:
    """Chromium with one window, and the event loop of Playwright.

    Its start takes 1 s of processor time, and its waiting next to none: one serves all tests of a process.
    """
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        missing = "no chromium on this machine: tests in a browser cannot run (Debian: apt-get install chromium)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=options, timeout=WAIT_MS)
        opened = started.new_context()
        opened.set_default_timeout(WAIT_MS)
        opened.new_page()  # a window closes with its last tab
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield opened, loop
        asyncio._set_running_loop(loop)
        started.close()


@pytest.fixture(scope="module")
def window(chromium: tuple["BrowserContext", asyncio.AbstractEventLoop]) -> Iterator["BrowserContext"]:
    """Chromium for tests of pages, which open tabs.

    The event loop of Playwright runs during a file only, because tests of other files run loops of their own. Without
    Chromium, tests are skipped, or fail if the variable CI is set.
    """
    opened, loop = chromium
    asyncio._set_running_loop(loop)
    yield opened
    asyncio._set_running_loop(None)
