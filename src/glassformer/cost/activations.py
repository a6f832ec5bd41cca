"""Activation memory: the bytes that autograd saves in a forward pass, for every part of `nn/` and `models/`.

A matrix product saves its operands. A norm saves its input and statistics, an activation its input or output, and
dropout its mask. Fused attention saves queries, keys, values, its output and one log-sum-exp per query, but no scores
or weights. Under autocast, products run in bf16, and the residual stream and the norms stay in fp32. Every product then
saves its own bf16 copy of its input. The counted batches have no padding and no padding mask.
"""

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from glassformer.common import files
from glassformer.config import transformer as c
from glassformer.config.recurrent import AttendAfter, ModelConfig, NoAttention, RecurrentConfig
from glassformer.config.run import Run, TeacherConfig
from glassformer.cost.flops import Shape, StackShape, cell_widths, recurrent_widths, stack_shapes
from glassformer.cost.parameters import parameter_counts
from glassformer.models.build import build_positions
from glassformer.objectives.loss import MIN_LOGITS
from glassformer.store.model_directory import read_config
from glassformer.tasks.task import unknown_loss

_FP32, _INT64 = 4, 8


@dataclass(frozen=True)
class Kernels:
    """Properties of device and precision that change the number of saved bytes."""

    half: bool = False
    """True under autocast to bf16 or fp16."""
    on_cpu: bool = False
    """True on a CPU. There, dropout masks have the input's dtype, RMSNorm with a scale also saves its normalised input,
    and attention runs in fp32. Attention with dropout or with a learned bias saves its weights."""

    @property
    def product(self) -> int:
        """Bytes per element of a product's output."""
        return 2 if self.half else _FP32

    @property
    def attended(self) -> int:
        """Bytes per element of the tensors inside the attention function."""
        return _FP32 if self.on_cpu else self.product

    def mask(self, number: int) -> int:
        """Return the bytes per element of a dropout mask, for inputs of `number` bytes per element."""
        return number if self.on_cpu else 1

    def read(self, width: int, n_products: int = 1) -> int:
        """Return the bytes saved for a vector that products read: in fp32 once, in half precision once per product."""
        if self.half:
            return width * 2 * n_products
        return width * _FP32


@dataclass(frozen=True)
class PositionCost:
    """Effect of a stack's position modules on activation memory, measured by running these modules."""

    n_bytes: int
    """Bytes that autograd saves once per stack: tensors inside the position modules, and the cosines and sines of
    rotary positions."""
    rotates: bool
    """True if queries and keys are rotated."""
    has_bias: bool
    """True if a bias is added to the scores."""
    learns_bias: bool
    """True if the bias of the scores needs a gradient."""


@functools.lru_cache(maxsize=64)
def position_cost(config: c.TransformerConfig, side: StackShape, n_tokens: int) -> PositionCost:
    """Measure the `PositionCost` of a stack: run its position modules for `n_tokens` positions on the meta device.

    >>> side = StackShape(c.Stack(2, 2), is_decoder=True, has_memory=False, n_positions=5)
    >>> position_cost(c.TransformerConfig(decoder=side.stack, d_model=8, positions=c.RotaryPositions()), side, 5)
    PositionCost(n_bytes=160, rotates=True, has_bias=False, learns_bias=False)
    """
    storages: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no other storage gets its address

    def keep(x: Tensor) -> Tensor:
        storages[x.untyped_storage()._cdata] = x.untyped_storage()
        return x

    with torch.device("meta"), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        added, rotaries, bias = build_positions(config, side.stack, side.n_positions, causal=side.is_decoder)
        positions = torch.arange(n_tokens)
        if added is not None:
            added(positions)
        for rotary in rotaries.values():
            for x in rotary(positions):
                keep(x)  # every block saves this tensor
        scores = None if bias is None else bias(positions, positions)
    modules = [module for module in (added, *rotaries.values(), bias) if isinstance(module, nn.Module)]
    own = {x.untyped_storage()._cdata for module in modules for x in (*module.parameters(), *module.buffers())}
    n_bytes = sum(storage.nbytes() for number, storage in storages.items() if number not in own)
    return PositionCost(n_bytes, bool(rotaries), bias is not None, scores is not None and scores.requires_grad)


@dataclass(frozen=True)
class Activations:
    """Activation bytes of one micro-batch."""

    layers: int
    """All bytes except those of the loss. A recomputed block counts with its input only. At the peak, one recomputed
    block also counts in full."""
    logits: int
    """Twice the bytes that the loss saves, because later the gradient of the logits takes as many bytes. A large matrix
    of logits is saved in its own precision (`nn/kernels/cross_entropy.py`). For a small one, the loss saves
    log-probabilities in fp32."""

    teacher: int = 0
    """Bytes of the teacher's weights and logits; 0 without a teacher."""

    @property
    def total(self) -> int:
        return self.layers + self.logits + self.teacher


def activations_of(run: Run, config: ModelConfig, shape: Shape, kernels: Kernels, checkpointing: int) -> Activations:
    """Compute `activations` of a run, with its teacher; the logits count as 0 bytes if another package has the loss."""
    stored = activations(config, shape, kernels, checkpointing)
    if run.teacher is not None:
        weights = _FP32 * parameter_counts(teacher_config(run.teacher)).total
        stored = replace(stored, teacher=weights + stored.logits // 2)
    return stored if unknown_loss(run) is None else replace(stored, logits=0)


def teacher_config(teacher: TeacherConfig) -> ModelConfig:
    """Read the configuration of a teacher's network."""
    return read_config(files.as_path(teacher.path, "teacher.path"))[0]


def activations(config: ModelConfig, shape: Shape, kernels: Kernels, checkpointing: int = 0) -> Activations:
    """Compute the activation bytes of a micro-batch; every `checkpointing`-th block is recomputed (0 = none).

    For a Transformer on a CPU in fp32, the result is exact. With pooling, or with rotary positions on a part of a head,
    it is within a tenth. For a recurrent model, it is an estimate from the equations, within a fifth. An LSTM that runs
    as one call of the CPU library saves twice as much as the estimate.

    >>> from glassformer.config.presets import preset
    >>> kept = activations(preset("gpt3-small"), Shape(n_rows=1, n_tokens=2048), Kernels(half=True))
    >>> round(kept.layers / 2**20), round(kept.logits / 2**20)
    (731, 393)
    """
    vocabulary = config.vocab_size
    n_scored = shape.n_rows * shape.n_read
    if isinstance(config, RecurrentConfig):
        layers = shape.n_rows * _recurrent(config, shape, kernels)
    else:
        layers = _transformer(config, shape, kernels, checkpointing)
        vocabulary = config.n_outputs
        if config.reads_whole_sequence:
            n_scored = shape.n_rows
    n_logits = n_scored * vocabulary
    bytes_per_logit = kernels.product if n_logits >= MIN_LOGITS else _FP32
    return Activations(layers, 2 * n_logits * bytes_per_logit)


def _transformer(config: c.TransformerConfig, shape: Shape, kernels: Kernels, checkpointing: int) -> int:
    n = _head(config, shape, kernels)
    held = peak = 0  # bytes of the blocks so far, and the peak while a block is recomputed
    for side in stack_shapes(config):
        n_own = shape.n_read_by(side)
        of_stack, of_block = _StackActivations(config, side, shape.n_rows, n_own, shape.n_source, kernels).bytes_kept()
        stream = shape.n_rows * n_own * config.d_model * _FP32
        n += of_stack
        for i, n_bytes in enumerate(of_block):
            is_recomputed = checkpointing > 0 and i % checkpointing == 0
            held += stream if is_recomputed else n_bytes
            peak = max(peak, held + is_recomputed * n_bytes)
    return n + peak


@dataclass(frozen=True)
class _StackActivations:
    """Formulas for the saved bytes of one encoder or decoder."""

    config: c.TransformerConfig
    side: StackShape
    n_rows: int
    n_own: int
    """Tokens per row that the stack reads."""
    n_source: int
    kernels: Kernels

    @property
    def n_tokens(self) -> int:
        return self.n_rows * self.n_own

    @property
    def positions(self) -> PositionCost:
        return position_cost(self.config, self.side, self.n_own)

    @property
    def widths(self) -> c.AttentionWidths:
        return self.config.attention_widths(self.side.stack)

    def bytes_kept(self) -> tuple[int, list[int]]:
        """Return the bytes saved outside of the blocks, and the bytes saved by each block."""
        pattern = self.side.stack.window_pattern or (0,)
        windows = [pattern[i % len(pattern)] for i in range(self.side.stack.n_layers)]
        blocks = [self._block(window) for window in windows]
        if blocks and not self.config.first_norm:
            blocks[0] -= self.n_tokens * _norm(self.config, self.config.d_model, self.kernels)
        return self._shared(windows), blocks

    def _shared(self, windows: list[int]) -> int:
        """Return the bytes saved for embeddings, positions, final norm, and the encoder output for cross-attention."""
        config, kernels = self.config, self.kernels
        e = config.table_width
        a_token = _INT64 * (1 + (config.n_token_types > 0)) + _FP32 * (config.token_dropout > 0)
        a_token += config.embedding_norm * _norm(config, e, kernels)
        a_token += kernels.mask(_FP32) * e * (config.embedding_dropout > 0)
        a_token += kernels.read(e) * (e != config.d_model)
        a_token += config.final_norm * _norm(config, config.d_model, kernels)
        n = self.n_tokens * a_token
        n += self.positions.n_bytes
        if (
            self.positions.has_bias
            and not self._keeps_weights(True)
            and not all(self._masked(window) for window in windows)
        ):
            n += self._bias_bytes  # all blocks that add no mask to the bias share it
        if self.side.has_memory and not kernels.half:
            n += self.n_rows * self.n_source * config.d_model * _FP32
        return n

    def _block(self, window: int) -> int:
        config, kernels, stack, d = self.config, self.kernels, self.side.stack, self.config.d_model
        n = self._attention(self.n_own, window, is_self=True)
        n_sublayers = 1 + self.side.has_memory + (stack.d_ff > 0)
        if self.side.has_memory:
            n += self._attention(self.n_source, 0, is_self=False)
        n_norms = n_sublayers * (1 + (config.norm_order == "sandwich"))
        a_token = n_norms * _norm(config, d, kernels)
        a_token += n_sublayers * kernels.mask(kernels.product) * d * (config.residual_dropout > 0)
        if stack.d_ff:
            a_token += self._feed_forward()
            a_token -= self._read_twice() * config.norm_order.startswith("parallel")
            if config.experts is not None and isinstance(config.experts.balance, c.BalanceLoss):
                n += _FP32 * config.experts.n_experts  # the share of the tokens of each expert
        return n + self.n_tokens * a_token

    def _read_twice(self) -> int:
        """Return the bytes per token that a parallel block saves once, because both of its sublayers read them."""
        config, kernels, d = self.config, self.kernels, self.config.d_model
        if config.norm_order != "parallel_shared":
            return _FP32 * d  # two norms have the same input
        return _norm(config, d, kernels) + _FP32 * d * (not kernels.half)

    def _feed_forward(self) -> int:
        """Return the bytes per token that a feed-forward layer saves."""
        config, kernels, d_ff = self.config, self.kernels, self.side.stack.d_ff
        # relu saves its output, which the next product or dropout saves anyway. Other activations save their input.
        n_wide = 1 if config.activation == "relu" else 2
        if config.gated_ff:
            n_wide += 2
        elif config.ff_dropout and config.activation in ("relu", "relu2"):
            n_wide = 2
        n = kernels.read(config.d_model, 1 + config.gated_ff) + n_wide * d_ff * kernels.product
        n += kernels.mask(kernels.product) * d_ff * (config.ff_dropout > 0)
        if config.experts is None:
            return n
        return self._router(config.experts) + config.experts.n_active * n

    def _router(self, experts: c.Experts) -> int:
        """Return the bytes per token that a router saves, plus the indices and outputs of the active experts."""
        n_vectors = 2 + experts.normalize  # vectors over the experts: probabilities, active (0 or 1), weights
        n = self.kernels.read(self.config.d_model) + _FP32 * (n_vectors * experts.n_experts + 2 * experts.normalize)
        of_active = 4 * _INT64 + _FP32 + self.kernels.product * self.config.d_model
        return n + experts.n_active * of_active

    def _attention(self, n_keys: int, window: int, is_self: bool) -> int:
        config, kernels, w, d = self.config, self.kernels, self.widths, self.config.d_model
        own, keys = self.n_tokens, self.n_rows * n_keys
        keeps_weights, fused = self._keeps_weights(is_self), is_self and config.fused_qkv
        # Inputs of the projections, and of the norms of queries and keys
        if fused:
            n = own * kernels.read(d)
        elif is_self:
            n = own * kernels.read(d, 3)
        else:
            n = own * kernels.read(d) + kernels.half * keys * kernels.read(d, 2)
        if config.qk_norm:
            if config.qk_norm == "all":
                n += own * _norm(config, w.query, kernels) + keys * _norm(config, w.key, kernels)
            else:
                n += (own * w.n_heads + keys * w.n_kv_heads) * _norm(config, w.d_head, kernels)
        # If autograd saves a part of a fused product, the whole product stays in memory. Such a part is the input of a
        # norm, or the values beside rotated queries and keys.
        is_turned = kernels.half if config.qk_norm else self.positions.rotates
        if fused and keeps_weights and config.qk_norm:
            n += own * w.key * kernels.product
        elif fused and is_turned and not keeps_weights and kernels.attended == kernels.product:
            n += own * (w.query + w.key) * kernels.product
        # Attention without a fused kernel saves its matrices of weights
        if keeps_weights:
            n_maps, is_masked = 3 if config.attention_dropout else 1, is_self and self._masked(window)
            if config.score_cap:  # also saves tanh, two masks of 1 byte each, and a copy of the weights
                n_maps += 1 + (is_masked and not config.attention_dropout)
                n += is_masked * self.n_own * (n_keys + 1)
            n += kernels.attended * (own * w.query + keys * w.n_heads * 2 * w.d_head)
            n += kernels.product * own * w.query
            n += n_maps * own * n_keys * w.n_heads * kernels.attended
            learned = self.positions.learns_bias and not config.score_cap
            return n + self.n_own * n_keys * (learned and is_masked)  # mask, 1 byte per element
        # The fused kernel saves queries, keys, values and a mask
        is_masked = is_self and (self.positions.has_bias or window > 0)
        # If the kernel does not accept shared key-value heads, they are repeated for all heads.
        has_groups = kernels.on_cpu or (kernels.half and not is_masked)
        of_key = 2 * (w.key if has_groups else w.query)
        n += kernels.attended * (own * 2 * w.query + keys * of_key)
        if is_self and not has_groups and w.key < w.query:
            # the query is a part of one tensor with the keys before they are repeated
            n += kernels.attended * own * w.key
        if kernels.attended > kernels.product:
            n += kernels.product * own * w.query  # a second copy, for the projection
        n += own * w.n_heads * _FP32
        if is_self and self.positions.has_bias and self._masked(window):
            n += self._bias_bytes
        elif is_self and window:
            n += self.n_own * n_keys * kernels.attended
        return n

    @property
    def _bias_bytes(self) -> int:
        """Bytes of the score bias, one tensor for all rows."""
        return self.widths.n_heads * self.n_own**2 * self.kernels.attended

    def _masked(self, window: int) -> bool:
        """Return True if the self-attention hides keys."""
        return self.side.is_decoder or window > 0

    def _keeps_weights(self, is_self: bool) -> bool:
        """Return True if attention saves its weights: with bounded scores, or without a fused backward on a CPU."""
        learned = is_self and self.positions.learns_bias
        falls_back = self.kernels.on_cpu and (learned or self.config.attention_dropout > 0)
        return falls_back or self.config.score_cap > 0


def _norm(config: c.TransformerConfig, width: int, kernels: Kernels) -> int:
    """Return the bytes that a norm saves per vector: the input and its statistics (RMSNorm: see `Kernels.on_cpu`)."""
    if config.norm == "layernorm":
        return _FP32 * (width + 2)
    return _FP32 * (width + 1 + width * (config.norm_weight and kernels.on_cpu))


def _head(config: c.TransformerConfig, shape: Shape, kernels: Kernels) -> int:
    """Return the bytes that the head saves for the tokens that it reads, plus the bytes of the labels."""
    d, e, head = config.d_model, config.table_width, config.head
    if config.reads_whole_sequence:
        return shape.n_rows * (_INT64 + kernels.read(d))
    labels = _INT64 * shape.n_rows * shape.n_tokens
    a_token = kernels.read(d)
    width = e if isinstance(head, c.TokenHead) else d
    has_transform = getattr(head, "transform", False)
    if has_transform:
        a_token += (config.activation != "relu") * width * kernels.product + _norm(config, width, kernels)
    if has_transform or width != d:
        a_token += kernels.read(width)
    if isinstance(head, c.TokenHead) and config.logit_cap:
        a_token += config.vocab_size * kernels.product
    return labels + shape.n_rows * shape.n_read * a_token


def _recurrent(config: RecurrentConfig, shape: Shape, kernels: Kernels) -> int:
    """Return the saved bytes per row: states, gates, attention weights, and tanh(W₁h + W₂s) of additive attention."""
    e, d, w = config.d_embedding, config.d_decoder, recurrent_widths(config)
    n, s, attention = shape.n_tokens, shape.n_source, config.attention
    of_step = {"rnn": 1, "gru": 8, "lstm": 7}[config.cell]

    def cells(d_input: int, d_state: int, n_directions: int) -> int:
        """Return the bytes of one step through all layers: gates, states, and the inputs of the matrices."""
        layers = cell_widths(d_input, d_state, config.n_layers, n_directions)
        dropped = kernels.mask(_FP32) * (config.layer_dropout > 0) * d_state * n_directions * (config.n_layers - 1)
        inputs = d_input + d_state * n_directions * (config.n_layers - 1)
        return _FP32 * (inputs + sum(of_step * width for _, width in layers)) + dropped

    n_bytes = s * cells(e, config.d_encoder, w.n_directions) + n * cells(e + w.d_fed, d, 1)
    n_bytes += kernels.mask(_FP32) * (
        e * (s + n) * (config.embedding_dropout > 0) + n * d * (config.output_dropout > 0)
    )
    if not isinstance(attention, NoAttention):
        n_bytes += s * kernels.read(config.d_memory) + kernels.product * (s + n) * w.d_attention
        n_bytes += n * s * (_FP32 + (attention.score == "additive") * w.d_attention * kernels.product)
    if isinstance(attention, AttendAfter):
        n_bytes += n * _FP32 * (w.d_context + 2 * d)
    elif attention.deep_output:
        n_bytes += n * _FP32 * (d + 3 * e)
    return n_bytes + 3 * _INT64 * (n + s) + n * kernels.read(config.d_readout)
