from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, save, save_file
from torch import Tensor, nn

from glassformer.common.errors import UserError
from glassformer.store.model_directory import weights_of
from glassformer.training.averaging import ExponentialAverage, mean_of_files
from tolerances import NETWORK, assert_close, near


class TiedModel(nn.Module):
    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(5, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("n_seen", torch.tensor(7))


def change(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))


def weights(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def all_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(p, q) for p, q in zip(one, other, strict=True))


# During a run


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.999])
def test_the_average_follows_its_formula(decay: float) -> None:
    model = TiedModel()
    average = ExponentialAverage(model, decay)
    expected = weights(model)
    for n in range(8):
        change(model, n)
        average.update()
        d = min(decay, (1 + n) / (10 + n))
        expected = [d * old + (1 - d) * new for old, new in zip(expected, weights(model), strict=True)]
    with average.swapped_in():
        for ours, theirs in zip(weights(model), expected, strict=True):
            assert_close(ours, theirs)


def test_the_start_has_little_weight_with_a_slow_decay() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1000.0)
    average = ExponentialAverage(model, 0.9999)
    with torch.no_grad():
        model.weight.fill_(1.0)
    for _ in range(100):
        average.update()
    with average.swapped_in():
        assert model.weight.item() == near(1.0, terms=NETWORK)


def test_swapping_restores_the_exact_weights_memory_and_ties() -> None:
    model = TiedModel()
    average = ExponentialAverage(model, 0.9)
    change(model, 1)
    average.update()
    before, addresses = weights(model), [p.data_ptr() for p in model.parameters()]
    with average.swapped_in():
        inside = weights(model)
        assert not all_equal(before, inside)
        assert model.head.weight is model.table.weight
        assert addresses == [p.data_ptr() for p in model.parameters()]
    assert all_equal(before, weights(model))
    with average.swapped_in():
        assert all_equal(inside, weights(model))


def test_swapping_ends_after_an_error() -> None:
    model = TiedModel()
    average = ExponentialAverage(model, 0.9)
    change(model, 1)
    before = weights(model)
    with pytest.raises(KeyboardInterrupt), average.swapped_in():
        raise KeyboardInterrupt
    assert all_equal(before, weights(model))
    average.update()


def test_the_average_does_not_change_training() -> None:
    model = TiedModel()
    average = ExponentialAverage(model, 0.9)
    before = weights(model)
    average.update()
    assert all_equal(before, weights(model))
    assert all(parameter.requires_grad and parameter.grad_fn is None for parameter in model.parameters())


@pytest.mark.parametrize("verb", ["update", "swap in", "save", "load"])
def test_updates_and_state_are_refused_while_swapped(verb: str) -> None:
    average = ExponentialAverage(TiedModel(), 0.9)
    state = average.state_tensors()
    calls = {
        "update": average.update,
        "swap in": lambda: average.swapped_in().__enter__(),
        "save": average.state_tensors,
        "load": lambda: average.load_state_tensors(state),
    }
    with average.swapped_in(), pytest.raises(ValueError, match=f"cannot {verb}"):
        calls[verb]()


def test_resuming_the_average_is_equal_to_the_bit() -> None:
    straight, resumed = TiedModel(), TiedModel()
    average = ExponentialAverage(straight, 0.9)
    for n in range(3):
        change(straight, n)
        average.update()
    other = ExponentialAverage(resumed, 0.9)
    other.load_state_tensors(load(save(average.state_tensors())))
    for n in range(3, 6):
        for model, running in ((straight, average), (resumed, other)):
            change(model, n)
            running.update()
    with average.swapped_in(), other.swapped_in():
        assert all_equal(weights(straight), weights(resumed))


def test_a_tied_parameter_is_stored_once_and_another_model_is_refused() -> None:
    state = ExponentialAverage(TiedModel(), 0.9).state_tensors()
    assert set(state) == {"average/table.weight", "average/norm.weight", "average/norm.bias", "n_updates"}
    with pytest.raises(UserError, match="does not fit this model"):
        ExponentialAverage(TiedModel(width=4), 0.9).load_state_tensors(state)


# Of checkpoints


def files_of(folder: Path, checkpoints: Sequence[Mapping[str, Tensor]]) -> list[Path]:
    paths = [folder / f"{number}.safetensors" for number in range(len(checkpoints))]
    for path, tensors in zip(paths, checkpoints, strict=True):
        save_file(dict(tensors), path)
    return paths


def test_the_mean_of_checkpoints_keeps_names_and_types(tmp_path: Path) -> None:
    checkpoints = []
    for n in range(3):
        change(model := TiedModel(), n)
        checkpoints.append(weights_of(model) | {"half": torch.full((2,), float(n), dtype=torch.float16)})
    mean = mean_of_files(files_of(tmp_path, checkpoints))
    assert mean.keys() == checkpoints[0].keys() and mean["half"].dtype == torch.float16
    assert torch.equal(mean["n_seen"], torch.tensor(7))
    for name in ("table.weight", "norm.weight", "norm.bias"):
        expected = torch.stack([checkpoint[name].double() for checkpoint in checkpoints]).mean(0).float()
        assert torch.equal(mean[name], expected)


def test_sums_do_not_lose_small_weights_in_half_precision(tmp_path: Path) -> None:
    values = [1.0] + [2.0**-8] * 255  # in bfloat16, 1 + 2⁻⁸ is 1
    mean = mean_of_files(files_of(tmp_path, [{"w": torch.tensor([x], dtype=torch.bfloat16)} for x in values]))
    assert mean["w"].dtype == torch.bfloat16
    assert mean["w"].item() == near(sum(values) / 256, terms=1, magnitude=sum(values) / 256, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"w": torch.zeros(2)}, r"1\.safetensors does not fit the model: n is missing"),
        ({"w": torch.zeros(3), "n": torch.zeros(1)}, r"w has shape \(3,\), expected \(2,\)"),
        ({"w": torch.zeros(2), "n": torch.zeros(1), "x": torch.zeros(1)}, "x is not part of this model"),
    ],
)
def test_checkpoints_of_different_models_are_refused(second: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        mean_of_files(files_of(tmp_path, [{"w": torch.zeros(2), "n": torch.zeros(1)}, second]))
