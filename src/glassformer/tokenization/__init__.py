"""Conversion of text to ids and back: byte-pair encoding from scratch, and the `Tokenizer` that uses it.

This folder imports only `common`. Begin with `reference.py`, the readable algorithm, then `tokenizer.py`.
"""

from glassformer.tokenization.frames import Frame, Frames, pad
from glassformer.tokenization.schemes import SCHEMES, Scheme
from glassformer.tokenization.tokenizer import SPECIAL_TOKENS, Learner, Tokenizer

__all__ = ["SCHEMES", "SPECIAL_TOKENS", "Frame", "Frames", "Learner", "Scheme", "Tokenizer", "pad"]
