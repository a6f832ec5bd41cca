"""Scores of text, and of what is written for pairs: BLEU and chrF by sacreBLEU, error rates by edit distance; overlap.

All scores are in percent. Item i of `references` holds all the texts that hypothesis i may equal: one, or several.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from glassformer.config.run import BeamConfig, PairData
from glassformer.data.pairs import Pair
from glassformer.errors import needs
from glassformer.evaluation.division import ALONE, Division
from glassformer.inference.translator import Translator

Outputs = Literal["sentences", "pronunciations"]

LOSSES = ("loss", "perplexity", "smoothed_loss", "bits_per_byte")
"""Metrics that `evaluate_loss` measures; all others are scores of outputs."""
SCORES: dict[Outputs, dict[str, bool]] = {
    "sentences": {"bleu": True, "chrf": True, "bleu_tok_lc": True, "exact_match": True},
    "pronunciations": {"wer": False, "per": False, "exact_match": True},
}
"""The scores of each kind of output, in percent, and whether higher is better."""
ENTITIES = {  # what Moses writes for characters that it reserves; `&amp;` last, so that nothing is undone twice
    "&quot;": '"',
    "&apos;": "'",
    "&lt;": "<",
    "&gt;": ">",
    "&#124;": "|",
    "&#91;": "[",
    "&#93;": "]",
    "&amp;": "&",
}


def translation_scores(
    translator: Translator,
    pairs: Sequence[Pair],
    data: PairData,
    config: BeamConfig,
    progress: Callable[[int, int], None] | None = None,
    division: Division = ALONE,
) -> dict[str, float | str]:
    """Decodes every distinct source once and scores the best output (`output_scores`).

    `division` deals the batches of sources out among processes.
    """
    sources = distinct_sources(pairs)
    found = translator.translate(sources, config, progress=progress, takes=division.takes)
    own = {source: best[0].text for source, best in zip(sources, found, strict=True) if best}
    outputs = {source: text for part in division.texts(json.dumps(own)) for source, text in json.loads(part).items()}
    return output_scores(outputs, pairs, data)


def distinct_sources(pairs: Sequence[Pair]) -> list[str]:
    """Every source once, in order of appearance."""
    return list(dict.fromkeys(pair.source for pair in pairs))


def output_scores(outputs: Mapping[str, str], pairs: Sequence[Pair], data: PairData) -> dict[str, float | str]:
    """Scores of the output of each source, in percent.

    Sentences are scored pair by pair, as test sets are; a pronunciation is compared with all that its word has.
    """
    targets = [pair.target for pair in pairs]
    if data.outputs == "pronunciations":
        sources, references = group_by_source([pair.source for pair in pairs], targets)
        return text_scores("pronunciations", [outputs[source] for source in sources], references)
    of_pairs = [outputs[pair.source] for pair in pairs]
    return text_scores("sentences", of_pairs, [[target] for target in targets], data.target_language)


def require_scores(outputs: Outputs) -> None:
    """`UserError` when a package is missing that scores of this kind need: told before hours of work."""
    text_scores(outputs, ["a"], [["a"]])


def text_scores(
    outputs: Outputs,
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    lang: str = "en",
) -> dict[str, float | str]:
    """All scores that this kind of output is given, by name, in percent; BLEU and chrF with their signatures.

    >>> text_scores("pronunciations", ["HH AY", "B AY"], [["HH AY"], ["B IY"]])
    {'wer': 50.0, 'per': 25.0, 'exact_match': 50.0}
    """
    if outputs == "pronunciations":
        phonemes = [[text.split() for text in texts] for texts in references]
        return {
            "wer": word_error_rate(hypotheses, references),
            "per": error_rate([text.split() for text in hypotheses], phonemes),
            "exact_match": exact_match(hypotheses, references),
        }
    plain, characters = bleu(hypotheses, references), chrf(hypotheses, references)
    return {
        "bleu": plain.score,
        "bleu_signature": plain.signature,
        "chrf": characters.score,
        "chrf_signature": characters.signature,
        "bleu_tok_lc": bleu_tok_lc(hypotheses, references, lang).score,
        "exact_match": exact_match(hypotheses, references),
    }


def group_by_source(sources: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Every distinct source once, in order of appearance, and all targets that it has.

    >>> group_by_source(["a", "b", "a"], ["x", "y", "z"])
    (['a', 'b'], [['x', 'z'], ['y']])
    """
    groups: dict[str, list[str]] = {}
    for source, target in zip(sources, targets, strict=True):
        groups.setdefault(source, []).append(target)
    return list(groups), list(groups.values())


@dataclass(frozen=True)
class SignedScore:
    """A score and the signature without which it compares to nothing."""

    score: float
    """0 to 100."""
    signature: str
    """sacreBLEU's words for the protocol: references, case, tokenizer, smoothing, version."""


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a") -> SignedScore:
    """Corpus BLEU of plain text (Papineni 2002; Post 2018): 13a tokens, case kept, exponential smoothing.

    >>> bleu(["the cat sat on a mat"], [["the cat sat on the mat"]])
    SignedScore(score=53.7..., signature='nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...')
    """
    _check_sizes(hypotheses, references)
    metric = _sacrebleu().BLEU(tokenize=tokenize, force=True)  # force: no warning for text in tokens
    return _signed(metric, hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> SignedScore:
    """Corpus chrF2: F-score of character 1- to 6-grams, recall twice as heavy as precision (Popović 2015).

    >>> chrf(["abcdef"], [["abcdef"]])
    SignedScore(score=100.0, signature='nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:...')
    """
    _check_sizes(hypotheses, references)
    return _signed(_sacrebleu().CHRF(), hypotheses, references)


def bleu_tok_lc(hypotheses: Sequence[str], references: Sequence[Sequence[str]], lang: str = "en") -> SignedScore:
    """BLEU on lowercased, normalised Moses tokens, as papers on Multi30k report it.

    Both sides go through `lc_norm_tok` first, so either may be plain text or in tokens already. `lang` is the
    language of the targets; it changes where apostrophes and closing quotes go and which abbreviations keep their dot.
    """
    tokens = [lc_norm_tok(text, lang) for text in hypotheses]
    return bleu(tokens, [[lc_norm_tok(text, lang) for text in texts] for texts in references], tokenize="none")


def lc_norm_tok(text: str, lang: str = "en") -> str:
    """Lowercase, Moses punctuation normalisation, Moses tokens with escapes: the files `*.lc.norm.tok.*` of Multi30k.

    Text that is so already comes back as it is: entities are undone first, and what Moses had cut off at an
    escaped apostrophe ("man &apos;s") is joined again.

    >>> lc_norm_tok('The man\\'s sign says "Stop".')
    'the man &apos;s sign says &quot; stop . &quot;'
    >>> lc_norm_tok("the man &apos;s sign .")
    'the man &apos;s sign .'
    """
    text = re.sub(r" &apos;(?=\w)|(?<=\w)&apos; ", "'", text)
    for entity, character in ENTITIES.items():
        text = text.replace(entity, character)
    normalizer, tokenizer = _moses(lang)
    return str(tokenizer.tokenize(normalizer.normalize(text.lower()), escape=True, return_str=True))


def edit_distance(a: Sequence[str], b: Sequence[str]) -> int:
    """Insertions, deletions and substitutions that turn `a` into `b`, fewest (Levenshtein 1966).

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
    """Edits to the nearest reference / symbols of that reference, both summed over all items.

    Phonemes give the phoneme error rate, words the word error rate of speech recognition. Between references
    that are equally near the shortest counts.

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
        raise ValueError("the references are all empty")
    return 100 * edits / n_symbols


def word_error_rate(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Percent of words whose pronunciation is none of those listed.

    >>> word_error_rate(["AH B", "K AE T"], [["AE B", "AH B"], ["K AA T"]])
    50.0
    """
    return 100 - exact_match(hypotheses, references)


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Percent of hypotheses that equal one of their references; runs of spaces count as one.

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
        raise ValueError("no hypotheses: nothing can be scored")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses and references of {len(references)}")
    if not all(references):
        raise ValueError("a hypothesis without any reference")


def _signed(metric: Any, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> SignedScore:
    most = max(map(len, references))
    # sacreBLEU wants a stream of first references, one of second ones …, None where an item has no more.
    streams = [[texts[n] if n < len(texts) else None for texts in references] for n in range(most)]
    score = metric.corpus_score(list(hypotheses), streams).score
    return SignedScore(float(score), str(metric.get_signature()))


def _sacrebleu() -> Any:
    with needs("a score of BLEU or chrF", "eval"):
        from sacrebleu import metrics
    return metrics


@functools.cache
def _moses(lang: str) -> tuple[Any, Any]:
    with needs("bleu_tok_lc", "eval"):
        from sacremoses import MosesPunctNormalizer, MosesTokenizer  # type: ignore[import-untyped]
    return MosesPunctNormalizer(lang), MosesTokenizer(lang)


def longest_overlap(text: str, corpus: str) -> str:
    """The longest stretch of `text` that stands verbatim in `corpus`; the first one among equals.

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
