"""Sections of a recipe other than `[model]` and `[train]`. `glassformer recipes REFERENCE` lists every key."""

import codecs
from typing import Annotated, ClassVar, Literal

from glassformer.common.errors import UserError
from glassformer.config.extensions import TASKS, Extensible
from glassformer.config.recurrent import ModelConfig
from glassformer.config.schema import Range, at_most, between, checked, setting
from glassformer.config.train import ParallelConfig, TrainConfig
from glassformer.config.transformer import MAX_LEN, MAX_WIDTH, Stack, TransformerConfig

MAX_BEAM = 10_000  # about 1000 × the widest useful beam
MAX_PROMPTS = 1 << 16  # far above useful numbers
MAX_SENTINELS = 1 << 16  # 655 × the sentinels of T5
SMOOTHING_DOC = "probability spread over the vocabulary (label smoothing); not part of reported losses"
FORMAT_DOC = (
    "how the file is written: auto = by its suffix and content; json = a list, or an object per line; tab = separated "
    "by tabs, quotation marks are text; tab_quoted = by tabs, cells quoted as spreadsheets do; comma, semicolon = "
    "cells may be quoted"
)
ENCODING_DOC = "encoding of the files; of several, such as utf-8 cp1252, a file has the first that decodes all of it"


def _are_encodings(names: tuple[str, ...]) -> bool:
    try:
        return bool(names) and all(codecs.lookup(name)._is_text_encoding for name in names)
    except (LookupError, ValueError):
        return False


ENCODINGS = Range("be names of encodings, such as utf-8, cp1252 or utf-16", _are_encodings)
TableFormat = Literal["auto", "json", "tab", "tab_quoted", "comma", "semicolon"]
TOP_K = Range("not be negative (0 = all tokens)", lambda k: k >= 0)


@checked
class TokenizerConfig:
    """Conversion of text to token ids."""

    section: ClassVar[str] = "tokenizer."
    path: str | None = setting(None, "a tokenizer.json to use unchanged; none = learn one on the training data")
    scheme: Literal["byte", "char", "word", "whitespace", "whole_words"] = setting(
        "byte", "units that text is split into; whole_words has no subwords: rare words become [UNK]"
    )
    vocab_size: int = setting(4096, "vocabulary size to learn, special tokens included; 0 = the alphabet, no merges")
    learner: Literal["glassformer", "greatest_pair", "tokenizers"] = setting(
        "glassformer",
        "tokenizers = learn with the Rust library; greatest_pair = merge the pair of the greatest bytes among equally "
        "frequent ones, not that of the lowest ids",
    )
    special_tokens: tuple[str, ...] = setting(
        ("[PAD]", "[UNK]", "[BOS]", "[EOS]", "[CLS]", "[SEP]", "[MASK]"), "special tokens; they get the first ids"
    )
    bpe_dropout: float = setting(
        0.0,
        "BPE-dropout (Provilkov 2020): fraction of merges skipped at random in the training data, anew each epoch",
        "[0, 1]",
    )

    def __post_init__(self) -> None:
        """Raise `UserError` for BPE-dropout of a scheme without merges."""
        if self.bpe_dropout and self.scheme == "whole_words":
            raise UserError("tokenizer.bpe_dropout skips merges, and the scheme whole_words has no merges: set it to 0")


@checked
class WindowRows:
    """Random windows of one stream of tokens."""

    kind: ClassVar[str] = "windows"


@checked
class ExampleRows:
    """One padded document per row, shuffled in every epoch."""

    kind: ClassVar[str] = "examples"


@checked
class PackedRows:
    """Whole documents packed into rows; attention stays within a document."""

    kind: ClassVar[str] = "packed"


class Columns:
    """Facts about the records of a kind of data; a kind overrides what differs."""

    section: ClassVar[str] = "data."
    columns: ClassVar[tuple[str, ...]]
    """The settings that name fields of a record, in the order of the parts of a tuple in memory."""
    may_lack_columns: ClassVar[bool] = False
    """True if a record needs only some of these fields."""
    beside: ClassVar[tuple[str, ...] | None] = ()
    """Names of further fields that are read; None = all fields."""
    has_perplexity: ClassVar[bool] = True
    """True if the loss is the mean over tokens, in nats, so that it has a perplexity."""

    @property
    def scores(self) -> tuple[str, ...]:
        """Sections of the table of metrics with a model's scores. The section `spans` needs tags that mark spans."""
        return ()


@checked
class TextData(Columns):
    """Plain text: its files, and how documents become rows of tokens."""

    kind: ClassVar[str] = "text"
    is_default_kind: ClassVar[bool] = True
    columns: ClassVar[tuple[str, ...]] = ("text_field",)
    path: str | None = setting(
        None, "a text, json, jsonl or parquet file, a folder of txt, md and jsonl files, a pattern, or builtin:NAME"
    )
    valid_path: str | None = setting(None, "validation data; none = a part of path that is not used for training")
    valid_fraction: float = setting(0.1, "fraction held out for validation if valid_path is not given")
    text_field: str = setting("text", "field of a record that contains the text")
    format: Literal["auto", "text", "json"] = setting(
        "auto",
        "how a file is written: auto = by its suffix, and a json file by its content; text = it is one text; json = "
        "records: a list, or an object per line",
    )
    encoding: tuple[str, ...] = setting(("utf-8",), ENCODING_DOC, ENCODINGS)
    on_bad: Literal["refuse", "skip"] = setting(
        "refuse", "files among several that are not text or cannot be read: refuse the run, or skip and count them"
    )
    front_matter: Literal["keep", "drop"] = setting(
        "keep", "the block of `key: value` lines between two lines --- at the beginning of a text file"
    )
    packing: WindowRows | ExampleRows | PackedRows = setting(WindowRows(), "how documents become rows")
    context: int = setting(0, "input tokens per row; 0 = model.max_len")
    cache_dir: str | None = setting(None, "folder for prepared tokens; none = the user's cache folder")


@checked
class PairData(Columns):
    """Pairs of a source and a target: two aligned files, or one file with both sides."""

    kind: ClassVar[str] = "pairs"
    columns: ClassVar[tuple[str, ...]] = ("source_field", "target_field")
    source: str | None = setting(None, "source side: a text file, one sentence per line")
    target: str | None = setting(None, "target side: line i is the target of source line i")
    valid_source: str | None = setting(None, "source side of the validation data; none = a part of the training data")
    valid_target: str | None = setting(None, "target side of the validation data")
    path: str | None = setting(None, "one file with both sides: tsv, csv, jsonl, parquet, builtin:NAME or hf:NAME")
    valid_path: str | None = setting(None, "validation data; none = a part of path, or its own validation split")
    source_field: str = setting("source", "column or field of the source")
    target_field: str = setting("target", "column or field of the target")
    format: TableFormat = setting("auto", FORMAT_DOC)
    encoding: tuple[str, ...] = setting(("utf-8",), ENCODING_DOC, ENCODINGS)
    valid_fraction: float = setting(0.1, "fraction of the pairs held out if no validation data is given", "(0, 1)")
    outputs: Literal["sentences", "pronunciations"] = setting(
        "sentences", "type of the targets; it selects the scores: BLEU and chrF, or error rates"
    )
    target_language: str = setting("en", "two-letter language code; selects the Moses tokenizer rules of bleu_tok_lc")
    batch_tokens: int = setting(4096, "tokens per micro-batch: rows × the longest side, padding included", "≥ 1")
    cache_dir: str | None = setting(None, "folder for prepared tokens; none = the user's cache folder")

    @property
    def scores(self) -> tuple[str, ...]:
        return (self.outputs,)


@checked
class LabelData(Columns):
    """Texts, or pairs of texts, each with a label: a class, a number, or one tag per word."""

    kind: ClassVar[str] = "labels"
    columns: ClassVar[tuple[str, ...]] = ("text_field", "label_field", "second_field")
    has_perplexity: ClassVar[bool] = False
    path: str | None = setting(
        None, "tsv, csv, jsonl, parquet, conll (word TAB tag, blank line between sentences), builtin:NAME or hf:NAME"
    )
    valid_path: str | None = setting(None, "validation data; none = a part of path, or its own validation split")
    text_field: str = setting("text", "column or field of the text; for tags: a list of words")
    second_field: str | None = setting(None, "column or field of the second text of a pair")
    label_field: str = setting("label", "column or field of the label; for tags: a list of tags")
    outputs: Literal["classes", "multi_label", "regression", "tags"] = setting(
        "classes", "type of the labels: a class, any number of labels (a list), a number, or one tag per word"
    )
    format: TableFormat = setting("auto", FORMAT_DOC)
    encoding: tuple[str, ...] = setting(("utf-8",), ENCODING_DOC, ENCODINGS)
    valid_fraction: float = setting(0.1, "fraction of the records held out if no validation data is given", "(0, 1)")
    batch_tokens: int = setting(4096, "tokens per micro-batch: rows × the longest row, padding included", "≥ 1")
    cache_dir: str | None = setting(None, "folder for prepared tokens; none = the user's cache folder")

    @property
    def scores(self) -> tuple[str, ...]:
        return ("words", "spans") if self.outputs == "tags" else (self.outputs,)


@checked
class ConversationData(Columns):
    """Conversations: messages of a system, a user and an assistant, or a prompt and its completion."""

    kind: ClassVar[str] = "conversations"
    columns: ClassVar[tuple[str, ...]] = ("messages_field", "prompt_field", "completion_field")
    may_lack_columns: ClassVar[bool] = True
    beside: ClassVar[tuple[str, ...] | None] = ("input", "system")  # of the forms of Alpaca and ShareGPT
    scores: ClassVar[tuple[str, ...]] = ("conversations",)
    path: str | None = setting(None, "jsonl, parquet or hf:NAME; tsv or csv with a prompt and its completion")
    valid_path: str | None = setting(None, "validation data; none = a part of path, or its own validation split")
    messages_field: str = setting("messages", "field of the messages, a list of objects with role and content")
    prompt_field: str = setting("prompt", "field of the prompt, of a record without messages: a text, or messages")
    completion_field: str = setting("completion", "field of the completion of a prompt")
    scored: Literal["assistant", "all"] = setting(
        "assistant", "tokens that are learned: the answers of the assistant with their end tokens, or all"
    )
    packing: bool = setting(True, "pack whole conversations into rows of model.max_len; attention stays within each")
    format: TableFormat = setting("auto", FORMAT_DOC)
    encoding: tuple[str, ...] = setting(("utf-8",), ENCODING_DOC, ENCODINGS)
    valid_fraction: float = setting(0.1, "fraction of the conversations held out without validation data", "(0, 1)")
    batch_tokens: int = setting(4096, "tokens per micro-batch: rows × the longest row, padding included", "≥ 1")


@checked
class PreferenceData(Columns):
    """Pairs of answers to the same prompt: one that was preferred, and one that was rejected."""

    kind: ClassVar[str] = "preferences"
    columns: ClassVar[tuple[str, ...]] = ("prompt_field", "chosen_field", "rejected_field")
    may_lack_columns: ClassVar[bool] = True
    has_perplexity: ClassVar[bool] = False
    scores: ClassVar[tuple[str, ...]] = ("preferences",)
    path: str | None = setting(None, "jsonl, parquet, tsv, csv or hf:NAME")
    valid_path: str | None = setting(None, "validation data; none = a part of path, or its own validation split")
    prompt_field: str = setting(
        "prompt", "field of the prompt: a text, or messages; a record may lack it if both answers begin with it"
    )
    chosen_field: str = setting("chosen", "field of the preferred answer: a text, or messages")
    rejected_field: str = setting("rejected", "field of the rejected answer: a text, or messages")
    format: TableFormat = setting("auto", FORMAT_DOC)
    encoding: tuple[str, ...] = setting(("utf-8",), ENCODING_DOC, ENCODINGS)
    valid_fraction: float = setting(0.1, "fraction of the pairs held out if no validation data is given", "(0, 1)")
    batch_tokens: int = setting(4096, "tokens per micro-batch: rows × the longest row of both answers", "≥ 1")


@checked
class PromptData(Columns):
    """Prompts whose answers the model samples, with the fields that rewards read."""

    kind: ClassVar[str] = "prompts"
    columns: ClassVar[tuple[str, ...]] = ("prompt_field",)
    beside: ClassVar[tuple[str, ...] | None] = None  # rewards may read every field
    has_perplexity: ClassVar[bool] = False
    scores: ClassVar[tuple[str, ...]] = ("prompts",)
    path: str | None = setting(None, "jsonl, parquet, tsv, csv or hf:NAME")
    valid_path: str | None = setting(None, "validation data; none = a part of path, or its own validation split")
    prompt_field: str = setting("prompt", "field of the prompt: a text, or messages; rewards read the other fields")
    format: TableFormat = setting("auto", FORMAT_DOC)
    encoding: tuple[str, ...] = setting(("utf-8",), ENCODING_DOC, ENCODINGS)
    valid_fraction: float = setting(0.1, "fraction of the prompts held out if no validation data is given", "(0, 1)")


DataConfig = TextData | PairData | LabelData | ConversationData | PreferenceData | PromptData


class _Objective:
    section: ClassVar[str] = "objective."


@checked
class CausalConfig(_Objective):
    """Predict the next token at every position."""

    kind: ClassVar[str] = "causal"
    is_default_kind: ClassVar[bool] = True
    label_smoothing: float = setting(0.0, SMOOTHING_DOC, "[0, 1)")


@checked
class Seq2SeqConfig(_Objective):
    """Predict each target token from the source and the previous target tokens (teacher forcing)."""

    kind: ClassVar[str] = "seq2seq"
    label_smoothing: float = setting(0.1, SMOOTHING_DOC, "[0, 1)")


@checked
class ConversationConfig(_Objective):
    """Predict each token of the assistant's answers from the conversation before it."""

    kind: ClassVar[str] = "conversation"
    label_smoothing: float = setting(0.0, SMOOTHING_DOC, "[0, 1)")


@checked
class PreferenceConfig(_Objective):
    """Prefer the chosen answer to the rejected one more than the initial model does (DPO; Rafailov 2023)."""

    kind: ClassVar[str] = "preference"
    label_smoothing: ClassVar[float] = 0.0
    loss: Literal["dpo", "ipo"] = setting(
        "dpo", "dpo (Rafailov 2023, equation 7), or ipo (Azar 2023, equation 17, of log probabilities per token)"
    )
    beta: float = setting(
        0.1, "weight of the initial model: larger values keep the model nearer to it; τ of ipo", "(0, ∞)"
    )


@checked
class GroupPolicyConfig(_Objective):
    """Answer so that rewards rise: each sampled answer is compared with others to its prompt (GRPO; Shao 2024)."""

    kind: ClassVar[str] = "group_policy"
    label_smoothing: ClassVar[float] = 0.0
    rewards: tuple[str, ...] = setting(
        ("exact",),
        "rewards, which are added: exact or exact:FIELD (1 for the text of a field, answer by default), regex:PATTERN "
        "(1 for a match), length:N (falls by 1 per N characters after the first N), or your function module:function",
    )
    n_prompts: int = setting(8, "number of prompts per micro-batch", between(1, MAX_PROMPTS))
    group: int = setting(8, "number of answers that are sampled per prompt", between(2, MAX_PROMPTS))
    beta: float = setting(0.04, "weight of the KL divergence from the initial model", "[0, ∞)")
    updates: int = setting(1, "number of steps that learn from the same sampled answers", between(1, 64))
    clip: float = setting(
        0.2, "with several updates, a token gains nothing from a probability ratio beyond 1 ± clip", "(0, 1)"
    )
    normalisation: Literal["grpo", "dr_grpo"] = setting(
        "grpo",
        "grpo divides rewards by their spread in the group, and the loss of an answer by its length; dr_grpo divides "
        "only the loss, by generation.max_new_tokens (Liu 2025)",
    )


NO_REPEAT_DOC = "no run of n tokens occurs twice; 0 = off"
END_IDS_DOC = "ids of tokens that end the text, besides the model's end token; the output does not include them"


@checked
class GenerationConfig:
    """Generation by sampling."""

    kind: ClassVar[str] = "sampling"
    section: ClassVar[str] = ""
    is_default_kind: ClassVar[bool] = True
    max_new_tokens: int = setting(256, "maximum number of new tokens", between(1, MAX_LEN))
    temperature: float = setting(1.0, "0 = always the most probable token; above 1 = more random", "≥ 0", "(-∞, ∞)")
    top_k: int = setting(0, "sample from the k most probable tokens; 0 = from all", TOP_K)
    top_p: float = setting(1.0, "sample from the fewest tokens whose probabilities sum to p; 1 = from all", "(0, 1]")
    min_p: float = setting(0.0, "sample from tokens of at least min_p × the top probability; 0 = from all", "[0, 1]")
    repetition_penalty: float = setting(1.0, "factor that reduces the logits of tokens seen before; 1 = off", "> 0")
    no_repeat_ngram_size: int = setting(0, NO_REPEAT_DOC, between(0, MAX_LEN))
    min_new_tokens: int = setting(0, "number of new tokens before which the text cannot end", between(0, MAX_LEN))
    stop: tuple[str, ...] = setting((), "texts that end the generation; the output does not include them")
    end_ids: tuple[int, ...] = setting((), END_IDS_DOC)
    seed: int = setting(0, "sampling seed", "≥ 0")
    prompt_lookup: int = setting(
        0,
        "number of tokens that are copied from earlier in the text as a draft, per step; 0 = off",
        between(0, MAX_LEN),
    )
    draft_tokens: int = setting(4, "number of tokens that a draft model proposes per step", between(1, MAX_LEN))


SHAPES_LOGITS = ("temperature", "top_k", "top_p", "min_p")
"""Fields of `GenerationConfig` that change the distribution of one token; transformers has the same names."""
CONSTRAINTS = ("repetition_penalty", "no_repeat_ngram_size", "min_new_tokens")
"""Fields of `GenerationConfig` and `BeamConfig` that look at earlier tokens; transformers has the same names."""
GENERATION_BATCH = 32
"""Default number of prompts that are continued at a time."""


@checked
class BeamConfig:
    """Beam search for the best target."""

    kind: ClassVar[str] = "beam"
    section: ClassVar[str] = ""
    beam: int = setting(4, "number of live hypotheses per sentence; 1 = greedy search", between(1, MAX_BEAM))
    length_penalty: float = setting(
        1.0,
        "exponent of the length penalty: 0 = sum of log-probabilities; larger favours longer outputs",
        between(-10, 10),
    )
    length_penalty_type: Literal["gnmt", "average"] = setting(
        "gnmt", "divisor of the sum: ((5 + length) / 6)^penalty (gnmt; Wu 2016, equation 14) or length^penalty"
    )
    early_stopping: Literal["shrink", "never", "full", "estimate"] = setting(
        "shrink",
        "shrink: a finished hypothesis keeps its place in the beam. The other rules are those of transformers: it "
        "frees its place, and the search ends when no live hypothesis can become better (never), when the number of "
        "finished ones is the beam (full; True in transformers), or when moreover the best live one, at its present "
        "length, is not better than the worst of these (estimate; False in transformers)",
    )
    max_new_tokens: int = setting(256, "maximum number of output tokens, end token included", between(1, MAX_LEN))
    max_ratio: float = setting(0.0, "limit the output to max_ratio × source tokens + 10; 0 = no limit", "[0, ∞)")
    min_new_tokens: int = setting(0, "number of output tokens before the end token", between(0, MAX_LEN))
    repetition_penalty: float = setting(
        1.0, "factor that reduces the score of tokens that the output has; 1 = off", "> 0"
    )
    no_repeat_ngram_size: int = setting(0, NO_REPEAT_DOC, between(0, MAX_LEN))
    coverage_penalty: float = setting(
        0.0,
        "weight of the sum over source tokens of log min(attention, 1), for a beam above 1 and one model (Wu 2016, "
        "equation 14); 0 = off",
        "[0, ∞)",
    )
    end_ids: tuple[int, ...] = setting((), END_IDS_DOC)


@checked
class MaskedConfig(_Objective):
    """Predict masked tokens from the context on both sides (Devlin 2019)."""

    kind: ClassVar[str] = "masked"
    mask_prob: float = setting(
        0.15, "probability that a token is predicted; 80 % of these are masked, 10 % replaced, 10 % unchanged", "(0, 1)"
    )
    whole_words: bool = setting(False, "mask all tokens of a word together")
    label_smoothing: float = setting(0.0, SMOOTHING_DOC, "[0, 1)")


@checked
class InfillingConfig(_Objective):
    """Restore a text in which each span became one mask token and sentences were shuffled (Lewis 2020)."""

    kind: ClassVar[str] = "infilling"
    permute_sentences: bool = setting(True, "shuffle the sentences")
    label_smoothing: float = setting(0.0, SMOOTHING_DOC, "[0, 1)")


@checked
class SpansConfig(_Objective):
    """Predict the spans that sentinel tokens replace (Raffel 2020)."""

    kind: ClassVar[str] = "spans"
    n_sentinels: int = setting(
        32, "sentinel tokens [SPAN_0], [SPAN_1] … that replace the spans of a row", "≥ 2", at_most(MAX_SENTINELS)
    )
    label_smoothing: float = setting(0.0, SMOOTHING_DOC, "[0, 1)")


CLASS_WEIGHTS_DOC = (
    "weight of each label in the loss that is minimised: balanced = n / (k · n_c) for one of k that occurs n_c times "
    "among n training labels; reported losses have no weights"
)


@checked
class ClassificationConfig(_Objective):
    """Predict the class of a text or text pair, or a number if the labels are numbers (regression)."""

    kind: ClassVar[str] = "classification"
    label_smoothing: float = setting(0.0, "probability spread over the classes; not part of reported losses", "[0, 1)")
    class_weights: Literal["none", "balanced"] = setting("none", CLASS_WEIGHTS_DOC)


@checked
class TaggingConfig(_Objective):
    """Predict the tag of each word at its first token."""

    kind: ClassVar[str] = "tagging"
    label_smoothing: float = setting(0.0, "probability spread over the tags; not part of reported losses", "[0, 1)")
    class_weights: Literal["none", "balanced"] = setting("none", CLASS_WEIGHTS_DOC)


@checked
class NoObjective:
    """No objective: an imported model that returns only vectors. It cannot be trained."""

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
    | ConversationConfig
    | PreferenceConfig
    | GroupPolicyConfig
    | NoObjective,
    Extensible(TASKS),
]


@checked
class InitConfig:
    """Starting point of a run, and the parts of the model that are trained."""

    section: ClassVar[str] = "init."
    path: str | None = setting(
        None, "model directory with the tokenizer and weights to start from; none = random weights"
    )
    model: Literal["same", "recipe"] = setting(
        "same", "same = the model of path, with this run's head and dropouts; recipe = [model] of this run"
    )
    digest: str | None = setting(
        None, "SHA-256 of the weights of path, which a run that is compared with them records; none = any weights"
    )
    freeze: tuple[str, ...] = setting((), "modules to freeze, such as encoder.embeddings or encoder.blocks.0.*")


@checked
class LoraConfig:
    """Low-rank adaptation (LoRA): small matrices are trained next to frozen weights (Hu 2022)."""

    section: ClassVar[str] = "lora."
    targets: tuple[str, ...] = setting(("*.q_proj", "*.v_proj"), "names of the linear layers to adapt")
    rank: int = setting(8, "rank of each weight's update", between(1, MAX_WIDTH))
    alpha: float = setting(16.0, "the update is multiplied by alpha / rank")
    dropout: float = setting(0.0, "dropout of the update's input", "[0, 1)")


@checked
class TeacherConfig:
    """Knowledge distillation: a trained model also teaches its probabilities (Hinton 2015)."""

    section: ClassVar[str] = "teacher."
    path: str | None = setting(None, "model directory of the same objective, tokenizer and labels")
    weight: float = setting(0.5, "α of the loss: (1 - α) · that of the data + α · T² · KL(teacher ‖ model)", "[0, 1]")
    temperature: float = setting(2.0, "T: the probabilities of both are softmax(logits / T)", "(0, ∞)")
    digest: str | None = setting(None, "SHA-256 of the teacher's weights, which the run records; none = any weights")


@checked
class ExpectedResult:
    """Expected result of a recipe, which `reproduce` checks."""

    metric: str = setting("loss", "metric of `evaluate` at the end of the run; rates and scores in percent")
    side: Literal["valid", "test"] = setting("valid", "held-out data to measure; test = test data of built-in pairs")
    at_most: float = setting(float("inf"), "pass if the metric is at most this value")
    at_least: float = setting(0.0, "pass if the metric is at least this value")
    note: str = setting("", "source of the expected value, and the run time")


@checked
class Run:
    """A complete run, as defined by a recipe."""

    name: str = setting("run", "name of the run and of the run folder")
    description: str = setting("", "description in one line")
    architecture: str = setting("", "transformers class of an imported model; an export keeps it where possible")
    model: ModelConfig = setting(TransformerConfig(decoder=Stack()), "the model")
    tokenizer: TokenizerConfig = setting(TokenizerConfig(), "the tokenizer; for pairs: of both sides, or of the target")
    source_tokenizer: TokenizerConfig | None = setting(None, "tokenizer of the source; none = one for both sides")
    data: DataConfig = setting(TextData(), "training and validation data")
    objective: ObjectiveConfig = setting(CausalConfig(), "the training objective")
    init: InitConfig = setting(InitConfig(), "the initial weights")
    lora: LoraConfig | None = setting(None, "low-rank adaptation; none = train all parameters")
    teacher: TeacherConfig | None = setting(None, "knowledge distillation; none = learn from the data only")
    train: TrainConfig = setting(TrainConfig(), "the training loop")
    parallel: ParallelConfig = setting(ParallelConfig(), "training with several processes, under torchrun")
    generation: GenerationConfig | BeamConfig = setting(GenerationConfig(), "generation of outputs")
    result: ExpectedResult | None = setting(None, "the expected result")

    def __repr__(self) -> str:
        """Return three lines: name, objective and model; data; steps. `to_dict` returns every setting."""
        where = getattr(self.data, "path", None) or getattr(self.data, "source", None) or "no data yet"
        return (
            f"Run {self.name!r}: objective {self.objective.kind}, model {self.model.kind} of "
            f"{self.model.max_len:,} tokens at most\n"
            f"  data: {self.data.kind}, {where}\n"
            f"  train: {self.train.max_steps:,} steps, {self.train.optimizer.kind}, seed {self.train.seed}"
        )
