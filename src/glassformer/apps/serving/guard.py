"""Checks of every request (host, key, deadline, kind and size of the body), and the log of requests."""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Iterable
from itertools import islice
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.apps.serving.errors import ApiError, as_api_error
from glassformer.apps.serving.settings import Access, Limits

COOKIE = "glassformer"
OPEN = ("/", "/health", "/session")
"""Paths that need no key."""
OPEN_FOLDER = "/page/"
"""The folder whose files need no key."""
TEXTS = "/v1/"
"""Beginning of the paths whose requests and answers are logged with `log_texts`."""
MAX_SHOWN = 200
"""Largest number of characters of a path in the log."""
MAX_IGNORED = 20
"""Largest number of names in the header `IGNORED`."""
IGNORED = "x-ignored-parameters"
"""The header of an answer with the names of parameters that were not used."""
log = logging.getLogger("glassformer.serving")


class Guard:
    """Middleware that refuses requests without the key, and bodies that are not JSON or too large.

    A request whose answer has not ended at the deadline is cancelled, even if it still waits. A client sends the key in
    the header `Authorization: Bearer KEY`. The page sends a cookie that is computed from the key (`cookie_of`). If the
    application raises an error, or the server stops, the answer is an error object.
    """

    def __init__(self, app: ASGIApp, *, access: Access, limits: Limits, log_texts: bool = False) -> None:
        self.app, self.access, self.limits, self.log_texts = app, access, limits, log_texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        begin, exchange = time.monotonic(), _Exchange(self.limits, scope, receive, send)
        has_texts = self.log_texts and scope["path"].startswith(TEXTS)
        if has_texts:
            exchange.texts = bytearray(), bytearray()
        try:
            refused = self._refused(Request(scope))
            if refused is not None:
                await refused.response()(scope, receive, exchange.send)
            else:
                async with asyncio.timeout(self.limits.deadline):
                    await self.app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:  # uvicorn cancels running requests after the grace period
            with contextlib.suppress(asyncio.CancelledError):
                await exchange.end(ApiError(503, "the server is stopping", code="stopping"))
        except Exception as error:
            await exchange.end(as_api_error(error))
        finally:
            seconds, shown = time.monotonic() - begin, _one_line(scope["path"])
            ignored = f", ignored: {exchange.ignored}" if exchange.ignored else ""
            log.info("%s %s %d %.3f s%s", _one_line(scope["method"]), shown, exchange.status, seconds, ignored)
            for what, text in zip(("request", "answer"), exchange.texts or (), strict=False):
                log.info("%s of %s: %r", what, shown, text.decode("utf-8", "replace"))

    def _refused(self, request: Request) -> ApiError | None:
        """Return the error of a request that must not reach a route, or None."""
        path = request.scope["path"]
        if not self.access.is_name(request.headers.get("host", "")):
            return ApiError(
                400, "the header Host is not a name of this server; other names need a key", code="wrong_host"
            )
        is_open = path in OPEN or path.startswith(OPEN_FOLDER)
        if self.access.key is not None and not is_open and not _knows(self.access.key, request):
            return ApiError(
                401, "the key is missing or wrong: send the header Authorization: Bearer KEY", code="invalid_api_key"
            )
        return None


class _Exchange:
    """A request and its answer, with the limits of the body."""

    def __init__(self, limits: Limits, scope: Scope, receive: Receive, send: Send) -> None:
        self.limits, self._scope, self._receive, self._send = limits, scope, receive, send
        self.status = 0
        """The status of the answer, or 0 before it begins."""
        self.texts: tuple[bytearray, bytearray] | None = None
        """The request and the answer, if they are logged."""
        self._n_read = self._n_parts = 0
        self._is_read = self._is_stream = self._is_done = False

    async def receive(self) -> Message:
        """Return the next part of the body, or the end of the connection."""
        if self._is_read:
            return await self._receive()
        if not self._n_parts:
            self._check_head()
        message = await self._receive()
        body = message.get("body", b"")
        self._n_parts += 1
        self._n_read += len(body)
        self._is_read = not message.get("more_body", False)
        if self._n_read > self.limits.max_body:
            raise HTTPException(413, _too_large(self.limits))
        if self.texts is not None:
            self.texts[0].extend(body)
        return message

    def _check_head(self) -> None:
        """Raise an error for a body that must not be read. (The body of an unknown address is never read.)"""
        headers = Headers(scope=self._scope)
        if self._scope["method"] in ("POST", "PUT", "PATCH"):
            if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                raise HTTPException(415, "expected the content type application/json")
            if headers.get("content-encoding", "identity").strip().lower() != "identity":
                raise HTTPException(415, "the body of the request is compressed: send it without content-encoding")
            length = headers.get("content-length", "0")
            if length.isdecimal() and (len(length) > 18 or int(length) > self.limits.max_body):
                raise HTTPException(413, _too_large(self.limits))

    @property
    def ignored(self) -> str:
        """The names of parameters that were not used, from `note_ignored`."""
        names: str = self._scope.get("state", {}).get(IGNORED, "")
        return names

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            if self.ignored:
                message["headers"] = [*message["headers"], (IGNORED.encode(), self.ignored.encode())]
            self._is_stream = any(value.startswith(b"text/event-stream") for _, value in message["headers"])
        elif message["type"] == "http.response.body":
            self._is_done = not message.get("more_body", False)
            if self.texts is not None:
                self.texts[1].extend(message.get("body", b""))
        await self._send(message)
        if message["type"] == "http.response.start":  # only now: if `_send` failed, an error can still be the answer
            self.status = message["status"]

    async def end(self, error: ApiError) -> None:
        """Send an error, as an answer or as the last event of a stream."""
        if not self.status:
            response = error.response()
            await self.send({"type": "http.response.start", "status": error.status, "headers": response.raw_headers})
            await self.send({"type": "http.response.body", "body": response.body})
        elif self._is_stream and not self._is_done:
            event = f"data: {json.dumps(error.to_json())}\n\n".encode()
            await self.send({"type": "http.response.body", "body": event})


def note_ignored(request: Request, names: Iterable[str]) -> None:
    """Note parameters that are not used, for a header of the answer and for the log.

    Characters that a header cannot contain, or that separate names, are percent-encoded. An empty name is `""`.
    """
    few = list(islice(dict.fromkeys(names), MAX_IGNORED + 1))
    shown = [quote(name[:60], safe="", errors="backslashreplace") or '""' for name in few[:MAX_IGNORED]]
    setattr(request.state, IGNORED, ", ".join(shown + ["and others"] * (len(few) > MAX_IGNORED)))


def cookie_of(key: str) -> str:
    """Return the value of the page's cookie, from which the key cannot be computed.

    >>> cookie_of("a") == cookie_of("b")
    False
    """
    return hmac.new(key.encode(), b"glassformer page", hashlib.sha256).hexdigest()


def is_equal(given: str, expected: str) -> bool:
    """Return True for equal texts, in a time that does not depend on where they differ.

    >>> is_equal("secret", "secret"), is_equal("secre\\udce9", "secret")
    (True, False)
    """
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def _knows(key: str, request: Request) -> bool:
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and is_equal(given.strip(), key):
        return True
    return is_equal(request.cookies.get(COOKIE, ""), cookie_of(key))


def _too_large(limits: Limits) -> str:
    return f"the request has more than {limits.max_body:,} bytes"


def _one_line(text: str) -> str:
    """Return a text for the log, with escaped control characters, and cut to `MAX_SHOWN` characters.

    >>> print(_one_line("/v1\\n2026 GET"))
    /v1\\n2026 GET
    """
    return repr(text)[1:-1][:MAX_SHOWN]
