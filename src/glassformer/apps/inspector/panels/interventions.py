"""Interventions: predictions without parts of a model, and with parts of a run over another text."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.inspector import page_data
from glassformer.apps.inspector.app import route
from glassformer.apps.inspector.inspector import MAX_SECONDS, Inspector, Shown
from glassformer.apps.inspector.panels.tokens import texts_of, tokens_of
from glassformer.common.errors import Progress, UserError
from glassformer.data.batching import NOT_SCORED
from glassformer.inference.fill import MASK
from glassformer.inspection.ablation import Effects, effects_of_texts, mean_effects
from glassformer.inspection.ablation import effects as effects_of
from glassformer.inspection.attention_maps import checked
from glassformer.inspection.capture import capture
from glassformer.inspection.measures import Measure, logit_measure, measure_of, predicts_next_token
from glassformer.inspection.patching import (
    PARTS,
    Patching,
    Restored,
    likely_heads,
    patch_pairs,
    patching_of,
    rank_correlation,
)
from glassformer.models.transformer import Transformer
from glassformer.tasks.trained_model import TrainedModel


@dataclass(frozen=True)
class Asked:
    """Measure of a request: a logit (`logit_measure`), −log p of the prediction at a position, or `measure_of`."""

    position: int | None = None
    logit: bool = False
    token: str = ""
    against: str = ""

    def of(self, shown: Shown) -> Measure:
        """Return the measure for a run."""
        model, inputs = shown.model, shown.trace.inputs
        if self.logit:
            return logit_measure(model, inputs, self.token or None, self.against or None, self.position)
        if self.position is None:
            return measure_of(model, inputs)
        if not predicts_next_token(model.config):
            raise UserError(f"{model.name} predicts no next token: leave out the position")
        predicted = shown.trace["logits"][0].argmax(dim=-1).to(inputs["token_ids"].device)  # (T,)
        labels = torch.full_like(predicted, NOT_SCORED)
        labels[self.position] = predicted[checked("position", self.position, len(predicted))]
        return Measure("loss", labels)


@route("POST", "/api/run/{run}/ablate")
def ablate(inspector: Inspector, run: str, off: str, asked: Asked, mean: bool = False) -> dict[str, Any]:
    """Return the measure and the predictions before and after parts are switched off; see `ablation.ablate`.

    `off` has names separated by commas, such as `decoder.0.head.3,decoder.1.feed_forward`.
    """
    shown = inspector.run_of(run)
    measure = asked.of(shown)
    outcomes = {
        side: {"loss": float(measure(logits)[0]), **_predictions(shown, logits)}
        for side, logits in (("before", shown.trace["logits"]), ("after", shown.logits(off, mean)))
    }
    return {**shown.names, **page_data.measure_names(shown.model, measure), **outcomes}


def _predictions(shown: Shown, logits: Tensor) -> dict[str, Any]:
    """Return the log-probability of the token of each position, and the best tokens; or labels, or a number."""
    run = tokens_of(shown, logits)
    read = run["target"] or run["source"]
    tokens = zip(run["written"] or read, read, strict=True)
    positions = [{"log_prob": token["log_prob"], "top": before["top"][:5]} for token, before in tokens]
    return {"positions": positions, "labels": run["labels"], "number": run["number"]}


@route("GET", "/api/run/{run}/effects")
def effects(inspector: Inspector, run: str, asked: Asked, mean: bool = False) -> dict[str, Any]:
    """Return the change of the measure for each head, feed-forward and layer, one at a time, on the text of a run.

    `mean` replaces a part by its mean over the positions, in place of zero.
    """
    shown = inspector.run_of(run)
    inputs, measure = shown.trace.inputs, asked.of(shown)
    report = inspector.reporting(MAX_SECONDS)
    found = effects_of(shown.model.network, inputs, measure, means=shown.means(mean), progress=report)
    measured = mean_effects([found])
    return shown.names | _answer(shown.model, measured) | page_data.measure_names(shown.model, measure)


MOST = 30
"""Largest number of heads that `likely` switches off."""


@route("GET", "/api/run/{run}/likely")
def likely(inspector: Inspector, run: str) -> dict[str, Any]:
    """Return the change of the loss for the heads that matter most by the estimate of `likely_heads`.

    Each is switched off alone. `n_heads` is the number of all heads.
    """
    shown = inspector.run_of(run)
    network, inputs, measure = shown.model.network, shown.trace.inputs, measure_of(shown.model, shown.trace.inputs)
    if measure.name != "loss":
        raise UserError(f"{shown.model.name} has no loss on this text: measure all parts")
    heads = likely_heads(network, inputs, measure)
    measured = effects_of(network, inputs, measure, heads[:MOST], progress=inspector.reporting(MAX_SECONDS))
    changes = [{**asdict(part), "effect": change} for part, change in measured.changes.items()]
    return shown.names | {"measure": measure.name, "heads": changes, "n_heads": len(heads)}


@route("POST", "/api/effects")
def effects_of_set(
    inspector: Inspector, lines: list[str], mean: bool = False, model: str | None = None
) -> dict[str, Any]:
    """Return the mean change of the measure over texts, one per line, with its spread and its baseline."""
    chosen, texts = inspector.model_of(model), texts_of(lines)
    measured = effects_of_texts(chosen, texts, by_mean=mean, progress=inspector.reporting())
    return {"model": page_data.model_id(chosen)} | _answer(chosen, measured)


def _answer(model: TrainedModel, measured: Effects) -> dict[str, Any]:
    """Return the mean changes by kind and layer, and each change with its spread beside its baseline."""
    kinds = list(page_data.attention_sizes(model))
    stacks = [kind for kind in kinds if kind != "cross"]
    return {
        "measure": measured.measure,
        "loss": measured.before,
        "n_texts": measured.n_texts,
        **{kind: measured.heads(kind) for kind in kinds},
        "feed_forward": {stack: measured.feed_forwards(stack) for stack in stacks},
        "layers": {stack: measured.layers(stack) for stack in stacks},
        "beside": {str(part): page_data.beside(one) for part, one in measured.beside_others().items()},
    }


MAX_PAIRS = 200
"""Largest number of pairs of a request."""


@dataclass(frozen=True)
class Texts:
    """Two texts with their answers; an encoder-decoder has two sources and one target prefix."""

    clean: str
    corrupted: str
    answer: str | None = None
    wrong: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class More:
    """More pairs of texts, one per line; line i of both lists is a pair.

    An answer may follow its text after a tab. The default answer is the prediction.
    """

    more_clean: list[str] = field(default_factory=list)
    more_corrupted: list[str] = field(default_factory=list)


@route("POST", "/api/patch")
def patch(
    inspector: Inspector,
    texts: Texts,
    more: More,
    stack: str | None = None,
    parts: str = "positions",
    model: str | None = None,
) -> dict[str, Any]:
    """Return the share of the logit difference that each place of the clean run restores, exactly and by gradients.

    `stack` is the encoder or the decoder, by default the one that produces the output. `parts` are positions of the
    residual stream, or heads. With more pairs, the shares are means over all pairs.
    """
    # The pairs of texts
    chosen = inspector.model_of(model)
    if parts not in PARTS:
        raise UserError(f"parts: expected positions or heads, got {parts!r:.40}")
    if stack not in (None, "encoder", "decoder"):
        raise UserError(f"stack: expected encoder or decoder, got {stack!r:.40}")
    report = inspector.reporting()
    first, *_ = pairs = _pairs(chosen, texts, more, report)
    network = chosen.network
    assert isinstance(network, Transformer)  # `patching_of`
    # Patch each part of the stack, exactly and by gradients
    which = page_data.kind_named(stack or network.config.head_stack_name, "stack")
    exact, estimated = patch_pairs(network, pairs, parts, which, report)
    clean_tokens, corrupted_tokens = first.tokens[which]
    answer, wrong = chosen.tokenizer.tokens([first.answer, first.wrong])
    target = None
    if chosen.is_seq2seq:
        target, _ = first.tokens["decoder"]
    return {
        "model": page_data.model_id(chosen),
        "unknown": page_data.unknown_in(chosen, asdict(texts)),
        "stack": which,
        "parts": parts,
        "n_texts": exact.n_texts,
        "tokens_clean": clean_tokens,
        "tokens_corrupted": corrupted_tokens,
        "columns": exact.columns,
        "target": target,
        "layers": exact.layers,
        "map": exact.shares.tolist(),
        "estimate": estimated.shares.tolist(),
        **page_data.without_nan({"correlation": rank_correlation(exact, estimated)}),
        "beside": _beside(exact),
        "clean": exact.clean,
        "corrupted": exact.corrupted,
        "answer": answer,
        "wrong": wrong,
    }


N_CHANGED, N_EACH = 8, 3
"""Largest number of words or tokens that are changed, and of replacements of each."""


@route("POST", "/api/changed")
def changed(inspector: Inspector, text: str, model: str | None = None) -> dict[str, Any]:
    """Return a text with another of its words in place of one word, such that the model predicts something else.

    The two texts can be patched. If no word of a short text does it, letters are exchanged; then tokens of a decoder's
    text are replaced (`_other_tokens`). `changed` is None if none of the `n_tried` texts has the same number of tokens
    and another prediction.
    """
    chosen = inspector.model_of(model)
    masks = {i for mask in re.finditer(re.escape(MASK), text) for i in range(*mask.span())}
    words, letters = (
        [found for found in re.finditer(pattern, text) if found.start() not in masks] for pattern in (r"\w+", r"\w")
    )
    exchanges = list(_exchanges(words, keeps_last=chosen.is_causal_lm))
    if len(words) < 3:
        exchanges += _exchanges(letters, keeps_last=chosen.is_causal_lm)
    texts = [text[: part.start()] + other + text[part.end() :] for part, other in exchanges]
    if chosen.is_causal_lm:
        texts += _other_tokens(chosen, text)
    texts, report = list(dict.fromkeys(texts)), inspector.reporting()
    answer = {"model": page_data.model_id(chosen), "changed": None, "n_tried": len(texts)}
    for n_tried, found in enumerate(texts):
        report(n_tried, len(texts))
        with suppress(UserError):  # another number of tokens, or the same prediction
            patching_of(chosen, text, found)
            answer |= {"changed": found, "n_tried": n_tried + 1}
            break
    report(len(texts), len(texts))
    return answer


def _exchanges(words: Sequence[re.Match[str]], keeps_last: bool) -> Iterator[tuple[re.Match[str], str]]:
    """Yield words and their replacements: names first, then repeated words, then the latest words.

    The last word of a decoder's text stays: all positions before it would have no effect. A replacement is of the same
    kind, a name or not, and of about the same length, where the text has one.
    """
    texts = [word[0] for word in words]

    def rank(word: re.Match[str]) -> tuple[bool, bool, int]:
        return not _is_name(word[0]), texts.count(word[0]) == 1, -word.start()

    for word in sorted(words[: -1 if keeps_last else None], key=rank)[:N_CHANGED]:
        others = [other for other in dict.fromkeys(texts) if other != word[0]]
        others.sort(key=lambda other: (_is_name(other) != _is_name(word[0]), abs(len(other) - len(word[0]))))
        yield from ((word, other) for other in others[:N_EACH])


def _other_tokens(model: TrainedModel, text: str) -> Iterator[str]:
    """Yield a decoder's text with a token that the model also expects in place of another: the latest tokens first.

    The last token stays. First a word is replaced by a word.
    """
    ids = model.text_ids(text)
    logits = capture(model, ids, names=["logits"])["logits"][0]  # (T, V): row i predicts token i + 1
    expected = logits.topk(min(4 * N_EACH, logits.shape[1])).indices.tolist()
    is_word = [token.strip().isalnum() for token in page_data.vocabulary(model)]
    for is_alike in (True, False):
        for i in range(len(ids) - 2, max(0, len(ids) - 2 - 2 * N_CHANGED), -1):
            others = [j for j in expected[i - 1] if j != ids[i] and (is_word[j] == is_word[ids[i]]) == is_alike]
            yield from (model.tokenizer.decode([*ids[:i], other, *ids[i + 1 :]]) for other in others[:N_EACH])


def _is_name(word: str) -> bool:
    return word[0].isupper()


def _pairs(model: TrainedModel, texts: Texts, more: More, report: Progress) -> list[Patching]:
    """Return the runs of all pairs of texts; `report` ends work that takes too long."""
    clean, corrupted = more.more_clean, more.more_corrupted
    if len(clean) != len(corrupted):
        raise UserError(f"there are {len(clean)} more clean texts and {len(corrupted)} corrupted ones: give pairs")
    if len(clean) > MAX_PAIRS:
        raise UserError(f"there are {len(clean)} more pairs and a request takes at most {MAX_PAIRS}: leave some out")
    answers = texts.answer or None, texts.wrong or None
    first = patching_of(model, texts.clean, texts.corrupted, *answers, target=texts.target or None)
    pairs = [first]
    for lines in zip(clean, corrupted, strict=True):
        report(0, 1 + len(clean))
        pairs.append(_pair_of_lines(model, 1 + len(pairs), *lines))
    return pairs


def _pair_of_lines(model: TrainedModel, number: int, clean: str, corrupted: str) -> Patching:
    """Return the runs of a pair of lines; a text may be followed by a tab and its answer."""
    (clean, _, answer), (corrupted, _, wrong) = clean.partition("\t"), corrupted.partition("\t")
    try:
        return patching_of(model, clean, corrupted, answer or None, wrong or None)
    except UserError as error:
        raise UserError(f"pair {number}: {error}") from error


def _beside(restored: Restored) -> list[list[dict[str, Any]]]:
    """Return the share of each cell with its spread, beside the mean of the other cells."""
    cells = {cell: page_data.beside(one) for cell, one in restored.beside_others().items()}
    n_rows, n_columns = restored.shares.shape
    return [[cells[i, j] for j in range(n_columns)] for i in range(n_rows)]
