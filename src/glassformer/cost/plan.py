"""Cost of a run on given GPUs: parameters, FLOPs, memory, time, price, and the layout that fits."""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.run import GroupPolicyConfig, Run
from glassformer.config.train import TrainConfig
from glassformer.config.transformer import PositionHead, SequenceHead, TransformerConfig
from glassformer.cost.activations import Activations, Kernels, activations_of, teacher_config
from glassformer.cost.flops import Flops, Shape, forward_flops, training_flops
from glassformer.cost.hardware import GPUS, MFU, Gpu
from glassformer.cost.memory import HALF, Memory, cache_bytes, sharded, training_memory
from glassformer.cost.parameters import ParameterCounts, parameter_counts
from glassformer.errors import UserError
from glassformer.tasks.batches import MicroBatch
from glassformer.tasks.preparation import micro_batch
from glassformer.tasks.registry import unknown_loss

_N_LABELS = 2


@dataclass(frozen=True)
class Layout:
    """One way to distribute a run over GPUs, and the memory per GPU."""

    strategy: str
    """`none`, or `parallel.strategy`: ddp or fsdp."""
    n_parts: int
    """Number of GPUs that share one copy of the model."""
    checkpointing: int
    """0 = no block is recomputed, 1 = all, 2 = every second one."""
    memory: Memory
    fits: bool

    @property
    def flags(self) -> dict[str, str]:
        """Flags for `train` by key."""
        flags = {}
        if self.strategy != "none":
            flags["parallel.strategy"] = self.strategy
        if self.checkpointing:
            flags["train.activation-checkpointing"] = "true" if self.checkpointing == 1 else "half"
        return flags


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
    layouts: tuple[Layout, ...]
    """Layouts from the simplest to the one with the least memory; the plan uses the first that fits."""
    least_gpus: int | None
    """Smallest number of GPUs that can hold the run in some layout; None if it never fits."""
    cache_bytes: int
    """Bytes of keys and values, or of states, of one row generated up to the full context."""
    grad_accumulation: int
    """Micro-batches per step over all GPUs: a multiple of their number, as `train` requires."""
    n_tokens: int
    """Tokens that the run reads."""
    gpu: Gpu
    n_gpus: int
    assumptions: tuple[str, ...]
    """Assumed values for settings that the configuration leaves open."""
    notes: tuple[str, ...]
    """Settings that `train` would reject, and what the plan uses instead."""
    settings: Mapping[str, str]
    """Flags by key: those that the user gave, and the accumulation if the plan raises it."""
    unknown: str | None
    """The memory that is not counted in `layouts` and `least_gpus`, in words; None if all is counted."""
    teacher: Flops | None
    """FLOPs of the forward pass of the teacher on a micro-batch; None without a teacher."""
    mfu: float = MFU
    price: float | None = None
    """Price per GPU hour, in any currency."""

    def at(self, mfu: float, price: float | None) -> "Plan":
        """Return the plan at another utilisation and price, which `hardware.require_rates` has accepted."""
        return replace(self, mfu=mfu, price=price)

    @property
    def flags(self) -> str:
        """Flags that make `train`, with one process per GPU, run the planned configuration."""
        of_layout = self.layout.flags
        flags = {key: shlex.quote(value) for key, value in self.settings.items() if key not in of_layout} | of_layout
        return " ".join(f"--{key} {value}" for key, value in flags.items())

    @property
    def layout(self) -> Layout:
        """The first layout that fits, or else the last one."""
        return next((layout for layout in self.layouts if layout.fits), self.layouts[-1])

    @property
    def n_parameters(self) -> int:
        return self.parameters.total

    @property
    def forward_per_token(self) -> float:
        return self.forward.total / (self.shape.n_rows * self.shape.n_tokens)

    @property
    def training_per_token(self) -> float:
        """Training FLOPs per token, including the second forward of recomputed blocks and that of the teacher."""
        flops = training_flops(self.config, self.shape, self.layout.checkpointing)
        if self.teacher is not None:
            flops += self.teacher.total
        return flops / (self.shape.n_rows * self.shape.n_tokens)

    @property
    def total_flops(self) -> float:
        """FLOPs of the whole run."""
        return self.training_per_token * self.n_tokens

    @property
    def seconds(self) -> float:
        """Duration of the training steps on all GPUs, at the utilisation `mfu`."""
        return self.total_flops / (self.n_gpus * self.gpu.flops(self.precision) * self.mfu)

    @property
    def gpu_hours(self) -> float:
        return self.seconds * self.n_gpus / 3600

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.price * self.gpu_hours

    def to_dict(self) -> dict[str, Any]:
        """Return the plan in JSON types."""
        per_token = self.shape.n_rows * self.shape.n_tokens
        memory: dict[str, int | None] = asdict(self.layout.memory) | {"total": self.layout.memory.total}
        layouts: list[dict[str, Any]] = [
            {
                "strategy": layout.strategy,
                "activation_checkpointing": "half" if layout.checkpointing == 2 else bool(layout.checkpointing),
                "bytes": layout.memory.total,
                "fits": self._fits(layout),
            }
            for layout in self.layouts
        ]
        flags = self.flags if self.layout.fits else None
        least_gpus = self.least_gpus
        # Numbers that depend on memory that is not counted
        if self.unknown is not None:
            memory |= {"logits": None, "total": None}
            layouts = [layout | {"bytes": None} for layout in layouts]
            least_gpus = None
        return {
            "name": self.name,
            "parameters": asdict(self.parameters) | {"total": self.parameters.total, "active": self.parameters.active},
            "forward_flops_per_token": {part: n / per_token for part, n in asdict(self.forward).items()},
            "training_flops_per_token": self.training_per_token,
            "micro_batch": asdict(self.shape),
            "precision": self.precision,
            "memory_bytes": memory,
            "cache_bytes": self.cache_bytes,
            "layouts": layouts,
            "fits": self._fits(self.layout),
            "flags": flags,
            "least_gpus": least_gpus,
            "gpu": self.gpu.name,
            "n_gpus": self.n_gpus,
            "usable_bytes": self.gpu.usable_bytes,
            "grad_accumulation": self.grad_accumulation,
            "n_tokens": self.n_tokens,
            "training_flops": self.total_flops,
            "mfu": self.mfu,
            "seconds": self.seconds,
            "gpu_hours": self.gpu_hours,
            "cost": self.cost,
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "unknown": self.unknown,
        }

    def _fits(self, layout: Layout) -> bool | None:
        """Return None if the counted memory fits and some is not counted."""
        return None if layout.fits and self.unknown is not None else layout.fits


def plan_run(
    run: Run,
    gpu: Gpu,
    n_gpus: int = 1,
    *,
    n_tokens: int | None = None,
    context: int | None = None,
    given: Mapping[str, str] | None = None,
) -> Plan:
    """Plan a run in which each GPU reads micro-batches of `train.batch_size` rows (or `data.batch_tokens` tokens).

    The GPUs share the micro-batches of a step, so `train.grad_accumulation` is raised to the next multiple of their
    number. `n_tokens` is the number of tokens of the whole run (default: those of its steps). `context` is the length
    of a row, on both sides of an encoder-decoder. `given` holds the user's flags by key (`train.batch-size`).
    Raises `UserError` for numbers out of range, for a precision that the GPU does not support, and for a vocabulary
    size that only the data can decide.

    >>> from glassformer.cost.hardware import find_gpu
    >>> from glassformer.config.presets import preset
    >>> plan = plan_run(Run(model=preset("gpt2")), find_gpu("h200"))
    >>> plan.layout.strategy, plan.layout.fits, plan.n_tokens == 2000 * 32 * 1024
    ('none', True, True)
    """
    _check(run, n_gpus, n_tokens)
    if run.train.precision == "auto":
        run = replace(run, train=replace(run.train, precision=gpu.best_precision))
    # The micro-batch of a GPU
    config, assumptions = _complete(run)
    batch = micro_batch(run)
    shape = full_shape(batch, config, context)
    train, half = run.train, run.train.precision in HALF
    gpu.flops(train.precision)  # raises if the GPU does not support it
    # The activations that it stores, without and with recomputation of the blocks
    recomputation = _recomputation(config, train)
    stored = {every: activations_of(run, config, shape, Kernels(half), every) for every in recomputation}
    # The step of all GPUs
    grad_accumulation = n_gpus * -(-train.grad_accumulation // n_gpus)
    settings = {key.replace("_", "-"): value for key, value in (given or {}).items()}
    if grad_accumulation != train.grad_accumulation:
        settings["train.grad-accumulation"] = str(grad_accumulation)
    least_gpus = _least_gpus(config, train, stored, gpu)
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
        layouts=tuple(_layouts(config, run, stored, gpu, n_gpus)),
        least_gpus=least_gpus,
        cache_bytes=cache_bytes(config, 1, shape.n_tokens, shape.n_source),
        grad_accumulation=grad_accumulation,
        n_tokens=n_tokens,
        gpu=gpu,
        n_gpus=n_gpus,
        assumptions=assumptions,
        notes=tuple(_notes(train, grad_accumulation, of_batch, n_gpus, least_gpus)),
        settings=settings,
        unknown=unknown_loss(run),
        teacher=None if run.teacher is None else forward_flops(teacher_config(run.teacher), shape),
    )


def step_flops(run: Run) -> int:
    """Return the training FLOPs of a step of full rows; a vocabulary that the data decides counts as empty."""
    return run.train.grad_accumulation * training_flops(run.model, full_shape(micro_batch(run), run.model))


def least_seconds(run: Run, n_processes: int) -> float:
    """Return a lower bound of the time of the steps on GPUs: the time on the fastest known GPU, at the default MFU."""
    rate = max(gpu.flops(run.train.precision) for gpu in GPUS.values() if gpu.has_bf16)
    return run.train.max_steps * step_flops(run) / n_processes / (MFU * rate)


def _notes(
    train: TrainConfig, grad_accumulation: int, of_batch: int, n_gpus: int, least_gpus: int | None
) -> Iterator[str]:
    if grad_accumulation != train.grad_accumulation:
        yield (
            f"{n_gpus:,} GPUs share the micro-batches of a step, so train.grad_accumulation "
            f"{train.grad_accumulation:,} becomes {grad_accumulation:,}: "
            f"a step reads {grad_accumulation * of_batch:,} tokens, not {train.grad_accumulation * of_batch:,}"
        )
    if not _divides(train) and (n_gpus > 1 or least_gpus is None):
        yield (
            f"{train.optimizer.kind} needs whole matrices on every GPU, so only ddp is planned; for sharding, use "
            "--train.optimizer.kind adamw"
        )


def _divides(train: TrainConfig) -> bool:
    """Return True if the optimizer of `train` supports sharded weights."""
    return not train.optimizer.traits.needs_whole_matrices


def _layouts(config: ModelConfig, run: Run, stored: dict[int, Activations], gpu: Gpu, n_gpus: int) -> Iterator[Layout]:
    """Yield replicated layouts, then those sharded over all GPUs (more traffic).

    Layouts that recompute more blocks come after all that recompute fewer: a second forward pass of all blocks costs a
    third of the time, and that of every second block half as much.
    """
    train = run.train
    for checkpointing, of_batch in stored.items():
        whole = training_memory(config, train, of_batch)
        replicated = "none" if n_gpus == 1 else "ddp"
        layouts = [(replicated, 1, whole)]
        if _divides(train) and n_gpus > 1:
            layouts.append(("fsdp", n_gpus, sharded(whole, config, train, n_gpus)))
        for strategy, n_parts, memory in layouts:
            yield Layout(strategy, n_parts, checkpointing, memory, memory.total <= gpu.usable_bytes)


def _recomputation(config: ModelConfig, train: TrainConfig) -> list[int]:
    """Return the possible values of `Layout.checkpointing`, from the least recomputation to the most."""
    if isinstance(config, RecurrentConfig):
        return [0]  # no blocks to recompute
    if train.recompute_every:
        return [train.recompute_every]
    if all(stack.n_layers < 2 for stack in config.stacks.values()):
        return [0, 1]  # every second block of a stack of one block is that block
    return [0, 2, 1]


def _least_gpus(config: ModelConfig, train: TrainConfig, stored: dict[int, Activations], gpu: Gpu) -> int | None:
    """Return the smallest number of GPUs that can hold the run, sharded if necessary; None if it never fits."""
    of_recomputations = [training_memory(config, train, of_batch) for of_batch in stored.values()]
    whole = min(of_recomputations, key=lambda memory: memory.total)
    if whole.total <= gpu.usable_bytes:
        return 1
    if not _divides(train):
        return None
    fixed = sharded(whole, config, train, 1)
    room = gpu.usable_bytes - (fixed.total - fixed.state)
    if room <= 0:
        return None
    return max(2, math.ceil(whole.state / room))


def _check(run: Run, n_gpus: int, n_tokens: int | None) -> None:
    for name, number in (("gpus", n_gpus), ("tokens", n_tokens)):
        if number is not None and number < 1:
            raise UserError(f"--{name} is {number} and must be at least 1")
    if run.lora is not None or run.init.freeze:
        raise UserError("plan supports only runs that train all weights: leave out [lora] and init.freeze")


def _complete(run: Run) -> tuple[ModelConfig, tuple[str, ...]]:
    """Fill in what data and tokenizer would decide; return the model and one sentence per assumption."""
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
    """Return a full micro-batch: rows of the context length, or as many of them as the token budget allows.

    No row is longer than the budget (`TokenBudget`).
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
