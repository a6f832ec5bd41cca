"""`POST /v1/chat/completions`: answers in a conversation, by the chat template of the model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from glassformer.apps.serving import schemas
from glassformer.apps.serving.engine_thread import Piece
from glassformer.apps.serving.errors import ApiError
from glassformer.apps.serving.guard import note_ignored
from glassformer.apps.serving.models import Served, TheModels
from glassformer.apps.serving.texts import (
    Job,
    answer,
    penalties_of,
    require_fit,
    require_n,
    sampling_of,
    token_bytes,
    token_text,
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
    return await answer(request, models, job_of, served, body)


def require_chat(served: Served, body: schemas.ChatRequest, request: Request) -> None:
    """Raise `ApiError` for a wrong model or parameter; let the answer name the parameters that are not used."""
    served.require("chat")
    note_ignored(request, body.ignored())
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs: set logprobs to true", param="top_logprobs")


class ChatJob(Job[schemas.ChatRequest]):
    """A conversation that is continued."""

    kind, whole, part = "chatcmpl", schemas.ChatCompletion, schemas.ChatChunk

    def choice(self, row: int, pieces: Sequence[Piece], is_first: bool, is_whole: bool) -> BaseModel:
        message = schemas.Answer(content="".join(piece.text for piece in pieces))
        if is_first:
            message.role = "assistant"
        facts: dict[str, Any] = {"index": row, "finish_reason": pieces[-1].finish}
        if self.body.logprobs:
            facts["logprobs"] = _logprobs(self.tokenizer, pieces)
        if is_whole:
            return schemas.ChatChoice(message=message, **facts)
        return schemas.ChatDelta(delta=message, **facts)


def job_of(served: Served, body: schemas.ChatRequest) -> ChatJob:
    """Return the conversation as a prompt; raise `ApiError` for one that does not fit."""
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
    return ChatJob(served, body, [request], [prompt], {"left_out": left_out})


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


def _logprobs(tokenizer: Tokenizer, pieces: Sequence[Piece]) -> schemas.ChatLogprobs:
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
