"""Runs at the sizes of papers, too large for a recipe of the package: the TOML files that documents show."""

from pathlib import Path

from glassformer.config import recipes
from glassformer.config.run import Run

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"


def file_in(page: str) -> str:
    """Return the TOML file that a page of the how-to guides writes."""
    return (HOW_TO / page).read_text("utf-8").split("<<'EOF'\n")[1].split("EOF\n")[0]


_BASE = file_in("reproduce-a-paper.md")
FILES = {
    "gpt2.toml": file_in("slurm.md"),
    "transformer-base.toml": _BASE,
    "transformer-big.toml": _BASE.replace('preset = "transformer-base"', 'preset = "transformer-big"'),
}


def run_of(name: str) -> Run:
    """Return the run of a recipe, or of one of `FILES`."""
    return recipes.parse(FILES[name], name) if name in FILES else recipes.load(name)
