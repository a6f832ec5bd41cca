"""The training loop with modules, losses and data that do not depend on glassformer."""

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from glassformer import UserError, train_module
from glassformer.common.errors import Interrupted
from glassformer.config.train import AdamWConfig, CosineSchedule, EarlyStopping, PlateauSchedule, TrainConfig
from glassformer.tasks.reporting import Silent
from glassformer.training import any_module
from tolerances import assert_close

CONFIG = TrainConfig(
    max_steps=30,
    batch_size=4,
    grad_accumulation=2,
    optimizer=AdamWConfig(learning_rate=0.05),
    schedule=CosineSchedule(warmup_steps=2),
    ema_decay=0.9,
    eval_every=10,
    log_every=5,
    device="cpu",
)


class Noisy(Dataset[dict[str, Tensor]]):
    """Rows of four numbers and their sign; noise is drawn when the example is read."""

    def __init__(self, n: int = 50) -> None:
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": self.x[i] + 0.01 * torch.randn(4), "y": (self.x[i].sum() > 0).long()}


class Stream(IterableDataset[dict[str, Tensor]]):
    """Ready batches, 7 per epoch."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        rows = Noisy(28)
        for first in range(0, 28, 4):
            yield {"x": rows.x[first : first + 4], "y": (rows.x[first : first + 4].sum(1) > 0).long()}


class Killed(Silent):
    """A reporter that stops the run at one of its steps."""

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None:
        if step == 15:
            signal.raise_signal(signal.SIGTERM)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 2))


def loss(module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
    return nn.functional.cross_entropy(module(batch["x"]), batch["y"], reduction="sum"), len(batch["y"])


def data_of(kind: str) -> Any:
    return {"dataset": Noisy, "iterable": Stream, "loader": lambda: DataLoader(Noisy(), 4, shuffle=True)}[kind]()


def test_a_module_learns_and_gets_the_chosen_weights(tmp_path: Path) -> None:
    module = network()
    report = train_module(module, loss, Noisy(), tmp_path / "run", valid=Noisy(), config=CONFIG)["valid"]
    assert report.loss < 0.5 and report.n_tokens == 50 and report.perplexity is None
    stored = load_file(tmp_path / "run" / "model.safetensors")
    assert stored.keys() == module.state_dict().keys()
    assert all(torch.equal(x, stored[name]) for name, x in module.state_dict().items())
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert lines[-1]["step"] == 30 and lines[0]["train/loss"] > report.loss


@pytest.mark.parametrize("kind", ["dataset", "iterable", "loader"])
def test_a_stopped_run_resumes_to_equal_bits(kind: str, tmp_path: Path) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    expected = train_module(network(), loss, data_of(kind), whole, valid=Noisy(8), config=CONFIG)
    with pytest.raises(
        Interrupted, match=r"SIGTERM: saved at step 15 of 30; continue with: train_module\(…, resume=True"
    ):
        train_module(network(), loss, data_of(kind), halves, valid=Noisy(8), config=CONFIG, reporter=Killed())
    torch.manual_seed(99)  # random numbers of the process change nothing
    other = network()
    reports = train_module(other, loss, data_of(kind), halves, valid=Noisy(8), config=CONFIG, resume=True)
    assert reports.keys() == expected.keys()
    for name in ("model.safetensors", "checkpoints/step-30/training_state/optimizer.safetensors"):
        assert (whole / name).read_bytes() == (halves / name).read_bytes(), name
    again = train_module(other, loss, data_of(kind), halves, valid=Noisy(8), config=CONFIG, resume=True)
    assert again["valid"].to_dict() == reports["valid"].to_dict(), "a finished run has no steps to do"


def test_accumulation_equals_one_large_batch_with_uneven_targets(tmp_path: Path) -> None:
    ids = torch.randint(1, 5, (8, 6), generator=torch.Generator().manual_seed(2))
    ids[::3, 2:] = 0  # not scored
    examples = list(ids)

    def scored(module: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
        logits = module(batch).flatten(0, 1)
        return nn.functional.cross_entropy(logits, batch.flatten(), ignore_index=0, reduction="sum"), (batch > 0).sum()

    found = []
    for batch_size, n in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 5))
        config = TrainConfig(max_steps=3, batch_size=batch_size, grad_accumulation=n, device="cpu")
        reports = train_module(module, scored, examples, tmp_path / str(n), config=config, batched=False)  # type: ignore[arg-type]
        assert reports == {}
        found.append(module)
    for one, other in zip(*(module.parameters() for module in found), strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("change", [{"precision": "bf16"}, {"select": "last", "ema_decay": 0.0}])
def test_settings_of_the_loop_work_for_any_module(change: dict[str, Any], tmp_path: Path) -> None:
    reports = train_module(network(), loss, Noisy(), tmp_path / "run", valid=Noisy(), config=replace(CONFIG, **change))
    assert reports["valid"].loss < 0.6


def test_select_average_gives_the_mean_of_checkpoints(tmp_path: Path) -> None:
    module, config = nn.Linear(4, 2), replace(CONFIG, select="average", ema_decay=0.0)
    reports = train_module(module, loss, Noisy(), tmp_path / "run", valid=Noisy(), config=config)
    weights = [load_file(tmp_path / "run" / "checkpoints" / f"step-{n}" / "model.safetensors") for n in (20, 30)]
    assert_close(module.weight.data, (weights[0]["weight"] + weights[1]["weight"]) / 2)
    assert reports["valid"].loss < 0.6


def seen_by(data: Any, folder: Path, **options: Any) -> tuple[set[tuple[int, ...]], list[float]]:
    """Train on `data` for 4 steps; return the shapes of the inputs that the loss gets, and the losses per target."""
    shapes = set()

    def squares(module: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, int]:
        shapes.add(tuple(batch[0].shape))
        return (module(batch[0]).squeeze(-1) - batch[1].squeeze(-1)).square().sum(), batch[1].numel()

    torch.manual_seed(0)
    config = TrainConfig(max_steps=4, batch_size=4, log_every=1, device="cpu")
    train_module(nn.Linear(3, 1), squares, data, folder, config=config, **options)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return shapes, [line["train/loss"] for line in lines]


def test_a_list_of_ready_batches_is_not_batched_again(tmp_path: Path) -> None:
    """It gives the losses of the `DataLoader` that it was made of; its rows are examples only if that is stated."""
    x, y = torch.randn(32, 3, generator=torch.Generator().manual_seed(3)), torch.arange(32) / 32
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    expected = seen_by(loader, tmp_path / "loader")
    assert expected[0] == {(8, 3)}
    for kind in (list, tuple):
        ready = kind(loader)
        assert seen_by(ready, tmp_path / kind.__name__, batched=True) == expected
        with pytest.raises(
            UserError, match=r"data is a list whose items may be .* \(the first has 8 rows\): set batched="
        ):
            seen_by(ready, tmp_path / "unclear")
        assert seen_by(ready, tmp_path / f"{kind.__name__} of examples", batched=False)[0] == {(4, 8, 3)}
    examples = list(TensorDataset(x, y))  # an example has a number without rows
    assert seen_by(examples, tmp_path / "examples") == seen_by(TensorDataset(x, y), tmp_path / "dataset")
    rows = list(zip(x, y[:, None], strict=True))
    assert seen_by(rows, tmp_path / "rows", collate=default_collate)[0] == {(4, 3)}


@pytest.mark.parametrize(
    ("item", "is_example"),
    [
        (torch.tensor(1.0), True),
        ((torch.zeros(3), torch.tensor(1)), True),
        ((torch.zeros(3), torch.zeros(4)), True),
        ({"text": "a", "label": 1}, True),
        (torch.zeros(3), None),
        ({"x": torch.zeros(5, 3), "y": torch.zeros(5)}, None),
    ],
)
def test_a_list_is_accepted_if_its_items_can_only_be_examples(item: Any, is_example: bool | None) -> None:
    config = TrainConfig(batch_size=2)
    if is_example:
        assert isinstance(any_module.source_of([item] * 4, config, None, None, "valid"), any_module.Examples)
    else:
        with pytest.raises(UserError, match="valid is a list whose items may be examples or ready batches"):
            any_module.source_of([item] * 4, config, None, None, "valid")
    assert isinstance(any_module.source_of([item] * 4, config, None, True, "valid"), any_module.Batches)


def test_early_stopping_ends_the_run(tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=500, eval_every=5, early_stopping=EarlyStopping(patience=1))
    flat = replace(config, optimizer=AdamWConfig(learning_rate=1e-12))
    train_module(network(), loss, Noisy(), tmp_path / "run", valid=Noisy(8), config=flat)
    assert not (tmp_path / "run" / "checkpoints" / "step-500").exists()


def test_a_nan_loss_saves_its_batch(tmp_path: Path) -> None:
    def bad(module: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, int]:
        total, n = loss(module, batch)
        return total * float("nan"), n

    with pytest.raises(UserError, match=r"the loss is nan in step 1 \(its batch is saved in .*bad-batch-step-1"):
        train_module(network(), bad, Noisy(), tmp_path / "run", config=CONFIG)
    assert load_file(tmp_path / "run" / "bad-batch-step-1.safetensors").keys() == {"batch.x", "batch.y"}


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (lambda total, n: total / n, "Tensor$"),
        (lambda total, n: (total,), "Tensor$"),
        (lambda total, n: (total.item(), n), "float, int"),
        (lambda total, n: (total.repeat(2), n), "Tensor, int"),
        (lambda total, n: (total, None), "Tensor, NoneType"),
        (lambda total, n: (total, -1), "Tensor, int"),
    ],
)
def test_a_wrong_loss_is_one_sentence(result: Any, shown: str, tmp_path: Path) -> None:
    def wrong(module: nn.Module, batch: dict[str, Tensor]) -> Any:
        return result(*loss(module, batch))

    with pytest.raises(UserError, match=rf"must return \(total, n_targets\): the loss summed .*; got {shown}"):
        train_module(network(), wrong, Noisy(), tmp_path / "run", config=CONFIG)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"data": 5}, "data must be a Dataset, a sequence of examples or an iterable of batches, not 5"),
        ({"data": []}, "data has no examples"),
        ({"valid": []}, "valid has no examples"),
        ({"data": Noisy(3)}, "batch_size is 4, and data has only 3 examples: set batch_size to at most 3"),
        ({"valid": list(Stream())}, "valid is a list whose items may be examples or ready batches"),
        ({"data": iter(Stream())}, "data ended after 7 batches and cannot be restarted"),
        ({"valid": iter(Stream())}, "valid is an iterator, which can be read only once"),
        ({"resume": True}, "no such run"),
        (
            {"config": replace(CONFIG, select="average")},
            "1.num_batches_tracked is an integer tensor, which cannot be averaged",
        ),
        (
            {"config": replace(CONFIG, early_stopping=EarlyStopping())},
            r"train\.early_stopping watches the validation loss",
        ),
        ({"config": replace(CONFIG, schedule=PlateauSchedule())}, r"train\.schedule watches the validation loss"),
    ],
)
def test_wrong_arguments_of_train_module_are_named(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    arguments = {"data": Noisy(), "config": CONFIG} | given
    with pytest.raises(UserError, match=words):
        train_module(network(), loss, out=tmp_path / "run", **arguments)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path: Path) -> None:
    config = replace(CONFIG, max_steps=1)
    train_module(network(), loss, Noisy(), tmp_path / "run", config=config)
    with pytest.raises(UserError, match="already contains a run: continue it with resume=True, or give another folder"):
        train_module(network(), loss, Noisy(), tmp_path / "run", config=config)


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_module, "is_several", lambda: True)
    with pytest.raises(UserError, match="start it without torchrun"):
        train_module(network(), loss, Noisy(), tmp_path / "run", config=CONFIG)
