"""Batches of inputs from requests that wait at the same time.

The thread of models answers one batch per job, so that other jobs, such as the steps of an engine, run between two
batches. A batch has a largest number of rows and of tokens, so a stream never waits long for it.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from glassformer.apps.inspector.worker import Worker, as_exception
from glassformer.apps.serving.settings import Limits


class Operation(Protocol):
    """A use of a model with its settings. Operations are compared by value: inputs of equal ones share a batch."""

    @property
    def n_rows(self) -> int:
        """Number of rows that the model computes for an input: the beam of a search, otherwise 1."""

    def answers(self, given: Sequence[Any], /) -> Sequence[Any]:
        """Return the answer to each input."""


@dataclass(eq=False)
class _Input:
    """An input that waits; its future gets the answer."""

    operation: Operation
    given: Any
    request: object
    n_tokens: int
    future: "Future[Any]" = field(default_factory=Future)


class Batches:
    """The inputs that wait for the thread. `run` is called in an event loop. The other methods run in the thread."""

    def __init__(self, worker: Worker, limits: Limits) -> None:
        self.worker, self.limits = worker, limits
        self._waiting: list[_Input] = []
        self._is_running = False

    async def run(self, operation: Operation, given: Sequence[Any], n_tokens: Sequence[int]) -> list[Any]:
        """Return the answers to the inputs of a request, or raise the error of one of them.

        `n_tokens` has the number of tokens of each input. If the wait is cancelled, the inputs that wait are removed.
        """
        request = object()
        inputs = [_Input(operation, one, request, n) for one, n in zip(given, n_tokens, strict=True)]
        futures = [asyncio.wrap_future(one.future) for one in inputs]
        self.worker.post(self._add, inputs)
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()

    def _add(self, inputs: Sequence[_Input]) -> None:
        self._waiting += inputs
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting and not self._is_running:
            self._is_running = True
            self.worker.post(self._run)

    def _run(self) -> None:
        self._is_running = False
        batch = self._next()
        if batch:
            self._answer(batch)
        self._go_on()

    def _next(self) -> list[_Input]:
        """Take the first input and fitting ones of equal operations; move what is left of their requests to the end."""
        batch, left = list[_Input](), list[_Input]()
        n_rows = n_tokens = 0
        for one in self._waiting:
            rows, tokens = n_rows + one.operation.n_rows, n_tokens + one.n_tokens
            fits = rows <= self.limits.max_rows and tokens <= self.limits.batch_tokens
            if batch and not (fits and one.operation == batch[0].operation):
                left.append(one)
            elif one.future.set_running_or_notify_cancel():
                batch.append(one)
                n_rows, n_tokens = rows, tokens
        served = {one.request for one in batch}
        self._waiting = sorted(left, key=lambda one: one.request in served)
        return batch

    def _answer(self, batch: Sequence[_Input]) -> None:
        """Answer a batch. If it fails, answer each input alone, so that only the faulty input gets the error."""
        try:
            answers = batch[0].operation.answers([one.given for one in batch])
            answered = list(zip(batch, answers, strict=True))
        except BaseException as error:
            if len(batch) == 1:
                batch[0].future.set_exception(as_exception(error))
                return
            for one in batch:
                self._answer([one])
        else:
            for one, answer in answered:
                one.future.set_result(answer)
