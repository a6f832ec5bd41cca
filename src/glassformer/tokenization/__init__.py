"""Conversion of text to ids and back: byte-pair encoding from scratch, and the `Tokenizer` that uses it.

The names are loaded at first use, because messages of conversations are checked before numpy is imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.tokenization.padding import pad, truncate
    from glassformer.tokenization.pretokenize import SCHEMES, Scheme
    from glassformer.tokenization.special_tokens_template import Frame, Frames
    from glassformer.tokenization.tokenizer import SPECIAL_TOKENS, Learner, Tokenizer

_HOMES = {
    **dict.fromkeys(("pad", "truncate"), "padding"),
    **dict.fromkeys(("SCHEMES", "Scheme"), "pretokenize"),
    **dict.fromkeys(("Frame", "Frames"), "special_tokens_template"),
    **dict.fromkeys(("SPECIAL_TOKENS", "Learner", "Tokenizer"), "tokenizer"),
}

__all__ = ["SCHEMES", "SPECIAL_TOKENS", "Frame", "Frames", "Learner", "Scheme", "Tokenizer", "pad", "truncate"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
