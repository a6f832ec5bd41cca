"""Every tolerance of the tests follows from the rule of `tolerances.py`, and the rule detects a mistake."""

import ast
import functools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from configs import random_inputs, random_model
from glassformer.nn.layers import RMSNorm
from tolerances import LAYER, NETWORK, assert_close, is_close, near, tolerance

TESTS = Path(__file__).parent
WORDS = {"rtol", "atol", "rel", "abs", "rel_tol", "abs_tol"}
FUNCTIONS = {"testing.assert_close", "allclose", "isclose", "assert_allclose"}


def chosen(source: str) -> list[int]:
    """Return the lines whose tolerance is a number of its own, or that of another library."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if WORDS & {keyword.arg for keyword in call.keywords} or ast.unparse(call.func).endswith(tuple(FUNCTIONS))
    ]


def test_no_test_chooses_a_tolerance() -> None:
    """`pytest.approx(x)` is for numbers that Python computes in double precision."""
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("*.py")
        if path.name != "tolerances.py"
        for line in chosen(path.read_text("utf-8"))
    }
    assert not found, f"use a function of tests/tolerances.py in {', '.join(sorted(found))}"


@pytest.mark.parametrize(
    "source",
    [
        "assert x == pytest.approx(1, abs=1e-3)",
        "torch.testing.assert_close(a, b)",
        "assert np.allclose(a, b)",
        "check(x, rtol=BOUND)",
    ],
)
def test_a_chosen_tolerance_is_found(source: str) -> None:
    assert chosen(source) == [1] and not chosen("assert_close(a, b, terms=8)\nassert x == pytest.approx(1)")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 7, 64, 1000])
def test_two_orders_of_a_sum_differ_by_less_than_the_rule(n: int, dtype: torch.dtype) -> None:
    """Compare sums one term after another, of terms that cancel: the worst order and the worst magnitude."""
    x, y = torch.randn(2, 200, n, dtype=dtype)
    terms = x * y
    one, other = (functools.reduce(torch.add, order) for order in (terms.unbind(1), terms.flip(1).unbind(1)))
    magnitude = float(terms.abs().sum(1).max())
    difference = float((one - other).abs().max())
    assert difference <= tolerance(n, magnitude, dtype=dtype)
    assert n < 64 or difference > tolerance(1, magnitude, dtype=dtype) / 1000, "the orders differ"


def test_numbers_near_zero_have_the_magnitude_of_their_neighbours() -> None:
    """The cancelled first element has the rounding errors of the others; alone, it has those of a logit."""
    error = tolerance(LAYER) / 2
    assert_close(torch.tensor([error, 1.0]), torch.tensor([0.0, 1.0]))
    assert [error, 1.0] == near([0.0, 1.0]) and error == near(0.0)
    assert not is_close(torch.tensor([4 * error, 1.0]), torch.tensor([0.0, 1.0]))
    tiny, large = torch.tensor([1e-9]), torch.tensor([1e3, 1e-3])
    assert_close([2 * tiny, large], [tiny, large])
    assert_close({"a": 2 * tiny, "b": large}, {"a": tiny, "b": large})
    assert not is_close([tiny, large + 1], [tiny, large]) and not is_close({"a": tiny}, {"b": tiny})


MISTAKES = {
    "eps outside the root": lambda x, w: x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-5) * w,
    "no eps": lambda x, w: x * x.square().mean(-1, keepdim=True).rsqrt() * w,
    "a dropped term": lambda x, w: F.rms_norm(torch.cat((x[..., :-1], 0 * x[..., -1:]), dim=-1), (16,), w, 1e-5),
    "n - 1": lambda x, w: x * (x.square().sum(-1, keepdim=True) / 15 + 1e-5).rsqrt() * w,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_norm_is_detected(mistake: str) -> None:
    x, norm = torch.randn(5, 16, dtype=torch.float64), RMSNorm(16, eps=1e-5).double()
    for weight in norm.parameters():
        weight.data.normal_()
    assert_close(norm(x), F.rms_norm(x, (16,), norm.weight, 1e-5))
    assert not is_close(MISTAKES[mistake](x, norm.weight), norm(x), terms=NETWORK)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["gpt", "t5", "bert"])
def test_a_mistake_in_a_network_is_detected(name: str, dtype: torch.dtype) -> None:
    """One row of any matrix is larger by a hundredth."""
    network = random_model(name, dtype=dtype)
    inputs = random_inputs(network)
    with torch.no_grad():
        expected = network(inputs.token_ids, **inputs.others)
        for parameter in network.parameters():
            if parameter.dim() > 1:
                before = parameter[0].clone()
                parameter[0] *= 1.01
                found = network(inputs.token_ids, **inputs.others)
                parameter[0] = before
                if not torch.equal(found, expected):  # a row of a table that these ids use
                    assert not is_close(found, expected, terms=NETWORK)
