"""Language tokens: special tokens around a text that name the language of a translator's source or target (`eng_Latn`).

They are part of a tokenizer's frames, so that training, evaluation and translation read them in one way.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace

from glassformer.common.errors import UserError, listed
from glassformer.tokenization.special_tokens_template import Frame, template_processing
from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

LANGUAGE = re.compile(r"__[a-z]{2,3}__|[a-z]{2,3}_[A-Z][A-Za-z]{1,3}")
"""Spelling of a language token: `__en__` (M2M-100), `en_XX` (mBART) and `eng_Latn` (NLLB)."""


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
    """Return the tokenizers for another language of the source, of the target, or of both.

    A source keeps the place of its language token, and a target begins with it.
    """
    of_source, of_target = tokenizers.source, tokenizers.target
    if source is not None:
        of_source = _of_source(of_source, language_id(of_source, source))
    if target is not None:
        language = language_id(of_target, target)
        of_target = without_language(of_target)
        of_target = _with_frames(of_target, lambda frame: replace(frame, before=(language, *frame.before)))
    return Tokenizers(of_target, None if of_source.fingerprint == of_target.fingerprint else of_source)


def _of_source(tokenizer: Tokenizer, language: int) -> Tokenizer:
    old = language_of(tokenizer)
    if old is None:
        return _with_frames(tokenizer, lambda frame: replace(frame, before=(language, *frame.before)))
    new_id = {tokenizer.vocab[old]: language}

    def renamed(ids: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(new_id.get(i, i) for i in ids)

    return _with_frames(
        tokenizer, lambda frame: replace(frame, before=renamed(frame.before), after=renamed(frame.after))
    )


def without_language(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer without a language token around texts."""
    ids = {tokenizer.vocab[token] for token in languages(tokenizer)}

    def rest(of: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i for i in of if i not in ids)

    return _with_frames(tokenizer, lambda frame: replace(frame, before=rest(frame.before), after=rest(frame.after)))


def _with_frames(tokenizer: Tokenizer, change: Callable[[Frame], Frame]) -> Tokenizer:
    """Return the tokenizer with other special tokens around one text and around a pair."""
    one, two = change(tokenizer.frames.text), change(tokenizer.frames.pair)
    description = json.loads(tokenizer.to_json())
    description["post_processor"] = template_processing(one, two, tokenizer.id_to_token)
    return Tokenizer.from_json(json.dumps(description, ensure_ascii=False))
