"""A model directory: config, weights, tokenizer, generation defaults, the run's recipe, and a manifest of them all.

Every verb takes one. A run's folder is one (the chosen weights), and so is each of its checkpoints.
"""

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer import files
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import BeamConfig, GenerationConfig, LoraConfig, Run
from glassformer.config.schema import from_dict, from_union, parse_toml, to_dict, to_toml
from glassformer.errors import UserError
from glassformer.models.build import Network, build_model
from glassformer.models.transforms import add_lora
from glassformer.store.lock import LOCK, OWNER
from glassformer.store.manifest import NAME as MANIFEST
from glassformer.store.manifest import Manifest
from glassformer.store.tensors import PartOf, fill, require_fit, save_tensors
from glassformer.tokenization.tokenizer import Tokenizer

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
GENERATION, RUN = "generation.json", "run.toml"
SOURCE_TOKENIZER = "source_tokenizer.json"
LABELS = "labels.json"
_LORA = "lora"
"""The key of `config.json` under which an adapted network says how it is adapted."""
MODEL_FILES = [CONFIG, WEIGHTS, TOKENIZER, GENERATION, RUN]
"""What every model directory has."""
SOME_FILES = [SOURCE_TOKENIZER, LABELS]
"""What some have: the source's tokenizer where it has its own, the names of classes or tags where there are any."""


@dataclass(frozen=True)
class StoredModel:
    """What a model directory holds, in memory."""

    network: Network
    config: ModelConfig
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer | None
    """Of the source, where it has a vocabulary of its own."""
    generation: GenerationConfig | BeamConfig
    run: Run
    manifest: Manifest
    labels: tuple[str, ...] = ()
    """Names of classes or tags, by number."""


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Every stored tensor once: a tied table has one name, the first."""
    parameters = dict(network.named_parameters())
    all_names = dict(network.named_parameters(remove_duplicate=False))
    buffers = {name: x for name, x in network.state_dict().items() if name not in all_names}
    return {name: x.detach().contiguous() for name, x in (parameters | buffers).items()}


def load_weights(network: nn.Module, path: Path, part_of: PartOf | None = None) -> None:
    """Fills a network from safetensors; every name, shape and dtype must fit, and what does not is listed.

    `part_of` is that of `store.tensors.fill`.
    """
    wanted = weights_of(network)
    require_fit(wanted, path)
    fill(wanted, path, part_of)


def write_model_files(
    folder: Path,
    weights: dict[str, Tensor] | Path,
    tokenizer: Tokenizer,
    run: Run,
    source_tokenizer: Tokenizer | None = None,
    labels: Sequence[str] = (),
) -> None:
    """Writes the files of a model directory, but the manifest, into an existing folder; weights as `weights_of`."""
    adapted = {} if run.lora is None else {_LORA: to_dict(run.lora)}
    files.write_json(folder / CONFIG, to_dict(run.model) | adapted)
    save_tensors(weights, folder / WEIGHTS)
    tokenizer.save(folder / TOKENIZER)
    if source_tokenizer is not None:
        source_tokenizer.save(folder / SOURCE_TOKENIZER)
    if labels:
        files.write_json(folder / LABELS, list(labels))
    files.write_json(folder / GENERATION, to_dict(run.generation))
    files.write_text(folder / RUN, to_toml(to_dict(run)))


def save_model(
    folder: Path,
    network: nn.Module,
    step: int,
    tokenizer: Tokenizer,
    run: Run,
    source_tokenizer: Tokenizer | None,
    labels: Sequence[str],
) -> None:
    """Writes a model directory with its manifest, weights in fp32; `UserError` for a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: name another folder")
    files.require_writable(folder)
    weights = {name: x.float() if x.is_floating_point() else x for name, x in weights_of(network).items()}
    with files.new_folder(folder) as new:
        write_model_files(new, weights, tokenizer, run, source_tokenizer, labels)
        Manifest.of(new, "model", step, sorted(path.name for path in new.iterdir())).write(new)


def publish(checkpoint: Path, folder: Path, step: int) -> None:
    """Makes `folder` a model directory with the files of one of its checkpoints.

    All are copied first; then each is replaced atomically, and the manifest comes last. Should the power fail between
    two of them, the manifest disagrees, and `read_model` says so and where the checkpoints are. A damaged checkpoint
    is refused.
    """
    manifest = Manifest.read(checkpoint)
    manifest.verify(checkpoint)
    names = model_files(manifest)

    def temporary(name: str) -> Path:
        return folder / f".{name}.tmp"  # one name: what a killed process left is written over

    try:
        for name in names:
            shutil.copyfile(checkpoint / name, temporary(name))
            files.fsync_file(temporary(name))
        copied = Manifest.of(folder, "model", step, [temporary(name).name for name in names])
        entries = {name: copied.entries[temporary(name).name] for name in names}
        if entries != {name: manifest.entries[name] for name in names}:
            raise UserError(f"cannot write {folder}: the disk gives back other bytes than it was given")
        Manifest("model", step, entries).write(folder, temporary(MANIFEST).name)
        for name in [*names, MANIFEST]:
            os.replace(temporary(name), folder / name)
        files.fsync_folder(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {files.reason(error)}") from error
    finally:
        for name in [*names, MANIFEST]:
            with suppress(OSError):  # of a disk that stays bad: the first error tells
                temporary(name).unlink(missing_ok=True)


def model_files(manifest: Manifest) -> list[str]:
    """The files of a model directory that a manifest lists: of a checkpoint, without its training state."""
    return [name for name in [*MODEL_FILES, *SOME_FILES] if name in manifest.entries]


def own_paths(folder: Path) -> list[Path]:
    """The files of a model directory, and of a run its checkpoints and logs: no output may replace one of them."""
    of_run = ["checkpoints", "metrics.jsonl", "tensorboard", "training_state", LOCK, OWNER]
    return [folder / name for name in [*MODEL_FILES, *SOME_FILES, MANIFEST, *of_run]]


def is_published(folder: Path, step: int) -> bool:
    """Whether `folder` holds, whole, the model of this step."""
    try:
        manifest = Manifest.read(folder)
        if manifest.step == step:
            manifest.verify(folder)
    except UserError:
        return False
    return manifest.step == step


def has_weights_of(folder: Path, other: Path) -> bool:
    """Whether a model directory holds, whole, the same weights as another one."""
    try:
        manifest = Manifest.read(folder)
        manifest.verify(folder)
    except UserError:
        return False
    return manifest.entries.get(WEIGHTS) == Manifest.read(other).entries[WEIGHTS]


def read_model(folder: Path, device: str | torch.device = "cpu") -> StoredModel:
    """Reads a model directory after its manifest agrees; `UserError` with the reason when anything is wrong."""
    if not folder.exists():
        raise UserError(f"no such model directory: {folder}")
    if not folder.is_dir():
        files.refuse_objects(folder)
        raise UserError(f"{folder} is a file, and a model directory is needed")
    try:
        manifest = _verified(folder)
    except UserError as error:
        checkpoints = folder / "checkpoints"
        hint = f"; an intact state may be in {checkpoints}" if checkpoints.is_dir() else ""
        raise UserError(f"{error}{hint}") from error
    manifest.require(folder, MODEL_FILES)
    run = read_run(folder)
    config, lora = _read_config(folder, run)
    tokenizer, source_tokenizer = read_tokenizers(folder, manifest)
    n_source_rows = config.encoder_vocab_size  # two tokenizers may share one table
    for side, n_tokens, n_rows in (
        ("tokenizer", tokenizer.vocab_size, config.vocab_size),
        ("source tokenizer", source_tokenizer.vocab_size if source_tokenizer else 0, n_source_rows),
    ):
        if n_tokens > n_rows:
            raise UserError(f"{folder}: the {side} has {n_tokens} tokens and the model only {n_rows}")
    labels = read_labels(folder, manifest)
    n_labels = getattr(getattr(config, "head", None), "n_labels", len(labels))
    if labels and len(labels) != n_labels:
        raise UserError(f"{folder}: {LABELS} has {len(labels)} names and the model's head {n_labels} labels")
    require_fit(weights_of(_network(config, lora, "meta")), folder / WEIGHTS)  # before any memory is asked for
    network = _network(config, lora, device)
    load_weights(network, folder / WEIGHTS)
    network.eval()
    path = folder / GENERATION
    generation = from_union(GenerationConfig | BeamConfig, files.read_json(path), str(path))
    return StoredModel(network, config, tokenizer, source_tokenizer, generation, run, manifest, labels)


def _verified(folder: Path) -> Manifest:
    """The manifest, which agrees; what a trainer may just be replacing is looked at again."""
    manifest = Manifest.read(folder)
    for _ in range(5):
        try:
            manifest.verify(folder)
            return manifest
        except UserError:
            time.sleep(0.05)
            before, manifest = manifest, Manifest.read(folder)
            if manifest == before and not (folder / OWNER).exists():
                raise
    manifest.verify(folder)
    return manifest


def _read_config(folder: Path, run: Run) -> tuple[ModelConfig, LoraConfig | None]:
    """What the network is built from: its configuration, and how its layers are adapted where they are."""
    path = folder / CONFIG
    said = with_old_head(files.read_json(path))
    lora = run.lora  # earlier versions wrote it there alone
    if isinstance(said, dict) and _LORA in said:
        lora = from_dict(LoraConfig, said.pop(_LORA), f"{path}: {_LORA}")
    return from_union(ModelConfig, said, str(path)), lora


def _network(config: ModelConfig, lora: LoraConfig | None, device: str | torch.device) -> Network:
    network = build_model(config, device)
    if lora is not None:
        add_lora(network, lora.targets, lora.rank, lora.alpha, lora.dropout)
    return network


def read_tokenizers(folder: Path, manifest: Manifest) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer of a model directory, and that of the source where it has its own."""
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    return tokenizer, Tokenizer.load(folder / SOURCE_TOKENIZER) if SOURCE_TOKENIZER in manifest.entries else None


def read_labels(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Names of classes or tags, by number; empty where the model has none."""
    path = folder / LABELS
    if LABELS not in manifest.entries:
        return ()
    names = files.read_json(path)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} must be a list of names")
    if len(set(names)) < len(names):
        raise UserError(f"{path} has a name twice: each number needs its own")
    return tuple(names)


def read_run(folder: Path) -> Run:
    """The recipe that a model directory was trained with."""
    path = folder / RUN
    table = parse_toml(files.read_text(path), str(path))
    if "model" in table:
        table["model"] = with_old_head(table["model"])
    return from_dict(Run, table, str(path))


def with_old_head(model: Any) -> Any:
    """The table of a model, whose head of vectors says what its vectors were when the table was written.

    Versions that wrote no `normalize` gave the mean of the last hidden states, whatever `pooling` and `pooler` said.

    >>> with_old_head({"head": {"kind": "vectors", "pooling": "first", "pooler": "tanh"}})
    {'head': {'kind': 'vectors', 'pooling': 'mean', 'pooler': 'unused'}}
    """
    head = model.get("head") if isinstance(model, dict) else None
    if not isinstance(head, dict) or head.get("kind") != "vectors" or "normalize" in head:
        return model
    pooler = "none" if head.get("pooler", "none") == "none" else "unused"  # a stored layer stays stored
    return model | {"head": head | {"pooling": "mean", "pooler": pooler}}
