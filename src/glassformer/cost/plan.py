"""Cost of a run on given GPUs: parameters, FLOPs, memory and time."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from glassformer.common.errors import UserError
from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.run import GroupPolicyConfig, Run
from glassformer.config.train import TrainConfig
from glassformer.config.transformer import PositionHead, SequenceHead, TransformerConfig
from glassformer.cost.activations import Kernels, activations_of, teacher_config
from glassformer.cost.flops import Flops, Shape, forward_flops, training_flops
from glassformer.cost.hardware import MFU, Gpu, find_gpu
from glassformer.cost.memory import HALF, Memory, cache_bytes, sharded, training_memory
from glassformer.cost.parameters import ParameterCounts, parameter_counts
from glassformer.tasks.preparation import micro_batch
from glassformer.tasks.task import MicroBatch, unknown_loss

_N_LABELS = 2


@dataclass(frozen=True)
class Plan:
    """Predicted costs of a run."""

    name: str
    config: ModelConfig
    shape: Shape
    """Micro-batch on each GPU."""
    precision: str
    parameters: ParameterCounts
    """Parameters of the network, by part."""
    forward: Flops
    """FLOPs of the forward pass of a micro-batch."""
    memory: Memory
    """Memory of a GPU that holds the whole model, alone or in data parallelism."""
    sharded: Memory | None
    """Memory of a GPU if all GPUs divide the state (`fsdp`); None for one GPU, or if the optimizer needs whole
    matrices."""
    recompute_every: int
    """0 = no block is recomputed, 1 = all, 2 = every second one."""
    cache_bytes: int
    """Bytes of the generation state of one row at the full context length."""
    grad_accumulation: int
    """Micro-batches per step over all GPUs: a multiple of the number of GPUs, as `train` requires."""
    n_tokens: int
    """Tokens that the run reads."""
    gpu: Gpu
    n_gpus: int
    assumptions: tuple[str, ...]
    """Assumed values for settings that the configuration leaves open."""
    notes: tuple[str, ...]
    """Settings that `train` would reject, and what the plan uses instead."""
    unknown: str | None
    """Description of the memory that `memory` and `sharded` do not count; None if they count all."""
    teacher: Flops | None
    """FLOPs of the forward pass of the teacher on a micro-batch; None without a teacher."""
    mfu: float

    @property
    def n_parameters(self) -> int:
        return self.parameters.total

    @property
    def forward_per_token(self) -> float:
        return self.forward.total / (self.shape.n_rows * self.shape.n_tokens)

    @property
    def training_per_token(self) -> float:
        """Training FLOPs per token, including the forward pass of recomputed blocks and of the teacher."""
        flops = training_flops(self.config, self.shape, self.recompute_every)
        if self.teacher is not None:
            flops += self.teacher.total
        return flops / (self.shape.n_rows * self.shape.n_tokens)

    @property
    def total_flops(self) -> float:
        """FLOPs of the whole run."""
        return self.training_per_token * self.n_tokens

    @property
    def seconds(self) -> float:
        """Duration of the training steps on all GPUs: of the products, or of the optimizer's traffic if that is longer.

        The products run at the utilisation `mfu`. The optimizer reads and writes the state once per step, at the
        bandwidth of the memory if it is known.
        """
        of_products = self.total_flops / (self.n_gpus * self.gpu.flops(self.precision) * self.mfu)
        if not self.gpu.bytes_per_second:
            return of_products
        n_steps = self.n_tokens / (self.grad_accumulation * self.shape.n_rows * self.shape.n_tokens)
        return max(of_products, n_steps * 2 * (self.sharded or self.memory).state / self.gpu.bytes_per_second)

    @property
    def generated_per_second(self) -> float:
        """Largest number of tokens per second of one row in generation, which reads all weights; 0 = not known."""
        width = 2 if self.precision in HALF else 4
        return self.gpu.bytes_per_second / (width * self.parameters.active) * bool(self.cache_bytes)

    @property
    def gpu_hours(self) -> float:
        return self.seconds * self.n_gpus / 3600

    def fits(self, memory: Memory) -> bool | None:
        """Return True if a GPU has this memory; None if the counted memory fits but some memory is not counted."""
        has_room = memory.total <= self.gpu.usable_bytes
        return None if has_room and self.unknown is not None else has_room

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in JSON types."""
        per_token = self.shape.n_rows * self.shape.n_tokens
        memory: dict[str, int | None] = asdict(self.memory) | {"total": self.memory.total}
        if self.unknown is not None:
            memory |= {"logits": None, "total": None}
        return {
            "name": self.name,
            "parameters": asdict(self.parameters) | {"total": self.parameters.total, "active": self.parameters.active},
            "forward_flops_per_token": {part: n / per_token for part, n in asdict(self.forward).items()},
            "training_flops_per_token": self.training_per_token,
            "micro_batch": asdict(self.shape),
            "precision": self.precision,
            "activation_checkpointing": "half" if self.recompute_every == 2 else bool(self.recompute_every),
            "memory_bytes": memory,
            "sharded_bytes": None if self.sharded is None or self.unknown is not None else self.sharded.total,
            "cache_bytes": self.cache_bytes,
            "fits": self.fits(self.memory),
            "fits_sharded": None if self.sharded is None else self.fits(self.sharded),
            "gpu": self.gpu.name,
            "n_gpus": self.n_gpus,
            "usable_bytes": self.gpu.usable_bytes,
            "grad_accumulation": self.grad_accumulation,
            "n_tokens": self.n_tokens,
            "training_flops": self.total_flops,
            "mfu": self.mfu,
            "seconds": self.seconds,
            "generated_tokens_per_second": self.generated_per_second,
            "gpu_hours": self.gpu_hours,
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "unknown": self.unknown,
        }


def plan_run(
    run: Run, gpu: Gpu, n_gpus: int = 1, *, n_tokens: int | None = None, context: int | None = None, mfu: float = MFU
) -> Plan:
    """Plan a run in which each GPU reads micro-batches of `train.batch_size` rows (or `data.batch_tokens` tokens).

    The GPUs share the micro-batches of a step, so `train.grad_accumulation` is raised to the next multiple of `n_gpus`.
    `n_tokens` is the number of tokens of the whole run (default: the tokens of its steps). `context` is the length of a
    row, on both sides of an encoder-decoder. `mfu` is the utilisation; the caller has checked it with
    `hardware.require_mfu`. Raises `UserError` for numbers out of range, for a precision that the GPU does not support,
    and for a vocabulary size that only the data can decide.

    >>> from glassformer.config.presets import preset
    >>> plan = plan_run(Run(model=preset("gpt2")), find_gpu("h200"))
    >>> plan.fits(plan.memory), plan.n_tokens == 2000 * 32 * 1024
    (True, True)
    """
    _check(run, n_gpus, n_tokens)
    if run.train.precision == "auto":
        run = replace(run, train=replace(run.train, precision=gpu.best_precision))
    # The micro-batch of a GPU
    config, assumptions = _complete(run)
    batch = micro_batch(run)
    shape = full_shape(batch, config, context)
    train = run.train
    gpu.flops(train.precision)  # raises if the GPU does not support it
    # The memory of a GPU
    recompute_every = 0 if isinstance(config, RecurrentConfig) else train.recompute_every
    stored = activations_of(run, config, shape, Kernels(train.precision in HALF), recompute_every)
    memory = training_memory(config, train, stored)
    is_divided = n_gpus > 1 and not train.optimizer.traits.needs_whole_matrices
    # The step of all GPUs
    grad_accumulation = n_gpus * -(-train.grad_accumulation // n_gpus)
    of_batch = batch.budget or shape.n_rows * shape.n_tokens
    if n_tokens is None:
        n_tokens = train.max_steps * grad_accumulation * of_batch
    return Plan(
        name=run.name,
        config=config,
        shape=shape,
        precision=train.precision,
        parameters=parameter_counts(config),
        forward=forward_flops(config, shape),
        memory=memory,
        sharded=sharded(memory, config, train, n_gpus) if is_divided else None,
        recompute_every=recompute_every,
        cache_bytes=cache_bytes(config, 1, shape.n_tokens, shape.n_source),
        grad_accumulation=grad_accumulation,
        n_tokens=n_tokens,
        gpu=gpu,
        n_gpus=n_gpus,
        assumptions=assumptions,
        notes=tuple(_notes(train, grad_accumulation, of_batch, n_gpus)),
        unknown=unknown_loss(run),
        teacher=None if run.teacher is None else forward_flops(teacher_config(run.teacher), shape),
        mfu=mfu,
    )


def step_flops(run: Run) -> int:
    """Return the training FLOPs of a step of full rows; a vocabulary size that the data decides counts as 0."""
    return run.train.grad_accumulation * training_flops(run.model, full_shape(micro_batch(run), run.model))


def least_seconds(run: Run, n_processes: int) -> float:
    """Estimate a lower bound of the seconds of all steps on GPUs: the time on the H200, at the default MFU."""
    rate = find_gpu("h200").flops(run.train.precision)
    return run.train.max_steps * step_flops(run) / n_processes / (MFU * rate)


LONG_SECONDS, CPU_FLOPS = 20, 1e11
"""A run on a CPU is long if its steps take more than `LONG_SECONDS` at `CPU_FLOPS`; then its precision is measured."""


def is_long(run: Run) -> bool:
    """Return True if the steps of a run take long on a CPU, by their FLOPs."""
    return run.train.max_steps * step_flops(run) > LONG_SECONDS * CPU_FLOPS


def _notes(train: TrainConfig, grad_accumulation: int, of_batch: int, n_gpus: int) -> Iterator[str]:
    if grad_accumulation != train.grad_accumulation:
        yield (
            f"{n_gpus:,} GPUs share the micro-batches of a step, so train.grad_accumulation "
            f"{train.grad_accumulation:,} becomes {grad_accumulation:,}: "
            f"a step reads {grad_accumulation * of_batch:,} tokens, not {train.grad_accumulation * of_batch:,}"
        )
    if n_gpus > 1 and train.optimizer.traits.needs_whole_matrices:
        yield (
            f"{train.optimizer.kind} needs whole matrices on every GPU, so fsdp is not planned; for sharding, use "
            "--train.optimizer.kind adamw"
        )


def _check(run: Run, n_gpus: int, n_tokens: int | None) -> None:
    for name, number in (("gpus", n_gpus), ("tokens", n_tokens)):
        if number is not None and number < 1:
            raise UserError(f"--{name} is {number} and must be at least 1")
    if run.lora is not None or run.init.freeze:
        raise UserError("plan supports only runs that train all weights: leave out [lora] and init.freeze")


def _complete(run: Run) -> tuple[ModelConfig, tuple[str, ...]]:
    """Assume the sizes that data and tokenizer decide; return the configuration and one sentence per assumption."""
    config, sentences = run.model, []
    if run.teacher is not None:
        theirs = teacher_config(run.teacher)
        config = replace(config, vocab_size=theirs.vocab_size, source_vocab_size=theirs.source_vocab_size)
    if not config.vocab_size:
        config = replace(config, vocab_size=_asked("vocab_size", run.tokenizer.vocab_size))
        sentences.append(f"vocabulary {config.vocab_size:,}, from [tokenizer]; a short text gives a smaller one")
        if run.init.path is not None and run.init.model == "same":
            sentences.append("the network of [model]; the run itself uses the network of init.path")
    if run.source_tokenizer is not None and not config.source_vocab_size:
        size = _asked("source_vocab_size", run.source_tokenizer.vocab_size)
        config = replace(config, source_vocab_size=size)
        sentences.append(f"source vocabulary {size:,}, from [source_tokenizer]")
    has_labels = (PositionHead, SequenceHead)
    if isinstance(config, TransformerConfig) and isinstance(config.head, has_labels) and not config.head.n_labels:
        config = replace(config, head=replace(config.head, n_labels=_N_LABELS))
        sentences.append(f"{_N_LABELS} labels; the data decides the real number")
    if isinstance(run.objective, GroupPolicyConfig):
        sentences.append(
            "no sampling, and no reference: it takes the bytes of the weights once more, and a forward pass"
        )
    return config, tuple(sentences)


def _asked(name: str, vocab_size: int) -> int:
    if not vocab_size:
        raise UserError(f"the vocabulary size of this run depends on its text: give --model.{name.replace('_', '-')} N")
    return vocab_size


def full_shape(batch: MicroBatch, config: ModelConfig, context: int | None = None) -> Shape:
    """Return the shape of a full micro-batch: rows of the context length.

    A token budget limits the number of rows and the length of each row (`TokenBudget`).
    """
    most = batch.budget or config.max_len
    n_tokens = context or batch.row_length or min(config.max_len, most)
    if n_tokens > config.max_len or n_tokens < 1:
        raise UserError(f"the context is {n_tokens} and must be from 1 to model.max_len, {config.max_len}")
    n_source = 0
    if config.is_encoder_decoder:
        n_source = context or batch.row_length or min(config.encoder_max_len, most)
    if n_source > config.encoder_max_len:
        raise UserError(f"the context is {n_source} and must be at most model.source_max_len, {config.source_max_len}")
    n_scored = max(1, round(batch.scored_share * n_tokens)) if batch.scored_share < 1 else 0
    return Shape(batch.rows(max(n_tokens, n_source)), n_tokens, n_source, n_scored)
