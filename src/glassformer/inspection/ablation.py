"""Ablation: switch off heads, feed-forwards and layers of a network, and run it without them.

- A head is off if its context (weights · values) is zero before the output projection, as with the mask variable 0 of
  Michel (2019, section 2.3) and the gate 0 of Voita (2019). With `means`, the context is its mean over the
  positions of a trace, which removes only the differences between positions (mean ablation, Wang 2022).
- A feed-forward is off if it adds zero, or its mean, to the residual stream.
- A layer is off if the block returns its input. For post-norm models the norms of the block are skipped too.

`effects.py` measures the effect of each part on a text.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from glassformer.common.errors import UserError, did_you_mean
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.capture import Hook, model_hooks, network_of
from glassformer.tasks.trained_model import TrainedModel

MEANS = ("*.context", "*.ff", "*_norm")
"""Names of the tensors whose means can replace heads and feed-forwards."""
_PART = re.compile(r"(encoder|decoder|cross)\.(\d+)(?:\.(feed_forward)|\.head\.(\d+))?")


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

    def __str__(self) -> str:
        name = f"{self.kind}.{self.layer}"
        if self.feed_forward:
            return f"{name}.feed_forward"
        return name if self.head is None else f"{name}.head.{self.head}"

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
    """Return all parts of a network: per stack its heads, feed-forwards and layers.

    A recurrent decoder with attention has one part, `cross.0.head.0`.
    """
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

    `means` is a trace of a text (`capture`): heads and feed-forwards then give their mean over its positions instead
    of zero. Layers return their input in both cases. A `capture` inside the block stores the changed tensors. Raises
    `UserError` for a part that the model does not have.

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
    """Return hooks for `model_hooks` that switch off the parts `rows[r]` in row r of a batch.

    One set of parts applies to all rows. `means` is explained at `ablate`. Raises `UserError` for a part that the
    network does not have.
    """
    existing, by_name = set(all_parts(network)), dict[str, list[tuple[int, Part]]]()
    for row, parts in enumerate(rows):
        for part in parts:
            if part not in existing:
                raise UserError(f"the model has no part {part}: {_hint(part, existing)}")
            by_name.setdefault(tensor_name(network, part), []).append((row, part))
    hooks: dict[str, Hook] = {}
    for name, off in by_name.items():
        _, part = off[0]
        n_heads = 1 + max(other.head or 0 for other in existing if (other.kind, other.layer) == (part.kind, part.layer))
        is_off = torch.zeros(len(rows), n_heads, dtype=torch.bool)
        for row, part in off:
            is_off[row, part.head or 0] = True
        if part.head is not None:
            hooks[name] = replacing(is_off, _mean(means, name))
        elif part.feed_forward:
            hooks[name] = replacing(is_off[:, 0], _mean(means, name))
        else:
            hooks |= _skipping(name, is_off[:, 0])
    return hooks


def tensor_name(network: nn.Module, part: Part) -> str:
    """Return the name of the tensor that a head or a feed-forward replaces, or the path of the block of a layer."""
    if part.head is not None:
        return context_name(network, part.kind, part.layer)
    if part.feed_forward:
        return feed_forward_name(network, part.kind, part.layer)
    return f"{part.kind}.blocks.{part.layer}"


def context_name(network: nn.Module, kind: str, layer: int) -> str:
    """Return the name of the contexts (B, H, T, W) of the heads of a layer."""
    if kind != "cross":
        return f"{kind}.blocks.{layer}.self_attn.context"
    block = f".blocks.{layer}" if hasattr(network.decoder, "blocks") else ""
    return f"decoder{block}.cross_attn.context"


def feed_forward_name(network: nn.Module, stack: str, layer: int) -> str:
    """Return the name of the tensor (B, T, D) that the feed-forward of a layer adds to the residual stream.

    In a sandwich block this is the output of the norm after the feed-forward.
    """
    path = f"{stack}.blocks.{layer}"
    has_norm = network.get_submodule(path).ff_out_norm is not None
    return f"{path}.ff_out_norm" if has_norm else f"{path}.ff"


def replacing(is_off: Tensor, value: Tensor | None = None) -> Hook:
    """Return a hook that replaces a tensor by `value`, or by zero, where `is_off` is True.

    `is_off` has the first dimensions of the tensor, (B,) or (B, H); B may be 1 for all rows. `value` broadcasts to the
    tensor.

    >>> hook = replacing(torch.tensor([[False, True]]))
    >>> hook("decoder.blocks.0.self_attn.context", torch.ones(1, 2, 1, 3))
    tensor([[[[1., 1., 1.]],
    <BLANKLINE>
             [[0., 0., 0.]]]])
    """

    def hook(name: str, x: Tensor) -> Tensor:
        where = is_off.to(x.device).view(*is_off.shape, *[1] * (x.ndim - is_off.ndim))
        if value is None:
            return x.masked_fill(where, 0.0)
        return torch.where(where, value.to(x), x)

    return hook


def _skipping(block: str, is_off: Tensor) -> dict[str, Hook]:
    """Return hooks that keep the input of a block and put it in place of the output where `is_off` (B,) is True."""
    inputs: list[Tensor] = []

    def store(name: str, x: Tensor) -> None:
        inputs[:] = [x]

    def restore(name: str, x: Tensor) -> Tensor:
        return torch.where(is_off.to(x.device)[:, None, None], inputs.pop(), x)

    return {f"{block}.input": store, f"{block}.residual": restore}


def _mean(means: Mapping[str, Tensor] | None, name: str) -> Tensor | None:
    """Return the mean over rows and positions: of (B, H, T, W) as (H, 1, W), of (B, T, D) as (D,)."""
    if means is None:
        return None
    if name not in means:
        raise UserError(f"means has no tensor {name}: capture the trace with names={list(MEANS)}")
    mean = means[name].mean(dim=(0, -2))
    return mean[:, None] if mean.ndim == 2 else mean


def _hint(part: Part, existing: Collection[Part]) -> str:
    """Return the parts of the same type that the network has, or the most similar one."""
    kind = (part.head is None, part.feed_forward)
    alike = sorted(str(x) for x in existing if (x.head is None, x.feed_forward) == kind)
    return did_you_mean(part, alike) if alike else "it has no parts of this type"
