"""Conversion of text to ids and back: byte-pair encoding from scratch, and the `Tokenizer` that uses it.

The rooms below are `common` alone. Begin with `reference.py`, the readable algorithm, then `tokenizer.py`.
"""

from glassformer.tokenization.padding import pad, truncate
from glassformer.tokenization.pretokenize import SCHEMES, Scheme
from glassformer.tokenization.special_tokens_template import Frame, Frames
from glassformer.tokenization.tokenizer import SPECIAL_TOKENS, Learner, Tokenizer

__all__ = ["SCHEMES", "SPECIAL_TOKENS", "Frame", "Frames", "Learner", "Scheme", "Tokenizer", "pad", "truncate"]
