"""The server of the inspector page: a port, a browser window, and a clean end."""

import socket
import threading
import webbrowser

import uvicorn

from glassformer import files
from glassformer.errors import UserError
from glassformer.serving.app import application
from glassformer.serving.inspector import FOLDER, Inspector
from glassformer.serving.worker import Worker


def serve(inspector: Inspector, host: str, port: int, *, opens_browser: bool) -> int:
    """Serve the inspector until Ctrl-C; print its address when it is ready."""
    listener = _listen(host, port)
    shown = f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/"
    app = application(inspector.calls(), FOLDER, [host, "127.0.0.1", "localhost"], Worker())
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


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # a browser that is early waits
    except (OSError, OverflowError) as error:
        listener.close()
        reason = files.reason(error) if isinstance(error, OSError) else "a port is from 0 to 65535"
        raise UserError(f"cannot listen on {host}, port {port}: {reason}; choose another --port") from error
    return listener
