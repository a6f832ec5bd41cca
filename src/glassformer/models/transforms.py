"""Explicit changes to a built network: low-rank updates, weights from another model, smaller weights."""

import difflib
import fnmatch
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.common.errors import UserError, first_line
from glassformer.models.heads import TokenLogits
from glassformer.nn.layers import Linear

# Low-rank adaptation


class LoraLinear(nn.Linear):
    """Linear layer with a low-rank update: y = W x + b + α / r · B A dropout(x) (Hu 2022, section 4.1).

    W and b are frozen; A (r, in) and B (out, r) learn. A is drawn uniformly in ± 1 / √in, as in loralib and PEFT
    (Kaiming with a = √5), so that the spread of A x depends on neither width nor rank. B starts at zero, so the output
    is first unchanged. W and b keep their names.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float, dropout: float) -> None:
        nn.Module.__init__(self)  # nn.Linear.__init__ would draw a weight
        if rank < 1:
            raise ValueError(f"the rank of an update is {rank} and must be at least 1")
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout = alpha / rank, dropout
        bound = 1 / math.sqrt(base.in_features)
        drawn = torch.empty(rank, base.in_features, device=base.weight.device).uniform_(-bound, bound)
        self.lora_a = nn.Parameter(drawn.to(base.weight))
        self.lora_b = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        self.train(base.training)

    def forward(self, x: Tensor) -> Tensor:
        """Map `x` (…, in) to (…, out)."""
        low = F.dropout(x, self.dropout, self.training) @ self.lora_a.T
        return F.linear(x, self.weight, self.bias) + low @ self.lora_b.T * self.scale

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Return a plain trainable layer with the weight W + α / r · B A."""
        plain = Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        # Only the sum is rounded. It is computed on the CPU, because MPS has no float64.
        weight, a, b = (x.cpu().double() for x in (self.weight, self.lora_a, self.lora_b))
        plain.weight = nn.Parameter((weight + b @ a * self.scale).to(self.weight))
        if self.bias is not None:
            plain.bias = nn.Parameter(self.bias.clone())
        return plain.train(self.training)


def add_lora(network: nn.Module, patterns: Sequence[str], rank: int, alpha: float, dropout: float = 0.0) -> list[str]:
    """Adapt linear layers whose names match a pattern, freeze all other weights, and return the names of the layers.

    Patterns are those of a shell: `*.q_proj`, `decoder.blocks.0.*`. Raises `UserError`, and leaves the network as
    before, if no linear layer matches a pattern, or if a matching layer is tied to an embedding or already adapted.
    """
    linears = {name: m for name, m in network.named_modules() if isinstance(m, nn.Linear)}
    tables = {id(m.weight) for m in network.modules() if isinstance(m, nn.Embedding)}
    chosen: dict[str, nn.Linear] = {}
    for pattern in patterns:
        matching = {name: layer for name, layer in linears.items() if fnmatch.fnmatchcase(name, pattern)}
        if not matching:
            raise UserError(f"lora.targets: no linear layer matches {pattern}; similar: {similar(pattern, linears)}")
        chosen |= matching
    for name, layer in chosen.items():
        if id(layer.weight) in tables:
            raise UserError(f"lora.targets: {name} is tied to the embeddings and cannot be adapted; leave it out")
        if isinstance(layer, LoraLinear):
            raise UserError(f"lora.targets: {name} is already adapted; merge that update first")
    network.requires_grad_(False)
    for name, layer in chosen.items():
        network.set_submodule(name, LoraLinear(layer, rank, alpha, dropout))
    return list(chosen)


def merge_lora(network: nn.Module) -> int:
    """Replace every adapted layer in place by a plain layer with the merged weight; return their number."""
    adapted = {name: m for name, m in network.named_modules() if isinstance(m, LoraLinear)}
    for name, module in adapted.items():
        network.set_submodule(name, module.merged())
    return len(adapted)


# Loading weights from another model


@dataclass(frozen=True)
class LoadReport:
    """Names of the weights that were loaded, extended, kept or left out when stored weights were loaded."""

    taken: list[str]
    extended: list[str]
    """Weights with more rows than are stored: their first rows were loaded, the others are unchanged. Also in
    `taken`."""
    new: list[str]
    """Weights of the network that keep their initial values."""
    left: list[str]
    """Stored weights that were not loaded."""

    def __str__(self) -> str:
        lines = [f"loaded: {len(self.taken)} tensors"]
        for what, names in (("with new rows", self.extended), ("new", self.new), ("not loaded", self.left)):
            if names:
                lines.append(f"{what}: {_summary(names)}")
        return "\n".join(lines)


@torch.no_grad()
def take_weights(network: nn.Module, stored: Mapping[str, Tensor], leave: Collection[str] = ()) -> LoadReport:
    """Fill a network in place with the stored weights that match by name and shape, except the names in `leave`.

    A weight with one row per token (table, output projection, bias) also accepts fewer stored rows; they become its
    first rows. A stored weight with more rows is not loaded, because each row is a token (`without_padding` removes
    padding rows).
    """
    tensors: dict[int, tuple[str, Tensor]] = {}  # a tied table appears once, under its first name, as in stored weights
    for name, tensor in network.state_dict(keep_vars=True).items():
        tensors.setdefault(id(tensor), (name, tensor))
    tables, outputs = _rows_of_tokens(network)
    # The rows of an output may also be labels. They are tokens if the stored output has as many rows as a stored table.
    sizes = {len(stored[name]) for name, tensor in tensors.values() if id(tensor) in tables and name in stored}
    taken, extended, new = [], [], []
    for name, tensor in tensors.values():
        weight = None if name in leave else stored.get(name)
        by_token = id(tensor) in tables or (id(tensor) in outputs and weight is not None and len(weight) in sizes)
        if weight is not None and weight.shape == tensor.shape:
            tensor.copy_(weight)
        elif weight is not None and by_token and weight.shape[1:] == tensor.shape[1:] and len(weight) < len(tensor):
            tensor[: len(weight)] = weight
            extended.append(name)
        else:
            new.append(name)
            continue
        taken.append(name)
    return LoadReport(taken, extended, new, [name for name in stored if name not in taken])


def token_rows(network: nn.Module) -> list[str]:
    """Return the names of the weights that have one row per token."""
    tables, outputs = _rows_of_tokens(network)
    return [name for name, w in network.state_dict(keep_vars=True).items() if id(w) in tables | outputs]


def similar(pattern: str, names: Iterable[str]) -> str:
    """Return up to three names that are most similar to a pattern, for a message.

    >>> similar("*.qproj", ["a.q_proj", "a.k_proj", "b"])
    'a.q_proj, a.k_proj'
    """
    names = list(names)
    return ", ".join(difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or names[:3])


def _rows_of_tokens(network: nn.Module) -> tuple[set[int], set[int]]:
    """Return the `id` of each token table, and of each tensor that computes logits over tokens."""
    modules = dict(network.named_modules())
    heads = [m for m in modules.values() if isinstance(m, TokenLogits)]
    tables = [m.weight for name, m in modules.items() if name.endswith("tokens") and isinstance(m, nn.Embedding)]
    outputs = [tensor for head in heads for tensor in (head.proj.weight, head.bias) if tensor is not None]
    return {id(table) for table in tables}, {id(tensor) for tensor in outputs}


def _summary(names: Sequence[str]) -> str:
    """Format a few names in full, and many names by their first parts.

    >>> _summary(["output.bias"] + [f"encoder.blocks.{i}.ff.weight" for i in range(12)])
    'output.bias, encoder.blocks.* (12)'
    """
    if len(names) <= 6:
        return ", ".join(names)
    starts = Counter(".".join(name.split(".")[:2]) for name in names)
    return ", ".join(start if start in names else f"{start}.* ({n})" for start, n in starts.items())


# For inference: weights are converted once


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def weights_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a name; raise `UserError` for an unknown name or a dtype that the device cannot multiply in.

    >>> weights_dtype("bf16", torch.device("cpu"))
    torch.bfloat16
    """
    if name not in DTYPES:
        raise UserError(f"dtype is {str(name)!r} and must be fp32, bf16 or fp16")
    try:
        x = torch.ones(2, 2, dtype=DTYPES[name], device=device)
        (x @ x).relu().float()
    except (RuntimeError, TypeError) as error:
        raise UserError(f"dtype {name} does not work on the device {device}: {first_line(error)}; use fp32") from error
    return DTYPES[name]


def convert(network: nn.Module, dtype: torch.dtype) -> None:
    """Convert the weights of a network in place to `dtype`, bfloat16 or float16; for inference only.

    The last projection, from hidden states to logits, stays in fp32 and reads its input in fp32, so that logits are not
    rounded to half precision. An embedding table that is tied to this projection also stays in fp32, and the embeddings
    of tokens are rounded to `dtype`. Buffers, such as rotary frequencies, do not change.
    """
    proj = getattr(getattr(network, "output", None), "proj", None)
    exact = set[int]()
    if isinstance(proj, nn.Linear):
        exact = set(map(id, proj.parameters()))
        proj.register_forward_pre_hook(lambda _module, inputs: tuple(x.float() for x in inputs))
    for parameter in network.parameters():
        if id(parameter) not in exact:
            parameter.data = parameter.data.to(dtype)
    for module in network.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()
        if isinstance(module, nn.Embedding) and module.weight.dtype != dtype:
            module.register_forward_hook(lambda _module, _inputs, output: output.to(dtype))
