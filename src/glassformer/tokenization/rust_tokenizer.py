"""The `tokenizers` objects that `Tokenizer` wraps: construction, training, recognition of schemes, and checks."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, trainers

from glassformer.common.errors import UserError
from glassformer.tokenization.bpe import NO_TEXT, check_room
from glassformer.tokenization.schemes import BYTE_TO_CHARACTER, SCHEMES, Scheme, check_text, pipeline


def assemble(
    scheme: Scheme, special_tokens: Sequence[str], vocab: dict[str, int], merges: list[tuple[str, str]]
) -> tokenizers.Tokenizer:
    """Build a tokenizer of a scheme; with `[UNK]`, a run of unknown characters, or an unknown word, is one `[UNK]`."""
    unknown = "[UNK]" if "[UNK]" in special_tokens and scheme != "byte" else None
    if scheme == "whole_words":
        rust = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    else:
        rust = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token=unknown, fuse_unk=unknown is not None))
    parts = pipeline(scheme)
    if parts.normalizer is not None:
        rust.normalizer = parts.normalizer
    rust.pre_tokenizer = parts.pre_tokenizer
    if parts.decoder is not None:
        rust.decoder = parts.decoder
    add_special_tokens(rust, special_tokens)
    return rust


def train_in_rust(
    texts: Iterable[str],
    *,
    scheme: Scheme,
    vocab_size: int,
    special_tokens: Sequence[str],
    initial_alphabet: Sequence[str],
    min_frequency: int,
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train with the trainers of `tokenizers`; return the vocabulary and the merges."""
    rust = assemble(scheme, (), {}, [])
    n_characters = 0

    def checked() -> Iterator[str]:
        nonlocal n_characters
        for text in texts:
            check_text(text)
            n_characters += len(text)
            yield text

    common: dict[str, Any] = {"min_frequency": min_frequency, "show_progress": False}
    common["special_tokens"] = list(special_tokens)
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=list(initial_alphabet), **common)
    rust.train_from_iterator(checked(), trainer)
    model = json.loads(rust.to_str())["model"]
    if n_characters == 0 or len(model["vocab"]) == len(special_tokens):
        raise UserError(NO_TEXT)
    if not model["merges"]:
        check_room(vocab_size, len(model["vocab"]) - len(special_tokens), len(special_tokens))
    return model["vocab"], without_forged(model["merges"], special_tokens)


def recognise(description: Mapping[str, Any]) -> Scheme | None:
    """Return the scheme of a parsed `tokenizer.json`, or None if the reference encoder cannot reproduce it.

    None also for a byte-level vocabulary without all 256 bytes: the Rust library drops the missing ones.
    """
    model, added = description["model"], description["added_tokens"]
    if any(not token["special"] or any(token[flag] for flag in _OTHER_MATCHES) for token in added):
        return None
    if model["type"] == "WordLevel":
        schemes: tuple[Scheme, ...] = ("whole_words",)
        is_ours = model["unk_token"] in (token["content"] for token in added)
    else:
        schemes = SCHEMES
        is_ours = model["type"] == "BPE" and not any(model.get(option) for option in _OTHER_MERGING)
        is_ours = is_ours and (model["unk_token"] is None or model["fuse_unk"])
    if not is_ours:
        return None
    for scheme in schemes:
        if all(description[part] == value for part, value in _splitting(scheme).items()):
            if scheme == "byte" and set(BYTE_TO_CHARACTER) - model["vocab"].keys():
                return None
            return scheme
    return None


_OTHER_MATCHES = ("lstrip", "rstrip", "single_word")
_OTHER_MERGING = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")


@cache
def _splitting(scheme: Scheme) -> dict[str, Any]:
    description = json.loads(assemble(scheme, (), {}, []).to_str())
    return {part: description[part] for part in ("normalizer", "pre_tokenizer")}


def check_special_tokens(special_tokens: Sequence[str]) -> None:
    """Raise `UserError` for repeated special tokens, or for a single character, which may be ordinary text."""
    for token in special_tokens:
        if len(token) < 2:
            raise UserError(f"the special token {token!r} is too short; use at least two characters")
    if len(set(special_tokens)) < len(special_tokens):
        raise UserError(f"a special token is given twice: {', '.join(special_tokens)}; remove one of them")


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer: their ids and merges, the special and the unknown ones, and optional counts by id."""

    ids: Mapping[str, int]
    merges: Sequence[tuple[str, str]]
    special_tokens: Sequence[str]
    unknown: str | None
    frequencies: Sequence[int] | None


def check(vocabulary: Vocabulary, scheme: Scheme | None) -> None:
    """Check the assumptions of this package about a tokenizer; raise `UserError` for an invalid one."""
    vocab, special_tokens, frequencies = vocabulary.ids, vocabulary.special_tokens, vocabulary.frequencies
    if list(vocab.values()) != list(range(len(vocab))):
        raise UserError("its ids must be 0, 1, 2 … without a gap, because each id is a row of the embedding")
    if len(vocab) == len(special_tokens):
        raise UserError("its vocabulary has only special tokens")
    if frequencies is not None and len(frequencies) != len(vocab):
        raise UserError(f"it has {len(frequencies)} frequencies for {len(vocab)} tokens")
    if scheme is None:
        return
    check_special_tokens(special_tokens)
    ordinary = "".join(vocab.keys() - set(special_tokens))
    if scheme == "byte" and (others := set(ordinary) - set(BYTE_TO_CHARACTER)):
        raise UserError(f"its tokens contain {min(others)!r}, which represents no byte")
    if vocabulary.unknown is not None and vocabulary.unknown not in special_tokens:
        raise UserError(f"its unknown token {vocabulary.unknown} is not one of its special tokens")
    if forged := [left + right for left, right in vocabulary.merges if left + right in special_tokens]:
        raise UserError(f"its merges produce {forged[0]}, so ordinary text could become a special token")


def add_special_tokens(rust: tokenizers.Tokenizer, tokens: Iterable[str]) -> None:
    """Add the special tokens that are not yet added tokens; a token that is not in the vocabulary gets the next id."""
    added = {token.content for token in rust.get_added_tokens_decoder().values()}
    new = [token for token in tokens if token not in added]
    rust.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in new])


@contextmanager
def no_panic(sentence: str) -> Iterator[None]:
    """Convert any error of the Rust library to a `UserError`; some damaged files make it panic."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises `Exception`, or another BaseException for a panic
        raise UserError(f"{sentence} ({error!s:.200})") from error


def without_forged(merges: Iterable[tuple[str, str]], special_tokens: Collection[str]) -> list[tuple[str, str]]:
    """Remove the merges that produce a special token, and the merges that use the result of a removed one.

    >>> without_forged([("a", "b"), ("[", "X]"), ("[X]", "c"), ("[X]c", "d")], ["[X]"])
    [('a', 'b')]
    """
    out_of_reach = set(special_tokens)
    kept = []
    for left, right in merges:
        if out_of_reach.isdisjoint((left, right, left + right)):
            kept.append((left, right))
        else:
            out_of_reach.add(left + right)
    return kept
