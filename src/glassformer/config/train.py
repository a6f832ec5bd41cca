"""The sections `[train]` and `[parallel]` of a recipe: training loop, optimizers and schedules."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from glassformer.common.errors import UserError
from glassformer.config.extensions import OPTIMIZERS, Extensible
from glassformer.config.schema import Range, at_most, checked, setting

MAX_ROWS = 1 << 24  # per micro-batch: the loss of more rows would take tens of GiB
MAX_ACCUMULATION = 1 << 20  # all micro-batches of a step are in memory together
MAX_PROFILED = 1000  # steps in a trace, of which each takes megabytes
UNPROFILED = 5  # first steps of a process, which allocate memory and compile
CHANGEABLE = (
    "train.max_steps",
    "train.max_time",
    "train.device",
    "train.background_saving",
    "train.activation_checkpointing",
    "train.profile_steps",
    "parallel.",
)
"""Keys, or beginnings of keys, that a resumed run may change."""
NEW_RUN = "start a new run from its weights with --init.path DIR"
DEVICES = "auto, cpu, cuda, cuda:N or mps"
DEVICE = Range(f"be {DEVICES}", lambda name: re.fullmatch(r"auto|(cpu|cuda|mps|xpu)(:\d+)?", name) is not None)
BETAS = Range("be below 1", lambda betas: all(0 <= beta < 1 for beta in betas))
AUTO = "auto"
"""Value of `metric` in a watcher: the data then decides which metric is watched."""
UNBALANCED = 5.0
"""Labels are unbalanced if one occurs more than this many times as often as another."""
COUNTER = "step"
"""Name of the step counter, the only state tensor of an optimizer that has not its parameter's shape: it is one number.
"""


@dataclass(frozen=True)
class OptimizerTraits:
    """Facts about an optimizer besides its settings, for planning, sharding, checkpoints and plots.

    No field has a default, so a forgotten one is an error.
    """

    module: str
    """Module whose function `build(model, settings)` makes the optimizer (see `training/optimizers/build.py`)."""
    state: tuple[str, ...]
    """Names of the state tensors that the optimizer keeps for a parameter."""
    matrix_state: tuple[str, ...]
    """Names of the state tensors for a matrix of a block or of a recurrent layer."""
    needs_whole_matrices: bool
    """True if the weights cannot be divided among processes."""

    def n_numbers(self, n_parameters: int, n_in_matrices: int) -> int:
        """Return how many numbers the optimizer keeps for `n_parameters`, of which `n_in_matrices` are in matrices."""
        of_matrix, of_other = (len({*names} - {COUNTER}) for names in (self.matrix_state, self.state))
        return of_matrix * n_in_matrices + of_other * (n_parameters - n_in_matrices)


_MOMENTS = (COUNTER, "exp_avg", "exp_avg_sq")
_ADAM = OptimizerTraits(
    module="glassformer.training.optimizers.build",
    state=_MOMENTS,
    matrix_state=_MOMENTS,
    needs_whole_matrices=False,
)


@checked
class AdamConfig:
    """Adam (Kingma 2015); weight decay is added to the gradient."""

    kind: ClassVar[str] = "adam"
    traits: ClassVar[OptimizerTraits] = _ADAM
    learning_rate: float = setting(1e-3, "peak learning rate", "(0, ∞)")
    betas: tuple[float, float] = setting((0.9, 0.98), "decay rates of the two moments", BETAS)
    eps: float = setting(1e-9, "constant added to the square root of the second moment", "≥ 0")
    weight_decay: float = setting(0.0, "coefficient of the L2 penalty", "[0, ∞)")
    decay: Literal["matrices", "matrices_and_embeddings"] = setting("matrices", "weights that decay")


@checked
class AdamWConfig:
    """Adam with decoupled weight decay (Loshchilov 2019), as a fused kernel."""

    kind: ClassVar[str] = "adamw"
    traits: ClassVar[OptimizerTraits] = _ADAM
    learning_rate: float = setting(1e-3, "peak learning rate", "(0, ∞)")
    betas: tuple[float, float] = setting((0.9, 0.95), "decay rates of the two moments", BETAS)
    eps: float = setting(1e-8, "constant added to the square root of the second moment", "≥ 0")
    weight_decay: float = setting(0.1, "decoupled weight decay", "[0, ∞)")
    decay: Literal["matrices", "matrices_and_embeddings"] = setting("matrices", "weights that decay")


@checked
class MuonConfig:
    """Muon (Jordan 2024) for hidden matrices, AdamW for all other parameters."""

    kind: ClassVar[str] = "muon"
    traits: ClassVar[OptimizerTraits] = OptimizerTraits(
        module="glassformer.training.optimizers.muon",
        state=_MOMENTS,
        matrix_state=("momentum",),
        needs_whole_matrices=False,
    )
    momentum: ClassVar[float] = 0.95  # of Nesterov, for the matrices
    learning_rate: float = setting(0.02, "peak learning rate of the matrices", "(0, ∞)")
    weight_decay: float = setting(0.0, "decoupled weight decay of the matrices", "[0, ∞)")
    adamw_learning_rate: float = setting(1e-3, "peak learning rate of AdamW", "(0, ∞)")
    adamw_weight_decay: float = setting(0.0, "decoupled weight decay of AdamW", "[0, ∞)")

    @property
    def adamw(self) -> AdamWConfig:
        """AdamW for embeddings, head, norms and biases."""
        return AdamWConfig(self.adamw_learning_rate, weight_decay=self.adamw_weight_decay)


@checked
class ConstantSchedule:
    """Linear warm-up, then the peak learning rate."""

    kind: ClassVar[str] = "constant"
    warmup_steps: int = setting(0, "steps of linear warm-up to the peak learning rate", "≥ 0")


@checked
class CosineSchedule:
    """Linear warm-up, then decay along half a cosine to final_ratio × peak."""

    kind: ClassVar[str] = "cosine"
    warmup_steps: int = setting(100, "steps of linear warm-up to the peak learning rate", "≥ 0")
    decay_steps: int = setting(0, "step at which the decay ends; 0 = max_steps", "≥ 0")
    final_ratio: float = setting(0.1, "final learning rate as a fraction of the peak", "[0, 1]")


@checked
class LinearSchedule:
    """Linear warm-up, then linear decay to final_ratio × peak."""

    kind: ClassVar[str] = "linear"
    warmup_steps: int = setting(100, "steps of linear warm-up to the peak learning rate", "≥ 0")
    decay_steps: int = setting(0, "step at which the decay ends; 0 = max_steps", "≥ 0")
    final_ratio: float = setting(0.0, "final learning rate as a fraction of the peak", "[0, 1]")


@checked
class InverseSqrtSchedule:
    """Linear warm-up, then peak × (warmup_steps / step)^½ (Vaswani 2017, equation 3, peak normalised to 1)."""

    kind: ClassVar[str] = "inverse_sqrt"
    warmup_steps: int = setting(4000, "steps of linear warm-up to the peak learning rate", "≥ 0")


@checked
class PlateauSchedule:
    """Learning rate × ratio when a validation metric has not improved for `patience` evaluations."""

    kind: ClassVar[str] = "plateau"
    warmup_steps: int = setting(0, "steps of linear warm-up to the peak learning rate", "≥ 0")
    patience: int = setting(2, "evaluations without improvement before the learning rate drops", "≥ 0")
    ratio: float = setting(0.5, "factor by which the learning rate drops, to a hundredth of the peak", "[0, 1]")
    metric: str = setting("loss", "validation loss or score to watch")


@checked
class WarmupStableDecaySchedule:
    """Linear warm-up, constant peak learning rate, then linear decay to final_ratio × peak in the last fifth."""

    kind: ClassVar[str] = "warmup_stable_decay"
    warmup_steps: int = setting(100, "steps of linear warm-up to the peak learning rate", "≥ 0")
    final_ratio: float = setting(0.0, "final learning rate as a fraction of the peak", "[0, 1]")


OptimizerConfig = Annotated[AdamConfig | AdamWConfig | MuonConfig, Extensible(OPTIMIZERS)]
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
    """Early stop when a validation metric has not improved for `patience` evaluations."""

    metric: str = setting(
        "loss",
        "validation loss or score; it also selects the best checkpoint (to select only, set a large patience); auto = "
        f"loss, or for labels accuracy, or macro_f1 if one label occurs more than {UNBALANCED:g} times as often as "
        "another",
    )
    patience: int = setting(5, "evaluations without improvement before the stop", "≥ 1")


@checked
class TrainConfig:
    """Settings of the training loop."""

    section: ClassVar[str] = "train."
    max_steps: int = setting(2000, "number of optimizer steps", "≥ 1")
    batch_size: int = setting(32, "rows per micro-batch", "≥ 1", at_most(MAX_ROWS))
    grad_accumulation: int = setting(1, "micro-batches per optimizer step", "≥ 1", at_most(MAX_ACCUMULATION))
    optimizer: OptimizerConfig = setting(AdamWConfig(), "the optimizer")
    schedule: ScheduleConfig = setting(CosineSchedule(), "the learning-rate schedule")
    clip_norm: float = setting(1.0, "maximum 2-norm of the gradient over all parameters; 0 = no clipping", "≥ 0")
    seed: int = setting(0, "seed of the initial weights, the batches and the dropout", "≥ 0")
    device: str = setting("auto", DEVICES, DEVICE)
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = setting(
        "auto",
        "bf16, fp16 = autocast with weights and sums in fp32; fp16 also scales the loss; tf32 = fp32, with products in "
        "TF32 on CUDA; auto = bf16 where the device is faster in it, otherwise fp32",
    )
    deterministic: bool = setting(False, "use kernels that give the same bits every time; slower on CUDA")
    compile: Literal["auto"] | bool = setting(
        "auto",
        "compile the step (torch.compile); not for recurrent models or experts; auto = on CUDA, if all rows have one "
        "length and the run takes much longer than the compiler",
    )
    activation_checkpointing: Literal["auto", "half"] | bool = setting(
        "auto",
        "recompute blocks in the backward pass to save memory; half = every second block; auto = all blocks if a "
        "single row does not fit without",
    )
    ema_decay: float = setting(0.0, "decay of the moving average of the weights, used to evaluate; 0 = off", "[0, 1)")
    eval_every: int = setting(250, "steps between evaluations", "≥ 1")
    checkpoint_every: int = setting(0, "steps between checkpoints; 0 = at each evaluation", "≥ 0")
    log_every: int = setting(10, "steps between lines of metrics.jsonl", "≥ 1")
    keep_checkpoints: int = setting(2, "number of newest checkpoints to keep, besides the best", "≥ 1")
    background_saving: bool = setting(True, "write checkpoints while training continues")
    select: Literal["best", "last", "average"] = setting(
        "best", "weights in the run folder at the end; average = the mean of the kept checkpoints"
    )
    early_stopping: EarlyStopping | None = setting(None, "early stopping; none = train for max_steps")
    on_nonfinite: Literal["stop", "skip", "rollback"] = setting(
        "stop",
        "action after a NaN or Inf loss or gradient; rollback = resume the last checkpoint at half the learning rate",
    )
    max_time: float = setting(0.0, "time limit in seconds, after which the run saves and stops; 0 = no limit", "≥ 0")
    tensorboard: bool = setting(False, "also write TensorBoard events (extra: log)")
    profile_steps: int = setting(
        0,
        f"steps whose operations are written to trace.json, after the first {UNPROFILED}; 0 = none",
        "≥ 0",
        at_most(MAX_PROFILED),
    )

    @property
    def recompute_every(self) -> int:
        """0 = no block is recomputed in the backward pass, 1 = all, 2 = every second one; 0 for `auto`."""
        return {True: 1, "half": 2}.get(self.activation_checkpointing, 0)

    @property
    def watchers(self) -> "dict[str, EarlyStopping | PlateauSchedule]":
        """The settings that watch a validation metric. The key is the dotted key of the setting."""
        settings = {"train.early_stopping": self.early_stopping, "train.schedule": self.schedule}
        return {key: each for key, each in settings.items() if isinstance(each, (EarlyStopping, PlateauSchedule))}

    def watching(self, metric: str) -> "TrainConfig":
        """Return the settings with a metric in place of `AUTO`."""
        open_ = {key: each for key, each in self.watchers.items() if each.metric == AUTO}
        changes: dict[str, Any] = {
            key.removeprefix(self.section): replace(each, metric=metric) for key, each in open_.items()
        }
        return replace(self, **changes)


@checked
class ParallelConfig:
    """Processes started by `torchrun` share the micro-batches of a step; their number changes only the run time."""

    section: ClassVar[str] = "parallel."
    strategy: Literal["ddp", "fsdp"] = setting("ddp", "ddp = each process has the whole model; fsdp = one part of it")
    timeout: float = setting(600.0, "seconds to wait for another process before the run ends", "> 0")


def require_changeable(keys: Iterable[str]) -> None:
    """Raise `UserError` for a key that a resumed run must not change.

    >>> require_changeable(["train.max-steps", "parallel.strategy"])
    """
    for key in keys:
        if not key.replace("-", "_").startswith(CHANGEABLE):
            raise UserError(f"resume cannot change {key}: it continues with the settings of the run; {NEW_RUN}")
