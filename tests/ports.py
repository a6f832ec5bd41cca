"""Ports of servers and of process groups that no other process takes."""

import socket


def bound(port: int = 0) -> socket.socket:
    """Return a socket that is bound to a port of this computer, by default to a free one, and that does not listen.

    While it is open, no other process gets the port as a free one, and a connection to it is refused. A server that
    sets SO_REUSEADDR, as those of glassformer, uvicorn and torch do, listens on it all the same.
    """
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    return found
