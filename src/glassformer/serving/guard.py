"""Checks of every request before its route: the key, the kind and the size of the body; and a line in the log."""

import hashlib
import hmac
import logging
import time
from collections.abc import Collection
from http.cookies import SimpleCookie

from fastapi import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.serving.errors import ApiError
from glassformer.serving.metrics import Metrics

COOKIE = "glassformer"
log = logging.getLogger("glassformer.serving")


class Guard:
    """Middleware that refuses requests without the key, and bodies that are no JSON or too large.

    The key is in the header `Authorization: Bearer KEY`, or a cookie made from it (`cookie_of`) that the page has.
    """

    def __init__(
        self, app: ASGIApp, *, key: str | None, max_body: int, metrics: Metrics, is_open: Collection[str]
    ) -> None:
        """Set the key, or None; the paths that begin with one of `is_open` need none."""
        self.app, self.key, self.max_body, self.metrics, self.is_open = app, key, max_body, metrics, tuple(is_open)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status, n_read = time.monotonic(), 0, 0

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        async def limited() -> Message:
            nonlocal n_read
            message = await receive()
            n_read += len(message.get("body", b""))
            if n_read > self.max_body:
                raise HTTPException(413, f"the request has more than {self.max_body:,} bytes")
            return message

        request = Request(scope)
        error = self._refused(request)
        try:
            if error is not None:
                await error.response()(scope, receive, noted)
            else:
                await self.app(scope, limited, noted)
        finally:
            seconds, route = time.monotonic() - begin, scope.get("route")
            path = getattr(route, "path", "other")
            self.metrics.answers.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(seconds)
            log.info("%s %s %d %.3f s", request.method, request.url.path, status, seconds)

    def _refused(self, request: Request) -> ApiError | None:
        path = request.url.path
        if self.key is not None and not (path == "/" or path.startswith(self.is_open)) and not self._knows_key(request):
            return ApiError(
                401, "the key is missing or wrong: send the header Authorization: Bearer KEY", code="invalid_api_key"
            )
        if request.method in ("POST", "PUT", "PATCH"):
            kind = request.headers.get("content-type", "").partition(";")[0].strip()
            if kind != "application/json":
                return ApiError(415, "expected the content type application/json")
            length = request.headers.get("content-length", "0")
            if length.isdecimal() and int(length) > self.max_body:
                return ApiError(413, f"the request has more than {self.max_body:,} bytes")
        return None

    def _knows_key(self, request: Request) -> bool:
        assert self.key is not None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(given.strip(), self.key):
            return True
        cookie = SimpleCookie(request.headers.get("cookie", "")).get(COOKIE)
        return cookie is not None and _equal(cookie.value, cookie_of(self.key))


def cookie_of(key: str) -> str:
    """Return the value of the page's cookie, from which the key cannot be found.

    >>> cookie_of("a") == cookie_of("b")
    False
    """
    return hmac.new(key.encode(), b"glassformer page", hashlib.sha256).hexdigest()


def _equal(given: str, expected: str) -> bool:
    """Compare in a time that does not depend on where the texts differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())
