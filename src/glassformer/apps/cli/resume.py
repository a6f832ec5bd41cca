"""glassformer resume DIR"""

from typing import Annotated

from glassformer.apps.cli.arguments import with_flags
from glassformer.apps.cli.progress import Shown, reporting
from glassformer.common.errors import UserError
from glassformer.config.run import Run
from glassformer.config.train import CHANGEABLE


def main(
    folder: Annotated[str, "DIR"],
    /,
    *,
    verify: bool = False,
    output: Shown,
    **keys: Annotated[str, *CHANGEABLE],
) -> int:
    """Continue a run from its newest intact checkpoint, exactly as if it had never stopped.

    On a CPU of the same kind, with the same versions and number of threads, the result is equal bit for bit; on CUDA if
    train.deterministic is true. Only the device, the processes, the time limit, activation checkpointing and the
    profile can change. train.max_steps can change too, if the learning rate of the steps so far does not depend on it.

    Args:
        folder: The run folder.
        verify: Repeat the steps between the two newest checkpoints and compare; write nothing.

    Examples:
        glassformer resume runs/mybook
        glassformer resume runs/mybook --max-time 3600
    """
    if verify:
        return repeat(folder, keys)
    with_flags(Run(), keys)  # wrong values are refused before torch is imported
    from glassformer import api

    output.trained(lambda reporter: api.resume(folder, reporter, keys))
    return 0


def repeat(folder: str, keys: dict[str, str]) -> int:
    """Repeat the last steps of a run; return 0 if the bits are equal, else 1."""
    if keys:
        raise UserError(f"resume --verify takes no settings (--{next(iter(keys))}): it repeats the run unchanged")
    from glassformer import api

    with reporting() as reporter:
        replay = api.replay(folder, reporter)
    span = f"steps {replay.begin + 1} to {replay.end} of {folder}"
    if not replay.differing:
        print(f"{span}: equal when repeated, bit for bit (weights, optimizer state, losses)")
        return 0
    names = ", ".join(replay.differing[:5]) + " …" * (len(replay.differing) > 5)
    other = "" if replay.is_same_machine else "; they were made on another machine, version or number of threads"
    if not replay.repeats_bits:
        other += "; only the CPU, and CUDA with train.deterministic, give equal bits"
    print(f"{span}: different when repeated, in {len(replay.differing)} tensors or values ({names}){other}")
    return 1
