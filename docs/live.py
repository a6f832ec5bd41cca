"""Models of the site that a browser runs, each in one HTML file.

A build trains a tiny model that writes a word in reverse, and shows it in some pages. The workflow that publishes the
site also trains three models with a use of their own, in about an hour on two cores:

    python docs/live.py docs/_build/html/models train.de train.en val.de val.en

The four files are the German and English captions of Multi30k (Elliott 2016).
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import markup

import glassformer
from glassformer.apps import course
from glassformer.apps.inspector.web_file import stored_weights

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
    figure: str
    """The result with the stored weights on validation data, which the model has not read: a format of its scores."""
    view: Mapping[str, str]
    """The input with which the link opens the page, and its panel. A model that translates writes the target."""


SHIPPED = (
    Shipped(
        "text",
        "python-docs",
        "bfloat16",
        "It continues a text",
        "It has read Python's documentation alone, so it knows the form of its sentences and few facts.",
        "On pages that it has not read: {bits_per_byte:.2f} bits per byte, a perplexity of {perplexity:.0f} per token.",
        {"panel": "steps", "text": "The function returns"},
    ),
    Shipped(
        "translation",
        "multi30k-de-en",
        "int8",
        "It translates German into English",
        "It has read 29,000 captions of photographs. Words of other subjects are unknown to it.",
        "On captions that it has not read: {bleu:.1f} BLEU.",
        {"panel": "alignment", "source": "Ein Hund läuft durch das Gras."},
    ),
    Shipped(
        "answers",
        "characters",
        "int8",
        "It answers questions about characters",
        "It knows 252 characters of HTML, such as &AElig;, by 756 facts, and answers any other question wrongly.",
        "Of its facts, asked in words that it has not read: {exact_match:.0f} % of the answers are right.",
        {"panel": "steps", "messages": json.dumps([{"role": "user", "content": "Which character is &eacute;?"}])},
    ),
)
MOST_BYTES = 5_000_000
"""Largest file of a model."""
STYLE = "body { font: 1rem/1.5 sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em } li { margin: 1em 0 }"


def ship(folder: Path, runs: Path, pairs: list[str], changes: dict[str, Any] | None = None) -> None:
    """Train and export the models of `SHIPPED`, and write a page that lists them with their limits and results.

    `pairs` are the German and the English training file, then those of the validation. Raises `ValueError` if a file is
    too large.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for one in SHIPPED:
        keys = dict(zip(("source", "target", "valid_source", "valid_target"), pairs, strict=True))
        of_data = {f"data.{key}": path for key, path in keys.items()} if one.name == "translation" else {}
        glassformer.train(one.recipe, out=runs / one.name, changes=of_data | (changes or {}))
        path = folder / f"{one.name}.html"
        path.unlink(missing_ok=True)
        glassformer.export(runs / one.name, path, to="web", dtype=one.dtype)
        n_bytes = path.stat().st_size
        if n_bytes > MOST_BYTES:
            raise ValueError(f"{path} has {n_bytes:,} bytes and must have at most {MOST_BYTES:,}")
        model = glassformer.load(runs / one.name)
        stored_weights(model.network, one.dtype)  # rounds them
        figure = one.figure.format(**model.evaluate().to_dict())
        view = "&amp;".join(f"{key}={quote(value)}" for key, value in one.view.items())
        rows.append(
            f'<li><a href="{path.name}#{view}">{escape(one.title)}</a> ({n_bytes / 1e6:.1f} MB). {escape(one.limits)} '
            f"{escape(figure)} {model.network.n_parameters():,} parameters, stored in {one.dtype}.</li>"
        )
    lines = ["<!doctype html>", '<html lang="en"><meta charset="utf-8"><title>Models in your browser</title>']
    lines += ['<meta name="viewport" content="width=device-width">', f"<style>{STYLE}</style>"]
    lines += ['<p><a href="../index.html">glassformer</a></p>', "<h1>Models in your browser</h1>"]
    lines += ["<p>Each page computes its model by itself, and makes no request. Save the file to keep it.</p><ul>"]
    (folder / "index.html").write_text("\n".join([*lines, *rows, "</ul></html>", ""]), "utf-8")


if __name__ == "__main__":
    ship(Path(sys.argv[1]), Path("runs/shipped"), sys.argv[2:])
