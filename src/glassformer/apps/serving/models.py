"""The models of the server by name, with their abilities and the thread that runs them."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from fastapi import Depends, Request

from glassformer.apps.inspector.worker import Worker
from glassformer.apps.serving.batches import Batches
from glassformer.apps.serving.engine_thread import EngineThread
from glassformer.apps.serving.errors import ApiError, refusal
from glassformer.apps.serving.settings import Limits
from glassformer.common.errors import UserError, did_you_mean
from glassformer.inference.server_engine import ServerEngine
from glassformer.model import Model

PREPARING = 4
"""Number of threads per model that prepare requests, so a slow template or a long text delays no other model."""


@dataclass(eq=False)
class Served:
    """A model under a name."""

    name: str
    model: Model
    worker: Worker
    limits: Limits
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def preparing(self) -> Worker:
        """The threads that render conversations and encode texts."""
        return Worker(self.limits.max_waiting, self.limits.deadline, PREPARING, "preparing")

    @cached_property
    def thread(self) -> EngineThread:
        """The engine that continues texts, or writes the targets of sources."""
        model = self.model
        engine = ServerEngine(
            model.translator.model if model.is_seq2seq else model.network,
            max_len=model.config.max_len,
            device=model.device,
            max_rows=self.limits.max_rows,
            max_bytes=self.limits.prefix_mb << 20,
        )
        return EngineThread(engine, model.tokenizer, self.worker)

    @cached_property
    def abilities(self) -> list[str]:
        """The names of the endpoints that the model answers."""
        model, able = self.model, list[str]()
        if model.is_causal_lm:
            able.append("completions")
            if model.tokenizer.chat_template is not None:
                able.append("chat")
        if model.is_seq2seq:
            able += ["completions", "translate"]
        for ability, found in {
            "fill_mask": model.task.filler(model),
            "classify": model.task.classifier(model),
            "tag": model.task.tagger(model),
            "score": model.task.scorer(model),
        }.items():
            if found is not None:
                able.append(ability)
        with contextlib.suppress(UserError):
            _ = model.embedder
            able.append("embeddings")
        return able

    def require(self, ability: str) -> None:
        """Raise `ApiError` for a model that does not have an ability."""
        if ability not in self.abilities:
            able = ", ".join(self.abilities) or "none"
            raise refusal(
                f"the model {self.name!r} lacks the ability {ability}; its abilities: {able}", "model", "wrong_model"
            )


@dataclass(eq=False)
class Models:
    """All models of the server, and the number of requests that are answered or wait."""

    served: Mapping[str, Served]
    limits: Limits
    batches: Batches
    n_requests: int = 0

    def get(self, name: str | None) -> Served:
        """Return the model of a request; raise `ApiError` for an unknown name."""
        if name is None and len(self.served) == 1:
            return next(iter(self.served.values()))
        if name is None:
            raise refusal(f"the parameter 'model' is missing: one of {', '.join(self.served)}", "model")
        if name not in self.served:
            known = did_you_mean(name, list(self.served))
            raise ApiError(404, f"there is no model {name!r:.100}: {known}", param="model", code="model_not_found")
        return self.served[name]

    @property
    def workers(self) -> list[Worker]:
        """The threads of all models."""
        return [self.batches.worker, *(one.preparing for one in self.served.values())]

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Count a request while the block answers it; raise `ApiError` if too many requests wait."""
        if self.n_requests >= self.limits.max_waiting:
            message = f"{self.n_requests} requests wait already: try again later"
            raise ApiError(429, message, code="queue_full", headers={"retry-after": "2"})
        self.n_requests += 1
        try:
            yield
        finally:
            self.n_requests -= 1


def _models(request: Request) -> Models:
    models: Models = request.app.state.models
    return models


TheModels = Annotated[Models, Depends(_models)]
"""The models, as a parameter of a route."""
