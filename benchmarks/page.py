"""The tables of docs/benchmarks.md, written from a file of results between the marks of each benchmark."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import tables
from results import Result, read

DOCS = Path(__file__).parent.parent / "docs"
PAGE, RESULTS = DOCS / "benchmarks.md", DOCS / "benchmarks.json"
MADE = ("date", "processor", "device", "threads", "torch", "skipped")
"""The facts of a result that the page shows; the file has the versions of all packages."""
BLOCK = re.compile(r"(<!-- results of ([\w-]+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


def block(result: Result | None) -> str:
    """Return the tables of a benchmark, or one sentence without results."""
    if result is None:
        return "Not measured yet.\n"
    shown = replace(result, made={name: fact for name, fact in result.made.items() if name in MADE})
    parts = [tables.facts(shown) + ".", *map(tables.as_markdown, tables.tables(result)), *tables.failures(result)]
    return "\n" + "\n\n".join(parts) + "\n\n"


def page(text: str, results: Mapping[str, Result]) -> str:
    """Return the page with new tables; text outside the marks stays."""
    return BLOCK.sub(lambda match: match[1] + block(results.get(match[2])) + match[3], text)


def write_page(source: Path = RESULTS, target: Path = PAGE) -> None:
    """Write the tables of a file of results to the page."""
    target.write_text(page(target.read_text("utf-8"), read(source)), encoding="utf-8")
