"""glassformer serve DIR [NAME=DIR …]"""

import logging
from pathlib import Path
from typing import Annotated

from glassformer.apps.cli.inputs_outputs import Loading
from glassformer.apps.serving.settings import Access, Limits, read_key
from glassformer.common import files
from glassformer.common.errors import UserError, needs


def main(
    *directories: Annotated[str, "DIR [NAME=DIR …]"],
    host: str = "127.0.0.1",
    port: int = 8000,
    key_file: Path | None = None,
    log_texts: bool = False,
    limits: Limits,
    loading: Loading,
) -> int:
    """Serve models to other programs by the interface of OpenAI, and with a page to talk.

    The clients of OpenAI's interface use it with the address that is printed: texts, conversations and vectors; other
    endpoints translate, fill masks, classify, tag and score. `/openapi.json` describes all of them. Ctrl-C or SIGTERM
    ends the server after the requests that run.

    Args:
        directories: Model directories. A model has the name of its folder, or the one before `=`.
        host: The address to listen on; another one than 127.0.0.1 needs a key.
        port: The port of the server; 0 chooses a free one.
        key_file: A file with the key that requests need. Without it, the environment variable GLASSFORMER_API_KEY has
            the key, if there is one.
        log_texts: Write the requests and the answers to the log, too.

    Examples:
        glassformer serve runs/mybook
        glassformer serve smollm2 en-de=runs/en-de --port 8080 --max-rows 32
    """
    # Arguments
    if not directories:
        raise UserError("give at least one model directory")
    named: dict[str, Path] = {}
    for given in directories:
        name, equals, folder = given.rpartition("=")
        path = files.as_path(folder, "DIR")
        name = name or path.resolve().name
        if equals and not name:
            raise UserError(f"{given}: the name of the model is empty; give NAME=DIR")
        if name in named:
            raise UserError(f"two models have the name {name}: give one of them another name, as NAME={folder}")
        named[name] = path
        loading.run(path)
    access = Access(host, read_key(key_file))
    with needs("the server", "serve"):
        from glassformer.apps.serving.run import serve  # imports torch
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logging.raiseExceptions = False  # a full disk must not end a request
    # The server
    models = {name: loading.model(path) for name, path in named.items()}
    serve(models, port=port, access=access, limits=limits, log_texts=log_texts)
    return 0
