"""Methods that take one item or a list: one item gives one result, a list gives a list."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from glassformer.common.chat_messages import require_messages
from glassformer.common.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")
Given = TypeVar("Given", contravariant=True)
Settings = ParamSpec("Settings")
IsOne = Callable[[Any, Any], bool]
"""Function of a model and an argument: True if the argument is one item."""
PROMPT = "a text or a list of ids"


def is_text(_: Any, given: Any) -> bool:
    return isinstance(given, str)


def is_prompt(_: Any, given: Any) -> bool:
    """Return True for one prompt: a text, or a list of ids."""
    return isinstance(given, str) or (is_list(given) and len(given) > 0 and all(isinstance(i, Integral) for i in given))


def is_row(model: Any, given: Any) -> bool:
    """Return True for one input of a classifier: a text, or a tuple of two texts if the model takes pairs."""
    return isinstance(given, tuple if model.takes_pairs else str)


def is_sentence(_: Any, given: Any) -> bool:
    """Return True for one sentence: a text with words separated by white space, or a list of words."""
    if isinstance(given, str):
        return True
    is_words = is_list(given) and len(given) > 0 and all(isinstance(word, str) for word in given)
    if is_words and (longer := [word for word in given if len(word.split()) > 1]):
        raise UserError(f"{longer[0]!r:.60} is not one word; pass several sentences as lists of words")
    return is_words


def is_list(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes))


def listed(model: Any, given: Any, argument: str, what: str, is_one: IsOne = is_text) -> tuple[list[Any], bool]:
    """Return the items of an argument, and True if the argument is a single item; raise `UserError` for other values.

    Arrays and tensors become lists.
    """
    given = _without_arrays(given)
    if is_one(model, given):
        return [given], True
    if not is_list(given):
        raise UserError(f"{argument}: expected {what}, or a list of these, got {given!r:.60}")
    items = [_without_arrays(item) for item in given]
    for item in items:
        if not isinstance(item, str) and not is_list(item):
            raise UserError(f"{argument}: expected {what}, or a list of these, got a list that contains {item!r:.60}")
    return items, False


def _without_arrays(given: Any) -> Any:
    return given.tolist() if hasattr(given, "tolist") else given


def require_text(items: Sequence[Any], argument: str) -> None:
    """Raise `UserError` for a blank text, for a pair with a blank text, and for a sentence without words.

    >>> require_text(["a dog", " "], "source")
    Traceback (most recent call last):
    glassformer.common.errors.UserError: source: text 2 of 2 is blank: give a text, or leave it out
    """
    for number, item in enumerate(items, 1):
        parts = [item] if isinstance(item, str) else list(item)
        if not parts or any(isinstance(part, str) and not part.strip() for part in parts):
            which = f"text {number:,} of {len(items):,}" if len(items) > 1 else "the text"
            raise UserError(f"{argument}: {which} is blank: give a text, or leave it out")


class _Bound(Protocol[Given, Result, Settings]):
    @overload
    def __call__(self, given: Given, /, *args: Settings.args, **settings: Settings.kwargs) -> Result: ...
    @overload
    def __call__(
        self, given: Sequence[Given], /, *args: Settings.args, **settings: Settings.kwargs
    ) -> list[Result]: ...


class OneOrList(Protocol[Given, Result, Settings]):
    """The type of a method that takes one item or a list. As a method of a model, it has the signatures of `_Bound`."""

    def __get__(self, model: Any, owner: Any, /) -> _Bound[Given, Result, Settings]: ...
    def __call__(self, *args: Any, **settings: Any) -> Any: ...


def one_or_list(
    what: str, is_one: IsOne = is_text, *, may_be_blank: bool = False
) -> Callable[[Callable[Concatenate[Any, Sequence[Item], Settings], list[Result]]], OneOrList[Item, Result, Settings]]:
    """Let a method that takes a list also take one item: one item gives one result, a list gives a list.

    `what` describes, in a `UserError`, the values that the first parameter of the method may have. Blank texts are
    refused (`require_text`), unless `may_be_blank`.
    """

    def decorate(verb: Callable[..., Any]) -> Any:
        parameters = list(inspect.signature(verb).parameters.values())
        n_positional = sum(one.kind < inspect.Parameter.VAR_POSITIONAL for one in parameters)  # with self
        argument = parameters[1].name

        @functools.wraps(verb)
        def wrapped(self: Any, *args: Any, **settings: Any) -> Any:
            if not args and argument not in settings:
                return verb(self, **settings)  # raises Python's TypeError for the missing argument
            given, *rest = args or [settings.pop(argument)]
            if len(args) >= n_positional:
                by_name = f"{verb.__name__} takes {argument} by position and its settings by name"
                raise TypeError(f"{by_name}: {verb.__name__}({argument}, name=value)")
            items, is_alone = listed(self, given, argument, what, is_one)
            if not may_be_blank:
                require_text(items, argument)
            found = verb(self, items, *rest, **settings)
            return found[0] if is_alone else found

        return wrapped

    return decorate


def conversations_of(messages: Any) -> tuple[list[list[dict[str, Any]]], bool]:
    """Return the messages of each conversation, and True if one was given; a text is one message of the user.

    >>> conversations_of("Hi!")
    ([[{'role': 'user', 'content': 'Hi!'}]], True)
    """
    is_one = isinstance(messages, str) or not is_list(messages) or any(isinstance(one, Mapping) for one in messages)
    listed = [messages] if is_one else messages
    require_text([one for one in listed if isinstance(one, str)], "messages")
    texts = [[{"role": "user", "content": one}] if isinstance(one, str) else one for one in listed]
    return [require_messages(one) for one in texts], is_one


def texts_of(text: Any, target: Any, source: Any) -> tuple[list[str], list[str] | None, bool]:
    """Return the arguments of `score`: texts, a target for each text or None, and True if it was one text.

    `score(text, source=source)` and `score(source, text)` are equivalent. Raises `UserError` unless the arguments are
    texts, or lists of texts of equal length.
    """
    if source is not None and target is not None:
        raise UserError("score takes source or target, not both: use score(text, source=…)")
    text, target = (text, target) if source is None else (source, text)
    is_one = isinstance(text, str)
    texts = _listed_texts([text] if is_one else text)
    targets = None if target is None else _listed_texts([target] if isinstance(target, str) else target)
    if targets is not None and (isinstance(target, str), len(targets)) != (is_one, len(texts)):
        raise UserError("score needs one source per text: pass two texts, or two lists of equal length")
    return texts, targets, is_one


def _listed_texts(given: Any) -> list[str]:
    if not is_list(given) or not all(isinstance(text, str) for text in given):
        raise UserError(f"score: expected a text or a list of texts, got {given!r:.60}")
    return list(given)
