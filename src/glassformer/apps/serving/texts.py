"""The common parts of completions and chats: settings, jobs, and an answer as a whole or as a stream."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from fastapi import Request as HttpRequest
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from glassformer.apps.serving.engine_thread import Piece
from glassformer.apps.serving.errors import ApiError, as_api_error, refusal
from glassformer.apps.serving.models import Models, Served
from glassformer.apps.serving.schemas import PromptDetails, Sampling, Usage
from glassformer.config.run import CONSTRAINTS, SHAPES_LOGITS, GenerationConfig
from glassformer.inference.rows import Penalties, Request
from glassformer.inference.text import EncodedPrompt
from glassformer.tokenization.tokenizer import Tokenizer

Body = TypeVar("Body", bound=Sampling)
Result = TypeVar("Result")

SETTINGS = {name: name for name in (*SHAPES_LOGITS, *CONSTRAINTS)}
"""Fields of `GenerationConfig` whose defaults belong to the model, and the parameter of a request for each."""
SETTINGS["min_new_tokens"] = "min_tokens"


def defaults_of(served: Served) -> GenerationConfig:
    """Return a model's default settings of a generation. An encoder-decoder has temperature 0."""
    generation = served.model.generation
    if isinstance(generation, GenerationConfig):
        return generation
    return GenerationConfig(temperature=0.0, **{name: getattr(generation, name) for name in CONSTRAINTS})


def sampling_of(served: Served, body: Sampling, n_new: int, param: str) -> dict[str, Any]:
    """Return the settings of a generation that a request gives; the model has defaults for the others.

    `n_new` is the largest number of new tokens, and `param` its parameter. Raises `ApiError` if `n_new` is more than
    the server allows, or less than `min_tokens`. For `n_new` 0, the default of `min_tokens` is 0.
    """
    if n_new > served.limits.max_tokens:
        raise refusal(f"{param} is {n_new}, and the server allows {served.limits.max_tokens:,} new tokens", param)
    # What the request gives, under the names of the settings
    settings = {name: value for name, key in SETTINGS.items() if (value := getattr(body, key)) is not None}
    if not n_new:
        settings.setdefault("min_new_tokens", 0)
    least = settings.get("min_new_tokens", defaults_of(served).min_new_tokens)
    if least > n_new:
        is_own = " (the default of the model)" * (body.min_tokens is None)
        raise refusal(
            f"min_tokens is {least:,}{is_own} and {param} is {n_new:,}: lower the first, or raise the second",
            "min_tokens",
        )
    # Values that OpenAI's interface or another server writes differently
    settings["seed"] = secrets.randbits(32) if body.seed in (None, -1) else body.seed
    if body.top_k == -1:
        settings["top_k"] = 0
    if body.stop is not None:
        settings["stop"] = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    return settings | {"max_new_tokens": max(1, n_new)}


def require_fit(n_ids: int, max_len: int, param: str) -> None:
    """Raise `ApiError` for a prompt that does not fit the context."""
    if n_ids > max_len:
        raise refusal(
            f"{param} has {n_ids:,} tokens, and the context of the model is {max_len:,}: shorten it",
            param,
            "context_length_exceeded",
        )


def penalties_of(body: Sampling, vocab_size: int) -> Penalties:
    """Return the penalties of a request; raise `ApiError` for an id that the model does not have."""
    bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
    if bias and max(bias) >= vocab_size:
        raise refusal(f"logit_bias has the id {max(bias)}, and the model has {vocab_size:,} tokens", "logit_bias")
    return Penalties(bias, body.presence_penalty, body.frequency_penalty)


@dataclass(frozen=True)
class Job(Generic[Body]):
    """The prompts of a request, their settings, and the form of the answer. Each endpoint has a subclass."""

    served: Served
    body: Body
    requests: Sequence[Request]
    prompts: Sequence[EncodedPrompt]
    more: dict[str, Any] = field(default_factory=dict)
    """Further fields of the answer."""

    kind: ClassVar[str]
    """Beginning of the id of an answer."""
    whole: ClassVar[type[BaseModel]]
    """Type of a whole answer."""
    part: ClassVar[type[BaseModel]]
    """Type of a part of a stream."""

    def choice(self, row: int, pieces: Sequence[Piece], is_first: bool, is_whole: bool) -> BaseModel:
        """Return the text of a row, or a part of it for a stream; `is_first` is True if it begins the row."""
        raise NotImplementedError

    @cached_property
    def name(self) -> dict[str, Any]:
        """The fields that name the answer: its id, its time and its model."""
        name = f"{self.kind}-{secrets.token_hex(12)}"
        return {"id": name, "created": int(time.time()), "model": self.served.name}

    @property
    def tokenizer(self) -> Tokenizer:
        return self.served.model.tokenizer

    def pieces(self) -> AsyncGenerator[Piece]:
        """Yield the pieces of all rows."""
        return self.served.thread.run(self.requests, self.prompts)

    def usage(self, pieces: Sequence[Piece]) -> Usage:
        """Return the numbers of tokens of a request, given all its pieces."""
        n_prompt = sum(len(request.source or request.ids) for request in self.requests)
        n_new = sum(piece.n_tokens for piece in pieces)
        n_shared = sum({piece.sample.request: piece.sample.n_shared for piece in pieces}.values())
        return Usage(
            prompt_tokens=n_prompt,
            completion_tokens=n_new,
            total_tokens=n_prompt + n_new,
            prompt_tokens_details=PromptDetails(cached_tokens=n_shared),
        )


def of_rows(pieces: Iterable[Piece]) -> list[list[Piece]]:
    """Return the list of pieces of each row, in the order of the rows' numbers."""
    rows: dict[int, list[Piece]] = {}
    for piece in pieces:
        rows.setdefault(piece.row, []).append(piece)
    return [rows[number] for number in sorted(rows)]


async def answer(
    request: HttpRequest, models: Models, prepare: Callable[[Served, Body], Job[Body]], served: Served, body: Body
) -> Any:
    """Answer a request as a whole, or as a stream of server-sent events; `prepare` makes the job of the request."""
    if body.stream:
        return await events(request, _stream(models, prepare, served, body))
    with models.place():
        return await unless_gone(request, _whole(prepare, served, body))


def require_n(models: Models, n_texts: int) -> None:
    """Raise `ApiError` for too many texts in one request."""
    if n_texts > models.limits.max_n:
        raise refusal(f"the request asks for {n_texts} texts, and the server allows {models.limits.max_n}", "n")


async def _whole(prepare: Callable[[Served, Body], Job[Body]], served: Served, body: Body) -> BaseModel:
    job = await served.preparing.run(prepare, served, body)
    pieces = [piece async for piece in job.pieces()]
    rows = enumerate(of_rows(pieces))
    choices = [job.choice(row, mine, is_first=True, is_whole=True) for row, mine in rows]
    return job.whole(**job.name, choices=choices, usage=job.usage(pieces), **job.more)


async def _stream(
    models: Models, prepare: Callable[[Served, Body], Job[Body]], served: Served, body: Body
) -> AsyncGenerator[BaseModel]:
    pieces, begun = list[Piece](), set[int]()
    with models.place():
        job = await served.preparing.run(prepare, served, body)
        async with aclosing(job.pieces()) as stream:
            async for piece in stream:
                choice = job.choice(piece.row, [piece], is_first=piece.row not in begun, is_whole=False)
                yield job.part(**job.name, choices=[choice], **job.more)
                pieces.append(piece)
                begun.add(piece.row)
    if body.stream_options is not None and body.stream_options.include_usage:
        yield job.part(**job.name, choices=[], usage=job.usage(pieces))


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return a token as text. A part of a character becomes the text of its bytes, such as `bytes:\\xe6\\x97`."""
    data = token_bytes(tokenizer, token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def token_bytes(tokenizer: Tokenizer, token: int) -> bytes:
    """Return the bytes of a token; no bytes for an id without a token."""
    return tokenizer.pieces[token] if token < len(tokenizer.pieces) else b""


async def unless_gone(request: HttpRequest, answer: Awaitable[Result]) -> Result:
    """Wait for an answer; cancel it when the client disconnects."""
    task = asyncio.ensure_future(answer)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([task, gone], return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "the client disconnected")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: HttpRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def events(request: HttpRequest, parts: AsyncGenerator[BaseModel]) -> StreamingResponse:
    """Return a stream of server-sent events. Raises an error before the first part, for an answer with its status."""
    return _Events(await unless_gone(request, anext(parts)), parts)


class _Events(StreamingResponse):
    def __init__(self, first: BaseModel, parts: AsyncGenerator[BaseModel]) -> None:
        super().__init__(_lines(first, parts), media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Close the parts, so that the job also ends if the client disconnects before the first line
        async with aclosing(self._parts):
            await super().__call__(scope, receive, send)


async def _lines(first: BaseModel, parts: AsyncGenerator[BaseModel]) -> AsyncIterator[str]:
    yield _event(first.model_dump_json())
    try:
        async for part in parts:
            yield _event(part.model_dump_json())
    except Exception as error:
        yield _event(json.dumps(as_api_error(error).to_json()))
    else:
        yield _event("[DONE]")


def _event(data: str) -> str:
    return f"data: {data}\n\n"
