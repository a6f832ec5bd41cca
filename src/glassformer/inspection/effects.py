"""Effects of parts: the change of a measure when a head, feed-forward or layer is switched off, for each part.

The importance of a head by ablation is that of Michel (2019), section 3.2, who takes the mean over a set of texts.
`ablation.py` defines "off", and `measures.py` the measure. The effects of several texts are their means, with the
effects of each text beside them; the baseline of a head is the mean over the other heads (`spread.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import TypeVar

import torch
from torch import Tensor, nn

from glassformer.common import notebook
from glassformer.common.errors import Progress, UserError
from glassformer.inspection.ablation import MEANS, Part, ablation_hooks, all_parts
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.capture import Hook, capture_tensors, model_hooks
from glassformer.inspection.measures import Measure, measure_of
from glassformer.inspection.spread import Beside, beside_others
from glassformer.inspection.texts import Given, read
from glassformer.models.devices import evaluation_mode
from glassformer.tasks.trained_model import TrainedModel

UNITS = {"loss": "Δ loss, nats per token", "kl": "KL divergence, nats", "change": "change"}
"""Names of the changes, by the name of the measure."""
MAX_BYTES = 256 << 20
"""Approximate limit of the memory of one batch."""
Change = TypeVar("Change")


@dataclass(frozen=True)
class Effects:
    """Changes of a measure: the value with the part off minus the value of the unchanged network.

    Over several texts, all numbers are means over the texts.
    """

    measure: str
    before: float
    """Value of the unchanged network; 0 for `kl` and `change`."""
    changes: dict[Part, float]
    of_texts: tuple["Effects", ...] = ()
    """Effects of each text, if there are several."""

    @property
    def n_texts(self) -> int:
        return max(1, len(self.of_texts))

    def beside_others(self) -> dict[Part, Beside]:
        """Return the spread of each change over the texts, beside the mean of the other parts of the same type."""
        texts, found = self.of_texts or (self,), dict[Part, Beside]()
        for kind in (_HEAD, _FEED_FORWARD, _LAYER):
            parts = [part for part in self.changes if _type(part) == kind]
            found |= beside_others({part: [text.changes[part] for text in texts] for part in parts})
        return found

    def heads(self, kind: Kind) -> list[list[float]]:
        """Return the change of each head, one list per layer."""
        layers: dict[int, list[float]] = {}
        for part, change in self.changes.items():
            if part.kind == kind and part.head is not None:
                layers.setdefault(part.layer, []).append(change)
        return list(layers.values())

    def feed_forwards(self, stack: Kind) -> list[float]:
        """Return the change of the feed-forward of each layer."""
        return [change for part, change in self.changes.items() if part.kind == stack and part.feed_forward]

    def layers(self, stack: Kind) -> list[float]:
        """Return the change of each layer."""
        return [c for part, c in self.changes.items() if part == Part(stack, part.layer)]

    def table(self) -> tuple[list[list[float]], list[str], list[str]]:
        """Return the changes of heads and feed-forwards, one row per layer, and the names of rows and columns.

        A part without a change is NaN. Whole layers are left out, because their changes are far larger.
        """
        parts = [part for part in self.changes if part.head is not None or part.feed_forward]
        heads = range(1 + max((part.head for part in parts if part.head is not None), default=-1))
        places = dict.fromkeys((part.kind, part.layer) for part in sorted(parts, key=lambda part: part.kind))
        rows = [
            [Part(kind, layer, head) for head in heads] + [Part(kind, layer, feed_forward=True)]
            for kind, layer in places
        ]
        values = [[self.changes.get(part, torch.nan) for part in row] for row in rows]
        names = [f"{kind} {layer}" for kind, layer in places]
        return values, names, [*(f"head {i}" for i in heads), "feed-forward"]

    def _repr_html_(self) -> str:
        """Return the changes of heads and feed-forwards as a matrix, and those of layers as a table."""
        values, rows, columns = self.table()
        limit = max((abs(x) for row in values for x in row if x == x), default=0.0) or 1.0
        title = f"{UNITS[self.measure]}; {self.measure} of the unchanged network {self.before:.4g}"
        of_layers = {str(part): x for part, x in self.changes.items() if part == Part(part.kind, part.layer)}
        if not rows:
            return notebook.table(of_layers, title)
        matrix = notebook.matrix(values, rows, columns, title, limit=limit, shown=notebook.numbers(values))
        return matrix + notebook.table(of_layers)


_HEAD, _FEED_FORWARD, _LAYER = range(3)


def _type(part: Part) -> int:
    if part.head is not None:
        return _HEAD
    return _FEED_FORWARD if part.feed_forward else _LAYER


def effects_of_texts(
    model: TrainedModel,
    texts: Iterable[Given],
    parts: Sequence[Part] | None = None,
    *,
    by_mean: bool = False,
    progress: Progress | None = None,
) -> Effects:
    """Return the mean effects over texts, with those of each text; one text is a set of one.

    `by_mean` replaces a part by its mean over the positions of the text, in place of zero. Raises `UserError` without
    a text, and for a text that has no measure, such as one of a single token.

    ```python
    found = effects_of_texts(model, ["To be, or not to be", "All the world's a stage"])
    found.beside_others()[Part("decoder", 0, head=3)].is_beyond
    ```
    """
    given, measured = list(texts), list[Effects]()
    for number, text in enumerate(given, 1):
        try:
            inputs, means = read(model, text).inputs, None
            measure = measure_of(model, inputs)
        except UserError as error:
            raise UserError(f"text {number}: {error}") from error
        if by_mean:
            means = capture_tensors(model.network, inputs, MEANS)
        measured.append(effects(model.network, inputs, measure, parts, means))
        if progress is not None:
            progress(len(measured), len(given))
    return mean_effects(measured)


def mean_effects(texts: Sequence[Effects]) -> Effects:
    """Return the means of the effects of texts on the same parts; those of one text are unchanged."""
    if not texts:
        raise UserError("there is no text: give at least one")
    changes = {part: fmean(text.changes[part] for text in texts) for part in texts[0].changes}
    return Effects(texts[0].measure, fmean(text.before for text in texts), changes, tuple(texts))


@torch.no_grad()
def effects(
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    measure: Measure,
    parts: Sequence[Part] | None = None,
    means: Mapping[str, Tensor] | None = None,
) -> Effects:
    """Return the change of the measure for each part, by default for all parts of the network.

    `inputs` are those of a trace, with one row. `means` is explained at `ablate`.

    ```python
    trace = capture(model, "To be, or not to be", names=["logits"])
    found = effects(model.network, trace.inputs, measure_of(model, trace.inputs))
    found.changes[Part("decoder", 0, head=3)]  # nats per token
    ```
    """
    if parts is None:
        parts = all_parts(network)
    with evaluation_mode(network):
        outputs = network(**inputs)
        before = float(measure(outputs)[0])
        off, values = [[part] for part in parts], list[float]()
        hooks = partial(ablation_hooks, network, means=means)
        for _, without in changed_outputs(network, inputs, outputs, off, hooks):
            values += measure(without).tolist()
    changes = {part: value - before for part, value in zip(parts, values, strict=True)}
    return Effects(measure.name, before, changes)


def changed_outputs(
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Tensor,
    changes: Sequence[Change],
    hooks: Callable[[Sequence[Change]], Mapping[str, Hook]],
) -> Iterator[tuple[Sequence[Change], Tensor]]:
    """Repeat one row of inputs with one change in each row; yield changes and their outputs, batch by batch.

    `hooks` returns the hooks that make change r in row r. `outputs` are those of the unchanged row: a batch has as many
    rows as fit in about `MAX_BYTES`.
    """
    n_rows = max(1, MAX_BYTES // _row_bytes(network, inputs, outputs))
    for begin in range(0, len(changes), n_rows):
        some = changes[begin : begin + n_rows]
        repeated = {name: x.repeat(len(some), *[1] * (x.ndim - 1)) for name, x in inputs.items()}
        with model_hooks(network, hooks(some)):
            changed = network(**repeated)
        yield some, changed


def _row_bytes(network: nn.Module, inputs: Mapping[str, Tensor], outputs: Tensor) -> int:
    """Estimate the memory of one row: logits, attention scores and the widest layer, four tensors of each."""
    longest = max(x.shape[1] for x in inputs.values())
    n_heads = 1 + max((part.head or 0 for part in all_parts(network)), default=0)
    widest = max((x.out_features for x in network.modules() if isinstance(x, nn.Linear)), default=1)
    return 4 * outputs.element_size() * (outputs.numel() + n_heads * longest**2 + longest * widest)
