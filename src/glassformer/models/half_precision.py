"""Half precision for inference: convert the weights of a network once."""

import torch
from torch import Tensor, nn

from glassformer.errors import UserError, first_line

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def weights_dtype(name: str, device: torch.device) -> torch.dtype:
    """The type that a name means; `UserError` for another name, and for a type that the device cannot multiply in.

    >>> weights_dtype("bf16", torch.device("cpu"))
    torch.bfloat16
    """
    if name not in DTYPES:
        raise UserError(f"dtype is {str(name)!r} and must be fp32, bf16 or fp16; integers need an export, such as gguf")
    try:
        x = torch.ones(2, 2, dtype=DTYPES[name], device=device)
        (x @ x).relu().float()
    except (RuntimeError, TypeError) as error:
        raise UserError(f"dtype {name} does not work on the device {device}: {first_line(error)}; give fp32") from error
    return DTYPES[name]


def convert(network: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of a network in place to `dtype`, bfloat16 or float16; for inference alone.

    The last projection, from hidden states to logits, stays in fp32 and reads its input in fp32, so that logits are
    not rounded to half precision. An embedding table that is tied to it stays in fp32 too, and the rows looked up in
    it are rounded to `dtype`. Buffers, such as rotary frequencies, stay as they are.
    """
    proj = getattr(getattr(network, "output", None), "proj", None)
    exact = set() if proj is None else set(map(id, proj.parameters()))
    for parameter in network.parameters():
        if id(parameter) not in exact:
            parameter.data = parameter.data.to(dtype)
    for module in network.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
        if isinstance(module, nn.Embedding) and id(module.weight) in exact:
            module.register_forward_hook(lambda _module, _inputs, found: found.to(dtype))
    if proj is not None:
        proj.register_forward_pre_hook(_to_fp32)


def _to_fp32(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.float() for x in inputs)
