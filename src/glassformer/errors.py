"""The exceptions that reach a user: a mistake of theirs, and their own wish to stop."""

import os
import signal


class UserError(Exception):
    """What is wrong, where, and what to do, in one sentence.

    The command line prints the sentence and exits with code 2; nothing has been half-written.
    """


TIME_IS_UP = 75
"""Exit code of a run whose time was over; the system's own code for `try again later`."""


def shown(name: str, most: int = 80) -> str:
    """A name from a file as a message repeats it: a few characters, all of them printable.

    >>> print(shown("w"), shown("a\\nb"))
    w 'a\\nb'
    """
    return name if name.isprintable() and len(name) <= most else f"{name!r:.{most}}"


class Interrupted(Exception):
    """A signal, or the end of its time, asked a run to stop: everything is saved, and the sentence says how to go on.

    The command line exits with 128 + the signal's number, or with `TIME_IS_UP`; with 0 at the end of its time under
    `torchrun`, which would start again what ends with another code.
    """

    def __init__(self, message: str, cause: signal.Signals | None) -> None:
        super().__init__(message)
        self.signal = cause

    @property
    def exit_code(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        return 0 if "TORCHELASTIC_RUN_ID" in os.environ else TIME_IS_UP
