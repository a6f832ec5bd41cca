"""glassformer resume DIR"""

from typing import Annotated

from glassformer.cli.arguments import fail
from glassformer.cli.progress import TerminalReporter
from glassformer.cli.train import what_next

CHANGEABLE = ("train.max_time", "train.device", "train.background_saving", "parallel.")


def main(*folders: Annotated[str, "DIR"], verify: bool = False, **keys: Annotated[str, *CHANGEABLE]) -> int:
    """Goes on with a run from its newest intact checkpoint, exactly as if it had never stopped.

    On the same kind of machine, with the same versions and number of threads, the CPU gives equal bits; CUDA does if
    train.deterministic is true. The settings that may change are those of where it runs and for how long.

    Args:
        folders: The run's folder.
        verify: Take the steps between the two newest checkpoints again, and compare; nothing is written.
    """
    if len(folders) != 1:
        fail("resume needs one folder: glassformer resume DIR")
    if verify:
        return repeat(folders[0], keys)
    for key in keys:
        if not key.replace("-", "_").startswith(CHANGEABLE):
            fail(f"resume does not change --{key}: it goes on with the settings of the run")
    from glassformer import api

    with TerminalReporter() as reporter:
        outcome = api.resume(folders[0], reporter, keys)
        reporter.log(what_next(outcome))
    return 0


def repeat(folder: str, keys: dict[str, str]) -> int:
    """Whether steps of a run, taken again, give the same bits: 0 or 1."""
    if keys:
        fail(f"resume --verify takes no settings (--{next(iter(keys))}): it repeats what was done")
    from glassformer import api

    with TerminalReporter() as reporter:
        replay = api.replay(folder, reporter)
    span = f"steps {replay.begin + 1} to {replay.end} of {folder}"
    if not replay.differing:
        print(f"{span} give the same weights, optimizer and numbers again, to the bit")
        return 0
    names = ", ".join(replay.differing[:5]) + (" …" if len(replay.differing) > 5 else "")
    other = "" if replay.is_same_machine else "; another machine, version or number of threads made them"
    if not replay.repeats_bits:
        other += "; equal bits are promised on the CPU, and on CUDA with train.deterministic"
    print(f"{span} give other bits in {len(replay.differing)} places ({names}){other}")
    return 1
