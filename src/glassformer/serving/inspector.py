"""The inspector: functions that answer the requests of its page, for one model or two of one vocabulary."""

import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import files
from glassformer.errors import UserError
from glassformer.inference.decode import never_written
from glassformer.inference.sampling import log_softmax
from glassformer.inspection.ablation import Part, ablate
from glassformer.inspection.attention_maps import Kind, checked, default_layer
from glassformer.inspection.beam_tree import beam_tree
from glassformer.inspection.capture import Trace, capture, capture_tensors, encoded, kind_of
from glassformer.inspection.effects import effects
from glassformer.inspection.head_scores import NAMES, head_scores, induction_ids_of
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
MAX_BEAM = 32
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
    scores: dict[Kind, list[list[dict[str, float | None]]]]
    """Scores of each head, by layer (`head_scores`); None for a score that is not defined."""

    def heads(self, kind: Kind, layer: int) -> HeadWeights | Tensor:
        """Return the weights of the heads of a layer."""
        layers = self.attention.get(kind)
        if layers is None:
            raise UserError(f"{self.model.name} has no {kind} attention")
        return layers[checked("layer", layer, len(layers))]


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
    ids = {"decoder": trace.inputs["token_ids"][0], "encoder": next(reversed(trace.inputs.values()))[0]}
    shown = Shown(model, replace(trace, tensors=tensors), {}, {}, {})
    pictures: dict[Kind, list[Tensor]] = {}
    for path, layer in by_path.items():
        kind = kind_of(f"{path}.")
        found_pictures, found_scores = [], []
        for weights in layer:  # one head at a time: its matrices stay in the cache of the processor
            found_pictures.append(page_data.thumbnails(weights))
            scores = {name: float(x) for name, x in head_scores(weights, ids.get(kind)).items()}
            found_scores.append(page_data.without_nan(scores))
        pictures.setdefault(kind, []).append(torch.stack(found_pictures))
        shown.scores.setdefault(kind, []).append(found_scores)
        shown.attention.setdefault(kind, []).append(layer)
    shown.thumbnails = {kind: torch.stack(x) for kind, x in pictures.items()}
    return shown


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
        self.models: list[Model] = []
        self.given = list(examples)
        self.folder, self.gallery, self.device = folder, gallery, device
        self.runs: OrderedDict[str, Shown] = OrderedDict()
        self._n_runs = 0
        if model is not None:
            self._open(model)

    def _open(self, model: Model) -> None:
        self.models, self.folder = [model], model.folder
        self.examples = [*self.given, *page_data.examples(model)]

    def _model(self, number: int) -> Model:
        if not self.models:
            what = "the run has no checkpoint yet" if self.gallery is None else "choose one of the gallery"
            raise UserError(f"no model is open: {what}")
        if not 0 <= number < len(self.models):
            raise UserError(f"model {number} is not open: choose a checkpoint to compare with")
        return self.models[number]

    def session(self) -> dict[str, Any]:
        """Answer whether a model is open, the folder, and the models of the gallery."""
        gallery = None if self.gallery is None else self.gallery.list()
        return {"open": bool(self.models), "folder": str(self.folder or ""), "gallery": gallery}

    def open(self, name: str | None = None, step: int | None = None) -> dict[str, Any]:
        """Open a model of the gallery, or the run's newest checkpoint, or that of a step; answer the facts."""
        if name is not None:
            if self.gallery is None:
                raise UserError("there is no gallery: start `glassformer inspect` without a folder")
            self.folder = self.gallery.ready(name)
        if self.folder is None:
            raise UserError("the model has no folder with checkpoints")
        self._open(load_model(self.folder, step, self.device))
        return self.card()

    def train(self, name: str) -> dict[str, Any]:
        """Start or continue the training of a model of the gallery; `live` shows it."""
        if self.gallery is None:
            raise UserError("there is no gallery: start `glassformer inspect` without a folder")
        self.folder = self.gallery.train(name)
        return self.session()

    def _run(self, name: str) -> Shown:
        if name not in self.runs:
            raise UserError(f"the run {name!r} is no longer kept: run the text again")
        self.runs.move_to_end(name)
        return self.runs[name]

    def card(self, model: int = 0) -> dict[str, Any]:
        """Answer the facts of a model."""
        return page_data.card(self._model(model)) | {"examples": self.examples}

    def vocabulary(self, model: int = 0) -> dict[str, Any]:
        """Answer all tokens of the vocabulary, by id."""
        return {"tokens": self._names(self._model(model))}

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
        random: int | None = None,
        model: int = 0,
    ) -> dict[str, Any]:
        """Run a model over a text, a pair, or ids; answer tokens with predictions, and the shapes of the attention.

        `random` is a number of random tokens that follow twice (`induction_ids_of`), the text for induction scores.
        """
        chosen, begin = self._model(model), time.perf_counter()
        if random is not None:
            if chosen.is_seq2seq:
                raise UserError(f"{chosen.name} has no induction scores: use a model with one stack")
            ids = induction_ids_of(chosen, random)
        given: dict[str, Any] = {
            "text": text if ids is None or chosen.is_seq2seq else ids,
            "source": source if source_ids is None else source_ids,
            "target": target if ids is None or not chosen.is_seq2seq else ids,
        }
        shown = _shown(chosen, encoded(chosen, **given))
        self._n_runs += 1
        name = f"r{self._n_runs}"
        self.runs[name] = shown
        while len(self.runs) > MAX_RUNS:
            self.runs.popitem(last=False)
        axes = {kind: {"rows": rows, "columns": columns} for kind, (rows, columns) in page_data.AXES.items()}
        return {
            "run": name,
            "kind": page_data.kind(chosen),
            **self._tokens(shown, shown.trace["logits"]),
            "attention": {kind: size | axes[kind] for kind, size in page_data.attention_sizes(chosen).items()},
            "unknown": _unknown(chosen, given),
            "seconds": time.perf_counter() - begin,
        }

    def _tokens(self, shown: Shown, logits: Tensor) -> dict[str, Any]:
        """Return the tokens of all sides with their predictions, the loss in nats per token, and labels.

        `logits` (1, T, V) or (1, n_labels) are those of the run, or of the run with parts switched off.
        """
        model, trace = shown.model, shown.trace
        found: dict[str, Any] = {"source": [], "target": [], "written": [], "loss": None, "n_scored": 0, "labels": None}
        ids = trace.inputs["token_ids"][0].tolist()
        logits = logits[0]
        names = self._names(model)
        if model.is_seq2seq:
            found["source"] = page_data.tokens(model.source_tokenizer, trace.inputs["source_ids"][0].tolist())
            found["target"] = page_data.tokens(model.tokenizer, ids)
            found["written"] = page_data.tokens(model.tokenizer, [*ids[1:], model.translator.end_id])
            page_data.add_predictions(found["target"], logits, names)
            scores = page_data.add_scores(found["written"], logits)
            for token, written in zip(found["target"][1:], found["written"], strict=False):
                token.update(log_prob=written["log_prob"], rank=written["rank"])
        elif model.is_causal_lm:
            found["target"] = page_data.tokens(model.tokenizer, ids)
            page_data.add_predictions(found["target"], logits, names)
            scores = page_data.add_scores(found["target"][1:], logits[:-1])
        else:
            found["source"] = page_data.tokens(model.tokenizer, ids)
            if page_data.predicts_tokens(model):
                page_data.add_predictions(found["source"], logits, names)
                given = [place for place, i in enumerate(ids) if i != model.tokenizer.mask_id]
                page_data.add_scores([found["source"][place] for place in given], logits[given])
            elif model.classes and logits.ndim == 2:
                page_data.add_predictions(found["source"], logits, model.classes)
            elif model.classes:
                best = logits.softmax(-1).tolist()
                found["labels"] = [{"name": n, "probability": p} for n, p in zip(model.classes, best, strict=True)]
            return found
        found["n_scored"] = len(scores)
        found["loss"] = -math.fsum(scores) / len(scores) if scores else None
        return found

    def thumbnails(self, run: str, kind: str) -> Packed:
        """Answer small pictures of all heads of a kind of attention."""
        shown, which = self._run(run), _kind(kind)
        if which not in shown.thumbnails:
            raise UserError(f"{shown.model.name} has no {kind} attention")
        return page_data.packed(shown.thumbnails[which])

    def attention(self, run: str, kind: str, layer: int, head: int | None = None) -> Packed:
        """Answer the attention weights of one layer, or of one head of it."""
        heads = self._run(run).heads(_kind(kind), layer)
        chosen = list(heads) if head is None else [heads[checked("head", head, len(heads))]]
        return page_data.packed(torch.stack([page_data.fractions(weights) for weights in chosen]))

    def scores(self, run: str) -> dict[str, Any]:
        """Answer the scores of all heads, their descriptions, and the best head of each score."""
        found = self._run(run).scores
        heads = [
            (score, kind, i, j, value)
            for kind, layers in found.items()
            for i, layer in enumerate(layers)
            for j, head in enumerate(layer)
            for score, value in head.items()
            if value is not None and score != "entropy"  # a head of large entropy attends to all tokens
        ]
        best: dict[str, list[Any]] = {}
        for score, *place, value in heads:
            if score not in best or value > best[score][-1]:
                best[score] = [*place, value]
        return {"names": NAMES, "best": best, **{str(kind): layers for kind, layers in found.items()}}

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
        return {"layers": found.layers, "cells": cells}

    def beam(
        self,
        source: str,
        beam: int = 4,
        length_penalty: float = 1.0,
        length_penalty_type: str = "gnmt",
        max_new_tokens: int | None = None,
        model: int = 0,
    ) -> dict[str, Any]:
        """Answer the tree of a beam search and its results, best first."""
        chosen = self._model(model)
        settings: dict[str, Any] = {"beam": beam, "length_penalty": float(length_penalty)}
        settings |= {"length_penalty_type": length_penalty_type}
        settings |= {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
        if not 1 <= beam <= MAX_BEAM:
            raise UserError(f"beam: expected 1 to {MAX_BEAM}, got {beam}")
        chosen.require_source()
        tree = beam_tree(chosen, source, **settings)
        texts = chosen.tokenizer.tokens([node.token_id for node in tree.nodes])
        nodes = [asdict(node) | {"token": text} for node, text in zip(tree.nodes, texts, strict=True)]
        results = [{"node": place, "text": chosen.tokenizer.decode(h.ids), **asdict(h)} for place, h in tree.results]
        return {"nodes": nodes, "results": results}

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
        return {"rows": "written", "columns": "source", "weights": matrix.tolist(), "links": links}

    def logits(self, run: str, position: int) -> Packed:
        """Answer the logits (V,) at a position of the target, or of the only text."""
        logits = self._run(run).trace["logits"]
        if logits.ndim != 3:
            raise UserError("the model gives logits for the whole text only")
        return page_data.packed(logits[0, checked("position", position, logits.shape[1])])

    def ablate(self, run: str, off: list[dict[str, Any]], mean: bool = False) -> dict[str, Any]:
        """Answer the measure and the predictions before and after parts are switched off; see `ablation.ablate`."""
        shown = self._run(run)
        network, inputs = shown.model.network, shown.trace.inputs
        measure = measure_of(network, inputs)
        means = capture_tensors(network, inputs, ["*.context", "*.ff", "*_norm"]) if mean else None
        before = shown.trace["logits"]
        with ablate(network, [_part(item) for item in off], means) if off else contextlib.nullcontext():
            after = capture_tensors(network, inputs, ["logits"])["logits"]
        answers = {
            side: {"loss": float(measure(logits)[0]), "positions": self._positions(shown, logits)}
            for side, logits in (("before", before), ("after", after))
        }
        return {"measure": measure.name, **answers}

    def _positions(self, shown: Shown, logits: Tensor) -> list[dict[str, Any]]:
        """Return the log-probability of the token of each position, given these logits, and the best predictions."""
        found = self._tokens(shown, logits)
        side = "target" if found["target"] else "source"
        return [{"log_prob": token["log_prob"], "top": token["top"][:5]} for token in found[side]]

    def effects(self, run: str) -> dict[str, Any]:
        """Answer the change of the measure for each head, feed-forward and layer, one at a time."""
        shown = self._run(run)
        network, inputs = shown.model.network, shown.trace.inputs
        found = effects(network, inputs, measure_of(network, inputs))
        sizes = page_data.attention_sizes(shown.model)
        stacks = [kind for kind in sizes if kind != "cross"]
        return {
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
        model: int = 0,
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
        return {
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

    def next(self, ids: list[int], source_ids: list[int] | None = None, model: int = 0) -> dict[str, Any]:
        """Answer the next tokens after ids, without those that generation never writes: the most probable ones and all
        logits. Answer the entropy and the text too.
        """
        chosen = self._model(model)
        if not (chosen.is_causal_lm or chosen.is_seq2seq):
            raise UserError(f"{chosen.name} does not predict next tokens")
        given: dict[str, Any] = {"source": source_ids, "target": ids} if chosen.is_seq2seq else {"text": ids}
        logits = capture(chosen, names=["logits"], **given)["logits"][0, -1:]
        ends = page_data.end_ids(chosen)
        never = [i for i in never_written(chosen.tokenizer, chosen.config.vocab_size) if i not in ends]
        logits[:, never] = -torch.inf  # as in generation
        log_probs = log_softmax(logits)
        (best,) = page_data.top(log_probs, self._names(chosen), N_NEXT)
        entropy = float(-(log_probs.exp() * log_probs.clamp(min=-1e4)).sum())
        packed = page_data.packed(logits[0]).to_json()
        return {"top": best, "entropy": entropy, "text": chosen.tokenizer.decode(ids), "logits": packed}

    def compare(self, step: int | None = None, folder: str | None = None) -> dict[str, Any]:
        """Open a checkpoint of the same run, or another model, as model 1; answer its facts."""
        first = self._model(0)
        if (step is None) == (folder is None):
            raise UserError("give a step or a folder")
        if folder is None and first.folder is None:
            raise UserError("the model has no folder with checkpoints")
        other = load_model(folder or str(first.folder), step, str(first.device))
        for name in ("tokenizer", "source_tokenizer"):
            if getattr(first, name).fingerprint != getattr(other, name).fingerprint:
                raise UserError(f"{other.name} has another {name.replace('_', ' ')}: choose a model of one vocabulary")
        self.models[1:] = [other]
        return self.card(1)

    def live(self, since: int = 0) -> dict[str, Any]:
        """Answer the lines that the run has logged from byte `since` on, and whether it is running."""
        folder = self.folder
        if folder is None:
            raise UserError("the model has no folder")
        text, path = b"", folder / METRICS
        if path.exists():
            with path.open("rb") as file:
                since = min(since, path.stat().st_size)  # a resumed run may have shortened its log
                file.seek(since)
                text = file.read(MAX_LINES)
        whole = text[: text.rfind(b"\n") + 1]
        lines = [files.parse_json(line.decode()) for line in whole.splitlines()]
        return {
            "folder": str(folder),
            "offset": since + len(whole),
            "lines": lines,
            "is_running": is_locked(folder),
            "checkpoints": checkpoint.steps(folder),
            "max_steps": _max_steps(folder),
            "model_step": _model_step(folder),
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


def _part(item: Mapping[str, Any]) -> Part:
    """Return the part of a request, such as `{"kind": "decoder", "layer": 0, "head": 3}`."""
    place = f"{item.get('kind', item.get('stack'))}.{item.get('layer')}"
    head = ".feed_forward" if item.get("feed_forward") else f".head.{item['head']}" if "head" in item else ""
    return Part.parse(place + head)


def _unknown(model: Model, given: Mapping[str, Any]) -> str:
    """Return sentences about the characters of the given texts that the vocabulary does not contain."""
    tokenizers = {"text": model.tokenizer, "source": model.source_tokenizer, "target": model.tokenizer}
    found = [page_data.unknown(tokenizers[side], text) for side, text in given.items() if isinstance(text, str)]
    return " ".join(sentence for sentence in dict.fromkeys(found) if sentence)


def _kind(name: str, key: str = "kind") -> Kind:
    if name in page_data.AXES:
        return name
    raise UserError(f"{key}: expected encoder, decoder or cross, got {name!r:.40}")
