"""How a run trains: the `[train]` section of a recipe, its optimizers and schedules."""

from typing import ClassVar, Literal

from glassformer.config.schema import Range, at_most, checked, setting

MAX_ROWS = 1 << 24  # of a micro-batch: the loss alone would take tens of GiB
MAX_ACCUMULATION = 1 << 20  # the micro-batches of a step are in memory together
MAX_ITERATIONS = 1000  # of Newton-Schulz: a hundred times what helps
BETAS = Range("be below 1", lambda betas: all(0 <= beta < 1 for beta in betas))


@checked
class AdamConfig:
    """Adam (Kingma 2015); decay is added to the gradient."""

    kind: ClassVar[str] = "adam"
    learning_rate: float = setting(1e-3, "peak step size", "(0, ∞)")
    betas: tuple[float, float] = setting((0.9, 0.98), "decay of the two moments", BETAS)
    eps: float = setting(1e-9, "added to the root of the second moment", "≥ 0")
    weight_decay: float = setting(0.0, "L2 coefficient", "[0, ∞)")
    decay: Literal["matrices", "matrices_and_embeddings"] = setting("matrices", "which weights decay")


@checked
class AdamWConfig:
    """Adam with decoupled weight decay (Loshchilov 2019), fused."""

    kind: ClassVar[str] = "adamw"
    learning_rate: float = setting(1e-3, "peak step size", "(0, ∞)")
    betas: tuple[float, float] = setting((0.9, 0.95), "decay of the two moments", BETAS)
    eps: float = setting(1e-8, "added to the root of the second moment", "≥ 0")
    weight_decay: float = setting(0.1, "decoupled decay", "[0, ∞)")
    decay: Literal["matrices", "matrices_and_embeddings"] = setting("matrices", "which weights decay")


@checked
class MuonConfig:
    """Muon (Jordan 2024) for the hidden matrices, AdamW for everything else."""

    kind: ClassVar[str] = "muon"
    learning_rate: float = setting(0.02, "peak step size of the matrices", "(0, ∞)")
    momentum: float = setting(0.95, "Nesterov momentum of the matrices", "[0, 1)")
    ns_steps: int = setting(5, "Newton-Schulz iterations", "≥ 1", at_most(MAX_ITERATIONS))
    adjust: Literal["original", "match_rms_adamw"] = setting("original", "scale of a matrix's step by its shape")
    weight_decay: float = setting(0.0, "decoupled decay of the matrices", "[0, ∞)")
    adamw: AdamWConfig = setting(AdamWConfig(weight_decay=0.0), "for embeddings, head, norms and biases")


@checked
class ConstantSchedule:
    """The peak rate after a linear warm-up."""

    kind: ClassVar[str] = "constant"
    warmup_steps: int = setting(0, "steps of linear growth to the peak rate", "≥ 0")


@checked
class CosineSchedule:
    """Linear warm-up, then half a cosine to final_ratio × peak."""

    kind: ClassVar[str] = "cosine"
    warmup_steps: int = setting(100, "steps of linear growth to the peak rate", "≥ 0")
    decay_steps: int = setting(0, "step at which the floor is reached; 0 = max_steps", "≥ 0")
    final_ratio: float = setting(0.1, "the floor as a share of the peak rate", "[0, 1]")


@checked
class LinearSchedule:
    """Linear warm-up, then a straight line to final_ratio × peak."""

    kind: ClassVar[str] = "linear"
    warmup_steps: int = setting(100, "steps of linear growth to the peak rate", "≥ 0")
    decay_steps: int = setting(0, "step at which the floor is reached; 0 = max_steps", "≥ 0")
    final_ratio: float = setting(0.0, "the floor as a share of the peak rate", "[0, 1]")


@checked
class InverseSqrtSchedule:
    """Linear warm-up, then × (warmup_steps / step)^½ (Vaswani 2017, equation 3, peak normalised to 1)."""

    kind: ClassVar[str] = "inverse_sqrt"
    warmup_steps: int = setting(4000, "steps of linear growth to the peak rate", "≥ 0")


@checked
class PlateauSchedule:
    """× ratio whenever the validation metric has not improved for `patience` evaluations."""

    kind: ClassVar[str] = "plateau"
    warmup_steps: int = setting(0, "steps of linear growth to the peak rate", "≥ 0")
    patience: int = setting(2, "evaluations without improvement before the rate drops", "≥ 0")
    ratio: float = setting(0.5, "factor of a drop", "[0, 1]")
    min_ratio: float = setting(0.01, "the floor as a share of the peak rate", "[0, 1]")
    metric: str = setting("loss", "the validation loss or score that is watched")
    higher_is_better: bool = setting(False, "true for scores such as accuracy or BLEU")


@checked
class WarmupStableDecaySchedule:
    """Linear warm-up, the peak rate, then a straight line to final_ratio × peak."""

    kind: ClassVar[str] = "warmup_stable_decay"
    warmup_steps: int = setting(100, "steps of linear growth to the peak rate", "≥ 0")
    decay_fraction: float = setting(0.2, "share of max_steps that the decay takes", "[0, 1]")
    final_ratio: float = setting(0.0, "the floor as a share of the peak rate", "[0, 1]")


OptimizerConfig = AdamConfig | AdamWConfig | MuonConfig
ScheduleConfig = (
    ConstantSchedule
    | CosineSchedule
    | LinearSchedule
    | InverseSqrtSchedule
    | PlateauSchedule
    | WarmupStableDecaySchedule
)


@checked
class EarlyStopping:
    """Stop when a validation metric has not improved for `patience` evaluations."""

    metric: str = setting(
        "loss", "a validation loss or score; `best` is best by it, so give a long patience to only choose"
    )
    patience: int = setting(5, "evaluations without improvement", "≥ 1")
    higher_is_better: bool = setting(False, "true for scores such as accuracy or BLEU")


@checked
class TrainConfig:
    """The loop."""

    section: ClassVar[str] = "train."
    max_steps: int = setting(2000, "optimizer steps", "≥ 1")
    batch_size: int = setting(32, "rows of a micro-batch", "≥ 1", at_most(MAX_ROWS))
    grad_accumulation: int = setting(1, "micro-batches of an optimizer step", "≥ 1", at_most(MAX_ACCUMULATION))
    optimizer: OptimizerConfig = setting(AdamWConfig(), "how gradients become steps")
    schedule: ScheduleConfig = setting(CosineSchedule(), "how the rate changes")
    clip_norm: float = setting(1.0, "longest gradient, as a 2-norm over all parameters; 0 = never clipped", "≥ 0")
    seed: int = setting(0, "of the weights, the batches and the dropout", "≥ 0")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps")
    precision: Literal["fp32", "bf16", "fp16"] = setting(
        "fp32", "bf16, fp16 = autocast; weights and sums stay in fp32, and fp16 scales the loss"
    )
    matmul_precision: Literal["highest", "high", "medium"] = setting(
        "highest", "fp32 matrix products: highest = exact fp32; high = TF32 on CUDA; medium = also bf16"
    )
    deterministic: bool = setting(False, "kernels that give the same bits every time, also on CUDA; slower there")
    compile: bool = setting(False, "compile the step (torch.compile); not for recurrent models")
    activation_checkpointing: bool = setting(False, "recompute blocks in the backward pass to save memory")
    ema_decay: float = setting(0.0, "moving average of the weights, used for evaluation; 0 = none", "[0, 1)")
    eval_every: int = setting(250, "steps between evaluations", "≥ 1")
    checkpoint_every: int = setting(0, "steps between checkpoints; 0 = at evaluations", "≥ 0")
    log_every: int = setting(10, "steps between lines of metrics.jsonl", "≥ 1")
    keep_checkpoints: int = setting(2, "newest checkpoints that are kept, beside the best", "≥ 1")
    background_saving: bool = setting(True, "write checkpoints while the next steps are computed")
    select: Literal["best", "last", "average"] = setting(
        "best", "the weights that the run's folder holds in the end; average = the mean of the checkpoints kept"
    )
    early_stopping: EarlyStopping | None = setting(None, "stop before max_steps")
    on_nonfinite: Literal["stop", "skip", "rollback"] = setting(
        "stop",
        "what to do after a loss or gradient of NaN or Inf: rollback = back to the last checkpoint, at half the rate",
    )
    max_time: float = setting(0.0, "seconds after which the process saves and stops; 0 = none", "≥ 0")
    tensorboard: bool = setting(False, "also write TensorBoard events (extra: log)")

    @property
    def watchers(self) -> "dict[str, EarlyStopping | PlateauSchedule]":
        """The settings that watch a validation metric, by their keys."""
        settings = {"train.early_stopping": self.early_stopping, "train.schedule": self.schedule}
        return {key: found for key, found in settings.items() if isinstance(found, (EarlyStopping, PlateauSchedule))}


@checked
class ParallelConfig:
    """Several processes, as `torchrun` starts them. They deal out the micro-batches of a step among themselves, so the
    number of processes changes the time of a run and not its course."""

    section: ClassVar[str] = "parallel."
    strategy: Literal["ddp", "fsdp", "hybrid"] = setting(
        "ddp", "ddp = every process holds all; fsdp = each a part of it; hybrid = parts within groups, groups alike"
    )
    shard_size: int = setting(0, "processes of a group of hybrid, which hold one copy; 0 = those of one machine", "≥ 0")
    cpu_offload: bool = setting(False, "fsdp: weights and optimizer stay in the memory of the CPU between uses")
    timeout: float = setting(600.0, "seconds that the processes wait for one of them before the run ends", "> 0")
    prepare_timeout: float = setting(
        21600.0, "seconds that the processes wait for the first one to read the data and learn the tokenizer", "> 0"
    )
