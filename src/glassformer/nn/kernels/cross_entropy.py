"""Cross-entropy and divergence of large matrices of logits, a few rows at a time.

`F.cross_entropy` stores log-probabilities and their gradient in fp32, and copies logits in half precision to fp32. This
takes up to 12 bytes per logit, besides the logits and their gradient. Here, only a few rows at a time are in fp32.

Letters: N rows, V vocabulary, ε label smoothing.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = {"cpu": 1 << 19}
"""Number of logits in a chunk for each device type; other types have `CHUNK_ELSEWHERE`. On a CPU, a chunk takes 2 MiB
in fp32, which fit in the cache of a core."""
CHUNK_ELSEWHERE = 1 << 26


def cross_entropy_by_rows(
    logits: Tensor, labels: Tensor, ignore_index: int, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return two sums over the rows: the smoothed loss, which has a gradient, and the loss without smoothing.

    `logits` (N, V), `labels` (N,); rows with the label `ignore_index` do not count. With lse = log Σ exp(logits), the
    loss of a row is (1-ε) · (lse - logit of the label) + ε · (lse - mean of the logits) (Szegedy 2016, section 7). The
    sums are in fp32 or higher precision.

    >>> total, nats = cross_entropy_by_rows(torch.zeros(3, 4), torch.tensor([2, 0, -100]), -100)
    >>> round(total.item(), 4) == round(nats.item(), 4) == 2.7726  # 2 ln 4
    True
    """
    counts = labels != ignore_index
    return _CrossEntropy.apply(logits, labels.where(counts, 0), counts, label_smoothing)


def _chunks(logits: Tensor) -> Iterator[slice]:
    n_rows = max(1, CHUNK.get(logits.device.type, CHUNK_ELSEWHERE) // logits.shape[1])
    return (slice(begin, begin + n_rows) for begin in range(0, len(logits), n_rows))


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, counts: Tensor, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        lse, nats, smooth = torch.zeros(3, len(logits), dtype=dtype, device=logits.device)
        for rows in _chunks(logits):
            x = logits[rows].to(dtype)
            lse[rows] = x.logsumexp(dim=1)
            nats[rows] = lse[rows] - x.gather(1, labels[rows, None]).squeeze(1)
            if label_smoothing:
                smooth[rows] = lse[rows] - x.mean(dim=1)
        of_nats, of_smooth = (torch.where(counts, of_rows, 0.0).sum() for of_rows in (nats, smooth))
        ctx.save_for_backward(logits, labels, counts, lse)
        ctx.label_smoothing = label_smoothing
        ctx.mark_non_differentiable(of_nats)
        return (1 - label_smoothing) * of_nats + label_smoothing * of_smooth, of_nats

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        """Compute softmax(logits) - target of each row, times the gradient of the sum."""
        logits, labels, counts, lse = ctx.saved_tensors
        smoothing, factors = ctx.label_smoothing, torch.where(counts, grad, 0.0)[:, None]
        grads = torch.empty_like(logits)
        for rows in _chunks(logits):
            x = logits[rows].to(lse.dtype, copy=True).sub_(lse[rows, None]).exp_()
            x.scatter_add_(1, labels[rows, None], x.new_full((len(x), 1), smoothing - 1))
            if smoothing:
                x -= smoothing / x.shape[1]
            grads[rows] = x.mul_(factors[rows])
        return grads, None, None, None


def divergence_by_rows(teacher: Tensor, student: Tensor, counts: Tensor, temperature: float) -> Tensor:
    """Return the sum of KL(p ‖ q) over the rows that count, with p, q = softmax(logits / temperature).

    `teacher` (N, V) and `student` (N, V) are logits, `counts` (N,) is bool. Only `student` gets a gradient. The sum is
    in fp32 or higher precision.

    >>> logits = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    >>> divergence_by_rows(logits, logits, torch.tensor([True, False]), 1.0).item()
    0.0
    """
    return _Divergence.apply(teacher, student, counts, temperature)


class _Divergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, teacher: Tensor, student: Tensor, counts: Tensor, temperature: float) -> Tensor:
        dtype = torch.promote_types(student.dtype, torch.float32)
        of_rows = torch.empty(len(student), dtype=dtype, device=student.device)
        for rows in _chunks(student):
            log_p, log_q = (x[rows].to(dtype).div(temperature).log_softmax(dim=1) for x in (teacher, student))
            of_rows[rows] = (log_p.exp() * (log_p - log_q)).sum(dim=1)
        ctx.save_for_backward(teacher, student, counts)
        ctx.temperature, ctx.dtype = temperature, dtype
        return torch.where(counts, of_rows, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        """Compute (q - p) / temperature of each row, times the gradient of the sum."""
        teacher, student, counts = ctx.saved_tensors
        factors = torch.where(counts, grad / ctx.temperature, 0.0)[:, None]
        grads = torch.empty_like(student)
        for rows in _chunks(student):
            p, q = (x[rows].to(ctx.dtype).div(ctx.temperature).softmax(dim=1) for x in (teacher, student))
            grads[rows] = (q - p) * factors[rows]
        return None, grads, None, None
