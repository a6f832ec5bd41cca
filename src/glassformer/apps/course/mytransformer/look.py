"""Look inside a GPT with hooks: capture, weights, lens, ablation, patching."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .attention import causal_mask, masked_softmax, split_heads
from .gpt import GPT


@contextmanager
def hooked(hooks: Iterable[Any]) -> Iterator[None]:
    """Remove hooks of torch at the end, also after an error."""
    kept = []
    try:
        for hook in hooks:  # one after the other: a later one may raise
            kept.append(hook)
        yield
    finally:
        for hook in kept:
            hook.remove()


@torch.no_grad()
def capture(model: nn.Module, names: list[str], *inputs: Tensor) -> dict[str, Tensor]:
    """Run a model, and return the output of each module in `names`, as `named_modules`.

    An unknown name raises `KeyError` with this name. No hook is left in the model.
    """
    modules, found = dict(model.named_modules()), {}

    def keep(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, given: Any, output: Tensor) -> None:
            found[name] = output.detach().clone()

        return hook

    with hooked(modules[name].register_forward_hook(keep(name)) for name in names):
        model(*inputs)
    return found


def weights_of(model: GPT, ids: Tensor) -> Tensor:
    """Return the attention weights of all heads for ids (B, T): (L, B, H, T, T)."""
    layers = []
    for number in range(len(model.blocks)):
        names = [f"blocks.{number}.attention.{letter}" for letter in "qk"]
        parts = capture(model, names, ids)
        query, key = (split_heads(parts[name], model.n_heads) for name in names)
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        layers.append(
            masked_softmax(scores, causal_mask(ids.shape[1]).expand_as(scores))
        )
    return torch.stack(layers)


@torch.no_grad()
def lens(model: GPT, ids: Tensor) -> Tensor:
    """Return the logits that each block's stream would give: (L, B, T, V).

    The stream after each block goes through the last norm and the output matrix.
    """
    names = [f"blocks.{number}" for number in range(len(model.blocks))]
    return torch.stack([model.project(x) for x in capture(model, names, ids).values()])


@torch.no_grad()
def ablate(model: GPT, ids: Tensor, block: int, head: int) -> Tensor:
    """Return the logits (B, T, V) with one head switched off.

    The numbers of this head are zero where the output matrix `o` reads them.
    """
    output = model.get_submodule(f"blocks.{block}.attention.o")

    def switch_off(module: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
        x = given[0].unflatten(-1, (model.n_heads, -1)).clone()
        x[..., head, :] = 0.0
        return (x.flatten(-2),)

    with hooked([output.register_forward_pre_hook(switch_off)]):
        return model(ids)


@torch.no_grad()
def patch(model: GPT, ids: Tensor, other: Tensor, block: int, place: int) -> Tensor:
    """Return the logits of ids (B, T) with one vector of another text (B, T).

    The stream after the block, at `place`, is that which the model computes for
    `other`.
    """
    name = f"blocks.{block}"
    stream = capture(model, [name], other)[name]

    def put(module: nn.Module, given: Any, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, place] = stream[:, place]
        return output

    with hooked([model.blocks[block].register_forward_hook(put)]):
        return model(ids)
