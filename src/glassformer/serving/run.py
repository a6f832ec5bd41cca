"""A server of models: its socket, its process, and its shutdown."""

import logging
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from glassformer.errors import UnknownText
from glassformer.inspector.listener import listen, url
from glassformer.model import Model
from glassformer.serving.access import Access
from glassformer.serving.application import application
from glassformer.serving.limits import Limits
from glassformer.serving.protocol import PatientProtocol


def uvicorn_server(app: FastAPI, limits: Limits) -> uvicorn.Server:
    """Return a server of the application whose connections have limits; uvicorn logs only warnings."""
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        limit_concurrency=limits.max_connections,
        timeout_keep_alive=limits.client_timeout,
        timeout_graceful_shutdown=limits.grace,
        server_header=False,
    )
    return uvicorn.Server(config)


def serve(
    models: Model | str | Path | Mapping[str, Model | str | Path],
    *,
    port: int = 8000,
    access: Access | None = None,
    limits: Limits | None = None,
    log_texts: bool = False,
) -> None:
    """Serve a model, or several by name, by the interface of OpenAI, until Ctrl-C or SIGTERM.

    Models are loaded ones or folders. A server that other computers reach needs a key:
    `Access("0.0.0.0", key=…)`. After SIGTERM, the server accepts no more requests, and the running ones have
    `limits.grace` seconds to end. `log_texts` adds requests and answers to the log `glassformer.serving`.
    """
    from glassformer import api

    if not isinstance(models, Mapping):
        models = {Path(models.name if isinstance(models, Model) else models).name: models}
    access, limits = access or Access(), limits or Limits()
    loaded = {name: one if isinstance(one, Model) else api.load(one) for name, one in models.items()}
    listener = listen(access.host, port)
    running = uvicorn_server(application(loaded, limits, access, log_texts=log_texts), limits)
    logging.getLogger("glassformer.serving").setLevel(logging.INFO)
    print(f"serving {', '.join(loaded)}: {url(access.host, listener)}v1  (Ctrl-C stops the server)", flush=True)

    def stop(*_: object) -> None:
        running.should_exit = True

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if is_main else None  # uvicorn sends SIGTERM again after a clean end
    try:
        with UnknownText(is_silent=True):  # a note would write texts of the clients into the log
            running.run([listener])
    except KeyboardInterrupt:  # uvicorn raises it again after a clean end
        pass
    finally:
        listener.close()
        if is_main:
            signal.signal(signal.SIGTERM, before)
