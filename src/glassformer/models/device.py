"""The device that a model is put on, by name."""

import torch

from glassformer.errors import UserError


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU; a device that is not there is an error."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"the device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device
