"""Who holds the weights: PyTorch's own engines, applied from outside of the model."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from glassformer.config.train import MuonConfig, TrainConfig
from glassformer.devices import autocast_dtype
from glassformer.distributed.process_group import ProcessGroup
from glassformer.errors import UserError


class Replicated(ProcessGroup):
    """Every process holds all the weights (DDP)."""

    def wrapped(self, network: nn.Module) -> nn.Module:
        return DistributedDataParallel(network, gradient_as_bucket_view=True)


class Sharded(ProcessGroup):
    """Every process holds a part of the weights (FSDP2), or of its group's copy of them."""

    holds_parts = True

    def distribute(self, network: nn.Module, config: TrainConfig) -> None:
        if isinstance(config.optimizer, MuonConfig):
            raise UserError(
                f"muon steps whole matrices, and with parallel.strategy {self.config.strategy} a process holds parts "
                "of them: give --parallel.strategy ddp, or --train.optimizer.kind adamw"
            )
        if self.config.cpu_offload and self.device.type == "cpu":
            raise UserError("parallel.cpu_offload is for accelerators, and this run is on the CPU: leave it out")
        policy: dict[str, Any] = {
            "mesh": self._mesh(),
            "mp_policy": MixedPrecisionPolicy(autocast_dtype(config.precision), reduce_dtype=torch.float32),
            "offload_policy": CPUOffloadPolicy() if self.config.cpu_offload else OffloadPolicy(),
        }
        for module in network.modules():
            if isinstance(module, nn.ModuleList):
                for block in module:
                    fully_shard(block, **policy)
        fully_shard(network, **policy)

    @contextmanager
    def evaluating(self, network: nn.Module) -> Iterator[None]:
        yield
        for part in _parts(network):
            part.reshard()

    @contextmanager
    def gathered(self, network: nn.Module) -> Iterator[None]:
        for part in _parts(network):
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        yield
        for part in _parts(network):
            part.reshard()
            part.set_reshard_after_forward(id(part) != id(network), recurse=False)

    def _mesh(self) -> Any:
        if self.config.strategy == "fsdp":
            return init_device_mesh(self.device.type, (self.n,))
        mesh = self._mesh_of_groups()
        for group in mesh.get_all_groups():  # which torch makes with a timeout of its own, 30 minutes
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=self.config.timeout), group)
        return mesh

    def _mesh_of_groups(self) -> Any:
        size = self.config.shard_size or int(os.environ["LOCAL_WORLD_SIZE"])
        if self.n % size:
            raise UserError(
                f"parallel.shard_size is {size} and there are {self.n} processes: they make no whole groups"
            )
        return init_device_mesh(self.device.type, (self.n // size, size), mesh_dim_names=("replicas", "parts"))


def _parts(network: nn.Module) -> list[FSDPModule]:
    return [module for module in network.modules() if isinstance(module, FSDPModule)]
