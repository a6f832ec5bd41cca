"""Chat templates: from the messages of a conversation to the text that a model reads.

The template of a checkpoint is a program of another author, so a process with limits renders it (`template_worker.py`).
`conversations.py` converts the text to ids.
"""

import json
import os
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from threading import Lock, Timer
from typing import Any, NamedTuple

from glassformer.common.chat_messages import Message
from glassformer.common.errors import UserError, first_line
from glassformer.common.processes import close_pipes
from glassformer.tokenization import template_worker
from glassformer.tokenization.template_worker import MEMORY_MIB, OUT_OF_MEMORY, TIME_S

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The default template, ChatML, with two special tokens. Unlike other templates, it is rendered in this process."""
DEADLINE_S = 15.0
"""Maximum seconds on the clock for one rendering. The limit of processor time, `TIME_S`, ends no process that waits."""
TRAINING_DAY = date(2024, 7, 26)
"""The date that templates get in training, instead of today's: a run resumed on another day must get the same tokens.
"""
_START = "import runpy, sys; sys.path[:] = sys.argv[2:]; runpy.run_path(sys.argv[1], run_name='__main__')"


class Asked(NamedTuple):
    """A request for the text of all messages, or of the first `n` messages.

    With `asks`, the text ends where the assistant's answer begins. With `marks`, blocks `{% generation %}` are found.
    """

    messages: Sequence[Message]
    n: int | None = None
    asks: bool = False
    marks: bool = False


class Rendered(NamedTuple):
    """A rendered text, or the reason why it is missing."""

    text: str = ""
    blocks: list[tuple[int, int]] | None = None
    """(first, end) of the characters of each block `{% generation %}`; None if the template cuts, nests or changes one.
    """
    error: str = ""

    def checked(self) -> str:
        """Return the text; raise `UserError` if it is missing."""
        if self.error:
            raise UserError(self.error)
        return self.text


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja template, and the special tokens that it may name, such as `eos_token`.

    >>> template = ChatTemplate(CHATML)
    >>> template.render([{"role": "user", "content": "Hi!"}], asks=True)
    '<|im_start|>user\\nHi!<|im_end|>\\n<|im_start|>assistant\\n'
    """

    source: str
    tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Message], *, asks: bool = False, day: date | None = None) -> str:
        """Return the text of messages; with `asks`, it ends where the assistant's answer begins.

        `day` is the day that `strftime_now` formats, by default today. Raises `UserError` for a template that is
        damaged, refuses the messages, does what the sandbox forbids, or reaches a limit of time or memory.
        """
        return self.texts([Asked(messages, asks=asks)], day=day)[0].checked()

    def texts(self, asked: Sequence[Asked], *, day: date | None = None) -> list[Rendered]:
        """Return the text of each request; raise `UserError` if a limit of time or memory is reached.

        The blocks of a text are None if the text differs from the text of the first request.
        """
        lists = {id(one.messages): one.messages for one in asked}
        request = {
            "messages": list(lists.values()),
            "asked": [(list(lists).index(id(one.messages)), one.n, one.asks, one.marks) for one in asked],
            "names": {**self.tokens, "tools": None, "documents": None},  # as transformers: `tools is none` is true
            "day": None if day is None else day.isoformat(),
        }
        try:
            line = json.dumps(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise UserError(f"a message has a value that is not of JSON: {first_line(error)}") from error
        if self.source == CHATML:  # our own program, without a loop that a message can prolong
            return _rendered(template_worker.replies(self.source, json.loads(line)))
        return _rendered(map(json.loads, self._worker.ask(line, len(asked))))

    @cached_property
    def _worker(self) -> "_Worker":
        """The process of this template; templates with the same source share it."""
        if (worker := _WORKERS.get(self.source)) is None:
            worker = _WORKERS[self.source] = _Worker(self.source)
        return worker

    @property
    def marks_answers(self) -> bool:
        """True if the template marks what the assistant writes with `{% generation %}`."""
        return re.search(r"\{%-?\s*generation\b", self.source) is not None


def _rendered(replies: Iterable[Mapping[str, Any]]) -> list[Rendered]:
    found: list[Rendered] = []
    first = None
    for reply in replies:
        if "error" in reply:
            message = (reply["error"].strip().splitlines() or [""])[0]
            found.append(Rendered(error=f"the chat template {message:.240}"))
            continue
        text = reply["text"] if first is None or "text" in reply else first[: reply["prefix"]]
        blocks = reply["blocks"] and [(begin, end) for begin, end in reply["blocks"]]
        first = text if first is None else first
        found.append(Rendered(text, blocks))
    return found


class _Worker:
    """The process that renders one template. It is started when it is needed, after it has ended, and after a fork."""

    def __init__(self, source: str) -> None:
        self._source, self._lock, self._pid = source, Lock(), os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._inherited: list[object] = []

    def ask(self, line: str, n_replies: int) -> list[bytes]:
        """Send a request, and return its replies; raise `UserError` if the process ends before."""
        if self._pid != os.getpid():  # after a fork: the process and the lock belong to the parent
            self._inherited += [self._process]
            self._process, self._lock, self._pid = None, Lock(), os.getpid()
        with self._lock:
            process = self._process or self._start()
            deadline = Timer(DEADLINE_S * n_replies, process.kill)
            deadline.daemon = True
            deadline.start()
            try:
                return _exchange(process, line.encode() + b"\n", n_replies)
            except BaseException as error:  # the state of the pipes is not known
                self._process = None
                self._end()
                if not isinstance(error, EOFError | OSError):
                    raise
                raise UserError(_reason(process.returncode)) from error
            finally:
                deadline.cancel()

    def _start(self) -> "subprocess.Popen[bytes]":
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _START, template_worker.__file__, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self._end = weakref.finalize(self, _end, self._process, os.getpid())
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([self._source, TIME_S, MEMORY_MIB]).encode() + b"\n")
        return self._process


_WORKERS: "weakref.WeakValueDictionary[str, _Worker]" = weakref.WeakValueDictionary()
"""The worker of each template that is in use. The key is the template's source."""


def _exchange(process: "subprocess.Popen[bytes]", line: bytes, n_replies: int) -> list[bytes]:
    """Write a request and read its replies; raise `EOFError` or `OSError` if the process has ended."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(line)
    process.stdin.flush()
    replies = [process.stdout.readline() for _ in range(n_replies)]
    if not replies[-1].endswith(b"\n"):
        raise EOFError
    return replies


def _end(process: "subprocess.Popen[bytes]", of_pid: int) -> None:
    """End the process of a template, in the process that has started it."""
    if os.getpid() == of_pid:
        close_pipes(process)
        process.kill()
        process.wait()


def _reason(code: int) -> str:
    used = f"code {code}"
    if code == OUT_OF_MEMORY:
        used = f"more than {MEMORY_MIB} MiB"
    elif code == -getattr(signal, "SIGPROF", 0):
        used = f"more than {TIME_S:g} s of processor time"
    elif code == -getattr(signal, "SIGKILL", 0) or os.name == "nt":
        used = f"more than {DEADLINE_S:g} s, or the memory of the machine,"
    else:
        return f"the process of the chat template ended (code {code}) at these messages: use another template"
    return f"the chat template used {used} for these messages: use another template, or shorter messages"
