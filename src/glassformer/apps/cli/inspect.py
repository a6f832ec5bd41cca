"""glassformer inspect DIR"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated

from glassformer.apps.cli.inputs_outputs import Stored, TextOrPair
from glassformer.apps.cli.progress import err
from glassformer.apps.inspector.listener import is_loopback
from glassformer.common.errors import needs
from glassformer.evaluation.sweep_table import FILE as SWEEP_TABLE
from glassformer.store.lock import is_locked
from glassformer.store.manifest import NAME as MANIFEST
from glassformer.tasks.requirements import require_inputs


def main(
    folder: Annotated[Path, "[DIR]"] | None = None,
    /,
    *,
    given: TextOrPair,
    port: int = 8017,
    host: str = "127.0.0.1",
    wait: bool = False,
    no_browser: bool = False,
    stored: Stored,
) -> int:
    """Open a page in the browser that shows the inner values of a model: attention, predictions, ablations.

    The page begins with the given text, or the given source and target. It is served from this computer and makes no
    request to any other host. Ctrl-C stops the server.

    Args:
        folder: The model directory, or the folder of a run that is still training, or of a sweep. Without it, the page
            offers four tiny models, which it trains in runs/gallery on first use.
        port: The port of the server; 0 chooses a free one.
        host: The address to listen on; another one than 127.0.0.1 lets other computers use the model.
        wait: If the folder has no model yet, show its training and wait for the first checkpoint.
        no_browser: Print the address, and do not open a browser.

    Examples:
        glassformer inspect runs/mybook --text "It was"
        glassformer inspect
    """
    # Arguments
    if not is_loopback(host):
        err(f"the page is open to every computer that reaches {host}: anyone there can use the model")
    is_training = folder is not None and is_locked(folder)
    has_model = folder is not None and (folder / MANIFEST).exists()  # it appears a moment after a checkpoint
    is_sweep = folder is not None and (folder / SWEEP_TABLE).exists()
    waits = stored.checkpoint is None and (wait or is_training or is_sweep) and not has_model
    named = given.named(None)
    if folder is not None and not waits:
        run = stored.run(folder)
        if any(value is not None for value in named.values()):
            require_inputs(run.model, str(folder), **named)
    with needs("the inspector", "serve"):
        from glassformer.apps.inspector import server  # imports torch
    # The model, and the page
    from glassformer.apps.inspector.gallery import Gallery
    from glassformer.apps.inspector.inspector import Inspector
    from glassformer.apps.inspector.panels.models import read_table

    examples: list[dict[str, str | None]] = []
    if given.source is not None:
        examples = [{"source": given.source, "target": given.target}]
    elif given.text is not None:
        examples = [{"text": given.text}]
    if folder is None:
        gallery = Gallery(Path("runs") / "gallery")
        try:
            return server.serve(Inspector(None, examples, gallery=gallery), host, port, opens_browser=not no_browser)
        finally:
            gallery.close()
    if waits or is_training:
        os.nice(10)  # the training comes first
    model = None if waits else stored.model(folder)
    inspector = Inspector(model, examples, folder=folder, device=stored.device)
    if folder is not None and inspector.is_sweep:
        read_table(folder)  # a damaged file is refused here
    return server.serve(inspector, host, port, opens_browser=not no_browser)


@contextmanager
def page_beside(folder: Path) -> Iterator[None]:
    """Show the run in `folder` on the page, in a process of its own, while the block trains it.

    After the block, the page stays open until Ctrl-C.
    """
    with needs("the inspector", "serve"):
        import_module("glassformer.apps.inspector.server")
    command = [sys.executable, "-m", "glassformer", "inspect", str(folder), "--wait", "--port", "0"]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        yield
        err("the page stays open; Ctrl-C stops it")
        process.wait()
    except KeyboardInterrupt:
        pass
    finally:
        process.terminate()
        process.wait()
