"""Memory of a training run by part, on one GPU or sharded over several, and of the generation cache."""

from dataclasses import dataclass, fields, replace

from glassformer.config.recurrent import AttendAfter, ModelConfig, NoAttention, RecurrentConfig
from glassformer.config.train import TrainConfig
from glassformer.cost.activations import Activations
from glassformer.cost.flops import Shape, attention_cost, forward_flops, recurrent_widths
from glassformer.cost.parameters import parameter_counts

_FP32 = 4
HALF = ("bf16", "fp16")
"""Precisions in which autocast copies the matrices. `auto` counts as fp32, but a run and a plan first replace
`auto`."""


@dataclass(frozen=True)
class Memory:
    """Peak bytes on one GPU by part, without the temporary memory of the kernels."""

    weights: int
    gradients: int
    optimizer: int
    average: int
    """Bytes of the moving average of the weights; 0 without one."""
    half_copies: int
    """Half-precision copies of the matrices, which autocast makes."""
    gathered: int
    """With sharding, the bytes of the layer that is gathered now and of the parameters outside of the layers."""
    activations: int
    logits: int
    teacher: int
    """Bytes of the teacher's weights and logits; 0 without a teacher."""

    @property
    def state(self) -> int:
        """Bytes that stay between steps and that several GPUs can shard."""
        return self.weights + self.gradients + self.optimizer + self.average

    @property
    def total(self) -> int:
        return sum(getattr(self, field.name) for field in fields(self))


def training_memory(config: ModelConfig, train: TrainConfig, stored: Activations) -> Memory:
    """Compute the memory of one GPU that holds the whole model, alone or in data parallelism.

    Weights, gradients and moments are fp32 at every precision. The number of moments is from `OptimizerTraits`.

    >>> from glassformer.config.presets import preset
    >>> memory = training_memory(preset("gpt2"), TrainConfig(), Activations(0, 0))
    >>> memory.weights == 4 * 124_439_808, memory.state == 16 * 124_439_808
    (True, True)
    """
    counts = parameter_counts(config)
    moments = train.optimizer.traits.n_numbers(counts.total, counts.matrices)
    head = forward_flops(config, Shape(1, 1)).head // 2  # a multiplication and an addition per weight
    return Memory(
        weights=_FP32 * counts.total,
        gradients=_FP32 * counts.total,
        optimizer=_FP32 * moments,
        average=_FP32 * counts.total * (train.ema_decay > 0),
        half_copies=2 * (counts.matrices + head) * (train.precision in HALF),
        gathered=0,
        activations=stored.layers,
        logits=stored.logits,
        teacher=stored.teacher,
    )


def sharded(memory: Memory, config: ModelConfig, train: TrainConfig, n_shards: int) -> Memory:
    """Return `memory` with `state` divided among `n_shards` GPUs, which gather each layer when they need the layer.

    The matrices of a layer are cast when they are gathered, so there are no half copies of the whole model. A gathered
    layer takes weights and gradients. The embedding tables and the head stay gathered during the whole step.
    """
    counts = parameter_counts(config)
    product = 2 if train.precision in HALF else _FP32
    divided = ("weights", "gradients", "optimizer", "average")
    shares = {name: -(-getattr(memory, name) // n_shards) for name in divided}  # rounded up
    gathered = (counts.largest_layer + counts.outside) * (product + _FP32)
    return replace(memory, **shares, half_copies=0, gathered=gathered)


def cache_bytes(config: ModelConfig, n_rows: int, max_len: int, n_source: int = 0) -> int:
    """Compute the bytes of the generation state for `max_len` tokens, in fp32; 0 for an encoder-only model.

    A Transformer stores the keys and values of `max_len` tokens, of one slot for padding, and of the source. A
    recurrent model stores its state, and the keys and values of the source.

    >>> from glassformer.config.transformer import Stack, TransformerConfig
    >>> cache_bytes(TransformerConfig(decoder=Stack(2, 4), d_model=8), n_rows=1, max_len=9)
    1280
    """
    if isinstance(config, RecurrentConfig):
        w, d = recurrent_widths(config), config.d_decoder
        n = config.d_memory + config.n_layers * d * (1 + (config.cell == "lstm"))
        attention = config.attention
        if not isinstance(attention, NoAttention):
            d_key = {"dot": config.d_memory, "general": d}.get(attention.score, w.d_attention)
            n += n_source * (d_key + w.d_context)
        n += d * (isinstance(attention, AttendAfter) and attention.input_feeding)
        return _FP32 * n_rows * n
    if config.decoder is None:
        return 0
    n = attention_cost(config, config.decoder, 1, max_len + 1).cached
    if config.encoder is not None:
        n += attention_cost(config, config.decoder, 1, n_source, is_self=False).cached
    return _FP32 * config.decoder.n_layers * n_rows * n
