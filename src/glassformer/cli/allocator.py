"""Memory that a training step frees stays with the process: the next step asks for the same sizes again."""

import ctypes
import platform

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of `mallopt(3)`."""


def keep_freed_memory() -> bool:
    """Tells glibc not to give large blocks back to the system after every use; says whether it could.

    Fresh pages must be cleared by the kernel before they can be written, which on a CPU costs a training step of a
    few million parameters a tenth of its time (docs/log.md). Other systems are left as they are. It holds for the whole
    process, so the command line calls it and the API does not: a program that wants the same sets
    `MALLOC_TRIM_THRESHOLD_=2147483647` and `MALLOC_MMAP_THRESHOLD_=1073741824` before it starts.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    # The second call replaces a threshold that the first one alone would freeze at 128 KiB.
    return bool(libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1) and libc.mallopt(_MMAP_THRESHOLD, 2**30))
