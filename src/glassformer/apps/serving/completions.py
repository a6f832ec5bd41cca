"""`POST /v1/completions`: continuations of texts or ids, and targets of sources."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import accumulate
from typing import Any

from fastapi import APIRouter, Request

from glassformer.apps.serving import schemas
from glassformer.apps.serving.engine_thread import Piece
from glassformer.apps.serving.errors import ApiError
from glassformer.apps.serving.guard import note_ignored
from glassformer.apps.serving.models import Models, Served, TheModels
from glassformer.apps.serving.texts import (
    Job,
    defaults_of,
    events,
    name_of,
    of_rows,
    penalties_of,
    require_fit,
    require_n,
    sampling_of,
    token_text,
    tops,
    unless_gone,
)
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
        raise ApiError(400, "best_of: the server returns all n texts; leave best_of out", param="best_of")
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(
            400, "max_tokens is 0, so there is nothing to generate: set echo, or a larger number", param="max_tokens"
        )
    require_n(models, len(prompts_of(body.prompt)) * body.n)
    if body.stream:
        return await events(request, _stream(models, served, body))
    with models.place():
        return await unless_gone(request, _whole(served, body))


def prompts_of(given: Any) -> list[str | list[int]]:
    """Return the prompts of a request as a list of texts or ids."""
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]
    return list(given)


def job_of(served: Served, body: schemas.CompletionRequest) -> Job:
    """Return the prompts of a request with their settings; raise an error for one that does not fit."""
    model, prompts, sources = served.model, prompts_of(body.prompt), list[tuple[int, ...]]()
    given = sampling_of(served, body, body.max_tokens, "max_tokens")
    if model.is_seq2seq:
        if body.echo:
            raise ApiError(400, "echo: the model writes targets of sources; leave echo out", param="echo")
        # An encoder-decoder reads the prompts as sources, and writes targets from their start
        config, start = with_settings(defaults_of(served), given), model.translator.target_ids("")
        ends = [model.translator.end_id, *config.end_ids]
        unwritten = never_written(model.tokenizer, model.config.vocab_size, but=ends)
        settings = Settings(config, model.config.max_len, ends, unwritten, device=model.device)
        sources = [_source(served, prompt) for prompt in prompts]
        encoded = [EncodedPrompt(start) for _ in prompts]
    else:
        # A causal model continues the prompts
        settings = model.writer.settings(with_settings(defaults_of(served), given))
        encoded = [model.writer.encode(prompt) for prompt in prompts]
        check_ids([prompt.ids for prompt in encoded], min(model.tokenizer.vocab_size, model.config.vocab_size))
        for prompt in encoded:
            require_fit(len(prompt.ids), model.config.max_len, "prompt")
    settings = replace(settings, samples=range(body.n))  # at temperature 0, they are equal
    # One request of the engine per prompt
    penalties = penalties_of(body, model.config.vocab_size)
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
    return Job(served, requests, encoded)


def _source(served: Served, prompt: str | list[int]) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return tuple(served.model.encode_source(prompt))
    check_ids([prompt], served.model.config.encoder_vocab_size)
    require_fit(len(prompt), served.model.config.encoder_max_len, "prompt")
    return tuple(prompt)


async def _whole(served: Served, body: schemas.CompletionRequest) -> schemas.Completion:
    job = await served.preparing.run(job_of, served, body)
    pieces = [piece async for piece in job.pieces()]
    choices = []
    for row, mine in enumerate(of_rows(pieces)):
        text = "".join(piece.text for piece in mine)
        choice = schemas.CompletionChoice(index=row, text=text, finish_reason=mine[-1].finish)
        choice.logprobs = _logprobs(job.tokenizer, body, mine)
        choices.append(_with_echo(job, body, choice, mine[0]))
    return _part(job, choices, job.usage(pieces))


async def _stream(
    models: Models, served: Served, body: schemas.CompletionRequest
) -> AsyncGenerator[schemas.Completion]:
    name, pieces, begins = name_of("cmpl"), list[Piece](), dict[int, int]()
    with models.place():
        job = await served.preparing.run(job_of, served, body)
        async with aclosing(job.pieces()) as stream:
            async for piece in stream:
                pieces.append(piece)
                choice = schemas.CompletionChoice(index=piece.row, text=piece.text, finish_reason=piece.finish)
                choice.logprobs = _logprobs(job.tokenizer, body, [piece], begins.get(piece.row, 0))
                if piece.row not in begins:
                    choice = _with_echo(job, body, choice, piece)
                    begins[piece.row] = len(choice.text) - len(piece.text)
                yield _part(job, [choice], None, name)
    if body.stream_options is not None and body.stream_options.include_usage:
        yield _part(job, [], job.usage(pieces), name)


def _part(
    job: Job,
    choices: list[schemas.CompletionChoice],
    usage: schemas.Usage | None,
    name: Mapping[str, Any] | None = None,
) -> schemas.Completion:
    return schemas.Completion(**(name or name_of("cmpl")), model=job.served.name, choices=choices, usage=usage)


def _logprobs(
    tokenizer: Tokenizer, body: schemas.CompletionRequest, pieces: Sequence[Piece], begin: int = 0
) -> schemas.CompletionLogprobs | None:
    if body.logprobs is None:
        return None
    scored = [(piece.likely, begin + piece.begin) for piece in pieces if piece.likely is not None]
    return _of_tokens(tokenizer, scored)


def _of_tokens(tokenizer: Tokenizer, scored: Sequence[tuple[Likely, int]]) -> schemas.CompletionLogprobs:
    """Return the log probabilities of tokens, each with the number of characters before it."""
    return schemas.CompletionLogprobs(
        tokens=[token_text(tokenizer, one.token) for one, _ in scored],
        token_logprobs=[one.log_prob for one, _ in scored],
        top_logprobs=[tops(one, tokenizer) for one, _ in scored],
        text_offset=[begin for _, begin in scored],
        ids=[one.token for one, _ in scored],
    )


def _with_echo(
    job: Job, body: schemas.CompletionRequest, choice: schemas.CompletionChoice, piece: Piece
) -> schemas.CompletionChoice:
    """Put the prompt before the text of a row, if the request asks for it; the first token has no log probability."""
    if not body.echo:
        return choice
    number = choice.index // body.n
    prompt, given = job.prompts[number], prompts_of(body.prompt)[number]
    text = given if isinstance(given, str) else job.tokenizer.decode(given)
    if choice.logprobs is None:
        return choice.model_copy(update={"text": text + choice.text})
    scored = [Likely(prompt.ids[0], 0.0), *piece.sample.prompt]
    stream = job.tokenizer.stream()
    begins = accumulate((len(stream.push(one.token)) for one in scored), initial=0)
    before, after = _of_tokens(job.tokenizer, [*zip(scored, begins, strict=False)]), choice.logprobs
    logprobs = schemas.CompletionLogprobs(
        tokens=before.tokens + after.tokens,
        token_logprobs=[None, *before.token_logprobs[1:], *after.token_logprobs],
        top_logprobs=[None, *before.top_logprobs[1:], *after.top_logprobs],
        text_offset=before.text_offset + [len(text) + begin for begin in after.text_offset],
        ids=before.ids + after.ids,
    )
    return choice.model_copy(update={"text": text + choice.text, "logprobs": logprobs})
