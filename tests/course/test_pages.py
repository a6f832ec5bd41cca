"""The mistakes, reading times and links to the glossary that a build adds to the pages of the course."""

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import late
from glassformer.apps.course.workshop.exercises import every_exercise

late.optional("jupytext")


DOCS = Path(__file__).parents[2] / "docs"
CHAPTERS = sorted((DOCS / "course").glob("[0-9][0-9]*-*.md"))
LINK = re.compile(r"\{term\}`([^`<]+) <([^>]+)>`")
PLAIN = r"```.*?^```|^#.*?$|\$\$.*?\$\$|\$[^$]+\$|`[^`]+`"
"""Code, headings and formulas."""


@pytest.fixture(scope="module", autouse=True)
def modules_of_docs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS))
        yield


@pytest.fixture
def mistakes() -> ModuleType:
    return import_module("mistakes")


@pytest.fixture
def notebooks() -> ModuleType:
    return import_module("notebooks")


@pytest.fixture
def terms() -> ModuleType:
    return import_module("terms")


def test_every_pitfall_has_a_known_mistake_or_a_reason_why_no_function_can_make_it(mistakes: ModuleType) -> None:
    """`test_workshop.py` plants each known mistake and finds it."""
    known = {mistake.pitfall for exercise in every_exercise().values() for mistake in exercise.mistakes} - {0}
    assert list(mistakes.titles()) == list(range(1, 37))
    assert sorted([*known, *mistakes.IN_NO_FUNCTION]) == list(mistakes.titles())


def test_the_page_lists_every_known_mistake_with_its_pitfall(mistakes: ModuleType) -> None:
    markup = import_module("markup")
    page = mistakes.page()
    for exercise in every_exercise().values():
        for mistake in map(exercise.explained, exercise.mistakes):
            place, _, anchor = mistake.section.partition("#")
            link = f" ([](../../{place}.md{'#' * bool(anchor)}{anchor}))"
            if re.fullmatch(rf"course/{exercise.chapter:02}-[^#]*", mistake.section):
                link = ""  # the chapter of the exercise is the heading
            begin = f"| `{exercise.name}` | {markup.cell_of(mistake.sentence)}{link} |"
            [row] = [line for line in page.splitlines() if line.startswith(begin)]
            assert not mistake.pitfall or row.endswith(f"</span>{mistake.pitfall} |")
    assert all(f"{number}. {mistakes.titles()[number]}" in page for number in mistakes.IN_NO_FUNCTION)


def test_every_name_that_a_chapter_imports_is_listed_with_its_meaning() -> None:
    imported = import_module("imported")
    page = imported.page()
    for chapter in CHAPTERS:
        text = chapter.read_text("utf-8")
        for names in re.findall(r"^from glassformer\S* import (\([^)]+\)|.+)$", text, re.MULTILINE):
            for name in re.findall(r"(?<! as )\b(?!as\b)\w+", names):
                rows = [row for row in page.splitlines() if re.match(rf"\| \[?`{name}`", row)]
                assert any(f"{chapter.stem}.md)" in row for row in rows), (chapter.name, name)
    meanings = [row.split(" | ")[1] for row in page.splitlines() if row.startswith(("| `", "| [`"))]
    assert all(len(text.split()) > 2 for text in meanings)


def test_the_reading_time_leaves_out_what_is_hidden(notebooks: ModuleType) -> None:
    prose, code = "word " * 1200, "x = 1\n\n" * 50
    answer = f"<details><summary>Answer</summary>\n\n{prose}\n\n</details>\n"
    hidden = f"```{{code-cell}}\n:tags: [hide-input]\n\n{code}```\n"
    shown = f"# A title\n\n{prose}\n\n```{{code-cell}}\n{code}```\n"
    assert notebooks.reading_minutes(shown) == notebooks.reading_minutes(f"{shown}\n{answer}\n{hidden}") == 15


def test_a_notebook_states_its_reading_time(notebooks: ModuleType) -> None:
    for chapter in CHAPTERS[:2]:
        sentence = notebooks.reading_time(chapter.read_text("utf-8"))
        assert re.search(r'"# \d+\. [^"]*"' + rf',\s*"\\n",\s*"{re.escape(sentence)}', notebooks.notebook(chapter))


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_links_each_term_once_and_changes_nothing_else(terms: ModuleType, chapter: Path) -> None:
    text, number = chapter.read_text("utf-8"), chapter.name.partition("-")[0]
    linked = terms.linked(text, number)
    found = [term for _, term in LINK.findall(linked)]
    assert len(found) == len(set(found)) > 5
    assert LINK.sub(lambda link: link[1], linked).split() == text.split()
    plain = LINK.sub("", linked)
    assert re.findall(PLAIN, plain, re.MULTILINE | re.DOTALL) == re.findall(PLAIN, text, re.MULTILINE | re.DOTALL)


def test_the_first_use_is_linked_in_any_form(terms: ModuleType) -> None:
    text = "`Batch` $head$ *Losses* and causal\nmasks, [a mask](x.md), a mask, a loss.\n\n## Sources\n\nA head."
    assert terms.linked(text, "05") == (
        "`Batch` $head$ *{term}`Losses <loss>`* and {term}`causal masks <causal mask>`, [a mask](x.md), "
        "a {term}`mask <mask>`, a loss.\n\n## Sources\n\nA head."
    )


def test_a_word_in_another_sense_has_no_link(terms: ModuleType) -> None:
    for term, numbers in terms.OTHER_SENSE.items():
        for number in numbers:
            [chapter] = [path for path in CHAPTERS if path.name.startswith(f"{number}-")]
            text = chapter.read_text("utf-8")
            assert f" <{term}>`" in terms.linked(text, "") and f" <{term}>`" not in terms.linked(text, number)
