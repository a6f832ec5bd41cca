"""`glassformer` with a run that waits for a signal: `python tests/held.py STEP FILE WORD …`.

From STEP on, the run waits after each step while FILE exists, until a signal arrives. So a test that stops a run does
not depend on how long the run takes.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from glassformer.apps.cli.main import main
from glassformer.training.host import StopRequest
from glassformer.training.loop import Trainer


@contextmanager
def holding(step: int, file: Path) -> Iterator[None]:
    """Hold the runs of the block in this way."""
    after_step = Trainer._after_step

    def wait(trainer: Trainer, stop: StopRequest, *others: Any) -> Any:
        while trainer.progress.step >= step and file.exists() and stop.signal is None:
            time.sleep(0.005)
        return after_step(trainer, stop, *others)

    with mock.patch.object(Trainer, "_after_step", wait):
        yield


if __name__ == "__main__":
    with holding(int(sys.argv[1]), Path(sys.argv[2])):
        main(sys.argv[3:])
