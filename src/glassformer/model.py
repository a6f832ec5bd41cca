"""A trained model in use: it writes, translates, fills, classifies, tags, embeds, and measures itself.

What a verb does stands in the file of the model's task (`tasks/`).
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import torch

from glassformer import files
from glassformer.config.recurrent import ModelConfig
from glassformer.config.run import BeamConfig, GenerationConfig, Run
from glassformer.data.pairs import Pair
from glassformer.devices import choose_device
from glassformer.errors import UserError
from glassformer.evaluation.loss import LossReport
from glassformer.inference.decode import EncodedPrompt, check_prompts, with_settings
from glassformer.inference.embed import Vectors
from glassformer.inference.ensemble import Ensemble
from glassformer.inference.fill import Filling
from glassformer.inference.score import Score
from glassformer.inference.translator import Translation, Translator
from glassformer.models.build import Network
from glassformer.one_or_list import PROMPT, is_prompt, is_row, is_sentence, one_or_list, one_or_streams, texts_of
from glassformer.reporting import warn
from glassformer.store.model_directory import save_model
from glassformer.tasks import one_stack
from glassformer.tasks import task as tasks
from glassformer.tasks.batches import EvaluationData, Place, Places
from glassformer.tasks.encoder_decoder import beam
from glassformer.tasks.registry import task_of
from glassformer.tasks.task import Log, Progress, Prompt, Task, TrainableTask, wrong_verb
from glassformer.tokenization.tokenizer import Tokenizer

Ability = TypeVar("Ability")

OTHER_NAMES = {
    "num_parameters": "model.network.n_parameters()",
    "n_parameters": "model.network.n_parameters()",
    "perplexity": "model.score(text).perplexity or model.evaluate().perplexity",
    "export": "glassformer.export(model, folder)",
    "attention": "glassformer.inspection.attention_maps, or `glassformer plot attention`",
    "save_pretrained": "model.save(folder), or glassformer.export(model, folder) for transformers",
    "predict": "model.classify, model.tag, model.translate or model.generate",
    "sample": "model.generate(prompt, n=5)",
}
"""Names that users of other libraries try, and what to use instead."""


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
        return (
            f"Model {self.name}: learned to {self.learned} (model.{self.task.verb}){votes}\n"
            f"  {type(config).__name__}: {n:,} parameters, at most {config.max_len:,} tokens\n"
            f"  {self.tokenizer} on {self.device}"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Name what to use for an attribute that other libraries' models have, or a `torch.nn.Module` has."""
            instead = OTHER_NAMES.get(name) or (f"model.network.{name}" if hasattr(torch.nn.Module, name) else None)
            hint = "" if instead is None else f": use {instead}"
            raise AttributeError(f"a Model has no attribute {name!r}{hint}")

        def __call__(self, *inputs: Any, **named: Any) -> Any:
            raise TypeError("a Model is not called: model.network(ids) gives the logits of a tensor of ids (B, T)")

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
        out, run = files.as_path(folder, "folder"), replace(self.run, model=self.config, generation=self.generation)
        source_tokenizer = None if self.source_tokenizer is self.tokenizer else self.source_tokenizer
        save_model(out, self.network, self.step, self.tokenizer, run, source_tokenizer, self.labels)
        return out

    @property
    def members(self) -> list[Network]:
        """All networks of an ensemble; else the one."""
        return [self.network, *self.others]

    @property
    def task(self) -> Task:
        """What it has learned."""
        return task_of(self.run)

    def _able(self, ability: type[Ability], verb: str) -> Ability:
        """The task as one that has an ability; `UserError` where the model has learned something else."""
        if not isinstance(self.task, ability):
            raise wrong_verb(self.task, self, verb)
        return self.task

    @property
    def vote(self) -> Network | Ensemble:
        """What says labels of whole rows, and is measured: the network, or the members as one."""
        if not self.others:
            return self.network
        assert isinstance(self.task, tasks.Votes)  # `ensemble`
        return self.task.vote(self.run, self.members)

    @property
    def is_seq2seq(self) -> bool:
        """Whether it makes a target from a source; else it goes on with a text."""
        return self.config.is_encoder_decoder

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.run.name if self.folder is None else str(self.folder)

    @property
    def is_causal_lm(self) -> bool:
        """Whether it predicts the next token of a text."""
        return isinstance(self.task, tasks.ContinuesPrompts)

    @property
    def unit(self) -> str:
        """What a loss is the mean of."""
        return self._able(TrainableTask, "evaluate").unit

    @property
    def takes_pairs(self) -> bool:
        """Whether it says a label for two texts at a time."""
        return isinstance(self.task, tasks.Classifies) and self.task.takes_pairs(self.run)

    @property
    def is_regression(self) -> bool:
        """Whether its labels are numbers."""
        return isinstance(self.task, tasks.HasLabels) and self.task.is_regression(self.run)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of classes or tags, by number; empty where the model gives numbers or has no labels.

        An imported model of numbers may have a name in `labels`, which an export keeps.
        """
        return self.labels if isinstance(self.task, tasks.HasLabels) and not self.is_regression else ()

    @property
    def learned(self) -> str:
        """What it learned to do, in words: models that learned something else cannot vote with it."""
        return self.task.learned(self.run)

    @overload
    def generate(self, prompt: str, *, n: Literal[1] = 1, **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: str, *, n: int, **settings: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: Sequence[Prompt], *, n: Literal[1] = 1, **settings: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: Sequence[Prompt], *, n: int, **settings: Any) -> list[list[str]]: ...
    @one_or_list("prompt", PROMPT, is_prompt)
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
    def stream(self, prompts: str, *, n: Literal[1] = 1, **settings: Any) -> Iterator[str]: ...
    @overload
    def stream(self, prompts: Sequence[Prompt], *, n: int = 1, **settings: Any) -> Iterator[list[str]]: ...
    @one_or_streams
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
        task = self._able(tasks.ContinuesPrompts, "generate")
        if not isinstance(self.generation, GenerationConfig):
            raise wrong_verb(self.task, self, "generate")
        config = with_settings(self.generation, settings)
        yield from task.stream(self, prompts, config, range(sample, sample + n), slide)

    def encode_prompts(self, prompts: Sequence[Prompt], *, slide: bool = False) -> list[EncodedPrompt]:
        """Prompts as the model reads them; `UserError` when one of them cannot be gone on from."""
        task = self._able(tasks.ContinuesPrompts, "generate")
        encoded = [task.encode_prompt(self, prompt) for prompt in prompts]
        check_prompts([prompt.ids for prompt in encoded], self.network.config.max_len, slide)
        return encoded

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt: of a text behind what training put before one, or the ids as they are given.

        Raises `UserError` for an empty prompt where training put nothing before a text.
        """
        return list(self._able(tasks.ContinuesPrompts, "generate").encode_prompt(self, prompt).ids)

    @overload
    def translate(self, source: str, *, prefix: str = "", **settings: Any) -> str: ...
    @overload
    def translate(self, source: Sequence[str], *, prefix: str = "", **settings: Any) -> list[str]: ...
    @one_or_list("source", "a text")
    def translate(self, source: Sequence[str], *, prefix: str = "", **settings: Any) -> list[str]:
        """The best target of a source, or of each of several; a batch gives what each gives alone.

        `settings` are fields of `BeamConfig` that replace the model's defaults; `prefix` is how the target begins.
        """
        return [found[0].text for found in self.translations(source, prefix=prefix, **settings)]

    @overload
    def translations(self, sources: str, **settings: Any) -> list[Translation]: ...
    @overload
    def translations(self, sources: Sequence[str], **settings: Any) -> list[list[Translation]]: ...
    @one_or_list("sources", "a text")
    def translations(self, sources: Sequence[str], **settings: Any) -> list[list[Translation]]:
        """The `n_best` targets of a source, or of each of several, with ids and scores; see `translations_of_ids`."""
        return self.translations_of_ids([self.encode_source(source) for source in sources], **settings)

    def translations_of_ids(
        self,
        sources: Sequence[Sequence[int]],
        *,
        n_best: int = 1,
        prefix: str = "",
        progress: Progress | None = None,
        **settings: Any,
    ) -> list[list[Translation]]:
        """The `n_best` targets of sources that are encoded already (`encode_source`), best first."""
        return self.translator.translate_ids(
            sources, beam(self, settings), n_best=n_best, prefix=prefix, progress=progress
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
    def score(self, text: Any, target: Any = None, *, source: Any = None, log: Log = warn) -> Score | list[Score]:
        """log p of a text, or of each of several; with `source`, given a text that is its source or its beginning.

        `score(text, source=source)` and `score(source, text)` are the same. A model that goes on with a text scores a
        text alone too (`text_scores`); one that makes targets from sources needs the source. `log` is told when
        training put no start token before a text, so that first tokens are not scored.
        """
        texts, targets, is_one = texts_of(text, target, source)
        found = self._able(tasks.ScoresTexts, "score").score(self, texts, targets, log)
        return found[0] if is_one else found

    @property
    def no_start(self) -> str:
        """The sentence for a model whose training put no start token before a text."""
        return self._able(tasks.ContinuesPrompts, "generate").no_start(self)

    @functools.cached_property
    def translator(self) -> Translator:
        """What translates with this model; `UserError` when it has no source."""
        return self._able(tasks.Translates, "translate").translator(self)

    def require_source(self) -> None:
        """`UserError` for a model that makes no target from a source."""
        self._able(tasks.Translates, "translate")

    def encode_source(self, text: str) -> list[int]:
        """The ids that the encoder reads, the end token included."""
        return self.translator.source_ids(text)

    def encode_target(self, text: str) -> list[int]:
        """The ids that the decoder reads to predict a target: the start token, what its frame begins with, its own."""
        return [self.translator.start_id, *self.tokenizer.frames.target.before, *self.tokenizer.encode(text)]

    def evaluate(
        self,
        path: Place = None,
        progress: Progress | None = None,
        *,
        source: Place = None,
        target: Place = None,
        log: Log = warn,
    ) -> LossReport:
        """The reported loss on the validation side of the run's own data, or on the whole of other data.

        Every target once; the trainer's number, by its own code and in the precision of the run, unless the model was
        loaded with a `dtype`. Text is cut into consecutive windows of the context length; pairs are `source` and
        `target`, two aligned files, or `path`, one file that holds both. `log` is told what is left out (`pairs`), and
        that the run's own data has changed since.
        """
        data = self.evaluation_data(path, source, target, log)
        return data.loss(self.vote, self.device, self.run.train if self.dtype is None else None, progress)

    def scores(
        self,
        path: Place = None,
        progress: Progress | None = None,
        *,
        source: Place = None,
        target: Place = None,
        log: Log = warn,
        **settings: Any,
    ) -> dict[str, Any]:
        """Scores on the same data, in percent: of what it writes for sources, of labels, of what it puts behind masks.

        BLEU and chrF or error rates of pairs; accuracy, F1 and calibration of labels, with the whole report under
        `report`; the accuracy behind masks. A model that goes on with a text has its loss alone: none.
        """
        task = self._able(TrainableTask, "evaluate")
        if not isinstance(task, tasks.HasScores):
            return {}
        return task.scores(self, Places(path, source, target), progress, log, settings)

    def pseudo_perplexity(self, path: Place = None, progress: Progress | None = None, log: Log = warn) -> float:
        """exp of the mean -log p of every token of a text given all others: one forward a token."""
        task = self._able(TrainableTask, "evaluate")
        if not isinstance(task, tasks.HasPseudoPerplexity):
            raise UserError(f"{self.name} fills no masks, and pseudo-perplexity is for models that do")
        return task.pseudo_perplexity(self, Places(path), progress, log)

    def pairs(self, path: Place = None, source: Place = None, target: Place = None, log: Log = warn) -> list[Pair]:
        """The validation pairs of the run that fit the model, or the pairs of some files.

        `log` is told how many have an empty side, and how many of the run's own are too long, which are left out as
        in training. Of other files a pair that is too long is a `UserError`: without it the scores would be others.
        """
        task = self._able(TrainableTask, "evaluate")
        if not isinstance(task, tasks.HasPairs):
            raise UserError(f"the run {self.run.name!r} learns from a text, and pairs of source and target are needed")
        return task.pairs(self, Places(path, source, target), log)

    def evaluation_data(
        self, path: Place = None, source: Place = None, target: Place = None, log: Log = warn
    ) -> EvaluationData[Any]:
        """The batches that the model is measured on; `UserError` when it predicts nothing."""
        return self._able(TrainableTask, "evaluate").evaluation(self, Places(path, source, target), log)

    @overload
    def fill(self, text: str, n: int = 5, **settings: Any) -> Filling: ...
    @overload
    def fill(self, text: Sequence[str], n: int = 5, **settings: Any) -> list[Filling]: ...
    @one_or_list("text", "a text")
    def fill(self, text: Sequence[str], n: int = 5, **settings: Any) -> list[Filling]:
        """Fill the `[MASK]` tokens of one text or several: an encoder gives candidates, a denoiser writes the text.

        `n` candidates for each mask; `settings` are fields of `BeamConfig`, for a denoiser.
        """
        task = self._able(tasks.FillsMasks, "fill")
        return [task.fill(self, one, n, settings) for one in text]

    @overload
    def classify(self, texts: str | tuple[str, str], log: Log = warn) -> dict[str, float]: ...  # type: ignore[overload-overlap]
    @overload
    def classify(self, texts: Sequence[str | tuple[str, str]], log: Log = warn) -> list[dict[str, float]]: ...
    @one_or_list("texts", "a text, or a pair of texts as a tuple", is_row)
    def classify(self, texts: Sequence[str | tuple[str, str]], log: Log = warn) -> list[dict[str, float]]:
        """The probability of each class for each text or pair of texts, or, under `number`, the number it says."""
        rows = [(text,) if isinstance(text, str) else text for text in texts]
        return self._able(tasks.Classifies, "classify").classify(self, rows, log)

    @overload
    def tag(self, sentences: str | Sequence[str], log: Log = warn) -> list[tuple[str, float]]: ...  # type: ignore[overload-overlap]
    @overload
    def tag(self, sentences: Sequence[Sequence[str]], log: Log = warn) -> list[list[tuple[str, float]]]: ...
    @one_or_list("sentences", "a sentence, or a list of its words", is_sentence)
    def tag(self, sentences: Sequence[str | Sequence[str]], log: Log = warn) -> list[list[tuple[str, float]]]:
        """The most probable tag of every word, and its probability; words behind the model's length have none.

        A sentence is a list of words, or a text whose words white space separates; a list of texts is one sentence.
        """
        rows = [sentence.split() if isinstance(sentence, str) else sentence for sentence in sentences]
        return self._able(tasks.Tags, "tag").tag(self, rows, log)

    @overload
    def embed(self, texts: str, log: Log = warn) -> Vectors: ...
    @overload
    def embed(self, texts: Sequence[str], log: Log = warn) -> Vectors: ...
    @one_or_list("texts", "a text")
    def embed(self, texts: Sequence[str], log: Log = warn) -> Vectors:
        """(N, D) a vector of each text, in the frame in which the model reads a text in training.

        A model of vectors gives what its `forward` gives: pooled as its head says. Any other model gives the mean of
        the last hidden states: an encoder over all tokens, special ones included; a causal model over the text's own
        tokens, without those before it, which see nothing of the text. `log` is told how many texts are cut.
        """
        return one_stack.embed(self, texts, log)

    @property
    def vectors_are(self) -> str:
        """What the vectors of `embed` are, in words."""
        return one_stack.described(self)

    def text_ids(self, text: str) -> list[int]:
        """The ids that the model reads for one text, with the special tokens of its training around them; not cut.

        Of an encoder-decoder these are the ids that its encoder reads.
        """
        return one_stack.text_ids(self, text)
