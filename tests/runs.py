"""Tiny runs, a few seconds on one core each, for the tests of training, storing and using models."""

import json
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from glassformer.config.recurrent import AttendBefore, ModelConfig, RecurrentConfig
from glassformer.config.run import (
    BeamConfig,
    ClassificationConfig,
    ConversationConfig,
    ConversationData,
    GenerationConfig,
    InfillingConfig,
    LabelData,
    MaskedConfig,
    ObjectiveConfig,
    PairData,
    Run,
    Seq2SeqConfig,
    SpansConfig,
    TaggingConfig,
    TextData,
    TokenizerConfig,
)
from glassformer.config.train import AdamWConfig, CosineSchedule, TrainConfig
from glassformer.config.transformer import PositionHead, RotaryPositions, SequenceHead, Stack, TransformerConfig
from glassformer.data.corpus import Corpus
from glassformer.evaluation.loss import LossReport
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.loss import Objective
from glassformer.store import checkpoint
from glassformer.tasks.reporting import Evaluation, Silent
from glassformer.training import host
from glassformer.training.host import Host
from glassformer.training.loop import Trainer
from glassformer.training.step import TrainStep

MODEL = TransformerConfig(decoder=Stack(2, 2, d_ff=32), d_model=16, max_len=32, positions=RotaryPositions())
TIMES = {"tokens_per_s", "tokens_per_s_per_device", "mfu", "peak_memory_bytes", "step_ms", "save_ms"}
"""Keys of the log with values that depend on the clock or on the machine."""


def made_up_text(n_lines: int = 150, seed: int = 0) -> str:
    """Return lines of eight words out of sixty, with a few characters of two to four bytes."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(2, 7))) for _ in range(56)] + ["é", "ßa", "日本", "🙂"]
    return "".join(" ".join(rng.choices(words, k=8)) + "\n" for _ in range(n_lines))


def text_corpus(path: str | Path, **settings: Any) -> Corpus:
    return Corpus(TextData(path=str(path), **settings))


def write_text(folder: Path, n_lines: int = 150) -> Path:
    path = folder / "text.txt"
    path.write_text(made_up_text(n_lines), "utf-8")
    return path


def write_documents(folder: Path, n: int = 60) -> Path:
    """Write a jsonl file of short documents of unequal length."""
    lines = made_up_text(2 * n).splitlines()
    texts = [" ".join(lines[2 * i : 2 * i + 2])[: 15 + 2 * i] for i in range(n)]
    path = folder / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    return path


def tiny_run(text: Path, *, model: TransformerConfig = MODEL, data: dict[str, Any] | None = None, **train: Any) -> Run:
    """Return a run of 20 steps, 10,000 parameters; prepared tokens are beside the text. `train` replaces settings."""
    defaults = {"max_steps": 20, "batch_size": 3, "eval_every": 10, "log_every": 5, "device": "cpu"}
    return Run(
        name="tiny",
        model=model,
        tokenizer=TokenizerConfig(vocab_size=290),
        data=replace(TextData(path=str(text), cache_dir=str(text.parent / "cache")), **(data or {})),
        train=TrainConfig(**(defaults | train)),
        generation=GenerationConfig(max_new_tokens=3),
    )


def step_of(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    objective: Objective | None = None,
    host: Host | None = None,
    has_one_shape: bool = False,
    **train: Any,
) -> TrainStep:
    """Return a step on the CPU in fp32, not compiled, without activation checkpointing; `train` replaces settings."""
    config = TrainConfig(**({"precision": "fp32", "compile": False, "activation_checkpointing": False} | train))
    host = host or Host(torch.device("cpu"))
    return TrainStep(network, objective or CausalObjective(), optimizer, config, host, has_one_shape)


class Recording(Silent):
    """A reporter that keeps all messages and evaluations."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.evaluations: dict[int, dict[str, LossReport]] = {}
        self.scores: dict[int, dict[str, float]] = {}

    def log(self, text: str) -> None:
        self.messages.append(text)

    def facts(self, rows: Mapping[str, str]) -> None:
        self.messages += [f"{name} {value}" for name, value in rows.items()]

    def evaluation(self, evaluation: Evaluation) -> None:
        self.evaluations[evaluation.step] = dict(evaluation.reports)
        self.scores[evaluation.step] = dict(evaluation.scores)


def signal_at(monkeypatch: pytest.MonkeyPatch, step: int, which: signal.Signals = signal.SIGTERM) -> None:
    """Send the process a signal in the middle of the step that follows `step`."""
    monkeypatch.setattr(host, "LATE", 600.0)
    one_step = Trainer._one_step

    def stopped(trainer: Trainer) -> Any:
        if trainer.progress.step == step:
            signal.raise_signal(which)
        return one_step(trainer)

    monkeypatch.setattr(Trainer, "_one_step", stopped)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of the log without the values that depend on the clock."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMES} for line in lines]


def remains(folder: Path) -> dict[str, Any]:
    """Return everything in a finished run that must not depend on how often the run was stopped."""
    last = checkpoint.path_of(folder, checkpoint.steps(folder)[-1])
    numbers = json.loads((last / checkpoint.STATE).read_text())
    del numbers["seconds"]
    tensors = {
        str(path.relative_to(last)): {name: x.numpy().tobytes() for name, x in load_file(path).items()}
        for path in sorted(last.rglob("*.safetensors"))
    }
    return {
        "step": last.name,
        "numbers": numbers,
        "tensors": tensors,
        "published": (folder / "model.safetensors").read_bytes(),
        "manifest": json.loads((folder / "manifest.json").read_text()),
        "metrics": metrics(folder),
    }


PAIR_MODEL = TransformerConfig(
    encoder=Stack(1, 2, d_ff=32), decoder=Stack(1, 2, d_ff=32), d_model=16, max_len=32, positions=RotaryPositions()
)
WORDS = {
    "red": "rot", "blue": "blau", "dog": "hund", "cat": "katze", "sees": "sieht", "runs": "rennt", "and": "und",
    "the": "die", "tree": "baum", "house": "haus", "two": "zwei", "small": "klein",
}  # fmt: skip


def write_pairs(folder: Path, n: int = 80, name: str = "train") -> tuple[Path, Path]:
    """Write two aligned files: sentences of two to six words, and their translated words in reverse order."""
    rng = random.Random(name)
    sentences = [rng.choices(list(WORDS), k=rng.randint(2, 6)) for _ in range(n)]
    source, target = folder / f"{name}.en", folder / f"{name}.de"
    source.write_text("".join(" ".join(words) + "\n" for words in sentences))
    target.write_text("".join(" ".join(WORDS[word] for word in reversed(words)) + "\n" for words in sentences))
    return source, target


def pair_run(
    folder: Path,
    *,
    model: ModelConfig = PAIR_MODEL,
    separate: bool = False,
    data: dict[str, Any] | None = None,
    **train: Any,
) -> Run:
    """Return a run of 20 steps on made-up pairs, with a joint vocabulary or one per side."""
    source, target = write_pairs(folder)
    valid_source, valid_target = write_pairs(folder, 20, "valid")
    files = {"source": source, "target": target, "valid_source": valid_source, "valid_target": valid_target}
    defaults = {"max_steps": 20, "eval_every": 10, "log_every": 5, "device": "cpu"}
    words = TokenizerConfig(scheme="word", vocab_size=120)
    return Run(
        name="pairs",
        model=model,
        tokenizer=words,
        source_tokenizer=words if separate else None,
        data=PairData(
            **({name: str(path) for name, path in files.items()} | {"batch_tokens": 96} | (data or {})),
            cache_dir=str(folder / "cache"),
        ),
        objective=Seq2SeqConfig(),
        train=TrainConfig(**(defaults | train)),
        generation=BeamConfig(beam=2, max_new_tokens=12),
    )


ENCODER = replace(MODEL, encoder=MODEL.decoder, decoder=None)


def write_labels(folder: Path, n: int = 120, name: str = "labels") -> Path:
    """Write a tsv of made-up sentences; the class is the animal in the sentence, and the number is its length."""
    rng = random.Random(name)
    lines = []
    for _ in range(n):
        words = rng.choices([word for word in WORDS if word not in ("dog", "cat")], k=rng.randint(2, 6))
        animal = rng.choice(["dog", "cat"])
        words.insert(rng.randrange(len(words) + 1), animal)
        lines.append(f"{' '.join(words)}\t{rng.choice(['red tree', 'blue house'])}\t{animal}\t{len(words)}\n")
    path = folder / f"{name}.tsv"
    path.write_text("text\tother\tlabel\tnumber\n" + "".join(lines))
    return path


def write_tags(folder: Path, n: int = 120) -> Path:
    """Write a CoNLL file in which only animals are spans."""
    rng = random.Random(0)
    sentences = []
    for _ in range(n):
        words = rng.choices(list(WORDS), k=rng.randint(2, 6))
        sentences.append("".join(f"{w}\t{'B-ANIMAL' if w in ('dog', 'cat') else 'O'}\n" for w in words))
    path = folder / "tags.conll"
    path.write_text("\n".join(sentences))
    return path


def text_run_of(folder: Path, objective: ObjectiveConfig, **train: Any) -> Run:
    """Return a run of 20 steps of masking or denoising a text of short rows."""
    run = tiny_run(write_text(folder), **train)
    both = replace(MODEL, encoder=MODEL.decoder)
    return replace(run, model=ENCODER if objective.kind == "masked" else both, objective=objective)


def label_run(
    folder: Path,
    outputs: str = "classes",
    *,
    model: TransformerConfig = ENCODER,
    data: dict[str, Any] | None = None,
    **train: Any,
) -> Run:
    """Return a run of 20 steps on made-up labelled texts."""
    tags = outputs == "tags"
    path = write_tags(folder) if tags else write_labels(folder)
    values = {"path": str(path), "outputs": outputs, "batch_tokens": 96, "valid_fraction": 0.2}
    values |= {"label_field": "number"} if outputs == "regression" else {}
    head = PositionHead() if tags else SequenceHead(pooling="mean")
    defaults = {"max_steps": 20, "eval_every": 10, "log_every": 5, "device": "cpu"}
    return Run(
        name="labels",
        model=replace(model, head=head),
        tokenizer=TokenizerConfig(scheme="word", vocab_size=120),
        data=LabelData(**(values | (data or {}))),
        objective=TaggingConfig() if tags else ClassificationConfig(),
        train=TrainConfig(**(defaults | train)),
    )


def unbalanced_run(folder: Path, **train: Any) -> Run:
    """Return `label_run` with weights of the classes, on texts of which one class is about nine times as frequent."""
    run = label_run(folder, **train)
    path = folder / "labels.tsv"
    head, *lines = write_labels(folder, n=400).read_text().splitlines(keepends=True)
    dogs, cats = ([line for line in lines if f"\t{animal}\t" in line] for animal in ("dog", "cat"))
    path.write_text("".join([head, *dogs, *cats[: len(dogs) // 9]]))
    return replace(run, objective=ClassificationConfig(class_weights="balanced"))


def write_conversations(folder: Path, n: int = 60, name: str = "conversations") -> Path:
    """Write a jsonl file of one or two exchanges: the answer to some words is their translation."""
    rng = random.Random(name)
    lines = []
    for _ in range(n):
        messages = []
        for _ in range(rng.randint(1, 2)):
            words = rng.choices(list(WORDS), k=rng.randint(1, 3))
            messages.append({"role": "user", "content": " ".join(words)})
            messages.append({"role": "assistant", "content": " ".join(WORDS[word] for word in words)})
        lines.append(json.dumps({"messages": messages}) + "\n")
    path = folder / f"{name}.jsonl"
    path.write_text("".join(lines))
    return path


def conversation_run(folder: Path, *, data: dict[str, Any] | None = None, **train: Any) -> Run:
    """Return a run of 20 steps on made-up conversations."""
    defaults = {"max_steps": 20, "eval_every": 10, "log_every": 5, "device": "cpu"}
    values = {"path": str(write_conversations(folder)), "batch_tokens": 160, "valid_fraction": 0.2}
    return Run(
        name="conversations",
        model=replace(MODEL, max_len=64),
        tokenizer=TokenizerConfig(vocab_size=300),
        data=ConversationData(**(values | (data or {}))),
        objective=ConversationConfig(),
        train=TrainConfig(**(defaults | train)),
        generation=GenerationConfig(max_new_tokens=8),
    )


TOPICS = {"dog": "animal", "rain": "weather", "red": "colour"}


def label_set_run(folder: Path) -> Run:
    """Return a run on texts with zero to three labels, which single words decide."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(300):
        words = [word for word in TOPICS if rng.random() < 0.5]
        text = " ".join([*rng.permutation([*words, *rng.choice(["a", "the", "so", "on"], 3)])])
        lines.append(json.dumps({"text": text, "label": [TOPICS[word] for word in words]}))
    (folder / "several.jsonl").write_text("\n".join(lines) + "\n")
    run = label_run(folder, max_steps=160)
    data = replace(LabelData(), path=str(folder / "several.jsonl"), outputs="multi_label", batch_tokens=512)
    fast = replace(run.train, optimizer=AdamWConfig(learning_rate=0.02), schedule=CosineSchedule(warmup_steps=5))
    return replace(run, data=data, train=fast)


def long_conversation_run(folder: Path) -> Run:
    run = conversation_run(folder, max_steps=60, eval_every=60)
    return replace(run, model=replace(run.model, max_len=160))


def written(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return str(path)


def start_run(folder: Path) -> Run:
    """Return a run whose model answers with a digit at random: the start of preferences and of rewards."""
    rows = [{"prompt": f"{i % 10}?", "completion": f"{i * 7 % 10}"} for i in range(100)]
    return Run(
        name="start",
        model=MODEL,
        tokenizer=TokenizerConfig(vocab_size=0, scheme="char"),
        data=ConversationData(path=written(folder / "conversations.jsonl", rows), batch_tokens=512),
        objective=ConversationConfig(),
        train=TrainConfig(
            max_steps=60, eval_every=60, log_every=4, device="cpu", optimizer=AdamWConfig(learning_rate=0.01)
        ),
    )


Tiny = Callable[[str], Path]
"""The fixture `tiny`: a function that copies the finished run of a name in `TINY`."""

RECURRENT = RecurrentConfig(attention=AttendBefore(), d_embedding=8, d_encoder=8, d_decoder=12, max_len=32)
TINY: dict[str, Callable[[Path], Run]] = {
    "text": lambda folder: tiny_run(write_text(folder)),
    "masked": lambda folder: text_run_of(folder, MaskedConfig()),
    "infilling": lambda folder: text_run_of(folder, InfillingConfig()),
    "spans": lambda folder: text_run_of(folder, SpansConfig(n_sentinels=4)),
    "pairs": pair_run,
    "separate pairs": lambda folder: pair_run(folder, separate=True),
    "recurrent pairs": lambda folder: pair_run(folder, model=RECURRENT),
    "classes": label_run,
    "regression": lambda folder: label_run(folder, "regression"),
    "tags": lambda folder: label_run(folder, "tags"),
    "multi_label": label_set_run,
    "conversations": conversation_run,
    "long conversations": long_conversation_run,
    "start": start_run,
}
"""Runs that many tests read: `kept.py` trains each once."""
LINEAGES = {
    "encoder": "masked",
    "encoder-decoder": "pairs",
    "recurrent": "recurrent pairs",
    "classifier": "classes",
}
"""The run of `TINY` of each lineage but the decoder, and of a classifier."""
