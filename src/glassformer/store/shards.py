"""Tensors of which each process may hold a part (`DTensor`), from and to whole ones.

On the disk tensors are whole, in one file, however many processes wrote it: any number of them can read it.
"""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from glassformer.errors import UserError


def held(whole_one: Tensor, like: Tensor) -> Tensor:
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


def write_together(tensors: Mapping[str, Tensor], folder: Path, *, is_first: bool) -> Path:
    """One safetensors file of all processes' parts, by `torch.distributed.checkpoint`; the first one looks it over.

    Of the writers that torch has it is the one whose metadata are JSON, in the headers of the files.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save as save_together

    writer = HuggingFaceStorageWriter(path=str(folder), save_distributed=True, enable_consolidation=True)
    try:
        save_together({name: x.detach() for name, x in tensors.items()}, storage_writer=writer)
    except (CheckpointException, OSError) as error:
        raise UserError(f"cannot write {folder}: {str(error).strip().splitlines()[-1]}") from error
    if not is_first:
        return folder
    [path] = folder.glob("model-*.safetensors")
    with safe_open(path, framework="pt") as stored:
        found = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    if found != {name: tuple(x.shape) for name, x in tensors.items()}:
        raise UserError(f"{path} does not hold what was written: the disk or its file system is at fault")
    shutil.rmtree(folder / "sharded", ignore_errors=True)
    return path


def clones(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in the memory of the CPU, which the next steps do not change."""
    return {name: x.detach().to("cpu", copy=True) for name, x in tensors.items()}
