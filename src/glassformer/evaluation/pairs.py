"""Scores of a translator on pairs of source and target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from glassformer.common.errors import UserError
from glassformer.config.run import BeamConfig, PairData
from glassformer.data.pairs import Pair
from glassformer.evaluation.loss import ALONE, Division
from glassformer.evaluation.metrics import METRICS, Values, measure
from glassformer.inference.translator import Translator


@dataclass(frozen=True)
class PairScores:
    """Settings and functions to score the outputs for the sources of pairs."""

    data: PairData
    """The kind of outputs, and the language of the targets."""
    only: Sequence[str] = ()
    """Names of the metrics to compute; () = all metrics of this kind of outputs."""

    def require(self) -> None:
        """Raise `UserError` if a package for these scores is missing, before the long computation starts."""
        measure(self.data.outputs, ["a"], [["a"]], "en", only=self.only)

    def require_defined(self, pairs: Sequence[Pair]) -> None:
        """Raise `UserError` if a score of these pairs is undefined for every possible output."""
        for name, value in self.of_outputs({pair.source: pair.target for pair in pairs}, pairs).items():
            if value is None:
                raise UserError(
                    f"{name} cannot be watched, because {METRICS[name].undefined}: watch exact_match or loss"
                )

    def of_translator(
        self,
        translator: Translator,
        pairs: Sequence[Pair],
        config: BeamConfig,
        progress: Callable[[int, int], None] | None = None,
        division: Division = ALONE,
    ) -> Values:
        """Decode every distinct source once and score the best output (`of_outputs`).

        `division` distributes the batches of sources among processes.
        """
        sources = distinct_sources(pairs)
        translated = translator.translate(sources, config, progress=progress, takes=division.takes)
        own = {source: best[0].text for source, best in zip(sources, translated, strict=True) if best}
        return self.of_outputs(division.joined(own), pairs)

    def of_outputs(self, outputs: Mapping[str, str], pairs: Sequence[Pair]) -> Values:
        """Score the output of each source, in percent.

        A sentence is scored once per pair, as in test sets. A pronunciation is compared with all pronunciations of its
        word.
        """
        sources, references = [pair.source for pair in pairs], [[pair.target] for pair in pairs]
        if self.data.outputs == "pronunciations":
            sources, references = group_by_source(sources, [pair.target for pair in pairs])
        hypotheses = [outputs[source] for source in sources]
        return measure(self.data.outputs, hypotheses, references, self.data.target_language, only=self.only)


def distinct_sources(pairs: Sequence[Pair]) -> list[str]:
    """Return every distinct source once, in order of appearance."""
    return list(dict.fromkeys(pair.source for pair in pairs))


def group_by_source(sources: Sequence[str], targets: Sequence[str]) -> tuple[list[str], list[list[str]]]:
    """Return every distinct source once, in order of appearance, and all its targets.

    >>> group_by_source(["a", "b", "a"], ["x", "y", "z"])
    (['a', 'b'], [['x', 'z'], ['y']])
    """
    groups: dict[str, list[str]] = {}
    for source, target in zip(sources, targets, strict=True):
        groups.setdefault(source, []).append(target)
    return list(groups), list(groups.values())
