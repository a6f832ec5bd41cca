"""Errors of the server, in the form that OpenAI's clients read."""

import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import Request

from glassformer.apps.inspector.worker import Busy
from glassformer.common.errors import UserError, did_you_mean

log = logging.getLogger("glassformer.serving")
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    503: "server_error",
    504: "timeout_error",
}

MAX_MESSAGE = 400
"""Largest number of characters of a sentence."""
MAX_SHOWN = 60
"""Largest number of characters of a part of a parameter's name in a sentence."""
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
        message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…")
        self.param = param and param.encode("utf-8", "backslashreplace").decode()
        self.status, self.code, self.headers = status, code, dict(headers or {})

    def to_json(self) -> dict[str, Any]:
        """Return the body of the answer."""
        kind = TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        """Return the answer."""
        return JSONResponse(self.to_json(), self.status, self.headers)


def refusal(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for a wrong parameter of a request."""
    return ApiError(400, message, param=param, code=code)


def as_api_error(error: BaseException) -> ApiError:
    """Return an error in the form of the server. An unknown error is a failure of the server (500), and is logged."""
    match error:
        case ApiError():
            return error
        case UserError():
            return ApiError(400, str(error))
        case RequestValidationError():
            return _invalid(error)
        case TimeoutError():
            message, headers = "no result before the deadline: ask for a shorter text", {"x-should-retry": "false"}
            return ApiError(504, message, code="deadline", headers=headers)
        case Busy():
            return ApiError(503, str(error), code="busy", headers={"retry-after": "2"})
        case HTTPException(status_code=400):
            return ApiError(400, _unreadable(error.__cause__))
        case HTTPException():
            message = SENTENCES.get(error.status_code, str(error.detail))
            return ApiError(error.status_code, message, headers=error.headers)
    # The message is not logged, because it may contain a part of a text
    log.error("%s in\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
    headers = {"x-should-retry": "false"}  # a repetition would fail again
    return ApiError(500, f"the model failed: {type(error).__name__}: {error!s:.200}", code="failed", headers=headers)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer with an error."""
    return as_api_error(error).response()


def _unreadable(cause: BaseException | None) -> str:
    """Return the sentence for a body that the JSON parser cannot read."""
    match cause:
        case RecursionError():
            return "the request is not read: its lists and objects are nested too deeply"
        case UnicodeDecodeError():
            return f"the request is not text in UTF-8: the byte {cause.start:,} is wrong"
    return "the request is not JSON that can be read, for example because a number has too many digits"


def _invalid(error: RequestValidationError) -> ApiError:
    """Return the first of the mistakes in a request as one sentence."""
    first = error.errors()[0]
    kind, context = first["type"], first.get("ctx", {})
    place = _place(first["loc"], error.body)
    if kind == "json_invalid":
        return ApiError(400, f"the request is not JSON: {context.get('error', first['msg'])}")
    if kind == "many_unknown":
        return ApiError(400, f"the request has {context['number']:,} parameters that the server does not have")
    if kind in ("unknown_parameter", "not_obeyed"):
        name = context["name"]
        param = ".".join([*place, name])
        if kind == "not_obeyed":
            return refusal(
                f"{param}: the server cannot obey this value, which would change the text; leave {name} out", param
            )
        return refusal(f"unknown parameter {param!r}: {did_you_mean(name, context['known'])}", param)
    if kind == "missing":
        place = [str(part)[:MAX_SHOWN] for part in first["loc"][1:]]
    param = ".".join(place)
    if not param:
        return ApiError(400, "the request has no body, or its body is not a JSON object")
    if kind == "missing":
        return refusal(f"the parameter {param!r} is missing", param)
    message = first["msg"]
    return refusal(f"{param}: {message[:1].lower()}{message[1:]}, got {first.get('input')!r:.60}", param)


def _place(location: Sequence[str | int], body: Any) -> list[str]:
    """Return the names and numbers in `location` that lead to a part of the body; skip names of types."""
    found = []
    for part in location[1:]:
        is_inside = isinstance(part, int) and isinstance(body, list) and part < len(body)
        if is_inside or (isinstance(body, Mapping) and part in body):
            body = body[part]
            found.append(str(part)[:MAX_SHOWN])
    return found
