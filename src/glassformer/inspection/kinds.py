"""The kinds of attention that a picture can show, without an import of torch."""

from typing import Literal

Kind = Literal["encoder", "decoder", "cross"]
"""Self-attention in the encoder or the decoder, or from the decoder to the source."""
