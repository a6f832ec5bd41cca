"""Chapter 3: the recurrent cells, the loss and a step of training."""

import torch
from torch import Tensor

from glassformer.course.workshop.exercise import Exercise, Mistake
from glassformer.course.workshop.exercises.draws import normal
from glassformer.course.workshop.solutions.ch03_recurrent import (
    adamw_step,
    clip_gradients,
    cross_entropy,
    gru_step,
    lstm_step,
    warmup_then_inverse_root,
)

GATES = "course/03-recurrent-encoder-decoder#gates-gru-and-lstm"
TRAINING = "course/03-recurrent-encoder-decoder#the-loss-and-a-step-of-training"


def cell(n_gates: int, width: int = 4) -> dict[str, Tensor]:
    """Draw the weights of a cell with inputs of width 3 and states of `width`."""
    shapes = {"weight_ih": (3,), "weight_hh": (width,), "bias_ih": (), "bias_hh": ()}
    return {name: normal(width * n_gates, *rest, seed=i) for i, (name, rest) in enumerate(shapes.items())}


def loss_cases() -> list[tuple[Tensor, Tensor]]:
    logits, labels = normal(2, 4, 5), torch.tensor([[1, 4, 0, 2], [3, 2, -100, -100]])
    large = torch.tensor([[[1000.0, 0.0, 0.0], [0.0, 2.0, -1000.0]]])
    return [(logits, labels), (logits, labels.clamp(min=0)), *((large, torch.tensor([[label, 1]])) for label in (0, 1))]


def clip_cases() -> list[tuple[list[Tensor], float]]:
    long, short = [3 * normal(2, 3), normal(4, seed=1)], [torch.tensor([0.3, 0.4]), torch.tensor([[0.1]])]
    return [(long, 1.0), (short, 1.0), (short, 0.45), ([torch.zeros(3)], 1.0)]


def adamw_cases() -> list[tuple[object, ...]]:
    weight, gradient = 3 * normal(2, 3), normal(2, 3, seed=1)
    begin = (torch.zeros(2, 3), torch.zeros(2, 3))
    later = (normal(2, 3, seed=2), normal(2, 3, seed=3).square())
    tiny = torch.tensor([1e-4, 2e-5, 1e-8, 0.0])
    return [
        (weight, gradient, begin, 1, 0.1, 0.5),
        (weight, gradient, later, 7, 0.01, 0.0),
        (torch.ones(4), tiny, (torch.zeros(4), torch.zeros(4)), 1, 0.1, 0.1),
    ]


EXERCISES = (
    Exercise(
        gru_step,
        GATES,
        lambda: [(normal(2, 3, seed=8), normal(2, 4, seed=9), cell(3))],
        (
            Mistake(
                "The gate z is inverted: here, z = 1 keeps the old state.",
                "(1 - keep) * new + keep * h",
                "keep * new + (1 - keep) * h",
            ),
            Mistake(
                "The reset gate multiplies the state before the matrix, as in the paper: here, it multiplies the "
                "product with its bias.",
                "reset * h_new)",
                '(reset * h) @ w["weight_hh"].chunk(3)[2].T + w["bias_hh"].chunk(3)[2])',
            ),
            Mistake(
                "The reset gate multiplies the product without its bias: it multiplies the bias b' too.",
                "reset * h_new)",
                'reset * (h_new - w["bias_hh"].chunk(3)[2]) + w["bias_hh"].chunk(3)[2])',
            ),
            Mistake(
                "The reset gate also multiplies the part of the input: only that of the state.",
                "x_new + reset * h_new",
                "reset * (x_new + h_new)",
            ),
            Mistake("The reset gate is not used in the proposal n.", "reset * h_new)", "h_new)"),
            Mistake(
                "The rows of the gates are taken in another order: r comes before z.",
                "reset, keep = (x_reset",
                "keep, reset = (x_reset",
            ),
            Mistake("The bias of the state's part is missing.", ' + w["bias_hh"]', ""),
            Mistake("The bias of the input's part is missing.", ' + w["bias_ih"]', ""),
            Mistake(
                "The proposal n is a tanh, and not a σ: it can be negative.",
                "(x_new + reset * h_new).tanh()",
                "(x_new + reset * h_new).sigmoid()",
            ),
            Mistake("The proposal n needs a tanh.", ".tanh()", ""),
            Mistake(
                "The gates are σ, and not tanh: they lie between 0 and 1.",
                "(x_reset + h_reset).sigmoid(), (x_keep + h_keep).sigmoid()",
                "(x_reset + h_reset).tanh(), (x_keep + h_keep).tanh()",
            ),
            Mistake("The old state is not kept: add z ∘ h.", " + keep * h\n", "\n"),
        ),
        has_gradient=True,
    ),
    Exercise(
        lstm_step,
        GATES,
        lambda: [
            (normal(2, 3, seed=7), normal(2, width, seed=8), normal(2, width, seed=9), cell(4, width))
            for width in (4, 6)
        ],
        (
            Mistake(
                "The rows are taken in the order i, f, o, g: g must come before o.",
                "write, keep, new, read",
                "write, keep, read, new",
            ),
            Mistake(
                "The gates i and f are exchanged: i must multiply the proposal, and f the old cell.",
                "write, keep, new, read",
                "keep, write, new, read",
            ),
            Mistake(
                "The old cell is multiplied by 1 - f: multiply it by f.",
                "keep.sigmoid() * c",
                "(1 - keep.sigmoid()) * c",
            ),
            Mistake(
                "The state is computed from the old cell: use the new one, c'.",
                "read.sigmoid() * cell.tanh()",
                "read.sigmoid() * c.tanh()",
            ),
            Mistake("The state has c' itself: use tanh(c').", "cell.tanh()", "cell"),
            Mistake("The proposal g is a σ: use a tanh, which can be negative.", "new.tanh()", "new.sigmoid()"),
            Mistake(
                "State and cell are returned in the wrong order: return h' first, then c'.",
                "return read.sigmoid() * cell.tanh(), cell",
                "return cell, read.sigmoid() * cell.tanh()",
            ),
            Mistake("The bias of the state's part is missing.", ' + w["bias_hh"]', ""),
            Mistake("The bias of the input's part is missing.", ' + w["bias_ih"]', ""),
            Mistake("The proposal g needs a tanh.", "new.tanh()", "new"),
            Mistake(
                "The gate f multiplies the old state: it must multiply the old cell.",
                "keep.sigmoid() * c",
                "keep.sigmoid() * h",
            ),
            Mistake("The old cell is not multiplied by the gate f.", "keep.sigmoid() * c", "c"),
        ),
        has_gradient=True,
    ),
    Exercise(
        cross_entropy,
        TRAINING,
        loss_cases,
        (
            Mistake(
                "The logarithm of a softmax that underflows is -inf: subtract the logarithm of the sum, `logsumexp`.",
                "logits - logits.logsumexp(dim=-1, keepdim=True)",
                "logits.softmax(dim=-1).log()",
            ),
            Mistake(
                "The sum is divided by the number of all places: divide by the number of labels that count.",
                "counts.sum()",
                "counts.numel()",
                pitfall=19,
            ),
            Mistake(
                "Places with the label -100 count as if their label were 0: leave them out.",
                "nats[counts].sum() / counts.sum()",
                "nats.mean()",
                pitfall=19,
            ),
            Mistake(
                "This is the mean of the means of the rows, so a label in a short row has more weight: divide the sum "
                "of all labels by their number.",
                "nats[counts].sum() / counts.sum()",
                "((nats * counts).sum(1) / counts.sum(1)).mean()",
                pitfall=19,
            ),
            Mistake("This is the sum: divide it by the number of labels that count.", " / counts.sum()", ""),
            Mistake(
                "This is in bits: use the natural logarithm for nats.",
                "return nats[counts].sum()",
                "return nats[counts].sum() / math.log(2)",
            ),
            Mistake(
                "The labels are shifted here too: a label belongs to the logits at the same place. Shift once, where "
                "the labels are made.",
                "counts = labels != -100",
                "logits, labels = logits[:, :-1], labels[:, 1:]\n    counts = labels != -100",
                pitfall=18,
            ),
            Mistake(
                "The softmax is applied twice: the loss contains it, so do not apply it before.",
                "counts = labels != -100",
                "logits = logits.softmax(dim=-1)\n    counts = labels != -100",
            ),
            Mistake(
                "The exponential of a large logit overflows: subtract the maximum first, or use logsumexp.",
                "logits.logsumexp(dim=-1, keepdim=True)",
                "logits.exp().sum(dim=-1, keepdim=True).log()",
            ),
            Mistake("The sign is wrong: a loss must be positive.", "nats = -log", "nats = log"),
            Mistake(
                "The sum is divided by the number of texts: divide by the number of labels that count.",
                "/ counts.sum()",
                "/ len(labels)",
            ),
            Mistake(
                "The softmax is over the tokens of a text: take it over the vocabulary, the last axis.",
                "logits.logsumexp(dim=-1,",
                "logits.logsumexp(dim=1,",
            ),
            Mistake(
                "This is the perplexity: return its logarithm, the loss.",
                "return nats[counts].sum() / counts.sum()",
                "return (nats[counts].sum() / counts.sum()).exp()",
            ),
            Mistake("Labels with the id 0 are left out: leave out only -100.", "labels != -100", "labels > 0"),
            Mistake(
                "A small number is added to the probability, which hides large losses: use logsumexp.",
                "logits - logits.logsumexp(dim=-1, keepdim=True)",
                "(logits.softmax(dim=-1) + 1e-9).log()",
            ),
            Mistake(
                "The logarithm of the softmax is missing: these are the logits of the labels.",
                "logits - logits.logsumexp(dim=-1, keepdim=True)",
                "logits",
            ),
            Mistake(
                "The exponential of a large logit overflows: subtract the maximum first, or use logsumexp.",
                "logits - logits.logsumexp(dim=-1, keepdim=True)",
                "(logits.exp() / logits.exp().sum(dim=-1, keepdim=True)).log()",
            ),
            Mistake(
                "The id 0 is treated as padding: leave out the label -100, and count 0.",
                "labels != -100",
                "labels != 0",
            ),
        ),
        has_gradient=True,
    ),
    Exercise(
        clip_gradients,
        TRAINING,
        clip_cases,
        (
            Mistake(
                "Each tensor is shortened on its own, which changes the direction of the step: use the one length "
                "of all tensors together.",
                "    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))\n",
                "    if len(gradients) > 1:\n"
                "        return [clip_gradients([gradient], max_norm)[0] for gradient in gradients]\n"
                "    norm = float(gradients[0].norm())\n",
            ),
            Mistake(
                "Each number is cut off at the limit, which changes the direction of the step: multiply all by one "
                "factor.",
                "gradient * (max_norm / norm)",
                "gradient.clamp(-max_norm, max_norm)",
            ),
            Mistake(
                "A short gradient is made longer, and one of length 0 becomes NaN: change only gradients that "
                "are too long.",
                "if norm <= max_norm:",
                "if False:",
            ),
            Mistake(
                "A short gradient is made longer: change only gradients that are too long.",
                "if norm <= max_norm:",
                "if norm == 0:",
            ),
            Mistake(
                "The lengths of the tensors are added: add their squares, and take the root of the sum.",
                "math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))",
                "sum(float(gradient.norm()) for gradient in gradients)",
            ),
            Mistake(
                "The root of the sum of squares is missing, so this is not the length.",
                "math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))",
                "sum(float(gradient.square().sum()) for gradient in gradients)",
            ),
            Mistake(
                "The gradient is divided by its length, without a multiplication by `max_norm`.",
                "(max_norm / norm)",
                "(1 / norm)",
            ),
            Mistake(
                "A short gradient is made longer, and one of length 0 becomes NaN: change only gradients that "
                "are too long.",
                "math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))\n    if norm <= max_norm:",
                "sum(gradient.square().sum() for gradient in gradients).sqrt()\n    if False:",
            ),
            Mistake(
                "The length is that of the last tensor only: add the squares of all tensors.",
                "sum(float(gradient.square().sum()) for gradient in gradients)",
                "float(gradients[-1].square().sum())",
            ),
            Mistake(
                "The largest number is used as the length: take the root of the sum of all squares.",
                "math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))",
                "max(float(gradient.abs().max()) for gradient in gradients)",
            ),
            Mistake("The factor is inverted: use max_norm / norm.", "(max_norm / norm)", "(norm / max_norm)"),
        ),
    ),
    Exercise(
        adamw_step,
        TRAINING,
        adamw_cases,
        (
            Mistake(
                "The decay is added to the gradient, as in Adam, so that √v divides it: subtract it from the weight.",
                "first, second = moments\n",
                "first, second = moments\n    gradient, decay = gradient + decay * weight, 0.0\n",
            ),
            Mistake(
                "The moments are not corrected for their start at 0.",
                "mean = first / (1 - 0.9**step)\n    square = second / (1 - 0.999**step)",
                "mean, square = first, second",
            ),
            Mistake(
                "The corrected moments are returned, so they are corrected again in the next step: return them "
                "without the correction.",
                "(first, second)",
                "(mean, square)",
            ),
            Mistake(
                "The decay is not multiplied by the learning rate.",
                "rate * decay * weight",
                "decay * weight",
            ),
            Mistake("There is no weight decay.", " - rate * decay * weight", ""),
            Mistake(
                "1e-8 is added inside the root, where it is as large as a small square: add it to the root.",
                "(square.sqrt() + 1e-8)",
                "(square + 1e-8).sqrt()",
            ),
            Mistake("The step divides by v: divide by its root.", "(square.sqrt() + 1e-8)", "(square + 1e-8)"),
            Mistake("The step is added: subtract it.", "decayed - rate", "decayed + rate"),
            Mistake(
                "The correction uses `step` + 1: `step` is 1 at the first step already.",
                "mean = first / (1 - 0.9**step)\n    square = second / (1 - 0.999**step)",
                "mean = first / (1 - 0.9 ** (step + 1))\n    square = second / (1 - 0.999 ** (step + 1))",
            ),
            Mistake("Only m is corrected for its start at 0: correct v too.", "second / (1 - 0.999**step)", "second"),
            Mistake("Only v is corrected for its start at 0: correct m too.", "first / (1 - 0.9**step)", "first"),
            Mistake(
                "The correction uses `step` - 1, and divides by 0 at the first step: `step` is 1 there.",
                "mean = first / (1 - 0.9**step)\n    square = second / (1 - 0.999**step)",
                "mean = first / (1 - 0.9 ** (step - 1))\n    square = second / (1 - 0.999 ** (step - 1))",
            ),
            Mistake(
                "The decay uses the weight after the step: use the weight before it.",
                "decayed = weight - rate * decay * weight\n"
                "    return decayed - rate * mean / (square.sqrt() + 1e-8), (first, second)",
                "moved = weight - rate * mean / (square.sqrt() + 1e-8)\n"
                "    return moved - rate * decay * moved, (first, second)",
            ),
            Mistake(
                "The decay makes the weight larger: subtract it.", "weight - rate * decay", "weight + rate * decay"
            ),
            Mistake(
                "The step uses the gradient itself: use the mean m of the last gradients.",
                "rate * mean /",
                "rate * gradient /",
            ),
            Mistake(
                "The squares in v are the squares of m: take the squares of the gradient.",
                "gradient.square()",
                "first.square()",
            ),
            Mistake("The gradient in v is not squared.", "gradient.square()", "gradient"),
            Mistake(
                "The factors of m are exchanged: multiply the old m by 0.9, and the gradient by 0.1.",
                "0.9 * first + 0.1 * gradient",
                "0.1 * first + 0.9 * gradient",
            ),
            Mistake(
                "1e-8 is missing, so a gradient of 0 gives 0 / 0, which is NaN.",
                "(square.sqrt() + 1e-8)",
                "square.sqrt()",
            ),
        ),
    ),
    Exercise(
        warmup_then_inverse_root,
        TRAINING,
        lambda: [(step, warmup, peak) for warmup, peak in ((4, 1.0), (100, 3.0)) for step in (1, 2, 4, 5, 100, 1000)],
        (
            Mistake(
                "The rate jumps after the warm-up: the inverse root must give `peak` at step `warmup`, so multiply it "
                "by √warmup.",
                "return peak * min(step / warmup, math.sqrt(warmup / step))",
                "return peak * (step / warmup if step <= warmup else 1 / math.sqrt(step))",
            ),
            Mistake(
                "There is no warm-up: the rate must begin near 0.",
                "min(step / warmup, math.sqrt(warmup / step))",
                "min(1.0, math.sqrt(warmup / step))",
            ),
            Mistake(
                "The rate stays at its peak: after the warm-up, it must fall.",
                "min(step / warmup, math.sqrt(warmup / step))",
                "min(step / warmup, 1.0)",
            ),
            Mistake("This is the larger of the two parts: take the smaller one.", "* min(", "* max("),
            Mistake(
                "The rate falls as 1 / step: it must fall as 1 / √step.",
                "math.sqrt(warmup / step)",
                "warmup / step",
            ),
            Mistake(
                "The first step has the rate 0: count steps from 1.",
                "return peak * min(step / warmup, math.sqrt(warmup / step))",
                "return peak * min((step - 1) / warmup, math.sqrt(warmup / max(1, step - 1)))",
            ),
            Mistake(
                "There is no warm-up, so the first rates are above the peak.",
                "min(step / warmup, math.sqrt(warmup / step))",
                "math.sqrt(warmup / step)",
            ),
            Mistake(
                "The warm-up begins at 0, and `peak` comes one step late: divide the step itself by `warmup`.",
                "return peak * min(step / warmup, math.sqrt(warmup / step))",
                "return peak * ((step - 1) / warmup if step <= warmup else math.sqrt(warmup / step))",
            ),
            Mistake(
                "The warm-up is one step ahead: steps are counted from 1 already.",
                "return peak * min(step / warmup, math.sqrt(warmup / step))",
                "return peak * ((step + 1) / warmup if step <= warmup else math.sqrt(warmup / step))",
            ),
            Mistake(
                "The root is of the steps since the warm-up: take all steps.",
                "return peak * min(step / warmup, math.sqrt(warmup / step))",
                "return peak * (step / warmup if step <= warmup else 1 / math.sqrt(step - warmup + 1))",
            ),
            Mistake(
                "The rate grows after the warm-up: use the root of warmup / step.",
                "return peak * min(step / warmup, math.sqrt(warmup / step))",
                "return peak * (step / warmup if step <= warmup else math.sqrt(step / warmup))",
            ),
            Mistake(
                "This is the factor of the paper's formula: multiply it by √warmup, so that step `warmup` has the rate "
                "`peak`.",
                "return peak * min(",
                "return peak / math.sqrt(warmup) * min(",
            ),
        ),
    ),
)
