"""A server in a thread of the process of the tests."""

import asyncio
import gc
import threading
import warnings

import uvicorn

from glassformer.apps.inspector.listener import listen
from ports import bound


class ServerThread:
    """A server in a thread, on a port of its own, which no other process gets before `close`."""

    def __init__(self, server: uvicorn.Server, port: int = 0) -> None:
        self._server, self._bound = server, bound(port)
        self.port: int = self._bound.getsockname()[1]
        self.listener = listen("127.0.0.1", self.port)
        self._thread = threading.Thread(target=server.run, args=[[self.listener]], daemon=True)
        self._thread.start()
        while not server.started:
            self._thread.join(0.01)
            assert self._thread.is_alive(), "the server has ended at its start"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End all connections in the middle of their answers, and the server, as the end of its process does."""
        connections = self._server.server_state.connections

        async def cut() -> None:
            for one in self._server.servers:
                one.close()
            for _ in range(10):  # a connection is known a few passes of the event loop after it is accepted
                for connection in list(connections):
                    connection.transport.abort()  # type: ignore[union-attr]
                await asyncio.sleep(0)
            self._server.force_exit = self._server.should_exit = True

        loop = next(iter(connections)).loop  # type: ignore[union-attr]
        asyncio.run_coroutine_threadsafe(cut(), loop).result(60)

    def stop(self) -> None:
        """End the server, after the requests that run; connections to its port are refused.

        A browser may connect while the server ends. Python then closes the socket, with a warning, when it collects the
        objects of the event loop. This collects them here, without the warning, and not during a later test.
        """
        self._server.should_exit = True
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            self._thread.join()
            gc.collect()

    def close(self) -> None:
        """End the server, and give its port back."""
        self.stop()
        self._bound.close()
