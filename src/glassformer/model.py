"""A trained model in use: it writes, translates, fills, classifies, tags, embeds, and measures itself."""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, overload

import torch

from glassformer.config import TransformerConfig, VectorHead
from glassformer.data.label_rows import encode_texts
from glassformer.data.pair_files import Pair
from glassformer.errors import UserError
from glassformer.evaluation.label_scores import label_scores
from glassformer.evaluation.loss import LossReport, evaluate_loss, evaluation_mode
from glassformer.evaluation.masked import masked_scores, pseudo_perplexity
from glassformer.evaluation.pairs import translation_scores
from glassformer.inference.classify import classify_texts, tag_words, text_rows
from glassformer.inference.decode import beginning, causal_frame, check_prompts, start_id, stream_texts
from glassformer.inference.embed import Vectors, described, embed
from glassformer.inference.ensemble import Vote
from glassformer.inference.fill import Filling, fill_by_writing, fill_masks, fill_spans
from glassformer.inference.score import Score, text_scores
from glassformer.inference.translator import Translation, Translator
from glassformer.models.build import Network
from glassformer.objectives.masked import MaskedObjective
from glassformer.objectives.noise import MASKED
from glassformer.recurrent_config import RecurrentConfig
from glassformer.run_config import (
    BeamConfig,
    CausalConfig,
    ClassificationConfig,
    GenerationConfig,
    InfillingConfig,
    LabelData,
    MaskedConfig,
    NothingConfig,
    PairData,
    Run,
    Seq2SeqConfig,
    SpansConfig,
    TaggingConfig,
)
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.training.material import Tokenizers
from glassformer.training.measure import Measurer
from glassformer.training.text_objectives import sentinel_ids

Progress = Callable[[int, int], None]
Say = Callable[[str], None]
Prompt = str | Sequence[int]


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
    labels: tuple[str, ...] = ()
    """Names of classes or tags, by number."""
    others: tuple[Network, ...] = ()
    """Further members of an ensemble (`ensemble`), which vote on targets and on labels."""
    folder: Path | None = None
    """Where it was loaded from."""
    data_digest: str | None = None
    """Of the data that it was trained on; None where no state of training stands beside the model."""

    @property
    def members(self) -> list[Network]:
        """All networks of an ensemble; else the one."""
        return [self.network, *self.others]

    @property
    def vote(self) -> Network | Vote:
        """What says labels of whole rows, and is measured: the network, or the members as one."""
        return Vote(self.members, of_numbers=self.says_numbers) if self.others else self.network

    @property
    def is_seq2seq(self) -> bool:
        """Whether it makes a target from a source; else it goes on with a text."""
        config = self.network.config
        return isinstance(config, RecurrentConfig) or (config.encoder is not None and config.decoder is not None)

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.run.name if self.folder is None else str(self.folder)

    @property
    def goes_on(self) -> bool:
        """Whether it predicts the next token of a text."""
        return isinstance(self.run.objective, CausalConfig)

    @property
    def unit(self) -> str:
        """What a loss is the mean of."""
        units = {"masked": "chosen token", "classification": "text", "tagging": "word"}
        return units.get(self.run.objective.kind, "token")

    @property
    def reads_pairs(self) -> bool:
        """Whether it says a label for two texts at a time."""
        return isinstance(self.run.data, LabelData) and self.run.data.second_field is not None

    @property
    def says_numbers(self) -> bool:
        """Whether its labels are numbers."""
        return isinstance(self.run.data, LabelData) and self.run.data.outputs == "numbers"

    @property
    def learned(self) -> str:
        """What it learned to do, in words: models that learned something else cannot vote with it."""
        if isinstance(self.run.objective, ClassificationConfig):
            texts = "two texts" if self.reads_pairs else "a text"
            return f"say a {'number' if self.says_numbers else 'label'} for {texts}"
        return _LEARNED[self.run.objective.kind][0]

    @overload
    def generate(self, prompt: str, *, slide: bool = False, **settings: Any) -> str: ...
    @overload
    def generate(self, prompt: Sequence[Prompt], *, slide: bool = False, **settings: Any) -> list[str]: ...
    def generate(self, prompt: str | Sequence[Prompt], *, slide: bool = False, **settings: Any) -> str | list[str]:
        """The continuation of a prompt, or of each of several (texts or ids); a batch gives what each gives alone.

        `settings` are fields of `GenerationConfig` that replace the model's defaults. `slide` lets the context
        slide; else a prompt that does not fit is a `UserError`.
        """
        prompts: list[Prompt] = [prompt] if isinstance(prompt, str) else list(prompt)
        texts = [""] * len(prompts)
        for pieces in self.stream(prompts, slide=slide, **settings):
            texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
        return texts[0] if isinstance(prompt, str) else texts

    def stream(self, prompts: Sequence[Prompt], *, slide: bool = False, **settings: Any) -> Iterator[list[str]]:
        """Yields the new text of every prompt, step by step; no character is ever cut in two."""
        if isinstance(settings.get("stop"), str):
            settings["stop"] = (settings["stop"],)
        if not self.goes_on or not isinstance(self.generation, GenerationConfig):
            raise self._is_for_other("generate")
        config = replace(self.generation, **settings)
        ids = [self.prompt_ids(prompt) for prompt in prompts]
        yield from stream_texts(self.network, self.tokenizer, ids, config, slide=slide, device=self.device)

    def check_prompts(self, prompts: Sequence[str], *, slide: bool = False) -> None:
        """`UserError` when one of them cannot be gone on from, before any of them is."""
        check_prompts([self.prompt_ids(prompt) for prompt in prompts], self.network.config.max_len, slide)

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The ids of a prompt in its frame; an empty one starts from the token that stands between documents."""
        if not isinstance(prompt, str):
            return list(prompt) or beginning(self.tokenizer)
        return causal_frame(self.tokenizer).around(self.tokenizer.encode(prompt)) or beginning(self.tokenizer)

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

    @overload
    def score(self, text: str, target: str | None = None) -> Score: ...  # type: ignore[overload-overlap]
    @overload
    def score(self, text: Sequence[str], target: Sequence[str] | None = None) -> list[Score]: ...
    def score(self, text: Any, target: Any = None) -> Score | list[Score]:
        """log p of a text, or of a target given a text that is its source or its beginning; or of each of several.

        A model that goes on with a text takes both (`text_scores`); one that makes targets from sources needs a target.
        """
        if isinstance(text, str):
            return self.score([text], None if target is None else [target])[0]
        if self.is_seq2seq:
            if target is None:
                raise UserError(f"{self.name} makes a target from a source: give the target that is to be scored too")
            return self.translator.score(text, target)
        if not self.goes_on:
            raise self._is_for_other("score")
        max_len = self.network.config.max_len
        return text_scores(self.network, self.tokenizer, text, target, max_len=max_len, device=self.device)

    @property
    def translator(self) -> Translator:
        """What translates with this model; `UserError` when it has no source."""
        self.require_source()
        return Translator(self.members, self.tokenizer, self.source_tokenizer, self.device)

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
        say: Say = _warn,
    ) -> LossReport:
        """The reported loss on the validation side of the run's own data, or on the whole of other data.

        Every target once; the trainer's number, by its own code. Text is cut into consecutive windows of the context
        length; pairs are `source` and `target`, two aligned files, or `path`, one file that holds both. `say` is told
        what is left out (`pairs`), and that the run's own data has changed since.
        """
        measure = self.measurer(say).measure(path, source, target)
        autocast = torch.bfloat16 if self.run.train.precision == "bf16" else None
        report = (lambda done: progress(done, measure.n_targets)) if progress else None
        network = self.vote
        with evaluation_mode(network):
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
        say: Say = _warn,
        **settings: Any,
    ) -> dict[str, Any]:
        """Scores on the same data, in percent: of what it writes for sources, of labels, of what it puts behind masks.

        BLEU and chrF or error rates of pairs; accuracy, F1 and calibration of labels, with the whole report under
        `report`; the accuracy behind masks. A model that goes on with a text has its loss alone: none.
        """
        if isinstance(self.run.objective, (CausalConfig, InfillingConfig, SpansConfig)):
            return {}
        measure = self.measurer(say).measure(path, source, target)
        if isinstance(self.run.data, PairData):
            return dict(
                translation_scores(self.translator, measure.pairs, self.run.data, self._beam(settings), progress)
            )
        if isinstance(self.run.data, LabelData):
            return label_scores(self.vote, measure.examples, self.labels, self.run.data, self.device)
        assert isinstance(measure.objective, MaskedObjective)
        n_masked = int(measure.n_targets * measure.objective.share * MASKED)
        report = (lambda done: progress(done, n_masked)) if progress else None
        return asdict(masked_scores(self.network, measure.objective, measure.batches(), self.device, report))

    def pseudo_perplexity(
        self, path: str | Path | None = None, progress: Progress | None = None, say: Say = _warn
    ) -> float:
        """exp of the mean -log p of every token of a text given all others: one forward a token."""
        measure = self.measurer(say).measure(path)
        if not isinstance(measure.objective, MaskedObjective):
            raise UserError(f"{self.name} fills no masks, and pseudo-perplexity is for models that do")
        report = (lambda done: progress(done, measure.n_targets)) if progress else None
        return pseudo_perplexity(self.network, measure.objective, measure.batches(), self.device, report)

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
        return self.measurer(say).pairs(path, source, target)[0]

    def measurer(self, say: Say = _warn) -> Measurer:
        """What finds and reads the data that the model is measured on; `UserError` when it predicts nothing."""
        if isinstance(self.run.objective, NothingConfig):
            raise self._is_for_other("evaluate")
        separate = None if self.source_tokenizer is self.tokenizer else self.source_tokenizer
        tokenizers = Tokenizers(self.tokenizer, separate)
        return Measurer(self.run, self.vote.config, tokenizers, self.labels, self.data_digest, say)

    def fill(self, text: str, n: int = 5, **settings: Any) -> Filling:
        """What stands behind the `[MASK]`s of a text: candidates of an encoder, or a text that a denoiser writes.

        `n` candidates for each mask; `settings` are fields of `BeamConfig`, for a denoiser.
        """
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

    def classify(self, texts: Sequence[str | tuple[str, str]], say: Say = _warn) -> list[dict[str, float]]:
        """The probability of each class for each text or pair of texts, or, under `number`, the number it says."""
        if not isinstance(self.run.objective, ClassificationConfig):
            raise self._is_for_other("classify")
        rows = [(text,) if isinstance(text, str) else text for text in texts]
        for row in rows:
            if (len(row) > 1) != self.reads_pairs:
                raise UserError(f"{self.name} reads {'two texts' if self.reads_pairs else 'one text'} at a time")
        return classify_texts(self.vote, self.tokenizer, rows, self.labels, self.device, say)

    def tag(self, sentences: Sequence[Sequence[str]], say: Say = _warn) -> list[list[tuple[str, float]]]:
        """The most probable tag of every word, and its probability; words behind the model's length have none."""
        if not isinstance(self.run.objective, TaggingConfig):
            raise self._is_for_other("tag")
        return tag_words(self.vote, self.tokenizer, sentences, self.labels, self.device, say)

    def embed(self, texts: Sequence[str], say: Say = _warn) -> Vectors:
        """(N, D) a vector of each text, in the frame in which the model reads a text in training.

        A model of vectors gives what its `forward` gives: pooled as its head says. Any other model gives the mean of
        the last hidden states: an encoder over all tokens, special ones included; a causal model over the text's own
        tokens, without those before it, which see nothing of the text. `say` is told how many texts are cut, and that
        a pooler is applied: sentence encoders have none, and older versions imported them with one.
        """
        if self.is_seq2seq:
            raise UserError(f"{self.name} makes a target from a source; vectors come from a model of one stack")
        if self.others:
            raise UserError("directions mean other things in each model: ask one of them for vectors, not the ensemble")
        config = self.network.config
        assert isinstance(config, TransformerConfig)  # one stack
        cut = config.head.max_tokens if isinstance(config.head, VectorHead) else 0
        if isinstance(config.head, VectorHead) and config.head.pooler in ("tanh", "relu"):
            say(
                f"{self.name} gives the output of its pooler ({self.vectors_are}); a sentence encoder that an older "
                "version imported without its modules.json must be imported again"
            )
        max_len = cut or config.max_len
        rows = [(text,) for text in texts]
        if not self.goes_on:
            return embed(self.network, text_rows(self.tokenizer, rows, max_len, say), self.device)
        frame, start = causal_frame(self.tokenizer), start_id(self.tokenizer)
        if_empty = [] if start is None else [start]
        examples = text_rows(self.tokenizer, rows, max_len, say, frame=frame, if_empty=if_empty)
        return embed(self.network, examples, self.device, n_before=len(frame.before))

    @property
    def vectors_are(self) -> str:
        """What the vectors of `embed` are, in words."""
        config = self.network.config
        assert isinstance(config, TransformerConfig)  # one stack
        return described(config.head, is_causal=self.goes_on)

    def text_ids(self, text: str) -> list[int]:
        """The ids that the model reads for one text, with the special tokens of its training around them; not cut.

        Of an encoder-decoder these are the ids that its encoder reads.
        """
        if self.is_seq2seq:
            return self.encode_source(text)
        if self.goes_on:
            return self.prompt_ids(text)
        (row,), _ = encode_texts(self.tokenizer, [(text,)], sys.maxsize)
        return row.token_ids.tolist()

    def _is_for_other(self, verb: str) -> UserError:
        """What is said to someone who uses the model for what it has not learned."""
        right = _LEARNED[self.run.objective.kind][1]
        return UserError(f"{self.name} learned to {self.learned}: use it with {right}, not {verb}")


_LEARNED = {
    "causal": ("go on with a text", "generate"),
    "seq2seq": ("make a target from a source", "translate"),
    "masked": ("fill masks", "fill"),
    "infilling": ("fill masks", "fill"),
    "spans": ("fill masks", "fill"),
    "classification": ("say a label for a text", "classify"),
    "tagging": ("tag words", "tag"),
    "nothing": ("make vectors of texts", "embed"),
}
"""What a model of each objective does, and the verb for it."""
