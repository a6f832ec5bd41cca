"""Inputs that wait together are answered in bounded batches, and each has its own answer, error or end."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from glassformer.apps.inspector.worker import Worker
from glassformer.apps.serving.batches import Batches
from glassformer.apps.serving.settings import Limits

LIMITS = Limits(max_rows=3, batch_tokens=10)
asked: list[list[str]] = []
"""The batches that were answered."""


@dataclass(frozen=True)
class Upper:
    """Capital letters; a word fails if it contains `!`."""

    setting: int = 0
    n_rows: int = 1

    def answers(self, words: Sequence[str]) -> list[str]:
        asked.append(list(words))
        if failing := [word for word in words if "!" in word]:
            raise SystemExit(failing[0])
        return [word.upper() for word in words]


@dataclass
class Line:
    """Batches whose thread waits until it is opened."""

    worker: Worker = field(default_factory=Worker)
    opened: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.batches = Batches(self.worker, LIMITS)
        self.worker.post(self.opened.wait)

    async def run(self, operation: Upper, words: Sequence[str]) -> list[str]:
        """Return the answers to the words of a request."""
        return await self.batches.run(operation, words, [len(word) for word in words])

    async def together(self, *requests: Coroutine[Any, Any, Any]) -> list[Any]:
        """Return the answers, or the errors, of requests that wait at the same time."""
        tasks = [asyncio.ensure_future(request) for request in requests]
        await asyncio.sleep(0)  # each has posted its inputs
        self.opened.set()
        return await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def line() -> Iterator[Line]:
    asked.clear()
    line = Line()
    yield line
    line.opened.set()
    line.worker.close()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(bounded())


def test_inputs_of_equal_operations_are_one_batch(line: Line) -> None:
    async def test() -> None:
        found = await line.together(line.run(Upper(), ["a"]), line.run(Upper(1), ["b"]), line.run(Upper(), ["c", "d"]))
        assert found == [["A"], ["B"], ["C", "D"]]
        assert asked == [["a", "c", "d"], ["b"]]

    run(test)


def test_a_batch_is_bounded_in_rows_and_tokens(line: Line) -> None:
    async def test() -> None:
        words = ["aaaa", "bbbb", "cccc", "d", "e", "f", "g" * 11]
        found = await line.together(line.run(Upper(), words))
        assert found == [[word.upper() for word in words]]
        assert asked == [["aaaa", "bbbb", "d"], ["cccc", "e", "f"], ["g" * 11]]
        asked.clear()
        await line.together(line.run(Upper(n_rows=2), ["a", "b"]))
        assert asked == [["a"], ["b"]]  # two rows each, as those of a beam

    run(test)


def test_the_rest_of_a_long_request_waits_for_the_others(line: Line) -> None:
    async def test() -> None:
        await line.together(line.run(Upper(), list("abcdefg")), line.run(Upper(1), ["x"]))
        assert asked == [["a", "b", "c"], ["x"], ["d", "e", "f"], ["g"]]

    run(test)


def test_other_jobs_of_the_thread_come_between_batches(line: Line) -> None:
    """A job that posts itself again, as the step of an engine does, runs once before each batch."""
    steps: list[int] = []

    def step() -> None:
        steps.append(len(asked))
        if len(asked) < 3:
            line.worker.post(step)

    async def test() -> None:
        line.worker.post(step)
        await line.together(line.run(Upper(), list("abcdefg")))
        await line.worker.run(list)  # after the last step
        assert sorted(set(steps)) == [0, 1, 2, 3] and len(steps) <= 6

    run(test)


def test_an_input_that_fails_fails_alone(line: Line) -> None:
    async def test() -> None:
        right, failing, both = await line.together(
            line.run(Upper(), ["a"]),
            line.run(Upper(), ["b!"]),
            line.run(Upper(), ["c", "d!"]),
        )
        assert right == ["A"]
        assert str(failing) == "SystemExit: b!" and str(both) == "SystemExit: d!"
        assert await line.run(Upper(), ["e"]) == ["E"]

    run(test)


def test_a_request_that_ends_leaves_the_line(line: Line) -> None:
    async def test() -> None:
        gone = asyncio.ensure_future(line.run(Upper(), ["a", "b"]))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert await line.together(line.run(Upper(), ["c"])) == [["C"]]
        assert gone.cancelled() and asked == [["c"]]

    run(test)
