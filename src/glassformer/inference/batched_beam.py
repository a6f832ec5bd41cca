"""Many sources at a time: sorted by length, decoded in batches, and put back in their order."""

from collections.abc import Callable, Sequence

import torch

from glassformer.config.run import BeamConfig
from glassformer.data.batching import batches_by_length, pad
from glassformer.inference.beam import Hypothesis, beam_search
from glassformer.inference.decodable import Decodable

MAX_TOKENS = 8192
"""Source positions of a batch, padding included, times the beam: bounds memory, and is enough to be fast."""


def decode_sorted(
    model: Decodable,
    sources: Sequence[Sequence[int]],
    config: BeamConfig,
    *,
    start_id: int,
    end_id: int,
    max_len: int,
    n_best: int = 1,
    prefix: Sequence[int] = (),
    suppress_ids: Sequence[int] = (),
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
    max_tokens: int = MAX_TOKENS,
    takes: Callable[[int], bool] | None = None,
) -> list[list[Hypothesis]]:
    """`beam_search` over all of `sources` (ids, with whatever ends them); result i is of source i.

    Every target begins with `prefix`. The longest sources go first, so that a batch too large for the memory
    shows at once. `progress(done, total)` is told of every batch. Where `takes` is given, batches whose number it does
    not take are passed over, and their sources have no result.
    """
    found: list[list[Hypothesis]] = [[] for _ in sources]
    n_done = 0
    batches = batches_by_length([len(source) for source in sources], max_tokens // config.beam)
    for number, batch in enumerate(batches):
        if takes is not None and not takes(number):
            continue
        source_ids, mask = pad([sources[i] for i in batch], 0)
        results = beam_search(
            model,
            source_ids.to(device),
            None if bool(mask.all()) else mask.to(device),
            config,
            start_id=start_id,
            end_id=end_id,
            max_len=max_len,
            n_best=n_best,
            prefixes=[prefix] * len(batch),
            suppress_ids=suppress_ids,
        )
        for i, result in zip(batch, results, strict=True):
            found[i] = result
        n_done += len(batch)
        if progress is not None:
            progress(n_done, len(sources))
    return found
