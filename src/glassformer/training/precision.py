"""The precision of a run: the type of its matrix products under autocast."""

import torch

_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast_dtype(precision: str) -> torch.dtype | None:
    """The type that autocast multiplies matrices in for `train.precision`; None where it is off.

    >>> autocast_dtype("bf16"), autocast_dtype("fp32")
    (torch.bfloat16, None)
    """
    return _AUTOCAST[precision]
