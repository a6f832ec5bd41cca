"""The application: routes to functions, the check of the header Host, limits, and errors as one sentence in JSON.

`route` registers a function with typed parameters as the answer to a route. The arguments come from the path, the query
and the JSON body, so a test can call the function without a server.
"""

import base64
import contextlib
import inspect
import json
import mimetypes
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from glassformer.apps.inspector.worker import Busy, Worker
from glassformer.common.errors import UserError, did_you_mean

MAX_BODY = 1 << 20
"""Largest body of a request in bytes."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}


@dataclass(frozen=True)
class Packed:
    """An array as bytes compressed with zlib, for a browser's `DecompressionStream("deflate")`."""

    data: bytes
    shape: tuple[int, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    """Names of the model and the run; sent as headers `X-Model` and `X-Run`, percent-encoded."""

    def to_json(self) -> dict[str, str]:
        """Return the array as part of a JSON answer, in base64."""
        return {"shape": ",".join(map(str, self.shape)), "zlib": base64.b64encode(self.data).decode()}


Answer = Mapping[str, Any] | Packed
Function = Callable[..., Answer]


@dataclass(frozen=True)
class Call:
    """A route: a method and a path, such as `/api/run/{run}/lens`, and the function that answers it."""

    method: str
    path: str
    function: Function
    is_quick: bool = False
    """True if the function does not use a model, so that it need not wait for the worker."""


ROUTES: list[Call] = []
"""Routes of all panels. The first parameter of their functions is the inspector; see `panels.calls`."""
Registered = TypeVar("Registered", bound=Function)


def route(method: str, path: str, **options: Any) -> Callable[[Registered], Registered]:
    """Register the decorated function as the answer to a method and a path; see `Call`.

    ```python
    @route("GET", "/api/run/{run}/norms")
    def norms(inspector: Inspector, run: str) -> dict[str, Any]:
    ```
    """

    def register(function: Registered) -> Registered:
        ROUTES.append(Call(method, path, function, **options))
        return function

    return register


def application(calls: Sequence[Call], folder: Path, hosts: Sequence[str], worker: Worker) -> Starlette:
    """Return an application that answers `calls`, and serves the page and the scripts of the panels.

    These files are in `page/` and `panels/` of `folder`. `hosts` has the names that the header Host may have.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        worker.close()

    async def index(request: Request) -> Response:
        return FileResponse(folder / "page" / "index.html")

    async def two(request: Request) -> Response:
        return FileResponse(folder / "page" / "two.html")

    routes = [Route("/", index), Route("/two", two)]
    routes += [Route("/page/{name}", files(folder / "page")), Route("/panels/{name}", files(folder / "panels", ".js"))]
    routes += [Route(call.path, partial(_answer, call, worker), methods=[call.method]) for call in calls]
    return Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts)), Middleware(with_security_headers)],
        exception_handlers={HTTPException: _http_error, Exception: _defect},
    )


def files(folder: Path, ending: str = "") -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers a `name` with the file of a folder, if it has the ending.

    A page has some forty modules. So this endpoint does without what Starlette's `StaticFiles` adds for large
    files and for caches: threads, and headers that this page forbids.
    """
    known = {path.name: path for path in folder.glob(f"*{ending}") if path.is_file()}

    async def answer(request: Request) -> Response:
        path = known.get(request.path_params["name"])
        if path is None:
            raise HTTPException(404)
        return Response(path.read_bytes(), media_type=mimetypes.guess_type(path.name)[0])

    return answer


async def _answer(call: Call, worker: Worker, request: Request) -> Response:
    try:
        named = arguments(call.function, dict(request.path_params), dict(request.query_params), await _body(request))
        answer = call.function(**named) if call.is_quick else await worker.run(call.function, **named)
    except UserError as error:
        return JSONResponse({"error": str(error)}, 400)
    except ClientDisconnect:
        return Response(status_code=499)  # the client has left
    except Busy as error:
        return JSONResponse({"error": str(error)}, 429, {"retry-after": "5"})
    if isinstance(answer, Packed):
        headers = {f"x-{name}": quote(value) for name, value in answer.names.items()}
        headers["x-shape"] = ",".join(map(str, answer.shape))
        return Response(answer.data, media_type="application/octet-stream", headers=headers)
    return JSONResponse(answer)


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request. Other content types are refused, so no other site can send a request."""
    if request.method != "POST":
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise UserError("expected the content type application/json")
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > MAX_BODY:
            raise HTTPException(413, f"the request has more than {MAX_BODY:,} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"the request is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise UserError("expected a JSON object")
    return body


def arguments(
    function: Function, path: Mapping[str, str], query: Mapping[str, str], body: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a function by name; texts from path and query are converted to its types.

    For a parameter whose type is a dataclass, the request has the fields. Raises `UserError` for an unknown, missing
    or wrong argument.
    """
    types, values = accepted(function), {}
    for name, value in {**query, **path, **body}.items():
        if name not in types:
            raise UserError(f"unknown argument {name!r}: {did_you_mean(name, types)}")
        values[name] = _converted(name, value, types[name], is_text=name not in body)
    return _grouped(function, values)


def accepted(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the arguments that a request may have for a function, and their types."""
    hints, types = typing.get_type_hints(function), dict[str, Any]()
    for name in inspect.signature(function).parameters:
        if is_dataclass(hints[name]):
            types |= accepted(hints[name])
        else:
            types[name] = hints[name]
    return types


def _grouped(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function; the fields of a dataclass become one object."""
    hints, named = typing.get_type_hints(function), dict[str, Any]()
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            named[name] = hints[name](**_grouped(hints[name], values))
        elif name in values:
            named[name] = values[name]
        elif parameter.default is inspect.Parameter.empty:
            raise UserError(f"the argument {name!r} is missing")
    return named


def _converted(name: str, value: Any, hint: Any, is_text: bool) -> Any:
    try:
        return _reader(hint).validate_python(value, strict=not is_text)
    except ValidationError as error:
        kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
        expected = " or ".join(str(kind) if typing.get_args(kind) else kind.__name__ for kind in kinds)
        raise UserError(f"{name}: expected {expected}, got {value!r:.60}") from error


@cache
def _reader(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code)


async def _defect(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": f"a defect of glassformer: {type(error).__name__}: {error}"}, 500)


def with_security_headers(app: ASGIApp) -> ASGIApp:
    """Return an application that adds the security headers to every response of `app`."""

    async def secured(scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS.items()]
            await send(message)

        await app(scope, receive, with_headers)

    return secured
