"""Single steps against PyTorch's modules; padding at any place against rows without padding."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from configs import randomise
from glassformer.nn.recurrence import (
    Stepper,
    gru_step,
    in_order,
    lstm_step,
    reading_order,
    rnn_step,
    run,
    run_by_steps,
    run_masked,
)
from tolerances import assert_close, is_close

CELLS = {"rnn": (nn.RNN, rnn_step), "gru": (nn.GRU, gru_step), "lstm": (nn.LSTM, lstm_step)}
B, T, D_X, D_FED, D = 4, 6, 3, 2, 5
REAL = torch.tensor(
    [[True] * T, [False, False, True, True, True, False], [True, False, True, False, False, True], [False] * T]
)
EVERY = pytest.mark.parametrize("cell", CELLS)


def made(cell: str, n_layers: int = 2, bidirectional: bool = False, d_fed: int = D_FED) -> nn.RNNBase:
    cells = CELLS[cell][0](D_X + d_fed, D, n_layers, batch_first=True, bidirectional=bidirectional).double()
    randomise(cells)
    return cells


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def states(cell: str, n_layers: int = 2) -> tuple[tuple[Tensor, ...], ...]:
    n_parts = 2 if cell == "lstm" else 1
    return tuple(tuple(random(B, D, seed=7 * i + j) for j in range(n_parts)) for i in range(n_layers))


@EVERY
@pytest.mark.parametrize("d_fed", [0, D_FED])
@pytest.mark.parametrize("n_layers", [1, 2])
def test_the_loop_equals_pytorchs_module(cell: str, d_fed: int, n_layers: int) -> None:
    """Compare outputs, last states and every gradient."""
    x, fed = random(B, T, D_X), random(B, T, d_fed, seed=1)
    results = []
    for looped in (True, False):
        cells, state = made(cell, n_layers, d_fed=d_fed), states(cell, n_layers)
        if looped:
            step, tops = Stepper(cells, CELLS[cell][1], D_X), []
            for t, projected in enumerate(step.project(x)):
                state = step(projected, fed[:, t] if d_fed else None, state)
                tops.append(state[-1][0])
            outputs = torch.stack(tops, dim=1)
        else:
            outputs, state = run(cells, torch.cat((x, fed), dim=2), state)
        last = [part for layer in state for part in layer]
        (outputs.square().sum() + sum(part.sum() for part in last)).backward()
        results.append([outputs, *last, *(p.grad for p in cells.parameters())])
    for loop, module in zip(*results, strict=True):
        assert_close(loop, module)


class Recorder:
    """A tap that keeps the tensors by name, and replaces those whose names end with `zeroed`."""

    def __init__(self, zeroed: str = "?") -> None:
        self.found, self.zeroed = dict[str, list[Tensor]](), zeroed

    def __call__(self, name: str, x: Tensor, prefix: str = "") -> Tensor:
        self.found.setdefault(prefix + name, []).append(x)
        return torch.zeros_like(x) if name.endswith(self.zeroed) else x

    def scope(self, name: str) -> "Scoped":
        return Scoped(self, f"{name}.")


@dataclass(frozen=True)
class Scoped:
    recorder: Recorder
    prefix: str

    def __call__(self, name: str, x: Tensor) -> Tensor:
        return self.recorder(name, x, self.prefix)

    def scope(self, name: str) -> "Scoped":
        return Scoped(self.recorder, f"{self.prefix}{name}.")


@EVERY
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("n_layers", [1, 3])
def test_single_steps_of_an_encoder_equal_pytorchs_module(cell: str, bidirectional: bool, n_layers: int) -> None:
    cells, x, tap = made(cell, n_layers, bidirectional), random(B, T, D_X + D_FED), Recorder()
    outputs, last = run_by_steps(cells, CELLS[cell][1], x, tap)
    expected, ends = run(cells, x)
    assert_close((outputs, last), (expected, ends))
    # The states that the tap received are those of the top layer, the backward ones in the order of reading
    parts = [torch.cat(tap.found[f"{n_layers - 1}.forward.state"], dim=1)]
    if bidirectional:
        parts.append(torch.cat(tap.found[f"{n_layers - 1}.backward.state"], dim=1).flip(1))
    assert_close(torch.cat(parts, dim=2), expected)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_gates_of_a_gru_give_its_states(bidirectional: bool) -> None:
    cells, x, tap = made("gru", 1, bidirectional), random(B, T, D_X + D_FED), Recorder()
    run_by_steps(cells, gru_step, x, tap)
    for direction in ("forward", "backward")[: 1 + bidirectional]:
        keep, new, state = (torch.cat(tap.found[f"0.{direction}.{name}"], dim=1) for name in ("keep", "new", "state"))
        before = torch.cat((torch.zeros(B, 1, D, dtype=x.dtype), state[:, :-1]), dim=1)
        assert_close((1 - keep) * new + keep * before, state)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_gates_of_an_lstm_give_its_states(bidirectional: bool) -> None:
    cells, x, tap = made("lstm", 1, bidirectional), random(B, T, D_X + D_FED), Recorder()
    run_by_steps(cells, lstm_step, x, tap)
    for direction in ("forward", "backward")[: 1 + bidirectional]:
        write, keep, new, read, cell, state = (
            torch.cat(tap.found[f"0.{direction}.{name}"], dim=1)
            for name in ("write", "keep", "new", "read", "cell", "state")
        )
        before = torch.cat((torch.zeros(B, 1, D, dtype=x.dtype), cell[:, :-1]), dim=1)
        assert_close(keep * before + write * new, cell)
        assert_close(read * cell.tanh(), state)


@pytest.mark.parametrize(("cell", "gate"), [("gru", "new"), ("gru", "reset"), ("lstm", "write"), ("lstm", "read")])
def test_a_tap_replaces_a_gate(cell: str, gate: str) -> None:
    cells, x = made(cell, 1), random(B, T, D_X + D_FED)
    outputs, _ = run_by_steps(cells, CELLS[cell][1], x, Recorder(gate))
    plain, _ = run(cells, x)
    assert not is_close(outputs, plain)
    if gate != "reset":  # without new content, or unread, every state is zero
        assert outputs.abs().max() == 0


@EVERY
def test_cells_run_on_a_device_without_autocast(cell: str) -> None:
    """Costs are counted on the meta device."""
    outputs, last = run(made(cell).to("meta"), random(B, T, D_X + D_FED).to("meta"))
    assert outputs.shape == (B, T, D) and last[1][0].shape == (B, D)


def test_dropout_acts_between_layers_in_training_only() -> None:
    """Dropout acts on the outputs of two of three layers; with p near 1 the top layer reads zeros."""
    cells = nn.GRU(D_X, D, 3, batch_first=True, dropout=0.999).double()
    randomise(cells)
    x, begin = random(B, T, D_X), states("gru", 3)
    for training in (True, False):
        cells.train(training)
        step = Stepper(cells, gru_step, D_X)
        torch.manual_seed(0)
        above = step(step.project(x)[0], None, begin)
        expected = run(cells.eval(), x[:, :1], begin)[1]
        assert_close(above[0][0], expected[0][0])
        assert is_close(above[1][0], expected[1][0]) is not training


@EVERY
@pytest.mark.parametrize(("bidirectional", "begins"), [(False, False), (True, False), (False, True)])
def test_padding_anywhere_changes_nothing(cell: str, bidirectional: bool, begins: bool) -> None:
    cells, x = made(cell, bidirectional=bidirectional, d_fed=0), random(B, T, D_X)
    begin = states(cell) if begins else None
    order = reading_order(REAL)
    outputs, last = run_masked(cells, in_order(x, order), REAL.sum(dim=1), begin)
    outputs = in_order(outputs, order.argsort(dim=1))
    assert not outputs[~REAL].any()
    for b in range(B - 1):
        row = begin and tuple(tuple(part[b : b + 1] for part in layer) for layer in begin)
        alone, ends = run(cells, x[b : b + 1, REAL[b]], row)
        assert_close(outputs[b, REAL[b]], alone[0])
        for layer, of_row in zip(last, ends, strict=True):
            assert_close([part[b] for part in layer], [part[0] for part in of_row])
    for i, layer in enumerate(last):  # the empty row keeps its first state
        for j, part in enumerate(layer):
            assert torch.equal(part[-1], begin[i][j][-1] if begin else torch.zeros_like(part[-1]))


def test_both_directions_are_concatenated() -> None:
    """The last state of the forward direction is at the last token, that of the backward direction at the first."""
    cells, x = made("lstm", bidirectional=True, d_fed=0), random(B, T, D_X)
    outputs, last = run(cells, x)
    assert [tuple(part.shape for part in layer) for layer in last] == [((B, 2 * D), (B, 2 * D))] * 2
    assert torch.equal(last[-1][0][:, :D], outputs[:, -1, :D])
    assert torch.equal(last[-1][0][:, D:], outputs[:, 0, D:])


def test_gradients_skip_padding() -> None:
    cells, x = made("gru", d_fed=0), random(B, T, D_X).requires_grad_()
    order = reading_order(REAL)
    outputs, last = run_masked(cells, in_order(x, order), REAL.sum(dim=1))
    (outputs.square().sum() + last[0][0].sum()).backward()
    assert x.grad is not None and torch.equal(x.grad.abs().sum(dim=2) > 0, REAL)
    assert all(p.grad.isfinite().all() for p in cells.parameters())


@EVERY
def test_half_precision_under_autocast(cell: str) -> None:
    """Products in bfloat16, the state in float32; the loop and the module agree to bfloat16's rounding."""
    cells, x = made(cell).float(), random(B, T, D_X).float()
    begin = tuple(tuple(part.float() for part in layer) for layer in states(cell))
    fed = random(B, D_FED, seed=1).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = Stepper(cells, CELLS[cell][1], D_X)
        projected = step.project(x)
        assert projected[0].dtype == torch.bfloat16
        state = begin
        for inputs in projected:
            state = step(inputs, fed, state)
    assert all(part.dtype == torch.float32 for layer in state for part in layer)
    _, exact = run(cells, torch.cat((x, fed[:, None].expand(-1, T, -1)), dim=2), begin)
    assert_close(state, exact, dtype=torch.bfloat16)
