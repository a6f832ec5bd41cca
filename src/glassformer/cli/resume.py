"""glassformer resume DIR"""

from glassformer import api
from glassformer.cli.arguments import fail, read_words
from glassformer.cli.progress import TerminalReporter
from glassformer.cli.train import what_next

HELP = """usage: glassformer resume DIR

Goes on with a run from its newest intact checkpoint, exactly as if it had never stopped."""


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(HELP)
        return 0
    words = read_words(argv, [])
    if words.flags:
        fail(f"resume takes no settings (--{next(iter(words.flags))}): it goes on with those of the run")
    if len(words.places) != 1:
        fail("resume needs one folder: glassformer resume DIR")
    with TerminalReporter() as reporter:
        outcome = api.resume(words.places[0], reporter)
        reporter.say(what_next(outcome))
    return 0
