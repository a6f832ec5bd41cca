"""What must change nothing: padding, the rest of the batch, a second look, a cache."""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.doctor.adapter import Rows
from glassformer.doctor.probe import EXTRA, NotApplicable, Outcome, Probe, gap, means
from glassformer.tokenization.padding import PaddingSide


@means("Embedding, output and vocabulary count differently: some ids crash, or cannot be produced, or do not exist.")
def vocabulary(probe: Probe) -> Outcome:
    """The embedding has a row for every id, and the logits have one entry for every row of the embedding."""
    n_rows = [table.num_embeddings for table in probe.tables]
    if n_rows and min(n_rows) < probe.vocab_size:
        return False, f"the vocabulary has {probe.vocab_size} ids and the embedding {min(n_rows)} rows"
    expected = min(n_rows, default=probe.vocab_size)
    if probe.n_outputs != expected:
        return False, f"logits of size {probe.n_outputs} for {expected} ids"
    spare = expected - probe.vocab_size
    return True, f"{probe.n_outputs} logits for {probe.vocab_size} ids" + (f", {spare} spare" if spare else "")


@means("Evaluation is random: dropout (or another draw) is on in eval mode, so no result can be repeated.")
def deterministic(probe: Probe) -> Outcome:
    """Two forwards in eval mode, with generators in different states, agree."""
    rows = probe.rows(4)
    second = probe.logits(rows, seed=1)
    return probe.describe(gap(second, probe.logits(rows, seed=0)), "two forwards in eval mode differ")


@means("What a text gets depends on its neighbours in the batch: something normalises or mixes across rows.")
def batch(probe: Probe) -> Outcome:
    """A row's logits are the same alone and in company, and do not depend on the company, in train mode neither."""
    rows = probe.rows(4)
    together = probe.logits(rows)
    worst = max(gap(probe.logits(rows.take(slice(i, i + 1)))[0], together[i]) for i in range(4))
    company = rows.token_ids.clone()
    company[1:] = probe.other(company[1:])
    for train in (False, True):
        changed = probe.logits(replace(rows, token_ids=company), train)
        worst = max(worst, gap(changed[0], probe.logits(rows, train)[0]))
    return probe.describe(worst, "other rows of the batch change a row's logits")


@means("Padding after a text changes what the model says of it: keys of padding are not masked, or masked wrongly.")
def padding_right(probe: Probe) -> Outcome:
    """Real tokens' logits do not depend on the amount and content of padding after them, and of the source's."""
    return _padding(probe, "right")


@means("A prompt in a left-padded batch reads unlike the prompt alone: mask padded keys, count positions by the mask.")
def padding_left(probe: Probe) -> Outcome:
    """Real tokens' logits do not depend on the amount and content of padding before them."""
    if probe.kind != "decoder":
        raise NotApplicable("only prompts of a decoder are padded on the left")
    return _padding(probe, "left")


def _padding(probe: Probe, side: PaddingSide) -> Outcome:
    probe.need_mask()
    rows = probe.rows(3)
    single = probe.alone(probe.uneven(rows, probe.length, side))
    reference = torch.cat([probe.logits(row)[0] for row in single])
    worst = 0.0
    for width in (probe.length, probe.max_len):
        for random_padding in (False, True):
            padded = probe.uneven(rows, width, side, random_padding)
            worst = max(worst, gap(probe.logits(padded)[padded.real], reference))
    return probe.describe(worst, f"padding on the {side} changes the logits of real tokens")


@means("A query that may attend to nothing gives NaN, and one such row destroys the whole gradient.")
def empty_rows(probe: Probe) -> Outcome:
    """A row that is all padding leaves logits and gradients finite."""
    probe.need_mask()
    rows = probe.uneven(probe.rows(3), probe.max_len, "left" if probe.kind == "decoder" else "right")
    masks = [None if mask is None else mask.clone() for mask in (rows.attention_mask, rows.source_attention_mask)]
    for mask in masks:
        if mask is not None:
            mask[1] = False
    rows = replace(rows, attention_mask=masks[0], source_attention_mask=masks[1])
    if not probe.logits(rows).isfinite().all():
        return False, "a row of padding gives logits that are not finite"
    total, _ = probe.loss_of(rows)
    total.backward()
    bad = [n for n, p in probe.module.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    probe.module.zero_grad()
    if bad:
        return False, f"a row of padding gives gradients that are not finite, in {bad[0]} and {len(bad) - 1} more"
    return True, "logits and gradients are finite beside a row of padding"


@means("Generation with the cache computes another function than the one that was trained.")
@torch.no_grad()
def cache(probe: Probe) -> Outcome:
    """`start` and `step` give the logits of one forward: token by token, after a prefill, reordered, unevenly."""
    start: Any = getattr(probe.module, "start", None)
    step: Any = getattr(probe.module, "step", None)
    if probe.kind == "encoder" or not (callable(start) and callable(step)):
        raise NotApplicable("the module has no start and step to generate with")
    rows = probe.rows(3)
    worst, ways = 0.0, ["token by token", "after a prefill"]
    full = probe.logits(rows)
    for n_prefill in (1, probe.length // 2):
        logits, state = step(rows.token_ids[:, :n_prefill], _start(probe, rows))
        pieces = [logits]
        for t in range(n_prefill, probe.length):
            logits, state = step(rows.token_ids[:, t : t + 1], state)
            pieces.append(logits)
        worst = max(worst, gap(torch.cat(pieces, 1), full))
    if hasattr(state, "select"):
        ways.append("reordered")
        order = torch.tensor([2, 0, 0], device=probe.device)
        _, state = step(rows.token_ids[:, :-1], _start(probe, rows))
        logits, _ = step(rows.token_ids[order, -1:], state.select(order))
        worst = max(worst, gap(logits[:, 0], full[order, -1]))
    if "attention_mask" in inspect.signature(step).parameters:
        ways.append("uneven prompts")
        worst = max(worst, _uneven_prompts(probe, rows, step))
    return probe.describe(worst, f"cached logits ({', '.join(ways)}) differ from uncached ones")


def _start(probe: Probe, rows: Rows) -> Any:
    start: Any = probe.module.start
    source = () if rows.source_ids is None else (rows.source_ids, rows.source_attention_mask)
    return start(len(rows.token_ids), probe.max_len, *source)


def _uneven_prompts(probe: Probe, rows: Rows, step: Any) -> float:
    """Prompts padded on the left and continued together, against each row alone and uncached."""
    prompts = probe.uneven(rows, probe.length, "left")
    continuation = probe.draw(len(rows.token_ids), EXTRA)
    logits, state = step(prompts.token_ids, _start(probe, prompts), prompts.attention_mask)
    pieces: list[Tensor] = [logits]
    for t in range(EXTRA):
        logits, state = step(continuation[:, t : t + 1], state)
        pieces.append(logits)
    cached = torch.cat(pieces, 1)  # (B, T + EXTRA, V)
    worst = 0.0
    for i, prompt in enumerate(probe.alone(prompts)):
        n_tokens = prompt.token_ids.shape[1] + EXTRA
        token_ids = torch.cat((prompt.token_ids, continuation[i : i + 1]), 1)
        alone = probe.plain(Rows(token_ids, None, prompt.source_ids))
        worst = max(worst, gap(cached[i, -n_tokens:], probe.logits(alone)[0]))
    return worst
