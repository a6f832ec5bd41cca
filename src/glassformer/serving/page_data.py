"""Data of the inspector page: tokens with predictions, packed arrays, and the card of a model."""

import dataclasses
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.config.recurrent import ModelConfig, NoAttention, RecurrentConfig
from glassformer.config.transformer import Stack, TransformerConfig
from glassformer.errors import UserError
from glassformer.inference.sampling import log_softmax
from glassformer.inference.text import end_ids_of
from glassformer.inspection.attention_maps import Kind
from glassformer.model import Model
from glassformer.models.build import build_positions
from glassformer.serving.app import Packed
from glassformer.store import checkpoint
from glassformer.tasks.batches import Places
from glassformer.tasks.task import TrainableTask
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.metrics_log import NAME, read_lines

N_TOP = 10
"""Number of most probable tokens that are sent for each position."""
EXAMPLE = 24
"""Number of tokens of an example."""
THUMBNAIL = 48
"""Largest height and width of a thumbnail."""
AXES: dict[Kind, tuple[str, str]] = {
    "encoder": ("source", "source"),
    "decoder": ("target", "target"),
    "cross": ("written", "source"),
}
"""Sides along the rows and columns of each kind of attention."""
SCORES = {
    "additive": "vᵀ tanh(W q + U k)",
    "dot": "q · k",
    "general": "qᵀ W k",
    "scaled_dot": "(W q) · (U k) / √d",
}
"""Scores of the attention of recurrent models: q is a state of the decoder, k a state of the encoder."""
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


def fractions(weights: Tensor) -> Tensor:
    """Return weights from 0 to 1 as uint16: 65535 is 1.

    >>> fractions(torch.tensor([0.0, 0.5, 1.0])).to(torch.int32)
    tensor([    0, 32768, 65535], dtype=torch.int32)
    """
    return (weights * 65535).round_().to(torch.int32).to(torch.uint16)


def without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with None in place of NaN, which JSON does not have.

    >>> without_nan({"previous": 0.5, "induction": float("nan")})
    {'previous': 0.5, 'induction': None}
    """
    return {name: None if isinstance(x, float) and math.isnan(x) else x for name, x in values.items()}


def top(log_probs: Tensor, names: Sequence[str], n: int = N_TOP) -> list[list[list[Any]]]:
    """Return the n most probable [id, name, probability] of every row of log-probabilities (T, V)."""
    values, ids = log_probs.topk(min(n, log_probs.shape[-1]))
    return [
        [[i, names[i], p] for i, p in zip(row, probabilities, strict=True)]
        for row, probabilities in zip(ids.tolist(), values.exp().tolist(), strict=True)
    ]


def tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return tokens without predictions; a special token has no bytes."""
    blank: dict[str, Any] = {"log_prob": None, "rank": None, "entropy": None, "top": []}
    special = {tokenizer.vocab[name] for name in tokenizer.special_tokens}
    return [
        {"id": i, "text": text, "bytes": [] if i in special else list(tokenizer.pieces[i]), "is_special": i in special}
        | blank
        for i, text in zip(ids, tokenizer.tokens(ids), strict=True)
    ]


def unknown(tokenizer: Tokenizer, text: str) -> str:
    """Return one sentence about the parts of a text that become the unknown token; empty without such parts."""
    unk_id = tokenizer.unk_id
    if unk_id is None or unk_id not in tokenizer.encode(text):
        return ""
    token = tokenizer.id_to_token(unk_id)
    words = [word for word in dict.fromkeys(text.replace(token, " ").split()) if unk_id in tokenizer.encode(word)]
    characters = dict.fromkeys(x for word in words for x in word if unk_id in tokenizer.encode(x))
    parts = words if tokenizer.scheme == "whole_words" or not characters else list(characters)
    if not parts:
        return ""
    listed = ", ".join(parts[:N_TOP]) + (f" and {len(parts) - N_TOP} more" if len(parts) > N_TOP else "")
    return f"The vocabulary does not contain {listed}: the model reads {token} there."


def add_predictions(found: list[dict[str, Any]], log_probs: Tensor, names: Sequence[str]) -> None:
    """Add the prediction of each position, (T, V): its most probable tokens or tags, and its entropy in nats."""
    entropies = -(log_probs.exp() * log_probs.clamp(min=-1e4)).sum(-1)
    for token, best, entropy in zip(found, top(log_probs, names), entropies.tolist(), strict=True):
        token.update(top=best, entropy=entropy)


def add_scores(found: list[dict[str, Any]], logits: Tensor) -> list[float]:
    """Add log-probability and rank (1 = most probable) of each token, given its logits (T, V); return the first."""
    log_probs = log_softmax(logits)
    ids = torch.tensor([token["id"] for token in found], dtype=torch.long)
    of_tokens = log_probs.gather(1, ids[:, None])
    ranks = (log_probs > of_tokens).sum(1) + 1
    values: list[float] = of_tokens[:, 0].tolist()
    for token, value, rank in zip(found, values, ranks.tolist(), strict=True):
        token.update(log_prob=value, rank=rank)
    return values


def model_id(model: Model) -> str:
    """Return the name of a model in requests: its folder and its step."""
    return f"{model.folder or model.run.name}@{'' if model.step is None else model.step}"


def card(model: Model) -> dict[str, Any]:
    """Return the facts of a model: names, sizes, parts, architecture, curves and checkpoints."""
    config, folder = model.config, model.folder
    return {
        "id": model_id(model),
        "name": model.run.name,
        "folder": str(folder or ""),
        "kind": kind(model),
        "verb": model.task.verb,
        "learned": model.learned,
        "is_causal": model.is_causal_lm,
        "has_head_over_tokens": predicts_tokens(model),
        "parameters": sum(x.numel() for x in model.network.parameters()),
        "vocab_size": model.tokenizer.vocab_size,
        "max_len": config.max_len,
        "step": model.step,
        "mask": None if model.tokenizer.mask_id is None else model.tokenizer.id_to_token(model.tokenizer.mask_id),
        "labels": list(model.classes),
        "is_multi_label": model.is_multi_label,
        "attention": attention_sizes(model),
        "formulas": {kind: attention_formula(config, kind) for kind in attention_sizes(model)},
        "parts": parts(model),
        "architecture": architecture(model),
        "curves": None if folder is None else curves(folder / NAME),
        "checkpoints": [] if folder is None else checkpoint.steps(folder),
        "generation": dataclasses.asdict(model.generation),
        "end_ids": end_ids(model),
    }


def end_ids(model: Model) -> list[int]:
    """Return the ids that end a written text."""
    writes = model.is_seq2seq or model.is_causal_lm
    return sorted(end_ids_of(model.tokenizer, model.config, model.generation)) if writes else []


def kind(model: Model) -> str:
    """Return the family: recurrent, encoder, decoder or encoder-decoder."""
    config = model.config
    if isinstance(config, RecurrentConfig):
        return "recurrent"
    return FAMILIES[config.encoder is not None, config.decoder is not None]


def predicts_tokens(model: Model) -> bool:
    """Return True if the head gives logits over the vocabulary."""
    return not model.labels and model.task.verb in ("generate", "translate", "fill")


def attention_sizes(model: Model) -> dict[Kind, dict[str, int]]:
    """Return layers and heads of each kind of attention that the model has."""
    config = model.config
    if isinstance(config, RecurrentConfig):
        return {"cross": {"layers": 1, "heads": 1}} if hasattr(model.network.decoder, "cross_attn") else {}
    stacks: dict[Kind, Stack | None] = {"encoder": config.encoder, "decoder": config.decoder}
    if config.is_encoder_decoder:
        stacks["cross"] = config.decoder
    return {name: {"layers": x.n_layers, "heads": x.n_heads} for name, x in stacks.items() if x is not None}


def attention_formula(config: ModelConfig, kind: Kind) -> str:
    """Return the formula of the attention weights: q is a query, k a key."""
    if isinstance(config, RecurrentConfig):
        assert not isinstance(config.attention, NoAttention)  # `attention_sizes`
        return f"weights = softmax({SCORES[config.attention.score]})"
    scale = config.attention_scale
    score = "q·kᵀ / √d" if scale is None else "q·kᵀ" if scale == 1 else f"{scale:g} · q·kᵀ"
    stack, has_bias = config.encoder if kind == "encoder" else config.decoder, False
    if kind != "cross" and stack is not None:
        with torch.device("meta"):
            *_, bias = build_positions(config, stack, config.max_len, causal=kind == "decoder")
        has_bias = bias is not None
    return f"weights = softmax({score}{' + position bias' if has_bias else ''})"


def parts(model: Model) -> list[dict[str, Any]]:
    """Return the number of parameters of each block and of every other part; a tied table counts once, where first."""
    counts: Counter[str] = Counter()
    for path, x in model.network.named_parameters():
        names = path.split(".")
        counts[".".join(names[: 3 if "blocks" in names[:2] else 2])] += x.numel()
    return [{"name": name, "parameters": n} for name, n in counts.items()]


def architecture(model: Model) -> list[dict[str, Any]]:
    """Return titled tables of the settings, to be drawn as boxes."""
    config = model.config
    boxes = [{"title": "Model", "rows": _rows(config, ("encoder", "decoder"))}]
    if isinstance(config, TransformerConfig):
        for title, stack in (("Encoder", config.encoder), ("Decoder", config.decoder)):
            if stack is not None:
                boxes.append({"title": title, "rows": _rows(stack, ())})
    return boxes


def _rows(settings: Any, left_out: Sequence[str]) -> list[list[str]]:
    """Return the names and values of settings; a setting with a kind is shown by its kind."""
    rows = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name not in left_out and value not in (None, 0, False, ()):
            rows.append([field.name, str(getattr(value, "kind", value))])
    return rows


def examples(model: Model, n: int = 3) -> list[dict[str, str]]:
    """Return inputs from the validation data of the run: beginnings of rows, pairs, or texts with a mask.

    The list is empty if the model was not trained here or its data is gone.
    """
    if not isinstance(model.task, TrainableTask):
        return []
    try:
        rows = next(iter(model.task.evaluation(model, Places(), lambda text: None).batches()))
    except (UserError, StopIteration, OSError):
        return []
    found = []
    for row in rows[:n]:
        text = model.tokenizer.decode(row.token_ids[:EXAMPLE].tolist()).strip()
        if row.source_ids is None and row.label is None:
            text = without_first_word(text)  # a window may begin inside a word
        if row.source_ids is not None:
            found.append({"source": model.source_tokenizer.decode(row.source_ids.tolist()).strip(), "target": text})
        elif model.task.verb == "fill":
            words = text.split(" ")
            masked = " ".join([*words[: len(words) // 2], "[MASK]", *words[len(words) // 2 + 1 :]])
            found.append({"source" if model.is_seq2seq else "text": masked})
        else:
            found.append({"text": text})
    return [example for example in found if all(example.values())]


def without_first_word(text: str) -> str:
    """Return the text after its first space; a text without a space is returned whole.

    >>> without_first_word("tion of an object"), without_first_word("gadb|gadb")
    ('of an object', 'gadb|gadb')
    """
    return text.partition(" ")[2] or text


def curves(path: Path) -> dict[str, list[list[float]]] | None:
    """Return the losses of training and validation by step; None without a log."""
    names = {"train": "train/loss", "validation": "eval/valid_loss"}
    lines = read_lines(path)
    found = {
        side: [[line["step"], line[name]] for line in lines if isinstance(line.get(name), float)]
        for side, name in names.items()
    }
    return found if any(found.values()) else None
