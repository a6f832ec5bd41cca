"""What a `tokenizer.json` is held to before the Rust library sees it.

The library builds whatever a file asks for: it counts up to the largest id, gives up (panics) on some damaged parts,
and its expressions backtrack, so that one such as `(a+)+$` may take longer than anybody lives. No expression can be
told to be harmless by looking at it, so only those that this package writes are let through.
"""

from collections.abc import Iterator
from typing import Any

from glassformer.errors import UserError
from glassformer.tokenization.pretokenize import FLAVOURS, WORD_END

MAX_TOKENIZER_BYTES = 64 * 1024 * 1024  # twice the largest in use, of 260,000 tokens
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_KNOWN = {
    *("Sequence", "ByteLevel", "Split", "Replace", "Whitespace", "WhitespaceSplit", "BPEDecoder", "Fuse"),
    *("TemplateProcessing", "BertProcessing", "RobertaProcessing"),
}
"""Types of parts that our flavours have, and of those around texts, which are not used here."""


def check_file(description: Any) -> None:
    """Looks at a parsed file; `UserError` for what is not let through, `ValueError` where something is not there."""
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise ValueError("it has no model")
    model, added = description["model"], description.get("added_tokens") or []
    if model.get("type", "BPE") not in ("BPE", "WordLevel"):
        kind = f"{model['type']!s:.40}"
        raise UserError(f"its model is {kind}, and BPE and whole words between white space are read here")
    for part in _PARTS:
        for inner in _tables(description.get(part)):
            _check_part(inner)
    if not isinstance(added, list) or not all(isinstance(token, dict) for token in added):
        raise ValueError("its added tokens are no list of tables")
    _check_ids(model.get("vocab"), [(token.get("content"), token.get("id")) for token in added])
    frequencies = model.get("frequencies")
    if frequencies is not None and not (isinstance(frequencies, list) and all(map(_is_count, frequencies))):
        raise ValueError("its frequencies are no list of whole numbers")


def _check_part(part: dict[str, Any]) -> None:
    begin = f"it splits text in a way that is none of {', '.join(FLAVOURS)}"
    if "type" in part and part["type"] not in _KNOWN:
        raise UserError(f"{begin}: it has a part of type {part['type']!s:.40}")
    if "Regex" in part and part["Regex"] != WORD_END:
        raise UserError(f"{begin}: its expression {part['Regex']!r:.60} is none of ours, and some never end")


def _tables(part: Any) -> Iterator[dict[str, Any]]:
    """A part of the file and all tables inside it."""
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from _tables(inner)


def _check_ids(vocab: Any, added: list[tuple[Any, Any]]) -> None:
    """Ids are 0, 1, 2 …, each once, over the vocabulary and what is added to it."""
    if not isinstance(vocab, dict) or not all(map(_is_count, vocab.values())):
        raise ValueError("its vocabulary is no table of tokens and ids")
    if not all(content and isinstance(content, str) and _is_count(number) for content, number in added):
        raise ValueError("its added tokens have no content or no id")
    for content, number in added:
        if vocab.get(content, number) != number:
            raise UserError(f"its token {content!r:.60} has the id {number}, and {vocab[content]} in its vocabulary")
    if len(dict(added)) < len(added):
        raise UserError("one of its special tokens is named twice")
    if sorted((vocab | dict(added)).values()) != list(range(len(vocab | dict(added)))):
        raise UserError("its ids are not 0, 1, 2 … without a gap, so no embedding can have one row for each")


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
