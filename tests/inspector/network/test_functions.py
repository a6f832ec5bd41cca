"""Each formula in JavaScript equals the function of PyTorch with the same name, on random numbers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.models.build import POOLERS
from glassformer.models.heads import pool
from glassformer.nn import layers as norms
from glassformer.nn import positions, recurrence
from glassformer.nn.attention import masked_softmax, repeat_kv, scaled_dot_product_scores
from glassformer.nn.layers import ACTIVATIONS
from glassformer.nn.masks import Mask
from inspector.network.node import run_node
from tolerances import assert_close, is_close

generator = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def sent(value: Any) -> Any:
    """Return a value as JSON; a tensor of integers becomes a list."""
    if isinstance(value, Tensor) and not value.is_floating_point():
        return value.tolist()
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "data": value.flatten().tolist()}
    return [sent(item) for item in value] if isinstance(value, (list, tuple)) else value


Q, K, V = random(4, 5, 6), random(2, 7, 6), random(2, 7, 3)
X, ROW = random(3, 8), random(8)
SCORES = random(2, 5, 5)
ALLOWED = Mask(causal=True, window=3).dense(5, 5)[0, 0]
EMPTY_ROW = ALLOWED.clone()
EMPTY_ROW[2] = False
GATES = {"rnn": 1, "gru": 3, "lstm": 4}
STATE = (random(1, 4), random(1, 4))
FAR = range(-300, 301)
COS, SIN = (x[0, 0, :, :2] for x in positions.Rotary(positions.rotary_frequencies(100.0, 4))(torch.arange(5)))


def as_allowed(mask: Tensor) -> dict[str, list[int]]:
    return {"bytes": mask.int().flatten().tolist()}


CASES: dict[str, tuple[str, str, list[Any], Callable[[], Any]]] = {
    "scaled dot product": (
        "attention_functions",
        "scaledDotProductScores",
        [Q, K],
        lambda: scaled_dot_product_scores(Q, repeat_kv(K[None], 4)[0]),
    ),
    "additive": (
        "attention_functions",
        "additiveScores",
        [X, X[:2], ROW],
        lambda: recurrence.additive_scores(X[None], X[None, :2], ROW)[0],
    ),
    "multiplicative": (
        "attention_functions",
        "multiplicativeScores",
        [X, X[:2]],
        lambda: recurrence.multiplicative_scores(X, X[:2]),
    ),
    "softmax": ("attention_functions", "maskedSoftmax", [SCORES, None], lambda: masked_softmax(SCORES, None)),
    "masked softmax": (
        "attention_functions",
        "maskedSoftmax",
        [SCORES, as_allowed(ALLOWED)],
        lambda: masked_softmax(SCORES, ALLOWED),
    ),
    "softmax of an empty row": (
        "attention_functions",
        "maskedSoftmax",
        [SCORES, as_allowed(EMPTY_ROW)],
        lambda: masked_softmax(SCORES, EMPTY_ROW),
    ),
    "weighted values": (
        "attention_functions",
        "weightedValues",
        [random(4, 5, 7).softmax(-1), V],
        lambda: CASES["weighted values"][2][0] @ repeat_kv(V[None], 4)[0],
    ),
    "layer norm": ("layers", "layerNorm", [X, ROW, ROW, 1e-5], lambda: norms.layer_norm_reference(X, ROW, ROW, 1e-5)),
    "layer norm alone": (
        "layers",
        "layerNorm",
        [X, None, None, 1e-5],
        lambda: norms.layer_norm_reference(X, None, None, 1e-5),
    ),
    "rms norm": ("layers", "rmsNorm", [X, ROW, 1e-6], lambda: norms.rms_norm_reference(X, ROW, 1e-6)),
    "sinusoid": (
        "positions",
        "sinusoid",
        [[0, 3, 1000], 8, "interleaved"],
        lambda: positions.sinusoid(torch.tensor([0, 3, 1000]), 8),
    ),
    "sinusoid in halves": (
        "positions",
        "sinusoid",
        [[0, 3, 1000], 8, "halves"],
        lambda: positions.sinusoid(torch.tensor([0, 3, 1000]), 8, "halves"),
    ),
    "sinusoid that ends at the base": (
        "positions",
        "sinusoid",
        [[0, 3, 1000], 8, "halves", True],
        lambda: positions.sinusoid(torch.tensor([0, 3, 1000]), 8, "halves", ends_at_base=True),
    ),
}


def test_formulas(tmp_path: Path) -> None:
    found = results(tmp_path, [(module, name, given) for module, name, given, _ in CASES.values()])
    for (name, (*_, expected)), result in zip(CASES.items(), found, strict=True):
        assert_close(as_tensor(result), expected(), msg=name)


def as_tensor(result: dict[str, Any]) -> Tensor:
    return torch.tensor(result["data"]).reshape(result["shape"])


def results(folder: Path, calls: list[tuple[str, str, list[Any]]]) -> list[Any]:
    """Compute functions in node: (module, name, arguments) each."""
    file = folder / "calls.json"
    file.write_text(json.dumps([{"module": m, "name": n, "arguments": sent(given)} for m, n, given in calls]))
    run_node("functions.mjs", file)
    answers: list[Any] = json.loads((folder / "calls.out.json").read_text())
    return answers


def test_activations(tmp_path: Path) -> None:
    numbers = torch.linspace(-6, 6, 41)
    functions = ACTIVATIONS | {"tanh": POOLERS["tanh"]}
    calls = [("layers", f"ACTIVATIONS.{name}", [float(x)]) for name in functions for x in numbers]
    found = torch.tensor(results(tmp_path, calls)).view(len(functions), -1)
    expected = torch.stack([f(numbers) for f in functions.values()])
    assert is_close(found, expected)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_of_distances(bidirectional: bool, tmp_path: Path) -> None:
    for n_buckets, longest in ((8, 12), (32, 128), (6, 20)):
        calls = [("positions", "relativeBucket", [d, n_buckets, longest, bidirectional]) for d in FAR]
        found = results(tmp_path, calls)
        assert found == positions.relative_bucket(torch.tensor(FAR), n_buckets, longest, bidirectional).tolist()


@pytest.mark.parametrize("cell", GATES)
def test_cells(cell: str, tmp_path: Path) -> None:
    from_input, from_state = random(1, 4 * GATES[cell]), random(1, 4 * GATES[cell])
    state = STATE if cell == "lstm" else STATE[:1]
    (found,) = results(tmp_path, [("recurrence", f"{cell}Step", [from_input, from_state, state])])
    expected = getattr(recurrence, f"{cell}_step")(from_input, from_state, state)
    for ours, theirs in zip(found, expected, strict=True):
        assert is_close(as_tensor(ours), theirs)


def test_rotary_positions(tmp_path: Path) -> None:
    x = random(2, 5, 6)  # two of six dimensions are not rotated
    (found,) = results(tmp_path, [("positions", "applyRotary", [x, {"cos": sent(COS), "sin": sent(SIN)}])])
    whole = torch.cat((COS, COS), -1), torch.cat((SIN, SIN), -1)
    assert is_close(as_tensor(found), positions.apply_rotary(x, *whole))


@pytest.mark.parametrize("how", ["first", "last", "mean", "max"])
def test_pooling(how: str, tmp_path: Path) -> None:
    (found,) = results(tmp_path, [("heads", "pool", [X, how])])
    assert is_close(as_tensor(found), pool(X[None], None, how))


def test_the_mask(tmp_path: Path) -> None:
    queries, keys = list(range(2, 5)), list(range(5))
    rules = [{"causal": causal, "window": window} for causal in (False, True) for window in (0, 2)]
    found = results(tmp_path, [("attention_functions", "allowedPairs", [queries, keys, rule]) for rule in rules])
    for rule, result in zip(rules, found, strict=True):
        expected = Mask(**rule, query_index=torch.tensor(queries)).dense(3, 5)[0, 0]
        assert expected.all() if result is None else result == expected.int().flatten().tolist()
