"""Built-in conversations: questions and their answers.

`builtin:characters`           252 characters of the module `html.entities`. Each is asked for by its name in HTML, and
                               asked about: its name in HTML, and its name in Unicode (the module `unicodedata`). Each
                               of these 756 facts has eight questions with other words: about 6,000 conversations.
`builtin:docstring-questions`  the first sentences of the docstrings of functions of the standard library, with five
                               questions each: about 2,150 conversations, which depend on the version of Python.
`builtin:sums`                 the 8,100 sums of two numbers of two digits. The answer of a record, `completion`, is
                               either `short`, such as 46, or `long`, such as 12 + 34 = 46. All three are fields.

The SHA-1 of a question selects its part, as in `builtin_labels`. So a character or a function of the test part was
learned from other questions, and a sum of the test part was not learned.
"""

import html.entities
import importlib
import inspect
import random
import unicodedata
from collections.abc import Iterator

from glassformer.data.builtin_labels import part_of

SUMS = ("prompt", "completion", "short", "long")
_MODULES = (
    "bisect", "builtins", "copy", "functools", "gc", "glob", "heapq", "inspect", "locale", "math", "operator",
    "os.path", "random", "shutil", "statistics", "tempfile", "textwrap", "token", "unicodedata", "urllib.parse",
    "warnings",
)  # fmt: skip
_DOCSTRING_QUESTIONS = (
    "What does {} do?",
    "Explain the Python function {}.",
    "What is {} for?",
    "What happens when I call {}?",
    "Describe {} in Python.",
)
_DOCSTRING_CHARACTERS = (10, 150)

_ASKED = {
    "character": (
        "Which character is &{name};?",
        "What does &{name}; look like?",
        "Show me &{name};.",
        "Write the character {name}.",
        "I need the symbol called {name} in HTML.",
        "&{name};?",
        "A page has &{name}; in it. What do I see?",
        "Please give me the character for {name}.",
    ),
    "entity": (
        "How do I write {character} in HTML?",
        "What is the entity of {character}?",
        "Which entity shows {character}?",
        "{character} in HTML, please.",
        "My page needs a {character}. What do I type?",
        "Give me the HTML name of {character}.",
        "HTML for {character}?",
        "Write down the entity for the sign {character}.",
    ),
    "title": (
        "What is {character} called?",
        "What is the name of {character}?",
        "Name {character}.",
        "Which sign is this: {character}?",
        "How does Unicode call {character}?",
        "{character}, what is that?",
        "I found {character} in a text. What is it?",
        "Please write the Unicode name of {character}.",
    ),
}
_ANSWERS = {"character": "It is {character}.", "entity": "Write &{name};.", "title": "It is the {title}."}


def characters() -> Iterator[tuple[tuple[str, str], str]]:
    """Yield question and answer, and their part.

    >>> next(characters())
    (('Which character is &AElig;?', 'It is Æ.'), 'test')
    """
    for name, code in sorted(html.entities.name2codepoint.items()):
        values = {"name": name, "character": chr(code), "title": unicodedata.name(chr(code)).lower()}
        for fact, questions in _ASKED.items():
            for question in questions:
                asked = question.format(**values)
                yield (asked, _ANSWERS[fact].format(**values)), part_of(asked)


def docstring_questions() -> Iterator[tuple[tuple[str, str], str]]:
    """Yield question and answer, and their part.

    >>> [row for row, _ in docstring_questions() if row[0] == "What is math.sqrt for?"]
    [('What is math.sqrt for?', 'Return the square root of x.')]
    """
    for place in _MODULES:
        for name, function in inspect.getmembers(importlib.import_module(place), inspect.isroutine):
            answer = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
            if name.startswith("_") or not _DOCSTRING_CHARACTERS[0] <= len(answer) <= _DOCSTRING_CHARACTERS[1]:
                continue
            for question in _DOCSTRING_QUESTIONS:
                asked = question.format(f"{place}.{name}".removeprefix("builtins."))
                yield (asked, answer), part_of(asked)


def sums() -> Iterator[tuple[tuple[str, str, str, str], str]]:
    """Yield the fields `SUMS`, and their part.

    >>> next(sums())
    (('10 + 10', '20', '20', '10 + 10 = 20'), 'train')
    """
    for a in range(10, 100):
        for b in range(10, 100):
            asked = f"{a} + {b}"
            short, long = str(a + b), f"{asked} = {a + b}"
            completion = random.Random(asked).choice((short, long))
            yield (asked, completion, short, long), part_of(asked)
