"""glassformer train RECIPE|FILE.toml|FILE.txt"""

from typing import TYPE_CHECKING, Annotated

from glassformer import recipes
from glassformer.cli.arguments import fail, with_flags
from glassformer.cli.progress import TerminalReporter
from glassformer.config.run import Run

if TYPE_CHECKING:
    from glassformer.reporting import Outcome

Source = Annotated[str, "RECIPE|FILE.toml|FILE.txt"]


def main(*sources: Source, out: str | None = None, init: str | None = None, **keys: str) -> int:
    """Trains a tokenizer and a model, shows progress and validation loss, and leaves a model directory.

    A text file (or jsonl, or a folder of them) alone is enough: sizes are chosen for its length. Every key of a recipe
    is an option (a number, a text, true or false, or a list as "a b").

    Args:
        sources: The name of a recipe, a TOML file, or a text.
        out: The run's folder (default runs/NAME).
        init: A model directory: start from its tokenizer and its weights, as far as they fit.
    """
    train(run_for(*sources, init=init, **keys), out)
    return 0


def run_for(*sources: Source, init: str | None = None, **keys: str) -> Run:
    """The run that the words of a command line mean."""
    if len(sources) != 1:
        one = "train needs one recipe, TOML file or text file"
        if sources:
            fail(f"{one}, and {len(sources)} were given ({', '.join(sources)}): put several texts in a folder")
        fail(f"{one}; see `glassformer recipes` and `train --help`")
    start = {} if init is None else {"init.path": init}
    return with_flags(recipes.run_of(sources[0]), start | keys)


def train(run: Run, out: str | None) -> "Outcome":
    from glassformer import api

    with TerminalReporter() as reporter:
        outcome = api.train(run, out, reporter)
        reporter.log(what_next(outcome))
    return outcome


def what_next(outcome: "Outcome") -> str:
    """Where the model is and what to do with it."""
    from glassformer.tasks.registry import task_of

    verb = task_of(outcome.run).verb
    example = ' "… [MASK] …"' if verb == "fill" else ""
    return f"done: {outcome.folder} is the model; try: glassformer {verb} {outcome.folder}{example}"
