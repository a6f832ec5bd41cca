"""Messages of a conversation, checked."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from glassformer.errors import UserError, shown

Message = Mapping[str, Any]
"""One message: the texts `role` and `content`, and other keys that a template may read."""
BEGIN, END, FORGED = "\ufdd0", "\ufdd1", "\ufdd2"
"""Marks in a rendered text: before and after an answer, and around a special token that is written in a message. These
code points are not characters, so they are in no text."""
_MARKS = re.compile(f"[{BEGIN}{END}{FORGED}]")


def require_messages(messages: object, where: str = "messages") -> list[dict[str, Any]]:
    """Return messages as dictionaries without empty keys; raise `UserError` unless each has a role and a text.

    >>> require_messages([{"role": "user", "content": "hi", "name": None}])
    [{'role': 'user', 'content': 'hi'}]
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UserError(f'{where}: expected a list of {{"role": "…", "content": "…"}}, got {shown(repr(messages))}')
    checked = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise UserError(f"{where}: message {number} must be an object with role and content, got {message!r:.40}")
        for key in ("role", "content"):
            text = message.get(key)
            if not isinstance(text, str) or (key == "role" and not text):
                raise UserError(f"{where}: {key} of message {number} must be a text, got {text!r:.40}")
            if _MARKS.search(text):
                raise UserError(f"{where}: message {number} has a code point that is no character; remove it")
        checked.append({key: value for key, value in message.items() if value is not None})
    return checked
