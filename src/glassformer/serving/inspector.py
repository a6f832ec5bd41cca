"""The inspector: functions that answer the requests of its page.

A request names its model, `FOLDER@STEP`, or its run; an answer names both. The server has no current model, so pages in
several tabs cannot change each other's answers. The name of a run is a hash of its model and its input.
"""

import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import files
from glassformer.errors import UserError
from glassformer.inference.classify import Classifier, Tagger
from glassformer.inference.sampling import log_softmax
from glassformer.inference.text import never_written
from glassformer.inspection.ablation import Part, ablate
from glassformer.inspection.attention_maps import Kind, checked, default_layer
from glassformer.inspection.beam_tree import beam_tree
from glassformer.inspection.capture import Trace, capture, capture_tensors, encoded, kind_of
from glassformer.inspection.effects import effects
from glassformer.inspection.head_scores import (
    MARGIN,
    NAMES,
    LayerScores,
    Scores,
    best_heads,
    ids_of,
    random_scores,
    random_trace,
    score_numbers,
    uniform_attention,
)
from glassformer.inspection.head_weights import HeadWeights, head_weights
from glassformer.inspection.lens import lens_cells, lens_labels, residual_names
from glassformer.inspection.measures import measure_of
from glassformer.inspection.patching import patch_residual, patching_of
from glassformer.loading import load_model
from glassformer.model import Model
from glassformer.models.transformer import Transformer
from glassformer.serving import page_data
from glassformer.serving.app import Call, Packed
from glassformer.serving.gallery import Gallery
from glassformer.store import checkpoint
from glassformer.store.lock import is_locked, owner
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import RUN, read_run
from glassformer.training.metrics_log import NAME as METRICS

FOLDER = Path(__file__).parent / "page"
"""The files of the page."""
MAX_RUNS = 8
"""Number of runs that are kept; the oldest one is dropped first."""
MAX_MODELS = 3
"""Number of models that are kept besides the first; the oldest one is dropped first."""
MAX_BEAM = 32
MAX_PENALTY = 10
N_NEXT = 50
MAX_LINES = 1 << 24


@dataclass
class Shown:
    """One run of a model over a text or a pair."""

    model: Model
    trace: Trace
    attention: dict[Kind, list[HeadWeights | Tensor]]
    """By kind of attention and layer: the weights of H heads, (T, S) each."""
    thumbnails: dict[Kind, Tensor]
    """By kind of attention: (layers, H, h, w), uint8."""
    scores: Scores
    name: str = ""
    ablated: dict[tuple[str, bool], Tensor] = field(default_factory=dict)
    """Logits of the latest ablation, by the names of its parts and its kind of replacement."""

    def heads(self, kind: Kind, layer: int) -> HeadWeights | Tensor:
        """Return the weights of the heads of a layer."""
        layers = self.attention.get(kind)
        if layers is None:
            raise UserError(f"{self.model.name} has no {kind} attention")
        return layers[checked("layer", layer, len(layers))]

    @property
    def names(self) -> dict[str, str]:
        """Names of the model and the run, for an answer."""
        return {"model": page_data.model_id(self.model), "run": self.name}

    def packed(self, x: Tensor) -> Packed:
        """Return an array of this run."""
        return replace(page_data.packed(x), names=self.names)

    def logits(self, off: str, mean: bool) -> Tensor:
        """Return the logits of the run without the parts `off`, names with commas; see `ablation.ablate`."""
        if not off:
            return self.trace["logits"]
        if (off, mean) not in self.ablated:
            network, inputs = self.model.network, self.trace.inputs
            parts = [Part.parse(name) for name in off.split(",")]
            means = capture_tensors(network, inputs, ["*.context", "*.ff", "*_norm"]) if mean else None
            with ablate(network, parts, means):
                self.ablated = {(off, mean): capture_tensors(network, inputs, ["logits"])["logits"]}
        return self.ablated[off, mean]


def _shown(model: Model, trace: Trace) -> Shown:
    """Run a model; reduce the attention weights of each head to a thumbnail and scores."""
    network, by_path = model.network, dict[str, HeadWeights | Tensor]()
    if isinstance(network, Transformer):
        with head_weights(network) as found:
            tensors = capture_tensors(network, trace.inputs, [*residual_names(network), "logits"])
        by_path |= found
    else:
        tensors = capture_tensors(network, trace.inputs, ["*.weights", "logits"])
        by_path |= {name: tensors.pop(name)[0] for name in list(tensors) if name.endswith(".weights")}
    pictures, scores = dict[Kind, list[Tensor]](), dict[Kind, list[LayerScores]]()
    attention = dict[Kind, list[HeadWeights | Tensor]]()
    for path, layer in by_path.items():
        kind = kind_of(f"{path}.")
        ids, of_layer, heads = ids_of(trace.inputs, kind), list[Tensor](), list[dict[str, float]]()
        for weights in layer:  # one head at a time: its matrices stay in the cache of the processor
            of_layer.append(page_data.thumbnails(weights))
            heads.append(score_numbers(weights, ids))
        allowed = layer.allowed() if isinstance(layer, HeadWeights) else torch.ones_like(layer[0], dtype=torch.bool)
        scores.setdefault(kind, []).append(LayerScores(heads, score_numbers(uniform_attention(allowed), ids)))
        pictures.setdefault(kind, []).append(torch.stack(of_layer))
        attention.setdefault(kind, []).append(layer)
    stacked = {kind: torch.stack(x) for kind, x in pictures.items()}
    return Shown(model, replace(trace, tensors=tensors), attention, stacked, scores)


class Inspector:
    """The models that are open, and their latest runs.

    Without a model, `folder` is a run before its first checkpoint, or the gallery offers models.
    """

    def __init__(
        self,
        model: Model | None,
        examples: Sequence[Mapping[str, str | None]] = (),
        *,
        folder: Path | None = None,
        gallery: Gallery | None = None,
        device: str = "auto",
    ) -> None:
        self.given = list(examples)
        self.folder = folder if model is None else model.folder
        self.gallery, self.device = gallery, device
        self.models: dict[str, Model] = {}
        self.first = ""
        """Model of requests that name none: the one with which the server was started; empty without one."""
        if model is not None:
            self.first = self._keep(model)
        self.runs: OrderedDict[str, Shown] = OrderedDict()
        self._compared: set[Path] = set()
        """Folders of other models that a page has opened."""
        self._examples: dict[str, list[Mapping[str, str | None]]] = {}
        self._random_scores: dict[str, Scores] = {}

    def _keep(self, model: Model) -> str:
        name = page_data.model_id(model)
        self.models.pop(name, None)
        self.models[name] = model
        others = [one for one in self.models if one != self.first]
        for one in others[: max(0, len(others) - MAX_MODELS)]:
            del self.models[one]
        return name

    def _model(self, name: str | None) -> Model:
        """Return the model of a request; load it again if it is no longer kept."""
        name = name or self.first
        if not name:
            what = "the run has no checkpoint yet" if self.gallery is None else "choose one of the gallery"
            raise UserError(f"no model is open: {what}")
        if name not in self.models:
            folder, _, step = name.rpartition("@")
            path = self._folder(folder)
            if not (step.isdecimal() and step.isascii()):
                raise UserError(f"the server has no model {name!r:.200}: open it again")
            self._load(path, int(step))
            if name not in self.models:
                raise UserError(f"the server has no model {name!r:.200}: open it again")
        return self.models[name]

    def _load(self, folder: Path, step: int | None) -> Model:
        is_published = step is not None and step == _model_step(folder)
        model = load_model(folder, None if is_published else step, self.device)
        self._keep(model)
        return model

    def _folder(self, folder: str | None) -> Path:
        """Return a folder that this server has opened or offers; by default that of its start."""
        known = [self.folder] if self.gallery is None else [Path(one["folder"]) for one in self.gallery.list()]
        paths = {str(path): path for path in (*known, *self._compared) if path is not None}
        if folder is None and self.folder is not None:
            return self.folder
        if folder is None:
            raise UserError("the model has no folder with checkpoints")
        if folder not in paths:
            raise UserError(f"the server has not opened the folder {folder!r:.200}: open it again")
        return paths[folder]

    def session(self) -> dict[str, Any]:
        """Answer the model with which the server was started, the folder, and the models of the gallery."""
        gallery = None if self.gallery is None else self.gallery.list()
        return {"model": self.first or None, "folder": str(self.folder or ""), "gallery": gallery}

    def open(self, name: str | None = None, folder: str | None = None, step: int | None = None) -> dict[str, Any]:
        """Open a model of the gallery, or the newest model of a folder, or that of a step; answer the facts."""
        if name is not None and self.gallery is None:
            raise UserError("there is no gallery: start `glassformer inspect` without a folder")
        path = self._folder(folder) if name is None or self.gallery is None else self.gallery.ready(name)
        return self.card(page_data.model_id(self._load(path, step)))

    def train(self, name: str) -> dict[str, Any]:
        """Start or continue the training of a model of the gallery; `live` shows it."""
        if self.gallery is None:
            raise UserError("there is no gallery: start `glassformer inspect` without a folder")
        self.gallery.train(name)
        return self.session()

    def _run(self, name: str) -> Shown:
        if name not in self.runs:
            raise UserError(f"the run {name!r:.40} is no longer kept: run the text again")
        self.runs.move_to_end(name)
        return self.runs[name]

    def card(self, model: str | None = None) -> dict[str, Any]:
        """Answer the facts of a model."""
        chosen = self._model(model)
        name = page_data.model_id(chosen)
        if name not in self._examples:
            self._examples[name] = [*self.given, *page_data.examples(chosen)]
        return page_data.card(chosen) | {"model": name, "examples": self._examples[name]}

    def vocabulary(self, model: str | None = None) -> dict[str, Any]:
        """Answer all tokens of the vocabulary, by id."""
        chosen = self._model(model)
        return {"model": page_data.model_id(chosen), "tokens": self._names(chosen)}

    def _names(self, model: Model) -> list[str]:
        n_tokens = model.tokenizer.vocab_size
        unused = [f"<row {i}>" for i in range(n_tokens, model.config.vocab_size)]  # rows of a padded table
        return [*model.tokenizer.tokens(range(n_tokens)), *unused]

    def run(
        self,
        text: str | None = None,
        source: str | None = None,
        target: str | None = None,
        ids: list[int] | None = None,
        source_ids: list[int] | None = None,
        random: bool = False,
        model: str | None = None,
    ) -> dict[str, Any]:
        """Run a model over a text, a pair, or ids; answer tokens with predictions, and the shapes of the attention.

        `random` runs random tokens that follow twice (`random_trace`), the input for induction scores.
        """
        chosen, begin = self._model(model), time.perf_counter()
        given: dict[str, Any] = {
            "text": text if ids is None or chosen.is_seq2seq else ids,
            "source": source if source_ids is None else source_ids,
            "target": target if ids is None or not chosen.is_seq2seq else ids,
        }
        shown = _shown(chosen, random_trace(chosen) if random else encoded(chosen, **given))
        content = json.dumps([page_data.model_id(chosen), *(x.tolist() for x in shown.trace.inputs.values())])
        shown.name = hashlib.sha256(content.encode()).hexdigest()[:16]
        self.runs[shown.name] = shown
        self.runs.move_to_end(shown.name)
        while len(self.runs) > MAX_RUNS:
            self.runs.popitem(last=False)
        axes = {kind: {"rows": rows, "columns": columns} for kind, (rows, columns) in page_data.AXES.items()}
        return {
            **shown.names,
            "kind": page_data.kind(chosen),
            **self._tokens(shown, shown.trace["logits"]),
            "attention": {kind: size | axes[kind] for kind, size in page_data.attention_sizes(chosen).items()},
            "unknown": _unknown(chosen, given),
            "seconds": time.perf_counter() - begin,
        }

    def _tokens(self, shown: Shown, logits: Tensor) -> dict[str, Any]:
        """Return the tokens of all sides with their predictions, the loss in nats per token, and labels or a number.

        `logits` (1, T, V) or (1, n_labels) are those of the run, or of the run with parts switched off.
        """
        model, trace = shown.model, shown.trace
        found: dict[str, Any] = {"source": [], "target": [], "written": [], "loss": None, "n_scored": 0}
        found |= {"labels": None, "number": None}
        ids = trace.inputs["token_ids"][0].tolist()
        logits = logits[0]
        names = self._names(model)
        if model.is_seq2seq:
            found["source"] = page_data.tokens(model.source_tokenizer, trace.inputs["source_ids"][0].tolist())
            found["target"] = page_data.tokens(model.tokenizer, ids)
            found["written"] = page_data.tokens(model.tokenizer, [*ids[1:], model.translator.end_id])
            page_data.add_predictions(found["target"], log_softmax(logits), names)
            scores = page_data.add_scores(found["written"], logits)
            for token, written in zip(found["target"][1:], found["written"], strict=False):
                token.update(log_prob=written["log_prob"], rank=written["rank"])
        elif model.is_causal_lm:
            found["target"] = page_data.tokens(model.tokenizer, ids)
            page_data.add_predictions(found["target"], log_softmax(logits), names)
            scores = page_data.add_scores(found["target"][1:], logits[:-1])
        else:
            found["source"] = page_data.tokens(model.tokenizer, ids)
            if page_data.predicts_tokens(model):
                page_data.add_predictions(found["source"], log_softmax(logits), names)
                given = [place for place, i in enumerate(ids) if i != model.tokenizer.mask_id]
                page_data.add_scores([found["source"][place] for place in given], logits[given])
            elif model.is_regression:
                found["number"] = float(logits[0])
            elif isinstance(predictor := model.predictor, Classifier | Tagger):
                _add_labels(found, predictor.probabilities(logits), model.classes)
            return found
        found["n_scored"] = len(scores)
        found["loss"] = -math.fsum(scores) / len(scores) if scores else None
        return found

    def thumbnails(self, run: str, kind: str) -> Packed:
        """Answer small pictures of all heads of a kind of attention."""
        shown, which = self._run(run), _kind(kind)
        if which not in shown.thumbnails:
            raise UserError(f"{shown.model.name} has no {kind} attention")
        return shown.packed(shown.thumbnails[which])

    def attention(self, run: str, kind: str, layer: int, head: int | None = None) -> Packed:
        """Answer the attention weights of one layer, or of one head of it."""
        shown = self._run(run)
        heads = shown.heads(_kind(kind), layer)
        chosen = list(heads) if head is None else [heads[checked("head", head, len(heads))]]
        return shown.packed(torch.stack([page_data.fractions(weights) for weights in chosen]))

    def scores(self, run: str) -> dict[str, Any]:
        """Answer the scores of all heads beside their baselines, and the best head of each pattern (`best_heads`)."""
        shown = self._run(run)
        name, best = page_data.model_id(shown.model), list[dict[str, Any]]()
        if isinstance(shown.model.network, Transformer):
            if name not in self._random_scores:
                self._random_scores[name] = random_scores(shown.model)
            found = best_heads(shown.scores, self._random_scores[name])
            best = [{"name": score, **page_data.without_nan(head._asdict())} for score, head in found.items()]
        layers = {
            kind: {
                "heads": [[page_data.without_nan(head) for head in layer.heads] for layer in of_kind],
                "uniform": [page_data.without_nan(layer.uniform) for layer in of_kind],
            }
            for kind, of_kind in shown.scores.items()
        }
        return {**shown.names, "names": NAMES, "margin": MARGIN, "best": best, "kinds": layers}

    def lens(self, run: str, norm: bool = True) -> dict[str, Any]:
        """Answer the logit lens: the prediction of each layer at each position."""
        shown = self._run(run)
        network, names = shown.model.network, self._names(shown.model)
        found = lens_cells(network, shown.trace, lens_labels(network, shown.trace.inputs), norm=norm)
        cells = []
        for layer in range(len(found.layers)):
            ids, probabilities = found.top_ids[layer].tolist(), found.top_probabilities[layer].tolist()
            tops = [
                [[i, names[i], p] for i, p in zip(*row, strict=True)] for row in zip(ids, probabilities, strict=True)
            ]
            labels = zip(found.label_probability[layer].tolist(), found.label_rank[layer].tolist(), strict=True)
            cells.append(
                [
                    page_data.without_nan({"top": top, "next": p, "rank": None if rank < 0 else rank + 1})
                    for top, (p, rank) in zip(tops, labels, strict=True)
                ]
            )
        return {**shown.names, "layers": found.layers, "cells": cells}

    def beam(
        self,
        source: str,
        beam: int = 4,
        length_penalty: float = 1.0,
        length_penalty_type: str = "gnmt",
        max_new_tokens: int | None = None,
        model: str | None = None,
    ) -> dict[str, Any]:
        """Answer the tree of a beam search and its results, best first."""
        chosen = self._model(model)
        settings: dict[str, Any] = {"beam": beam, "length_penalty": float(length_penalty)}
        settings |= {"length_penalty_type": length_penalty_type}
        settings |= {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
        if not 1 <= beam <= MAX_BEAM:
            raise UserError(f"beam: expected 1 to {MAX_BEAM}, got {beam}")
        if not 0 <= length_penalty <= MAX_PENALTY:
            raise UserError(f"length_penalty: expected 0 to {MAX_PENALTY}, got {length_penalty}")
        chosen.require_source()
        tree = beam_tree(chosen, source, **settings)
        texts = chosen.tokenizer.tokens([node.token_id for node in tree.nodes])
        nodes = [asdict(node) | {"token": text} for node, text in zip(tree.nodes, texts, strict=True)]
        decode = chosen.tokenizer.decode
        results = [{"node": place, "text": decode(h.text_ids), **asdict(h)} for place, h in tree.results]
        unknown = _unknown(chosen, {"source": source})
        return {"model": page_data.model_id(chosen), "nodes": nodes, "results": results, "unknown": unknown}

    def alignment(self, run: str, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
        """Answer the weights from the written tokens to the source, and the largest one of each row as a link."""
        shown = self._run(run)
        layers = shown.attention.get("cross")
        if layers is None:
            raise UserError(f"{shown.model.name} has no attention from a target to a source, so it has no alignment")
        heads = shown.heads("cross", default_layer(len(layers)) if layer is None else layer)
        matrix = torch.stack(list(heads)).mean(dim=0) if head is None else heads[checked("head", head, len(heads))]
        best = matrix.max(dim=1)
        links = [[t, s, w] for t, (s, w) in enumerate(zip(best.indices.tolist(), best.values.tolist(), strict=True))]
        sides = {"rows": "written", "columns": "source"}
        return {**shown.names, **sides, "weights": matrix.tolist(), "links": links}

    def logits(self, run: str, position: int, off: str = "", mean: bool = False) -> Packed:
        """Answer the logits (V,) at a position of the target, or of the only text, without the parts `off`."""
        shown = self._run(run)
        n_positions = shown.trace["logits"].shape[1]
        if shown.trace["logits"].ndim != 3:
            raise UserError("the model gives logits for the whole text only")
        return shown.packed(shown.logits(off, mean)[0, checked("position", position, n_positions)])

    def ablate(self, run: str, off: str, mean: bool = False) -> dict[str, Any]:
        """Answer the measure and the predictions before and after parts are switched off; see `ablation.ablate`.

        `off` are names with commas, such as `decoder.0.head.3,decoder.1.feed_forward`.
        """
        shown = self._run(run)
        measure = measure_of(shown.model, shown.trace.inputs)
        answers = {
            side: {"loss": float(measure(logits)[0]), **self._positions(shown, logits)}
            for side, logits in (("before", shown.trace["logits"]), ("after", shown.logits(off, mean)))
        }
        return {**shown.names, "measure": measure.name, **answers}

    def _positions(self, shown: Shown, logits: Tensor) -> dict[str, Any]:
        """Return the predictions of each position: the log-probability of its token, and the best tokens."""
        found = self._tokens(shown, logits)
        read = found["target"] or found["source"]
        tokens = zip(found["written"] or read, read, strict=True)
        positions = [{"log_prob": token["log_prob"], "top": before["top"][:5]} for token, before in tokens]
        return {"positions": positions, "labels": found["labels"], "number": found["number"]}

    def effects(self, run: str) -> dict[str, Any]:
        """Answer the change of the measure for each head, feed-forward and layer, one at a time."""
        shown = self._run(run)
        network, inputs = shown.model.network, shown.trace.inputs
        found = effects(network, inputs, measure_of(shown.model, inputs))
        sizes = page_data.attention_sizes(shown.model)
        stacks = [kind for kind in sizes if kind != "cross"]
        return {
            **shown.names,
            "measure": found.measure,
            "loss": found.before,
            **{kind: found.heads(kind) for kind in sizes},
            "feed_forward": {stack: found.feed_forwards(stack) for stack in stacks},
            "layers": {stack: found.layers(stack) for stack in stacks},
        }

    def patch(
        self,
        clean: str,
        corrupted: str,
        answer: str | None = None,
        wrong: str | None = None,
        target: str | None = None,
        stack: str | None = None,
        model: str | None = None,
    ) -> dict[str, Any]:
        """Answer the share that each layer and position of the clean run restores in the corrupted run.

        `stack` is the encoder or the decoder, by default the one that produces the output. `target` is the target
        prefix of an encoder-decoder.
        """
        chosen = self._model(model)
        pair = patching_of(chosen, clean, corrupted, answer or None, wrong or None, target=target or None)
        network = chosen.network
        assert isinstance(network, Transformer)  # `patching_of`
        which = _kind(stack or ("encoder" if network.decoder is None else "decoder"), "stack")
        found = patch_residual(network, pair, which)
        clean_tokens, corrupted_tokens = pair.tokens[which]
        tokens = chosen.tokenizer.tokens
        given = {"clean": clean, "corrupted": corrupted, "answer": answer, "wrong": wrong, "target": target}
        return {
            "model": page_data.model_id(chosen),
            "unknown": _unknown(chosen, given),
            "stack": which,
            "tokens_clean": clean_tokens,
            "tokens_corrupted": corrupted_tokens,
            "target": pair.tokens["decoder"][0] if chosen.is_seq2seq else None,
            "layers": found.layers,
            "map": found.shares.tolist(),
            "clean": found.clean,
            "corrupted": found.corrupted,
            "answer": tokens([pair.answer])[0],
            "wrong": tokens([pair.wrong])[0],
        }

    def next(self, ids: list[int], source_ids: list[int] | None = None, model: str | None = None) -> dict[str, Any]:
        """Answer the next tokens after ids, without those that generation never writes: the most probable ones and all
        logits. Answer the entropy and the text too.
        """
        chosen = self._model(model)
        if not (chosen.is_causal_lm or chosen.is_seq2seq):
            raise UserError(f"{chosen.name} does not predict next tokens")
        given: dict[str, Any] = {"source": source_ids, "target": ids} if chosen.is_seq2seq else {"text": ids}
        logits = capture(chosen, names=["logits"], **given)["logits"][0, -1:]
        never = never_written(chosen.tokenizer, chosen.config.vocab_size, but=page_data.end_ids(chosen))
        logits[:, never] = -torch.inf  # as in generation
        log_probs = log_softmax(logits)
        (best,) = page_data.top(log_probs, self._names(chosen), N_NEXT)
        entropy = float(-(log_probs.exp() * log_probs.clamp(min=-1e4)).sum())
        packed = page_data.packed(logits[0]).to_json()
        answer = {"top": best, "entropy": entropy, "text": chosen.tokenizer.decode(ids), "logits": packed}
        return {"model": page_data.model_id(chosen), **answer}

    def compare(self, first: str | None = None, step: int | None = None, folder: str | None = None) -> dict[str, Any]:
        """Open a checkpoint of the run of the first model, or a model of one vocabulary; answer its facts."""
        one = self._model(first)
        if (step is None) == (folder is None):
            raise UserError("give a step or a folder")
        if folder is None and one.folder is None:
            raise UserError("the model has no folder with checkpoints")
        path = Path(folder or str(one.folder))
        other = load_model(path, step, str(one.device))
        for name in ("tokenizer", "source_tokenizer"):
            if getattr(one, name).fingerprint != getattr(other, name).fingerprint:
                raise UserError(f"{other.name} has another {name.replace('_', ' ')}: choose a model of one vocabulary")
        self._compared.add(path)
        return self.card(self._keep(other))

    def live(self, since: int = 0, folder: str | None = None) -> dict[str, Any]:
        """Answer the lines that a run has logged from byte `since` on, and whether it is running."""
        place = self._folder(folder)
        if since < 0:
            raise UserError(f"since: expected a place in the log, 0 or more, got {since}")
        text, path = b"", place / METRICS
        if path.exists():
            with path.open("rb") as file:
                since = min(since, path.stat().st_size)  # a resumed run may have shortened its log
                file.seek(since)
                text = file.read(MAX_LINES)
        whole = text[: text.rfind(b"\n") + 1]
        lines = [files.parse_json(line.decode(errors="replace")) for line in whole.splitlines()]
        return {
            "folder": str(place),
            "offset": since + len(whole),
            "lines": lines,
            "is_running": is_locked(place),
            "checkpoints": checkpoint.steps(place),
            "max_steps": _max_steps(place),
            "model_step": _model_step(place),
        }

    def health(self) -> dict[str, Any]:
        """Answer that the server runs."""
        return {"ok": True}

    def calls(self) -> list[Call]:
        """Return the routes."""
        return [
            Call("GET", "/api/health", self.health, is_quick=True),
            Call("GET", "/api/live", self.live, is_quick=True),
            Call("GET", "/api/session", self.session),
            Call("POST", "/api/train", self.train),
            Call("POST", "/api/open", self.open),
            Call("GET", "/api/model", self.card),
            Call("GET", "/api/vocabulary", self.vocabulary),
            Call("POST", "/api/run", self.run),
            Call("GET", "/api/run/{run}/thumbnails", self.thumbnails),
            Call("GET", "/api/run/{run}/attention", self.attention),
            Call("GET", "/api/run/{run}/alignment", self.alignment),
            Call("GET", "/api/run/{run}/logits", self.logits),
            Call("POST", "/api/run/{run}/ablate", self.ablate),
            Call("GET", "/api/run/{run}/effects", self.effects),
            Call("GET", "/api/run/{run}/scores", self.scores),
            Call("GET", "/api/run/{run}/lens", self.lens),
            Call("POST", "/api/beam", self.beam),
            Call("POST", "/api/patch", self.patch),
            Call("POST", "/api/next", self.next),
            Call("POST", "/api/compare", self.compare),
        ]


def _add_labels(found: dict[str, Any], probabilities: Tensor, names: Sequence[str]) -> None:
    """Add the probabilities of the labels of a text, (n_labels,), or of each token, (T, n_labels)."""
    if probabilities.ndim == 2:
        page_data.add_predictions(found["source"], probabilities.log(), names)
    else:
        pairs = zip(names, probabilities.tolist(), strict=True)
        found["labels"] = [{"name": name, "probability": p} for name, p in pairs]


def _max_steps(folder: Path) -> int | None:
    """Return the last step of a run; before its first checkpoint, the owner file of its lock has it."""
    places = [folder, *(checkpoint.path_of(folder, step) for step in reversed(checkpoint.steps(folder)))]
    for place in places:
        if (place / RUN).exists():
            return read_run(place).train.max_steps
    steps = owner(folder).get("max_steps")
    return steps if isinstance(steps, int) else None


def _model_step(folder: Path) -> int | None:
    """Return the step of the model that `open` loads; None before the first one."""
    try:
        return Manifest.read(folder).step
    except (UserError, OSError):
        return None


def _unknown(model: Model, given: Mapping[str, Any]) -> str:
    """Return sentences about the characters of the given texts that the vocabularies do not contain."""
    read = {"source", "clean", "corrupted"} if model.is_seq2seq else set()
    found = [
        page_data.unknown(model.source_tokenizer if side in read else model.tokenizer, text)
        for side, text in given.items()
        if isinstance(text, str)
    ]
    return " ".join(sentence for sentence in dict.fromkeys(found) if sentence)


def _kind(name: str, key: str = "kind") -> Kind:
    if name in page_data.AXES:
        return name
    raise UserError(f"{key}: expected encoder, decoder or cross, got {name!r:.40}")
