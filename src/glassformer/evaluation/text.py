"""Metrics for generated text: BLEU and chrF by sacreBLEU, error rates by edit distance, and verbatim overlap.

All scores are in percent. Item i of `references` is the list of all correct texts for hypothesis i.
"""

import functools
import html
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from glassformer.common.errors import needs

ENTITIES = re.compile(r"&(?:quot|apos|lt|gt|amp|#124|#91|#93);")
"""Moses escapes of the reserved characters `" ' < > & | [ ]`."""


@dataclass(frozen=True)
class SignedScore:
    """A score and its signature; scores with different signatures are not comparable."""

    score: float | None
    """Score in percent, 0 to 100; `None` if it is undefined."""
    signature: str
    """sacreBLEU's description of the protocol: references, case, tokenizer, smoothing, version."""


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a") -> SignedScore:
    """Compute corpus BLEU of plain text (Papineni 2002; Post 2018): 13a tokens, case kept, exponential smoothing.

    If no reference has four tokens, there is no 4-gram, and BLEU is undefined, even for equal texts.

    >>> bleu(["the cat sat on a mat"], [["the cat sat on the mat"]])
    SignedScore(score=53.7..., signature='nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...')
    >>> bleu(["one mat"], [["one mat"]]).score is None
    True
    """
    metric = _sacrebleu().BLEU(tokenize=tokenize, force=True)  # force: no warning for tokenized text
    signed = _signed(metric, hypotheses, references)
    has_4_grams = any(len(metric.tokenizer(text).split()) >= 4 for texts in references for text in texts)
    return signed if has_4_grams else replace(signed, score=None)


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> SignedScore:
    """Compute corpus chrF2: F-score of character 1- to 6-grams, with recall weighted twice as much (Popović 2015).

    >>> chrf(["abcdef"], [["abcdef"]])
    SignedScore(score=100.0, signature='nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:...')
    """
    return _signed(_sacrebleu().CHRF(), hypotheses, references)


def bleu_tok_lc(hypotheses: Sequence[str], references: Sequence[Sequence[str]], lang: str = "en") -> SignedScore:
    """Compute BLEU on lowercased, normalised Moses tokens, as in papers on Multi30k.

    Hypotheses and references first pass through `lc_norm_tok`, so each may be plain or tokenized text. `lang` is the
    language of the targets. It decides where apostrophes and closing quotes go, and which abbreviations keep their dot.
    """
    tokens = [lc_norm_tok(text, lang) for text in hypotheses]
    return bleu(tokens, [[lc_norm_tok(text, lang) for text in texts] for texts in references], tokenize="none")


def lc_norm_tok(text: str, lang: str = "en") -> str:
    """Lowercase, normalise punctuation and tokenize as Moses with escapes, as in Multi30k's `*.lc.norm.tok.*`.

    Text that is in this form already does not change: entities are first unescaped, and a suffix that Moses split at an
    escaped apostrophe ("man &apos;s") is joined again.

    >>> lc_norm_tok('The man\\'s sign says "Stop".')
    'the man &apos;s sign says &quot; stop . &quot;'
    >>> lc_norm_tok("the man &apos;s sign .")
    'the man &apos;s sign .'
    """
    text = re.sub(r" &apos;(?=\w)|(?<=\w)&apos; ", "'", text)
    text = ENTITIES.sub(lambda entity: html.unescape(entity[0]), text)
    normalizer, tokenizer = _moses(lang)
    return str(tokenizer.tokenize(normalizer.normalize(text.lower()), escape=True, return_str=True))


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Count the fewest insertions, deletions and substitutions that turn `a` into `b` (Levenshtein 1966).

    >>> edit_distance("kitten", "sitting")
    3
    """
    above = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        row = [i]
        for j, y in enumerate(b, start=1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (x != y)))
        above = row
    return above[-1]


def error_rate(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[Sequence[str]]]) -> float:
    """Compute edits to the nearest reference / symbols of that reference, both summed over all items, in percent.

    With phonemes as symbols, this is the phoneme error rate; with words, the word error rate of speech recognition. If
    several references are equally near, the shortest counts.

    >>> error_rate(["HH AH L OW".split()], [["HH EH L OW".split(), "HH AH L OW Z".split()]])
    25.0
    """
    _check_sizes(hypotheses, references)
    edits, n_symbols = 0, 0
    for hypothesis, texts in zip(hypotheses, references, strict=True):
        distance, length = min((edit_distance(hypothesis, text), len(text)) for text in texts)
        edits += distance
        n_symbols += length
    if n_symbols == 0:
        raise ValueError("references are all empty: give at least one symbol")
    return 100 * edits / n_symbols


def word_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Compute the percentage of words whose pronunciation is not in the references.

    >>> word_error_rate(["AH B", "K AE T"], [["AE B", "AH B"], ["K AA T"]])
    50.0
    """
    return 100 - exact_match(hypotheses, references)


def phoneme_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Compute the `error_rate` of phonemes, which spaces separate."""
    return error_rate([text.split() for text in hypotheses], [[text.split() for text in texts] for texts in references])


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Compute the percentage of hypotheses that equal one of their references; runs of spaces count as one.

    >>> exact_match(["a  b", "c"], [["a b"], ["d", "e"]])
    50.0
    """
    _check_sizes(hypotheses, references)
    hits = [
        any(hypothesis.split() == text.split() for text in texts)
        for hypothesis, texts in zip(hypotheses, references, strict=True)
    ]
    return 100 * sum(hits) / len(hits)


def _check_sizes(hypotheses: Sequence[Any], references: Sequence[Sequence[Any]]) -> None:
    if not hypotheses:
        raise ValueError("hypotheses is empty: give at least one text")
    if len(hypotheses) != len(references):
        raise ValueError(f"expected references for {len(hypotheses)} hypotheses, got {len(references)}")
    if not all(references):
        raise ValueError("a hypothesis has no reference: give at least one for each")


def _signed(metric: Any, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> SignedScore:
    _check_sizes(hypotheses, references)
    # sacreBLEU expects a list of first references, one of second references …, with None for missing ones.
    streams = list(map(list, itertools.zip_longest(*references)))
    score = metric.corpus_score(list(hypotheses), streams).score
    return SignedScore(float(score), str(metric.get_signature()))


def _sacrebleu() -> Any:
    with needs("a BLEU or chrF score", "eval"):
        from sacrebleu import metrics
    return metrics


@functools.cache
def _moses(lang: str) -> tuple[Any, Any]:
    with needs("bleu_tok_lc", "eval"):
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # type: ignore[import-untyped]
    return MosesPunctNormalizer(lang), MosesTokenizer(lang)


def longest_overlap(text: str, corpus: str) -> str:
    """Return the longest part of `text` that occurs verbatim in `corpus`; of equally long parts, the first.

    >>> longest_overlap("the cat sat", "a cat sits")
    ' cat s'
    """
    best = ""
    end = 0
    for start in range(len(text)):
        end = max(end, start)
        while end < len(text) and text[start : end + 1] in corpus:
            end += 1
        if end - start > len(best):
            best = text[start:end]
    return best
