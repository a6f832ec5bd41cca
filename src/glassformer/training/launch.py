"""From a recipe to a running trainer: data, tokenizers, tokens, network; fresh or from a checkpoint."""

import json
import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from glassformer import files
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.run import NEWEST_READING, DataConfig, Run
from glassformer.config.schema import apply_flags, from_union, to_dict
from glassformer.config.transformer import TransformerConfig
from glassformer.cost.memory import require_memory
from glassformer.cost.room import Room, require_room, room_of_machine
from glassformer.data.builtin import PREFIX
from glassformer.data.records import HUB
from glassformer.data.sources import reads
from glassformer.devices import choose_device, repeats_bits
from glassformer.errors import UserError, enough_memory
from glassformer.evaluation.loss import LossReport
from glassformer.models.build import Network, build_model
from glassformer.reporting import LaunchReporter, Silent
from glassformer.store import checkpoint, lock
from glassformer.store.checkpoint import Tensors
from glassformer.store.lock import locked
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import (
    MODEL_FILES,
    StoredModel,
    own_paths,
    read_run,
    read_tokenizers,
    write_model_files,
)
from glassformer.tasks.registry import trainable_task
from glassformer.tasks.task import RunData, label_names
from glassformer.tasks.training_data import TrainingData, few_targets
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.tokenizers import Tokenizers
from glassformer.training import metrics_log, non_finite
from glassformer.training.allocator import keep_freed_memory
from glassformer.training.checkpointer import differing
from glassformer.training.fine_tuning import layer_scales
from glassformer.training.init_from import new_network, prepare_parameters, read_start, tokenizers_of, with_model_of
from glassformer.training.parallel import (
    Ranks,
    is_first,
    is_several,
    own_device,
    processes,
    was_restarted,
    watchdog_note,
)
from glassformer.training.trainer import Trainer
from glassformer.training.trainer_state_file import read_progress

OF_A_RUN = {checkpoint.FOLDER, metrics_log.NAME, "tensorboard", lock.LOCK, lock.OWNER, ".torchrun"}
"""What a run that died before its first checkpoint may leave in its folder."""
OF_TORCHRUN, RUN_ID = ".torchrun", "TORCHELASTIC_RUN_ID"
"""A file with the name of the `torchrun` that began the run, and where the name stands."""
PATHS = ("path", "valid_path", "test_path", "source", "target", "valid_source", "valid_target", "cache_dir")

NOT_COMPILED = "torch.compile does not trace PyTorch's recurrent modules"


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder, the reports of its last evaluation, and what it was."""

    folder: Path
    reports: dict[str, LossReport]
    run: Run

    def __repr__(self) -> str:
        """Three lines: the run, the loss of its last evaluation, and where the model is."""
        losses = [f"{side} loss {report.loss:.4f} nats" for side, report in self.reports.items()]
        return (
            f"{type(self).__name__}: {self.run.name}, {self.run.train.max_steps:,} steps at most\n"
            f"  {', '.join(losses) or 'never evaluated'}\n"
            f"  model directory: {self.folder}"
        )


def launch(run: Run, folder: Path, reporter: LaunchReporter) -> Outcome:
    """Trains a run from its first step into a new folder; everything is checked before anything is written.

    Where `torchrun` starts it anew after a process was lost, it goes on from the newest checkpoint.
    """
    began = time.monotonic()
    if was_restarted() and checkpoint.steps(folder) and _is_of_this_torchrun(folder):
        return relaunch(folder, reporter)
    _require_new(folder)
    files.require_writable(folder)
    start = read_start(run)
    if start is not None:
        run = replace(with_model_of(run, start), init=replace(run.init, path=str(Path(str(run.init.path)).absolute())))
    if _cannot_compile(run):
        raise UserError(f"train.compile is true, and {NOT_COMPILED}: leave it out")
    require_memory(run.model)
    run = with_present_rules(run)
    trainable_task(run).check(run)
    material = material_of(run)
    _require_apart(run, folder)
    device = own_device(choose_device(run.train.device))
    with enough_memory(_memory_advice(run, folder)), processes(run.parallel, run.train, device) as ranks:
        reporter = reporter if ranks.is_first else Silent()
        room = _room(device)
        require_room(run, room)
        tokenizers = _learned(run, start, material, reporter, ranks)
        model = ranks.text_of_first(lambda: json.dumps(to_dict(material.complete(run, tokenizers))))
        run = replace(run, model=from_union(ModelConfig, json.loads(model)), data=_with_whole_paths(run.data))
        require_room(run, room)  # once more, now that the vocabulary is known
        with ranks.first_alone():
            prepared = material.prepare(run, tokenizers, reporter, checks_hashes=ranks.is_first)
        network = new_network(run, start, label_names(material), reporter.log).to(device)
        n_parameters = network.n_parameters()
        ranks.distribute(network, run.train)
        data = prepared.training_data(network, device)
        reporter.log(
            f"{run.name}: {n_parameters:,} parameters on {_place(device, ranks)}; {prepared.summary}, "
            f"{_vocabulary(run, tokenizers, is_given=start is not None)}"
        )
        for sentence in few_targets(data):
            reporter.log(sentence)
        trainer = _trainer(run, network, tokenizers, data, folder, reporter, device, material, ranks, began)
        if (note := watchdog_note(run.parallel, device, folder)) is not None:
            reporter.log(note)
        with locked(folder) if ranks.is_first else nullcontext():
            if ranks.is_first:
                _require_new(folder)  # another process may have been faster
                checkpoint.clean(folder)
                if (name := os.environ.get(RUN_ID)) is not None:
                    files.write_text(folder / OF_TORCHRUN, name)
            return Outcome(folder, trainer.train(), run)


def relaunch(folder: Path, reporter: LaunchReporter, flags: Mapping[str, str] | None = None) -> Outcome:
    """Goes on from the newest intact checkpoint of a run, exactly as if it had never stopped.

    `flags` replace settings that say where it runs, and for how long.
    """
    began = time.monotonic()
    _require_run(folder)
    with locked(folder) if is_first() else nullcontext():
        if is_first():
            checkpoint.clean(folder)
        newest = checkpoint.newest(folder, reporter.log if is_first() else Silent().log)
        run = apply_flags(read_run(newest), flags or {})
        device = own_device(choose_device(run.train.device))
        with enough_memory(_memory_advice(run, folder)), processes(run.parallel, run.train, device) as ranks:
            reporter = reporter if ranks.is_first else Silent()
            ranks.raise_together(lambda: _require_same(newest, ranks))
            trainer = _rebuilt(newest, run, folder, reporter, device, ranks, began)
            before = trainer.progress.made_with
            trainer.restore(newest)
            trainer.publish()
            _tell_of_another_machine(checkpoint.load_numbers(newest).get("made_with", before), before, reporter)
            if (note := watchdog_note(run.parallel, device, folder)) is not None:
                reporter.log(note)
            if not repeats_bits(run.train, device):
                reporter.log(f"on {device.type} without train.deterministic a run goes on equal to rounding")
            step = trainer.progress.step
            done = trainer.progress.finished or step >= run.train.max_steps
            told = ": nothing is left to do" if done else ""
            reporter.log(f"resumed at step {step} of {run.train.max_steps}{told}")
            return Outcome(folder, trainer.train() or _reports_so_far(trainer), run)


@dataclass(frozen=True)
class Replay:
    """Steps of a run, taken again, and what came out otherwise."""

    begin: int
    end: int
    differing: list[str]
    """Names of tensors and numbers that are not equal to the bit."""
    is_same_machine: bool
    """Of the same kind, with the same versions and number of threads, as far as the checkpoint tells."""
    repeats_bits: bool
    """Whether the device gives the same bits every time: the CPU does, CUDA with `train.deterministic`. Equal bits are
    promised only on the same machine and where this holds."""


def replay(folder: Path, reporter: LaunchReporter) -> Replay:
    """Takes the steps between the two newest checkpoints again, and compares; nothing is written."""
    _require_run(folder)
    if is_several():
        raise UserError("resume --verify compares in one process: start it without torchrun")
    with locked(folder):
        return _replay(folder, reporter)


def _replay(folder: Path, reporter: LaunchReporter) -> Replay:
    steps = [step for step in checkpoint.steps(folder) if checkpoint.is_intact(folder, step, reporter.log)]
    if len(steps) < 2:
        raise UserError(
            f"{folder} has {len(steps)} intact checkpoints, and a replay goes from one to the next: train on"
        )
    begin, end = (checkpoint.path_of(folder, step) for step in steps[-2:])
    run = read_run(end)
    device = choose_device(run.train.device)
    trainer = _rebuilt(end, run, folder, reporter, device, Ranks(), time.monotonic())
    made_with = trainer.progress.made_with
    trainer.restore(begin)
    reporter.log(f"taking steps {steps[-2] + 1} to {steps[-1]} again")
    found, stored = trainer.replay(steps[-1]), checkpoint.load_state(end)
    was_made_with = stored.numbers.get("made_with", {})
    return Replay(
        steps[-2],
        steps[-1],
        differing(found, end, stored),
        is_same_machine=not _changed(was_made_with, made_with),
        repeats_bits=repeats_bits(run.train, device),
    )


def _learned(
    run: Run, start: StoredModel | None, material: RunData, reporter: LaunchReporter, ranks: Ranks
) -> Tokenizers:
    """Read and hash the data and learn the tokenizers in the first process; the others take over what it found."""
    learned: list[Tokenizers] = []

    def work() -> str:
        with reporter.phase("reading the data") as _:
            news = material.news()
        for line in news:
            reporter.log(line)
        tokenizers = material.tokenizers(run, reporter) if start is None else tokenizers_of(run, start)
        learned.append(tokenizers)
        source = tokenizers.separate_source
        return json.dumps([material.digest, tokenizers.target.to_json(), None if source is None else source.to_json()])

    text = ranks.text_of_first(work)
    if learned:
        return learned[0]
    digest, target, source = json.loads(text)
    material.take_digest(digest)
    return Tokenizers(Tokenizer.from_json(target), None if source is None else Tokenizer.from_json(source))


def _require_same(newest: Path, ranks: Ranks) -> None:
    """`UserError` when this process sees another newest checkpoint than the first one does."""
    [step] = ranks.of_first(Manifest.read(newest).step)
    if step != Manifest.read(newest).step:
        raise UserError(
            f"process {ranks.rank} finds {newest} and the first one step {step:.0f}: what is on the disk is not "
            "the same for all; wait a moment, or look at the shared file system"
        )


def _is_of_this_torchrun(folder: Path) -> bool:
    """Whether the run in a folder was begun by an earlier attempt of the `torchrun` that started this process."""
    path = folder / OF_TORCHRUN
    return path.is_file() and files.read_text(path) == os.environ.get(RUN_ID)


def _rebuilt(
    of: Path,
    run: Run,
    folder: Path,
    reporter: LaunchReporter,
    device: torch.device,
    ranks: Ranks,
    began: float,
) -> Trainer:
    """The trainer of a run as one of its checkpoints describes it, before its first step."""
    if _cannot_compile(run):  # earlier versions began such runs, and compiled what lies between these modules
        reporter.log(f"train.compile is ignored from here on: {NOT_COMPILED}")
        run = replace(run, train=replace(run.train, compile=False))
    manifest = Manifest.read(of)
    manifest.require(of, [*MODEL_FILES, checkpoint.STATE])
    require_memory(run.model)
    require_room(run, _room(device))
    material = material_of(run)
    material.take_digest(ranks.text_of_first(lambda: material.digest))
    if read_progress(of).data_digest != material.digest:
        raise UserError(
            f"the text of {material.name} is not the one that {folder} was trained on: put the old text back, or "
            "start a new run"
        )
    tokenizers = Tokenizers(*read_tokenizers(of, manifest))
    with ranks.first_alone():
        prepared = material.prepare(run, tokenizers, reporter, checks_hashes=ranks.is_first)
    network = build_model(run.model)
    prepare_parameters(run, network, reporter.log)
    network = network.to(device)
    ranks.distribute(network, run.train)
    data = prepared.training_data(network, device)
    return _trainer(run, network, tokenizers, data, folder, reporter, device, material, ranks, began)


def _memory_advice(run: Run, folder: Path) -> str:
    """What to lower when a run does not fit, and what is left of it."""
    batch = f"train.batch_size (now {run.train.batch_size:,}), model.max_len (now {run.model.max_len:,})"
    if budget := trainable_task(run).micro_batch(run).budget:
        batch = f"data.batch_tokens (now {budget:,})"
    width = f"model.d_model (now {run.model.d_model:,})" if isinstance(run.model, TransformerConfig) else "the widths"
    return (
        f"lower {batch}, {width} or the number of layers, or set train.activation_checkpointing; "
        f"what was saved before stays in {folder}"
    )


def _cannot_compile(run: Run) -> bool:
    return run.train.compile and isinstance(run.model, RecurrentConfig)


def _require_new(folder: Path) -> None:
    if checkpoint.steps(folder):
        raise UserError(
            f"{folder} already holds a run: go on with `glassformer resume {folder}`, or name another --out"
        )
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    # A process that is killed may leave half-written files, which the next one deletes.
    strangers = {name for name in names - OF_A_RUN if not name.startswith(non_finite.PREFIX) and ".tmp" not in name}
    if strangers:
        raise UserError(f"{folder} is not empty ({min(strangers)} is in it): name another --out")


def _require_apart(run: Run, folder: Path) -> None:
    """`UserError` where the run's folder would hold what the run reads, or would become part of it."""
    data = [getattr(run.data, name, None) for name in PATHS if name != "cache_dir"]
    given = [name for name in (*data, run.init.path, run.tokenizer.path) if name is not None]
    for name in given:
        place = Path(name.removeprefix(HUB).partition("#")[0] if name.startswith(HUB) else name)
        if name.startswith(PREFIX) or (name.startswith(HUB) and not files.exists(place)):
            continue  # built in, or on the hub: no file here
        files.require_apart(folder, own_paths(place) if files.exists(place) and place.is_dir() else [place])
        if name in data and reads(place, folder / metrics_log.NAME):
            raise UserError(
                f"{folder} is inside of {place}, and the run's own {metrics_log.NAME} would become part of the text: "
                "name an --out elsewhere"
            )


def _require_run(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(f"no such run: {folder}")
    if folder.parent.name == checkpoint.FOLDER:
        raise UserError(f"{folder} is a checkpoint: resume takes the run's folder, {folder.parent.parent}")


def _tell_of_another_machine(before: dict[str, Any], now: dict[str, Any], reporter: LaunchReporter) -> None:
    if other := _changed(before, now):
        reporter.log(f"the run was made with {'; '.join(other)}: it goes on equal to rounding, not to the bit")


def _changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What is otherwise now, of what is known of before: older checkpoints say less."""
    return [f"{name} {before[name]}, now {now[name]}" for name in now if before.get(name, now[name]) != now[name]]


def _place(device: torch.device, ranks: Ranks) -> str:
    return str(device) if ranks.n == 1 else f"{ranks.n} processes of {device.type}"


def material_of(run: Run) -> RunData:
    """The data of a run; `UserError` where nothing is learned from it."""
    task = trainable_task(run)
    for name in PATHS:
        if not (getattr(run.data, name, None) or "").isprintable():
            path = getattr(run.data, name)
            raise UserError(f"the name of the data {path!r} has characters that cannot be written down: rename it")
    return task.open(run)


def with_present_rules(run: Run) -> Run:
    """Record that a new run follows the present rules: a `run.toml` of an older version lacks the key."""
    return replace(run, data=replace(run.data, reading=NEWEST_READING))


def _room(device: torch.device) -> Room | None:
    """The memory of a device; of MPS the machine's, which it shares."""
    if device.type != "cuda":
        return room_of_machine()
    free, total = torch.cuda.mem_get_info(device)
    return Room(f"the GPU {torch.cuda.get_device_name(device)}", total, free, is_cpu=False)


def _with_whole_paths(data: DataConfig) -> DataConfig:
    """The data's place as seen from anywhere: the run may be resumed or evaluated from another folder."""

    def whole(path: str | None) -> str | None:
        if path is None or path.startswith(PREFIX):
            return path
        if path.startswith(HUB):  # a name of the hub, or a folder on this disk
            name, mark, split = path.removeprefix(HUB).partition("#")
            return f"{HUB}{Path(name).absolute()}{mark}{split}" if Path(name).is_dir() else path
        return str(Path(path).absolute())

    names = [field.name for field in fields(data) if field.name in PATHS]
    paths: dict[str, Any] = {name: whole(getattr(data, name)) for name in names}
    return replace(data, **paths)


def _trainer(
    run: Run,
    network: Network,
    tokenizers: Tokenizers,
    data: TrainingData,
    folder: Path,
    reporter: LaunchReporter,
    device: torch.device,
    material: RunData,
    ranks: Ranks,
    began: float,
) -> Trainer:
    def write_model(into: Path, weights: Tensors) -> None:
        write_model_files(into, weights, tokenizers.target, run, tokenizers.separate_source, label_names(material))

    if device.type == "cpu":
        keep_freed_memory()
    scales = layer_scales(network, run.init.layer_decay) if run.init.layer_decay < 1 else None
    return Trainer(
        run.train, network, data, folder, write_model, reporter, device, material.digest, scales, ranks, began
    )


def _vocabulary(run: Run, tokenizers: Tokenizers, is_given: bool) -> str:
    """The sizes of the vocabularies, and that there are fewer tokens than were asked for."""
    asked = 0 if is_given or run.tokenizer.path is not None else run.tokenizer.vocab_size
    target, source = tokenizers.target, tokenizers.separate_source
    fewer = f" (the text gives no {asked:,})" if target.vocab_size < asked else ""
    of_source = "" if source is None else f", of the source {source.vocab_size:,}"
    return f"vocabulary {target.vocab_size:,}{fewer}{of_source}"


def _reports_so_far(trainer: Trainer) -> dict[str, LossReport]:
    """What the last evaluation of a finished run said, when there was nothing left to train."""
    valid = trainer.progress.valid
    return {"valid": LossReport(**valid)} if valid else {}  # type: ignore[arg-type]
