"""The application: the guard, all routes, the document of the interface, and the page for conversations.

The address `/page/serving/page/FILE` or `/page/inspector/page/FILE` gives a file of `apps/`. So the page imports the
inspector's modules by the same relative paths as on the disk.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.routing import Route

from glassformer.apps.inspector import app as inspector_app
from glassformer.apps.inspector.inspector import FOLDER, Inspector
from glassformer.apps.inspector.panels import calls
from glassformer.apps.inspector.worker import Busy, Worker
from glassformer.apps.serving import lineages, schemas, writing
from glassformer.apps.serving.batches import Batches
from glassformer.apps.serving.errors import ApiError, answer_error
from glassformer.apps.serving.guard import COOKIE, Guard, cookie_of, is_equal
from glassformer.apps.serving.models import Models, Served, TheModels
from glassformer.apps.serving.settings import Access, Limits
from glassformer.apps.serving.texts import SETTINGS, Job, defaults_of, unless_gone
from glassformer.common.errors import UserError
from glassformer.model import Model

PACKAGE = Path(__file__).parents[1]
WRONG_KEY_S = 1.0
"""Seconds before the answer to a wrong key."""
COOKIE_S = 30 * 24 * 3600
"""Seconds for which a browser keeps the key's cookie."""

facts = APIRouter(tags=["server"])
_page = APIRouter(tags=["page"], responses=schemas.ERRORS)


def application(
    models: Mapping[str, Model], limits: Limits, access: Access | None = None, *, log_texts: bool = False
) -> FastAPI:
    """Return the application that serves models by name; `log_texts` adds requests and answers to the log."""
    access = access or Access()
    worker = Worker(limits.max_waiting, limits.deadline)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        for one in app.state.models.workers:
            one.close()

    app = FastAPI(
        title="glassformer",
        version=version("glassformer"),
        description="Models of all lineages, with OpenAI's interface and further endpoints.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    # The models share one thread. A message names a model by its name in the server, not by the path of its folder
    served = {}
    for name, model in models.items():
        renamed = replace(model, folder=None, run=replace(model.run, name=name))
        served[name] = Served(name, renamed, worker, limits)
    app.state.models = Models(served, limits, Batches(worker, limits))
    # Errors, routes, and the guard before all of them
    for error in (ApiError, UserError, RequestValidationError, HTTPException, TimeoutError, Busy, Exception):
        app.add_exception_handler(error, answer_error)
    for router in (writing.router, lineages.router, facts):
        app.include_router(router)
    _add_page(app, app.state.models, access)
    app.add_middleware(Guard, access=access, limits=limits, log_texts=log_texts)
    return app


@facts.get("/health")
async def health() -> dict[str, str]:
    """Answer while the server runs."""
    return {"status": "ok"}


@facts.get("/v1/models", responses=schemas.ERRORS)
async def list_models(models: TheModels) -> schemas.ServedModels:
    """Return all models."""
    return schemas.ServedModels(data=[_described(one) for one in models.served.values()])


@facts.get("/v1/models/{name}", responses=schemas.ERRORS)
async def one_model(name: str, models: TheModels) -> schemas.ServedModel:
    """Return one model."""
    return _described(models.get(name))


def _described(served: Served) -> schemas.ServedModel:
    model, defaults = served.model, defaults_of(served)
    return schemas.ServedModel(
        id=served.name,
        created=served.created,
        abilities=served.abilities,
        max_len=model.config.max_len,
        learned=model.learned,
        n_parameters=sum(x.numel() for x in model.network.parameters()),
        defaults={key: getattr(defaults, name) for name, key in SETTINGS.items()},
        special_tokens=list(model.tokenizer.special_tokens),
    )


def _add_page(app: FastAPI, models: Models, access: Access) -> None:
    """Add the page, its session, and the inspector of each model below `/look/`."""
    # Files
    app.include_router(_page)
    for folder in ("serving/page", "inspector/page"):
        route = Route("/{name:path}", inspector_app.files(PACKAGE / folder))
        app.mount(f"/page/{folder}", inspector_app.with_security_headers(route))

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        headers = {name.decode(): value.decode() for name, value in inspector_app.HEADERS.items()}
        return FileResponse(PACKAGE / "serving" / "page" / "index.html", headers=headers)

    # Session
    @app.post("/session", status_code=204, tags=["page"], responses=schemas.ERRORS)
    async def session(
        request: Request, given: Annotated[str, Body(embed=True, alias="key", max_length=1024)]
    ) -> Response:
        """Give a browser that has the key a cookie, so that the page can send requests."""
        if access.key is not None and not is_equal(given, access.key):
            await asyncio.sleep(WRONG_KEY_S)
            raise ApiError(401, "the key is wrong", param="key", code="invalid_api_key")
        answer = Response(status_code=204)
        if access.key is not None:
            is_secure = request.url.scheme == "https"
            answer.set_cookie(
                COOKIE, cookie_of(access.key), max_age=COOKIE_S, httponly=True, samesite="strict", secure=is_secure
            )
        return answer

    # Inspectors, longer names first: the path of a longer name may begin with the path of a shorter one
    for name in sorted(models.served, key=len, reverse=True):
        served = models.served[name]
        inspector = Inspector(served.model, opens_folders=False)
        any_host = ["*"]  # the guard has checked it
        app.mount(f"/look/{name}", inspector_app.application(calls(inspector), FOLDER, any_host, served.worker))


@_page.post("/v1/chat/completions/prompt")
async def chat_prompt(body: schemas.ChatRequest, models: TheModels, request: Request) -> schemas.PromptList:
    """Return what the model would read for a body of `/v1/chat/completions`."""
    served = models.get(body.model)
    writing.require_chat(served, body, request)
    with models.place():
        return _prompts(await unless_gone(request, served.preparing.run(writing.chat_job, served, body)))


@_page.post("/v1/completions/prompt")
async def text_prompts(body: schemas.CompletionRequest, models: TheModels, request: Request) -> schemas.PromptList:
    """Return what the model would read for a body of `/v1/completions`."""
    served = models.get(body.model)
    served.require("completions")
    with models.place():
        return _prompts(await unless_gone(request, served.preparing.run(writing.completion_job, served, body)))


def _prompts(job: Job[Any]) -> schemas.PromptList:
    decode = job.tokenizer.decode
    found = [schemas.Prompt(ids=one.ids, text=decode(one.ids, skip_special=False)) for one in job.prompts]
    return schemas.PromptList(prompts=found, **job.more)
