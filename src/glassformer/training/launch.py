"""From a recipe to a running trainer: text, tokenizer, tokens, network; fresh or from a checkpoint."""

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from glassformer import files
from glassformer.config import TokenHead, TransformerConfig
from glassformer.data.batching import Epochs, Example, Packed, Sampler, Windows
from glassformer.data.builtin import PREFIX
from glassformer.data.corpus import Corpus
from glassformer.data.tokens import TokenFile, TokenSplits, prepare
from glassformer.errors import UserError
from glassformer.evaluation.loss import LossReport, evaluation_rows
from glassformer.inference.decode import generate, never_written
from glassformer.models.build import build_model
from glassformer.models.transformer import Transformer
from glassformer.objectives.causal import CausalObjective
from glassformer.run_config import DataConfig, ExampleRows, GenerationConfig, PackedRows, Run, WindowRows
from glassformer.store import checkpoint
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import TOKENIZER, read_run, write_model_files
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training import metrics_log
from glassformer.training.allocator import keep_freed_memory
from glassformer.training.trainer import Reporter, Task, Trainer

SAMPLE_PROMPT, SAMPLE_LENGTH = 16, 64
TRAIN_TOKENS_EVALUATED = 32_768
OF_A_RUN = {checkpoint.FOLDER, metrics_log.NAME, "tensorboard"}
"""What a run that died before its first checkpoint may leave in its folder."""


class LaunchReporter(Reporter, Protocol):
    """A reporter that also shows the preparations."""

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]: ...


@dataclass(frozen=True)
class Outcome:
    """A finished run: its folder and the reports of its last evaluation."""

    folder: Path
    reports: dict[str, LossReport]


def launch(run: Run, folder: Path, reporter: LaunchReporter) -> Outcome:
    """Trains a run from its first step into a new folder; everything is checked before anything is written."""
    if checkpoint.steps(folder):
        raise UserError(
            f"{folder} already holds a run: go on with `glassformer resume {folder}`, or name another --out"
        )
    strangers = {path.name for path in folder.iterdir()} - OF_A_RUN if folder.is_dir() else set()
    if strangers:
        raise UserError(f"{folder} is not empty ({min(strangers)} is in it): name another --out")
    files.require_writable(folder)
    _check_model(run)
    corpus = corpus_of(run)
    device = choose_device(run.train.device)
    with reporter.phase("reading the text") as _:
        plan = corpus.plan
    if plan.n_left_out:
        reporter.say(f"{plan.n_left_out} training documents also stand in the validation text and are left out")
    tokenizer = _tokenizer(run, corpus, reporter)
    if plan.end_tokens and tokenizer.eos_id is None:
        reporter.say("the tokenizer has no end token, so nothing stands between the documents")
    run = replace(run, model=complete(run.model, tokenizer), data=_with_whole_paths(run.data))
    splits = _prepare(run, corpus, tokenizer, reporter)
    task = _task(run, splits, tokenizer, reporter)
    torch.manual_seed(run.train.seed)
    network = build_model(run.model).to(device)
    reporter.say(_summary(run, network, splits, tokenizer, device))
    trainer = _trainer(run, network, tokenizer, task, folder, reporter, device, corpus.digest)
    return Outcome(folder, trainer.train())


def relaunch(folder: Path, reporter: LaunchReporter) -> Outcome:
    """Goes on from the newest intact checkpoint of a run, exactly as if it had never stopped."""
    if not folder.is_dir():
        raise UserError(f"no such run: {folder}")
    if folder.parent.name == checkpoint.FOLDER:
        raise UserError(f"{folder} is a checkpoint: resume takes the run's folder, {folder.parent.parent}")
    newest = checkpoint.newest(folder, reporter.say)
    step = Manifest.read(newest).step
    run = read_run(newest)
    corpus = corpus_of(run)
    if checkpoint.load_numbers(newest)["data_digest"] != corpus.digest:
        raise UserError(
            f"the text of {corpus.name} is not the one that {folder} was trained on: put the old text back, or "
            "start a new run"
        )
    tokenizer = Tokenizer.load(newest / TOKENIZER)
    splits = _prepare(run, corpus, tokenizer, reporter)
    device = choose_device(run.train.device)
    network = build_model(run.model).to(device)
    task = _task(run, splits, tokenizer, reporter)
    trainer = _trainer(run, network, tokenizer, task, folder, reporter, device, corpus.digest)
    trainer.restore(newest)
    done = trainer.progress.finished or step >= run.train.max_steps
    reporter.say(f"resumed at step {step} of {run.train.max_steps}" + (": nothing is left to do" if done else ""))
    return Outcome(folder, trainer.train() or _reports_so_far(trainer))


def complete(model: TransformerConfig, tokenizer: Tokenizer) -> TransformerConfig:
    """The configuration with the tokenizer's special ids, and its vocabulary where that is left open."""
    if model.vocab_size and model.vocab_size < tokenizer.vocab_size:
        raise UserError(
            f"model.vocab_size is {model.vocab_size} and the tokenizer has {tokenizer.vocab_size} tokens: leave it "
            "at 0, or raise it"
        )
    ids = {f"{name}_id": getattr(tokenizer, f"{name}_id") for name in ("pad", "bos", "eos", "unk", "mask")}
    known = {name: value for name, value in ids.items() if value is not None}
    return replace(model, vocab_size=model.vocab_size or tokenizer.vocab_size, **known)


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, then MPS, then the CPU; a device that is not there is an error."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"the device {name!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def _cache_folder(run: Run) -> Path:
    """Where prepared tokens are kept: `data.cache_dir`, or the user's cache folder."""
    if run.data.cache_dir is not None:
        return Path(run.data.cache_dir)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "glassformer" / "tokens"


def _with_whole_paths(data: DataConfig) -> DataConfig:
    """The text's place as seen from anywhere: the run may be resumed or evaluated from another folder."""

    def whole(path: str | None) -> str | None:
        return path if path is None or path.startswith(PREFIX) else str(Path(path).absolute())

    return replace(data, path=whole(data.path), valid_path=whole(data.valid_path), cache_dir=whole(data.cache_dir))


def corpus_of(run: Run) -> Corpus:
    """The text of a run and its split."""
    if run.data.path is None:
        raise UserError(f"the run {run.name!r} names no text: give it as --data.path FILE")
    for path in (run.data.path, run.data.valid_path or ""):
        if not path.isprintable():
            raise UserError(f"the name of the text {path!r} has characters that cannot be written down: rename it")
    return Corpus(
        [run.data.path],
        valid_paths=[run.data.valid_path] if run.data.valid_path else [],
        valid_fraction=run.data.valid_fraction,
        text_field=run.data.text_field,
    )


def _tokenizer(run: Run, corpus: Corpus, reporter: LaunchReporter) -> Tokenizer:
    """The one that is named, or a new one learned on the training text, never on the validation text."""
    config = run.tokenizer
    if config.path is not None:
        return Tokenizer.load(Path(config.path))
    with reporter.phase("learning the tokenizer") as progress:
        return Tokenizer.train(
            corpus.training_texts(),
            vocab_size=config.vocab_size,
            flavour=config.flavour,
            learner=config.learner,
            special_tokens=config.special_tokens,
            progress=progress,
        )


def _check_model(run: Run) -> None:
    model = run.model
    if model.decoder is None or model.encoder is not None or not isinstance(model.head, TokenHead):
        raise UserError("predicting the next token needs a model with [model.decoder] alone and a head of kind tokens")
    if run.context > run.model.max_len:
        raise UserError(f"data.context is {run.context} and model.max_len only {run.model.max_len}")


def prepared_tokens(
    run: Run, corpus: Corpus, tokenizer: Tokenizer, progress: Callable[[int, int], None] | None = None
) -> TokenSplits:
    """The tokens of a run's text, from the cache when they are there."""
    return prepare(corpus, tokenizer, _cache_folder(run), dropout=run.tokenizer.dropout, progress=progress)


def _prepare(run: Run, corpus: Corpus, tokenizer: Tokenizer, reporter: LaunchReporter) -> TokenSplits:
    with reporter.phase("preparing tokens") as progress:
        return prepared_tokens(run, corpus, tokenizer, progress)


def _task(run: Run, splits: TokenSplits, tokenizer: Tokenizer, reporter: Reporter) -> Task:
    """The sampler and the evaluations of a run."""
    samplers: dict[type, type[Windows] | type[Epochs] | type[Packed]] = {
        WindowRows: Windows,
        ExampleRows: Epochs,
        PackedRows: Packed,
    }
    sampler: Sampler = samplers[type(run.data.arrangement)](
        splits.train, run.context, run.train.batch_size, run.train.seed
    )
    if isinstance(sampler, Epochs) and sampler.n_cut:
        reporter.say(f"{sampler.n_cut:,} documents are longer than a row of {run.context:,} tokens and lose their end")
    if isinstance(sampler, (Epochs, Packed)) and sampler.n_skipped:
        reporter.say(f"{sampler.n_skipped:,} documents of a single token have nothing to predict and are left out")
    apart = not isinstance(run.data.arrangement, WindowRows)
    slice_of_train = _beginning(
        splits.train, min(splits.valid.n_tokens, TRAIN_TOKENS_EVALUATED), run.context, tokenizer
    )

    def rows(tokens: TokenFile) -> Callable[[], Iterable[Sequence[Example]]]:
        return lambda: evaluation_rows(tokens, run.context, run.model.vocab_size, apart)

    evaluations = {"train": rows(slice_of_train), "valid": rows(splits.valid)}
    for batches in evaluations.values():
        next(iter(batches()))  # a text with nothing to predict is refused now, not at the first evaluation
    lossless = tokenizer.flavour in ("byte", "char")  # the others do not keep white space: its bytes are unknown
    return Task(
        CausalObjective(run.objective.label_smoothing),
        sampler,
        evaluations,
        n_bytes={"train": slice_of_train.n_bytes if lossless else None, "valid": splits.valid.n_bytes},
    )


def _beginning(tokens: TokenFile, n_tokens: int, context: int, tokenizer: Tokenizer) -> TokenFile:
    """The first `n_tokens` or so of a text, with the bytes that they stand for: enough to see over-fitting."""
    ids = tokens.ids[: max(n_tokens, context + 1)]
    starts = tokens.document_starts[tokens.document_starts < len(ids)]
    return replace(tokens, ids=ids, document_starts=starts, n_bytes=len(tokenizer.decode(ids.tolist()).encode()))


def _trainer(
    run: Run,
    network: Transformer,
    tokenizer: Tokenizer,
    task: Task,
    folder: Path,
    reporter: Reporter,
    device: torch.device,
    digest: str,
) -> Trainer:
    def write_model(into: Path) -> None:
        write_model_files(into, network, tokenizer, run)

    def sample() -> str:
        return write_sample(network, tokenizer, run, next(iter(task.evaluations["valid"]())), device)

    if device.type == "cpu":
        keep_freed_memory()
    return Trainer(
        run.train,
        network,
        replace(task, sample=sample),
        folder,
        write_model,
        reporter,
        device,
        digest,
    )


def write_sample(
    network: Transformer,
    tokenizer: Tokenizer,
    run: Run,
    rows: Sequence[Example],
    device: torch.device,
) -> str:
    """The beginning of the validation text, and how the model goes on."""
    n_prompt = max(1, min(SAMPLE_PROMPT, run.context // 4))
    prompt = rows[0].token_ids[:n_prompt].tolist()
    length = max(1, min(SAMPLE_LENGTH, run.model.max_len - n_prompt))
    config = GenerationConfig(max_new_tokens=length, temperature=0.8, top_k=50, seed=run.train.seed)
    end = [] if run.model.eos_id is None else [run.model.eos_id]
    never = never_written(tokenizer, run.model.vocab_size)
    steps = generate(network, [prompt], config, max_len=run.model.max_len, end_ids=end, never=never, device=device)
    new = [ids[0] for ids in steps if ids[0] is not None]
    return tokenizer.decode(prompt) + "│" + tokenizer.decode(new)


def _summary(run: Run, network: nn.Module, splits: TokenSplits, tokenizer: Tokenizer, device: torch.device) -> str:
    n_parameters = sum(p.numel() for p in network.parameters())
    train, valid = splits.train, splits.valid
    asked = run.tokenizer.vocab_size if run.tokenizer.path is None else 0
    fewer = f" (the text gives no {asked:,})" if tokenizer.vocab_size < asked else ""
    return (
        f"{run.name}: {n_parameters:,} parameters on {device}; {train.n_tokens:,} training and {valid.n_tokens:,} "
        f"validation tokens of {valid.n_bytes / valid.n_tokens:.2f} bytes, vocabulary {tokenizer.vocab_size:,}{fewer}"
    )


def _reports_so_far(trainer: Trainer) -> dict[str, LossReport]:
    """What the last evaluation of a finished run said, when there was nothing left to train."""
    valid = trainer.progress.valid
    return {"valid": LossReport(**valid)} if valid else {}  # type: ignore[arg-type]
