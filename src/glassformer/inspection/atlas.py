"""Atlas of the heads of a Transformer: their patterns over a set of texts, and the effect of switching each one off."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean, stdev

from glassformer.common import notebook
from glassformer.common.errors import Progress, UserError
from glassformer.common.formatting import plural
from glassformer.inspection.ablation import UNITS, all_parts, effects_of_texts
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.head_scores import PATTERNS, Scores, network_scores, random_scores, transformer_of
from glassformer.inspection.texts import Given, read
from glassformer.tasks.trained_model import TrainedModel


@dataclass(frozen=True)
class AtlasHead:
    """A head, with the mean of its `excess` for each pattern; a pattern that the texts do not define is NaN.

    ```python
    [head.name for head in atlas(model, texts).heads if head.patterns["previous"] > 0.2]
    ```
    """

    kind: Kind
    layer: int
    head: int
    patterns: dict[str, float]
    """Mean excess over the texts that define the score (`head_scores.excess`): 0 for uniform attention, at most 1."""
    on_random: dict[str, float]
    """Excess on repeated random tokens."""
    effect: float
    """Mean change of the measure when the head is replaced by zero."""
    error: float
    """Standard error of the effect over the texts; NaN for one text."""

    @property
    def name(self) -> str:
        """Name of the part, such as `decoder.1.head.3`, as `ablate` takes it."""
        return f"{self.kind}.{self.layer}.head.{self.head}"


@dataclass(frozen=True)
class Atlas:
    """All heads of a model, that with the largest effect first; a notebook shows it as a table.

    ```python
    atlas(model, ["To be, or not to be", "the dog and the dog"]).heads[:3]
    ```
    """

    model: str
    measure: str
    n_texts: int
    heads: tuple[AtlasHead, ...]

    def _repr_html_(self) -> str:
        """Return a table with one row per head."""
        rows = [{"head": one.name, **one.patterns, "effect": one.effect, "±": one.error} for one in self.heads]
        shown = [dict.fromkeys(row) | {name: x for name, x in row.items() if x == x} for row in rows]  # without NaN
        return notebook.frame(shown, f"{self.model}, {plural(self.n_texts, 'text')}; effect: {UNITS[self.measure]}")


def atlas(model: TrainedModel, texts: Iterable[Given], *, progress: Progress | None = None) -> Atlas:
    """Return the patterns and the effect of each head over one or more texts.

    A pattern of a head is the mean of its excess over the texts in which the pattern is defined; cross-attention has
    none. An effect is the mean of the change of the measure (`effects_of_texts`). Raises `UserError` without a text,
    and for a recurrent model.

    ```python
    found = atlas(model, ["To be, or not to be", "the dog and the dog"])
    found.heads[0].name, found.heads[0].effect
    ```
    """
    network, given = transformer_of(model), list(texts)
    if not given:
        raise UserError("there is no text: give at least one")
    heads = [part for part in all_parts(network) if part.form == "head"]
    measured = effects_of_texts(model, given, heads, progress=progress)
    scores, random = [network_scores(network, read(model, text).inputs) for text in given], random_scores(model)
    found = []
    for part in heads:
        assert part.head is not None  # a part of the form "head"
        place, effects = (part.kind, part.layer, part.head), [text.changes[part] for text in measured.of_texts]
        error = stdev(effects) / math.sqrt(len(effects)) if len(effects) > 1 else math.nan
        patterns, on_random = _excesses(scores, *place), _excesses([random], *place)
        found.append(AtlasHead(*place, patterns, on_random, measured.changes[part], error))
    found.sort(key=lambda one: one.effect, reverse=True)
    return Atlas(model.name, measured.measure, len(given), tuple(found))


def _excesses(runs: list[Scores], kind: Kind, layer: int, head: int) -> dict[str, float]:
    """Return the mean excess of a head for each pattern, over the runs that define it."""
    values = {name: [run[kind][layer].excess(head, name) for run in runs] for name in PATTERNS}
    return {name: fmean(own) if (own := [x for x in of if x == x]) else math.nan for name, of in values.items()}
