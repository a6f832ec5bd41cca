"""Generation of many rows at once, as an iterator over the steps of an `Engine`."""

from collections.abc import Iterator, Sequence
from itertools import chain, islice

from glassformer.inference.contexts import Ids, Reader
from glassformer.inference.decodable import Decodable
from glassformer.inference.drafted import Drafted
from glassformer.inference.drafters import Drafter, PromptLookup
from glassformer.inference.engine import Engine
from glassformer.inference.rows import Request, Row, Settings, check_prompts, rows_of

REFILL = 1 / 4
"""Fraction of a batch that must be free before new rows join it. To read prompts takes as long as one step or longer,
because it also multiplies by all weights once. With fewer rows at a time, more calls read prompts; with more rows, more
of the batch stays free."""


class Generation:
    """Iterator over the steps of a generation: the new id of each live row, by the number of the row.

    Each prompt has one row per sample; all rows of the first prompt come first. A row ends by the rule of `Row.extend`
    (an end id is yielded; if no id is allowed, the row may end without one), or when the caller ends it (`end`).

    At most `batch_size` rows are live, and the others wait. When `REFILL` of the batch is free, the next rows are
    read together and join it (continuous batching; Yu 2022, section 3). A row of a batch gets the same ids as alone,
    and equal prompts get equal ids; use more samples to get different ones.

    With `sources` (ids), prompts are beginnings of targets: the decoder's start id, then forced ids.

    With a `drafter` (one per generation), the model makes fewer steps (`Drafted`). Rows then advance by different
    numbers of ids: those of a row that is ahead wait until all rows have one to yield. A row whose ids are all chosen
    leaves the batch before, so more than `batch_size` rows may be in a step.

    With a `reader`, which an earlier generation may have used, the only row reads no id that the reader has read: so a
    conversation keeps its cache between turns.
    """

    def __init__(
        self,
        model: Decodable,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        *,
        sources: Sequence[Ids] = (),
        drafter: Drafter | None = None,
        reader: Reader | None = None,
    ) -> None:
        """Raise `UserError` for an empty prompt, or for one longer than the context unless it slides."""
        if sources and settings.slide:
            raise ValueError("slide: expected a context that does not slide with sources")
        check_prompts(prompts, settings.max_len, settings.slide)
        n_samples, of_prompts = len(settings.samples), sources or [()] * len(prompts)
        self._waiting: Iterator[Row] = chain.from_iterable(
            rows_of(Request(ids, settings, tuple(source)), n_samples * number)
            for number, (ids, source) in enumerate(zip(prompts, of_prompts, strict=True))
        )
        self._n_waiting = n_samples * len(prompts)
        self._batch_size = settings.batch_size or self._n_waiting
        self._live: dict[int, Row] = {}
        drafted = None
        if drafter is not None or reader is not None:
            drafted = Drafted(reader or Reader(model, settings.max_len, settings.device), drafter or PromptLookup(0))
        if reader is not None:
            [row] = self._waiting
            reader.continue_with(row)
            self._waiting = iter([row])
        self._engine = Engine(
            model,
            max_len=settings.max_len,
            device=settings.device,
            max_rows=self._batch_size,
            in_parts=False,
            drafted=drafted,
        )

    def end(self, row: int) -> None:
        """End a row after its last id that was yielded."""
        if row in self._live:
            self._engine.end(self._live.pop(row))

    def __iter__(self) -> Iterator[dict[int, int]]:
        while True:
            if self._n_waiting:
                self._refill()
            if self._engine.is_idle:
                return
            self._engine.step()
            while new := self._next_ids():
                yield new

    def _refill(self) -> None:
        """Let the next rows join if enough of the batch is free."""
        n_free = self._batch_size - self._engine.n_live
        if n_free < REFILL * self._batch_size:
            return
        for row in islice(self._waiting, n_free):
            self._live[row.number] = row
            self._engine.add_rows([row])
            self._n_waiting -= 1

    def _next_ids(self) -> dict[int, int]:
        """Return the next id of each row; no ids if a row that continues waits for its next one."""
        for number, row in [*self._live.items()]:
            if row.n_given == len(row.history):
                if row.finish is None:
                    return {}
                del self._live[number]
        new = {}
        for number, row in self._live.items():
            new[number] = row.history[row.n_given]
            row.n_given += 1
        return new
