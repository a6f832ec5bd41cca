"""Position encodings of five kinds. Only learned positions have a largest position.

Letters: B batch, T query length, S key length, H heads, K head width.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from glassformer.common.arguments import number, one_of, takes_other_names
from glassformer.nn.boundary import wrong_activations
from glassformer.nn.masks import with_rows

LAYOUTS = ("interleaved", "halves")


def require_even(width: int, kind: str = "sinusoidal") -> None:
    """Raise `ValueError` if the width of sinusoidal or rotary positions is not an even number."""
    name = "d_model" if kind == "sinusoidal" else "d_rotary"
    if number(name, width, 2, whole=True) % 2:
        raise ValueError(f"{name}: expected an even number for {kind} positions, got {width}")


@takes_other_names
def sinusoid(positions: Tensor | int, d_model: int, layout: str = "interleaved", ends_at_base: bool = False) -> Tensor:
    """Compute PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(same) (Vaswani 2017, section 3.5).

    `positions` (..., T) → (..., T, d_model); a number n stands for the positions 0 to n - 1. Layout "halves" puts all
    sines before all cosines. d_model must be even. With `ends_at_base`, the exponent is 2i/(d_model - 2), so that the
    lowest frequency is 1/10000 (Fan 2020).

    >>> sinusoid(torch.tensor([0]), 4), sinusoid(64, 32).shape
    (tensor([[0., 1., 0., 1.]]), torch.Size([64, 32]))
    """
    require_even(d_model)
    if not isinstance(positions, Tensor):
        positions = torch.arange(number("positions", positions, 0, whole=True))
    twice_i = torch.arange(0, d_model, 2, device=positions.device, dtype=torch.float32)
    divisor = d_model - 2 if ends_at_base else d_model
    frequency = torch.exp(twice_i * (-math.log(10000.0) / divisor))
    angle = positions[..., None].float() * frequency  # (..., T, d_model/2)
    pair = (angle.sin(), angle.cos())
    return torch.cat(pair, -1) if layout == "halves" else torch.stack(pair, -1).flatten(-2)


class SinusoidalPositions(nn.Module):
    """Sinusoidal positions (`sinusoid`): no parameters, no buffer, any length, on the input's device.

    Positions are counted from `offset`. The module takes positions, or embeddings (B, T, D), to which it adds its rows.

    >>> positions = SinusoidalPositions(4)
    >>> positions(torch.tensor([0])), positions(torch.ones(1, 1, 4))
    (tensor([[0., 1., 0., 1.]]), tensor([[[1., 2., 1., 2.]]]))
    """

    @takes_other_names
    def __init__(self, d_model: int, layout: str = "interleaved", offset: int = 0, ends_at_base: bool = False) -> None:
        super().__init__()
        one_of("layout", layout, LAYOUTS)
        require_even(d_model)
        number("offset", offset, whole=True)
        self.d_model, self.layout, self.offset, self.ends_at_base = d_model, layout, offset, ends_at_base

    def forward(self, positions: Tensor) -> Tensor:
        """Return the rows (..., T, D) of `positions` (..., T); or embeddings (B, T, D) with the rows of 0 to T - 1."""
        if positions.dim() == 3 and positions.is_floating_point():
            return _added(self, positions, self.d_model)
        return sinusoid(positions + self.offset, self.d_model, self.layout, self.ends_at_base)


class LearnedPositions(nn.Module):
    """Learned position embeddings: one row for each of `max_len` positions; position 0 is row `offset`.

    The module takes positions, or embeddings (B, T, D), to which it adds its rows.
    """

    @takes_other_names
    def __init__(self, max_len: int, d_model: int, offset: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(max_len + number("offset", offset, 0, whole=True), d_model)
        self.max_len, self.offset = max_len, offset

    def forward(self, positions: Tensor) -> Tensor:
        """Return the rows (..., T, D) of `positions` (..., T); or embeddings (B, T, D) with the rows of 0 to T - 1."""
        if positions.dim() == 3 and positions.is_floating_point():
            return _added(self, positions, self.table.embedding_dim)
        return self.table(positions + self.offset)


def _added(positions: nn.Module, x: Tensor, width: int) -> Tensor:
    """Return embeddings (B, T, D) with the rows of the positions 0 to T - 1."""
    if x.dim() != 3 or x.shape[2] != width:
        raise wrong_activations("embeddings", x, width, "d_model")
    if x.shape[1] > getattr(positions, "max_len", math.inf):
        raise ValueError(f"embeddings: expected at most {positions.max_len} positions (max_len), got {x.shape[1]}")
    return x + positions(torch.arange(x.shape[1], device=x.device)).to(x.dtype)


class _ExactBuffers(nn.Module):
    """Module whose buffers move to its device but keep their dtype when the model is cast.

    A frequency rounded to half precision gives distant tokens wrong angles.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "_ExactBuffers":
        def move(x: Tensor) -> Tensor:
            moved = fn(x)
            return moved if moved.dtype == x.dtype else x.to(moved.device)

        return super()._apply(move, recurse)


class Rotary(_ExactBuffers):
    """Cosines and sines of the angles that rotate queries and keys (Su 2021, section 3.2.2).

    `inverse_frequencies` (K'/2,) are in radians per token; K' is the width of the rotated part of the head.
    `attention_factor` multiplies cosines and sines (YaRN). They are computed in fp32 for every model precision.
    """

    inverse_frequencies: Tensor

    def __init__(self, inverse_frequencies: Tensor, attention_factor: float = 1.0) -> None:
        super().__init__()
        if not isinstance(inverse_frequencies, Tensor):
            raise TypeError("Rotary needs a tensor of frequencies: Rotary(rotary_frequencies(10_000.0, d_rotary))")
        self.register_buffer("inverse_frequencies", inverse_frequencies.float(), persistent=False)
        self.attention_factor = attention_factor

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin, each (1 or B, 1, T, K'), for `positions` (T,) or (B, T)."""
        angle = positions[..., None, :, None] * self.inverse_frequencies  # (B, 1, T, K'/2)
        angle = with_rows(torch.cat((angle, angle), -1), 4)
        cos, sin = angle.cos(), angle.sin()
        if self.attention_factor != 1:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        return cos, sin


def rotary_frequencies(base: float, d_rotary: int) -> Tensor:
    """Compute θᵢ = base^(-2i/K'), i = 0 … K'/2 - 1, in radians per token (Su 2021, equation 15).

    >>> rotary_frequencies(10000.0, 4)
    tensor([1.0000, 0.0100])
    """
    require_even(d_rotary, "rotary")
    return base ** -(torch.arange(0, d_rotary, 2, dtype=torch.float32) / d_rotary)


def linear_scaled(frequencies: Tensor, factor: float) -> Tensor:
    """Divide every angle by the factor: position interpolation (Chen 2023)."""
    return frequencies / factor


def llama3_scaled(
    frequencies: Tensor, factor: float, low_freq_factor: float, high_freq_factor: float, original_max_len: int
) -> Tensor:
    """Divide low frequencies by the factor, keep high frequencies, and blend linearly in between (as in Llama 3.1)."""
    turns = original_max_len * frequencies / (2 * math.pi)  # full turns over the original context
    keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0, 1)
    return keep * frequencies + (1 - keep) * frequencies / factor


def yarn_scaled(
    frequencies: Tensor, base: float, factor: float, original_max_len: int, beta_fast: float, beta_slow: float
) -> tuple[Tensor, float]:
    """Return NTK-by-parts frequencies and the attention factor 0.1·ln(factor) + 1 (Peng 2023, sections 3.2 and 3.4)."""
    n = len(frequencies)

    def index_of(turns: float) -> float:
        """Return the fractional index of the frequency that makes `turns` full turns over the original context."""
        return n * math.log(original_max_len / (turns * 2 * math.pi)) / math.log(base)

    low = max(math.floor(index_of(beta_fast)), 0)
    high = min(math.ceil(index_of(beta_slow)), 2 * n - 1)
    # Contexts of a few tokens give high < low; the formula is kept, to match other implementations.
    ramp = ((torch.arange(n, dtype=torch.float32) - low) / ((high - low) or 1e-3)).clamp(0, 1)
    scaled = frequencies * (1 - ramp) + frequencies / factor * ramp
    return scaled, 0.1 * math.log(max(factor, 1.0)) + 1.0


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pair (i, i + K'/2) of each head by its angle (half-split layout); the rest of the head is unchanged.

    `x` (B, H, T, K), `cos` and `sin` (1 or B, 1, T, K') with K' ≤ K.
    """
    width = cos.shape[-1]
    if width < x.shape[-1]:
        turned = apply_rotary(x[..., :width], cos, sin)
        return torch.cat((turned, x[..., width:]), -1)
    if cos.dtype != x.dtype:
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), -1) * sin


def alibi_slopes(n_heads: int) -> list[float]:
    """Return the slopes of H heads: 2^(-8h/H), h = 1 … H, if H is a power of two (Press 2022).

    For another H, the slopes of the next lower power of two come first, then every other slope of the next higher one.

    >>> alibi_slopes(4)
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return slopes + [2 ** (-4 * (h + 1) / power) for h in range(0, 2 * (n_heads - power), 2)]


class AlibiBias(_ExactBuffers):
    """Score bias `-slope · |query position - key position|`, with one untrained slope per head (Press 2022)."""

    slopes: Tensor

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor(alibi_slopes(n_heads)), persistent=False)

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias (1 or B, H, T, S) for query positions (T,) or (B, T) and key positions (S,) or (B, S)."""
        distance = with_rows((query_positions[..., :, None] - key_positions[..., None, :]).abs(), 3)
        return -self.slopes[:, None, None] * distance[:, None]


def relative_bucket(distance: Tensor, n_buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """Return the bucket of `distance` = key position - query position (Raffel 2020, section 2.1, and its public code).

    Half of the buckets (of each direction, if bidirectional) hold one distance each. The other buckets hold ranges of
    distances, which grow logarithmically up to `max_distance`. All larger distances share the last bucket.

    >>> relative_bucket(torch.tensor([0, -1, -200]), 32, 128, bidirectional=False)
    tensor([ 0,  1, 31])
    """
    bucket = torch.zeros_like(distance)
    if bidirectional:
        n_buckets //= 2
        bucket = (distance > 0).long() * n_buckets
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    n_exact = n_buckets // 2
    growth = torch.log(distance.clamp(min=1).float() / n_exact) / math.log(max_distance / n_exact)
    far = (n_exact + (growth * (n_buckets - n_exact)).long()).clamp(max=n_buckets - 1)
    return bucket + torch.where(distance < n_exact, distance, far)


class RelativeBias(nn.Module):
    """Learned score bias table[bucket(key position - query position), head], with one table per stack."""

    def __init__(self, n_heads: int, n_buckets: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(n_buckets, n_heads)
        number("n_buckets", n_buckets, 4, 2 * max_distance - 1, whole=True)
        self.max_distance, self.bidirectional = max_distance, bidirectional

    def forward(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias (1 or B, H, T, S) for query positions (T,) or (B, T) and key positions (S,) or (B, S)."""
        distance = with_rows(key_positions[..., None, :] - query_positions[..., :, None], 3)
        bucket = relative_bucket(distance, self.table.num_embeddings, self.max_distance, self.bidirectional)
        return self.table(bucket).permute(0, 3, 1, 2)
