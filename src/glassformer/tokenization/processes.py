"""Worker processes for large texts: a function is applied to a stream of items, and the results are in order.

A worker is a new interpreter, which imports only the module of the function, without torch. It reads items from its
standard input and writes results to its standard output. It ends when its input ends, so also if this process is
killed. `concurrent.futures.ProcessPoolExecutor` is not used: each of its new interpreters would import the main module
again, and a script without `if __name__ == "__main__":` would then start its training again.
"""

import os
import pickle
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from queue import SimpleQueue
from typing import Any, TypeVar

from glassformer.common.errors import UserError
from glassformer.common.processes import close_pipes, n_processors

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_WORKERS = 16
"""Maximum number of workers. More would wait for this process, which reads the text, sends it and writes the ids."""
MAX_SIZE = 4 << 20
"""Maximum size of the items per worker that are sent but not yet returned, in characters; one item may be larger."""
_START = "import sys; sys.path[:] = sys.argv[1:]; from glassformer.tokenization.processes import serve; serve()"
_ONE_THREAD = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # there is one worker per processor


def n_workers(in_every_rank: bool) -> int:
    """Return the number of worker processes: one per processor, divided among the ranks if all encode at a time.

    `torchrun` sets the number of ranks on this machine. Without `in_every_rank`, the other ranks wait for this one.
    """
    n_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if in_every_rank else 1
    return max(1, min(n_processors() // n_ranks, MAX_WORKERS))


def in_order(
    function: Callable[[Item], Result],
    items: Iterable[Item],
    size: Callable[[Item], int],
    pays_from: int,
    in_every_rank: bool = False,
) -> Iterator[Result]:
    """Yield `function(item)` for each item: the first items here, those after a size of `pays_from` in workers.

    There are `n_workers` workers; if this number is 1, no worker is started. `function` is pickled and sent to each
    worker once. A worker has at most two unfinished items, and fewer if they are large (`MAX_SIZE`), which bounds
    memory use. The first error in the order of the items is raised, as in one process, whether of `items` or of
    `function`.
    """
    items, n, done = iter(items), n_workers(in_every_rank), 0
    for item in items:
        if n > 1 and done >= pays_from:
            with _Workers(function, n) as workers:
                yield from workers.map(chain([item], items), size)
            return
        done += size(item)
        yield function(item)


class _Workers:
    """Workers that apply one function; a thread for each sends it an item and waits for the result."""

    def __init__(self, function: Callable[[Any], Any], n_workers: int) -> None:
        self._function = pickle.dumps(function)
        command = [sys.executable, "-c", _START, *sys.path]
        self._all = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | _ONE_THREAD,
                start_new_session=True,  # Ctrl-C reaches only this process, which then kills the workers
            )
            for _ in range(n_workers)
        ]
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        for worker in self._all:
            self._idle.put(worker)
        self._new = set(self._all)
        self._threads = ThreadPoolExecutor(n_workers)

    def __enter__(self) -> "_Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.wait()
            close_pipes(worker)

    def map(self, items: Iterable[Item], size: Callable[[Item], int]) -> Iterator[Any]:
        """Yield the results in order."""
        waiting: deque[tuple[int, Future[Any]]] = deque()
        items, end, failure = iter(items), object(), None
        in_flight, n_workers = 0, len(self._all)
        while True:
            try:
                item = next(items, end)
            except Exception as error:
                failure = error  # after the results and errors of the earlier items
                break
            if item is end:
                break
            n = size(item)  # type: ignore[arg-type]
            while waiting and (len(waiting) == 2 * n_workers or in_flight + n > MAX_SIZE * n_workers):
                n_before, future = waiting.popleft()
                in_flight -= n_before
                yield future.result()
            waiting.append((n, self._threads.submit(self._apply, item)))
            in_flight += n
        while waiting:
            yield waiting.popleft()[1].result()
        if failure is not None:
            raise failure

    def _apply(self, item: Any) -> Any:
        worker = self._idle.get()
        assert worker.stdin is not None and worker.stdout is not None
        try:
            if worker in self._new:
                self._new.remove(worker)
                worker.stdin.write(self._function)
            pickle.dump(item, worker.stdin, pickle.HIGHEST_PROTOCOL)
            worker.stdin.flush()
            is_result, answer = pickle.load(worker.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise UserError(
                f"a process that encodes the text ended with exit status {worker.wait()}; is there enough free memory?"
            ) from error
        finally:
            self._idle.put(worker)
        if not is_result:
            raise answer
        return answer


def serve() -> None:
    """Run a worker: read a function and then items from standard input, and write each result to standard output."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # printed text does not disturb the results
    function = None
    while True:
        try:
            if function is None:
                function = pickle.load(source)
            item = pickle.load(source)
        except (EOFError, pickle.UnpicklingError):  # the other process has ended
            return
        try:
            answer = True, function(item)
        except Exception as error:
            if not isinstance(error, UserError):
                error.add_note("".join(traceback.format_exception(error)))
            answer = False, error
        try:
            pickle.dump(answer, target, pickle.HIGHEST_PROTOCOL)
            target.flush()
        except BrokenPipeError:
            os._exit(1)  # the process that reads the results was killed
