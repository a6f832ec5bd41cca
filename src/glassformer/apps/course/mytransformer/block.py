"""Norms, the feed-forward layer and the block (Ba et al. 2016; Xiong et al. 2020).

Shapes: B texts, T tokens, D width of the model, F width of the feed-forward layer.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .attention import MultiHeadAttention, multi_head_attention


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return (x - mean) / √(variance + eps) · weight + bias over the last axis of `x`
    (B, T, D): (B, T, D).

    The variance is the mean of the squared differences from the mean, so its sum is
    divided by D. `weight` and `bias` are (D,).
    """
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    return centred / (variance + eps).sqrt() * weight + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x / √(mean of x² + eps) · weight over the last axis of `x` (B, T, D): (B,
    T, D); `weight` is (D,).
    """
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight


def gelu(x: Tensor) -> Tensor:
    """Return x · Φ(x) for each number, where Φ(x) = (1 + erf(x / √2)) / 2 is the normal
    distribution function.

    This is the exact function; torch has `torch.erf`.
    """
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def feed_forward(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Return gelu(x W₁ + b₁) W₂ + b₂ for each token of `x` (B, T, D): (B, T, D).

    `w` has the matrices "up" (D, F), which is W₁, and "down" (F, D), which is W₂, and
    the biases "up_bias" (F,) and "down_bias" (D,).
    """
    return gelu(x @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"]


def block(x: Tensor, w: dict[str, Tensor], allowed: Tensor, n_heads: int) -> Tensor:
    """Return the stream after one pre-norm block: (B, T, D) → (B, T, D).

    h = x + attention(layer_norm(x)), and then h + feed_forward(layer_norm(h)). The
    attention is self-attention with `n_heads` heads, the `multi_head_attention` of
    chapter 5; `allowed` (B, 1, T, T) is True where a query may attend to a key, and
    each query has a key. `w` has the weights of `feed_forward`, the matrices "q", "k",
    "v" and "o" of the attention, each (D, D) and applied as x @ w["q"], and for the two
    norms, both with eps 1e-5, "norm_1", "norm_1_bias", "norm_2" and "norm_2_bias", each
    (D,).
    """
    normed = layer_norm(x, w["norm_1"], w["norm_1_bias"], 1e-5)
    h = x + multi_head_attention(normed, normed, w, n_heads, allowed)
    return h + feed_forward(layer_norm(h, w["norm_2"], w["norm_2_bias"], 1e-5), w)


def dropout(x: Tensor, keep: Tensor, rate: float) -> Tensor:
    """Set to zero the numbers of `x` where `keep` is False, and divide the others by 1
    - `rate`.

    `keep` is a tensor of bool with the shape of `x`, drawn with the probability 1 -
    `rate` of True, so the mean of each number stays the same. `rate` is at least 0 and
    less than 1.
    """
    return x * keep / (1 - rate)


class Norm(nn.Module):
    """LayerNorm with its weights: `weight` (D,), at first ones, and `bias`, zeros."""

    def __init__(self, d_model: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)


class Residual(nn.Module):
    """One addition to the stream, with f the attention or the feed-forward layer.

    "pre": x + f(norm(x)). "post": norm(x + f(x)). "sandwich": x + after(f(norm(x))).
    While it trains, dropout of `rate` acts on what is added. Parameters: `norm`, a
    `Norm`, and in the sandwich `after`, another one. Another order raises `ValueError`
    with its name.
    """

    def __init__(self, d_model: int, order: str, rate: float = 0.0) -> None:
        super().__init__()
        if order not in ("pre", "post", "sandwich"):
            raise ValueError(f"the order is pre, post or sandwich, not {order}")
        self.norm, self.order, self.rate = Norm(d_model), order, rate
        self.after = Norm(d_model) if order == "sandwich" else nn.Identity()

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the stream (B, T, D) after the addition."""
        added = f(x) if self.order == "post" else self.after(f(self.norm(x)))
        if self.training and self.rate:
            added = dropout(added, torch.rand_like(added) >= self.rate, self.rate)
        return self.norm(x + added) if self.order == "post" else x + added


class Block(nn.Module):
    """A block: attention, with `has_memory` also to a memory, and a feed-forward layer.

    Each is added to the stream by a `Residual` of the given `order`. Parameters:
    `attention`, in a decoder `cross`, both `MultiHeadAttention`; `up` (D → F) and
    `down` (F → D); and the residuals `attention_step`, `cross_step` and `ff_step`.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        order: str = "pre",
        activation: Callable[[Tensor], Tensor] = gelu,
        has_memory: bool = False,
        rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, n_heads)
        self.attention_step = Residual(d_model, order, rate)
        if has_memory:
            self.cross = MultiHeadAttention(d_model, n_heads)
            self.cross_step = Residual(d_model, order, rate)
        self.up, self.down = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.ff_step, self.activation = Residual(d_model, order, rate), activation

    def forward(
        self,
        x: Tensor,
        allowed: Tensor,
        memory: Tensor | None = None,
        memory_allowed: Tensor | None = None,
        cache: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the stream (B, T, D) after the block.

        The masks, (B or 1, 1, T, S), are for self-attention and for the memory (B, S,
        D). The `cache` is that of the self-attention.
        """
        x = self.attention_step(x, lambda y: self.attention(y, allowed, cache=cache))
        if memory is not None:
            x = self.cross_step(x, lambda y: self.cross(y, memory_allowed, memory))
        return self.ff_step(x, lambda y: self.down(self.activation(self.up(y))))


@torch.no_grad()
def draw_weights(model: nn.Module, std: float = 0.02) -> None:
    """Draw the first weights of a model as GPT-2 does.

    The weights of linear layers and tables come from the normal distribution with the
    standard deviation `std`, and biases are zero. The last matrices of the additions,
    all with the names `o` and `down`, have std / √(2 L), where L is the number of
    blocks, that is, of layers with the name `down`.
    """
    n_blocks = sum(name.endswith("down") for name, _ in model.named_modules())
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            is_last = name.split(".")[-1] in ("o", "down")
            module.weight.normal_(0, std / math.sqrt(2 * n_blocks) if is_last else std)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.zero_()


class Recomputed(torch.autograd.Function):
    """f(x) whose inner results are not kept: the backward pass computes them again.

    `Recomputed.apply(x, f)`, with f a function of one argument without random numbers.
    If it is a module, its parameters get their gradients from `backward()`, too.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.f = f
        ctx.save_for_backward(x)
        return f(x)  # torch switches gradients off here

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            ctx.f(x).backward(gradient)
        return x.grad, None
