"""Links from the chapters of the course to the glossary: each term at its first use in a chapter."""

import re
from functools import cache
from pathlib import Path

GLOSSARY = Path(__file__).parent / "glossary.md"

OTHER_SENSE = {
    "axis": ("13",),
    "block": ("05",),
    "context": ("03",),
    "encoder": ("12",),
    "key": ("15",),
    "step": ("01", "03", "04", "09b", "10", "11", "13", "14", "15"),
    "value": ("02", "04", "06", "12"),
}
"""Terms without a link, by the number of the chapter: the word has another sense at its first use there."""

KEPT = (
    r"\A---\n.*?^---$",  # the head of the file
    r"^## Sources$.*",  # titles of papers
    r"^ *(?P<fence>`{3,}).*?^ *(?P=fence)$",
    r"^#.*?$",
    r"\$\$.*?\$\$|\$[^$]+\$",
    r"`[^`]+`",
    r"!?\[[^\]]*\]\([^)]*\)",
    r"<details>.*?</details>",
)
"""Parts of a chapter without new links: code, headings, formulas, links and hidden answers."""


@cache
def terms() -> dict[str, str]:
    """Return the term of the glossary for each pattern, which matches one form of it: singular and plural."""
    body = re.search(r"^```\{glossary\}\n(.*?)^```$", GLOSSARY.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert body is not None
    names = re.findall(r"^(?!:)\S.*$", body[1], re.MULTILINE)
    found = {plural(form): name for name in names for form in name.split(" and ")}
    return dict(sorted(found.items(), key=lambda one: -len(one[0])))


def plural(form: str) -> str:
    """Return a pattern of a term and its plural, with any white space between its words.

    >>> [bool(re.fullmatch(plural("log-probability"), text)) for text in ("log-probabilities", "log-probable")]
    [True, False]
    """
    words = [re.escape(word) for word in form.split()]
    for end, ends in (("y", "(?:y|ies)"), ("is", "(?:is|es)"), ("", "(?:s|es)?")):
        if words[-1].endswith(end):
            words[-1] = words[-1].removesuffix(end) + ends
            break
    return r"\s+".join(words)


def linked(text: str, number: str) -> str:
    """Return the chapter of this number ("09b") with a link to the glossary at the first use of each term.

    >>> print(linked("A head, two heads. `batch`", "05"))
    A {term}`head <head>`, two heads. `batch`
    """
    patterns = {pattern: term for pattern, term in terms().items() if number not in OTHER_SENSE.get(term, ())}
    seen: set[str] = set()

    def link(found: re.Match[str]) -> str:
        if found["kept"]:
            return found[0]
        term = next(term for pattern, term in patterns.items() if re.fullmatch(pattern, found[0], re.IGNORECASE))
        if term in seen:
            return found[0]
        seen.add(term)
        return f"{{term}}`{' '.join(found[0].split())} <{term}>`"

    expression = f"(?P<kept>{'|'.join(KEPT)})|(?<![\\w-])(?:{'|'.join(patterns)})(?![\\w-])"
    return re.sub(expression, link, text, flags=re.MULTILINE | re.DOTALL | re.IGNORECASE)
