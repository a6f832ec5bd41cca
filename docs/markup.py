"""Pieces of Markdown for the generated pages; as a program, absolute links in the README for the page on PyPI."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

REPOSITORY = "GLASSFORMER_REPOSITORY"
"""Environment variable with the owner and the name of the repository on GitHub. The workflow that publishes sets it."""


def in_colab(notebook: str) -> str:
    """Return a link that opens a notebook of the site in Colab; empty if the repository is not known.

    Colab opens notebooks of GitHub only, so the workflow also writes them to the branch `notebooks`.
    """
    repository = os.environ.get(REPOSITORY, "")
    address = f"https://colab.research.google.com/github/{repository}/blob/notebooks/{notebook}"
    return f' · <a href="{address}">Open it in Colab</a>' if repository else ""


def absolute(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose links to files of the project are addresses on GitHub: PyPI shows one file alone.

    >>> absolute("[a](docs/a.md#b), [c](https://c.org), ![d](d.png)", "owner/name", "v1")  # doctest: +ELLIPSIS
    '[a](https://github.com/owner/name/blob/v1/docs/a.md#b), [c](https://c.org), ![d](https://raw.git...me/v1/d.png)'
    """

    def address(link: re.Match[str]) -> str:
        host = "raw.githubusercontent.com" if link[1] else "github.com"
        return f"{link[1]}[{link[2]}](https://{host}/{repository}/{'' if link[1] else 'blob/'}{tag}/{link[3]})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)", address, text)


def shipped() -> str:
    """Return a link to the models that the workflow trains for the site; empty if another program builds the site."""
    return '<p><a href="models/index.html">Three more models</a>.</p>' if os.environ.get(REPOSITORY) else ""


def index(words: Iterable[str]) -> list[str]:
    """Return the lines of a directive that lets the search of the site find a page by these words."""
    return ["```{index} " + ", ".join(f"! {word}" for word in words), "```", ""]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; no lines without rows.

    On a phone a row is shown as a block, so cells after the second one have their heading, which wide screens hide.
    """
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    n_first = len(lines)
    for row in rows:
        cells = [cell_of(text) for text in row]
        for n in range(2, len(cells)):
            cells[n] = f'<span class="heading">{head[n]}: </span>{cells[n]}' if cells[n] else ""
        lines.append(f"| {' | '.join(cells)} |")
    return ["::::{container} reference-table", *lines, "::::", ""] if len(lines) > n_first else []


def cell_of(text: str) -> str:
    """Return a text as one line of a table's cell."""
    return escaped(" ".join(text.split())).replace("|", "\\|")


def escaped(text: str) -> str:
    """Text with the characters that Markdown would read as something else, outside of code."""
    parts = text.split("`")
    return "`".join(part if n % 2 else part.replace("<", "&lt;").replace("*", "\\*") for n, part in enumerate(parts))


if __name__ == "__main__":
    readme = Path(__file__).parents[1] / "README.md"
    readme.write_text(
        absolute(readme.read_text("utf-8"), os.environ[REPOSITORY], os.environ["GITHUB_REF_NAME"]), "utf-8"
    )
