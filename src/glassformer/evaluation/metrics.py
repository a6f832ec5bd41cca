"""The table of all metrics. A new metric needs only a row: evaluations, comparisons, settings and plots read the table.

A section is a kind of output. All metrics of a section get the same arguments:

- `sentences`, `pronunciations` and `conversations`: hypotheses, references and the language of the targets, as in
  `evaluation.text`
- `classes` and `words`: the report of `evaluation.labels`, labels (N,) and probabilities (N, n_classes)
- `multi_label`: labels and predictions, bool (N, n_labels)
- `regression`: labels and predictions (N,)
- `preferences`: reward margins (N,), the reward of the chosen answer minus the reward of the rejected one
- `prompts`: rewards, mean KL divergence per token and number of tokens of sampled answers, each (n_prompts, group)
- `spans`: true BIO tags of each sentence, and predicted BIO tags
- `losses` and `masks` (both in `evaluation.loss`) have no functions here, because all their metrics are measured in one
  pass

The table is read before torch and numpy are imported, so functions of `evaluation.labels` are imported when called.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from glassformer.evaluation import text

Values = dict[str, float | str | None]
"""Values by name: the value of a metric (`None` if it is undefined), and values that explain it, such as its
signature."""
Compute = Callable[..., float | Values | None]
MAX_DECIMALS = 4


@dataclass(frozen=True)
class Metric:
    """One metric."""

    label: str
    sections: Mapping[str, Compute | None]
    """The function for each section that has the metric."""
    higher_is_better: bool = True
    unit: str = "%"
    format: str | None = None
    """Format of a value in a table of models; `None` = the decimals of `decimals`."""
    undefined: str = ""
    """The reason why a value can be undefined, for messages."""


def _signed(name: str, score: text.SignedScore) -> Values:
    return {name: score.score, f"{name}_signature": score.signature}


def _of_labels(name: str) -> Callable[..., Any]:
    return lambda *inputs: getattr(import_module("glassformer.evaluation.labels"), name)(*inputs)


NO_4_GRAM = "no target has four tokens"
METRICS: dict[str, Metric] = {
    "loss": Metric("loss", {"losses": None}, False, "nats per target"),
    "perplexity": Metric("perplexity", {"losses": None}, False, ""),
    "smoothed_loss": Metric("loss with label smoothing", {"losses": None}, False, "nats per target"),
    "bits_per_byte": Metric("bits per byte", {"losses": None}, False, ""),
    "bleu": Metric(
        "BLEU", {"sentences": lambda h, r, _: _signed("bleu", text.bleu(h, r))}, True, "", undefined=NO_4_GRAM
    ),
    "chrf": Metric("chrF2", {"sentences": lambda h, r, _: _signed("chrf", text.chrf(h, r))}, True, ""),
    "bleu_tok_lc": Metric(
        "BLEU on lowercased tokens",
        {"sentences": lambda *inputs: text.bleu_tok_lc(*inputs).score},
        unit="",
        undefined=NO_4_GRAM,
    ),
    "wer": Metric("word error rate", {"pronunciations": lambda h, r, _: text.word_error_rate(h, r)}, False),
    "per": Metric("phoneme error rate", {"pronunciations": lambda h, r, _: text.phoneme_error_rate(h, r)}, False),
    "exact_match": Metric(
        "exact matches",
        dict.fromkeys(("sentences", "pronunciations", "conversations"), lambda h, r, _: text.exact_match(h, r)),
    ),
    "accuracy": Metric(
        "accuracy",
        dict.fromkeys(("classes", "words"), lambda report, *_: report.accuracy)
        | {"multi_label": _of_labels("multi_label_accuracy")},
    ),
    "macro_f1": Metric(
        "macro F1",
        dict.fromkeys(("classes", "words"), lambda report, *_: report.macro_f1)
        | {"multi_label": _of_labels("multi_label_f1")},
    ),
    "calibration_error": Metric("calibration error", {"classes": lambda report, *_: report.calibration_error}, False),
    "span_f1": Metric("span F1", {"spans": _of_labels("span_f1")}),
    "rmse": Metric("root mean squared error", {"regression": _of_labels("rmse")}, False, "", ".3g"),
    "pearson": Metric("Pearson's correlation", {"regression": _of_labels("pearson")}),
    "spearman": Metric("Spearman's rank correlation", {"regression": _of_labels("spearman")}),
    "reward_accuracy": Metric("preferred answers", {"preferences": lambda margins: 100 * float((margins > 0).mean())}),
    "reward_margin": Metric(
        "mean margin of the rewards", {"preferences": lambda margins: float(margins.mean())}, True, "", ".3g"
    ),
    "reward": Metric("mean reward", {"prompts": lambda rewards, *_: float(rewards.mean())}, True, "", ".3g"),
    "kl": Metric(
        "KL divergence from the start", {"prompts": lambda _, kl, __: float(kl.mean())}, False, "nats per token", ".3g"
    ),
    "equal_rewards": Metric(
        "groups with equal rewards",
        {"prompts": lambda rewards, *_: 100 * float((rewards == rewards[:, :1]).all(axis=1).mean())},
        False,
    ),
    "answer_tokens": Metric("answer length", {"prompts": lambda *inputs: float(inputs[2].mean())}, False, "tokens"),
    "masked_accuracy": Metric("accuracy at masks", {"masks": None}),
}
"""All metrics by name. An evaluation shows its values in this order."""


def names(*sections: str) -> tuple[str, ...]:
    """Return the names of the metrics of these sections, the main metric first.

    >>> names("pronunciations")
    ('wer', 'per', 'exact_match')
    """
    return tuple(name for name, metric in METRICS.items() if not metric.sections.keys().isdisjoint(sections))


def title(name: str) -> str:
    """Return the label of a metric with its unit.

    >>> title("wer")
    'word error rate, %'
    """
    metric = METRICS[name]
    return ", ".join(filter(None, [metric.label, metric.unit]))


def axis(name: str) -> str:
    """Return the label of a metric on an axis; a metric of another package has its name as label.

    >>> axis("wer")
    'word error rate, % (lower is better)'
    """
    if name not in METRICS:
        return name
    better = "higher" if METRICS[name].higher_is_better else "lower"
    return f"{title(name)} ({better} is better)"


def decimals(name: str, value: float, n: int | None) -> int:
    """Return the number of decimals to show of a metric of `n` scored items; 1 if `n` is `None` or 0.

    A rate changes in steps of 100 / n. The standard error of a loss is about loss / √n, because the standard deviation
    of token losses is about as large as their mean. Two models on the same text can differ by less than the standard
    error, so the last decimal is about a tenth of it.

    >>> decimals("accuracy", 93.1, 2000), decimals("bits_per_byte", 3.9, 5000)
    (2, 3)
    """
    if not n:
        return 1
    step = 100 / n
    if "losses" in METRICS[name].sections:
        error = value * math.log(value) if name == "perplexity" and value > 1 else value
        step = abs(error) / math.sqrt(n) / 10
    return min(MAX_DECIMALS, max(1, math.ceil(-math.log10(step)))) if step else MAX_DECIMALS


def shown(name: str, value: float | None, n: int | None = None) -> str:
    """Return a metric of `n` scored items as text; "n/a" if it is undefined.

    >>> shown("bits_per_byte", 3.90625, 5000), shown("bleu", None, 50)
    ('3.906', 'n/a')
    """
    if value is None:
        return "n/a"
    if name not in METRICS:
        return f"{value:.1f}"
    return format(value, METRICS[name].format or f".{decimals(name, value, n)}f")


def numbers(values: Values, names: Sequence[str]) -> dict[str, float]:
    """Return the values of those metrics in `names` that are defined."""
    return {name: float(value) for name in names if (value := values[name]) is not None}


def measure(section: str, *inputs: Any, only: Sequence[str] = ()) -> Values:
    """Compute all metrics of a section, or only the metrics in `only`.

    >>> measure("pronunciations", ["HH AY", "B AY"], [["HH AY"], ["B IY"]], "en")
    {'wer': 50.0, 'per': 25.0, 'exact_match': 50.0}
    """
    values: Values = {}
    for name in only or names(section):
        compute = METRICS[name].sections[section]
        assert compute is not None, f"{section} have no functions"
        value = compute(*inputs)
        if not isinstance(value, dict):
            value = {name: value}
        values |= value
    return values
