"""Greedy and beam search outputs of transformers and glassformer, for one imported checkpoint."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.config.run import BeamConfig, GenerationConfig
from glassformer.inference.beam import beam_search
from glassformer.inference.generation import Generation
from glassformer.inference.rows import Settings
from glassformer.inference.search import Search
from interop.checkpoints import Both

PAD, N_NEW = 0, 12
Ids = list[list[int]]


def drawn_prompts(both: Both, n: int = 100, longest: int = 10, seed: int = 0) -> Ids:
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (n,), generator=draw).tolist()
    vocab_size = both.network.config.encoder_vocab_size
    return [torch.randint(4, vocab_size, (length,), generator=draw).tolist() for length in lengths]


def common_end(written: Ids, share: float) -> int | None:
    """Return an id of about this share of rows, not their first: as end token it has different positions.

    It is None if every row repeats one id.
    """
    counts = Counter(token for row in written for token in set(row[1:]) - {row[0]})
    return min(counts, key=lambda token: (abs(counts[token] - len(written) * share), token), default=None)


def padded(rows: Sequence[Sequence[int]], left: bool) -> tuple[Tensor, Tensor]:
    """Return ids and mask, (N, T) each."""
    width = max(map(len, rows))
    gaps = [[PAD] * (width - len(row)) for row in rows]
    ids = [[*gap, *row] if left else [*row, *gap] for gap, row in zip(gaps, rows, strict=True)]
    mask = [[0] * len(gap) + [1] * len(row) for gap, row in zip(gaps, rows, strict=True)]
    return torch.tensor(ids), torch.tensor(mask if left else [row[::-1] for row in mask])


def cut(rows: Tensor, end: int | None) -> Ids:
    """Cut each row after its end token: padding follows it."""
    found: Ids = rows.tolist()
    return [row[: row.index(end) + 1] if end in row else row for row in found]


def suppressed(both: Both, end: int | None) -> list[int]:
    """Return the ids that neither library writes: padding, and without an end token that of the model."""
    config = both.network.config
    ids = [config.pad_id] if end is not None else [config.pad_id, config.eos_id]
    return [i for i in ids if i is not None and i != end]


def theirs_written(both: Both, prompts: Ids, end: int | None, **settings: Any) -> Ids:
    """Generate with `transformers` from prompts, or from sources if the model has an encoder."""
    config = both.network.config
    is_seq2seq = config.encoder is not None
    ids, mask = padded(prompts, left=not is_seq2seq)
    ends: dict[str, Any] = {"suppress_tokens": suppressed(both, end)}
    if end is not None:
        ends["eos_token_id"] = end
    fixed = {"max_new_tokens": N_NEW, "do_sample": False, "pad_token_id": PAD}
    found = both.theirs.generate(ids, attention_mask=mask, **fixed, **ends, **settings)
    return cut(found[:, 1 if is_seq2seq else ids.shape[1] :], end)


def ours_greedy(both: Both, prompts: Ids, end: int | None) -> Ids:
    config = both.network.config
    suppress_ids = suppressed(both, end)
    sources: Ids = []
    if config.encoder is not None:
        assert config.decoder_start_id is not None
        sources, prompts = prompts, [[config.decoder_start_id]] * len(prompts)
    written: Ids = [[] for _ in prompts]
    greedy = GenerationConfig(temperature=0.0, max_new_tokens=N_NEW)
    ends = [] if end is None else [end]
    settings = Settings(greedy, config.max_len, ends, suppress_ids)
    for step in Generation(both.network, prompts, settings, sources=sources):
        for row, token in step.items():
            written[row].append(token)
    return written


def assert_same_greedy(both: Both, must_vary: bool = True) -> None:
    """Compare 100 prompts, without an end token and with one, which `must_vary` requires at different positions."""
    prompts = drawn_prompts(both)
    free = ours_greedy(both, prompts, None)
    assert free == theirs_written(both, prompts, None, num_beams=1)
    end = common_end(free, share=1 / 3)
    assert end is not None or not must_vary
    ended = ours_greedy(both, prompts, end)
    assert ended == theirs_written(both, prompts, end, num_beams=1)
    if must_vary:
        assert len({len(row) for row in ended}) > 1


def ours_beam(both: Both, sources: Ids, end: int | None, beam: int = 4) -> Ids:
    config = both.network.config
    assert config.decoder_start_id is not None and config.eos_id is not None
    ids, mask = padded(sources, left=False)
    search = Search(
        BeamConfig(beam=beam, length_penalty_type="average", early_stopping="never", max_new_tokens=N_NEW),
        start_id=config.decoder_start_id,
        end_id=config.eos_id if end is None else end,
        max_len=config.max_len,
        suppress_ids=suppressed(both, end),
    )
    found = beam_search(both.network, (ids, mask.bool()), search)
    return [best.ids for best, *_ in found]


def assert_same_beams(both: Both, must_vary: bool = True) -> None:
    """Compare 100 sources, without an end token and with one, which `must_vary` requires at different positions."""
    sources = drawn_prompts(both)
    settings = {"num_beams": 4, "early_stopping": "never", "length_penalty": 1.0}
    free = ours_beam(both, sources, None)
    assert free == theirs_written(both, sources, None, **settings)
    end = common_end(free, share=1.0)
    assert end is not None or not must_vary
    ended = ours_beam(both, sources, end)
    assert ended == theirs_written(both, sources, end, **settings)
    if must_vary:
        assert any(row[-1] == end for row in ended) and len({len(row) for row in ended}) > 1
