"""Kinds of tokens in a vocabulary: language tokens, sentinels, and tokens that begin or end words.

A language token (`eng_Latn`) is a special token around a text that names the language of a translator's source or
target. It is in the tokenizer's frames, so that training, evaluation and translation use the same token.
"""

import json
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from glassformer.common.errors import UserError, listed
from glassformer.tokenization.frames import template_processing
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

LANGUAGE = re.compile(r"__[a-z]{2,3}__|[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""Spelling of a language token: `__en__` (M2M-100), `en_XX` (mBART) and `eng_Latn` (NLLB)."""
Bools = npt.NDArray[np.bool_]
IDEOGRAPHS = (("\u3400", "\u9fff"), ("\uf900", "\ufaff"), ("\U00020000", "\U0003ffff"))
SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")


def languages(tokenizer: Tokenizer) -> list[str]:
    """Return the language tokens of an imported tokenizer."""
    if tokenizer.roles is None:
        return []
    return [token for token in tokenizer.special_tokens if LANGUAGE.fullmatch(token)]


def language_id(tokenizer: Tokenizer, name: str) -> int:
    """Return the id of a language token; `en` also means `__en__`. Raises `UserError` for an unknown language."""
    known = languages(tokenizer)
    for token in (name, f"__{name}__"):
        if token in known:
            return tokenizer.vocab[token]
    if not known:
        raise UserError(f"the language {name} cannot be chosen: the model's tokenizer has no language tokens")
    what = f"{name} is not a language of the model's tokenizer; known are "
    raise UserError(what + listed(known, beside=what))


def language_of(tokenizer: Tokenizer) -> str | None:
    """Return the language token that the tokenizer puts around a text; None without one."""
    around = [tokenizer.id_to_token(i) for i in tokenizer.frames.text.around([])]
    return next((token for token in languages(tokenizer) if token in around), None)


def with_languages(tokenizers: Tokenizers, source: str | None, target: str | None) -> Tokenizers:
    """Return tokenizers with other language tokens: a source's keeps its place, a target's becomes the first token."""
    of_source, of_target = tokenizers.source, tokenizers.target
    if source is not None:
        language, old = language_id(of_source, source), language_of(of_source)
        if old is None:
            of_source = _with_frames(of_source, first=(language,))
        else:
            of_source = _with_frames(of_source, {of_source.vocab[old]: (language,)})
    if target is not None:
        language = language_id(of_target, target)
        of_target = _with_frames(without_language(of_target), first=(language,))
    return Tokenizers(of_target, None if of_source.fingerprint == of_target.fingerprint else of_source)


def without_language(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer without a language token around texts."""
    return _with_frames(tokenizer, dict.fromkeys((tokenizer.vocab[token] for token in languages(tokenizer)), ()))


def _with_frames(
    tokenizer: Tokenizer, replaced: Mapping[int, tuple[int, ...]] | None = None, first: tuple[int, ...] = ()
) -> Tokenizer:
    """Return the tokenizer with other special tokens around one text and around a pair.

    `replaced` maps an id to the ids that replace it, and `first` has the ids that are put before all others.
    """

    def changed(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(new for i in ids for new in (replaced or {}).get(i, (i,)))

    one, two = (
        replace(frame, before=first + changed(frame.before), after=changed(frame.after))
        for frame in (tokenizer.frames.text, tokenizer.frames.pair)
    )
    description = json.loads(tokenizer.to_json())
    description["post_processor"] = template_processing(one, two, tokenizer.id_to_token)
    return Tokenizer.from_json(json.dumps(description, ensure_ascii=False))


def sentinels(n: int) -> tuple[str, ...]:
    """Return `n` sentinels, the special tokens that replace spans.

    >>> sentinels(2)
    ('[SPAN_0]', '[SPAN_1]')
    """
    return tuple(f"[SPAN_{i}]" for i in range(n))


def sentinel_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of a tokenizer's sentinels in order: those of `sentinels`, else those of T5."""
    for spelling in ("[SPAN_{}]", "<extra_id_{}>"):
        ids: list[int] = []
        while (token_id := tokenizer.token_to_id(spelling.format(len(ids)))) is not None:
            ids.append(token_id)
        if ids:
            break
    return ids


@dataclass(frozen=True, eq=False)
class WordBoundaries:
    """Properties of the text of each token, as arrays (V,): the index is the token's id."""

    begins_inside: Bools
    """True if the text begins with a letter, a digit, or a part of a character: it may continue a word."""
    ends_inside: Bools
    ends_sentence: Bools
    """True if the text ends with a full stop, an exclamation mark or a question mark; spaces after it are ignored."""
    special: Bools
    """True for a special token, which has no text."""

    def continues(self, token_ids: npt.NDArray[np.int64]) -> Bools:
        """Return a mask (T,): True if a token continues the word of the token before it.

        >>> tokenizer = Tokenizer.train(["to do"], vocab_size=0, scheme="char", special_tokens=())
        >>> word_boundaries(tokenizer).continues(np.array(tokenizer.encode("to do"))).tolist()
        [False, True, False, False, True]
        """
        inside = self.begins_inside[token_ids]
        inside[1:] &= self.ends_inside[token_ids[:-1]]
        inside[:1] = False
        return inside


@lru_cache(maxsize=8)
def word_boundaries(tokenizer: Tokenizer) -> WordBoundaries:
    """Compute the boundary properties of all tokens of a vocabulary."""
    texts = [piece.decode("utf-8", "surrogateescape") for piece in tokenizer.pieces]
    special = np.isin(np.arange(len(texts)), list(tokenizer.special_ids))
    return WordBoundaries(
        begins_inside=np.array([_is_inside(text[:1]) for text in texts], dtype=np.bool_) & ~special,
        ends_inside=np.array([_is_inside(text[-1:]) for text in texts], dtype=np.bool_) & ~special,
        ends_sentence=np.array([text.rstrip().endswith(SENTENCE_ENDS) for text in texts], dtype=np.bool_) & ~special,
        special=special,
    )


def _is_inside(character: str) -> bool:
    """Return True for a letter, digit, combining mark, "_" or byte of a character; an ideograph is a separate word.

    >>> [_is_inside(character) for character in ("é", "\u0301", "字", "-")]
    [True, True, False, False]
    """
    if any(begin <= character <= end for begin, end in IDEOGRAPHS):
        return False
    if character == "_" or "\udc80" <= character <= "\udcff":
        return True
    return character.isalnum() or (character != "" and unicodedata.category(character).startswith("M"))
