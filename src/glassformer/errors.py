"""The exceptions that reach a user: a mistake of theirs, and their own wish to stop."""

import signal


class UserError(Exception):
    """What is wrong, where, and what to do, in one sentence.

    The command line prints the sentence and exits with code 2; nothing has been half-written.
    """


class Interrupted(Exception):
    """A signal asked a run to stop: everything is saved, and the sentence says how to go on."""

    def __init__(self, message: str, cause: signal.Signals | None) -> None:
        super().__init__(message)
        self.signal = cause
