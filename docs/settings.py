"""The page "Settings, and when to change them": the keys to change first, with a reason and the chapter of each.

Meaning and default come from the settings themselves, so only the reasons are written here.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from glassformer.config.run import Run
from glassformer.config.schema import Entry, describe


class Advice(NamedTuple):
    """A key, when to change it, and the page that explains it: a path below `docs` without its suffix."""

    key: str
    when: str
    page: str


TEXT, EMBEDDINGS, ATTENTION = "course/01-text-to-ids", "course/02-embeddings-and-positions", "course/05-attention"
RECURRENT, ALIGNMENT = "course/03-recurrent-encoder-decoder", "course/04-attention-is-alignment"
BLOCK, TRANSFORMER, BERT = "course/06-the-block", "course/07-the-transformer", "course/08-bert"
GPT, SINCE, ANSWERS = "course/09-gpt", "course/09b-since-gpt-2", "course/14-a-model-that-answers"
SIZES, CURVES, MEMORY = "how-to/choose-sizes", "how-to/read-curves", "how-to/out-of-memory"
FILES, GPU = "how-to/own-files", "how-to/gpu"
CONVERSATIONS, TOKENIZERS = "how-to/conversations", "how-to/tokenizer-questions"

SECTIONS = {
    "Data": (
        Advice("data.path", "For your own data: a file, a folder, `builtin:NAME` or `hf:NAME`.", FILES),
        Advice("data.valid_path", "If you have validation data of your own.", FILES),
        Advice("data.valid_fraction", "Lower it for large data; raise it if the validation loss is noisy.", GPT),
        Advice(
            "data.packing", "`false` for one conversation per row; packed rows waste less on padding.", CONVERSATIONS
        ),
        Advice("data.batch_tokens", "For pairs, labels and conversations: lower it if memory is short.", MEMORY),
    ),
    "Tokenizer": (
        Advice(
            "tokenizer.scheme",
            "`char` with `vocab_size` 0 for short strings and spelling: a token per character. `byte` for other texts.",
            TEXT,
        ),
        Advice(
            "tokenizer.vocab_size",
            "Raise it for more text: a word becomes fewer tokens. The embedding table of a small model then "
            "becomes a large part of it.",
            TEXT,
        ),
        Advice("tokenizer.path", "To use the tokenizer of another model.", TOKENIZERS),
    ),
    "Size of the model": (
        Advice("model.d_model", "Raise it if the training loss stays high; it changes the cost most.", SIZES),
        Advice("model.decoder.n_layers", "Raise it together with the width.", GPT),
        Advice("model.decoder.n_heads", "So that a head is 32 to 128 wide: `d_model` / `n_heads`.", ATTENTION),
        Advice("model.decoder.n_kv_heads", "Lower it for a smaller cache in generation.", SINCE),
        Advice("model.decoder.d_ff", "Usually 4 × `d_model`; 8/3 × `d_model` if it is gated.", BLOCK),
        Advice("model.max_len", "Raise it for longer texts; the cost of attention grows with its square.", GPT),
    ),
    "Parts of the model": (
        Advice(
            "model.positions.kind",
            "`rotary` for new models; `learned` for GPT-2 and BERT, `sinusoidal` for the Transformer of 2017, "
            "`relative` for T5, `alibi` for BLOOM.",
            EMBEDDINGS,
        ),
        Advice("model.norm", "`rmsnorm` is a little faster; the loss is about the same.", BLOCK),
        Advice(
            "model.norm_order",
            "`pre`, unless you reproduce a model with another order: `post` for the Transformer of 2017, BERT "
            "and BART; `parallel` for GPT-NeoX.",
            BLOCK,
        ),
        Advice(
            "model.gated_ff", "`true` for a lower loss with the same number of weights (with a smaller `d_ff`).", SINCE
        ),
        Advice(
            "model.experts.n_experts",
            "For more parameters at the same cost per token, if the text is large for the model.",
            SIZES,
        ),
        Advice("model.experts.balance.kind", "`bias` for a balance that does not change the loss.", SIZES),
        Advice("model.tie_output", "`false` if the table is a small part of the model.", GPT),
        Advice(
            "model.residual_dropout",
            "Raise it (0.1 to 0.3) if the evaluation loss rises while the training loss falls.",
            BLOCK,
        ),
        Advice("model.cell", "To compare recurrent cells.", RECURRENT),
        Advice(
            "model.attention.kind", "`before` for Bahdanau, `after` for Luong, `none` for a fixed vector.", ALIGNMENT
        ),
    ),
    "Objective": (
        Advice("objective.kind", "`train FILE` chooses it by the data; set it in a recipe of your own.", TRANSFORMER),
        Advice("objective.label_smoothing", "0.1 for translation; 0 for language models.", TRANSFORMER),
        Advice(
            "objective.mask_prob", "Raise it for more targets per text, in a harder task; 0.15 is that of BERT.", BERT
        ),
        Advice("objective.beta", "Raise it if answers get worse while the reward or accuracy rises.", ANSWERS),
    ),
    "Start from another model": (
        Advice("init.path", "For fine-tuning: the model to start from.", CONVERSATIONS),
        Advice("init.freeze", "To train only a part, for example the head.", BERT),
        Advice(
            "lora.rank",
            "8 is usual. Raise it if LoRA does not reach the loss of full training. LoRA is off until a key of "
            "`lora` is set.",
            ANSWERS,
        ),
    ),
    "Training": (
        Advice("train.max_steps", "Raise it while the evaluation loss still falls at the end.", SIZES),
        Advice(
            "train.batch_size",
            "For texts: raise it if the loss is noisy; lower it if memory is short. Other data have "
            "`data.batch_tokens`.",
            MEMORY,
        ),
        Advice("train.grad_accumulation", "For a larger batch than the memory holds.", MEMORY),
        Advice("train.optimizer.kind", "`muon` for a lower loss in the same steps; `adamw` for fine-tuning.", SINCE),
        Advice(
            "train.optimizer.learning_rate",
            "Lower it if the loss jumps or rises; raise it if the loss falls slowly.",
            CURVES,
        ),
        Advice("train.optimizer.weight_decay", "Lower it for short runs; 0.1 is usual for long ones.", GPT),
        Advice("train.schedule.kind", "`constant` for rewards; `linear` or `cosine` for the rest.", GPT),
        Advice("train.schedule.warmup_steps", "Raise it if the loss jumps in the first steps.", GPT),
        Advice("train.clip_norm", "Lower it if single batches make the loss jump.", CURVES),
        Advice("train.eval_every", "Lower it to see overfitting earlier; evaluations take time.", CURVES),
        Advice("train.early_stopping.patience", "To stop a run that no longer gets better.", CURVES),
        Advice(
            "train.seed",
            "Train with several seeds. A difference between two settings that is not larger than that between "
            "seeds is no evidence.",
            SINCE,
        ),
        Advice("train.device", "To choose a GPU, or the CPU on a machine with a GPU.", GPU),
        Advice("train.precision", "`fp32` to compare runs bit by bit; `bf16` is faster on GPUs and newer CPUs.", GPU),
    ),
    "Generation": (
        Advice("generation.temperature", "0 for exact answers, 0.7 to 1 for varied text.", GPT),
        Advice("generation.top_p", "0.9 removes rare tokens, which make text senseless.", GPT),
        Advice("generation.max_new_tokens", "For longer or shorter outputs.", GPT),
        Advice("generation.beam", "4 or 5 for translation; 1 is fastest.", TRANSFORMER),
    ),
}


def sections() -> Iterator[tuple[str, list[tuple[list[Entry], Advice]]]]:
    """Yield the title of each section, and its keys with their advice.

    A key has one entry for each default, that of the default kind first; their `kind` names all kinds that have it.
    """
    entries: dict[str, list[Entry]] = {}
    kinds: dict[str, object] = {}
    for entry in describe(Run):
        kinds.setdefault(entry.key, entry.default)
        entries.setdefault(entry.key, []).append(entry)
    for title, advice in SECTIONS.items():
        rows = []
        for one in advice:
            usual = kinds.get(f"{one.key.rpartition('.')[0]}.kind")
            found: dict[str, Entry] = {}
            for entry in sorted(entries[one.key], key=lambda entry: entry.kind != usual):
                same = found.get(repr(entry.default))
                found[repr(entry.default)] = replace(same, kind=f"{same.kind}, {entry.kind}") if same else entry
            rows.append((list(found.values()), one))
        yield title, rows
