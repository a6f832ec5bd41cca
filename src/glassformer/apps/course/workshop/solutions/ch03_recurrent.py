"""Chapter 3: the recurrent cells, the loss and a step of training.

Shapes: B texts, T tokens, E width of the input, D width of the state, V size of the vocabulary.
"""

import math

from torch import Tensor


def gru_step(x: Tensor, h: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Return the next state (B, D) of a gated recurrent unit, for an input `x` (B, E) and a state `h` (B, D).

    r = σ(W x + U h), z = σ(W x + U h), n = tanh(W x + r ∘ U h), h' = (1 - z) ∘ n + z ∘ h, each with its own matrices
    and two biases: W x stands for W x + b, and U h for U h + b'. So r multiplies b' too, and z keeps the old state.
    `w` has torch's names: "weight_ih" (3 D, E) has the rows of W for r, then for z, then for n; "bias_ih" (3 D,) is
    its bias b; "weight_hh" (3 D, D) and "bias_hh" (3 D,) are U and b', in the same order.
    """
    x_reset, x_keep, x_new = (x @ w["weight_ih"].T + w["bias_ih"]).chunk(3, dim=-1)
    h_reset, h_keep, h_new = (h @ w["weight_hh"].T + w["bias_hh"]).chunk(3, dim=-1)
    reset, keep = (x_reset + h_reset).sigmoid(), (x_keep + h_keep).sigmoid()
    new = (x_new + reset * h_new).tanh()
    return (1 - keep) * new + keep * h


def lstm_step(x: Tensor, h: Tensor, c: Tensor, w: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the next state and the next cell, both (B, D), of a long short-term memory.

    i, f, o = σ(W x + U h), g = tanh(W x + U h), c' = f ∘ c + i ∘ g, h' = o ∘ tanh(c'), each with its own matrices and
    two biases. `x` is (B, E); `h` and `c` are (B, D). `w` has torch's names: "weight_ih" (4 D, E) has the rows of W in
    the order i, f, g, o; "bias_ih" (4 D,) is its bias; "weight_hh" (4 D, D) and "bias_hh" (4 D,) belong to U.
    """
    total = x @ w["weight_ih"].T + w["bias_ih"] + h @ w["weight_hh"].T + w["bias_hh"]
    write, keep, new, read = total.chunk(4, dim=-1)
    cell = keep.sigmoid() * c + write.sigmoid() * new.tanh()
    return read.sigmoid() * cell.tanh(), cell


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of -ln softmax(logits)[label] in nats, a tensor without axes.

    `logits` is (B, T, V), and `labels` (B, T) are ids, or -100 at places that do not count, such as padding. At least
    one label counts. Each label belongs to the logits at the same place, so nothing is shifted. The value is finite
    for all finite logits.
    """
    counts = labels != -100
    log_probabilities = logits - logits.logsumexp(dim=-1, keepdim=True)
    nats = -log_probabilities.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return nats[counts].sum() / counts.sum()


def clip_gradients(gradients: list[Tensor], max_norm: float) -> list[Tensor]:
    """Return the gradient of a model, shortened to the length `max_norm` if it is longer.

    `gradients` has one tensor of any shape for each parameter. The length is the root of the sum of the squares
    of all numbers of all tensors. A gradient that is not longer stays unchanged, even a gradient of length 0.
    """
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    if norm <= max_norm:
        return [gradient.clone() for gradient in gradients]
    return [gradient * (max_norm / norm) for gradient in gradients]


def adamw_step(
    weight: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], step: int, rate: float, decay: float
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the weight after one step of AdamW, and its new moments (Loshchilov and Hutter 2019), as in torch.

    The moments m' = 0.9 m + 0.1 g and v' = 0.999 v + 0.001 g² of the gradient g are corrected for their start at 0:
    m' / (1 - 0.9^step) and v' / (1 - 0.999^step), where the first step is 1. The weight moves by
    -rate · (m corrected) / (√(v corrected) + 1e-8), and its decay subtracts rate · decay · weight, with the weight
    before the step. (In the paper, the decay is not multiplied by the largest learning rate, only by the schedule.)
    Return the moments m' and v' without the correction. All tensors have the same shape.
    """
    first, second = moments
    first = 0.9 * first + 0.1 * gradient
    second = 0.999 * second + 0.001 * gradient.square()
    mean = first / (1 - 0.9**step)
    square = second / (1 - 0.999**step)
    decayed = weight - rate * decay * weight
    return decayed - rate * mean / (square.sqrt() + 1e-8), (first, second)


def warmup_then_inverse_root(step: int, warmup: int, peak: float) -> float:
    """Return the learning rate of a step, counted from 1 (Vaswani et al. 2017, equation 3).

    It grows in a line from 0 before the first step to `peak` at step `warmup`, and then falls as 1 / √step. Both parts
    give `peak` at step `warmup`, which is at least 1.
    """
    return peak * min(step / warmup, math.sqrt(warmup / step))
