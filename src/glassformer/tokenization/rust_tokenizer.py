"""The `tokenizers` objects behind `Tokenizer`: put together, trained, recognised and checked."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, trainers

from glassformer.errors import UserError
from glassformer.tokenization.bpe import NO_TEXT, check_room
from glassformer.tokenization.pretokenize import BYTE_TO_CHARACTER, SCHEMES, Scheme, check_text, pipeline


def assemble(
    scheme: Scheme, special_tokens: Sequence[str], vocab: dict[str, int], merges: list[tuple[str, str]]
) -> tokenizers.Tokenizer:
    """A tokenizer of a scheme. Where `[UNK]` is a token, each run of unknown characters, or each unknown word,
    becomes one."""
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
    """The vocabulary and the merges that `tokenizers`' own BPE trainer finds."""
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
    if scheme == "whole_words":
        trainer: Any = trainers.WordLevelTrainer(vocab_size=vocab_size or 2**31, **common)
    else:
        trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=list(initial_alphabet), **common)
    rust.train_from_iterator(checked(), trainer)
    model = json.loads(rust.to_str())["model"]
    if n_characters == 0 or len(model["vocab"]) == len(special_tokens):
        raise UserError(NO_TEXT)
    if scheme == "whole_words":
        return model["vocab"], []
    if not model["merges"]:
        check_room(vocab_size, len(model["vocab"]) - len(special_tokens), len(special_tokens))
    return model["vocab"], without_forged(model["merges"], special_tokens)


def recognise(description: Mapping[str, Any]) -> Scheme | None:
    """The scheme of a parsed `tokenizer.json`, whose merges and special tokens we know how to apply, or None."""
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
    matching = (f for f in schemes if all(description[part] == value for part, value in _splitting(f).items()))
    return next(matching, None)


_OTHER_MATCHES = ("lstrip", "rstrip", "single_word")
_OTHER_MERGING = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")


@cache
def _splitting(scheme: Scheme) -> dict[str, Any]:
    description = json.loads(assemble(scheme, (), {}, []).to_str())
    return {part: description[part] for part in ("normalizer", "pre_tokenizer")}


def check_special_tokens(special_tokens: Sequence[str]) -> None:
    """Special tokens are distinct, and longer than a character, since every character may be ordinary text."""
    for token in special_tokens:
        if len(token) < 2:
            raise UserError(f"the special token {token!r} is too short: it needs two characters or more")
    if len(set(special_tokens)) < len(special_tokens):
        raise UserError(f"a special token is named twice: {', '.join(special_tokens)}")


def check(
    vocab: Mapping[str, int],
    merges: Iterable[tuple[str, str]],
    special_tokens: Sequence[str],
    unknown: str | None,
    scheme: Scheme | None,
    frequencies: Sequence[int] | None,
) -> None:
    """Holds a tokenizer to what the rest relies on; `UserError` for what a file can have wrong."""
    if list(vocab.values()) != list(range(len(vocab))):
        raise UserError("its ids are not 0, 1, 2 … without a gap, so no embedding can have one row for each")
    if len(vocab) == len(special_tokens):
        raise UserError("its vocabulary has no ordinary token")
    if frequencies is not None and len(frequencies) != len(vocab):
        raise UserError(f"it has {len(frequencies)} frequencies for {len(vocab)} tokens")
    if scheme is None:
        return
    check_special_tokens(special_tokens)
    if scheme == "byte" and (missing := set(BYTE_TO_CHARACTER) - vocab.keys()):
        raise UserError(f"it lacks {len(missing)} of the 256 bytes, so some text would be lost")
    ordinary = "".join(vocab.keys() - set(special_tokens))
    if scheme == "byte" and (others := set(ordinary) - set(BYTE_TO_CHARACTER)):
        raise UserError(f"it has tokens with {min(others)!r}, which stands for no byte")
    if unknown is not None and unknown not in special_tokens:
        raise UserError(f"its unknown token {unknown} is not one of its special tokens")
    if forged := [left + right for left, right in merges if left + right in special_tokens]:
        raise UserError(f"its merges spell {forged[0]}, so ordinary text could become a special token")


def add_special_tokens(rust: tokenizers.Tokenizer, tokens: Iterable[str]) -> None:
    """Makes special tokens of those that are no added tokens yet; one that is new gets the next id."""
    known = {token.content for token in rust.get_added_tokens_decoder().values()}
    new = [token for token in tokens if token not in known]
    rust.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in new])


@contextmanager
def no_panic(sentence: str) -> Iterator[None]:
    """What the Rust library raises becomes a `UserError`: it gives up (panics) on some damaged files."""
    try:
        yield
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # it raises just `Exception`, and what is none when it panics
        raise UserError(f"{sentence} ({error!s:.200})") from error


def without_forged(merges: Iterable[tuple[str, str]], special_tokens: Collection[str]) -> list[tuple[str, str]]:
    """The merges without those that spell a special token, and without those that build on such a one.

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
