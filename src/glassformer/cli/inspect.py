"""glassformer inspect DIR"""

from glassformer.cli.arguments import Dir
from glassformer.cli.inputs_outputs import Stored
from glassformer.cli.progress import err
from glassformer.errors import UserError, needs

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def main(
    directory: Dir,
    /,
    *,
    text: str | None = None,
    source: str | None = None,
    target: str | None = None,
    port: int = 8017,
    host: str = "127.0.0.1",
    no_browser: bool = False,
    stored: Stored,
) -> int:
    """Open a page in the browser that shows the inner values of a model: attention, predictions, ablations.

    The page is served from this computer and makes no request to any other host. Ctrl-C stops the server.

    Args:
        directory: The model directory, or the folder of a run that is still training.
        text: The first text on the page.
        source: The first source of an encoder-decoder.
        target: The target of this source; by default the model's own output.
        port: The port of the server; 0 chooses a free one.
        host: The address to listen on; another one than 127.0.0.1 lets other computers use the model.
        no_browser: Print the address, and do not open a browser.
    """
    with needs("the inspector", "serve"):
        from glassformer.serving import server
    from glassformer.serving.inspector import Inspector

    model = stored.model(directory)
    if model.is_seq2seq and text is not None:
        raise UserError(f"{directory} is a sequence-to-sequence model: give --source TEXT")
    if not model.is_seq2seq and (source is not None or target is not None):
        raise UserError(f"{directory} has no source side: give --text TEXT")
    given = {
        name: value for name, value in (("text", text), ("source", source), ("target", target)) if value is not None
    }
    if host not in LOOPBACK:
        err(f"the page is open to every computer that reaches {host}: anyone there can use the model")
    return server.serve(
        Inspector(model, [] if text is source is None else [given]), host, port, opens_browser=not no_browser
    )
