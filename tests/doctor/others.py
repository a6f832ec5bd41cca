"""Small language models of torch.nn layers: correct ones, and ones with a single planted fault."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

V, D, H, LEN = 40, 32, 4, 16


# --- A correct GPT; a fault is a subclass with one wrong method. ---


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(D, D) for _ in range(4))

    def forward(self, x: Tensor, keys: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        """`keys` (B, S): True = a real token. A cache is the list of the keys and values so far."""
        q, k, v = (f(x).unflatten(-1, (H, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        if cache is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(cache, (k, v), strict=True)) if cache else (k, v)
            cache[:] = [k, v]
        scores = q @ k.mT / math.sqrt(D // H)
        weights = self.weights(scores, self.allowed(keys, x.shape[1]))
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def causal(self, keys: Tensor, n_queries: int) -> Tensor:
        n_keys = keys.shape[1]
        return torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)

    def itself(self, keys: Tensor, n_queries: int) -> Tensor:
        """Return the diagonal: every query attends at least to itself, so no row of scores is empty."""
        n_keys = keys.shape[1]
        return torch.ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries).triu(n_keys - n_queries)

    def allowed(self, keys: Tensor, n_queries: int) -> Tensor:
        causal = self.causal(keys, n_queries) & keys[:, None, None, :]
        return causal | self.itself(keys, n_queries)

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -math.inf).softmax(-1)


@dataclass
class State:
    caches: list[list[Tensor]]
    keys: Tensor

    def select(self, rows: Tensor) -> "State":
        return State([[t[rows] for t in cache] for cache in self.caches], self.keys[rows])


class GPT(nn.Module):
    def __init__(self, attention: type[Attention] = Attention, n_embeddings: int = V, n_logits: int = V) -> None:
        super().__init__()
        self.tokens = nn.Embedding(n_embeddings, D)
        self.positions = nn.Embedding(LEN, D)
        self.norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(5))
        self.attentions = nn.ModuleList(attention() for _ in range(2))
        self.ffs = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 2 * D), nn.GELU(), nn.Linear(2 * D, D), nn.Dropout(0.1)) for _ in range(2)
        )
        self.head = nn.Linear(D, n_logits, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.05)

    def position_ids(self, keys: Tensor) -> Tensor:
        return (keys.long().cumsum(1) - 1).clamp(min=0)

    def forward(self, token_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        keys = torch.ones_like(token_ids, dtype=torch.bool) if attention_mask is None else attention_mask
        return self.run(token_ids, keys, self.position_ids(keys), [None, None])

    def run(self, token_ids: Tensor, keys: Tensor, positions: Tensor, caches: list[Any]) -> Tensor:
        x = self.tokens(token_ids) + self.positions(positions)
        for i in range(2):
            x = x + self.attentions[i](self.norms[2 * i](x), keys, caches[i])
            x = x + self.ffs[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x))


class CachedGPT(GPT):
    offset = 0

    def start(self, n_rows: int, max_len: int) -> State:
        return State([[], []], torch.ones(n_rows, 0, dtype=torch.bool))

    def step(self, token_ids: Tensor, state: State, attention_mask: Tensor | None = None) -> tuple[Tensor, State]:
        new = torch.ones_like(token_ids, dtype=torch.bool) if attention_mask is None else attention_mask
        keys = torch.cat((state.keys, new), 1)
        positions = self.position_ids(keys)[:, -token_ids.shape[1] :]
        if state.keys.shape[1]:
            positions = (positions + self.offset).clamp(max=LEN - 1)
        caches = [list(cache) for cache in state.caches]
        return self.run(token_ids, keys, positions, caches), State(caches, keys)


class LSTM(nn.Module):
    """A model without attention and mask: most checks apply to it too."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm, self.head = nn.Embedding(V, D), nn.LSTM(D, D, batch_first=True), nn.Linear(D, V)

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(token_ids))[0])


def blocked(keys: Tensor, causal: bool) -> Tensor:
    """Return (B·H, T, T) for torch.nn, where True = may not attend. Every query attends to itself: no row is empty."""
    n = keys.shape[1]
    order = torch.ones(n, n, dtype=torch.bool)
    allowed = keys[:, None, :] & (order.tril() if causal else order)
    return ~(allowed | torch.eye(n, dtype=torch.bool)).repeat_interleave(H, 0)


class TorchStack(nn.Module):
    """`nn.TransformerEncoder` as a decoder-only model (causal) or as BERT."""

    causal = True

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(V, D), nn.Embedding(LEN, D)
        layer = nn.TransformerEncoderLayer(D, H, 2 * D, dropout=0.1, batch_first=True)
        self.stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, V)

    def masks(self, keys: Tensor) -> dict[str, Tensor]:
        return {"mask": blocked(keys, self.causal)}

    def forward(self, token_ids: Tensor, attention_mask: Tensor) -> Tensor:
        positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        x = self.tokens(token_ids) + self.positions(positions)
        return self.head(self.stack(x, **self.masks(attention_mask)))


class TorchBERT(TorchStack):
    causal = False


class TorchSeq2Seq(nn.Module):
    """`nn.Transformer` with all its masks."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(V, D), nn.Embedding(V, D)
        self.positions = nn.Embedding(LEN, D)
        self.transformer = nn.Transformer(D, H, 1, 1, 2 * D, dropout=0.1, batch_first=True)
        self.head = nn.Linear(D, V)

    def masks(self, target: Tensor, source: Tensor) -> dict[str, Tensor]:
        return {
            "src_mask": blocked(source, causal=False),
            "tgt_mask": blocked(target, causal=True),
            "memory_key_padding_mask": ~source,
        }

    def forward(self, token_ids: Tensor, mask: Tensor, source_ids: Tensor, source_mask: Tensor) -> Tensor:
        source = self.source(source_ids) + self.positions.weight[: source_ids.shape[1]]
        target = self.target(token_ids) + self.positions.weight[: token_ids.shape[1]]
        return self.head(self.transformer(source, target, **self.masks(mask, source_mask)))


# --- Faults of attention and masks. ---


class TrilThenZero(Attention):
    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        scores = scores * allowed
        return scores.masked_fill(scores == 0, -math.inf).softmax(-1)


class FilledWithTenThousand(Attention):
    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -1e4).softmax(-1)


class BillionAdded(Attention):
    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return (scores - 1e9 * ~allowed).softmax(-1)


class PaddingReplacesCausal(Attention):
    def allowed(self, keys: Tensor, n_queries: int) -> Tensor:
        padded = keys[:, None, None, :] | self.itself(keys, n_queries)
        return self.causal(keys, n_queries) if keys.all() else padded


class PaddingOnQueries(Attention):
    def allowed(self, keys: Tensor, n_queries: int) -> Tensor:
        return self.causal(keys, n_queries) & keys[:, None, :, None] | self.itself(keys, n_queries)


class EmptyRows(Attention):
    def allowed(self, keys: Tensor, n_queries: int) -> Tensor:
        return self.causal(keys, n_queries) & keys[:, None, None, :]


class EmptyRowsOnlyInTheGradient(EmptyRows):
    """NaN replaced by 0 after the softmax: the forward pass is finite, but the softmax's backward is NaN."""

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return (scores + torch.where(allowed, 0.0, -math.inf)).softmax(-1).nan_to_num()


class WrongPolarity(Attention):
    def allowed(self, keys: Tensor, n_queries: int) -> Tensor:
        return super().allowed(~keys, n_queries)


class MaskAfterSoftmax(Attention):
    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.softmax(-1) * allowed


class SoftmaxOverQueries(Attention):
    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -math.inf).softmax(-2).nan_to_num()


class OneAhead(Attention):
    def causal(self, keys: Tensor, n_queries: int) -> Tensor:
        return torch.ones(n_queries, keys.shape[1], dtype=torch.bool).tril(1)


class DropoutInEvaluation(Attention):
    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return F.dropout(super().weights(scores, allowed), 0.1)


def gpt_with(attention: type[Attention]) -> Callable[[], nn.Module]:
    return lambda: GPT(attention)


# --- Faults of the rest of the model. ---


class AbsolutePositions(GPT):
    def position_ids(self, keys: Tensor) -> Tensor:
        return torch.arange(keys.shape[1]).expand_as(keys)


class IgnoresTheMask(GPT):
    def forward(self, token_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(token_ids)


class BatchNorm(GPT):
    def __init__(self) -> None:
        super().__init__()
        self.mixing = nn.BatchNorm1d(V)

    def forward(self, token_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.mixing(super().forward(token_ids, attention_mask).mT).mT


class CacheOffByOne(CachedGPT):
    offset = 1


class CacheForgetsPadding(CachedGPT):
    def step(self, token_ids: Tensor, state: State, attention_mask: Tensor | None = None) -> tuple[Tensor, State]:
        return super().step(token_ids, state)


class WideInit(GPT):
    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.head.weight)


class Blind(GPT):
    def run(self, token_ids: Tensor, keys: Tensor, positions: Tensor, caches: list[Any]) -> Tensor:
        return super().run(torch.zeros_like(token_ids), keys, torch.zeros_like(positions), caches)


# --- torch.nn with the wrong mask. ---


class NoMask(TorchStack):
    def masks(self, keys: Tensor) -> dict[str, Tensor]:
        return {"src_key_padding_mask": ~keys}


class TrueMayAttend(TorchStack):
    """A bool mask of the wrong meaning: in torch.nn True = may *not* attend."""

    def masks(self, keys: Tensor) -> dict[str, Tensor]:
        return {"mask": ~blocked(keys, causal=True)}


class FloatOfBool(TorchStack):
    """A float mask of 0 and 1, which is added to the scores: no key is masked."""

    def masks(self, keys: Tensor) -> dict[str, Tensor]:
        return {"mask": blocked(keys, causal=True).to(self.head.weight.dtype)}


class TwoMasksOfTorch(TorchStack):
    """Two masks that give NaN in the fast path when they hide every key of a query."""

    def masks(self, keys: Tensor) -> dict[str, Tensor]:
        n = keys.shape[1]
        return {"mask": torch.ones(n, n, dtype=torch.bool).triu(1), "src_key_padding_mask": ~keys}


class InvertedPadding(TorchBERT):
    def masks(self, keys: Tensor) -> dict[str, Tensor]:
        return {"mask": blocked(~keys, causal=False)}


class CausalBERT(TorchBERT):
    causal = True


class NoTargetMask(TorchSeq2Seq):
    def masks(self, target: Tensor, source: Tensor) -> dict[str, Tensor]:
        return super().masks(target, source) | {"tgt_mask": blocked(target, causal=False)}


class MemoryPaddingForgotten(TorchSeq2Seq):
    def masks(self, target: Tensor, source: Tensor) -> dict[str, Tensor]:
        masks = super().masks(target, source)
        del masks["memory_key_padding_mask"]
        return masks


class DeafToTheSource(TorchSeq2Seq):
    def masks(self, target: Tensor, source: Tensor) -> dict[str, Tensor]:
        return super().masks(target, source) | {"memory_key_padding_mask": torch.ones_like(source)}
