"""The stream of an answer ends with its client."""

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from glassformer.apps.serving.schemas import StreamOptions
from glassformer.apps.serving.texts import events


@pytest.mark.parametrize("n_sent", [0, 1])
def test_a_stream_ends_when_its_client_leaves(n_sent: int) -> None:
    """Also before its first line is sent: the place of the request is free at once."""
    steps = []

    async def parts() -> AsyncGenerator[StreamOptions]:
        try:
            for number in range(100):
                steps.append(number)
                yield StreamOptions()
        finally:
            steps.append(-1)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and n_sent:
            return
        raise OSError("the connection is closed")

    async def answer() -> None:
        scope = {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}}
        response = await events(Request(scope, receive), parts())
        with pytest.raises(ClientDisconnect):
            await response(scope, receive, send)
        assert steps[-1] == -1 and len(steps) <= 3

    asyncio.run(answer())
