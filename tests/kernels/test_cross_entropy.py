"""The cross-entropy by rows equals that of PyTorch: sums, gradients, smoothing, rows that do not count."""

import pytest
import torch
from torch.nn import functional as F

from glassformer.data.batching import NOT_SCORED
from glassformer.nn.kernels import cross_entropy
from glassformer.nn.kernels.cross_entropy import cross_entropy_by_rows, divergence_by_rows
from glassformer.objectives import loss
from glassformer.objectives.loss import token_cross_entropy
from tolerances import assert_close


@pytest.fixture(autouse=True, params=[1, 40, 1 << 20])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cross_entropy, "CHUNK", {"cpu": request.param})


def drawn(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    labels = torch.tensor([0, 6, NOT_SCORED, 3, 3, NOT_SCORED, 1])
    return (3 * torch.randn(7, 9)).to(dtype).requires_grad_(), labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sums_and_gradients_equal_those_of_torch(smoothing: float) -> None:
    logits, labels = drawn()
    before = logits.detach().clone()
    total, nats = cross_entropy_by_rows(logits, labels, NOT_SCORED, smoothing)
    expected = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
    assert_close(total, expected)
    assert_close(nats, F.cross_entropy(logits, labels, reduction="sum"))
    assert not nats.requires_grad
    found, wanted = (torch.autograd.grad(0.3 * x, logits)[0] for x in (total, expected))
    assert_close(found, wanted)
    assert torch.equal(logits, before), "the logits are not overwritten"


def test_logits_in_bfloat16_have_sums_in_fp32_and_rounded_gradients() -> None:
    logits, labels = drawn(torch.bfloat16)
    total, nats = cross_entropy_by_rows(logits, labels, NOT_SCORED, 0.1)
    exact = logits.detach().double().requires_grad_()
    expected = F.cross_entropy(exact, labels, reduction="sum", label_smoothing=0.1)
    assert total.dtype == nats.dtype == torch.float32
    assert abs(total.item() - expected.item()) < 1e-4
    found, wanted = torch.autograd.grad(total, logits)[0], torch.autograd.grad(expected, exact)[0]
    assert found.dtype == torch.bfloat16
    assert_close(found, wanted.bfloat16())


def test_no_counted_row_gives_zero_and_logits_of_minus_infinity_are_allowed() -> None:
    logits, labels = drawn()
    total, _ = cross_entropy_by_rows(logits, torch.full_like(labels, NOT_SCORED), NOT_SCORED)
    assert total.item() == 0 and not torch.autograd.grad(total, logits)[0].any()
    masked = logits.detach().index_fill(1, torch.tensor([8]), -torch.inf).requires_grad_()
    total, _ = cross_entropy_by_rows(masked, labels, NOT_SCORED)
    assert total.isfinite() and torch.autograd.grad(total, masked)[0].isfinite().all()


def test_the_loss_of_an_objective_uses_it_for_large_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, labels = drawn(torch.float32)
    small = token_cross_entropy(logits, labels, 5, 0.1)
    monkeypatch.setattr(loss, "MIN_LOGITS", 1)
    large = token_cross_entropy(logits, labels, 5, 0.1)
    assert_close((large.total, large.nats), (small.total, small.nats))
    assert type(large.total.grad_fn) is not type(small.total.grad_fn)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_divergence_by_rows_equals_the_formula(dtype: torch.dtype) -> None:
    student, labels = drawn(dtype)
    teacher, counts = (2 * torch.randn(7, 9)).to(dtype).requires_grad_(), labels != NOT_SCORED
    found = divergence_by_rows(teacher, student, counts, 1.5)
    exact = student.detach().double().requires_grad_()
    log_p, log_q = ((x.double() / 1.5).log_softmax(dim=1)[counts] for x in (teacher.detach(), exact))
    expected = (log_p.exp() * (log_p - log_q)).sum()
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_close(found.double(), expected, dtype=found.dtype)
    of_student, of_teacher = torch.autograd.grad(0.3 * found, (student, teacher), allow_unused=True)
    assert of_teacher is None
    (wanted,) = torch.autograd.grad(0.3 * expected, exact)
    assert_close(of_student, wanted.to(dtype))
