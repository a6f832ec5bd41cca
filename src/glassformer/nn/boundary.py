"""Checks of the ids, activations and masks that callers give to layers and models, with one sentence per mistake.

Ids, widths and the bool mask of a network cost a comparison of shapes; ids are read only after an error. The values of
other masks are read: numbers on every device, the bool mask of a layer on a CPU. Masks may be bool, or numbers 0 and 1:
True or 1 = may attend, a real token.

Letters: B batch, H heads, T query length, S key length, D width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_IDS = (torch.int64, torch.int32)


def described(x: Any) -> str:
    """Describe a tensor by dtype and shape, and another object by its type.

    >>> described(torch.zeros(2, 3)), described([1, 2])
    ('float32 (2, 3)', 'a list')
    """
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {tuple(x.shape)}"
    return f"a {type(x).__name__}"


def is_ids(x: Any, beside: Tensor) -> bool:
    """Return True if `x` (B, T) are ids `beside` others (B, S), and no mask: numbers of another shape, or above 1."""
    if not (isinstance(x, Tensor) and isinstance(beside, Tensor) and x.dtype in _IDS and x.dim() == 2):
        return False
    return x.shape != beside.shape or (x.numel() > 0 and _is_readable(x) and int(x.max()) > 1)


def _is_readable(x: Tensor) -> bool:
    """Return False if the values of a tensor are unknown: in `torch.compile` and `torch.func`, on the meta device."""
    return not (torch.compiler.is_compiling() or x.is_meta or torch._C._are_functorch_transforms_active())


def require_rows(name: str, ids: Any, table: nn.Embedding) -> None:
    """Raise `TypeError` or `ValueError` unless ids are a tensor (B, T)."""
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        wrong = _wrong_ids(name, ids, table)
        assert wrong is not None
        raise wrong


def vectors_of(table: nn.Embedding, ids: Tensor, name: str = "token_ids") -> Tensor:
    """Return the rows of a table, (B, T, D), for ids (B, T); raise `TypeError` or `ValueError` for other ids.

    >>> vectors_of(nn.Embedding(8, 4), torch.tensor([[7, 0]])).shape
    torch.Size([1, 2, 4])
    """
    try:
        x = table(ids)
    except (IndexError, RuntimeError, TypeError) as error:
        if (wrong := _wrong_ids(name, ids, table)) is None:
            raise
        raise wrong from error
    if x.dim() != 3:
        require_rows(name, ids, table)
    return x


def _wrong_ids(name: str, ids: Any, table: nn.Embedding) -> Exception | None:
    """Return the error for ids that a table cannot read; None if they are right."""
    n_ids, device = table.num_embeddings, table.weight.device
    wanted = f"{name}: expected ids (B, T), got {described(ids)}"
    if not isinstance(ids, Tensor):
        return TypeError(f"{wanted}; torch.as_tensor(ids) converts rows of ids")
    if ids.dtype not in _IDS:
        return TypeError(f"{wanted}; ids are whole numbers: {name}.long() converts them")
    if ids.dim() != 2:
        row = f": {name}[None] is one row" if ids.dim() == 1 else ""
        return ValueError(f"{wanted}; the first axis is the batch{row}")
    if ids.device != device:
        return ValueError(f"{name}: expected a tensor on {device}, where the model is, got one on {ids.device}")
    if ids.numel() and not (int(ids.min()) >= 0 and int(ids.max()) < n_ids):
        found = f"{int(ids.min())} to {int(ids.max())}"
        return ValueError(f"{name}: expected ids from 0 to {n_ids - 1}, the vocabulary, got ids from {found}")
    return None


def wrong_activations(name: str, x: Any, width: int, setting: str) -> Exception:
    """Return the error for an input that is not (B, T, `width`); `setting` is the argument that gave the width."""
    wanted = f"{name}: expected (B, T, {width}), width {width} ({setting}), got {described(x)}"
    if not isinstance(x, Tensor):
        return TypeError(wanted)
    if not x.is_floating_point():
        return TypeError(f"{wanted}; ids become vectors in an embedding")
    return ValueError(f"{wanted}; {name}[None] adds a batch" if x.shape == (*x.shape[:1], width) else wanted)


def with_heads(*, query: Any, key: Any, value: Any) -> list[Tensor]:
    """Return query, key and value with the axes (B, H, ·, ·); a batch or heads that are missing have the size 1.

    >>> [tuple(x.shape) for x in with_heads(query=torch.ones(2, 4), key=torch.ones(3, 4), value=torch.ones(3, 5))]
    [(1, 1, 2, 4), (1, 1, 3, 4), (1, 1, 3, 5)]
    """
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or not 2 <= x.dim() <= 4:
            raise TypeError(f"{name}: expected a tensor (T, K), (B, T, K) or (B, H, T, K), got {described(x)}")
    wanted, shapes = "query, key, value: expected", f"{tuple(query.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2]:
        raise ValueError(f"{wanted} (…, T, K), (…, S, K) and (…, S, W), got {shapes}")
    if not query.dim() == key.dim() == value.dim() or len({len(x) for x in (query, key, value) if x.dim() > 2}) > 1:
        raise ValueError(f"{wanted} the same axes of batch and heads, got {shapes}")
    return [x[:, None] if x.dim() == 3 else x[(None,) * (4 - x.dim())] for x in (query, key, value)]


def as_bool(name: str, mask: Any) -> Tensor:
    """Return a mask as bool; numbers must be 0 or 1.

    Raises `TypeError` for another object, and `ValueError` for other numbers, such as a mask that is added to scores.

    >>> as_bool("mask", torch.tensor([1.0, 0.0]))
    tensor([ True, False])
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name}: expected a tensor, True = may attend, got {described(mask)}")
    if mask.dtype == torch.bool or not _is_readable(mask):
        return mask.bool()
    if not bool(((mask == 0) | (mask == 1)).all()):
        wanted = f"{name}: expected True and False, or 1 and 0, and True = may attend"
        if bool(((mask == 0) | (mask <= -1000)).all()):
            raise ValueError(f"{wanted}; this mask is added to scores (0 and -inf): use mask == 0")
        raise ValueError(f"{wanted}; got numbers from {mask.min():g} to {mask.max():g}")
    if mask.is_floating_point() and mask.numel() and not bool(mask.any()):
        raise ValueError(f"{name}: all numbers are 0, so nothing may attend; leave out a mask that is added to scores")
    return mask.bool()


def real_tokens(name: str, mask: Any, ids: Any, is_causal: bool = False) -> Any:
    """Return the mask (B, T) of real tokens as bool, for ids (B, T); None without a mask.

    A stack that `is_causal` hides later tokens by itself. So of a causal mask (T, T), or (B, T, T) with padding, only
    the real tokens are returned. Raises `ValueError` for another shape, and for a causal mask of floats that has the
    shape of the ids.

    >>> real_tokens("attention_mask", torch.tensor([[1, 0]]), torch.tensor([[5, 0]]))
    tensor([[ True, False]])
    """
    if mask is None or not isinstance(ids, Tensor):
        return mask
    is_float = isinstance(mask, Tensor) and mask.is_floating_point()
    mask = as_bool(name, mask)
    n_rows, n_tokens = ids.shape[:2]
    if mask.dim() > 2 and mask.numel() == ids.numel() and mask.shape[0] == n_rows:
        mask = mask.reshape(ids.shape)  # such as (B, 1, 1, T)
    elif mask.shape == (1, n_tokens):
        mask = mask.expand(n_rows, -1)
    if not is_float and mask.shape == ids.shape:
        return mask
    # A causal mask (T, T), or a causal mask with padding (B, T, T), of which the last query sees all real tokens
    hint = f"{tuple(mask.shape)}"
    if n_tokens > 1 and mask.shape[-2:] == (n_tokens, n_tokens) and _is_readable(mask):
        pairs = mask.reshape(-1, n_tokens, n_tokens)
        real = pairs[:, -1]
        if torch.equal(pairs, real[:, None] & pairs.new_ones(n_tokens, n_tokens).tril()):
            hint = "a causal mask, which a decoder applies by itself"
            if is_causal and mask.shape != ids.shape and len(pairs) in (1, n_rows):
                return real.expand(n_rows, -1)
            if mask.shape != ids.shape or bool(real.all()):
                raise ValueError(f"{name}: expected {tuple(ids.shape)}, True = a real token, got {hint}")
    if mask.shape != ids.shape:
        raise ValueError(f"{name}: expected {tuple(ids.shape)}, True = a real token, got {hint}")
    return mask


def allowed_pairs(name: str, mask: Any, shape: Sequence[int]) -> Tensor:
    """Return a mask as bool that broadcasts to `shape` (B, H, T, S), True = the query may attend to the key.

    A mask may be (T, S) or (B, T, S), for every head; (B, S), for every query; or (B or 1, H or 1, T or 1, S). Raises
    `ValueError` for another shape, for a shape of two meanings, and for a mask of the opposite meaning
    (`nn.MultiheadAttention`), if that is sure.

    >>> allowed_pairs("mask", torch.tensor([[1, 0], [1, 1]]), (3, 4, 2, 2)).shape
    torch.Size([1, 1, 2, 2])
    """
    mask = as_bool(name, mask)
    n_rows, _, n_queries, n_keys = shape
    is_pairs, is_keys = mask.shape == (n_queries, n_keys), mask.shape == (n_rows, n_keys)
    is_checked = _is_readable(mask) and mask.device.type == "cpu"  # a look at values on a GPU would wait for it
    if is_pairs and is_keys and n_rows > 1:
        meanings = "give mask[:, None] for the keys of each row, mask[None] for the keys of each query"
        raise ValueError(f"{name}: {tuple(mask.shape)} is both (B, S) and (T, S): {meanings}")
    opposite = "True = may attend here, the opposite of nn.MultiheadAttention: use ~mask"
    if is_checked and n_queries == n_keys > 1 and mask.shape[-2:] == (n_queries, n_keys):
        later = torch.ones(n_queries, n_keys, dtype=torch.bool, device=mask.device).triu(1)
        if bool((mask == later).all()):
            raise ValueError(f"{name}: only later keys are allowed; {opposite}")
    if is_pairs:
        mask = mask[None, None]
    elif is_keys or mask.dim() == 1:
        if is_checked and not bool(mask.any(-1).all()) and bool((mask.any(-1) & ~mask[..., 0]).any()):
            raise ValueError(f"{name}: a row has no key, and another one begins with a hidden key; {opposite}")
        mask = mask.expand(n_rows, -1)[:, None, None]
    elif mask.dim() == 3:
        mask = mask[:, None]
    if mask.dim() != 4 or any(n not in (1, most) for n, most in zip(mask.shape, shape, strict=True)):
        wanted = f"(T, S) {(n_queries, n_keys)}, (B, S) {(n_rows, n_keys)}, (B, T, S) or (B, H, T, S) {tuple(shape)}"
        raise ValueError(f"{name}: expected {wanted}, got {tuple(mask.shape)}")
    return mask
