"""Models of the page: their cards, the gallery, a second model beside the first, and runs and sweeps that train."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.gallery import Gallery
from glassformer.apps.inspector.inspector import Inspector, published_step
from glassformer.common import files
from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig, NoAttention, RecurrentConfig
from glassformer.config.transformer import TransformerConfig
from glassformer.evaluation import metrics
from glassformer.evaluation.sweep_table import FILE, SweepTable
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.texts import end_ids, usual_texts, validation_messages, validation_texts
from glassformer.loading import load
from glassformer.models.build import build_positions
from glassformer.store import checkpoint
from glassformer.store.lock import is_locked, owner
from glassformer.store.model_directory import RUN, read_run
from glassformer.tasks.trained_model import TrainedModel
from glassformer.training.metrics_log import NAME as METRICS
from glassformer.training.metrics_log import read_lines

N_EXAMPLES = 3
"""Number of inputs from the validation data."""
SCORES = {
    "additive": "vᵀ tanh(W q + U k)",
    "dot": "q · k",
    "general": "qᵀ W k",
    "scaled_dot": "(W q) · (U k) / √d",
}
"""For each kind of score of a recurrent model, the formula: q is a state of the decoder, k a state of the encoder."""
SCALED = {None: "q·kᵀ / √d", 1.0: "q·kᵀ"}
"""For each scale in the settings of a Transformer, the formula of the scores."""


@route("GET", "/api/model")
def card(inspector: Inspector, model: str | None = None) -> dict[str, Any]:
    """Return the facts of a model: names, sizes, parts, architecture, curves, checkpoints and examples."""
    chosen = inspector.model_of(model)
    name = page_data.model_id(chosen)
    own_examples = inspector.once(
        f"examples of {name}",
        lambda: validation_messages(chosen, N_EXAMPLES) or validation_texts(chosen, N_EXAMPLES) or usual_texts(chosen),
    )
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
        "is_additive": page_data.is_additive(chosen),
        "experts": 0,
        "parameters": sum(x.numel() for x in chosen.network.parameters()),
        "vocab_size": tokenizer.vocab_size,
        "max_len": config.max_len,
        "step": chosen.step,
        "mask": None,
        "pooling": getattr(getattr(config, "head", None), "pooling", None),
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
        "end_ids": end_ids(chosen),
        "examples": [*inspector.examples, *own_examples],
    }
    # What only some models have
    if tokenizer.mask_id is not None:
        facts["mask"] = tokenizer.id_to_token(tokenizer.mask_id)
    if isinstance(config, TransformerConfig) and config.experts is not None:
        facts["experts"] = config.experts.n_experts
    if chosen.folder is not None:
        facts |= {"curves": curves(chosen.folder / METRICS), "checkpoints": checkpoint.steps(chosen.folder)}
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
    """Return the number of parameters of each block and other part; a tied table counts only where it comes first."""
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


@route("GET", "/api/health", is_quick=True)
def health(inspector: Inspector) -> dict[str, Any]:
    """Return that the server runs."""
    return {"ok": True}


@route("GET", "/api/session")
def session(inspector: Inspector) -> dict[str, Any]:
    """Return the first model, the folder and its kind, the models of the gallery, and whether others may be opened."""
    gallery = None
    if inspector.gallery is not None:
        gallery = inspector.gallery.list()
    return {
        "model": inspector.first or None,
        "folder": str(inspector.folder or ""),
        "is_sweep": inspector.is_sweep,
        "gallery": gallery,
        "opens_folders": inspector.opens_folders,
    }


@route("POST", "/api/train")
def train(inspector: Inspector, name: str) -> dict[str, Any]:
    """Start or continue the training of a model of the gallery; `live` shows it."""
    _gallery(inspector).train(name)
    return session(inspector)


@route("POST", "/api/open")
def open_model(
    inspector: Inspector, name: str | None = None, folder: str | None = None, step: int | None = None
) -> dict[str, Any]:
    """Open a model of the gallery, or the newest model or a step of a folder; answer the facts of the model."""
    if name is not None:
        folder = str(_gallery(inspector).ready(name))
    return card(inspector, page_data.model_id(inspector.load(inspector.folder_of(folder), step)))


def _gallery(inspector: Inspector) -> Gallery:
    if inspector.gallery is None:
        raise UserError("there is no gallery: start `glassformer inspect` without a folder")
    return inspector.gallery


@route("POST", "/api/compare")
def compare(
    inspector: Inspector, first: str | None = None, step: int | None = None, folder: str | None = None
) -> dict[str, Any]:
    """Open a checkpoint of the first model's run, or a model with the same vocabulary; answer its facts."""
    one = inspector.model_of(first)
    if (step is None) == (folder is None):
        raise UserError("give a step or a folder")
    if folder is None and one.folder is None:
        raise UserError("the model has no folder with checkpoints")
    other = _loaded(inspector, folder or str(one.folder), step, str(one.device))
    for name in ("tokenizer", "source_tokenizer"):
        if getattr(one, name).fingerprint != getattr(other, name).fingerprint:
            raise UserError(f"{other.name} has another {name.replace('_', ' ')}: choose a model of one vocabulary")
    return _kept(inspector, other)


@route("POST", "/api/beside")
def beside(inspector: Inspector, folder: str) -> dict[str, Any]:
    """Open any model for the second of two views; answer its facts."""
    return _kept(inspector, _loaded(inspector, folder, None, inspector.device))


def _loaded(inspector: Inspector, folder: str, step: int | None, device: str) -> TrainedModel:
    """Load a model of a folder. If it is not the server's folder, this needs `opens_folders`."""
    if step is None and not inspector.opens_folders:
        raise UserError("this server opens no other folder: choose a step, or start `glassformer inspect`")
    try:
        return load(Path(folder), step=step, device=device)
    except OSError as error:
        raise UserError(f"{folder:.200} cannot be read: {error.strerror}") from error


def _kept(inspector: Inspector, model: TrainedModel) -> dict[str, Any]:
    if model.folder is not None:
        inspector.compared.add(model.folder)
    return card(inspector, inspector.keep(model))


MAX_LINES = 1 << 24
"""Largest number of bytes that are read at once."""


@route("GET", "/api/live", is_quick=True)
def live(inspector: Inspector, since: int = 0, folder: str | None = None) -> dict[str, Any]:
    """Return the lines that a run has logged from byte `since` on, and whether it is running."""
    of_run = inspector.folder_of(folder)
    if since < 0:
        raise UserError(f"since: expected a place in the log, 0 or more, got {since}")
    text, path = b"", of_run / METRICS
    if path.exists():
        with path.open("rb") as file:
            since = min(since, path.stat().st_size)  # a resumed run may have shortened its log
            file.seek(since)
            text = file.read(MAX_LINES)
    whole = text[: text.rfind(b"\n") + 1]
    return {
        "folder": str(of_run),
        "offset": since + len(whole),
        "lines": [files.parse_json(line.decode(errors="replace")) for line in whole.splitlines()],
        "is_running": is_locked(of_run),
        "checkpoints": checkpoint.steps(of_run),
        "max_steps": _max_steps(of_run),
        "model_step": published_step(of_run),
        "metrics": {name: metrics.title(name) for name in metrics.METRICS},
    }


@route("GET", "/api/sweep", is_quick=True)
def sweep(inspector: Inspector) -> dict[str, Any]:
    """Return the table of a sweep so far, as numbers and as texts, and the folders of the runs that are done."""
    folder = inspector.folder_of(None)
    table = read_table(folder)
    runs = {
        label: {seed: str(folder / table.folders[label] / f"seed-{seed}") for seed in sorted(of_seeds)}
        for label, of_seeds in table.values.items()
        if label in table.folders
    }
    shown = {"cells": table.cells(), "legend": table.legend, "runs": runs, "is_running": is_locked(folder)}
    return table.to_dict() | shown


def read_table(folder: Path) -> SweepTable:
    """Read the table that a sweep wrote last; raise `UserError` if its file is missing or damaged."""
    try:
        table = TypeAdapter(SweepTable).validate_python(files.read_json(folder / FILE))
    except ValidationError:
        table = None
    if table is None or table.metric not in metrics.METRICS or table.baseline not in table.values:
        raise UserError(f"{folder / FILE} is no table of a sweep: run the sweep again, which keeps its runs")
    return table


def _max_steps(folder: Path) -> int | None:
    """Return the last step of a run. Before the first checkpoint, the owner file of the run's lock has this number."""
    for place in (folder, *(checkpoint.path_of(folder, step) for step in reversed(checkpoint.steps(folder)))):
        if (place / RUN).exists():
            return read_run(place).train.max_steps
    steps = owner(folder).get("max_steps")
    return steps if isinstance(steps, int) else None
