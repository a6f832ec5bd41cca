"""What a run is: the sections of a recipe beside `[model]`. `recipes/REFERENCE.toml` lists every key."""

from typing import Annotated, ClassVar, Literal

from glassformer.config.recurrent import ModelConfig
from glassformer.config.schema import TASKS, Extensible, Range, at_most, between, checked, setting
from glassformer.config.train import ParallelConfig, TrainConfig
from glassformer.config.transformer import MAX_LEN, MAX_WIDTH, Stack, TransformerConfig
from glassformer.errors import UserError

MAX_BEAM = 10_000  # a thousand times the widest that helps
MAX_SENTINELS = 1 << 16  # six hundred times as many as T5 has
SMOOTHING_DOC = "probability spread over the vocabulary; reported losses leave it out"
TOP_K = Range("not be negative (0 = all tokens)", lambda k: k >= 0)


@checked
class TokenizerConfig:
    """How text becomes ids."""

    section: ClassVar[str] = "tokenizer."
    path: str | None = setting(None, "a tokenizer.json to use as it is; none = learn one on the training text")
    scheme: Literal["byte", "char", "word", "whitespace", "whole_words"] = setting(
        "byte", "what the text is cut into; whole_words has no pieces, and [UNK] for rare words"
    )
    vocab_size: int = setting(4096, "tokens to learn, special ones included; 0 = the alphabet, no merges")
    learner: Literal["glassformer", "tokenizers"] = setting("glassformer", "our own, or the Rust library's")
    special_tokens: tuple[str, ...] = setting(
        ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[CLS]", "[SEP]", "[MASK]"), "they take the first ids"
    )
    bpe_dropout: float = setting(
        0.0,
        "BPE-dropout (Provilkov 2020): share of merges left out of the training text at random, anew each epoch",
        "[0, 1]",
    )

    def __post_init__(self) -> None:
        """Raises `UserError` for dropout of merges that there are not."""
        if self.bpe_dropout and self.scheme == "whole_words":
            raise UserError("tokenizer.bpe_dropout leaves out merges, and whole_words has none: leave it out")


Reading = Literal[1, 2]
NEWEST_READING: Reading = 2
"""What a new run records."""
READING_DOC = "version of the rules of the split, of pieces of text and of BPE-dropout; a new run always records 2"


@checked
class WindowRows:
    """Random windows over one stream of tokens."""

    kind: ClassVar[str] = "windows"


@checked
class ExampleRows:
    """One padded document an example, shuffled epochs."""

    kind: ClassVar[str] = "examples"


@checked
class PackedRows:
    """Whole documents packed into rows; none sees its neighbours."""

    kind: ClassVar[str] = "packed"


@checked
class TextData:
    """Text: where it is and how it is cut."""

    kind: ClassVar[str] = "text"
    is_default_kind: ClassVar[bool] = True
    path: str | None = setting(None, "a txt or jsonl file, a folder of them, or builtin:NAME")
    valid_path: str | None = setting(None, "validation text; none = a part of path that training never sees")
    valid_fraction: float = setting(0.1, "share held out for validation when valid_path is none")
    reading: Reading = setting(1, READING_DOC)
    text_field: str = setting("text", "the field of a jsonl record that holds the text")
    packing: WindowRows | ExampleRows | PackedRows = setting(WindowRows(), "how documents become rows")
    context: int = setting(0, "tokens that a row feeds the model; 0 = model.max_len")
    cache_dir: str | None = setting(None, "where prepared tokens are kept; none = the user's cache folder")


@checked
class PairData:
    """Pairs of a source and a target: two aligned files, or one file that holds both."""

    kind: ClassVar[str] = "pairs"
    section: ClassVar[str] = "data."
    source: str | None = setting(None, "the source side: a text file, one sentence a line")
    target: str | None = setting(None, "the target side: line i is the target of line i")
    valid_source: str | None = setting(None, "source side of the validation pairs; none = a part of the training pairs")
    valid_target: str | None = setting(None, "target side of the validation pairs")
    path: str | None = setting(None, "one file with both sides: tsv, csv, jsonl, builtin:NAME or hf:NAME")
    valid_path: str | None = setting(None, "the same for validation; none = a part of path, or its own split")
    source_field: str = setting("source", "column or field of the source")
    target_field: str = setting("target", "column or field of the target")
    valid_fraction: float = setting(0.1, "share of the pairs held out where no validation pairs are given", "(0, 1)")
    reading: Reading = setting(1, READING_DOC)
    outputs: Literal["sentences", "pronunciations"] = setting(
        "sentences", "what a target is, and so which scores are told: BLEU and chrF, or error rates"
    )
    target_language: str = setting("en", "two letters; Moses' rules for the tokens of bleu_tok_lc depend on it")
    batch_tokens: int = setting(4096, "tokens of a micro-batch: rows × the longest side, padding included", "≥ 1")
    cache_dir: str | None = setting(None, "where prepared tokens are kept; none = the user's cache folder")


@checked
class LabelData:
    """Texts, or pairs of texts, each with a label: a class, a number, or a tag for every word."""

    kind: ClassVar[str] = "labels"
    section: ClassVar[str] = "data."
    path: str | None = setting(
        None, "tsv, csv, jsonl, conll (word TAB tag, a blank line between), builtin:NAME or hf:NAME"
    )
    valid_path: str | None = setting(None, "the same for validation; none = a part of path, or its own split")
    test_path: str | None = setting(None, "the same for the test, which training never reads")
    text_field: str = setting("text", "column or field of the text; of tags: a list of words")
    second_field: str | None = setting(None, "column or field of a second text: sentence pairs")
    label_field: str = setting("label", "column or field of the label; of tags: a list of them")
    outputs: Literal["classes", "regression", "tags"] = setting(
        "classes", "what a label is: a class, a number (regression), or a tag for each word"
    )
    valid_fraction: float = setting(0.1, "share of the records held out where no validation data is given", "(0, 1)")
    reading: Reading = setting(1, READING_DOC)
    batch_tokens: int = setting(4096, "tokens of a micro-batch: rows × the longest, padding included", "≥ 1")
    cache_dir: str | None = setting(None, "where prepared tokens are kept; none = the user's cache folder")


DataConfig = TextData | PairData | LabelData


@checked
class CausalConfig:
    """Predict every next token."""

    kind: ClassVar[str] = "causal"
    section: ClassVar[str] = "objective."
    is_default_kind: ClassVar[bool] = True
    label_smoothing: float = setting(0.0, SMOOTHING_DOC, "[0, 1)")


@checked
class Seq2SeqConfig:
    """Predict every token of the target from the source and the target's tokens before it (teacher forcing)."""

    kind: ClassVar[str] = "seq2seq"
    section: ClassVar[str] = "objective."
    label_smoothing: float = setting(0.1, SMOOTHING_DOC, "[0, 1)")


@checked
class GenerationConfig:
    """How text is drawn from the model."""

    kind: ClassVar[str] = "sampling"
    section: ClassVar[str] = ""
    is_default_kind: ClassVar[bool] = True
    max_new_tokens: int = setting(256, "tokens to add at most", between(1, MAX_LEN))
    temperature: float = setting(1.0, "0 = the most probable token always; above 1 = flatter", "≥ 0", "(-∞, ∞)")
    top_k: int = setting(0, "keep the k most probable tokens; 0 = all", TOP_K)
    top_p: float = setting(1.0, "keep the fewest tokens whose probabilities reach p; 1 = all", "(0, 1]")
    min_p: float = setting(0.0, "keep tokens of at least min_p × the highest probability; 0 = all", "[0, 1]")
    repetition_penalty: float = setting(1.0, "divides positive logits of tokens seen before; 1 = none", "> 0")
    stop: tuple[str, ...] = setting((), "texts that end the generation; they are not part of it")
    seed: int = setting(0, "of the drawing", "≥ 0")


@checked
class BeamConfig:
    """How a target is searched for: the most probable one that a beam finds."""

    kind: ClassVar[str] = "beam"
    section: ClassVar[str] = ""
    beam: int = setting(4, "hypotheses of a sentence that live at once; 1 = greedy", between(1, MAX_BEAM))
    length_penalty: float = setting(
        1.0, "exponent: 0 = the sum of log probabilities; larger favours longer outputs", "(-∞, ∞)"
    )
    length_penalty_type: Literal["gnmt", "average"] = setting(
        "gnmt", "the sum is divided by ((5 + length) / 6)^penalty (Wu 2016, equation 14), or by length^penalty"
    )
    early_stopping: Literal["shrink", "never"] = setting(
        "shrink",
        "shrink: a finished hypothesis keeps its place in the beam; never: it frees its place, and the search ends "
        "when no hypothesis can become better (transformers)",
    )
    max_new_tokens: int = setting(256, "tokens of an output at most, its end included", between(1, MAX_LEN))
    max_ratio: float = setting(0.0, "at most this × the source's tokens + 10; 0 = no such limit", "[0, ∞)")


@checked
class MaskedConfig:
    """Predict tokens that were masked, from all around them (Devlin 2019)."""

    kind: ClassVar[str] = "masked"
    section: ClassVar[str] = "objective."
    mask_prob: float = setting(
        0.15, "probability that a token is predicted; of these 80 % are masked, 10 % replaced", "(0, 1)"
    )
    whole_words: bool = setting(False, "words are masked whole")
    label_smoothing: float = setting(0.0, SMOOTHING_DOC, "[0, 1)")


@checked
class InfillingConfig:
    """Restore a text whose spans were each replaced by one mask, and whose sentences were shuffled (Lewis 2020)."""

    kind: ClassVar[str] = "infilling"
    section: ClassVar[str] = "objective."
    noise_density: float = setting(0.3, "share of the tokens that are removed", "(0, 1)")
    mean_span_length: float = setting(3.0, "of the Poisson distribution of the spans' lengths, in tokens", "[1, ∞)")
    permute_sentences: bool = setting(True, "sentences stand in another order")
    label_smoothing: float = setting(0.0, SMOOTHING_DOC, "[0, 1)")


@checked
class SpansConfig:
    """Write the spans that sentinels stand for (Raffel 2020)."""

    kind: ClassVar[str] = "spans"
    section: ClassVar[str] = "objective."
    noise_density: float = setting(0.15, "share of the tokens that are removed", "(0, 1)")
    mean_span_length: float = setting(3.0, "of the spans, in tokens", "[1, ∞)")
    n_sentinels: int = setting(
        32, "special tokens [SPAN_0], [SPAN_1] … that stand for the spans of a row", "≥ 2", at_most(MAX_SENTINELS)
    )
    label_smoothing: float = setting(0.0, SMOOTHING_DOC, "[0, 1)")


@checked
class ClassificationConfig:
    """Say the class of a text or a pair of texts; where labels are numbers, say the number."""

    kind: ClassVar[str] = "classification"
    section: ClassVar[str] = "objective."
    label_smoothing: float = setting(0.0, "probability spread over the classes; reported losses leave it out", "[0, 1)")


@checked
class TaggingConfig:
    """Say the tag of every word, at its first token."""

    kind: ClassVar[str] = "tagging"
    section: ClassVar[str] = "objective."
    label_smoothing: float = setting(0.0, "probability spread over the tags; reported losses leave it out", "[0, 1)")


@checked
class NoObjective:
    """Predict nothing: of a model that gives vectors, and was taken over. No run can learn it."""

    kind: ClassVar[str] = "none"
    label_smoothing: ClassVar[float] = 0.0


ObjectiveConfig = Annotated[
    CausalConfig
    | Seq2SeqConfig
    | MaskedConfig
    | InfillingConfig
    | SpansConfig
    | ClassificationConfig
    | TaggingConfig
    | NoObjective,
    Extensible(TASKS),
]


@checked
class InitConfig:
    """From which model a run starts, and what of it learns."""

    section: ClassVar[str] = "init."
    path: str | None = setting(
        None, "a model directory whose tokenizer and weights it starts from; none = from nothing"
    )
    model: Literal["same", "recipe"] = setting(
        "same", "same = its model, with the head and the dropouts of this run; recipe = [model] of this run"
    )
    freeze: tuple[str, ...] = setting((), "modules that do not learn, such as encoder.embeddings or encoder.blocks.0.*")
    layer_decay: float = setting(1.0, "the rate of a block is this × that of the block above it", "(0, 1]")


@checked
class LoraConfig:
    """Low-rank adaptation: a few small matrices learn beside weights that do not (Hu 2022)."""

    section: ClassVar[str] = "lora."
    targets: tuple[str, ...] = setting(("*.q_proj", "*.v_proj"), "linear layers that are adapted, by name")
    rank: int = setting(8, "of the update of a weight", between(1, MAX_WIDTH))
    alpha: float = setting(16.0, "the update is × alpha / rank")
    dropout: float = setting(0.0, "dropout of what the update reads", "[0, 1)")


Metric = Literal[
    "loss", "bits_per_byte", "bleu", "bleu_tok_lc", "chrf", "exact_match", "wer", "per", "accuracy", "macro_f1",
    "span_f1", "masked_accuracy",
]  # fmt: skip


@checked
class ExpectedResult:
    """What a recipe must reach: `reproduce` compares."""

    metric: Metric = setting("loss", "validation metric at the end; rates and scores in percent")
    side: Literal["valid", "test"] = setting("valid", "the held-out data that is measured; test = of built-in pairs")
    at_most: float = setting(float("inf"), "pass when the metric is not above this")
    at_least: float = setting(0.0, "pass when the metric is not below this")
    note: str = setting("", "what the figure is, and how long it takes")


@checked
class Run:
    """A whole run, as a recipe states it."""

    name: str = setting("run", "name of the run and of its folder")
    description: str = setting("", "one line")
    architecture: str = setting("", "class of transformers that it was imported from; an export keeps it if it can")
    model: ModelConfig = setting(TransformerConfig(decoder=Stack()), "the network")
    tokenizer: TokenizerConfig = setting(TokenizerConfig(), "text to ids; of pairs: of both sides, or of the target")
    source_tokenizer: TokenizerConfig | None = setting(None, "of the source; none = the one tokenizer reads both sides")
    data: DataConfig = setting(TextData(), "the text, the pairs, or the texts with labels")
    objective: ObjectiveConfig = setting(CausalConfig(), "what is learned")
    init: InitConfig = setting(InitConfig(), "from what it starts")
    lora: LoraConfig | None = setting(None, "adapt with few parameters; none = all learn")
    train: TrainConfig = setting(TrainConfig(), "the loop")
    parallel: ParallelConfig = setting(ParallelConfig(), "several processes, under torchrun")
    generation: GenerationConfig | BeamConfig = setting(GenerationConfig(), "how it writes")
    result: ExpectedResult | None = setting(None, "what it must reach")

    def __repr__(self) -> str:
        """Three lines: its name and objective, its model and data, its steps. `to_dict` has every setting."""
        where = getattr(self.data, "path", None) or getattr(self.data, "source", None) or "no data yet"
        return (
            f"Run {self.name!r}: objective {self.objective.kind}, model {self.model.kind} of "
            f"{self.model.max_len:,} tokens at most\n"
            f"  data: {self.data.kind}, {where}\n"
            f"  train: {self.train.max_steps:,} steps, {self.train.optimizer.kind}, seed {self.train.seed}"
        )
