"""Numeric tolerances of all tests: one rule for rounding errors, and functions for other differences.

The rule. A processor adds the terms of a product in an order of its own. For every order, n terms in a floating-point
type with unit roundoff u = eps / 2 give (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1)

    |fl(xᵀy) − xᵀy| ≤ γₙ |x|ᵀ|y|,   γₙ = nu / (1 − nu).

So two processors differ by at most 2γₙ × magnitude, and by that × amplification after a step that enlarges errors. The
tolerance is absolute: an element near zero is a sum of terms as large as those of its neighbours. `terms` counts the
terms of all sums on the longest path from the inputs to the result, one after another.

Other differences are not rounding errors of a processor, and the name of the function is their reason: `printed`,
`sampled`, `about`, `within`. Numbers that Python computes in double precision need only `pytest.approx(x)`.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

NETWORK = 1024
"""Terms in a network of a test: up to 3 layers of 6 products of up to 32 terms and 2 norms of 32, and a head."""
LAYER = 128
"""Terms in one layer of a test: two products of up to 64 terms. It is also the probable bound of a whole network, whose
rounding errors have random signs: λ√n in place of n, here with λ = 4 (Higham and Mary 2019)."""
HALF = 8
"""Roundings in one layer of bfloat16 or float16, whose sums are kept in fp32: operands, weights, products, output."""
F64 = torch.float64
"""The dtype of `near`, if the numbers were computed in double precision."""


def tolerance(
    terms: int | None = None, magnitude: float = 1.0, amplification: float = 1.0, dtype: torch.dtype = torch.float32
) -> float:
    """Return 2γₙ × magnitude × amplification, by default for the terms of one layer."""
    terms = terms or (HALF if dtype in (torch.bfloat16, torch.float16) else LAYER)
    nu = terms * torch.finfo(dtype).eps / 2
    assert nu < 1, f"{terms} terms in {dtype} may lose every digit"
    return 2 * nu / (1 - nu) * magnitude * amplification


def largest(values: Any) -> float:
    """Return the largest finite magnitude; of a single number at least 1, the size of a logit, and of zeros 1."""
    try:
        tensor = values if isinstance(values, Tensor) else torch.as_tensor(np.array(values, dtype=float))
    except (TypeError, ValueError):
        return 1.0  # strings
    x = tensor.detach().double()
    found = float(x[x.isfinite()].abs().max()) if x.isfinite().any() else 0.0
    return max(1.0, found) if x.numel() == 1 else found or 1.0


def largest_of(values: Any) -> float:
    """Return the largest magnitude in nested lists, tuples and mappings of tensors."""
    if isinstance(values, Mapping):
        return max(map(largest_of, values.values()))
    if isinstance(values, tuple | list) and any(isinstance(x, Tensor | tuple | list | Mapping) for x in values):
        return max(map(largest_of, values))
    return largest(values)


def bound(values: Any, magnitude: float, rule: Mapping[str, Any]) -> float:
    """Return the tolerance of tensors or arrays in their least precise type; other numbers come from float32."""
    values = values if isinstance(values, tuple) else (values,)
    dtypes = {
        x.dtype if isinstance(x, Tensor) else torch.as_tensor(np.empty(0, x.dtype)).dtype
        for x in values
        if isinstance(x, Tensor | np.ndarray)
    }
    dtype = max((x for x in dtypes if x.is_floating_point), key=lambda x: torch.finfo(x).eps, default=torch.float32)
    return tolerance(magnitude=magnitude, **{"dtype": dtype, **rule})


def near(expected: Any, *, magnitude: float | None = None, nan_ok: bool = False, **rule: Any) -> Any:
    """Return numbers that equal those of another order of sums, like `pytest.approx`; `rule`: options of `tolerance`.

    The numbers of a list have one magnitude, those of a mapping their own.
    """
    if isinstance(expected, Mapping):
        return {key: near(value, magnitude=magnitude, nan_ok=nan_ok, **rule) for key, value in expected.items()}
    size = largest(expected) if magnitude is None else magnitude
    return pytest.approx(expected, abs=bound(expected, size, rule), nan_ok=nan_ok)


def is_close(actual: Any, expected: Any, **rule: Any) -> bool:
    """Return whether `assert_close` accepts two tensors or arrays."""
    try:
        assert_close(actual, expected, **rule)
    except AssertionError:
        return False
    return True


def assert_close(
    actual: Any,
    expected: Any,
    *,
    magnitude: float | None = None,
    equal_nan: bool = False,
    msg: str | None = None,
    **rule: Any,
) -> None:
    """Require that tensors or arrays equal those of another order of sums; `rule`: options of `tolerance`.

    Tensors in one list, tuple or mapping are results of one computation and have one magnitude. So the gradient of a
    key's bias, which is exactly 0, may differ by rounding errors of its terms, which are as large as other gradients.
    """
    if isinstance(expected, Mapping):
        assert actual.keys() == expected.keys(), msg
        actual, expected = [actual[name] for name in expected], list(expected.values())
    size = largest_of(expected) if magnitude is None else magnitude
    if isinstance(actual, tuple | list) and not all(isinstance(x, int | float) for x in actual):
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other, magnitude=size, equal_nan=equal_nan, msg=msg, **rule)
        return
    distance = bound((actual, expected), size, rule)
    if not isinstance(actual, Tensor):
        actual = torch.as_tensor(np.array(actual, dtype=float))
        expected = expected if isinstance(expected, Tensor) else torch.as_tensor(np.array(expected, dtype=float))
        expected = expected.double().expand_as(actual) if expected.dim() == 0 else expected.double()
    said = None if msg is None else lambda text: f"{msg}: {text}"
    torch.testing.assert_close(actual, expected, rtol=0, atol=distance, equal_nan=equal_nan, msg=said)


NEWTON_SCHULZ = (3.4445**5, 7.3)
"""By how much Muon's 5 iterations of 3.4445σ − 4.7750σ³ + 2.0315σ⁵ enlarge an error: the slope at σ = 0, which is the
largest, and the mean slope over singular values spread evenly over [0, 1], which is the variation of the function."""


def of_adam(n: int) -> tuple[float, float]:
    """Return by how much Adam enlarges the errors of n gradients: the largest and the mean factor.

    A step is the rate × m / √v, so its error is that of the gradient divided by the gradient. Of gradients spread
    evenly from 0 to the largest, the smallest is 1/n of it; the mean of the factors n/1, n/2, …, n/n is 1 + ln n.
    """
    return n, 1 + math.log(n)


def assert_same_steps(
    found: Tensor, expected: Tensor, *, n_steps: int, rate: float, amplification: tuple[float, float] | None = None
) -> None:
    """Require equal weights after some steps of an optimizer, by default Adam's, in fp32.

    The error of a gradient is that of √n terms: those of n terms have random signs (Higham and Mary 2019). The bound of
    single weights is weak, because the factor of a small gradient is large. The bound of the mean is sharp.
    """
    most, mean = amplification or of_adam(expected.numel())
    error, difference = tolerance(math.isqrt(NETWORK)), (found.double() - expected.double()).abs()
    rounding = tolerance(n_steps, largest(expected))
    assert difference.max() <= n_steps * rate * min(2.0, error * most) + rounding
    assert difference.mean() <= n_steps * rate * error * mean + rounding


def printed(expected: Any, decimals: int | None = None, figures: int | None = None) -> Any:
    """Return numbers that were rounded to some decimals or significant figures when they were written.

    The last digit is off by a half, and by a tenth more if a difference of rounding moved the number before.
    """
    absolute = tolerance(NETWORK) if decimals is None else 0.6 * 10.0**-decimals
    return pytest.approx(expected, rel=None if figures is None else 0.6 * 10.0 ** (1 - figures), abs=absolute)


def sampled(expected: Any, n: int) -> Any:
    """Return the standard deviation of n independent draws: within five of its standard errors, 1 / √(2n) each."""
    return pytest.approx(expected, rel=5 / math.sqrt(2 * n))


def sampled_mean(expected: float, n: int, deviation: float) -> Any:
    """Return the mean of n independent draws with a standard deviation: within five standard errors."""
    return pytest.approx(expected, abs=5 * deviation / math.sqrt(n))


def about(expected: Any, percent: float) -> Any:
    """Return a number that a formula or a published figure approximates; the percentage is part of the statement."""
    return pytest.approx(expected, rel=percent / 100)


def within(expected: Any, distance: float) -> Any:
    """Return numbers at a stated distance at most: pixels of a page, parts of a unit."""
    return pytest.approx(expected, abs=distance)
