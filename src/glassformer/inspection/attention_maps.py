"""Attention weights, collected through a tap during a forward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from glassformer import notebook
from glassformer.errors import UserError
from glassformer.evaluation.loss import evaluation_mode
from glassformer.inspection import Kind
from glassformer.model import Model


@dataclass(frozen=True)
class _Gatherer:
    """A tap that stores every tensor named `weights` under its full name, call by call, and changes nothing."""

    prefix: str = ""
    found: dict[str, list[Tensor]] = field(default_factory=dict)

    def __call__(self, name: str, x: Tensor) -> Tensor:
        full = self.prefix + name
        if full.endswith(".weights"):
            self.found.setdefault(full, []).append(x.detach().float().cpu())
        return x

    def scope(self, name: str) -> "_Gatherer":
        return _Gatherer(f"{self.prefix}{name}.", self.found)


@torch.no_grad()
def collect_attention(model: nn.Module, **inputs: Tensor) -> dict[str, Tensor]:
    """Run `model(**inputs, tap=…)` without dropout; return the attention weights by name, (B, H, T, S) in fp32 each.

    Names are those of the tap: `decoder.blocks.0.cross_attn.weights`. A recurrent decoder attends once per step; its
    steps are concatenated along T. A row of weights sums to 1, or is all 0 if every key was masked.
    """
    tap = _Gatherer()
    with evaluation_mode(model):
        model(**inputs, tap=tap)
    return {name: torch.cat(calls, dim=2) for name, calls in tap.found.items()}


def attention_layers(attention: Mapping[str, Tensor], kind: Kind) -> list[Tensor]:
    """Return the weights of every layer of this kind, in order, (B, H, T, S) each.

    Raises `UserError` if the model has no such attention.
    """
    stack, part = ("decoder", "cross_attn") if kind == "cross" else (kind, "self_attn")
    layers = [x for name, x in attention.items() if name.startswith(f"{stack}.") and name.endswith(f"{part}.weights")]
    if not layers:
        what = {
            "cross": "no attention from a target to a source, so it has no alignment",
            "encoder": "no self-attention in an encoder",
            "decoder": "no self-attention in a decoder",
        }
        raise UserError(f"this model has {what[kind]}")
    return layers


def default_layer(n_layers: int) -> int:
    """Return the last layer, or the second to last of four or more: it agrees best with manual alignments in the six
    layers of Garg (2019). Of two layers, only the last one aligns.
    """
    return n_layers - (2 if n_layers >= 4 else 1)


def alignment(attention: Mapping[str, Tensor], layer: int | None = None, head: int | None = None) -> Tensor:
    """Return the attention weights from target to source of the first pair of a batch, (T, S).

    Row t holds the weights of the step that predicted target token t. A recurrent decoder has one set of weights
    (Bahdanau 2015, figure 3). For a Transformer, the result is the mean over the heads of one cross-attention layer
    (`default_layer` by default), or a single `head`; both count from 0.

    >>> weights = torch.tensor([[[[1.0, 0.0]], [[0.5, 0.5]]]])  # one pair, two heads, one target token
    >>> alignment({"decoder.blocks.0.cross_attn.weights": weights})
    tensor([[0.7500, 0.2500]])
    """
    layers = attention_layers(attention, "cross")
    weights = layers[default_layer(len(layers)) if layer is None else checked("layer", layer, len(layers))][0]
    return weights.mean(dim=0) if head is None else weights[checked("head", head, len(weights))]


def checked(what: str, number: int, n: int) -> int:
    """Return the number of a layer or head; raise `UserError` if it does not exist."""
    if not 0 <= number < n:
        raise UserError(f"there is no {what} {number}: the model has {n}, counted from 0")
    return number


@dataclass(frozen=True)
class Reading:
    """Attention weights of one text or one pair, and the tokens along their axes."""

    weights: dict[str, Tensor]
    source: list[str]
    """Input tokens of the encoder, or of the only stack."""
    target: list[str]
    """Input tokens of the decoder, or of the only stack."""
    written: list[str]
    """Next token of an encoder-decoder at each position of `target`."""

    def axes(self, kind: Kind) -> tuple[list[str], list[str]]:
        """Return the tokens of rows and columns. A row of cross-attention is labelled with the next token."""
        return {
            "encoder": (self.source, self.source),
            "decoder": (self.target, self.target),
            "cross": (self.written, self.source),
        }[kind]

    def _repr_html_(self) -> str:
        """Return the mean weights of the heads of each layer, one matrix per layer."""
        kinds: dict[str, Kind] = {"encoder": "encoder", "decoder": "decoder"}
        found = []
        for name, weights in self.weights.items():
            kind = "cross" if "cross" in name else kinds.get(name.partition(".")[0], "cross")
            found.append(notebook.matrix(weights[0].mean(0).tolist(), *self.axes(kind), name))
        return "".join(found)


def read_text(model: Model, text: str) -> Reading:
    """Run an encoder or decoder over a text, tokenized as in training."""
    if model.is_seq2seq:
        raise UserError(
            f"{model.run.name} is a sequence-to-sequence model: give --source TEXT and, optionally, --target TEXT"
        )
    _require_words("text", text)
    ids = model.prompt_ids(text) if model.is_causal_lm else model.text_ids(text)
    _check_length("text", ids, model.network.config.max_len)
    weights = collect_attention(model.network, token_ids=torch.tensor([ids], device=model.device))
    tokens = model.tokenizer.tokens(ids)
    return Reading(weights, tokens, tokens, [])


def read_pair(model: Model, source: str, target: str | None = None) -> Reading:
    """Run an encoder-decoder over a source and a target; by default, the target is the model's own output."""
    if not model.is_seq2seq:
        raise UserError(f"{model.run.name} has no source side: give --text TEXT")
    _require_words("source", source)
    source_ids = model.encode_source(source)
    target_ids = model.encode_target(model.translate(source) if target is None else target)
    _check_length("target", target_ids, model.network.config.max_len)
    written = [*target_ids[1:], model.translator.end_id]

    def row(ids: Sequence[int]) -> Tensor:
        return torch.tensor([ids], device=model.device)

    weights = collect_attention(model.network, token_ids=row(target_ids), source_ids=row(source_ids))
    tokens = model.tokenizer.tokens
    return Reading(weights, model.source_tokenizer.tokens(source_ids), tokens(target_ids), tokens(written))


def _require_words(what: str, text: str) -> None:
    if not text.strip():
        raise UserError(f"the {what} is empty: give a text with at least one word")


def _check_length(what: str, ids: Sequence[int], max_len: int) -> None:
    if len(ids) > max_len:
        raise UserError(f"the {what} has {len(ids)} tokens and the model reads at most {max_len}: shorten it")
