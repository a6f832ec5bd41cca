"""Attention over packed rows on a GPU by FlexAttention (Dong 2024), which skips blocks of keys that no query may see.

With a dense mask, the kernel of PyTorch computes all T² scores of a row, also the scores between documents.
FlexAttention compiles the rules of a mask into a kernel of flash attention. It computes only those blocks of 128
queries and 128 keys that contain an allowed pair. `attention_reference` is the readable version.

Letters: B batch, H heads, G key-value heads, T tokens, K key width, W value width.

The stack makes a `BlockMask` instead of a dense mask, once per forward pass and window. A training step that is
compiled for one shape traces FlexAttention. A step that is compiled for several shapes uses a dense mask. In an eager
run, only the functions of FlexAttention are compiled, once. `DEVICES` is the only switch.
"""

import functools
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from glassformer.nn.kernels.linear import is_transformed, product_dtype


def has_c_compiler() -> bool:
    """Return True if a C compiler is found: `CC`, cc, gcc or clang. Triton needs a C compiler."""
    return any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")))


DEVICES: tuple[str, ...] = ("cuda",) if find_spec("triton") is not None and has_c_compiler() else ()
"""Types of devices on which packed rows use FlexAttention, which needs Triton. On other types, they use a dense
mask."""
DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16,)
"""Dtypes in which packed rows use FlexAttention. In fp32, its backward pass has blocks of only 16 tokens. GPUs that
train in fp16 have no tuned block sizes."""
WIDTHS = (16, 32, 64, 128, 256)
"""Widths of keys and values for which the kernel of FlexAttention pads nothing."""
MIN_TOKENS = 512
"""Length of rows from which FlexAttention is used. Compiling it takes some seconds, and shorter rows have few blocks to
skip."""

_HIDDEN = torch.iinfo(torch.int64).min
"""The document of keys that no query may see."""


@contextmanager
def dense_masks() -> Iterator[None]:
    """Use dense masks for packed rows: PyTorch 2.11 cannot compile block masks in a graph with symbolic sizes."""
    global DEVICES
    before, DEVICES = DEVICES, ()
    try:
        yield
    finally:
        DEVICES = before


def prefers_flex(x: Tensor, widths: tuple[int, int], dropout: float) -> bool:
    """Return True if FlexAttention is to compute the self-attention of packed rows `x` (B, T, D).

    `widths` are the widths of keys and values. `dropout` applies to the attention weights; FlexAttention has no
    dropout.
    """
    if x.device.type not in DEVICES or dropout or (is_transformed() and not torch.compiler.is_compiling()):
        return False
    return product_dtype(x) in DTYPES and all(width in WIDTHS for width in widths) and x.shape[1] >= MIN_TOKENS


def document_blocks(documents: tuple[Tensor, Tensor], causal: bool, window: int, keys: Tensor | None) -> BlockMask:
    """Return the rules of a mask as blocks of queries and keys, for `attention_flex`.

    `documents` are the document ids of queries (B, T) and of keys (B, S); `window` 0 = any distance; `keys` (B, S),
    True = real.
    """
    of_query, of_key = documents
    if keys is not None:
        of_key = of_key.masked_fill(~keys, _HIDDEN)

    def may_attend(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        allowed = of_query[row, query] == of_key[row, key]
        if causal:
            allowed = allowed & (query >= key)
        if window:
            allowed = allowed & ((query - key).abs() < window)
        return allowed

    n_rows, n_queries = of_query.shape
    make = _compiled(create_block_mask)
    return make(may_attend, n_rows, None, n_queries, of_key.shape[1], device=of_query.device)


def attention_flex(query: Tensor, key: Tensor, value: Tensor, block_mask: BlockMask, scale: float) -> Tensor:
    """Return the context of `attention_reference`, (B, H, T, W), in the dtype of `value`.

    `query` (B, H, T, K), `key` (B, G, T, K), `value` (B, G, T, W). Has gradients on a GPU only.
    """
    query, key = query.to(value.dtype), key.to(value.dtype)  # norms of heads give fp32 under autocast
    factor = scale * math.sqrt(query.shape[-1])
    if abs(factor - 1) > 1e-6:  # as an argument, the scale would be a symbol in the compiled kernel
        query = query * factor
    attend = _compiled(flex_attention)
    return attend(query, key, value, block_mask=block_mask, enable_gqa=query.shape[1] != key.shape[1])


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of FlexAttention into one kernel, unless `torch.compile` already traces the caller."""
    return function if torch.compiler.is_compiling() else _compiled_once(function)


_compiled_once = functools.cache(lambda function: torch.compile(function))
