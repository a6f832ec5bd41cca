"""A module, its optimizer and the step, saved alone: resumed steps have equal bits, and other contents are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from glassformer.common.errors import UserError
from glassformer.config.train import AdamWConfig, MuonConfig
from glassformer.training.module_checkpoint import OPTIONS, TENSORS
from glassformer.training.optimizers.build import build_optimizer

Make = Callable[[nn.Module], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "AdamW": lambda module: torch.optim.AdamW(module.parameters(), lr=0.01),
    "AdamW, fused": lambda module: build_optimizer(module, AdamWConfig(learning_rate=0.01)),
    "AdamW, amsgrad": lambda module: torch.optim.AdamW(module.parameters(), lr=0.01, amsgrad=True),
    "Muon": lambda module: build_optimizer(module, MuonConfig()),
    "SGD": lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9),
    "SGD, two groups": lambda module: torch.optim.SGD(
        [{"params": list(module.parameters())[1:]}, {"params": list(module.parameters())[:1], "lr": 0.01}], 0.1, 0.9
    ),
    "SGD without memory": lambda module: torch.optim.SGD(module.parameters(), lr=0.1),
    "RMSprop": lambda module: torch.optim.RMSprop(module.parameters(), momentum=0.5),
}


class Net(nn.Module):
    """Blocks with a tied table, a parameter without gradients, a transposed weight and a buffer."""

    def __init__(self, seed: int = 0, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(11, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width)])
        self.blocks[1].weight = nn.Parameter(torch.randn(width, width).t())
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.table.weight
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(self.norm(x))


def train(module: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        ids = torch.randint(11, (16,), generator=torch.Generator().manual_seed(step))
        optimizer.param_groups[0]["lr"] *= 0.9
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(ids), ids.roll(1)).backward()
        optimizer.step()


def saved(folder: Path, make: Make = OPTIMIZERS["AdamW"]) -> tuple[Net, torch.optim.Optimizer]:
    module = Net()
    optimizer = make(module)
    train(module, optimizer, range(3))
    assert glassformer.save_checkpoint(module, optimizer, 3, folder) == folder
    return module, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_resumed_steps_are_equal_bit_for_bit(name: str, tmp_path: Path) -> None:
    module, optimizer = saved(tmp_path / "step-3", OPTIMIZERS[name])
    again = Net(seed=1)
    other = OPTIMIZERS[name](again)
    other.param_groups[0]["lr"] = 5.0
    step = glassformer.load_checkpoint(tmp_path / "step-3", again, other)
    assert step == 3
    assert all(map(torch.equal, module.state_dict().values(), again.state_dict().values()))
    for trained in ((module, optimizer), (again, other)):
        train(*trained, range(step, step + 4))
    assert all(map(torch.equal, module.state_dict().values(), again.state_dict().values()))
    assert optimizer.param_groups[0]["lr"] == other.param_groups[0]["lr"]
    assert again.head.weight is again.table.weight


def test_a_checkpoint_has_no_pickle_and_replaces_an_earlier_one(tmp_path: Path) -> None:
    module, optimizer = saved(tmp_path / "newest")
    glassformer.save_checkpoint(module, optimizer, 4, str(tmp_path / "newest"))
    assert glassformer.load_checkpoint(tmp_path / "newest", module, optimizer) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["newest"]
    assert {path.suffix for path in (tmp_path / "newest").iterdir()} == {".safetensors", ".json"}


def test_a_checkpoint_that_a_killed_process_was_replacing_is_loaded(tmp_path: Path) -> None:
    module, optimizer = saved(tmp_path / "newest")
    (tmp_path / "newest").rename(tmp_path / ".newest.tmp-7-0123abcd-replaced")
    assert glassformer.load_checkpoint(tmp_path / "newest", module, optimizer) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["newest"]


def test_a_folder_with_other_contents_is_kept(tmp_path: Path) -> None:
    module = Net()
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(
            UserError, match=r"exists and is not a checkpoint of save_checkpoint: give the name of a new"
        ):
            glassformer.save_checkpoint(module, OPTIMIZERS["SGD"](module), 1, place)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def spoil(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    """Change a JSON file, and its hash in the manifest with it."""
    from glassformer.store.manifest import Manifest

    value = json.loads((folder / name).read_text())
    change(value)
    (folder / name).write_text(json.dumps(value))
    old = Manifest.read(folder)
    Manifest.of(folder, old.kind, old.step, list(old.entries)).write(folder)


@pytest.mark.parametrize(
    ("module", "make", "words"),
    [
        (Net, "SGD", "the checkpoint is of the optimizer AdamW, not SGD"),
        (
            lambda: Net(width=4),
            "AdamW",
            r"state blocks\.0\.bias/exp_avg has the shape \(8,\) of float32, and its parameter \(4,\) of float32$",
        ),
        (
            lambda: Net().double(),
            "AdamW",
            r"has the shape \(8,\) of float32, and its parameter \(8,\) of float64$",
        ),
        (lambda: nn.Linear(2, 2), "AdamW", "has other parameters or groups: build it in the same way"),
    ],
    ids=["optimizer", "shape", "dtype", "names"],
)
def test_another_module_or_optimizer_is_refused_before_anything_changes(
    module: Callable[[], nn.Module], make: str, words: str, tmp_path: Path
) -> None:
    saved(tmp_path / "step-3")
    other = module()
    optimizer = OPTIMIZERS[make](other)
    before = {name: x.clone() for name, x in other.state_dict().items()}
    with pytest.raises(UserError, match=words):
        glassformer.load_checkpoint(tmp_path / "step-3", other, optimizer)
    assert all(torch.equal(x, before[name]) for name, x in other.state_dict().items())
    assert optimizer.state_dict()["state"] == {}


def test_weights_of_another_shape_are_refused_without_a_state(tmp_path: Path) -> None:
    module, other = Net(), Net(width=4)
    glassformer.save_checkpoint(module, OPTIMIZERS["SGD"](module), 0, tmp_path / "start")
    with pytest.raises(UserError, match=r"table\.weight has shape \(11, 8\), expected \(11, 4\)"):
        glassformer.load_checkpoint(tmp_path / "start", other, OPTIMIZERS["SGD"](other))


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    module, optimizer = saved(tmp_path / "step-3")
    torch.save({"model": module.state_dict()}, tmp_path / "ckpt.pt")
    with pytest.raises(UserError, match="is a pickle or a zip of pickles and is not opened"):
        glassformer.load_checkpoint(tmp_path / "ckpt.pt", module, optimizer)
    with pytest.raises(UserError, match=r"no such model directory: .*none"):
        glassformer.load_checkpoint(tmp_path / "none", module, optimizer)
    spoil(tmp_path / "step-3", OPTIONS, lambda value: value["values"].update({"nothing/step": 1}))
    with pytest.raises(UserError, match="the optimizer state nothing/step is of no parameter of this optimizer"):
        glassformer.load_checkpoint(tmp_path / "step-3", module, optimizer)
    tensors = tmp_path / "step-3" / TENSORS
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(UserError, match=r"step-3 is damaged: optimizer\.safetensors is not the file that was written"):
        glassformer.load_checkpoint(tmp_path / "step-3", module, optimizer)


def test_what_cannot_be_restored_is_refused_at_saving(tmp_path: Path) -> None:
    module = Net()
    with pytest.raises(UserError, match="has a parameter that is not of this module"):
        glassformer.save_checkpoint(module, OPTIMIZERS["SGD"](Net()), 0, tmp_path / "a")
    rate = torch.optim.AdamW(module.parameters(), lr=torch.tensor(0.1), foreach=False)
    with pytest.raises(UserError, match=r"has an option that JSON cannot store: .*Tensor"):
        glassformer.save_checkpoint(module, rate, 0, tmp_path / "a")
    factored = torch.optim.Adafactor(module.parameters())
    train(module, factored, range(1))
    with pytest.raises(UserError, match=r"the optimizer state .*_var has the shape .* and its parameter"):
        glassformer.save_checkpoint(module, factored, 1, tmp_path / "a")
    with pytest.raises(UserError, match="step is -1 and must not be negative"):
        glassformer.save_checkpoint(module, OPTIMIZERS["SGD"](module), -1, tmp_path / "a")
    assert not list(tmp_path.iterdir())
