"""Generation of many rows at once, as an iterator over the steps of an `Engine`."""

from collections.abc import Iterator, Sequence

from glassformer.inference.contexts import Ids
from glassformer.inference.decodable import Decodable
from glassformer.inference.drafts import DraftEngine, Drafter, PromptLookup, Reader
from glassformer.inference.engine import Engine
from glassformer.inference.rows import Request, Row, Settings, check_prompts, rows_of


class Generation:
    """Iterator over the steps of a generation. A step maps the number of each live row to the row's new id.

    Each prompt has one row per sample; all rows of the first prompt come first. A row ends by the rule of `Row.extend`,
    or when the caller ends it (`end`). An end id is yielded, too. If no id is allowed, the row ends without a new id.

    At most `batch_size` rows are live, and the others wait. When a quarter of the batch is free (`Engine.refill`), the
    next rows are read together and join the batch (continuous batching; Yu 2022, section 3). A row of a batch gets the
    same ids as alone, and equal prompts get equal ids. Use more samples to get different ids.

    With `sources` (ids for the encoder), a prompt is the beginning of a target: the start id, then forced ids.

    With a `drafter` (one per generation), the model makes fewer steps (`DraftEngine`), and chooses several ids of a row
    in one step. The ids of a row that is ahead wait until every row has an id to yield. A row leaves the model's batch
    when its last id is chosen, even if some of its ids wait, and another row takes its place. So a step of this
    iterator may have more than `batch_size` rows.

    With a `reader`, there is one row, and the model reads only the ids after those that `reader` has read in an earlier
    generation. So a conversation keeps its cache between turns.
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
        """Raise `UserError` for an empty prompt, or for a prompt longer than the context unless the context slides."""
        if sources and settings.slide:
            raise ValueError("slide: expected a context that does not slide with sources")
        check_prompts(prompts, settings.max_len, settings.slide)

        # The rows of all prompts
        rows: list[Row] = []
        for ids, source in zip(prompts, sources or [()] * len(prompts), strict=True):
            rows += rows_of(Request(ids, settings, tuple(source)), first=len(rows))

        # The engine that continues them
        max_len, device, max_rows = settings.max_len, settings.device, settings.batch_size or len(rows)
        if drafter is None and reader is None:
            self._engine = Engine(model, max_len=max_len, device=device, max_rows=max_rows)
        else:
            if reader is not None:
                [row] = rows
                reader.continue_with(row)
            reader = reader or Reader(model, max_len, device)
            self._engine = DraftEngine(reader, drafter or PromptLookup(0), max_rows)
        for row in rows:
            self._engine.add_rows([row])
        self._live: dict[int, Row] = {}
        """Rows that have begun, and that have ids to yield or may get more ids. The key is the row's number."""

    def end(self, row: int) -> None:
        """End a row after its last id that was yielded."""
        if row in self._live:
            self._engine.end(self._live.pop(row))

    def __iter__(self) -> Iterator[dict[int, int]]:
        while not self._engine.is_idle:
            for one in self._engine.step():
                self._live[one.row.number] = one.row
            while new := self._next_ids():
                yield new

    def _next_ids(self) -> dict[int, int]:
        """Return the next id of each row, or no ids if a row that has not ended has no id to yield."""
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
