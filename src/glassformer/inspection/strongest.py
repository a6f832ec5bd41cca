"""Strongest texts: the texts of a set in which a head or a neuron of a feed-forward is most active.

| unit | activity at a token |
|---|---|
| `decoder.0.head.3`, `cross.0.head.3` | length of (context − value bias) W_O, the vector that the head writes |
| `decoder.0.neuron.17` | input 17 of the last projection of the feed-forward: after the activation and the gate  |

Kobayashi (2020, "Attention is Not Only a Weight") also takes the length of weighted vectors instead of weights: a large
weight on a short vector adds little. Geva (2021, section 3) collects the strongest texts of a neuron in this way.

The strength of a text is the largest activity at its tokens. The first token of a decoder is left out: it can attend
only to itself, in every text. The baseline of a unit is its strength in a random text of the set: median and 95 %
quantile over a random sample of at most `SAMPLE` texts. All units of a layer are measured in one pass over the texts,
and only the k strongest texts of each unit are kept.

A unit raises some tokens and lowers others: the effect on a token is the mean, over the strongest texts, of what the
unit adds to the logit of the token at its strongest token (`attribution.direct_effect`), minus the mean of all tokens.
"""

import math
import random
import re
from collections.abc import Iterable, Mapping, Sized
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from glassformer.common.errors import Progress, UserError
from glassformer.inference.text import never_written
from glassformer.inspection.ablation import context_name
from glassformer.inspection.attention_maps import Kind, checked
from glassformer.inspection.attribution import direct_effect, head_output, module_name, require_heads, values_bias
from glassformer.inspection.capture import Trace, capture_tensors
from glassformer.inspection.texts import Given, end_ids, read
from glassformer.models.devices import evaluation_mode
from glassformer.models.transformer import Transformer
from glassformer.nn.experts import Experts
from glassformer.tasks.trained_model import TrainedModel

SAMPLE = 1000
"""Largest number of texts in the baseline."""
_UNITS = re.compile(r"(encoder|decoder|cross)\.(\d+)\.(head|neuron)")
PRUNE_EVERY = 64
"""Number of texts after which the traces that are not needed are dropped."""


@dataclass(frozen=True)
class Units:
    """All heads of an attention, `decoder.0.head`, or all neurons of a feed-forward, `decoder.0.neuron`."""

    kind: Kind
    layer: int
    what: Literal["head", "neuron"]

    def __str__(self) -> str:
        return f"{self.kind}.{self.layer}.{self.what}"

    @staticmethod
    def parse(text: str) -> "Units":
        """Return the units of a name; raise `UserError` if the name has another form.

        >>> Units.parse("decoder.1.neuron")
        Units(kind='decoder', layer=1, what='neuron')
        """
        match = _UNITS.fullmatch(text)
        if match is None or (match[1] == "cross" and match[3] == "neuron"):
            raise UserError(f"units: expected a name such as decoder.0.head or decoder.0.neuron, got {text!r:.80}")
        return Units(match[1], int(match[2]), match[3])  # type: ignore[arg-type]


@dataclass(frozen=True)
class StrongText:
    """A text, and the activity of one unit at each of its tokens; NaN at a token that is left out."""

    number: int
    """Place of the text in the set, from 0; texts that are left out count, too."""
    tokens: list[str]
    """Tokens at which the unit is computed: the queries of an attention."""
    activity: list[float]
    strength: float
    """Largest activity."""


@dataclass
class Strongest:
    """The k strongest texts of all units of a layer, and the strengths of a random sample of the texts."""

    model: TrainedModel
    units: Units
    k: int
    n_texts: int = 0
    strengths: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    """Strengths (U, at most k) of the strongest texts of each unit, largest first."""
    numbers: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))
    """Places (U, at most k) of the strongest texts of each unit in the set."""
    traces: dict[int, Trace] = field(default_factory=dict)
    """Inputs and tokens of the texts that are among the strongest of a unit."""
    sample: list[Tensor] = field(default_factory=list)
    """Strengths (U,) of at most `SAMPLE` random texts."""

    @property
    def n_units(self) -> int:
        return len(self.strengths)

    def baseline(self, unit: int) -> tuple[float, float]:
        """Return median and 95 % quantile of the strength of a unit in a random text of the set."""
        of_unit = torch.stack(self.sample)[:, checked(self.units.what, unit, self.n_units)].double()  # (texts,)
        median, high = torch.quantile(of_unit, torch.tensor([0.5, 0.95], dtype=torch.float64)).tolist()
        return median, high

    def texts(self, unit: int) -> list[StrongText]:
        """Return the strongest texts of one unit, strongest first, with the activity of the unit at each token."""
        found = []
        checked(self.units.what, unit, self.n_units)
        for number, strength in zip(self.numbers[unit].tolist(), self.strengths[unit].tolist(), strict=True):
            trace = self.traces[number]
            activity = activities(self.model.network, trace.inputs, self.units)[:, unit].tolist()
            found.append(StrongText(number, trace.axes(self.units.kind)[0], activity, strength))
        return found

    def effects(self, unit: int) -> Tensor:
        """Return the direct effect (V,) of one unit on the logit of each token; the mean of all tokens is 0.

        Raises `UserError` if the logits are no sum over the parts, and for an encoder under a decoder.
        """
        checked(self.units.what, unit, self.n_units)
        total = torch.zeros(())
        for number in self.numbers[unit].tolist():
            inputs = self.traces[number].inputs
            activity = activities(self.model.network, inputs, self.units)[:, unit].nan_to_num(nan=-math.inf)
            total = total + direct_effect(self.model.network, inputs, f"{self.units}.{unit}", int(activity.argmax()))
        return (total - total.mean()) / self.numbers.shape[1]

    def moved(self, unit: int, n: int = 8) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
        """Return the n tokens that one unit raises most, and the n that it lowers most: their ids and `effects`.

        Tokens that no text has, such as the padding token, are left out.
        """
        effects, tokenizer = self.effects(unit), self.model.tokenizer
        never = set(never_written(tokenizer, len(effects), but=end_ids(self.model)))
        ids = [i for i in effects.argsort(descending=True, stable=True).tolist() if i not in never]
        raised, lowered = ([(i, float(effects[i])) for i in some] for some in (ids[:n], ids[::-1][:n]))
        return raised, lowered

    def tokens(self, unit: int, n: int = 8) -> tuple[dict[str, float], dict[str, float]]:
        """Return the tokens of `moved` as texts, with their effects."""
        raised, lowered = (
            dict(zip(self.model.tokenizer.tokens([i for i, _ in some]), (x for _, x in some), strict=True))
            for some in self.moved(unit, n)
        )
        return raised, lowered

    def add(self, number: int, trace: Trace, strength: Tensor, chance: random.Random) -> None:
        """Add the strengths (U,) of all units in one text; `number` is the place of the text in the set."""
        self.n_texts += 1
        # The k largest of each unit
        column, place = strength[:, None], torch.full((len(strength), 1), number)
        strengths, numbers = column, place
        if self.n_units:
            strengths, numbers = torch.cat([self.strengths, column], dim=1), torch.cat([self.numbers, place], dim=1)
        self.strengths, order = strengths.sort(dim=1, descending=True, stable=True)
        self.strengths, self.numbers = self.strengths[:, : self.k], numbers.gather(1, order)[:, : self.k]
        self.traces[number] = trace
        if self.n_texts % PRUNE_EVERY == 0:
            self.forget()
        # A random sample of all texts until now (Vitter 1985, algorithm R)
        if len(self.sample) < SAMPLE:
            self.sample.append(strength)
        elif (i := chance.randrange(self.n_texts)) < SAMPLE:
            self.sample[i] = strength

    def forget(self) -> None:
        """Drop the texts that are not among the strongest of any unit."""
        kept = set(self.numbers.flatten().tolist())
        self.traces = {number: trace for number, trace in self.traces.items() if number in kept}


def strongest(
    model: TrainedModel,
    texts: Iterable[Given],
    units: str,
    k: int = 10,
    progress: Progress | None = None,
) -> Strongest:
    """Return the k strongest texts of all heads or neurons of a layer, over a set of texts of any size.

    `units` is `decoder.0.head`, `cross.0.head` or `decoder.0.neuron`. The end of a text that is too long is left out.
    For a decoder, a text of one token is left out.

    ```python
    found = strongest(model, open("stories.txt"), "decoder.1.neuron")
    for text in found.texts(17):
        print(f"{text.strength:.2f}", text.tokens)
    found.baseline(17)  # median and 95 % quantile of a random text
    raised, lowered = found.tokens(17)  # the tokens whose logits it moves most
    ```

    Raises `UserError` for a recurrent model, for units that the model does not have, and without a text.
    """
    wanted, chance = Units.parse(units), random.Random(0)
    _place(model.network, wanted)
    found, total = Strongest(model, wanted, k), len(texts) if isinstance(texts, Sized) else 0
    for done, text in enumerate(texts, 1):
        if isinstance(text, Mapping) or text.strip():
            trace = read(model, text)
            activity = activities(model.network, trace.inputs, wanted).nan_to_num(nan=-math.inf)
            strength = activity.amax(dim=0)  # (U,)
            if bool(strength.isfinite().all()):
                found.add(done - 1, trace, strength, chance)
        if progress is not None:
            progress(done, max(total, done))
    if not found.n_texts:
        raise UserError("there is no text of two tokens or more: give at least one")
    found.forget()
    return found


@torch.no_grad()
def activities(network: nn.Module, inputs: Mapping[str, Tensor], units: Units) -> Tensor:
    """Return the activity of each unit at each token, (T, U); NaN at the first token of a decoder."""
    name, module = _place(network, units)
    [x] = capture_tensors(network, inputs, [name]).values()
    if units.what == "neuron":
        activity = x[0].clone()  # (T, d_ff)
    else:
        attention = require_heads(module)
        contexts = x[0].to(next(attention.parameters()).device) - values_bias(attention)[:, None]  # (H, T, W)
        with evaluation_mode(network):
            lengths = [head_output(attention, context, h).norm(dim=-1) for h, context in enumerate(contexts)]
        activity = torch.stack(lengths, dim=1).to("cpu", torch.float32)  # (T, H)
    if units.kind == "decoder":
        activity[0] = math.nan
    return activity


def _place(network: nn.Module, units: Units) -> tuple[str, nn.Module]:
    """Return the name of the tensor of the units, and their attention or feed-forward."""
    if not isinstance(network, Transformer):
        raise UserError("strongest texts need a Transformer: this model is recurrent")
    stack = "decoder" if units.kind == "cross" else units.kind
    blocks = list(getattr(getattr(network, stack), "blocks", ()))
    if not blocks:
        raise UserError(f"this model has no {stack}: choose another layer than {units}")
    block = blocks[checked("layer", units.layer, len(blocks))]
    if units.what == "neuron":
        module, name = block.ff, f"{stack}.blocks.{units.layer}.ff.activations"
    else:
        module = getattr(block, module_name(units.kind))
        name = context_name(network, units.kind, units.layer)
    if isinstance(module, Experts):
        raise UserError("a layer of experts has no neurons to choose: choose a head")
    if module is None:
        raise UserError(f"this model has no {units}: choose another part")
    if units.what == "head":
        require_heads(module)
    return name, module
