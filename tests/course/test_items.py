"""The table of what the course teaches: no item is missing, and each links a section of a chapter that exists."""

import re
from pathlib import Path

COURSE = Path(__file__).parents[2] / "docs" / "course"
N_ITEMS = 31


def anchors(chapter: Path) -> set[str]:
    """Return the anchors of a chapter's headings, as Sphinx makes them."""
    headings = re.findall(r"^##+ (.+)$", chapter.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_every_item_links_sections_that_exist() -> None:
    rows = re.findall(r"^\| (\d+) \| (.+) \| (.+) \|$", (COURSE / "items.md").read_text("utf-8"), re.MULTILINE)
    assert [int(number) for number, _, _ in rows] == list(range(1, N_ITEMS + 1))
    for number, _, places in rows:
        links = re.findall(r"\]\(([\w-]+\.md)#([^)]+)\)", places)
        assert links, f"item {number} links no section"
        for chapter, anchor in links:
            assert anchor in anchors(COURSE / chapter), f"item {number}: {chapter} has no section {anchor}"
