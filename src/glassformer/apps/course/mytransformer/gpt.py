"""GPT, its windows of text, and weights that others trained (Radford et al. 2019)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .attention import Cache, causal_and_padding_mask, n_cached
from .block import Block, Norm, draw_weights, gelu
from .embeddings import Embeddings, positions_of
from .train import load_weights, renamed, shift


def windows(
    ids: Tensor, n: int, context: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return inputs and labels, both (n, context), of random windows of ids (N,).

    Each of the n windows has `context` + 1 neighbouring ids, all with one probability:
    `torch.randint` draws the first places, (n, 1), with the generator.
    """
    starts = torch.randint(len(ids) - context, (n, 1), generator=generator)
    return shift(ids[starts + torch.arange(context + 1)])


class GPT(nn.Module):
    """GPT-2: learned positions, pre-norm blocks, a last norm, and a tied output.

    Parameters: `embeddings`, `blocks` and `norm`. The table of tokens is also the
    output matrix. Attributes: `max_len` and `n_heads`. `rate` is the dropout of the
    blocks.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int = 64,
        n_heads: int = 4,
        d_ff: int = 256,
        n_layers: int = 2,
        max_len: int = 128,
        activation: Callable[[Tensor], Tensor] = gelu,
        rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.max_len, self.n_heads = max_len, n_heads
        self.embeddings = Embeddings(vocab_size, d_model, max_len)
        self.blocks = nn.ModuleList(
            Block(d_model, n_heads, d_ff, "pre", activation, rate=rate)
            for _ in range(n_layers)
        )
        self.norm = Norm(d_model)
        draw_weights(self)

    def forward(
        self, ids: Tensor, is_token: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Return the logits (B, T, V) of the token after each of the ids (B, T).

        `is_token` is False for padding, at either end; positions count tokens only.
        With a cache, `ids` are the new ones, and `is_token` is of all tokens so far.
        The logits at padding do not matter.
        """
        n_new = ids.shape[1]
        if is_token is None:
            n_all = n_cached(cache) + n_new
            is_token = torch.ones(len(ids), n_all, dtype=torch.bool)
        allowed = causal_and_padding_mask(is_token)[:, :, -n_new:]
        x = self.embeddings(ids, positions_of(is_token)[:, -n_new:])
        for number, block in enumerate(self.blocks):
            x = block(x, allowed, cache=None if cache is None else cache[number])
        return self.project(x)

    def project(self, x: Tensor) -> Tensor:
        """Return the logits (B, T, V) of the stream (B, T, D) after the last block."""
        return self.norm(x) @ self.embeddings.tokens.weight.T

    def new_cache(self) -> Cache:
        """Return an empty cache for `forward`."""
        return [[] for _ in self.blocks]


GPT2 = {
    "transformer": "",
    "wte": "embeddings.tokens",
    "wpe": "embeddings.table",
    "h": "blocks",
    "ln_1": "attention_step.norm",
    "ln_2": "ff_step.norm",
    "mlp": "",
    "c_fc": "up",
    "c_proj": "down",
    "ln_f": "norm",
}
"""Parts of the names in a file of GPT-2, and in a `GPT`."""
GLASSFORMER = {
    "decoder": "",
    "positions": "",
    "self_attn": "attention",
    "self_attn_norm": "attention_step.norm",
    "ff": "",
    "ff_norm": "ff_step.norm",
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "out_proj": "o",
    "up_proj": "up",
    "down_proj": "down",
    "final_norm": "norm",
}
"""The same for a file of the package glassformer."""


def from_gpt2(tensors: dict[str, Tensor], n_heads: int) -> GPT:
    """Return a `GPT` with the weights of a file of GPT-2, from `read_tensors`.

    The sizes follow from the shapes. GPT-2 stores the matrices of its blocks as (in,
    out), so they are transposed here. `attn.c_attn` has queries, keys and values side
    by side, `attn.c_proj` is the output matrix of the attention, and `mlp.c_proj` is
    `down`. Its GELU is computed with tanh. Names may begin with "transformer."; further
    tensors, such as the masks `attn.bias`, are left out.
    """
    found: dict[str, Tensor] = {}
    for name, x in tensors.items():
        if ".h." in f".{name}" and x.dim() == 2:
            x = x.T
        if "attn.c_attn" in name:
            for letter, part in zip("qkv", x.chunk(3), strict=True):
                found[name.replace("attn.c_attn", f"attention.{letter}")] = part
        else:
            found[name.replace("attn.c_proj", "attention.o")] = x
    found = renamed(found, GPT2)
    vocab_size, d_model = found["embeddings.tokens.weight"].shape
    n_layers = sum(name.endswith("up.bias") for name in found)
    d_ff, max_len = (
        len(found["blocks.0.up.bias"]),
        len(found["embeddings.table.weight"]),
    )
    model = GPT(vocab_size, d_model, n_heads, d_ff, n_layers, max_len, gelu_tanh)
    load_weights(model, found)
    return model


def gelu_tanh(x: Tensor) -> Tensor:
    """Return GPT-2's GELU, whose distribution function is approximated with tanh."""
    return F.gelu(x, approximate="tanh")
