"""What a run will cost on given GPUs: parameters, FLOPs, memory, time, price, and the layout that fits."""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from glassformer.config.recurrent import ModelConfig, RecurrentConfig
from glassformer.config.run import Run
from glassformer.config.train import MuonConfig, TrainConfig
from glassformer.config.transformer import PositionHead, SequenceHead, TransformerConfig
from glassformer.cost.activations import Activations, Kernels, activations
from glassformer.cost.flops import Flops, Shape, forward_flops, training_flops
from glassformer.cost.hardware import MFU, Gpu
from glassformer.cost.memory import Memory, cache_bytes, sharded, training_memory
from glassformer.cost.parameters import ParameterCounts, parameter_counts
from glassformer.errors import UserError
from glassformer.models.build import build_model
from glassformer.tasks.batches import MicroBatch
from glassformer.tasks.preparation import micro_batch

NODE = 8
"""GPUs of one machine, between which a gathered layer travels fast."""
_N_LABELS = 2


@dataclass(frozen=True)
class Layout:
    """One way to spread a run over GPUs, and the memory of each of them."""

    strategy: str
    """As [parallel] names it: none, ddp, fsdp, or hybrid (divided within a group, repeated across groups)."""
    n_parts: int
    """GPUs that hold one copy together."""
    checkpointing: bool
    memory: Memory
    fits: bool

    @property
    def flags(self) -> dict[str, str]:
        """What `train` is told, by key; a switch has no value."""
        flags = {} if self.strategy == "none" else {"parallel.strategy": self.strategy}
        flags |= {"parallel.shard-size": str(self.n_parts)} if self.strategy == "hybrid" else {}
        return flags | ({"train.activation-checkpointing": ""} if self.checkpointing else {})


@dataclass(frozen=True)
class Plan:
    """Everything that is known before a run."""

    name: str
    config: ModelConfig
    shape: Shape
    """Of a micro-batch on each GPU."""
    precision: str
    n_parameters: int
    """Of the network, built without memory on the meta device."""
    parameters: ParameterCounts
    """The same by part, in closed form."""
    forward: Flops
    """Of a micro-batch."""
    layouts: tuple[Layout, ...]
    """From the simplest to the one that needs the least memory; with the first that fits a run is planned."""
    least_gpus: int | None
    """As few GPUs as can hold it in some layout; None when no number can."""
    cache_bytes: int
    """Keys and values, or states, of one row that is generated to the full context."""
    grad_accumulation: int
    """Micro-batches of a step, over all GPUs: a multiple of their number, as `train` asks."""
    n_tokens: int
    """That the run reads."""
    mfu: float
    gpu: Gpu
    n_gpus: int
    price: float | None
    """Of a GPU for an hour, in whatever currency."""
    assumptions: tuple[str, ...]
    """What the configuration leaves open, and how it was counted."""
    notes: tuple[str, ...]
    """What `train` would refuse, and what is planned in its place."""
    settings: Mapping[str, str]
    """Flags by key: those that were given, and the accumulation where it is raised."""

    @property
    def flags(self) -> str:
        """With them, and as many processes as GPUs, `train` takes the configuration as it is planned."""
        of_layout = self.layout.flags
        flags = {key: shlex.quote(value) for key, value in self.settings.items() if key not in of_layout} | of_layout
        return " ".join(f"--{key} {value}".rstrip() for key, value in flags.items())

    @property
    def layout(self) -> Layout:
        """The first that fits, or else the last."""
        return next((layout for layout in self.layouts if layout.fits), self.layouts[-1])

    @property
    def forward_per_token(self) -> float:
        return self.forward.total / (self.shape.n_rows * self.shape.n_tokens)

    @property
    def training_per_token(self) -> float:
        """FLOPs, with the second forward where blocks are recomputed."""
        flops = training_flops(self.config, self.shape, self.layout.checkpointing)
        return flops / (self.shape.n_rows * self.shape.n_tokens)

    @property
    def total_flops(self) -> float:
        """Of the whole run."""
        return self.training_per_token * self.n_tokens

    @property
    def seconds(self) -> float:
        """Of training steps, on all GPUs at the stated utilisation."""
        return self.total_flops / (self.n_gpus * self.gpu.flops(self.precision) * self.mfu)

    @property
    def gpu_hours(self) -> float:
        return self.seconds * self.n_gpus / 3600

    @property
    def cost(self) -> float | None:
        return None if self.price is None else self.price * self.gpu_hours

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain numbers, for JSON."""
        per_token = self.shape.n_rows * self.shape.n_tokens
        return {
            "name": self.name,
            "parameters": asdict(self.parameters) | {"total": self.n_parameters},
            "forward_flops_per_token": {part: n / per_token for part, n in asdict(self.forward).items()},
            "training_flops_per_token": self.training_per_token,
            "micro_batch": asdict(self.shape),
            "precision": self.precision,
            "memory_bytes": asdict(self.layout.memory) | {"total": self.layout.memory.total},
            "cache_bytes": self.cache_bytes,
            "layouts": [
                {
                    "strategy": layout.strategy,
                    "activation_checkpointing": layout.checkpointing,
                    "bytes": layout.memory.total,
                    "fits": layout.fits,
                }
                for layout in self.layouts
            ],
            "fits": self.layout.fits,
            "flags": self.flags if self.layout.fits else None,
            "least_gpus": self.least_gpus,
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
        }


def plan_run(
    run: Run,
    gpu: Gpu,
    n_gpus: int = 1,
    *,
    n_tokens: int | None = None,
    mfu: float = MFU,
    price: float | None = None,
    context: int | None = None,
    given: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of a run, each GPU with micro-batches of `train.batch_size` rows (or `data.batch_tokens` tokens).

    The GPUs share the micro-batches of a step, so `train.grad_accumulation` is raised to the next
    multiple of their number.
    `n_tokens` are those of the whole run, by default those of its steps; `context` is the length of a row, on both
    sides of an encoder-decoder; `given` are the flags that made the run what it is, by key (`train.batch-size`).
    Raises `UserError` for numbers that cannot be, and for what the run leaves open.

    >>> from glassformer.cost.hardware import find_gpu
    >>> from glassformer.config.presets import preset
    >>> plan = plan_run(Run(model=preset("gpt2")), find_gpu("h200"))
    >>> plan.layout.strategy, plan.layout.fits, plan.n_tokens == 2000 * 32 * 1024
    ('none', True, True)
    """
    _check(run, n_gpus, n_tokens, mfu, price)
    config, assumptions = _complete(run)
    batch = micro_batch(run)
    shape = _shape(batch, config, context)
    train, half = run.train, run.train.precision != "fp32"
    gpu.flops(train.precision)  # it must have a rate for this
    plain, recomputed = (activations(config, shape, Kernels(half), on) for on in (False, True))
    kept = {True: recomputed} if train.activation_checkpointing else {False: plain, True: recomputed}
    if isinstance(config, RecurrentConfig):
        kept = {False: plain}  # it has no blocks to recompute
    grad_accumulation = n_gpus * -(-train.grad_accumulation // n_gpus)
    settings = {key.replace("_", "-"): value for key, value in (given or {}).items()}
    if grad_accumulation != train.grad_accumulation:
        settings["train.grad-accumulation"] = str(grad_accumulation)
    least_gpus = _least_gpus(config, train, kept, gpu)
    try:
        n_parameters = build_model(config, "meta").n_parameters()
    except RuntimeError as error:
        raise UserError("a tensor of this model has more numbers than can be counted: make it smaller") from error
    of_batch = batch.budget or shape.n_rows * shape.n_tokens
    return Plan(
        name=run.name,
        config=config,
        shape=shape,
        precision=train.precision,
        n_parameters=n_parameters,
        parameters=parameter_counts(config),
        forward=forward_flops(config, shape),
        layouts=tuple(_layouts(config, run, kept, gpu, n_gpus)),
        least_gpus=least_gpus,
        cache_bytes=cache_bytes(config, 1, shape.n_tokens, shape.n_source),
        grad_accumulation=grad_accumulation,
        n_tokens=train.max_steps * grad_accumulation * of_batch if n_tokens is None else n_tokens,
        mfu=mfu,
        gpu=gpu,
        n_gpus=n_gpus,
        price=price,
        assumptions=assumptions,
        notes=tuple(_notes(train, grad_accumulation, of_batch, n_gpus, least_gpus)),
        settings=settings,
    )


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
            "muon steps whole matrices, so every GPU holds all of them and only ddp is planned; --train.optimizer.kind "
            "adamw can be divided"
        )


def _divides(train: TrainConfig) -> bool:
    """Whether `train` takes this optimizer where a process holds parts of the weights."""
    return not isinstance(train.optimizer, MuonConfig)


def _layouts(config: ModelConfig, run: Run, kept: dict[bool, Activations], gpu: Gpu, n_gpus: int) -> Iterator[Layout]:
    """Whole copies first; then divided, within a group where there are several, because less travels between them.

    Blocks are recomputed where nothing else helps, for it costs a third of the time.
    """
    train, of_group = run.train, run.parallel.shard_size or NODE
    for checkpointing, of_batch in kept.items():
        whole = training_memory(config, train, of_batch)
        layouts = [("none" if n_gpus == 1 else "ddp", 1, whole)]
        if _divides(train) and 1 < of_group < n_gpus and n_gpus % of_group == 0:
            layouts.append(("hybrid", of_group, sharded(whole, config, train, of_group)))
        if _divides(train) and n_gpus > 1:
            layouts.append(("fsdp", n_gpus, sharded(whole, config, train, n_gpus)))
        for strategy, n_parts, memory in layouts:
            yield Layout(strategy, n_parts, checkpointing, memory, memory.total <= gpu.usable_bytes)


def _least_gpus(config: ModelConfig, train: TrainConfig, kept: dict[bool, Activations], gpu: Gpu) -> int | None:
    """One, or as many as the divided state needs beside what every GPU has for itself."""
    whole = training_memory(config, train, list(kept.values())[-1])  # recomputed, where it may be
    if min(training_memory(config, train, of_batch).total for of_batch in kept.values()) <= gpu.usable_bytes:
        return 1
    if not _divides(train):
        return None
    fixed = sharded(whole, config, train, 1)
    room = gpu.usable_bytes - (fixed.total - fixed.state)
    return max(2, math.ceil(whole.state / room)) if room > 0 else None


def _check(run: Run, n_gpus: int, n_tokens: int | None, mfu: float, price: float | None) -> None:
    for name, number in (("gpus", n_gpus), ("tokens", n_tokens)):
        if number is not None and number < 1:
            raise UserError(f"--{name} is {number} and must be at least 1")
    if not 0 < mfu <= 1:
        raise UserError(f"--mfu is {mfu} and must be above 0 and at most 1")
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"--price is {price} and must be a number that is not negative")
    if run.lora is not None or run.init.freeze:
        raise UserError("plan counts runs in which every weight learns: leave out [lora] and init.freeze")


def _complete(run: Run) -> tuple[ModelConfig, tuple[str, ...]]:
    """The model with what data and tokenizer would give it, and in words what was assumed."""
    config, said = run.model, []
    if not config.vocab_size:
        config = replace(config, vocab_size=_asked("vocab_size", run.tokenizer.vocab_size))
        said.append(f"vocabulary {config.vocab_size:,}, as [tokenizer] asks; a short text gives fewer")
        if run.init.path is not None and run.init.model == "same":
            said.append("the network of [model], though the run takes that of init.path")
    if run.source_tokenizer is not None and not config.source_vocab_size:
        size = _asked("source_vocab_size", run.source_tokenizer.vocab_size)
        config = replace(config, source_vocab_size=size)
        said.append(f"source vocabulary {size:,}, as [source_tokenizer] asks")
    has_labels = (PositionHead, SequenceHead)
    if isinstance(config, TransformerConfig) and isinstance(config.head, has_labels) and not config.head.n_labels:
        config = replace(config, head=replace(config.head, n_labels=_N_LABELS))
        said.append(f"{_N_LABELS} labels; the data says how many there are")
    return config, tuple(said)


def _asked(name: str, vocab_size: int) -> int:
    if not vocab_size:
        raise UserError(f"the text decides the vocabulary of this run: give --model.{name.replace('_', '-')} N")
    return vocab_size


def _shape(batch: MicroBatch, config: ModelConfig, context: int | None) -> Shape:
    """A full micro-batch: rows of the context, or as many of the longest as the budget of tokens holds."""
    n_tokens = context or batch.row_length or config.max_len
    if n_tokens > config.max_len or n_tokens < 1:
        raise UserError(f"the context is {n_tokens} and must be from 1 to model.max_len, {config.max_len}")
    n_source = (context or batch.row_length or config.encoder_max_len) if config.is_encoder_decoder else 0
    if n_source > config.encoder_max_len:
        raise UserError(f"the context is {n_source} and model.source_max_len only {config.source_max_len}")
    n_scored = max(1, round(batch.scored_share * n_tokens)) if batch.scored_share < 1 else 0
    return Shape(batch.rows(max(n_tokens, n_source)), n_tokens, n_source, n_scored)
