"""The processes of a run: how they start, communicate and share the weights.

The functions here read the environment variables that `torchrun` sets; they need no torch.
"""

import os

RUN_ID = "TORCHELASTIC_RUN_ID"
"""Name of the variable with the id of this `torchrun` call."""


def is_several() -> bool:
    """Return True if `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Return True if this process is rank 0, which writes the log; no process group is needed."""
    return os.environ.get("RANK", "0") == "0"


def was_restarted() -> bool:
    """Return True if `torchrun` restarted this process after a process of the run ended."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
