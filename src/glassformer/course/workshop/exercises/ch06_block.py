"""Chapter 6: norms, the feed-forward layer and the block."""

import inspect

import torch
from torch import Tensor

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.exercises.draws import mask, normal
from glassformer.course.workshop.solutions.ch06_block import (
    block,
    dropout,
    feed_forward,
    gelu,
    layer_norm,
    rms_norm,
)

CHAPTER = "course/06-the-block"
NORM = f"{CHAPTER}#layernorm-from-its-formula"
ORDER = f"{CHAPTER}#before-after-or-both"
LAYER = f"{CHAPTER}#the-feed-forward-layer"
RESIDUAL = f"{CHAPTER}#residual-connections"
PITFALLS = "pitfalls"
BODY = inspect.getsource(block).rpartition('"""\n')[2]
POST_NORM = """\
    h = layer_norm(x + multi_head_attention(x, x, w, n_heads, allowed), w["norm_1"], w["norm_1_bias"], 1e-5)
    return layer_norm(h + feed_forward(h, w), w["norm_2"], w["norm_2_bias"], 1e-5)
"""
OUTPUT_NORM = """\
    h = x + layer_norm(multi_head_attention(x, x, w, n_heads, allowed), w["norm_1"], w["norm_1_bias"], 1e-5)
    return h + layer_norm(feed_forward(h, w), w["norm_2"], w["norm_2_bias"], 1e-5)
"""
OTHER_NORMS = BODY.replace("norm_1", "norm_0").replace("norm_2", "norm_1").replace("norm_0", "norm_2")
FEED_FORWARD_FIRST = """\
    h = x + feed_forward(layer_norm(x, w["norm_2"], w["norm_2_bias"], 1e-5), w)
    normed = layer_norm(h, w["norm_1"], w["norm_1_bias"], 1e-5)
    return h + multi_head_attention(normed, normed, w, n_heads, allowed)
"""


def norm_cases() -> list[tuple[object, ...]]:
    weight, bias = normal(4, seed=1), normal(4, seed=2)
    x = torch.cat((normal(2, 3, 4) + 2, torch.full((2, 1, 4), 3.0)), dim=1)
    return [(x, weight, bias, 1e-5), (0.01 * x, weight, bias, 1e-3)]


def rms_cases() -> list[tuple[object, ...]]:
    x = torch.cat((normal(2, 3, 4) + 1, torch.zeros(2, 1, 4)), dim=1)
    return [(x, normal(4, seed=1), 1e-5), (0.01 * x, normal(4, seed=1), 1e-3)]


def layer(width: int, d_ff: int) -> dict[str, Tensor]:
    """Draw the weights of a feed-forward layer."""
    shapes = {"up": (width, d_ff), "up_bias": (d_ff,), "down": (d_ff, width), "down_bias": (width,)}
    return {name: normal(*shape, seed=i) for i, (name, shape) in enumerate(shapes.items(), 20)}


def block_cases() -> list[tuple[object, ...]]:
    w = {name: normal(6, 6, seed=i) for i, name in enumerate("qkvo", 1)} | layer(6, 8)
    w |= {name: normal(6, seed=i) for i, name in enumerate(("norm_1", "norm_1_bias", "norm_2", "norm_2_bias"), 10)}
    own = torch.eye(4, dtype=torch.bool)
    allowed = torch.stack((own | own.roll(1, 0), own | own.roll(2, 0)))[:, None]  # each query has keys, but not all
    small = (1e-3 * normal(2, 4, 6), w | {"o": 1e-3 * w["o"]}, allowed, 2)  # the numbers that a norm adds matter
    return [(3 * normal(2, 4, 6), w, allowed, 2), (normal(2, 4, 6, seed=9), w, allowed.flip(0), 3), small]


EXERCISES = (
    Exercise(
        layer_norm,
        NORM,
        norm_cases,
        (
            Mistake(
                "The variance is unbiased (divided by D - 1): divide by D. In torch, `var` needs correction=0.",
                "centred.square().mean(dim=-1, keepdim=True)",
                "x.var(dim=-1, keepdim=True)",
                pitfall=13,
            ),
            Mistake(
                "The number eps is added to the standard deviation: add it to the variance, inside the root.",
                "(variance + eps).sqrt()",
                "(variance.sqrt() + eps)",
                pitfall=13,
            ),
            Mistake(
                "The number eps is added to the standard deviation: add it to the variance, inside the root.",
                "variance = centred.square().mean(dim=-1, keepdim=True)\n    return centred / (variance + eps).sqrt()",
                "deviation = x.std(dim=-1, keepdim=True, correction=0)\n    return centred / (deviation + eps)",
                pitfall=13,
            ),
            Mistake(
                "The variance is unbiased (divided by D - 1), and eps is added to the standard deviation: divide by D, "
                "and add eps inside the root.",
                "variance = centred.square().mean(dim=-1, keepdim=True)\n    return centred / (variance + eps).sqrt()",
                "deviation = x.std(dim=-1, keepdim=True)\n    return centred / (deviation + eps)",
                pitfall=13,
            ),
            Mistake(
                "The number eps is not used, so a token with equal numbers gives 0 / 0, which is NaN.",
                "centred / (variance + eps)",
                "centred / variance",
            ),
            Mistake(
                "The mean and the variance are over all tokens: take them over the last axis.",
                "x.mean(dim=-1, keepdim=True)\n    variance = centred.square().mean(dim=-1, keepdim=True)",
                "x.mean(dim=-2, keepdim=True)\n    variance = centred.square().mean(dim=-2, keepdim=True)",
            ),
            Mistake(
                "The mean and the variance are over tokens and width together: take them over the last axis.",
                "x.mean(dim=-1, keepdim=True)\n    variance = centred.square().mean(dim=-1, keepdim=True)",
                "x.mean(dim=(-2, -1), keepdim=True)\n    variance = centred.square().mean(dim=(-2, -1), keepdim=True)",
            ),
            Mistake(
                "The mean is not subtracted: this is RMSNorm with a bias.",
                "centred = x - x.mean(dim=-1, keepdim=True)",
                "centred = x",
            ),
            Mistake("The differences are divided by the variance: divide by its root.", ".sqrt()", ""),
            Mistake("The bias is missing.", "* weight + bias", "* weight"),
            Mistake("The weight is missing.", " * weight", ""),
            Mistake("The mean is not subtracted in the numerator.", "return centred /", "return x /"),
            Mistake(
                "The variance is the mean of x²: take the mean of the squared differences from the mean.",
                "centred.square()",
                "x.square()",
            ),
            Mistake(
                "The mean and the variance are over the texts: take them over the last axis.",
                "x.mean(dim=-1, keepdim=True)\n    variance = centred.square().mean(dim=-1, keepdim=True)",
                "x.mean(dim=0, keepdim=True)\n    variance = centred.square().mean(dim=0, keepdim=True)",
            ),
            Mistake(
                "The bias is added before the multiplication by the weight: add it at the end.",
                "centred / (variance + eps).sqrt() * weight + bias",
                "(centred / (variance + eps).sqrt() + bias) * weight",
            ),
            Mistake(
                "The number eps is fixed: use the argument.", "(variance + eps).sqrt()", "(variance + 1e-5).sqrt()"
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        rms_norm,
        NORM,
        rms_cases,
        (
            Mistake(
                "The mean is subtracted, as in LayerNorm: RMSNorm only divides.",
                "return x / (x.square()",
                "x = x - x.mean(dim=-1, keepdim=True)\n    return x / (x.square()",
            ),
            Mistake(
                "The number eps is added to the root: add it to the mean of the squares.",
                "(x.square().mean(dim=-1, keepdim=True) + eps).sqrt()",
                "(x.square().mean(dim=-1, keepdim=True).sqrt() + eps)",
            ),
            Mistake(
                "The token is divided by its length, the root of the sum: take the root of the mean.",
                "mean(",
                "sum(",
            ),
            Mistake(
                "The number eps is not used, so a token of zeros gives 0 / 0, which is NaN.",
                "keepdim=True) + eps",
                "keepdim=True)",
            ),
            Mistake("The root is missing.", ".sqrt()", ""),
            Mistake("The mean is over all tokens: take it over the last axis.", "dim=-1", "dim=-2"),
            Mistake("The weight is missing.", " * weight\n", "\n"),
            Mistake(
                "The weight is added to 1, as in Gemma: multiply by the weight itself.", "* weight", "* (1 + weight)"
            ),
            Mistake(
                "This is the square of the mean: take the mean of the squares.",
                "x.square().mean(dim=-1, keepdim=True)",
                "x.mean(dim=-1, keepdim=True).square()",
            ),
            Mistake(
                "The number eps is that of the type, as in torch's rms_norm without eps: use the argument.",
                "keepdim=True) + eps",
                "keepdim=True) + torch.finfo(x.dtype).eps",
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        gelu,
        LAYER,
        lambda: [(3 * normal(2, 20),), (torch.linspace(-6, 6, 49),)],
        (
            Mistake(
                "This is the approximation by a tanh, which GPT-2 uses: it differs by up to 0.0005. Use erf.",
                "x * (1 + torch.erf(x / math.sqrt(2))) / 2",
                "x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2",
            ),
            Mistake(
                "This is the approximation x · σ(1.702 x), which differs by up to 0.02: use erf.",
                "x * (1 + torch.erf(x / math.sqrt(2))) / 2",
                "x * torch.sigmoid(1.702 * x)",
            ),
            Mistake(
                "This is SiLU, x · σ(x): use the distribution function of the normal distribution.",
                "x * (1 + torch.erf(x / math.sqrt(2))) / 2",
                "x * torch.sigmoid(x)",
            ),
            Mistake(
                "This is ReLU: a small negative number must not become 0.",
                "x * (1 + torch.erf(x / math.sqrt(2))) / 2",
                "x.relu()",
            ),
            Mistake("The division by √2 inside erf is missing.", "x / math.sqrt(2)", "x"),
            Mistake("This is Φ(x): multiply it by x.", "return x * (1", "return (1"),
            Mistake("The division by 2 is missing: Φ lies between 0 and 1.", ") / 2\n", ")\n"),
            Mistake(
                "The 1 is missing: Φ(x) = (1 + erf(x / √2)) / 2.",
                "(1 + torch.erf(x / math.sqrt(2)))",
                "torch.erf(x / math.sqrt(2))",
            ),
            Mistake("x is divided by 2 inside erf: divide it by √2.", "math.sqrt(2)", "2"),
            Mistake("x is multiplied by √2 inside erf: divide it.", "x / math.sqrt(2)", "x * math.sqrt(2)"),
        ),
        has_gradient=True,
    ),
    Exercise(
        feed_forward,
        LAYER,
        lambda: [(normal(2, 3, 4), layer(4, 8))],
        (
            Mistake(
                "Without the activation, both matrices together are one linear layer.",
                'gelu(x @ w["up"] + w["up_bias"])',
                '(x @ w["up"] + w["up_bias"])',
            ),
            Mistake(
                "The activation comes at the end: apply it between the two matrices.",
                'gelu(x @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"]',
                'gelu((x @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"])',
            ),
            Mistake(
                "The first bias is added after the activation: add it before.",
                'gelu(x @ w["up"] + w["up_bias"])',
                '(gelu(x @ w["up"]) + w["up_bias"])',
            ),
            Mistake("The activation is ReLU: use GELU.", "return gelu(", "return torch.relu("),
            Mistake("The second bias is missing.", ' + w["down_bias"]', ""),
            Mistake("The first bias is missing.", ' + w["up_bias"]', ""),
            Mistake(
                "The activation comes also at the end: apply it only between the two matrices.",
                'return gelu(x @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"]',
                'return gelu(gelu(x @ w["up"] + w["up_bias"]) @ w["down"] + w["down_bias"])',
            ),
            Mistake(
                "The residual connection is in this layer: leave it out, because the block adds x.",
                "return gelu(",
                "return x + gelu(",
            ),
            Mistake(
                "The activation is GELU with a tanh: use the exact GELU.",
                'gelu(x @ w["up"] + w["up_bias"])',
                'torch.nn.functional.gelu(x @ w["up"] + w["up_bias"], approximate="tanh")',
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        block,
        f"{CHAPTER}#a-block-from-its-parts",
        block_cases,
        (
            Mistake(
                "This is post-norm, as in the first Transformer: apply the norms before attention and feed-forward.",
                BODY,
                POST_NORM,
                ORDER,
                pitfall=12,
            ),
            Mistake("The residual connection around the attention is missing.", "h = x + multi", "h = multi", RESIDUAL),
            Mistake(
                "The residual connection around the feed-forward layer is missing.",
                "return h + feed_forward",
                "return feed_forward",
                RESIDUAL,
            ),
            Mistake(
                "The attention is added to the normalised stream: add it to x itself.",
                "h = x + multi",
                "h = normed + multi",
                ORDER,
            ),
            Mistake(
                "The feed-forward layer is added to x, so the attention is lost: add it to h.",
                "return h + feed_forward",
                "return x + feed_forward",
                RESIDUAL,
            ),
            Mistake(
                "The feed-forward layer reads x, side by side with the attention: it must read h.",
                "feed_forward(layer_norm(h,",
                "feed_forward(layer_norm(x,",
            ),
            Mistake(
                "Both norms have the weights of the first one.",
                'w["norm_2"], w["norm_2_bias"]',
                'w["norm_1"], w["norm_1_bias"]',
            ),
            Mistake(
                "The feed-forward layer reads the stream without a norm.",
                'layer_norm(h, w["norm_2"], w["norm_2_bias"], 1e-5)',
                "h",
                ORDER,
            ),
            Mistake(
                "The attention reads the stream without a norm.",
                'layer_norm(x, w["norm_1"], w["norm_1_bias"], 1e-5)',
                "x",
                ORDER,
            ),
            Mistake(
                "The mask is ignored: hide the keys that are not allowed.",
                "n_heads, allowed)",
                "n_heads, torch.ones_like(allowed))",
                PITFALLS,
                pitfall=9,
            ),
            Mistake(
                'The last matrix of the attention, w["o"], is missing.',
                "normed, w, n_heads",
                'normed, w | {"o": torch.eye(x.shape[-1])}, n_heads',
            ),
            Mistake("There is only one head: use `n_heads`.", "n_heads, allowed)", "1, allowed)"),
            Mistake(
                "Your mask is causal: use `allowed`, which may hide other keys.",
                "n_heads, allowed)",
                "n_heads, torch.ones_like(allowed).tril())",
                PITFALLS,
                pitfall=10,
            ),
            Mistake(
                "The mask is inverted: True means that a query may attend to a key.",
                "n_heads, allowed)",
                "n_heads, ~allowed)",
                PITFALLS,
                pitfall=6,
            ),
            Mistake(
                "The feed-forward layer is added to the normalised stream: add it to h itself.",
                'return h + feed_forward(layer_norm(h, w["norm_2"], w["norm_2_bias"], 1e-5), w)',
                'h = layer_norm(h, w["norm_2"], w["norm_2_bias"], 1e-5)\n    return h + feed_forward(h, w)',
                ORDER,
            ),
            Mistake(
                "The norms are at the outputs of attention and feed-forward: move them to the inputs.",
                BODY,
                OUTPUT_NORM,
                ORDER,
                pitfall=12,
            ),
            Mistake("The feed-forward layer comes first: it must come after the attention.", BODY, FEED_FORWARD_FIRST),
            Mistake(
                "Each norm has the weights of the other one: norm_1 must be before the attention.", BODY, OTHER_NORMS
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        dropout,
        f"{CHAPTER}#dropout",
        lambda: [(normal(3, 8), mask(3, 8), 0.3), (normal(5, seed=1), torch.ones(5, dtype=torch.bool), 0.0)],
        (
            Mistake(
                "The numbers that are kept are not divided by 1 - rate, so the mean shrinks in training.",
                " / (1 - rate)",
                "",
            ),
            Mistake(
                "The numbers that are kept are multiplied by 1 - rate: divide by it.", "/ (1 - rate)", "* (1 - rate)"
            ),
            Mistake("The numbers that are kept are divided by the rate: divide by 1 - rate.", "(1 - rate)", "rate"),
            Mistake("The mask is inverted: True keeps a number.", "x * keep", "x * ~keep"),
            Mistake(
                "The numbers are divided by the share that was kept in this draw: divide by its expected value, 1 - "
                "rate.",
                "(1 - rate)",
                "keep.float().mean()",
            ),
            Mistake(
                "Dropout is applied twice.", "x * keep / (1 - rate)", "x * keep / (1 - rate) ** 2", PITFALLS, pitfall=14
            ),
        ),
        has_gradient=True,
    ),
)
