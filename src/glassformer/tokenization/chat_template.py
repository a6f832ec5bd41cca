"""Chat templates: from the messages of a conversation to the text and the ids that a model reads.

A template is a Jinja program that a checkpoint brings, so it is untrusted: it runs in the sandbox of jinja2, with the
functions and filters that transformers gives it, and with bounds on what it computes. The ids: `conversations.py`.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from functools import lru_cache
from itertools import accumulate
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from glassformer.chat_messages import BEGIN, END, Message
from glassformer.errors import UserError, first_line

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The template of a model without another one: ChatML, with two special tokens."""
MAX_CHARACTERS = 1 << 24
"""Maximum length of a text that a template computes."""
TRAINING_DAY = date(2024, 7, 26)
"""The day that a template reads in training, because the tokens of a resumed run must not depend on its day."""


# The template


class _AnswerBlocks(Extension):
    """The block `{% generation %}` of transformers, which a template puts around what the assistant writes."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Any) -> str:
        return f"{BEGIN}{caller()}{END}"


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, without products and powers that would fill the memory."""

    intercepted_binops = frozenset("*") | {"**"}

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(x) if hasattr(x, "__len__") else abs(x) for x in (left, right)]
        is_large = sizes[0] * sizes[1] > MAX_CHARACTERS if operator == "*" else sizes[1] > 64
        if is_large:
            raise SecurityError(f"{operator} with a result that is too large")
        return super().call_binop(context, operator, left, right)


class _Names(jinja2.utils.Namespace):
    """The `namespace` of a template, whose attributes are never internals of Python."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a namespace must not have the attribute {name!r}")
        super().__setitem__(name, value)


def _refuse(message: str) -> NoReturn:
    """Raise the error of a template that refuses its messages."""
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Return JSON without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_AnswerBlocks, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "namespace": _Names}
    return environment.from_string(source)


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
        damaged, refuses the messages, or does what the sandbox forbids.
        """
        text, _ = self.render_with_answers(messages, asks=asks, day=day)
        return text

    def render_with_answers(
        self, messages: Sequence[Message], *, asks: bool = False, day: date | None = None
    ) -> tuple[str, list[tuple[int, int]]]:
        """Return the text, and the characters of each block `{% generation %}` as (first, end)."""
        now = datetime.now() if day is None else datetime.combine(day, time())
        names: dict[str, Any] = {"messages": messages, "add_generation_prompt": asks, "strftime_now": now.strftime}
        names |= {"tools": None, "documents": None}  # as transformers: `{% if tools is not none %}` is false
        pieces, n_characters = [], 0
        try:
            for piece in _compiled(self.source).generate({**self.tokens, **names}):
                n_characters += len(piece)
                if n_characters > MAX_CHARACTERS:
                    raise SecurityError(f"a text of more than {MAX_CHARACTERS:,} characters")
                pieces.append(piece)
        except SecurityError as error:
            raise UserError(f"the chat template does what the sandbox forbids: {first_line(error)}") from error
        except jinja2.TemplateSyntaxError as error:
            raise UserError(f"the chat template is not valid: line {error.lineno}: {first_line(error)}") from error
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
            raise UserError(f"the chat template cannot render these messages: {first_line(error)}") from error
        return _without_marks("".join(pieces))

    @property
    def marks_answers(self) -> bool:
        """True if the template marks what the assistant writes with `{% generation %}`."""
        return re.search(r"\{%-?\s*generation\b", self.source) is not None


def _without_marks(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a rendered text without the marks of answers, and the characters of each answer.

    >>> _without_marks(f"A: {BEGIN}yes{END}.")
    ('A: yes.', [(3, 6)])
    """
    parts = re.split(f"[{BEGIN}{END}]", text)
    places = list(accumulate(map(len, parts)))
    return "".join(parts), list(zip(places[:-1:2], places[1::2], strict=True))
