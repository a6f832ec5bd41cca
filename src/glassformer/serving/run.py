"""A server of models: a socket, a process, and a clean end."""

import logging
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from glassformer.errors import UserError
from glassformer.inspector.listener import is_loopback, listen, url
from glassformer.model import Model
from glassformer.serving.application import application
from glassformer.serving.limits import Limits


@dataclass(frozen=True)
class Access:
    """The key, the names and the other sites of a server."""

    key: str | None = None
    """The key that requests need."""
    hosts: Sequence[str] = ()
    """Names of the server; by default those of this computer, and all names if there is a key."""
    origins: Sequence[str] = ()
    """Other sites whose pages may send requests."""

    def names(self, host: str) -> list[str]:
        """Return the allowed names of a server that listens on `host`."""
        if self.hosts:
            return [*self.hosts, "127.0.0.1", "localhost"]
        return ["*"] if self.key else [host, "127.0.0.1", "localhost"]

    def require(self, host: str) -> None:
        """Raise `UserError` for a server that other computers reach, and that needs no key."""
        if self.key is None and not is_loopback(host):
            raise UserError(
                f"{host} is open to other computers, and there is no key: give --key-file FILE, or set the environment "
                "variable GLASSFORMER_API_KEY"
            )


def serve(
    models: Model | str | Path | Mapping[str, Model | str | Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    access: Access | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve a model, or several by name, by the interface of OpenAI, until Ctrl-C or SIGTERM.

    Models are loaded ones or folders. A server that other computers reach needs a key: `Access(key=…)`. On SIGTERM, the
    server takes no more requests, and ends those that run within `limits.grace` seconds.
    """
    from glassformer import api

    if not isinstance(models, Mapping):
        models = {Path(models.name if isinstance(models, Model) else models).name: models}
    access, limits = access or Access(), limits or Limits()
    access.require(host)
    loaded = {name: one if isinstance(one, Model) else api.load(one) for name, one in models.items()}
    listener = listen(host, port)
    app = application(loaded, limits, key=access.key, hosts=access.names(host), origins=access.origins)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=max(1, round(limits.grace)),
        server_header=False,
    )
    logging.getLogger("glassformer.serving").setLevel(logging.INFO)
    print(f"serving {', '.join(loaded)}: {url(host, listener)}v1  (Ctrl-C stops the server)", flush=True)
    if threading.current_thread() is threading.main_thread():
        # uvicorn sends SIGTERM again after a clean end
        signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        uvicorn.Server(config).run([listener])
    except KeyboardInterrupt:  # uvicorn raises it again after a clean end
        pass
    finally:
        listener.close()
