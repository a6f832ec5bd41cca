"""Training of any `nn.Module` on any examples: the caller gives the loss and the data instead of a task."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import IterableDataset, default_collate

from glassformer.common import files
from glassformer.common.errors import UserError, enough_memory
from glassformer.common.seeds import Stream, seed_of
from glassformer.config.schema import from_dict, to_dict
from glassformer.config.train import TrainConfig, require_changeable
from glassformer.data.batching import EpochOrder
from glassformer.evaluation.loss import LossReport
from glassformer.models.devices import choose_device, emulation_note
from glassformer.objectives.loss import LossSums
from glassformer.store import checkpoint
from glassformer.store.model_directory import WEIGHTS, load_weights
from glassformer.store.tensors import DTYPES, repeated_dims, save_tensors
from glassformer.tasks.batches import TrainingData
from glassformer.tasks.reporting import LaunchReporter, Silent
from glassformer.training.checkpointer import Checkpointer, republish
from glassformer.training.distributed.environment import is_several
from glassformer.training.host import Host
from glassformer.training.longer import checkpoint_for, delete_later
from glassformer.training.loop import Trainer
from glassformer.training.optimizers.build import build_optimizer
from glassformer.training.run_folder import holding, require_new, require_run

SETTINGS = "train.json"
"""File of a checkpoint with the settings of its run."""
Loss = Callable[[Any, Any], tuple[Tensor, int]]
Collate = Callable[[list[Any]], Any]


def train_module(
    module: nn.Module,
    loss: Loss,
    data: Any,
    out: str | Path,
    *,
    valid: Any = None,
    config: TrainConfig | None = None,
    collate: Collate | None = None,
    batched: bool | None = None,
    reporter: LaunchReporter | None = None,
    resume: bool = False,
    **settings: Any,
) -> dict[str, LossReport]:
    """Train any module in a folder; return the reports of the last evaluation, which reads `valid`.

    `loss(module, batch)` returns the sum of the loss over the targets of a batch, and the number of targets. A step
    divides once, so gradient accumulation does not change the result. `data` is a `Dataset` of examples: `collate` (by
    default PyTorch's `default_collate`) makes batches of `config.batch_size` from it, in a new order each epoch. Or it
    is an iterable of ready batches, such as a `DataLoader`, which is read in order and restarted at its end. A list or
    tuple may contain either: `batched=True` means ready batches, and `batched=False` or a `collate` examples. Without
    both, a list of items that can only be examples is accepted, and any other is refused. `valid` follows the same
    rules and is read in order.

    `out` gets `model.safetensors` (the weights that `config.select` chooses; in the end the module has them too),
    `checkpoints` and `metrics.jsonl`. With `resume` the run continues from its newest checkpoint, bit for bit if the
    arguments are the same; `max_steps` may be larger, as for `resume`. Examples are a function of (seed, number), and
    torch's generator is seeded before each batch. Used batches of an iterable are drawn again and skipped. `settings`
    replace fields of `config`: `max_steps=5`. Raises `Interrupted` after a signal, when all is saved, and `UserError`
    for wrong arguments.

    >>> import tempfile, torch
    >>> from glassformer.config.train import AdamWConfig
    >>> x = torch.arange(8)[:, None] / 8
    >>> points = torch.utils.data.TensorDataset(x, 2 * x)
    >>> def squares(line, batch):
    ...     return (line(batch[0]) - batch[1]).square().sum(), len(batch[0])
    >>> line, config = nn.Linear(1, 1), TrainConfig(optimizer=AdamWConfig(learning_rate=0.1), batch_size=4)
    >>> out = tempfile.mkdtemp()
    >>> report = train_module(line, squares, points, out, valid=points, config=config, max_steps=200)["valid"]
    >>> report.loss < 0.01, report.n_tokens
    (True, 8)
    """
    # Settings and device
    config = replace(config or TrainConfig(), **settings)
    folder, reporter = files.as_path(out, "out"), reporter or Silent()
    advice = f"lower config.batch_size, or make the batches smaller; earlier checkpoints stay in {folder}"
    host = Host(choose_device(config.device), reporter=reporter, began=time.monotonic(), advice=advice)
    if note := emulation_note(config.precision, host.device):
        reporter.log(note)
    _check(config, module, folder, valid, resume)
    require_storable(module, config)
    # Data
    source = source_of(data, config, collate, batched, "data")
    evaluations = {}
    if valid is not None:
        evaluations["valid"] = source_of(valid, config, collate, batched, "valid").each
        if next(iter(evaluations["valid"]()), None) is None:
            raise UserError("valid has no examples")

    def write_model(into: Path, weights: checkpoint.Tensors) -> None:
        save_tensors(weights, into / WEIGHTS)
        files.write_json(into / SETTINGS, to_dict(config))

    # Training, from the first step or from a checkpoint
    with enough_memory(advice), holding(folder, is_first=True, is_new=not resume):
        module.to(host.device)
        optimizer = build_optimizer(module, config.optimizer)
        writer = Checkpointer(folder, write_model, in_background=config.background_saving, log=reporter.log)
        training = TrainingData(_AnyObjective(loss), source, evaluations, can_be_ahead=False)
        trainer = Trainer(config, module, optimizer, training, writer, host)
        trainer.resume_hint = "train_module(…, resume=True)"
        if resume:
            newest = checkpoint.newest(folder, reporter.log)
            begin = _checkpoint_to_resume(folder, newest, config, reporter)
            trainer.restore(begin)
            republish(folder, config, trainer.progress, host)
            if begin != newest:
                delete_later(folder, trainer.progress.step)
        reports = trainer.train()
        load_weights(module, folder / WEIGHTS)
    return reports


def _check(config: TrainConfig, module: nn.Module, folder: Path, valid: Any, resume: bool) -> None:
    if is_several():
        raise UserError("train_module runs in one process: start it without torchrun")
    for key, watcher in config.watchers.items():
        if valid is None or watcher.metric != "loss":
            raise UserError(f"{key} watches the validation {watcher.metric}: give valid=… and set its metric to loss")
    if resume:
        require_run(folder)
    elif checkpoint.steps(folder):
        raise UserError(f"{folder} already contains a run: continue it with resume=True, or give another folder")
    else:
        require_new(folder)
        files.require_writable(folder)


def _checkpoint_to_resume(folder: Path, newest: Path, config: TrainConfig, reporter: LaunchReporter) -> Path:
    """Return the checkpoint from which a run continues; raise `UserError` for settings that must not change."""
    old = from_dict(TrainConfig, files.read_json(newest / SETTINGS), str(newest / SETTINGS))
    names = [entry.name for entry in fields(config) if getattr(old, entry.name) != getattr(config, entry.name)]
    instead = "start a new run with this module in another folder"
    require_changeable([f"train.{name}" for name in names], instead)
    return checkpoint_for(folder, newest, old, config, reporter.log, instead)


def require_storable(module: nn.Module, config: TrainConfig) -> None:
    """Raise `UserError` for a tensor of the module that a checkpoint cannot store, restore or average."""
    parameters = {id(p) for p in module.parameters()}
    buffers = {id(x) for x in module.buffers()}
    # What a file cannot hold, or a module cannot restore
    for name, x in module.state_dict(keep_vars=True).items():
        if id(x) not in parameters | buffers:
            raise UserError(
                f"{name} in state_dict() is not a parameter or buffer, so resume cannot restore it: make it one"
            )
        if is_lazy(x) or x.is_meta:
            raise UserError(
                f"{name} has no values yet: run the module on one batch, or load its weights, before training"
            )
        if x.layout != torch.strided or x.dtype not in DTYPES.values():
            kind = x.dtype if x.layout == torch.strided else x.layout
            raise UserError(
                f"{name} is a tensor of {kind}, which safetensors cannot store: convert it, or register the buffer "
                "with persistent=False"
            )
        if id(x) in parameters and repeated_dims(x):
            raise UserError(f"the parameter {name} is an expanded view, which cannot be updated: clone it")
        # What has no average
        is_number = x.is_floating_point() or x.is_complex()
        if config.select == "average" and not is_number:
            raise UserError(f"{name} is an integer tensor, which cannot be averaged: set select to best or last")
        if config.ema_decay and id(x) in parameters and not is_number:
            raise UserError(f"the parameter {name} has integers, which cannot be averaged: set ema_decay to 0")
    # Memory that an average would change twice
    if config.ema_decay:
        memory = {p.untyped_storage().data_ptr(): name for name, p in module.named_parameters() if p.numel()}
        for name, x in module.named_buffers():
            if x.numel() and (of := memory.get(x.untyped_storage().data_ptr())) is not None:
                raise UserError(
                    f"the buffer {name} shares its memory with the parameter {of}, so only one of them can be "
                    "averaged: set ema_decay to 0, or compute the buffer in forward"
                )


class _AnyObjective:
    """The caller's loss function as an `Objective`."""

    label_smoothing = 0.0
    is_density = True  # unknown for the caller's loss

    def __init__(self, function: Loss) -> None:
        self.function = function

    def collate(self, examples: Any, rng: Any) -> Any:
        return AnyBatch(examples)

    def loss(self, model: Any, batch: Any) -> LossSums:
        match self.function(model, batch.value):
            case Tensor() as total, int() | Tensor() as n if total.numel() == 1 and n >= 0:
                return LossSums(total.squeeze(), total.detach().squeeze(), int(n))
            case other:
                kinds = [type(part).__name__ for part in (other if isinstance(other, tuple) else [other])]
                raise UserError(
                    "loss(module, batch) must return (total, n_targets): the loss summed over the targets, a tensor "
                    f"with one element, and the number of targets; got {', '.join(kinds)}"
                )


# Samplers that return a batch of any data by its number


def source_of(data: Any, config: TrainConfig, collate: Collate | None, batched: bool | None, name: str) -> Any:
    """Return `Examples` or `Batches`; raise `UserError`, which calls the data `name`, if it is neither or unclear."""
    is_map = hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, IterableDataset)
    if is_map and not len(data):
        raise UserError(f"{name} has no examples")
    if is_map and not (isinstance(data, list | tuple) and _has_batches(data[0], collate, batched, name)):
        n_rows = config.batch_size
        if n_rows > len(data):
            raise UserError(
                f"batch_size is {n_rows:,}, and {name} has only {len(data):,} examples: set batch_size to at most "
                f"{len(data):,}"
            )
        return Examples(data, config, collate or default_collate)
    if not isinstance(data, Iterable):
        raise UserError(f"{name} must be a Dataset, a sequence of examples or an iterable of batches, not {data!r:.80}")
    if name == "valid" and iter(data) is data:
        raise UserError(
            "valid is an iterator, which can be read only once: give a Dataset, a DataLoader, or a list with "
            "batched=True"
        )
    return Batches(data, config)


def _has_batches(first: Any, collate: Collate | None, batched: bool | None, name: str) -> bool:
    """Return True if a list with this first item contains ready batches; raise `UserError` if it is unclear.

    The tensors of a ready batch have one row per example. An item without tensors, or whose tensors have no rows or
    different numbers of rows, is an example.
    """
    if batched is not None or collate is not None:
        return batched is True
    n_rows = {next(iter(x.shape), 0) for _, x in _named(first, "")}
    if len(n_rows) != 1 or n_rows == {0}:
        return False
    raise UserError(
        f"{name} is a list whose items may be examples or ready batches (the first has {n_rows.pop():,} rows): set "
        "batched=True for ready batches, or batched=False for examples"
    )


class Examples:
    """Batches of a sequence of examples, shuffled in each epoch."""

    def __init__(self, data: Any, config: TrainConfig, collate: Collate) -> None:
        self.data, self.collate, self.seed, self.n_rows = data, collate, config.seed, config.batch_size
        self.order = EpochOrder(len(data), config.batch_size, config.seed)

    def batch(self, number: int) -> Any:
        torch.manual_seed(seed_of(self.seed, Stream.COLLATE, number))
        return self.collate([self.data[i] for i in self.order.batch(number)])

    def each(self) -> Iterator[Any]:
        """Yield batches of all examples once, in order."""
        for first in range(0, len(self.data), self.n_rows):
            yield self.collate([self.data[i] for i in range(first, min(first + self.n_rows, len(self.data)))])


class Batches:
    """Ready batches in order. To return to an earlier batch, the data is read again from the beginning."""

    def __init__(self, data: Iterable[Any], config: TrainConfig) -> None:
        self.data, self.seed = data, config.seed
        self.n_taken = 0
        self.batches: Iterator[Any] = iter(())

    def batch(self, number: int) -> Any:
        if number < self.n_taken:
            if iter(self.data) is self.data:
                raise UserError(
                    "data is an iterator and cannot go back to a checkpoint: give a DataLoader, or a list with "
                    "batched=True"
                )
            self.n_taken, self.batches = 0, iter(())
        value: Any = None
        while self.n_taken <= number:
            torch.manual_seed(seed_of(self.seed, Stream.COLLATE, self.n_taken))
            value = self._next()
            self.n_taken += 1
        return value

    def each(self) -> Iterator[Any]:
        """Return all batches once, in order."""
        return iter(self.data)

    def _next(self) -> Any:
        for batches in (self.batches, self.data):
            self.batches = iter(batches)
            for value in self.batches:
                return value
        raise UserError(f"data ended after {self.n_taken:,} batches and cannot be restarted: give more batches")


class AnyBatch:
    """A batch whose content only the loss function reads."""

    n_targets = 0  # counted by the loss
    n_rows = 1  # unknown, so the batch is never split

    def __init__(self, value: Any) -> None:
        self.value = value

    def to(self, device: torch.device) -> "AnyBatch":
        return AnyBatch(_moved(self.value, device))

    def rows(self, part: range) -> "AnyBatch":
        return self

    def with_masks(self) -> "AnyBatch":
        return self

    def tensors(self) -> dict[str, Tensor]:
        return dict(_named(self.value, "batch"))


def _moved(value: Any, device: torch.device) -> Any:
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: _moved(item, device) for name, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_moved(item, device) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, tuple | list):
        yield from _named(dict(enumerate(value)), name)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(item, f"{name}.{key}")
