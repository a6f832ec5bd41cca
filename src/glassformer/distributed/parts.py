"""Tensors of which each process may hold a part (`DTensor`), from and to whole ones.

On the disk tensors are whole, in one file, however many processes wrote it: any number of them can read it.
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

from glassformer.errors import UserError


def part_of(whole_one: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this process holds, where it holds a part of `like`."""
    if not hasattr(like, "placements"):
        return whole_one
    from torch.distributed.tensor import distribute_tensor

    placed: Any = like
    return distribute_tensor(whole_one.to(like.device), placed.device_mesh, placed.placements, src_data_rank=None)


def own(x: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    local: Callable[[], Tensor] | None = getattr(x, "to_local", None)
    return x if local is None else local()


def whole(x: Tensor) -> Tensor:
    """A tensor of which each process may hold a part, put together; all processes must ask."""
    full: Callable[[], Tensor] | None = getattr(x, "full_tensor", None)
    return x if full is None else full()


def write_parts(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Every process writes its parts, by `torch.distributed.checkpoint`, which also puts them together in one file.

    Of the writers that torch has it is the one whose metadata are JSON, in the headers of the files. It loses numbers
    that have no dimension (torch 2.13): they are written with one, and `join_parts` puts the header right.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    if not tensors:  # of an optimizer before its first step; the writer would stumble
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
    """What is left to do for one process: deletes the parts, and gives numbers the shape of numbers."""
    numbers = [name for name, x in tensors.items() if not x.shape]
    try:
        shutil.rmtree(folder / "sharded", ignore_errors=True)
        with open(parts_path(folder), "r+b") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
            for name in numbers:
                header[name]["shape"] = []
            file.seek(8)
            file.write(json.dumps(header, separators=(",", ":")).encode().ljust(length))  # as long as it was
    except (OSError, ValueError) as error:
        raise _unwritten(folder, error) from error


def check_parts(tensors: Mapping[str, Tensor], folder: Path) -> Path:
    """Every process reads its parts again; the one file, or `UserError` unless they are what it wrote."""
    try:
        path = parts_path(folder)
        stored = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise _unwritten(folder, error) from error
    wrong = [name for name, x in tensors.items() if name not in stored or not _is_part_of(x, stored[name])]
    if wrong or len(stored) != len(tensors):
        raise UserError(f"{folder} does not hold what was written ({', '.join(wrong[:3])}): the disk is at fault")
    return path


def parts_path(folder: Path) -> Path:
    """The one file of a folder of `write_parts`."""
    [path] = folder.glob("model-*.safetensors")
    return path


def _unwritten(folder: Path, error: BaseException) -> UserError:
    return UserError(f"cannot write {folder}: {str(error).strip().splitlines()[-1]}")


def _is_part_of(x: Tensor, stored: Tensor) -> bool:
    return x.shape == stored.shape and bool((own(part_of(stored, x)).to(x.device) == own(x)).all())
