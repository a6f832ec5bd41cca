"""Logit lens: the prediction of every layer, computed by the head of the model (nostalgebraist 2020).

The residual stream xₗ after block l is read as if block l were the last one: logitsₗ = head(final_norm(xₗ)). For the
last block these are the logits of the model.

A pre-norm model has a final norm. Without it (`norm=False`), logitsₗ = head(xₗ), and the last block does not give the
logits of the model. A post-norm model has no final norm: xₗ is the output of the norm of the block, and
logitsₗ = head(xₗ) in both cases. The head includes all of its own layers, such as the transform of BERT.

The head reads the decoder of a decoder or encoder-decoder, and the encoder of a masked language model.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from glassformer.common import notebook
from glassformer.common.errors import UserError
from glassformer.data.batching import NOT_SCORED
from glassformer.inspection.attention_maps import Kind
from glassformer.inspection.capture import Trace
from glassformer.inspection.measures import next_labels, predicts_next_token
from glassformer.models.transformer import Transformer
from glassformer.nn.attention import at_least_fp32
from glassformer.tasks.requirements import require_token_transformer
from glassformer.tasks.trained_model import TrainedModel

NAMES = ("*.embeddings", "*.residual")
"""Names that `capture` must store for the lens; the default of `capture` includes them."""


@dataclass(frozen=True)
class LensCells:
    """Predictions of every layer and position (L layers with the embeddings, T positions)."""

    layers: list[str]
    """`embeddings`, `block 0`, …"""
    top_ids: Tensor
    """(L, T, k): most probable tokens, best first."""
    top_probabilities: Tensor
    """(L, T, k): probabilities of these tokens."""
    label_probability: Tensor
    """(L, T): probability of the label; NaN at positions without a label."""
    label_rank: Tensor
    """(L, T): number of tokens with a larger logit than the label; -1 at positions without a label."""
    tokens: list[str] = field(default_factory=list)
    """Input tokens of the positions; empty if they are unknown."""
    vocabulary: Sequence[str] = ()
    """Tokens by id; may be empty."""

    def top_tokens(self) -> list[list[list[str]]]:
        """Return the most probable tokens of each layer and position; the id in place of an unknown token."""
        tokens = dict(enumerate(self.vocabulary))
        return [[[tokens.get(i, str(i)) for i in best] for best in row] for row in self.top_ids.tolist()]

    def _repr_html_(self) -> str:
        """Return the most probable token of each layer and position as a matrix; tooltips have the next ones."""
        names, probabilities = self.top_tokens(), self.top_probabilities.tolist()
        columns = self.tokens or [str(i) for i in range(self.top_ids.shape[1])]

        def shown(names: list[str], probabilities: list[float]) -> tuple[str, str]:
            return names[0], ", ".join(f"{x} {p:.3f}" for x, p in zip(names, probabilities, strict=True))

        cells = [[*map(shown, *row)] for row in zip(names, probabilities, strict=True)]
        title = "most probable token by layer and position; the colour is its probability"
        return notebook.matrix(self.top_probabilities[:, :, 0].tolist(), self.layers, columns, title, shown=cells)


def lens_logits(network: nn.Module, x: Tensor, norm: bool = True) -> Tensor:
    """Return the logits head(final_norm(x)), (…, T, V), for states x (…, T, D) of the residual stream.

    With `norm=False`, they are head(x).
    Raises `UserError` for a recurrent model and for a head that gives no logits over tokens.
    """
    transformer = token_transformer(network, "the logit lens")
    final_norm = getattr(transformer, transformer.config.head_stack_name).final_norm
    x = x.to(next(transformer.parameters()).device, stream_dtype(transformer))
    with torch.no_grad():
        if norm and final_norm is not None:
            x = final_norm(x)
        return transformer.head(x)


def lens(network: nn.Module, tensors: Mapping[str, Tensor], norm: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, logits (B, T, V)) for the embeddings and each block, from a trace; one layer is in memory at a time.

    The names are `embeddings`, `block 0`, …

    ```python
    for name, logits in lens(model.network, capture(model, "To be, or not to")):
        print(name, model.tokenizer.decode([int(logits[0, -1].argmax())]))
    ```
    """
    for name, path in residual_names(token_transformer(network, "the logit lens")).items():
        if path not in tensors:
            raise UserError(f"the trace has no tensor {path}: capture it with names={list(NAMES)}")
        yield name, lens_logits(network, tensors[path], norm)


def lens_cells(
    network: nn.Module,
    tensors: Mapping[str, Tensor],
    labels: Sequence[int],
    k: int = 5,
    norm: bool = True,
    vocabulary: Sequence[str] = (),
) -> LensCells:
    """Return the k most probable tokens, and the probability and rank of the label, per layer and position.

    `tensors` is a trace with one row; `labels` (T,) are the true tokens, -100 = unknown (`lens_labels`). `vocabulary`
    has the tokens by id, for the table in a notebook.
    """
    of_labels = torch.tensor(labels)
    is_label = of_labels != NOT_SCORED
    safe = of_labels.clamp(min=0)[:, None]  # (T, 1)
    of_layers: dict[str, tuple[Tensor, ...]] = {}
    for name, logits in lens(network, tensors, norm):
        row = at_least_fp32(logits[0].cpu())  # (T, V)
        probabilities = row.softmax(dim=-1)
        top = probabilities.topk(min(k, row.shape[-1]), dim=-1)  # (T, k)
        of_label = probabilities.gather(1, safe).squeeze(1).masked_fill(~is_label, torch.nan)
        rank = (row > row.gather(1, safe)).sum(dim=1).masked_fill(~is_label, -1)
        of_layers[name] = top.indices, top.values, of_label, rank
    ids, probabilities, of_labels, ranks = (torch.stack(parts) for parts in zip(*of_layers.values(), strict=True))
    tokens = tensors.target if isinstance(tensors, Trace) else []
    return LensCells(list(of_layers), ids, probabilities, of_labels, ranks, tokens, vocabulary)


def logit_lens(model: TrainedModel, trace: Trace, norm: bool = True) -> LensCells:
    """Return `lens_cells` of a captured text, with the true tokens as labels and the tokens of the vocabulary."""
    vocabulary = model.tokenizer.tokens(range(model.tokenizer.vocab_size))
    return lens_cells(model.network, trace, lens_labels(model.network, trace.inputs), norm=norm, vocabulary=vocabulary)


def lens_labels(network: nn.Module, inputs: Mapping[str, Tensor]) -> list[int]:
    """Return the true token of each position of a trace's inputs, -100 where it is unknown.

    A decoder predicts the next token, and an encoder-decoder the end token at its last position. An encoder predicts
    the token at the position itself, which is unknown at a mask.
    """
    config, ids = token_transformer(network, "the logit lens").config, inputs["token_ids"][0]
    labels: list[int] = ids.tolist()
    if predicts_next_token(config):
        return next_labels(config, labels)
    return [NOT_SCORED if token == config.mask_id else token for token in labels]


def residual_names(network: Transformer, stack: Kind | None = None) -> dict[str, str]:
    """Return, for each layer, the name of the residual stream of a stack, by default of the stack of the head."""
    stack = stack or network.config.head_stack_name
    blocks = range(len(getattr(network, stack).blocks))
    return {"embeddings": f"{stack}.embeddings"} | {f"block {i}": f"{stack}.blocks.{i}.residual" for i in blocks}


def stream_dtype(network: Transformer) -> torch.dtype:
    """Return the dtype of the residual stream, which the final norm and the head read."""
    blocks = getattr(network, network.config.head_stack_name).blocks
    return dtype_of(blocks if len(blocks) else network)


def dtype_of(module: nn.Module) -> torch.dtype:
    """Return the dtype that a module reads: the dtype of its first weight."""
    return next(module.parameters()).dtype


def token_transformer(network: nn.Module, user: str) -> Transformer:
    """Return the network; raise `UserError`, which names `user`, if it has no residual stream or no token head."""
    require_token_transformer(getattr(network, "config", None), user)
    assert isinstance(network, Transformer)  # `require_token_transformer`
    return network
