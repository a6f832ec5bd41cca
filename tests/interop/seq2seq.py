"""What encoder-decoders of two families are asked for: texts as transformers writes them, and models of ours."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glassformer.config import LearnedPositions, SinusoidalPositions, Stack, TransformerConfig
from glassformer.inference.beam import beam_search
from glassformer.run_config import BeamConfig
from interop.checkpoints import Both

PAPER = TransformerConfig(
    encoder=Stack(2, 2, d_ff=24),
    decoder=Stack(1, 4, d_ff=20),
    d_model=16,
    max_len=40,
    share_embeddings=True,
    positions=SinusoidalPositions(),
    norm_order="post",
    final_norm=False,
    activation="relu",
    scale_embeddings=True,
)
"""The original Transformer in small, and nothing said of the logits' bias."""
DENOISER = replace(PAPER, positions=LearnedPositions(offset=2), embedding_norm=True, scale_embeddings=False)


def assert_same_searches(both: Both, n_prompts: int = 100, max_new_tokens: int = 12) -> None:
    """Greedy and beam ids of random sources, with padding, equal those of `generate`; another of an equal score too.

    The end is made likely, so that hypotheses end at several lengths.
    """
    config = both.network.config
    assert config.decoder_start_id is not None and config.eos_id is not None
    both.theirs.final_logits_bias[0, config.eos_id] += 3
    both.network.output.bias[config.eos_id] += 3  # type: ignore[index,operator]
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(4, 280, (n_prompts, 8), generator=draw)
    mask = torch.arange(8) < torch.randint(3, 9, (n_prompts, 1), generator=draw)
    lengths, n_ties = set(), 0
    for beam in (1, 2, 4):
        search: dict[str, Any] = {"early_stopping": "never", "length_penalty": 1.0} if beam > 1 else {}
        found = both.theirs.generate(
            input_ids=ids, attention_mask=mask.long(), num_beams=beam, max_new_tokens=max_new_tokens, **search
        )
        ours = beam_search(
            both.network,
            ids,
            mask,
            BeamConfig(beam, normalisation="average", max_new_tokens=max_new_tokens, finished="leave"),
            start_id=config.decoder_start_id,
            end_id=config.eos_id,
            max_len=config.max_len,
            n_best=min(beam, 2),
        )
        for row, best in zip(found.tolist(), ours, strict=True):
            end = row.index(config.eos_id, 1) + 1 if config.eos_id in row[1:] else len(row)
            ties = [h.ids for h in best if h.score >= best[0].score - 1e-6]
            assert row[1:end] in ties
            n_ties += row[1:end] != ties[0]
            lengths.add(end - 1)
    assert n_ties <= 2 and len(lengths) > 2, (n_ties, lengths)


def lines_of(path: Path, n: int = 30) -> list[str]:
    return path.read_text().splitlines()[:n]
