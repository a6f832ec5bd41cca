"""The server of the inspector page: a port, a browser window, and a clean end."""

import asyncio
import contextlib
import copy
import dataclasses
import threading
import webbrowser
from collections.abc import Sequence

import torch
import uvicorn

from glassformer.apps.inspector.app import application
from glassformer.apps.inspector.inspector import FOLDER, Example, Inspector
from glassformer.apps.inspector.listener import listen, url
from glassformer.apps.inspector.panels import calls
from glassformer.apps.inspector.panels.models import card
from glassformer.apps.inspector.panels.tensors import flow, tensor
from glassformer.apps.inspector.panels.tokens import Input, run
from glassformer.apps.inspector.web_file import Cell, reads_messages, web_file
from glassformer.apps.inspector.worker import Worker
from glassformer.common.chat_messages import Message, require_messages
from glassformer.common.errors import UserError, require_type
from glassformer.tasks.trained_model import TrainedModel


def inspect(
    model: TrainedModel,
    text: str | None = None,
    *,
    source: str | None = None,
    target: str | None = None,
    messages: Sequence[Message] | None = None,
    port: int = 0,
    opens_browser: bool = True,
    in_cell: bool = False,
) -> Cell | None:
    """Open a page in the browser that shows the inner values of a model, until Ctrl-C.

        inspect(glassformer.load("runs/mybook"), "It was a dark night")

    The page begins with a text, with a source and a target, or with the messages of a conversation. It is served from
    this computer only; port 0 chooses a free port. In a notebook, the page is served in the background, and the
    function returns at once. With `in_cell`, the cell of a notebook shows the page, also where the notebook runs on
    another computer: the browser computes the model, with the limits of `export(..., to="web")`. A cell has no port.
    """
    # Refuse an input that the model does not read
    require_type(model, TrainedModel, "model", "a Model, such as glassformer.load(DIR)")
    if model.is_seq2seq and text is not None:
        raise UserError(f"{model.name} reads a source, and no text: inspect it with that argument")
    if not model.is_seq2seq and (source or target) is not None:
        raise UserError(f"{model.name} reads a text, and no source: inspect it with that argument")
    # The input with which the page begins
    examples: list[Example] = []
    if messages is not None:
        checked = require_messages(messages)
        model.conversation_encoder.read(checked)  # a model without a template is refused here
        examples = [{"messages": checked}]
    elif text is not None:
        examples = [{"text": text}]
    elif source:
        examples = [{"source": source, "target": target}]
    if in_cell and messages is not None and not reads_messages(model):
        raise UserError(f"the page in a cell reads messages in ChatML only, and {model.name} has another chat template")
    if in_cell:
        network = copy.deepcopy(model.network).cpu()  # the export rounds and moves its network
        return Cell(
            web_file(dataclasses.replace(model, network=network, device=torch.device("cpu")), examples=examples)
        )
    # Serve; a notebook has an event loop already
    inspector = Inspector(model, examples, folder=model.folder)
    if _in_event_loop():
        where = {"host": "127.0.0.1", "port": port, "opens_browser": opens_browser}
        threading.Thread(target=serve, args=[inspector], kwargs=where, daemon=True).start()
    else:
        serve(inspector, "127.0.0.1", port, opens_browser=opens_browser)
    return None


def prepare(inspector: Inspector) -> None:
    """Run the first example while the browser starts, so that the page finds its first picture computed."""
    if not inspector.first:
        return
    with contextlib.suppress(UserError):  # the page asks again, and shows the sentence
        examples = card(inspector)["examples"]
        if examples:
            name = run(inspector, Input(**examples[0]))["run"]
            block = next((one for one, _ in flow(inspector, name)["tensors"] if ".blocks." in one), None)
            if block is not None:
                tensor(inspector, name, block)


def _in_event_loop() -> bool:
    """Return True in a notebook, where an event loop runs. Then uvicorn needs its own thread and its own loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def serve(inspector: Inspector, host: str, port: int, *, opens_browser: bool) -> int:
    """Serve the inspector until Ctrl-C; print its address when it is ready."""
    listener = listen(host, port)
    address = url(host, listener)
    worker = Worker()
    worker.post(prepare, inspector)
    app = application(calls(inspector), FOLDER, [host, "127.0.0.1", "localhost"], worker)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    print(f"inspector: {address}  (Ctrl-C stops it)", flush=True)
    if opens_browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    try:
        server.run([listener])
    except KeyboardInterrupt:  # uvicorn raises it again after a clean end
        pass
    finally:
        listener.close()
    return 0
