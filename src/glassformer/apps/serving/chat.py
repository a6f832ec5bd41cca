"""`POST /v1/chat/completions`: answers in a conversation, by the chat template of the model."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request

from glassformer.apps.serving import schemas
from glassformer.apps.serving.engine_thread import Piece
from glassformer.apps.serving.errors import ApiError
from glassformer.apps.serving.guard import note_ignored
from glassformer.apps.serving.models import Models, Served, TheModels
from glassformer.apps.serving.texts import (
    Job,
    events,
    name_of,
    of_rows,
    penalties_of,
    require_fit,
    require_n,
    sampling_of,
    token_bytes,
    token_text,
    unless_gone,
)
from glassformer.inference.chat import fitted
from glassformer.inference.rows import Request as EngineRequest
from glassformer.inference.text import EncodedPrompt
from glassformer.tokenization.tokenizer import Tokenizer

router = APIRouter(tags=["texts"])


@router.post("/v1/chat/completions", response_model=schemas.ChatCompletion, responses=schemas.ERRORS | schemas.STREAM)
async def chat(body: schemas.ChatRequest, models: TheModels, request: Request) -> Any:
    """Answer a conversation; with `stream`, the parts are server-sent events."""
    served = models.get(body.model)
    require_chat(served, body, request)
    require_n(models, body.n)
    if body.stream:
        return await events(request, _stream(models, served, body))
    with models.place():
        return await unless_gone(request, _whole(served, body))


def require_chat(served: Served, body: schemas.ChatRequest, request: Request) -> None:
    """Raise `ApiError` for a wrong model or parameter; let the answer name the parameters that are not used."""
    served.require("chat")
    note_ignored(request, body.ignored())
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: set logprobs to true", param="top_logprobs")


def job_of(served: Served, body: schemas.ChatRequest) -> tuple[Job, int]:
    """Return the conversation as a prompt, and the number of messages that were left out of it."""
    # Settings of the answer
    model, limits = served.model, served.limits
    n_new = body.max_completion_tokens or body.max_tokens or min(limits.max_tokens, model.config.max_len)
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    settings, _ = model.chat_settings(**sampling_of(served, body, n_new, param))
    settings = replace(settings, samples=range(body.n))  # at temperature 0, they are equal
    # The turns that fit the context
    messages = [one.to_message() for one in body.messages]
    begun = _begun(messages) if body.continue_final_message else ""
    found = fitted(model.conversation_encoder, messages, settings)
    if found is None or (found[1] and body.truncation == "disabled"):
        ids, way_out = model.conversation_encoder.prompt(messages), "shorten it"
        if found is not None:
            way_out += ', or set truncation to "auto"'
        raise ApiError(
            400,
            f"the conversation has {len(ids):,} tokens, and the context of {model.config.max_len:,} has no room for an "
            f"answer: {way_out}",
            param="messages",
            code="context_length_exceeded",
        )
    prompt, left_out = found
    # The beginning of the answer, if the client gives one
    if begun:
        prompt = EncodedPrompt([*prompt.ids, *model.tokenizer.encode(begun)])
        require_fit(len(prompt.ids), model.config.max_len, "messages")
    request = EngineRequest(
        prompt.ids,
        settings,
        penalties=penalties_of(body, model.config.vocab_size),
        n_new=n_new,
        n_top=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return Job(served, [request], [prompt]), left_out


def _begun(messages: list[dict[str, Any]]) -> str:
    """Remove the last message, and return its text, which the answer continues."""
    last = messages.pop()
    if last["role"] != "assistant" or not messages:
        raise ApiError(
            400,
            "continue_final_message: the last of two or more messages must be one of the assistant",
            param="continue_final_message",
        )
    text: str = last["content"]
    return text


async def _whole(served: Served, body: schemas.ChatRequest) -> schemas.ChatCompletion:
    job, left_out = await served.preparing.run(job_of, served, body)
    pieces = [piece async for piece in job.pieces()]
    choices = []
    for row, mine in enumerate(of_rows(pieces)):
        message = schemas.Answer(role="assistant", content="".join(piece.text for piece in mine))
        choice = schemas.ChatChoice(index=row, message=message, finish_reason=mine[-1].finish)
        choice.logprobs = _logprobs(job.tokenizer, body, mine)
        choices.append(choice)
    return schemas.ChatCompletion(
        **name_of("chatcmpl"), model=job.served.name, choices=choices, usage=job.usage(pieces), left_out=left_out
    )


async def _stream(models: Models, served: Served, body: schemas.ChatRequest) -> AsyncGenerator[schemas.ChatChunk]:
    name, pieces, begun = name_of("chatcmpl") | {"model": served.name}, list[Piece](), set[int]()
    with models.place():
        job, left_out = await served.preparing.run(job_of, served, body)
        async with aclosing(job.pieces()) as stream:
            async for piece in stream:
                pieces.append(piece)
                delta = schemas.Answer(content=piece.text)
                if piece.row not in begun:
                    delta.role = "assistant"
                begun.add(piece.row)
                choice = schemas.ChatDelta(index=piece.row, delta=delta, finish_reason=piece.finish)
                choice.logprobs = _logprobs(job.tokenizer, body, [piece])
                yield schemas.ChatChunk(**name, choices=[choice], left_out=left_out)
    if body.stream_options is not None and body.stream_options.include_usage:
        yield schemas.ChatChunk(**name, choices=[], usage=job.usage(pieces))


def _logprobs(tokenizer: Tokenizer, body: schemas.ChatRequest, pieces: Sequence[Piece]) -> schemas.ChatLogprobs | None:
    if not body.logprobs:
        return None
    return schemas.ChatLogprobs(
        content=[
            schemas.TokenLogprob(
                **_token(tokenizer, one.token, one.log_prob),
                top_logprobs=[schemas.TopLogprob(**_token(tokenizer, *top)) for top in one.top],
            )
            for piece in pieces
            if (one := piece.likely) is not None
        ]
    )


def _token(tokenizer: Tokenizer, token: int, log_prob: float) -> dict[str, Any]:
    return {
        "token": token_text(tokenizer, token),
        "logprob": log_prob,
        "bytes": list(token_bytes(tokenizer, token)),
        "id": token,
    }
