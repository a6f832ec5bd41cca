"""The socket of a server."""

import ipaddress
import socket

from glassformer.common import files
from glassformer.common.errors import UserError


def is_loopback(host: str) -> bool:
    """Return True for an address that only this computer reaches.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("::1")
    (True, True, False, True)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 chooses a free one. Raises `UserError` if it is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # a browser that connects early waits
    except (OSError, OverflowError) as error:
        listener.close()
        reason = files.reason(error) if isinstance(error, OSError) else "a port is from 0 to 65535"
        raise UserError(f"cannot listen on {host}, port {port}: {reason}; choose another --port") from error
    return listener


def url(host: str, listener: socket.socket) -> str:
    """Return the address of a server."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}/"
