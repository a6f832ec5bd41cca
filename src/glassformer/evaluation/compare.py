"""Comparison of several models: architecture, training cost and score."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from glassformer.common import notebook
from glassformer.common.formatting import count, duration, table
from glassformer.config.recurrent import ModelConfig, NoAttention
from glassformer.config.transformer import TransformerConfig
from glassformer.evaluation.metrics import shown
from glassformer.evaluation.verdict import decimals, mean_and_deviation


@dataclass(frozen=True)
class ComparedModel:
    """One row of a comparison; `None` means unknown."""

    name: str
    kind: str
    """Short description (`describe_model`)."""
    n_parameters: int
    train_seconds: float | None
    train_tokens: int | None
    """Number of target tokens in training, repetitions included."""
    valid_loss: float | None
    """Validation loss in nats per target token."""
    score_name: str
    score: float | None
    """Value of the score. Rates and BLEU are in percent, and bits per byte are not scaled. `None` if it is
    undefined."""
    sentences_per_s: float | None
    """Decoding speed."""
    n_scored: int | None = None
    """Number of scored targets, pairs or labels. It decides how many decimals of the score are shown."""
    n_seeds: int = 1
    """Number of runs that differ in the seed only; the numbers of the row are their means."""
    score_error: float | None = None
    """Standard error of the mean score over the seeds; `None` for one run."""

    def to_dict(self) -> dict[str, str | float | int | None]:
        return asdict(self)


class Comparison(list[ComparedModel]):
    """The rows of several models; `print` shows them as a table."""

    def __str__(self) -> str:
        return comparison_table(self)

    def _repr_html_(self) -> str:
        return notebook.frame([row.to_dict() for row in self], "comparison")


def mean_of_seeds(name: str, rows: Sequence[ComparedModel]) -> ComparedModel:
    """Return one row for runs that differ in the seed only: the means, and the standard error of the score.

    >>> rows = [ComparedModel("a", "GRU", 9, 60.0, 5, 1.0, "bleu", score, None) for score in (20.0, 21.0, 22.0)]
    >>> row = mean_of_seeds("gru", rows)
    >>> row.name, row.n_seeds, row.score, round(row.score_error, 2)
    ('gru, 3 seeds', 3, 21.0, 0.58)
    """

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return mean_and_deviation(known)[0] if len(known) == len(rows) else None

    scores, tokens = [row.score for row in rows], mean([row.train_tokens for row in rows])
    deviation = mean_and_deviation([score for score in scores if score is not None])[1]
    return replace(
        rows[0],
        name=f"{name}, {len(rows)} seeds",
        train_seconds=mean([row.train_seconds for row in rows]),
        train_tokens=None if tokens is None else round(tokens),
        valid_loss=mean([row.valid_loss for row in rows]),
        score=mean(scores),
        sentences_per_s=mean([row.sentences_per_s for row in rows]),
        n_seeds=len(rows),
        score_error=None if None in scores else deviation / math.sqrt(len(rows)),
    )


def describe_model(config: ModelConfig) -> str:
    """Describe a model: its kind, layers × width, and how its decoder reads the source.

    >>> from glassformer.config.transformer import Stack
    >>> from glassformer.config.recurrent import RecurrentConfig
    >>> describe_model(TransformerConfig(encoder=Stack(3), decoder=Stack(3), d_model=256))
    'Transformer 3+3 × 256'
    >>> describe_model(RecurrentConfig(cell="gru", n_layers=2, d_decoder=512))
    'GRU 2+2 × 512, additive attention before'
    """
    if isinstance(config, TransformerConfig):
        alone = "" if config.is_encoder_decoder else f" {next(iter(config.stacks))}"
        layers = "+".join(str(stack.n_layers) for stack in config.stacks.values())
        return f"Transformer{alone} {layers} × {config.d_model}"
    attention = config.attention
    if isinstance(attention, NoAttention):
        seen = "no attention"
        if attention.context_every_step:
            seen += ", context every step"
    else:
        seen = f"{attention.score.replace('_', ' ')} attention {attention.kind}"
        if getattr(attention, "input_feeding", False):
            seen += ", input feeding"
    return f"{config.cell.upper()} {config.n_layers}+{config.n_layers} × {config.d_decoder}, {seen}"


def comparison_table(rows: Sequence[ComparedModel], width: int | None = None) -> str:
    """Format the rows as aligned plain text, one line per model, with a dash for unknown values.

    A score of several seeds has its standard error; the last decimal is the second digit of this error.

    If a line is longer than `width`, the column of kinds is left out, and `formatting.table` lays out the rest.

    >>> row = ComparedModel("mine", "GRU 1+1 × 64, no attention", 123_456, 75.0, 2_500_000, 1.25, "bleu", 20.5, 310.0)
    >>> print(comparison_table([row]))
    model  kind                        parameters    training  targets   loss  bleu  sentences/s
    mine   GRU 1+1 × 64, no attention     123,456  1 min 15 s    2.5 M  1.250  20.5          310
    """
    names = {row.score_name for row in rows}
    score = names.pop() if len(names) == 1 else ""
    cells = [["model", "kind", "parameters", "training", "targets", "loss", score or "score", "sentences/s"]]
    for row in rows:
        value = shown(row.score_name, row.score, row.n_scored)
        if row.score is not None and row.score_error is not None:
            digits = decimals(row.score_error)
            value = f"{row.score:.{digits}f} ± {row.score_error:.{digits}f}"
        if not score:
            value = f"{row.score_name} {value}"
        cells.append(
            [
                row.name,
                row.kind,
                f"{row.n_parameters:,}",
                _known(row.train_seconds, duration),
                _known(row.train_tokens, count),
                _known(row.valid_loss, "{:.3f}".format),
                value,
                _known(row.sentences_per_s, _rate),
            ]
        )
    if width is not None and sum(max(map(len, column)) + 2 for column in zip(*cells, strict=True)) - 2 > width:
        return table([[name, *numbers] for name, _, *numbers in cells], width)
    return table(cells, n_words=2)


def _known(value: Any, shown: Callable[[Any], str]) -> str:
    return "–" if value is None else shown(value)


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 99.5 else f"{per_s:.1f}"
