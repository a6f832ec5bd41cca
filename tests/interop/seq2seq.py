"""Small models of glassformer that Marian and BART can represent."""

from dataclasses import replace
from pathlib import Path

from glassformer.config.transformer import LearnedPositions, SinusoidalPositions, Stack, TransformerConfig

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
    embedding_scale=0.0,
)
"""The original Transformer in small, without a setting for the logits' bias."""
DENOISER = replace(PAPER, positions=LearnedPositions(offset=2), embedding_norm=True, embedding_scale=1.0)


def lines_of(path: Path, n: int = 30) -> list[str]:
    return path.read_text().splitlines()[:n]
