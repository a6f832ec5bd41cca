"""The live model of the site: a tiny model that writes a word in reverse, in one HTML file that a browser runs."""

import shutil
from pathlib import Path

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
    return "\n".join(["```{raw} html", f"<p>{said}</p>", shown, "```"])


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
