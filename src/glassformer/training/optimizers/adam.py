"""Adam and AdamW: PyTorch's, with a fused kernel if the device has one."""

import torch
from torch import nn

from glassformer.config.train import AdamConfig, AdamWConfig
from glassformer.training.optimizers.build import can_fuse, parameter_groups, trained_parameters


def build(model: nn.Module, config: AdamConfig | AdamWConfig) -> torch.optim.Optimizer:
    """Return the optimizer for all trainable parameters."""
    fused = can_fuse(parameter for _, parameter in trained_parameters(model))
    groups = parameter_groups(model, config)
    if isinstance(config, AdamWConfig):
        return torch.optim.AdamW(groups, betas=config.betas, eps=config.eps, fused=fused)
    return torch.optim.Adam(groups, betas=config.betas, eps=config.eps, fused=fused)
