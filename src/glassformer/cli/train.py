"""glassformer train RECIPE|FILE.toml|FILE.txt"""

from typing import TYPE_CHECKING

from glassformer import recipes
from glassformer.cli.arguments import Words, fail, flags_help, read_words, with_flags
from glassformer.cli.progress import TerminalReporter
from glassformer.config.run import Run

if TYPE_CHECKING:
    from glassformer.training.launch import Outcome

HELP = """usage: glassformer train RECIPE|FILE.toml|FILE.txt [--data.path FILE] [--out DIR] [--init DIR] [--key value …]

Trains a tokenizer and a model, shows progress and validation loss, and leaves a model directory.
A text file (or jsonl, or a folder of them) alone is enough: sizes are chosen for its length.

  --out DIR   the run's folder (default runs/NAME)
  --init DIR  start from the tokenizer and the weights of another model, as far as they fit

Every key of a recipe is a flag (a number, a text, true or false, or a list as "a b"):
{flags}"""


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(HELP.format(flags=flags_help()))
        return 0
    words = read_words(argv, ["out", "init"])
    train(run_for(words), words.options.get("out"))
    return 0


def run_for(words: Words) -> Run:
    """The run that the words of a command line mean."""
    if len(words.places) != 1:
        one = "train needs one recipe, TOML file or text file"
        if words.places:
            fail(
                f"{one}, and {len(words.places)} were given ({', '.join(words.places)}): put several texts in a folder"
            )
        fail(f"{one}; see `glassformer recipes` and `train --help`")
    start = {"init.path": words.options["init"]} if "init" in words.options else {}
    return with_flags(recipes.run_of(words.places[0]), start | words.flags)


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
