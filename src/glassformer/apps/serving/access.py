"""The access to a server: its address, its key, its names, and the sites whose pages send requests."""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from glassformer.apps.inspector.listener import is_loopback
from glassformer.common import files
from glassformer.common.errors import UserError

KEY = "GLASSFORMER_API_KEY"
"""The environment variable with the key."""
_NAME = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.I)


@dataclass(frozen=True)
class Access:
    """The access to a server; raises `UserError` if other computers reach it without a key, or a name never matches."""

    host: str = "127.0.0.1"
    """The address to listen on. One that other computers reach needs a key."""
    key: str | None = field(default=None, repr=False)
    """The key that requests need."""
    hosts: Sequence[str] = ()
    """Names of the server; by default those of this computer, and all names if there is a key."""
    origins: Sequence[str] = ()
    """Other sites whose pages may send requests, such as https://example.org."""

    def __post_init__(self) -> None:
        if self.key is None and not is_loopback(self.host):
            raise UserError(
                f"other computers reach {self.host}, and the server has no key: give --key-file FILE, or set the "
                f"environment variable {KEY}"
            )
        if self.key is not None and not re.fullmatch(r"[!-~]+", self.key):
            raise UserError("the key must be one word of printable ASCII characters, without spaces")
        for name in self.hosts:
            _require_name(name)
        for origin in self.origins:
            _require_origin(origin)

    @property
    def names(self) -> list[str]:
        """The names that the header `Host` of a request may have; `*.` begins a group of names.

        >>> Access("::1").names, Access(hosts=["*.example.org"]).names
        (['[::1]', '127.0.0.1', 'localhost'], ['*.example.org', '127.0.0.1', 'localhost'])
        >>> Access("0.0.0.0", key="secret").names
        ['*']
        """
        if self.key and not self.hosts:
            return ["*"]
        given = [f"[{name}]" if ":" in name else name.lower() for name in self.hosts or [self.host]]
        return list(dict.fromkeys([*given, "127.0.0.1", "localhost"]))

    def is_name(self, host: str) -> bool:
        """Return True if the header `Host` has one of the names, with or without a port.

        >>> Access(hosts=["*.example.org"]).is_name("a.example.org:8000"), Access().is_name("example.org")
        (True, False)
        """
        given = re.sub(r":[0-9]*$", "", host).lower()
        return any(given == name or (name[0] == "*" and given.endswith(name[1:])) for name in self.names)


def read_key(file: Path | None) -> str | None:
    """Return the key of a file; without a file that of the environment variable, or None if it is not set."""
    return os.environ.get(KEY) if file is None else files.read_text(file).strip()


def _require_name(name: str) -> None:
    try:
        is_address = bool(ipaddress.ip_address(name))
    except ValueError:
        is_address = False
    if not is_address and not _NAME.fullmatch(name):
        raise UserError(
            f"hosts: {name!r:.60} is not the name of a server; give one such as example.org, without a port"
        )


def _require_origin(origin: str) -> None:
    """Raise `UserError` for an origin that is not written as browsers send it."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError(f"origins: {origin!r:.60} is not a site; give one such as https://example.org")
    sent = f"{parts.scheme}://{parts.netloc.lower()}"
    if origin != sent:
        raise UserError(f"origins: browsers send {sent}, so {origin!r:.60} never matches; give {sent}")
