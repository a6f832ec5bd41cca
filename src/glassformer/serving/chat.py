"""`POST /v1/chat/completions`: answers in a conversation, by the chat template of the model."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request

from glassformer.inference.chat import fitting
from glassformer.inference.engine import Request as EngineRequest
from glassformer.inference.rows import check_prompts
from glassformer.inference.text import EncodedPrompt
from glassformer.serving import schemas
from glassformer.serving.engine_thread import Piece
from glassformer.serving.errors import ApiError
from glassformer.serving.models import Models, Served, TheModels
from glassformer.serving.texts import (
    Job,
    events,
    name_of,
    penalties_of,
    require_n,
    sampling_of,
    token_bytes,
    token_text,
    unless_gone,
)
from glassformer.tokenization.tokenizer import Tokenizer

router = APIRouter(tags=["texts"])


@router.post("/v1/chat/completions", response_model=schemas.ChatCompletion, responses=schemas.ERRORS)
async def chat(body: schemas.ChatRequest, models: TheModels, request: Request) -> Any:
    """Answer a conversation; with `stream`, the parts are server-sent events."""
    served = models.get(body.model)
    served.require("chat")
    _refuse(body)
    require_n(models, body.n)
    job, left_out = job_of(served, body)
    if body.stream:
        return await events(request, _stream(models, job, body, left_out))
    with models.place():
        return await unless_gone(request, _whole(job, body, left_out))


def _refuse(body: schemas.ChatRequest) -> None:
    """Raise `ApiError` for what the server cannot do."""
    if body.tools:
        raise ApiError(400, "tools: the server calls no tools; leave tools out", param="tools")
    if body.response_format is not None and body.response_format.get("type") != "text":
        raise ApiError(
            400, "response_format: the server writes text only; leave response_format out", param="response_format"
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: set logprobs to true", param="top_logprobs")


def job_of(served: Served, body: schemas.ChatRequest) -> tuple[Job, int]:
    """Return the conversation as a prompt, and the number of messages that were left out of it."""
    model, wanted = served.model, body.max_completion_tokens or body.max_tokens
    n_new = min(wanted or served.limits.max_tokens, served.limits.max_tokens, model.config.max_len)
    settings, _ = model.chat_settings(n=body.n, **sampling_of(body, n_new))
    roles = {"developer": "system"}
    messages = [{"role": roles.get(one.role, one.role), "content": one.text} for one in body.messages]
    begun = _begun(messages) if body.continue_final_message else ""
    prompt, left_out = fitting(model.conversation_encoder, messages, settings)
    if left_out and body.truncation == "disabled":
        ids = model.conversation_encoder.prompt(messages)
        raise ApiError(
            400,
            f"the conversation has {len(ids):,} tokens, and the context of {model.config.max_len:,} has no room for an "
            'answer: shorten it, or set truncation to "auto"',
            param="messages",
            code="context_length_exceeded",
        )
    if begun:
        prompt = EncodedPrompt([*prompt.ids, *model.tokenizer.encode(begun)])
        check_prompts([prompt.ids], model.config.max_len)
    request = EngineRequest(
        prompt.ids,
        settings,
        penalties=penalties_of(body, model.config.vocab_size),
        n_new=n_new,
        n_top=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return Job(served, [request], [prompt]), left_out


def _begun(messages: list[dict[str, str]]) -> str:
    """Take the last message away, and return its text, which the answer continues."""
    last = messages.pop()
    if last["role"] != "assistant" or not messages:
        raise ApiError(
            400,
            "continue_final_message: the last message must be one of the assistant, after another one",
            param="continue_final_message",
        )
    return last["content"]


async def _whole(job: Job, body: schemas.ChatRequest, left_out: int) -> schemas.ChatCompletion:
    pieces = [piece async for piece in job.pieces()]
    choices = []
    for row in range(body.n):
        mine = [piece for piece in pieces if piece.row == row]
        message = schemas.Answer(role="assistant", content="".join(piece.text for piece in mine))
        choice = schemas.ChatChoice(index=row, message=message, finish_reason=mine[-1].finish)
        choice.logprobs = _logprobs(job.tokenizer, body, mine)
        choices.append(choice)
    return schemas.ChatCompletion(
        **name_of("chatcmpl"), model=job.served.name, choices=choices, usage=job.usage(pieces), left_out=left_out
    )


async def _stream(
    models: Models, job: Job, body: schemas.ChatRequest, left_out: int
) -> AsyncGenerator[schemas.ChatChunk]:
    name, pieces, begun = name_of("chatcmpl") | {"model": job.served.name}, list[Piece](), set[int]()
    with models.place():
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
