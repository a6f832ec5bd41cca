"""HTTP/1.1 with a limited number of connections, which end when a client is too slow; uvicorn has no such limits."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class PatientProtocol(H11Protocol):
    """A connection, with limits for the client. A connection above the allowed number is closed at once.

    A client has `timeout_keep_alive` seconds for the head of a request, from the beginning of the connection or the end
    of the last answer, and as many to read a full buffer of an answer. `guard.py` limits the time of the body. A
    connection that sends more than `max_bytes` for one request is closed, because a body in parts of a few bytes costs
    much more time than its size.
    """

    max_bytes: int
    _n_bytes = 0
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        # uvicorn would count requests of lost connections too, and answer 503 in plain text
        self.max_connections, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.max_connections is not None and len(self.connections) > self.max_connections:
            self.connections.discard(self)
            transport.abort()
        self._watch()

    def data_received(self, data: bytes) -> None:
        self._n_bytes += len(data)
        if self._n_bytes > self.max_bytes:
            self.transport.abort()
            return
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._n_bytes = 0
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _watch(self) -> None:
        """Start the timer when the server waits for the client, and stop it when it does not."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        waits = not is_answering or self.flow.write_paused
        if waits and self._timer is None:
            self._timer = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)
        elif not waits and self._timer is not None:
            self._timer.cancel()
            self._timer = None
