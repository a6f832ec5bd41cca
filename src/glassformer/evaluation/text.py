"""Metrics for generated text: BLEU and chrF by sacreBLEU, error rates by edit distance, and verbatim overlap.

All scores are in percent. Item i of `references` holds all correct texts for hypothesis i, one or several.
"""

import functools
import html
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
"""Metrics that `evaluate_loss` computes; all others are scores of outputs."""
SCORES: dict[Outputs, dict[str, bool]] = {
    "sentences": {"bleu": True, "chrf": True, "bleu_tok_lc": True, "exact_match": True},
    "pronunciations": {"wer": False, "per": False, "exact_match": True},
}
"""Scores of each kind of output, in percent; True if higher is better."""
ENTITIES = re.compile(r"&(?:quot|apos|lt|gt|amp|#124|#91|#93);")
"""Moses escapes of the reserved characters `" ' < > & | [ ]`."""


@dataclass(frozen=True)
class PairScores:
    """The scores of outputs for the sources of pairs."""

    data: PairData
    """The kind of outputs, and the language of the targets."""

    def require(self) -> None:
        """Raise `UserError` if a package for these scores is missing, before the long computation starts."""
        text_scores(self.data.outputs, ["a"], [["a"]])

    def of_translator(
        self,
        translator: Translator,
        pairs: Sequence[Pair],
        config: BeamConfig,
        progress: Callable[[int, int], None] | None = None,
        division: Division = ALONE,
    ) -> dict[str, float | str]:
        """Decode every distinct source once and score the best output (`of_outputs`).

        `division` distributes the batches of sources among processes.
        """
        sources = distinct_sources(pairs)
        found = translator.translate(sources, config, progress=progress, takes=division.takes)
        own = {source: best[0].text for source, best in zip(sources, found, strict=True) if best}
        outputs = {
            source: text for part in division.texts(json.dumps(own)) for source, text in json.loads(part).items()
        }
        return self.of_outputs(outputs, pairs)

    def of_outputs(self, outputs: Mapping[str, str], pairs: Sequence[Pair]) -> dict[str, float | str]:
        """Score the output of each source, in percent.

        Sentences are scored per pair, as in test sets; a pronunciation is compared with all pronunciations of its word.
        """
        targets = [pair.target for pair in pairs]
        if self.data.outputs == "pronunciations":
            sources, references = group_by_source([pair.source for pair in pairs], targets)
            return text_scores("pronunciations", [outputs[source] for source in sources], references)
        of_pairs = [outputs[pair.source] for pair in pairs]
        return text_scores("sentences", of_pairs, [[target] for target in targets], self.data.target_language)


def distinct_sources(pairs: Sequence[Pair]) -> list[str]:
    """Return every distinct source once, in order of appearance."""
    return list(dict.fromkeys(pair.source for pair in pairs))


def text_scores(
    outputs: Outputs, hypotheses: Sequence[str], references: Sequence[Sequence[str]], lang: str = "en"
) -> dict[str, float | str]:
    """Compute all scores of this kind of output, by name, in percent; BLEU and chrF with their signatures.

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
    """Return every distinct source once, in order of appearance, and all its targets.

    >>> group_by_source(["a", "b", "a"], ["x", "y", "z"])
    (['a', 'b'], [['x', 'z'], ['y']])
    """
    groups: dict[str, list[str]] = {}
    for source, target in zip(sources, targets, strict=True):
        groups.setdefault(source, []).append(target)
    return list(groups), list(groups.values())


@dataclass(frozen=True)
class SignedScore:
    """A score and its signature; scores with different signatures are not comparable."""

    score: float
    """Score in percent, 0 to 100."""
    signature: str
    """sacreBLEU's description of the protocol: references, case, tokenizer, smoothing, version."""


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str = "13a") -> SignedScore:
    """Compute corpus BLEU of plain text (Papineni 2002; Post 2018): 13a tokens, case kept, exponential smoothing.

    >>> bleu(["the cat sat on a mat"], [["the cat sat on the mat"]])
    SignedScore(score=53.7..., signature='nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:...')
    """
    metric = _sacrebleu().BLEU(tokenize=tokenize, force=True)  # force: no warning for tokenized text
    return _signed(metric, hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> SignedScore:
    """Compute corpus chrF2: F-score of character 1- to 6-grams, with recall weighted twice as much (Popović 2015).

    >>> chrf(["abcdef"], [["abcdef"]])
    SignedScore(score=100.0, signature='nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:...')
    """
    return _signed(_sacrebleu().CHRF(), hypotheses, references)


def bleu_tok_lc(hypotheses: Sequence[str], references: Sequence[Sequence[str]], lang: str = "en") -> SignedScore:
    """Compute BLEU on lowercased, normalised Moses tokens, as in papers on Multi30k.

    Both sides are first passed through `lc_norm_tok`, so either may be plain or tokenized text. `lang` is the language
    of the targets; it determines the place of apostrophes and closing quotes, and which abbreviations keep their dot.
    """
    tokens = [lc_norm_tok(text, lang) for text in hypotheses]
    return bleu(tokens, [[lc_norm_tok(text, lang) for text in texts] for texts in references], tokenize="none")


def lc_norm_tok(text: str, lang: str = "en") -> str:
    """Lowercase, normalise punctuation and tokenize as Moses, with escapes: the format of Multi30k's `*.lc.norm.tok.*`.

    Text in this form does not change: entities are first unescaped, and a suffix that Moses split at an escaped
    apostrophe ("man &apos;s") is joined again.

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

    Phonemes give the phoneme error rate, words the word error rate of speech recognition. Of equally near references,
    the shortest counts.

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
    most = max(map(len, references))
    # sacreBLEU expects a list of first references, one of second references …, with None for missing ones.
    streams = [[texts[n] if n < len(texts) else None for texts in references] for n in range(most)]
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
    """Return the longest part of `text` that occurs verbatim in `corpus`; the first of equally long ones.

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
