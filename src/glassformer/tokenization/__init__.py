"""Text to ids and back: byte-pair encoding from scratch, and the `Tokenizer` around it."""

from glassformer.tokenization.frames import Frame, Frames
from glassformer.tokenization.padding import pad, truncate
from glassformer.tokenization.pretokenize import FLAVOURS, Flavour
from glassformer.tokenization.templates import Template
from glassformer.tokenization.tokenizer import SPECIAL_TOKENS, Learner, Tokenizer

__all__ = [
    "FLAVOURS",
    "SPECIAL_TOKENS",
    "Flavour",
    "Frame",
    "Frames",
    "Learner",
    "Template",
    "Tokenizer",
    "pad",
    "truncate",
]
