"""glassformer resume DIR"""

from glassformer.cli.arguments import Words, fail, read_words
from glassformer.cli.progress import TerminalReporter
from glassformer.cli.train import what_next

HELP = """usage: glassformer resume DIR [--train.max-time SECONDS] [--train.device DEVICE] [--parallel.KEY VALUE …]
       glassformer resume DIR --verify

Goes on with a run from its newest intact checkpoint, exactly as if it had never stopped. On the same kind of machine,
with the same versions and number of threads, the CPU gives equal bits; CUDA does if train.deterministic is true.

  --verify    take the steps between the two newest checkpoints again, and compare; nothing is written

The settings that may change are those of where it runs and for how long."""
CHANGEABLE = ("train.max_time", "train.device", "train.background_saving", "parallel.")


def main(argv: list[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(HELP)
        return 0
    words = read_words(argv, [], switches=["verify"])
    if len(words.places) != 1:
        fail("resume needs one folder: glassformer resume DIR")
    if "verify" in words.options:
        return verify(words)
    for flag in words.flags:
        if not flag.replace("-", "_").startswith(CHANGEABLE):
            fail(f"resume does not change --{flag}: it goes on with the settings of the run")
    from glassformer import api

    with TerminalReporter() as reporter:
        outcome = api.resume(words.places[0], reporter, words.flags)
        reporter.log(what_next(outcome))
    return 0


def verify(words: Words) -> int:
    """Whether steps of a run, taken again, give the same bits: 0 or 1."""
    if words.flags:
        fail(f"resume --verify takes no settings (--{next(iter(words.flags))}): it repeats what was done")
    from glassformer import api

    with TerminalReporter() as reporter:
        replay = api.replay(words.places[0], reporter)
    span = f"steps {replay.begin + 1} to {replay.end} of {words.places[0]}"
    if not replay.differing:
        print(f"{span} give the same weights, optimizer and numbers again, to the bit")
        return 0
    names = ", ".join(replay.differing[:5]) + (" …" if len(replay.differing) > 5 else "")
    other = "" if replay.is_same_machine else "; another machine, version or number of threads made them"
    if not replay.repeats_bits:
        other += "; equal bits are promised on the CPU, and on CUDA with train.deterministic"
    print(f"{span} give other bits in {len(replay.differing)} places ({names}){other}")
    return 1
