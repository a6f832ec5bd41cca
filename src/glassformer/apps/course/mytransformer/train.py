"""Losses, a step of training, and the loop that can be stopped and resumed."""

import ctypes
import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def softmax(scores: Tensor) -> Tensor:
    """Return exp(score) / Σ exp(scores) over the last axis; same shape as `scores` (…,
    V).

    The result is finite for all finite scores, also where the exponential is too large
    for its type: the softmax does not change if the maximum of its row is subtracted
    from all scores of the row.
    """
    exponentials = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def gradient_of_softmax_cross_entropy(logits: Tensor, label: int) -> Tensor:
    """Return the gradient of -ln softmax(logits)[label] with respect to the logits
    (V,): a tensor (V,).

    Derive it on paper, and use no automatic differentiation. It is finite for all
    finite logits.
    """
    gradient = softmax(logits)
    gradient[label] -= 1.0
    return gradient


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of -ln softmax(logits)[label] in nats, a tensor without axes.

    `logits` is (B, T, V), and `labels` (B, T) are ids, or -100 at places that do not
    count, such as padding. At least one label counts. Each label belongs to the logits
    at the same place, so nothing is shifted. The value is finite for all finite logits.
    """
    counts = labels != -100
    log_probabilities = logits - logits.logsumexp(dim=-1, keepdim=True)
    nats = -log_probabilities.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return nats[counts].sum() / counts.sum()


def clip_gradients(gradients: list[Tensor], max_norm: float) -> list[Tensor]:
    """Return the gradient of a model, shortened to the length `max_norm` if it is
    longer.

    `gradients` has one tensor of any shape for each parameter. The length is the root
    of the sum of the squares of all numbers of all tensors. A gradient that is not
    longer stays unchanged, even a gradient of length 0.
    """
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients))
    if norm <= max_norm:
        return [gradient.clone() for gradient in gradients]
    return [gradient * (max_norm / norm) for gradient in gradients]


def adamw_step(
    weight: Tensor,
    gradient: Tensor,
    moments: tuple[Tensor, Tensor],
    step: int,
    rate: float,
    decay: float,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return the weight after one step of AdamW, and its new moments (Loshchilov and
    Hutter 2019), as in torch.

    The moments m' = 0.9 m + 0.1 g and v' = 0.999 v + 0.001 g² of the gradient g are
    corrected for their start at 0: m' / (1 - 0.9^step) and v' / (1 - 0.999^step), where
    the first step is 1. The weight moves by -rate · (m corrected) / (√(v corrected) +
    1e-8), and its decay subtracts rate · decay · weight, with the weight before the
    step. (In the paper, the decay is not multiplied by the largest learning rate, only
    by the schedule.) Return the moments m' and v' without the correction. All tensors
    have the same shape.
    """
    first, second = moments
    first = 0.9 * first + 0.1 * gradient
    second = 0.999 * second + 0.001 * gradient.square()
    mean = first / (1 - 0.9**step)
    square = second / (1 - 0.999**step)
    decayed = weight - rate * decay * weight
    return decayed - rate * mean / (square.sqrt() + 1e-8), (first, second)


def warmup_then_inverse_root(step: int, warmup: int, peak: float) -> float:
    """Return the learning rate of a step, counted from 1 (Vaswani et al. 2017, equation
    3).

    It grows in a line from 0 before the first step to `peak` at step `warmup`, and then
    falls as 1 / √step. Both parts give `peak` at step `warmup`, which is at least 1.
    """
    return peak * min(step / warmup, math.sqrt(warmup / step))


def label_smoothed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the mean cross-entropy with label smoothing ε, a tensor without axes.

    `logits` (…, V), `labels` (…). The target of a position has the probability 1 - ε
    for its label, and ε is spread equally over all V tokens, the label included.
    Positions with the label -100 are not scored, and do not count in the mean. The
    value is finite for all finite logits.
    """
    log_p = logits.log_softmax(dim=-1)
    is_scored = labels != -100
    of_label = log_p.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    losses = -(1 - smoothing) * of_label - smoothing * log_p.mean(dim=-1)
    return losses[is_scored].mean()


def shift(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs and the labels of a language model, both (B, T - 1): the label
    is the next id of `ids` (B, T).

    The model itself does not shift: its logits at a position are for the label at the
    same position.
    """
    return ids[:, :-1], ids[:, 1:]


def mean_loss(nats: Tensor, counts: Tensor) -> Tensor:
    """Return the loss of micro-batches, equal to that of one batch with the same texts.

    Micro-batches are the parts of a batch that are computed one after another, for one
    step of the optimizer. `nats` (N,) are the sums of the cross-entropy over the labels
    of each micro-batch, and `counts` (N,) the numbers of these labels.
    """
    return nats.sum() / counts.sum()


def perplexity(nats: list[float], counts: list[int]) -> float:
    """Return the perplexity of a text that was read in batches: exp of the mean
    cross-entropy of all its tokens.

    `nats` are the sums of the cross-entropy over the tokens of each batch, and `counts`
    the numbers of these tokens.
    """
    return math.exp(sum(nats) / sum(counts))


def decay_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Return the two groups of parameters for AdamW, with and without weight decay.

    Matrices decay. Biases, norms and the tables of `nn.Embedding` do not.
    """
    tables = [x.weight for x in model.modules() if isinstance(x, nn.Embedding)]
    groups: tuple[list[Tensor], list[Tensor]] = ([], [])
    for weight in model.parameters():
        is_table = any(weight is table for table in tables)
        groups[weight.dim() < 2 or is_table].append(weight)
    return [
        {"params": groups[0], "weight_decay": decay},
        {"params": groups[1], "weight_decay": 0.0},
    ]


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, rate: float
) -> float:
    """Take one step with the learning rate `rate`, and return the loss.

    Gradients of earlier steps do not count, and the gradient has at most length 1.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[tuple[tuple[Tensor, ...], Tensor]]
) -> tuple[float, float]:
    """Return the loss in nats per label, and the perplexity, of all batches together.

    A batch has the arguments of the model, and labels, -100 where none counts. The
    model is in evaluation mode meanwhile, and afterwards in its mode of before.
    """
    was_training = model.training
    model.eval()
    nats, counts = [], []
    for inputs, labels in batches:
        counts.append(int((labels != -100).sum()))
        nats.append(float(cross_entropy(model(*inputs), labels)) * counts[-1])
    model.train(was_training)
    return sum(nats) / sum(counts), perplexity(nats, counts)


KINDS = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "U8": torch.uint8,
}
"""The names of types in a file of tensors (the format of safetensors)."""


def write_tensors(path: str | Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors to a file, all of it or, after an interruption, nothing.

    The file begins with the length of its header, 8 bytes, little end first. The header
    is JSON: for each name its "dtype", "shape" and "data_offsets", the first byte and
    the one after the last, counted from the end of the header. The numbers follow.
    Write to a second file, and then rename it.
    """
    names = {kind: name for name, kind in KINDS.items()}
    header, place, parts = {}, 0, []
    for name, x in tensors.items():
        x = x.detach().cpu().contiguous()
        n_bytes = x.numel() * x.element_size()
        offsets = [place, place + n_bytes]
        header[name] = {"dtype": names[x.dtype], "shape": list(x.shape)}
        header[name]["data_offsets"] = offsets
        parts.append(ctypes.string_at(x.data_ptr(), n_bytes))
        place += n_bytes
    text = json.dumps(header).encode("utf-8")
    new = Path(f"{path}.new")
    new.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))
    os.replace(new, path)


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a file in the format of `write_tensors`, by name.

    In a header, "__metadata__" is no tensor: other programs put texts there.
    """
    data = Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, one in json.loads(data[8:begin]).items():
        if name != "__metadata__":
            first, last = (begin + offset for offset in one["data_offsets"])
            numbers = torch.frombuffer(
                bytearray(data[first:last]), dtype=KINDS[one["dtype"]]
            )
            found[name] = numbers.view(one["shape"])
    return found


def renamed(tensors: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """Return tensors under new names: each part between dots is looked up in `names`.

    A part that is not in `names` stays, and one that becomes "" is left out:
    "h.0.mlp.c_fc.bias" with {"h": "blocks", "mlp": "", "c_fc": "up"} becomes
    "blocks.0.up.bias".
    """
    found = {}
    for name, x in tensors.items():
        parts = (names.get(part, part) for part in name.split("."))
        found[".".join(filter(None, parts))] = x
    return found


def load_weights(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Load the weights of a model by their names; tensors that it lacks are left out.

    Raise `KeyError` with the name of a weight that the tensors lack.
    """
    state = model.state_dict()
    model.load_state_dict({name: tensors[name] for name in state})


def save(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
    step: int,
) -> None:
    """Write everything that the next step depends on to a file of tensors.

    These are the weights, the state of the optimizer, the generator of the batches,
    torch's own random state, which dropout uses, and the number of steps that were
    taken. The names are model.NAME, optimizer.NUMBER.NAME as in the optimizer's
    `state_dict`, generator, random and step.
    """
    kept = {f"model.{name}": x for name, x in model.state_dict().items()}
    for number, state in optimizer.state_dict()["state"].items():
        kept |= {f"optimizer.{number}.{name}": x for name, x in state.items()}
    kept |= {"generator": generator.get_state(), "random": torch.get_rng_state()}
    write_tensors(path, kept | {"step": torch.tensor(step)})


def resume(
    path: str | Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    generator: torch.Generator,
) -> int:
    """Restore what `save` wrote, and return the number of steps that were taken."""
    kept = read_tensors(path)
    model.load_state_dict(
        {name[6:]: x for name, x in kept.items() if name.startswith("model.")}
    )
    states: dict[int, dict[str, Tensor]] = {}
    for name, x in kept.items():
        if name.startswith("optimizer."):
            _, number, what = name.split(".")
            states.setdefault(int(number), {})[what] = x
    optimizer.load_state_dict(optimizer.state_dict() | {"state": states})
    generator.set_state(kept["generator"])
    torch.set_rng_state(kept["random"])
    return int(kept["step"])


def fit(
    model: nn.Module,
    batch: Callable[[torch.Generator], tuple[tuple[Tensor, ...], Tensor]],
    n_steps: int,
    rate_of: Callable[[int], float],
    path: str | Path,
    *,
    every: int = 100,
    decay: float = 0.1,
    smoothing: float = 0.0,
    seed: int = 0,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train a model until step `n_steps`; return the loss of each step.

    `batch` draws the arguments of the model and the labels of a step. `rate_of` gives
    the learning rate of a step, counted from 1. The optimizer is AdamW with
    `decay_groups`, and the loss has label smoothing. If the file `path` exists, the
    training continues there, exactly as if it had not stopped, and only the losses of
    the new steps are returned. After each `every` steps and at the end, it is saved to
    this file, and then `report` is called with the step and its loss.
    """
    optimizer = torch.optim.AdamW(decay_groups(model, decay), lr=0.0)
    generator = torch.Generator().manual_seed(seed)
    done = resume(path, model, optimizer, generator) if Path(path).exists() else 0
    losses = []
    model.train()
    for step in range(done + 1, n_steps + 1):
        inputs, labels = batch(generator)
        loss = label_smoothed_loss(model(*inputs), labels, smoothing)
        losses.append(train_step(model, optimizer, loss, rate_of(step)))
        if step % every == 0 or step == n_steps:
            save(path, model, optimizer, generator, step)
            report(step, losses[-1])
    return losses
