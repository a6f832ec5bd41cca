"""Tokens: a run of a model over a text or a pair, the prediction at each token, and sets of texts."""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import Inspector, Shown
from glassformer.common.chat_messages import require_messages, text_of
from glassformer.common.errors import UserError
from glassformer.inference.classify import Classifier, Tagger
from glassformer.inference.sampling import log_softmax
from glassformer.inspection.capture import encoded
from glassformer.inspection.head_scores import random_trace
from glassformer.inspection.strongest import Strongest, StrongText, strongest
from glassformer.inspection.texts import line_of, usual_texts, validation_texts
from glassformer.tasks.trained_model import TrainedModel


@dataclass(frozen=True)
class Input:
    """A text, a pair, a conversation, or ids in place of texts; or repeated random tokens (`random_trace`)."""

    text: str | None = None
    source: str | None = None
    target: str | None = None
    messages: list[dict[str, Any]] | None = None
    ids: list[int] | None = None
    source_ids: list[int] | None = None
    random: bool = False

    def of_sides(self, model: TrainedModel) -> dict[str, Any]:
        """Return the text, the source and the target that a model reads; a conversation becomes the ids of a text."""
        sides: dict[str, Any] = {"text": self.text, "source": self.source, "target": self.target}
        if self.messages is not None:
            sides["text"] = model.conversation_encoder.read(require_messages(self.messages))
        if self.ids is not None:
            side = "target" if model.is_seq2seq else "text"
            sides[side] = self.ids
        if self.source_ids is not None:
            sides["source"] = self.source_ids
        return sides

    @property
    def written_messages(self) -> dict[str, str]:
        """The messages of a conversation as one text, to search for unknown characters."""
        if self.messages is None:
            return {}
        return {"text": "\n".join(text_of(message) for message in require_messages(self.messages))}


@route("POST", "/api/run")
def run(inspector: Inspector, read: Input, model: str | None = None) -> dict[str, Any]:
    """Run a model over an input; answer tokens with predictions, and the shapes of the attention."""
    chosen, begin = inspector.model_of(model), time.perf_counter()
    sides, cut = read.of_sides(chosen), ""
    if read.messages is not None and len(sides["text"]) > chosen.config.max_len:
        cut = f"The model reads the first {chosen.config.max_len:,} of {len(sides['text']):,} tokens."
        sides["text"] = sides["text"][: chosen.config.max_len]
    trace = random_trace(chosen) if read.random else encoded(chosen, **sides)
    shown = inspector.add_run(chosen, trace)
    attention = {}
    for kind, size in page_data.attention_sizes(chosen).items():
        rows, columns = page_data.AXES[kind]
        attention[kind] = size | {"rows": rows, "columns": columns}
    return {
        **shown.names,
        "kind": page_data.kind(chosen),
        **tokens_of(shown, shown.trace["logits"]),
        "attention": attention,
        "unknown": page_data.unknown_in(chosen, sides | read.written_messages),
        "cut": cut,
        "seconds": time.perf_counter() - begin,
    }


def tokens_of(shown: Shown, logits: Tensor) -> dict[str, Any]:
    """Return the tokens of all sides with their predictions, the loss in nats per token, and labels or a number.

    `logits` (1, T, V) or (1, n_labels) are those of the run, or of the run with parts switched off.
    """
    tokens: dict[str, Any] = {"source": [], "target": [], "written": [], "loss": None, "n_scored": 0}
    tokens |= {"labels": None, "number": None}
    if shown.model.is_seq2seq:
        tokens |= _of_pair(shown, logits[0])
    elif shown.model.is_causal_lm:
        tokens |= _of_text(shown, logits[0])
    else:
        tokens |= _of_encoder(shown, logits[0])
    return tokens


def _of_pair(shown: Shown, logits: Tensor) -> dict[str, Any]:
    model, inputs = shown.model, shown.trace.inputs
    ids = inputs["token_ids"][0].tolist()
    source = page_data.tokens(model.source_tokenizer, inputs["source_ids"][0].tolist())
    target = page_data.tokens(model.tokenizer, ids)
    written = page_data.tokens(model.tokenizer, [*ids[1:], model.translator.end_id])
    page_data.add_predictions(target, log_softmax(logits), page_data.vocabulary(model))
    loss = _loss(page_data.add_scores(written, logits))
    for token, same in zip(target[1:], written, strict=False):
        token.update(log_prob=same["log_prob"], rank=same["rank"])
    return {"source": source, "target": target, "written": written, **loss}


def _of_text(shown: Shown, logits: Tensor) -> dict[str, Any]:
    target = page_data.tokens(shown.model.tokenizer, shown.trace.inputs["token_ids"][0].tolist())
    page_data.add_predictions(target, log_softmax(logits), page_data.vocabulary(shown.model))
    return {"target": target, **_loss(page_data.add_scores(target[1:], logits[:-1]))}


def _of_encoder(shown: Shown, logits: Tensor) -> dict[str, Any]:
    """Return the tokens of a text with predictions of tokens or tags, or the labels or the number of the whole text."""
    model, ids = shown.model, shown.trace.inputs["token_ids"][0].tolist()
    source = page_data.tokens(model.tokenizer, ids)
    if page_data.predicts_tokens(model):
        page_data.add_predictions(source, log_softmax(logits), page_data.vocabulary(model))
        unmasked = [i for i, token_id in enumerate(ids) if token_id != model.tokenizer.mask_id]
        page_data.add_scores([source[i] for i in unmasked], logits[unmasked])
    elif model.is_regression:
        return {"source": source, "number": float(logits[0])}
    elif isinstance(predictor := model.predictor, Classifier | Tagger):
        probabilities = predictor.probabilities(logits)
        if probabilities.ndim == 1:
            pairs = zip(model.classes, probabilities.tolist(), strict=True)
            return {"source": source, "labels": [{"name": name, "probability": p} for name, p in pairs]}
        page_data.add_predictions(source, probabilities.log(), model.classes)
    return {"source": source}


def _loss(log_probs: Sequence[float]) -> dict[str, Any]:
    """Return the mean loss of the scored tokens, and their number."""
    if not log_probs:
        return {"loss": None, "n_scored": 0}
    return {"loss": -math.fsum(log_probs) / len(log_probs), "n_scored": len(log_probs)}


@route("GET", "/api/vocabulary")
def vocabulary(inspector: Inspector, model: str | None = None) -> dict[str, Any]:
    """Return all tokens of the vocabulary, by id."""
    chosen = inspector.model_of(model)
    return {"model": page_data.model_id(chosen), "tokens": page_data.vocabulary(chosen)}


N_TEXTS = 200
"""Number of texts from the validation data of a run."""
N_TOKENS = 48
"""Largest number of tokens of each text."""
MAX_TEXTS = 2000
"""Largest number of texts of a request."""


def texts_of(lines: Sequence[str]) -> list[str]:
    """Return the lines that have words; raise `UserError` if there is no such line, or more than `MAX_TEXTS`."""
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise UserError("there is no text: write one per line")
    if len(texts) > MAX_TEXTS:
        raise UserError(f"there are {len(texts):,} texts and a request takes at most {MAX_TEXTS:,}: leave some out")
    return texts


@route("GET", "/api/texts")
def texts(inspector: Inspector, model: str | None = None) -> dict[str, Any]:
    """Return texts of the validation data of the run, one per line; for an imported model, the built-in examples."""
    chosen = inspector.model_of(model)
    lines = [line_of(sides) for sides in validation_texts(chosen, N_TEXTS, N_TOKENS) or usual_texts(chosen)]
    return {"model": page_data.model_id(chosen), "lines": lines}


@route("GET", "/api/progress", is_quick=True)
def progress(inspector: Inspector) -> dict[str, Any]:
    """Return how many runs of a long request are done, and their number; 0 and 0 without such a request."""
    done, total = inspector.progress
    return {"done": done, "total": total}


@route("POST", "/api/stop", is_quick=True)
def stop(inspector: Inspector) -> dict[str, Any]:
    """Stop the latest long request after its current batch; raise `UserError` if other programs use the model."""
    if not inspector.opens_folders:
        raise UserError("other programs use this model, so a page cannot stop its work")
    inspector.is_stopped = True
    return {}


@route("POST", "/api/strongest")
def strongest_texts(
    inspector: Inspector, lines: list[str], units: str, unit: int, model: str | None = None
) -> dict[str, Any]:
    """Return the texts in which a head or a neuron is most active, beside random texts, and the tokens that it moves.

    `raised` and `lowered` have [id, name, effect] of the tokens whose logits the unit moves most. Both are empty, with
    the reason, if its effect on a logit is not known.
    """
    chosen, given = inspector.model_of(model), texts_of(lines)
    name = page_data.model_id(chosen)
    key = hashlib.sha256(json.dumps([name, units, given]).encode()).hexdigest()
    found = inspector.latest("strongest", key, lambda: strongest(chosen, given, units, progress=inspector.reporting()))
    median, high = found.baseline(unit)
    return {
        "model": name,
        "units": units,
        "unit": unit,
        "n_units": found.n_units,
        "n_texts": found.n_texts,
        "median": median,
        "high": high,
        "strengths": [float(strengths[unit]) for strengths in found.sample],
        "texts": [_answer(text) for text in found.texts(unit)],
        **_moved(found, unit),
    }


def _moved(found: Strongest, unit: int) -> dict[str, Any]:
    reason = "this model has no logits of tokens that are a sum over its parts"
    sides: tuple[list[tuple[int, float]], ...] = [], []
    if page_data.is_additive(found.model):
        try:
            sides, reason = found.moved(unit), ""
        except UserError as error:
            reason = str(error)
    names = page_data.vocabulary(found.model)
    raised, lowered = ([[i, names[i], effect] for i, effect in side] for side in sides)
    return {"raised": raised, "lowered": lowered, "reason": reason}


def _answer(text: StrongText) -> dict[str, Any]:
    activity = [x if x == x else None for x in text.activity]
    return {"number": text.number, "tokens": text.tokens, "activity": activity, "strength": text.strength}
