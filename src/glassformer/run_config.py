"""What a run is: the sections of a recipe beside `[model]`. `recipes/REFERENCE.toml` lists every key."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from glassformer.config import Stack, TransformerConfig
from glassformer.errors import UserError
from glassformer.recurrent_config import ModelConfig
from glassformer.settings import setting


def _require(fine: bool, name: str, value: object, must: str) -> None:
    if not fine:
        raise UserError(f"{name} is {value} and must {must}")


@dataclass(frozen=True)
class TokenizerConfig:
    """How text becomes ids."""

    path: str | None = setting(None, "a tokenizer.json to use as it is; none = learn one on the training text")
    flavour: Literal["byte", "char", "word", "whitespace"] = setting("byte", "what the text is cut into")
    vocab_size: int = setting(4096, "tokens to learn, special ones included; 0 = the alphabet, no merges")
    learner: Literal["glassformer", "tokenizers"] = setting("glassformer", "our own, or the Rust library's")
    special_tokens: tuple[str, ...] = setting(
        ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[CLS]", "[SEP]", "[MASK]"), "they take the first ids"
    )
    dropout: float = setting(0.0, "share of merges left out at random in the training text, once (BPE-dropout)")

    def __post_init__(self) -> None:
        """Raises `UserError` for a share that is none."""
        _require(0 <= self.dropout <= 1, "tokenizer.dropout", self.dropout, "be from 0 to 1")


@dataclass(frozen=True)
class WindowRows:
    """Random windows over one stream of tokens."""

    kind: ClassVar[str] = "windows"


@dataclass(frozen=True)
class ExampleRows:
    """One padded document an example, shuffled epochs."""

    kind: ClassVar[str] = "examples"


@dataclass(frozen=True)
class PackedRows:
    """Whole documents packed into rows; none sees its neighbours."""

    kind: ClassVar[str] = "packed"


@dataclass(frozen=True)
class TextData:
    """Text: where it is and how it is cut."""

    kind: ClassVar[str] = "text"
    is_default_kind: ClassVar[bool] = True
    path: str | None = setting(None, "a txt or jsonl file, a folder of them, or builtin:NAME")
    valid_path: str | None = setting(None, "validation text; none = a part of path that training never sees")
    valid_fraction: float = setting(0.1, "share held out for validation when valid_path is none")
    text_field: str = setting("text", "the field of a jsonl record that holds the text")
    arrangement: WindowRows | ExampleRows | PackedRows = setting(WindowRows(), "how documents become rows")
    context: int = setting(0, "tokens that a row feeds the model; 0 = model.max_len")
    cache_dir: str | None = setting(None, "where prepared tokens are kept; none = the user's cache folder")


@dataclass(frozen=True)
class PairData:
    """Pairs of a source and a target: two aligned files, or one file that holds both."""

    kind: ClassVar[str] = "pairs"
    source: str | None = setting(None, "the source side: a text file, one sentence a line")
    target: str | None = setting(None, "the target side: line i is the target of line i")
    valid_source: str | None = setting(None, "source side of the validation pairs; none = a part of the training pairs")
    valid_target: str | None = setting(None, "target side of the validation pairs")
    path: str | None = setting(None, "one file with both sides: tsv, csv, jsonl, builtin:NAME or hf:NAME")
    valid_path: str | None = setting(None, "the same for validation; none = a part of path, or its own split")
    source_field: str = setting("source", "column or field of the source")
    target_field: str = setting("target", "column or field of the target")
    valid_fraction: float = setting(0.1, "share of the pairs held out where no validation pairs are given")
    outputs: Literal["sentences", "pronunciations"] = setting(
        "sentences", "what a target is, and so which scores are told: BLEU and chrF, or error rates"
    )
    target_language: str = setting("en", "two letters; Moses' rules for the tokens of bleu_tok_lc depend on it")
    batch_tokens: int = setting(4096, "tokens of a micro-batch: rows × the longest side, padding included")
    cache_dir: str | None = setting(None, "where prepared tokens are kept; none = the user's cache folder")

    def __post_init__(self) -> None:
        """Raises `UserError` for numbers that mean nothing."""
        _require(self.batch_tokens >= 1, "data.batch_tokens", self.batch_tokens, "be at least 1")
        _require(0 < self.valid_fraction < 1, "data.valid_fraction", self.valid_fraction, "be above 0 and below 1")


@dataclass(frozen=True)
class CausalConfig:
    """Predict every next token."""

    kind: ClassVar[str] = "causal"
    is_default_kind: ClassVar[bool] = True
    label_smoothing: float = setting(0.0, "probability spread over the vocabulary; reported losses leave it out")

    def __post_init__(self) -> None:
        """Raises `UserError` for a probability that is none."""
        smoothing = self.label_smoothing
        _require(0 <= smoothing < 1, "objective.label_smoothing", smoothing, "be at least 0 and below 1")


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Predict every token of the target from the source and the target's tokens before it (teacher forcing)."""

    kind: ClassVar[str] = "seq2seq"
    label_smoothing: float = setting(0.1, "probability spread over the vocabulary; reported losses leave it out")

    def __post_init__(self) -> None:
        """Raises `UserError` for a probability that is none."""
        smoothing = self.label_smoothing
        _require(0 <= smoothing < 1, "objective.label_smoothing", smoothing, "be at least 0 and below 1")


@dataclass(frozen=True)
class AdamConfig:
    """Adam (Kingma 2015); decay is added to the gradient."""

    kind: ClassVar[str] = "adam"
    learning_rate: float = setting(1e-3, "peak step size")
    betas: tuple[float, float] = setting((0.9, 0.98), "decay of the two moments")
    eps: float = setting(1e-9, "added to the root of the second moment")
    weight_decay: float = setting(0.0, "L2 coefficient")
    decay: Literal["matrices", "matrices_and_embeddings"] = setting("matrices", "which weights decay")


@dataclass(frozen=True)
class AdamWConfig:
    """Adam with decoupled weight decay (Loshchilov 2019), fused."""

    kind: ClassVar[str] = "adamw"
    learning_rate: float = setting(1e-3, "peak step size")
    betas: tuple[float, float] = setting((0.9, 0.95), "decay of the two moments")
    eps: float = setting(1e-8, "added to the root of the second moment")
    weight_decay: float = setting(0.1, "decoupled decay")
    decay: Literal["matrices", "matrices_and_embeddings"] = setting("matrices", "which weights decay")


@dataclass(frozen=True)
class MuonConfig:
    """Muon (Jordan 2024) for the hidden matrices, AdamW for everything else."""

    kind: ClassVar[str] = "muon"
    learning_rate: float = setting(0.02, "peak step size of the matrices")
    momentum: float = setting(0.95, "Nesterov momentum of the matrices")
    n_steps: int = setting(5, "Newton-Schulz iterations")
    adjust: Literal["original", "match_rms_adamw"] = setting("original", "scale of a matrix's step by its shape")
    weight_decay: float = setting(0.0, "decoupled decay of the matrices")
    adamw: AdamWConfig = setting(AdamWConfig(weight_decay=0.0), "for embeddings, head, norms and biases")


@dataclass(frozen=True)
class ConstantSchedule:
    """The peak rate after a linear warm-up."""

    kind: ClassVar[str] = "constant"
    warmup_steps: int = setting(0, "steps of linear growth to the peak rate")


@dataclass(frozen=True)
class CosineSchedule:
    """Linear warm-up, then half a cosine to final_ratio × peak."""

    kind: ClassVar[str] = "cosine"
    warmup_steps: int = setting(100, "steps of linear growth to the peak rate")
    decay_steps: int = setting(0, "step at which the floor is reached; 0 = max_steps")
    final_ratio: float = setting(0.1, "the floor as a share of the peak rate")


@dataclass(frozen=True)
class LinearSchedule:
    """Linear warm-up, then a straight line to final_ratio × peak."""

    kind: ClassVar[str] = "linear"
    warmup_steps: int = setting(100, "steps of linear growth to the peak rate")
    decay_steps: int = setting(0, "step at which the floor is reached; 0 = max_steps")
    final_ratio: float = setting(0.0, "the floor as a share of the peak rate")


@dataclass(frozen=True)
class InverseSqrtSchedule:
    """Linear warm-up, then × (warmup_steps / step)^½ (Vaswani 2017, equation 3, peak normalised to 1)."""

    kind: ClassVar[str] = "inverse_sqrt"
    warmup_steps: int = setting(4000, "steps of linear growth to the peak rate")


@dataclass(frozen=True)
class PlateauSchedule:
    """× ratio whenever the validation metric has not improved for `patience` evaluations."""

    kind: ClassVar[str] = "plateau"
    warmup_steps: int = setting(0, "steps of linear growth to the peak rate")
    patience: int = setting(2, "evaluations without improvement before the rate drops")
    ratio: float = setting(0.5, "factor of a drop")
    min_ratio: float = setting(0.01, "the floor as a share of the peak rate")


@dataclass(frozen=True)
class WarmupStableDecaySchedule:
    """Linear warm-up, the peak rate, then a straight line to final_ratio × peak."""

    kind: ClassVar[str] = "warmup_stable_decay"
    warmup_steps: int = setting(100, "steps of linear growth to the peak rate")
    decay_fraction: float = setting(0.2, "share of max_steps that the decay takes")
    final_ratio: float = setting(0.0, "the floor as a share of the peak rate")


OptimizerConfig = AdamConfig | AdamWConfig | MuonConfig
ScheduleConfig = (
    ConstantSchedule
    | CosineSchedule
    | LinearSchedule
    | InverseSqrtSchedule
    | PlateauSchedule
    | WarmupStableDecaySchedule
)


@dataclass(frozen=True)
class EarlyStopping:
    """Stop when a validation metric has not improved for `patience` evaluations."""

    metric: str = setting(
        "loss", "a validation loss or score; `best` is best by it, so give a long patience to only choose"
    )
    patience: int = setting(5, "evaluations without improvement")
    higher_is_better: bool = setting(False, "true for scores such as accuracy or BLEU")


@dataclass(frozen=True)
class TrainConfig:
    """The loop."""

    max_steps: int = setting(2000, "optimizer steps")
    batch_size: int = setting(32, "rows of a micro-batch")
    accumulation: int = setting(1, "micro-batches of an optimizer step")
    optimizer: OptimizerConfig = setting(AdamWConfig(), "how gradients become steps")
    schedule: ScheduleConfig = setting(CosineSchedule(), "how the rate changes")
    clip_norm: float = setting(1.0, "longest gradient, as a 2-norm over all parameters; 0 = never clipped")
    seed: int = setting(0, "of the weights, the batches and the dropout")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps")
    precision: Literal["fp32", "bf16"] = setting("fp32", "bf16 = autocast; weights and sums stay in fp32")
    compile: bool = setting(False, "compile the step (torch.compile)")
    activation_checkpointing: bool = setting(False, "recompute blocks in the backward pass to save memory")
    ema_decay: float = setting(0.0, "moving average of the weights, used for evaluation; 0 = none")
    eval_every: int = setting(250, "steps between evaluations")
    checkpoint_every: int = setting(0, "steps between checkpoints; 0 = at evaluations")
    log_every: int = setting(10, "steps between lines of metrics.jsonl")
    keep_checkpoints: int = setting(2, "newest checkpoints that are kept, beside the best")
    select: Literal["best", "last", "average"] = setting(
        "best", "the weights that the run's folder holds in the end; average = the mean of the checkpoints kept"
    )
    early_stopping: EarlyStopping | None = setting(None, "stop before max_steps")
    tensorboard: bool = setting(False, "also write TensorBoard events (extra: log)")

    def __post_init__(self) -> None:
        """Raises `UserError` for numbers that cannot make a run."""
        for name in ("max_steps", "batch_size", "accumulation", "eval_every", "log_every", "keep_checkpoints"):
            _require(getattr(self, name) >= 1, f"train.{name}", getattr(self, name), "be at least 1")
        for name in ("checkpoint_every", "clip_norm", "seed"):
            _require(getattr(self, name) >= 0, f"train.{name}", getattr(self, name), "not be negative")
        _require(0 <= self.ema_decay < 1, "train.ema_decay", self.ema_decay, "be at least 0 and below 1")
        warmup = self.schedule.warmup_steps
        _require(warmup >= 0, "train.schedule.warmup_steps", warmup, "not be negative")
        for name in ("final_ratio", "min_ratio", "ratio", "decay_fraction"):
            share = getattr(self.schedule, name, 0.0)
            _require(0 <= share <= 1, f"train.schedule.{name}", share, "be from 0 to 1")
        for name in ("patience", "decay_steps"):
            number = getattr(self.schedule, name, 0)
            _require(number >= 0, f"train.schedule.{name}", number, "not be negative")
        if self.early_stopping is not None:
            patience = self.early_stopping.patience
            _require(patience >= 1, "train.early_stopping.patience", patience, "be at least 1")
        _check_optimizer("train.optimizer", self.optimizer)


def _check_optimizer(name: str, config: OptimizerConfig) -> None:
    rate, decay = config.learning_rate, config.weight_decay
    _require(0 < rate < float("inf"), f"{name}.learning_rate", rate, "be a positive number")
    _require(0 <= decay < float("inf"), f"{name}.weight_decay", decay, "not be negative")
    if isinstance(config, MuonConfig):
        _require(config.n_steps >= 1, f"{name}.n_steps", config.n_steps, "be at least 1")
        _require(0 <= config.momentum < 1, f"{name}.momentum", config.momentum, "be at least 0 and below 1")
        _check_optimizer(f"{name}.adamw", config.adamw)
    else:
        _require(all(0 <= beta < 1 for beta in config.betas), f"{name}.betas", list(config.betas), "be below 1")
        _require(config.eps >= 0, f"{name}.eps", config.eps, "not be negative")


@dataclass(frozen=True)
class GenerationConfig:
    """How text is drawn from the model."""

    kind: ClassVar[str] = "sampling"
    is_default_kind: ClassVar[bool] = True
    max_new_tokens: int = setting(256, "tokens to add at most")
    temperature: float = setting(1.0, "0 = the most probable token always; above 1 = flatter")
    top_k: int = setting(0, "keep the k most probable tokens; 0 = all")
    top_p: float = setting(1.0, "keep the fewest tokens whose probabilities reach p; 1 = all")
    min_p: float = setting(0.0, "keep tokens of at least min_p × the highest probability; 0 = all")
    repetition_penalty: float = setting(1.0, "divides positive logits of tokens seen before; 1 = none")
    stop: tuple[str, ...] = setting((), "texts that end the generation; they are not part of it")
    seed: int = setting(0, "of the drawing")

    def __post_init__(self) -> None:
        """Raises `UserError` for numbers that mean nothing."""
        _require(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "be at least 1")
        _require(self.temperature >= 0, "temperature", self.temperature, "not be negative")
        _require(self.temperature < float("inf"), "temperature", self.temperature, "be a finite number")
        _require(self.top_k >= 0, "top_k", self.top_k, "not be negative (0 = all tokens)")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "be above 0 and at most 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "be from 0 to 1")
        _require(self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "be positive")
        _require(self.seed >= 0, "seed", self.seed, "not be negative")


@dataclass(frozen=True)
class BeamConfig:
    """How a target is searched for: the most probable one that a beam finds."""

    kind: ClassVar[str] = "beam"
    beam: int = setting(4, "hypotheses of a sentence that live at once; 1 = greedy")
    length_penalty: float = setting(1.0, "exponent: 0 = the sum of log probabilities; larger favours longer outputs")
    normalisation: Literal["gnmt", "average"] = setting(
        "gnmt", "the sum is divided by ((5 + length) / 6)^penalty (Wu 2016, equation 14), or by length^penalty"
    )
    max_new_tokens: int = setting(256, "tokens of an output at most, its end included")
    max_ratio: float = setting(0.0, "at most this × the source's tokens + 10; 0 = no such limit")

    def __post_init__(self) -> None:
        """Raises `UserError` for numbers that mean nothing."""
        _require(self.beam >= 1, "beam", self.beam, "be at least 1")
        _require(abs(self.length_penalty) < float("inf"), "length_penalty", self.length_penalty, "be a finite number")
        _require(self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens, "be at least 1")
        _require(0 <= self.max_ratio < float("inf"), "max_ratio", self.max_ratio, "not be negative")


Metric = Literal["loss", "bits_per_byte", "bleu", "bleu_tok_lc", "chrf", "exact_match", "wer", "per"]


@dataclass(frozen=True)
class ExpectedResult:
    """What a recipe must reach: `reproduce` compares."""

    metric: Metric = setting("loss", "validation metric at the end; rates and scores in percent")
    side: Literal["valid", "test"] = setting("valid", "the held-out data that is measured; test = of built-in pairs")
    at_most: float = setting(float("inf"), "pass when the metric is not above this")
    at_least: float = setting(0.0, "pass when the metric is not below this")
    note: str = setting("", "what the figure is, and how long it takes")


@dataclass(frozen=True)
class Run:
    """A whole run, as a recipe states it."""

    name: str = setting("run", "name of the run and of its folder")
    description: str = setting("", "one line")
    model: ModelConfig = setting(TransformerConfig(decoder=Stack()), "the network")
    tokenizer: TokenizerConfig = setting(TokenizerConfig(), "text to ids; of pairs: of both sides, or of the target")
    source_tokenizer: TokenizerConfig | None = setting(None, "of the source; none = the one tokenizer reads both sides")
    data: TextData | PairData = setting(TextData(), "the text, or the pairs")
    objective: CausalConfig | Seq2SeqConfig = setting(CausalConfig(), "what is learned")
    train: TrainConfig = setting(TrainConfig(), "the loop")
    generation: GenerationConfig | BeamConfig = setting(GenerationConfig(), "how it writes")
    result: ExpectedResult | None = setting(None, "what it must reach")
