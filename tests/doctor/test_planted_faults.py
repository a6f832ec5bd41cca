"""Every fault of `pitfalls.md` that shows from outside, planted in models that are not ours; and no false alarm."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.doctor import Loss, check

V, D, H, LEN = 40, 32, 4, 16


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads only quarrel over tensors as small as these."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(n_threads)


# --- A sound GPT; a fault is a subclass that gets one method wrong. ---


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
        """Every query sees at least itself, so that no row of scores is empty."""
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
    """No attention, no mask: most checks apply all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm, self.head = nn.Embedding(V, D), nn.LSTM(D, D, batch_first=True), nn.Linear(D, V)

    def forward(self, token_ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(token_ids))[0])


def blocked(keys: Tensor, causal: bool) -> Tensor:
    """(B·H, T, T) for torch.nn, where True = may not attend. Everybody sees itself, so that no row is empty."""
    n = keys.shape[1]
    order = torch.ones(n, n, dtype=torch.bool)
    allowed = keys[:, None, :] & (order.tril() if causal else order)
    return ~(allowed | torch.eye(n, dtype=torch.bool)).repeat_interleave(H, 0)


class TorchStack(nn.Module):
    """`nn.TransformerEncoder` as a decoder-only model (causal) or as a BERT."""

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


SEQ2SEQ: dict[str, Any] = {
    "kind": "encoder-decoder",
    "forward": lambda module, ids, mask, source, source_mask: module(ids, mask, source, source_mask),
}
ENCODER: dict[str, Any] = {"kind": "encoder"}

SOUND: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
    "GPT": (CachedGPT, {"pad_id": 0}),
    "LSTM": (LSTM, {}),
    "nn.TransformerEncoder as GPT": (TorchStack, {}),
    "nn.TransformerEncoder as BERT": (TorchBERT, ENCODER),
    "nn.Transformer": (TorchSeq2Seq, SEQ2SEQ),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_model_passes_everything(name: str, seed: int) -> None:
    build, arguments = SOUND[name]
    torch.manual_seed(seed)
    report = check(build(), vocab_size=V, max_len=LEN, fresh=build, seed=seed, **arguments)
    assert report.ok, str(report)


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
    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        likes = scores.masked_fill(~allowed, -math.inf).exp()
        total = likes.sum(-1, keepdim=True)
        return torch.where(total > 0, likes / total, 0)


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


# --- Faults of the model around it. ---


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
    """Bool masks of torch.nn say who may *not* attend."""

    def masks(self, keys: Tensor) -> dict[str, Tensor]:
        return {"mask": ~blocked(keys, causal=True)}


class FloatOfBool(TorchStack):
    """0 and 1 in a float mask are added to the scores: nothing is masked."""

    def masks(self, keys: Tensor) -> dict[str, Tensor]:
        return {"mask": blocked(keys, causal=True).to(self.head.weight.dtype)}


class TwoMasksOfTorch(TorchStack):
    """Reads well, but gives NaN in the fast path when a query sees nothing."""

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


FAULTS: list[tuple[Callable[[], nn.Module], dict[str, Any], str]] = [
    (gpt_with(TrilThenZero), {}, "zero-scores"),
    (gpt_with(FilledWithTenThousand), {}, "large-scores"),
    (gpt_with(BillionAdded), {}, "large-scores"),
    (gpt_with(PaddingReplacesCausal), {}, "causality"),
    (gpt_with(PaddingOnQueries), {}, "padding-left"),
    (gpt_with(EmptyRows), {}, "empty-rows"),
    (gpt_with(EmptyRowsOnlyInTheGradient), {}, "empty-rows"),
    (gpt_with(WrongPolarity), {}, "padding-left"),
    (gpt_with(MaskAfterSoftmax), {}, "causality"),
    (gpt_with(MaskAfterSoftmax), {}, "causality-by-gradient"),
    (gpt_with(SoftmaxOverQueries), {}, "causality"),
    (gpt_with(OneAhead), {}, "causality-by-gradient"),
    (gpt_with(DropoutInEvaluation), {}, "deterministic"),
    (AbsolutePositions, {}, "padding-left"),
    (IgnoresTheMask, {}, "padding-left"),
    (BatchNorm, {}, "batch"),
    (CacheOffByOne, {}, "cache"),
    (CacheForgetsPadding, {}, "cache"),
    (lambda: GPT(n_logits=V - 8), {}, "vocabulary"),
    (lambda: GPT(n_logits=V + 8), {}, "vocabulary"),
    (lambda: GPT(n_embeddings=V - 8), {}, "vocabulary"),
    (WideInit, {"fresh": WideInit}, "loss-at-start"),
    (Blind, {}, "learns"),
    (NoMask, {}, "causality"),
    (TrueMayAttend, {}, "causality"),
    (FloatOfBool, {}, "causality"),
    (TwoMasksOfTorch, {}, "empty-rows"),
    (InvertedPadding, ENCODER, "padding-right"),
    (CausalBERT, ENCODER, "sight"),
    (NoTargetMask, SEQ2SEQ, "causality"),
    (MemoryPaddingForgotten, SEQ2SEQ, "padding-right"),
    (DeafToTheSource, SEQ2SEQ, "sight"),
]


@pytest.mark.parametrize(("build", "arguments", "name"), FAULTS)
def test_a_planted_fault_is_found(build: Callable[[], nn.Module], arguments: dict[str, Any], name: str) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        report = check(build(), vocab_size=V, max_len=LEN, checks=[name], seed=seed, **arguments)
        assert report.failed == (name,), str(report)


# --- Faults of the loss. ---


def pairs(module: nn.Module, ids: Tensor, mask: Tensor, ahead: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy of each position, which of them are real, and the logits."""
    n = ids.shape[1] - ahead
    logits = module(ids, mask)[:, :n]
    nats = F.cross_entropy(logits.mT, ids[:, ahead:], reduction="none")
    return nats, mask[:, :n] & mask[:, ahead:], logits


def sound_loss(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask)
    return nats[real].sum(), int(real.sum())


def mean_of_micro_batch(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask)
    return nats[real].mean(), 1


def padding_counted(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, _, _ = pairs(module, ids, mask)
    return nats.sum(), nats.numel()


def divided_by_padding(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask)
    return nats[real].sum(), nats.numel()


def unshifted(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask, ahead=0)
    return nats[real].sum(), int(real.sum())


def shifted_twice(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    nats, real, _ = pairs(module, ids, mask, ahead=2)
    return nats[real].sum(), int(real.sum())


def in_bits(module: nn.Module, ids: Tensor, mask: Tensor) -> tuple[Tensor, int]:
    total, n_targets = sound_loss(module, ids, mask)
    return total / math.log(2), n_targets


def test_a_sound_loss_passes_everything() -> None:
    assert check(GPT(), vocab_size=V, loss=sound_loss, fresh=GPT).ok


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (mean_of_micro_batch, ("accumulation",)),
        (padding_counted, ("loss-padding",)),
        (divided_by_padding, ("loss-padding",)),
        (unshifted, ("shift",)),
        (shifted_twice, ("shift",)),
        (in_bits, ("loss-at-start",)),
    ],
)
def test_a_fault_of_the_loss_is_found_and_no_other(loss: Loss, names: tuple[str, ...]) -> None:
    about_the_loss = ["accumulation", "loss-padding", "shift", "loss-at-start"]
    report = check(GPT(), vocab_size=V, loss=loss, fresh=GPT, checks=about_the_loss)
    assert report.failed == names, str(report)
