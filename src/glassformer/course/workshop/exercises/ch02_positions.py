"""Chapter 2: softmax, positions and the first gradient."""

import torch

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.exercises.draws import normal
from glassformer.course.workshop.solutions.ch02_positions import (
    gradient_of_softmax_cross_entropy,
    rotate,
    sinusoids,
    softmax,
)

SECTION = "course/02-embeddings-and-positions"
LOSS = f"{SECTION}#a-loss-and-its-gradient"
LARGE = torch.tensor([[1000.0, 1001.0, 999.0], [-1000.0, -1001.0, -1002.0]])
MAXIMUM = "A row with large scores overflows, and inf / inf is NaN: subtract the maximum of the row first."

EXERCISES = (
    Exercise(
        softmax,
        LOSS,
        lambda: [(normal(2, 3, 4),), (LARGE,), (torch.tensor([[1000.0, 0.0, 0.0]]),)],
        (
            Mistake(MAXIMUM, "(scores - scores.amax(dim=-1, keepdim=True))", "scores"),
            Mistake(
                "The maximum of all rows is subtracted, so a row with much lower scores gives 0 / 0, which is NaN: "
                "subtract the maximum of each row.",
                "scores.amax(dim=-1, keepdim=True)",
                "scores.amax()",
            ),
            Mistake(
                "The weights of all rows together add up to 1: divide by the sum of each row.",
                "exponentials.sum(dim=-1, keepdim=True)",
                "exponentials.sum()",
            ),
            Mistake(
                "The softmax is over another axis: the weights along the last axis must add up to 1.",
                "amax(dim=-1, keepdim=True)).exp()\n    return exponentials / exponentials.sum(dim=-1, keepdim=True)",
                "amax(dim=-2, keepdim=True)).exp()\n    return exponentials / exponentials.sum(dim=-2, keepdim=True)",
            ),
            Mistake(
                "These are the logarithms of the weights: return the weights.",
                "return exponentials / exponentials.sum(dim=-1, keepdim=True)",
                "return scores - scores.logsumexp(dim=-1, keepdim=True)",
            ),
            Mistake(
                "The mean of the row is subtracted, so one large score still overflows: subtract the maximum.",
                "scores.amax(dim=-1, keepdim=True)",
                "scores.mean(dim=-1, keepdim=True)",
            ),
            Mistake(
                "The softmax is over the first axis: the weights along the last axis must add up to 1.",
                "amax(dim=-1, keepdim=True)).exp()\n    return exponentials / exponentials.sum(dim=-1, keepdim=True)",
                "amax(dim=0, keepdim=True)).exp()\n    return exponentials / exponentials.sum(dim=0, keepdim=True)",
            ),
            Mistake(
                "The sum is over another axis: divide by the sum over the last axis.",
                "exponentials.sum(dim=-1,",
                "exponentials.sum(dim=-2,",
            ),
            Mistake(
                "These are the exponentials: divide them by the sum of their row.",
                "return exponentials / exponentials.sum(dim=-1, keepdim=True)",
                "return exponentials",
            ),
            Mistake(
                "These are the logarithms of the weights: return the weights.",
                "return exponentials / exponentials.sum(dim=-1, keepdim=True)",
                "return (exponentials / exponentials.sum(dim=-1, keepdim=True)).log()",
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        sinusoids,
        f"{SECTION}#sines-and-cosines",
        lambda: [(5, 6), (40, 16), (1, 2), (3, 5)],
        (
            Mistake(
                "All sines come before all cosines: put each cosine directly after the sine of the same angle.",
                "torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)",
                "torch.cat((angles.sin(), angles.cos()), dim=-1)",
            ),
            Mistake(
                "The cosine of an angle comes before its sine: exchange them.",
                "(angles.sin(), angles.cos())",
                "(angles.cos(), angles.sin())",
            ),
            Mistake(
                "The exponent is -i / D, so the lowest frequency is too high: use -2i / D.",
                "torch.arange(0, width, 2) / width",
                "torch.arange(width // 2) / width",
            ),
            Mistake(
                "The number of the column is used as i: columns 2i and 2i + 1 must have the same frequency, with 2i in "
                "the exponent.",
                "frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)\n"
                "    angles = torch.arange(n_tokens)[:, None] * frequencies\n"
                "    return torch.stack((angles.sin(), angles.cos()), dim=-1)",
                "frequencies = 10000.0 ** (-2 * torch.arange(width) / width)\n"
                "    angles = torch.arange(n_tokens)[:, None] * frequencies\n"
                "    return torch.stack((angles[:, ::2].sin(), angles[:, 1::2].cos()), dim=-1)",
            ),
            Mistake(
                "The frequencies increase: make the exponent of 10000 negative.",
                "(-torch.arange(0, width, 2) / width)",
                "(torch.arange(0, width, 2) / width)",
            ),
            Mistake(
                "Positions begin with 1: the first one must be 0.",
                "torch.arange(n_tokens)",
                "torch.arange(1, n_tokens + 1)",
            ),
            Mistake(
                "An odd width gives a table of another width: raise ValueError with the width.",
                "if width % 2:",
                "if False:",
                "pitfalls",
                pitfall=16,
            ),
            Mistake(
                "An odd width gives a table whose last sine has no cosine: raise ValueError with the width.",
                'raise ValueError(f"sines and cosines come in pairs, so the width must be even; it is {width}")',
                "return sinusoids(n_tokens, width + 1)[:, :width]",
                "pitfalls",
                pitfall=16,
            ),
            Mistake(
                "An odd width ends in an error of torch about shapes: raise ValueError with the width before that.",
                "raise ValueError",
                "raise RuntimeError",
                "pitfalls",
                pitfall=16,
            ),
            Mistake(
                "The exponent has the factor 2 twice: `arange(0, width, 2)` contains it already.",
                "(-torch.arange(0, width, 2) / width)",
                "(-2 * torch.arange(0, width, 2) / width)",
            ),
            Mistake(
                "Both numbers of a pair are sines: the second one must be a cosine.", "angles.cos()", "angles.sin()"
            ),
            Mistake(
                "The cosine has another frequency: use the frequency of the sine before it.",
                "angles = torch.arange(n_tokens)[:, None] * frequencies\n"
                "    return torch.stack((angles.sin(), angles.cos()), dim=-1)",
                "places = torch.arange(n_tokens)[:, None]\n"
                "    shifted = 10000.0 ** (-(torch.arange(0, width, 2) + 1) / width)\n"
                "    return torch.stack(((places * frequencies).sin(), (places * shifted).cos()), dim=-1)",
            ),
            Mistake(
                "The frequencies increase: make the exponent of 10000 negative.",
                "10000.0 ** (-torch.arange(0, width, 2) / width)",
                "torch.tensor([10000.0 ** (i / width) for i in range(0, width, 2)])",
            ),
            Mistake(
                "The exponent is -i / (D / 2 - 1), as in fairseq and tensor2tensor: the paper has -2i / D.",
                "(-torch.arange(0, width, 2) / width)",
                "(-torch.arange(width // 2) * (1 / (width // 2 - 1)))",
            ),
        ),
    ),
    Exercise(
        rotate,
        f"{SECTION}#rotary-positions",
        lambda: [
            (normal(2, 3, 5, 8), torch.arange(5)),
            (normal(1, 2, 3, 4, seed=1), torch.tensor([7, 8, 9])),
            (normal(1, 1, 4, 6, seed=2), torch.tensor([0, 0, 1, 30])),
        ],
        (
            Mistake(
                "A point consists of the neighbours 2i and 2i + 1, as in the paper: here, take the numbers i and "
                "i + K / 2.",
                "a, b = x.chunk(2, dim=-1)\n    return torch.cat((a * angles.cos() - b * angles.sin(), "
                "a * angles.sin() + b * angles.cos()), dim=-1)",
                "a, b = x[..., ::2], x[..., 1::2]\n    return torch.stack((a * angles.cos() - b * angles.sin(), "
                "a * angles.sin() + b * angles.cos()), dim=-1).flatten(-2)",
            ),
            Mistake(
                "The points are rotated in the wrong direction: exchange the signs of the two sines.",
                "angles = positions",
                "angles = -positions",
            ),
            Mistake(
                "Both sines have the same sign, which is not a rotation: subtract the first one.",
                "angles.cos() - b",
                "angles.cos() + b",
            ),
            Mistake(
                "Positions are counted from 0: use the given `positions`. With a cache, or padding at "
                "the left, the first token has another position.",
                "positions[:, None]",
                "torch.arange(x.shape[-2])[:, None]",
                "course/12-classical-mistakes#positions-counted-from-the-first-column-32",
                pitfall=32,
            ),
            Mistake(
                "The table of angles has one row for each given token, so a later position ends in an error: compute "
                "the angles from `positions`.",
                "positions[:, None] * frequencies",
                "(torch.arange(x.shape[-2])[:, None] * frequencies)[positions]",
                "pitfalls",
                pitfall=11,
            ),
            Mistake(
                "The exponent is -i / K, so the lowest frequency is too high: use -2i / K.",
                "torch.arange(0, width, 2) / width",
                "torch.arange(width // 2) / width",
            ),
            Mistake(
                "The angles are added to the queries or keys: rotate the points by them.",
                "return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)",
                "return x + torch.cat((angles, angles), dim=-1)",
            ),
            Mistake(
                "Sines and cosines are added to the queries or keys, as with absolute positions: rotate the points.",
                "return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)",
                "return x + torch.cat((angles.sin(), angles.cos()), dim=-1)",
            ),
            Mistake(
                "The exponent has the factor 2 twice: `arange(0, width, 2)` contains it already.",
                "(-torch.arange(0, width, 2) / width)",
                "(-2 * torch.arange(0, width, 2) / width)",
            ),
            Mistake(
                "The frequencies increase: make the exponent of 10000 negative.",
                "(-torch.arange(0, width, 2) / width)",
                "(torch.arange(0, width, 2) / width)",
            ),
            Mistake(
                "All points have the same frequency: point i must have 10000^(-2i / K).",
                "positions[:, None] * frequencies",
                "positions[:, None] * torch.ones_like(frequencies)",
            ),
            Mistake(
                "Sine and cosine are exchanged: at position 0, the angle is 0, and a point must not move.",
                "angles = positions[:, None] * frequencies",
                "angles = torch.pi / 2 - positions[:, None] * frequencies",
            ),
            Mistake(
                "The second number uses the new a: keep the old a until both numbers are computed.",
                "a * angles.sin() + b * angles.cos())",
                "(a * angles.cos() - b * angles.sin()) * angles.sin() + b * angles.cos())",
            ),
            Mistake(
                "Points are read from neighbours, and written to two halves: use the numbers i and i + K / 2 for both.",
                "x.chunk(2, dim=-1)",
                "(x[..., ::2], x[..., 1::2])",
            ),
            Mistake(
                "Points are two halves, and each angle is repeated for two neighbours: the numbers i and i + K / 2 "
                "must have the same angle.",
                "return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)",
                "angles = angles.repeat_interleave(2, dim=-1)\n"
                "    return x * angles.cos() + torch.cat((-b, a), dim=-1) * angles.sin()",
            ),
            Mistake(
                "Points are neighbours, and the angles are repeated for two halves: use the numbers i and i + K / 2 "
                "for both.",
                "return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), dim=-1)",
                "angles = torch.cat((angles, angles), dim=-1)\n"
                "    turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)\n"
                "    return x * angles.cos() + turned * angles.sin()",
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        gradient_of_softmax_cross_entropy,
        LOSS,
        lambda: [(normal(5), 2), (normal(3, seed=1), 0), (LARGE[0], 1)],
        (
            Mistake(
                "The sign is wrong: the gradient of the label's logit must be negative, because a larger logit makes "
                "the "
                "loss smaller.",
                "return gradient",
                "return -gradient",
            ),
            Mistake(
                "These are the probabilities: subtract 1 from the probability of the label.",
                "    gradient[label] -= 1.0\n",
                "",
            ),
            Mistake(
                "Only the label's logit has a gradient: each logit changes the sum in the softmax, so each has one.",
                "return gradient",
                "return torch.zeros_like(gradient).index_fill(0, torch.tensor(label), float(gradient[label]))",
            ),
            Mistake(
                "This is the gradient with respect to the probability of the label, -1 / p: continue with the "
                "derivative of the softmax.",
                "gradient = softmax(logits)\n    gradient[label] -= 1.0",
                "gradient = torch.zeros_like(logits)\n    gradient[label] = -1.0 / softmax(logits)[label]",
            ),
            Mistake(
                "This is the gradient of the probability of the label: its logarithm is missing in the derivative.",
                "gradient = softmax(logits)\n    gradient[label] -= 1.0",
                "p = softmax(logits)\n    gradient = -p * p[label]\n    gradient[label] += p[label]",
            ),
            Mistake(MAXIMUM, "= softmax(logits)", "= logits.exp() / logits.exp().sum()"),
            Mistake(
                "The 1 is subtracted from the logit: subtract it from the probability of the label.",
                "gradient = softmax(logits)",
                "gradient = logits.clone()",
            ),
            Mistake(
                "The gradient is divided by the number of tokens: the loss has one label, so nothing is divided.",
                "return gradient",
                "return gradient / len(gradient)",
            ),
        ),
    ),
)
