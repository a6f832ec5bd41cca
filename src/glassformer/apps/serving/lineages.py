"""The endpoints of all lineages: vectors, translations, masks, labels, tags and scores.

Each one is a method of `Model` with the same name and parameters. Requests that wait at the same time are answered in
batches (`batches.py`).
"""

import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from glassformer.apps.serving import lineage_schemas as schemas
from glassformer.apps.serving import operations
from glassformer.apps.serving.batches import Answered, Operation
from glassformer.apps.serving.errors import ApiError
from glassformer.apps.serving.guard import note_ignored
from glassformer.apps.serving.models import Models, Served, TheModels
from glassformer.apps.serving.schemas import ERRORS
from glassformer.apps.serving.texts import require_n, unless_gone
from glassformer.inference.embed import Vectors
from glassformer.inference.one_or_list import is_sentence, texts_of

Given = TypeVar("Given")
Result = TypeVar("Result")
router = APIRouter(tags=["lineages"], responses=ERRORS)


@router.post("/v1/embeddings")
async def embeddings(
    body: schemas.EmbeddingRequest, models: TheModels, request: Request
) -> schemas.Answers[schemas.Embedding]:
    """Return a vector for each text, by the interface of OpenAI."""
    served = _served(models, body.model, "embeddings")
    note_ignored(request, body.ignored())
    size = served.model.embedder.size
    if body.dimensions not in (None, size):
        raise ApiError(400, f"dimensions: the vectors of {served.name} have {size:,} numbers", param="dimensions")
    operation = operations.Embed(served=served, truncation=body.truncation)
    found = await _answered(models, request, served, operation, _texts_or_ids(body.input))
    vectors = [_base64(x) if body.encoding_format == "base64" else x.tolist() for x in found.answers]
    data = [schemas.Embedding(index=n, embedding=x) for n, x in enumerate(vectors)]
    return schemas.Answers[schemas.Embedding](data=data, **_rest(served, found))


@router.post("/v1/translate", response_model_exclude_none=True)
async def translate(
    body: schemas.TranslationRequest, models: TheModels, request: Request
) -> schemas.Answers[schemas.Targets]:
    """Return the best targets of each source, with scores and, if asked for, the alignment."""
    served = _served(models, body.model, "translate")
    translator, settings = served.model.translator, _search(served, body)
    translator.search(translator.beam(settings), body.n_best)  # raises the errors of the settings
    operation = operations.Translate(
        served=served,
        n_rows=translator.beam(settings).beam,
        n_best=body.n_best,
        prefix=body.prefix,
        aligns=body.alignment,
        settings=tuple(settings.items()),
    )
    found = await _answered(models, request, served, operation, _listed(models, body.sources))
    data = [schemas.Targets(index=n, targets=targets) for n, targets in enumerate(found.answers)]
    return schemas.Answers[schemas.Targets](data=data, **_rest(served, found))


@router.post("/v1/fill-mask")
async def fill_mask(
    body: schemas.FillRequest, models: TheModels, request: Request
) -> schemas.Answers[schemas.FilledText]:
    """Fill each `[MASK]` of a text: candidates with probabilities, or the text that a denoiser writes."""
    served = _served(models, body.model, "fill_mask")
    settings, n_rows = _search(served, body), 1
    if served.model.is_seq2seq:
        n_rows = served.model.translator.beam(settings).beam
        if body.n is not None:
            raise ApiError(400, f"n: {served.name} writes whole texts without candidates; leave n out", param="n")
    elif settings:
        name = next(iter(settings))
        raise ApiError(400, f"{name}: {served.name} gives candidates without a search; leave {name} out", param=name)
    operation = operations.Fill(served=served, n_rows=n_rows, n=body.n or 5, settings=tuple(settings.items()))
    found = await _answered(models, request, served, operation, _listed(models, body.text))
    data = [schemas.FilledText(index=n, **asdict(one)) for n, one in enumerate(found.answers)]
    return schemas.Answers[schemas.FilledText](data=data, **_rest(served, found))


@router.post("/v1/classify", response_model_exclude_none=True)
async def classify(
    body: schemas.ClassificationRequest, models: TheModels, request: Request
) -> schemas.Answers[schemas.Labels]:
    """Return the probability of each class, or the number of a regression model."""
    served = _served(models, body.model, "classify")
    given = [body.texts] if isinstance(body.texts, str) else body.texts
    texts = [one if isinstance(one, str) else (one[0], one[1]) for one in given]
    require_n(models, len(texts))
    rule = served.model.classifier.threshold(body.threshold, body.label)
    operation = operations.Classify(served=served, truncation=body.truncation)
    found = await _answered(models, request, served, operation, texts)
    if served.model.is_regression:
        data = [schemas.Labels(index=n, number=one["number"]) for n, one in enumerate(found.answers)]
    else:
        labels = [None if rule is None else rule.chosen(one) for one in found.answers]
        data = [schemas.Labels(index=n, classes=one, labels=labels[n]) for n, one in enumerate(found.answers)]
    return schemas.Answers[schemas.Labels](data=data, **_rest(served, found))


@router.post("/v1/tag")
async def tag(
    body: schemas.TaggingRequest, models: TheModels, request: Request
) -> schemas.Answers[schemas.TaggedSentence]:
    """Return the most probable tag of each word."""
    served = _served(models, body.model, "tag")
    sentences = _sentences(body.sentences)
    require_n(models, len(sentences))
    operation = operations.Tag(served=served, truncation=body.truncation)
    found = await _answered(models, request, served, operation, sentences)
    data = [
        schemas.TaggedSentence(
            index=n, words=words, tags=[name for name, _ in tags], probabilities=[p for _, p in tags]
        )
        for n, (words, tags) in enumerate(zip(sentences, found.answers, strict=True))
    ]
    return schemas.Answers[schemas.TaggedSentence](data=data, **_rest(served, found))


@router.post("/v1/score")
async def score(body: schemas.ScoreRequest, models: TheModels, request: Request) -> schemas.Answers[schemas.TextScore]:
    """Return the log probability of each text, alone or after its source."""
    served = _served(models, body.model, "score")
    texts, targets, _ = texts_of(body.text, None, body.source)
    require_n(models, len(texts))
    columns = [texts] if targets is None else [texts, targets]
    operation = operations.ScoreTexts(served=served, has_sources=targets is not None)
    found = await _answered(models, request, served, operation, list(zip(*columns, strict=True)))
    data = [schemas.TextScore(index=n, **one.to_dict()) for n, one in enumerate(found.answers)]
    return schemas.Answers[schemas.TextScore](data=data, **_rest(served, found))


def _served(models: Models, name: str | None, ability: str) -> Served:
    served = models.get(name)
    served.require(ability)
    return served


def _listed(models: Models, given: str | list[str]) -> list[str]:
    """Return the inputs of a request as a list; raise `ApiError` for too many."""
    texts = [given] if isinstance(given, str) else given
    require_n(models, len(texts))
    return texts


def _texts_or_ids(given: Any) -> list[operations.TextOrIds]:
    """Return a text, ids, or a list of them, as a list."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [tuple(given)]
    return [one if isinstance(one, str) else tuple(one) for one in given]


def _sentences(given: Any) -> list[list[str]]:
    """Return the words of each sentence; raise `UserError` for a list of words of which one is not a single word."""
    if isinstance(given, str):
        return [given.split()]
    return [given] if is_sentence(None, given) else given


def _search(served: Served, body: schemas.Searching) -> dict[str, Any]:
    """Return the settings of a search that a request gives; raise `ApiError` beyond the limits of the server."""
    settings, limits = body.settings(), served.limits
    for name, most in (("beam", limits.max_rows), ("max_new_tokens", limits.max_tokens)):
        if settings.get(name, 0) > most:
            raise ApiError(400, f"{name} is {settings[name]:,}, and the limit of the server is {most:,}", param=name)
    return settings


async def _answered(
    models: Models, request: Request, served: Served, operation: Operation[Given, Result], given: Sequence[Given]
) -> Answered[Result]:
    """Return the answers to the inputs of a request, unless the client disconnects."""

    async def answered() -> Answered[Result]:
        n_tokens = await served.preparing.run(lambda: [operation.n_tokens(one) for one in given])
        return await models.batches.run(operation, given, n_tokens)

    with models.place():
        return await unless_gone(request, answered())


def _rest(served: Served, found: Answered[Any]) -> dict[str, Any]:
    """Return the fields that all answers have."""
    usage = schemas.TokensRead(prompt_tokens=found.n_tokens, total_tokens=found.n_tokens)
    return {"model": served.name, "usage": usage}


def _base64(vector: Vectors) -> str:
    """Return the bytes of a vector, float32 in little-endian order, as text."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
