"""Errors of the server, in the form that OpenAI's clients read."""

import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request

from glassformer.errors import UserError, did_you_mean
from glassformer.inspector.worker import Busy

log = logging.getLogger("glassformer.serving")
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}

SENTENCES = {
    404: "there is no endpoint at this address: see /openapi.json",
    405: "this address takes another method: see /openapi.json",
}


class ApiError(Exception):
    """An answer with an error: a status, a sentence, and the parameter that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # A lone surrogate in a name cannot be written in JSON
        super().__init__(message.encode("utf-8", "backslashreplace").decode())
        self.param = param and param.encode("utf-8", "backslashreplace").decode()
        self.status, self.code, self.headers = status, code, dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the answer."""
        return JSONResponse(self.to_json(), self.status, self.headers)


def busy(n_waiting: int) -> ApiError:
    """Return the error for a full queue; clients try again later."""
    return ApiError(
        429,
        f"{n_waiting} requests wait already: try again later",
        code="queue_full",
        headers={"retry-after": "2"},
    )


def as_api_error(error: BaseException) -> ApiError:
    """Return an error in the form of the server; an unknown one is a failure of the server, and is logged."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, UserError):
        return ApiError(400, str(error))
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, TimeoutError):
        headers = {"x-should-retry": "false"}
        return ApiError(504, "no result before the deadline: ask for a shorter text", code="deadline", headers=headers)
    if isinstance(error, Busy):
        return ApiError(503, str(error), code="busy", headers={"retry-after": "2"})
    if isinstance(error, HTTPException):
        message = SENTENCES.get(error.status_code, str(error.detail))
        return ApiError(error.status_code, message, headers=error.headers)
    # The message is not logged, because it may contain a part of a text
    log.error("%s in\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    # A repetition would fail again
    headers = {"x-should-retry": "false"}
    return ApiError(500, f"the model failed: {type(error).__name__}: {error!s:.200}", code="failed", headers=headers)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer with an error."""
    return as_api_error(error).response()


def _invalid(error: RequestValidationError) -> ApiError:
    """Return the first of the mistakes in a request as one sentence."""
    first = error.errors()[0]
    kind, context = first["type"], first.get("ctx", {})
    place = _place(first["loc"], error.body)
    if kind == "json_invalid":
        return ApiError(400, f"the request is not JSON: {context.get('error', first['msg'])}")
    if kind == "unknown_parameter":
        param = ".".join([*place, context["name"]])
        return _wrong(f"unknown parameter {param!r}: {did_you_mean(context['name'], context['known'])}", param)
    if kind == "missing":
        place = [str(part) for part in first["loc"][1:]]
    param = ".".join(place)
    if not param:
        return ApiError(400, "the request has no body, or its body is not a JSON object")
    if kind == "missing":
        return _wrong(f"the parameter {param!r} is missing", param)
    message = first["msg"]
    return _wrong(f"{param}: {message[:1].lower()}{message[1:]}, got {first.get('input')!r:.60}", param)


def _wrong(message: str, param: str) -> ApiError:
    return ApiError(400, message, param=param)


def _place(location: Sequence[str | int], body: Any) -> list[str]:
    """Return the names and numbers that lead to a part of the body; a location also has names of types."""
    found = []
    for part in location[1:]:
        is_inside = isinstance(part, int) and isinstance(body, list) and part < len(body)
        if is_inside or (isinstance(body, Mapping) and part in body):
            body = body[part]
            found.append(str(part))
    return found
