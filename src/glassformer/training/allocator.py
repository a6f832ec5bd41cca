"""Memory that a step frees stays with the process: the next step asks for the same sizes again."""

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of `mallopt(3)`."""


def keep_freed_memory() -> bool:
    """Tells glibc not to give large blocks back to the system after every use; says whether it could.

    Fresh pages must be cleared by the kernel before they can be written, which on a CPU costs a training step of a
    few million parameters a tenth of its time (docs/log.md). Other systems are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    # The second call replaces a threshold that the first one alone would freeze at 128 KiB.
    return bool(libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1) and libc.mallopt(_MMAP_THRESHOLD, 2**30))
