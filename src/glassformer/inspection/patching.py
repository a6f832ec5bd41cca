"""Activation patching: copy an activation of a clean run into a corrupted run, and measure what it restores.

Two texts of equal length have different answers. For an encoder-decoder, two sources have one common target prefix.
The metric of a run is the logit difference m = logit(answer) − logit(wrong) at one position of the output. With an
activation of the clean run in the corrupted run, the restored share is

    (m_patched − m_corrupted) / (m_clean − m_corrupted),

0 = as corrupted, 1 = as clean. Meng (2022, section 2.1) restores hidden states of a clean run in this way (causal
tracing; the corruption there is noise on the embeddings). Wang (2022) uses the logit difference of two answers.

`patch_residual` copies the residual stream of one layer at one position, of the encoder or of the decoder.
`patch_heads` copies the context of one head at all positions. Each position or head is one row of a batch.

Attribution patching (`estimate`) estimates all shares at once. Patching a place adds d = x_clean − x_corrupted to it.
To first order in d, the metric changes by its gradient (Nanda 2023, "Attribution Patching: Activation Patching At
Industrial Scale"):

    share ≈ Σ d · ∂m/∂x (corrupted run) / (m_clean − m_corrupted).

The estimate takes two forward passes and one backward pass. Exact patching takes one forward pass per place. The
estimate is good where d is small. It is poor for the residual stream, where d is large and the norms are not linear.
`rank_correlation` compares the estimated with the exact shares (Spearman 1904).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

import torch
from torch import Tensor, nn

from glassformer.common import notebook
from glassformer.common.errors import Progress, UserError, quoted
from glassformer.evaluation.labels import ranks
from glassformer.inspection.ablation import Part, all_parts, changed_outputs, context_name
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.capture import Hook, Trace, encoded, model_hooks
from glassformer.inspection.lens import residual_names, token_transformer
from glassformer.inspection.measures import Beside, Measure, answer_id, answer_position, beside_others
from glassformer.models.devices import evaluation_mode
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import at_least_fp32
from glassformer.tasks.trained_model import TrainedModel

Parts = Literal["positions", "heads"]
"""Activations to copy: the residual stream at each position, or the context of each head."""
PARTS: tuple[Parts, ...] = ("positions", "heads")


@dataclass(frozen=True)
class Patching:
    """Two runs with inputs of equal shape, and the metric: logit(answer) − logit(wrong) at a position of the output."""

    clean: dict[str, Tensor]
    """Arguments of the network, one row."""
    corrupted: dict[str, Tensor]
    answer: int
    """Id of the token that the clean run predicts."""
    wrong: int
    """Id of the token that the corrupted run predicts."""
    position: int = -1
    """Position of the logits; -1 is the last."""
    tokens: Mapping[Kind, tuple[list[str], list[str]]] = field(default_factory=dict)
    """Input tokens of the clean and of the corrupted run for each stack; may be empty."""

    def __post_init__(self) -> None:
        if self.answer == self.wrong:
            raise UserError(f"the answer and the wrong answer are both token {self.answer}: give two different tokens")
        shapes = [{name: tuple(x.shape) for name, x in run.items()} for run in (self.clean, self.corrupted)]
        if shapes[0] != shapes[1]:
            raise UserError(f"patching needs two runs of equal shapes, got {shapes[0]} and {shapes[1]}")
        if all(torch.equal(x, self.corrupted[name]) for name, x in self.clean.items()):
            raise UserError("the clean and the corrupted run have equal tokens: change at least one")

    def metric(self, logits: Tensor) -> Tensor:
        """Return logit(answer) − logit(wrong) of each row: (R, T, V) → (R,)."""
        at = at_least_fp32(logits[:, self.position])  # (R, V)
        return at[:, self.answer] - at[:, self.wrong]

    def labels(self, stack: Kind) -> list[str]:
        """Return the token of each position of a stack; where the runs differ, `clean/corrupted`."""
        clean, corrupted = self.tokens.get(stack, ([], []))
        return [x if x == y else f"{x}/{y}" for x, y in zip(clean, corrupted, strict=True)]


@dataclass(frozen=True)
class Restored:
    """Result of patching: the restored share for each layer and position, or for each layer and head."""

    layers: list[str]
    shares: Tensor
    """(L, T) or (L, H); 0 = as corrupted, 1 = as clean."""
    clean: float
    """Logit difference of the clean run."""
    corrupted: float
    """Logit difference of the corrupted run."""
    columns: list[str] = field(default_factory=list)
    """Names of the positions or heads; empty if they have no names."""
    of_texts: tuple["Restored", ...] = ()
    """Result of each pair of texts, if there are several. `shares`, `clean` and `corrupted` are then their means."""

    @property
    def n_texts(self) -> int:
        return max(1, len(self.of_texts))

    def beside_others(self) -> dict[tuple[int, int], Beside]:
        """Compare the share of each cell (row, column) over the pairs with the mean of the other cells."""
        shares = torch.stack([one.shares for one in self.of_texts or (self,)])  # (N, L, C)
        _, n_rows, n_columns = shares.shape
        cells = [(i, j) for i in range(n_rows) for j in range(n_columns)]
        return beside_others({cell: shares[:, cell[0], cell[1]].tolist() for cell in cells})

    def _repr_html_(self) -> str:
        """Return the shares as a matrix of layers and positions, or of layers and heads."""
        columns = self.columns or [str(i) for i in range(self.shares.shape[1])]
        name = f"restored share; logit difference {self.clean:.4g} (clean), {self.corrupted:.4g} (corrupted)"
        shares = self.shares.tolist()
        return notebook.matrix(shares, self.layers, columns, name, shown=notebook.numbers(shares))


def patching_of(
    model: TrainedModel,
    clean: str,
    corrupted: str,
    answer: str | None = None,
    wrong: str | None = None,
    position: int | None = None,
    *,
    target: str | None = None,
) -> Patching:
    """Return the two runs of a model on two texts, or of an encoder-decoder on two sources with one target prefix.

    An answer is one token, such as " Paris". By default, `answer` is the token that the clean run predicts, and `wrong`
    the token that the corrupted run predicts. The default position is the last token of a decoder's input, or the first
    `[MASK]` of a masked model. `target` is the target prefix. By default, it is the model's output for the clean source
    up to the first token in which the output for the corrupted source differs.

    ```python
    pair = patching_of(model, "The king is here: he", "The queen is here: he")
    patch_residual(model.network, pair).shares  # (L + 1, T)
    ```

    Raises `UserError` for a model without a residual stream or a head over tokens, for equal texts, for texts with
    different numbers of tokens, for an answer of several tokens, and for equal answers or outputs.
    """
    network = token_transformer(model.network, "patching")
    is_pair = network.config.is_encoder_decoder
    if target is not None and not is_pair:
        raise UserError(f"{model.name} has no target side: give no target")
    # 1. The inputs of both runs.
    if is_pair:
        traces = [encoded(model, source=text, target=target) for text in (clean, corrupted)]
        _require_equal_lengths("source", [trace.inputs["source_ids"] for trace in traces])
    else:
        read = model.text_ids if model.is_causal_lm else model.filler.ids
        traces = [encoded(model, read(text)) for text in (clean, corrupted)]
        _require_equal_lengths("text", [trace.inputs["token_ids"] for trace in traces])
    inputs, best = [dict(trace.inputs) for trace in traces], list[int]()
    if is_pair and target is None:
        prefix, best = _before_difference(model, traces)
        inputs = [one | {"token_ids": prefix} for one in inputs]
    # 2. The position of the answers.
    n_positions = inputs[0]["token_ids"].shape[1]
    position = answer_position(model, inputs[0], position)
    # 3. The answers: one token each, by default the most probable one.
    if not best or position not in (-1, n_positions - 1):
        with torch.no_grad(), evaluation_mode(network):
            best = [int(network(**one)[0, position].argmax()) for one in inputs]
    if answer is not None:
        best[0] = answer_id(model, answer)
    if wrong is not None:
        best[1] = answer_id(model, wrong)
    if best[0] == best[1]:
        token = quoted(model.tokenizer.tokens(best[:1])[0])
        raise UserError(f"the answer and the wrong answer are both {token}: give two different tokens")
    # 4. The tokens along the axes; the two runs of an encoder-decoder read the same target.
    clean_target, corrupted_target = (trace.target[:n_positions] for trace in traces)
    if is_pair:
        corrupted_target = clean_target
    tokens: dict[Kind, tuple[list[str], list[str]]] = {
        "encoder": (traces[0].source, traces[1].source),
        "decoder": (clean_target, corrupted_target),
    }
    return Patching(inputs[0], inputs[1], best[0], best[1], position, tokens)


def _require_equal_lengths(what: str, ids: Sequence[Tensor]) -> None:
    clean, corrupted = ids
    if torch.equal(clean, corrupted):
        raise UserError(f"the clean and the corrupted {what} have equal tokens: change at least one word")
    if clean.shape != corrupted.shape:
        raise UserError(
            f"the clean {what} has {clean.shape[1]} tokens and the corrupted {what} {corrupted.shape[1]}: "
            "choose words with equal numbers of tokens"
        )


def _before_difference(model: TrainedModel, traces: Sequence[Trace]) -> tuple[Tensor, list[int]]:
    """Return the decoder's input before two outputs differ, (1, T), and the next token of each output.

    >>> from types import SimpleNamespace as S
    >>> traces = [S(inputs={"token_ids": torch.tensor([row])}) for row in ([1, 5, 6, 7], [1, 5, 8])]
    >>> _before_difference(S(translator=S(end_id=2)), traces)
    (tensor([[1, 5]]), [6, 8])
    """
    inputs = [trace.inputs["token_ids"] for trace in traces]
    written = [[*x[0, 1:].tolist(), model.translator.end_id] for x in inputs]
    for n, both in enumerate(zip(*written, strict=False)):
        if both[0] != both[1]:
            return inputs[0][:, : n + 1], list(both)
    raise UserError("the model writes the same target for both sources: give a target prefix, or change another word")


@dataclass(frozen=True)
class Places:
    """Places that a patch copies: each index of dimension 1 (a position or a head) of each named tensor."""

    names: dict[str, str]
    """Name of the tensor of each layer. The key is the name of the layer in results."""
    columns: list[str]
    """Names of the positions or heads; empty if they have no names."""


def residual_places(network: Transformer, pair: Patching, stack: Kind | None = None) -> Places:
    """Return the places of the residual stream: each position of a stack, by default of the one that the head reads."""
    stack = stack or token_transformer(network, "patching").config.head_stack_name
    if {"encoder": network.encoder, "decoder": network.decoder}.get(stack) is None:
        raise UserError(f"this model has no stack {stack}: choose encoder or decoder, as far as the model has them")
    return Places(residual_names(network, stack), pair.labels(stack))


def head_places(network: Transformer, kind: Kind | None = None) -> Places:
    """Return the places of the contexts of heads, by default of self-attention in the stack that the head reads."""
    kind = kind or token_transformer(network, "patching").config.head_stack_name
    heads = [part for part in all_parts(network) if part.kind == kind and part.head is not None]
    if not heads:
        raise UserError(f"this model has no attention heads of the kind {kind}")
    names = {f"block {part.layer}": context_name(network, kind, part.layer) for part in heads}
    return Places(names, [f"head {part.head}" for part in heads if part.layer == 0])


def patch_residual(network: Transformer, pair: Patching, stack: Kind | None = None) -> Restored:
    """Return the restored shares (L + 1, T) of the residual stream, after the embeddings and after each block."""
    return patch(network, pair, residual_places(network, pair, stack))


def patch_heads(network: Transformer, pair: Patching, kind: Kind | None = None) -> Restored:
    """Return the restored shares (L, H) of the heads; the context of a head is copied at all positions."""
    return patch(network, pair, head_places(network, kind))


def mean_restored(texts: Sequence[Restored]) -> Restored:
    """Return the mean shares over pairs of texts, at the same places, with the shares of each pair.

    Raises `UserError` if the pairs have different numbers of positions: then only heads can be compared.

    >>> one, other = (Restored(["block 0"], torch.tensor([[x]]), clean=2.0, corrupted=0.0) for x in (0.5, 1.0))
    >>> mean_restored([one, other]).shares
    tensor([[0.7500]])
    """
    if not texts:
        raise UserError("there is no pair of texts: give at least one")
    shapes = {tuple(one.shares.shape) for one in texts}
    if len(shapes) > 1:
        raise UserError("the pairs have different numbers of tokens: choose heads, or pairs of one length")
    columns = texts[0].columns
    if len(texts) > 1 and any(one.columns != columns for one in texts):
        columns = [str(i) for i in range(len(columns))]
    shares = torch.stack([one.shares for one in texts]).mean(dim=0)
    clean, corrupted = fmean(one.clean for one in texts), fmean(one.corrupted for one in texts)
    return Restored(texts[0].layers, shares, clean, corrupted, columns, tuple(texts))


@torch.no_grad()
def patch(network: Transformer, pair: Patching, places: Places, progress: Progress | None = None) -> Restored:
    """Copy each place of the clean run into the corrupted run, one at a time, and return the restored shares.

    `progress` is called with the numbers of patched and of all places.
    """
    paths = list(places.names.values())
    with evaluation_mode(network):
        clean_logits, clean_tensors = run_with(network, pair.clean, paths)
        corrupted_logits, corrupted_tensors = run_with(network, pair.corrupted, paths)
        clean, corrupted = metrics_of(pair, clean_logits, corrupted_logits)
        n_done, n_places = 0, sum(x.shape[1] for x in clean_tensors.values())

        def shares_of(path: str) -> Tensor:
            nonlocal n_done
            clean_tensor = clean_tensors[path]
            shares = torch.zeros(clean_tensor.shape[1])
            # A copy of an equal tensor has share 0
            differs = (clean_tensor != corrupted_tensors[path]).flatten(2).any(dim=2)[0]
            indices = differs.nonzero().flatten().tolist()
            patched = changed_outputs(
                network, pair.corrupted, clean_logits, indices, lambda some: {path: copying(clean_tensor, some)}
            )
            for some, logits in patched:
                shares[some] = ((pair.metric(logits).cpu() - corrupted) / (clean - corrupted)).to(shares)
                if progress is not None:
                    progress(n_done + some[-1] + 1, n_places)
            n_done += len(shares)
            return shares

        shares = torch.stack([shares_of(path) for path in paths])  # (L, T) or (L, H)
    return Restored(list(places.names), shares, clean, corrupted, places.columns)


def metrics_of(pair: Patching, clean_logits: Tensor, corrupted_logits: Tensor) -> tuple[float, float]:
    """Return the metrics of both runs; raise `UserError` if they are equal: shares are divided by their difference."""
    clean, corrupted = (float(pair.metric(x)[0]) for x in (clean_logits, corrupted_logits))
    if clean == corrupted:
        raise UserError("both runs have the same logit difference: choose other texts or answers")
    return clean, corrupted


def run_with(
    network: nn.Module, inputs: Mapping[str, Tensor], paths: Sequence[str], hook: Hook | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the logits, and the tensors `paths` in the network's precision; `hook` may replace these tensors first."""
    tensors: dict[str, Tensor] = {}

    def store(name: str, x: Tensor) -> Tensor:
        replaced = hook(name, x) if hook is not None else None
        tensors[name] = x if replaced is None else replaced
        return tensors[name]

    with model_hooks(network, dict.fromkeys(paths, store)):
        return network(**inputs), tensors


def copying(clean: Tensor, indices: Sequence[int]) -> Hook:
    """Return a hook that replaces x[r, i] by clean[0, i] in each row r; i = `indices[r]` is a position or a head.

    >>> copying(torch.ones(1, 3, 2), [2, 0])("decoder.embeddings", torch.zeros(2, 3, 2))[:, :, 0]
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """

    def hook(name: str, x: Tensor) -> Tensor:
        rows, at = torch.arange(len(x), device=x.device), torch.tensor(indices, device=x.device)
        return x.index_put((rows, at), clean[0, at].to(x))

    return hook


def patch_pairs(
    network: Transformer,
    pairs: Sequence[Patching],
    parts: Parts = "positions",
    stack: Kind | None = None,
    progress: Progress | None = None,
) -> tuple[Restored, Restored]:
    """Return the exact and the estimated shares, each as means over pairs, with the shares of each pair (`of_texts`).

    Pairs with different numbers of tokens need `parts="heads"`. `progress` is called with the numbers of patched places
    and of all places.

    ```python
    texts = (("The king is here:", "The queen is here:"), ("A man is here:", "A woman is here:"))
    pairs = [patching_of(model, clean, corrupted) for clean, corrupted in texts]
    exact, estimated = patch_pairs(model.network, pairs, "heads")
    exact.beside_others()[2, 3].is_beyond, rank_correlation(exact, estimated)
    ```
    """
    exact, estimated = list[Restored](), list[Restored]()

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress(len(exact) * total + done, len(pairs) * total)

    for pair in pairs:
        places = head_places(network, stack) if parts == "heads" else residual_places(network, pair, stack)
        exact.append(patch(network, pair, places, report))
        estimated.append(estimate(network, pair, places))
    report(0, 1)
    return mean_restored(exact), mean_restored(estimated)


def estimate(network: Transformer, pair: Patching, places: Places) -> Restored:
    """Return estimates of the shares that `patch` computes."""
    paths = list(places.names.values())
    with evaluation_mode(network):
        with torch.no_grad():
            clean_logits, clean_tensors = run_with(network, pair.clean, paths)
        with torch.enable_grad():
            corrupted_logits, tensors = run_with(network, pair.corrupted, paths, requiring_gradient)
            gradients = torch.autograd.grad(pair.metric(corrupted_logits)[0], [tensors[path] for path in paths])
    clean, corrupted = metrics_of(pair, clean_logits, corrupted_logits.detach())
    rows = []
    for path, gradient in zip(paths, gradients, strict=True):
        change = (clean_tensors[path] - tensors[path].detach()) * gradient  # (1, T, D) or (1, H, T, W)
        rows.append(change[0].flatten(1).sum(dim=1).cpu() / (clean - corrupted))
    return Restored(list(places.names), torch.stack(rows).float(), clean, corrupted, places.columns)


def likely_heads(network: nn.Module, inputs: Mapping[str, Tensor], measure: Measure) -> list[Part]:
    """Return all heads, beginning with the one whose switching off probably changes the measure most.

    The estimate is `|Σ context · ∂measure/∂context|`, the importance of Michel (2019, section 3.2) for one text: to
    first order, the change of the measure if the head's context becomes zero. One backward pass gives all heads.
    """
    heads = [part for part in all_parts(network) if part.head is not None]
    paths = {part: context_name(network, part.kind, part.layer) for part in heads}
    with evaluation_mode(network), torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        outputs, contexts = run_with(network, inputs, list(dict.fromkeys(paths.values())), requiring_gradient)
        gradients = torch.autograd.grad(measure(outputs)[0], list(contexts.values()))
    changes = {
        path: (context.detach() * gradient)[0].flatten(1).sum(dim=1).abs().tolist()
        for (path, context), gradient in zip(contexts.items(), gradients, strict=True)
    }
    return sorted(heads, key=lambda part: -changes[paths[part]][part.head or 0])


def requiring_gradient(name: str, x: Tensor) -> Tensor:
    """Return a tensor with the values of x that records its gradient, also in a network with frozen weights."""
    return x if x.requires_grad else x.detach().requires_grad_()


def rank_correlation(exact: Restored | Tensor, estimated: Restored | Tensor) -> float:
    """Return Spearman's rank correlation of the exact and the estimated shares, or of two tensors of effects.

    Cells in which both are exactly 0 are left out: there, both runs have equal tensors, and nothing is
    estimated. The result is NaN if fewer than two cells are left, or if the exact or the estimated shares are constant.

    >>> shares = torch.tensor([[0.0, 0.1, 0.2, 0.9]]), torch.tensor([[0.0, 0.3, 0.2, 5.0]])
    >>> one, other = (Restored(["a"], x, 1.0, 0.0) for x in shares)
    >>> round(rank_correlation(one, other), 3)
    0.5
    >>> nothing = Restored(["a"], torch.zeros(1, 4), 1.0, 0.0)
    >>> rank_correlation(nothing, nothing)
    nan
    """
    shares: list[Any] = [getattr(one, "shares", one) for one in (exact, estimated)]
    both = torch.stack(shares)
    both = both[:, both.any(dim=0)]
    if both.shape[1] < 2:
        return math.nan
    return float(torch.corrcoef(torch.stack([torch.from_numpy(ranks(one)) for one in both.numpy()]))[0, 1])
