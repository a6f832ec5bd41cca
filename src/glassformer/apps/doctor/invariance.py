"""Checks that padding, the other rows of a batch, repetition and the cache do not change logits."""

import inspect
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from glassformer.apps.doctor.adapter import Rows
from glassformer.apps.doctor.probe import EXTRA, NotApplicable, Outcome, Probe, gap, means
from glassformer.tokenization.padding import PaddingSide


@means("Embedding, output and vocabulary have different sizes: some ids crash, cannot be produced, or do not exist.")
def vocabulary(probe: Probe) -> Outcome:
    """Check that the embedding has a row for every id, and the logits an entry for every row of the embedding."""
    n_rows = [table.num_embeddings for table in probe.tables]
    if n_rows and min(n_rows) < probe.vocab_size:
        return False, f"the vocabulary has {probe.vocab_size} ids and the embedding {min(n_rows)} rows"
    expected = min(n_rows, default=probe.vocab_size)
    if probe.n_outputs != expected:
        return False, f"logits of size {probe.n_outputs} for {expected} ids"
    detail = f"{probe.n_outputs} logits for {probe.vocab_size} ids"
    if spare := expected - probe.vocab_size:
        detail += f", {spare} spare"
    return True, detail


@means("Evaluation is random: dropout or another random operation is active in eval mode, so results differ.")
def deterministic(probe: Probe) -> Outcome:
    """Check that two forward passes in eval mode agree, with generators in different states."""
    rows = probe.rows(4)
    second = probe.logits(rows, seed=1)
    return probe.describe(gap(second, probe.logits(rows, seed=0)), "two forward passes in eval mode differ")


@means("The output for a text depends on the other rows of its batch: an operation normalises or mixes across rows.")
def batch(probe: Probe) -> Outcome:
    """Check that a row's logits are the same alone and in a batch, and independent of other rows in both modes."""
    rows = probe.rows(4)
    together = probe.logits(rows)
    worst = max(gap(probe.logits(rows.take(slice(i, i + 1)))[0], together[i]) for i in range(4))
    company = rows.token_ids.clone()
    company[1:] = probe.other(company[1:])
    for train in (False, True):
        changed = probe.logits(replace(rows, token_ids=company), train)
        worst = max(worst, gap(changed[0], probe.logits(rows, train)[0]))
    return probe.describe(worst, "other rows of the batch change a row's logits")


@means("Padding after a text changes its logits: padded keys are not masked, or masked wrongly.")
def padding_right(probe: Probe) -> Outcome:
    """Check that real tokens' logits do not depend on amount and content of padding after target and source."""
    return _padding(probe, "right")


@means("Left padding changes the logits of a prompt: mask padded keys, and count positions by the mask.")
def padding_left(probe: Probe) -> Outcome:
    """Check that real tokens' logits do not depend on amount and content of padding before them."""
    if probe.kind != "decoder":
        raise NotApplicable("left padding is used only for the prompts of a decoder")
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


@means("A query that may attend to no key gives NaN, and one such row makes the whole gradient NaN.")
def empty_rows(probe: Probe) -> Outcome:
    """Check that logits and gradients stay finite with a row that is all padding."""
    probe.need_mask()
    side: PaddingSide = "left" if probe.kind == "decoder" else "right"
    rows = probe.uneven(probe.rows(3), probe.max_len, side)
    for mask in (rows.attention_mask, rows.source_attention_mask):
        if mask is not None:
            mask[1] = False
    if not probe.logits(rows).isfinite().all():
        return False, "a row of padding gives NaN or Inf logits"
    total, _ = probe.loss_of(rows)
    total.backward()
    bad = [n for n, p in probe.module.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
    probe.module.zero_grad()
    if bad:
        return False, f"a row of padding gives NaN or Inf gradients in {bad[0]} and {len(bad) - 1} other parameters"
    return True, "logits and gradients are finite with a row of padding in the batch"


@means("Generation with the cache gives other logits than the forward pass that was trained.")
@torch.no_grad()
def cache(probe: Probe) -> Outcome:
    """Check cached steps against one forward pass: token by token, after a prefill, reordered, left-padded."""
    start: Any = getattr(probe.module, "start", None)
    step: Any = getattr(probe.module, "step", None)
    if probe.kind == "encoder" or not (callable(start) and callable(step)):
        raise NotApplicable("the module has no start and step methods for generation")
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
    """Compare left-padded prompts, continued in a batch, with each row alone without a cache; return the gap."""
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
