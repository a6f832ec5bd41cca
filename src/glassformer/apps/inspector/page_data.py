"""Data that several panels send: tokens with predictions, packed arrays, and names of a model and its parts."""

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.inspector.app import Packed
from glassformer.common.errors import UserError
from glassformer.config.recurrent import RecurrentConfig
from glassformer.config.transformer import Stack
from glassformer.inference.sampling import log_softmax
from glassformer.inspection import attribution
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.measures import Beside, Measure
from glassformer.tasks.trained_model import TrainedModel
from glassformer.tokenization.tokenizer import Tokenizer

N_TOP = 10
"""Number of most probable tokens that are sent for each position."""
THUMBNAIL = 48
"""Largest height and width of a thumbnail."""
AXES: dict[Kind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("written", "source"),
}
"""For each kind of attention, the side of its rows and the side of its columns."""
FAMILIES = {(True, True): "encoder-decoder", (True, False): "encoder", (False, True): "decoder"}


def packed(x: Tensor) -> Packed:
    """Compress a tensor, in the byte order of every common machine (little-endian)."""
    array = x.contiguous().numpy()
    return Packed(zlib.compress(array.astype(array.dtype.newbyteorder("<")).tobytes(), level=1), tuple(x.shape))


def thumbnails(weights: Tensor) -> Tensor:
    """Return weights (…, T, S) as uint8 (…, h, w), at most `THUMBNAIL` pixels per side: maxima of weights · 255.

    >>> thumbnails(torch.tensor([[[1.0, 0.0], [0.2, 0.8]]]))
    tensor([[[255,   0],
             [ 51, 204]]], dtype=torch.uint8)
    """
    return (_maxima(_maxima(weights, -2), -1) * 255).round().to(torch.uint8)


def _maxima(x: Tensor, dim: int) -> Tensor:
    """Return the maxima of at most `THUMBNAIL` windows along a dimension; the windows are those of adaptive pooling."""
    size = x.shape[dim]
    if size <= THUMBNAIL:
        return x
    begins = [i * size // THUMBNAIL for i in range(THUMBNAIL)]
    ends = [-(-(i + 1) * size // THUMBNAIL) for i in range(THUMBNAIL)]
    return torch.stack([x.narrow(dim, a, b - a).amax(dim) for a, b in zip(begins, ends, strict=True)], dim)


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None in place of NaN, which JSON does not have.

    >>> without_nan({"previous": 0.5, "induction": float("nan")})
    {'previous': 0.5, 'induction': None}
    """
    is_nan = {name for name, x in values.items() if isinstance(x, float) and math.isnan(x)}
    return {**values, **dict.fromkeys(is_nan)}


def beside(number: Beside) -> dict[str, Any]:
    """Return the statistics of a number over texts, and its baseline, with None in place of NaN."""
    return without_nan(
        {
            "mean": number.own.mean,
            "deviation": number.own.deviation,
            "quartiles": list(number.own.quartiles),
            "baseline": number.baseline,
            "is_beyond": number.is_beyond,
        }
    )


def top(log_probs: Tensor, names: Sequence[str], n: int = N_TOP) -> list[list[list[Any]]]:
    """Return the n most probable [id, name, probability] of every row of log-probabilities (T, V)."""
    values, ids = log_probs.topk(min(n, log_probs.shape[-1]))
    return [
        [[i, names[i], p] for i, p in zip(row, probabilities, strict=True)]
        for row, probabilities in zip(ids.tolist(), values.exp().tolist(), strict=True)
    ]


def entropies(log_probs: Tensor) -> list[float]:
    """Return the entropy of every row of log-probabilities (T, V), in nats."""
    values: list[float] = (-(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)).tolist()
    return values


def tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return tokens without predictions; a special token has no bytes."""
    rows = []
    for i, text in zip(ids, tokenizer.tokens(ids), strict=True):
        row: dict[str, Any] = {"id": i, "text": text, "bytes": [], "is_special": i in tokenizer.special_ids}
        if i not in tokenizer.special_ids:
            row["bytes"] = list(tokenizer.pieces[i])
        rows.append(row | {"log_prob": None, "rank": None, "entropy": None, "top": []})
    return rows


def unknown(tokenizer: Tokenizer, text: str) -> str:
    """Return one sentence about the parts of a text that become the unknown token; empty without such parts."""
    unk_id = tokenizer.unk_id
    if unk_id is None or unk_id not in tokenizer.encode(text):
        return ""
    token = tokenizer.id_to_token(unk_id)
    words = [word for word in dict.fromkeys(text.replace(token, " ").split()) if unk_id in tokenizer.encode(word)]
    characters = dict.fromkeys(x for word in words for x in word if unk_id in tokenizer.encode(x))
    if tokenizer.scheme != "whole_words" and characters:
        words = list(characters)
    if not words:
        return ""
    listed = ", ".join(words[:N_TOP])
    if len(words) > N_TOP:
        listed += f" and {len(words) - N_TOP} more"
    return f"The vocabulary does not contain {listed}: the model reads {token} there."


def add_predictions(rows: list[dict[str, Any]], log_probs: Tensor, names: Sequence[str]) -> None:
    """Add the prediction of each position, (T, V): its most probable tokens or tags, and its entropy in nats."""
    for token, best, entropy in zip(rows, top(log_probs, names), entropies(log_probs), strict=True):
        token.update(top=best, entropy=entropy)


def add_scores(rows: list[dict[str, Any]], logits: Tensor) -> list[float]:
    """Add log-probability and rank (1 = highest) of each token, given logits (T, V); return the log-probabilities."""
    log_probs = log_softmax(logits)
    ids = torch.tensor([token["id"] for token in rows], dtype=torch.long)
    of_tokens = log_probs.gather(1, ids[:, None])
    ranks = (log_probs > of_tokens).sum(1) + 1
    values: list[float] = of_tokens[:, 0].tolist()
    for token, value, rank in zip(rows, values, ranks.tolist(), strict=True):
        token.update(log_prob=value, rank=rank)
    return values


def model_id(model: TrainedModel) -> str:
    """Return the name of a model in requests: its folder and its step."""
    step = "" if model.step is None else model.step
    return f"{model.folder or model.run.name}@{step}"


def kind(model: TrainedModel) -> str:
    """Return the family: recurrent, encoder, decoder or encoder-decoder."""
    config = model.config
    if isinstance(config, RecurrentConfig):
        return "recurrent"
    return FAMILIES[config.encoder is not None, config.decoder is not None]


def predicts_tokens(model: TrainedModel) -> bool:
    """Return True if the head gives logits over the vocabulary."""
    return not model.labels and not {"generate", "translate", "fill"}.isdisjoint(model.task.facts.verbs)


def is_additive(model: TrainedModel) -> bool:
    """Return True if the head gives logits over the vocabulary, and they are a sum of one term per part."""
    return predicts_tokens(model) and attribution.is_additive(model.network)


def attention_sizes(model: TrainedModel) -> dict[Kind, dict[str, int]]:
    """Return layers and heads of each kind of attention that the model has."""
    config = model.config
    if isinstance(config, RecurrentConfig) and not hasattr(model.network.decoder, "cross_attn"):
        return {}
    if isinstance(config, RecurrentConfig):
        return {"cross": {"layers": 1, "heads": 1}}
    stacks: dict[Kind, Stack | None] = {"encoder": config.encoder, "decoder": config.decoder}
    if config.is_encoder_decoder:
        stacks["cross"] = config.decoder
    return {name: {"layers": x.n_layers, "heads": x.n_heads} for name, x in stacks.items() if x is not None}


def vocabulary(model: TrainedModel) -> list[str]:
    """Return the names of all rows of the head, by id; a padded table has rows without a token."""
    n_tokens = model.tokenizer.vocab_size
    return [*model.tokenizer.tokens(range(n_tokens)), *(f"<row {i}>" for i in range(n_tokens, model.config.vocab_size))]


def measure_names(model: TrainedModel, measure: Measure) -> dict[str, str]:
    """Return the name of a measure; of a logit also its token or label, and the one whose logit is subtracted."""
    if measure.name != "logit" or model.is_regression:
        return {"measure": measure.name}
    names = model.classes or vocabulary(model)
    tokens = [names[i] for i in measure.reference.tolist()]
    return {"measure": "logit"} | dict(zip(("token", "against"), tokens, strict=False))


def unknown_in(model: TrainedModel, texts: Mapping[str, Any]) -> str:
    """Return sentences about the parts of the texts that the vocabularies do not contain; ids are left out."""
    sides = {name: text for name, text in texts.items() if isinstance(text, str)}
    tokenizers = dict.fromkeys(sides, model.tokenizer)
    if model.is_seq2seq:
        tokenizers |= dict.fromkeys(("source", "clean", "corrupted"), model.source_tokenizer)
    sentences = [unknown(tokenizers[name], text) for name, text in sides.items()]
    return " ".join(sentence for sentence in dict.fromkeys(sentences) if sentence)


def kind_named(name: str, key: str = "kind") -> Kind:
    """Return a kind of attention by its name; `key` is the argument that has it."""
    if name in AXES:
        return name
    raise UserError(f"{key}: expected encoder, decoder or cross, got {name!r:.40}")
