"""Model directories: config, weights, tokenizer, generation defaults, the run's recipe, and a manifest of all files.

Every command takes a model directory. A run folder is a model directory with the selected weights, and each checkpoint
is a model directory too.

torch is imported when weights are read or written, so paths and manifests are checked without it.
"""

import math
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from glassformer.common import files
from glassformer.common.errors import UserError, shown
from glassformer.config.presets import PRESETS
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import BeamConfig, GenerationConfig, InitConfig, LoraConfig, Run
from glassformer.config.schema import from_dict, from_union, to_dict
from glassformer.config.written import parse_toml, to_toml
from glassformer.store.lock import LOCK, OWNER
from glassformer.store.manifest import NAME as MANIFEST
from glassformer.store.manifest import Manifest

if TYPE_CHECKING:
    from torch import Tensor, nn

    from glassformer.models.build import Network
    from glassformer.store.tensors import PartOf
    from glassformer.tokenization.tokenizer import Tokenizers

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
GENERATION, RUN = "generation.json", "run.toml"
SOURCE_TOKENIZER = "source_tokenizer.json"
LABELS = "labels.json"
_LORA = "lora"
"""Key of `config.json` with the low-rank adaptation of an adapted network."""
MODEL_FILES = [CONFIG, WEIGHTS, TOKENIZER, GENERATION, RUN]
"""Files of every model directory."""
SOME_FILES = [SOURCE_TOKENIZER, LABELS]
"""Optional files: a separate tokenizer of the source, and the names of classes or tags."""
OF_A_RUN = ["checkpoints", "data", "metrics.jsonl", "tensorboard", "trace.json", LOCK, OWNER]
"""Files that a run may leave in its folder before its first checkpoint."""


@dataclass(frozen=True)
class StoredModel:
    """Contents of a model directory, in memory."""

    network: "Network"
    config: ModelConfig
    tokenizers: "Tokenizers"
    generation: GenerationConfig | BeamConfig
    run: Run
    manifest: Manifest
    labels: tuple[str, ...] = ()
    """Names of classes or tags, by index."""

    @property
    def digest(self) -> str:
        """SHA-256 of the file of the weights."""
        return self.manifest.entries[WEIGHTS][1]

    def weights_in_use(self) -> "dict[str, Tensor]":
        """Return the weights without the table rows that only pad the vocabulary; updates of LoRA are merged."""
        from glassformer.models.transforms import merge_lora, token_rows

        merge_lora(self.network)
        weights = weights_of(self.network)
        for name in token_rows(self.network):
            tokenizer = self.tokenizers.source if name.startswith("encoder.") else self.tokenizers.target
            if name in weights:
                weights[name] = weights[name][: tokenizer.vocab_size]
        return weights


def weights_of(network: "nn.Module") -> "dict[str, Tensor]":
    """Return every stored tensor once, not copied; a tied table appears under its first name."""
    from torch import nn

    first: dict[int, tuple[str, Tensor]] = {}
    for name, x in network.state_dict(keep_vars=True).items():
        first.setdefault(id(x), (name, x))
    parameters_first = sorted(first.values(), key=lambda item: not isinstance(item[1], nn.Parameter))
    return {name: x.detach() for name, x in parameters_first}


def load_weights(network: "nn.Module", path: Path, part_of: "PartOf | None" = None) -> None:
    """Load a network's weights from a file (`tensors.fill`); raise `UserError` listing tensors that do not fit."""
    from glassformer.store.tensors import fill, require_fit

    wanted = weights_of(network)
    require_fit(wanted, path)
    fill(wanted, path, part_of)


def write_model_files(
    folder: Path,
    weights: "dict[str, Tensor] | Path",
    tokenizers: "Tokenizers",
    run: Run,
    labels: Sequence[str] = (),
) -> None:
    """Write the files of a model directory, except the manifest, to a folder; `weights` are from `weights_of`."""
    from glassformer.store.tensors import save_tensors

    adapted = {} if run.lora is None else {_LORA: to_dict(run.lora)}
    files.write_json(folder / CONFIG, to_dict(run.model) | adapted)
    save_tensors(weights, folder / WEIGHTS)
    tokenizers.target.save(folder / TOKENIZER)
    if tokenizers.separate_source is not None:
        tokenizers.separate_source.save(folder / SOURCE_TOKENIZER)
    if labels:
        files.write_json(folder / LABELS, list(labels))
    files.write_json(folder / GENERATION, to_dict(run.generation))
    files.write_text(folder / RUN, to_toml(to_dict(run)))


def save_model(
    folder: Path,
    network: "nn.Module",
    step: int,
    tokenizers: "Tokenizers",
    run: Run,
    labels: Sequence[str],
) -> None:
    """Write a model directory with its manifest, weights in fp32; raise `UserError` for a folder that is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: name another folder")
    files.require_writable(folder)
    weights = {name: x.float() if x.is_floating_point() else x for name, x in weights_of(network).items()}
    with files.new_folder(folder) as new:
        write_model_files(new, weights, tokenizers, run, labels)
        Manifest.of(new, "model", step, sorted(path.name for path in new.iterdir())).write(new)


def publish(checkpoint: Path, folder: Path, step: int) -> None:
    """Make `folder` a model directory with the files of one of its checkpoints.

    All files are copied first. Then each is replaced atomically, the manifest last. If the power fails between two
    replacements, the manifest does not match, and `read_model` names the checkpoints. A damaged checkpoint is refused.
    """
    manifest = Manifest.read(checkpoint).verify(checkpoint)
    names = model_files(manifest)

    def temporary(name: str) -> Path:
        return folder / f".{name}.tmp"  # fixed name: a file left by a killed process is overwritten

    try:
        for name in names:
            shutil.copyfile(checkpoint / name, temporary(name))
            files.fsync_file(temporary(name))
        copied = Manifest.of(folder, "model", step, [temporary(name).name for name in names])
        entries = {name: copied.entries[temporary(name).name] for name in names}
        if entries != {name: manifest.entries[name] for name in names}:
            raise UserError(f"cannot write {folder}: the copied files differ from the checkpoint; check the disk")
        Manifest("model", step, entries).write(folder, temporary(MANIFEST).name)
        for name in [*names, MANIFEST]:
            os.replace(temporary(name), folder / name)
        files.fsync_folder(folder)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {files.reason(error)}") from error
    finally:
        for name in [*names, MANIFEST]:
            with suppress(OSError):  # on a failing disk, report only the first error
                temporary(name).unlink(missing_ok=True)


def model_files(manifest: Manifest) -> list[str]:
    """Return the model files that a manifest lists; for a checkpoint, without its training state."""
    return [name for name in [*MODEL_FILES, *SOME_FILES] if name in manifest.entries]


def own_paths(folder: Path) -> list[Path]:
    """Return the paths that no output may replace: model files, and the checkpoints and logs of a run."""
    return [folder / name for name in [*MODEL_FILES, *SOME_FILES, MANIFEST, "training_state", *OF_A_RUN]]


def is_published(folder: Path, step: int) -> bool:
    """Return True if `folder` contains an intact model of this step."""
    try:
        manifest = Manifest.read(folder)
        if manifest.step == step:
            manifest.verify(folder)
    except UserError:
        return False
    return manifest.step == step


def has_weights_of(folder: Path, other: Path) -> bool:
    """Return True if a model directory is intact and has the same weights as another one."""
    try:
        manifest = Manifest.read(folder).verify(folder)
    except UserError:
        return False
    return manifest.entries.get(WEIGHTS) == Manifest.read(other).entries[WEIGHTS]


def read_model(folder: Path, *, reads_weights: bool = True) -> StoredModel:
    """Read a model directory after verifying its manifest; raise `UserError` with the reason if this fails.

    Without `reads_weights`, the network is on the meta device. The folder is read again if a trainer published a newer
    step during the read. So the weights are always those of the manifest.
    """
    for _ in range(5):
        before = _versions(folder)
        try:
            stored = _read(folder, reads_weights)
        except UserError:
            if _versions(folder) == before:
                raise
        else:
            if _versions(folder) == before:
                return stored
    raise UserError(f"{folder} was replaced during each of 5 reads: read one of its checkpoints, or wait for the run")


def _versions(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and the time of each file of a model directory; they change when a file is replaced."""
    paths = (folder / name for name in [*MODEL_FILES, *SOME_FILES, MANIFEST])
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths if path.exists()}


def _read(folder: Path, reads_weights: bool) -> StoredModel:
    from glassformer.store.tensors import require_fit

    manifest = read_manifest(folder)
    manifest.require(folder, MODEL_FILES)
    run = read_run(folder)
    config, lora = read_config(folder)
    tokenizers = read_tokenizers(folder, manifest)
    require_rows(tokenizers, config, folder)
    labels = read_labels(folder, manifest)
    n_labels = getattr(getattr(config, "head", None), "n_labels", len(labels))
    if labels and len(labels) != n_labels:
        raise UserError(f"{folder}: {LABELS} has {len(labels)} names, but the model's head {n_labels} labels")
    network = _network(config, lora, "meta")
    require_fit(weights_of(network), folder / WEIGHTS)  # before memory is allocated
    if reads_weights:
        network = _network(config, lora, "cpu")
        load_weights(network, folder / WEIGHTS)
    network.eval()
    return StoredModel(network, config, tokenizers, read_generation(folder), run, manifest, labels)


def read_generation(folder: Path) -> GenerationConfig | BeamConfig:
    """Return the defaults of generation of a model directory."""
    path = folder / GENERATION
    return from_union(GenerationConfig | BeamConfig, files.read_json(path), str(path), "generation")


def read_start(init: InitConfig, *, reads_weights: bool = True) -> StoredModel:
    """Read the model that a run starts from; raise `UserError` if its weights are not those of `init.digest`."""
    folder = files.as_path(init.path, "init.path")
    start = read_model(folder, reads_weights=reads_weights)
    if init.digest not in (None, start.digest):
        raise UserError(
            f"the weights of {folder} are not those with which the run began (init.digest): restore them, or start a "
            "new run"
        )
    return start


def require_rows(tokenizers: "Tokenizers", config: ModelConfig, folder: Path) -> None:
    """Raise `UserError` if a tokenizer has more tokens than its embedding table has rows."""
    sides = {
        "tokenizer": (tokenizers.target, config.vocab_size),
        "source tokenizer": (tokenizers.separate_source, config.encoder_vocab_size),
    }
    for name, (tokenizer, n_rows) in sides.items():
        if tokenizer is not None and tokenizer.vocab_size > n_rows:
            raise UserError(f"{folder}: the {name} has {tokenizer.vocab_size:,} tokens, but the model only {n_rows:,}")


def read_manifest(folder: Path, hashed_bytes: float = math.inf) -> Manifest:
    """Read the manifest of a model directory, and verify its files; raise `UserError` for a wrong or damaged folder."""
    if not files.exists(folder):
        files.restore_replaced(folder.parent, folder.name)
    if not files.exists(folder):
        what = f"no such model directory: {shown(str(folder), 400)}"
        if str(folder) in PRESETS:
            what += (
                f"; build_model({str(folder)!r}) builds it untrained, and `glassformer import` reads trained weights"
            )
        raise UserError(what)
    if not folder.is_dir():
        files.refuse_objects(folder)
        raise UserError(f"{folder} is a file: give a model directory")
    try:
        return _verified(folder, hashed_bytes)
    except UserError as error:
        checkpoints = folder / "checkpoints"
        hint = f"; an intact checkpoint may be in {checkpoints}" if checkpoints.is_dir() else ""
        raise UserError(f"{error}{hint}") from error


def _verified(folder: Path, hashed_bytes: float) -> Manifest:
    """Return the verified manifest; retry while a trainer may be replacing the files."""
    manifest = Manifest.read(folder)
    for _ in range(5):
        try:
            return manifest.verify(folder, hashed_bytes)
        except UserError:
            time.sleep(0.05)
            before, manifest = manifest, Manifest.read(folder)
            if manifest == before and not (folder / OWNER).exists():
                raise
    return manifest.verify(folder, hashed_bytes)


def read_config(folder: Path) -> tuple[ModelConfig, LoraConfig | None]:
    """Read the configuration of the network, and its low-rank adaptation if it has one."""
    path = folder / CONFIG
    table, lora = files.read_json(path), None
    if isinstance(table, dict) and _LORA in table:
        lora = from_union(LoraConfig, table.pop(_LORA), f"{path}: {_LORA}", "lora")
    return from_union(ModelConfig, table, str(path), "model"), lora


def _network(config: ModelConfig, lora: LoraConfig | None, device: str) -> "Network":
    """Build a network whose weights are not drawn, because its file has them."""
    import torch

    from glassformer.models.build import undrawn_model
    from glassformer.models.transforms import add_lora

    with torch.device(device):
        network = undrawn_model(config)
    if lora is not None:
        add_lora(network, lora.targets, lora.rank, lora.alpha, lora.dropout)
    return network


def read_tokenizers(folder: Path, manifest: Manifest) -> "Tokenizers":
    """Read the tokenizer of a model directory, and the separate tokenizer of the source if there is one."""
    from glassformer.tokenization.tokenizer import Tokenizer, Tokenizers

    names = [name for name in (TOKENIZER, SOURCE_TOKENIZER) if name in manifest.entries]
    return Tokenizers(*(Tokenizer.load(folder / name) for name in names))


def read_labels(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Read the names of classes or tags, by index; empty for a model without labels."""
    path = folder / LABELS
    if LABELS not in manifest.entries:
        return ()
    names = files.read_json(path)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} must be a list of names")
    if len(set(names)) < len(names):
        raise UserError(f"{path} has a duplicate name: give each label its own name")
    return tuple(names)


def read_run(folder: Path) -> Run:
    """Read the recipe that a model directory was trained with."""
    path = folder / RUN
    return from_dict(Run, parse_toml(files.read_text(path), str(path)), str(path))
