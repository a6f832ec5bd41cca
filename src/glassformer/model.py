"""A trained model in use: it writes, translates, fills, classifies, tags, embeds, and measures itself."""

import functools
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, overload

import torch

from glassformer import files
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import (
    BeamConfig,
    CausalConfig,
    ClassificationConfig,
    GenerationConfig,
    InfillingConfig,
    LabelData,
    MaskedConfig,
    NoObjective,
    PairData,
    Run,
    Seq2SeqConfig,
    SpansConfig,
    TaggingConfig,
)
from glassformer.config.transformer import TransformerConfig, VectorHead
from glassformer.data.label_rows import encode_texts
from glassformer.data.pair_files import Pair
from glassformer.devices import arithmetic, autocast_dtype, choose_device
from glassformer.errors import Note, UserError
from glassformer.evaluation.label_scores import label_scores
from glassformer.evaluation.loss import LossReport, evaluate_loss, evaluation_mode
from glassformer.evaluation.masked import masked_scores, pseudo_perplexity
from glassformer.evaluation.pairs import translation_scores
from glassformer.inference.classify import classify_texts, tag_words, text_rows
from glassformer.inference.decode import EncodedPrompt, causal_frame, check_prompts, stream_texts
from glassformer.inference.embed import Vectors, described, embed
from glassformer.inference.ensemble import Ensemble
from glassformer.inference.fill import Filling, fill_by_writing, fill_masks, fill_spans
from glassformer.inference.score import Score, text_scores
from glassformer.inference.translator import Translation, Translator
from glassformer.models.build import Network
from glassformer.objectives.masked import MaskedObjective
from glassformer.objectives.noise import MASKED
from glassformer.store.manifest import Manifest
from glassformer.store.model_directory import weights_of, write_model_files
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.material import Tokenizers
from glassformer.training.measure import Evaluator
from glassformer.training.text_objectives import sentinel_ids

Progress = Callable[[int, int], None]
Log = Callable[[str], None]
Prompt = str | Sequence[int]


def _warn(text: str) -> None:
    """Warn at the line that called into this package."""
    level, frame, inside = 1, sys._getframe(), str(Path(__file__).parent)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, Note, stacklevel=level)


def _is_text(_: "Model", given: Any) -> bool:
    return isinstance(given, str)


def _is_prompt(_: "Model", given: Any) -> bool:
    """Whether it is one prompt: a text, or ids."""
    return isinstance(given, str) or (
        _is_list(given) and len(given) > 0 and all(isinstance(i, Integral) for i in given)
    )


def _is_row(model: "Model", given: Any) -> bool:
    """Whether it is what a classifier reads: a text, or a tuple of two where it reads pairs."""
    return isinstance(given, tuple if model.takes_pairs else str)


def _is_sentence(_: "Model", given: Any) -> bool:
    """Whether it is one sentence: a text, whose words white space separates, or a list of words."""
    if isinstance(given, str):
        return True
    is_words = _is_list(given) and len(given) > 0 and all(isinstance(word, str) for word in given)
    if is_words and (longer := [word for word in given if len(word.split()) > 1]):
        raise UserError(f"{longer[0]!r:.60} is not one word: give several sentences as lists of words")
    return is_words


def _is_list(given: Any) -> bool:
    return isinstance(given, Sequence) and not isinstance(given, (str, bytes))


def _texts(given: Any) -> list[str]:
    """A list of texts as it was given; `UserError` for anything else."""
    if not _is_list(given) or not all(isinstance(text, str) for text in given):
        raise UserError(f"score takes a text or a list of texts, not {given!r:.60}")
    return list(given)


def _listed(
    model: "Model", given: Any, argument: str, what: str, is_one: Callable[["Model", Any], bool]
) -> tuple[list[Any], bool]:
    """The items that a verb was given, and whether it was one by itself; `UserError` that names `argument` and `what`.

    Arrays and tensors become lists.
    """
    given = given.tolist() if hasattr(given, "tolist") else given
    if is_one(model, given):
        return [given], True
    if not _is_list(given):
        raise UserError(f"{argument} must be {what}, or a list of such, not {given!r:.60}")
    items = [item.tolist() if hasattr(item, "tolist") else item for item in given]
    for item in items:
        if not isinstance(item, str) and not _is_list(item):
            raise UserError(f"{argument} must be {what}, or a list of such, and {item!r:.60} is in it")
    return items, False


def _alone_or_listed(
    argument: str, what: str, is_one: Callable[["Model", Any], bool] = _is_text
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a verb that reads a list read one item by itself too: one gives one result, a list gives a list.

    `argument` is the first one of the verb, and `what` says what it takes, for the `UserError` that names it.
    """

    def decorate(verb: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(verb)
        def wrapped(self: "Model", *args: Any, **settings: Any) -> Any:
            if not args and argument not in settings:
                return verb(self, **settings)  # Python names what is missing
            given, *rest = args or [settings.pop(argument)]
            items, is_alone = _listed(self, given, argument, what, is_one)
            found = verb(self, items, *rest, **settings)
            return found[0] if is_alone else found

        return wrapped

    return decorate


def _alone_or_streamed(stream: Callable[..., Any]) -> Callable[..., Any]:
    """Let `stream` read one prompt by itself too, and yield its pieces as texts."""

    @functools.wraps(stream)
    def wrapped(self: "Model", prompts: Any, **settings: Any) -> Any:
        items, is_alone = _listed(self, prompts, "prompts", _PROMPT, _is_prompt)
        steps = stream(self, items, **settings)
        return (pieces[0] for pieces in steps) if is_alone and settings.get("n", 1) == 1 else steps

    return wrapped


_PROMPT = "a text or a list of ids"


@dataclass(frozen=True)
class Model:
    """A trained network, its tokenizers and its defaults; what `load` gives.

    A verb that reads texts takes one text, and gives one result, or a list, and gives a list: `embed` gives a vector
    (D,) of one text and (N, D) of a list, `stream` yields pieces of text or lists of pieces.
    """

    network: Network
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    """The same one where source and target share it."""
    generation: GenerationConfig | BeamConfig
    run: Run
    device: torch.device
    labels: tuple[str, ...] = ()
    """Names of classes or tags, by number."""
    others: tuple[Network, ...] = ()
    """Further members of an ensemble (`ensemble`), which vote on targets and on labels."""
    folder: Path | None = None
    """Where it was loaded from."""
    step: int = 0
    """Optimizer steps of the run behind the weights; 0 of a model that was imported."""
    data_digest: str | None = None
    """Of the data that it was trained on; None where no state of training stands beside the model."""
    dtype: str | None = None
    """The precision that `load` was asked for; None keeps weights in fp32, and `evaluate` in the precision of the
    run."""

    def __repr__(self) -> str:
        """Three lines: what it is called and has learned, its shape, and where it is."""
        config, n = self.config, sum(x.numel() for x in self.network.parameters())
        votes = f", {len(self.members)} models that vote" if self.others else ""
        verb = _LEARNED[self.run.objective.kind][1]
        return (
            f"Model {self.name}: learned to {self.learned} (model.{verb}){votes}\n"
            f"  {type(config).__name__}: {n:,} parameters, at most {config.max_len:,} tokens\n"
            f"  {self.tokenizer} on {self.device}"
        )

    @property
    def config(self) -> ModelConfig:
        """The configuration of the network."""
        return self.network.config

    def to(self, device: str | torch.device) -> "Model":
        """Move the networks to a device (`auto`, `cpu`, `cuda`, `cuda:N` or `mps`), in place; returns this model.

        The members of an ensemble are the networks of the models that it was made of, which move with it.
        """
        where = choose_device(str(device))
        for network in self.members:
            network.to(where)
        object.__setattr__(self, "device", where)  # in place, as `torch.nn.Module.to` is
        self.__dict__.pop("translator", None)  # it remembers the device
        return self

    def save(self, folder: str | Path) -> Path:
        """Write a model directory that `load` reads back to the same outputs; weights are stored in fp32.

        Raises `UserError` for a folder that is not empty, and for an ensemble.
        """
        if self.others:
            raise UserError("an ensemble is several models: save each of them in a folder of its own")
        out = files.as_path(folder, "folder")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UserError(f"{out} exists and is not empty: name another folder")
        files.require_writable(out)
        weights = {name: x.float() if x.is_floating_point() else x for name, x in weights_of(self.network).items()}
        run = replace(self.run, model=self.config, generation=self.generation)
        source_tokenizer = None if self.source_tokenizer is self.tokenizer else self.source_tokenizer
        with files.new_folder(out) as new:
            write_model_files(new, weights, self.tokenizer, run, source_tokenizer, self.labels)
            Manifest.of(new, "model", self.step, sorted(path.name for path in new.iterdir())).write(new)
        return out

    @property
    def members(self) -> list[Network]:
        """All networks of an ensemble; else the one."""
        return [self.network, *self.others]

    @property
    def vote(self) -> Network | Ensemble:
        """The network, or the members as one."""
        return Ensemble(self.members, of_numbers=self.is_regression) if self.others else self.network

    @property
    def is_seq2seq(self) -> bool:
        """Whether it makes a target from a source; else it goes on with a text."""
        return self.network.config.is_encoder_decoder

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.run.name if self.folder is None else str(self.folder)

    @property
    def is_causal_lm(self) -> bool:
        """Whether it predicts the next token of a text."""
        return isinstance(self.run.objective, CausalConfig)

    @property
    def unit(self) -> str:
        """What a loss is the mean of."""
        units = {"masked": "chosen token", "classification": "text", "tagging": "word"}
        return units.get(self.run.objective.kind, "token")

    @property
    def takes_pairs(self) -> bool:
        """Whether it says a label for two texts at a time."""
        return isinstance(self.run.data, LabelData) and self.run.data.second_field is not None

    @property
    def is_regression(self) -> bool:
        """Whether its labels are numbers."""
        return isinstance(self.run.data, LabelData) and self.run.data.outputs == "regression"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of classes or tags, by number; empty where the model gives numbers or has no labels.

        An imported model of numbers may have a name in `labels`, which an export keeps.
        """
        return self.labels if isinstance(self.run.data, LabelData) and not self.is_regression else ()

    @property
    def learned(self) -> str:
        """What it learned to do, in words: models that learned something else cannot vote with it."""
        if isinstance(self.run.objective, ClassificationConfig):
            texts = "two texts" if self.takes_pairs else "a text"
            return f"say a {'number' if self.is_regression else 'label'} for {texts}"
        return _LEARNED[self.run.objective.kind][0]

    @overload
    def generate(
        self, prompt: str, *, n: Literal[1] = 1, sample: int = 0, slide: bool = False, **settings: Any
    ) -> str: ...
    @overload
    def generate(self, prompt: str, *, n: int, sample: int = 0, slide: bool = False, **settings: Any) -> list[str]: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, n: Literal[1] = 1, sample: int = 0, slide: bool = False, **settings: Any
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], *, n: int, sample: int = 0, slide: bool = False, **settings: Any
    ) -> list[list[str]]: ...
    @_alone_or_listed("prompt", _PROMPT, _is_prompt)
    def generate(self, prompt: Any, *, n: int = 1, sample: int = 0, slide: bool = False, **settings: Any) -> Any:
        """The continuation of a prompt, or of each of several (texts or ids); a batch gives what each gives alone.

        The text of the prompt and its continuation read as one text. With `n` above 1, a list of n samples takes the
        place of each text. Sample i follows from the prompt, the seed and i alone: `sample=i` draws it again by
        itself, and sample 0 is the text that is drawn without `n`. With both, the n samples from number `sample` on
        are drawn. Equal prompts in a batch get equal texts; `n` is the way to get different ones.

        `settings` are fields of `GenerationConfig` that replace the model's defaults; `seed=None` draws a new seed.
        `slide` lets the context slide; else a prompt that does not fit is a `UserError`, as are an id that the
        vocabulary lacks, and `n` above 1 at temperature 0.
        """
        texts = [""] * (len(prompt) * n)
        for pieces in self.stream(prompt, n=n, sample=sample, slide=slide, **settings):
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        return texts if n == 1 else [texts[i : i + n] for i in range(0, len(texts), n)]

    @overload
    def stream(
        self, prompts: str, *, n: Literal[1] = 1, sample: int = 0, slide: bool = False, **settings: Any
    ) -> Iterator[str]: ...
    @overload
    def stream(
        self, prompts: Sequence[Prompt], *, n: int = 1, sample: int = 0, slide: bool = False, **settings: Any
    ) -> Iterator[list[str]]: ...
    @_alone_or_streamed
    def stream(self, prompts: Any, *, n: int = 1, sample: int = 0, slide: bool = False, **settings: Any) -> Any:
        """Yields the new text of every row, step by step; no character is ever cut in two.

        Each prompt has `n` rows (see `generate`): row `j · n + i` is sample `sample + i` of prompt j. Of one prompt by
        itself and one sample, pieces of text; else a list of pieces, one per row.
        """
        encoded = self.encode_prompts(prompts, slide=slide)
        yield from self.stream_encoded(encoded, n=n, sample=sample, slide=slide, **settings)

    def stream_encoded(
        self, prompts: Sequence[EncodedPrompt], *, n: int = 1, sample: int = 0, slide: bool = False, **settings: Any
    ) -> Iterator[list[str]]:
        """`stream` of prompts that are encoded already (`encode_prompts`)."""
        if isinstance(settings.get("stop"), str):
            settings["stop"] = (settings["stop"],)
        if settings.get("seed", 0) is None:
            settings["seed"] = secrets.randbits(32)
        if not isinstance(self.generation, GenerationConfig):
            raise self._is_for_other("generate")
        yield from stream_texts(
            self.network,
            self.tokenizer,
            prompts,
            replace(self.generation, **settings),
            slide=slide,
            device=self.device,
            samples=range(sample, sample + n),
        )

    def encode_prompts(self, prompts: Sequence[Prompt], *, slide: bool = False) -> list[EncodedPrompt]:
        """Prompts as the model reads them; `UserError` when one of them cannot be gone on from."""
        if not self.is_causal_lm:
            raise self._is_for_other("generate")
        ids = [self.prompt_ids(prompt) for prompt in prompts]
        check_prompts(ids, self.network.config.max_len, slide)
        return [EncodedPrompt(*given) for given in zip(ids, map(self._lacks_its_space, prompts, ids), strict=True)]

    def _lacks_its_space(self, prompt: Prompt, ids: Sequence[int]) -> bool:
        """Whether a text ends with white space and its ids do not: some tokenizers drop it."""
        return isinstance(prompt, str) and prompt[-1:].isspace() and not self.tokenizer.decode(ids)[-1:].isspace()

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt: of a text behind what training put before one, or the ids as they are given.

        Raises `UserError` for an empty prompt where training put nothing before a text.
        """
        frame = causal_frame(self.tokenizer, self.network.config)
        ids = frame.around(self.tokenizer.encode(prompt) if isinstance(prompt, str) else [])
        if not isinstance(prompt, str) and prompt:
            ids = list(prompt)
        if not ids:
            raise UserError(
                f"the prompt is empty, and {self.name} was not trained to start a text (no start token is recorded): "
                "give a prompt of at least one token"
            )
        return ids

    @overload
    def translate(self, source: str, *, prefix: str = "", **settings: Any) -> str: ...
    @overload
    def translate(self, source: Sequence[str], *, prefix: str = "", **settings: Any) -> list[str]: ...
    @_alone_or_listed("source", "a text")
    def translate(self, source: Sequence[str], *, prefix: str = "", **settings: Any) -> list[str]:
        """The best target of a source, or of each of several; a batch gives what each gives alone.

        `settings` are fields of `BeamConfig` that replace the model's defaults; `prefix` is how the target begins.
        """
        return [found[0].text for found in self.translations(source, prefix=prefix, **settings)]

    @overload
    def translations(
        self, sources: str, *, n_best: int = 1, prefix: str = "", progress: Progress | None = None, **settings: Any
    ) -> list[Translation]: ...
    @overload
    def translations(
        self,
        sources: Sequence[str],
        *,
        n_best: int = 1,
        prefix: str = "",
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Translation]]: ...
    @_alone_or_listed("sources", "a text")
    def translations(
        self,
        sources: Sequence[str],
        *,
        n_best: int = 1,
        prefix: str = "",
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """The `n_best` targets of a source, or of each of several, with their ids and scores, best first."""
        encoded = [self.encode_source(source) for source in sources]
        return self.translations_of_ids(encoded, n_best=n_best, prefix=prefix, progress=progress, **settings)

    def translations_of_ids(
        self,
        sources: Sequence[Sequence[int]],
        *,
        n_best: int = 1,
        prefix: str = "",
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """`translations` of sources that are encoded already (`encode_source`)."""
        return self.translator.translate_ids(
            sources, self._beam(settings), n_best=n_best, prefix=prefix, progress=progress
        )

    @overload
    def score(self, text: str, target: str | None = None, *, source: str | None = None, log: Log = ...) -> Score: ...  # type: ignore[overload-overlap]
    @overload
    def score(
        self,
        text: Sequence[str],
        target: Sequence[str] | None = None,
        *,
        source: Sequence[str] | None = None,
        log: Log = ...,
    ) -> list[Score]: ...
    def score(self, text: Any, target: Any = None, *, source: Any = None, log: Log = _warn) -> Score | list[Score]:
        """log p of a text, or of each of several; with `source`, given a text that is its source or its beginning.

        `score(text, source=source)` and `score(source, text)` are the same. A model that goes on with a text scores a
        text alone too (`text_scores`); one that makes targets from sources needs the source. `log` is told when
        training put no start token before a text, so that first tokens are not scored.
        """
        if source is not None and target is not None:
            raise UserError("score takes source or target, not both: score(text, source=…)")
        text, target = (text, target) if source is None else (source, text)
        is_one = isinstance(text, str)
        texts = _texts([text] if is_one else text)
        targets = None if target is None else _texts([target] if isinstance(target, str) else target)
        if targets is not None and (isinstance(target, str), len(targets)) != (is_one, len(texts)):
            raise UserError("score takes one source for each text: two texts, or two lists of equal length")
        found = self._scores(texts, targets, log)
        return found[0] if is_one else found

    def _scores(self, text: list[str], target: list[str] | None, log: Log) -> list[Score]:
        if self.is_seq2seq:
            if target is None:
                raise UserError(
                    f"{self.name} makes a target from a source: give the target too, as score(target, source=…)"
                )
            return self.translator.score(text, target)
        if not self.is_causal_lm:
            raise self._is_for_other("score")
        start = causal_frame(self.tokenizer, self.network.config).before
        if not start and text and (target is None or not all(text)):
            log(self.no_start)
        return text_scores(
            self.network,
            self.tokenizer,
            text,
            target,
            start=start,
            max_len=self.network.config.max_len,
            device=self.device,
        )

    @property
    def no_start(self) -> str:
        """The sentence for a model whose training put no start token before a text."""
        return f"{self.name} was not trained to start a text: the first token of each text is read and not scored"

    @functools.cached_property
    def translator(self) -> Translator:
        """What translates with this model; `UserError` when it has no source."""
        self.require_source()
        return Translator(self.vote, self.tokenizer, self.source_tokenizer, self.device)

    def require_source(self) -> None:
        """`UserError` for a model that makes no target from a source."""
        if not self.is_seq2seq:
            raise self._is_for_other("translate")

    def _beam(self, settings: dict[str, Any]) -> BeamConfig:
        config = self.generation if isinstance(self.generation, BeamConfig) else BeamConfig()
        return replace(config, **settings)

    def encode_source(self, text: str) -> list[int]:
        """The ids that the encoder reads, the end token included."""
        return self.translator.source_ids(text)

    def encode_target(self, text: str) -> list[int]:
        """The ids that the decoder reads to predict a target: the start token, what its frame begins with, its own."""
        return [self.translator.start_id, *self.tokenizer.frames.target.before, *self.tokenizer.encode(text)]

    def evaluate(
        self,
        path: str | Path | None = None,
        progress: Progress | None = None,
        *,
        source: str | Path | None = None,
        target: str | Path | None = None,
        log: Log = _warn,
    ) -> LossReport:
        """The reported loss on the validation side of the run's own data, or on the whole of other data.

        Every target once; the trainer's number, by its own code and in the precision of the run, unless the model was
        loaded with a `dtype`. Text is cut into consecutive windows of the context length; pairs are `source` and
        `target`, two aligned files, or `path`, one file that holds both. `log` is told what is left out (`pairs`), and
        that the run's own data has changed since.
        """
        measure = self.measurer(log).measure(path, source, target)
        autocast = autocast_dtype(self.run.train.precision)
        # No backward, so kernels need not be deterministic; CUDA would refuse to change that after earlier work.
        settings: AbstractContextManager[None] = arithmetic(replace(self.run.train, deterministic=False))
        if self.dtype is not None:
            autocast, settings = None, nullcontext()
        report = (lambda done: progress(done, measure.n_targets)) if progress else None
        network = self.vote
        with evaluation_mode(network), settings:
            return evaluate_loss(
                network, measure.objective, measure.batches(), self.device, measure.n_bytes, autocast, report
            )

    def scores(
        self,
        path: str | Path | None = None,
        progress: Progress | None = None,
        *,
        source: str | Path | None = None,
        target: str | Path | None = None,
        log: Log = _warn,
        **settings: Any,
    ) -> dict[str, Any]:
        """Scores on the same data, in percent: of what it writes for sources, of labels, of what it puts behind masks.

        BLEU and chrF or error rates of pairs; accuracy, F1 and calibration of labels, with the whole report under
        `report`; the accuracy behind masks. A model that goes on with a text has its loss alone: none.
        """
        if isinstance(self.run.objective, (CausalConfig, InfillingConfig, SpansConfig)):
            return {}
        measure = self.measurer(log).measure(path, source, target)
        if isinstance(self.run.data, PairData):
            return dict(
                translation_scores(self.translator, measure.pairs, self.run.data, self._beam(settings), progress)
            )
        if isinstance(self.run.data, LabelData):
            return label_scores(self.vote, measure.examples, self.classes, self.run.data, self.device)
        assert isinstance(measure.objective, MaskedObjective)
        n_masked = int(measure.n_targets * measure.objective.mask_prob * MASKED)
        report = (lambda done: progress(done, n_masked)) if progress else None
        return asdict(masked_scores(self.network, measure.objective, measure.batches(), self.device, report))

    def pseudo_perplexity(
        self, path: str | Path | None = None, progress: Progress | None = None, log: Log = _warn
    ) -> float:
        """exp of the mean -log p of every token of a text given all others: one forward a token."""
        measure = self.measurer(log).measure(path)
        if not isinstance(measure.objective, MaskedObjective):
            raise UserError(f"{self.name} fills no masks, and pseudo-perplexity is for models that do")
        report = (lambda done: progress(done, measure.n_targets)) if progress else None
        return pseudo_perplexity(self.network, measure.objective, measure.batches(), self.device, report)

    def pairs(
        self,
        path: str | Path | None = None,
        source: str | Path | None = None,
        target: str | Path | None = None,
        log: Log = _warn,
    ) -> list[Pair]:
        """The validation pairs of the run that fit the model, or the pairs of some files.

        `log` is told how many have an empty side, and how many of the run's own are too long, which are left out as
        in training. Of other files a pair that is too long is a `UserError`: without it the scores would be others.
        """
        return self.measurer(log).pairs(path, source, target)[0]

    def measurer(self, log: Log = _warn) -> Evaluator:
        """What finds and reads the data that the model is measured on; `UserError` when it predicts nothing."""
        if isinstance(self.run.objective, NoObjective):
            raise self._is_for_other("evaluate")
        separate = None if self.source_tokenizer is self.tokenizer else self.source_tokenizer
        tokenizers = Tokenizers(self.tokenizer, separate)
        return Evaluator(self.run, self.vote.config, tokenizers, self.classes, self.data_digest, log)

    @overload
    def fill(self, text: str, n: int = 5, **settings: Any) -> Filling: ...
    @overload
    def fill(self, text: Sequence[str], n: int = 5, **settings: Any) -> list[Filling]: ...
    @_alone_or_listed("text", "a text")
    def fill(self, text: Sequence[str], n: int = 5, **settings: Any) -> list[Filling]:
        """Fill the `[MASK]`s of a text, or of each of several: by candidates of an encoder, or as a denoiser writes.

        `n` candidates for each mask; `settings` are fields of `BeamConfig`, for a denoiser.
        """
        return [self._filled(one, n, settings) for one in text]

    def _filled(self, text: str, n: int, settings: dict[str, Any]) -> Filling:
        objective = self.run.objective
        if isinstance(objective, MaskedConfig):
            return fill_masks(self.network, self.tokenizer, text, n, self.device)
        was_denoiser = isinstance(objective, Seq2SeqConfig) and self.tokenizer.roles is not None  # BART, taken over
        if isinstance(objective, InfillingConfig) or (was_denoiser and self.tokenizer.mask_id is not None):
            return fill_by_writing(self.network, self.tokenizer, text, self._beam(settings), self.device)
        if isinstance(objective, SpansConfig):
            known = sentinel_ids(self.tokenizer)
            return fill_spans(self.network, self.tokenizer, text, known, self._beam(settings), self.device)
        raise self._is_for_other("fill")

    @overload
    def classify(self, texts: str | tuple[str, str], log: Log = _warn) -> dict[str, float]: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, texts: Sequence[str | tuple[str, str]], log: Log = _warn) -> list[dict[str, float]]: ...
    @_alone_or_listed("texts", "a text, or a pair of texts as a tuple", _is_row)
    def classify(self, texts: Sequence[str | tuple[str, str]], log: Log = _warn) -> list[dict[str, float]]:
        """The probability of each class for each text or pair of texts, or, under `number`, the number it says."""
        if not isinstance(self.run.objective, ClassificationConfig):
            raise self._is_for_other("classify")
        rows = [(text,) if isinstance(text, str) else text for text in texts]
        for row in rows:
            if (len(row) > 1) != self.takes_pairs:
                raise UserError(f"{self.name} reads {'two texts' if self.takes_pairs else 'one text'} at a time")
        return classify_texts(self.vote, self.tokenizer, rows, self.classes, self.device, log)

    @overload
    def tag(self, sentences: str | Sequence[str], log: Log = _warn) -> list[tuple[str, float]]: ...  # type: ignore[overload-overlap]
    @overload
    def tag(self, sentences: Sequence[Sequence[str]], log: Log = _warn) -> list[list[tuple[str, float]]]: ...
    @_alone_or_listed("sentences", "a sentence, or a list of its words", _is_sentence)
    def tag(self, sentences: Sequence[str | Sequence[str]], log: Log = _warn) -> list[list[tuple[str, float]]]:
        """The most probable tag of every word, and its probability; words behind the model's length have none.

        A sentence is a list of words, or a text whose words white space separates; a list of texts is one sentence.
        """
        if not isinstance(self.run.objective, TaggingConfig):
            raise self._is_for_other("tag")
        rows = [sentence.split() if isinstance(sentence, str) else sentence for sentence in sentences]
        return tag_words(self.vote, self.tokenizer, rows, self.classes, self.device, log)

    @overload
    def embed(self, texts: str, log: Log = _warn) -> Vectors: ...
    @overload
    def embed(self, texts: Sequence[str], log: Log = _warn) -> Vectors: ...
    @_alone_or_listed("texts", "a text")
    def embed(self, texts: Sequence[str], log: Log = _warn) -> Vectors:
        """(N, D) a vector of each text, in the frame in which the model reads a text in training.

        A model of vectors gives what its `forward` gives: pooled as its head says. Any other model gives the mean of
        the last hidden states: an encoder over all tokens, special ones included; a causal model over the text's own
        tokens, without those before it, which see nothing of the text. `log` is told how many texts are cut.
        """
        if self.is_seq2seq:
            raise UserError(f"{self.name} makes a target from a source; vectors come from a model of one stack")
        if self.others:
            raise UserError("directions mean other things in each model: ask one of them for vectors, not the ensemble")
        config = self.network.config
        assert isinstance(config, TransformerConfig)  # one stack
        cut = config.head.max_tokens if isinstance(config.head, VectorHead) else 0
        max_len = cut or config.max_len
        rows = [(text,) for text in texts]
        if not self.is_causal_lm:
            return embed(self.network, text_rows(self.tokenizer, rows, max_len, log), self.device)
        frame = causal_frame(self.tokenizer, config)
        examples = text_rows(self.tokenizer, rows, max_len, log, frame=frame)
        return embed(self.network, examples, self.device, n_before=len(frame.before))

    @property
    def vectors_are(self) -> str:
        """What the vectors of `embed` are, in words."""
        config = self.network.config
        assert isinstance(config, TransformerConfig)  # one stack
        return described(config.head, is_causal=self.is_causal_lm)

    def text_ids(self, text: str) -> list[int]:
        """The ids that the model reads for one text, with the special tokens of its training around them; not cut.

        Of an encoder-decoder these are the ids that its encoder reads.
        """
        if self.is_seq2seq:
            return self.encode_source(text)
        if self.is_causal_lm:
            return self.prompt_ids(text)
        (row,), _ = encode_texts(self.tokenizer, [(text,)], sys.maxsize)
        return row.token_ids.tolist()

    def _is_for_other(self, verb: str) -> UserError:
        """What is said to someone who uses the model for what it has not learned."""
        right = _LEARNED[self.run.objective.kind][1]
        given = '"… [MASK] …"' if right == "fill" else '("…", "…")' if self.takes_pairs else '"…"'
        call = f"in Python: model.{right}({given})"
        return UserError(f"{self.name} learned to {self.learned}: use it with {right}, not {verb} ({call})")


_LEARNED = {
    "causal": ("go on with a text", "generate"),
    "seq2seq": ("make a target from a source", "translate"),
    "masked": ("fill masks", "fill"),
    "infilling": ("fill masks", "fill"),
    "spans": ("fill masks", "fill"),
    "classification": ("say a label for a text", "classify"),
    "tagging": ("tag words", "tag"),
    "none": ("make vectors of texts", "embed"),
}
"""What a model of each objective does, and the verb for it."""
