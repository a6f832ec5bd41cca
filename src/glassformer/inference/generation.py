"""Generation with a cache, greedy or sampled, of many rows at once: the loop, and the end of a row.

`Generation` reads waiting prompts into a state of their own and appends its rows (`joined`), so a batch of many prompts
stays filled.
"""

import itertools
from collections.abc import Iterator, Sequence

import torch

from glassformer.inference.advance import Drafted, OneId
from glassformer.inference.contexts import Ids, Reader
from glassformer.inference.decodable import Decodable
from glassformer.inference.drafters import Drafter, PromptLookup
from glassformer.inference.rows import Row, Settings, check_prompts, rows_of
from glassformer.nn.kernels.packed import PackedWeights

REFILL = 1 / 4
"""Fraction of a batch that must be free before new rows join it. To read prompts takes as long as one step or longer,
because it also multiplies by all weights once. With fewer rows at a time, more calls read prompts; with more rows, more
of the batch stays free."""


class Generation:
    """Iterator over the steps of a generation: the new id of each live row, by the number of the row.

    Each prompt has one row per sample; all rows of the first prompt come first. A row ends with an end id (which is
    yielded), after `max_new_tokens`, when its context is full and does not slide, when the settings allow no id (it may
    then have no id), or when the caller ends it (`end`).

    At most `batch_size` rows are live, and the others wait. When `REFILL` of the batch is free, the next rows are
    read together and join it (continuous batching; Yu 2022, section 3). A row of a batch gets the same ids as alone,
    and equal prompts get equal ids; use more samples to get different ones.

    With `sources` (ids), prompts are beginnings of targets: the decoder's start id, then forced ids.

    With a `drafter` (one per generation), the model makes fewer steps (`advance.Drafted`). Rows then advance by
    different numbers of ids: those of a row that is ahead wait until all rows have one to yield. A row whose ids are
    all chosen leaves the batch before, so more than `batch_size` rows may be in a step.

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
        self.settings, self._ends = settings, settings.ends
        self._waiting = rows_of(prompts, settings, sources)
        if reader is not None:
            [row] = self._waiting
            reader.continue_with(row)
            self._waiting = iter([row])
        self._batch_size = settings.batch_size or len(prompts) * len(settings.samples)
        self._stopped: set[int] = set()
        self._advance: OneId | Drafted
        if drafter is None and reader is None:
            self._advance = OneId(model, settings)
        else:
            reader = reader or Reader(model, settings.max_len, settings.device)
            self._advance = Drafted(reader, settings, drafter or PromptLookup(0))

    def end(self, row: int) -> None:
        """End a row after its last id that was yielded."""
        self._stopped.add(row)

    def __iter__(self) -> Iterator[dict[int, int]]:
        unfinished: list[Row] = []  # rows that need more ids
        live: list[Row] = []  # rows that have ids to yield
        packed = PackedWeights()
        while True:
            joining = self._joining(len(unfinished))
            unfinished += joining
            live += joining
            if not unfinished:
                return
            with packed, torch.inference_mode():
                new_ids = self._advance.next_ids(unfinished)
            for row, ids in new_ids.items():
                self._extend(row, ids)
            live = [row for row in live if not self._has_ended(row)]
            while live and all(row.chosen for row in live):
                yield {row.number: row.chosen.popleft() for row in live}
                live = [row for row in live if not self._has_ended(row)]
            unfinished = [row for row in new_ids if not (row.is_complete or row.number in self._stopped)]

    def _joining(self, n_live: int) -> list[Row]:
        """Return the rows that join `n_live` rows: none before `REFILL` of the batch is free."""
        n_free = self._batch_size - n_live
        if n_free < REFILL * self._batch_size:
            return []
        return list(itertools.islice(self._waiting, n_free))

    def _extend(self, row: Row, ids: Sequence[int]) -> None:
        """Add new ids up to the first end id, or none; complete the row, or let a full context slide."""
        for token in ids:
            row.history.append(token)
            row.chosen.append(token)
            if token in self._ends:
                row.is_complete = True
                return
        is_full = row.n_context > self.settings.max_len
        row.is_complete = not ids or row.n_left == 0 or (is_full and not self.settings.slide)
        if is_full:
            row.begin = len(row.history) - max(1, self.settings.max_len // 2)

    def _has_ended(self, row: Row) -> bool:
        return row.number in self._stopped or (row.is_complete and not row.chosen)
