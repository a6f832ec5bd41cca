"""A server of models: its socket, its process, and its shutdown."""

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from glassformer.apps.inspector.listener import listen, url
from glassformer.apps.serving.application import application
from glassformer.apps.serving.settings import Access, Limits
from glassformer.common.errors import UnknownText
from glassformer.model import Model

HEAD = 1 << 16
"""Largest number of bytes of the head of a request."""
LAST_S = 1
"""Seconds between `Limits.grace` and the end of the process, in which cancelled requests get their answers."""
log = logging.getLogger("glassformer.serving")


class Server(uvicorn.Server):
    """A server that ends its process if something still runs after the grace period of a signal."""

    end: threading.Timer | None = None
    """Timer that ends the process, unless the timer is cancelled; None before a signal."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.end is None:
            seconds = (self.config.timeout_graceful_shutdown or 0) + LAST_S
            self.end = threading.Timer(seconds, _end_now, [seconds])
            self.end.daemon = True
            self.end.start()


def _end_now(seconds: float) -> None:
    """End the process, even if a thread still renders a template or computes a step: threads cannot be stopped."""
    log.error("work has not ended %g seconds after the signal: the process ends without it", seconds)
    os._exit(1)


def uvicorn_server(app: FastAPI, limits: Limits) -> Server:
    """Return a server of the application; uvicorn logs only warnings."""
    config = uvicorn.Config(
        app,
        http="h11",
        h11_max_incomplete_event_size=HEAD,
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=limits.grace,
        server_header=False,
    )
    return Server(config)


def serve(
    models: Model | str | Path | Mapping[str, Model | str | Path],
    *,
    port: int = 8000,
    access: Access | None = None,
    limits: Limits | None = None,
    log_texts: bool = False,
) -> None:
    """Serve a model, or several models by name, with OpenAI's interface, until Ctrl-C or SIGTERM.

    Each model is a loaded model or a folder. A server that other computers reach needs a key:
    `Access("0.0.0.0", key=…)`. After SIGTERM, the server accepts no more requests, and the running ones have
    `limits.grace` seconds to end. One second later the process ends, even if other work still runs. `log_texts` adds
    requests and answers to the log `glassformer.serving`.
    """
    from glassformer import api

    # Load the models, then open the socket
    if not isinstance(models, Mapping):
        models = {Path(models.name if isinstance(models, Model) else models).name: models}
    access, limits = access or Access(), limits or Limits()
    loaded = {name: one if isinstance(one, Model) else api.load(one) for name, one in models.items()}
    listener = listen(access.host, port)
    app = application(loaded, limits, access, log_texts=log_texts)
    running = uvicorn_server(app, limits)
    log.setLevel(logging.INFO)
    print(f"serving {', '.join(loaded)}: {url(access.host, listener)}v1  (Ctrl-C stops the server)", flush=True)

    # End at a signal
    def stop(*_: object) -> None:
        running.should_exit = True

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if is_main else None  # uvicorn sends SIGTERM again after a clean end
    try:
        # A note about an unknown character would write a client's text into the log.
        with contextlib.suppress(KeyboardInterrupt), UnknownText(is_silent=True):  # uvicorn raises it again
            running.run([listener])
        for worker in app.state.models.workers:
            worker.close(waits=True)
        if running.end is not None:
            running.end.cancel()
    finally:
        listener.close()
        if is_main:
            signal.signal(signal.SIGTERM, before)
