"""Checks of logits: which tokens they depend on, and that padding, other rows and the cache do not change them."""

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.apps.doctor.adapter import Rows
from glassformer.apps.doctor.probe import EXTRA, NotApplicable, Outcome, PaddingSide, Probe, gap, matrices, means

WEIGHT_FACTOR = 1e8
"""Factor for weights. The scores grow by its square, beyond any finite number that a mask might use."""
MAX_ZEROED = 8
"""Largest number of projections that are set to zero, one at a time: those of the first block or two."""


@means("Embedding, output and vocabulary have different sizes: some ids crash, cannot be produced, or do not exist.")
def vocabulary(probe: Probe) -> Outcome:
    """Check that the embedding has a row for every id, and the logits an entry for every row of the embedding."""
    n_rows, vocab_size = [table.num_embeddings for table in probe.tables], probe.interface.vocab_size
    if n_rows and min(n_rows) < vocab_size:
        return False, f"the vocabulary has {vocab_size} ids and the embedding {min(n_rows)} rows"
    expected = min(n_rows, default=vocab_size)
    if probe.n_outputs != expected:
        return False, f"logits of size {probe.n_outputs} for {expected} ids"
    detail = f"{probe.n_outputs} logits for {vocab_size} ids"
    if spare := expected - vocab_size:
        detail += f", {spare} spare"
    return True, detail


@means("Evaluation is random: dropout or another random operation is active in eval mode, so results differ.")
def deterministic(probe: Probe) -> Outcome:
    """Check that two forward passes in eval mode agree, with generators in different states."""
    rows = probe.rows(4)
    second = probe.logits(rows, seed=1)
    return probe.describe(gap(second, probe.logits(rows, seed=0)), "two forward passes in eval mode differ")


@means("The model sees the tokens that it must predict: its training loss is too low, and it cannot generate text.")
def causality(probe: Probe) -> Outcome:
    """Check that tokens from position t on do not affect logits before t, in train and eval mode, with any mask."""
    _need_causal(probe)
    worst = max(_future_leak(probe, train) for train in (False, True))
    return probe.describe(worst, "changed future tokens change earlier logits")


@means("Logits depend on later tokens (or on other rows): the mask is missing, wrong, or applied in the wrong place.")
def causality_by_gradient(probe: Probe) -> Outcome:
    """Check that ∂ logits[t] / ∂ embedding[s] = 0 for s > t, and for every other row."""
    _need_causal(probe)
    rows = probe.rows(2)
    for train in (False, True):
        for t in (0, probe.length // 2, probe.length - 2):
            gradient = embedding_gradient(probe, rows, t, train)  # (B, T)
            leaks = [s for s in range(t + 1, probe.length) if gradient[0, s] > 0]
            if leaks:
                return False, f"the gradient of the logits at {t} reaches the embeddings at {leaks}"
            if gradient[1].any():
                return False, "the gradient of one row's logits reaches another row"
    return True, "no gradient reaches a later embedding"


@means("Visible tokens have no effect: a mask has the wrong polarity, or is causal in an encoder.")
def visibility(probe: Probe) -> Outcome:
    """Check that an encoder's token affects the logits on both sides of it, and a source token affects all logits."""
    if probe.interface.kind == "decoder":
        raise NotApplicable("a decoder must not see later tokens")
    rows = probe.rows(2)
    for variant in _mask_variants(probe, rows):
        before = probe.logits(variant)
        for seen, seer, changed in _sights(probe, variant):
            change = gap(probe.logits(changed)[:, seer], before[:, seer])
            # A long recurrence with small weights has a small effect: the bound is far below the usual tolerance.
            if not probe.tolerance**2 < change < float("inf"):
                return False, f"changing the token at {seen} does not change the logits at position {seer}"
    return True, "every changed token changes the logits that depend on it"


@means("The mask is a finite number (-1e4, -1e9) that large scores exceed: mask with -inf or a bool mask.")
def large_scores(probe: Probe) -> Outcome:
    """Check that masks still hide the same tokens with weights × 1e8."""

    def enlarge(module: nn.Module) -> None:
        for weight in matrices(module).values():
            weight.mul_(WEIGHT_FACTOR)

    large = probe.changed(enlarge)
    if not large.logits(large.masked(large.rows(1))).isfinite().all():
        raise NotApplicable(f"weights × {WEIGHT_FACTOR:.0e} overflow {large.dtype}, with or without a mask")
    worst = _mask_leak(large)
    return large.describe(worst, f"with weights × {WEIGHT_FACTOR:.0e}, hidden tokens change the logits")


@means("A real score of exactly 0 is treated as masked, or hidden keys count: build the mask from positions.")
def zero_scores(probe: Probe) -> Outcome:
    """Check that masks still hide the same tokens with a projection of zeros, which makes scores exactly 0."""
    unbiased = probe.changed(_zero_biases)
    parts = _projections(unbiased.module)[:MAX_ZEROED]
    if not parts:
        raise NotApplicable("the module has no weight matrix except its embeddings")
    worst = 0.0
    for part in parts:
        with torch.no_grad():
            kept = part.clone()
            part.zero_()
            worst = max(worst, _mask_leak(unbiased))
            part.copy_(kept)
    return probe.describe(worst, "with a projection of zeros, hidden tokens change the logits")


def embedding_gradient(probe: Probe, rows: Rows, t: int, train: bool) -> Tensor:
    """Return, at each embedding, the size of the gradient of a random sum of row 0's logits at `t`: (B, T)."""
    if not probe.tables:
        raise NotApplicable("no nn.Embedding of the module receives the token ids, so the gradient cannot be measured")
    leaves: list[Tensor] = []

    def as_leaf(_: nn.Module, __: object, output: Tensor) -> Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[-1]

    weights = torch.randn(probe.n_outputs, generator=probe.generator).to(probe.device, probe.dtype)
    with contextlib.ExitStack() as hooks, probe.mode(train):
        hooks.callback(probe.module.zero_grad)
        for table in probe.tables:
            hooks.enter_context(table.register_forward_hook(as_leaf))
        logits = probe.logits_with_grad(rows)
        if not logits.requires_grad:
            raise NotApplicable("the logits have no gradient")
        (logits[0, t] @ weights).backward()
    gradients = [leaf.grad for leaf in leaves if leaf.grad is not None and leaf.shape[:2] == rows.token_ids.shape]
    if not gradients:
        raise NotApplicable("no gradient reaches the token embeddings")
    return torch.stack([gradient.abs().amax(-1) for gradient in gradients]).sum(0)


def _need_causal(probe: Probe) -> None:
    if probe.interface.kind == "encoder":
        raise NotApplicable("an encoder sees the whole input")


def _mask_variants(probe: Probe, rows: Rows) -> Iterator[Rows]:
    """Yield the rows without a mask and with a mask that hides nothing, or only the one that the module accepts."""
    yield probe.plain(rows)
    if probe.mask_use == "optional":
        yield probe.masked(rows)


def _future_leak(probe: Probe, train: bool) -> float:
    """Return the largest relative change of logits before t when every token from t on changes."""
    rows = probe.rows(4)
    variants = list(_mask_variants(probe, rows))
    if probe.mask_use != "none":
        variants.append(probe.uneven(rows, probe.length))
    worst = 0.0
    for variant in variants:
        before = probe.logits(variant, train)
        for t in (1, probe.length // 2, probe.length - 1):
            token_ids = variant.token_ids.clone()
            token_ids[:, t:] = probe.other(token_ids[:, t:])
            after = probe.logits(replace(variant, token_ids=token_ids), train)
            real = variant.real[:, :t]
            worst = max(worst, gap(after[:, :t][real], before[:, :t][real]))
    return worst


def _mask_leak(probe: Probe) -> float:
    """Return the largest relative change of logits after hidden tokens, in the future or in padding, have changed."""
    rows, middle = probe.rows(4), probe.length // 2
    padded = rows if probe.mask_use == "none" else probe.uneven(rows, probe.length)
    before = probe.logits(padded)
    token_ids = torch.where(padded.real, padded.token_ids, probe.other(padded.token_ids))
    after = probe.logits(replace(padded, token_ids=token_ids))
    worst = gap(after[padded.real], before[padded.real])
    if probe.interface.kind != "encoder":
        token_ids[:, middle:] = probe.other(token_ids[:, middle:])
        after = probe.logits(replace(padded, token_ids=token_ids))
        worst = max(worst, gap(after[:, :middle], before[:, :middle]))
    return worst


def _sights(probe: Probe, rows: Rows) -> Iterator[tuple[int, int, Rows]]:
    """Yield (changed position, position whose logits must change, the rows with that change)."""
    last = probe.length - 1
    if rows.source_ids is not None:
        n_source = rows.source_ids.shape[1]
        for seen, seer in ((0, 0), (n_source - 1, 0), (0, last), (n_source - 1, last)):
            source_ids = rows.source_ids.clone()
            source_ids[:, seen] = probe.other(source_ids[:, seen], probe.source_vocab_size)
            yield seen, seer, replace(rows, source_ids=source_ids)
        return
    for seen, seer in ((0, 1), (1, 0), (last - 1, last), (last, last - 1)):
        token_ids = rows.token_ids.clone()
        token_ids[:, seen] = probe.other(token_ids[:, seen])
        yield seen, seer, replace(rows, token_ids=token_ids)


def _zero_biases(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()


def _projections(module: nn.Module) -> list[Tensor]:
    """Return views of the matrices. A matrix that stacks queries, keys and values gives three views."""
    parts: list[Tensor] = []
    for weight in matrices(module).values():
        is_stacked = weight.dim() == 2 and weight.shape[0] == 3 * weight.shape[1]
        parts += weight.detach().chunk(3 if is_stacked else 1)
    return parts


@means("Padding after a text changes its logits: padded keys are not masked, or masked wrongly.")
def padding_right(probe: Probe) -> Outcome:
    """Check that real tokens' logits do not depend on the amount or content of padding after target and source."""
    return _padding(probe, "right")


@means("Left padding changes the logits of a prompt: mask padded keys, and count positions by the mask.")
def padding_left(probe: Probe) -> Outcome:
    """Check that real tokens' logits do not depend on the amount or content of padding before them."""
    if probe.interface.kind != "decoder":
        raise NotApplicable("left padding is used only for the prompts of a decoder")
    return _padding(probe, "left")


def _padding(probe: Probe, side: PaddingSide) -> Outcome:
    probe.need_mask()
    rows = probe.rows(3)
    single = probe.alone(probe.uneven(rows, probe.length, side))
    reference = torch.cat([probe.logits(row)[0] for row in single])
    worst = 0.0
    for width in (probe.length, probe.interface.max_len):
        for random_padding in (False, True):
            padded = probe.uneven(rows, width, side, random_padding)
            worst = max(worst, gap(probe.logits(padded)[padded.real], reference))
    return probe.describe(worst, f"padding on the {side} changes the logits of real tokens")


@means("A query that may attend to no key gives NaN, and one such row makes the whole gradient NaN.")
def empty_rows(probe: Probe) -> Outcome:
    """Check that logits and gradients stay finite with a row that is all padding."""
    probe.need_mask()
    side: PaddingSide = "left" if probe.interface.kind == "decoder" else "right"
    rows = probe.uneven(probe.rows(3), probe.interface.max_len, side)
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


@means("Generation with the cache gives other logits than the forward pass that was trained.")
@torch.no_grad()
def cache(probe: Probe) -> Outcome:
    """Check cached steps against one forward pass: token by token, after a prefill, reordered, left-padded."""
    start: Any = getattr(probe.module, "start", None)
    step: Any = getattr(probe.module, "step", None)
    if probe.interface.kind == "encoder" or not (callable(start) and callable(step)):
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
    return start(len(rows.token_ids), probe.interface.max_len, *source)


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
