"""Models of the site that a browser runs, each in one HTML file.

A build trains a tiny model that writes a word in reverse, and shows it in some pages. The workflow that publishes the
site also trains three models with a use of their own, in about an hour on two cores:

    python docs/live.py docs/_build/html/models train.de train.en val.de val.en

The four files are the German and English captions of Multi30k (Elliott 2016).
"""

import shutil
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

import markup

import glassformer
from glassformer.apps import course

NAME = "live.html"
PANELS = {
    "index": "alignment",
    "course/04-attention-is-alignment": "alignment",
    "course/05-attention": "attention",
    "course/07-the-transformer": "flow",
    "course/11-looking-inside": "ablation",
}
"""Pages that show the model, and the panel with which it opens there."""


def frame(page: str) -> str:
    """Return the frame of a page, below two sentences."""
    address = f"{'../' * page.count('/')}{NAME}#panel={PANELS[page]}&source=animal&target=lamina"
    own = f'<a href="{address}">in a window of its own</a>'
    said = f"This model writes a word in reverse, and runs in your browser. Write another word, or open it {own}."
    shown = (
        f'<iframe class="live" src="{address}" title="A model that writes a word in reverse" loading="lazy"></iframe>'
    )
    more = markup.shipped() if page == "index" else ""
    return "\n".join(["```{raw} html", f"<p>{said}</p>", shown, more, "```"])


def write(site: Path, runs: Path) -> None:
    """Export the model into the folder of the site; train it into `runs` first if it is not there."""
    run = runs / "reverse-transformer"
    done = runs / "reverse-transformer.done"
    if not done.exists():
        shutil.rmtree(run, ignore_errors=True)  # an interrupted training
        glassformer.train("reverse-transformer", out=run, max_steps=course.steps(600, 100))
        done.touch()
    (site / NAME).unlink(missing_ok=True)
    glassformer.export(run, site / NAME, to="web")


@dataclass(frozen=True)
class Shipped:
    """A model with a page of its own in the folder `models` of the site."""

    name: str
    recipe: str
    dtype: Literal["bfloat16", "int8"]
    """Type of the stored weights; the page computes with these rounded weights."""
    title: str
    limits: str
    """The abilities of the model and their limits."""


SHIPPED = (
    Shipped(
        "text",
        "python-docs",
        "bfloat16",
        "It continues a text",
        "It has read Python's documentation alone, so it knows the form of its sentences and few facts.",
    ),
    Shipped(
        "translation",
        "multi30k-de-en",
        "int8",
        "It translates German into English",
        "It has read 29,000 captions of photographs. Words of other subjects are unknown to it.",
    ),
    Shipped(
        "answers",
        "sums",
        "bfloat16",
        "It answers: the sum of two numbers",
        "It adds numbers of two digits, such as 27 + 34, and is often wrong. Other questions are unknown to it.",
    ),
)
MOST_BYTES = 5_000_000
"""Largest file of a model."""


def ship(folder: Path, runs: Path, pairs: list[str], changes: dict[str, Any] | None = None) -> None:
    """Train and export the models of `SHIPPED`, and write a page that lists them, with the result of each recipe.

    `pairs` are the German and the English training file, then those of the validation. Raises `ValueError` if a file is
    too large.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for one in SHIPPED:
        keys = dict(zip(("source", "target", "valid_source", "valid_target"), pairs, strict=True))
        of_data = {f"data.{key}": path for key, path in keys.items()} if one.name == "translation" else {}
        outcome = glassformer.train(one.recipe, out=runs / one.name, changes=of_data | (changes or {}))
        path = folder / f"{one.name}.html"
        path.unlink(missing_ok=True)
        glassformer.export(runs / one.name, path, to="web", dtype=one.dtype)
        n_bytes = path.stat().st_size
        if n_bytes > MOST_BYTES:
            raise ValueError(f"{path} has {n_bytes:,} bytes and must have at most {MOST_BYTES:,}")
        report = outcome.model.evaluate()
        numbers = {"loss": report.loss} | {name: x for name, x in report.scores.items() if isinstance(x, float)}
        result = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        rows.append(
            f'<li><a href="{path.name}">{escape(one.title)}</a> ({n_bytes / 1e6:.1f} MB). {escape(one.limits)} '
            f"{outcome.model.network.n_parameters():,} parameters, weights in {one.dtype}. "
            f"On the validation data, before their rounding: {escape(result)}.</li>"
        )
    lines = ["<!doctype html>", '<html lang="en"><meta charset="utf-8"><title>Models to touch: glassformer</title>']
    lines += ["<h1>Models to touch</h1>", "<p>Each page runs its model in your browser, and makes no request.</p><ul>"]
    (folder / "index.html").write_text("\n".join([*lines, *rows, "</ul></html>", ""]), "utf-8")


if __name__ == "__main__":
    ship(Path(sys.argv[1]), Path("runs/shipped"), sys.argv[2:])
