"""What happens inside a model, gathered and drawn."""

from typing import Literal

Kind = Literal["encoder", "decoder", "cross"]
"""Attention that a picture can show: in the encoder or the decoder, or from the decoder to the source."""
