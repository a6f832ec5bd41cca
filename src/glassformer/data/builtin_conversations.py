"""Built-in conversations: questions about the characters that HTML names, and their answers.

`builtin:characters`  252 characters of the module `html.entities`. Each is asked for by its name in HTML, and asked
                      about: its name in HTML, and its name in Unicode (the module `unicodedata`). Each of these 756
                      facts has eight questions with other words, so there are about 6,000 conversations.

The SHA-1 of a question selects its part, as in `builtin_labels`: so a fact of the test part was learned from other
questions.
"""

import html.entities
import unicodedata
from collections.abc import Iterator

from glassformer.data.builtin_labels import part_of

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
