"""The splits of a text into words that llama.cpp knows by name: a GGUF file has no regular expression."""

from collections.abc import Mapping
from typing import Any

from glassformer.apps.interop.vocabulary_files import QWEN

PREFIX = "tokenizer.ggml."
TEMPLATE = "tokenizer.chat_template"
BYTES: dict[str, Any] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_DIGITS: dict[str, Any] = {"type": "Digits", "individual_digits": True}
_LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _sequence(*parts: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def _split(regex: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    return _sequence(split, BYTES | {"use_regex": False})


SPLITS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mellum"), BYTES),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "minerva-7b"), _sequence(_DIGITS, BYTES)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"), _split(QWEN)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe"), _split(_LLAMA3)),
    "tekken": _split(_TEKKEN),
}
"""`tokenizer.ggml.pre` → the pre-tokenizer in a `tokenizer.json`."""
WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"})
"""Names in `SPLITS` with which a word that is a token keeps its id without merges."""


def split_of(description: Mapping[str, Any]) -> str | None:
    """Return the `tokenizer.ggml.pre` of the byte-level BPE tokenizer in a parsed `tokenizer.json`; None for others.

    Normalisation to NFC is ignored, as in llama.cpp.
    """
    model, normalizer = description["model"], description["normalizer"]
    if model["type"] != "BPE" or normalizer not in (None, {"type": "NFC"}):
        return None
    steps, keeps_words = _steps(description["pre_tokenizer"]), bool(model.get("ignore_merges"))
    fitting = (name for name, split in SPLITS.items() if _steps(split) == steps)
    return next((name for name in fitting if (name in WHOLE_WORDS) == keeps_words), None)


def _steps(pre_tokenizer: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a pre-tokenizer without `trim_offsets`, which changes no id."""
    whole = pre_tokenizer or {}
    steps = whole.get("pretokenizers", [whole])
    return [{key: value for key, value in step.items() if key != "trim_offsets"} for step in steps]
