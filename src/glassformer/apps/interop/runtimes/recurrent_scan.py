"""The recurrent encoder-decoder with each loop as one `scan` operator, so that an ONNX graph takes any length.

Training does not use it. The exporter unrolls Python loops to the traced length, and does not support packed rows;
`scan` is a loop inside the graph. At padding, a step passes the state on unchanged, so that padding has no effect.

Letters: B batch, T target length, S source length, E width of an input, D width of a state.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.nn import functional as F

from glassformer.models.recurrent import RecurrentModel
from glassformer.models.recurrent_stacks import Encoding, RecurrentState
from glassformer.nn.recurrence import LayerState, Stepper


class ScannedRecurrent(nn.Module):
    """`hidden` and `head` of a `RecurrentModel`, with the same weights; outputs at padding have no meaning."""

    def __init__(self, network: RecurrentModel) -> None:
        super().__init__()
        self.network = network

    def hidden(
        self, token_ids: Tensor, attention_mask: Tensor, *, source_ids: Tensor, source_attention_mask: Tensor
    ) -> Tensor:
        """Map `token_ids` (B, T) and `source_ids` (B, S), bool masks with True = a real token → (B, T, d_readout)."""
        decoder = self.network.decoder
        encoding = self._encode(source_ids, source_attention_mask)
        begin = self.network.first_state(encoding, source_attention_mask)
        x = decoder.tokens(token_ids)
        step = Stepper(decoder.cells, decoder.cell_step, x.shape[2])
        projected = F.linear(x, step.w_x, step.layers[0][2])  # step.project without the unbind

        def advance(carried: list[Tensor], inputs: tuple[Tensor, Tensor]) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
            read, context, after = decoder.advance(step, inputs[0], _with_tensors(begin, carried), inputs[1])
            return _tensors(after), (read[:, 0].clone(), context[:, 0].clone())

        # Clones, because scan rejects tensors that share memory: a state may be part of the encoding.
        carried = [x.clone() for x in _tensors(begin)]
        _, outputs = scan(advance, carried, (projected.transpose(0, 1), attention_mask.transpose(0, 1)))
        reads, contexts = (y.transpose(0, 1) for y in outputs)
        return reads if decoder.deep_output is None else decoder.deep_output(reads, x, contexts)

    def head(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the logits of the hidden states."""
        return self.network.head(hidden, attention_mask)

    def _encode(self, source_ids: Tensor, real: Tensor) -> Encoding:
        """Compute `RecurrentEncoder.forward` layer by layer and direction by direction."""
        encoder = self.network.encoder
        n_directions = 2 if encoder.cells.bidirectional else 1
        weights = encoder.cells.all_weights  # of each layer: forward, then backward
        x, real, last = encoder.tokens(source_ids).transpose(0, 1), real.transpose(0, 1), []  # (S, B, E), (S, B)
        for layer in range(encoder.cells.num_layers):
            of_layer = weights[layer * n_directions : (layer + 1) * n_directions]
            ways = [self._read(w, x, real, bool(way) != encoder.reverse) for way, w in enumerate(of_layer)]
            x = torch.cat([outputs for outputs, _ in ways], dim=2)
            last.append(tuple(torch.cat(parts, dim=1) for parts in zip(*(end for _, end in ways), strict=True)))
        return Encoding(x.transpose(0, 1), tuple(last))

    def _read(
        self, weights: Sequence[Tensor], x: Tensor, real: Tensor, from_the_end: bool
    ) -> tuple[Tensor, LayerState]:
        """Run one layer in one direction; return its states (S, B, D), zeros at padding, and the last state."""
        w_in, w_state, b_in, b_state = weights
        cell_step = self.network.decoder.cell_step

        def step(state: LayerState, inputs: tuple[Tensor, Tensor]) -> tuple[LayerState, Tensor]:
            from_input, is_real = inputs
            new = cell_step(from_input, F.linear(state[0], w_state, b_state), state)
            return tuple(torch.where(is_real[:, None], n, o) for n, o in zip(new, state, strict=True)), new[0].clone()

        n_parts = 2 if self.network.config.cell == "lstm" else 1
        begin = tuple(x.new_zeros(x.shape[1], w_state.shape[1]) for _ in range(n_parts))
        last, outputs = scan(step, begin, (F.linear(x, w_in, b_in), real), reverse=from_the_end)
        return outputs.masked_fill(~real[:, :, None], 0.0), last


def _tensors(state: RecurrentState) -> list[Tensor]:
    """Return the tensors that change from step to step."""
    tensors = [part for layer in state.layers for part in layer]
    if state.attentional is not None:
        tensors.append(state.attentional)
    return tensors


def _with_tensors(state: RecurrentState, tensors: list[Tensor]) -> RecurrentState:
    """Return the state with these tensors: the inverse of `_tensors`."""
    remaining = iter(tensors)
    layers = tuple(tuple(next(remaining) for _ in layer) for layer in state.layers)
    return replace(state, layers=layers, attentional=next(remaining, None))
