"""The settings of a server: its limits, its address, its key and its names."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from glassformer.apps.inspector.listener import is_loopback
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.schema import checked, setting


@checked
class Limits:
    """Limits of requests and of the server."""

    section = ""
    max_rows: int = setting(16, "number of texts that are generated at a time; others wait", "≥ 1")
    max_waiting: int = setting(64, "number of requests that are answered or wait; others get the status 429", "≥ 1")
    batch_tokens: int = setting(
        1024, "tokens of the texts that are classified, tagged, scored, translated or embedded at a time", "≥ 1"
    )
    max_n: int = setting(16, "largest number of texts, or of inputs, in one request, except for embeddings", "≥ 1")
    max_tokens: int = setting(
        4096, "largest number of new tokens per text, and of tokens of a text that is read in parts", "≥ 1"
    )
    max_body: int = setting(1 << 20, "largest body of a request in bytes", "≥ 1")
    deadline: float = setting(600.0, "seconds after which a request ends with the status 504", "> 0")
    grace: int = setting(30, "seconds that running requests have to end after SIGTERM", "≥ 1")
    prefix_mb: int = setting(512, "memory for the states of beginnings that requests share, in MB per model", "≥ 0")


KEY = "GLASSFORMER_API_KEY"
"""The environment variable with the key."""


@dataclass(frozen=True)
class Access:
    """The access to a server; raises `UserError` if other computers reach it without a key."""

    host: str = "127.0.0.1"
    """The address to listen on. An address that other computers can reach needs a key."""
    key: str | None = field(default=None, repr=False)
    """The key that requests need."""

    def __post_init__(self) -> None:
        if self.key is None and not is_loopback(self.host):
            raise UserError(
                f"other computers reach {self.host}, and the server has no key: give --key-file FILE, or set the "
                f"environment variable {KEY}"
            )
        if self.key is not None and not re.fullmatch(r"[!-~]+", self.key):
            raise UserError("the key must be one word of printable ASCII characters, without spaces")

    def is_name(self, host: str) -> bool:
        """Return True if the header `Host` names this computer, with or without a port. With a key, accept any name.

        A page of another site may use a name that leads to this computer. It does not have the key, though.

        >>> Access().is_name("localhost:8000"), Access("::1").is_name("[::1]"), Access().is_name("example.org")
        (True, True, False)
        """
        own = f"[{self.host}]" if ":" in self.host else self.host
        return self.key is not None or re.sub(r":[0-9]*$", "", host).lower() in (own, "127.0.0.1", "localhost")


def read_key(file: Path | None) -> str | None:
    """Return the key in a file. Without a file, return the environment variable `KEY`, or None if it is not set."""
    return os.environ.get(KEY) if file is None else files.read_text(file).strip()
