"""A checkpoint folder of transformers: `config.json`, weights in one safetensors file or in shards, tokenizer files.

No code of the folder is run: pickles and paths outside it are rejected, and custom classes (`auto_map`) are ignored.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.common import files
from glassformer.common.errors import UserError, first_line, listed, shown
from glassformer.data.addresses import local_path
from glassformer.data.formats import HUB

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.store.tensors import StoredShape

CONFIG, GENERATION = "config.json", "generation_config.json"
ADAPTER = "adapter_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000  # the limit of transformers
MAX_SHARDS = 1000
GGUF = b"GGUF"
"""The first bytes of a GGUF file."""
WANTED = ["*.json", "model*.safetensors", "*.spm", "vocab.txt", "merges.txt", "chat_template.jinja"]
"""Files to download: no code, no pickles and no second copy of the weights (`consolidated.safetensors`)."""


@dataclass(frozen=True)
class HFFolder:
    """An opened checkpoint folder: its configuration, and the file and shape of each tensor."""

    path: Path
    config: dict[str, Any]
    tensors: "Mapping[str, StoredShape]"
    places: Mapping[str, Path] = field(default_factory=dict)
    """For each name of a tensor, the file that contains it."""

    @classmethod
    def open(cls, path: Path) -> "HFFolder":
        """Read the headers of all weights; raise `UserError` if files are missing, damaged, or would run code."""
        config = read_config(path)
        from glassformer.store.tensors import read_shapes  # imports torch

        shapes = {file: read_shapes(file) for file in weight_files(path)}
        tensors = {name: x for one in shapes.values() for name, x in one.items()}
        return cls(path, config, tensors, {name: file for file, one in shapes.items() for name in one})

    def text(self, name: str, max_bytes: int = files.MAX_TEXT_BYTES) -> str | None:
        """Return the contents of a text file in the folder; None if the file is missing."""
        path = self.path / name
        return files.read_text(path, max_bytes) if path.is_file() else None

    def table(self, name: str) -> dict[str, Any]:
        """Return the contents of a JSON file in the folder; empty if the file is missing."""
        return _table(self.path / name)

    @contextmanager
    def reading(self) -> "Iterator[Callable[[str], Tensor]]":
        """Yield a function that loads one tensor by its name. Until the block ends, one file at a time is open."""
        from safetensors import SafetensorError, safe_open

        with ExitStack() as opened:

            @lru_cache(maxsize=1)
            def tensors_of(file: Path) -> Any:
                opened.close()
                return opened.enter_context(safe_open(file, framework="pt"))

            try:
                yield lambda name: tensors_of(self.places[name]).get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise UserError(f"{self.path} cannot be read: {error}") from error


def is_gguf(path: Path) -> bool:
    """Return True for a GGUF file; raise `UserError` for another kind of file with the suffix of GGUF."""
    if not path.is_file():
        return False
    with files.reading(path), open(path, "rb") as file:
        found = file.read(len(GGUF)) == GGUF
    if not found and path.suffix == ".gguf":
        files.refuse_objects(path)
        raise UserError(f"{path} cannot be imported: it is not a GGUF file")
    return found


def read_config(path: Path) -> dict[str, Any]:
    """Read `config.json` of a checkpoint folder; raise `UserError` if it is missing."""
    if not path.is_dir():
        if path.is_file():
            files.refuse_objects(path)
        raise UserError(
            f"no such folder: {path}; give the folder that contains config.json, hf:OWNER/NAME, or a .gguf file"
        )
    if (path / ADAPTER).is_file() and not any((path / name).is_file() for name in (WEIGHTS, INDEX)):
        raise UserError(
            f"{path} contains only a LoRA adapter: merge it into its base model with peft's merge_and_unload, "
            "call save_pretrained, and import that folder"
        )
    if not (path / CONFIG).is_file():
        ggufs = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; to import {ggufs[0]}, give the path of this file" if ggufs else ""
        raise UserError(f"{path} is not a checkpoint of transformers: it has no {CONFIG}{hint}")
    return _table(path / CONFIG)


def weight_files(path: Path) -> list[Path]:
    """Return the weight files of a folder: a single file, or the shards that an index lists."""
    if (path / INDEX).exists() and not (path / WEIGHTS).is_file():  # transformers, too, reads the single file first
        names = _table(path / INDEX).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise UserError(f"{path / INDEX}: weight_map: expected a table of tensor name → file name")
        shards = sorted(set(names.values()))
        if len(shards) > MAX_SHARDS:
            raise UserError(f"{path / INDEX} lists {len(shards):,} files; the limit is {MAX_SHARDS:,}")
        for shard in shards:
            if shard in (".", "..") or Path(shard).name != shard or "\\" in shard or "\0" in shard:
                raise UserError(f"{path / INDEX} lists {shown(shard)}, which is not a file in this folder")
            if not (path / shard).is_file():
                raise UserError(f"{path} is incomplete: {shown(shard)}, listed in {INDEX}, is missing")
        _require_index_true(path, names)
        return [path / shard for shard in shards]
    if not (path / WEIGHTS).is_file():
        for other in sorted(path.iterdir()):
            if other.is_file() and other.suffix in (".bin", ".pt", ".pth", ".ckpt"):
                files.refuse_objects(other)
        raise UserError(f"{path} has no {WEIGHTS}: its weights must be stored as safetensors")
    return [path / WEIGHTS]


def _require_index_true(path: Path, names: Mapping[str, str]) -> None:
    from glassformer.store.tensors import read_shapes

    shards = {name: shard for shard in set(names.values()) for name in read_shapes(path / shard)}
    if wrong := [name for name in {**names, **shards} if names.get(name) != shards.get(name)]:
        entries = listed([shown(name) for name in wrong], most=1)
        raise UserError(f"{path / INDEX} has wrong entries: {entries}; the shards contain other tensors than it lists")


def _table(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    value = files.read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} must contain a JSON object")
    return {key: _number(x) if key.endswith("_token_id") else x for key, x in value.items()}


def _number(token_id: Any) -> Any:
    """Return an id as a number if it is a string of digits, and any other value unchanged.

    >>> _number("2"), _number([1, 2]), _number("</s>")
    (2, [1, 2], '</s>')
    """
    return int(token_id) if isinstance(token_id, str) and token_id.isdecimal() else token_id


def write_weights(tensors: "Iterable[tuple[str, Tensor]]", folder: Path, max_shard_bytes: int = MAX_SHARD_BYTES) -> int:
    """Write weights into a folder, as one file or as shards with an index; return the number of bytes.

    A tensor is never split: a tensor larger than `max_shard_bytes` gets its own shard.
    """
    from glassformer.store.tensors import save_tensors

    shards: list[dict[str, Tensor]] = [{}]
    n_bytes = size = 0
    for name, x in tensors:
        if shards[-1] and size + x.nbytes > max_shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = x
        size += x.nbytes
        n_bytes += x.nbytes
    if len(shards) == 1:
        save_tensors(shards[0], folder / WEIGHTS)
        return n_bytes
    weight_map: dict[str, str] = {}
    for i, shard in enumerate(shards, 1):
        file = f"model-{i:05}-of-{len(shards):05}.safetensors"
        save_tensors(shard, folder / file)
        weight_map |= dict.fromkeys(shard, file)
    files.write_json(folder / INDEX, {"metadata": {"total_size": n_bytes}, "weight_map": weight_map})
    return n_bytes


def local(source: str | Path) -> Path:
    """Return the local folder of a source; `hf:OWNER/NAME` is downloaded from the hub if it is not cached."""
    path = local_path(str(source), "source")
    if path is not None:
        return path
    if not str(source).startswith(HUB):
        raise UserError(f"{source} is no checkpoint; give the folder that contains config.json, or hf:OWNER/NAME")
    name = str(source).removeprefix(HUB)
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(
            f"{source} needs the package huggingface_hub: run pip install huggingface_hub, or give a local folder"
        ) from None
    try:
        return Path(snapshot_download(name, allow_patterns=WANTED))
    except (OSError, ValueError) as error:  # includes errors of huggingface_hub and the network
        raise UserError(f"cannot download {source}, and it is not in the cache: {first_line(error):.200}") from error


@contextmanager
def quiet(logging: Any) -> Iterator[None]:
    """Hide the progress bars and messages of transformers in the block; `logging` is `transformers.utils.logging`."""
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()
