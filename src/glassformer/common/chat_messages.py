"""Messages of a conversation: checks, names of roles, and texts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from glassformer.common.errors import UserError, shown

Message = Mapping[str, Any]
"""One message: the text `role`, the `content`, and other keys that a template may read.

The content is a text, a list of parts with texts, or None in a message of the assistant that calls tools.
"""
ASSISTANT = "assistant"
OTHER_ROLES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "model", "bot", "ai", "chatgpt", "chatbot"), ASSISTANT),
    **dict.fromkeys(("observation", "function", "tool_response"), "tool"),
}
"""Names of roles in other formats, in small letters, and the role that each means."""
WEIGHTS = ("weight", "train", "training", "loss")
"""Keys of a message that decide if training scores the message: 0 or false for no, 1 or true for yes."""
_NO_CHARACTERS = re.compile("[\ufdd0-\ufdef]")
"""Code points that are no characters: the marks of rendered texts (`template_worker.py`, `conversations.py`)."""


def require_messages(messages: object, where: str = "messages") -> list[dict[str, Any]]:
    """Return messages as dictionaries, without keys of None; raise `UserError` unless each has a role and a content.

    Roles of other formats (`OTHER_ROLES`) get their usual names.

    >>> require_messages([{"role": "human", "content": "hi", "name": None}])
    [{'role': 'user', 'content': 'hi'}]
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UserError(f'{where}: expected a list of {{"role": "…", "content": "…"}}, got {shown(repr(messages))}')
    return [_checked(message, number, where) for number, message in enumerate(messages, 1)]


def _checked(message: object, number: int, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise UserError(f"{where}: message {number} must be an object with role and content, got {message!r:.40}")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise UserError(f"{where}: role of message {number} must be a text, got {role!r:.40}")
    kept = {key: value for key, value in message.items() if value is not None}
    kept |= {"role": usual_role(role), "content": content}
    if isinstance(content, Sequence) and not isinstance(content, str):
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        for part in parts:
            if not isinstance(part, Mapping) or not isinstance(_text_of_part(part), str):
                raise UserError(f"{where}: content of message {number} has a part without a text, {part!r:.40}")
        kept["content"] = [dict(part) for part in parts]
    elif not isinstance(content, str) and not (content is None and kept.get("tool_calls")):
        hint = "" if content is not None else " (only a message with tool_calls needs none)"
        raise UserError(f"{where}: content of message {number} must be a text, got {content!r:.40}{hint}")
    for key in WEIGHTS:
        if key in kept and kept[key] not in (0, 1):
            raise UserError(f"{where}: {key} of message {number} must be 0 or 1 (false or true), got {kept[key]!r:.40}")
    if any(_NO_CHARACTERS.search(text) for text in texts_in(kept)):
        raise UserError(f"{where}: message {number} has a code point that is no character; remove it")
    return kept


def usual_role(role: str) -> str:
    """Return the usual name of a role.

    >>> usual_role("gpt"), usual_role("User"), usual_role("critic")
    ('assistant', 'user', 'critic')
    """
    small = role.casefold()
    usual = OTHER_ROLES.get(small, small)
    return usual if usual in ("system", "user", ASSISTANT, "tool") else role


def text_of(message: Message) -> str:
    """Return the content of a message as one text: parts are joined, and a message that only calls tools has ''.

    >>> text_of({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
    'ab'
    """
    content = message["content"]
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(_text_of_part(part) for part in content)


def _text_of_part(part: Mapping[str, Any]) -> Any:
    """Return the text of a part. The key of the text is `text`, or else the type of the part, such as `python`."""
    return part.get("text", part.get(str(part.get("type"))))


def is_answer(message: Message) -> bool:
    """Return True for a message of the assistant that a training scores: one with a text or a call, and no weight 0.

    >>> is_answer({"role": "assistant", "content": "Yes."}), is_answer({"role": "assistant", "content": ""})
    (True, False)
    """
    has_content = bool(text_of(message).strip() or message.get("tool_calls"))
    return message["role"] == ASSISTANT and has_content and is_trained(message)


def is_trained(message: Message) -> bool:
    """Return False for a message with the weight 0.

    >>> is_trained({"role": "assistant", "content": "a", "weight": 0})
    False
    """
    return all(message.get(key, 1) for key in WEIGHTS)


def texts_in(value: Any) -> Iterator[str]:
    """Yield all texts in a value of JSON, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from texts_in(key)
            yield from texts_in(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from texts_in(one)


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON with all of its texts changed, keys included.

    >>> with_texts({"a": ["b", 1]}, str.upper)
    {'A': ['B', 1]}
    """
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {with_texts(key, change): with_texts(one, change) for key, one in value.items()}
    if isinstance(value, Sequence):
        return [with_texts(one, change) for one in value]
    return value
