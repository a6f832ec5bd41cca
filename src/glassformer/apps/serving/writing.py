"""The endpoints that write texts.

`POST /v1/completions` continues texts or ids, or writes targets of sources. `POST /v1/chat/completions` answers a
conversation, with the chat template of the model.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel

from glassformer.apps.serving import schemas, texts
from glassformer.apps.serving.engine_thread import Piece
from glassformer.apps.serving.errors import refusal
from glassformer.apps.serving.guard import note_ignored
from glassformer.apps.serving.models import Served, TheModels
from glassformer.inference.chat import fitted
from glassformer.inference.rows import Likely, Settings
from glassformer.inference.rows import Request as EngineRequest
from glassformer.inference.text import EncodedPrompt, check_ids, never_written
from glassformer.inference.writer import with_settings
from glassformer.tokenization.tokenizer import Tokenizer

router = APIRouter(tags=["texts"])


@router.post("/v1/completions", response_model=schemas.Completion, responses=schemas.ERRORS | schemas.STREAM)
async def completions(body: schemas.CompletionRequest, models: TheModels, request: Request) -> Any:
    """Continue texts; with `stream`, the parts are server-sent events."""
    served = models.get(body.model)
    served.require("completions")
    note_ignored(request, body.ignored())
    if body.best_of not in (None, body.n):
        raise refusal("best_of: the server returns all n texts; leave best_of out", "best_of")
    if body.max_tokens == 0 and not body.echo:
        raise refusal("max_tokens is 0, so there is nothing to generate: set echo, or a larger number", "max_tokens")
    texts.require_n(models, len(schemas.prompts_of(body.prompt)) * body.n)
    return await texts.answer(request, models, completion_job, served, body)


class CompletionJob(texts.Job[schemas.CompletionRequest]):
    """Texts that are continued, or sources whose targets are written."""

    kind, whole, part = "cmpl", schemas.Completion, schemas.Completion

    def choice(self, row: int, pieces: Sequence[Piece], is_first: bool, is_whole: bool) -> BaseModel:
        echo = self._echo(row)
        choice = schemas.CompletionChoice(
            index=row, text="".join(piece.text for piece in pieces), finish_reason=pieces[-1].finish
        )
        if is_first:
            choice.text = echo + choice.text
        if self.body.logprobs is not None:
            scored = [(one.likely, len(echo) + one.begin) for one in pieces if one.likely is not None]
            choice.logprobs = _of_tokens(self.tokenizer, scored)
            if is_first and self.body.echo:
                choice.logprobs = self._with_prompt(pieces[0], choice.logprobs)
        return choice

    def _echo(self, row: int) -> str:
        """Return the prompt before the text of a row, if the request asks for it."""
        if not self.body.echo:
            return ""
        given = schemas.prompts_of(self.body.prompt)[row // self.body.n]
        return given if isinstance(given, str) else self.tokenizer.decode(given)

    def _with_prompt(self, piece: Piece, after: schemas.CompletionLogprobs) -> schemas.CompletionLogprobs:
        """Put the prompt before the tokens of a row. The first token of the prompt has no log probability."""
        prompt = self.prompts[piece.row // self.body.n]
        scored = [Likely(prompt.ids[0], 0.0), *piece.sample.prompt]
        stream = self.tokenizer.stream()
        begins = accumulate((len(stream.push(one.token)) for one in scored), initial=0)
        before = _of_tokens(self.tokenizer, [*zip(scored, begins, strict=False)])
        return schemas.CompletionLogprobs(
            tokens=before.tokens + after.tokens,
            token_logprobs=[None, *before.token_logprobs[1:], *after.token_logprobs],
            top_logprobs=[None, *before.top_logprobs[1:], *after.top_logprobs],
            text_offset=before.text_offset + after.text_offset,
            ids=before.ids + after.ids,
        )


def completion_job(served: Served, body: schemas.CompletionRequest) -> CompletionJob:
    """Return the prompts of a request with their settings; raise an error for a prompt that does not fit."""
    model, prompts, sources = served.model, schemas.prompts_of(body.prompt), list[tuple[int, ...]]()
    given = texts.sampling_of(served, body, body.max_tokens, "max_tokens")
    if model.is_seq2seq:
        if body.echo:
            raise refusal("echo: the model writes targets of sources; leave echo out", "echo")
        # An encoder-decoder reads the prompts as sources, and writes targets from their start
        config, start = with_settings(texts.defaults_of(served), given), model.translator.target_ids("")
        ends = [model.translator.end_id, *config.end_ids]
        unwritten = never_written(model.tokenizer, model.config.vocab_size, but=ends)
        settings = Settings(config, model.config.max_len, ends, unwritten, device=model.device)
        sources = [_source(served, prompt) for prompt in prompts]
        encoded = [EncodedPrompt(start) for _ in prompts]
    else:
        # A causal model continues the prompts
        settings = model.writer.settings(with_settings(texts.defaults_of(served), given))
        encoded = [model.writer.encode(prompt) for prompt in prompts]
        check_ids([prompt.ids for prompt in encoded], min(model.tokenizer.vocab_size, model.config.vocab_size))
        for prompt in encoded:
            texts.require_fit(len(prompt.ids), model.config.max_len, "prompt")
    settings = replace(settings, samples=range(body.n))  # at temperature 0, they are equal
    # One request of the engine per prompt
    penalties = texts.penalties_of(body, model.config.vocab_size)
    requests = [
        EngineRequest(
            prompt.ids,
            settings,
            sources[number] if sources else (),
            penalties,
            n_new=body.max_tokens,
            n_top=body.logprobs,
            scores_prompt=body.echo and body.logprobs is not None,
        )
        for number, prompt in enumerate(encoded)
    ]
    return CompletionJob(served, body, requests, encoded)


def _source(served: Served, prompt: str | list[int]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(served.model.encode_source(prompt))
    check_ids([prompt], served.model.config.encoder_vocab_size)
    texts.require_fit(len(prompt), served.model.config.encoder_max_len, "prompt")
    return tuple(prompt)


def _of_tokens(tokenizer: Tokenizer, scored: Sequence[tuple[Likely, int]]) -> schemas.CompletionLogprobs:
    """Return the log probabilities of tokens, each with the number of characters before it."""
    return schemas.CompletionLogprobs(
        tokens=[texts.token_text(tokenizer, one.token) for one, _ in scored],
        token_logprobs=[one.log_prob for one, _ in scored],
        top_logprobs=[tops(one, tokenizer) for one, _ in scored],
        text_offset=[begin for _, begin in scored],
        ids=[one.token for one, _ in scored],
    )


def tops(one: Likely, tokenizer: Tokenizer) -> dict[str, float]:
    """Return the log probabilities of the most probable tokens at a position, and of the token there."""
    found: dict[str, float] = {}
    for token, log_prob in [*one.top, (one.token, one.log_prob)]:
        found.setdefault(texts.token_text(tokenizer, token), log_prob)
    return found


@router.post("/v1/chat/completions", response_model=schemas.ChatCompletion, responses=schemas.ERRORS | schemas.STREAM)
async def chat(body: schemas.ChatRequest, models: TheModels, request: Request) -> Any:
    """Answer a conversation; with `stream`, the parts are server-sent events."""
    served = models.get(body.model)
    require_chat(served, body, request)
    texts.require_n(models, body.n)
    return await texts.answer(request, models, chat_job, served, body)


def require_chat(served: Served, body: schemas.ChatRequest, request: Request) -> None:
    """Raise `ApiError` for a wrong model or parameter; note the parameters that are not used (`note_ignored`)."""
    served.require("chat")
    note_ignored(request, body.ignored())
    if body.top_logprobs is not None and not body.logprobs:
        raise refusal("top_logprobs needs logprobs: set logprobs to true", "top_logprobs")


class ChatJob(texts.Job[schemas.ChatRequest]):
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


def chat_job(served: Served, body: schemas.ChatRequest) -> ChatJob:
    """Return the conversation as a prompt; raise `ApiError` for a conversation that does not fit the context."""
    # Settings of the answer
    model, limits = served.model, served.limits
    n_new = body.max_completion_tokens or body.max_tokens or min(limits.max_tokens, model.config.max_len)
    param = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    settings, _ = model.chat_settings(**texts.sampling_of(served, body, n_new, param))
    settings = replace(settings, samples=range(body.n))  # at temperature 0, they are equal
    # The turns that fit the context
    messages = [one.to_message() for one in body.messages]
    begun = _begun(messages) if body.continue_final_message else ""
    found = fitted(model.conversation_encoder, messages, settings)
    if found is None or (found[1] and body.truncation == "disabled"):
        ids, way_out = model.conversation_encoder.prompt(messages), "shorten it"
        if found is not None:
            way_out += ', or set truncation to "auto"'
        raise refusal(
            f"the conversation has {len(ids):,} tokens, and the context of {model.config.max_len:,} has no room for an "
            f"answer: {way_out}",
            "messages",
            "context_length_exceeded",
        )
    prompt, left_out = found
    # The beginning of the answer, if the client gives one
    if begun:
        prompt = EncodedPrompt([*prompt.ids, *model.tokenizer.encode(begun)])
        texts.require_fit(len(prompt.ids), model.config.max_len, "messages")
    request = EngineRequest(
        prompt.ids,
        settings,
        penalties=texts.penalties_of(body, model.config.vocab_size),
        n_new=n_new,
        n_top=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return ChatJob(served, body, [request], [prompt], {"left_out": left_out})


def _begun(messages: list[dict[str, Any]]) -> str:
    """Remove the last message, and return its text, which the answer continues."""
    last = messages.pop()
    if last["role"] != "assistant" or not messages:
        raise refusal(
            "continue_final_message: the last of two or more messages must be one of the assistant",
            "continue_final_message",
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
        "token": texts.token_text(tokenizer, token),
        "logprob": log_prob,
        "bytes": list(texts.token_bytes(tokenizer, token)),
        "id": token,
    }
