"""The Python interface: `load` a model directory and use it; `train` a run."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch

from glassformer.data.batching import Example
from glassformer.data.pair_batching import evaluation_batches
from glassformer.data.pair_files import Dropped, Pair
from glassformer.data.pair_tokens import PairFile, encode_pairs
from glassformer.data.pairs import PairCorpus, read_pairs
from glassformer.data.sources import read_documents
from glassformer.data.tokens import TokenFile, encode_text
from glassformer.errors import UserError
from glassformer.evaluation.loss import LossReport, evaluate_loss, evaluation_mode, evaluation_rows
from glassformer.evaluation.pairs import translation_scores
from glassformer.inference.decode import StopWatch, check_prompts, generate, never_written
from glassformer.inference.translator import Translation, Translator
from glassformer.models.build import Network
from glassformer.objectives.causal import CausalObjective
from glassformer.objectives.objective import Objective
from glassformer.recurrent_config import RecurrentConfig
from glassformer.run_config import BeamConfig, GenerationConfig, Run, WindowRows
from glassformer.store import checkpoint
from glassformer.store.model_directory import read_model
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.launch import Outcome, choose_device, launch, relaunch
from glassformer.training.material import LaunchReporter, Tokenizers
from glassformer.training.pair_task import objective_of, pairs_of, within
from glassformer.training.text_task import context_of, corpus_of, prepared_tokens, text_of

Progress = Callable[[int, int], None]
Say = Callable[[str], None]


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=4)


@dataclass(frozen=True)
class Model:
    """A trained network, its tokenizers and its defaults; what `load` gives."""

    network: Network
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    """The same one where source and target share it."""
    generation: GenerationConfig | BeamConfig
    run: Run
    device: torch.device
    others: tuple[Network, ...] = ()
    """Further members of an ensemble (`ensemble`), which translation averages."""
    data_digest: str | None = None
    """Of the data that it was trained on; None where no state of training stands beside the model."""

    @property
    def is_seq2seq(self) -> bool:
        """Whether it makes a target from a source; else it goes on with a text."""
        config = self.network.config
        return isinstance(config, RecurrentConfig) or (config.encoder is not None and config.decoder is not None)

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
        if self.is_seq2seq or not isinstance(self.generation, GenerationConfig):
            raise UserError(f"{self.run.name} makes a target from a source: use it with translate, not generate")
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

    @overload
    def translate(self, source: str, *, prefix: str = "", **settings: Any) -> str: ...
    @overload
    def translate(self, source: Sequence[str], *, prefix: str = "", **settings: Any) -> list[str]: ...
    def translate(self, source: str | Sequence[str], *, prefix: str = "", **settings: Any) -> str | list[str]:
        """The best target of a source, or of each of several; a batch gives what each gives alone.

        `settings` are fields of `BeamConfig` that replace the model's defaults; `prefix` is how the target begins.
        """
        sources = [source] if isinstance(source, str) else list(source)
        texts = [found[0].text for found in self.translations(sources, prefix=prefix, **settings)]
        return texts[0] if isinstance(source, str) else texts

    def translations(
        self,
        sources: Sequence[str],
        *,
        n_best: int = 1,
        prefix: str = "",
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """The `n_best` targets of every source with their ids and scores, best first."""
        config = self._beam(settings)
        return self.translator.translate(sources, config, n_best=n_best, prefix=prefix, progress=progress)

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[tuple[float, int]]:
        """log p of each target given its source, in nats, and the number of its tokens, its end included."""
        return self.translator.score(sources, targets)

    @property
    def translator(self) -> Translator:
        """What translates with this model; `UserError` when it has no source."""
        if not self.is_seq2seq:
            raise UserError(f"{self.run.name} has no encoder and goes on with a text: use generate, not translate")
        return Translator([self.network, *self.others], self.tokenizer, self.source_tokenizer, self.device)

    def _beam(self, settings: dict[str, Any]) -> BeamConfig:
        config = self.generation if isinstance(self.generation, BeamConfig) else BeamConfig()
        return replace(config, **settings)

    def encode_source(self, text: str) -> list[int]:
        """The ids that the encoder reads, the end token included."""
        return self.translator.source_ids(text)

    def encode_target(self, text: str) -> list[int]:
        """The ids that the decoder reads to predict a target: the start token and the target."""
        return [self.translator.start_id, *self.tokenizer.encode(text)]

    def evaluate(
        self,
        path: str | Path | None = None,
        progress: Progress | None = None,
        *,
        source: str | Path | None = None,
        target: str | Path | None = None,
        say: Say = _warn,
    ) -> LossReport:
        """The reported loss on the validation side of the run's own data, or on the whole of other data.

        Every target once; the trainer's number, by its own code. Text is cut into consecutive windows of the context
        length; pairs are `source` and `target`, two aligned files, or `path`, one file that holds both. `say` is told
        what is left out (`pairs`), and that the run's own data has changed since.
        """
        if self.is_seq2seq:
            _, encoded = self._pairs(path, source, target, say)
            batches, objective, total, n_bytes = self._pair_batches(encoded)
        else:
            if source is not None or target is not None:
                raise UserError(
                    f"{self.run.name} has no source and is evaluated on a text: give it as --data.path FILE"
                )
            batches, objective, total, n_bytes = self._text_batches(path, say)
        autocast = torch.bfloat16 if self.run.train.precision == "bf16" else None
        report = (lambda done: progress(done, total)) if progress else None
        with evaluation_mode(self.network):
            return evaluate_loss(self.network, objective, batches, self.device, n_bytes, autocast, report)

    def text_scores(
        self,
        path: str | Path | None = None,
        progress: Progress | None = None,
        *,
        source: str | Path | None = None,
        target: str | Path | None = None,
        say: Say = _warn,
        **settings: Any,
    ) -> dict[str, float | str]:
        """Scores of what it writes for the sources of the same data: BLEU and chrF, or error rates; in percent."""
        pairs = self.pairs(path, source, target, say)
        return translation_scores(self.translator, pairs, pairs_of(self.run), self._beam(settings), progress)

    def pairs(
        self,
        path: str | Path | None = None,
        source: str | Path | None = None,
        target: str | Path | None = None,
        say: Say = _warn,
    ) -> list[Pair]:
        """The validation pairs of the run that fit the model, or the pairs of some files.

        `say` is told how many have an empty side, and how many of the run's own are too long, which are left out as
        in training. Of other files a pair that is too long is a `UserError`: without it the scores would be others.
        """
        return self._pairs(path, source, target, say)[0]

    def _pairs(
        self, path: str | Path | None, source: str | Path | None, target: str | Path | None, say: Say
    ) -> tuple[list[Pair], PairFile]:
        data = pairs_of(self.run)
        if path is None and source is None and target is None:
            corpus = PairCorpus(data)
            self._say_changed(corpus.digest, corpus.name, say)
            pairs, too_long = corpus.split[1], say
        else:
            names = {"path": path, "source": source, "target": target}
            asked: dict[str, Any] = {name: None if value is None else str(value) for name, value in names.items()}
            dropped = Dropped()
            data = replace(data, **asked, valid_path=None, valid_source=None, valid_target=None)
            pairs, too_long = read_pairs(data, dropped), _refuse
            for sentence in dropped.sentences():
                say(sentence)
        encoded = encode_pairs(pairs, self.tokenizer, self.source_tokenizer, "pairs")
        fitting = within(encoded, self.network.config, too_long)
        return [pairs[row] for row in fitting.rows], fitting

    def _say_changed(self, digest: str, name: str, say: Say) -> None:
        if self.data_digest is not None and self.data_digest != digest:
            say(f"{name} is no longer what {self.run.name} was trained on: the held-out part may not be the same")

    def _pair_batches(self, pairs: PairFile) -> tuple[Iterable[Sequence[Example]], Objective, int, int | None]:
        config = self.network.config
        separate = None if self.source_tokenizer is self.tokenizer else self.source_tokenizer
        objective = objective_of(config, Tokenizers(self.tokenizer, separate), self.run.objective.label_smoothing)
        batches = evaluation_batches(pairs, pairs_of(self.run).batch_tokens)
        return batches, objective, int(pairs.target_lengths.sum()) + pairs.n_pairs, None

    def _text_batches(
        self, path: str | Path | None, say: Say
    ) -> tuple[Iterable[Sequence[Example]], Objective, int, int | None]:
        tokens = self._tokens(path, say)
        apart = not isinstance(text_of(self.run).arrangement, WindowRows)
        rows = evaluation_rows(tokens, context_of(self.run), self.network.config.vocab_size, apart)
        return rows, CausalObjective(self.run.objective.label_smoothing), tokens.n_tokens, tokens.n_bytes

    def _tokens(self, path: str | Path | None, say: Say) -> TokenFile:
        data = text_of(self.run)
        # The validation text that the run names is read as the trainer read it, end tokens and all.
        is_own = path is None or str(Path(path).absolute()) == data.valid_path
        if path is not None and not is_own:
            documents = read_documents([path], text_field=data.text_field)
            return encode_text(self.tokenizer, documents, name=str(path))
        if data.path is None:
            raise UserError("the model does not say what it was trained on: give a text as --data.path FILE")
        corpus = corpus_of(self.run)
        self._say_changed(corpus.digest, corpus.name, say)
        return prepared_tokens(self.run, corpus, self.tokenizer).valid


def _refuse(sentence: str) -> None:
    raise UserError(f"{sentence.removesuffix(' and are left out')}: shorten them, or leave them out")


def load(folder: str | Path, *, step: int | None = None, device: str = "auto") -> Model:
    """A model directory, verified, on a device; `step` takes one of a run's checkpoints."""
    path = Path(folder)
    if step is not None:
        path = checkpoint.find(path, step)
    where = choose_device(device)
    stored = read_model(path)
    source_tokenizer = stored.source_tokenizer or stored.tokenizer
    network = stored.network.to(where)
    digest = (_numbers(path) or {}).get("data_digest")
    return Model(network, stored.tokenizer, source_tokenizer, stored.generation, stored.run, where, data_digest=digest)


def ensemble(models: Sequence[Model]) -> Model:
    """Several models of the same tokenizers as one that translates with the mean of their probabilities."""
    first = models[0]
    for number, other in enumerate(models[1:], 2):
        for name in ("tokenizer", "source_tokenizer"):
            if getattr(other, name).fingerprint != getattr(first, name).fingerprint:
                raise UserError(
                    f"model 1 ({first.run.name}) and model {number} ({other.run.name}) differ in their "
                    f"{name.replace('_', ' ')}: they cannot vote together"
                )
    return replace(first, others=tuple(model.network for model in models[1:]))


def training_cost(folder: str | Path) -> tuple[float | None, int | None]:
    """Seconds of training steps and target tokens behind a run's newest checkpoint; None where none is kept."""
    numbers = _numbers(Path(folder))
    return (None, None) if numbers is None else (float(numbers["seconds"]), int(numbers["n_targets"]))


def _numbers(folder: Path) -> dict[str, Any] | None:
    """The numbers of the training that a run's newest checkpoint, or a checkpoint, keeps."""
    steps = checkpoint.steps(folder)
    state = checkpoint.path_of(folder, steps[-1]) if steps else folder
    return checkpoint.load_numbers(state) if (state / checkpoint.STATE).exists() else None


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
