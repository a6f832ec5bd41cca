"""What `torchrun` tells the process that it starts, in the environment."""

import os

RUN_ID = "TORCHELASTIC_RUN_ID"
"""The variable with the name of this call of `torchrun`."""


def is_several() -> bool:
    """Whether `torchrun` has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this is the process that speaks, before there is a group."""
    return os.environ.get("RANK", "0") == "0"


def was_restarted() -> bool:
    """Whether `torchrun` has started this process anew because one of the run had ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
