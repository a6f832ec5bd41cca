"""The application: the guard, all routes, and the document of the interface."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import version

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from glassformer.apps.inspector.worker import Busy, Worker
from glassformer.apps.serving import chat, completions, lineages, schemas, talk
from glassformer.apps.serving.batches import Batches
from glassformer.apps.serving.errors import ApiError, answer_error
from glassformer.apps.serving.guard import Guard
from glassformer.apps.serving.models import Models, Served, TheModels, named
from glassformer.apps.serving.settings import Access, Limits
from glassformer.apps.serving.texts import SETTINGS, defaults_of
from glassformer.common.errors import UserError
from glassformer.model import Model


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
    # The models, which share one thread
    served = {name: Served(name, named(model, name), worker, limits) for name, model in models.items()}
    app.state.models = Models(served, limits, Batches(worker, limits))
    # Errors, routes, and the guard before all of them
    for error in (ApiError, UserError, RequestValidationError, HTTPException, TimeoutError, Busy, Exception):
        app.add_exception_handler(error, answer_error)
    for router in (completions.router, chat.router, lineages.router):
        app.include_router(router)
    _add_facts(app)
    talk.add_page(app, app.state.models, access)
    app.add_middleware(Guard, access=access, limits=limits, log_texts=log_texts)
    return app


def _add_facts(app: FastAPI) -> None:
    @app.get("/health", tags=["server"])
    async def health() -> dict[str, str]:
        """Answer while the server runs."""
        return {"status": "ok"}

    @app.get("/v1/models", tags=["server"], responses=schemas.ERRORS)
    async def list_models(models: TheModels) -> schemas.ServedModels:
        """Return all models."""
        return schemas.ServedModels(data=[_described(one) for one in models.served.values()])

    @app.get("/v1/models/{name}", tags=["server"], responses=schemas.ERRORS)
    async def one_model(name: str, models: TheModels) -> schemas.ServedModel:
        """Return one model."""
        return _described(models.get(name))


def _described(served: Served) -> schemas.ServedModel:
    model = served.model
    return schemas.ServedModel(
        id=served.name,
        created=served.created,
        abilities=served.abilities,
        max_len=model.config.max_len,
        learned=model.learned,
        n_parameters=sum(x.numel() for x in model.network.parameters()),
        defaults=_defaults(served),
        special_tokens=list(model.tokenizer.special_tokens),
    )


def _defaults(served: Served) -> dict[str, float]:
    defaults = defaults_of(served)
    return {key: getattr(defaults, name) for name, key in SETTINGS.items()}
