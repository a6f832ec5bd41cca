"""The Python interface: `load` a model directory and use it; `train` a run."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch

from glassformer.data.sources import read_documents
from glassformer.data.tokens import TokenFile, encode_text
from glassformer.errors import UserError
from glassformer.evaluation.loss import LossReport, evaluate_loss, evaluation_mode, evaluation_rows
from glassformer.inference.decode import StopWatch, check_prompts, generate, never_written
from glassformer.models.transformer import Transformer
from glassformer.objectives.causal import CausalObjective
from glassformer.run_config import GenerationConfig, Run, WindowRows
from glassformer.store import checkpoint
from glassformer.store.model_directory import read_model
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.launch import (
    LaunchReporter,
    Outcome,
    choose_device,
    corpus_of,
    launch,
    prepared_tokens,
    relaunch,
)


@dataclass(frozen=True)
class Model:
    """A trained network, its tokenizer and its defaults; what `load` gives."""

    network: Transformer
    tokenizer: Tokenizer
    generation: GenerationConfig
    run: Run
    device: torch.device

    @overload
    def generate(self, prompt: str, *, slide: bool = False, **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: Sequence[str], *, slide: bool = False, **settings: Any) -> list[str]: ...
    def generate(self, prompt: str | Sequence[str], *, slide: bool = False, **settings: Any) -> str | list[str]:
        """The continuation of a prompt, or of each of several; a batch gives what each gives alone.

        `settings` are fields of `GenerationConfig` that replace the model's defaults. `slide` lets the context
        slide; else a prompt that does not fit is a `UserError`.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        texts = [""] * len(prompts)
        for pieces in self.stream(prompts, slide=slide, **settings):
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        return texts[0] if isinstance(prompt, str) else texts

    def stream(self, prompts: Sequence[str], *, slide: bool = False, **settings: Any) -> Iterator[list[str]]:
        """Yields the new text of every prompt, step by step; no character is ever cut in two."""
        if isinstance(settings.get("stop"), str):
            settings["stop"] = (settings["stop"],)
        config = replace(self.generation, **settings)
        ids = [self.prompt_ids(prompt) for prompt in prompts]
        streams = [self.tokenizer.stream() for _ in prompts]
        watches = [StopWatch(config.stop) for _ in prompts]
        pieces = [""] * len(prompts)
        end_ids = [] if self.tokenizer.eos_id is None else [self.tokenizer.eos_id]

        def is_finished(row: int, token: int) -> bool:
            pieces[row] = "" if token in end_ids else watches[row].push(streams[row].push(token))
            return watches[row].stopped

        steps = generate(
            self.network,
            ids,
            config,
            max_len=self.network.config.max_len,
            end_ids=end_ids,
            never=never_written(self.tokenizer, self.network.config.vocab_size),
            slide=slide,
            device=self.device,
            is_finished=is_finished,
        )
        for _ in steps:
            yield list(pieces)
            pieces[:] = [""] * len(prompts)
        yield [
            "" if watch.stopped else watch.push(stream.flush()) + watch.flush()
            for watch, stream in zip(watches, streams, strict=True)
        ]

    def check_prompts(self, prompts: Sequence[str], *, slide: bool = False) -> None:
        """`UserError` when one of them cannot be gone on from, before any of them is."""
        check_prompts([self.prompt_ids(prompt) for prompt in prompts], self.network.config.max_len, slide)

    def prompt_ids(self, prompt: str) -> list[int]:
        """The ids of a prompt; an empty one starts from the token that stands between documents."""
        ids = self.tokenizer.encode(prompt)
        if ids:
            return ids
        start = self.tokenizer.eos_id
        if start is None:
            raise UserError("the prompt is empty, and this tokenizer has no end token to start from: give a prompt")
        return [start]

    def evaluate(
        self, path: str | Path | None = None, progress: Callable[[int, int], None] | None = None
    ) -> LossReport:
        """The reported loss on the validation side of the run's own text, or on the whole of another text.

        Every target once, in consecutive windows of the context length; the trainer's number, by its own code.
        """
        tokens = self._tokens(path)
        run = self.run
        apart = not isinstance(run.data.arrangement, WindowRows)
        rows = evaluation_rows(tokens, run.context, self.network.config.vocab_size, apart)
        autocast = torch.bfloat16 if run.train.precision == "bf16" else None
        report = (lambda done: progress(done, tokens.n_tokens)) if progress else None
        with evaluation_mode(self.network):
            return evaluate_loss(self.network, CausalObjective(), rows, self.device, tokens.n_bytes, autocast, report)

    def _tokens(self, path: str | Path | None) -> TokenFile:
        data = self.run.data
        # The validation text that the run names is read as the trainer read it, end tokens and all.
        is_own = path is None or str(Path(path).absolute()) == data.valid_path
        if path is not None and not is_own:
            documents = read_documents([path], text_field=data.text_field)
            return encode_text(self.tokenizer, documents, name=str(path))
        if data.path is None:
            raise UserError("the model does not say what it was trained on: give a text as --data.path FILE")
        return prepared_tokens(self.run, corpus_of(self.run), self.tokenizer).valid


def load(folder: str | Path, *, step: int | None = None, device: str = "auto") -> Model:
    """A model directory, verified, on a device; `step` takes one of a run's checkpoints."""
    path = Path(folder)
    if step is not None:
        path = checkpoint.find(path, step)
    where = choose_device(device)
    stored = read_model(path)
    return Model(stored.network.to(where), stored.tokenizer, stored.generation, stored.run, where)


def train(run: Run, out: str | Path | None = None, reporter: LaunchReporter | None = None) -> Outcome:
    """Trains a run into a folder, `runs/NAME` by default; the result's folder can be given to `load`."""
    return launch(run, Path(out) if out is not None else Path("runs") / run.name, reporter or Silent())


def resume(folder: str | Path, reporter: LaunchReporter | None = None) -> Outcome:
    """Goes on with a run from its newest intact checkpoint, exactly."""
    return relaunch(Path(folder), reporter or Silent())


class Silent:
    """A reporter that shows nothing."""

    def say(self, text: str) -> None: ...

    def step(self, step: int, max_steps: int, values: dict[str, float]) -> None: ...

    def evaluation(self, step: int, reports: dict[str, LossReport], sample: str | None) -> None: ...

    def phase(self, title: str) -> AbstractContextManager[Callable[[int, int], None]]:
        return nullcontext(lambda done, total: None)
