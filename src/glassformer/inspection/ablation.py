"""Ablation: switch off heads, feed-forwards and layers of a network, and measure what each of them changes.

- A head is off if its context (weights · values) is zero before the output projection, as with the mask variable 0 of
  Michel (2019, section 2.3) and the gate 0 of Voita (2019). With `means`, the context is its mean over the
  positions of a trace, which removes only the differences between positions (mean ablation, Wang 2022).
- A feed-forward is off if it adds zero, or its mean, to the residual stream.
- A layer is off if the block returns its input. For post-norm models the norms of the block are skipped too.

The effect of a part is the change of a measure (`measures.py`) when the part is off. For a head, Michel (2019, section
3.2) calls this effect its importance, and takes the mean over a set of texts.
"""

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Literal, TypeVar, get_args

import torch
from torch import Tensor, nn

from glassformer.common import notebook
from glassformer.common.errors import Progress, UserError, did_you_mean
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.capture import Hook, capture_tensors, model_hooks, network_of
from glassformer.inspection.measures import Beside, Measure, beside_others, measure_of
from glassformer.inspection.texts import Given, read
from glassformer.models.devices import evaluation_mode
from glassformer.tasks.trained_model import TrainedModel

MEANS = ("*.context", "*.ff", "*_norm")
"""Names of the tensors whose means can replace heads and feed-forwards."""
_PART = re.compile(r"(encoder|decoder|cross)\.(\d+)(?:\.(feed_forward)|\.head\.(\d+))?")
Form = Literal["head", "feed_forward", "layer"]
UNITS = {"loss": "Δ loss, nats per token", "kl": "KL divergence, nats", "change": "change", "logit": "Δ logit"}
"""Name and unit of a change. The key is the name of the measure."""
MAX_ROWS = 16
"""Largest number of changed runs in a batch: progress is reported between batches."""
MAX_BYTES = 256 << 20
"""Approximate limit of the memory of one batch."""
Change = TypeVar("Change")


@dataclass(frozen=True)
class Part:
    """A head (`decoder.0.head.3`), a feed-forward (`decoder.0.feed_forward`) or a layer (`decoder.0`) of a network.

    Layers and heads count from 0. The kind `cross` is the attention of the decoder to the source and has heads only.

    >>> print(Part("decoder", 0, head=3), Part("encoder", 1, feed_forward=True), Part("decoder", 2))
    decoder.0.head.3 encoder.1.feed_forward decoder.2
    >>> Part.parse("cross.1.head.0")
    Part(kind='cross', layer=1, head=0, feed_forward=False)
    """

    kind: Kind
    layer: int
    head: int | None = None
    feed_forward: bool = False

    @property
    def form(self) -> Form:
        if self.feed_forward:
            return "feed_forward"
        return "layer" if self.head is None else "head"

    def __str__(self) -> str:
        ends: dict[Form, str] = {"head": f".head.{self.head}", "feed_forward": ".feed_forward", "layer": ""}
        return f"{self.kind}.{self.layer}{ends[self.form]}"

    @staticmethod
    def parse(text: str) -> "Part":
        """Return the part of a name; raise `UserError` if the name has another form."""
        match = _PART.fullmatch(text)
        if match is None or (match[1] == "cross" and match[4] is None):
            raise UserError(
                f"part: expected a name such as decoder.0.head.3, decoder.0.feed_forward or decoder.0, got {text!r:.80}"
            )
        head = None if match[4] is None else int(match[4])
        return Part(match[1], int(match[2]), head, match[3] is not None)  # type: ignore[arg-type]


def all_parts(network: nn.Module) -> list[Part]:
    """Return all parts of a network: heads, feed-forwards and layers. A recurrent decoder has only `cross.0.head.0`."""
    if hasattr(network.decoder, "cross_attn"):
        return [Part("cross", 0, 0)]
    parts: list[Part] = []
    stacks: tuple[Kind, ...] = ("encoder", "decoder")
    for stack in stacks:
        blocks = list(getattr(getattr(network, stack), "blocks", ()))
        parts += [Part(stack, i, h) for i, block in enumerate(blocks) for h in range(block.self_attn.n_heads)]
        crossed = [(i, block.cross_attn) for i, block in enumerate(blocks) if block.cross_attn is not None]
        parts += [Part("cross", i, h) for i, attention in crossed for h in range(attention.n_heads)]
        parts += [Part(stack, i, feed_forward=True) for i, block in enumerate(blocks) if block.ff is not None]
        parts += [Part(stack, i) for i in range(len(blocks))]
    return parts


@contextlib.contextmanager
def ablate(
    model: TrainedModel | nn.Module,
    parts: Part | str | Collection[Part | str],
    means: Mapping[str, Tensor] | None = None,
) -> Iterator[None]:
    """Switch a part or several parts off inside the `with` block, in all methods of the model.

    If `means` is the trace of a text (`capture`), a head or feed-forward that is off gives its mean over the positions
    of this text instead of zero. A `capture` inside the block stores the changed tensors. Raises `UserError` for a part
    that the model does not have.

    ```python
    with ablate(model, ["decoder.0.head.3", "decoder.1.feed_forward"]):
        print(model.generate("ROMEO:"))
    ```
    """
    network = network_of(model)
    if isinstance(parts, Part | str):
        parts = [parts]
    chosen = [Part.parse(str(part)) for part in parts]
    with model_hooks(model, ablation_hooks(network, [chosen], means)):
        yield


def ablation_hooks(
    network: nn.Module, rows: Sequence[Collection[Part]], means: Mapping[str, Tensor] | None = None
) -> dict[str, Hook]:
    """Return hooks that switch off the parts `rows[r]` in row r of a batch; a single set of parts is for all rows."""
    # 1. The places that are off: (kind, layer, form) → (row, head); the heads of a layer share one tensor.
    existing, places = set(all_parts(network)), dict[tuple[Kind, int, Form], list[tuple[int, int]]]()
    for row, parts in enumerate(rows):
        for part in parts:
            if part not in existing:
                alike = sorted(str(other) for other in existing if other.form == part.form)
                hint = did_you_mean(part, alike) if alike else "it has no parts of this type"
                raise UserError(f"the model has no part {part}: {hint}")
            places.setdefault((part.kind, part.layer, part.form), []).append((row, part.head or 0))
    # 2. A hook for each place.
    hooks: dict[str, Hook] = {}
    for (kind, layer, form), off in places.items():
        n_heads = 1 + max(part.head or 0 for part in existing if (part.kind, part.layer) == (kind, layer))
        is_off = torch.zeros(len(rows), n_heads, dtype=torch.bool)
        for row, head in off:
            is_off[row, head] = True
        if form == "head":
            name = context_name(network, kind, layer)
            hooks[name] = replacing(is_off, _mean(means, name))
        elif form == "feed_forward":
            name = feed_forward_name(network, kind, layer)
            hooks[name] = replacing(is_off[:, 0], _mean(means, name))
        else:
            hooks |= _skipping(f"{kind}.blocks.{layer}", is_off[:, 0])
    return hooks


def context_name(network: nn.Module, kind: str, layer: int) -> str:
    """Return the name of the tensor (B, H, T, W) with the contexts of a layer's heads."""
    if kind != "cross":
        return f"{kind}.blocks.{layer}.self_attn.context"
    block = f".blocks.{layer}" if hasattr(network.decoder, "blocks") else ""
    return f"decoder{block}.cross_attn.context"


def feed_forward_name(network: nn.Module, stack: str, layer: int) -> str:
    """Return the name of the tensor (B, T, D) that a feed-forward adds to the stream, after its output norm if any."""
    path = f"{stack}.blocks.{layer}"
    has_norm = network.get_submodule(path).ff_out_norm is not None
    return f"{path}.ff_out_norm" if has_norm else f"{path}.ff"


def replacing(is_off: Tensor, value: Tensor | float = 0.0) -> Hook:
    """Return a hook that replaces a tensor by `value` where `is_off` is True; `value` is broadcast to the tensor.

    `is_off` has the first dimensions of the tensor, (B,) or (B, H); B may be 1 for all rows.

    >>> hook = replacing(torch.tensor([[False, True]]))
    >>> hook("decoder.blocks.0.self_attn.context", torch.ones(1, 2, 1, 3))
    tensor([[[[1., 1., 1.]],
    <BLANKLINE>
             [[0., 0., 0.]]]])
    """

    def hook(name: str, x: Tensor) -> Tensor:
        where = is_off.to(x.device).view(*is_off.shape, *[1] * (x.ndim - is_off.ndim))
        return torch.where(where, torch.as_tensor(value).to(x), x)

    return hook


def _skipping(block: str, is_off: Tensor) -> dict[str, Hook]:
    """Return hooks that replace the output of a block by the block's input in the rows where `is_off` (B,) is True."""
    inputs: list[Tensor] = []

    def store(name: str, x: Tensor) -> None:
        inputs[:] = [x]

    def restore(name: str, x: Tensor) -> Tensor:
        return torch.where(is_off.to(x.device)[:, None, None], inputs.pop(), x)

    return {f"{block}.input": store, f"{block}.residual": restore}


def _mean(means: Mapping[str, Tensor] | None, name: str) -> Tensor | float:
    """Return a tensor's mean over rows and positions: (H, 1, W) of (B, H, T, W), (D,) of (B, T, D); 0 without means."""
    if means is None:
        return 0.0
    if name not in means:
        raise UserError(f"means has no tensor {name}: capture the trace with names={list(MEANS)}")
    mean = means[name].mean(dim=(0, -2))
    return mean[:, None] if mean.ndim == 2 else mean


@dataclass(frozen=True)
class Effects:
    """Effects of parts: the measure with a part off minus the measure of the unchanged network, as means over texts."""

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
        """Compare each change over the texts with the mean change of the other parts of the same type."""
        texts, found = self.of_texts or (self,), dict[Part, Beside]()
        for form in get_args(Form):
            parts = [part for part in self.changes if part.form == form]
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
        return self._of_layers(stack, "feed_forward")

    def layers(self, stack: Kind) -> list[float]:
        """Return the change of each layer."""
        return self._of_layers(stack, "layer")

    def _of_layers(self, stack: Kind, form: Form) -> list[float]:
        return [change for part, change in self.changes.items() if (part.kind, part.form) == (stack, form)]

    def _repr_html_(self) -> str:
        """Return the changes of heads and feed-forwards as a matrix, then the larger changes of layers as a table."""
        title = f"{UNITS[self.measure]}; {self.measure} of the unchanged network {self.before:.4g}"
        of_layers = {str(part): x for part, x in self.changes.items() if part.form == "layer"}
        if len(of_layers) == len(self.changes):
            return notebook.table(of_layers, title)
        by_kind = sorted(self.changes, key=lambda part: part.kind)
        return matrix_of_parts({str(part): self.changes[part] for part in by_kind}, title) + notebook.table(of_layers)


def grid(names: Iterable[str]) -> tuple[list[list[str | None]], list[str], list[str]]:
    """Return a table of part names, with one row per attention, and the names of its rows and columns.

    A missing part is None. The columns are the heads, the biases and the feed-forward. Other names are left out.

    >>> grid(["embedding", "decoder.0.feed_forward", "decoder.0.head.1"])
    ([['decoder.0.head.1', 'decoder.0.feed_forward']], ['decoder 0'], ['head 1', 'feed-forward'])
    """
    known = {name: name.split(".", 2) for name in names if name.count(".") > 1}
    rows = list(dict.fromkeys((kind, layer) for kind, layer, _ in known.values()))
    columns = sorted({part for *_, part in known.values()}, key=_place)
    places = [[f"{kind}.{layer}.{part}" for part in columns] for kind, layer in rows]
    cells = [[name if name in known else None for name in row] for row in places]
    words = {"attention_bias": "bias", "feed_forward": "feed-forward"}
    return cells, [f"{kind} {layer}" for kind, layer in rows], [words.get(x, x.replace(".", " ")) for x in columns]


def _place(part: str) -> tuple[int, int]:
    """Return a key that sorts the parts of a layer.

    >>> sorted(["feed_forward", "head.10", "attention_bias", "head.2"], key=_place)
    ['head.2', 'head.10', 'attention_bias', 'feed_forward']
    """
    if part.startswith("head."):
        return 0, int(part.removeprefix("head."))
    return ("attention_bias", "feed_forward").index(part) + 1, 0


def matrix_of_parts(values: Mapping[str, float], title: str) -> str:
    """Return the values of parts, by name, as the HTML of a matrix (`grid`)."""
    cells, rows, columns = grid(values)
    numbers = [[math.nan if name is None else values[name] for name in row] for row in cells]
    limit = max((abs(x) for row in numbers for x in row if x == x), default=0.0) or 1.0
    return notebook.matrix(numbers, rows, columns, title, limit=limit, shown=notebook.numbers(numbers))


def effects_of_texts(
    model: TrainedModel,
    texts: Iterable[Given],
    parts: Sequence[Part] | None = None,
    *,
    by_mean: bool = False,
    progress: Progress | None = None,
) -> Effects:
    """Return the mean effects of parts over one or more texts, with the effects for each text.

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
    """Return the mean effects of the same parts over texts, with the effects for each text."""
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
    progress: Progress | None = None,
) -> Effects:
    """Return the change of the measure for each part, by default for all parts of the network.

    `inputs` are the inputs of a trace, with one row. `means` is explained at `ablate`. `progress` is called with the
    numbers of parts that are done and of all parts.
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
            if progress is not None:
                progress(len(values), len(parts))
    changes = {part: value - before for part, value in zip(parts, values, strict=True)}
    return Effects(measure.name, before, changes)


def changed_outputs(
    network: nn.Module,
    inputs: Mapping[str, Tensor],
    outputs: Tensor,
    changes: Sequence[Change],
    hooks: Callable[[Sequence[Change]], Mapping[str, Hook]],
) -> Iterator[tuple[Sequence[Change], Tensor]]:
    """Run the network on copies of one row, with one change in each; yield changes and their outputs, batch by batch.

    `hooks` returns the hooks that make change r in row r. `outputs` are the outputs of the unchanged row. Their size
    limits the number of rows in a batch (`MAX_BYTES`, `MAX_ROWS`).
    """
    n_rows = max(1, min(MAX_ROWS, MAX_BYTES // _row_bytes(network, inputs, outputs)))
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
