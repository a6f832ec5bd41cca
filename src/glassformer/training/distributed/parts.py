"""Conversion between full tensors and tensors whose parts are on several processes (`DTensor`).

Files contain full tensors, independent of the number of processes that write or read them.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed import barrier, get_rank

from glassformer.common.errors import UserError


def is_part(x: Tensor) -> bool:
    """Return True if the parts of a tensor are on several processes."""
    return hasattr(x, "placements")


def part_of(whole_one: Tensor, like: Tensor) -> Tensor:
    """Return this process's part of a full tensor if `like` is a tensor in parts; else return the full tensor."""
    if not is_part(like):
        return whole_one
    from torch.distributed.tensor import distribute_tensor

    placed: Any = like
    return distribute_tensor(whole_one.to(like.device), placed.device_mesh, placed.placements, src_data_rank=None)


def like_part(local: Tensor, like: Tensor) -> Tensor:
    """Return a tensor in parts, placed as `like`, with the part `local` on this process; `local` if `like` is whole."""
    if not is_part(like):
        return local
    from torch.distributed.tensor import DTensor

    placed: Any = like
    return DTensor.from_local(local, placed.device_mesh, placed.placements, shape=like.shape, stride=like.stride())


def local_part(x: Tensor) -> Tensor:
    """Return the part of a tensor that is on this process."""
    local: Callable[[], Tensor] | None = getattr(x, "to_local", None)
    return x if local is None else local()


def whole(x: Tensor) -> Tensor:
    """Return the full tensor, gathered from the parts of all processes; all processes must call this."""
    full: Callable[[], Tensor] | None = getattr(x, "full_tensor", None)
    return x if full is None else full()


def write_parts(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write the parts of all processes and join them in one file, with `torch.distributed.checkpoint`.

    This writer of torch stores its metadata as JSON, in the headers of the files. It loses tensors without dimensions
    (torch 2.13), so they are written with one dimension, and `join_parts` corrects the header.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    if not tensors:  # an optimizer before its first step; the writer would fail
        if get_rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            save_file({}, folder / "model-00001-of-00001.safetensors")
        barrier()
        return
    writer = HuggingFaceStorageWriter(path=str(folder), save_distributed=True, enable_consolidation=True)
    try:
        save_together({name: x.detach().reshape(x.shape or (1,)) for name, x in tensors.items()}, storage_writer=writer)
    except (CheckpointException, OSError) as error:
        raise _unwritten(folder, error) from error


def join_parts(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Finish the joined file in one process: delete the parts, and restore the shape of tensors without dimensions."""
    numbers = [name for name, x in tensors.items() if not x.shape]
    try:
        shutil.rmtree(folder / "sharded", ignore_errors=True)
        with open(parts_path(folder), "r+b") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            for name in numbers:
                header[name]["shape"] = []
            file.seek(8)
            file.write(json.dumps(header, separators=(",", ":")).encode().ljust(length))  # the same length
    except (OSError, ValueError) as error:
        raise _unwritten(folder, error) from error


def check_parts(tensors: Mapping[str, Tensor], folder: Path) -> Path:
    """Read this process's parts again; return the file's path, or raise `UserError` if they differ from `tensors`."""
    try:
        path = parts_path(folder)
        stored = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _unwritten(folder, error) from error
    wrong = [name for name, x in tensors.items() if name not in stored or not _is_part_of(x, stored[name])]
    if wrong or len(stored) != len(tensors):
        raise UserError(f"{folder} differs from the data that was written ({', '.join(wrong[:3])}): check the disk")
    return path


def parts_path(folder: Path) -> Path:
    """Return the path of the single `model-*.safetensors` file in the folder."""
    [path] = folder.glob("model-*.safetensors")
    return path


def _unwritten(folder: Path, error: BaseException) -> UserError:
    return UserError(f"cannot write {folder}: {str(error).strip().splitlines()[-1]}")


def _is_part_of(x: Tensor, stored: Tensor) -> bool:
    return x.shape == stored.shape and bool((local_part(part_of(stored, x)).to(x.device) == local_part(x)).all())
