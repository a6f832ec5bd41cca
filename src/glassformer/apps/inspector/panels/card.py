"""Card of a model: its sizes, its parts with their parameters, its settings, its curves, and examples of its inputs."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector
from glassformer.config.recurrent import ModelConfig, NoAttention, RecurrentConfig
from glassformer.config.transformer import TransformerConfig
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.texts import validation_texts
from glassformer.inspection.writes import is_additive
from glassformer.models.build import build_positions
from glassformer.store import checkpoint
from glassformer.tasks.trained_model import TrainedModel
from glassformer.training.metrics_log import NAME, read_lines

N_EXAMPLES = 3
"""Number of inputs from the validation data."""
SCORES = {
    "additive": "vᵀ tanh(W q + U k)",
    "dot": "q · k",
    "general": "qᵀ W k",
    "scaled_dot": "(W q) · (U k) / √d",
}
"""Scores of the attention of recurrent models: q is a state of the decoder, k a state of the encoder."""
SCALED = {None: "q·kᵀ / √d", 1.0: "q·kᵀ"}
"""Scores of the attention of Transformers, by the scale of the settings."""


@route("GET", "/api/model")
def card(inspector: Inspector, model: str | None = None) -> dict[str, Any]:
    """Answer the facts of a model: names, sizes, parts, architecture, curves, checkpoints and examples."""
    chosen = inspector.model_of(model)
    name = page_data.model_id(chosen)
    own_examples = inspector.once(f"examples of {name}", lambda: validation_texts(chosen, N_EXAMPLES))
    config, tokenizer, sizes = chosen.config, chosen.tokenizer, page_data.attention_sizes(chosen)
    # What every model has
    facts = {
        "model": name,
        "id": name,
        "name": chosen.run.name,
        "folder": str(chosen.folder or ""),
        "kind": page_data.kind(chosen),
        "verb": chosen.task.verb,
        "learned": chosen.learned,
        "is_causal": chosen.is_causal_lm,
        "has_head_over_tokens": page_data.predicts_tokens(chosen),
        "is_additive": page_data.predicts_tokens(chosen) and is_additive(chosen.network),
        "experts": 0,
        "parameters": sum(x.numel() for x in chosen.network.parameters()),
        "vocab_size": tokenizer.vocab_size,
        "max_len": config.max_len,
        "step": chosen.step,
        "mask": None,
        "labels": list(chosen.classes),
        "is_multi_label": chosen.is_multi_label,
        "attention": sizes,
        "formulas": {kind: attention_formula(config, kind) for kind in sizes},
        "parts": parts(chosen),
        "architecture": architecture(chosen),
        "curves": None,
        "checkpoints": [],
        "generation": dataclasses.asdict(chosen.generation),
        "has_template": chosen.tokenizer.chat_template is not None,
        "end_ids": page_data.end_ids(chosen),
        "examples": [*inspector.examples, *own_examples],
    }
    # What only some models have
    if tokenizer.mask_id is not None:
        facts["mask"] = tokenizer.id_to_token(tokenizer.mask_id)
    if isinstance(config, TransformerConfig) and config.experts is not None:
        facts["experts"] = config.experts.n_experts
    if chosen.folder is not None:
        facts |= {"curves": curves(chosen.folder / NAME), "checkpoints": checkpoint.steps(chosen.folder)}
    return facts


def attention_formula(config: ModelConfig, kind: Kind) -> str:
    """Return the formula of the attention weights: q is a query, k a key."""
    if isinstance(config, RecurrentConfig):
        assert not isinstance(config.attention, NoAttention)  # `attention_sizes`
        return f"weights = softmax({SCORES[config.attention.score]})"
    scale = config.attention_scale
    score = SCALED.get(scale, f"{scale or 1:g} · q·kᵀ")
    if config.score_cap:
        score = f"{config.score_cap:g} · tanh({score} / {config.score_cap:g})"
    if kind != "cross" and _has_bias(config, kind):
        score += " + position bias"
    return f"weights = softmax({score})"


def _has_bias(config: TransformerConfig, stack: Kind) -> bool:
    """Return True if positions add a bias to the attention scores of a stack."""
    settings = {"encoder": config.encoder, "decoder": config.decoder}[stack]
    if settings is None:
        return False
    with torch.device("meta"):
        *_, bias = build_positions(config, settings, config.max_len, causal=stack == "decoder")
    return bias is not None


def parts(model: TrainedModel) -> list[dict[str, Any]]:
    """Return the number of parameters of each block and of every other part; a tied table counts once, where first."""
    counts: Counter[str] = Counter()
    for path, x in model.network.named_parameters():
        names = path.split(".")
        depth = 3 if "blocks" in names[:2] else 2
        counts[".".join(names[:depth])] += x.numel()
    return [{"name": name, "parameters": n} for name, n in counts.items()]


def architecture(model: TrainedModel) -> list[dict[str, Any]]:
    """Return titled tables of the settings, to be drawn as boxes."""
    config = model.config
    boxes = [{"title": "Model", "rows": _rows(config, ("encoder", "decoder", "experts"))}]
    if isinstance(config, TransformerConfig):
        for title, stack in (("Encoder", config.encoder), ("Decoder", config.decoder)):
            if stack is not None:
                boxes.append({"title": title, "rows": _rows(stack, ())})
        if config.experts is not None:
            boxes.append({"title": "Experts", "rows": _rows(config.experts, ())})
    return boxes


def _rows(settings: Any, left_out: Sequence[str]) -> list[list[str]]:
    """Return the names and values of settings; a setting with a kind is shown by its kind."""
    rows = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if field.name not in left_out and value not in (None, 0, False, ()):
            rows.append([field.name, str(getattr(value, "kind", value))])
    return rows


def curves(path: Path) -> dict[str, list[list[float]]] | None:
    """Return the losses of training and validation by step; None without a log."""
    names = {"train": "train/loss", "validation": "eval/valid_loss"}
    lines = read_lines(path)
    points = {
        side: [[line["step"], line[name]] for line in lines if isinstance(line.get(name), float)]
        for side, name in names.items()
    }
    return points if any(points.values()) else None
