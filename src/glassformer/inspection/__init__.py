"""Inspection of a model: attention weights and plots."""

from typing import Literal

Kind = Literal["encoder", "decoder", "cross"]
"""Attention that a plot can show: self-attention of the encoder or decoder, or cross-attention to the source."""
