"""An engine in the thread of models, for requests of the event loop, which get each piece of text when it is new.

Each step of the engine is one job of the thread, so that jobs of other models run between two steps.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from glassformer.apps.inspector.worker import Worker, as_exception
from glassformer.inference.engine import Engine, Step
from glassformer.inference.rows import Finish, Likely, Request, Row
from glassformer.inference.text import EncodedPrompt
from glassformer.inference.writer import RowText
from glassformer.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """New text of a row: the text of one token. The last piece also has the text that waited for later tokens."""

    row: int
    """Number of the row, from 0: the rows of the first request have the first numbers."""
    sample: Row
    """The row of the engine."""
    text: str
    begin: int
    """Number of characters of the row before the token."""
    n_tokens: int
    """1, or 0 for a row that has no new token."""
    likely: Likely | None
    finish: Finish | None


@dataclass(eq=False)
class _Reader:
    """The queue of the pieces of some requests, and the event loop that reads it."""

    loop: asyncio.AbstractEventLoop
    queue: "asyncio.Queue[Piece | Exception]" = field(default_factory=asyncio.Queue)


class EngineThread:
    """An engine whose steps are jobs of a thread. Call `run` in an event loop; the other methods run in the thread."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, worker: Worker) -> None:
        self.engine, self.tokenizer, self.worker = engine, tokenizer, worker
        self._rows: dict[Row, tuple[_Reader, int, RowText]] = {}
        self._is_running = False

    async def run(self, requests: Sequence[Request], prompts: Sequence[EncodedPrompt]) -> AsyncGenerator[Piece]:
        """Yield the pieces of all rows of some requests, until all have ended.

        If the iteration ends early, for example because the client disconnects, the rows that have not ended leave the
        batch. Raises the error if the model fails.
        """
        reader, n_rows = _Reader(asyncio.get_running_loop()), sum(len(one.settings.samples) for one in requests)
        self.worker.post(self._add, reader, requests, prompts)
        try:
            while n_rows:
                piece = await reader.queue.get()
                if isinstance(piece, Exception):
                    raise piece
                n_rows -= piece.finish is not None
                yield piece
        finally:
            if n_rows:
                self.worker.post(self._end, reader)

    # In the thread

    @contextmanager
    def _failing(self, reader: _Reader) -> Iterator[None]:
        """If the block raises an error, end the requests of one reader, and send it the error."""
        try:
            yield
        except BaseException as error:
            self._end(reader)
            _send(reader, [as_exception(error)])

    def _add(self, reader: _Reader, requests: Sequence[Request], prompts: Sequence[EncodedPrompt]) -> None:
        number = 0
        with self._failing(reader):
            for request, prompt in zip(requests, prompts, strict=True):
                texts = [RowText(self.tokenizer, prompt, request.settings) for _ in request.settings.samples]
                for row, text in zip(self.engine.add(request), texts, strict=True):
                    self._rows[row] = reader, number, text
                    number += 1
        self._go_on()

    def _end(self, reader: _Reader) -> None:
        for row in [row for row, (of, _, _) in self._rows.items() if of is reader]:
            del self._rows[row]
            self.engine.end(row)

    def _go_on(self) -> None:
        if not self._is_running and not self.engine.is_idle:
            self._is_running = True
            self.worker.post(self._step)

    def _step(self) -> None:
        self._is_running = False
        try:
            steps = self.engine.step()
        except BaseException as error:  # also MemoryError: the requests end, and the server continues
            self.engine.reset()
            readers = {reader for reader, _, _ in self._rows.values()}
            self._rows.clear()
            for reader in readers:
                _send(reader, [as_exception(error)])
            return
        pieces: dict[_Reader, list[Piece]] = {}
        for step in steps:
            if step.row in self._rows:
                with self._failing(self._rows[step.row][0]):
                    self._put(step, pieces)
        for reader, new in pieces.items():
            _send(reader, new)
        self._go_on()

    def _put(self, step: Step, pieces: dict[_Reader, list[Piece]]) -> None:
        reader, number, written = self._rows[step.row]
        begin, text = written.n_characters, "" if step.token is None else written.push(step.token)
        finish = step.finish
        if written.is_stopped:
            finish = "stop"
            self.engine.end(step.row)
        if finish is not None:
            text += written.flush()
            del self._rows[step.row]
        piece = Piece(number, step.row, text, begin, int(step.token is not None), step.likely, finish)
        pieces.setdefault(reader, []).append(piece)


def _send(reader: _Reader, pieces: Sequence[Piece | Exception]) -> None:
    def put() -> None:
        for piece in pieces:
            reader.queue.put_nowait(piece)

    try:
        reader.loop.call_soon_threadsafe(put)
    except RuntimeError:  # the loop is closed
        return
