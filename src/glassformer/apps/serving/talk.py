"""The page for conversations with the models: files, session, the ids that a model reads, and each model's inspector.

The address `/page/FOLDER/FILE` is the file in the folder of this package, so that the page imports modules of the
inspector by the same relative paths as on the disk.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Request, Response
from fastapi.responses import FileResponse
from starlette.routing import Route

from glassformer.apps.inspector import app as inspector_app
from glassformer.apps.inspector.inspector import FOLDER, Inspector
from glassformer.apps.inspector.panels import calls
from glassformer.apps.serving import chat, completions, schemas
from glassformer.apps.serving.errors import ApiError
from glassformer.apps.serving.guard import COOKIE, cookie_of, is_equal
from glassformer.apps.serving.models import Models, TheModels
from glassformer.apps.serving.settings import Access
from glassformer.apps.serving.texts import Job, unless_gone

PACKAGE = Path(__file__).parents[1]
WRONG_KEY_S = 1.0
"""Seconds before the answer to a wrong key."""
COOKIE_S = 30 * 24 * 3600
"""Seconds for which a browser keeps the key's cookie."""

router = APIRouter(tags=["page"], responses=schemas.ERRORS)


def add_page(app: FastAPI, models: Models, access: Access) -> None:
    """Add the page, its session, and the inspector of each model below `/look/`."""
    # Files
    app.include_router(router)
    for folder in ("serving/page", "inspector/page"):
        route = Route("/{name:path}", inspector_app.files(PACKAGE / folder))
        app.mount(f"/page/{folder}", inspector_app.SecurityHeaders(route))

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

    # Inspectors; a longer name first, because it may begin with another one
    for name in sorted(models.served, key=len, reverse=True):
        served = models.served[name]
        inspector = Inspector(served.model, opens_folders=False)
        any_host = ["*"]  # the guard has checked it
        app.mount(f"/look/{name}", inspector_app.application(calls(inspector), FOLDER, any_host, served.worker))


@router.post("/v1/chat/completions/prompt")
async def chat_prompt(body: schemas.ChatRequest, models: TheModels, request: Request) -> schemas.PromptList:
    """Return what the model would read for a body of `/v1/chat/completions`."""
    served = models.get(body.model)
    chat.require_chat(served, body, request)
    with models.place():
        return _prompts(await unless_gone(request, served.preparing.run(chat.job_of, served, body)))


@router.post("/v1/completions/prompt")
async def text_prompts(body: schemas.CompletionRequest, models: TheModels, request: Request) -> schemas.PromptList:
    """Return what the model would read for a body of `/v1/completions`."""
    served = models.get(body.model)
    served.require("completions")
    with models.place():
        return _prompts(await unless_gone(request, served.preparing.run(completions.job_of, served, body)))


def _prompts(job: Job[Any]) -> schemas.PromptList:
    decode = job.tokenizer.decode
    found = [schemas.Prompt(ids=one.ids, text=decode(one.ids, skip_special=False)) for one in job.prompts]
    return schemas.PromptList(prompts=found, **job.more)
