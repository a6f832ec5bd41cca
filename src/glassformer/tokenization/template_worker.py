"""The program that renders a chat template: the sandbox of jinja2, in a process with limits of time and memory.

A template is a Jinja program that a checkpoint brings, so it is untrusted. The sandbox keeps it from Python's
internals; the limits are those of the process, so they hold for every operation. This file imports jinja2 and nothing
else that is installed: `chat_template.py` runs it as a script and exchanges lines of JSON with it.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, time
from functools import lru_cache
from itertools import accumulate
from re import split
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TIME_S = 2.0
"""Maximum processor time of one rendering."""
MEMORY_MIB = 256
"""Maximum memory of the process, above that of its start."""
MAX_CHARACTERS = 1 << 24
"""Maximum length of a rendered text."""
OUT_OF_MEMORY = 77
"""Exit code of the process after it has reached the limit of memory."""
BEGIN, END = "\ufdd0", "\ufdd1"
"""Marks before and after a block `{% generation %}`; these code points are not characters, and messages lack them."""
_MARKED = "which answers are marked"  # no template can set a variable with this name


class _AnswerBlocks(Extension):
    """The block `{% generation %}` of transformers, which a template puts around what the assistant writes."""

    tags = {"generation"}  # noqa: RUF012 - the attribute of jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_block", [nodes.ContextReference()])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _block(self, context: jinja2.runtime.Context, caller: Any) -> str:
        return f"{BEGIN}{caller()}{END}" if context.parent[_MARKED] else str(caller())


class _Dict:
    """The function `dict` of a template, without the attributes of Python's type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Names(jinja2.utils.Namespace):
    """The `namespace` of a template, whose attributes are never internals of Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in jinja2, so that a template may set `self`
        jinja2.utils.Namespace.__init__(args[0])
        for name, value in dict(*args[1:], **kwargs).items():
            args[0][name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace must not have the attribute {name!r}")
        super().__setitem__(name, value)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=1)
def _compiled(source: str) -> jinja2.Template:
    """Return a template with the functions and filters that transformers gives it."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_AnswerBlocks, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "namespace": _Names, "dict": _Dict()}
    return environment.from_string(source)


def replies(source: str, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the reply to each requested text: `text`, `prefix` or `error`, and `blocks`.

    If the first text begins with this text, `prefix` (its number of characters) replaces `text`. `blocks` has (first,
    end) of the characters of each block `{% generation %}`, or is None if the template changes marked text.
    """
    now = datetime.now() if request["day"] is None else datetime.combine(date.fromisoformat(request["day"]), time())
    names = {**request["names"], "strftime_now": now.strftime}
    first = None
    for number, n, asks, marks in request["asked"]:
        try:
            messages = request["messages"][number][:n]
            text = _text(source, {**names, "messages": messages, "add_generation_prompt": asks, _MARKED: marks})
        except MemoryError:
            raise
        except SecurityError as error:
            yield {"error": f"does what the sandbox forbids: {error}"}
        except jinja2.TemplateSyntaxError as error:
            yield {"error": f"is not valid: line {error.lineno}: {error}"}
        except Exception as error:  # of any type: it is the error of a foreign program
            yield {"error": f"cannot render these messages: {error or type(error).__name__}"}
        else:
            plain, blocks = without_marks(text) if marks else (text, None)
            first = plain if first is None else first
            reply = {"prefix": len(plain)} if first.startswith(plain) and plain is not first else {"text": plain}
            yield {**reply, "blocks": blocks if plain == first else None}


def _text(source: str, names: Mapping[str, Any]) -> str:
    pieces, n_characters = [], 0
    for piece in _compiled(source).generate(names):
        n_characters += len(piece)
        if n_characters > MAX_CHARACTERS:
            raise SecurityError(f"a text of more than {MAX_CHARACTERS:,} characters")
        pieces.append(piece)
    return "".join(pieces)


def without_marks(text: str) -> tuple[str, list[tuple[int, int]] | None]:
    """Return a rendered text without marks, and the characters of each block; None if blocks are cut or nested.

    >>> without_marks(f"A: {BEGIN}yes{END}.")
    ('A: yes.', [(3, 6)])
    >>> without_marks(f"A: {BEGIN}yes.")
    ('A: yes.', None)
    """
    parts = split(f"[{BEGIN}{END}]", text)
    marks = [character for character in text if character in (BEGIN, END)]
    places = list(accumulate(map(len, parts)))
    is_whole = marks == [BEGIN, END] * (len(marks) // 2)
    return "".join(parts), list(zip(places[:-1:2], places[1::2], strict=True)) if is_whole else None


# The process


def _limit_memory(mib: int) -> None:
    """Limit the address space of this process to its size plus `mib` MiB, on systems that have this limit (Linux)."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with open("/proc/self/statm", encoding="ascii") as file:
            n_bytes = int(file.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (n_bytes + (mib << 20), hard))


def _limit_time(seconds: float) -> None:
    """Let the kernel end this process after this processor time, also inside of C code; 0 removes the limit."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def serve() -> None:
    """Render a template for each line of the input until its end; the first line has the template and its limits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that reads the replies
    source, seconds, mib = json.loads(sys.stdin.buffer.readline())
    _limit_memory(mib)
    try:
        for line in sys.stdin.buffer:
            rendered = replies(source, json.loads(line))
            while True:
                _limit_time(seconds)
                reply = next(rendered, None)
                _limit_time(0)
                if reply is None:
                    break
                sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
            sys.stdout.buffer.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    serve()
