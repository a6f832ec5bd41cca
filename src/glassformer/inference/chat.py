"""Conversations with a causal language model: whole turns that fit the model's context, and a cache between turns."""

from bisect import bisect_left
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from typing import Any

from glassformer.common.chat_messages import Message, require_messages
from glassformer.common.errors import Log, UserError, warn
from glassformer.inference.drafts import Drafter, Reader
from glassformer.inference.rows import Settings
from glassformer.inference.text import EncodedPrompt
from glassformer.inference.writer import Writer
from glassformer.tokenization.conversations import ConversationEncoder

LEAST_ROOM = 1 / 4
"""Largest fraction of the context that is kept free for an answer. With a small `max_new_tokens`, less is kept free."""


class Chat:
    """A conversation: its messages, and the model's cache of the ids that were read, so that a turn reads only new ids.

    The first space of an answer is left out, as in the decoded text of transformers.
    """

    def __init__(
        self, writer: Writer, encoder: ConversationEncoder, messages: Sequence[Message] = (), log: Log = warn
    ) -> None:
        """Begin with `messages`, if there are any; `log` receives a note when old turns are no longer read."""
        self.writer, self.encoder, self.log = writer, encoder, log
        self.messages = require_messages(messages) if messages else []
        self.n_unread = 0
        """Number of messages after the system message that no longer fit the context."""
        self._reader = self._new_reader()

    def _new_reader(self) -> Reader:
        return Reader(self.writer.network, self.writer.max_len, self.writer.device)

    def add(self, role: str, content: str) -> None:
        """Add a message, for example of the user."""
        self.messages += require_messages([{"role": role, "content": content}])

    @property
    def read_messages(self) -> list[dict[str, Any]]:
        """The messages that the model still reads: a system message at the beginning, and the newest turns."""
        n_kept = _n_kept(self.messages)
        return [*self.messages[:n_kept], *self.messages[n_kept + self.n_unread :]]

    def answer(self, settings: Settings, drafter: Drafter | None = None) -> Generator[str]:
        """Yield the next message of the assistant in pieces.

        The message is added to `messages` at its end, or as far as it was written when the caller stops earlier.
        Raises `UserError` if the last message alone does not fit the context.
        """
        prompt, n_unread = fitting(self.encoder, self.messages, settings)
        if n_unread > self.n_unread:
            self.log(
                f"the context of {settings.max_len:,} tokens is full: the first {n_unread} messages are no longer read"
            )
        self.n_unread, pieces = n_unread, list[str]()
        reader, self._reader = self._reader, self._new_reader()
        try:
            for (piece,) in self.writer.stream([prompt], settings, drafter, reader):
                pieces.append(piece)
                yield piece
            self._reader = reader  # after an interruption, a new reader reads everything
        finally:
            self.add("assistant", "".join(pieces))


def fitting(
    encoder: ConversationEncoder, messages: Sequence[Mapping[str, Any]], settings: Settings
) -> tuple[EncodedPrompt, int]:
    """Return what `fitted` does; raise `UserError` if the last turn alone does not fit."""
    found = fitted(encoder, messages, settings)
    if found is None:
        raise UserError(
            f"the last message does not fit the model's context of {settings.max_len:,} tokens, of which "
            f"{_room(settings):,} are kept for the answer: shorten it"
        )
    return found


def fitted(
    encoder: ConversationEncoder, messages: Sequence[Mapping[str, Any]], settings: Settings
) -> tuple[EncodedPrompt, int] | None:
    """Return the ids of messages that leave room for an answer, and the number of messages that were left out.

    A turn consists of the messages up to the next message of the user. If there are too many messages, the oldest turns
    are left out. A system message at the beginning stays. Returns None if the last turn alone does not fit.
    """
    n_kept = _n_kept(messages)
    begins = [n_kept] + [i for i, message in enumerate(messages) if i > n_kept and message["role"] == "user"]

    @cache
    def prompt(begin: int) -> list[int]:
        return encoder.prompt([*messages[:n_kept], *messages[begin:]])

    def fits(begin: int) -> bool:
        return len(prompt(begin)) + _room(settings) <= settings.max_len

    first = 0
    if not fits(begins[0]):  # each turn that is left out makes the prompt shorter
        first = bisect_left(begins, True, 1, key=fits)
    if first == len(begins):
        return None
    return EncodedPrompt(prompt(begins[first]), is_spaced=True), begins[first] - n_kept


def _n_kept(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of messages at the beginning that are never left out: 1 for a system message, else 0."""
    return int(messages[0]["role"] == "system") if messages else 0


def _room(settings: Settings) -> int:
    """Return the number of tokens that are kept for an answer."""
    return min(settings.sampling.max_new_tokens, max(1, int(LEAST_ROOM * settings.max_len)))
